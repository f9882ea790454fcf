"""A stopped job with `gpushare.checkpoint` has the same result as without a stop, bit by bit."""

from __future__ import annotations

import itertools
import json
import os
import random
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, RandomSampler

import jupyter_gpushare as gpushare
from jupyter_gpushare.client.checkpoints import checkpoint as module
from jupyter_gpushare.client.checkpoints import store
from jupyter_gpushare.client.checkpoints.store import Store
from jupyter_gpushare.client.torch.checkpoints import agreement
from jupyter_gpushare.client.torch.checkpoints.gang import Gang
from jupyter_gpushare.client.torch.checkpoints.states import own_gpus
from jupyter_gpushare.cluster.launch import generation
from jupyter_gpushare.errors import InvalidValue
from jupyter_gpushare.settings import Settings
from jupyter_gpushare.wire.launch import try_connect

from ..site import Asks, Site
from ..work import alone, opened
from .resuming import COUNT, InJob, Stopped, check_that_it_goes_on, environment, go_on


@pytest.mark.system
@pytest.mark.parametrize(
    ("workers", "stops", "asks"),
    [
        (0, (55,), Site.ask),
        (2, (55,), Site.terminate),
        *(pytest.param(n, (20, 55), Site.ask, marks=pytest.mark.thorough) for n in (0, 2)),
    ],
)
def test_it_yields_to_others_and_goes_on_in_the_middle_of_an_epoch(
    trains: Site, tmp_path: Path, workers: int, stops: tuple[int, ...], asks: Asks
) -> None:
    """The job stops in the first of its two loops, and in the second one."""
    result = trains.trained("long", "train.py", workers, gpus=1, stops=stops, asks=asks)
    assert (trains.job("long").keeps, trains.job("long").skew) == (True, 0.69)
    assert trains.is_whole("long", COUNT)
    assert result == alone(tmp_path, "train.py", workers)
    (log,) = trains.directory("long").glob("g1.closed/log.*")
    assert "Traceback" not in log.read_text()


@pytest.mark.system
def test_a_job_that_is_killed_goes_on_from_the_last_checkpoint(
    trains: Site, tmp_path: Path
) -> None:
    out = trains.train("a", "train.py", gpus=1)
    trains.until(lambda: 40 in trains.computed("a"))
    for rank in trains.ranks("a"):
        rank.kill()
    trains.until_state(a="done")
    assert (trains.job("a").losses, trains.job("a").generation) == (0, 2)
    assert len(trains.computed("a")) < COUNT + 40
    assert json.loads(out.read_text()) == alone(tmp_path, "train.py")


@pytest.mark.system
@pytest.mark.parametrize("stops", [(27,), pytest.param((10, 27), marks=pytest.mark.thorough)])
def test_ranks_of_two_nodes_leave_at_the_same_iteration(
    trains: Site, stops: tuple[int, ...]
) -> None:
    plain = trains.trained("plain", "train.py", gpus=4)
    assert trains.trained("moved", "train.py", gpus=4, stops=stops) == plain
    assert len({*trains.computed("moved")}) == len(trains.computed("moved"))


def test_a_loop_on_a_node_of_a_cluster_starts_no_broker(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPUSHARE_JOB", "a")
    monkeypatch.setenv("JUPYTER_GPUSHARE_CLUSTER_ENGINE", "slurm")
    assert [*gpushare.iterations([1, 2], epochs=2)] == [1, 2, 1, 2]
    assert try_connect(Path(settings.socket)) is None


# --- damage -------------------------------------------------------------------------------------


def writes(states: bytes = b"states") -> Callable[[Path], None]:
    """Return the part of a checkpoint that saves this object."""

    def save(part: Path) -> None:
        (part / module.STATES).write_bytes(states)

    return save


def test_the_two_newest_checkpoints_are_left_of_all_generations(job: Path) -> None:
    first = Store(environment(job, 1))
    for iteration in (1, 2, 3):
        first.commit(iteration, writes())
    assert generation.newest(generation.close_generation(job, 1)) == "g1.closed/it-000000003"
    opened(job, 2, "g1.closed/it-000000003")
    second = Store(environment(job, 2, "g1.closed/it-000000003"))
    second.commit(4, writes())
    left = [path.relative_to(job).as_posix() for path in sorted(job.glob("g*/it-*"))]
    assert left == ["g1.closed/it-000000003", "g2/it-000000004"]
    assert not list(job.glob("g*/.it-*"))


DAMAGES: dict[str, Callable[[Path], object]] = {
    "cut": lambda newest: os.truncate(newest / module.STATES, 100),
    "changed": lambda newest: (newest / module.STATES).write_bytes(b"other!" * 1000),
    "without_digest": lambda newest: (newest / store.DIGESTS).unlink(),
    "empty": lambda newest: (newest / module.STATES).unlink(),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_checkpoint_is_noticed_and_the_one_before_it_is_used(
    job: Path, damage: str
) -> None:
    one = Store(environment(job, 1))
    for iteration in (5, 6):
        one.commit(iteration, writes(b"states" * 1000))
    DAMAGES[damage](generation.close_generation(job, 1) / "it-000000006")
    there = [*Store(environment(job, 2, "g1.closed/it-000000006")).candidates()]
    assert [path.name for path in there] == ["it-000000006", "it-000000005"]
    assert [store.is_intact(path) for path in there] == [False, True]


def test_a_generation_that_was_given_up_ends_at_its_next_write(job: Path) -> None:
    one = Store(environment(job, 1))
    generation.close_generation(job, 1)
    all_writes = (one.announce, lambda: one.tell(1, 0.5, 2), lambda: one.commit(1, writes()))
    for write in all_writes:
        with pytest.raises(SystemExit) as ended:
            write()
        assert ended.value.code == store.FENCED == generation.FENCED
    assert [path.name for path in job.iterdir()] == ["g1.closed"]


def test_a_generation_that_was_given_up_saves_nothing_where_a_library_makes_its_directory_again(
    job: Path,
) -> None:
    one = Store(environment(job, 1))
    generation.close_generation(job, 1)
    for write in (one.announce, lambda: one.commit(1, writes()), lambda: one.open_part(1)):
        one.part(1).mkdir(parents=True)
        with pytest.raises(SystemExit):
            write()
        assert [path.name for path in job.iterdir()] == ["g1.closed"]


def test_finished_checkpoints_stay_where_the_orders_of_a_generation_are_not_found(
    job: Path,
) -> None:
    one = Store(environment(job, 1))
    one.commit(1, writes())
    orders = job / "g1" / store.ORDERS
    orders.rename(job / "away")
    with pytest.raises(SystemExit):
        one.commit(2, writes())
    (job / "away").rename(orders)
    assert [path.name for path in sorted(orders.parent.glob("*it-*"))] == ["it-000000001"]


def test_a_file_that_a_save_does_not_find_is_its_own_error(job: Path) -> None:
    with pytest.raises(FileNotFoundError, match="tokenizer"):
        Store(environment(job, 1)).commit(1, lambda part: (part / "tokenizer.json").stat())


# --- what is said of it --------------------------------------------------------------------------


def test_outside_of_a_job_there_is_a_place_and_nothing_is_kept(tmp_path: Path) -> None:
    place = gpushare.checkpoint(losses=[])
    seen = []
    for epochs in (2, 1):
        _, there = module.batches("abc", epochs)
        seen += [(batch, place.epoch, place.iteration) for batch in there]
    assert "".join(batch for batch, _, _ in seen) == "abcabcabc"
    assert [epoch for _, epoch, _ in seen] == [0, 0, 0, 1, 1, 1, 0, 0, 0]
    assert [iteration for *_, iteration in seen] == [*range(9)]
    place.commit()
    assert not place.resumed
    assert [*tmp_path.iterdir()] == []


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({}, "name what is to be kept"),
        ({"every": 0, "a": []}, "`every` is a number of seconds above 0, and not 0"),
        ({"every": "soon", "a": []}, "`every` is a number of seconds above 0, and not 'soon'"),
        ({"model": 3}, "`model` cannot be kept.*and this is int"),
    ],
)
def test_what_cannot_be_kept_is_refused(
    in_job: InJob, given: dict[str, Any], sentence: str
) -> None:
    in_job()
    with pytest.raises(InvalidValue, match=sentence):
        gpushare.checkpoint(**given)


def test_in_a_job_it_is_called_once(in_job: InJob) -> None:
    in_job()
    gpushare.checkpoint(losses=[])
    with pytest.raises(InvalidValue, match="called once"):
        gpushare.checkpoint(losses=[])


def saved(in_job: InJob) -> str:
    """Run a generation that saves twice, at iteration 3 of 6; return its newest checkpoint."""
    in_job()
    place = gpushare.checkpoint(losses=(losses := []))
    _, there = module.batches([0.5, 0.25, 0.125], 2)
    for batch in itertools.islice(there, 4):
        place.commit()
        losses.append(batch)
    return go_on(in_job)


@pytest.mark.parametrize("ranks", [2, 3])
def test_a_job_goes_on_with_another_number_of_ranks(
    in_job: InJob, job: Path, capfd: pytest.CaptureFixture[str], ranks: int
) -> None:
    newest = saved(in_job)
    path = job / newest / module.STATES
    there = torch.load(path, weights_only=True)
    torch.save(there | {"ranks": ranks * there["ranks"]}, path)
    (job / newest / store.DIGESTS).write_text(store.digests_of(job / newest))
    place = gpushare.checkpoint(losses=(losses := [9.0]))
    assert (place.iteration, losses) == (3, [0.5, 0.25, 0.125])
    assert [*module.batches([0.5, 0.25, 0.125], 2)[1]] == [0.5, 0.25, 0.125]
    assert f"saved by {ranks} ranks, and resumes with 1" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("ranks", "there", "gpus"), [("2", 2, [1]), ("1", 2, [0, 1]), ("2", 1, [0]), ("", 2, [0, 1])]
)
def test_a_rank_keeps_the_random_numbers_of_the_gpus_that_it_computes_on(
    monkeypatch: pytest.MonkeyPatch, ranks: str, there: int, gpus: list[int]
) -> None:
    monkeypatch.setenv("LOCAL_WORLD_SIZE", ranks)
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert [*own_gpus(there)] == gpus


def test_time_of_computing_counts_where_a_loop_begins_between_two_looks(
    job: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = itertools.count()
    monkeypatch.setattr(agreement, "AGREE_SECONDS", 5.0)
    monkeypatch.setattr(agreement, "time", SimpleNamespace(monotonic=lambda: float(next(clock))))
    made = agreement.Agreement(Store(environment(job, 1)), Gang(), 60.0, 0)
    for iteration in range(1, 6):  # it looks after the first, the third and the last one
        if iteration % 2:
            made.begins(iteration - 1)
        made.after(iteration, 0)
    told = json.loads((job / "g1/progress.json").read_text())
    assert (told["iteration"], told["computed"]) == (5, 5.0)


def test_ranks_that_do_not_know_each_other_are_told_what_to_do(
    in_job: InJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_job()
    monkeypatch.setenv("WORLD_SIZE", "3")
    with pytest.raises(InvalidValue, match=r"this job has 3 ranks, .*init_process_group\(\)"):
        gpushare.checkpoint(losses=[])


def usual(stop: str = "", second: int = 1) -> list[str]:
    """Run a usual loop over epochs, and return its losses. It stops in epoch `second` at `stop`."""
    torch.manual_seed(1)
    random.seed(5)
    model = nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.5))
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    losses: list[float] = []
    place = gpushare.checkpoint(model=model, optimizer=optimizer, schedule=schedule, losses=losses)
    loader = DataLoader(torch.arange(6.0).reshape(3, 2), shuffle=True)  # type: ignore[arg-type]
    for epoch in range(4):
        here = stop if epoch == second else ""
        for number, batch in enumerate(module.batches(loader, 1)[1]):
            if (here, number) in (("middle", 1), ("last", 2)):
                (Path(os.environ["GPUSHARE_YIELD"])).touch()
            optimizer.zero_grad()
            loss = model(batch).square().sum() * random.random()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        if here == "behind":
            raise Stopped
        schedule.step()
        random.random()
        if here == "committed":
            place.commit()
        if here in ("after", "committed"):
            raise Stopped
    return [loss.hex() for loss in losses]


@pytest.mark.parametrize("stop", ["middle", "last", "behind", "after", "committed"])
@pytest.mark.parametrize("epoch", [0, 2])
def test_a_usual_loop_over_epochs_goes_on_bit_by_bit(in_job: InJob, stop: str, epoch: int) -> None:
    """Code between the loops runs again, and does not change states that were saved after it."""
    check_that_it_goes_on(in_job, usual, stop, epoch)


def drawn(commits: bool = False) -> list[float]:
    """Return the batches of two loops, each with its own generator, with a commit between them."""
    found: list[float] = []
    place = gpushare.checkpoint(found=found)
    for seed in (1, 2):
        numbers = torch.arange(5.0)
        order = torch.Generator().manual_seed(seed)
        loader = DataLoader(numbers, shuffle=True, generator=order)  # type: ignore[arg-type]
        for batch in module.batches(loader, 1)[1]:
            found.append(float(batch))
        if commits:
            place.commit()
            raise Stopped
    return found


SAMPLERS: dict[str, Callable[[Any, torch.Generator], Any]] = {
    "shuffled": lambda data, order: RandomSampler(data, generator=order),
    # It draws as it goes, and at its end.
    "replaced": lambda data, order: RandomSampler(
        data, replacement=True, num_samples=70, generator=order
    ),
}


def loaded(kind: str, workers: int, stop: int = -1) -> list[list[int]]:
    """Return the batches of three epochs. After `stop` of them the job is asked to yield."""
    order, numbers = torch.Generator().manual_seed(3), torch.arange(64)
    sampler = SAMPLERS[kind](numbers, order)
    loader = DataLoader(numbers, 8, sampler=sampler, num_workers=workers, generator=order)  # type: ignore[arg-type]
    found: list[list[int]] = []
    place = gpushare.checkpoint(found=found)
    for batch in module.batches(loader, 3)[1]:
        found.append(batch.tolist())
        if place.iteration + 1 == stop:
            (Path(os.environ["GPUSHARE_YIELD"])).touch()
    return found


@pytest.mark.system
@pytest.mark.usefixtures("own_folder")
@pytest.mark.parametrize("kind", SAMPLERS)
@pytest.mark.parametrize(
    ("workers", "stop"), [*((0, n) for n in (1, 4, 8, 9)), *((2, n) for n in (1, 4, 5, 7, 8, 12))]
)
def test_a_generator_from_which_a_loader_draws_ahead_goes_on_as_it_would_have(
    in_job: InJob, kind: str, workers: int, stop: int
) -> None:
    """Workers load batches ahead, and the sampler ends early."""
    check_that_it_goes_on(in_job, partial(loaded, kind, workers), stop)


def test_a_commit_before_a_loop_says_nothing_of_the_generator_of_its_loader(in_job: InJob) -> None:
    check_that_it_goes_on(in_job, drawn, True)


def test_milestones_of_a_schedule_are_kept_as_they_are(in_job: InJob) -> None:
    """The milestones are a Counter, whose `update` adds."""

    def schedule() -> torch.optim.lr_scheduler.MultiStepLR:
        optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], 1.0)
        return torch.optim.lr_scheduler.MultiStepLR(optimizer, [2, 4, 4])

    in_job()
    gpushare.checkpoint(one=(saved := schedule())).commit()
    go_on(in_job)
    gpushare.checkpoint(one=(there := schedule()))
    assert there.milestones == saved.milestones


def test_a_number_of_numpy_is_kept_as_one_of_python(in_job: InJob) -> None:
    in_job()
    one = {"all": [numpy.float32(0.1), (numpy.int64(3), True)], "best": numpy.float64(0.1)}
    gpushare.checkpoint(one=one).commit()
    assert type(one["best"]) is numpy.float64
    go_on(in_job)
    there: dict[str, Any] = {}
    gpushare.checkpoint(one=there)
    assert there == one
    assert type(there["best"]) is float


def test_what_could_not_be_read_again_is_told_when_it_is_saved(in_job: InJob) -> None:
    job = in_job()
    place = gpushare.checkpoint(losses=[numpy.arange(3)])
    with pytest.raises(InvalidValue, match=r"tensors and plain values alone, .*numpy.*not an allo"):
        place.commit()
    assert not [*job.glob("g1/*it-*")]


def test_a_second_commit_after_an_iteration_has_what_is_newer(in_job: InJob) -> None:
    job = in_job()
    place = gpushare.checkpoint(losses=(losses := [1.0]))
    place.commit()
    losses.append(2.0)
    place.commit()
    go_on(in_job)
    gpushare.checkpoint(losses=(found := [0.0]))
    assert found == [1.0, 2.0]
    assert [path.name for path in (job / "g1.closed").glob("*it-*")] == ["it-000000000"]


def test_a_job_without_an_intact_checkpoint_does_not_begin_anew(in_job: InJob, job: Path) -> None:
    saved(in_job)
    for states in job.glob(f"g1.closed/it-*/{module.STATES}"):
        os.truncate(states, 10)
    sentence = "no checkpoint of this job is as it was written: it-000000003, it-000000002"
    with pytest.raises(InvalidValue, match=sentence):
        gpushare.checkpoint(losses=[])


def test_a_full_disk_is_told_in_the_log_and_the_job_computes_on(
    in_job: InJob, tmpfs: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    in_job()
    place = gpushare.checkpoint(weights=[torch.zeros(1 << 20)], every=1e-9)
    _, there = module.batches([1, 2, 3], 1)
    assert [*there] == [1, 2, 3]
    assert "iteration 2 cannot be saved, so the job computes on" in capfd.readouterr().err
    assert place.iteration == 3
    assert not [*tmpfs.glob("*it-*")]


def test_a_job_that_keeps_other_things_by_now_is_told(in_job: InJob) -> None:
    saved(in_job)
    with pytest.raises(InvalidValue, match="has saved losses, and cannot resume with model, optim"):
        gpushare.checkpoint(model=[], optimizer=[])


def test_a_job_with_a_damaged_checkpoint_says_so_and_goes_on_from_the_one_before(
    in_job: InJob, job: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    newest = saved(in_job)
    os.truncate(job / newest / module.STATES, 10)
    place = gpushare.checkpoint(losses=(losses := [9.0]))
    assert (place.resumed, place.iteration, losses) == (True, 2, [0.5, 0.25])
    left, there = module.batches([0.5, 0.25, 0.125], 2)
    assert (left, [*there]) == (4, [0.125, 0.5, 0.25, 0.125])
    said = capfd.readouterr().err
    assert "it-000000003 is damaged; the checkpoint before it" in said
    assert said.endswith("gpushare: resumes after iteration 2\n")


def test_a_checkpoint_runs_nothing_that_is_in_it(in_job: InJob, job: Path) -> None:
    """A right digest shows that the checkpoint is complete, but not who wrote it."""
    newest = saved(in_job)
    ran = job / "ran"

    class Runs:
        def __reduce__(self) -> tuple[Any, ...]:
            return os.mkdir, (str(ran),)

    states = job / newest / module.STATES
    torch.save({"kept": {"losses": Runs()}, "ranks": []}, states)
    (job / newest / store.DIGESTS).write_text(store.digests_of(job / newest))
    with pytest.raises(InvalidValue, match="cannot be read"):
        gpushare.checkpoint(losses=[])
    assert not ran.exists()
