"""Who a connection is, before it may say anything else."""

from __future__ import annotations

from collections import OrderedDict
from typing import NamedTuple

from ..errors import LimitExceeded, NotPermitted
from ..protocol import Hello
from ..settings import Settings
from .hub import Hub
from .identity import Identity
from .peer import Peer
from .tickets import Tickets

GUESSES = 20  # wrong or unanswered ones of a process in a window
GUESSES_OF_UNSEEN = 400  # of all processes together whose ids cannot be seen
WINDOW_SECONDS = 60.0
MOST_GUESSERS = 1000


class _Guesser(NamedTuple):
    wrong: int
    until: float


class Guesses:
    """How many wrong tokens and tickets a process has shown of late. Times are seconds.

    Nobody finds a token by trying; but whoever tries makes the hub work.
    """

    def __init__(self) -> None:
        self._of: OrderedDict[tuple[int, int], _Guesser] = OrderedDict()

    def begin(self, peer: Peer, now: float) -> None:
        """It counts as wrong until it turns out to be right. Raises LimitExceeded."""
        who = (peer.uid, peer.pid)
        guesser = self._of.get(who)
        if guesser is None or now >= guesser.until:
            guesser = _Guesser(0, now + WINDOW_SECONDS)
        if guesser.wrong >= (GUESSES if peer.pid else GUESSES_OF_UNSEEN):
            raise LimitExceeded(
                "too many wrong tokens or tickets came from this process:"
                f" wait for {WINDOW_SECONDS:g} s"
            )
        self._of[who] = guesser._replace(wrong=guesser.wrong + 1)
        if len(self._of) > MOST_GUESSERS:
            self._of.popitem(last=False)

    def was_none(self, peer: Peer) -> None:
        """It was right, or nobody could say."""
        who = (peer.uid, peer.pid)
        if (guesser := self._of.get(who)) is not None:
            self._of[who] = guesser._replace(wrong=max(0, guesser.wrong - 1))


class Door:
    """Where users are a hub's: lets in who shows a token of it, or a ticket."""

    def __init__(self, settings: Settings, tickets: Tickets) -> None:
        self._hub = Hub(settings)
        self._tickets = tickets
        self._guesses = Guesses()

    async def identify(self, peer: Peer, hello: Hello, now: float) -> Identity:
        """Raises NotPermitted, LimitExceeded, or BrokerUnavailable while the hub is away."""
        if hello.token and self._hub.knows(hello.token):
            return await self._hub.identify(hello.token)
        self._guesses.begin(peer, now)
        try:
            identity = await self._shown(peer, hello, now)
        except NotPermitted:
            raise
        except BaseException:  # nobody could say
            self._guesses.was_none(peer)
            raise
        self._guesses.was_none(peer)
        return identity

    async def _shown(self, peer: Peer, hello: Hello, now: float) -> Identity:
        if hello.token:
            return await self._hub.identify(hello.token)
        peer.voucher = giver = self._tickets.use(hello.ticket, now)
        return Identity(giver.user, giver.groups, giver.is_owner)
