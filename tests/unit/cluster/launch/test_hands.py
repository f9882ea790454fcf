"""Acting as a user, in this process, and by a program as for another user."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from jupyter_gpushare.cluster.hands import hands
from jupyter_gpushare.cluster.hands.hand import DirectoryLost
from jupyter_gpushare.cluster.hands.hands import PROGRAM, Hands, OtherHand, UserHand
from jupyter_gpushare.cluster.launch import generation
from jupyter_gpushare.cluster.launch.generation import JobProgress, Word
from jupyter_gpushare.errors import InvalidValue

from ....polling import until
from ..work import Makes

ECHO = ("/usr/bin/env", "WHO={user}")  # in the place of sudo: the same user


@pytest.fixture(params=["own", "other"])
def hand(request: pytest.FixtureRequest) -> Iterator[UserHand]:
    many = Hands(ECHO if request.param == "other" else ())
    yield many.of("ada")
    many.end()


def test_a_generation_is_opened_looked_at_and_closed(hand: UserHand, make_job: Makes) -> None:
    job = make_job(1, 0)
    hand.check(str(job))
    hand.open(str(job), 1, Word("", {"n1": 2, "n0": 1}))
    opened = job / "g1"
    told = generation.read(opened / "word.json")
    assert Word(**told) == Word("", {"n1": 2, "n0": 1}, 1.0)
    assert [*told["where"]] == ["n1", "n0"]  # the first one leads
    for name in ("beat.n0", "yield.n1", "beat.x", "yield.x", "it-000000003"):
        (opened / name).touch()
    generation.write(opened / "progress.json", {"iteration": 3, "computed": 1.5})
    facts = hand.look(str(job), 1, ["n0", "n1"], 30.0)
    assert (facts.begun, facts.heard, facts.told) == (["n0"], ["n1"], JobProgress(3, 1.5))
    assert (facts.newest, facts.is_closed) == ("", False)
    for node, code in (("n0", 0), ("n1", 3), ("x", 4)):  # x is none of its nodes
        generation.write(opened / f"ended.{node}.json", {"code": code})
    (opened / "log.n1").write_text("no\nsuch file")
    ended = hand.close(str(job), 1, ["n0", "n1"])
    assert (ended.codes, ended.said) == ({"n0": 0, "n1": 3}, "no\nsuch file")
    assert not ended.has_ranks  # a launcher has begun, and no rank
    assert ended.newest == "g1.closed/it-000000003"
    assert hand.look(str(job), 1, ["n0"], 30.0).is_closed


def test_what_is_no_directory_of_a_job_is_refused(hand: UserHand, make_job: Makes) -> None:
    with pytest.raises(InvalidValue, match=r"has a file job\.json, and /nowhere has none"):
        hand.check("/nowhere")
    job = make_job(1, 0)
    job.chmod(0o777)
    with pytest.raises(InvalidValue, match="others may write to"):
        hand.check(str(job))


@pytest.mark.parametrize(
    ("mode", "gid", "is_refused"),
    [(0o777, -1, True), (0o770, 65534, True), (0o775, 0, False), (0o1777, -1, False)],
)
def test_a_directory_that_others_could_replace_is_refused(
    hand: UserHand, make_job: Makes, mode: int, gid: int, is_refused: bool
) -> None:
    if os.getuid():
        pytest.skip("only root gives a directory to any group")
    job = make_job(1, 0)
    os.chown(job.parent, -1, gid)
    job.parent.chmod(mode)
    others = pytest.raises(InvalidValue, match=f"others may write to {job.parent}, and could put")
    with others if is_refused else contextlib.nullcontext():
        hand.check(str(job))


def test_a_directory_that_is_gone_is_told_from_one_that_cannot_be_read(
    hand: UserHand, tmp_path: Path
) -> None:
    with pytest.raises(DirectoryLost, match="is not there any more"):
        hand.close(str(tmp_path / "gone"), 1, ["n0"])
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="Not a directory"):
        hand.open(str(tmp_path / "file"), 1, Word("", {"n0": 1}))


def test_a_command_is_run_and_its_words_come_back(
    hand: UserHand, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (program := tmp_path / "sbatch").write_text('#!/bin/sh\n/bin/cat; echo "$@" >&2; exit 3\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert hand.run(["sbatch", "-x", "a b"], "script") == (3, "script", "-x a b\n")
    with pytest.raises(OSError, match="No such file"):
        hand.run(["scancel", "1"])


# --- the program ----------------------------------------------------------------------------------


def answers(*questions: object) -> list[dict[str, object]]:
    lines = [q if isinstance(q, bytes) else json.dumps(q).encode() for q in questions]
    done = subprocess.run(
        [PROGRAM], input=b"\n".join(lines) + b"\n", capture_output=True, check=True
    )
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_what_runs_as_a_user_starts_two_commands_of_slurm_alone(tmp_path: Path) -> None:
    touched = tmp_path / "touched"
    commands = [["touch", str(touched)], ["/bin/sbatch"], [], ["sh", "-c", "sbatch"]]
    told = answers(*({"verb": "run", "arguments": [command, ""]} for command in commands))
    assert {answer["said"] for answer in told} == {"this runs nothing but sbatch and scancel"}
    assert not touched.exists()


def test_what_is_no_question_is_answered_with_a_sentence() -> None:
    check = {"verb": "check", "arguments": ["/nowhere"]}
    told = answers(b"", b"nonsense", b"[1]", {"verb": "main", "arguments": []}, b"\xff", check)
    assert len(told) == 6
    assert {answer["error"] for answer in told} == {"InvalidValue"}


@pytest.fixture
def other() -> Iterator[OtherHand]:
    until(lambda: not pids())  # the program of the test before ends by itself
    hand = OtherHand(["env", str(PROGRAM)], "ada")
    yield hand
    hand.end()


def pids() -> list[int]:
    """Return the ids of processes that run the program."""
    found = []
    for each in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            if each.status() != psutil.STATUS_ZOMBIE and "jupyter-gpushar" in each.name():
                found.append(each.pid)
    return found


@pytest.mark.system
def test_a_program_that_is_stopped_is_asked_no_more_until_it_has_ended(
    other: OtherHand, make_job: Makes, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = str(make_job(1, 0))
    other.check(job)
    (pid,) = pids()
    os.kill(pid, signal.SIGSTOP)
    monkeypatch.setattr(hands, "ANSWER_SECONDS", 0.2)
    with pytest.raises(TimeoutError, match=r"what runs as ada has not answered$"):
        other.check(job)
    with pytest.raises(TimeoutError, match="has not answered yet"):
        other.check(job)
    assert not other.has_ended()
    with pytest.raises(TimeoutError, match="has not answered yet"):
        other.check(job)
    assert pids() == [pid]  # and no other one is started beside it
    os.kill(pid, signal.SIGCONT)  # it answers too late, and ends
    until(lambda: psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)
    assert other.has_ended()
    monkeypatch.setattr(hands, "ANSWER_SECONDS", 20.0)
    other.check(job)


def test_a_program_that_is_asked_is_waited_for_by_its_own_user_alone(tmp_path: Path) -> None:
    asked, ends = tmp_path / "asked", tmp_path / "ends"
    hangs = f"read line; touch {asked}; until [ -e {ends} ]; do sleep 0.02; done"
    many = Hands(["sh", "-c", hangs, "{user}"])
    with ThreadPoolExecutor(1) as users:
        answer = users.submit(many.of("ada").check, "/a")
        until(asked.exists)
        many.keep(())
        assert not answer.done()
        ends.touch()
        with pytest.raises(OSError, match="nothing can be done as ada"):
            answer.result()
    before = many.of("ada")
    many.keep(())
    assert many.of("ada") is not before


NONSENSE = [
    *('{"value": 3}', "yes", '{"value": {"begun": 1}}', "[]"),
    '{"value": ' + "[" * 50_000,
    *('{"value": {"skew": 5}}', '{"value": {"ran": 1e308}}', '{"value": {"told": [3, 1e308]}}'),
    f'{{"value": {{"told": [{10**30}, 1.5]}}}}',
]


@pytest.mark.parametrize("said", NONSENSE)
def test_what_answers_nonsense_is_not_believed(said: str) -> None:
    hand = repeating(said)
    with pytest.raises(OSError, match="what runs as ada does not answer what was asked"):
        hand.look("/a", 1, ["n0"], 30.0)
    hand.end()


def test_an_error_that_another_verb_raises_is_one_of_the_system() -> None:
    hand = repeating('{"error": "InvalidValue", "said": "no"}')
    with pytest.raises(InvalidValue, match=r"^no$"):
        hand.check("/a")
    with pytest.raises(OSError, match=r"^no$"):
        hand.look("/a", 1, ["n0"], 30.0)
    hand.end()


def repeating(said: str) -> OtherHand:
    repeats = f"import sys\nfor line in sys.stdin: print({said!r}, flush=True)"
    return OtherHand([sys.executable, "-c", repeats], "ada")


def test_a_program_that_cannot_be_started_says_why() -> None:
    refuses = OtherHand(["sh", "-c", "echo 'sudo: not for you' >&2; exit 1", "sh"], "ada")
    for _ in range(2):
        with pytest.raises(OSError, match="nothing can be done as ada: sudo: not for you"):
            refuses.check("/a")
    with pytest.raises(FileNotFoundError):
        OtherHand(["no-such-program"], "ada").check("/a")
