"""Reports of the use of devices. They are sent when the database has been read."""

from __future__ import annotations

from concurrent.futures import Future

from ...errors import GpuShareError, LimitExceeded, cause
from ...wire import messages
from ...wire.messages import Account, AccountRow, Error
from ..access.permissions import Person
from ..peer import Peer
from .accounts import AccountBook
from .ledger import Scope

REPORTS_OF_A_USER = 4  # at the same time


class Reports:
    """Owns the reports in progress: at most one for a connection, and a few for a user."""

    def __init__(self, accounts: AccountBook) -> None:
        self._accounts = accounts
        self._asked: list[tuple[Peer, Future[list[AccountRow]]]] = []

    def check(self, peer: Peer) -> None:
        """Raise LimitExceeded where the connection or its user has too many in progress."""
        if any(asker is peer for asker, _ in self._asked):
            raise LimitExceeded("one report at a time: this connection waits for one already")
        if sum(asker.user == peer.user for asker, _ in self._asked) >= REPORTS_OF_A_USER:
            raise LimitExceeded(f"{REPORTS_OF_A_USER} reports of a user are made at a time")

    def ask(self, peer: Peer, person: Person, message: Account) -> None:
        scope = Scope(person.is_admin, person.user, person.teaches)  # whose figures they may see
        rows = self._accounts.rows(message.by, message.start, message.end, scope)
        self._asked.append((peer, rows))

    def answer(self) -> None:
        """Send the finished reports. Each is checked once, since it may finish meanwhile."""
        asked, self._asked = self._asked, []
        for peer, rows in asked:
            if rows.done():
                peer.send(self._answer(rows))
            else:
                self._asked.append((peer, rows))

    def _answer(self, rows: Future[list[AccountRow]]) -> messages.Accounts | Error:
        if (error := rows.exception()) is not None:
            return Error(GpuShareError.code, f"the accounts cannot be read: {cause(error)}")
        return messages.Accounts(rows.result(), self._accounts.trouble)

    def forget(self, peer: Peer) -> None:
        """Cancel the report of a connection that has ended. A report that is being read cannot be
        cancelled, and counts towards the limit of its user until it is done."""
        self._asked = [one for one in self._asked if one[0] is not peer or not one[1].cancel()]
