"""The page of the service in a real browser."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from ..browser.conftest import CHROMIUM, FLAGS

MILLISECONDS = 60_000
RESTART_MILLISECONDS = 200_000  # pages try again after up to half a minute


@pytest.fixture
def visit(hub: Any) -> Iterator[Callable[[str], Any]]:
    """Open `visit("ada")`: the page, in a browser in which she has logged in. No script
    may throw."""
    if not CHROMIUM.exists():
        pytest.skip(f"needs {CHROMIUM} (on Debian: apt-get install chromium)")
    api = pytest.importorskip("playwright.sync_api", reason="needs playwright")
    with api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=list(FLAGS))
        thrown: list[str] = []

        def visit(user: str) -> Any:
            page = browser.new_context().new_page()
            page.set_default_timeout(MILLISECONDS)
            page.on("pageerror", lambda error: thrown.append(str(error)))
            page.goto(f"{hub.url}/hub/login?next=/services/gpushare/")
            page.locator("#username_input").fill(user)
            page.locator("#password_input").fill("class")
            page.locator("#login_submit").click()
            page.locator("#jupyter-gpushare-page h2").first.wait_for()
            return page

        yield visit
        browser.close()
        assert not thrown


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
