"""A stopped job of Lightning or of the Trainer of Hugging Face has the same result as without a
stop, bit by bit."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

import jupyter_gpushare as gpushare
from jupyter_gpushare.client.torch.checkpoints.callback import Saves
from jupyter_gpushare.errors import InvalidValue

from ..site import Site
from ..work import alone
from .resuming import InJob
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
@pytest.mark.parametrize("done", [0, 1, 5, 11, 12])
def test_a_loader_goes_on_where_its_state_was_taken(done: int) -> None:
    """This holds even after its last batch, where the next epoch begins."""

    def loader() -> Any:
        torch.manual_seed(3)
        return gpushare.resumable(DataLoader(torch.arange(96), 8, shuffle=True))

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
