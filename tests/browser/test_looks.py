"""The panel with few and many notebooks, in each theme, and for people who cannot see it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

expect = pytest.importorskip("playwright.sync_api", reason="needs playwright").expect
MODULES = Path(__file__).resolve().parents[2] / "labextension" / "node_modules"
AXE = MODULES / "axe-core" / "axe.min.js"


@pytest.mark.system
@pytest.mark.parametrize(
    "count",
    [
        2,
        pytest.param(10, marks=pytest.mark.thorough),
        pytest.param(100, marks=pytest.mark.thorough),
    ],
)
def test_few_and_many_look_well_and_nothing_is_inaccessible(
    visit: Any, crowd: Any, count: int
) -> None:
    lab = visit("empty.ipynb")
    crowd(count)
    expect(lab.panel.locator("tbody.jp-mod-waiting").first).to_be_visible()
    open_one = lab.panel.locator("button.jp-GpuShare-name").first
    lab.wait_for_timeline()
    for theme in ("Light", "Dark", "Dark High Contrast"):
        lab.choose_theme(theme)
        for width, height in ((1280, 800), (1920, 1080)):
            lab.page.set_viewport_size({"width": width, "height": height})
            lab.picture(f"{count}-{theme.lower().replace(' ', '-')}-{width}")
        open_one.click()
        assert barriers(lab.page) == []
        open_one.click()


def barriers(page: Any) -> list[str]:
    """Return serious findings of axe in the panel and the status bar entry."""
    if not AXE.exists():
        pytest.skip("needs axe-core: `make test-frontend` installs it")
    page.evaluate(AXE.read_text())
    where = json.dumps({"include": [["#jupyter-gpushare-panel"], [".jp-GpuShare-status"]]})
    found = page.evaluate(f"async () => (await axe.run({where})).violations")
    return [
        f"{rule['id']}: {node['html'][:200]} {node['failureSummary'][:300]}"
        for rule in found
        if rule["impact"] in ("serious", "critical")
        for node in rule["nodes"]
    ]
