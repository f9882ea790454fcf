"""The pages use the words of docs/explanation/glossary.md, and plain English."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
TOP = [ROOT / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md")]
# Those of docs/reference hold the sentences of the code that its users read.
PAGES = TOP + sorted((ROOT / "docs").rglob("*.md"))

# what is banned -> what to write instead
BANNED = {
    r"change-?overs?": "context switch",
    r"hand(s|ed|ing)? (it |the turn |a turn )?on": "direct handoff",
    r"letters?|mailbox(es)?": "direct handoff, handoff slot",
    r"recall(s|ed)?": "preemption request",
    r"overtak(e|es|en|ing)|overtook": "backfill",
    r"patience": "aging",
    r"dismiss(es|ed)?": "page out",
    r"mak(e|es|ing) (way|room)": "evict, page out",
    r"(on )?probation|trials?|sums? of speeds": "concurrency tuner, probe, weighted speedup",
    r"foreign": "unmanaged",
    r"held back|hold(s|ing)? back": "throttled by a rule",
    r"governor|caretaker|ladders?": "rule engine, idle culling, escalation step",
    r"deeds?": "permission",
    r"vouch(es|ed)?|guess(es)?": "issue a one-time token, failed attempt",
    r"crowds?": "rate limit",
    r"the roll": "recovery journal",
    r"audience": "publisher, subscribers",
    r"whoever|whomever": "a user that, a session that",
    r"so (many|much|long|often)": "the number itself",
    r"as of": "in, from",
    r"he|him|his|himself": "they, their",
}
BANNED_PATTERN = re.compile(rf"\b({'|'.join(BANNED)})\b", re.IGNORECASE)
# `Who waits is told`, at the beginning of a clause: write `a session that waits`.
BEGINS_CLAUSE = r"(?:^|[.:;|(] |\b(?:of|for|than|to|with|and|but|beside|by) )"
WHO_AS_SUBJECT = re.compile(
    BEGINS_CLAUSE + r"who \w+[^?]*?(?=[.;:|]|$)", re.IGNORECASE | re.MULTILINE
)
NO_PROSE = re.compile(
    r"```.*?```|<!--.*?-->|`[^`\n]+`|\]\([^)]*\)|https?://\S+", re.DOTALL
)  # code, comments, targets of links


def prose(text: str) -> str:
    """The text with as many lines, and without what is no sentence."""
    return NO_PROSE.sub(lambda found: "\n" * found[0].count("\n"), text)


def found_in(text: str) -> Iterator[str]:
    for pattern in (BANNED_PATTERN, WHO_AS_SUBJECT):
        for found in pattern.finditer(prose(text)):
            line = prose(text).count("\n", 0, found.start()) + 1
            yield f"line {line}: {found[0].strip()}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_a_page_uses_the_standard_terms(page: Path) -> None:
    assert list(found_in(page.read_text())) == []


@pytest.mark.parametrize(
    "text",
    [
        "The change-over takes 50 us.",
        "Who waits is told.",
        "It is told; who has waited\nlonger comes first.",
        "| who looks | all |",
        "They had to wait so long.",
        "The session is held back.",
        "Whoever runs the broker owns it.",
        "the device of who asked",
    ],
)
def test_a_banned_word_is_found(text: str) -> None:
    assert len(list(found_in(text))) == 1


@pytest.mark.parametrize(
    "text",
    [
        "A user who waits is told.",
        "The setting `aging_seconds` bounds backfill.",
        "```\nWho waits: as of now\n```",
        "[Scheduling](how-to.md#change-over)",
        "Only users who belong to the group may look.",
        "Who may change it?",
    ],
)
def test_other_words_are_not(text: str) -> None:
    assert list(found_in(text)) == []
