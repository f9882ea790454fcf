"""A job with a model that is sharded over ranks: each rank saves its shards, and the weights are
the same bit by bit. Another number of ranks resumes with the same weights."""

from __future__ import annotations

import math
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

import jupyter_gpushare as gpushare
from jupyter_gpushare.client.checkpoints import checkpoint as module
from jupyter_gpushare.client.checkpoints import store
from jupyter_gpushare.client.torch.checkpoints import sharded
from jupyter_gpushare.cluster.launch import generation
from jupyter_gpushare.errors import InvalidValue

from ..site import Site
from ..work import TRAINING, opened
from .resuming import COUNT, InJob, environment, go_on

PROGRAM = "sharded_train.py"


@pytest.mark.system
@pytest.mark.parametrize(
    ("kind", "stops"),
    [
        ("fully", (15,)),
        *(pytest.param(n, (7, 27), marks=pytest.mark.thorough) for n in ("tensor", "hybrid")),
    ],
)
def test_ranks_come_to_the_same_weights(trains: Site, kind: str, stops: tuple[int, ...]) -> None:
    """The job is stopped in the middle of an epoch."""
    plain = trains.trained("plain", PROGRAM, kind, gpus=4)
    assert trains.trained("moved", PROGRAM, kind, gpus=4, stops=stops) == plain
    assert len({*trains.computed("moved")}) == len(trains.computed("moved"))
    (checkpoint,) = trains.directory("moved").glob(f"g*/it-{trains.computed('moved')[-1]:09d}")
    names = {line.split("  ")[1] for line in (checkpoint / store.DIGESTS).read_text().splitlines()}
    assert names == {module.STATES, "shards/0.pt", "shards/1.pt"}


def run(job: Path, number: int, ranks: int, resume: str = "", program: str = PROGRAM) -> list[int]:
    """Run a generation of the job; return the exit statuses of its ranks."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    there = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": str(ranks)}
    there |= {"GLOO_SOCKET_IFNAME": "lo", "JUPYTER_GPUSHARE_CLUSTER_ENGINE": "slurm"}
    there |= environment(job, number, resume)
    command = [sys.executable, str(TRAINING / program), str(job / "out.json"), "0"]
    processes = []
    try:
        for rank in range(ranks):
            one = os.environ | there | {"RANK": str(rank), "LOCAL_RANK": str(rank)}
            log = open(job / f"log.{number}.{rank}", "w")  # noqa: SIM115
            processes.append(subprocess.Popen(command, env=one, stderr=log))
        return [each.wait(100) for each in processes]
    finally:
        for each in processes:
            each.kill()


def run_with_others(job: Path, program: str, ranks: int) -> None:
    """Two ranks stop after the first iteration, and this number of them resumes."""
    (job / "g1/yield.n0").touch()
    assert run(job, 1, 2, program=program) == [store.YIELDED] * 2
    newest = generation.newest(generation.close_generation(job, 1))
    opened(job, 2, newest)
    assert run(job, 2, ranks, newest, program) == [0] * ranks
    assert f"saved by 2 ranks, and resumes with {ranks}" in (job / "log.2.0").read_text()


@pytest.mark.system
@pytest.mark.parametrize("ranks", [1, 3])
def test_another_number_of_ranks_goes_on_with_the_same_weights(job: Path, ranks: int) -> None:
    run_with_others(job, PROGRAM, ranks)
    saved = (job / "g1.closed/states").read_text().split()
    assert (job / "g2/states").read_text().split()[0] == saved[-1]


@pytest.mark.system
@pytest.mark.parametrize("ranks", [1, 3])
def test_another_number_of_ranks_goes_on_with_a_model_that_is_on_each(
    job: Path, ranks: int
) -> None:
    run_with_others(job, "train.py", ranks)
    ran = [(job / name / "ran").read_text().split() for name in ("g1.closed", "g2")]
    assert ran == [["1"], [str(each) for each in range(2, COUNT // ranks + 1)]]


# --- shards ---------------------------------------------------------------------------------------


def layouts() -> dict[str, tuple[tuple[int, ...], Any]]:
    """Return shapes of meshes, and placements on them of tensors with seven rows and five
    columns."""
    from torch.distributed.tensor import Replicate, Shard

    return {
        "alone": ((1,), [Shard(0)]),
        "rows": ((2,), [Shard(0)]),
        "many": ((9,), [Shard(0)]),  # some ranks have nothing
        "columns": ((3,), [Shard(1)]),
        "whole": ((2,), [Replicate()]),
        "hybrid": ((2, 3), [Replicate(), Shard(0)]),
        "both": ((2, 2), [Shard(0), Shard(1)]),
        "twice": ((2, 2), [Shard(0), Shard(0)]),
    }


def as_ranks(layout: str) -> Iterator[tuple[int, int, Callable[[torch.Tensor], Any]]]:
    """Act as each rank in turn; yield its number, the number of ranks, and a function that lays out
    a tensor. Ranks do not communicate."""
    from torch.distributed.tensor import distribute_tensor
    from torch.testing._internal.distributed.fake_pg import FakeStore

    shape, placements = layouts()[layout]
    how: dict[str, Any] = {"placements": placements, "src_data_rank": None}
    ranks = math.prod(shape)
    for rank in range(ranks):
        dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=ranks)
        mesh = dist.init_device_mesh("cpu", shape)
        try:
            yield rank, ranks, partial(distribute_tensor, device_mesh=mesh, **how)
        finally:
            dist.destroy_process_group()


class Holding(nn.Module):
    """A module whose state is the tensor itself. A view of the tensor could have the layout of the
    rank before, since PyTorch caches results of operations on a mesh."""

    def __init__(self, tensor: Any) -> None:
        super().__init__()
        self.tensor = tensor

    def state_dict(self) -> dict[str, Any]:  # type: ignore[override]
        return {"tensor": self.tensor}


def written(place: Path, layout: str) -> torch.Tensor:
    """Write the shards of all ranks; return the whole tensor."""
    whole = torch.arange(35.0).reshape(7, 5)
    for rank, ranks, laid_out in as_ranks(layout):
        split = sharded.Split({"model": Holding(laid_out(whole))}, ranks)
        sharded.write(split, place / sharded.name_of(rank))
    return whole


@pytest.mark.parametrize("after", [*layouts()])
@pytest.mark.parametrize("before", [*layouts()])
def test_shards_are_read_into_any_other_layout(tmp_path: Path, before: str, after: str) -> None:
    whole = written(tmp_path, before)
    for rank, ranks, laid_out in as_ranks(after):
        model = Holding(laid_out(torch.zeros(7, 5)))
        sharded.Shards(tmp_path, rank, ranks).loaded({"model": model})
        assert torch.equal(model.tensor.to_local(), laid_out(whole).to_local())


def test_a_checkpoint_that_lacks_a_shard_is_refused(tmp_path: Path) -> None:
    written(tmp_path, "rows")
    (tmp_path / sharded.name_of(1)).unlink()
    with pytest.raises(InvalidValue, match=r"the checkpoint has not all of `model.tensor`"):
        sharded.Shards(tmp_path, 0, 1).loaded({"model": Holding(torch.zeros(7, 5))})


def test_a_tensor_that_some_ranks_have_is_refused() -> None:
    for _, ranks, laid_out in as_ranks("rows"):
        with pytest.raises(InvalidValue, match="holds tensors that are sharded over all ranks"):
            sharded.Split({"model": Holding(laid_out(torch.zeros(7, 5)))}, 2 * ranks)


# --- a rank alone ---------------------------------------------------------------------------------


@pytest.fixture
def world(tmp_path: Path) -> Iterator[Any]:
    """A mesh with only this process."""
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/world", rank=0, world_size=1)
    yield dist.init_device_mesh("cpu", (1,))
    dist.destroy_process_group()


def model(mesh: Any, width: int = 3) -> Any:
    from torch.distributed.fsdp import fully_shard

    net = nn.Linear(width, width)
    fully_shard(net, mesh=mesh)
    return net


def test_an_optimizer_has_its_states_again_in_the_same_order(in_job: InJob, world: Any) -> None:
    """A new optimizer has no states, so they are laid out like the model."""

    def stepped(count: int) -> tuple[Any, list[Any]]:
        net = model(world)
        optimizer = torch.optim.Adam(net.parameters())
        place = gpushare.checkpoint(optimizer=optimizer, model=net)
        for _ in range(count):
            net(torch.ones(3)).sum().backward()
            optimizer.step()
        states = [each for state in optimizer.state.values() for each in state.values()]
        return place, [getattr(x, "full_tensor", lambda x=x: x)() for x in (*states, net.weight)]

    in_job()
    place, saved = stepped(2)
    place.commit()
    go_on(in_job)
    _, there = stepped(0)
    assert len(there) == 7
    assert all(map(torch.equal, saved, there))


def test_milestones_of_a_schedule_are_kept_as_they_are(in_job: InJob, world: Any) -> None:
    """They are a Counter, whose `update` adds."""

    def kept() -> Any:
        optimizer = torch.optim.SGD((net := model(world)).parameters(), 1.0)
        schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, [2, 4, 4])
        return schedule, gpushare.checkpoint(model=net, schedule=schedule)

    in_job()
    saved, place = kept()
    place.commit()
    go_on(in_job)
    there, _ = kept()
    assert there.milestones == saved.milestones


def test_a_model_that_was_sharded_goes_on_whole(in_job: InJob, world: Any) -> None:
    in_job()
    gpushare.checkpoint(model=(net := model(world))).commit()
    saved = net.weight.full_tensor().clone()
    go_on(in_job)
    gpushare.checkpoint(model=(whole := nn.Linear(3, 3)))
    assert torch.equal(whole.weight, saved)


def test_a_model_of_another_shape_is_refused(in_job: InJob, world: Any) -> None:
    in_job()
    gpushare.checkpoint(model=model(world)).commit()
    go_on(in_job)
    with pytest.raises(InvalidValue, match=r"`model.weight` was saved with the shape \[3, 3\]"):
        gpushare.checkpoint(model=model(world, width=4))


def test_what_a_checkpoint_cannot_hold_is_refused(in_job: InJob, world: Any) -> None:
    from torch.distributed.fsdp import FullyShardedDataParallel

    in_job()
    with pytest.raises(InvalidValue, match=r"`a` cannot be kept: .*a FullyShardedDataParallel"):
        gpushare.checkpoint(
            a=FullyShardedDataParallel(nn.Linear(3, 3), device_id=torch.device("cpu"))
        )
    with pytest.raises(InvalidValue, match=r"`a.0` cannot be kept: .* like some of a model"):
        gpushare.checkpoint(a=[model(world).weight])


def test_a_full_disk_leaves_the_older_checkpoint(
    in_job: InJob, world: Any, tmpfs: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """No part of the unsaved checkpoint is left."""
    in_job()
    small, large = model(world), model(world, width=600)
    place = gpushare.checkpoint(small=small, more=(more := {}))
    place.commit()
    more["large"] = large.state_dict()
    _, there = module.batches([1], 1)
    assert [*there] == [1]
    assert "iteration 1 cannot be saved, so the job computes on" in capfd.readouterr().err
    assert [path.name for path in tmpfs.glob("*it-*")] == ["it-000000000"]
