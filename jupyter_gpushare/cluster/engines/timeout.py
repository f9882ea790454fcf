"""An engine whose verbs end in time. While a verb hangs, the service continues with what it knows,
and people can submit and cancel."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future, TimeoutError
from threading import Lock, Thread
from typing import TypeVar

from ...errors import EngineUnavailable, NoRoom, cause
from .engine import Engine, Lease, Node, Refused, Start, Status

ANSWER_SECONDS = 10.0
ANSWERS = (
    EngineUnavailable,
    NoRoom,
    Refused,
)  # any other exception tells nothing about a job
Answer = TypeVar("Answer")


class EngineWithTimeout:
    """Asks `engine` one thing at a time. A verb that takes longer than `seconds` raises
    EngineUnavailable, and goes on in the background. Until it has ended, each further verb raises
    EngineUnavailable at once. If it starts a generation late, `adopt` finds it; the generation does
    nothing if it was closed meanwhile."""

    def __init__(self, engine: Engine, seconds: float = ANSWER_SECONDS) -> None:
        self._engine = engine
        self._seconds = seconds
        self._last: Future[object] | None = None
        self._lock = Lock()  # a look and a new service may ask concurrently

    def nodes(self) -> Mapping[str, Node]:
        return self._ask(self._engine.nodes)

    def start(self, start: Start) -> Lease:
        return self._ask(lambda: self._engine.start(start))

    def ask_yield(self, lease: Lease) -> None:
        self._ask(lambda: self._engine.ask_yield(lease))

    def kill(self, lease: Lease) -> None:
        self._ask(lambda: self._engine.kill(lease))

    def poll(self, leases: Collection[Lease]) -> Mapping[Lease, Status]:
        return self._ask(lambda: self._engine.poll(leases))

    def adopt(self) -> Collection[Lease]:
        return self._ask(self._engine.adopt)

    def _ask(self, verb: Callable[[], Answer]) -> Answer:
        answer: Future[Answer] = Future()
        with self._lock:
            if self._last is not None and not self._last.done():
                raise EngineUnavailable("the engine has not answered yet what it was asked before")
            self._last = answer  # type: ignore[assignment]  # only whether it is done is looked at
        Thread(target=_answer, args=(answer, verb), daemon=True).start()
        try:
            return answer.result(self._seconds)
        except TimeoutError:
            raise EngineUnavailable(f"the engine has not answered in {self._seconds:g} s") from None


def _answer(to: Future[Answer], verb: Callable[[], Answer]) -> None:
    """Run the verb. It may hang, so this is in a daemon thread, which does not keep the process
    alive."""
    try:
        to.set_result(verb())
    except ANSWERS as error:
        to.set_exception(error)
    except BaseException as error:
        said = f"the engine has failed: {type(error).__name__}: {cause(error)}"
        to.set_exception(EngineUnavailable(said))
