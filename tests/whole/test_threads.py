"""Several threads of one notebook: no turn is given back during the iteration of another
thread."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from .conftest import Notebook

pytestmark = pytest.mark.system

SECONDS = 60.0

IN_A_TURN = """
import threading
import jupyter_gpushare as gpushare
from jupyter_gpushare.client.sharing import current
go_on = threading.Event()
with gpushare.turn() as session:
    since = session._usage.since
    print("inside", flush=True)
    assert go_on.wait(60)
"""
STATE = "print(session.holding, session._residency.busy, session._usage.since == since)"


class Subshell:
    """Another thread of a kernel that runs cells."""

    def __init__(self, of: Notebook) -> None:
        self._client = of.client
        request = of.client.session.msg("create_subshell_request", {})
        of.client.control_channel.send(request)
        self._id = of.client.get_control_msg(timeout=SECONDS)["content"]["subshell_id"]

    def start(self, code: str) -> str:
        request = self._client.session.msg("execute_request", {"code": code, "silent": False})
        request["header"]["subshell_id"] = self._id
        self._client.shell_channel.send(request)
        return str(request["header"]["msg_id"])


def test_the_end_of_a_cell_in_a_subshell_leaves_the_turn_and_the_cell_that_runs(
    notebook: Callable[..., Notebook],
) -> None:
    ours = notebook()
    subshell = Subshell(ours)
    ours.start(IN_A_TURN)
    begun: Any = {}
    while begun.get("text") != "inside\n":
        begun = ours.client.get_iopub_msg(timeout=SECONDS)["content"]
    assert ours.end(subshell.start("pass")) == ""
    assert ours.end(subshell.start(STATE)) == "True True True\n"
    ours.end(subshell.start("go_on.set()"))
