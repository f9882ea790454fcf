"""The callback for Lightning: its own checkpoint, written where the job may be stopped."""

from __future__ import annotations

import os
import sys
from functools import partial
from typing import Any

from ....errors import InvalidValue
from .callback import Saves
from .states import random_state, set_random_state

NAME = "lightning.ckpt"
PACKAGES = ("lightning.pytorch", "pytorch_lightning")  # the same classes under two names


class _Hooks:
    """Saves after a batch if a training can resume there, else at the end of an epoch."""

    def __init__(self, every: float) -> None:
        self._saves = Saves(every)
        self._random: dict[str, Any] | None = None  # the state from which this rank goes on
        self._is_set_up = False

    @property
    def resume_from(self) -> str | None:
        """The checkpoint for `ckpt_path` of `Trainer.fit`; None where the training begins."""
        found = self._saves.resume_from
        return None if found is None else str(found / NAME)

    def state_dict(self) -> dict[str, Any]:
        """Return the random numbers of all ranks, which Lightning does not keep."""
        if not self._saves.is_in_job:
            return {}
        return {"ranks": self._saves.gang.gathered(random_state([]))}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._random = self._saves.gang.mine(state["ranks"]) if state else None
        self._go_on()

    def on_fit_start(self, trainer: Any, module: Any) -> None:
        self._is_set_up = True
        self._go_on()

    def _go_on(self) -> None:
        """Set the random numbers once: a strategy loads before or after it is set up."""
        if self._is_set_up and self._random is not None:
            set_random_state(self._random, [])
            self._random = None

    def on_train_start(self, trainer: Any, module: Any) -> None:
        self._of = trainer.estimated_stepping_batches
        self._steps = trainer.global_step
        self._saves.begin(trainer.global_step, module)
        if self._saves.is_in_job:
            # The hooks of callbacks come before those of the module, before a validation and before
            # some schedulers, and a resumed training does none of these again.
            trainer.fit_loop.on_advance_end = partial(self._end_epoch, trainer)
            trainer.fit_loop.epoch_loop.on_advance_end = partial(self._end_batch, trainer)

    def on_train_end(self, trainer: Any, module: Any) -> None:
        for loop in (trainer.fit_loop, trainer.fit_loop.epoch_loop):
            vars(loop).pop("on_advance_end", None)

    def on_validation_end(self, trainer: Any, module: Any) -> None:
        self._has_validated = True

    def _end_batch(self, trainer: Any, *given: Any) -> None:
        loop = trainer.fit_loop.epoch_loop
        self._has_validated = False
        type(loop).on_advance_end(loop, *given)
        has_stepped, self._steps = trainer.global_step > self._steps, trainer.global_step
        # A training that is resumed after a validation counts its batch twice.
        is_between = has_stepped and not self._has_validated and not _is_epoch_over(trainer)
        if is_between and _knows_all(trainer):
            self._boundary(trainer)

    def _end_epoch(self, trainer: Any) -> None:
        type(trainer.fit_loop).on_advance_end(trainer.fit_loop)
        self._boundary(trainer)

    def _boundary(self, trainer: Any) -> None:
        iteration = trainer.global_step
        agreed = self._saves.after(iteration, self._of)
        if agreed.saves:
            part = self._saves.part(iteration)
            # All ranks call it; it makes a file, or a folder of sharded states.
            is_written = self._saves.does(iteration, lambda: trainer.save_checkpoint(part))
            if not is_written:
                trainer.strategy.barrier()  # where the other ranks wait
            self._saves.commit(
                iteration, lambda folder: os.rename(part, folder / NAME), agreed, not is_written
            )


def _is_epoch_over(trainer: Any) -> bool:
    is_last = trainer.is_last_batch or 0 <= trainer.max_steps <= trainer.global_step
    return bool(is_last or trainer.fit_loop.epoch_loop.done)  # `done` alone: not yet if resumed


def _knows_all(trainer: Any) -> bool:
    """Whether a training resumes in an epoch with its data and metrics. Lightning keeps no metrics,
    and at the end of that epoch does not update a scheduler that needs one."""
    needs_metric = any(one.reduce_on_plateau for one in trainer.lr_scheduler_configs)
    return not needs_metric and _knows_place(trainer.train_dataloader)


def _knows_place(loaders: Any) -> bool:
    """Whether Lightning saves the place of each of them, as it does of those with a state."""
    if isinstance(loaders, dict):
        return all(_knows_place(one) for one in loaders.values())
    if isinstance(loaders, list | tuple):
        return all(_knows_place(one) for one in loaders)
    return hasattr(loaders, "state_dict") and hasattr(loaders, "load_state_dict")


def lightning_callback(every: float = 60.0) -> Any:
    """Return a callback for the Trainer of Lightning: in a job it saves Lightning's checkpoint each
    `every` seconds, and leaves when the job is asked to yield. Give its `resume_from` to `fit`::

        callback = gpushare.lightning_callback()
        trainer = lightning.Trainer(callbacks=[callback], max_epochs=3)
        trainer.fit(model, gpushare.resumable(loader), ckpt_path=callback.resume_from)

    The random numbers of all ranks are kept, which Lightning does not do. If a loader does not know
    its place, or with `ReduceLROnPlateau`, the job is saved only at the ends of epochs. Outside of
    a job nothing is kept. Raises InvalidValue.
    """
    return type("GpuShareCallback", (_Hooks, _base()), {})(every)


def _base() -> type:
    """Return the class of callbacks in the package that is used."""
    used = [name for name in PACKAGES if name in sys.modules]
    if not used:
        raise InvalidValue("import lightning before: this callback is for its Trainer")
    return sys.modules[used[0]].Callback  # type: ignore[no-any-return]
