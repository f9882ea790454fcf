"""The table of verdicts on an active job, row by row."""

from __future__ import annotations

from typing import Any

import pytest

from jupyter_gpushare.cluster import jobs as j
from jupyter_gpushare.cluster.engines.engine import Lease, Node, Status
from jupyter_gpushare.cluster.jobs import JobRecord, Spec, State
from jupyter_gpushare.cluster.launch.facts import Facts
from jupyter_gpushare.cluster.launch.generation import JobProgress
from jupyter_gpushare.cluster.looks.looks import EngineLook
from jupyter_gpushare.cluster.looks.sights import Sight, ending_of, sight_of
from jupyter_gpushare.cluster.looks.verdicts import Bounds, Verdict, verdict_of

BOTH = ("n0", "n1")
LATE = 100.0
WAIT = Verdict("wait")


def job(state: State = "running", **fields: Any) -> JobRecord:
    spec = Spec(3, resumes=True, tells=True)
    made: dict[str, Any] = {"spec": spec, "generation": 1, "place": {"n0": 2, "n1": 1}}
    made |= {"id": "a", "user": "", "directory": "/a", "submitted": 0.0, "handle": "h"}
    return JobRecord(**{**made, "state": state, **fields})


@pytest.mark.parametrize(
    ("before", "sight", "seconds", "verdict"),
    [
        (job(), Sight(begun=BOTH), LATE, WAIT),
        (job(), Sight(is_gone=True), 0, Verdict("close")),
        (job(), Sight(is_closed=True), 0, Verdict("close")),
        (job(), Sight(codes={"n0": 0, "n1": 0}), 0, Verdict("close")),
        (job(), Sight(codes={"n0": 0, "n1": 3}), 0, Verdict("close")),
        (job(is_cancelled=True), Sight(codes={"n0": 0, "n1": 0}), 0, Verdict("close")),
        (job(), Sight(codes={"n0": 0}), LATE, WAIT),
        (job(), Sight(codes={"n0": 75}), 0, WAIT),
        (job(), Sight(codes={"n0": 3}), 0, Verdict("end", j.RANK_LOST)),
        (job(), Sight(codes={"n0": -9}), 0, Verdict("end", j.RANK_LOST)),
        (job(), Sight(is_silent=True), 0, Verdict("end", j.RANK_LOST)),
        (job(is_cancelled=True), Sight(), 0, Verdict("end", j.CANCELLED)),
        (job("yielding", is_cancelled=True), Sight(), 0, Verdict("end", j.CANCELLED)),
        (job("starting"), Sight(is_pending=True), 10, WAIT),
        (job("starting"), Sight(is_pending=True), 11, Verdict("end", j.NO_ROOM)),
        (job("starting"), Sight(is_pending=True, begun=["n0"]), 11, WAIT),  # it has begun since
        (job("starting"), Sight(begun=["n0"]), 60, WAIT),
        (job("starting"), Sight(begun=["n0"]), 61, Verdict("end", j.NOT_STARTED)),
        (job("starting"), Sight(begun=["n0"], pended=5.0), 65, WAIT),
        (job("starting"), Sight(begun=["n0"], pended=5.0), 66, Verdict("end", j.NOT_STARTED)),
        (job("starting"), Sight(begun=BOTH), LATE, WAIT),  # it imports what it needs
        (job("starting"), Sight(begun=BOTH, computed=0.1), 0, Verdict("run")),
        (job(), Sight(begun=BOTH, computed=0.1), 0, WAIT),
        (job("yielding"), Sight(begun=BOTH), 0, Verdict("ask")),
        (job("yielding"), Sight(begun=BOTH, heard=["n0"]), 0, Verdict("ask")),
        (job("yielding"), Sight(begun=BOTH, heard=BOTH), 30, WAIT),
        (job("yielding"), Sight(begun=BOTH, heard=["n0"], codes={"n1": 0}), 0, WAIT),
        (job("yielding"), Sight(begun=BOTH, heard=BOTH), 31, Verdict("end", j.OVERDUE)),
        (job("yielding"), Sight(codes={"n0": 1}, heard=BOTH), 31, Verdict("end", j.RANK_LOST)),
        (job("ending"), Sight(begun=BOTH), 10, Verdict("kill")),
        (job("ending", is_cancelled=True), Sight(), 10, Verdict("kill")),
        (job("ending"), Sight(begun=BOTH), 11, Verdict("close")),
    ],
)
def test_what_a_look_means(
    before: JobRecord, sight: Sight, seconds: float, verdict: Verdict
) -> None:
    assert verdict_of(before, sight, before.since + seconds, Bounds()) == verdict


NODES = {"n0": Node(2), "n1": Node(2)}
LEASE = Lease("a", 1, "h")
RUNNING = Status("running")


@pytest.mark.parametrize(
    ("handle", "look", "is_gone"),
    [
        ("h", EngineLook(NODES, {LEASE: RUNNING}), False),
        ("h", EngineLook(NODES, {}), True),
        ("h", EngineLook(NODES, {Lease("a", 2, "h"): RUNNING}), True),
        ("h", EngineLook(NODES, {LEASE: Status("unreachable")}), True),
        ("h", EngineLook(NODES, {LEASE: Status("pending")}), False),
        ("h", EngineLook({"n0": Node(2)}, {LEASE: RUNNING}), True),
        ("h", EngineLook({**NODES, "n1": Node(2, alive=False)}, {LEASE: RUNNING}), True),
        ("h", EngineLook({**NODES, "n1": Node(0)}, {LEASE: RUNNING}), False),  # it is to be emptied
        ("h", EngineLook({**NODES, "n2": Node(2, alive=False)}, {LEASE: RUNNING}), False),
        ("h", EngineLook(), False),  # the engine did not answer
        ("h", EngineLook(None, {LEASE: RUNNING}), False),  # it has no nodes
        ("h", EngineLook(None, {}), True),
        ("", EngineLook(NODES, {}), False),  # nor was it asked for all that runs
        ("", EngineLook(NODES, {}, []), True),
    ],
)
def test_a_generation_is_gone_only_where_the_engine_says_so(
    handle: str, look: EngineLook, is_gone: bool
) -> None:
    assert sight_of(job(handle=handle), look, Facts()).is_gone == is_gone


def test_what_is_known_of_a_generation_is_seen() -> None:
    facts = Facts(begun=["n0"], heard=["n1"], codes={"n0": 75}, told=JobProgress(3, 1.5))
    look = EngineLook(NODES, {LEASE: Status("running", {"n0": 3})})
    assert sight_of(job(), look, facts) == Sight(
        where={"n0": 3},
        begun={"n0"},
        heard={"n1"},
        codes={"n0": 75},
        computed=1.5,
        told=JobProgress(3, 1.5),
    )
    assert sight_of(job(), look, Facts(is_closed=True)).is_closed


@pytest.mark.parametrize(
    ("before", "was_asked"),
    [
        (job(), False),
        (job("yielding"), True),
        (job("ending", reason=j.OVERDUE), True),
        (job("ending", reason=j.RANK_LOST), False),
    ],
)
def test_how_a_generation_ended_follows_from_what_it_has_left(
    before: JobRecord, was_asked: bool
) -> None:
    codes = {"n0": 0, "n1": 3}
    left = Facts(begun=["n0"], codes=codes, newest="g1.closed/it-7", said="no", is_closed=True)
    ending = ending_of(before, left)
    assert (ending.nodes, ending.codes, ending.has_begun) == (2, codes, False)
    assert (ending.newest, ending.said) == ("g1.closed/it-7", "no")
    assert (ending.reason, ending.was_asked) == (before.reason, was_asked)
