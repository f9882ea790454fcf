"""The promises of sessions hold under PyTorch's own caching allocator."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from .conftest import TRAININGS, Run, Start

PROGRAM = "sessions.py"
BUILD = Path(__file__).parents[3] / "build"  # on a disk
TRIES_AGAIN = "of the GPU's memory cannot be had again: out of memory; trying again"
MIB = 1 << 20
WITHOUT_KERNELS = {"FAKE_CUDA_KERNELS": ""}  # PyTorch's own take their workspaces then

pytestmark = pytest.mark.usefixtures("settings")
modes = pytest.mark.parametrize("lazy", ["0", "1"], ids=["eager", "lazy"])


def is_within(value: float, wanted: float, share: float = 0.05) -> bool:
    return abs(value - wanted) <= share * wanted


def beside_overwrites(start: Start, lazy: str, *words: Any) -> Any:
    """Return the answer of a process whose neighbour overwrites the lane in all turns, and gets
    some."""
    other = start(PROGRAM, "overwrites", 1, FAKE_CUDA_LAZY=lazy)
    assert other.says() == "inside"
    process = start(*words, FAKE_CUDA_LAZY=lazy)
    assert process.says() == "ready"
    other.go_on()
    process.go_on()
    said = process.answer()
    other.go_on()
    assert other.answer() > 10
    return said


@modes
def test_a_neighbour_that_overwrites_the_lane_changes_nothing(lazy: str, start: Start) -> None:
    said = beside_overwrites(start, lazy, PROGRAM, "neighbour", "ada", 10, 24)
    assert said["wrong"] == []
    assert said["inside"] > 0


@modes
def test_nothing_moves_that_another_thread_may_be_writing(lazy: str, start: Start) -> None:
    said = beside_overwrites(start, lazy, PROGRAM, "beside_a_thread", 150)
    assert said["inside"] > 0
    assert said["wrong"] == 0


@modes
@pytest.mark.parametrize("way", ["two_models", "same_weights", "evaluations", "short_threads"])
def test_threads_compute_what_they_compute_without_sharing(
    way: str, lazy: str, start: Start, run: Run
) -> None:
    said = beside_overwrites(start, lazy, TRAININGS, "in_threads", way, 20, True)
    assert said == run(TRAININGS, "in_threads", way, 20, False)


def test_a_script_has_its_turns_while_an_output_lives_in_the_notebook_that_waits_for_it(
    start: Start, run: Run
) -> None:
    said = start(TRAININGS, "waits_for_a_script", True).answer()
    assert said == run(TRAININGS, "waits_for_a_script", False)


def test_on_a_small_gpu_no_notebook_is_out_of_memory_because_of_its_neighbours(
    gpu_of: Callable[[int], None], start: Start
) -> None:
    """Each has 20 MiB of its own, and 60 in its turn."""
    gpu_of(192 * MIB)
    started = [start(PROGRAM, "crowded", f"of {value}", value, 20) for value in (10, 110, 210)]
    for process in started:
        assert process.says() == "opened"
    for process in started:
        process.go_on()
    for said in [process.answer() for process in started]:
        assert said["trouble"] == "", said
        assert said["wrong"] == 0
        assert said["inside"] > 10


@pytest.mark.parametrize("turns", [False, True], ids=["one turn", "a turn each"])
def test_after_an_overflow_the_lane_is_used_again_at_once_and_memory_is_what_was_said(
    turns: bool, run: Run
) -> None:
    said = run(PROGRAM, "keeps_one", turns, 12, **WITHOUT_KERNELS)
    inside = said["inside"]
    assert all(inside[:3]), inside
    assert all(inside[4:]), inside  # the one after the survivor may overflow
    has = said["lost"] + said["lane"]
    assert has <= 1.05 * (said["persistent"] + said["ephemeral"]), said


def test_what_lives_into_the_next_iterations_never_stops_the_lane(run: Run) -> None:
    """Such memory stops the lane only until its size is known; then at most one iteration of ten
    overflows."""
    inside = run(PROGRAM, "keeps_the_last", 50, **WITHOUT_KERNELS)["inside"][10:]
    assert inside.count(False) <= len(inside) // 10, inside


def test_persistent_is_what_the_device_loses(run: Run) -> None:
    said = run(PROGRAM, "trains")
    assert is_within(said["persistent"], said["lost"]), said


@pytest.mark.parametrize(
    ("function", "arguments"),
    [
        ("trains", []),
        ("keeps_one", [True, 12]),
        ("keeps_the_last", [50]),
        ("waits_for_a_lane", []),
        ("ends_in_another_thread", [False]),
        ("trains_long", ["cnn", 10]),  # its model was made before sharing was on
        ("multiplies_first_inside", [16]),
    ],
)
def test_what_a_session_says_is_what_the_driver_counts(
    function: str, arguments: list[object], run: Run
) -> None:
    more = {"CUBLAS_WORKSPACE_CONFIG": ":4096:2", **WITHOUT_KERNELS}
    said = run(PROGRAM, function, *arguments, **more)
    assert said["lost"] <= 1.05 * said["persistent"], said


def test_expandable_segments_are_counted(run: Run) -> None:
    said = run(PROGRAM, "trains", PYTORCH_CUDA_ALLOC_CONF="expandable_segments:True")
    assert said["lost"] <= 1.05 * said["persistent"], said


@pytest.mark.parametrize("is_busy", [False, True])
def test_what_persists_moves_at_the_end_of_a_turn_unless_another_thread_computes(
    is_busy: bool, run: Run
) -> None:
    assert run(PROGRAM, "ends_in_another_thread", is_busy)["stayed"] == is_busy


@pytest.mark.parametrize("model", ["cnn", "transformer"])
def test_a_steady_loop_keeps_its_lane(model: str, run: Run) -> None:
    """The loop runs more iterations than a demand looks back on, and the search for the lane's size
    has ended."""
    said = run(PROGRAM, "trains_long", model, 90, **WITHOUT_KERNELS)
    assert said["calls"] == 0, said
    assert len(said["lanes"]) <= 12, said
    assert said["lane"] >= said["ephemeral"], said
    assert is_within(said["persistent"] + said["ephemeral"], said["lost"] + said["lane"]), said


@pytest.mark.parametrize("model", ["cnn", "transformer"])
def test_what_persists_keeps_no_memory_of_iterations(model: str, run: Run) -> None:
    """An optimiser's state comes in the midst of the first iteration. PyTorch makes a segment of 20
    MiB for tensors of less than 10, here in three pools, and the lane consists of whole chunks."""
    said = run(PROGRAM, "trains_long", model, 10, **WITHOUT_KERNELS)
    assert said["lost"] <= said["allocated"] + 60 * MIB, said


@pytest.mark.parametrize("way", ["to_dlpack", "dlpack_of_the_tensor", "cuda_array_interface"])
def test_what_another_library_has_never_moves(way: str, run: Run) -> None:
    assert run(PROGRAM, "exports", way) == {"was_inside": True, "stayed": True}


def test_a_largest_size_to_split_keeps_no_tensor_out_of_the_lane(run: Run) -> None:
    said = run(
        PROGRAM, "split_sizes", PYTORCH_CUDA_ALLOC_CONF="max_split_size_mb:21", **WITHOUT_KERNELS
    )
    assert all(said["inside"]), said
    assert said["ephemeral"] <= 110 * MIB, said


def test_weights_are_paged_out(run: Run) -> None:
    said = run(PROGRAM, "pages_out", 50)
    assert said["mebibytes"] >= 50, said
    assert (said["reason"], said["trouble"], said["whole"]) == ("", "", True)


@pytest.mark.parametrize("is_crowded", [False, True])
def test_a_cell_begins_once_its_weights_are_back(is_crowded: bool, run: Run) -> None:
    pages = {"JUPYTER_GPUSHARE_PAGE_DIRECTORY": str(BUILD)}
    said = run(PROGRAM, "comes_back", is_crowded, **pages)
    told = [sentence.partition(" MiB ")[2] for sentence in said["told"]]
    assert told == [TRIES_AGAIN] * is_crowded
    assert (said["waits"], said["back"], said["whole"]) == (is_crowded, True, True)


def test_when_sharing_ends_the_process_has_no_chunk_of_the_lane_and_it_may_begin_again(
    run: Run,
) -> None:
    first, after_first, second, after_second = run(PROGRAM, "ends_and_begins_again", 2)
    assert min(first, second) > 0
    assert after_first == after_second == 0


def test_weights_in_expandable_segments_stay_and_the_reason_is_said(run: Run) -> None:
    said = run(PROGRAM, "pages_out", 50, PYTORCH_CUDA_ALLOC_CONF="expandable_segments:True")
    assert "expandable segments" in said["reason"], said
    assert (said["trouble"], said["whole"]) == ("", True)


def test_statistics_of_tensors_are_those_without_sharing(run: Run) -> None:
    assert run(PROGRAM, "figures", True) == run(PROGRAM, "figures", False)


def test_tensors_may_go_to_another_process(run: Run) -> None:
    said = run(PROGRAM, "sends")
    assert said["was_inside"]
    assert said["read"] == [6, 6, 6]
    assert said["written"] == [9, 9, 9]
    assert said["has_views"]
    assert said["private"] >= 40 * MIB
    assert said["persistent"] >= said["private"], said


def test_what_another_library_has_is_not_sent(run: Run) -> None:
    words = run(PROGRAM, "sends_what_is_exported")
    assert words.startswith("this tensor cannot be sent to another process: another library has")


def test_a_forked_process_leaves_the_lane_of_its_parent_alone(run: Run) -> None:
    said = run(PROGRAM, "forks", 12)
    assert said["wrong"] == 0
    assert all(said["inside"][-6:]), said
    assert [words.splitlines()[0] for words in said["words"]] == [
        "Cannot re-initialize CUDA in forked subprocess. To use CUDA with multiprocessing, you must"
        " use the 'spawn' start method"
    ]


def test_workspaces_that_are_made_in_the_lane_leave_it_whole(run: Run) -> None:
    more = {"CUBLAS_WORKSPACE_CONFIG": ":4096:2"}  # 8 MiB for each stream
    said = run(PROGRAM, "multiplies_first_inside", 16, **more, **WITHOUT_KERNELS)
    assert all(said["inside"]), said
    assert said["stayed"]  # some were made in the lane
    assert all(said["stayed"])  # and keep their addresses, which a captured graph may have
    assert len(set(said["lanes"][-10:])) == 1, said
    assert said["lost"] + said["lane"] <= 1.05 * (said["persistent"] + said["ephemeral"]), said
