"""Sessions on the fake GPU, with PyTorch's own allocator. Each function returns what it saw."""

from __future__ import annotations

import hashlib
import itertools
import os
import select
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

import torch
from program import MIB, has, main, no_room, say
from tensors import is_all, is_inside, memory
from torch.utils.data import DataLoader, TensorDataset

import jupyter_gpushare as gpushare
from jupyter_gpushare import _core, settings
from jupyter_gpushare.errors import GpuShareError
from jupyter_gpushare.wire.client import Client
from jupyter_gpushare.wire.messages import Evict

sys.path.append(str(Path(__file__).resolve().parents[4] / "benchmarks"))
from lanes.gpu_memory import calls, training

WORKSPACE = 8 * MIB  # that CUBLAS_WORKSPACE_CONFIG=:4096:2 gives to each stream
LIMIT = 600  # iterations that a session may have until the broker has given it a lane
torch.set_num_threads(1)


def step(mebibytes: int = 60) -> bool:
    """Allocate what an iteration needs; return whether that lies in the lane."""
    return is_inside(memory(mebibytes))


@contextmanager
def session(name: str = "test", device: str = "cuda:0") -> Iterator[Any]:
    with gpushare.session(name=name, device=device) as opened:
        yield opened
        assert opened._lane_use.trouble == "", opened._lane_use.trouble
        assert _core.CudaLane.is_valid() == ""
        assert _core.CudaSegments.is_valid() == ""


def learn(count: int = 4, make: Callable[[], bool] = step) -> None:
    """Run iterations until that many were in the lane."""
    inside = 0
    for _ in gpushare.iterations(range(LIMIT)):
        inside += make()
        if inside == count:
            return
        time.sleep(0.01)  # the broker hears of the demand, and answers
    raise AssertionError(f"no lane in {LIMIT} iterations")


def held(opened: Any) -> dict[str, int]:
    """Return the bytes that the session has reported, and those that it has of the GPU, once it has
    released the chunks that the broker has just taken from its lane."""
    for _ in range(LIMIT):
        said = held_now(opened)
        if said["lost"] <= 1.05 * said["persistent"]:
            break
        time.sleep(0.01)
    return said


def held_now(opened: Any) -> dict[str, int]:
    demand = opened.memory.demand()
    context = opened.memory._counter._context.bytes
    return {
        "persistent": demand.persistent_bytes - context,
        "ephemeral": demand.ephemeral_bytes,
        "private": private_bytes(),
        "lost": lost_bytes(opened.memory.lane._index),
        "lane": opened.memory.lane._lane.size,
        "allocated": torch.cuda.memory_allocated(),
    }


def lost_bytes(index: int) -> int:
    """Return the bytes of the GPU that this process takes beside lanes, by the driver's own
    count."""
    number = torch.cuda.get_device_properties(index).uuid.bytes[0] - 1  # as the fake driver has it
    with Client.connect(settings.load(), "tests", start=False) as client:
        broker = client.look().broker.pid
    host = os.environ["FAKE_CUDA_HOST"]
    ours, of_lanes = (has(process, number, host) for process in (os.getpid(), broker))
    return sum(ours[file] for file in ours.keys() - of_lanes.keys())


def private_bytes() -> int:
    segments = _core.CudaSegments.bytes() + _core.CudaSegments.shareable_bytes()
    return segments + _core.CudaLane.usage().living_promoted_bytes


# --- one lane, and what survives in it


def keeps_one(turns: bool, count: int) -> dict[str, Any]:
    """Each iteration needs 60 MiB, which is all of the lane; one keeps 3 MiB of them for good."""
    with session() as opened:
        learn()
        kept, inside = [], []
        for number in loop(turns, count):
            inside.append(step())
            if number == 2:
                kept.append(memory(3, 7))
        assert all(is_all(tensor, 7) for tensor in kept)
        opened.memory.evacuate()
        return {"inside": inside, **held(opened)}


def waits_for_a_lane() -> dict[str, int]:
    """Each of the first iterations keeps 4 MiB. Return the bytes before the next one begins."""
    with session() as opened:
        kept = []
        for _ in range(2):
            with gpushare.turn():
                step()
                kept.append(memory(4, 7))
        return held(opened)


def ends_in_another_thread(is_busy: bool) -> dict[str, Any]:
    """End the turn of a first iteration, 4 MiB of which persist, in another thread. The thread of
    the iteration waits meanwhile, or computes without the GIL, as PyTorch's functions do."""
    with session() as opened:
        memory(1)
        opened.memory.begin()
        step()
        kept = memory(4, 7)
        opened.memory.end()
        address = kept.data_ptr()

        def evacuate() -> None:
            while is_busy and time.clock_gettime(clock) < computes_at:
                time.sleep(0.005)
            opened.memory.evacuate()

        clock = time.pthread_getcpuclockid(threading.get_ident())
        computes_at = time.clock_gettime(clock) + 0.05  # more than it takes to begin
        thread = threading.Thread(target=evacuate)
        thread.start()
        if is_busy:
            hashlib.pbkdf2_hmac("sha256", b"", b"", 5_000_000)
        thread.join()
        return {"stayed": kept.data_ptr() == address, **held(opened)}


def loop(turns: bool, count: int) -> Iterator[int]:
    """Iterations of one turn, or each in a turn of its own."""
    if not turns:
        yield from gpushare.iterations(range(count))
        return
    for number in range(count):
        with gpushare.turn():
            yield number


def keeps_the_last(count: int) -> dict[str, Any]:
    """The result of an iteration is used in the next one, and in the one after it."""
    with session() as opened:
        learn()
        kept: list[tuple[int, torch.Tensor]] = []
        inside = []
        for number in gpushare.iterations(range(count)):
            inside.append(step())
            kept = [*kept[-2:], (number % 200, memory(3, number % 200))]
            assert all(is_all(tensor, value) for value, tensor in kept)
        return {"inside": inside, **held(opened)}


def multiplies_first_inside(count: int) -> dict[str, Any]:
    """The first products, on two streams, are computed in the lane: cuBLAS keeps its workspace of
    each for good. Return also the lane that the session asks for, at each turn."""
    side = torch.cuda.Stream()
    factor = torch.ones(1024, 1024, device="cuda")
    with session() as opened:
        learn()
        inside, lanes = [], []
        made: set[int] = set()
        for _ in range(count):
            with gpushare.turn():
                inside.append(step(40))
                factor @ factor
                with torch.cuda.stream(side):
                    factor @ factor
                torch.cuda.current_stream().wait_stream(side)
                made = made or {place for place in workspaces() if _core.CudaLane.owns(place)}
            lanes.append(opened.memory.demand().ephemeral_bytes // MIB)
        stayed = [place in workspaces() for place in made]
        return {"inside": inside, "lanes": lanes, "stayed": stayed, **held(opened)}


def workspaces() -> set[int]:
    """Addresses of what cuBLAS keeps: in these programs no tensor of that size lives between
    iterations."""
    blocks = [block for segment in torch.cuda.memory_snapshot() for block in segment["blocks"]]
    living = [block for block in blocks if block["state"] == "active_allocated"]
    return {block["address"] for block in living if block["requested_size"] == WORKSPACE}


def trains() -> dict[str, int]:
    """A transformer, with Adam."""
    from torch import nn

    torch.manual_seed(0)
    with session() as opened:
        layer = nn.TransformerEncoderLayer(256, 4, 1024, dropout=0.1, batch_first=True)
        net = nn.Sequential(nn.TransformerEncoder(layer, 2), nn.Flatten(), nn.Linear(256 * 32, 10))
        net.cuda()
        optimizer = torch.optim.Adam(net.parameters())
        x = torch.randn(16, 32, 256, device="cuda")
        y = torch.randint(0, 10, (16,), device="cuda")

        def iteration() -> bool:
            optimizer.zero_grad()
            nn.functional.cross_entropy(net(x), y).backward()
            optimizer.step()
            return step(30)

        learn(4, iteration)
        opened.memory.evacuate()
        return held(opened)


def trains_long(model: str, count: int) -> dict[str, Any]:
    """Train a model of the benchmark lanes.gpu_memory in one turn. Return each ephemeral size that
    the session reported, and how many calls of the driver the last iterations made. Then return
    bytes, after turns whose lane has the last of these sizes."""
    iterate = training(model)
    with session() as opened:
        learn(4, lambda: iterate() or is_routed(opened))
        lanes: list[int] = []
        counted: list[int] = []
        for _ in gpushare.iterations(range(count)):
            iterate()
            counted.append(calls())
            if not lanes or opened.memory.demand().ephemeral_bytes != lanes[-1]:
                lanes.append(opened.memory.demand().ephemeral_bytes)
        in_loop = counted[-1] - counted[count // 2]
        for _ in range(3):
            with gpushare.turn():
                iterate()
        return {"lanes": lanes, "calls": in_loop, **held(opened)}


def is_routed(opened: Any) -> bool:
    return bool(opened.memory.lane.inside or opened.memory.lane._pool is not None)


def exports(way: str) -> dict[str, bool]:
    """A tensor of the lane, which another library has as well, lives across the end of a turn."""
    with session():
        learn()
        with gpushare.turn():
            tensor = memory(8, 5)
            was_inside = is_inside(tensor)
            address = EXPORTS[way](tensor)
        return {"was_inside": was_inside, "stayed": tensor.data_ptr() == address}


EXPORTS: dict[str, Callable[[Any], int]] = {  # what another library takes for the address
    "to_dlpack": lambda t: torch.from_dlpack(torch.utils.dlpack.to_dlpack(t)).data_ptr(),
    "dlpack_of_the_tensor": lambda t: torch.from_dlpack(
        t.__dlpack__(stream=1, max_version=(1, 0))  # CuPy asks so
    ).data_ptr(),
    "cuda_array_interface": lambda t: t.__cuda_array_interface__["data"][0],
}


# --- what user code sees


def figures(is_shared: bool) -> list[dict[str, int]]:
    """Return PyTorch's figures of live tensors and of their peak, in the midst of an iteration,
    between two, and after a reset by user code."""
    with session() if is_shared else nullcontext():
        memory(1)
        if is_shared:
            learn()
        torch.cuda.reset_peak_memory_stats()
        found, kept = [], []
        for number in gpushare.iterations(range(8)) if is_shared else range(8):
            first = memory(30)
            kept = [*kept[-1:], memory(3, number), torch.full((1000,), number, device="cuda")]
            del first
            second = memory(20 + number % 5)  # the peak is that of an earlier iteration in the end
            found.append(figures_of_tensors())
            del second
        found.append(figures_of_tensors())
        torch.cuda.reset_peak_memory_stats()
        found.append(figures_of_tensors())
        return found


def figures_of_tensors() -> dict[str, int]:
    """Return counts of tensors, and the bytes that they have requested. PyTorch may add at most 1
    MiB of the rest of a segment to a block; that depends on the segment, and is left out."""
    stats = torch.cuda.memory_stats()
    names = ("allocation.", "active.", "requested_bytes.")
    return {
        name: value
        for name, value in stats.items()
        if name.startswith(names) and name.endswith((".current", ".peak"))
    }


def split_sizes() -> dict[str, Any]:
    """Tensors of five sizes, 78 MiB in all: which of the last iterations have them in the lane."""
    with session() as opened:
        inside: list[bool] = []

        def iteration() -> bool:
            tensors = [memory(size) for size in (30, 12, 25, 8, 3)]
            inside.extend(is_inside(tensor) for tensor in tensors)
            return any(inside[-5:])

        learn(8, iteration)
        return {"inside": inside[-10:], **held(opened)}


def pages_out(mebibytes: int) -> dict[str, Any]:
    """Weights go out and come in."""
    with gpushare.session(name="test", device="cuda:0") as opened:
        weights = memory(mebibytes, 3)
        for _ in gpushare.iterations(range(3)):
            step()
        address = weights.data_ptr()
        with tempfile.TemporaryDirectory(dir="build") as directory:
            size, reason = opened.memory.page_out(directory)
            trouble = opened.memory.page_in()
        is_whole = is_all(weights, 3) and weights.data_ptr() == address
        return {"mebibytes": size // MIB, "reason": reason, "trouble": trouble, "whole": is_whole}


def comes_back(is_crowded: bool) -> dict[str, Any]:
    """Weights go out between two cells, and come in for the second, which may begin while the GPU
    has no room for them."""
    told: list[str] = []
    with session() as opened:
        weights = memory(50, 3)
        for _ in gpushare.iterations(range(3)):
            step()
        page_out(opened)
        opened.on_trouble = told.append
        cell = threading.Thread(target=opened.cell_begins)
        with no_room() if is_crowded else nullcontext():
            cell.start()
            while is_crowded and not told:
                time.sleep(0.01)
            waits = is_crowded and cell.is_alive() and opened.is_out_of_reach
        cell.join()
        is_back = not (opened.is_out_of_reach or _core.CudaSegments.bytes_out())
        return {"told": told, "waits": waits, "back": is_back, "whole": is_all(weights, 3)}


def page_out(opened: Any) -> None:
    """Request a page-out as soon as the broker knows that no cell runs, and wait until it is
    done."""
    opened.cell_ends()
    with Client.connect(settings.load(), "tests") as client:
        while not opened.paged_out_bytes:
            with suppress(GpuShareError):
                client.ask(Evict(opened.id))


def ends_and_begins_again(count: int) -> list[int]:
    """Chunks of the lane that this process has in each of its sessions, and after it."""
    chunks = []
    for _ in range(count):
        with session():
            learn()
            chunks.append(_core.CudaLane.attached_chunks())
        chunks.append(_core.CudaLane.attached_chunks())
    return chunks


def sends() -> dict[str, Any]:
    """Send weights, and a tensor of the lane, to another process by torch.multiprocessing."""
    with session() as opened:
        learn()
        weights, small = memory(30, 6), torch.full((1000,), 6, dtype=torch.uint8, device="cuda")
        with gpushare.turn():
            made = memory(8, 6)
            was_inside = is_inside(made)
            view = made[MIB:]
            sent = [weights, small, made]
            read = answers_of_another(sent)
        return {
            "was_inside": was_inside,
            "read": read,
            "written": [int(tensor[0]) for tensor in sent],
            "has_views": view.data_ptr() == made.data_ptr() + MIB,
            **held(opened),
        }


def answers_of_another(tensors: list[torch.Tensor]) -> list[int]:
    """Return what another process reads in the first byte of each tensor; it then writes a 9
    there."""
    context = torch.multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=receive, args=(theirs,))
    process.start()
    ours.send(tensors)
    found: list[int] = ours.recv()
    process.join()
    return found


def receive(pipe: Any) -> None:
    tensors = pipe.recv()
    found = [int(tensor[0]) for tensor in tensors]
    for tensor in tensors:
        tensor[0] = 9
    torch.cuda.synchronize()
    del tensor, tensors
    pipe.send(found)


def sends_what_is_exported() -> str:
    """Return why a tensor cannot go to another process if another library has its address."""
    with session():
        tensor = memory(8, 5)
        other = torch.from_dlpack(torch.utils.dlpack.to_dlpack(tensor))
        try:
            torch.multiprocessing.reductions.reduce_tensor(tensor)
        except RuntimeError as error:
            return str(error) if is_all(other, 5) and is_all(tensor, 5) else "bytes are lost"
    return ""


# --- neighbours


def forks(count: int) -> dict[str, Any]:
    """Fork the workers of a loader and, in each iteration, another process. Return what these
    processes say of CUDA, and whether this process has its lane and its bytes as before."""
    numbers = TensorDataset(torch.arange(count, dtype=torch.uint8))
    loader = DataLoader(numbers, num_workers=2, multiprocessing_context="fork")
    with session():
        learn()
        kept, wrong, inside, words = [memory(3, 7)], 0, [], set()
        for (number,) in gpushare.iterations(loader):
            made = memory(40, int(number))
            inside.append(is_inside(made))
            words.add(of_a_child(kept))
            wrong += not (is_all(made, int(number)) and is_all(kept[0], 7))
            del made
        return {"wrong": wrong, "inside": inside, "words": sorted(words)}


def of_a_child(kept: list[torch.Tensor]) -> str:
    """Fork a process that first frees the memory that it has of its parent. Return the message that
    it gets."""
    reader, writer = os.pipe()
    if (child := os.fork()) == 0:
        kept.clear()
        try:
            memory(1)
        except RuntimeError as error:
            os.write(writer, str(error).encode())
        os._exit(0)
    os.close(writer)
    os.waitpid(child, 0)
    with os.fdopen(reader) as answer:
        return answer.read()


def neighbour(name: str, value: int, count: int) -> dict[str, Any]:
    """Fill the lane in each turn, and look whether all memory is as this process left it."""
    wrong: list[tuple[str, int]] = []
    kept: list[tuple[int, torch.Tensor]] = []
    inside = 0
    with session(name):
        say("ready")
        weights = memory(12, value)
        for number in gpushare.iterations(range(count)):
            a, b = memory(24, value + 1), memory(12, value + 2)
            inside += is_inside(a)
            kept = [*kept[-3:], (value + 3 + number % 50, memory(4, value + 3 + number % 50))]
            looks = [("a", a, value + 1), ("b", b, value + 2), ("weights", weights, value)]
            looks += [("kept", tensor, its) for its, tensor in kept]
            wrong += [(what, number) for what, tensor, its in looks if not is_all(tensor, its)]
            del a, b, looks
        return {"wrong": wrong, "inside": inside}


def beside_a_thread(count: int) -> dict[str, int]:
    """Another thread counts in its tensors while this one comes to boundaries. Return how many of
    the tensors were in the lane, and how many have lost a count."""
    wrong = inside = 0
    is_over = threading.Event()

    def count_up() -> None:
        nonlocal wrong, inside
        while not is_over.is_set():
            made = memory(8, 0)
            inside += is_inside(made)
            for _ in range(10):
                made.add_(1)
            wrong += not is_all(made, 10)

    with session("ada"):
        learn()
        say("ready")
        thread = threading.Thread(target=count_up)
        thread.start()
        for _ in gpushare.iterations(range(count)):
            step(24)
            time.sleep(0.02)  # the other thread allocates
        is_over.set()
        thread.join()
    return {"wrong": wrong, "inside": inside}


def crowded(name: str, value: int, count: int) -> dict[str, Any]:
    """Each iteration needs 60 MiB beside 8 of weights, and the first one leaves 4, as an optimiser
    does. Return how many ran in the lane, and whether memory ended."""
    kept: list[torch.Tensor] = []
    inside = 0
    with session(name) as opened:
        kept.append(memory(8, value))
        say("opened")
        try:
            for _ in range(count):
                with gpushare.turn():
                    inside += step()
                    kept += [memory(4, value)] if len(kept) < 2 else []
        except torch.OutOfMemoryError as error:
            return {"trouble": str(error), **held(opened)}
        wrong = sum(not is_all(tensor, value) for tensor in kept)
        return {"trouble": "", "inside": inside, "wrong": wrong, **held(opened)}


def overwrites(least: int) -> int:
    """Fill the lane with 0xFF in each turn until the test ends this; return the number of turns."""
    with session("neighbour"):
        learn(1, lambda: step(50))
        say("inside")
        for number in gpushare.iterations(itertools.count(1)):
            memory(50, 0xFF)
            if number >= least and select.select([sys.stdin], [], [], 0)[0]:
                return number
    raise AssertionError("unreachable")


if __name__ == "__main__":
    main(globals())
