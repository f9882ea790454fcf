"""A hand for each user with jobs. The hand of the service's own user is in this process; that of
another user is a program that runs as this user."""

from __future__ import annotations

import contextlib
import functools
import os
import pwd
import select
import shlex
import subprocess
import sysconfig
import time
from collections.abc import Collection, Sequence
from pathlib import Path
from threading import Lock
from typing import Any, Protocol

import msgspec

from ...errors import UNREADABLE, InvalidValue
from ..launch.facts import Facts
from ..launch.generation import Word
from .command import Ran
from .hand import ERRORS, VERBS, Hand, HandAnswer

PROGRAM = Path(sysconfig.get_path("scripts")) / "jupyter-gpushare-hand"
ANSWER_SECONDS = 9.0
MOST_BYTES = 4 << 20  # in an answer
USER = "{user}"


class UserHand(Protocol):
    """The verbs of `Hand`, as a certain user."""

    def check(self, directory: str) -> None: ...
    def open(self, directory: str, number: int, word: Word) -> None: ...
    def look(
        self, directory: str, number: int, nodes: Sequence[str], silent_seconds: float
    ) -> Facts: ...
    def close(self, directory: str, number: int, nodes: Sequence[str]) -> Facts: ...
    def forget(self, directory: str) -> None: ...
    def run(self, command: Sequence[str], given: str = "") -> Ran: ...


@functools.cache
def own_user() -> str:
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())


def has_all_rights(user: str) -> bool:
    """Whether the user may see and cancel the jobs of all users: root, and the user that runs the
    service."""
    return user in (own_user(), "root")


class Hands:
    """`as_user` is the command that runs a program as `{user}`; if it is empty, there is only one
    user."""

    def __init__(self, as_user: Sequence[str] = ()) -> None:
        self._as_user = as_user
        self._own = Hand()
        self._others: dict[str, OtherHand] = {}
        self._lock = Lock()  # the engine asks in another thread

    @property
    def are_many(self) -> bool:
        return bool(self._as_user)

    def of(self, user: str) -> UserHand:
        """Return the hand of a user; "" is the service's own user."""
        if not self._as_user or user in ("", own_user()):
            return self._own
        with self._lock:
            if user not in self._others:
                command = [word.replace(USER, user) for word in self._as_user]
                self._others[user] = OtherHand([*command, str(PROGRAM)], user)
            return self._others[user]

    def keep(self, users: Collection[str]) -> None:
        """End the programs of all users but these, except for programs that do not answer now."""
        with self._lock:
            for user in self._others.keys() - {*users}:
                if self._others[user].has_ended():
                    del self._others[user]

    def end(self) -> None:
        with self._lock:
            while self._others:
                self._others.popitem()[1].end()


def words_of(text: str) -> list[str]:
    """Return the words of a command like ``sudo -n -u {user}``. Raises InvalidValue."""
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise InvalidValue(f"`cluster_as_user` is no command: {error}") from None
    if words and not any(USER in word for word in words):
        raise InvalidValue(
            f"`cluster_as_user` says where the name of a user stands, like `sudo -n -u {USER}`, and"
            f" {text!r} does not"
        )
    return words


class OtherHand:
    """The program of another user. The first question starts it, and so does the first one after it
    has ended. A program that does not answer in time gets no more questions and ends; no second one
    is started beside it."""

    def __init__(self, command: Sequence[str], user: str) -> None:
        self._command, self._user = command, user
        self._process: subprocess.Popen[bytes] | None = None
        self._is_stuck = False
        self._lock = Lock()

    def check(self, directory: str) -> None:
        self._ask("check", directory)

    def open(self, directory: str, number: int, word: Word) -> None:
        self._ask("open", directory, number, word)

    def look(
        self, directory: str, number: int, nodes: Sequence[str], silent_seconds: float
    ) -> Facts:
        facts: Facts = self._ask("look", directory, number, nodes, silent_seconds)
        return facts

    def close(self, directory: str, number: int, nodes: Sequence[str]) -> Facts:
        facts: Facts = self._ask("close", directory, number, nodes)
        return facts

    def forget(self, directory: str) -> None:
        self._ask("forget", directory)

    def run(self, command: Sequence[str], given: str = "") -> Ran:
        ran: Ran = self._ask("run", command, given)
        return ran

    def end(self) -> None:
        """End the program, by closing its standard input."""
        with self._lock:
            if self._process is not None:
                self._leave(self._process)

    def has_ended(self) -> bool:
        """End the program, and return whether it has ended. A busy or stuck program is left alone:
        waiting for it would block all users."""
        if not self._lock.acquire(blocking=False):
            return False
        try:
            if (process := self._process) is None:
                return True
            if self._is_stuck and process.poll() is None:
                return False
            self._leave(process)
            return True
        finally:
            self._lock.release()

    def _ask(self, verb: str, *arguments: Any) -> Any:
        """Ask, and return the answer. Raises only OSError, and for `check` InvalidValue: any other
        error would end the service."""
        question = msgspec.json.encode({"verb": verb, "arguments": arguments}) + b"\n"
        with self._lock:
            line = self._answer_to(question)
        try:
            answer = msgspec.json.decode(line, type=HandAnswer)
            if not answer.error:
                return msgspec.json.decode(answer.value, type=VERBS[verb][1])
        except UNREADABLE:
            raise OSError(f"what runs as {self._user} does not answer what was asked") from None
        kind = ERRORS.get(answer.error, OSError)
        raise (kind if verb == "check" or issubclass(kind, OSError) else OSError)(answer.said)

    def _answer_to(self, question: bytes) -> bytes:
        process = self._running()
        assert process.stdin is not None
        try:
            process.stdin.write(question)
            process.stdin.flush()
            return self._line(process, time.monotonic() + ANSWER_SECONDS)
        except TimeoutError:
            self._is_stuck = True
            with contextlib.suppress(OSError):
                process.stdin.close()  # so that it ends when it continues
            raise
        except OSError:
            raise OSError(f"nothing can be done as {self._user}: {self._last_words()}") from None

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is not None and self._process.poll() is None:
            if self._is_stuck:
                raise TimeoutError(f"what runs as {self._user} has not answered yet")
            return self._process
        self._is_stuck = False
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(
            self._command, cwd="/", stdin=pipe, stdout=pipe, stderr=pipe, start_new_session=True
        )
        return self._process

    def _line(self, process: subprocess.Popen[bytes], until: float) -> bytes:
        assert process.stdout is not None
        line = b""
        while not line.endswith(b"\n"):
            left = until - time.monotonic()
            there, _, _ = select.select([process.stdout], [], [], max(0.0, left))
            if len(line) > MOST_BYTES or not there:
                raise TimeoutError(f"what runs as {self._user} has not answered")
            if not (data := os.read(process.stdout.fileno(), 1 << 16)):
                raise OSError("it has ended")
            line += data
        return line

    def _last_words(self) -> str:
        """Return the last output of a program that has ended; sudo says why it starts nothing."""
        assert self._process is not None
        process, self._process = self._process, None
        assert process.stdin is not None
        with contextlib.suppress(OSError):
            process.stdin.close()
        process.stdin = None
        try:
            said = process.communicate(timeout=1.0)[1].decode(errors="replace").strip()
        except (subprocess.TimeoutExpired, ValueError):
            said = ""
        return said.rpartition("\n")[2] or f"{self._command[0]} has ended"

    def _leave(self, process: subprocess.Popen[bytes]) -> None:
        self._process = None
        for pipe in (process.stdin, process.stdout, process.stderr):
            assert pipe is not None
            with contextlib.suppress(OSError):
                pipe.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(1.0)
