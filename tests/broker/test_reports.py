"""Usage reports, which a thread makes while the broker continues."""

from __future__ import annotations

import contextlib
from concurrent.futures import Future

import pytest

from jupyter_gpushare.broker.access.permissions import Person
from jupyter_gpushare.broker.accounting.accounts import Accounts
from jupyter_gpushare.broker.accounting.ledger import Scope
from jupyter_gpushare.broker.accounting.reports import Reports
from jupyter_gpushare.errors import LimitExceeded
from jupyter_gpushare.wire import messages
from jupyter_gpushare.wire.messages import Account, AccountRow, Error

from .listener import Listener

ADA = Person("ada")
MESSAGE = Account(0.0, 1.0, "notebook")


class MadeMeanwhile(Future[list[AccountRow]]):
    """A report that the thread makes right after the broker has looked whether it is there."""

    def done(self) -> bool:
        was_done = super().done()
        if not was_done:
            self.set_result([])
        return was_done


class Slow(Accounts):
    def rows(self, by: str, start: float, end: float, scope: Scope) -> Future[list[AccountRow]]:
        return MadeMeanwhile()


class Broken(Accounts):
    def rows(self, by: str, start: float, end: float, scope: Scope) -> Future[list[AccountRow]]:
        rows: Future[list[AccountRow]] = Future()
        rows.set_exception(OSError("disk I/O error"))
        return rows


def test_a_report_that_arrives_while_the_broker_looks_is_not_lost() -> None:
    with contextlib.closing(Slow()) as accounts:
        reports, ada = Reports(accounts), Listener("ada")
        reports.ask(ada, ADA, MESSAGE)
        reports.answer()
        assert ada.heard == []
        with pytest.raises(LimitExceeded, match="waits for one already"):
            reports.check(ada)
        reports.answer()
        assert ada.heard == [messages.Accounts([], "")]
        reports.check(ada)


def test_a_report_that_cannot_be_made_is_one_sentence() -> None:
    with contextlib.closing(Broken()) as accounts:
        reports, ada = Reports(accounts), Listener("ada")
        reports.ask(ada, ADA, MESSAGE)
        reports.answer()
        (error,) = ada.heard_of(Error)
        assert error.message == "the accounts cannot be read: disk I/O error"
