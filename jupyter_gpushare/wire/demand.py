"""Demand: the memory that a session needs, and how far it can be squeezed or share a lane."""

from __future__ import annotations

import math

import msgspec

MAX_PARTS, MAX_SECONDS, MAX_BYTES = 64, 1e9, 1 << 62  # limits of Curve and Squeezing


class SqueezeOption(msgspec.Struct, frozen=True):
    """One way to run an iteration: with a peak of `bytes` ephemeral bytes it takes `slowdown` times
    as long as unsqueezed."""

    bytes: int
    slowdown: float


class Demand(msgspec.Struct, frozen=True):
    """The memory that a session takes: bytes that live across iterations, and the peak inside one.

    `measured` is False until an iteration has been seen; such a session runs alone on its device.
    `options` are at most 16 ways to squeeze it, from the unsqueezed peak, which is
    `ephemeral_bytes` at a slowdown of 1.0, down to the floor; empty if it cannot be squeezed. They
    stay the same while it is squeezed.
    """

    persistent_bytes: int = 0
    ephemeral_bytes: int = 0
    measured: bool = False
    options: tuple[SqueezeOption, ...] = ()


class Curve(msgspec.Struct, frozen=True):
    """The bytes alive in the lane in a usual iteration of a session. The `seconds` of that
    iteration, without waits, have at most 64 equal parts; `percent` has the maximum of each, in
    percent of `peak_bytes`."""

    seconds: float
    peak_bytes: int
    percent: tuple[int, ...]

    def flaw(self) -> str:
        """Return an empty string, or which value is impossible."""
        if not 1 <= len(self.percent) <= MAX_PARTS:
            return f"a curve has 1 to {MAX_PARTS} parts, not {len(self.percent)}"
        if not all(0 <= part <= 100 for part in self.percent):
            return "a part of a curve is 0 to 100 percent of its peak"
        if not (0 < self.seconds <= MAX_SECONDS and 0 < self.peak_bytes < MAX_BYTES):
            return "the iteration of a curve takes some seconds and some bytes"
        return ""


class Squeezing(msgspec.Struct, frozen=True):
    """How far a session is squeezed. The user has asked for `asked_bytes`; None: the broker
    chooses.

    Its latest iterations took at most `reached_bytes` in place of `whole_bytes`, and it cannot be
    squeezed below `floor_bytes`. By its own prediction they take `slowdown` times as long as
    unsqueezed. So far it has written `written_bytes` to its file. Unknown fields are None.
    """

    asked_bytes: int | None = None
    reached_bytes: int | None = None
    floor_bytes: int | None = None
    whole_bytes: int | None = None
    slowdown: float | None = None
    written_bytes: int = 0

    def flaw(self) -> str:
        """Return an empty string, or which value is impossible."""
        sizes = (self.asked_bytes, self.reached_bytes, self.floor_bytes, self.whole_bytes)
        if not all(0 <= (size or 0) < MAX_BYTES for size in (*sizes, self.written_bytes)):
            return "what is squeezed is in bytes, from 0 upwards"
        if self.slowdown is not None and not 1 <= self.slowdown < math.inf:
            return "a slowdown is 1, which is none, or more"
        return ""
