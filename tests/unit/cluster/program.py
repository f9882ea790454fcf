"""The process of a service of jobs, in tests."""

from __future__ import annotations

import signal
from contextlib import suppress

import psutil

from jupyter_gpushare.errors import BrokerUnavailable
from jupyter_gpushare.jobs.connection import Cluster
from jupyter_gpushare.settings import Settings

from ...polling import until


def end(settings: Settings) -> None:
    """End the service, if there is one, and all jobs."""
    with suppress(BrokerUnavailable), Cluster(settings) as cluster:
        view = cluster.look()
        for job in view.jobs:
            cluster.cancel(job.id)
        until(lambda: not cluster.look().jobs)
        kill(view.pid, signal.SIGTERM)


def kill(pid: int, number: signal.Signals) -> None:
    process = psutil.Process(pid)
    process.send_signal(number)
    until(lambda: not process.is_running() or process.status() == psutil.STATUS_ZOMBIE)
