"""What this process shows a broker that serves the users of a JupyterHub.

A kernel, or a command line in a terminal of the hub, gets a ticket from its own Jupyter server,
which vouches for it at the broker. Who has no such server but a token of the hub shows the token.
"""

from __future__ import annotations

import os

import msgspec

from . import web
from .errors import UNREADABLE, BrokerUnavailable, NotPermitted
from .protocol import Hello
from .settings import Settings

TOKEN = "JUPYTERHUB_API_TOKEN"  # its name in the environment
SERVER_SECONDS = 5.0  # a broker waits longer for a greeting


class Ticket(msgspec.Struct, frozen=True):
    """Opens one connection to the broker, once and soon."""

    ticket: str

    def __repr__(self) -> str:
        return "Ticket()"


class _Refusal(msgspec.Struct):
    message: str = ""


def with_token(hello: Hello, settings: Settings) -> Hello:
    """`hello` with this process's token. Raises NotPermitted where it has none."""
    return msgspec.structs.replace(hello, token=_token())


def with_ticket(hello: Hello, settings: Settings) -> Hello:
    """`hello` with a new ticket. Raises BrokerUnavailable where the Jupyter server gives none."""
    if not settings.ticket_url:
        return with_token(hello, settings)
    try:
        answer = web.ask("POST", settings.ticket_url, _token(), SERVER_SECONDS)
    except OSError as error:
        raise BrokerUnavailable(
            "the Jupyter server, which vouches for its kernels, does not answer:"
            f" {error.strerror or error}"
        ) from None
    return msgspec.structs.replace(hello, ticket=_ticket(answer))


def _ticket(answer: web.Answer) -> str:
    try:
        if answer.status == 200:
            return msgspec.json.decode(answer.body, type=Ticket).ticket
        why = msgspec.json.decode(answer.body, type=_Refusal).message
    except UNREADABLE:
        why = ""
    raise BrokerUnavailable(
        f"the Jupyter server does not vouch for this process: {why or f'status {answer.status}'}"
    )


def _token() -> str:
    if token := os.environ.get(TOKEN):
        return token
    raise NotPermitted(
        f"this broker serves a JupyterHub: set {TOKEN} to a token of yours, or use a notebook or a"
        " terminal of the hub"
    )
