"""Take the pictures of JupyterLab: that of the README, where the three examples share a device, and
that of jobs on a cluster.

`.venv/bin/python docs/pictures/take.py` needs Chromium. The picture of the demo is drawn by
`.venv/bin/python examples/demo.py --picture docs/pictures/demo.svg`.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

from playwright.async_api import Page, async_playwright

from jupyter_gpushare.jobs.job import Job, submit
from jupyter_gpushare.settings import load

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent.parent / "examples"))

from demo import HERE as EXAMPLES  # noqa: E402
from demo import NAMES, Phase  # noqa: E402
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


def without_news(folder: Path) -> None:
    """JupyterLab asks about news in the corner where the panel is."""
    folder.mkdir(parents=True)
    disabled = {"disabledExtensions": {"@jupyterlab/apputils-extension:announcements": True}}
    (folder / "page_config.json").write_text(json.dumps(disabled))


@contextmanager
def serving() -> Iterator[Server]:
    with tempfile.TemporaryDirectory(prefix="gpushare-") as home:
        shutil.copytree(EXAMPLES, Path(home) / "notebooks", ignore=shutil.ignore_patterns("*.py"))
        without_news(Path(home) / "config" / "labconfig")
        cluster = {"CLUSTER_DIRECTORY": f"{home}/jobs", "CLUSTER_NODES": NODES}
        named = {f"JUPYTER_GPUSHARE_{name}": text for name, text in cluster.items()}
        server = Server(Path(home), **named)
        try:
            yield server
        finally:
            server.stop()


def main() -> None:
    for picture in (take, take_jobs):
        with serving() as server:
            asyncio.run(picture(server))


if __name__ == "__main__":
    main()
