"""The panel follows real kernels, and its buttons reach them."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path
from typing import Any

import pytest

from ...conftest import Look
from .conftest import ONE_TURN, PANEL, READY, SHARE, Lab, write_notebook

expect = pytest.importorskip("playwright.sync_api", reason="needs playwright").expect
LATER = re.compile(r"\d:(0[1-9]|[1-5]\d)")
RUNS = re.compile(r"▶ host: running( for \d+ s)?")
SHARING = re.compile("^(GPU sharing is|Turns GPU sharing|Waits for the running cell)")
MOST_BUTTONS = 8  # of a row, or before it
LOOK_MS = 5000
EMPTY = (
    "No notebook shares this device",
    "Idle. No notebook is running or waiting",
    "No notebook has come back",
)


# all texts that the panel and the status bar have shown, however briefly
NOTE_TEXTS = """
window.seen = [];
window.told = [];
new MutationObserver(() => {
  window.seen.push(document.querySelector('#jupyter-gpushare-panel')?.textContent);
  window.told.push(document.querySelector('.jp-GpuShare-status')?.textContent);
}).observe(document, { childList: true, subtree: true, characterData: true });"""


def test_two_kernels_train_and_the_turn_moves(
    visit: Any, sessions: Any, broker_pid: int, look: Look
) -> None:
    lab = visit("alice.ipynb")
    running = lab.panel.locator("tbody.jp-mod-running")
    expect(lab.status).to_have_text("◌ GPU sharing: off")
    lab.run_all()
    expect(running).to_contain_text("alice.ipynb")
    expect(lab.status).to_have_text(RUNS)

    lab.open("bob.ipynb")
    lab.run_all()
    expect(running).to_contain_text("bob.ipynb")
    expect(running).to_contain_text("alice.ipynb")
    expect(lab.row("bob.ipynb")).to_have_class(re.compile("jp-mod-own"))
    turns = lab.panel.locator(".jp-GpuShare-member .jp-GpuShare-turns")
    expect(turns).to_have_count(2)
    for number in range(2):
        expect(turns.nth(number)).to_have_attribute("d", re.compile("M.*z"))

    # a kernel that is killed vanishes
    os.kill(sessions()["alice.ipynb"].pid, signal.SIGKILL)
    expect(lab.row("alice.ipynb")).to_have_count(0)
    expect(running).to_contain_text("bob.ipynb")

    # a broker that is killed is away, and comes back with its sessions; no look is an empty one
    lab.page.evaluate(NOTE_TEXTS)
    os.kill(broker_pid, signal.SIGKILL)
    expect(lab.panel.locator(".jp-GpuShare-away")).to_contain_text("Reconnecting")
    expect(lab.panel.locator(".jp-GpuShare-away")).to_have_count(0)
    expect(running).to_contain_text("bob.ipynb")
    assert look().broker.pid != broker_pid
    seen = lab.page.evaluate("window.seen")
    assert len(seen) > 1
    assert [text for text in seen if any(empty in text for empty in EMPTY)] == []
    assert "◌ GPU sharing: off" not in lab.page.evaluate("window.told")


@pytest.mark.system
def test_rows_and_details_are_accessible_in_each_theme_and_width(waiting: Lab) -> None:
    waiting.row("waits.ipynb").locator(".jp-GpuShare-name").click()
    for theme in ("Light", "Dark", "Dark High Contrast"):
        waiting.choose_theme(theme)
        waiting.picture(f"queue-{theme.lower().replace(' ', '-')}")
        assert waiting.barriers() == []
    waiting.narrow_panel()
    waiting.picture("narrow")
    assert waiting.cut_texts() == []


@pytest.mark.system
def test_cancelled_cells_are_offered_until_each_is_run_cleared_or_deleted(
    visit: Any, notebooks: Path
) -> None:
    """The offer is for the newest one, whatever page or kernel the notebook had meanwhile."""
    write_notebook(notebooks / "three.ipynb", SHARE, *[ONE_TURN] * 3)
    lab = visit("holds.ipynb")
    lab.run_all()
    expect(lab.row("holds.ipynb")).to_have_class(re.compile("jp-mod-running"))
    lab.open("three.ipynb")
    row = lab.row("three.ipynb")
    again = row.get_by_role("button", name="Queue the cancelled cell of three.ipynb again")
    prompts = lab.page.locator(".jp-NotebookPanel:not(.lm-mod-hidden) .jp-InputPrompt")

    def cancel(cell: int) -> None:
        expect(prompts.nth(cell)).to_have_text("[*]:")
        row.get_by_label("Cancel the wait of three.ipynb").click()
        expect(prompts.nth(cell)).not_to_have_text("[*]:")
        expect(again).to_be_visible()

    lab.run_cell(0)
    expect(row).to_be_visible()
    for cell in (2, 1, 3):
        lab.run_cell(cell)
        cancel(cell)
    lab.open("holds.ipynb")  # the other notebook comes to the front by itself
    again.click()
    expect(prompts.nth(3)).to_have_text("[*]:")
    expect(again).to_have_count(0)  # though two other cells have such an output
    cancel(3)

    lab.save()  # with the output of the cancelled wait, while the next one goes on
    again.click()
    expect(row).to_have_class(re.compile("jp-mod-waiting"))
    lab.page.add_init_script(NOTE_TEXTS)
    lab.page.reload()
    expect(row).to_have_class(re.compile("jp-mod-waiting"))
    lab.page.wait_for_timeout(LOOK_MS)
    assert [
        text for text in lab.page.evaluate("window.seen") if "Queue again" in (text or "")
    ] == []
    assert "◌ GPU sharing: off" not in lab.page.evaluate("window.told")
    row.get_by_label("Cancel the wait of three.ipynb").click()
    again.evaluate("button => { button.click(); button.click(); }")
    expect(lab.panel.get_by_role("alert")).to_contain_text("runs or waits already")
    cancel(3)
    lab.open("three.ipynb")  # a reload may bring the other one to the front late
    lab.close()
    expect(again).to_have_count(0)  # which no open notebook has
    lab.open("three.ipynb")
    expect(again).to_be_visible()
    lab.execute_on_cell(3, "notebook:delete-cell")
    expect(prompts).to_have_count(3)
    again.click()
    cancel(1)

    lab.restart_kernel()
    expect(row).to_have_count(0)
    lab.execute("jupyter-gpushare:toggle-sharing")
    lab.execute_on_cell(1, "notebook:clear-cell-output")
    (notebooks / "go").touch()
    again.click()
    expect(lab.outputs.filter(has_text="had a turn")).to_have_count(1)
    expect(prompts.nth(2)).to_have_text(re.compile(r"\[\d+\]:"))
    expect(again).to_have_count(0)


@pytest.mark.system
def test_a_cell_that_has_had_turns_ends_after_a_question(visit: Any) -> None:
    lab = visit("waits.ipynb")
    lab.run_all()
    expect(lab.outputs.filter(has_text="had a turn")).to_be_visible()
    lab.open("holds.ipynb")
    lab.run_all()
    expect(lab.row("holds.ipynb")).to_have_class(re.compile("jp-mod-running"))
    lab.open("waits.ipynb")
    lab.run_cell(1)
    row = lab.row("waits.ipynb")
    # A press is refused as long as the queue has just moved.
    expect(row.locator(".jp-GpuShare-since")).to_have_text(LATER)
    row.get_by_label("Cancel the wait of waits.ipynb").click()
    row.get_by_role("button", name="Pause instead").click()
    expect(row).to_have_class(re.compile("jp-mod-paused"))
    lab.execute("jupyter-gpushare:toggle-pause")
    expect(row).to_have_class(re.compile("jp-mod-waiting"))
    lab.execute("jupyter-gpushare:cancel-wait")
    answers = lab.page.locator(".jp-Dialog-footer button")
    expect(answers).to_have_text(["Pause instead", "Stop this cell", "Keep waiting"])
    expect(answers.last).to_be_focused()
    lab.page.keyboard.press("Enter")  # loses nothing
    expect(answers).to_have_count(0)
    expect(row).to_have_class(re.compile("jp-mod-waiting"))
    lab.execute("jupyter-gpushare:cancel-wait")
    answers.filter(has_text="Stop this cell").click()
    expect(lab.outputs.filter(has_text="cancelled this cell's wait")).to_be_visible()


@pytest.mark.system
def test_a_notebook_is_paused_given_weight_and_asked_to_yield(visit: Any, sessions: Any) -> None:
    lab = visit("alice.ipynb")
    lab.run_all()
    row = lab.row("alice.ipynb")
    expect(row).to_have_class(re.compile("jp-mod-running"))
    row.get_by_role("button", name="alice.ipynb").click()
    row.get_by_role("button", name="Give way after this iteration").click()
    expect(lab.panel.get_by_role("status")).to_contain_text("asked to give way")
    row.get_by_role("spinbutton").fill("2.5")
    row.get_by_role("spinbutton").press("Enter")
    expect(lab.panel.get_by_role("status")).to_contain_text("weight 2.5")
    assert sessions()["alice.ipynb"].weight == 2.5
    row.get_by_role("button", name="Pause").click()
    expect(row).to_have_class(re.compile("jp-mod-paused"))
    expect(lab.status).to_have_text("Ⅱ host: paused")
    lab.execute("jupyter-gpushare:toggle-pause")  # for the notebook in front
    expect(row).to_have_class(re.compile("jp-mod-running"))
    lab.page.set_viewport_size({"width": 1280, "height": 420})
    for wrong in ("5000", "0", "-3", ""):
        row.get_by_role("spinbutton").fill(wrong)
        row.get_by_role("spinbutton").press("Enter")
        expect(lab.panel.get_by_role("alert")).to_contain_text("A weight is a number above 0")
        expect(lab.panel.get_by_role("alert")).to_be_in_viewport(ratio=1)  # even after scrolling
        expect(row.get_by_role("spinbutton")).to_have_value("2.5")
    lab.picture("refused")


@pytest.mark.thorough
def test_the_palette_lists_the_commands(visit: Any) -> None:
    lab = visit("empty.ipynb")
    lab.page.evaluate(READY)  # until then the notebook takes the focus, and the palette closes
    lab.execute("apputils:activate-command-palette")
    lab.page.locator(".lm-CommandPalette-input").fill("GPU")
    listed = lab.page.locator(".lm-CommandPalette-item")
    for label, can_be_done in (
        ("Show GPU Sharing", True),
        ("Share the GPU in This Notebook", True),
        ("Pause GPU Sharing of This Notebook", False),
        ("Cancel the Wait for the GPU of This Notebook", False),
    ):
        expect(listed.filter(has_text=label)).to_be_visible(visible=can_be_done)


@pytest.mark.thorough
def test_the_status_bar_opens_the_panel_and_is_without_us_where_the_settings_say_so(
    visit: Any, lab: str
) -> None:
    notebook = visit("empty.ipynb")
    notebook.page.evaluate("() => window.jupyterapp.shell.collapseRight()")
    expect(notebook.panel).to_be_hidden()
    notebook.status.click()
    expect(notebook.panel).to_be_visible()
    status = notebook.page.evaluate(
        """async address => {
          const settings = `${address}/api/settings/jupyter-gpushare:plugin`;
          const raw = JSON.stringify({ statusBar: false });
          const cookie = document.cookie.match(/_xsrf=([^;]*)/)[1];
          const headers = { 'X-XSRFToken': cookie };
          const body = JSON.stringify({ raw });
          return (await fetch(settings, { method: 'PUT', body, headers })).status;
        }""",
        lab,
    )
    assert status == 204
    notebook.page.reload()
    expect(notebook.page.locator(PANEL)).to_be_attached()
    expect(notebook.status).to_be_hidden()


@pytest.mark.system
def test_the_button_of_the_notebook_turns_sharing_on_and_off(visit: Any) -> None:
    lab = visit("empty.ipynb")
    button = lab.page.get_by_role("button", name=SHARING)
    expect(button).to_have_accessible_name(re.compile("turn it on"))
    button.click()
    expect(lab.row("empty.ipynb")).to_be_visible()
    expect(lab.status).to_have_text("○ host: idle")
    expect(button).to_have_accessible_name(re.compile("turn it off"))
    button.click()
    expect(lab.status).to_have_text("◌ GPU sharing: off")
    expect(lab.row("empty.ipynb")).to_have_count(0)


@pytest.mark.thorough
def test_the_button_waits_for_the_running_cell_and_outlasts_an_interrupt(visit: Any) -> None:
    lab = visit("computes.ipynb")
    lab.run_all()
    expect(lab.page.locator(".jp-InputPrompt", has_text="[*]")).to_be_visible()
    button = lab.page.get_by_role("button", name=SHARING)
    button.click()
    expect(button).to_have_accessible_name(
        re.compile("Waits for the running cell to end, then turns GPU sharing on")
    )
    expect(lab.status).to_have_text("… waits for the running cell to end")
    lab.picture("button")
    lab.execute("notebook:interrupt-kernel")
    expect(lab.row("computes.ipynb")).to_be_visible()
    expect(lab.status).to_have_text("○ host: idle")
    expect(button).to_have_accessible_name(re.compile("turn it off"))


@pytest.mark.system
def test_everything_works_by_keyboard_alone(visit: Any, sessions: Any) -> None:
    lab = visit("alice.ipynb")
    lab.run_all()
    expect(lab.row("alice.ipynb")).to_have_class(re.compile("jp-mod-running"))
    lab.page.evaluate("() => window.jupyterapp.shell.collapseRight()")
    expect(lab.panel).to_be_hidden()
    lab.page.keyboard.press("Control+Alt+g")
    expect(lab.panel).to_be_focused()

    def tab_to(button: Any) -> None:
        for _ in range(MOST_BUTTONS):
            lab.page.keyboard.press("Tab")
            if button.evaluate("button => button === document.activeElement"):
                break
        expect(button).to_be_focused()

    name = lab.row("alice.ipynb").locator("button.jp-GpuShare-name")
    tab_to(name)
    lab.page.keyboard.press("Enter")
    expect(name).to_have_attribute("aria-expanded", "true")
    tab_to(lab.row("alice.ipynb").get_by_role("button", name="Pause"))
    lab.page.keyboard.press("Enter")
    expect(lab.row("alice.ipynb")).to_have_class(re.compile("jp-mod-paused"))
    assert sessions()["alice.ipynb"].state == "paused"


@pytest.mark.system
def test_the_widget_in_the_notebook_moves_while_a_cell_runs(visit: Any, notebooks: Path) -> None:
    lab = visit("top.ipynb")
    lab.run_all()
    widget = lab.page.locator(".jp-OutputArea .jp-GpuShare")
    row = widget.locator("tbody.jp-GpuShare-notebook", has_text="top.ipynb")
    expect(row).to_have_class(re.compile("jp-mod-running.*jp-mod-own"))
    expect(row.locator(".jp-GpuShare-since")).to_have_text(LATER)
    expect(widget.get_by_role("button", name="Pause")).to_have_count(0)  # it has no buttons
    lab.picture("widget")
    (notebooks / "go").touch()
    expect(row).to_have_class(re.compile("jp-mod-idle"))
