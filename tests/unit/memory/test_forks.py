"""Forks at any moment: no lock stays taken, and a child has all that was alive."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from jupyter_gpushare._core import AllocationCounter, Lane, Pager

from ...polling import comes
from .conftest import LARGE, MIB, SharedLane, in_child

FORKS = 40


class Crowd:
    """Threads that each repeat a piece of work until they are told to stop, or it goes wrong."""

    def __init__(self) -> None:
        self.between = threading.Lock()  # iterations
        self._is_over = threading.Event()
        self._done: Counter[Callable[[], None]] = Counter()
        self._wrong: list[BaseException] = []
        self._threads: list[threading.Thread] = []

    def repeat(self, work: Callable[[], None]) -> None:
        self._threads.append(threading.Thread(target=self._repeat, args=(work,)))
        self._threads[-1].start()

    def _repeat(self, work: Callable[[], None]) -> None:
        try:
            while not self._is_over.is_set():
                work()
                self._done[work] += 1
        except BaseException as error:
            self._wrong.append(error)

    def stop(self) -> None:
        """End them once each has done its work."""
        all_have = comes(lambda: len(self._done) == len(self._threads) or bool(self._wrong))
        self._is_over.set()
        for thread in self._threads:
            thread.join()
        assert self._wrong == []
        assert all_have


@pytest.fixture
def crowd(lane: SharedLane, tmp_path: Path) -> Iterator[Crowd]:
    """All operations that change the books of memory, at once. The thread that pages out does it
    between two iterations, as in a session."""
    crowd = Crowd()
    results: list[torch.Tensor] = []

    def allocate_and_free() -> None:
        blocks = [torch.full((LARGE // 16 * size,), float(size)) for size in range(1, 20)]
        assert sum(block.mean().item() for block in blocks) == 190

    def iterate() -> None:
        with crowd.between, lane.iteration():
            hidden = torch.arange(float(LARGE)) * 2
            results.append(hidden + 1)
            assert hidden.sum().item() == torch.arange(LARGE).sum().item() * 2

    def free_results() -> None:
        for result in [results.pop() for _ in range(len(results))]:
            assert torch.equal(result, torch.arange(float(LARGE)) * 2 + 1)

    def page_out_and_in() -> None:
        with crowd.between:
            assert Pager.page_out(str(tmp_path)) == ""
        assert Pager.page_in() == ""

    for work in (allocate_and_free, iterate, free_results, page_out_and_in):
        crowd.repeat(work)
    yield crowd
    crowd.stop()


def is_whole(kept: list[torch.Tensor], directory: Path) -> bool:
    """Whether all that was alive is there, and everything works."""
    good = all(torch.equal(tensor, torch.full((LARGE,), 7.0)) for tensor in kept)
    good &= Lane.is_valid() == "" and Pager.is_valid() == ""
    live = AllocationCounter.live()
    fresh = torch.full((LARGE,), 3.0)
    good &= fresh.sum().item() == 3 * LARGE and AllocationCounter.live() == live + MIB
    del fresh
    good &= AllocationCounter.live() == live
    Lane.enter()
    torch.full((LARGE,), 3.0)
    Lane.leave()
    good &= Pager.page_out(str(directory)) == "" and Pager.page_in() == ""
    kept.clear()
    return good and Lane.promote() == 0 and Pager.is_valid() == ""


@pytest.mark.system
def test_threads_fork_while_others_do(crowd: Crowd, tmp_path: Path) -> None:
    kept = [torch.full((LARGE,), 7.0)]
    with ThreadPoolExecutor(3) as pool:
        list(pool.map(lambda _: in_child(lambda: is_whole(kept, tmp_path)), range(FORKS)))
