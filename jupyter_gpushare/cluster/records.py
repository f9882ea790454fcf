"""The jobs that are not over, as the journal has them: what is kept here is written there first."""

from __future__ import annotations

from msgspec.structs import replace

from .engines.engine import Lease
from .jobs import Job
from .journal import Event, Journal


class Records:
    """Raises what the journal raises, and then nothing is changed."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._jobs = {job.id: job for job in journal.present()}

    def __getitem__(self, id: str) -> Job:
        return self._jobs[id]

    def get(self, id: str) -> Job | None:
        """One that is over, too."""
        return self._jobs.get(id) or self._journal.job(id)

    def all(self) -> list[Job]:
        return [*self._jobs.values()]

    def active(self) -> list[Job]:
        return [job for job in self.all() if job.is_active]

    def active_at(self, id: str, generation: int) -> Job | None:
        job = self._jobs.get(id)
        return job if job and job.is_active and job.generation == generation else None

    def leases(self) -> set[Lease]:
        return {lease_of(job) for job in self.active() if job.handle}

    def write(self, now: float, job: Job, what: str, detail: str = "") -> Job:
        """The arrow of a job, and its row from then on."""
        before = self._jobs.get(job.id)
        if before is None or before.state != job.state:
            job = replace(job, since=now)
        self._journal.write(job, Event(now, job.id, job.generation, what, detail))
        if job.is_over:
            self._jobs.pop(job.id, None)
        else:
            self._jobs[job.id] = job
        return job

    def keep(self, job: Job) -> Job:
        """Without an arrow: it is written with the next one of this job."""
        self._jobs[job.id] = job
        return job


def lease_of(job: Job) -> Lease:
    return Lease(job.id, job.generation, job.handle)
