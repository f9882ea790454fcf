"""Tables of a Snapshot: readable at every width, and harmless whatever a notebook is called."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from jupyter_gpushare.broker.demands import too_large
from jupyter_gpushare.client.notebook.waiting_line import sentence
from jupyter_gpushare.format import LABELS, duration, size
from jupyter_gpushare.reasons import Reason
from jupyter_gpushare.tables import MEMORY, STATES, as_html, as_text
from jupyter_gpushare.tools import jobs_table, overview
from jupyter_gpushare.tools.screen import Screen
from jupyter_gpushare.wire import snapshot as s
from jupyter_gpushare.wire.demand import Squeezing
from jupyter_gpushare.wire.jobs import JobView
from jupyter_gpushare.wire.messages import Wait

from ..snapshots import GIB, IDLE, snapshot_of
from ..violations import ROOT, expect_none, named

FORMAT_OF_THE_PANEL = ROOT / "labextension" / "src" / "state" / "format.ts"
STYLE_OF_THE_PANEL = ROOT / "labextension" / "style" / "base.css"
JUPYTERLAB = {"brand": "blue", "success": "green", "warn": "yellow", "error": "red"}
COLOUR = re.compile(r"""(?<!&)#(?:[0-9a-fA-F]{3,4}){1,2}(?=['";)])""")
WAITING = replace(
    IDLE,
    id="w",
    name="w.ipynb",
    state="waiting",
    position=2,
    waiting_seconds=3.0,
    expected_wait_seconds=60.0,
    reason="a.ipynb runs",
)
JOB = JobView(
    *("net-1", "ada", "queued", "waits", "waits", 1, 1, 0, {}, "", 0, None, None),
    *(0.0, 0.0, None, None, 0, 0),
)


def text_of(snapshot: s.Snapshot, width: int = 120) -> str:
    return as_text(overview.tables(snapshot), width)


SIZES = Path(__file__).parents[1] / "data" / "sizes.json"  # the panel's tests have them too


def test_sizes_have_one_to_four_digits_in_sentences_and_refusals() -> None:
    for count, words in json.loads(SIZES.read_text()):
        assert size(count) == words
    assert str(too_large(GIB, 12, 1 << 20, True)) == (
        "needs 1.0 GiB (model and data 1.0 GiB, working memory 12 B, squeezed as far as it can"
        " be); the device has 1.0 MiB"
    )
    close = str(too_large(GIB, 2, GIB, False))
    assert close.startswith("needs 1073741826 bytes (")
    assert close.endswith("has 1073741824 bytes")


def test_how_far_a_notebook_is_squeezed_is_a_column_where_one_is() -> None:
    assert "Squeezed" not in text_of(snapshot_of(IDLE), 300)
    known = Squeezing(10 << 20, 39 << 20, 38 << 20, 120 << 20, 1.304, 210 << 20)
    said = {
        known: "to 39.0 MiB of 120 MiB (asked 10.0 MiB, floor 38.0 MiB), about 30 % slower,"
        " 210 MiB written",
        replace(known, asked_bytes=None, slowdown=1.0): "to 39.0 MiB of 120 MiB (floor 38.0 MiB),"
        " not slower, 210 MiB written",
        Squeezing(asked_bytes=7): "to unknown (asked 7 B, floor unknown), slowdown unknown,"
        " 0 B written",
    }
    for squeezing, words in said.items():
        assert words in text_of(snapshot_of(replace(IDLE, squeezing=squeezing)), 300)


def test_a_snapshot_of_a_broker_that_tells_less_is_read() -> None:
    shown = snapshot_of(replace(IDLE, squeezing=Squeezing(asked_bytes=7)))
    told = msgspec.to_builtins(shown)
    del told["devices"][0]["sessions"][0]["squeezing"]
    assert msgspec.convert(told, s.Snapshot) == snapshot_of(IDLE)


def test_durations_are_written_as_people_say_them() -> None:
    said = {
        0.04: "0 s",
        3.21: "3.2 s",
        45: "45 s",
        119.6: "2 min 0 s",
        150: "2 min 30 s",
        599.7: "10 min",
        7500: "2 h 5 min",
    }
    assert {seconds: duration(seconds) for seconds in said} == said


def test_the_panel_has_the_same_labels() -> None:
    (table,) = re.findall(r"function labels\(.*?\n}", FORMAT_OF_THE_PANEL.read_text(), re.DOTALL)
    assert dict(re.findall(r"(\w+): trans.__\('(.+)'\)", table)) == LABELS


def test_a_hue_means_the_same_in_the_panel() -> None:
    style = STYLE_OF_THE_PANEL.read_text()
    variables = re.findall(rf"--gs-(\w+): var\(--jp-({'|'.join(JUPYTERLAB)})-color1\)", style)
    hues = {name: JUPYTERLAB[colour] for name, colour in variables}
    meanings = {**STATES, **MEMORY}
    assert hues == {name: meanings[name] for name in ("persistent", "lane", "waiting", "overdue")}
    sign = r"\.jp-mod-(\w+) \.jp-GpuShare-sign \{\s*border-color: var\(--gs-(\w+)\)"
    signs = {state: hues[name] for state, name in re.findall(sign, style) if state in STATES}
    assert signs == {state: STATES[state] for state in ("running", "overdue", "waiting")}


def test_no_other_file_has_colours_of_its_own() -> None:
    rooms = ("jupyter_gpushare", "kernel_ext", "server_ext", "benchmarks")
    files = [path for room in rooms for path in (ROOT / room).rglob("*.py")]
    expect_none(
        f"{named(path)}: {found[0]}"
        for path in files
        if path.name != "tables.py" and (found := COLOUR.search(path.read_text()))
    )


def test_a_waiting_notebook_is_shown_with_position_time_and_reason() -> None:
    text = text_of(snapshot_of(IDLE, WAITING), 160)
    assert re.search(r"w\.ipynb .*2 +3\.0 s +about 60 s", text)
    assert "a.ipynb runs" in text
    said = text_of(snapshot_of(replace(IDLE, busy=True, reason="needs no turn")), 160)
    assert re.search(r"a\.ipynb .* busy .* needs no turn", said)
    refused = replace(IDLE, reason="the last cell did not fit", why=[Reason("did_not_fit")])
    assert "the last cell did not fit" in text_of(snapshot_of(refused), 160)
    assert "nothing to run" not in text_of(snapshot_of(replace(IDLE, reason="nothing to run")), 160)
    long = replace(IDLE, state="running", reason="lets others run", iteration_seconds=28.0)
    said = text_of(overview.aged(snapshot_of(long), 2.0), 160)
    assert "in an iteration for 30 s; lets others run" in said


def test_empty_columns_are_left_out() -> None:
    text = text_of(snapshot_of(IDLE))
    assert "Weight" not in text
    assert "Weight" in text_of(snapshot_of(replace(IDLE, weight=2.0)))


@pytest.mark.parametrize("width", [60, 80, 100, 120, 200])
def test_a_narrow_terminal_shows_what_a_wide_one_shows(width: int) -> None:
    """A reason, or the memory of a notebook, has room below the table if it has none in it."""
    waits = replace(WAITING, weight=2.0, ephemeral_bytes=3 << 20, reason="waits for a.ipynb")
    words = text_of(snapshot_of(IDLE, waits), width).replace("\n", " ")
    for told in ("waits for a.ipynb", "3.0 MiB", size(IDLE.persistent_bytes)):
        assert told in words
    assert re.search(r"w\.ipynb: (.+; )?waits for a|about 60 s .* waits for a", words)


def test_unmanaged_memory_is_shown_where_there_is_some() -> None:
    snapshot = snapshot_of(IDLE)
    assert "nmanaged" not in text_of(snapshot) + overview.bars_html(snapshot)
    device = replace(snapshot.devices[0], unmanaged_bytes=3 * GIB, free_bytes=2 * GIB)
    snapshot = replace(snapshot, devices=[device])
    assert "Unmanaged" in text_of(snapshot)
    assert "3.0 GiB unmanaged memory" in overview.bars_html(snapshot)


def test_rows_that_need_attention_come_first() -> None:
    overdue = replace(IDLE, id="o", name="o.ipynb", state="overdue")
    text = text_of(snapshot_of(IDLE, WAITING, overdue))
    shown = re.findall(r"^  (\w\.ipynb)", text.split("Notebooks")[1], re.MULTILINE)
    assert shown == ["o.ipynb", "w.ipynb", "a.ipynb"]


def test_a_hundred_long_names_stay_readable_at_every_width() -> None:
    shown = snapshot_of(
        *(
            replace(WAITING, id=f"i{n}", name=f"{n:03} " + "long " * 30, position=n + 1)
            for n in range(100)
        )
    )
    for width in (60, 80, 100, 160):
        lines = text_of(shown, width).splitlines()
        assert max(map(len, lines)) <= width
        for number in range(100):
            (line,) = [line for line in lines if line.startswith(f"  {number:03} ")]
            assert "waiting" in line
            assert f" {number + 1} " in line


def test_a_name_cannot_control_a_terminal() -> None:
    named = replace(IDLE, name="\x1b[2Jgone\r\n[bold red]x")
    text = text_of(snapshot_of(named))
    assert "\x1b" not in text
    assert "[bold red]x" in text


def test_a_name_cannot_put_markup_into_a_page() -> None:
    named = replace(IDLE, name="<script>alert('1')</script>")
    page = as_html(overview.tables(snapshot_of(named)))
    assert "<script>" not in page
    assert "&lt;script&gt;" in page


def test_a_reason_has_a_line_of_its_own_on_a_page_as_wide_as_its_table() -> None:
    notebooks = as_html(overview.tables(snapshot_of(IDLE, WAITING))).split("Notebooks")[1]
    (columns,) = re.findall(r"</tr><tr><td colspan='(\d+)' [^>]*>a\.ipynb runs</td>", notebooks)
    assert int(columns) == notebooks.count("<th ")
    assert "Reason" not in notebooks


def test_a_picture_ages_until_the_expected_wait_has_run_out_and_is_unknown() -> None:
    shown = snapshot_of(IDLE, WAITING)
    for seconds, expected in ((50, 10.0), (59, 1.0), (61, None)):
        (idle, waiting) = overview.aged(shown, seconds).devices[0].sessions
        assert idle == IDLE
        assert waiting.waiting_seconds == 3.0 + seconds
        assert waiting.expected_wait_seconds == expected
    assert re.search(r"w\.ipynb .* next ", text_of(overview.aged(shown, 59.5), 160))
    behind = replace(WAITING, id="b", position=3, expected_wait_seconds=90.0)
    (device,) = overview.aged(snapshot_of(WAITING, behind), 61.0).devices
    assert [view.expected_wait_seconds for view in device.sessions] == [None, None]


def test_a_full_screen_has_the_same_columns_in_each_state_and_counts_what_it_does_not_show() -> (
    None
):
    queue = [replace(WAITING, id=f"i{n}", name=f"{n:02}.ipynb", position=n + 1) for n in range(25)]
    idle = [replace(IDLE, id=view.id, name=view.name) for view in queue]
    titles = set()
    for views in (queue, idle):
        lines = [text.plain for text in Screen("", snapshot_of(*views), 99).texts(80, 24)]
        assert len(lines) == 24
        assert max(map(len, lines)) <= 80
        assert "24.ipynb" in lines[-3]  # the last one is chosen
        assert lines[-1].startswith("and 5 more; ")
        titles.add(lines[1])
    (title,) = titles
    assert title.split()[-3:] == ["Device", "time", "Memory"]
    chosen = [*Screen("", snapshot_of(*queue), 99).texts(80, 24)][-2]
    assert chosen.plain == "24.ipynb: a.ipynb runs"
    long = replace(IDLE, name="student_03.ipynb")
    assert "student_03 " in [*Screen("", snapshot_of(long)).texts(80, 24)][2].plain


def test_a_narrow_screen_has_fewer_columns_and_no_line_is_too_wide() -> None:
    views = [WAITING, replace(IDLE, name="\u7b14\u8bb0\u672c" * 20)]
    for width in range(30, 90):
        lines = [*Screen("", snapshot_of(*views)).texts(width, 24)]
        assert max(line.cell_len for line in lines) <= width
        assert "w.ipynb" in lines[2].plain
        assert "waiting" in lines[2].plain


def test_a_name_in_wide_characters_is_shown_whole_where_there_is_room() -> None:
    name = "\u7b14\u8bb0\u672c" * 4
    assert name in text_of(snapshot_of(replace(IDLE, name=name)))


def test_notebooks_that_take_turns_are_said_to_and_stand_still() -> None:
    taking = [
        replace(IDLE, id="b", name="b.ipynb", state="running", busy=True),
        replace(WAITING, id="a", name="a.ipynb", position=1),
        replace(WAITING, id="c", name="c.ipynb", position=2),
    ]
    turns = [
        s.TurnView(id, 1, began, began - 0.5 or None, 0.5)
        for began, id in ((5.0, "a"), (4.5, "b"), (1.0, "a"), (0.5, "b"))
    ]
    (device,) = snapshot_of(*taking).devices
    rows = overview.rows(replace(device, turns=turns))
    assert [(row.view.name, row.state) for row in rows] == [
        ("a.ipynb", "takes turns"),
        ("b.ipynb", "takes turns"),
        ("c.ipynb", "waiting"),
    ]
    assert {(row.waited, row.expected, row.why) for row in rows[:2]} == {("", "", "")}


def test_the_time_of_a_job_goes_on_until_its_end_and_is_empty_until_it_begins() -> None:
    runs, has_ended = replace(JOB, first=time.time() - 7510.0), replace(JOB, first=9.0, ended=54.0)
    table = jobs_table.jobs([JOB, runs, has_ended])
    elapsed = [column.title for column in table.columns].index("Elapsed")
    assert [row[elapsed] for row in table.rows] == ["", "2 h 5 min", "45 s"]


def test_iterations_have_the_time_that_they_will_still_take() -> None:
    declares = replace(IDLE, busy=True, remaining_iterations=64, remaining_seconds=370.0)
    declares = replace(declares, loop_iterations=72)
    assert "8 of 72, ≈ 6 min 10 s" in text_of(snapshot_of(declares))
    later = overview.aged(snapshot_of(declares), 310.0)
    assert "8 of 72, ≈ 60 s" in text_of(later)
    assert "≈" not in text_of(overview.aged(later, 61.0)), "it has run out, so it is unknown"


def test_several_devices_are_told_apart() -> None:
    one = snapshot_of(IDLE)
    both = replace(one, devices=[*one.devices, replace(one.devices[0], name="cuda:0")])
    assert text_of(one).count("cuda:0") == 0
    assert text_of(both).count("cuda:0") == 3  # among devices, lanes and notebooks


def test_the_waiting_sentence_tells_what_is_known() -> None:
    stop = "Interrupt the cell to stop waiting."
    begin = "Waiting for the device, queue position 2"
    why = [Reason("waits_for", other="c"), Reason("other_is_overdue")]
    named = Wait(1, 2, 3.0, "", "cnn.ipynb", 12.0, why, {"c": "cnn.ipynb"})
    assert sentence(named.in_words()) == (
        f"{begin}, about 12 s (3.0 s so far): waits for cnn.ipynb, which is overdue. {stop}"
    )
    assert sentence(Wait(1, 2, 3.0, "needs 3 GiB", "cnn.ipynb", 12.0)) == (
        f"{begin} after cnn.ipynb, about 12 s (3.0 s so far): needs 3 GiB. {stop}"
    )
    assert sentence(Wait(1, 2, 3.0, "", expected_seconds=0.4)).startswith(f"{begin}, next (3.0 s")
    at_most = Wait(1, 2, 3.0, "", expected_seconds=64.0, expected_is_bound=True)
    assert sentence(at_most).startswith(f"{begin}, at most 64 s (3.0 s so far)")
    bound = replace(WAITING, expected_wait_seconds=64.0, expected_wait_is_bound=True)
    assert " at most 64 s " in text_of(snapshot_of(bound), 160)
    assert sentence(Wait(1, 1, 3.0, "", remaining_seconds=370.0)) == (
        "Waiting for the device, queue position 1 (3.0 s so far)."
        f" All iterations are done in about 6 min 10 s. {stop}"
    )
    assert sentence(Wait(1, 1, 3.0, "")) == (
        f"Waiting for the device, queue position 1 (3.0 s so far). {stop}"
    )
    paused = sentence(Wait(1, 0, 3.0, "", why=[Reason("paused")]).in_words())
    assert "so far): paused. Resume in the panel, or `%gpushare pause --resume NAME` in" in paused
    held = "throttled: a class has the device until noon"
    assert sentence(Wait(1, 0, 3.0, held, "cnn.ipynb")) == (
        f"Waiting for the device (3.0 s so far): {held}. {stop}"
    )
