"""Wrong input gets one plain sentence: settings, the Python API and the command line.

tests/system/kernel tries the magics, and tests/unit/server/rest the requests.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Annotated, Any

import pytest
from msgspec import Meta

import jupyter_gpushare as gpushare
from jupyter_gpushare import settings as settings_module
from jupyter_gpushare.client.notebook import sharing
from jupyter_gpushare.client.options import name_from
from jupyter_gpushare.errors import InvalidValue, ProtocolError, UnknownOption
from jupyter_gpushare.refusals import right
from jupyter_gpushare.settings import PREFIX, Settings
from jupyter_gpushare.simulator import recorder as record
from jupyter_gpushare.tools import cli
from jupyter_gpushare.wire import framing

from ..conftest import Sessions
from ..refusals import is_one_plain_sentence
from ..violations import expect_none

LONG = "x" * 500

# --- settings -------------------------------------------------------------------------------------

SETTINGS = {
    ("QUANTUM_SECONDS", "soon"): "quantum_seconds is 'soon', and should be a number above 0",
    ("QUANTUM_SECONDS", "nan"): "quantum_seconds is 'nan', and should be a number above 0",
    ("QUANTUM_SECONDS", "1e400"): "quantum_seconds is '1e400', and should be a number above 0",
    ("RUNNING_LANES", "-1"): "running_lanes is '-1', and should be a whole number from 0 on",
    ("AUTO", "perhaps"): "auto is 'perhaps', and should be true or false",
    ("SOCKET_MODE", "rw"): "socket_mode is 'rw', and should be text like 0660",
    ("HUB_API_URL", "hub"): "should be text like http://127.0.0.1:8081/hub/api",
}


def test_a_wrong_setting_is_refused_in_a_sentence() -> None:
    for (name, value), sentence in SETTINGS.items():
        said = refusal_of(settings_module.load, {PREFIX + name: value})
        assert sentence in said
        assert f"{PREFIX}{name}" in said


def refusal_of(call: Callable[..., object], *words: object, **options: object) -> str:
    """Return the one plain sentence by which the call is refused."""
    with pytest.raises(InvalidValue) as refusal:
        call(*words, **options)
    assert is_one_plain_sentence(str(refusal.value))
    return str(refusal.value)


# --- bounds ---------------------------------------------------------------------------------------

BOUNDS = {
    "a number": Annotated[float, Meta()],
    "a number above 0": Annotated[float, Meta(gt=0)],
    "a number above 0 and at most 0.5": Annotated[float, Meta(gt=0, le=0.5)],
    "a number at most 2": Annotated[float, Meta(le=2)],
    "a number from 0 to 1000000000": Annotated[float, Meta(ge=0, le=1_000_000_000)],
    "a whole number from 0 and below 4611686018427387904": Annotated[int, Meta(ge=0, lt=1 << 62)],
    "a whole number from 0 on": Annotated[int, Meta(ge=0)],
    "a whole number from 0 to 1099511627776": Annotated[int, Meta(ge=0, le=1 << 40)],
    "a whole number from -100 to 100": Annotated[int, Meta(ge=-100, le=100)],
}


@pytest.mark.parametrize("sentence", BOUNDS)
def test_both_bounds_of_a_number_are_said(sentence: str) -> None:
    assert right(BOUNDS[sentence]) == sentence


# --- Python ---------------------------------------------------------------------------------------

WEIGHTS = "a number from 0.001 to 1000"
OPTIONS: dict[str, tuple[dict[str, Any], str]] = {
    "unknown": ({"wieght": 3}, "a session has no option wieght; did you mean weight?"),
    "zero": ({"weight": 0}, f"weight is 0, and should be {WEIGHTS}"),
    "not a number": ({"weight": float("nan")}, f"weight is nan, and should be {WEIGHTS}"),
    "text": ({"weight": "heavy"}, f"weight is 'heavy', and should be {WEIGHTS}"),
    "too heavy": ({"weight": 5000.0}, f"weight is 5000.0, and should be {WEIGHTS}"),
    "fraction": ({"priority": 1.5}, "priority is 1.5, and should be a whole number"),
    "too urgent": ({"priority": 1000}, "a priority is from -100 to 100, not 1000"),
    "no device": ({"devices": 0}, "devices is 0, and should be a whole number from 1 on"),
    "a number as device": ({"device": 7}, "device is 7, and should be text"),
    "nameless": ({"name": ""}, "name is '', and should be text of 1 to 200 Unicode characters"),
    "blank": ({"name": "  "}, "name is '  ', and should be text of 1 to 200 Unicode characters"),
    "no Unicode": ({"name": "a\udcff"}, r"name is 'a\udcff', and should be text of 1 to"),
    "endless": ({"name": LONG}, "and should be text of 1 to 200 Unicode characters"),
    "undone": ({"remaining_iterations": -1}, "should be a whole number from 0 on"),
}


@pytest.fixture
def off() -> Iterator[None]:
    yield
    sharing.stop()


def entered(call: Callable[..., Any], *words: Any, **options: Any) -> None:
    with call(*words, **options):
        pass


def test_a_wrong_option_is_refused_in_a_sentence(settings: Settings, off: None) -> None:
    for given, sentence in OPTIONS.values():
        assert sentence in refusal_of(entered, gpushare.session, settings, **given)
        assert sharing.current() is None


def test_a_wrong_option_is_refused_where_sharing_is_on_already(
    settings: Settings, off: None
) -> None:
    with gpushare.session(settings, name="outer", weight=2.0) as outer:
        for given, sentence in OPTIONS.values():
            assert sentence in refusal_of(entered, gpushare.session, **given)
            assert (outer.weight, outer.priority) == (2.0, 0)


def test_an_unknown_option_is_a_type_error_as_everywhere_in_python(settings: Settings) -> None:
    for call in (gpushare.session, sharing.start):
        with pytest.raises(TypeError, match="did you mean weight"):
            entered(call, settings, wieght=3)
    assert issubclass(UnknownOption, InvalidValue)


def test_a_file_whose_name_is_not_in_unicode_has_a_name_for_others() -> None:
    assert name_from("/home/ada/n\udcff.ipynb") == "n\N{REPLACEMENT CHARACTER}.ipynb"


LOOPS: dict[str, tuple[tuple[Any, ...], str]] = {
    "a number": ((5,), "the loader is 5, and should be what a for loop goes through, such as"),
    "nothing": ((None,), "the loader is None, and should be what a for loop goes through"),
    "text": (([1], "x"), "epochs is 'x', and should be a whole number from 0 on"),
    "negative": (([1], -1), "epochs is -1, and should be a whole number from 0 on"),
    "fraction": (([1], 1.5), "epochs is 1.5, and should be a whole number from 0 on"),
}


def test_a_wrong_argument_of_iterations_is_refused_at_the_call() -> None:
    for given, sentence in LOOPS.values():
        assert sentence in refusal_of(gpushare.iterations, *given)


def test_a_wrong_option_is_refused_at_the_call_without_a_block() -> None:
    with pytest.raises(InvalidValue, match="did you mean weight"):
        gpushare.session(wieght=3)


def test_live_options_hold_for_a_block_within_a_session(
    settings: Settings, off: None, sessions: Sessions
) -> None:
    with gpushare.session(settings, name="outer", weight=2.0):
        with gpushare.session(weight=3, priority=1, remaining_iterations=7, name="outer"):
            inner = sessions()["outer"]
            assert (inner.weight, inner.priority, inner.remaining_iterations) == (3, 1, 7)
        after = sessions()["outer"]
        assert (after.weight, after.priority) == (2, 0)


def test_a_name_of_a_block_within_a_session_is_reported_as_ignored(
    settings: Settings, off: None
) -> None:
    told: list[str] = []
    with gpushare.session(settings, name="outer") as outer:
        outer.on_trouble = told.append
        with gpushare.session(name="inner") as inner:
            assert (inner, inner.name) == (outer, "outer")
        with gpushare.session(name="outer"), gpushare.turn() as still:
            assert still is outer
    assert told == ["sharing is on already as outer: the name 'inner' is ignored"]


@pytest.mark.system
def test_options_that_are_fixed_for_a_session_are_not_changed_within_it(
    settings: Settings, off: None
) -> None:
    with gpushare.session(settings, name="outer", device="host"):
        for given in ({"device": "cuda:3"}, {"devices": 2}):
            said = refusal_of(entered, gpushare.session, **given)
            assert "sharing is on already, with " in said
        with gpushare.session(device="auto", name="outer", devices=1):
            pass  # the same


def test_a_change_of_an_open_session_is_checked_too(settings: Settings, off: None) -> None:
    session = sharing.start(settings, name="outer")
    calls: list[Callable[[], None]] = [
        lambda: session.change(weight="heavy"),  # type: ignore[arg-type]
        lambda: session.change(weight=0),
        lambda: session.change(priority=0.5),  # type: ignore[arg-type]
        lambda: session.declare("many"),  # type: ignore[arg-type]
        lambda: session.declare(-1),
    ]
    for call in calls:
        refusal_of(call)
    session.change(weight=2)
    assert session.weight == 2


def test_a_long_name_of_a_script_is_cut(
    settings: Settings, off: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", [f"/home/ada/{LONG}.py"])
    with gpushare.session(settings) as session:
        assert session.name == LONG[:200]


# --- input from outside ---------------------------------------------------------------------------

FRAMES = {
    b"no json": "it is no JSON",
    b"\xff": "it is no JSON",
    b"[" * 5000: "it is no JSON",
    b"[]": "it should be an object whose type is that of a message",
    b'{"type":"Opne"}': "it should be an object whose type is that of a message, not 'Opne'",
    b'{"type":"Open","id":"n"}': "name is missing",
    b'{"type":"Open","id":"n","name":"n","weight":"2"}': "weight is '2', and should be a number",
    b'{"type":"Open","id":"n","name":"n","demand":{"persistent_bytes":0.5}}': (
        "demand.persistent_bytes is 0.5, and should be a whole number"
    ),
}


def test_a_wrong_message_is_refused_with_its_field() -> None:
    for frame, sentence in FRAMES.items():
        with pytest.raises(ProtocolError) as refusal:
            framing.decode_from_client(frame)
        assert f"not a message of protocol 1: {sentence}" in str(refusal.value)
        assert "`" not in str(refusal.value)


def test_a_wrong_line_of_a_record_is_refused_with_its_number(tmp_path: Path) -> None:
    (file := tmp_path / "record").write_text('{"time": 0, "event": "opened"}\n{"time": "soon"}\n')
    said = refusal_of(record.read, file)
    assert "line 2 of " in said
    assert "time is 'soon', and should be a number" in said


# --- the command line -----------------------------------------------------------------------------

LINES = {
    "": (2, "the following arguments are required: COMMAND"),
    "frobnicate": (2, "there is no 'frobnicate'; there are: status, top"),
    "statsu": (2, "there is no 'statsu'; did you mean status? See `jupyter gpushare --help`"),
    "status --jsn": (2, "there is no option --jsn; did you mean --json?"),
    "broker --quantm-seconds 3": (2, "did you mean --quantum-seconds?"),
    "status now": (2, "unexpected argument 'now'; see `jupyter gpushare status --help`"),
    "top --interval 0": (2, "--interval: seconds are a number above 0, not '0'"),
    "policy --lanes many": (2, "--lanes: a number from 1 on, or auto; not 'many'"),
    "policy fair fifo": (2, "unexpected argument 'fifo'; see `jupyter gpushare policy --help`"),
    "class onn lab": (2, "there is no 'onn'; did you mean on?"),
    "report --by usr": (2, "--by: there is no 'usr'; did you mean user?"),
    "report --from yesterday": (1, "a date is written 2026-11-01"),
    "rules chek": (2, "there is no 'chek'; did you mean check?"),
    "rules check /nowhere": (1, "the rules in /nowhere cannot be read: No such file"),
    "simulate": (2, "one of the arguments --from --generate is required"),
    "simulate --generate 0": (2, "--generate: a number from 1 on, not '0'"),
    "simulate --generate 2 --seed x": (2, "--seed: a whole number, not 'x'"),
    "simulate --generate 2 --capacity big": (2, "--capacity: bytes, or a size as in 24GiB"),
    "simulate --generate 2 --capacity 99999999TiB": (2, "--capacity: 99999999TiB is too large"),
    "simulate --generate 2 --user-weights u1": (2, "--user-weights: names and weights as in a=2"),
    "simulate --generate 2 --user-weights =2": (2, "--user-weights: names and weights as in a=2"),
    "simulate --generate 2 --squeeze half": (2, "--squeeze: "),
    "simulate --generate 2 --squeeze 0.5=0.9": (2, "--squeeze: "),
    "simulate --generate 2 --squeeze 1.5=1.1": (2, "--squeeze: "),
    "simulate --generate 2 --policy fiar": (1, "there is no policy 'fiar'"),
    "simulate --from /nowhere": (1, "the record /nowhere cannot be read: No such file"),
    "broker --policy fiar": (1, "there is no policy 'fiar'; did you mean fair?"),
    "broker --quantum-seconds soon": (1, "quantum_seconds is 'soon', and should be a number"),
    "broker --rulebook /nowhere": (1, "the rules in /nowhere cannot be read: No such file"),
}


@pytest.mark.system
def test_a_wrong_command_line_is_refused_in_a_sentence(settings: Settings) -> None:
    ended = {line: ran(*line.split()) for line in LINES}
    expect_none(
        f"`{line}` ends with {ended[line]}, not {LINES[line]}"
        for line, (status, out, error) in ended.items()
        if (status, out, is_one_plain_sentence(error)) != (LINES[line][0], "", True)
        or LINES[line][1] not in error
        or (status == 2) > ("see `jupyter gpushare" in error.lower())
    )


def ran(*words: str) -> tuple[int, str, str]:
    """Return the exit status of a command and both of its outputs. A broker has a process of its
    own, as it sets up the log of its process."""
    if words[:1] == ("broker",):
        command = [sys.executable, "-m", "jupyter", "gpushare", *words]
        done = subprocess.run(command, capture_output=True, text=True, timeout=240)
        return done.returncode, done.stdout, done.stderr
    with redirect_stdout(StringIO()) as out, redirect_stderr(StringIO()) as error:
        try:
            status = cli.main(words)
        except SystemExit as ended:
            status = int(ended.code or 0)
    return status, out.getvalue(), error.getvalue()


@pytest.mark.system
def test_a_plot_is_written_or_refused_in_a_sentence(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    words = ["simulate", "--generate", "2", "--policy", "fair", "--plot"]
    status, out, error = ran(*words, f"{tmp_path}/nowhere/plot.svg")
    assert (status, out) == (1, "")
    assert "plot.svg: No such file or directory" in error
    assert is_one_plain_sentence(error)
    for plot in (f"{tmp_path}/plot.svg", f"{tmp_path}/plot.png"):
        status, _, error = ran(*words, plot)
        assert (status, error) == (0, f"jupyter gpushare: the plot is in {plot}\n")
        assert Path(plot).stat().st_size > 5000
