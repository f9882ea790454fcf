"""Ports of loopback for servers that are told theirs before they start."""

from __future__ import annotations

import contextlib
import secrets
import socket

# The system gives no port of this range to a socket that asks for any, as a kernel's does: it could
# take the port before the server listens.
PORTS = range(20_000, 32_768)


def free_ports(count: int) -> list[int]:
    """Return different ports on which no process listens at this moment."""
    ports: list[int] = []
    with contextlib.ExitStack() as stack:
        while len(ports) < count:
            port = secrets.choice(PORTS)
            with contextlib.suppress(OSError):  # another process has it
                stack.enter_context(socket.create_server(("127.0.0.1", port)))
                ports.append(port)
    return ports
