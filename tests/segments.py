"""PyTorch's allocator as the library sees it: a caller that asks its exported functions for
segments."""

from __future__ import annotations

import ctypes

from jupyter_gpushare import _core

library = ctypes.CDLL(_core.__file__)
library.gpushare_cuda_allocate.restype = ctypes.c_void_p
library.gpushare_cuda_allocate.argtypes = [ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p]
library.gpushare_cuda_free.restype = None
library.gpushare_cuda_free.argtypes = [
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.c_int,
    ctypes.c_void_p,
]


class Segment:
    """Return `size` bytes on the GPU, which with the fake driver is main memory."""

    def __init__(self, size: int) -> None:
        self.address = library.gpushare_cuda_allocate(size, 0, None)
        assert self.address, "out of memory"
        self.size, self._value = size, -1

    def first(self) -> int:
        return ctypes.c_ubyte.from_address(self.address).value

    def filled(self, value: int) -> Segment:
        ctypes.memset(self.address, value, self.size)
        self._value = value
        return self

    def is_whole(self, begin: int = 0, end: int | None = None) -> bool:
        """Whether these bytes have the value that they were filled with."""
        end = self.size if end is None else end
        content = ctypes.string_at(self.address + begin, end - begin)
        return content == bytes([self._value]) * (end - begin)

    def free(self) -> None:
        library.gpushare_cuda_free(self.address, self.size, 0, None)
