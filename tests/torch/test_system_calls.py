"""System calls of a paged-out notebook's threads reach tensors: none fails or loses data."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from jupyter_gpushare import _core
from jupyter_gpushare.client.torch.memory import Memory

from ..pages import is_out

MIB = 1 << 20
BUFFER = 24 * MIB  # several pieces of the pager
BUILD = Path(__file__).parents[2] / "build"  # on a disk, as /tmp need not be


@pytest.fixture
def memory() -> Iterator[Memory]:
    BUILD.mkdir(exist_ok=True)
    memory = Memory()
    yield memory
    assert memory.page_in() == ""
    assert _core.Pager.is_valid() == ""
    assert _core.Pager.bytes_out() == 0


@pytest.fixture
def content(tmp_path: Path) -> Path:
    path = tmp_path / "content"
    path.write_bytes(os.urandom(BUFFER))
    return path


def anonymous() -> int:
    with open("/proc/self/smaps_rollup") as rollup:
        return next(int(line.split()[1]) << 10 for line in rollup if line.startswith("Anonymous:"))


def pages_while(memory: Memory, call: Callable[[], None], times: int = 5) -> int:
    """Page out and in while a thread repeats `call`; return how often it did. It must not fail."""
    over, troubles, calls = threading.Event(), [], 0

    def repeat() -> None:
        nonlocal calls
        try:
            while not over.is_set():
                call()
                calls += 1
        except (OSError, AssertionError) as error:
            troubles.append(error)

    thread = threading.Thread(target=repeat)
    thread.start()
    try:
        for _ in range(times):
            seen = calls
            size, reason = memory.page_out(str(BUILD))
            assert (size > 0, reason) == (True, "")
            while calls == seen and thread.is_alive():
                over.wait(0.001)
            assert memory.page_in() == ""
    finally:
        over.set()
        thread.join()
    assert not troubles, troubles
    return calls


@pytest.mark.system
def test_a_thread_reads_a_file_into_a_tensor(memory: Memory, content: Path) -> None:
    model = torch.ones(64 * MIB // 4)
    buffer = torch.empty(BUFFER, dtype=torch.uint8)
    view = memoryview(buffer.numpy())
    with content.open("rb", buffering=0) as file:

        def read() -> None:
            file.seek(0)
            assert file.readinto(view) == BUFFER

        assert pages_while(memory, read) > 0
    assert view == content.read_bytes()
    assert model.sum() == model.numel()


def test_other_memory_is_paged_out_beside_a_tensor_that_is_read_into(memory: Memory) -> None:
    model = torch.ones(64 * MIB // 4)
    buffer = torch.ones(BUFFER, dtype=torch.uint8)
    view = buffer.numpy()
    before = anonymous()
    size, reason = memory.page_out(str(BUILD))
    assert (size >= 63 * MIB, reason) == (True, "")
    assert anonymous() < before - 48 * MIB  # the rest of the process allocates as well
    assert is_out(model)
    assert not is_out(buffer)
    assert view.all()


@pytest.mark.system
def test_a_tensor_that_is_first_read_into_while_it_is_out(memory: Memory, content: Path) -> None:
    buffer = torch.zeros(BUFFER, dtype=torch.uint8)
    other = torch.ones(BUFFER, dtype=torch.uint8)
    assert memory.page_out(str(BUILD))[1] == ""
    assert is_out(buffer)
    over, troubles = threading.Event(), []

    def read() -> None:
        with content.open("rb", buffering=0) as file:
            while not over.is_set():
                try:
                    file.seek(0)
                    assert file.readinto(memoryview(buffer.numpy())) == BUFFER
                except (OSError, AssertionError) as error:
                    troubles.append(error)

    thread = threading.Thread(target=read)
    thread.start()
    try:
        while buffer.untyped_storage().resizable():
            over.wait(0.001)
        for _ in range(4):
            assert memory.page_in() == ""
            assert memory.page_out(str(BUILD))[1] == ""
    finally:
        over.set()
        thread.join()
    assert not troubles, troubles
    assert memory.page_in() == ""
    assert buffer.numpy().tobytes() == content.read_bytes()
    assert other.all()


@pytest.mark.system
def test_a_thread_receives_into_a_tensor(memory: Memory) -> None:
    kept = torch.ones(BUFFER, dtype=torch.uint8)
    buffer = torch.zeros(BUFFER, dtype=torch.uint8)
    view = memoryview(buffer.numpy())
    ours, theirs = socket.socketpair()
    letter = os.urandom(1 << 16)
    place = 0

    def receive() -> None:
        nonlocal place
        theirs.sendall(letter)
        part = view[place : place + len(letter)]
        assert ours.recv_into(part, len(letter), socket.MSG_WAITALL) == len(letter)
        assert part == letter
        place = (place + len(letter)) % BUFFER

    with ours, theirs:
        assert pages_while(memory, receive) > 0
    assert kept.all()


def test_a_thread_writes_a_tensor_to_a_file(memory: Memory, tmp_path: Path) -> None:
    tensor = torch.arange(BUFFER // 4, dtype=torch.int32)
    expected = tensor.clone()
    view = memoryview(tensor.numpy()).cast("B")
    path = tmp_path / "written"

    def write() -> None:
        with path.open("wb", buffering=0) as file:
            assert file.write(view) == BUFFER

    assert pages_while(memory, write) > 0
    assert path.read_bytes() == expected.numpy().tobytes()


def test_tensors_of_shared_memory_and_of_numpy_stay_where_they_are(memory: Memory) -> None:
    shared = torch.ones(BUFFER, dtype=torch.uint8).share_memory_()
    kept = torch.ones(BUFFER, dtype=torch.uint8)
    assert memory.page_out(str(BUILD))[1] == ""
    child = os.fork()
    if child == 0:
        shared[:MIB] = 2
        os._exit(not (shared[MIB:] == 1).all() or not kept.all())
    assert os.waitpid(child, 0)[1] == 0
    assert (shared[:MIB] == 2).all()
