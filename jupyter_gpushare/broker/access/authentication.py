"""Authentication: finds the user of a connection before any other message is handled."""

from __future__ import annotations

import asyncio
import random
import time
from collections import OrderedDict, defaultdict
from typing import NamedTuple

from ...errors import LimitExceeded, NotPermitted
from ...settings import Settings
from ...wire.messages import Hello
from ..peer import Peer
from .identity import Identity
from .jupyterhub import Hub
from .tickets import Tickets

MOST_FAILED = 20  # wrong tokens, or tokens still being checked, of a process in a window
QUESTIONS_AT_ONCE = 40  # burst of questions to the hub about wrong tokens of one Unix user
QUESTIONS_A_SECOND = 10.0  # the rate after that burst
MOST_WAITING = 400  # tokens of a Unix user that wait for a question to the hub
WINDOW_SECONDS = 60.0
MOST_PROCESSES = 1000


class _Attempts(NamedTuple):
    wrong: int
    until: float


class FailedAttempts:
    """Counts the wrong tokens of each process in the last window. A refused token counts once while
    the hub's answer about it is cached. Times are seconds.

    A token cannot be found by trying, but each attempt costs the hub work. Invisible processes,
    such as those of other containers, have only a rate limit: a common count would let one of them
    lock the others out.
    """

    def __init__(self) -> None:
        self._of: OrderedDict[tuple[int, int], _Attempts] = OrderedDict()

    def begin(self, peer: Peer, now: float) -> None:
        """Count an attempt, which is wrong until it turns out to be right. Raises LimitExceeded."""
        if not peer.pid:
            return
        who = (peer.uid, peer.pid)
        attempts = self._of.get(who)
        if attempts is None or now >= attempts.until:
            attempts = _Attempts(0, now + WINDOW_SECONDS)
        if attempts.wrong >= MOST_FAILED:
            raise LimitExceeded(
                f"too many wrong tokens came from this process: wait for {WINDOW_SECONDS:g} s"
            )
        self._of[who] = attempts._replace(wrong=attempts.wrong + 1)
        if len(self._of) > MOST_PROCESSES:
            self._of.popitem(last=False)

    def was_none(self, peer: Peer) -> None:
        """Discount an attempt: the token was right, or the hub did not answer."""
        who = (peer.uid, peer.pid)
        if (attempts := self._of.get(who)) is not None:
            self._of[who] = attempts._replace(wrong=max(0, attempts.wrong - 1))


class HubRate:
    """Limits the rate of questions to the hub about the tokens of one Unix user, however many
    processes show these tokens. Right tokens cost nothing. Times are monotonic seconds."""

    def __init__(self) -> None:
        self.waiting = 0
        self._saved, self._since = float(QUESTIONS_AT_ONCE), 0.0

    def take(self, now: float) -> bool:
        """Take permission to ask about one token now. Returns whether it was available."""
        saved = self._saved + QUESTIONS_A_SECOND * (now - self._since)
        self._saved, self._since = min(float(QUESTIONS_AT_ONCE), saved), now
        may = self._saved >= 1.0
        self._saved -= may
        return may

    def give_back(self) -> None:
        self._saved += 1.0

    async def wait(self) -> None:
        """Wait until the rate allows a question. The waiting time is random, so that a token need
        not wait for all earlier ones. Raises LimitExceeded."""
        if self.waiting >= MOST_WAITING:
            raise LimitExceeded(
                f"{MOST_WAITING} tokens of this Unix user wait for JupyterHub's word: try again"
            )
        self.waiting += 1
        try:
            while not self.take(time.monotonic()):
                await asyncio.sleep(random.uniform(0.0, self.waiting / QUESTIONS_A_SECOND))
        finally:
            self.waiting -= 1


class Authentication:
    """Authenticates users of a hub: clients show a token of the hub, or a one-time token."""

    def __init__(self, settings: Settings, tickets: Tickets) -> None:
        self._hub = Hub(settings)
        self._tickets = tickets
        self._failed = FailedAttempts()
        self._rates: defaultdict[int, HubRate] = defaultdict(HubRate)  # by uid

    async def identify(self, peer: Peer, hello: Hello, now: float) -> Identity:
        """Return the user of a connection. Raises NotPermitted, LimitExceeded, or BrokerUnavailable
        while the hub does not answer."""
        if (
            not hello.token
        ):  # a one-time token: its check is free, and it is too long to be found by trying
            peer.issuer = giver = self._tickets.use(hello.ticket, now)
            return Identity(giver.user, giver.groups, giver.is_owner)
        if self._hub.knows(hello.token):
            return await self._hub.identify(hello.token)
        self._hub.check_refused(hello.token)  # one program may show the tokens of many users
        self._failed.begin(peer, now)
        try:
            identity = await self._asked(peer, hello.token)
        except NotPermitted:
            raise
        except BaseException:  # the hub did not answer
            self._failed.was_none(peer)
            raise
        self._failed.was_none(peer)
        return identity

    async def _asked(self, peer: Peer, token: str) -> Identity:
        rate = self._rates[peer.uid]
        await rate.wait()
        identity = await self._hub.identify(token)
        rate.give_back()
        return identity
