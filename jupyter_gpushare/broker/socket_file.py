"""The file of the broker's socket, and the lock beside it that only one broker has."""

from __future__ import annotations

import fcntl
import grp
import os
import socket
from pathlib import Path
from typing import IO

from ..errors import BrokerUnavailable, GpuShareError, InvalidValue
from ..settings import Settings


class AlreadyRunning(GpuShareError):
    """Another broker owns this socket."""

    code = "already_running"


class SocketFile:
    """The file that a broker has just made at `path`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._number = path.stat().st_ino

    def is_there(self) -> bool:
        """Whether it is this one still; where that cannot be seen, it has not been taken away."""
        try:
            return self.path.stat().st_ino == self._number
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError:
            return True

    def remove(self) -> None:
        """Never the file of a broker that came afterwards."""
        if self.is_there():
            self.path.unlink(missing_ok=True)


def open_lock(path: Path) -> IO[str]:
    """For nobody else, who could take the lock as well; and no link to a file of somebody's, which
    would be emptied."""
    try:
        return open(
            path, "a+", opener=lambda name, flags: os.open(name, flags | os.O_NOFOLLOW, 0o600)
        )
    except OSError as error:
        raise BrokerUnavailable(f"the lock {path} cannot be opened: {error.strerror}") from None


def own_socket(lock: IO[str], path: Path) -> bool:
    """Take the lock for this process's life; True if the last owner may have left sessions."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise AlreadyRunning(f"a broker runs on {path} already") from None
    lock.seek(0)
    was_in_use = bool(lock.read())
    lock.truncate(0)
    lock.write(f"{os.getpid()}\n")
    lock.flush()
    return was_in_use


def listen(path: Path, settings: Settings) -> socket.socket:
    """Under the lock a socket file that lies there is a dead broker's.

    Nobody can connect before it listens, and by then it has its group and mode.
    """
    path.unlink(missing_ok=True)
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
            f"the socket cannot be given to the group {group}: whoever runs the broker is not in it"
        ) from None
