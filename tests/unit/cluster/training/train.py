"""A training whose result depends on everything that a checkpoint has to keep.

    python train.py OUT SECONDS [WORKERS [stateful]]

`stateful`: with a loader of torchdata, which knows its position. It writes the digest of its
weights and its losses to OUT, and the computed iterations of each generation to the file `ran` of
the generation. If the job has a file `wait-N`, it waits after iteration N until it is asked to
yield.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import sys
import time
from pathlib import Path
from typing import Any

import numpy
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler

import jupyter_gpushare as gpushare

EPOCHS = (4, 2)  # of two loops
RANK = int(os.environ.get("RANK", "0"))
GANG = int(os.environ.get("WORLD_SIZE", "1")) > 1


class Noisy(Dataset):  # type: ignore[type-arg]
    """A data set that augments at random as it loads, with the random numbers of three
    libraries."""

    def __init__(self, is_noisy: bool) -> None:
        self._is_noisy = is_noisy
        there = torch.Generator().manual_seed(7)
        self._data = torch.randn(96, 16, generator=there)
        self._classes = torch.randint(0, 4, (96,), generator=there)

    def __len__(self) -> int:
        return len(self._data)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        if not self._is_noisy:
            return self._data[index], self._classes[index]
        noise = torch.rand(16) * random.random() * numpy.random.random()
        return self._data[index] + noise, self._classes[index]


def loader_of(kind: str) -> Any:
    if kind == "plain":
        return DataLoader
    from torchdata.stateful_dataloader import StatefulDataLoader

    return StatefulDataLoader


def main(out: str, seconds: float, workers: int = 0, kind: str = "plain") -> None:
    torch.set_num_threads(1)
    if GANG:
        dist.init_process_group("gloo")
    for seed in (torch.manual_seed, random.seed, numpy.random.seed):
        seed(1 + RANK)
    net = nn.Sequential(nn.Linear(16, 32), nn.BatchNorm1d(32), nn.Dropout(0.3), nn.Linear(32, 4))
    # Buckets are fixed: otherwise the first iteration after a resume would sum in another order.
    parallel = nn.parallel.DistributedDataParallel
    model = parallel(net, find_unused_parameters=True) if GANG else net
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.7)
    scaler = torch.amp.GradScaler("cpu", growth_interval=5)
    data = Noisy(is_noisy=workers == 0)
    order = None if GANG else torch.Generator().manual_seed(3)
    loader = loader_of(kind)(
        data,
        8,
        shuffle=not GANG,
        sampler=DistributedSampler(data) if GANG else None,
        num_workers=workers,
        generator=order,
    )
    losses: list[float] = []
    place = gpushare.checkpoint(
        model=net, optimizer=optimizer, schedule=schedule, scaler=scaler, losses=losses, every=0.3
    )
    epoch = place.epoch
    for epochs in EPOCHS:
        for inputs, classes in gpushare.iterations(loader, epochs):
            if place.epoch != epoch:
                schedule.step()
                epoch = place.epoch
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(inputs), classes) * (1 + random.random())
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            losses.append(loss.item())
            note(place.iteration + 1)
            time.sleep(seconds)
    if RANK == 0:
        write(out, net, losses)
    if GANG:
        dist.destroy_process_group()


def write(out: str, net: nn.Module, losses: list[float]) -> None:
    weights = b"".join(each.detach().numpy().tobytes() for each in net.state_dict().values())
    digest = hashlib.sha256(weights).hexdigest()
    Path(out).write_text(json.dumps({"weights": digest, "losses": [x.hex() for x in losses]}))


def note(iteration: int) -> None:
    if RANK == 0 and "GPUSHARE_JOB" in os.environ:
        here = Path(os.environ["GPUSHARE_JOB"]) / f"g{os.environ['GPUSHARE_GENERATION']}"
        with open(here / "ran", "a") as file:
            file.write(f"{iteration}\n")
        waits = here.with_name(f"wait-{iteration}").exists()
        while waits and not os.path.exists(os.environ["GPUSHARE_YIELD"]):
            time.sleep(0.01)


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]), *map(int, sys.argv[3:4]), *sys.argv[4:])
