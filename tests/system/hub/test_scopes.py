"""Which users may look at the hub's service, and which may change: each rule with a user that it
refuses.

ada and ben are students, eve is a user of the hub without any scope of ours, admin has all.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psutil
import pytest
from jupyter_gpushare_server.hub_service import MOST_TOKENS
from jupyter_gpushare_server.openapi import document

from .conftest import API, SERVICE, ask

pytestmark = pytest.mark.system

READS = sorted(
    path.lstrip("/")
    for path, verbs in document()["paths"].items()
    if "get" in verbs
    and path != "/events"  # a WebSocket
    and not path.startswith("/jobs")  # seen in the user's own server alone
)
LACKS = "You lack the scope custom:gpushare:read, which is needed here."
OAUTH = "/hub/api/oauth2/authorize"


@pytest.mark.parametrize("path", [*READS, "nowhere"])
def test_a_route_is_read_by_users_with_the_scope_alone(hub: Any, path: str) -> None:
    assert hub.service(path, "ada").status == (404 if path == "nowhere" else 200)
    refused = hub.service(path, "eve")
    assert (refused.status, refused.json["message"]) == (403, LACKS)
    assert hub.service(path, "").status == 403


def test_a_token_that_the_hub_does_not_know_opens_nothing(hub: Any) -> None:
    assert hub.with_token("state", "0" * 32).status == 403


@pytest.mark.parametrize("user", ["ada", "admin"])
@pytest.mark.parametrize("path", ["jobs", "jobs/train-1", "jobs/train-1/log"])
def test_the_service_shows_no_jobs_since_they_are_seen_in_the_users_server(
    hub: Any, user: str, path: str
) -> None:
    answer = hub.service(path, user)
    assert answer.status == 403
    assert "in the Jupyter server of their user" in answer.body


def test_events_come_to_users_with_the_scope_alone(hub: Any) -> None:
    assert hub.first_event("ada")["type"] == "Viewer"
    assert hub.first_event("eve") == 403
    assert hub.first_event("") == 403


@pytest.mark.parametrize("path", ["", "metrics"])
def test_pages_are_seen_with_the_scope_alone(hub: Any, path: str) -> None:
    assert hub.page(path, "ada").status == 200
    refused = hub.page(path, "eve")
    assert (refused.status, refused.body) == (403, LACKS)
    answer = hub.page(path)
    assert answer.status == 302
    assert answer.url.startswith(OAUTH)
    assert "gpushare_broker_up 1.0" in hub.page("metrics", "admin").body


def test_a_browser_of_a_user_with_the_scope_alone_gets_the_panel(hub: Any) -> None:
    for user, status in (("ada", 200), ("eve", 403)):
        answer = hub.browse(user).visit("services/gpushare/")
        assert answer.status == status
        for part in ('id="jupyter-gpushare-page"', 'data-base-url="/services/gpushare/"'):
            assert (part in answer.body) == (status == 200)


def test_a_login_at_the_page_starts_no_server(hub: Any) -> None:
    hub.browse("cleo")
    assert not hub.hub_says("users/cleo").json["servers"]


def test_a_browser_without_the_pages_token_changes_nothing(hub: Any) -> None:
    """Otherwise any other page could, in the browser of an admin."""
    admin = hub.browse("admin")
    assert admin.visit("services/gpushare/").status == 200
    policy = admin.visit(f"{SERVICE}/{API}/policy", "PUT", b'{"policy": "fifo"}')
    assert policy.status == 403
    assert hub.service("policy", "ada").json["policy"] == "fair"


def test_the_page_has_what_it_needs_and_nothing_of_others(hub: Any) -> None:
    for name in ("page.js", "page.css"):
        answer = hub.page(f"static/{name}")
        assert answer.status == 200
        assert answer.body


def test_the_policy_is_chosen_by_an_admin_alone(hub: Any) -> None:
    assert hub.service("viewer", "admin").json["is_administrator"]
    viewer = hub.service("viewer", "ada").json
    assert not (viewer["may_change"] and viewer["is_administrator"])
    wanted = {"policy": "fifo"}
    assert hub.service("policy", "ada", "PUT", wanted).status == 403
    assert hub.service("policy", "eve", "PUT", wanted).status == 403
    assert hub.service("policy", "ada").json["policy"] == "fair"
    assert hub.service("policy", "admin", "PUT", wanted).json["policy"] == "fifo"
    assert hub.service("policy", "admin", "PUT", {"policy": "fair"}).json["policy"] == "fair"


@pytest.fixture
def ben_is_admin(hub: Any) -> Iterator[None]:
    """Return a token of the hub's admin; the rulebook does not name this user."""
    for is_admin in (True, False):
        url = f"{hub.url}/hub/api/users/ben"
        assert ask(url, hub.token("admin"), "PATCH", {"admin": is_admin}).status == 200
        if is_admin:
            yield


def test_a_narrow_token_of_the_hubs_admin_changes_nothing(hub: Any, ben_is_admin: None) -> None:
    """It was made for a program that only looks."""
    scopes = ["access:services!service=gpushare", "custom:gpushare:read"]
    made = hub.hub_says("users/ben/tokens", "POST", {"note": "narrow", "scopes": scopes})
    assert made.status == 201, made
    narrow = made.json["token"]
    assert not hub.with_token("viewer", narrow).json["is_administrator"]
    assert hub.with_token("policy", narrow, "PUT", {"policy": "fifo"}).status == 403
    assert hub.service("policy", "admin").json["policy"] == "fair"


def test_countless_tokens_of_a_user_have_few_threads_of_the_service(hub: Any) -> None:
    service = psutil.Process(hub._service_pid())
    before = service.num_threads()
    for number in range(3 * MOST_TOKENS):
        made = hub.hub_says("users/ben/tokens", "POST", {"note": f"one more: {number}"})
        assert hub.with_token("state", made.json["token"]).status == 200
    hub.wait_for(lambda: service.num_threads() < before + 2 * MOST_TOKENS)
    assert hub.service("state", "ben").status == 200


def test_the_class_writes_its_accounts_into_its_own_folder(hub: Any) -> None:
    hub.wait_for(lambda: (hub.home / "run" / "accounts.sqlite").exists())
    broker = psutil.Process(hub.broker())
    assert broker.environ()["JUPYTER_GPUSHARE_ACCOUNTS"].startswith(str(hub.home))
