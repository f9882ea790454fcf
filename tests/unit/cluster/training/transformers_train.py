"""A training with the Trainer of Hugging Face, whose result depends on everything that its
checkpoints keep.

python transformers_train.py OUT SECONDS
"""

from __future__ import annotations

import sys
import time
from typing import Any

import torch
import transformers
from torch import nn
from torch.utils.data import Dataset
from train import RANK, note, write

import jupyter_gpushare as gpushare

EPOCHS = 5


class Data(Dataset):  # type: ignore[type-arg]
    def __len__(self) -> int:
        return 96

    def __getitem__(self, index: int) -> dict[str, Any]:
        there = torch.Generator().manual_seed(index)
        return {"inputs": torch.randn(16, generator=there), "labels": index % 4}


class Net(nn.Module):
    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(16, 32), nn.Dropout(0.3), nn.Linear(32, 4))
        self._seconds = seconds

    def forward(self, inputs: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        time.sleep(self._seconds)
        return {"loss": nn.functional.cross_entropy(self.layers(inputs), labels)}


class Losses(transformers.TrainerCallback):
    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        note(state.global_step)


def main(out: str, seconds: float) -> None:
    torch.set_num_threads(1)
    transformers.set_seed(1)
    callback = gpushare.trainer_callback(every=0.3)
    arguments = transformers.TrainingArguments(
        output_dir="trained",
        num_train_epochs=EPOCHS,
        per_device_train_batch_size=8,
        gradient_accumulation_steps=2,
        learning_rate=1e-2,
        logging_steps=1,
        save_strategy="epoch",
        save_total_limit=2,
        report_to="none",
        disable_tqdm=True,
        use_cpu=True,
    )
    trainer = transformers.Trainer(
        Net(seconds), arguments, train_dataset=Data(), callbacks=[Losses(), callback]
    )
    trainer.train(resume_from_checkpoint=callback.resume_from)
    if RANK == 0:
        losses = [row["loss"] for row in trainer.state.log_history if "loss" in row]
        write(out, trainer.model, losses)


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]))
