"""The model finds deliberate bugs in the product. Otherwise its success would mean nothing."""

from __future__ import annotations

import pytest

from .mutants import MUTANTS, changed_copy, run_model

pytestmark = [pytest.mark.thorough, pytest.mark.timeout(1800)]


@pytest.mark.parametrize("bug", MUTANTS)
def test_the_model_finds_a_bug_that_was_put_in(bug: str) -> None:
    run = run_model(changed_copy(MUTANTS[bug]), MUTANTS[bug].found_by, "mutants")
    assert run.returncode == 1, run.stdout + run.stderr
    assert "1 failed" in run.stdout, run.stdout


@pytest.mark.parametrize("tests", sorted({mutant.found_by for mutant in MUTANTS.values()}))
def test_the_copy_without_a_bug_passes(tests: str) -> None:
    run = run_model(changed_copy(None), tests, "same")
    assert run.returncode == 0, run.stdout + run.stderr
