"""A training with Lightning whose result depends on everything that a checkpoint has to keep.

    python lightning_train.py OUT SECONDS [resumable | epochs]

`epochs`: with a plain loader, which does not know its position.
"""

from __future__ import annotations

import logging
import os
import random
import sys
import time
from typing import Any

import lightning
import torch
from torch import nn
from torch.utils.data import DataLoader
from train import GANG, RANK, Noisy, note, write

import jupyter_gpushare as gpushare

EPOCHS = 5


class Net(lightning.LightningModule):
    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(16, 32), nn.Dropout(0.3), nn.Linear(32, 4))
        self.losses: list[float] = []
        self._seconds = seconds

    def training_step(self, batch: Any, _: int) -> torch.Tensor:
        inputs, classes = batch
        loss = nn.functional.cross_entropy(self.layers(inputs), classes) * (1 + random.random())
        self.losses.append(loss.item())
        note(len(self.losses))
        time.sleep(self._seconds)
        return loss

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.Adam(self.parameters(), 1e-2)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.7)]

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint["losses"] = self.losses

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        self.losses = checkpoint["losses"]


def main(out: str, seconds: float, kind: str = "resumable") -> None:
    torch.set_num_threads(1)
    lightning.seed_everything(1 + RANK)
    loader: Any = DataLoader(Noisy(is_noisy=True), 8, shuffle=True)
    if kind == "resumable":
        loader = gpushare.resumable(loader)
    callback = gpushare.lightning_callback(every=0.3)
    trainer = lightning.Trainer(
        accelerator="cpu",
        max_epochs=EPOCHS,
        callbacks=[callback],
        accumulate_grad_batches=2,
        num_nodes=int(os.environ.get("GROUP_WORLD_SIZE", "1")),
        devices=int(os.environ.get("LOCAL_WORLD_SIZE", "1")),
        strategy="ddp_find_unused_parameters_true" if GANG else "auto",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    net = Net(seconds)
    trainer.fit(net, loader, ckpt_path=callback.resume_from)
    if RANK == 0:
        write(out, net, net.losses)


if __name__ == "__main__":
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    main(sys.argv[1], float(sys.argv[2]), *sys.argv[3:])
