"""Bugs put into a copy of the product on purpose, to show that the model finds each of them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pybind11

ROOT = Path(__file__).resolve().parents[2]
COPY = ROOT / "build" / "mutants" / "copy"
BUILD = ROOT / "build" / "mutants" / "build"
COPIED = ("csrc", "tests/cpp", "tests/fake_driver", "jupyter_gpushare")


class Mutant(NamedTuple):
    """`before` occurs once in `file`, and `after` stands there instead."""

    file: str
    before: str
    after: str


MUTANTS = {
    "a successor in one lane is granted another lane that becomes free": Mutant(
        "csrc/core/assign.cpp", "  if (waiting.promised) return false;\n", ""
    ),
    "a broker that starts waits for no session that has a turn": Mutant(
        "jupyter_gpushare/broker/service.py",
        "return self._roll.is_complete() or now >= ",
        "return now >= self._grants_from or now >= ",
    ),
    "a turn that may begin by a handoff is not in the recovery journal": Mutant(
        "jupyter_gpushare/broker/grants/grants.py",
        "for turns in (self._granted, self._handed)\n                for session, told in",
        "for turns in (self._granted,)\n                for session, told in",
    ),
    "an interrupted wait leaves its request at the broker": Mutant(
        "jupyter_gpushare/client/session.py",
        "        self._note_waited()\n        self._stop_holding()\n        self._say_end()\n",
        "        self._note_waited()\n        self._stop_holding()\n",
    ),
    "a notebook pages out in the middle of its turn": Mutant(
        "jupyter_gpushare/client/session.py",
        "if self.holding or (self._busy and not self._waiting):",
        "if self._busy and not self._waiting and not self.holding:",
    ),
    "a notebook that rests takes what was sent to its place before": Mutant(
        "jupyter_gpushare/client/session.py",
        "if self._resting and isinstance(message, OF_A_PLACE):",
        "if False:",
    ),
    "a notebook that rests says what only one with a place may say": Mutant(
        "jupyter_gpushare/client/session.py",
        "        if self._resting:\n            return\n        try:\n",
        "        try:\n",
    ),
    "a notebook rests while a thread of it waits for a turn": Mutant(
        "jupyter_gpushare/client/session.py",
        "if self._busy or self._waiting or self.holding:",
        "if self._busy or self.holding:",
    ),
    "a notebook that is out pages out once more, and all comes in where that fails": Mutant(
        "jupyter_gpushare/client/session.py",
        '        if self.paged_out_bytes:\n            return self.paged_out_bytes, ""\n',
        "",
    ),
    "a cell that begins does not call off that its memory is to be paged out": Mutant(
        "csrc/core/paging.cpp",
        "  if (session.residence == Residence::leaving) move_to(session, Residence::in);\n  if (",
        "  if (",
    ),
}


def changed_copy(mutant: Mutant | None) -> Path:
    """The folder of a copy with that bug, built; None: a copy without one."""
    for folder in COPIED:
        shutil.copytree(ROOT / folder, COPY / folder, dirs_exist_ok=True)
    if mutant is not None:
        file = COPY / mutant.file
        text = file.read_text()
        assert text.count(mutant.before) == 1, f"{mutant.file} has changed: {mutant.before!r}"
        file.write_text(text.replace(mutant.before, mutant.after))
    _build()
    return COPY


def _build() -> None:
    configure = ["cmake", "-S", str(COPY / "csrc"), "-B", str(BUILD), "-G", "Ninja"]
    options = ["-DGPUSHARE_TESTS=ON", f"-Dpybind11_DIR={pybind11.get_cmake_dir()}"]
    subprocess.run([*configure, *options, f"-DPython_EXECUTABLE={sys.executable}"], check=True)
    subprocess.run(["cmake", "--build", str(BUILD), "--target", "_core"], check=True)
    (module,) = (BUILD / "bindings").glob("_core*.so")
    shutil.copy2(module, COPY / "jupyter_gpushare")


def run_model(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The model's tests on the product in `folder`."""
    here = str(Path(__file__).with_name("mutated"))
    paths = os.pathsep.join(filter(None, [here, os.environ.get("PYTHONPATH")]))
    environment = {**os.environ, "CHANGED_COPY": str(folder), "PYTHONPATH": paths}
    command = [sys.executable, "-m", "pytest", "-q", "--hypothesis-profile=faults", *arguments]
    tests = str(Path(__file__).with_name("test_turns.py"))
    return subprocess.run(
        [*command, tests], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
