"""One-time tokens that Jupyter servers have issued: each opens one connection, within its life."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from typing import NamedTuple

from ...errors import InvalidValue, LimitExceeded, NotPermitted
from ..peer import Peer

LIFE_SECONDS = 60.0
MOST_OF_A_USER = 1000  # unused tokens, of all servers and programs of the user
DIGEST = re.compile(r"[0-9a-f]{64}")


class _Ticket(NamedTuple):
    giver: Peer
    ends: float


class Tickets:
    """Owns the digests of the one-time tokens that are valid: a digest opens nothing."""

    def __init__(self) -> None:
        self._valid: dict[str, _Ticket] = {}
        self._of: Counter[str] = Counter()  # by user: counting them at each new one is slow

    def add(self, digest: str, giver: Peer, now: float) -> None:
        """Add the digest of a token. Raises NotPermitted, InvalidValue or LimitExceeded."""
        if not giver.may_issue_tokens:
            raise NotPermitted(
                "only a Jupyter server that has shown the token of its hub may add a ticket: the"
                " scope access:servers!server tells it from others, and belongs to the role server"
            )
        if not DIGEST.fullmatch(digest):
            raise InvalidValue("a ticket is added by the 64 hexadecimal digits of its digest")
        self._forget_old(now)
        if digest in self._valid:
            raise InvalidValue("this ticket has been added already")
        if self._of[giver.user] >= MOST_OF_A_USER:
            raise LimitExceeded(f"{MOST_OF_A_USER} tickets of a user may be unused at a time")
        self._valid[digest] = _Ticket(giver, now + LIFE_SECONDS)
        self._of[giver.user] += 1

    def use(self, ticket: str, now: float) -> Peer:
        """Use a one-time token up. Returns the connection of the server that issued it; the token
        stands for the user of that server. Raises NotPermitted."""
        self._forget_old(now)
        found = self._take(hashlib.sha256(ticket.encode()).hexdigest())
        if found is None:
            raise NotPermitted(
                "this ticket opens nothing: it has been used, it is older than"
                f" {LIFE_SECONDS:g} s, or the Jupyter server that gave it has gone"
            )
        return found.giver

    def forget(self, giver: Peer) -> None:
        """Forget the unused one-time tokens of a server that has disconnected."""
        if self._of[giver.user]:
            for digest in [digest for digest, one in self._valid.items() if one.giver is giver]:
                self._take(digest)

    def _forget_old(self, now: float) -> None:
        """Forget expired tokens; they expire in the order in which they were added."""
        while self._valid and (oldest := next(iter(self._valid.items())))[1].ends <= now:
            self._take(oldest[0])

    def _take(self, digest: str) -> _Ticket | None:
        found = self._valid.pop(digest, None)
        if found is not None:
            self._of[found.giver.user] -= 1
        return found
