"""Notebooks of three users of a hub, and events around them.

All kernels here are processes of one Unix user: the hub tells which user is which.
"""

from __future__ import annotations

from typing import Any

import pytest

SHARE = "%load_ext jupyter_gpushare\n%gpushare on"
TURN = """\
import jupyter_gpushare as gpushare
for _ in gpushare.iterations(range(3)):
    pass"""


@pytest.fixture(scope="module")
def shared(hub: Any, kernels: Any) -> Any:
    """The kernels of ada and ben, which share."""
    for user in ("ada", "ben"):
        kernels.run(user, SHARE)
        kernels.run(user, TURN)
    hub.wait_for(lambda: set(hub.sessions()) == {"ada", "ben"})
    return kernels


@pytest.mark.system
def test_each_server_shows_the_notebooks_of_all(hub: Any, shared: Any) -> None:
    for user in ("ada", "ben"):
        answer = hub.own_server("sessions", user, user)
        assert {one["user"] for one in answer.json} == {"ada", "ben"}
        viewer = hub.own_server("viewer", user, user).json
        assert (viewer["user"], viewer["is_administrator"]) == (user, False)


@pytest.mark.system
def test_names_are_shown_to_users_that_the_rules_allow(hub: Any, shared: Any) -> None:
    """The service asks the broker with each visitor's own token."""
    names = {
        user: {name: one["name"] for name, one in hub.sessions(user).items()}
        for user in ("ada", "tess", "admin")
    }
    assert names["ada"]["ada"] == "ada.ipynb"
    assert names["ada"]["ben"] != "ben.ipynb"
    assert names["tess"] == names["admin"] == {"ada": "ada.ipynb", "ben": "ben.ipynb"}


@pytest.mark.system
def test_no_user_speaks_with_the_server_of_another(hub: Any, shared: Any) -> None:
    assert hub.own_server("state", "ada", "ben").status == 403
    assert hub.own_server("report", "ada", "ben").status == 403


@pytest.mark.system
def test_a_user_without_the_scope_does_not_share(hub: Any, shared: Any) -> None:
    shared.run("eve", "%load_ext jupyter_gpushare")
    with pytest.raises(hub.CellFailed, match="custom:gpushare:read"):
        shared.run("eve", "%gpushare on")
    assert "eve" not in hub.sessions()


@pytest.mark.system
@pytest.mark.parametrize("user", ["ada", "eve"])
def test_the_token_of_a_server_has_the_permissions_of_its_user(
    hub: Any, shared: Any, user: str
) -> None:
    """The `server` role gives the scope to all servers, and the hub reduces it to the user's."""
    values = shared.run(user, "import os", token="os.environ['JUPYTERHUB_API_TOKEN']")
    token = eval(values["token"])
    assert hub.with_token("state", token).status == (200 if user == "ada" else 403)


# --- restarts -------------------------------------------------------------------------------------


@pytest.fixture
def before(hub: Any, shared: Any) -> Any:
    """Return the sessions' ids, by user, which are the same after the test."""
    ids = {user: one["id"] for user, one in hub.sessions().items()}
    assert set(ids) == {"ada", "ben"}
    return ids


def go_on(hub: Any, kernels: Any, before: Any) -> None:
    """Wait until all are there again as they were, and have turns."""
    hub.wait_for(lambda: {u: one["id"] for u, one in hub.sessions().items()} == before)
    had = {user: one["iterations"] for user, one in hub.sessions().items()}
    for user in before:
        kernels.run(user, TURN)

    def have_more() -> bool:
        now = {user: one["iterations"] for user, one in hub.sessions().items()}
        return all(now.get(user, 0) > had[user] for user in before)

    hub.wait_for(have_more)


@pytest.mark.system
def test_a_killed_broker_comes_back_with_all_sessions(hub: Any, shared: Any, before: Any) -> None:
    killed = hub.kill("broker")
    hub.wait_for(lambda: hub.broker() not in (None, killed))
    go_on(hub, shared, before)


def kill_proxy(hub: Any) -> None:
    hub.kill("proxy")
    hub.ready()


@pytest.mark.parametrize(
    "end",
    [
        pytest.param(kill_proxy, marks=pytest.mark.system),
        pytest.param(lambda hub: hub.restart(), marks=pytest.mark.thorough),
    ],
    ids=["killed proxy", "restarted hub"],
)
def test_a_proxy_or_hub_that_ends_costs_no_notebook(
    hub: Any, shared: Any, before: Any, end: Any
) -> None:
    broker = hub.broker()
    end(hub)
    shared.reconnect()
    go_on(hub, shared, before)
    assert hub.broker() == broker
