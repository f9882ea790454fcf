"""Why a session is as it is: each code of the core has its sentence, in Python and in the panel."""

from __future__ import annotations

import string

import pytest

from jupyter_gpushare import _core
from jupyter_gpushare.reasons import FIELDS, GONE, TEXTS, Reason, sentence

NAMES = {"a": "a.ipynb", "b": "b.ipynb"}
GIB = 1 << 30


def said(*why: Reason) -> str:
    return sentence(why, lambda session: NAMES.get(session, GONE))


def test_each_code_of_the_core_has_a_sentence() -> None:
    assert _core.reason_codes() == list(TEXTS)


def test_a_sentence_is_filled_from_the_fields_of_a_reason() -> None:
    fields = {field for text in TEXTS.values() for _, field, *_ in string.Formatter().parse(text)}
    assert fields - {None} == {*FIELDS} - {"code"}


@pytest.mark.parametrize(
    ("why", "sentence"),
    [
        ([], ""),
        (
            [Reason("waits_for", other="a"), Reason("other_is_overdue")],
            "waits for a.ipynb, which is overdue",
        ),
        ([Reason("needs_whole_device"), Reason("waits")], "needs the whole device; waits"),
        (
            [Reason("waits_for_memory"), Reason("needs_bytes", bytes=8 * GIB), Reason("is_next")],
            "waits for memory: needs 8.0 GiB, 0 B are free, and is next",
        ),
        ([Reason("makes_room", other="closed")], f"is asked to make room for {GONE}"),
        ([Reason("held_back", text="{other} {0} %1")], "{other} {0} %1"),
        ([Reason("of_a_newer_broker")], "of a newer broker"),
    ],
)
def test_parts_make_one_sentence(why: list[Reason], sentence: str) -> None:
    assert said(*why) == sentence
