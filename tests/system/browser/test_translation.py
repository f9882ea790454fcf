"""The panel speaks the language of JupyterLab, reasons included, where a language pack has it."""

from __future__ import annotations

import json
import os
import re
import string
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from jupyter_gpushare import _core
from jupyter_gpushare.reasons import GONE, TEXTS

if TYPE_CHECKING:
    from .conftest import Lab, Server

expect = pytest.importorskip("playwright.sync_api", reason="needs playwright").expect
PACK = Path(__file__).parent / "language_pack"
CATALOGUE = "jupyter_gpushare_de/locale/de_DE/LC_MESSAGES/jupyter_gpushare.json"
GERMAN: dict[str, Any] = json.loads((PACK / CATALOGUE).read_text())
SENTENCES = {sentence for _, sentence in _core.policies()}
SOURCES = Path(__file__).resolve().parents[3] / "labextension" / "src"


@pytest.fixture
def german(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """JupyterLab finds the language pack, and is set to its language."""
    path = [str(PACK), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, path)))
    plugin = tmp_path / "home/settings/@jupyterlab/translation-extension/plugin.jupyterlab-settings"
    plugin.parent.mkdir(parents=True)
    plugin.write_text('{"locale": "de_DE"}')


@pytest.fixture
def server(german: None, own_server: Server) -> Server:
    """One that speaks the language of the pack."""
    return own_server


@pytest.mark.system
def test_the_reason_of_a_wait_is_in_the_language_of_the_page(waiting: Lab) -> None:
    lab = waiting
    expect(lab.row("waits.ipynb")).to_contain_text("wartet auf holds.ipynb")
    expect(lab.panel).to_contain_text("Schlange")
    expect(lab.panel.locator(".jp-GpuShare-headline")).to_have_text(
        re.compile(r"holds.ipynb rechnet seit \d+ s. 1 warten; waits.ipynb ist als Nächstes dran, ")
    )
    expect(lab.status).to_have_text("◔ host: Platz 1 der Schlange")
    expect(lab.panel.locator(".jp-GpuShare-policy")).to_contain_text("Zeit nach Gewicht")
    lab.picture("german")


def fields(text: str) -> set[str | None]:
    return {field for _, field, *_ in string.Formatter().parse(text)} - {None}


@pytest.mark.system
def test_each_translated_reason_has_all_its_figures() -> None:
    texts = {*TEXTS.values(), GONE} & GERMAN.keys()  # others are shown in English
    assert texts
    assert [text for text in texts if fields(text) != fields(GERMAN[text][0])] == []


@pytest.mark.system
def test_the_language_pack_has_nothing_that_the_panel_does_not_say() -> None:
    sources = "".join(source.read_text() for source in SOURCES.rglob("*.ts"))
    texts = GERMAN.keys() - SENTENCES - {""}
    assert [text for text in texts if f"'{text}'" not in sources] == []
