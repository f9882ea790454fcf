"""The jobs of the user of this server, by the service of their cluster."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Callable
from pathlib import Path

from tornado.ioloop import IOLoop

from jupyter_gpushare.errors import GpuShareError, NotPermitted, UnknownJob
from jupyter_gpushare.jobs import job as files
from jupyter_gpushare.jobs.connection import Answer, Cluster, ask
from jupyter_gpushare.settings import Settings, cluster_directory, cluster_socket_path
from jupyter_gpushare.wire.jobs import ClusterView, JobView, Submit
from jupyter_gpushare.wire.launch import is_of_another_user

from .messages import JobLog

LOG_BYTES = 1 << 18  # at the end of a log
LOOK_SECONDS = 5.0
LINE_END = re.compile(rb"\r\n?|\n")  # a progress bar writes \r alone
INSIDE = bytes(range(0x80, 0xC0))  # bytes of UTF-8 that begin no character
NONE = ClusterView(cluster="", pid=0, jobs=[], nodes=[], trouble="")


class Jobs:
    """Each method blocks, and raises the errors of the service. Looking at jobs starts the service
    only for a user who has submitted a job."""

    def __init__(self, settings: Settings, speak_for: str = "") -> None:
        """The jobs of this process's user, or of a user whom a hub has identified."""
        self._settings = settings
        self._user = speak_for

    @property
    def journal(self) -> Path:
        return cluster_directory(self._settings) / "cluster.sqlite"

    @property
    def are_of_several_users(self) -> bool:
        """Whether another user runs the service, for all users."""
        if self._user or self._settings.cluster_url:
            return True
        return is_of_another_user(cluster_socket_path(self._settings))

    @property
    def may_be(self) -> bool:
        return self.are_of_several_users or self.journal.exists()

    def look(self, all: bool = False) -> ClusterView:
        """Return jobs that have not ended, or with `all` the newest ones too."""
        if not self.may_be:
            return NONE
        return self._ask(lambda cluster: cluster.look(all))

    def look_aside(self) -> ClusterView | None:
        """Return the jobs that have not ended, or None if no service runs."""
        with contextlib.suppress(GpuShareError), Cluster(self._settings) as cluster:
            return cluster.look()
        return None

    def submit(self, wish: Submit) -> JobView:
        """Submit a job whose directory is made already."""
        return self._ask(lambda cluster: cluster.submit(wish))

    def job(self, id: str) -> JobView:
        self._check(id)
        return self._ask(lambda cluster: cluster.job(id))

    def log(self, id: str) -> JobLog:
        """Return the end of the output of a job's ranks, in whole lines."""
        if self._user:  # this process must not read a user's files for visitors
            raise NotPermitted("logs are read in the Jupyter server of their user")
        text = files.tail(files.directory_of(self.job(id)), LOG_BYTES + 1)
        is_cut = len(text) > LOG_BYTES
        lines = _whole_lines(text) if is_cut else text
        return JobLog(lines.decode(errors="replace"), is_cut)

    def cancel(self, id: str) -> JobView:
        """Cancel a job. Cancelling a finished job has no effect."""
        self._check(id)
        return self._ask(lambda cluster: cluster.cancel(id))

    def _ask(self, question: Callable[[Cluster], Answer]) -> Answer:
        return ask(self._settings, question, self._user)

    def _check(self, id: str) -> None:
        if not self.may_be:
            raise UnknownJob(f"there is no job {id}: you have submitted none on this machine")


def _whole_lines(text: bytes) -> bytes:
    """Return the whole lines in the end of a log, or the end of the only line."""
    lines = LINE_END.split(text, 1)[-1]
    return lines if 0 < len(lines) < len(text) else text[1:].lstrip(INSIDE)


class JobsWatch:
    """Keeps the newest view of the jobs, for metrics. A service without jobs is not asked, since
    questions would keep it from ending. It is asked while a job has not ended, when its journal has
    changed, and after a missing answer."""

    def __init__(self, jobs: Jobs) -> None:
        self._jobs = jobs
        self._seen = 0.0  # when the journal was last changed
        self._watching: asyncio.Future[None] | None = None
        self.view: ClusterView | None = None

    def start(self, loop: IOLoop) -> None:
        loop.add_callback(self._start)

    def _start(self) -> None:
        self._watching = asyncio.ensure_future(self._watch())

    def stop(self) -> None:
        if self._watching is not None:
            self._watching.cancel()

    async def _watch(self) -> None:
        while True:
            await asyncio.to_thread(self.look)
            await asyncio.sleep(LOOK_SECONDS)

    def look(self) -> None:
        """Look at the jobs, if there may be anything new. Blocks."""
        changed = _changed(self._jobs.journal)
        is_new = changed != self._seen or self._jobs.are_of_several_users
        if is_new or self.view is None or self.view.jobs:
            self._seen = changed
            self.view = self._jobs.look_aside()


def _changed(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0
