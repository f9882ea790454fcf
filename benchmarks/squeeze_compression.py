"""Compressed memory beside the page file, as the slower tier of squeezing on the host.

`python benchmarks/squeeze_compression.py [ROUNDS]` trains three networks for some iterations, takes
what autograd has saved in the last forward, and moves each storage out and back in several ways, in
turn. It tells for each way which part of the bytes stays in memory, and the CPU time out and back
over that of the page file right before or after, as a median over rounds. The system's liblz4 and
libzstd compress. Results go to build/squeeze_compression.json.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from measure import RESULTS
from squeeze_networks import Classifier, Gpt, images, perceptron, tokens, vectors, vgg

from jupyter_gpushare.client.torch.squeeze.files.page_file import PageFile
from jupyter_gpushare.client.torch.squeeze.hooks import LEAST

MIB = 1 << 20
TRAINED = 5  # iterations before the one whose activations are taken

NETWORKS: dict[str, Callable[..., Classifier]] = {
    "CNN": lambda **options: Classifier(vgg, lambda: images(16, 64), **options),
    "GPT": lambda **options: Classifier(Gpt, lambda: tokens(1, 256), **options),
    "MLP": lambda **options: Classifier(perceptron, lambda: vectors(512, 512), **options),
}


class Way(NamedTuple):
    """Moves a storage out and back; `out` returns what `back` takes, and the bytes that stay."""

    out: Callable[[torch.UntypedStorage], tuple[Any, int]]
    back: Callable[[Any, torch.UntypedStorage], None]


def bytes_of(storage: torch.UntypedStorage) -> torch.Tensor:
    return torch.empty(0, dtype=torch.uint8).set_(storage)


def to_page_file(directory: str) -> Way:
    file = PageFile(directory)

    def out(storage: torch.UntypedStorage) -> tuple[Any, int]:
        place = file.take(storage.nbytes())
        file.write(place, storage)
        return place, 0

    def back(place: Any, storage: torch.UntypedStorage) -> None:
        file.read(place, storage)
        file.leave(place, None)

    return Way(out, back)


def library(name: str) -> ctypes.CDLL:
    path = ctypes.util.find_library(name)
    if path is None:
        sys.exit(f"lib{name} is not installed")
    return ctypes.CDLL(path)


def compressed(
    bound: Callable[[int], int],
    compress: Callable[[int, int, int, int], int],
    decompress: Callable[[int, int, int, int], int],
) -> Way:
    """`compress` and `decompress` take addresses and sizes: from where, and to where."""

    def out(storage: torch.UntypedStorage) -> tuple[Any, int]:
        buffer = torch.UntypedStorage(bound(storage.nbytes()))
        size = compress(storage.data_ptr(), storage.nbytes(), buffer.data_ptr(), buffer.nbytes())
        kept = torch.UntypedStorage(size)  # the buffer is as large as the storage itself
        ctypes.memmove(kept.data_ptr(), buffer.data_ptr(), size)
        return kept, size

    def back(kept: Any, storage: torch.UntypedStorage) -> None:
        size = decompress(kept.data_ptr(), kept.nbytes(), storage.data_ptr(), storage.nbytes())
        assert size == storage.nbytes()

    return Way(out, back)


def by_lz4() -> Way:
    lz4 = library("lz4")
    pointer = ctypes.c_void_p

    def compress(source: int, size: int, target: int, room: int) -> int:
        return int(lz4.LZ4_compress_default(pointer(source), pointer(target), size, room))

    def decompress(source: int, size: int, target: int, room: int) -> int:
        return int(lz4.LZ4_decompress_safe(pointer(source), pointer(target), size, room))

    return compressed(lz4.LZ4_compressBound, compress, decompress)


def by_zstd(level: int) -> Way:
    zstd, size_t, pointer = library("zstd"), ctypes.c_size_t, ctypes.c_void_p
    zstd.ZSTD_compressBound.restype = size_t
    zstd.ZSTD_compress.restype = zstd.ZSTD_decompress.restype = size_t
    zstd.ZSTD_compress.argtypes = pointer, size_t, pointer, size_t, ctypes.c_int
    zstd.ZSTD_decompress.argtypes = pointer, size_t, pointer, size_t

    def compress(source: int, size: int, target: int, room: int) -> int:
        return int(zstd.ZSTD_compress(target, room, source, size, level))

    def decompress(source: int, size: int, target: int, room: int) -> int:
        return int(zstd.ZSTD_decompress(target, room, source, size))

    return compressed(lambda size: int(zstd.ZSTD_compressBound(size_t(size))), compress, decompress)


def by_planes(way: Way) -> Way:
    """The same over the first bytes of all numbers, then the second ones, and so on."""

    def out(storage: torch.UntypedStorage) -> tuple[Any, int]:
        together = bytes_of(storage).view(-1, 4).t().contiguous()
        return way.out(together.untyped_storage())

    def back(kept: Any, storage: torch.UntypedStorage) -> None:
        together = torch.empty(storage.nbytes(), dtype=torch.uint8)
        way.back(kept, together.untyped_storage())
        bytes_of(storage).view(-1, 4).copy_(together.view(4, -1).t())

    return Way(out, back)


class Saved:
    """What autograd saves in a forward, each storage once, without parameters."""

    def __init__(self) -> None:
        self.storages: dict[int, torch.UntypedStorage] = {}

    def take(self, tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        is_parameter = isinstance(tensor._base if tensor._is_view() else tensor, torch.nn.Parameter)
        if not is_parameter and storage.nbytes() >= LEAST:
            self.storages[storage.data_ptr()] = storage.clone()
        return tensor.detach()


def activations(make: Callable[..., Classifier]) -> list[torch.UntypedStorage]:
    saved = Saved()

    def around() -> Any:
        saved.storages.clear()
        return torch.autograd.graph.saved_tensors_hooks(saved.take, lambda tensor: tensor)

    training = make(around=around)
    for _ in range(TRAINED + 1):
        training.iterate()
    return list(saved.storages.values())


class Moved(NamedTuple):
    kept: int  # bytes
    seconds: float


def moved(way: Way, storages: list[torch.UntypedStorage]) -> Moved:
    """Move all out and then back, in the reverse order, as a forward and a backward do. Seconds are
    of CPU time, that of the kernel for the file included."""
    begin = time.process_time()
    kept = [way.out(storage) for storage in storages]
    seconds = time.process_time() - begin
    targets = [torch.UntypedStorage(storage.nbytes()) for storage in storages]
    begin = time.process_time()
    for (what, _), target in zip(reversed(kept), reversed(targets), strict=True):
        way.back(what, target)
    seconds += time.process_time() - begin
    for storage, target in zip(storages, targets, strict=True):
        assert torch.equal(bytes_of(storage), bytes_of(target))
    return Moved(sum(size for _, size in kept), seconds)


def measured(storages: list[torch.UntypedStorage], rounds: int, directory: str) -> dict[str, Any]:
    page_file = to_page_file(directory)
    ways = {
        "page file, again": page_file,
        "lz4": by_lz4(),
        "zstd, level 1": by_zstd(1),
        "zstd, level -5": by_zstd(-5),
        "lz4 by planes": by_planes(by_lz4()),
        "zstd, level 1, by planes": by_planes(by_zstd(1)),
    }
    total = sum(storage.nbytes() for storage in storages)
    ratios: dict[str, list[float]] = {label: [] for label in ways}
    parts, paces = {}, []
    for number in range(rounds):
        for label, way in ways.items():
            pair = [page_file, way] if number % 2 else [way, page_file]
            found = [moved(one, storages) for one in pair]
            theirs, mine = found if number % 2 else found[::-1]
            paces.append(theirs.seconds / total)
            ratios[label].append(mine.seconds / theirs.seconds)
            parts[label] = mine.kept / total
    rows = {label: (parts[label], statistics.median(ratios[label])) for label in ways}
    return {"MiB": total / MIB, "ms per MiB": 1e3 * MIB * statistics.median(paces), "ways": rows}


def main() -> None:
    torch.set_num_threads(1)
    rounds, found = int((sys.argv[1:] or ["9"])[0]), {}
    with tempfile.TemporaryDirectory(dir="/var/tmp") as directory:
        for name, make in NETWORKS.items():
            found[name] = told = measured(activations(make), rounds, directory)
            print(f"{name}: {told['MiB']:.1f} MiB, {told['ms per MiB']:.2f} ms per MiB", flush=True)
            for label, (part, ratio) in told["ways"].items():
                print(f"  {label:26} stays {part:5.0%}  time {ratio:6.2f}", flush=True)
    results = RESULTS.with_name("squeeze_compression.json")
    results.parent.mkdir(exist_ok=True)
    results.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
