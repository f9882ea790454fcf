"""System calls of a paged-out notebook's threads reach tensors: none fails or loses data."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from jupyter_gpushare import _core
from jupyter_gpushare.client.torch.memory import TorchMemory

from ...pages import is_out

MIB = 1 << 20
BUFFER = 24 * MIB  # several pieces of the pager
BUILD = Path(__file__).parents[3] / "build"  # on a disk, as /tmp need not be


@pytest.fixture
def memory() -> Iterator[TorchMemory]:
    BUILD.mkdir(exist_ok=True)
    memory = TorchMemory()
    yield memory
    assert memory.page_in() == ""
    assert _core.Pager.is_valid() == ""
    assert _core.Pager.bytes_out() == 0


@pytest.fixture
def content(tmp_path: Path) -> Path:
    path = tmp_path / "content"
    path.write_bytes(os.urandom(BUFFER))
    return path


@contextmanager
def read_into(buffer: torch.Tensor, content: Path) -> Iterator[None]:
    """A thread reads the file into the tensor again and again, and no read fails."""
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
        yield
    finally:
        over.set()
        thread.join()
    assert not troubles, troubles


@pytest.mark.system
def test_a_tensor_that_is_first_read_into_while_it_is_out(
    memory: TorchMemory, content: Path
) -> None:
    buffer = torch.zeros(BUFFER, dtype=torch.uint8)
    other = torch.ones(BUFFER, dtype=torch.uint8)
    assert memory.page_out(str(BUILD))[1] == ""
    assert is_out(buffer)
    with read_into(buffer, content):
        while buffer.untyped_storage().resizable():
            time.sleep(0.001)
        for _ in range(4):
            assert memory.page_in() == ""
            assert memory.page_out(str(BUILD))[1] == ""
    assert memory.page_in() == ""
    assert buffer.numpy().tobytes() == content.read_bytes()
    assert other.all()


@pytest.mark.system
def test_tensors_of_shared_memory_and_of_numpy_stay_where_they_are(memory: TorchMemory) -> None:
    shared = torch.ones(BUFFER, dtype=torch.uint8).share_memory_()
    kept = torch.ones(BUFFER, dtype=torch.uint8)
    assert memory.page_out(str(BUILD))[1] == ""
    child = os.fork()
    if child == 0:
        shared[:MIB] = 2
        os._exit(not (shared[MIB:] == 1).all() or not kept.all())
    assert os.waitpid(child, 0)[1] == 0
    assert (shared[:MIB] == 2).all()
