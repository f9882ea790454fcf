"""Trainings that fit a device of a fixed size because they are squeezed.

A device that holds a stock training exactly: how many times as deep may a ResNet be, and how many
times as large the batch of an AlexNet, if its iterations are squeezed as far as they go?
"""

from __future__ import annotations

import functools
import sys
import tempfile
from collections.abc import Callable

import torch
from measure import Figure, publish

from squeeze.costs import Way
from squeeze.networks import Classifier, Training, alexnet, images, resnet

ENOUGH = 4  # times that are tried at most
SMALL = 3  # blocks, and
FEW = 8  # pictures of the stock training
ITERATIONS = 4  # until the need of a training is steady


def deep(blocks: int) -> Training:
    return Classifier(lambda: resnet((blocks,)), lambda: images(FEW, 64))


def wide(pictures: int) -> Training:
    return Classifier(alexnet, lambda: images(pictures, 227))


def need(make: Callable[[], Training], is_squeezed: bool, directory: str) -> int:
    """Return the bytes that a training needs, with its parameters and their state."""
    way = Way(make, directory, 1 if is_squeezed else "off")
    for _ in range(ITERATIONS):
        latest = way.step()
    way.end()
    return latest.live + latest.peak


def times_as_much(make: Callable[[int], Training], size: int, directory: str) -> int:
    """Return how many times as large a squeezed training may be on a device that one stock training
    fills; at most ENOUGH times are tried."""
    device = need(functools.partial(make, size), False, directory)
    for times in range(2, ENOUGH + 1):
        if need(functools.partial(make, times * size), True, directory) > device:
            return times - 1
    return ENOUGH


def main() -> int:
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(dir="/var/tmp") as directory:
        depth = times_as_much(deep, SMALL, directory)
        batch = times_as_much(wide, FEW, directory)
    figures = [
        Figure("depth_of_a_resnet", depth, "times", target=3, at_least=True),
        Figure("batch_of_alexnet", batch, "times", target=2, at_least=True),
    ]
    return publish("squeeze_room", figures)


if __name__ == "__main__":
    sys.exit(main())
