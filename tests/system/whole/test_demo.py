"""`make demo`, the first command of the README."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

DEMO = Path(__file__).parents[3] / "examples" / "demo.py"


@pytest.mark.system
def test_three_notebooks_train_together_as_alone() -> None:
    done = subprocess.run([sys.executable, DEMO], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "demo: ok" in done.stdout
