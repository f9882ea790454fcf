"""Why a session is as it is: each code of the core has its sentence, in Python and in the panel."""

from __future__ import annotations

import runpy
import string
import time
from collections.abc import Callable, Iterator

import msgspec
import pytest

from jupyter_gpushare import _core
from jupyter_gpushare.reasons import FIELDS, GONE, TEXTS, Reason, sentence

from ..violations import ROOT

SAID = ROOT / "tests" / "data" / "reasons.json"  # the panel's tests have them too
NAMES = {"a": "a.ipynb", "b": "b.ipynb"}


def test_each_code_of_the_core_has_a_sentence() -> None:
    assert _core.reason_codes() == list(TEXTS)


def test_the_panel_has_the_same_table() -> None:
    table = runpy.run_path(str(ROOT / "labextension" / "reason_texts.py"))
    assert table["FILE"].read_text() == table["text"](), "run labextension/reason_texts.py"


def test_sentences_are_filled_from_all_fields_of_a_reason() -> None:
    fields = {field for text in TEXTS.values() for _, field, *_ in string.Formatter().parse(text)}
    assert fields - {None} == {*FIELDS} - {"code"}


@pytest.fixture
def in_zone(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    """Make a time zone that of this machine."""

    def enter(zone: str) -> None:
        monkeypatch.setenv("TZ", zone)
        time.tzset()

    yield enter
    monkeypatch.undo()
    time.tzset()


def test_reasons_make_one_sentence(in_zone: Callable[[str], None]) -> None:
    in_zone("UTC")
    for row in msgspec.json.decode(SAID.read_bytes()):
        why = msgspec.convert(row["why"], list[Reason])
        assert sentence(why, lambda session: NAMES.get(session, GONE)) == row["sentence"]


def test_a_time_of_day_is_that_of_the_readers_clock(in_zone: Callable[[str], None]) -> None:
    ends = Reason("throttled_for_class_until", who="course", until=1794909600.0)
    for zone, until in (("UTC", "10:00"), ("IST-5:30", "15:30"), ("HST10", "00:00")):
        in_zone(zone)
        assert sentence([ends], str).endswith(f"has the device until {until}")
