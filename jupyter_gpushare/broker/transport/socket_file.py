"""The file of the broker's socket, and the lock beside it that only one broker has."""

from __future__ import annotations

import contextlib
import fcntl
import grp
import os
import socket
import time
from pathlib import Path
from typing import IO

from ...errors import GpuShareError, InvalidValue
from ...settings import Settings
from ...wire.launch import (
    RETRY_SECONDS,
    is_in_the_way,
    is_shared,
    make_directory,
    open_own,
    try_connect,
)
from ..admin.live_changes import LiveChanges
from ..grants.recovery import RecoveryJournal

ENDING_SECONDS = 2.0  # an unreachable broker ends within this time


class AlreadyRunning(GpuShareError):
    """Another broker owns this socket."""

    code = "already_running"


class SocketFile:
    """The file that a broker has just made at `path`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._number = path.stat().st_ino

    def is_there(self) -> bool:
        """Whether the path still is this file. If the path cannot be examined, the answer is
        yes."""
        try:
            return self.path.stat().st_ino == self._number
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError:
            return True

    def remove(self) -> None:
        """Remove the file, unless it is that of a later broker."""
        if self.is_there():
            self.path.unlink(missing_ok=True)


def open_lock(path: Path) -> IO[str]:
    """Open the lock for this user alone: other users could take it as well. Its content is not
    trusted."""
    return open(open_own(path), "r+", errors="replace")


def own_socket(lock: IO[str], path: Path) -> bool:
    """Take the lock for the life of this process. Return whether the last owner may have left
    sessions.

    A broker that has the lock and does not answer is about to end or to listen, so this waits for
    it.
    """
    deadline = time.monotonic() + ENDING_SECONDS
    while not _is_taken(lock):
        if _is_answered(path) or time.monotonic() > deadline:
            raise AlreadyRunning(f"a broker runs on {path} already")
        time.sleep(RETRY_SECONDS)
    lock.seek(0)
    was_in_use = bool(lock.read())
    _sign(lock)
    return was_in_use


def leave_word(
    path: Path, settings: Settings, journal: RecoveryJournal, changes: LiveChanges
) -> None:
    """Tell the next broker that this one had sessions, although the lock has gone with its
    directory. A new lock file says so. The directory may be missing, or the next broker may have
    the lock already."""
    with contextlib.suppress(GpuShareError, OSError):
        make_directory(path.parent, is_shared(settings))
        with open_lock(path.with_suffix(".lock")) as lock:
            if _is_taken(lock):
                _sign(lock)
                with open_journal(path) as file:
                    journal.copy_to(file.fileno())
                changes.write()


def open_journal(path: Path) -> IO[bytes]:
    """Open the recovery journal of the broker at this socket, to be read and written by its
    descriptor."""
    return open(open_own(path.with_suffix(".turns")), "rb")


def _is_taken(lock: IO[str]) -> bool:
    """Take the lock if no process has it; return whether it is ours now."""
    with contextlib.suppress(BlockingIOError):
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    return False


def _is_answered(path: Path) -> bool:
    if (connection := try_connect(path)) is not None:
        connection.close()
    return connection is not None


def _sign(lock: IO[str]) -> None:
    """Replace the content. The lock is never empty meanwhile: if this process ends here, the next
    broker must still know of sessions."""
    os.truncate(lock.fileno(), os.pwrite(lock.fileno(), f"{os.getpid()}\n".encode(), 0))


def listen(path: Path, settings: Settings) -> socket.socket:
    """Listen on the path. The caller has the lock, so an existing socket file is a dead broker's.

    The socket gets its group and mode before it listens, so no client connects earlier.
    """
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise is_in_the_way(path, error.strerror or str(error)) from None
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    mask = os.umask(0o177)
    try:
        listener.bind(os.fspath(path))
    finally:
        os.umask(mask)
    try:
        if settings.socket_group:
            _give_to_group(path, settings.socket_group)
        path.chmod(int(settings.socket_mode, 8))
    except BaseException:
        path.unlink()
        raise
    listener.setblocking(False)
    return listener


def _give_to_group(path: Path, group: str) -> None:
    try:
        os.chown(path, -1, grp.getgrnam(group).gr_gid)
    except KeyError:
        raise InvalidValue(f"there is no Unix group {group!r} (setting socket_group)") from None
    except PermissionError:
        raise InvalidValue(
            f"the socket cannot be given to the group {group}: the user of the broker is not in it"
        ) from None
