"""A job that was submitted: what it does, its log, and its end."""

from __future__ import annotations

import codecs
import os
import pickle
import re
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

from ..errors import (
    BrokerUnavailable,
    DoesNotFit,
    EngineUnavailable,
    InvalidValue,
    JobFailed,
    LimitExceeded,
    NotPermitted,
    Unanswered,
)
from ..settings import Settings, load
from ..wire.jobs import OVER, Gpus, JobView
from . import pickled, submission
from .connection import ask
from .submission import Wanted

LOOK_SECONDS = 0.5
Part = tuple[int, str]  # generation and node
DECODER = partial(codecs.getincrementaldecoder("utf-8"), "replace")  # buffers a part of a character
# After these errors the service does not have the job; after any other error it may have it.
REFUSALS = (
    *(InvalidValue, DoesNotFit, NotPermitted, LimitExceeded),
    *(BrokerUnavailable, EngineUnavailable),
)
LOG = re.compile(r"g([0-9]+)(?:\.closed)?/log\.(.+)")


class Job:
    """One job of the user's cluster, by its id or by a unique beginning of the id. Each method
    raises UnknownJob if the service does not know the job, and BrokerUnavailable."""

    def __init__(self, id: str, settings: Settings | None = None) -> None:
        self.id = id
        self._settings = settings or load()

    def __repr__(self) -> str:
        return f"<Job {self.id}: {self.look().sentence}>"

    def look(self) -> JobView:
        """Return all that the service knows of it: state, sentence, place, iterations and times."""
        view = ask(self._settings, lambda cluster: cluster.job(self.id))
        self.id = view.id
        return view

    @property
    def state(self) -> str:
        """`queued`, `starting`, `running`, `yielding`, `ending`, `done`, `failed` or
        `cancelled`."""
        return self.look().state

    @property
    def directory(self) -> Path:
        """The folder of the job, with its logs and checkpoints. Raises NotPermitted for a job of
        another user."""
        return directory_of(self.look())

    def cancel(self) -> None:
        """End the job, or take it out of the queue. Cancelling a finished job has no effect."""
        ask(self._settings, lambda cluster: cluster.cancel(self.id))

    def wait(self, timeout: float | None = None) -> JobView:
        """Wait for its end, or for `timeout` seconds. Raises JobFailed if it has failed or was
        cancelled."""
        until = None if timeout is None else time.monotonic() + timeout
        while (view := self.look()).state not in OVER:
            if until is not None and time.monotonic() >= until:
                return view
            time.sleep(LOOK_SECONDS)
        if view.state != "done":
            raise JobFailed(f"{self.id}: {view.sentence}")
        return view

    def result(self, timeout: float | None = None) -> Any:
        """Wait for its end, and return the result of its function on the first rank. Raises
        JobFailed; Unanswered after `timeout` seconds; InvalidValue for a script, which returns
        nothing."""
        view = self.wait(timeout)
        if view.state not in OVER:
            raise Unanswered(f"{self.id} is not over yet: it {view.sentence}")
        path = directory_of(view) / f"g{view.generation}.closed" / pickled.RESULT
        if not path.exists():
            raise InvalidValue(f"{self.id} is a script or a cell, which returns nothing")
        return pickle.loads(path.read_bytes())

    def log(self, lines: int = 0) -> str:
        """Return the output of its ranks, in all its generations, or only the last `lines`."""
        text = "".join(
            news(path, 0).decode(errors="replace") for path in logs(self.directory).values()
        )
        return "\n".join(text.splitlines()[-lines:]) if lines else text

    def follow(self) -> Iterator[str]:
        """Yield the output of its ranks, until it has ended."""
        offsets = defaultdict[Part, int](int)
        decoders = defaultdict[Part, codecs.IncrementalDecoder](DECODER)
        while True:
            view = self.look()
            for part, path in logs(directory_of(view)).items():
                new = news(path, offsets[part])
                offsets[part] += len(new)
                if text := decoders[part].decode(new, final=view.state in OVER):
                    yield text
            if view.state in OVER:
                return
            time.sleep(LOOK_SECONDS)


def directory_of(view: JobView) -> Path:
    """Return the directory of a job. Raises NotPermitted if the job is another user's."""
    if not view.directory:
        raise NotPermitted(f"the job {view.id} is of {view.user}, who may read its files")
    return Path(view.directory)


def submit(
    what: str | Path | Callable[..., Any],
    *arguments: Any,
    gpus: Gpus = 1,
    nodes: int = 0,
    name: str = "",
    resumes: bool = False,
    restarts: bool = False,
    rank_for_each_gpu: bool = False,
    options: Sequence[str] = (),
    settings: Settings | None = None,
) -> Job:
    """Run a script of Python, or call a function, on a cluster: on `gpus` GPUs of at most `nodes`
    nodes (0: any number), or on a part of one GPU, such as 0.25. It runs in the present directory,
    with the environment of this process. `resumes`: it saves when it is asked to yield, and resumes
    from there. `restarts`: it may start from its beginning again if it was lost. `options`: words
    for sbatch, such as ``["--account=lab"]``, if the engine is Slurm. Raises InvalidValue,
    DoesNotFit and BrokerUnavailable."""
    wanted = Wanted(gpus, nodes, name, resumes, restarts, rank_for_each_gpu, options)
    settings = settings or load()
    if not callable(what):
        return of_script(settings, Path(what), [str(word) for word in arguments], wanted)
    files = pickled.of_function(what, arguments)
    return of_files(settings, files, wanted, getattr(what, "__name__", "function"))


def submit_cell(source: str, namespace: Mapping[str, Any], wanted: Wanted) -> Job:
    """Run a cell, with the names of the notebook that it reads. Raises the errors of `submit`."""
    files = pickled.of_cell(source, namespace)
    return of_files(load(), files, wanted, "cell")


def of_script(settings: Settings, script: Path, words: Sequence[str], wanted: Wanted) -> Job:
    command = submission.command_of(script, words)
    return submitted(settings, command, wanted._replace(name=wanted.name or script.stem))


def of_files(settings: Settings, files: Mapping[str, bytes], wanted: Wanted, name: str) -> Job:
    """Submit a function or a cell."""
    command = [sys.executable, "-m", pickled.MODULE]
    return submitted(settings, command, wanted._replace(name=wanted.name or name), files)


def submitted(
    settings: Settings,
    command: Sequence[str],
    wanted: Wanted,
    files: Mapping[str, bytes] = MappingProxyType({}),
) -> Job:
    wish = submission.made(settings, command, wanted, files)
    try:
        ask(settings, lambda cluster: cluster.submit(wish))
    except REFUSALS:
        submission.discard(wish)
        raise
    return Job(wish.id, settings)


def logs(directory: Path) -> dict[Part, Path]:
    """Return the logs of all generations and nodes, in the order of the generations."""
    found: dict[Part, Path] = {}
    for path in directory.glob("g*/log.*"):
        if name := LOG.fullmatch(path.relative_to(directory).as_posix()):
            found[int(name[1]), name[2]] = path
    return dict(sorted(found.items()))


def tail(directory: Path, most: int) -> bytes:
    """Return the last `most` bytes of the output of a job's ranks."""
    text = b""
    for path in reversed(logs(directory).values()):
        if len(text) < most:
            text = _read(path, lambda size: size - most) + text
    return text[-most:]


def news(path: Path, offset: int) -> bytes:
    """Return the part of a log from an offset on."""
    return _read(path, lambda size: offset)


def _read(path: Path, offset: Callable[[int], int]) -> bytes:
    """Return a log from an offset, which depends on its size. Its directory may be renamed once
    meanwhile."""
    for place in (path, path.parent.with_name(f"{path.parent.name}.closed") / path.name):
        with suppress(FileNotFoundError), open(place, "rb") as file:
            file.seek(max(0, offset(os.fstat(file.fileno()).st_size)))
            return file.read()
    return b""
