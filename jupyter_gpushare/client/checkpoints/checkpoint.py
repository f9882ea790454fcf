"""``gpushare.checkpoint``: a job stops after any iteration, and goes on bit by bit the same."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from ...errors import InvalidValue
from .store import Store, leave, newest_intact, none_is_intact, say, seconds_of
from .termination import bear

Batch = TypeVar("Batch")
STATES = "states.pt"  # the file of a checkpoint


class DataPlace(NamedTuple):
    """The place of a job in its data: the loops over `iterations` that it has begun before this
    one, the epochs and batches of this one that are done, and all iterations. `is_later`: the user
    saved this place, perhaps some time after the end of a loop."""

    loop: int = 0
    epoch: int = 0
    batch: int = 0
    iteration: int = 0
    is_later: bool = False

    @property
    def returns_in(self) -> int:
        """The loop in which a resumed job reaches this place again."""
        is_behind = self.epoch + self.batch == 0 and self.loop > 0 and not self.is_later
        return self.loop - 1 if is_behind else self.loop


class Checkpoint:
    """The kept state of a job, and its place. Outside of a job only the place is known."""

    def __init__(self, kept: dict[str, Any], every: float, store: Store | None) -> None:
        self._kept = kept
        self._every = every
        self._store = store
        self._place = DataPlace()
        self._loops = 0  # begun in this process
        self._resumed: dict[str, Any] | None = None  # this rank's saved state, until it is in place
        self._began: dict[str, Any] = {}  # the random state with which the epoch began
        self._generators: list[Any] = []  # of all loaders, in the order in which they came
        self._of = 0
        self._has_resumed = False
        self._file: Path | None = None  # the states from which the job resumes
        if store is not None:
            self._join(store)

    # --- what people see ---------------------------------------------------------------------

    @property
    def iteration(self) -> int:
        """How many iterations of `gpushare.iterations` are done."""
        return self._place.iteration

    @property
    def epoch(self) -> int:
        """The number of the present epoch, from 0."""
        return self._place.epoch

    @property
    def resumed(self) -> bool:
        """Whether the job resumed from a checkpoint."""
        return self._has_resumed

    def commit(self) -> None:
        """Save now. All ranks call it, after the same iteration."""
        self._place = self._place._replace(is_later=True)
        if self._store is not None:
            self._save()

    # --- begin -------------------------------------------------------------------------------

    def _join(self, store: Store) -> None:
        from ..torch.checkpoints import sharded
        from ..torch.checkpoints.agreement import Agreement, Steps
        from ..torch.checkpoints.gang import Gang
        from ..torch.checkpoints.originals import Originals
        from ..torch.checkpoints.skew import skew_of

        self._gang = Gang()
        self._originals = Originals(self._kept)
        self._stepping = Steps(self._kept.values())
        self._is_sharded = sharded.is_sharded(self._kept, self._gang.size)
        self._resume(store)
        bear()
        if self._gang.leads:
            store.announce(skew_of(self._kept.values()))
        self._agreement = Agreement(store, self._gang, self._every, self._place.iteration)

    def _resume(self, store: Store) -> None:
        """Resume from the newest intact checkpoint, which the first rank finds."""
        there = [*store.candidates()]
        found = int(self._gang.most([newest_intact(there) if self._gang.leads else -1])[0])
        if there:
            if found == len(there):
                raise none_is_intact(there)
            self._file = there[found] / STATES
            self._take(self._loaded())

    def _loaded(self) -> dict[str, Any]:
        """Restore the states of the kept objects, and return all that was saved."""
        from ..torch.checkpoints import sharded, states

        assert self._file is not None
        saved = states.read(self._file)
        if saved.get("is_sharded"):
            folder = self._file.with_name(sharded.FOLDER)
            shards = sharded.Shards(folder, self._gang.rank, self._gang.size)
            saved["kept"] = shards.loaded(self._kept)
        states.load_objects(self._kept, saved["kept"])
        self._originals.fill(saved["kept"], saved.get("in_place", ()))
        return saved

    def _take(self, saved: Mapping[str, Any]) -> None:
        from ..torch.checkpoints import states

        ranks = saved["ranks"]
        resumed = self._gang.mine(ranks) or states.fresh_state(place=ranks[0]["place"])
        self._resumed, self._place = resumed, DataPlace(*resumed["place"])
        self._has_resumed = True
        if self._gang.leads:
            say(f"resumes after iteration {self.iteration}")

    # --- the loop ----------------------------------------------------------------------------

    def batches(self, loader: Iterable[Batch], epochs: int) -> Iterator[Batch]:
        """Yield the batches that are still to come. All ranks call it."""
        loop, self._loops = self._loops, self._loops + 1
        self._note(loader, loop)
        self._return_to_place(loop)
        if loop < self._place.loop:  # it had ended before the job was saved
            return
        if loop > self._place.loop:
            self._place = DataPlace(loop, iteration=self._place.iteration)
        self._of = self._place.iteration + (self.left(loader, epochs) or 0)
        for epoch in range(self._place.epoch, epochs):
            yield from self._epoch(loader, epoch, epochs)
        self._place = DataPlace(loop + 1, iteration=self._place.iteration)
        if self._store is not None:  # code after the loop may take long
            self._save()

    def _return_to_place(self, loop: int) -> None:
        """Restore all again if this is the loop of the saved place: code before it has run again,
        and has changed the restored objects."""
        if self._resumed is not None and loop == self._place.returns_in:
            self._loaded()
            if loop < self._place.loop:
                self._go_on()

    def _note(self, loader: Any, loop: int) -> None:
        """Note the generators of a loader. If its loop had ended before the job was saved, start
        the workers that it keeps."""
        from ..torch.checkpoints import batches

        there = batches.generators_of(loader)
        self._generators += [one for one in there if one not in self._generators]
        if loop < self._place.loop:
            batches.start_workers(loader)

    def left(self, loader: Iterable[Any], epochs: int) -> int | None:
        """Return how many batches are still to come; None if that is not known."""
        length = length_of(loader)
        if length is None:
            return None
        done = self._place.epoch * length + self._place.batch
        return max(0, epochs * length - done)

    def _epoch(self, loader: Iterable[Batch], epoch: int, epochs: int) -> Iterator[Batch]:
        from ..torch.checkpoints import batches

        done = self._place.batch if self._resumed is not None else 0
        self._place = self._place._replace(epoch=epoch, batch=done)
        if epochs > 1:  # otherwise the user counts them
            batches.set_epoch(loader, epoch)
        if epoch > 0:
            batches.start_workers(loader)
        self._begin_epoch(is_in_the_middle=done > 0)
        there, knows = self._rest(loader, done)
        self._tell_beginning()
        for batch in there:
            yield batch
            self._boundary(knows)
        if done > 0:  # another loader has loaded the rest
            batches.start_workers(loader)
        self._resumed = None

    def _tell_beginning(self) -> None:
        if self._store is not None:
            self._agreement.begins(self._place.iteration)
            self._stepping.begins()

    def _rest(self, loader: Iterable[Batch], done: int) -> tuple[Iterable[Batch], Any]:
        """Return the remaining batches of this epoch, and the loader if it draws them and knows its
        place, else None."""
        from ..torch.checkpoints import batches, stateful

        knows = loader if stateful.knows_its_place(loader) else None
        if self._resumed is None or done == 0:
            return loader, knows
        place = self._resumed.get("loader")
        if knows is None or place is None:
            return batches.rest_of(loader, done, self._go_on), None
        return stateful.rest_from(loader, place, self._go_on), knows

    def _begin_epoch(self, is_in_the_middle: bool) -> None:
        """Set the random state with which the epoch began: it decides the order."""
        from ..torch.checkpoints import states

        if self._resumed is not None and is_in_the_middle:
            states.set_random_state(self._resumed["began"], self._generators)
        else:
            self._go_on()
        self._began = states.random_state(self._generators)

    def _go_on(self) -> None:
        """Set the random state with which the job was saved, so that random numbers go on from
        there."""
        from ..torch.checkpoints import states

        if self._resumed is not None:
            states.set_random_state(self._resumed["random"], self._generators)
            self._resumed = None

    def _boundary(self, loader: Any) -> None:
        """Count an iteration, and save and leave if all ranks agree. `loader` knows its place,
        which is here, or is None."""
        place = self._place
        self._place = place._replace(batch=place.batch + 1, iteration=place.iteration + 1)
        if self._store is None:
            return
        is_open = self._stepping.are_open()
        agreed = self._agreement.after(self._place.iteration, self._of, is_open)
        if agreed.saves and self._save(loader) and agreed.leaves:
            leave(self._place.iteration)

    def _save(self, loader: Any = None) -> bool:
        """Save; return whether all of it is on disk. If not, the job keeps its older checkpoint."""
        from ..torch.checkpoints import stateful, states

        mine = {
            "place": list(self._place),
            "began": self._began,
            "random": states.random_state(self._generators),
            "loader": None if loader is None else stateful.place_of(loader),
        }
        ranks = self._gang.gathered(mine)
        is_saved = all(map(self._all_do, self._steps(ranks)))
        self._agreement.saved()
        return is_saved

    def _steps(self, ranks: list[dict[str, Any]]) -> Iterator[Callable[[], None]]:
        """Yield the steps of this rank; all ranks take each step together. Most of the work is that
        of the first rank."""
        from ..torch.checkpoints import sharded, states

        assert self._store is not None
        leads, part = self._gang.leads, self._store.part(self._place.iteration)
        saved: dict[str, Any] = {"ranks": ranks, "is_sharded": self._is_sharded}
        saved["in_place"] = self._originals.in_place(self._kept)
        if self._is_sharded:
            split = sharded.Split(self._kept, self._gang.size)
            yield partial(self._store.open_part, self._place.iteration) if leads else _nothing
            yield partial(sharded.write, split, part / sharded.name_of(self._gang.rank))
        elif leads:
            saved["kept"] = {name: states.state_of(thing) for name, thing in self._kept.items()}
        yield partial(self._commit, saved) if leads else _nothing

    def _all_do(self, step: Callable[[], None]) -> bool:
        """Take a step; return whether all ranks have done it. If not, no part of it is left."""
        assert self._store is not None
        has_failed = not self._does(step)
        are_done = self._gang.most([has_failed])[0] == 0
        if not are_done and self._gang.leads:
            self._store.remove_part(self._place.iteration)
        return are_done

    def _does(self, step: Callable[[], None]) -> bool:
        try:
            step()
        except (OSError, RuntimeError) as error:  # PyTorch raises RuntimeError on a full disk
            what = f"iteration {self._place.iteration} cannot be saved"
            say(f"{what}, so the job computes on: {error}")
            return False
        return True

    def _commit(self, saved: dict[str, Any]) -> None:
        from ..torch.checkpoints import sharded, states

        assert self._store is not None
        part = self._store.part(self._place.iteration)

        def save(folder: Path) -> None:
            states.write(saved, folder / STATES)
            if self._is_sharded:
                os.rename(part, folder / sharded.FOLDER)

        self._store.commit(self._place.iteration, save)


def _nothing() -> None:
    """The step of a rank while the first rank does the work."""


def length_of(loader: Iterable[Any]) -> int | None:
    """Return the number of batches of a loader; None if it is not known."""
    try:
        return len(loader) if isinstance(loader, Sized) else None
    except TypeError:  # a DataLoader over an iterable dataset
        return None


_current: Checkpoint | None = None


def checkpoint(*, every: float = 60.0, **kept: Any) -> Checkpoint:
    """Keep these objects in checkpoints of this job. The job saves when it is asked to yield and
    every `every` seconds, and resumes from its checkpoint with bit-identical results.

    Each object has `state_dict()` and `load_state_dict()`, as models, optimizers, schedulers and
    scalers do, or is a dictionary or a list of tensors, numbers and texts. Call this once on each
    rank, when all objects are made; then loop over `gpushare.iterations`, which knows the place in
    the data. The random states of Python, NumPy and PyTorch are saved as well. Outside of a job
    nothing is kept. Raises InvalidValue.
    """
    global _current
    every = seconds_of(every)
    if not kept:
        raise InvalidValue("name what is to be kept, as in checkpoint(model=model)")
    store = Store(os.environ) if "GPUSHARE_JOB" in os.environ else None
    if store is not None:
        from ..torch.checkpoints import states

        states.check_kept(kept)
        if _current is not None:  # in a notebook a cell may be run again
            raise InvalidValue("checkpoint() is called once, with all that is to be kept")
    made = Checkpoint(kept, every, store)
    _current = made
    return made


def batches(loader: Iterable[Batch], epochs: int) -> tuple[int | None, Iterator[Batch]]:
    """Return the number of remaining batches (None: unknown), and an iterator over them."""
    if _current is not None:
        return _current.left(loader, epochs), _current.batches(loader, epochs)
    length = length_of(loader)
    left = None if length is None else length * epochs
    return left, (batch for _ in range(epochs) for batch in loader)
