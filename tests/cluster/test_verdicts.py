"""What a look at an active job means: the table, row by row."""

from __future__ import annotations

from typing import Any

import pytest

from jupyter_gpushare.cluster import generation
from jupyter_gpushare.cluster.engines.engine import Lease, Node, Status
from jupyter_gpushare.cluster.facts import Facts
from jupyter_gpushare.cluster.hand import Hand
from jupyter_gpushare.cluster.jobs import (
    CANCELLED,
    NO_ROOM,
    NOT_STARTED,
    OVERDUE,
    RANK_LOST,
    Job,
    Spec,
    State,
)
from jupyter_gpushare.cluster.looks import Look
from jupyter_gpushare.cluster.sights import Sight, ending_of, sight_of
from jupyter_gpushare.cluster.verdicts import Bounds, Verdict, verdict_of

from .work import Makes, opened

BOTH = ("n0", "n1")
LATE = 100.0
WAIT = Verdict("wait")


def job(state: State = "running", **fields: Any) -> Job:
    made = {
        "id": "a",
        "user": "",
        "directory": "/a",
        "spec": Spec(3, resumes=True, tells=True),
        "submitted": 0.0,
        "generation": 1,
        "place": {"n0": 2, "n1": 1},
        "handle": "h",
    }
    return Job(**{**made, "state": state, **fields})


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
        (job(), Sight(codes={"n0": 3}), 0, Verdict("end", RANK_LOST)),
        (job(), Sight(codes={"n0": -9}), 0, Verdict("end", RANK_LOST)),
        (job(), Sight(is_silent=True), 0, Verdict("end", RANK_LOST)),
        (job(is_cancelled=True), Sight(), 0, Verdict("end", CANCELLED)),
        (job("starting"), Sight(is_pending=True), 10, WAIT),
        (job("starting"), Sight(is_pending=True), 11, Verdict("end", NO_ROOM)),
        (job("starting"), Sight(begun=["n0"]), 10, WAIT),
        (job("starting"), Sight(begun=["n0"]), 11, Verdict("end", NOT_STARTED)),
        (job("starting"), Sight(begun=BOTH), LATE, WAIT),  # it imports what it needs
        (job("starting"), Sight(begun=BOTH, computed=0.1), 0, Verdict("run")),
        (job(), Sight(begun=BOTH, computed=0.1), 0, WAIT),
        (job("yielding"), Sight(begun=BOTH), 0, Verdict("ask")),
        (job("yielding"), Sight(begun=BOTH, heard=["n0"]), 0, Verdict("ask")),
        (job("yielding"), Sight(begun=BOTH, heard=BOTH), 30, WAIT),
        (job("yielding"), Sight(begun=BOTH, heard=["n0"], codes={"n1": 0}), 0, WAIT),
        (job("yielding"), Sight(begun=BOTH, heard=BOTH), 31, Verdict("end", OVERDUE)),
        (job("yielding"), Sight(codes={"n0": 1}, heard=BOTH), 31, Verdict("end", RANK_LOST)),
        (job("ending"), Sight(begun=BOTH), 10, Verdict("kill")),
        (job("ending", is_cancelled=True), Sight(), 10, Verdict("kill")),
        (job("ending"), Sight(begun=BOTH), 11, Verdict("close")),
    ],
)
def test_what_a_look_means(before: Job, sight: Sight, seconds: float, verdict: Verdict) -> None:
    assert verdict_of(before, sight, before.since + seconds, Bounds()) == verdict


NODES = {"n0": Node(2), "n1": Node(2)}
LEASE = Lease("a", 1, "h")
RUNNING = Status("running")
HAND = Hand()
BOTH_NODES = ["n0", "n1"]


@pytest.mark.parametrize(
    ("handle", "look", "is_gone"),
    [
        ("h", Look(NODES, {LEASE: RUNNING}), False),
        ("h", Look(NODES, {}), True),
        ("h", Look(NODES, {Lease("a", 2, "h"): RUNNING}), True),
        ("h", Look(NODES, {LEASE: Status("unreachable")}), True),
        ("h", Look(NODES, {LEASE: Status("pending")}), False),
        ("h", Look({"n0": Node(2)}, {LEASE: RUNNING}), True),
        ("h", Look({**NODES, "n1": Node(2, alive=False)}, {LEASE: RUNNING}), True),
        ("h", Look({**NODES, "n1": Node(0)}, {LEASE: RUNNING}), False),  # it is to be emptied
        ("h", Look({**NODES, "n2": Node(2, alive=False)}, {LEASE: RUNNING}), False),
        ("h", Look(), False),  # the engine did not answer
        ("", Look(NODES, {}), False),  # nor was it asked for all that runs
        ("", Look(NODES, {}, []), True),
    ],
)
def test_a_generation_is_gone_only_where_the_engine_says_so(
    handle: str, look: Look, is_gone: bool
) -> None:
    assert sight_of(job(handle=handle), look, Facts()).is_gone == is_gone


def test_what_a_generation_has_written_is_seen(make_job: Makes) -> None:
    path = make_job(1, 0)
    directory = opened(path, n0=2, n1=1)
    for name in ("beat.n0", "yield.n1", "beat.x", "yield.x"):
        (directory / name).touch()
    for node, code in (("n0", 75), ("x", 3)):  # x is none of its nodes
        generation.write(directory / f"ended.{node}.json", {"code": code})
    generation.write(directory / "progress.json", {"iteration": 3, "computed": 1.5})
    look = Look(NODES, {LEASE: Status("running", {"n0": 3})})
    sight = sight_of(job(), look, HAND.look(str(path), 1, BOTH_NODES, 30.0))
    assert sight == Sight(
        where={"n0": 3}, begun={"n0"}, heard={"n1"}, codes={"n0": 75}, computed=1.5
    )
    generation.close_generation(path, 1)
    assert sight_of(job(), look, HAND.look(str(path), 1, BOTH_NODES, 30.0)).is_closed


@pytest.mark.parametrize(
    ("before", "was_asked"),
    [
        (job(), False),
        (job("yielding"), True),
        (job("ending", reason=OVERDUE), True),
        (job("ending", reason=RANK_LOST), False),
    ],
)
def test_how_a_generation_ended_is_read_from_its_directory(
    before: Job, was_asked: bool, make_job: Makes
) -> None:
    path = make_job(1, 0)
    directory = opened(path, n0=2, n1=1)
    (directory / "it-000000007").touch()
    (directory / "log.n1").write_text("no\nnumber")
    for node, code in (("n0", 0), ("n1", 3)):
        generation.write(directory / f"ended.{node}.json", {"code": code})
    (directory / "beat.n0").touch()  # a launcher has begun, and no rank
    ending = ending_of(before, HAND.close(str(path), 1, BOTH_NODES))
    assert (ending.nodes, ending.codes) == (2, {"n0": 0, "n1": 3})
    assert (ending.newest, ending.said) == ("g1.closed/it-000000007", "no\nnumber")
    assert (ending.reason, ending.was_asked) == (before.reason, was_asked)
    assert not ending.has_begun
