"""Acts on a job outside of the service: at the engine, and on the directory of a generation. The
journal has each act before it is done, but the outcome of a start only afterwards."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, TypeAlias

from ..errors import EngineUnavailable, NoRoom, cause
from .engines.engine import Engine, Lease, Refused, Start
from .hands.hands import Hands
from .jobs import NO_ROOM, NOT_STARTED, REFUSED, Ending, JobRecord, lease_of
from .launch.generation import Word
from .looks.sights import ending_of


class Started(NamedTuple):
    """The outcome of the start of a job: its lease, or why nothing of it runs. It has neither if
    the engine did not answer whether the job was started."""

    job: str
    lease: Lease | None = None
    reason: str = ""
    sentence: str = ""


EngineAct: TypeAlias = Callable[[], Started | None]


class Acts:
    """Each act blocks. Repeating an act is harmless, except that a generation is started once."""

    def __init__(self, cluster: str, engine: Engine, hands: Hands, beat_seconds: float) -> None:
        self._cluster = cluster
        self._engine = engine
        self._hands = hands
        self._beat_seconds = beat_seconds

    def start(self, job: JobRecord) -> Started:
        gpus = {node: math.ceil(count) for node, count in job.place.items()}
        word = Word(job.resume, gpus, self._beat_seconds, job.resumes)
        try:
            self._hands.of(job.user).open(job.directory, job.generation, word)
            return Started(job.id, self._engine.start(self._start_of(job)))
        except EngineUnavailable:
            return Started(job.id)
        except NoRoom as error:
            return Started(job.id, reason=NO_ROOM, sentence=str(error))
        except Refused as error:
            return Started(job.id, reason=REFUSED, sentence=str(error))
        except OSError as error:
            return Started(job.id, reason=NOT_STARTED, sentence=cause(error))

    def _start_of(self, job: JobRecord) -> Start:
        directory, user = Path(job.directory), lease_of(job).user
        what = (self._cluster, job.id, job.generation, directory, job.place)
        return Start(*what, user, job.spec.options)

    def ask_yield(self, job: JobRecord) -> None:
        with suppress(EngineUnavailable):  # the next step asks again
            if job.handle:
                self._engine.ask_yield(lease_of(job))

    def kill(self, lease: Lease) -> None:
        """Kill all processes of a lease. The next sweep finds and kills survivors."""
        with suppress(EngineUnavailable):
            if lease.handle:
                self._engine.kill(lease)

    def close(self, job: JobRecord) -> Ending:
        """Close the generation, so that surviving processes can write nothing more. Raises
        DirectoryLost, and OSError if it is not closed: then no other generation may be started."""
        hand = self._hands.of(job.user)
        return ending_of(job, hand.close(job.directory, job.generation, [*job.place]))
