"""Take the README's picture of JupyterLab: the three examples share a device, the panel shows it.

`.venv/bin/python docs/pictures/take.py` needs Chromium. The other picture is drawn by
`.venv/bin/python examples/demo.py --picture docs/pictures/demo.svg`.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import sys
import tempfile
from pathlib import Path

from playwright.async_api import Page, async_playwright

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent.parent / "examples"))

from demo import HERE as EXAMPLES  # noqa: E402
from demo import NAMES, Phase  # noqa: E402
from server import Server  # noqa: E402

PANEL = "jupyter-gpushare"
ITERATIONS = 60  # of each notebook, before the picture is taken


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
    await server.ready()
    phase = Phase(server, "three notebooks", NAMES, sharing=True)
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(
            executable_path="/usr/bin/chromium", args=["--no-sandbox", "--disable-gpu"]
        )
        page = await browser.new_page(viewport={"width": 1280, "height": 860})
        await open_lab(page, server)
        playing = asyncio.create_task(phase.play())
        await trained(phase)
        await page.screenshot(path=HERE / "panel.png")
        await playing
        await browser.close()


def without_news(folder: Path) -> None:
    """JupyterLab asks about news in the corner where the panel is."""
    folder.mkdir(parents=True)
    disabled = {"disabledExtensions": {"@jupyterlab/apputils-extension:announcements": True}}
    (folder / "page_config.json").write_text(json.dumps(disabled))


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="gpushare-") as home:
        shutil.copytree(EXAMPLES, Path(home) / "notebooks", ignore=shutil.ignore_patterns("*.py"))
        without_news(Path(home) / "config" / "labconfig")
        server = Server(Path(home))
        try:
            asyncio.run(take(server))
        finally:
            server.stop()


if __name__ == "__main__":
    main()
