"""Who may look at the hub's service, and who may change: each rule with somebody whom it refuses.

ada and ben are students, eve is a user of the hub without any scope of ours, admin has all.
"""

from __future__ import annotations

from typing import Any

import pytest
from jupyter_gpushare_server.openapi import document

READS = sorted(
    path.lstrip("/")
    for path, verbs in document()["paths"].items()
    if "get" in verbs and path != "/events"  # a WebSocket
)
OAUTH = "/hub/api/oauth2/authorize"


@pytest.mark.parametrize("path", READS)
def test_a_route_is_read_by_users_with_the_scope_alone(hub: Any, path: str) -> None:
    assert hub.service(path, "ada").status == 200
    assert hub.service(path, "eve").status == 403
    assert hub.service(path, "").status == 403


def test_events_come_to_users_with_the_scope_alone(hub: Any) -> None:
    assert hub.first_event("ada")["type"] == "Viewer"
    assert hub.first_event("eve") == 403
    assert hub.first_event("") == 403


@pytest.mark.parametrize("path", ["", "metrics"])
def test_pages_are_seen_with_the_scope_alone(hub: Any, path: str) -> None:
    assert hub.page(path, "ada").status == 200
    assert hub.page(path, "eve").status == 403
    answer = hub.page(path)
    assert answer.status == 302
    assert answer.url.startswith(OAUTH)


def test_the_metrics_are_those_of_the_broker(hub: Any) -> None:
    assert "gpushare_broker_up 1.0" in hub.page("metrics", "admin").body


def test_a_browser_of_a_user_with_the_scope_gets_the_panel(hub: Any) -> None:
    answer = hub.browse("ada").visit("services/gpushare/")
    assert answer.status == 200
    assert 'id="jupyter-gpushare-page"' in answer.body
    assert 'data-base-url="/services/gpushare/"' in answer.body


def test_a_browser_of_a_user_without_it_gets_403(hub: Any) -> None:
    answer = hub.browse("eve").visit("services/gpushare/")
    assert answer.status == 403
    assert "jupyter-gpushare-page" not in answer.body


def test_a_browser_that_cannot_show_the_pages_word_changes_nothing(hub: Any) -> None:
    """Or any other page could, in the browser of an admin."""
    admin = hub.browse("admin")
    assert admin.visit("services/gpushare/").status == 200
    path = "services/gpushare/jupyter-gpushare/api/v1/policy"
    assert admin.visit(path, "PUT", b'{"policy": "fifo"}').status == 403
    assert hub.service("policy", "ada").json["policy"] == "fair"


def test_the_page_has_what_it_needs_and_nothing_of_others(hub: Any) -> None:
    for name in ("page.js", "page.css"):
        answer = hub.page(f"static/{name}")
        assert answer.status == 200
        assert answer.body


def test_the_policy_is_chosen_by_an_admin_alone(hub: Any) -> None:
    wanted = {"policy": "fifo"}
    assert hub.service("policy", "ada", "PUT", wanted).status == 403
    assert hub.service("policy", "eve", "PUT", wanted).status == 403
    assert hub.service("policy", "ada").json["policy"] == "fair"
    assert hub.service("policy", "admin", "PUT", wanted).json["policy"] == "fifo"
    assert hub.service("policy", "admin", "PUT", {"policy": "fair"}).json["policy"] == "fair"


def test_the_page_knows_who_may_change(hub: Any) -> None:
    assert hub.service("viewer", "admin").json["is_administrator"]
    viewer = hub.service("viewer", "ada").json
    assert not (viewer["may_change"] and viewer["is_administrator"])


def test_a_token_that_the_hub_does_not_know_opens_nothing(hub: Any) -> None:
    assert hub.ask("services/gpushare/jupyter-gpushare/api/v1/state", "0" * 32).status == 403
