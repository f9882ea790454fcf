"""Take the pictures of JupyterLab: that of the README, where the three examples share a device,
that of jobs on a cluster, and those of a class of twelve, in the panel and by `top`.

`.venv/bin/python docs/pictures/take.py` needs Chromium. The picture of the demo is drawn by
`.venv/bin/python examples/demo.py --picture docs/pictures/demo.svg`.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from pathlib import Path

from playwright.async_api import Page, async_playwright
from rich.console import Console

from jupyter_gpushare.jobs.job import Job, submit
from jupyter_gpushare.settings import Settings, load
from jupyter_gpushare.tools.screen import Screen
from jupyter_gpushare.wire.client import Client

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent.parent / "examples"))

from demo import HERE as EXAMPLES  # noqa: E402
from demo import NAMES, Phase, without_fonts  # noqa: E402
from server import Server  # noqa: E402

PANEL = "jupyter-gpushare"
ITERATIONS = 60  # of each notebook, before the picture is taken
NODES = "node-a=4 node-b=2 node-c=1/4"  # the GPU of the last one is divided into 4 shards
JOBS = {"resnet": 4, "gan": 3, "look": 0.25, "bert": 2}  # GPUs of each
JOB = """
import time
import torch
import jupyter_gpushare as gpushare
gpushare.checkpoint(model=torch.nn.Linear(4, 4))
for _ in gpushare.iterations(range(2_000)):
    time.sleep(0.05)
"""
CLASS = 12
STUDENT = """
import sys
import torch
import jupyter_gpushare as gpushare
number = int(sys.argv[1])
with gpushare.session(name=f"student_{number:02}.ipynb"):
    wide = 256 * (1 + number % 4)
    layers = torch.nn.Linear(256, wide), torch.nn.ReLU(), torch.nn.Linear(wide, 1)
    model = torch.nn.Sequential(*layers)
    optimizer = torch.optim.Adam(model.parameters())
    for _ in gpushare.iterations(range(100_000)):
        optimizer.zero_grad()
        model(torch.ones(2048, 256)).square().mean().backward()
        optimizer.step()
"""
NARROW = "() => jupyterapp.shell._hsplitPanel.setRelativeSizes([0, 1, 0])"
THEME = """async theme => {
  await jupyterapp.commands.execute('apputils:change-theme', { theme: `JupyterLab ${theme}` });
  while (document.body.dataset.jpThemeName !== `JupyterLab ${theme}`)
    await new Promise(requestAnimationFrame);
}"""


async def open_lab(page: Page, server: Server) -> None:
    await page.goto(f"{server.url}/lab/tree/cnn.ipynb?token={server.token}&reset")
    await page.locator(".jp-NotebookPanel .jp-Cell").first.wait_for()
    await page.keyboard.press("Control+b")  # the file browser goes
    await page.locator(f'.jp-SideBar .lm-TabBar-tab[data-id^="{PANEL}"]').click()


async def trained(phase: Phase) -> None:
    """Wait until every notebook has done ITERATIONS iterations."""
    while not all(run.iterations > ITERATIONS for run in phase.runs):
        await asyncio.sleep(0.25)
        await phase.look()


async def take(server: Server) -> None:
    phase = Phase(server, "three notebooks", NAMES, sharing=True)
    async with lab(server) as page:
        playing = asyncio.create_task(phase.play())
        await trained(phase)
        await page.screenshot(path=HERE / "panel.png")
        await playing


async def take_jobs(server: Server) -> None:
    (script := server.home / "train.py").write_text(JOB)
    settings = load(server.environment())
    jobs = [
        submit(script, gpus=gpus, nodes=1, name=name, settings=settings)
        for name, gpus in JOBS.items()
    ]
    async with lab(server) as page:
        await asyncio.to_thread(has_computed, jobs[0])
        section = page.locator(".jp-GpuShare-jobs")
        await section.locator(".jp-GpuShare-job").nth(len(JOBS) - 1).wait_for()
        await section.screenshot(path=HERE / "jobs.png")
    for job in jobs:
        job.cancel()


async def take_class(server: Server) -> None:
    settings = load(server.environment())
    with ExitStack() as students:
        for number in range(CLASS):
            command = [sys.executable, "-c", STUDENT, str(number)]
            student = subprocess.Popen(command, env=server.environment(), cwd=server.home)
            students.callback(student.wait)
            students.callback(student.terminate)
        async with lab(server) as page:
            await page.locator("tbody.jp-GpuShare-notebook").nth(CLASS - 1).wait_for()
            await asyncio.sleep(60)  # timelines show the last minute
            draw_top(settings)
            for theme in ("Light", "Dark"):
                await page.evaluate(THEME, theme)
                await page.locator("#jupyterlab-splash").wait_for(state="detached")
                await page.screenshot(path=HERE / f"class-{theme.lower()}.png")
            await page.evaluate(NARROW)
            await page.locator(f"#{PANEL}-panel").screenshot(path=HERE / "class-narrow.png")


def draw_top(settings: Settings) -> None:
    console = Console(record=True, width=80, height=24)
    with Client.connect(settings, "jupyter gpushare", start=False) as client:
        console.print(Screen("", client.look()), end="")
    title = "jupyter gpushare top"
    (HERE / "top.svg").write_text(without_fonts(console.export_svg(title=title)))


def has_computed(job: Job) -> None:
    """Wait until it has done ITERATIONS iterations."""
    while (job.look().iteration or 0) < ITERATIONS:
        time.sleep(0.25)


@asynccontextmanager
async def lab(server: Server) -> AsyncIterator[Page]:
    """The panel beside a notebook, in a browser."""
    await server.ready()
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(
            executable_path="/usr/bin/chromium", args=["--no-sandbox", "--disable-gpu"]
        )
        page = await browser.new_page(viewport={"width": 1280, "height": 860})
        await open_lab(page, server)
        yield page
        await browser.close()


def configure(config: Path) -> None:
    """JupyterLab asks about news in the corner where the panel is. Its commands are called here."""
    (folder := config / "labconfig").mkdir(parents=True)
    exposed = {"LabApp": {"expose_app_in_browser": True}}
    (config / "jupyter_lab_config.json").write_text(json.dumps(exposed))
    disabled = {"disabledExtensions": {"@jupyterlab/apputils-extension:announcements": True}}
    (folder / "page_config.json").write_text(json.dumps(disabled))


@contextmanager
def serving() -> Iterator[Server]:
    with tempfile.TemporaryDirectory(prefix="gpushare-") as home:
        shutil.copytree(EXAMPLES, Path(home) / "notebooks", ignore=shutil.ignore_patterns("*.py"))
        configure(Path(home) / "config")
        cluster = {"CLUSTER_DIRECTORY": f"{home}/jobs", "CLUSTER_NODES": NODES}
        named = {f"JUPYTER_GPUSHARE_{name}": text for name, text in cluster.items()}
        server = Server(Path(home), **named)
        try:
            yield server
        finally:
            server.stop()


def main() -> None:
    for picture in (take, take_jobs, take_class):
        with serving() as server:
            asyncio.run(picture(server))


if __name__ == "__main__":
    main()
