"""Find the broker of a socket, or start one: connect first, then take a lock, so that only one is
started. The service of a cluster is found and started in the same way."""

from __future__ import annotations

import errno
import fcntl
import os
import re
import socket
import stat
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from ..errors import BrokerUnavailable, InvalidValue
from ..settings import Settings, as_environment, cluster_socket_path, socket_path
from .jobs import OF_RANKS

MAX_PATH_BYTES = 107  # sun_path of a Unix socket, less its final zero
RETRY_SECONDS = 0.02
ACCEPTED_SECONDS = 10.0  # a broker accepts within that, unless it hangs
STARTING_SECONDS = 3.0  # until a broker that has ended without listening is started again
# Names of variables that the broker does not need, and would keep longer than this process.
SECRET = re.compile("TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIAL|KEY", re.IGNORECASE)
# Engines and launchers set these for a job and its ranks. The first one marks the processes of a
# job, which are found and killed at its end. A process that serves others, too, must not have it.
OF_A_JOB = re.compile(
    rf"GPUSHARE_(LEASE|NODE|PART|ENDS_WITH|JOB|GENERATION|YIELD|RESUME)|{OF_RANKS}"
)


class Program(NamedTuple):
    """A program that listens: its name for people, its module, and the variable of its socket."""

    name: str
    module: str
    variable: str


BROKER = Program("broker", "jupyter_gpushare.broker", "JUPYTER_GPUSHARE_SOCKET")
CLUSTER = Program("service of jobs", "jupyter_gpushare.cluster", "JUPYTER_GPUSHARE_CLUSTER_SOCKET")


def connect(settings: Settings, start: bool = True) -> socket.socket:
    """Return a connected socket. Raises BrokerUnavailable after `settings.start_seconds`."""
    path = checked(socket_path(settings))
    with _troubles_of_the_system(path):
        connection = try_connect(path)
        if connection is None:
            check_may_start(path, settings)
        if connection is None and not start:
            raise BrokerUnavailable(
                f"no broker answers on {path}; `%gpushare on` or `jupyter gpushare broker` starts"
                " one"
            )
        return connection or _start_and_connect(path, settings)


def connect_to_cluster(settings: Settings, start: bool = True) -> socket.socket:
    """Return a connection to the service of the user's cluster. Raises BrokerUnavailable after
    `settings.start_seconds`."""
    path = checked(cluster_socket_path(settings))
    with _troubles_of_the_system(path):
        if (connection := try_connect(path)) is not None:
            return connection
        if is_of_another_user(path):
            raise BrokerUnavailable(
                f"no {CLUSTER.name} answers on {path}, and this process may not start one there:"
                " ask the administrator of this host; for jobs of yours on this machine set"
                f" {CLUSTER.variable} to a path in a directory of yours"
            )
        if not start:
            raise BrokerUnavailable(
                f"no {CLUSTER.name} answers on {path}; `jupyter gpushare submit` or `jupyter"
                " gpushare cluster` starts one"
            )
        return _start_and_connect(path, settings, CLUSTER)


def ensure(settings: Settings) -> None:
    """Start a broker if none answers, on behalf of the user that runs the broker of this socket,
    alone or for others. Raises BrokerUnavailable."""
    path = checked(socket_path(settings))
    with _troubles_of_the_system(path):
        (try_connect(path) or _start_and_connect(path, settings)).close()


@contextmanager
def _troubles_of_the_system(path: Path) -> Iterator[None]:
    """Raise BrokerUnavailable if no descriptor, process or disk space is available, since a later
    try may succeed."""
    try:
        yield
    except OSError as error:
        where = f" ({error.filename})" if error.filename else ""
        raise BrokerUnavailable(
            f"the way to the broker on {path} fails: {error.strerror or error}{where}"
        ) from None
    except subprocess.SubprocessError as error:
        raise BrokerUnavailable(f"no broker can be started on {path}: {error}") from None


def is_in_the_way(path: Path, why: str) -> BrokerUnavailable:
    """Return the error for something at `path` that a broker cannot remove."""
    return BrokerUnavailable(
        f"{path} lies in the place of the broker's socket, and cannot be taken away ({why}):"
        " move it, or set JUPYTER_GPUSHARE_SOCKET to another path"
    )


def check_may_start(path: Path, settings: Settings) -> None:
    """Raise BrokerUnavailable if this process may not start the broker of this socket."""
    try:
        owner = path.parent.stat().st_uid
    except FileNotFoundError:
        owner = os.getuid()  # this user makes the directory
    except OSError as error:
        raise BrokerUnavailable(
            f"no broker answers on {path}, whose directory cannot be seen: {error.strerror}"
        ) from None
    if not settings.start_broker or settings.hub_api_url or owner != os.getuid():
        raise BrokerUnavailable(
            f"no broker answers on {path}, and this process may not start one there: ask the"
            " administrator of this host"
        )


def is_of_another_user(path: Path) -> bool:
    """Whether another user runs the listener at `path`, since the directory is not this user's."""
    try:
        return path.parent.stat().st_uid not in (0, os.getuid()) or not os.access(
            path.parent, os.W_OK
        )
    except OSError:
        return False  # this user makes the directory


def checked(path: Path) -> Path:
    """Return `path`, if a Unix socket can have that name."""
    length = len(os.fsencode(path))
    if length > MAX_PATH_BYTES:
        raise InvalidValue(
            f"the socket path {path} has {length} bytes; at most {MAX_PATH_BYTES} are possible:"
            " set JUPYTER_GPUSHARE_SOCKET to a shorter one"
        )
    return path


def try_connect(path: Path) -> socket.socket | None:
    """Return a connection, or None if no process listens. Raises BrokerUnavailable if this process
    may not connect, or should not."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        _connect(connection, path)
    except (FileNotFoundError, ConnectionRefusedError, NotADirectoryError):
        connection.close()
        return None
    except BlockingIOError:
        connection.close()
        raise BrokerUnavailable(
            f"the process that listens on {path} stands still: it accepts no connection"
        ) from None
    except OSError as error:
        connection.close()
        who = f"; {_who_may(path)} may" if isinstance(error, PermissionError) else ""
        raise BrokerUnavailable(
            f"the socket {path} cannot be used: {error.strerror}{who}"
        ) from None
    try:
        _check_server(connection, path)
    except BaseException:
        connection.close()
        raise
    return connection


def _connect(connection: socket.socket, path: Path) -> None:
    """Raises BlockingIOError if too many connections wait to be accepted: a blocking `connect`
    would wait for ever."""
    deadline = time.monotonic() + ACCEPTED_SECONDS
    connection.setblocking(False)
    while (
        code := connection.connect_ex(os.fspath(path))
    ) == errno.EAGAIN and time.monotonic() < deadline:
        time.sleep(RETRY_SECONDS)
    if code:
        raise OSError(code, os.strerror(code))
    connection.setblocking(True)


def _who_may(path: Path) -> str:
    """Say which users may connect, from the mode of the path, or of its directory if that is
    closed."""
    seen = path if os.access(path.parent, os.X_OK) else path.parent
    try:
        if seen.stat().st_mode & stat.S_IRWXG:
            return f"only members of the group {seen.group()}, from their next login on,"
        return f"only {seen.owner()}"
    except (OSError, KeyError):
        return "only others"


def _check_server(connection: socket.socket, path: Path) -> None:
    """Check which user listens: in a directory for all users, such as /tmp, any user could.

    The owner of the directory is trusted, too, since in a container both may have another number
    than outside. But the owner proves nothing if all users may make directories, as below /tmp.
    """
    _, server = other_end(connection)
    trusted = {0, os.getuid()}
    if not _may_be_anybodys(path.parent):
        trusted.add(path.parent.stat().st_uid)
    if server not in trusted:
        raise BrokerUnavailable(
            f"the process that listens on {path} (user id {server}) belongs neither to this user"
            " nor to the owner of the directory, and is told nothing: set JUPYTER_GPUSHARE_SOCKET"
            " to another path"
        )


def _may_be_anybodys(directory: Path) -> bool:
    """Whether all users may put directories, or links to some, into the path."""
    above = {*directory.absolute().parents, *directory.resolve().parents}
    return any(place.stat().st_mode & stat.S_IWOTH for place in above)


def other_end(connection: socket.socket) -> tuple[int, int]:
    """Return process and user of the other end, as the kernel tells them."""
    size = struct.calcsize("3i")
    pid, uid, _ = struct.unpack(
        "3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
    )
    return pid, uid


def _start_and_connect(path: Path, settings: Settings, program: Program = BROKER) -> socket.socket:
    make_directory(path.parent, is_shared(settings))
    if path.is_dir():  # no broker removes a directory
        raise is_in_the_way(path, os.strerror(errno.EISDIR))
    deadline = time.monotonic() + settings.start_seconds
    timeout = settings.start_seconds / 2  # of one client, or broker, that may be stopped
    start_lock = StartLock(path, timeout)
    while time.monotonic() < deadline:
        with start_lock.tried() as is_chosen:
            if (connection := try_connect(path)) is not None:
                return connection
            if is_chosen:
                started = launch(path, settings, program)
                until = min(deadline, time.monotonic() + timeout)
                if (connection := _await(path, until, started)) is not None:
                    return connection
        time.sleep(RETRY_SECONDS)
    raise BrokerUnavailable(
        f"no {program.name} answered on {path} within {settings.start_seconds:g} s;"
        f" the last words of its log {log_path(path)}: {_last_words(log_path(path))}"
    )


def _last_words(log: Path) -> str:
    try:
        return log.read_text(errors="replace").strip().rpartition("\n")[2] or "(empty)"
    except OSError as error:
        return f"({error.strerror})"


def _await(path: Path, deadline: float, process: int) -> socket.socket | None:
    """Return the connection to a broker that is starting; None at the deadline, or when the broker
    has ended. On a busy machine a broker takes many seconds to start."""
    least = time.monotonic() + STARTING_SECONDS
    while (now := time.monotonic()) < deadline and (now < least or not has_ended(process)):
        if (connection := try_connect(path)) is not None:
            return connection
        time.sleep(RETRY_SECONDS)
    return None


def has_ended(process: int) -> bool:
    """Whether the process with this id has ended, even if no parent has reaped it yet."""
    import psutil  # only where a broker is slow to start

    try:
        return bool(psutil.Process(process).status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True


class StartLock:
    """The lock of the client that may start a broker now; sixty kernels may try at once.

    A process that is stopped while it has the lock (SIGSTOP, a debugger, a frozen cgroup) must not
    keep other clients from a broker. So a client removes a file that stays locked for `timeout`
    seconds, and the next try makes another one. Two clients may then both have a lock and start a
    broker each: the broker's own lock lets one of them run.
    """

    def __init__(self, path: Path, timeout: float) -> None:
        self._socket = path
        self._path = path.with_suffix(".start")
        self._timeout = timeout
        self._locked_file = 0  # its inode
        self._locked_since = 0.0

    @contextmanager
    def tried(self) -> Iterator[bool]:
        """Yield whether the lock is this client's until the end of the block."""
        with os.fdopen(self._open()) as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                self._saw_locked(os.fstat(lock.fileno()).st_ino, time.monotonic())
                yield False
            else:
                yield True

    def _open(self) -> int:
        try:
            return open_own(self._path)
        except BrokerUnavailable as error:
            raise BrokerUnavailable(
                f"no broker answers on {self._socket}, and none can be started there: {error}"
            ) from None

    def _saw_locked(self, file: int, now: float) -> None:
        if file != self._locked_file:
            self._locked_file, self._locked_since = file, now
        elif now - self._locked_since > self._timeout:
            self._path.unlink(missing_ok=True)


def is_shared(settings: Settings) -> bool:
    """Whether users other than the one that runs the broker may connect."""
    return bool(int(settings.socket_mode, 8) & 0o077)


def make_directory(directory: Path, is_shared: bool = False) -> None:
    """Make the socket's directory, for this user alone unless others are to connect. Refuse a
    directory in which others could put a socket of theirs."""
    mode = 0o755 if is_shared else 0o700
    try:
        if not directory.is_dir():
            directory.mkdir(mode, parents=True, exist_ok=True)
            directory.chmod(mode)  # whatever the umask
        status = directory.stat()
    except OSError as error:
        raise BrokerUnavailable(
            f"the directory {directory} cannot be made: {error.strerror}"
        ) from None
    if status.st_uid not in (0, os.getuid()):
        raise BrokerUnavailable(
            f"the directory {directory} belongs to another user:"
            " set JUPYTER_GPUSHARE_SOCKET to a path in a directory of yours"
        )
    if is_shared and status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise BrokerUnavailable(
            f"others may write to {directory}, and could put a socket of theirs in the place of the"
            f" one that is for all: `chmod go-w {directory}` mends it, or a directory of its own"
        )
    if status.st_mode & stat.S_IWOTH and not status.st_mode & stat.S_ISVTX:
        raise BrokerUnavailable(
            f"everybody may write to {directory}: `chmod o-w {directory}` mends it"
        )


def open_own(path: Path, flags: int = 0) -> int:
    """Open a file that only this user has. A link could empty a file of another user; in a
    directory for all, a stranger could make the file first, and then hold its lock or fill it."""
    try:
        flags |= os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
        descriptor = os.open(path, flags, 0o600)
    except OSError as error:
        raise BrokerUnavailable(f"{path} cannot be opened: {error.strerror}") from None
    if (owner := os.fstat(descriptor).st_uid) != os.getuid():
        os.close(descriptor)
        raise BrokerUnavailable(
            f"{path} belongs to another user (user id {owner}): set JUPYTER_GPUSHARE_SOCKET to a"
            " path in a directory of yours"
        )
    return descriptor


def launch(path: Path, settings: Settings, program: Program = BROKER) -> int:
    """Start a program that outlives us, with its own session, no parent and none of our
    descriptors. Return its process id.

    The shell puts it in the background and ends, so that it is no process's child and no zombie of
    a kernel. The working directory is / so that no file of the user shadows a module. The program
    gets neither secrets of the environment nor the variables that make us part of a job.
    """
    command = [sys.executable, "-m", program.module]
    ours = {**as_environment(settings), program.variable: str(path)}
    environment = {name: os.environ[name] for name in os.environ if is_passed(name)}
    with open(open_own(log_path(path), os.O_APPEND), "ab") as log:
        shell = subprocess.run(
            ["/bin/sh", "-c", '"$@" </dev/null >&2 & echo $!', "sh", *command],
            cwd="/",
            env=environment | ours,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            start_new_session=True,
            check=True,
        )
    return int(shell.stdout)


def is_passed(name: str) -> bool:
    """Whether a program that outlives us has this variable, too."""
    return not (SECRET.search(name) or OF_A_JOB.fullmatch(name))


def log_path(path: Path) -> Path:
    """Return where a program that was started on demand writes its log."""
    return path.with_suffix(".log")
