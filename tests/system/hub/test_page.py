"""The page of the service in a real browser."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from ..browser.conftest import CHROMIUM, chromium, jp_asyncio_loop, jp_server_cleanup, new_page

pytestmark = pytest.mark.skipif(not CHROMIUM.exists(), reason=f"needs {CHROMIUM}")

__all__ = ["chromium", "jp_asyncio_loop", "jp_server_cleanup", "new_page"]  # fixtures
RESTART_MILLISECONDS = 200_000  # pages try again after up to half a minute


@pytest.fixture
def visit(hub: Any, new_page: Callable[..., Any]) -> Callable[[str], Any]:
    """Open `visit("ada")`: the page, in a browser in which she has logged in."""

    def visit(user: str) -> Any:
        page = new_page(1280, 800)
        page.goto(f"{hub.url}/hub/login?next=/services/gpushare/")
        page.locator("#username_input").fill(user)
        page.locator("#password_input").fill("class")
        page.locator("#login_submit").click()
        page.locator("#jupyter-gpushare-page h2").first.wait_for()
        return page

    return visit


def test_an_admin_chooses_the_policy_there(hub: Any, visit: Any) -> None:
    page = visit("admin")
    for policy in ("fifo", "fair"):
        page.get_by_role("combobox", name="Policy").select_option(policy)
        page.get_by_role("button", name="Apply to all notebooks").click()
        hub.wait_for(lambda policy=policy: hub.service("policy", "ada").json["policy"] == policy)


@pytest.mark.thorough
def test_a_killed_service_comes_back_and_the_page_logs_in_again(hub: Any, visit: Any) -> None:
    """The new one knows no page any more, and finds the broker that was there."""
    broker, page = hub.broker(), visit("ada")
    with page.expect_navigation(timeout=RESTART_MILLISECONDS):
        hub.kill("service")
    page.locator("#jupyter-gpushare-page h2").first.wait_for()
    assert hub.broker() == broker
