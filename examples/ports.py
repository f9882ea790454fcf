"""Free ports of loopback, for servers whose port must be known before they start."""

from __future__ import annotations

import contextlib
import secrets
import socket

# Below `net.ipv4.ip_local_port_range`, unless a site has changed it. The system could give a port
# of that range to any socket, such as a kernel's, before the server listens.
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
