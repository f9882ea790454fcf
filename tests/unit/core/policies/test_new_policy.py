"""A policy is one file and one row: every list of policies follows from them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from jupyter_gpushare._core import policies
from jupyter_gpushare.settings import Settings

from ....models.mutants import COPY, MODULES, Mutant, changed_copy

ROOT = Path(__file__).resolve().parents[4]
NAME = "newest"
SENTENCE = "the notebook that opened last comes first"
FILE = """#include "core/policies/policies.h"

namespace gpushare {
namespace {

bool before(const Candidate& a, const Candidate& b) { return a.order > b.order; }

Seconds lead(const Candidate&, const Candidate&, Seconds quantum) { return quantum; }

}  // namespace

constinit const Policy newest{
    .name = "newest",
    .sentence = "the notebook that opened last comes first",
    .before = before,
    .ends = Ends::after_quantum,
    .lead = lead,
};

}  // namespace gpushare
"""
NAMES = ", ".join(name for name, _ in policies())
ROW = Mutant("csrc/core/policies/policies.h", NAMES, f"{NAMES}, {NAME}")

pytestmark = [pytest.mark.thorough, pytest.mark.timeout(1800)]


@pytest.fixture(scope="module", autouse=True)
def _built() -> None:
    changed_copy(ROW, {f"csrc/core/policies/{NAME}.cpp": FILE})


def python(*arguments: str) -> str:
    """The output of a Python whose jupyter_gpushare has that policy."""
    paths = os.pathsep.join([str(MODULES), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, "CHANGED_COPY": str(COPY), "PYTHONPATH": paths}
    command = [sys.executable, *arguments]
    return subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True
    ).stdout


def gpushare(*arguments: str) -> str:
    return python("-m", "jupyter", "gpushare", *arguments)


def test_the_command_line_and_what_viewers_get_list_it(settings: Settings) -> None:
    connect = "from jupyter_gpushare.wire.client import Client; Client.connect(load(), 'tests')"
    python("-c", f"from jupyter_gpushare.settings import load; {connect}")
    assert SENTENCE in gpushare("policy")
    shown = json.loads(gpushare("status", "--json"))["policies"]
    assert {"name": NAME, "sentence": SENTENCE} in shown
    gpushare("policy", NAME)
    assert json.loads(gpushare("status", "--json"))["policy"] == NAME


def test_language_packs_need_no_row_of_it() -> None:
    load = "from tests.system.browser import test_translation as tests"
    tests = (
        "tests.test_each_translated_reason_has_all_its_figures()",
        "tests.test_the_language_pack_has_nothing_that_the_panel_does_not_say()",
        "print(tests.SENTENCES)",
    )
    assert SENTENCE in python("-c", "; ".join([load, *tests]))


def test_the_reference_lists_it() -> None:
    load = f"import runpy; made = runpy.run_path({str(ROOT / 'docs' / 'generate.py')!r})"
    assert SENTENCE in python("-c", f"{load}; print(made['policies']())")


def test_the_simulator_compares_it_with_the_others() -> None:
    assert NAME in gpushare("simulate", "--generate", "3")


def test_it_is_completed_in_a_notebook() -> None:
    given = "from jupyter_gpushare_kernel.completion import _policies"
    assert NAME in python("-c", f"{given}; print(*_policies())").split()
