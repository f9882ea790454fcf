"""The callback for the Trainer of Hugging Face: its own checkpoint, kept where a job finds it."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from ....errors import InvalidValue
from .agreement import Agreed
from .callback import Saves

NAME = "checkpoint"


class _Hooks:
    """The Trainer saves into its own directory; a checkpoint for the job alone is moved away."""

    def __init__(self, every: float) -> None:
        self._saves = Saves(every)
        self._agreed = Agreed()
        self._is_wanted = False  # by the user too

    @property
    def resume_from(self) -> str | None:
        """The checkpoint for `Trainer.train`; None where the training begins."""
        found = self._saves.resume_from
        return None if found is None else str(found / NAME)

    def on_train_begin(
        self, args: Any, state: Any, control: Any, model: Any = None, **_: Any
    ) -> None:
        if args.save_only_model:
            raise InvalidValue(
                "a job cannot go on from the model alone: train without `save_only_model`"
            )
        self._saves.begin(state.global_step, model)

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._is_wanted = control.should_save
        if _is_epoch_over(state):
            self._agreed = Agreed()  # `on_epoch_end` follows, which no resumed training calls
        else:
            self._boundary(state, control)

    def on_epoch_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._is_wanted = self._is_wanted or control.should_save
        if _is_epoch_over(state):
            self._boundary(state, control)

    def _boundary(self, state: Any, control: Any) -> None:
        agreed = self._saves.after(state.global_step, state.max_steps)
        is_last = state.global_step >= state.max_steps  # the Trainer would train one step more
        self._agreed = Agreed() if is_last else agreed
        control.should_save = control.should_save or self._agreed.saves

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        agreed, self._agreed = self._agreed, Agreed()
        if agreed.saves:
            is_best = args.save_strategy == "best" and state.best_global_step == state.global_step
            self._is_wanted = self._is_wanted or is_best  # the evaluation has just found it
            made = Path(args.output_dir) / f"checkpoint-{state.global_step}"
            self._saves.commit(state.global_step, lambda folder: self._keep(made, folder), agreed)

    def _keep(self, made: Path, folder: Path) -> None:
        keep = shutil.copytree if self._is_wanted else shutil.move
        keep(made, folder / NAME)


def _is_epoch_over(state: Any) -> bool:
    return float(state.epoch).is_integer()


def trainer_callback(every: float = 60.0) -> Any:
    """Return a callback for the Trainer of Hugging Face: in a job it saves each `every` seconds,
    and leaves when the job is asked to yield. Give its `resume_from` to `train`::

        callback = gpushare.trainer_callback()
        trainer = transformers.Trainer(model, args, train_dataset=data, callbacks=[callback])
        trainer.train(resume_from_checkpoint=callback.resume_from)

    The checkpoint is the Trainer's own, with all that it saves. Outside of a job nothing is done.
    Raises InvalidValue.
    """
    from transformers import TrainerCallback

    return type("GpuShareCallback", (_Hooks, TrainerCallback), {})(every)
