"""The directory of a generation, and how closing it fences processes off."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from jupyter_gpushare.cluster.launch import generation
from jupyter_gpushare.cluster.launch.contents import Contents
from jupyter_gpushare.cluster.launch.generation import JobProgress, Word

WORD = Word("", {"n1": 2, "n0": 1})


def test_what_has_a_path_into_a_closed_generation_can_write_no_more(tmp_path: Path) -> None:
    directory = generation.open_generation(tmp_path, 1, WORD)
    (directory / ".it-7.part").write_text("7")
    closed = generation.close_generation(tmp_path, 1)
    with pytest.raises(FileNotFoundError):
        os.rename(directory / ".it-7.part", directory / "it-7")
    assert generation.newest(closed) == ""


def test_a_generation_that_was_never_open_is_closed_for_ever(tmp_path: Path) -> None:
    assert generation.close_generation(tmp_path, 1) == tmp_path / "g1.closed"
    with pytest.raises(FileExistsError):
        generation.open_generation(tmp_path, 1, WORD)


def test_a_generation_that_is_opened_while_it_is_closed_is_closed(tmp_path: Path) -> None:
    """The opening process may have checked just before the other process closed the generation."""
    generation.close_generation(tmp_path, 1)
    (tmp_path / "g1").mkdir()
    assert generation.close_generation(tmp_path, 1) == tmp_path / "g1.closed"
    assert not (tmp_path / "g1").exists()


def test_the_newest_checkpoint_is_that_of_the_latest_iteration(tmp_path: Path) -> None:
    directory = generation.open_generation(tmp_path, 1, WORD)
    for name in ("it-9", "it-000000010", ".it-11.part", "it-x", "it-12.tmp"):
        (directory / name).write_text("")
    assert generation.newest(directory) == "g1/it-000000010"


@pytest.mark.parametrize(
    ("told", "progress"),
    [
        ('{"iteration": 3, "computed": 0.5}', JobProgress(3, 0.5)),
        ('{"iteration": 3, "computed": NaN}', None),
        ('{"iteration": 3, "computed": -1}', None),
        ('{"iteration": 3, "computed": 1e300}', None),
        (f'{{"iteration": 3, "computed": {10**400}}}', None),
        ('{"iteration": 1e300, "computed": 0.5}', None),
        ('{"iteration": 3, "computed": 0.5, "of": 1e300}', JobProgress(3, 0.5)),
        ('{"iteration": true, "computed": 1}', None),
        ('{"iteration": "3", "computed": 1}', None),
        ('{"iteration": 3}', None),
        ("[3]", None),
        ("[" * 100_000, None),
        ('{"iteration": 3, "comp', None),
        ("\xff", None),
        (" " * generation.MOST_BYTES + "{}", None),
    ],
)
def test_progress_that_cannot_be_is_not_believed(
    told: str, progress: JobProgress | None, tmp_path: Path
) -> None:
    (tmp_path / "progress.json").write_bytes(told.encode("latin-1"))
    assert generation.progress(tmp_path) == progress


@pytest.mark.parametrize(
    ("told", "skew"),
    [
        ('{"skew": 0.5}', 0.5),
        ('{"skew": 1.5}', 0),
        (f'{{"skew": {10**400}}}', 0),
        ('{"skew": "1"}', 0),
        ("", 0),
    ],
)
def test_a_skew_that_cannot_be_is_not_believed(told: str, skew: float, tmp_path: Path) -> None:
    (tmp_path / "keeps").write_text(told)
    assert Contents(tmp_path).skew() == skew


@pytest.mark.parametrize("code", ["0", None, 1.5, True])
def test_an_ending_without_a_number_is_none(code: Any, tmp_path: Path) -> None:
    generation.write(tmp_path / "ended.n0.json", {"code": code})
    generation.write(tmp_path / "ended.n1.json", {"code": -9})
    assert Contents(tmp_path).endings() == {"n1": -9}


def beaten(directory: Path, **times: float) -> None:
    for node, at in times.items():
        (directory / f"beat.{node}").touch()
        os.utime(directory / f"beat.{node}", (at, at))


def test_a_node_is_silent_that_does_not_beat_while_another_one_does(tmp_path: Path) -> None:
    assert Contents(tmp_path).silent(30) == set()
    beaten(tmp_path, n0=100.0, n1=131.0, n2=101.0)
    assert Contents(tmp_path).silent(30) == {"n0"}
    assert Contents(tmp_path).silent(31) == set()


def test_a_generation_has_run_from_its_first_rank_to_its_last_beat(tmp_path: Path) -> None:
    beaten(tmp_path, n0=100.0, n1=131.0)
    assert Contents(tmp_path).ran() == 0
    (tmp_path / "master.json").touch()
    os.utime(tmp_path / "master.json", (101.0, 101.0))
    assert Contents(tmp_path).ran() == 30
    os.utime(tmp_path / "master.json", (140.0, 140.0))  # and no beat since
    assert Contents(tmp_path).ran() == 0
    assert Contents(tmp_path / "none").ran() == 0
    os.utime(tmp_path / "master.json", (1.0, 1.0))
    beaten(tmp_path, n0=2e9)
    assert Contents(tmp_path).ran() == generation.MOST_SECONDS
