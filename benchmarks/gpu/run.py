"""Everything that `benchmarks/gpu.sh` does on a machine with a GPU, part by part.

Each part is a process with a time limit of its own. A part that fails or hangs does not affect the
others, and its results until then count. The results are written after each line that a part
prints, so that a kill from outside loses nothing either.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from .places import DRIVER, FOLDER, HERE, HOME, IS_FAKE_GPU, REHEARSED, ROOT, SITE

WORDS = 6000  # the last bytes that a failed part printed, which go into the results
LEAST_SECONDS = 3.0  # with less left, a part is not begun
SECONDS = 570.0  # in all
OURS = ("-m", "gpu.packages")
OF_PYTHON = ("-m", "gpu.parts.{name}")


class Part(NamedTuple):
    """A part; `seconds` are the most that it may take; `{name}` is the first,
    and `{folder}` is where the packages are."""

    name: str
    command: Sequence[str]
    seconds: float
    what: str
    is_preparation: bool = False  # done in any case; the others depend on it


PARTS = (
    Part("packages", (*OURS, "install", "{folder}"), 60, "what is missing is installed", True),
    Part("module", (*OURS, "module", "{folder}"), 240, "the C++ module is built", True),
    Part("driver_program", (*OURS, "driver", "{folder}"), 60, "driver.cpp is built", True),
    Part("machine", OF_PYTHON, 60, "what this machine is", True),
    Part("driver_facts", ("{driver}", "facts"), 90, "what NVIDIA's driver does"),
    Part("driver_costs", ("{driver}", "costs"), 60, "what its calls cost, by chunk size"),
    Part("tests", OF_PYTHON, 300, "tests/system/gpu: nothing is lost, nothing differs"),
    Part("glue", OF_PYTHON, 60, "what PyTorch's own calls at a boundary cost"),
    Part("changeover", OF_PYTHON, 100, "a turn goes from one notebook to another"),
    Part("alone", OF_PYTHON, 150, "sharing on over stock, alone"),
    Part("together", OF_PYTHON, 240, "two and four notebooks: time and memory"),
    Part("paging", OF_PYTHON, 90, "memory goes out to a file and comes back"),
)
SHORT_COSTS = ("64", "8")  # MiB and chunks, in a rehearsal


class Results:
    """The results so far, and the files that have them."""

    def __init__(self, is_rehearsal: bool, seconds: float) -> None:
        self.is_rehearsal = is_rehearsal
        self.machine: dict[str, Any] = {
            "date": datetime.date.today().isoformat(),
            "is_rehearsal": is_rehearsal,
            "seconds_allowed": seconds,
        }
        self.parts: dict[str, Any] = {}
        self._lock = threading.Lock()

    def hear(self, part: str, line: str) -> None:
        """Take a line of a part; a line that is no JSON goes to its log alone."""
        try:
            said = json.loads(line)
        except ValueError:
            said = None
        if not isinstance(said, dict):
            return
        with self._lock:
            self._add(self.parts[part], said)
            self.write()

    def _add(self, found: dict[str, Any], said: dict[str, Any]) -> None:
        if "machine" in said:
            self.machine.update(said["machine"])
            if "gpu" in said["machine"]:
                self._keep_earlier()
        elif "figure" in said:
            found.setdefault("figures", {})[said.pop("figure")] = said
        elif "fact" in said:
            found.setdefault("facts", {})[said.pop("fact")] = said
        elif "error" in said:
            found.setdefault("errors", []).append(said["error"])
        else:
            found.setdefault("notes", []).append(said.get("note", said))

    def _keep_earlier(self) -> None:
        """Keep the results of parts that ran here today already, and not in this run."""
        path = self.paths()[0]
        if path.exists():
            self.parts = {**json.loads(path.read_text())["parts"], **self.parts}

    def write(self) -> None:
        text = json.dumps({"machine": self.machine, "parts": self.parts}, indent=2) + "\n"
        for path in self.paths():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.with_suffix(".new").write_text(text)
            path.with_suffix(".new").replace(path)

    def paths(self) -> list[Path]:
        """Return the files of the results; those of a rehearsal are not among the published
        ones."""
        if self.is_rehearsal:
            return [HOME / "rehearsal.json"]
        slug = re.sub(r"[^a-z0-9]+", "-", self.machine.get("gpu", "no gpu").lower()).strip("-")
        path = ROOT / "benchmarks" / "results" / f"{self.machine['date']}-{slug}.json"
        out = os.environ.get("OUT")
        known = [path] if "gpu" in self.machine else []
        return known + ([Path(out) / "gpu.json"] if out else [HOME / "gpu.json"])


class Run:
    """Run the parts, one after the other, until the time is up."""

    def __init__(self, folder: Path, results: Results, seconds: float) -> None:
        self._folder = folder
        self._results = results
        self._deadline = time.monotonic() + seconds
        self._log = (HOME / "gpu.log").open("w")

    def all_of(self, parts: Sequence[Part]) -> None:
        for part in parts:
            most = part.seconds * (REHEARSED if self._results.is_rehearsal else 1)
            seconds = min(most, self._deadline - time.monotonic())
            self._results.parts[part.name] = found = {"what": part.what, "state": "running"}
            if seconds < LEAST_SECONDS:
                found["state"] = "not begun: no time was left"
            else:
                self._one(part, seconds, found)
            self._results.write()
            self._copy_log()
            print(f"{part.name}: {found['state']}", flush=True)

    def _one(self, part: Part, seconds: float, found: dict[str, Any]) -> None:
        began = time.monotonic()
        words = HOME / "words"
        with words.open("w") as file:
            found["state"] = self._process(part, seconds, file)
        found["seconds"] = round(time.monotonic() - began, 1)
        said = words.read_text(errors="replace")
        self._log.write(f"\n=== {part.name}: {found['state']}, {found['seconds']} s\n{said}")
        self._log.flush()
        if found["state"] != "done":
            found["words"] = said[-WORDS:]

    def _process(self, part: Part, seconds: float, words: Any) -> str:
        """Return how the part ended; its first output is read meanwhile."""
        try:
            process = subprocess.Popen(
                self._command(part),
                cwd=HERE.parent,  # in ROOT the checkout would be imported, which is not built
                env=environment(part, self._results.is_rehearsal),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=words,
                text=True,
                errors="replace",
                preexec_fn=os.setpgrp,  # a group, and not a session, which would outlive ours
            )
        except OSError as error:
            return f"not begun: {error}"
        ear = threading.Thread(target=self._listen, args=(part.name, process, words))
        ear.start()
        code = None
        try:
            with contextlib.suppress(subprocess.TimeoutExpired):
                code = process.wait(timeout=seconds)
        finally:
            # and processes that it left running, too
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            ear.join(timeout=5)
        if code is None:
            return f"stopped after {seconds:.0f} s, its limit"
        return "done" if code == 0 else f"failed with {code}"

    def _listen(self, name: str, process: subprocess.Popen[str], words: Any) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            words.write(line)
            words.flush()
            self._results.hear(name, line)

    def _command(self, part: Part) -> list[str]:
        known = {"name": part.name, "folder": self._folder, "driver": DRIVER}
        filled = [word.format(**known) for word in part.command]
        if part.name == "driver_costs" and self._results.is_rehearsal:
            filled += SHORT_COSTS
        return filled if part.command[0] == "{driver}" else [sys.executable, *filled]

    def _copy_log(self) -> None:
        if out := os.environ.get("OUT"):
            shutil.copy(HOME / "gpu.log", Path(out) / "gpu.log")


def environment(part: Part, is_rehearsal: bool) -> dict[str, str]:
    """Return the environment: packages installed here come first, then benchmarks/ and the user's
    own."""
    ours = {
        "PYTHONPATH": os.pathsep.join((str(SITE), os.environ["PYTHONPATH"])),
        "PYTHONUNBUFFERED": "1",
        # otherwise each of the many processes compiles what it imports
        "PYTHONDONTWRITEBYTECODE": "",
        "OMP_WAIT_POLICY": "PASSIVE",
        "GPUSHARE_GPU_DEVICE": "cuda:0",
    }
    return {**os.environ, **ours, **(rehearsal(part) if is_rehearsal else {})}


def rehearsal(part: Part) -> dict[str, str]:
    """Return the environment of a rehearsal: one fake GPU for all processes, or the device
    `host`."""
    ours = {"GPUSHARE_GPU_REHEARSAL": "1"}
    if IS_FAKE_GPU:
        return {**ours, "FAKE_CUDA_HOST": f"rehearsal-{os.getpid()}"}
    if part.command[0] == "{driver}":
        ours["LD_LIBRARY_PATH"] = str(HOME)  # the fake driver
    return {**ours, "GPUSHARE_GPU_DEVICE": "host"}


# --- for people ---------------------------------------------------------------------------------


def report(results: Results) -> str:
    """Return a line for each fact and figure; the file has the last output of a failed part.
    Figures of a rehearsal are not compared with promises."""
    lines = ["a rehearsal: its figures say nothing"] if results.is_rehearsal else []
    for name, found in results.parts.items():
        lines.append(f"\n{name}: {found['state']} ({found.get('seconds', 0)} s)")
        for fact, said in found.get("facts", {}).items():
            answer = {True: "yes", False: "NO", None: "?"}[said["holds"]]
            note = f"  ({first_line(said['note'])})" if said["note"] else ""
            lines.append(f"  {answer:4}{fact}{note}")
        for figure, said in found.get("figures", {}).items():
            lines.append(f"  {figure_line(figure, said, not results.is_rehearsal)}")
        lines += [f"  error: {first_line(text)}" for text in found.get("errors", [])]
        lines += [f"  {note}" for note in found.get("notes", [])]
    return "\n".join(lines)


def figure_line(name: str, said: dict[str, Any], counts: bool) -> str:
    line = f"{name:44}{said['value']:12.4g} {said.get('unit', '')}"
    if "target" not in said or not counts:
        return line
    sign = ">=" if said["at_least"] else "<="
    return f"{line:66}{sign} {said['target']:g}: {'met' if is_met(said) else 'MISSED'}"


def is_met(said: dict[str, Any]) -> bool:
    """Whether a figure keeps its promise, if it has one."""
    if "target" not in said:
        return True
    if said["at_least"]:
        return bool(said["value"] >= said["target"])
    return bool(said["value"] <= said["target"])


def misses_a_promise(results: Results) -> bool:
    """Whether a figure misses its promise; those of a rehearsal do not count."""
    said = [each for found in results.parts.values() for each in found.get("figures", {}).values()]
    return not results.is_rehearsal and not all(map(is_met, said))


def first_line(text: str) -> str:
    """Return the last line that is not empty: in a traceback, that is the error."""
    return next((line for line in reversed(text.strip().splitlines()) if line.strip()), "")[:150]


def chosen(names: Sequence[str], skipped: Sequence[str]) -> list[Part]:
    known = {part.name for part in PARTS}
    if unknown := [name for name in (*names, *skipped) if name not in known]:
        sys.exit(f"gpu.sh: there is no part {unknown[0]}; the parts are {' '.join(sorted(known))}")
    return [
        part
        for part in PARTS
        if part.name not in skipped and (part.is_preparation or not names or part.name in names)
    ]


def arguments() -> argparse.Namespace:
    parts = "\n".join(f"  {part.name:16}{part.seconds:4.0f} s  {part.what}" for part in PARTS)
    parser = argparse.ArgumentParser(
        prog="gpu.sh",
        description="Tests and figures on a machine with a GPU.",
        epilog=f"parts, and the most that each may take:\n{parts}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("parts", nargs="*", metavar="PART", help="only these; all unless told")
    parser.add_argument("--pack", nargs="?", const=FOLDER, type=Path, metavar="FOLDER")
    parser.add_argument("--packages", default=FOLDER, type=Path, metavar="FOLDER")
    parser.add_argument("--rehearse", action="store_true", help="without a GPU; no result counts")
    parser.add_argument("--skip", action="append", default=[], metavar="PART")
    parser.add_argument("--seconds", type=float, help=f"in all ({SECONDS:g}; more in a rehearsal)")
    return parser.parse_args()


def main() -> int:
    given = arguments()
    SITE.mkdir(parents=True, exist_ok=True)  # a path that is not there when Python starts is passed
    if given.pack is not None:
        command = [sys.executable, *OURS, "pack", str(given.pack.absolute())]
        return subprocess.run(command, cwd=HERE.parent, env=environment(PARTS[0], True)).returncode
    if IS_FAKE_GPU and not given.rehearse:
        sys.exit("gpu.sh: this GPU is main memory and has no figures; --rehearse is for it")
    parts = chosen(given.parts, given.skip)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("gpu.sh: ended from outside"))
    usual = SECONDS * (REHEARSED if given.rehearse else 1)
    seconds = usual if given.seconds is None else given.seconds
    results = Results(given.rehearse, seconds)
    try:
        Run(given.packages.absolute(), results, seconds).all_of(parts)
    finally:
        results.write()
        print(report(results))
        print("\nwritten:", *results.paths())
    found = [results.parts[part.name] for part in parts]
    return any(each["state"] != "done" for each in found) or misses_a_promise(results)


if __name__ == "__main__":
    sys.exit(main())
