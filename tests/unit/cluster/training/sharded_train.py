"""A training of a model that is sharded over ranks.

    python sharded_train.py OUT SECONDS [KIND]

KIND is the kind of sharding: `fully`, by `fully_shard`; `tensor`, by a plan of tensor parallelism;
`hybrid`, where ranks have replicas of shards. It writes the files of `train.py`. In a job it also
writes the file `states` of a generation: a digest of all states at the beginning, and after each
iteration.
"""

from __future__ import annotations

import hashlib
import os
import random
import sys
import time
from pathlib import Path

import numpy
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler
from train import EPOCHS, RANK, Noisy, note, write

import jupyter_gpushare as gpushare


def sharded(kind: str) -> nn.Module:
    """Return a sharded model. Its tensors do not divide evenly by the number of ranks, and one has
    fewer rows than there are ranks."""
    ranks = dist.get_world_size()
    if kind == "tensor":
        net = nn.Sequential(nn.Linear(16, 32), nn.Dropout(0.3), nn.Linear(32, 4))
        plan = {"0": ColwiseParallel(), "2": RowwiseParallel()}
        return parallelize_module(net, init_device_mesh("cpu", (ranks,)), plan)
    batch_norm = nn.BatchNorm1d(33)  # each rank has buffers of its own
    net = nn.Sequential(nn.Linear(16, 33), batch_norm, nn.Dropout(0.3), nn.Linear(33, 5))
    net.append(nn.Linear(5, 1)).append(nn.Linear(1, 4))
    shape = (ranks, 1) if kind == "hybrid" else (ranks,)
    names = ("replicas", "shards")[-len(shape) :]
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=names)
    fully_shard(net[0], mesh=mesh)
    fully_shard(net, mesh=mesh)
    return net


def full(value: torch.Tensor) -> torch.Tensor:
    return value.full_tensor() if isinstance(value, DTensor) else value


def note_states(net: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Write a digest of all states. In a job all ranks call this."""
    if "GPUSHARE_JOB" not in os.environ:
        return
    moments = [each for state in optimizer.state.values() for each in state.values()]
    there = [full(value).detach() for value in (*net.parameters(), *moments)]
    if RANK == 0:
        digest = hashlib.sha256(b"".join(value.numpy().tobytes() for value in there)).hexdigest()
        here = Path(os.environ["GPUSHARE_JOB"]) / f"g{os.environ['GPUSHARE_GENERATION']}"
        with open(here / "states", "a") as file:
            file.write(f"{digest}\n")


def main(out: str, seconds: float, kind: str = "fully") -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(1)
    net = sharded(kind)
    for seed in (torch.manual_seed, random.seed, numpy.random.seed):
        seed(1 if kind == "tensor" else 1 + RANK)  # ranks of the former load the same
    optimizer = torch.optim.Adam(net.parameters(), 1e-2, foreach=False)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.7)
    data = Noisy(is_noisy=True)
    replicas = 1 if kind == "tensor" else dist.get_world_size()
    loader = DataLoader(data, 8, sampler=DistributedSampler(data, replicas, RANK % replicas))
    losses: list[float] = []
    place = gpushare.checkpoint(
        optimizer=optimizer, model=net, schedule=schedule, losses=losses, every=0.3
    )
    note_states(net, optimizer)
    epoch = place.epoch
    for epochs in EPOCHS:
        for inputs, classes in gpushare.iterations(loader, epochs):
            if place.epoch != epoch:
                schedule.step()
                epoch = place.epoch
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(net(inputs), classes) * (1 + random.random())
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
            note_states(net, optimizer)
            note(place.iteration + 1)
            time.sleep(seconds)
    whole = nn.Module()
    for name, value in net.state_dict().items():
        whole.register_buffer(name.replace(".", "_"), full(value))
    if RANK == 0:
        write(out, whole, losses)
    time.sleep(0.2)  # threads of gloo need Python for the last tensors, and abort if it ends
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]), *sys.argv[3:])
