"""A stopped job of Lightning or of the Trainer of Hugging Face has the same result as without a
stop, bit by bit."""

from __future__ import annotations

import os
from copy import deepcopy
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

import jupyter_gpushare as gpushare
from jupyter_gpushare.client.torch.checkpoints.callback import Saves
from jupyter_gpushare.errors import InvalidValue

from ..site import Site
from ..work import alone
from .resuming import InJob, check_that_it_goes_on
from .test_checkpoints import saved

pytestmark = pytest.mark.skipif(  # an import would take seconds of every run
    find_spec("lightning") is None,
    reason="Lightning runs on Linux, macOS and Windows of 64 bits",
)


@pytest.mark.thorough
def test_lightning_goes_on_in_the_middle_of_an_epoch(trains: Site, tmp_path: Path) -> None:
    """The job stops twice. It has 60 batches; 12 are an epoch, and two make a step."""
    program = "lightning_train.py"
    result = trains.trained("a", program, "resumable", gpus=1, stops=(17, 38))
    assert result == alone(tmp_path, program)
    assert trains.is_whole("a", 60)  # none was computed twice


@pytest.mark.thorough
def test_lightning_leaves_at_the_end_of_an_epoch_where_the_loader_does_not_know_its_place(
    trains: Site, tmp_path: Path
) -> None:
    program = "lightning_train.py"
    result = trains.trained("a", program, "epochs", gpus=1, stops=(17,))
    assert result == alone(tmp_path, program, "epochs")
    assert trains.is_whole("a", 60)
    ran = (trains.directory("a") / "g1.closed" / "ran").read_text()
    assert ran.split()[-1] == "24"


@pytest.mark.thorough
def test_ranks_of_lightning_leave_together(trains: Site) -> None:
    plain = trains.trained("plain", "lightning_train.py", gpus=4)
    assert trains.trained("moved", "lightning_train.py", gpus=4, stops=(5, 13)) == plain


@pytest.mark.thorough
def test_the_trainer_of_hugging_face_goes_on_in_the_middle_of_an_epoch(
    trains: Site, tmp_path: Path
) -> None:
    program = "transformers_train.py"
    result = trains.trained("a", program, gpus=1, stops=(9,))
    assert result == alone(tmp_path, program)
    assert trains.is_whole("a", 30)
    there = {path.name for path in (trains.directory("a") / "work/trained").iterdir()}
    assert there == {"checkpoint-24", "checkpoint-30"}  # as the user wants it: of epochs


@pytest.mark.system
@pytest.mark.parametrize("make", [gpushare.lightning_callback, gpushare.trainer_callback])
@pytest.mark.parametrize("every", [0, -1.0, float("nan"), "often"])
def test_seconds_between_checkpoints_are_checked(make: Any, every: Any) -> None:
    import lightning.pytorch  # noqa: F401

    with pytest.raises(InvalidValue, match="`every` is a number of seconds above 0"):
        make(every)


@pytest.mark.parametrize(
    ("iteration", "sentence"),
    [
        (3, "resumes after iteration 3"),
        (0, "begins at iteration 0, although this job has a checkpoint: give `resume_from` of"),
    ],
)
def test_a_training_says_where_it_resumes(
    in_job: InJob, capfd: pytest.CaptureFixture[str], iteration: int, sentence: str
) -> None:
    saved(in_job)
    Saves(60.0).begin(iteration, torch.nn.Linear(1, 1))
    assert f"gpushare: {sentence}" in capfd.readouterr().err


@pytest.mark.system
@pytest.mark.parametrize("make", [gpushare.lightning_callback, gpushare.trainer_callback])
def test_outside_of_a_job_there_is_nothing_to_go_on_from(make: Any) -> None:
    import lightning.pytorch  # noqa: F401

    assert make().resume_from is None


@pytest.mark.system
def test_a_loader_without_a_length_is_not_resumable() -> None:
    with pytest.raises(InvalidValue, match="has none: generator"):
        gpushare.resumable(batch for batch in [1, 2])


@pytest.mark.system
@pytest.mark.parametrize("workers", [{}, {"num_workers": 2, "persistent_workers": True}])
@pytest.mark.parametrize("done", [0, 1, 5, 11, 12])
def test_a_loader_goes_on_where_its_state_was_taken(done: int, workers: dict[str, Any]) -> None:
    """This holds even after its last batch, where the next epoch begins."""

    def loader() -> Any:
        torch.manual_seed(3)
        loader = gpushare.resumable(DataLoader(torch.arange(96), 8, shuffle=True, **workers))
        return deepcopy(loader)  # trainers copy loaders, too

    whole = loader()
    all_of_them = [batch.tolist() for _ in range(2) for batch in whole]
    first = loader()
    batches = iter(first)
    for _ in range(done):
        next(batches)
    state = first.state_dict()
    second = loader()
    second.load_state_dict(state)
    rest = [batch.tolist() for _ in range(2) for batch in second]
    assert rest[: 24 - done] == all_of_them[done:]
    assert len(rest) == 24 - done % 12


@pytest.mark.system
def test_a_loader_keeps_its_place_where_more_ranks_had_it(
    capfd: pytest.CaptureFixture[str],
) -> None:
    numbers: Any = torch.arange(96)
    loader = gpushare.resumable(DataLoader(numbers, 8, shuffle=True))
    batches = iter(loader)
    for _ in range(5):
        next(batches)
    loader.load_state_dict({"ranks": 2 * loader.state_dict()["ranks"]})
    assert [len([*loader]) for _ in range(2)] == [7, 12]
    assert "saved by 2 ranks, and resumes with 1" in capfd.readouterr().err


@pytest.mark.system
@pytest.mark.filterwarnings("ignore")
def test_lightning_computes_on_where_the_disk_is_full(
    in_job: InJob, tmpfs: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    import lightning

    class Net(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(1 << 10, 1 << 10)

        def training_step(self, batch: torch.Tensor, _: int) -> torch.Tensor:
            loss: torch.Tensor = self.layer(batch).sum()
            return loss

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), 0.1)

    in_job()
    data: Any = torch.ones(2, 1 << 10)
    off = ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary")
    given: dict[str, Any] = {"accelerator": "cpu", "max_epochs": 2, **dict.fromkeys(off, False)}
    trainer = lightning.Trainer(callbacks=[gpushare.lightning_callback(every=1e-9)], **given)
    trainer.fit(Net(), DataLoader(data))
    assert trainer.global_step == 4
    assert "iteration 2 cannot be saved, so the job computes on" in capfd.readouterr().err
    assert not [*tmpfs.glob("*it-*")]


def yield_after(done: int, stop: int) -> None:
    if done == stop:
        Path(os.environ["GPUSHARE_YIELD"]).touch()


def of_lightning(stop: int = 0, kind: str = "usual") -> Any:
    """Return what a training did in its hooks, its rates, and its weights. It is validated after
    batches 2, 4 and 6 of an epoch of 6, and is asked to yield in batch `stop` of all. `manual`: it
    makes a step of three batches itself; `plateau`: its rates follow metrics."""
    import lightning

    class Net(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(2, 1)
            self.automatic_optimization = kind != "manual"
            self.done: list[Any] = []
            self.rates: list[float] = []

        def training_step(self, batch: torch.Tensor, at: int) -> torch.Tensor:
            (used,) = self.trainer.optimizers
            self.rates.append(used.param_groups[0]["lr"])
            loss: torch.Tensor = (self.layer(batch) - 1).square().mean()
            self.log("loss", loss)
            yield_after(len(self.rates), stop)
            if kind == "manual":
                self.manual_backward(loss)
                if at % 3 == 2:
                    used.step()
                    used.zero_grad()
            return loss

        def validation_step(self, *_: Any) -> None:
            self.done.append("validated")
            self.log("sum", self.layer.weight.sum())

        def on_train_batch_end(self, *_: Any) -> None:
            self.done.append(len(self.rates))

        def on_train_epoch_end(self) -> None:
            self.done.append("epoch")

        def configure_optimizers(self) -> Any:
            optimizer = torch.optim.SGD(self.parameters(), 0.1)
            if kind != "plateau":
                return optimizer
            plateau = torch.optim.lr_scheduler.ReduceLROnPlateau
            return [optimizer], [
                {"scheduler": plateau(optimizer, "max", 0.9, 0), "interval": each, "monitor": value}
                for each, value in {"step": "loss", "epoch": "sum"}.items()
            ]

        def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
            checkpoint["told"] = self.done, self.rates

        def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
            self.done, self.rates = checkpoint["told"]

    lightning.seed_everything(1)
    numbers: Any = torch.randn(12, 2)
    loader = gpushare.resumable(DataLoader(numbers, 2, shuffle=True))
    callback = gpushare.lightning_callback()
    off = ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary")
    given: dict[str, Any] = {"accelerator": "cpu", "num_sanity_val_steps": 0}
    given |= {"max_epochs": 3, "val_check_interval": 2, **dict.fromkeys(off, False)}
    net, trainer = Net(), lightning.Trainer(callbacks=[callback], **given)
    trainer.fit(net, loader, DataLoader(numbers, 12), ckpt_path=callback.resume_from)
    return net.done, net.rates, [weights.tolist() for weights in net.parameters()]


@pytest.mark.system
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", ["usual", "manual", "plateau"])
@pytest.mark.parametrize("stop", [1, 7, 8, 12])
def test_lightning_leaves_where_no_hook_metric_or_gradient_is_open(
    in_job: InJob, stop: int, kind: str
) -> None:
    def run(stop: int = 0) -> Any:
        return of_lightning(stop, kind)

    check_that_it_goes_on(in_job, run, stop)


@pytest.mark.system
@pytest.mark.filterwarnings("ignore")
def test_lightning_may_train_again_with_the_same_trainer(in_job: InJob) -> None:
    import lightning
    from lightning.pytorch.demos.boring_classes import BoringModel

    job = in_job()
    off = ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary")
    trainer = lightning.Trainer(accelerator="cpu", **dict.fromkeys(off, False))
    net = BoringModel()
    for epochs in (1, 2):
        trainer.callbacks = [gpushare.lightning_callback(every=1e-9)]
        trainer.fit_loop.max_epochs = epochs
        trainer.fit(net)
        assert (job / "g1" / f"it-{64 * epochs:09d}").exists()
        assert "on_advance_end" not in vars(trainer.fit_loop)


class Rows(Dataset):  # type: ignore[type-arg]
    def __init__(self, count: int) -> None:
        self._count = count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> dict[str, Any]:
        there = torch.Generator().manual_seed(index)
        return {"inputs": torch.randn(4, generator=there), "labels": index % 4}


class Classes(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Dropout(0.3))

    def forward(self, inputs: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        found = self.layers(inputs)
        return {"loss": torch.nn.functional.cross_entropy(found, labels), "logits": found}


def of_hugging_face(place: Path, stop: int = 0, **given: Any) -> Any:
    """Return the evaluations, the best step, the weights and the checkpoints of a training of four
    epochs of four steps, which is asked to yield in step `stop`."""
    import transformers

    class Asks(transformers.TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            yield_after(state.global_step, stop)

    transformers.set_seed(1)
    callback = gpushare.trainer_callback()
    arguments = transformers.TrainingArguments(
        output_dir=str(place / os.environ.get("GPUSHARE_JOB", "alone") / "trained"),
        num_train_epochs=4,
        per_device_train_batch_size=8,
        report_to="none",
        disable_tqdm=True,
        use_cpu=True,
        **{"learning_rate": 0.3, "save_strategy": "no", **given},
    )
    trainer = transformers.Trainer(
        Classes(),
        arguments,
        train_dataset=Rows(32),
        eval_dataset=Rows(40),
        callbacks=[Asks(), callback],
    )
    trainer.train(resume_from_checkpoint=callback.resume_from)
    state, made = trainer.state, Path(arguments.output_dir)
    evaluated = [(row["step"], row["eval_loss"]) for row in state.log_history if "eval_loss" in row]
    weights = [weights.tolist() for weights in trainer.model.parameters()]
    kept = sorted(path.name for path in made.glob("*"))
    return evaluated, state.global_step, state.best_global_step, weights, kept


EPOCHS = {"eval_strategy": "epoch", "save_strategy": "epoch", "load_best_model_at_end": True}
BEST = {"eval_strategy": "steps", "eval_steps": 2, "save_strategy": "best"}
BEST |= {"metric_for_best_model": "loss"}


@pytest.mark.system
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("stop", "given"),
    [
        (4, EPOCHS),
        (6, EPOCHS),
        (2, BEST),
        (4, BEST),
        (4, {"save_strategy": "steps", "save_steps": 4}),
        (2, {"gradient_accumulation_steps": 3, **EPOCHS}),
    ],
)
def test_the_trainer_of_hugging_face_evaluates_and_keeps_the_same(
    in_job: InJob, tmp_path: Path, stop: int, given: dict[str, Any]
) -> None:
    def run(stop: int = 0) -> Any:
        return of_hugging_face(tmp_path, stop, **given)

    check_that_it_goes_on(in_job, run, stop)


@pytest.mark.system
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("stop", "given"), [(16, EPOCHS), (10, {"max_steps": 10})])
def test_the_trainer_of_hugging_face_does_not_leave_at_its_last_step(
    in_job: InJob, tmp_path: Path, stop: int, given: dict[str, Any]
) -> None:
    """It would train another step when it resumes."""
    expected = of_hugging_face(tmp_path, **given)
    in_job()
    assert of_hugging_face(tmp_path, stop, **given) == expected
