"""The audit says what was found, what was not, and which services could not be asked."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from . import audit

HOLE = {"name": "left", "version": "1", "vulns": [{"id": "CVE-1"}]}
KNOWN = json.dumps({"dependencies": [HOLE, {"name": "right", "version": "2", "vulns": []}]})
WELL = json.dumps({"dependencies": [{"name": "right", "version": "2", "vulns": []}]})
NOBODY = json.dumps({"dependencies": [{"name": "left", "skip_reason": "away"}]})
YARN = json.dumps({"value": "left", "children": {"Issue": "a hole"}})


def answer(said: str, status: int = 0) -> audit.Question:
    program = f"import sys; print({said!r}); sys.exit({status})"
    return audit.Question("x", (sys.executable, "-c", program), Path("/"), audit.misfits)


@pytest.mark.parametrize(
    ("found", "said", "status", "outcome"),
    [
        (audit.misfits, "No broken requirements found.", 0, ("none known", [])),
        (audit.misfits, "a needs b", 1, ("1 found", ["a needs b"])),
        (audit.holes_in_python, KNOWN, 1, ("1 found", ["left 1: CVE-1"])),
        (audit.holes_in_python, WELL, 0, ("none known", [])),
        (audit.holes_in_python, NOBODY, 0, ("not known: no package was asked about: away", [])),
        (audit.holes_in_python, "no route to host", 1, ("not known: no route to host", [])),
        (audit.holes_in_javascript, YARN, 1, ("1 found", ["left: a hole"])),
        (audit.holes_in_javascript, "Method Not Allowed", 1, ("not known: Method Not Allowed", [])),
    ],
)
def test_an_unanswered_question_is_neither_good_nor_bad_news(
    found: object, said: str, status: int, outcome: tuple[str, list[str]]
) -> None:
    assert audit.ask(answer(said, status)._replace(found=found)) == outcome


def test_a_missing_tool_is_reported() -> None:
    question = answer("")._replace(command=("/no/such/tool",))
    assert audit.ask(question)[0].startswith("not known: ")
