"""The table of outcomes, by how a generation of a job ended, row by row."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jupyter_gpushare.cluster import jobs as j
from jupyter_gpushare.cluster.jobs import LOST, Ending, JobRecord, Outcome, Spec, outcome_of
from jupyter_gpushare.wire.jobs import OVER

NEWEST = "g1.closed/it-5"
ONCE = {"resumes": False}
DONE, YIELDED = {"n0": 0, "n1": 0}, {"n0": 75, "n1": 75}
NOT_AGAIN = "generation 1 was lost (not started), and a job of this kind is not started again"
NO_NEWER = "generation 1 was lost, as 2 before it, without a newer checkpoint"


def job(spec: Any = None, **fields: Any) -> JobRecord:
    made = Spec(2, **{"resumes": True, **(spec or {})})
    return JobRecord(
        id="a", user="", directory="/a", spec=made, submitted=0, generation=1, **fields
    )


def ending(**fields: Any) -> Ending:
    return Ending(**{"nodes": 2, "has_begun": True, **fields})


HAD = job({"resumes": False}, handle="7", losses=1)
NONE = {"has_begun": False, "said": "no python\n it was here"}
NOT_STARTED = Outcome(j.NOT_STARTED, "queued", 2, "no python; it was here")
NEVER = "it did not start, as 2 times before"


def failed(said: str) -> Outcome:
    return Outcome("failed", "failed", 0, f"it exited with status {said}")


@pytest.mark.parametrize(
    ("before", "left", "outcome"),
    [
        (job(), ending(codes=DONE), Outcome("done", "done")),
        (job(is_cancelled=True), ending(codes=DONE), Outcome("cancelled", "cancelled")),
        (job(is_cancelled=True), ending(), Outcome("cancelled", "cancelled")),
        (job(), ending(codes={"n0": 75, "n1": 0}, newest=NEWEST), Outcome("yielded", "queued")),
        (job(losses=1), ending(codes=YIELDED, was_asked=True), Outcome("yielded", "queued", 1)),
        (job(), ending(codes=YIELDED), Outcome(LOST, "queued", 1)),
        (job(), ending(codes={"n0": 75}, was_asked=True), Outcome(LOST, "queued", 1)),
        (job(), ending(codes={"n0": 0, "n1": -9}), Outcome(LOST, "queued", 1)),
        (job(), ending(codes={"n0": 76, "n1": 76}), Outcome(LOST, "queued", 1)),
        (job(losses=2), ending(newest=NEWEST), Outcome(LOST, "queued", 0)),
        (job(), ending(reason=j.OVERDUE), Outcome(LOST, "queued", 1)),
        (job(), ending(reason=j.RANK_LOST, codes={"n0": -9}), Outcome(LOST, "queued", 1)),
        (job(losses=2), ending(reason=j.NO_ROOM, has_begun=False), Outcome(j.NO_ROOM, "queued", 2)),
        (
            job(ONCE),
            ending(reason=j.NOT_STARTED, has_begun=False),
            Outcome(j.NOT_STARTED, "queued"),
        ),
        (job(ONCE), ending(has_begun=False), Outcome(LOST, "queued", 1)),
        (
            job(sentence="no such partition"),
            ending(reason=j.REFUSED, has_begun=False),
            Outcome("failed", "failed", 0, "no such partition"),
        ),
        (HAD, ending(reason=j.NOT_STARTED, has_launched=True, **NONE), NOT_STARTED),
        (HAD, ending(reason=j.NO_ROOM, has_begun=False), Outcome(j.NO_ROOM, "queued", 1)),
        (HAD, ending(**NONE), NOT_STARTED),
        (HAD, ending(has_begun=False, has_launched=True), Outcome(LOST, "queued", 2)),
        (HAD, ending(reason=j.OVERDUE, was_asked=True, **NONE), Outcome("yielded", "queued", 1)),
        (
            job(handle="7", losses=2, place={"n0": 1, "n1": 1}),
            ending(has_begun=False),
            Outcome(j.NOT_STARTED, "failed", 3, f"{NEVER}: the job has not begun on n0 and n1"),
        ),
        (job({**ONCE, "restarts": True}), ending(), Outcome(LOST, "queued", 1)),
        (job(ONCE), ending(reason=j.NOT_STARTED), Outcome(LOST, "failed", 0, NOT_AGAIN)),
        (job(), ending(codes={"n0": 0, "n1": 3}, said="ValueError: x"), failed("3: ValueError: x")),
        (job(), ending(codes={"n1": 1}, reason=j.RANK_LOST), failed("1")),
        (job(losses=2), ending(), Outcome(LOST, "failed", 3, NO_NEWER)),
    ],
)
def test_what_follows(before: JobRecord, left: Ending, outcome: Outcome) -> None:
    assert outcome_of(before, left) == outcome


CODES = st.sampled_from([0, 1, 75, 76, 127, 255, 300, -9, -15])
ENDINGS = st.builds(
    Ending,
    nodes=st.integers(1, 3),
    codes=st.dictionaries(st.sampled_from(["n0", "n1", "n2"]), CODES, max_size=3),
    has_launched=st.booleans(),
    has_begun=st.booleans(),
    newest=st.sampled_from(["", NEWEST]),
    reason=st.sampled_from(["", j.NO_ROOM, j.NOT_STARTED, j.OVERDUE, j.RANK_LOST]),
    was_asked=st.booleans(),
)
JOBS = st.builds(
    JobRecord,
    id=st.just("a"),
    user=st.just(""),
    directory=st.just("/a"),
    spec=st.builds(Spec, gpus=st.just(1), resumes=st.booleans(), restarts=st.booleans()),
    submitted=st.just(0.0),
    handle=st.sampled_from(["", "7"]),
    is_cancelled=st.booleans(),
    losses=st.integers(0, j.MOST_LOSSES - 1),
)


@given(JOBS, ENDINGS)
def test_a_generation_that_is_over_leaves_its_job_queued_or_over(
    before: JobRecord, left: Ending
) -> None:
    outcome = outcome_of(before, left)
    assert outcome.state in OVER | {"queued"}
    assert outcome.losses <= j.MOST_LOSSES
    if outcome.state == "failed":
        assert outcome.sentence


@given(JOBS, ENDINGS)
def test_a_job_that_cannot_go_on_is_never_started_twice(before: JobRecord, left: Ending) -> None:
    outcome = outcome_of(before, left)
    once = not before.spec.resumes and not before.spec.restarts
    if once and left.has_begun and outcome.state == "queued":
        assert outcome.what == "yielded"  # it has left by itself, as it says


@given(JOBS, ENDINGS)
def test_a_job_is_done_only_where_each_node_has_said_so(before: JobRecord, left: Ending) -> None:
    if outcome_of(before, left).state == "done":
        assert len(left.codes) == left.nodes
        assert set(left.codes.values()) == {0}
