"""Questions to the service of jobs: each has one answer."""

from __future__ import annotations

import time
from typing import TypeVar

from ...errors import ConnectionLost, ProtocolError, Unanswered, from_code
from ...settings import Settings
from ...wire import framing, launch
from ...wire.jobs import (
    MAX_ANSWER_BYTES,
    CancelJob,
    ClusterView,
    FromCluster,
    JobView,
    LookAtJobs,
    Submit,
)
from ...wire.messages import Error, Message

# A service may look at an engine that hangs before it answers.
ANSWER_SECONDS = 60.0
RECEIVE_BYTES = 1 << 16
Answer = TypeVar("Answer", JobView, ClusterView)


class Cluster:
    """A connection to it. Each method raises the error that the service answers, and
    ConnectionLost. The first one who submits starts the service."""

    def __init__(self, settings: Settings, start: bool = False) -> None:
        """Raises BrokerUnavailable."""
        self._socket = launch.connect_to_cluster(settings, start)
        self._frames = framing.Frames(MAX_ANSWER_BYTES)

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *exception: object) -> None:
        self._socket.close()

    def submit(self, wish: Submit) -> JobView:
        """Raises InvalidValue and DoesNotFit."""
        return self._ask(wish, JobView)

    def cancel(self, id: str) -> JobView:
        """Raises UnknownJob."""
        return self._ask(CancelJob(id), JobView)

    def job(self, id: str) -> JobView:
        """Raises UnknownJob."""
        return self._ask(LookAtJobs(id), ClusterView).jobs[0]

    def look(self, all: bool = False) -> ClusterView:
        return self._ask(LookAtJobs(all=all), ClusterView)

    def _ask(self, question: Message, kind: type[Answer]) -> Answer:
        try:
            self._socket.sendall(framing.encode(question))
            answer = self._receive(time.monotonic() + ANSWER_SECONDS)
        except OSError as error:
            raise ConnectionLost(f"the connection to the service of jobs ended: {error}") from None
        if isinstance(answer, Error):
            raise from_code(answer.code, answer.message)
        if not isinstance(answer, kind):
            raise ProtocolError(f"{kind.__name__} was due, and {type(answer).__name__} came")
        return answer

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
