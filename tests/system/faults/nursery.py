"""Forks processes in which the modules in its arguments are imported already. It is a script whose
standard input is a socket. For each program that comes with a socket, a child runs the program with
that socket as input and output.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import socket
import sys
import traceback
from typing import NoReturn

import privileges

MAX_PROGRAM_BYTES = 1 << 16


def main() -> None:
    while len(sys.argv) > 1:
        importlib.import_module(sys.argv.pop(1))
    privileges.give_up_for_good()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # no child stays a zombie
    control = socket.socket(fileno=0)
    while True:
        birth, descriptors, _, _ = socket.recv_fds(control, MAX_PROGRAM_BYTES, 1)
        if not birth:
            return
        if os.fork() == 0:
            control.detach()
            live(descriptors[0], **json.loads(birth))
        os.close(descriptors[0])


def live(stream: int, environment: dict[str, str] | None, program: str) -> NoReturn:
    os.setsid()  # as each kernel of a Jupyter server
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.dup2(stream, 0)
    os.dup2(stream, 1)
    os.close(stream)
    if environment is not None:
        os.environ.clear()
        os.environ.update(environment)
    try:
        exec(compile(program, "party", "exec"), {"__name__": "__main__"})
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(0)


if __name__ == "__main__":
    main()
