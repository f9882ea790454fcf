"""The credentials that this process shows a broker that serves the users of a JupyterHub.

A kernel, or a command line in a terminal of the hub, gets a one-time token (ticket) from its own
Jupyter server, which registers it at the broker. A process without such a server, but with a token
of the hub, shows the token.

The token goes only to the broker's Unix socket, never to a port: if this process outlived its
server, another process could listen on that port. A process requests tickets at a Unix socket whose
other end belongs to the same user, with a secret that has no other use.
"""

from __future__ import annotations

import os
import socket
import time

import msgspec

from ..errors import UNREADABLE, BrokerUnavailable, NotPermitted
from ..settings import PREFIX, Settings
from .launch import other_end
from .messages import Hello

TOKEN = "JUPYTERHUB_API_TOKEN"  # its name in the environment
# no setting, so a broker that we start does not get it
TICKET_SECRET = f"{PREFIX}TICKET_SECRET"
SERVER_SECONDS = 5.0  # a broker waits longer for a greeting
MAX_ANSWER_BYTES = 1 << 16


class Ticket(msgspec.Struct, frozen=True):
    """A credential that opens one connection to the broker, once and soon."""

    ticket: str

    def __repr__(self) -> str:
        return "Ticket()"


class _Refusal(msgspec.Struct):
    message: str = ""


def with_token(hello: Hello, settings: Settings) -> Hello:
    """Return `hello` with this process's token. Raises NotPermitted where it has none."""
    return msgspec.structs.replace(hello, token=_token())


def with_ticket(hello: Hello, settings: Settings) -> Hello:
    """Return `hello` with a new ticket. Raises BrokerUnavailable where the Jupyter server gives
    none."""
    if not settings.ticket_socket:
        return with_token(hello, settings)
    try:
        answer = _ask_server(settings.ticket_socket)
    except OSError as error:
        raise BrokerUnavailable(
            "the Jupyter server, which gives its kernels one-time tokens, does not answer:"
            f" {error.strerror or error}"
        ) from None
    return msgspec.structs.replace(hello, ticket=_ticket(answer))


def _ask_server(path: str) -> bytes:
    """Return the answer of the Jupyter server at this socket. Raises OSError, and
    BrokerUnavailable where the server belongs to another user, who is told nothing."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(SERVER_SECONDS)
        connection.connect(path)
        if (uid := other_end(connection)[1]) not in (0, os.getuid()):
            raise BrokerUnavailable(
                f"another user (user id {uid}) listens on {path} in the place of the Jupyter"
                " server, and is told nothing: restart the server"
            )
        connection.sendall(os.environ.get(TICKET_SECRET, "").encode() + b"\n")
        return _all_of(connection)


def _all_of(connection: socket.socket) -> bytes:
    answer, until = b"", time.monotonic() + SERVER_SECONDS
    while time.monotonic() < until and len(answer) < MAX_ANSWER_BYTES:
        if not (more := connection.recv(MAX_ANSWER_BYTES)):
            break
        answer += more
    return answer


def _ticket(answer: bytes) -> str:
    try:
        return msgspec.json.decode(answer, type=Ticket).ticket
    except UNREADABLE:
        raise BrokerUnavailable(
            f"the Jupyter server gives this process no one-time token: {_refusal(answer)}"
        ) from None


def _refusal(answer: bytes) -> str:
    try:
        return msgspec.json.decode(answer, type=_Refusal).message or "it does not say why"
    except UNREADABLE:
        return "its answer cannot be read"


def _token() -> str:
    if token := os.environ.get(TOKEN):
        return token
    raise NotPermitted(
        f"this broker serves a JupyterHub: set {TOKEN} to a token of yours, or use a notebook or a"
        " terminal of the hub"
    )
