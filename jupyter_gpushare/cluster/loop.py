"""Runs the steps of a service, and between them answers the questions of people."""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import Callable
from threading import Event, Lock
from typing import TypeVar

from ..errors import BrokerUnavailable, cause
from .looks.looks import EngineLook
from .service import ClusterService

Answer = TypeVar("Answer")


class ServiceLoop:
    """`make` restores the service from its journal. It is called again after a step or a question
    that could not be written: what that service knows is more than the journal has."""

    def __init__(self, make: Callable[[], ClusterService], seconds: float) -> None:
        self._make = make
        self._seconds = seconds
        self._lock = Lock()
        self._service: ClusterService | None = None

    def run(self, tell: Callable[[ClusterService], None], stopped: Event) -> None:
        """Run steps until it is stopped. `tell` is called after each step. An engine that does not
        answer a look keeps no question waiting; one that does not start or end a job does, until
        the verb is given up."""
        while not stopped.wait(self._seconds):
            service = self._service
            look = service.look() if service else None
            with self._lock:  # which may have another service by now
                self._step(tell, look if service is self._service else None)

    def ask(self, question: Callable[[ClusterService], Answer]) -> Answer:
        """Ask the service, from any thread. Raises BrokerUnavailable if the journal cannot be
        written, and what the question raises."""
        with self._lock:
            try:  # after a step: a service that has seen no nodes refuses all jobs
                return question(self._service or self._advance())
            except (sqlite3.Error, OSError) as error:
                self._service = None
                raise BrokerUnavailable(f"nothing is changed: {cause(error)}") from None

    def _step(self, tell: Callable[[ClusterService], None], look: EngineLook | None) -> None:
        try:
            tell(self._advance(look))
        except (sqlite3.Error, OSError) as error:
            print(f"nothing is started, since a step failed: {cause(error)}", file=sys.stderr)
            self._service = None

    def _advance(self, look: EngineLook | None = None) -> ClusterService:
        service = self._service or self._make()
        service.step(look)
        self._service = service
        return service
