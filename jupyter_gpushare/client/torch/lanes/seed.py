"""The size of the one segment of PyTorch's allocator that an iteration's tensors lie in.

PyTorch splits a segment as tensors come, and leaves holes between them that none of its statistics
tells. So each iteration tries a size between one that was too small and one that was enough.
"""

from __future__ import annotations


class Seed:
    """Finds the smallest segment that has room for one stream's tensors, in bytes. Tensors of other
    streams lie in other segments."""

    def __init__(self, unit: int) -> None:
        """Sizes are multiples of `unit`, but for the very first."""
        self._unit = unit
        self.forget()

    def forget(self) -> None:
        """Forget all sizes: iterations have changed."""
        self.enough = 0  # 0: that is unknown
        self._too_small = 0
        self._in_use = 0  # the most bytes of tensors at one time
        self._beside = 0  # bytes of segments of other streams

    def next(self, first: int) -> int:
        """Return the size of the next iteration's segment; `first` is that of the very first."""
        if not self.enough:
            return first
        too_small = max(self._too_small, self._in_use - self._beside - self._unit)
        units = (self.enough - too_small) // self._unit
        return self.enough - units // 2 * self._unit

    def ended(self, size: int, in_use: int, own: int, beside: int) -> int:
        """Note that an iteration has ended with a segment of `size` bytes and at most `in_use`
        bytes of tensors. The segments of its stream, that one included, have `own` bytes, and those
        of other streams `beside` bytes. Return the bytes that all segments of such an iteration
        take."""
        if in_use > self._in_use + self._unit:
            self.forget()
        self._in_use = max(self._in_use, in_use)
        self._beside = max(self._beside, beside)
        if own > size:
            self._too_small = max(self._too_small, size)
            self.enough = own if self.enough <= size else self.enough
        elif not self.enough or in_use + self._unit >= self._in_use:
            self.enough = size
        return self.enough + self._beside - (self._in_use - in_use)
