"""The jobs that have not ended, as in the journal: each change is written there first."""

from __future__ import annotations

from msgspec.structs import replace

from .engines.engine import Lease
from .jobs import JobRecord, lease_of
from .journal import HourOfJob, JobEvent, Journal

HOUR_SECONDS = 3600
SAVE_SECONDS = 60.0


class Records:
    """Each method raises the errors of the journal, and then has changed nothing."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._jobs = {job.id: job for job in journal.present()}
        self._uses: dict[str, dict[int, float]] = {}  # GPU-seconds by job and hour, not written yet
        self._saved = 0.0  # when uses were last written

    def __getitem__(self, id: str) -> JobRecord:
        return self._jobs[id]

    def get(self, id: str) -> JobRecord | None:
        """Return a job, even a finished one."""
        return self._jobs.get(id) or self._journal.job(id)

    def all(self) -> list[JobRecord]:
        return [*self._jobs.values()]

    def active(self) -> list[JobRecord]:
        return [job for job in self.all() if job.is_active]

    def active_at(self, id: str, generation: int) -> JobRecord | None:
        job = self._jobs.get(id)
        return job if job and job.is_active and job.generation == generation else None

    def leases(self) -> set[Lease]:
        return {lease_of(job) for job in self.active() if job.handle}

    def write(self, now: float, job: JobRecord, what: str, detail: str = "") -> JobRecord:
        """Write a job's change of state, with its new row."""
        before = self._jobs.get(job.id)
        if before is None or before.state != job.state:
            job = replace(job, since=now)
        event = JobEvent(now, job.id, job.generation, what, detail)
        self._journal.write(job, event, self._uses_of(job))
        self._uses.pop(job.id, None)
        if job.is_over:
            self._jobs.pop(job.id, None)
        else:
            self._jobs[job.id] = job
        return job

    def count(self, now: float, job: JobRecord, gpu_seconds: float) -> JobRecord:
        """Note that a job has computed. The journal gets this with the job's next change of state,
        or by `save`."""
        self._jobs[job.id] = job
        hours, hour = self._uses.setdefault(job.id, {}), int(now) // HOUR_SECONDS * HOUR_SECONDS
        hours[hour] = hours.get(hour, 0.0) + gpu_seconds
        return job

    def save_now_and_then(self, now: float) -> None:
        if now - self._saved >= SAVE_SECONDS:
            self.save()
            self._saved = now

    def save(self) -> None:
        """Write the counted use to the journal."""
        if jobs := [self._jobs[id] for id in self._uses]:
            self._journal.save(jobs, [use for job in jobs for use in self._uses_of(job)])
            self._uses = {}

    def _uses_of(self, job: JobRecord) -> list[HourOfJob]:
        hours = self._uses.get(job.id, {})
        return [HourOfJob(hour, job.user, job.id, seconds) for hour, seconds in hours.items()]
