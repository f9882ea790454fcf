"""Runs the steps of a service, and answers the questions of people between them."""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import Callable
from functools import partial
from threading import Event, Lock
from typing import TypeVar

from ..errors import BrokerUnavailable, ConnectionLost, cause
from .service import ClusterService

Answer = TypeVar("Answer")


class ServiceLoop:
    """`make` restores the service from its journal. After a failed write to the journal, `make` is
    called again, since the old service knows more than the journal has.

    Questions do not wait for the engine, except before the first look of a service: without nodes
    it would refuse all jobs."""

    def __init__(self, make: Callable[[], ClusterService], seconds: float) -> None:
        self._make = make
        self._seconds = seconds
        self._restoring = Lock()
        self._lock = Lock()  # for the service; not held while the engine is asked
        self._service: ClusterService | None = None
        self._ends = False  # its process is about to end

    def run(self, tell: Callable[[ClusterService], None], stopped: Event) -> None:
        """Run steps until `stopped` is set. `tell` is called after each step, and may set it. No
        question is answered after that."""

        def told(service: ClusterService) -> None:
            tell(service)
            self._ends = stopped.is_set()

        while not stopped.wait(self._seconds):
            try:
                self._step(told)
            except (sqlite3.Error, OSError) as error:
                print(f"nothing is started, since a step failed: {cause(error)}", file=sys.stderr)
        self._ends = True

    def ask(self, question: Callable[[ClusterService], Answer]) -> Answer:
        """Ask the service, from any thread. Raises BrokerUnavailable if the journal cannot be
        written, ConnectionLost if another service has to be asked, and the errors of the
        question."""
        try:
            return self._locked(self._restored(), partial(self._answer, question))
        except (sqlite3.Error, OSError) as error:
            raise BrokerUnavailable(f"nothing is changed: {cause(error)}") from None

    def _answer(
        self, question: Callable[[ClusterService], Answer], service: ClusterService
    ) -> Answer:
        if self._ends:  # it would keep a job that it never starts
            raise ConnectionLost("the service of jobs has just ended")
        return question(service)

    def _restored(self) -> ClusterService:
        """Return the service, restored if necessary. Its first decision is carried out by the next
        step."""
        with self._restoring:
            if (service := self._service) is None:
                service = self._make()
                service.decide(service.look())
                self._service = service
            return service

    def _step(self, tell: Callable[[ClusterService], None]) -> None:
        service = self._restored()
        self._act(service)
        look = service.look()
        self._locked(service, lambda service: service.decide(look))
        self._act(service)
        self._locked(service, tell)

    def _act(self, service: ClusterService) -> None:
        for act in self._locked(service, ClusterService.acts):
            if started := act():
                self._locked(service, partial(ClusterService.settle, started=started))

    def _locked(
        self, service: ClusterService, change: Callable[[ClusterService], Answer]
    ) -> Answer:
        """Make a change under the lock. Raises OSError, too, if another thread has dropped the
        service."""
        with self._lock:
            if service is not self._service:
                raise OSError("the journal could not be written")
            try:
                return change(service)
            except (sqlite3.Error, OSError):
                self._service = None
                raise
