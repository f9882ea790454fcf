"""A job in a notebook: its state, progress and the end of its log, live until it has ended.

A saved notebook has the last picture, which shows its own time.
"""

from __future__ import annotations

import html
import threading
import time
from typing import Any

from IPython.core.display_functions import DisplayHandle

from jupyter_gpushare.errors import GpuShareError
from jupyter_gpushare.format import duration, number_of_gpus
from jupyter_gpushare.jobs.job import Job, directory_of, tail
from jupyter_gpushare.tables import HUES
from jupyter_gpushare.wire.jobs import OVER, JobView

LOOK_SECONDS = 1.0
LOG_LINES, LOG_BYTES = 5, 4096
BAR = f"height:6px;background:{HUES['pale'].page};margin:.3em 0"
DONE = f"height:100%;background:{HUES['green'].page}"
LOG = "margin:.3em 0;max-height:9em;overflow:auto;white-space:pre-wrap"


class JobPicture:
    """The picture of one job, as one output of a cell that is replaced in place."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._handle = DisplayHandle()
        self._over = threading.Event()

    def show(self) -> None:
        """Draw the picture, and redraw it until the job has ended. Raises the error of the
        service."""
        view = self._job.look()
        self._handle.display(self._drawn(view), raw=True)
        if view.state not in OVER:
            threading.Thread(target=self._follow, name="gpushare-job", daemon=True).start()

    def stop(self) -> None:
        """Leave the picture as it is."""
        self._over.set()

    def _follow(self) -> None:
        while not self._over.wait(LOOK_SECONDS):
            try:
                view = self._job.look()
            except GpuShareError as error:
                self._handle.update(bundle(f"{self._job.id}: {error}", ""), raw=True)
                continue
            self._handle.update(self._drawn(view), raw=True)
            if view.state in OVER:
                return

    def _drawn(self, view: JobView) -> dict[str, str]:
        text = tail(directory_of(view), LOG_BYTES).decode(errors="replace")
        return bundle(f"<Job {view.id}: {view.sentence}>", page(view, text))


_shown: dict[str, JobPicture] = {}  # by the id of the job: the newest picture alone is live


def show(job: Job) -> None:
    if (older := _shown.pop(job.id, None)) is not None:
        older.stop()
    _shown[job.id] = JobPicture(job)
    _shown[job.id].show()


def stop_all() -> None:
    while _shown:
        _shown.popitem()[1].stop()


def bundle(text: str, drawn: str) -> dict[str, str]:
    return {"text/plain": text, "text/html": drawn or f"<div>{html.escape(text)}</div>"}


def page(view: JobView, log: str) -> str:
    """Return the picture as HTML."""
    used = f" · {duration(view.computed)} of GPU time" if view.computed else ""
    what = f"{number_of_gpus(view.gpus)}{used} · {time.strftime('at %H:%M:%S')}"
    lines = "\n".join(log.splitlines()[-LOG_LINES:])
    return (
        f"<div><b>{html.escape(view.id)}</b> {html.escape(view.sentence)}"
        f"<div style='font-size:90%;opacity:.8'>{what}</div>{bar(view)}"
        + (f"<pre style='{LOG}'>{html.escape(lines)}</pre></div>" if lines else "</div>")
    )


def bar(view: JobView) -> str:
    if not view.iteration or not view.iterations:
        return ""
    part = 100 * min(1.0, view.iteration / view.iterations)
    done = f"<div style='width:{part:.1f}%;{DONE}'></div>"
    return f"<div style='{BAR}'>{done}</div>"


def register(ipython: Any) -> None:
    """Show jobs as pictures in a notebook; a terminal shows their text."""
    if hasattr(ipython, "kernel"):
        ipython.display_formatter.ipython_display_formatter.for_type(Job, show)


def unregister(ipython: Any) -> None:
    stop_all()
    if hasattr(ipython, "kernel"):
        ipython.display_formatter.ipython_display_formatter.pop(Job, None)
