"""A session between cells, at a broker with rules for idle sessions."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from jupyter_gpushare.client.memory import WholeProcess
from jupyter_gpushare.client.session import Session
from jupyter_gpushare.settings import Settings

pytestmark = pytest.mark.system

SECONDS = 60.0


class Telling(WholeProcess):
    """The plainest memory, which tells when it is asked to give back free memory."""

    def __init__(self) -> None:
        super().__init__()
        self.gave_back = threading.Event()
        self.asked_to_leave = threading.Event()

    def give_back(self) -> None:
        super().give_back()
        self.gave_back.set()

    def page_out(self, directory: str) -> tuple[int, str]:
        self.asked_to_leave.set()
        return super().page_out(directory)


@pytest.fixture
def session(settings: Settings, tmp_path: Path) -> Iterator[Session]:
    rules = tmp_path / "rules.toml"
    rules.write_text("[idle]\ngive_back_caches_after = 1\nrelease_after = 3")
    opened = Session(msgspec.structs.replace(settings, rulebook=str(rules)), name="idle")
    opened.memory = Telling()
    opened.open()
    yield opened
    opened.close()


def test_free_memory_is_given_back_between_cells_and_not_in_one(session: Session) -> None:
    assert isinstance(session.memory, Telling)
    assert not session.memory.gave_back.wait(3.0)  # as far as is known, a cell runs
    session.cell_ends()
    assert session.memory.gave_back.wait(SECONDS)


def test_a_session_that_cannot_be_paged_out_is_not_released(session: Session) -> None:
    assert isinstance(session.memory, Telling)
    session.cell_ends()
    assert session.memory.asked_to_leave.wait(SECONDS)
    session.cell_begins()
    session.enter()
    assert session.holding
    assert session.paged_out_bytes == 0
