"""A loader that resumes in the middle of an epoch: Lightning asks it for its state."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sized
from typing import Any

from ....errors import InvalidValue
from .batches import generators_of, has_started, rest_of, start_workers
from .gang import Gang
from .states import fresh_state, random_state, set_random_state


class ResumableLoader:
    """A DataLoader with `state_dict()` and `load_state_dict()`: the place in its epoch, and the
    random numbers of each rank. All other attributes are those of the loader."""

    def __init__(self, loader: Iterable[Any]) -> None:
        """Raises InvalidValue for a loader without a length."""
        if not isinstance(loader, Sized):
            raise InvalidValue(
                "a loader is resumable where it has a length, and this one has none:"
                f" {type(loader).__name__}"
            )
        self._loader: Any = loader
        self._generators = generators_of(loader)
        self._done = 0  # batches of the present epoch
        self._began: dict[str, Any] = {}  # the random state with which the epoch began
        self._had_workers: bool | None = None  # before that
        self._resumed: dict[str, Any] | None = None  # until the epoch goes on from there
        self._gang: Gang | None = None

    def __getattr__(self, name: str) -> Any:
        if name == "_loader":  # a copy in the making has none yet
            raise AttributeError(name)
        return getattr(self._loader, name)

    def __len__(self) -> int:
        return len(self._loader)

    def __iter__(self) -> Iterator[Any]:
        """Draw nothing before the first batch is asked for."""
        resumed, self._resumed = self._resumed, None
        self._done = resumed["done"] if resumed is not None else 0
        if resumed is not None:
            if resumed.get("had_workers"):
                start_workers(self._loader)
            self._set_random_state(resumed["began" if self._done else "random"])
        self._began = random_state(self._generators)
        self._had_workers = has_started(self._loader)
        for batch in self._rest(resumed):
            self._done += 1
            yield batch
        start_workers(self._loader)  # if another loader has loaded the rest

    def _rest(self, resumed: dict[str, Any] | None) -> Iterable[Any]:
        if resumed is None or self._done == 0:
            return self._loader  # type: ignore[no-any-return]
        return rest_of(self._loader, self._done, lambda: self._set_random_state(resumed["random"]))

    def _set_random_state(self, state: dict[str, Any]) -> None:
        set_random_state(state, self._generators)

    def state_dict(self) -> dict[str, Any]:
        """Return the place and the random numbers of all ranks. All of them call it."""
        self._gang = self._gang or Gang()
        # After the last batch the next epoch begins. More ranks have fewer batches each.
        done = self._done if self._done < len(self) else 0
        mine = {
            "done": done,
            "had_workers": self._had_workers if done else self._done > 0,
            "began": self._began,
            "random": random_state(self._generators),
        }
        return {"ranks": self._gang.gathered(mine)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._gang = self._gang or Gang()
        ranks = state["ranks"]
        self._resumed = self._gang.mine(ranks) or fresh_state(done=ranks[0]["done"])


def resumable(loader: Iterable[Any]) -> Any:
    """Return a loader that can resume in the middle of an epoch. Lightning saves its place and its
    random numbers in each checkpoint, and the order of the epoch is drawn as it was.

    The loader draws batches that are done, but does not load them. Raises InvalidValue for a loader
    without a length.
    """
    return ResumableLoader(loader)
