"""`make audit`: whether our dependencies fit together, and whether a vulnerability in them is
known.

Known vulnerabilities are listed by services on the internet. Where one does not answer, that is
reported, and is neither good nor bad news: the exit status is 1 only where something was found.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parent.parent
SECONDS = 120.0


class Unanswered(ValueError):
    """The output of a tool that could not ask its service."""


class Question(NamedTuple):
    """A tool; `found` reads the answer, and raises ValueError where it is none."""

    what: str
    command: tuple[str, ...]
    folder: Path
    found: Callable[[subprocess.CompletedProcess[str]], list[str]]


def misfits(answer: subprocess.CompletedProcess[str]) -> list[str]:
    """pip check: one line for each package that lacks another one."""
    return answer.stdout.splitlines() if answer.returncode else []


def holes_in_python(answer: subprocess.CompletedProcess[str]) -> list[str]:
    """pip-audit: all packages, each with its known vulnerabilities, or why it was not asked about.
    Where all of them were not, it says itself that nothing is known to be wrong, and ends well."""
    packages = json.loads(answer.stdout)["dependencies"]
    left_out = [package["skip_reason"] for package in packages if "skip_reason" in package]
    if len(left_out) == len(packages):
        raise Unanswered(
            f"no package was asked about: {left_out[0] if left_out else 'there is none'}"
        )
    return [
        f"{package['name']} {package['version']}: {hole['id']}"
        for package in packages
        for hole in package.get("vulns", ())
    ]


def holes_in_javascript(answer: subprocess.CompletedProcess[str]) -> list[str]:
    """yarn: a line of JSON for each package with a known vulnerability."""
    lines = [json.loads(line) for line in answer.stdout.splitlines()]
    if answer.returncode and not lines:
        raise Unanswered("it failed, and said nothing")
    return [f"{line['value']}: {title}" for line in lines for title in _titles(line)]


def _titles(line: dict[str, Any]) -> Iterator[str]:
    yield str(line["children"]["Issue"])


def first_words(answer: subprocess.CompletedProcess[str]) -> str:
    said = (answer.stderr.strip() or answer.stdout.strip() or "nothing was said").splitlines()
    return " ".join(line.strip() for line in said[:2])[:160]


def ask(question: Question) -> tuple[str, list[str]]:
    """Return the outcome in a word, and the findings."""
    try:
        answer = subprocess.run(
            question.command, cwd=question.folder, capture_output=True, text=True, timeout=SECONDS
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"not known: {error}", []
    try:
        found = question.found(answer)
    except Unanswered as error:
        return f"not known: {error}", []
    except (ValueError, KeyError, TypeError):
        return f"not known: {first_words(answer)}", []
    return f"{len(found)} found" if found else "none known", found


QUESTIONS = (
    Question("packages that do not fit", (sys.executable, "-m", "pip", "check"), ROOT, misfits),
    Question(
        "holes in Python packages",
        (sys.executable, "-m", "pip_audit", "--format", "json", "--progress-spinner", "off"),
        ROOT,
        holes_in_python,
    ),
    Question(
        "holes in JavaScript packages",
        ("jlpm", "npm", "audit", "--json", "--recursive", "--environment", "production"),
        ROOT / "labextension",
        holes_in_javascript,
    ),
)


def main() -> int:
    anything = False
    for question in QUESTIONS:
        outcome, found = ask(question)
        print(f"{question.what}: {outcome}", *found, sep="\n  ")
        anything = anything or bool(found)
    return int(anything)


if __name__ == "__main__":
    sys.exit(main())
