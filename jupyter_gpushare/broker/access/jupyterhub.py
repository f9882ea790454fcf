"""Asks JupyterHub which user a token belongs to, in a thread, and caches answers by digest."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import re
import time
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple, TypeAlias

import msgspec

from ...errors import UNREADABLE, BrokerUnavailable, NotPermitted
from ...settings import Settings
from ...wire import web
from .identity import Identity

ADMINISTRATOR = "custom:gpushare:admin"  # scope
OF_AN_ADMIN = {ADMINISTRATOR, "admin:users"}  # scopes: one of them makes an administrator
OF_A_SERVER = "access:servers!server="  # the token of a server has a scope with this beginning
OWN_SERVICE = "gpushare"
ANSWER_SECONDS = 5.0
PAUSES_SECONDS = (0.1, 0.3, 1.0)  # between attempts; after them a new client is told to retry
REFUSED_SECONDS = 10.0  # a refusal is cached for this time
AWAY_SECONDS = 5.0  # an old answer is valid for this time while the hub is away
MOST_KNOWN = 10_000
MOST_REFUSED = 1_000
THREADS = 4
TOKEN = re.compile(r"[!-~]{1,1024}")  # characters that are valid in a header
AWAY = "JupyterHub does not answer, and no new client is admitted until it does: trying again"
REFUSED = "JupyterHub does not know this token, or not any more"

log = logging.getLogger("jupyter_gpushare.broker")


class _Model(msgspec.Struct):
    """The fields of the hub's answer that are used."""

    name: str
    kind: str = "user"
    groups: list[str] = []
    scopes: list[str] = []


Verdict: TypeAlias = Identity | str  # a string says why the token is refused


class _Known(NamedTuple):
    verdict: Verdict
    until: float


class Hub:
    """Owns the cached answers. Only the thread of the event loop may use it."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._known: OrderedDict[bytes, _Known] = OrderedDict()
        self._refused: OrderedDict[bytes, _Known] = OrderedDict()
        self._questions: dict[bytes, asyncio.Task[Identity]] = {}
        self._threads = ThreadPoolExecutor(THREADS, "gpushare-hub")
        self._threads_for_new = ThreadPoolExecutor(THREADS, "gpushare-hub-new")
        self._is_away = False

    def knows(self, token: str) -> bool:
        """Whether the hub has accepted this token since the broker began."""
        return _digest(token) in self._known

    def check_refused(self, token: str) -> None:
        """Raise NotPermitted, without a question to the hub, if it has refused this token a moment
        ago."""
        known = self._refused.get(_digest(token))
        if known is not None and time.monotonic() < known.until:
            _unless_refused(known.verdict)

    async def identify(self, token: str) -> Identity:
        """Return the user of a token. Raises NotPermitted, or BrokerUnavailable while the hub does
        not answer."""
        if not TOKEN.fullmatch(token):
            raise NotPermitted(REFUSED)
        digest = _digest(token)
        known = self._known.get(digest) or self._refused.get(digest)
        if known is not None and time.monotonic() < known.until:
            return _unless_refused(known.verdict)
        if digest not in self._questions:
            self._questions[digest] = question = asyncio.create_task(self._ask(token, digest))
            question.add_done_callback(lambda done: self._answered(digest, done))
        return await asyncio.shield(self._questions[digest])

    def _answered(self, digest: bytes, done: asyncio.Task[Identity]) -> None:
        del self._questions[digest]
        if not done.cancelled():
            done.exception()  # the client that asked may have gone

    async def _ask(self, token: str, digest: bytes) -> Identity:
        for pause in (*PAUSES_SECONDS, 0.0):
            try:
                verdict = await self._look_up(token, digest)
            except OSError as error:
                self._note_away(str(error))
                if digest in self._known:
                    verdict = self._known[digest].verdict
                    self._remember(digest, verdict, AWAY_SECONDS)
                    return _unless_refused(verdict)
                await asyncio.sleep(pause)
            else:
                self._note_back()
                self._remember(digest, verdict, self._settings.hub_cache_seconds)
                return _unless_refused(verdict)
        raise BrokerUnavailable(AWAY)

    async def _look_up(self, token: str, digest: bytes) -> Verdict:
        """Ask the hub. Raises OSError if there is no answer, or one that no hub gives. Questions
        about new tokens do not delay questions about known ones."""
        threads = self._threads if digest in self._known else self._threads_for_new
        answer = await asyncio.get_running_loop().run_in_executor(
            threads, web.ask, "GET", self._url, token, ANSWER_SECONDS
        )
        return self.read(answer)

    @property
    def _url(self) -> str:
        return f"{self._settings.hub_api_url}/user"

    def read(self, answer: web.Response) -> Verdict:
        """Read the hub's answer about a token. Raises OSError for an answer that no hub gives."""
        if answer.status in (401, 403):
            return REFUSED
        if answer.status != 200:
            raise OSError(f"{self._url} answers with status {answer.status}")
        try:
            return self._verdict(msgspec.json.decode(answer.body, type=_Model))
        except UNREADABLE:
            raise OSError(f"{self._url} answers what no JupyterHub does") from None

    def _verdict(self, model: _Model) -> Verdict:
        """Read the user from the hub's answer. Services get names that no user can have. The rights
        of a token come from its scopes alone, even if its user has more."""
        is_service = model.kind == "service"
        is_own = is_service and model.name == OWN_SERVICE
        is_owner = is_own or not OF_AN_ADMIN.isdisjoint(model.scopes)
        if not model.name.isprintable():  # other users and logs show it
            return "a name with characters that cannot be shown may not share"
        needed = self._settings.hub_scope
        if needed and needed not in model.scopes and not is_owner:
            return f"{model.name} has not the scope {needed}, which this broker asks for"
        user = f"service:{model.name}" if is_service else model.name
        is_server = any(scope.startswith(OF_A_SERVER) for scope in model.scopes)
        may_issue_tokens = is_server and not is_service
        return Identity(user, frozenset(model.groups), is_owner, may_issue_tokens)

    def _remember(self, digest: bytes, verdict: Verdict, seconds: float) -> None:
        self._known.pop(digest, None)
        is_refused = isinstance(verdict, str)
        where, most = (self._refused, MOST_REFUSED) if is_refused else (self._known, MOST_KNOWN)
        until = time.monotonic() + (REFUSED_SECONDS if is_refused else seconds)
        where[digest] = _Known(verdict, until)
        if len(where) > most:
            where.popitem(last=False)

    def _note_away(self, why: str) -> None:
        if not self._is_away:
            log.warning("JupyterHub does not answer: %s", why)
        self._is_away = True

    def _note_back(self) -> None:
        if self._is_away:
            log.info("JupyterHub answers again")
        self._is_away = False


def _unless_refused(verdict: Verdict) -> Identity:
    if isinstance(verdict, str):
        raise NotPermitted(verdict)
    return verdict


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()
