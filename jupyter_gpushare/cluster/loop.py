"""Runs the steps of a service, and between them answers the questions of people."""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import Callable
from functools import partial
from threading import Event, Lock
from typing import TypeVar

from ..errors import BrokerUnavailable, cause
from .service import ClusterService

Answer = TypeVar("Answer")


class ServiceLoop:
    """`make` restores the service from its journal. It is called again after a step or a question
    that could not be written: what that service knows is more than the journal has.

    No question waits for an engine that looks, starts, asks or kills, except for those that come
    before the first look of a service: without nodes it would refuse all jobs."""

    def __init__(self, make: Callable[[], ClusterService], seconds: float) -> None:
        self._make = make
        self._seconds = seconds
        self._restoring = Lock()
        self._lock = Lock()  # of the service; the engine is asked without it
        self._service: ClusterService | None = None

    def run(self, tell: Callable[[ClusterService], None], stopped: Event) -> None:
        """Run steps until it is stopped. `tell` is called after each step."""
        while not stopped.wait(self._seconds):
            try:
                self._step(tell)
            except (sqlite3.Error, OSError) as error:
                print(f"nothing is started, since a step failed: {cause(error)}", file=sys.stderr)

    def ask(self, question: Callable[[ClusterService], Answer]) -> Answer:
        """Ask the service, from any thread. Raises BrokerUnavailable if the journal cannot be
        written, and what the question raises."""
        try:
            return self._locked(self._restored(), question)
        except (sqlite3.Error, OSError) as error:
            raise BrokerUnavailable(f"nothing is changed: {cause(error)}") from None

    def _restored(self) -> ClusterService:
        """Return the service. The next step acts as it has decided."""
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
        """Raises OSError where another thread has dropped the service, too."""
        with self._lock:
            if service is not self._service:
                raise OSError("the journal could not be written")
            try:
                return change(service)
            except (sqlite3.Error, OSError):
                self._service = None
                raise
