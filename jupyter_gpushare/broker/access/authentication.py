"""Who a connection is, before it may say anything else."""

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

GUESSES = 20  # wrong or unanswered ones of a process in a window
QUESTIONS_AT_ONCE = 40  # about tokens of one Unix user that were not right
QUESTIONS_A_SECOND = 10.0  # more of them
MOST_WAITING = 400  # tokens of a Unix user that are to be asked about
WINDOW_SECONDS = 60.0
MOST_GUESSERS = 1000


class _Guesser(NamedTuple):
    wrong: int
    until: float


class Guesses:
    """How many wrong tokens a process has shown of late. Times are seconds.

    Nobody finds a token by trying; but whoever tries makes the hub work. Where processes cannot be
    seen, as those of other containers, their pace alone is limited: a limit of all of them
    together would let one keep the others out.
    """

    def __init__(self) -> None:
        self._of: OrderedDict[tuple[int, int], _Guesser] = OrderedDict()

    def begin(self, peer: Peer, now: float) -> None:
        """It counts as wrong until it turns out to be right. Raises LimitExceeded."""
        if not peer.pid:
            return
        who = (peer.uid, peer.pid)
        guesser = self._of.get(who)
        if guesser is None or now >= guesser.until:
            guesser = _Guesser(0, now + WINDOW_SECONDS)
        if guesser.wrong >= GUESSES:
            raise LimitExceeded(
                f"too many wrong tokens came from this process: wait for {WINDOW_SECONDS:g} s"
            )
        self._of[who] = guesser._replace(wrong=guesser.wrong + 1)
        if len(self._of) > MOST_GUESSERS:
            self._of.popitem(last=False)

    def was_none(self, peer: Peer) -> None:
        """It was right, or nobody could say."""
        who = (peer.uid, peer.pid)
        if (guesser := self._of.get(who)) is not None:
            self._of[who] = guesser._replace(wrong=max(0, guesser.wrong - 1))


class Pace:
    """How fast the hub is asked about tokens of one Unix user, however many processes show them.
    Right ones cost nothing. Times are monotonic seconds."""

    def __init__(self) -> None:
        self.waiting = 0
        self._saved, self._since = float(QUESTIONS_AT_ONCE), 0.0

    def take(self, now: float) -> bool:
        """Whether one may be asked about now."""
        saved = self._saved + QUESTIONS_A_SECOND * (now - self._since)
        self._saved, self._since = min(float(QUESTIONS_AT_ONCE), saved), now
        may = self._saved >= 1.0
        self._saved -= may
        return may

    def give_back(self) -> None:
        self._saved += 1.0

    async def wait(self) -> None:
        """Who is next is chance, so nobody waits for all who came before. Raises LimitExceeded."""
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


class Door:
    """Where users are a hub's: lets in who shows a token of it, or a ticket."""

    def __init__(self, settings: Settings, tickets: Tickets) -> None:
        self._hub = Hub(settings)
        self._tickets = tickets
        self._guesses = Guesses()
        self._paces: defaultdict[int, Pace] = defaultdict(Pace)  # by Unix user

    async def identify(self, peer: Peer, hello: Hello, now: float) -> Identity:
        """Raises NotPermitted, LimitExceeded, or BrokerUnavailable while the hub is away."""
        if not hello.token:  # which makes nobody work, and is too long to be guessed
            peer.voucher = giver = self._tickets.use(hello.ticket, now)
            return Identity(giver.user, giver.groups, giver.is_owner)
        if self._hub.knows(hello.token):
            return await self._hub.identify(hello.token)
        self._guesses.begin(peer, now)
        try:
            identity = await self._asked(peer, hello.token)
        except NotPermitted:
            raise
        except BaseException:  # nobody could say
            self._guesses.was_none(peer)
            raise
        self._guesses.was_none(peer)
        return identity

    async def _asked(self, peer: Peer, token: str) -> Identity:
        pace = self._paces[peer.uid]
        await pace.wait()
        identity = await self._hub.identify(token)
        pace.give_back()
        return identity
