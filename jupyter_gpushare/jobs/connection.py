"""Questions to the service of jobs, each with one answer."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol, TypeVar

from ..errors import (
    BrokerUnavailable,
    ConnectionLost,
    ProtocolError,
    Unanswered,
    UnknownJob,
    from_code,
)
from ..settings import Settings
from ..wire import framing, launch
from ..wire.jobs import (
    MAX_ANSWER_BYTES,
    CancelJob,
    ClusterView,
    FromCluster,
    JobUses,
    JobView,
    LookAtJobs,
    LookAtUse,
    SpeakFor,
    Submit,
    ToCluster,
    UseBy,
)
from ..wire.messages import Done, Error

# The service may first wait for an engine that hangs.
ANSWER_SECONDS = 60.0
RECEIVE_BYTES = 1 << 16
Answer = TypeVar("Answer", JobView, ClusterView, JobUses)
Answered = TypeVar("Answered", JobView, ClusterView, JobUses, Done)


def ask(settings: Settings, question: Callable[[Cluster], Answer], speak_for: str = "") -> Answer:
    """Ask the service, and start it if there is none. If a service ends before it answers, ask the
    next one: each question may be repeated. Raises the errors of `Cluster`, but BrokerUnavailable
    only if no service has received the question."""
    try:
        return _ask(settings, question, speak_for)
    except Unanswered:
        raise
    except ConnectionLost as lost:
        try:
            return _ask(settings, question, speak_for)
        except BrokerUnavailable:
            raise lost from None


def _ask(settings: Settings, question: Callable[[Cluster], Answer], speak_for: str) -> Answer:
    with Cluster(settings, start=not speak_for, speak_for=speak_for) as cluster:
        return question(cluster)


class Way(Protocol):
    """A way to the service, for a question and its answer."""

    def ask(self, question: ToCluster) -> FromCluster:
        """Raises ConnectionLost."""

    def close(self) -> None: ...


class Cluster:
    """A connection to the service. Each method raises the error that the service answers, and
    ConnectionLost. `start` starts a service if there is none."""

    def __init__(self, settings: Settings, start: bool = False, speak_for: str = "") -> None:
        """The questions are those of this process's user, or of the user that it has to
        `speak_for`. Raises BrokerUnavailable, and NotPermitted."""
        self._way = way_to(settings, start)
        if speak_for:
            self._speak_for(speak_for)

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *exception: object) -> None:
        self._way.close()

    def submit(self, wish: Submit) -> JobView:
        """Raises InvalidValue and DoesNotFit."""
        return self._ask(wish, JobView)

    def cancel(self, id: str) -> JobView:
        """Raises UnknownJob."""
        return self._ask(CancelJob(checked(id)), JobView)

    def job(self, id: str) -> JobView:
        """Raises UnknownJob."""
        return self._ask(LookAtJobs(checked(id)), ClusterView).jobs[0]

    def look(self, all: bool = False) -> ClusterView:
        return self._ask(LookAtJobs(all=all), ClusterView)

    def use(self, start: float, end: float, by: UseBy) -> JobUses:
        """Return the use by the user's own jobs, or by all jobs if this user runs the service."""
        return self._ask(LookAtUse(start, end, by), JobUses)

    def _speak_for(self, user: str) -> None:
        try:
            self._ask(SpeakFor(user), Done)
        except BaseException:
            self._way.close()
            raise

    def _ask(self, question: ToCluster, kind: type[Answered]) -> Answered:
        answer = self._way.ask(question)
        if isinstance(answer, Error):
            raise from_code(answer.code, answer.message)
        if not isinstance(answer, kind):
            raise ProtocolError(f"{kind.__name__} was due, and {type(answer).__name__} came")
        return answer


def checked(id: str) -> str:
    """Return the id if it is not empty: the service would take an empty one for all jobs. Raises
    UnknownJob."""
    if not id:
        raise UnknownJob("the id of a job, or its beginning, is missing")
    return id


def way_to(settings: Settings, start: bool) -> Way:
    """Return the way by the socket of the service, or over the hub's service if `cluster_url` is
    set. Raises BrokerUnavailable."""
    if not settings.cluster_url:
        return BySocket(settings, start)
    from .hub import OverHub

    return OverHub(settings.cluster_url)


class BySocket:
    def __init__(self, settings: Settings, start: bool) -> None:
        """Raises BrokerUnavailable."""
        self._socket = launch.connect_to_cluster(settings, start)
        self._frames = framing.Frames(MAX_ANSWER_BYTES)

    def ask(self, question: ToCluster) -> FromCluster:
        try:
            self._socket.sendall(framing.encode(question))
            return self._receive(time.monotonic() + ANSWER_SECONDS)
        except OSError as error:
            raise ConnectionLost(f"the connection to the service of jobs ended: {error}") from None

    def close(self) -> None:
        self._socket.close()

    def _receive(self, until: float) -> FromCluster:
        while True:
            self._socket.settimeout(max(0.001, until - time.monotonic()))
            try:
                data = self._socket.recv(RECEIVE_BYTES)
            except TimeoutError:
                raise Unanswered("the service of jobs has not answered in time") from None
            if not data:
                raise ConnectionLost("the connection to the service of jobs ended")
            for body in self._frames.feed(data):
                return framing.decode_from_cluster(body)
