"""The socket of the service: each question of a connection is answered in a thread of its own."""

from __future__ import annotations

import os
import pwd
import socketserver
import time
from collections.abc import Iterator
from pathlib import Path

from ..errors import GpuShareError, InvalidValue, NotPermitted
from ..wire import framing
from ..wire.jobs import MAX_BODY_BYTES, CancelJob, FromCluster, JobView, LookAtJobs, Submit
from ..wire.launch import other_end
from ..wire.messages import Error
from .generation import read
from .jobs import Spec
from .loop import Loop
from .service import Service
from .views import cluster_view


class Server(socketserver.ThreadingUnixStreamServer):
    """Listens at `path`, for this user alone."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, path: Path, loop: Loop, cluster: str) -> None:
        self.path = path
        self._loop, self._cluster = loop, cluster
        self.asked = time.monotonic()  # when a question came last
        path.unlink(missing_ok=True)  # of a service that was killed: only one has the journal
        mask = os.umask(0o177)
        try:
            super().__init__(os.fspath(path), Handler)
        finally:
            os.umask(mask)

    def answer(self, body: bytes) -> FromCluster:
        self.asked = time.monotonic()
        try:
            return self._loop.ask(lambda service: self._answer(service, body))
        except GpuShareError as error:
            return Error(error.code, str(error))

    def _answer(self, service: Service, body: bytes) -> FromCluster:
        match framing.decode_to_cluster(body):
            case Submit() as wish:
                return self._view(service, submitted(service, wish))
            case CancelJob(id):
                service.cancel(id)
                return self._view(service, id)
            case LookAtJobs(id, all):
                return cluster_view(service, id, all, self._cluster, time.time())

    def _view(self, service: Service, id: str) -> JobView:
        return cluster_view(service, id, False, self._cluster, time.time()).jobs[0]


def submitted(service: Service, wish: Submit) -> str:
    """Raises InvalidValue and DoesNotFit."""
    check_directory(Path(wish.directory))
    spec = Spec(
        wish.gpus,
        nodes=wish.nodes,
        resumes=wish.resumes,
        restarts=wish.restarts,
        tells=wish.tells,
    )
    return service.submit(wish.id, pwd.getpwuid(os.getuid()).pw_name, wish.directory, spec).id


def check_directory(path: Path) -> None:
    """What is in it will be run. Raises InvalidValue."""
    if not path.is_absolute() or read(path / "job.json") is None:
        raise InvalidValue(f"the directory of a job has a file job.json, and {path} has none")
    status = path.stat()
    if status.st_uid != os.getuid() or status.st_mode & 0o022:
        raise InvalidValue(
            f"others may write to {path}, and what is in it will be run: `chmod go-w {path}`"
        )


class Handler(socketserver.StreamRequestHandler):
    """One connection."""

    server: Server

    def handle(self) -> None:
        _, uid = other_end(self.request)
        if uid != os.getuid():  # as the mode of the socket says already
            self._send(Error(NotPermitted.code, "these jobs are of another user"))
            return
        for body in self._bodies():
            self._send(self.server.answer(body))

    def _bodies(self) -> Iterator[bytes]:
        frames = framing.Frames(MAX_BODY_BYTES)
        try:
            while data := self.request.recv(MAX_BODY_BYTES):
                yield from frames.feed(data)
        except GpuShareError as error:
            self._send(Error(error.code, str(error)))
        except OSError:  # the client has gone
            pass

    def _send(self, answer: FromCluster) -> None:
        self.wfile.write(framing.encode(answer))
