"""The same panel and button in Jupyter Notebook."""

from __future__ import annotations

import re
from typing import Any

import pytest

from .conftest import PANEL, TOKEN, take_picture

expect = pytest.importorskip("playwright.sync_api", reason="needs playwright").expect


@pytest.mark.system
def test_notebook_has_the_button_and_the_panel(classic: str, new_page: Any, sessions: Any) -> None:
    page = new_page(1280, 800, "jupyter-gpushare")  # Notebook 7.6 throws by itself as it starts
    page.goto(f"{classic}/empty.ipynb?token={TOKEN}")
    button = page.get_by_role("button", name=re.compile("^GPU sharing is (on|off)"))
    expect(button).to_have_accessible_name(re.compile("turn it on"))
    button.click()
    expect(button).to_have_accessible_name(re.compile("turn it off"))
    assert "empty.ipynb" in sessions()

    page.keyboard.press("Control+Alt+g")
    panel = page.locator(PANEL)
    row = panel.locator("tbody.jp-GpuShare-notebook", has_text="empty.ipynb")
    expect(row).to_be_in_viewport()
    assert panel.evaluate("node => node.scrollWidth <= node.clientWidth"), "text is cut"
    take_picture(page, "notebook")
    row.get_by_role("button", name="empty.ipynb").click()
    row.get_by_role("button", name="Pause").click()
    expect(row).to_have_class(re.compile("jp-mod-paused"))
