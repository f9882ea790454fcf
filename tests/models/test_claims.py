"""The search over all orders of claims finds deliberate bugs in the claims."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

pytestmark = pytest.mark.thorough

ROOT = Path(__file__).resolve().parents[2]
CPP = ROOT / "tests" / "cpp"
CLAIMS = (ROOT / "csrc" / "claims" / "claims.h").read_text()

# what is broken -> a text that occurs once, and what stands there instead
MUTANTS = {
    "no process is asked to spill": ("      its.must_spill = true;\n", ""),
    "the younger may have what the elder has not yet": (
        "if (bound(other(end)) + want > budget)",
        "if (extent(other(end)) + want > budget)",
    ),
    "a bound stays where more is claimed": ("    own.bound = std::max(own.bound, want);\n", ""),
    "an elder that turns out larger stays the elder": (
        "      elder_ = other(end);  // that one can end with what is left\n",
        "",
    ),
    "an iteration that ends leaves the other one to spill": (
        "    sides_[other(end)].must_spill = false;\n",
        "",
    ),
    "an iteration may begin with more than there is": (
        "std::clamp<Chunks>(most, 1, budget)",
        "most",
    ),
    "a claim forgets that it has to spill": (
        "    if (own.must_spill) return Answer::kSpill;\n",
        "",
    ),
    "an iteration that ends stays the elder": (
        "    sides_[other(end)].must_spill = false;\n    elder_ = other(end);\n",
        "    sides_[other(end)].must_spill = false;\n",
    ),
    "a bound falls below what there is": (
        "std::max({extent(end), most, Chunks{1}})",
        "std::max(most, Chunks{1})",
    ),
}


def search(claims: str, folder: Path) -> int:
    """Search all orders of these claims; return the exit status, 0 if the search finds nothing."""
    (folder / "claims").mkdir()
    (folder / "claims" / "claims.h").write_text(claims)
    program = folder / "search"
    sources = [CPP / "claims" / "states.cpp", CPP / "main.cpp"]
    options = ["-std=c++20", "-O1", "-I", folder, "-isystem", CPP / "third_party"]
    subprocess.run(["c++", *options, *sources, "-o", program], check=True)
    return subprocess.run([program], check=False, timeout=60).returncode


def test_the_claims_as_they_are_pass(tmp_path: Path) -> None:
    assert search(CLAIMS, tmp_path) == 0


@pytest.mark.parametrize("bug", MUTANTS)
def test_the_search_finds_a_bug_that_was_put_in(bug: str, tmp_path: Path) -> None:
    before, after = MUTANTS[bug]
    assert CLAIMS.count(before) == 1
    assert search(CLAIMS.replace(before, after), tmp_path) != 0
