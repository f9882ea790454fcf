"""Two fake GPUs: each has its own memory, and a session is on the GPU that its process names."""

from __future__ import annotations

import pytest

from .conftest import GivenAway, Run, Start, uuid_of

PROGRAM = "devices.py"
MIB = 1 << 20

pytestmark = pytest.mark.usefixtures("two_gpus")


@pytest.mark.usefixtures("settings")
@pytest.mark.parametrize("current", [0, 1])
@pytest.mark.parametrize("index", [0, 1])
def test_a_session_leaves_tensors_and_statistics_of_the_other_gpu_alone(
    index: int, current: int, run: Run
) -> None:
    shared = run(PROGRAM, "beside", index, current, True)
    assert all(shared["inside"]), shared
    assert shared["stats"] == run(PROGRAM, "beside", index, current, False)["stats"]


@pytest.mark.usefixtures("settings")
@pytest.mark.parametrize(
    ("visible", "device", "number"),
    [
        (None, "cuda:0", 0),
        (None, "cuda:1", 1),
        ("1", "cuda:0", 1),
        ("1,0", "cuda:0", 1),
        ("1,0", "cuda:1", 0),
        (uuid_of(1), "cuda:0", 1),
        ("GPU-02,GPU-01", "cuda:1", 0),
    ],
)
def test_a_session_is_on_the_gpu_that_its_process_means(
    visible: str | None, device: str, number: int, start: Start, given_away: GivenAway
) -> None:
    more = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    process = start(PROGRAM, "place", device, **more)
    assert process.says() == "inside"
    assert sum(given_away(gpu=number).values()) >= 60 * MIB
    assert given_away(gpu=1 - number) == {}
    process.go_on()
    process.answer()
