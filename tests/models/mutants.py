"""Deliberate bugs in a copy of the product, to show that the model finds each of them."""

from __future__ import annotations

import filecmp
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from types import MappingProxyType
from typing import NamedTuple

import pybind11

ROOT = Path(__file__).resolve().parents[2]
OURS = ROOT / "build" / "mutants" / os.environ.get("PYTEST_XDIST_WORKER", "alone")
COPY, BUILD = OURS / "copy", OURS / "build"
# for PYTHONPATH: each Python that starts there imports the copy
MODULES = Path(__file__).with_name("mutated")
COPIED = ("csrc", "tests/cpp", "tests/stand_ins/driver", "jupyter_gpushare")


MOVES = "../unit/session/test_stacks.py"  # what may move beside threads that compute


class Mutant(NamedTuple):
    """`after` replaces `before`, which occurs once in `file`. `found_by` is test_turns.py by
    default. It is test_orders.py if a known order of events shows the bug, and the search finds it
    rarely or was not tried. It names other tests if the bug does not concern turns."""

    file: str
    before: str
    after: str
    found_by: str = "test_turns.py"


MUTANTS = {
    "a successor in one lane is granted another lane that becomes free": Mutant(
        "csrc/core/pass/pass.cpp",
        "if (waiting.promised || waiting.drains) return false;",
        "if (waiting.drains) return false;",
    ),
    "a broker that starts waits for no session that has a turn": Mutant(
        "jupyter_gpushare/broker/grants/recovery.py",
        "return not self._journal.missing or now >= ",
        "return now >= self._grants_from or now >= ",
    ),
    "a turn that may begin by a handoff is not in the recovery journal": Mutant(
        "jupyter_gpushare/broker/grants/grants.py",
        "for grant in record.told\n            }\n",
        "for grant in record.told\n                if grant is record.granted\n            }\n",
    ),
    "an interrupted wait leaves its request at the broker": Mutant(
        "jupyter_gpushare/client/session/turn.py",
        "        self._usage.measure_anew()\n        self.stop_holding()\n        self.say_end()\n",
        "        self._usage.measure_anew()\n        self.stop_holding()\n",
    ),
    "an interrupt as a turn is given back leaves the broker without a word": Mutant(
        "jupyter_gpushare/client/session/turn.py",
        "not isinstance(error, GpuShareError) and not self.holding",
        "False",
        "test_orders.py",
    ),
    "a thread that waits is not woken after another one has taken its grant": Mutant(
        "jupyter_gpushare/client/session/turn.py",
        "        self._idle_turn.lend()\n        self._wake()\n",
        "        self._idle_turn.lend()\n",
    ),
    "a notebook pages out in the middle of its turn": Mutant(
        "jupyter_gpushare/client/session/residency.py",
        "if self._turn.holding or (self.busy and not self._turn.waiting):",
        "if self.busy and not self._turn.waiting and not self._turn.holding:",
        "test_orders.py",
    ),
    "a notebook that rests takes what was sent to its place before": Mutant(
        "jupyter_gpushare/client/session/dispatch.py",
        "if self._link.rests and isinstance(message, OF_A_PLACE):",
        "if False:",
        "test_orders.py",
    ),
    "a notebook that rests says what only one with a place may say": Mutant(
        "jupyter_gpushare/client/session/link.py",
        "        if self.rests:\n            return\n        try:\n",
        "        try:\n",
    ),
    "a notebook rests while a thread of it waits for a turn": Mutant(
        "jupyter_gpushare/client/session/residency.py",
        "if self.busy or self._turn.waiting or self._turn.holding:",
        "if self.busy or self._turn.holding:",
    ),
    "a notebook that is out pages out once more, and all comes in where that fails": Mutant(
        "jupyter_gpushare/client/session/residency.py",
        '        if self.paged_out_bytes:\n            return self.paged_out_bytes, ""\n',
        "",
    ),
    "the broker takes an answer from before a page-in for the newest word": Mutant(
        "jupyter_gpushare/broker/turns.py",
        "if message.page_ins in (None, peer.page_ins):",
        "if True:",
        "test_orders.py",
    ),
    "a successor that has paged out before its turn loses its room": Mutant(
        "csrc/core/device/paging.cpp",
        "if (session.turn || state_.is_promised(session)) return",
        "if (session.turn) return",
        "test_orders.py",
    ),
    "a turn that ends is granted to no session that waits": Mutant(
        "csrc/core/host/scheduler.cpp",
        "    finished.position.reset();\n  }\n  return pass(due);",
        "    finished.position.reset();\n  }\n  return {};",
        "test_orders.py",
    ),
    "a session takes a direct handoff of a broker that has ended": Mutant(
        "jupyter_gpushare/wire/handoff_slot.py",
        'key = secrets.token_hex(KEY_LENGTH // 2) if self.name else ""',
        'key = "0" * KEY_LENGTH if self.name else ""',
        "test_orders.py",
    ),
    "the broker gives away the memory of a session that it asks to page out": Mutant(
        "csrc/core/pass/pass.cpp",
        "state_->residency.ask_to_leave(session.memory, plan.beneficiary, beneficiary);\n",
        "state_->residency.ask_to_leave(session.memory, plan.beneficiary, beneficiary);\n"
        "      state_->lanes.remove(number);\n",
        "test_orders.py",
    ),
    "a cell that begins leaves the request to page out in force": Mutant(
        "csrc/core/device/paging.cpp",
        "residency.begin_cell(session.memory);\n  call_back(session);",
        "residency.begin_cell(session.memory);\n  if (is_out(session)) call_back(session);",
        "test_orders.py",
    ),
    "a session that has paged out as it waited is not paged in": Mutant(
        "csrc/core/device/paging.cpp",
        "if (session.busy || session.request) call_back(session);",
        "if (session.busy) call_back(session);",
        "test_orders.py",
    ),
    "a session that is named as a successor is evicted": Mutant(
        "csrc/core/pass/eviction.cpp",
        "if (!named.contains(session.number) && goes_before(first, entry))",
        "if (goes_before(first, entry))",
        "test_orders.py",
    ),
    "tensors move while another thread computes": Mutant(
        "csrc/bindings/register_cuda_memory.cpp",
        "if (!others_wait(kOthersMilliseconds) || (on_gpu && !has_finished())) return false;",
        "if (on_gpu && !has_finished()) return false;",
        MOVES,
    ),
    "a turn on a GPU goes back while another thread computes": Mutant(
        "jupyter_gpushare/client/torch/lanes/cuda_lane.py",
        "return _core.others_wait()",
        "return True",
        MOVES,
    ),
}


def changed_copy(mutant: Mutant | None, added: Mapping[str, str] = MappingProxyType({})) -> Path:
    """Provide a folder with a built copy of the product that has the bug; None: no bug. `added` has
    the texts of further files."""
    for folder in COPIED:
        _remove_moved(folder)
        shutil.copytree(ROOT / folder, COPY / folder, dirs_exist_ok=True, copy_function=_copy)
    if mutant is not None:
        file = COPY / mutant.file
        text = file.read_text()
        assert text.count(mutant.before) == 1, f"{mutant.file} has changed: {mutant.before!r}"
        file.write_text(text.replace(mutant.before, mutant.after))
    for name, text in added.items():
        (COPY / name).write_text(text)
    _build()
    return COPY


def _remove_moved(folder: str) -> None:
    """Remove files from the copy that the product no longer has there."""
    for file in (COPY / folder).rglob("*"):
        if file.is_file() and not (ROOT / file.relative_to(COPY)).exists():
            file.unlink()


def _copy(source: str, target: str) -> None:
    """Copy the files that differ. The copies are newer than the build with the previous bug, so
    they are built again."""
    if not (os.path.exists(target) and filecmp.cmp(source, target, shallow=False)):
        shutil.copy(source, target)


def _build() -> None:
    configure = ["cmake", "-S", str(COPY / "csrc"), "-B", str(BUILD), "-G", "Ninja"]
    options = ["-DGPUSHARE_TESTS=ON", f"-Dpybind11_DIR={pybind11.get_cmake_dir()}"]
    subprocess.run([*configure, *options, f"-DPython_EXECUTABLE={sys.executable}"], check=True)
    subprocess.run(["cmake", "--build", str(BUILD), "--target", "_core"], check=True)
    (module,) = (BUILD / "bindings").glob("_core.*so")
    shutil.copy2(module, COPY / "jupyter_gpushare")


def run_model(folder: Path, tests: str, profile: str) -> subprocess.CompletedProcess[str]:
    """Run the model's `tests` on the product in `folder`, up to the first failure. They begin
    without the findings of other runs."""
    paths = os.pathsep.join(filter(None, [str(MODULES), os.environ.get("PYTHONPATH")]))
    environment = {**os.environ, "CHANGED_COPY": str(folder), "PYTHONPATH": paths}
    with TemporaryDirectory() as own:
        environment["HYPOTHESIS_STORAGE_DIRECTORY"] = f"{own}/examples"
        command = [sys.executable, "-m", "pytest", "-q", "-x", f"--basetemp={own}/pytest"]
        command += [f"--hypothesis-profile={profile}", str(Path(__file__).parent / tests)]
        return subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
        )
