"""The socket of the service. Each connection has its own thread, and gets answers as the user that
the kernel reports. A service of one user answers only this user."""

from __future__ import annotations

import os
import pwd
import shutil
import socketserver
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Lock
from typing import NamedTuple

from ..errors import GpuShareError, InvalidValue, LimitExceeded, NotPermitted, cause
from ..wire import framing
from ..wire.jobs import (
    MAX_BODY_BYTES,
    CancelJob,
    FromCluster,
    JobView,
    LookAtJobs,
    LookAtUse,
    Question,
    SpeakFor,
    Submit,
    check_gpus,
    check_options,
)
from ..wire.launch import other_end
from ..wire.messages import Done, Error
from .hands.hands import Hands, has_all_rights, own_user
from .jobs import Spec
from .loop import ServiceLoop
from .service import ClusterService
from .views import cluster_view

CONNECTIONS_OF_A_USER = 100


class Access(NamedTuple):
    """The users that may connect, by mode and group of the socket, and by `hands`. `options_of`
    returns the options of a job as the engine takes them, or raises InvalidValue."""

    hands: Hands
    options_of: Callable[[Sequence[str]], Sequence[str]]
    mode: str = "0600"
    group: str = ""
    jobs_per_user: int = sys.maxsize  # unfinished ones


class Server(socketserver.ThreadingUnixStreamServer):
    """Listens at `path`."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, path: Path, loop: ServiceLoop, cluster: str, access: Access) -> None:
        """Raises OSError, and InvalidValue for a group that does not exist."""
        self.path = path
        self._loop, self._cluster, self._access = loop, cluster, access
        self._connections = Counter[str]()  # by user
        self._lock = Lock()
        self.asked = time.monotonic()  # when the last question came
        path.unlink(missing_ok=True)  # left by a killed service, since only one has the journal
        mask = os.umask(0o177)
        try:
            super().__init__(os.fspath(path), ClusterHandler)
        finally:
            os.umask(mask)
        self._open_to_others()

    def _open_to_others(self) -> None:
        if self._access.group:
            try:
                shutil.chown(self.path, group=self._access.group)
            except (LookupError, PermissionError) as error:
                raise InvalidValue(
                    f"the socket {self.path} cannot be of the group {self._access.group}:"
                    f" {cause(error)}"
                ) from None
        self.path.chmod(int(self._access.mode, 8))

    def user_of(self, uid: int) -> str:
        """Raises NotPermitted."""
        if not self._access.hands.are_many and uid != os.getuid():
            raise NotPermitted("these jobs are of another user")
        try:
            return own_user() if uid == os.getuid() else pwd.getpwuid(uid).pw_name
        except KeyError:
            raise NotPermitted(f"the user id {uid} has no name on this machine") from None

    def spoken_for(self, user: str, named: str) -> str:
        """Return the user whose questions follow. Raises NotPermitted."""
        if not has_all_rights(user):
            raise NotPermitted("only root, and the user that runs the service, speak for others")
        try:
            account = pwd.getpwnam(named)
        except (KeyError, ValueError):
            raise NotPermitted(f"the user {named!r} has no account on this machine") from None
        if account.pw_uid in (0, os.getuid()) or not self._access.hands.are_many:
            raise NotPermitted(f"the jobs of {named} are asked for on the socket alone")
        return account.pw_name

    @contextmanager
    def connected(self, user: str) -> Iterator[None]:
        """Raises LimitExceeded."""
        with self._lock:
            if self._connections[user] >= CONNECTIONS_OF_A_USER:
                raise LimitExceeded(
                    f"a user has at most {CONNECTIONS_OF_A_USER} connections to the service of jobs"
                )
            self._connections[user] += 1
        try:
            yield
        finally:
            with self._lock:
                self._connections[user] -= 1

    def answer(self, user: str, question: Question) -> FromCluster:
        """Raises GpuShareError."""
        self.asked = time.monotonic()
        if isinstance(question, Submit):  # no lock: file systems may be slow
            self._check(user, question)
        return self._loop.ask(lambda service: self._answer(service, user, question))

    def _check(self, user: str, wish: Submit) -> None:
        """Raises InvalidValue."""
        check_gpus(wish.gpus)
        check_options(wish.options)
        try:
            self._access.hands.of(user).check(wish.directory)
        except OSError as error:
            raise InvalidValue(f"{wish.directory} cannot be read: {cause(error)}") from None

    def _answer(self, service: ClusterService, user: str, question: Question) -> FromCluster:
        match question:
            case Submit() as wish:
                return self._view(service, user, self._submitted(service, user, wish))
            case CancelJob(id):
                check_may_cancel(service, user, id)
                service.cancel(id)
                return self._view(service, user, id)
            case LookAtJobs(id, all):
                return cluster_view(service, user, id, all, self._cluster, service.clock())
            case LookAtUse() as asked:
                return service.uses(asked, None if has_all_rights(user) else user)

    def _view(self, service: ClusterService, user: str, id: str) -> JobView:
        return cluster_view(service, user, id, False, self._cluster, service.clock()).jobs[0]

    def _submitted(self, service: ClusterService, user: str, wish: Submit) -> str:
        """Raises InvalidValue, DoesNotFit, and LimitExceeded."""
        present = [job.id for job in service.jobs() if job.user == user]
        if len(present) >= self._access.jobs_per_user and wish.id not in present:
            raise LimitExceeded(
                f"a user has at most {self._access.jobs_per_user} jobs that are not over"
            )
        spec = Spec(
            wish.gpus,
            nodes=wish.nodes,
            resumes=wish.resumes,
            restarts=wish.restarts,
            tells=wish.tells,
            options=(*self._access.options_of(wish.options),),
        )
        return service.submit(wish.id, user, wish.directory, spec).id


def check_may_cancel(service: ClusterService, user: str, id: str) -> None:
    """Raises NotPermitted and UnknownJob."""
    if service.job(id).user != user and not has_all_rights(user):
        raise NotPermitted(f"the job {id} is of {service.job(id).user}, who may cancel it")


class ClusterHandler(socketserver.StreamRequestHandler):
    """One connection."""

    server: Server

    def handle(self) -> None:
        try:
            self._user = self.server.user_of(other_end(self.request)[1])
            with self.server.connected(self._user):
                for body in self._bodies():
                    self._send(self._answered(body))
        except GpuShareError as error:
            self._send(Error(error.code, str(error)))

    def _answered(self, body: bytes) -> FromCluster:
        try:
            question = framing.decode_to_cluster(body)
            if isinstance(question, SpeakFor):
                self._user = self.server.spoken_for(self._user, question.user)
                return Done()
            return self.server.answer(self._user, question)
        except GpuShareError as error:
            return Error(error.code, str(error))

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
