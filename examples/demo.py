"""`make demo`: three real notebooks share one device, compared with running alone.

It starts a Jupyter server of its own and runs the notebooks beside this file over its API, as a
browser would: each without sharing, each alone with sharing on, then all three together. It prints
which notebooks run and wait, checks that sharing changed no loss and no weight, and writes
build/demo.json. The notebooks use a GPU where PyTorch finds one; `make demo DEVICE=cuda` gives them
the fake GPU if there is none; its times say nothing, and are left out.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text
from server import JSON, Notebook, Server, ServerError

HERE = Path(__file__).resolve().parent
IS_FAKE_GPU = "FAKE_CUDA_BYTES" in os.environ  # tests/system/cuda/run gives it
RESULT = HERE.parent / "build" / ("demo-fake-gpu.json" if IS_FAKE_GPU else "demo.json")
NAMES = ("cnn", "transformer", "mlp_gan")
COLOURS = {"cnn": "cyan", "transformer": "magenta", "mlp_gan": "yellow"}
SHARING = ("%load_ext jupyter_gpushare", "%gpushare on")
PHASE_SECONDS = 240.0
POLL_SECONDS = 0.25
SETTLE_SECONDS = 10.0
MIB = 1 << 20
# A process has no CUDA context on the fake GPU.
SETTINGS = {"JUPYTER_GPUSHARE_CUDA_CONTEXT_BYTES": "0"} if IS_FAKE_GPU else {}
OF_TIME = re.compile("seconds|makespan")
FAKE_GPU = (
    "This GPU is main memory, and PyTorch's kernels for a CPU computed on it. Memory and"
    " results are those of PyTorch's own CUDA allocator; the times say nothing about a GPU."
)


class DemoError(Exception):
    """A broken promise, as one sentence."""


def cells(name: str, sharing: bool) -> list[str]:
    """Return the code cells of an example, without our two lines if `sharing` is False."""
    notebook = json.loads((HERE / f"{name}.ipynb").read_text())
    codes = ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code"]
    if sharing:
        return codes
    return ["\n".join(li for li in code.splitlines() if li not in SHARING) for code in codes]


# --- the demonstration ---------------------------------------------------------------------------


@dataclass
class Run:
    """One notebook from its first cell to its last. `shown` is its part of the last snapshot."""

    name: str
    seconds: float = 0.0
    losses: str = ""
    digest: str = ""
    said: str = ""
    shown: JSON = field(default_factory=dict)
    done: bool = False

    @property
    def result(self) -> tuple[str, str]:
        return self.losses, self.digest

    @property
    def iterations(self) -> int:
        return int(self.shown.get("iterations", 0))

    def heard(self, text: str) -> None:
        """Keep the last line about an epoch."""
        self.said = next((li for li in text.splitlines()[::-1] if li[:5] == "epoch"), self.said)

    @property
    def state(self) -> str:
        if self.done:
            return "done"
        state = str(self.shown.get("state", "running"))
        return f"waiting, position {self.shown['position']}" if state == "waiting" else state


class Phase:
    """Some notebooks at once, watched: the runs, and the holder of the device at each look."""

    def __init__(self, server: Server, title: str, names: tuple[str, ...], sharing: bool) -> None:
        self.title = title
        self.runs = [Run(name) for name in names]
        self.holders: list[str | None] = []
        self.seconds = 0.0
        self.device: JSON = {}
        self.lane_bytes = 0  # of the device's memory, the most at any look
        self._server = server
        self._sharing = sharing

    async def play(self) -> None:
        """Open all notebooks, run them at the same time, look a last time, close them."""
        notebooks = [Notebook(self._server, run.name, run.heard) for run in self.runs]
        try:
            await asyncio.gather(*(notebook.open() for notebook in notebooks))
            start = time.perf_counter()
            await asyncio.wait_for(self._run_all(notebooks), PHASE_SECONDS)
            self.seconds = time.perf_counter() - start
            await self._settled()
        except asyncio.TimeoutError:
            raise DemoError(f"{self.title}: not done after {PHASE_SECONDS:g} s") from None
        finally:
            closing = (notebook.close() for notebook in notebooks)
            await asyncio.gather(*closing, return_exceptions=True)

    async def _run_all(self, notebooks: list[Notebook]) -> None:
        await asyncio.gather(*map(self._run, notebooks, self.runs))

    async def _run(self, notebook: Notebook, run: Run) -> None:
        start = time.perf_counter()
        for code in cells(run.name, self._sharing):
            await notebook.run(code)
        run.seconds = time.perf_counter() - start
        run.done = True
        values = await notebook.run("", losses="losses", digest="digest")
        run.losses, run.digest = values["losses"], values["digest"]

    async def _settled(self) -> None:
        """Look until the broker has the last reports: no notebook holds or wants the device."""
        until = time.monotonic() + SETTLE_SECONDS
        await self.look()
        while any(run.shown.get("state", "idle") != "idle" for run in self.runs):
            if time.monotonic() > until:
                raise DemoError("a notebook that is done still holds the device")
            await asyncio.sleep(POLL_SECONDS)
            await self.look()

    async def look(self) -> None:
        """Copy the broker's present answer into the runs."""
        snapshot = await self._server.snapshot()
        for device in snapshot["devices"]:
            for shown in device["sessions"]:
                self._take(device, shown)
        self.lane_bytes = max(self.lane_bytes, self._lane_bytes())
        self.holders.append(
            next((r.name for r in self.runs if r.state == "running" and r.shown), None)
        )

    def _lane_bytes(self) -> int:
        """Return the device memory of the lane: the pages in use of main memory, or all of it on a
        GPU."""
        if self.device.get("name", "host") == "host":
            return self._server.lane_bytes()
        return sum(lane["bytes"] for lane in self.device["lanes"])

    def _take(self, device: JSON, shown: JSON) -> None:
        for run in self.runs:
            if Path(shown["name"]).stem == run.name:
                run.shown, self.device = shown, device


def board(phase: Phase, seconds: float) -> Group:
    """Return the live view of one phase."""
    table = Table(title=f"{phase.title}, {seconds:.0f} s", title_justify="left", min_width=76)
    for column in ("notebook", "state", "iterations", "device", "waited", "last line"):
        table.add_column(
            column, justify="left" if column in ("notebook", "state", "last line") else "right"
        )
    for run in phase.runs:
        colour = COLOURS[run.name]
        used, waited = (run.shown.get(f"{name}_seconds", 0.0) for name in ("device", "waited"))
        table.add_row(
            Text(run.name, colour),
            run.state,
            str(run.iterations),
            f"{used:.1f} s",
            f"{waited:.1f} s",
            run.said,
        )
    return Group(table, strip(phase.holders[-76:]))


def strip(holders: list[str | None]) -> Text:
    """Return the holders of the device, one block for each look."""
    blocks = ((("█", COLOURS[name]) if name else (" ", "")) for name in holders)
    return Text.assemble(*blocks)


async def shown(console: Console, phase: Phase) -> None:
    """Play a phase and show it: a live table on a terminal, else a line every few seconds."""
    show = live_table if console.is_terminal else lines
    playing = asyncio.create_task(phase.play())
    try:
        with show(console, phase) as update:
            while not (await asyncio.wait({playing}, timeout=POLL_SECONDS))[0]:
                await phase.look()
                update()
    finally:
        playing.cancel()
        await asyncio.wait({playing})
    playing.result()


@contextmanager
def live_table(console: Console, phase: Phase) -> Iterator[Callable[[], None]]:
    start = time.monotonic()
    with Live(console=console, transient=True, auto_refresh=False) as live:
        yield lambda: live.update(board(phase, time.monotonic() - start), refresh=True)


@contextmanager
def lines(console: Console, phase: Phase) -> Iterator[Callable[[], None]]:
    start = time.monotonic()
    console.print(phase.title)

    def update() -> None:
        if len(phase.holders) % 12 == 0:
            seconds = time.monotonic() - start
            console.print(f"  {seconds:3.0f} s  {'; '.join(map(line, phase.runs))}", soft_wrap=True)

    yield update


def line(run: Run) -> str:
    """Return one run in words."""
    iterations = f", {run.iterations} iterations" if run.iterations else ""
    return f"{run.name} {run.state}{iterations}" + (f", {run.said}" if run.said else "")


# --- the result ----------------------------------------------------------------------------------


@dataclass
class Comparison:
    """The same notebooks: without sharing, alone, together."""

    without: dict[str, Run]
    alone: dict[str, Run]
    together: Phase
    unshared: Phase | None  # all at once, without sharing; it takes minutes

    def rows(self) -> list[JSON]:
        return [self._row(run) for run in self.together.runs]

    def _row(self, run: Run) -> JSON:
        without, alone, shown = self.without[run.name], self.alone[run.name], run.shown
        return {
            "name": run.name,
            "seconds_without_sharing": round(without.seconds, 2),
            "seconds_alone": round(alone.seconds, 2),
            "seconds_shared": round(run.seconds, 2),
            "waited_seconds": round(shown["waited_seconds"], 2),
            "device_seconds": round(shown["device_seconds"], 2),
            "iterations": shown["iterations"],
            "persistent_bytes": shown["persistent_bytes"],
            "ephemeral_bytes": shown["ephemeral_bytes"],
            "losses_identical": run.result == alone.result == without.result,
        }

    def result(self) -> JSON:
        device = self.together.device
        return {
            "device": {name: device[name] for name in ("name", "capacity_bytes")},
            "is_fake_gpu": IS_FAKE_GPU,
            "notebooks": self.rows(),
            "makespan_serial": round(sum(run.seconds for run in self.alone.values()), 2),
            "makespan_shared": round(self.together.seconds, 2),
            "makespan_unshared": round(self.unshared.seconds, 2) if self.unshared else None,
            "lane_bytes": [lane["bytes"] for lane in device["lanes"]],
            "memory": self.memory(),
        }

    def memory(self) -> JSON:
        """Bytes of tensors: the demands of the three when alone, added up, and all three together.

        Together they had the persistent memory of each, by count, and the lane, by the most that
        it ever had of the machine's memory.
        """
        alone = (self.alone[name].shown for name in self.alone)
        persistent, lanes = self.together.device["persistent_bytes"], self.together.lane_bytes
        return {
            "sum_of_peaks_alone": sum(s["persistent_bytes"] + s["ephemeral_bytes"] for s in alone),
            "together": persistent + lanes,
            "persistent": persistent,
            "resident_in_lanes": lanes,
        }

    def check(self, needs_gpu: bool) -> None:
        """Raises DemoError with the first thing that is not as promised."""
        if needs_gpu and self.together.device["name"] == "host":
            raise DemoError("PyTorch found no GPU, and the notebooks shared the device host")
        for run in self.together.runs:
            if not run.shown.get("iterations"):
                raise DemoError(f"{run.name}: the broker saw no iteration of it")
        for row in self.rows():
            if not row["losses_identical"]:
                raise DemoError(
                    f"{row['name']}: losses or weights differ from a run without sharing"
                )
        if not any(row["waited_seconds"] for row in self.rows()):
            raise DemoError("no notebook waited for another: they did not share the device")
        memory = self.memory()
        if not memory["resident_in_lanes"]:
            raise DemoError("no notebook used the memory of the lane")
        if memory["together"] >= memory["sum_of_peaks_alone"]:
            raise DemoError("together the notebooks needed as much memory as each by itself")


def summary(result: JSON, holders: list[str | None]) -> Group:
    """Return the closing table; without times where they say nothing."""
    title = f"three notebooks, one device: {device_name(result)}"
    table = Table(title=title, title_justify="left")
    table.add_column("notebook", no_wrap=True)
    of_time = () if result["is_fake_gpu"] else ("alone", "shared", "waited", "device")
    for column in (*of_time, "iterations", "persistent +\nephemeral, MiB"):
        table.add_column(column, justify="right")
    table.add_column("losses,\nweights")
    for row in result["notebooks"]:
        same = "identical" if row["losses_identical"] else "different"
        name = Text(row["name"], COLOURS[row["name"]])
        parts = (row[f"{part}_bytes"] / MIB for part in ("persistent", "ephemeral"))
        memory = " + ".join(f"{part:.1f}" for part in parts)
        times = times_of(row) if of_time else ()
        table.add_row(name, *times, str(row["iterations"]), memory, same)
    return Group(table, memory_line(result["memory"]), ending(result), strip(holders))


def device_name(result: JSON) -> str:
    name: str = result["device"]["name"]
    return f"{name}, the fake GPU" if result["is_fake_gpu"] else name


def times_of(row: JSON) -> list[str]:
    names = ("seconds_alone", "seconds_shared", "waited_seconds", "device_seconds")
    return [f"{row[name]:.1f} s" for name in names]


def ending(result: JSON) -> str:
    if result["is_fake_gpu"]:
        return f"{FAKE_GPU}\nThe order of turns:"
    serial, together = result["makespan_serial"], result["makespan_shared"]
    return f"one after the other {serial:.1f} s, together {together:.1f} s; turns over time:"


def memory_line(memory: JSON) -> str:
    """Return a sentence about the memory that sharing saved."""
    alone, together, persistent, lanes = (
        memory[part] / MIB
        for part in ("sum_of_peaks_alone", "together", "persistent", "resident_in_lanes")
    )
    return (
        f"memory: each by itself {alone:.1f} MiB in all, together {together:.1f} MiB: "
        f"{persistent:.1f} persistent and {lanes:.1f} in the lane"
    )


async def compare(console: Console, server: Server, unshared: bool) -> Comparison:
    """Play all phases, in order."""
    alone: dict[bool, dict[str, Run]] = {False: {}, True: {}}
    for sharing in (False, True):
        for name in NAMES:
            title = f"{name} alone, sharing {'on' if sharing else 'off'}"
            phase = Phase(server, title, (name,), sharing)
            await shown(console, phase)
            alone[sharing][name] = phase.runs[0]
            console.print(end_of(phase))
    crowds = {}
    for sharing in (False, True) if unshared else (True,):
        title = f"all three together, sharing {'on' if sharing else 'off'}"
        crowds[sharing] = Phase(server, title, NAMES, sharing)
        await shown(console, crowds[sharing])
        console.print(end_of(crowds[sharing]))
    return Comparison(alone[False], alone[True], crowds[True], crowds.get(False))


def end_of(phase: Phase) -> str:
    return f"{phase.title}: " + ("done" if IS_FAKE_GPU else f"{phase.seconds:.1f} s")


async def demonstrate(console: Console, unshared: bool, needs_gpu: bool) -> tuple[Comparison, JSON]:
    """Start the server, compare, check, and leave nothing running, interrupted or not."""
    ours = asyncio.current_task()
    assert ours is not None  # we run in one
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, ours.cancel)
    with tempfile.TemporaryDirectory(prefix="gpushare-") as home:
        shutil.copytree(HERE, Path(home) / "notebooks", ignore=shutil.ignore_patterns("*.py", ".*"))
        server = Server(Path(home), **SETTINGS)
        try:
            await server.ready()
            comparison = await compare(console, server, unshared)
            comparison.check(needs_gpu)
            return comparison, comparison.result()
        finally:
            server.stop()


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--picture", type=Path, help="save the closing table as SVG there")
    options.add_argument(
        "--unshared", action="store_true", help="also all three at once without sharing (minutes)"
    )
    options.add_argument("--needs-gpu", action="store_true", help="fail where PyTorch finds none")
    chosen = options.parse_args()
    picture = chosen.picture
    console = Console(record=picture is not None, width=None if sys.stdout.isatty() else 90)
    try:
        comparison, result = asyncio.run(demonstrate(Console(), chosen.unshared, chosen.needs_gpu))
    except (DemoError, ServerError) as error:
        print(f"demo: {error}", file=sys.stderr)
        return 1
    except asyncio.CancelledError:
        print("demo: interrupted; everything it started has ended", file=sys.stderr)
        return 130
    RESULT.parent.mkdir(exist_ok=True)
    RESULT.write_text(json.dumps(without_times(result), indent=2) + "\n")
    console.print(summary(result, fold(comparison.together.holders)))
    if picture:
        picture.write_text(without_fonts(console.export_svg(title="make demo")))
    print("demo: ok")
    return 0


def without_times(result: JSON) -> JSON:
    """Remove the times, if the device is the fake GPU."""
    if not IS_FAKE_GPU:
        return result
    rows = [{k: v for k, v in row.items() if not OF_TIME.search(k)} for row in result["notebooks"]]
    kept = {k: v for k, v in result.items() if not OF_TIME.search(k)}
    return {**kept, "notebooks": rows}


def without_fonts(svg: str) -> str:
    """Return the picture without fonts, so that it loads nothing from elsewhere."""
    return re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL)


def fold(holders: list[str | None], width: int = 76) -> list[str | None]:
    """Return at most `width` looks, evenly spaced."""
    step = max(1, -(-len(holders) // width))
    return holders[::step]


if __name__ == "__main__":
    sys.exit(main())
