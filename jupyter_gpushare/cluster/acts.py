"""What is done about a job outside of the service: at the engine, and to the directory of a
generation. The journal has it already, except for how a start ended."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from ..errors import EngineUnavailable, NoRoom, cause
from . import generation
from .engines.engine import Engine, Lease, Start
from .generation import Word
from .jobs import NO_ROOM, NOT_STARTED, Ending, Job
from .records import lease_of
from .sights import ending_of


class NotStarted(Exception):
    """Nothing of it runs."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason


class DirectoryLost(Exception):
    """A job has no directory any more. So none of its generations can write, and none can start."""

    def __init__(self, job: Job) -> None:
        super().__init__(f"its directory {job.directory} is not there any more")


class Acts:
    """Each of them blocks, and twice is harmless; but a generation is started once."""

    def __init__(self, cluster: str, engine: Engine, beat_seconds: float) -> None:
        self._cluster = cluster
        self._engine = engine
        self._beat_seconds = beat_seconds

    def start(self, job: Job) -> Lease:
        """Raises NotStarted, and EngineUnavailable: then it may have been started."""
        path = Path(job.directory)
        try:
            word = Word(job.resume, job.place, self._beat_seconds)
            generation.open_generation(path, job.generation, word)
            return self._engine.start(Start(self._cluster, job.id, job.generation, path, job.place))
        except NoRoom as error:
            raise NotStarted(NO_ROOM, str(error)) from None
        except OSError as error:
            raise NotStarted(NOT_STARTED, cause(error)) from None

    def ask_yield(self, job: Job) -> None:
        with suppress(EngineUnavailable):  # it is asked again
            if job.handle:
                self._engine.ask_yield(lease_of(job))

    def kill(self, lease: Lease) -> None:
        """What lives on all the same is found when all that runs is looked at, and killed then."""
        with suppress(EngineUnavailable):
            if lease.handle:
                self._engine.kill(lease)

    def close(self, job: Job) -> Ending:
        """What is left of it writes nothing any more. Raises DirectoryLost, and OSError: then
        it is not closed, and no other generation must be started."""
        self.kill(lease_of(job))
        try:
            return ending_of(job, generation.close_generation(Path(job.directory), job.generation))
        except OSError:
            if not Path(job.directory).is_dir():
                raise DirectoryLost(job) from None
            raise
