"""`jupyter gpushare` as people start it: real processes, a real broker, a real terminal."""

from __future__ import annotations

import getpass
import json
import os
import platform
import pty
import re
import signal
import socket
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from jupyter_gpushare.reasons import Reason
from jupyter_gpushare.settings import ENGINES, Settings
from jupyter_gpushare.tools import bundle
from jupyter_gpushare.tools.cli import keys, top
from jupyter_gpushare.tools.cli.connection import settings_of
from jupyter_gpushare.tools.cli.parser import make_parser
from jupyter_gpushare.tools.doctor import Installation
from jupyter_gpushare.wire import launch
from jupyter_gpushare.wire import messages as m
from jupyter_gpushare.wire import snapshot as s
from jupyter_gpushare.wire.client import Client
from jupyter_gpushare.wire.snapshot import Snapshot

from ...conftest import FakeGpus, HubBroker, StandInHub
from ...snapshots import GIB, IDLE, snapshot_of
from ..broker.processes import NOBODY, needs_root

COMMAND = [sys.executable, "-m", "jupyter", "gpushare"]


def gpushare(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *words],
        env={**os.environ, "COLUMNS": "160", **environment},
        capture_output=True,
        text=True,
        timeout=240,
    )


# --- status ---------------------------------------------------------------------------------------


def test_status_as_json_is_the_snapshot(cnn: Client) -> None:
    done = gpushare("status", "--json")
    seen = msgspec.json.decode(done.stdout, type=Snapshot)
    assert seen.devices[0].sessions == cnn.look().devices[0].sessions


def test_the_socket_can_be_given(cnn: Client, settings: Settings) -> None:
    done = gpushare("status", "--socket", settings.socket, JUPYTER_GPUSHARE_SOCKET="/tmp/other")
    assert (done.returncode, done.stderr) == (0, "")
    assert all(words in done.stdout for words in ("host", "cnn.ipynb", "1.0 GiB"))


@pytest.mark.parametrize("words", ["status", "broker --stop"])
def test_a_command_that_needs_a_broker_starts_none(settings: Settings, words: str) -> None:
    done = gpushare(*words.split())
    assert (done.returncode, done.stdout) == (1, "")
    assert "no broker answers on" in done.stderr
    assert done.stderr.count("\n") == 1
    assert not Path(settings.socket).exists()


@pytest.mark.parametrize("words", ["status", "status --json"])
def test_a_reader_that_has_enough_gets_no_complaint(cnn: Client, words: str) -> None:
    line = " ".join([*COMMAND, words, "|", "true"])
    done = subprocess.run(["sh", "-c", line], capture_output=True, text=True)
    assert done.stderr == ""


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        ("status >&-", 0, ""),
        (
            "policy >/dev/full",
            1,
            "jupyter gpushare: the output is incomplete: No space left on device\n",
        ),
    ],
)
def test_output_that_nothing_takes_is_lost_and_a_full_disk_is_reported(
    cnn: Client, words: str, status: int, said: str
) -> None:
    line = " ".join([*COMMAND, words])
    done = subprocess.run(["sh", "-c", line], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (status, said)


def test_a_terminal_without_our_characters_shows_others(cnn: Client) -> None:
    done = gpushare("policy", PYTHONIOENCODING="ascii")
    assert (done.returncode, done.stderr) == (0, "")
    assert "? | fair" in done.stdout


# --- policy ---------------------------------------------------------------------------------------


def test_the_policy_is_shown_and_changed(cnn: Client) -> None:
    assert "fair" in gpushare("policy").stdout
    assert "→   fifo" in gpushare("policy", "FIFO", "--lanes", "3").stdout
    snapshot = cnn.look()
    assert (snapshot.policy, snapshot.devices[0].running_lanes) == ("fifo", 3)


# --- help ----------------------------------------------------------------------------------------


def test_every_setting_is_an_option_of_the_broker_with_its_sentence() -> None:
    text = gpushare("broker", "--help").stdout
    for name in Settings.__struct_fields__:
        assert f"--{name.replace('_', '-')} " in text
    assert "None (default" not in text
    assert "(default: )" not in text


def test_the_service_of_jobs_takes_each_engine_that_the_settings_have() -> None:
    for engine in ENGINES:
        arguments = make_parser().parse_args(["cluster", "--engine", engine])
        assert settings_of(arguments).cluster_engine == engine
    assert "cluster_engine" in gpushare("cluster", "--engine", "lsf").stderr


# --- broker ---------------------------------------------------------------------------------------


def test_a_broker_in_the_foreground_serves_until_stop(settings: Settings) -> None:
    words = [*COMMAND, "broker", "--policy", "FIFO", "--host-capacity-bytes", str(1 << 30)]
    with subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as process:
        assert process.stderr is not None
        process.stderr.readline()  # its first line of log: it listens
        with Client.connect(settings, "tests") as client:
            assert client.welcome.pid == process.pid
            snapshot = client.look()
        assert (snapshot.policy, snapshot.devices[-1].capacity_bytes) == ("fifo", 1 << 30)
        stopped = gpushare("broker", "--stop")
        assert (stopped.returncode, stopped.stdout) == (0, f"The broker {process.pid} ends.\n")
        assert process.wait(timeout=240) == 0


# --- top ------------------------------------------------------------------------------------------


class Screen:
    """`top` in a terminal of its own, or writing to a pipe."""

    def __init__(self, terminal: bool) -> None:
        self._read, write = pty.openpty() if terminal else os.pipe()
        self.process = subprocess.Popen(
            [*COMMAND, "top", "--interval", "0.05"],
            stdin=write if terminal else None,
            stdout=write,
            stderr=subprocess.PIPE,
            env={**os.environ, "COLUMNS": "160", "LINES": "50", "TERM": "xterm"},
            start_new_session=True,
        )
        os.close(write)
        self.text = ""

    def until(self, wanted: str) -> str:
        """Read until `wanted` comes; return what was read, and forget it."""
        while wanted not in self.text:
            self.text += os.read(self._read, 1 << 16).decode(errors="replace")
        read, self.text = self.text, ""
        return read

    def end(self) -> tuple[int, str]:
        """Press q, or send Ctrl-C; return the exit status and the standard error."""
        if os.isatty(self._read):
            os.write(self._read, b"\x1b[Bq")  # two keys, which are read at once
        else:
            self.process.send_signal(signal.SIGINT)
        assert self.process.stderr is not None
        errors = self.process.stderr.read().decode()
        return self.process.wait(timeout=240), errors

    def close(self) -> None:
        os.close(self._read)
        self.process.kill()
        self.process.communicate()


@pytest.fixture(params=[True, False], ids=["terminal", "pipe"])
def screen(request: pytest.FixtureRequest, settings: Settings) -> Iterator[Screen]:
    screen = Screen(request.param)
    yield screen
    screen.close()


@pytest.mark.system
def test_top_shows_changes_outlives_the_broker_and_ends_when_it_is_told_to(
    screen: Screen, settings: Settings
) -> None:
    screen.until("Looking for a broker")
    for name in ("first.ipynb", "second.ipynb"):
        with Client.connect(settings, "tests") as client:
            screen.until("no notebooks")
            client.ask(m.Open("a", name, "host"))
            screen.until(name)
            client.ask(m.Shutdown())
        screen.until("Looking for a broker")
    assert screen.end() == (0, "")


@pytest.mark.parametrize(("up", "down"), [("\x1b[A", "\x1b[B"), ("\x1bOA", "\x1bOB"), ("k", "j")])
def test_arrow_keys_choose_a_notebook_of_top_and_stop_at_both_ends(up: str, down: str) -> None:
    terminal: Any = top.Terminal(make_parser().parse_args(["top"]))
    three = snapshot_of(*(msgspec.structs.replace(IDLE, id=id) for id in "abc"))
    terminal._latest = top.TopScreen("", three, 0.0)
    chosen = []
    for key in (up, down, down, down, up, "x"):
        terminal._choose(key)
        chosen.append(terminal._draw().chosen)
    assert chosen == [0, 1, 2, 2, 1, 1]


def test_the_bytes_of_a_key_may_come_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keys, "MOST_BYTES", 1)
    terminal, own = pty.openpty()
    with os.fdopen(own) as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        with keys.pressed() as presses:
            os.write(terminal, b"k\x1b[Bq")
            assert [next(presses) for _ in range(3)] == ["k", "\x1b[B", "q"]
    os.close(terminal)


@pytest.fixture
def recovers_for_long(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> Settings:
    monkeypatch.setenv("JUPYTER_GPUSHARE_RECOVERY_SECONDS", "3600")
    return msgspec.structs.replace(settings, recovery_seconds=3600.0)


@pytest.mark.system
def test_top_shows_a_notebook_until_it_is_back_with_the_next_broker(
    recovers_for_long: Settings, screen: Screen
) -> None:
    kept = m.Open("kept", "kept.ipynb", "host")
    with Client.connect(recovers_for_long, "tests") as client:
        client.ask(kept)
        screen.until("kept.ipynb")
        os.kill(client.welcome.pid, signal.SIGKILL)
    read = screen.until("Looking for a broker")
    with (
        Client.connect(recovers_for_long, "tests") as client,
        Client.connect(recovers_for_long, "tests") as other,
    ):
        read += screen.until("The broker was restarted")
        client.ask(kept)
        other.ask(m.Open("new", "new.ipynb", "host"))
        read += screen.until("new.ipynb")
    for beginning in ("Looking for a broker", "Policy fair"):
        views = read[: read.rindex("kept.ipynb") + len("kept.ipynb")].split(beginning)
        assert all("kept.ipynb" in view for view in views[1:])


# --- doctor ---------------------------------------------------------------------------------------

Checks = Callable[..., dict[str, dict[str, Any]]]


@pytest.fixture
def checks(settings: Settings) -> Checks:
    def checks(**environment: str) -> dict[str, dict[str, Any]]:
        done = gpushare("doctor", "--json", **environment)
        found = {check["name"]: check for check in json.loads(done.stdout)}
        has_problem = any(check["state"] == "problem" for check in found.values())
        assert done.returncode == int(has_problem)
        return found

    return checks


@pytest.mark.system
def test_the_doctor_finds_this_installation_well(checks: Checks, cnn: Client) -> None:
    found = checks(JUPYTER_GPUSHARE_CLUSTER_NODES="n0=4 n1=2")
    assert found["jobs"]["sentence"] == "local: 6 GPUs of 2 nodes"
    wanted = {"jupyter_gpushare", "ipykernel", "C++ module", "socket", "broker", "host", "torch"}
    assert {name: found[name]["state"] for name in wanted} == dict.fromkeys(wanted, "ok")
    assert str(cnn.welcome.pid) in found["broker"]["sentence"]
    assert found["torch hooks"]["state"] == "ok"
    assert found["GPU driver"]["state"] in ("ok", "warning")


def test_the_doctor_imports_no_file_of_the_present_directory(
    checks: Checks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "torch.py").write_text("raise ImportError('this is not PyTorch')")
    monkeypatch.chdir(tmp_path)
    assert checks()["torch hooks"]["state"] == "ok"


@pytest.mark.thorough
def test_the_doctor_tells_how_to_mend_what_is_wrong(
    checks: Checks, socket_directory: Path, tmp_path: Path
) -> None:
    socket_directory.chmod(0o755)
    (tmp_path / "jupyter_server_config.d").mkdir()
    off = {"ServerApp": {"jpserver_extensions": {"jupyter_gpushare": False}}}
    (tmp_path / "jupyter_server_config.d" / "gpushare.json").write_text(json.dumps(off))
    found = checks(JUPYTER_CONFIG_PATH=str(tmp_path))
    assert found["socket"]["state"] == "warning"
    assert f"chmod 700 {socket_directory}" in found["socket"]["sentence"]
    assert found["broker"]["state"] == "warning"
    assert found["server extension"]["state"] == "problem"
    assert "jupyter server extension enable" in found["server extension"]["sentence"]
    assert checks(JUPYTER_GPUSHARE_SOCKET="/tmp/" + "x" * 120)["socket"]["state"] == "problem"


@pytest.mark.system
@pytest.mark.parametrize("directory", ["file", "loop"])
def test_the_doctor_says_that_a_directory_cannot_be_reached(
    checks: Checks, socket_directory: Path, directory: str
) -> None:
    (socket_directory / "file").touch()
    (socket_directory / "loop").symlink_to("loop")
    place = str(socket_directory / directory / "b.sock")
    no_name = f"/{300 * 'x'}"  # fails for root, too
    found = checks(JUPYTER_GPUSHARE_SOCKET=place, JUPYTER_PATH=no_name, JUPYTER_CONFIG_PATH=no_name)
    assert found["socket"]["state"] == "problem"
    assert found["socket"]["sentence"].startswith(f"{socket_directory / directory} cannot be")
    assert {"server extension", "lab extension"} <= found.keys()


@pytest.mark.system
def test_the_doctor_says_why_no_job_can_run(checks: Checks, tmp_path: Path) -> None:
    found = checks(JUPYTER_GPUSHARE_CLUSTER_ENGINE="slurm", PATH=str(tmp_path))["Slurm"]
    assert found["state"] == "problem"
    assert found["sentence"].startswith("PATH has no sbatch, scancel, squeue, scontrol: ")
    assert "JUPYTER_GPUSHARE_CLUSTER_ENGINE=local runs jobs" in found["sentence"]


@needs_root
@pytest.mark.system
def test_a_user_of_the_broker_of_others_is_told_how_to_have_jobs(
    checks: Checks, socket_directory: Path, tmp_path: Path
) -> None:
    os.chown(socket_directory, NOBODY, NOBODY)
    mend = "JUPYTER_GPUSHARE_CLUSTER_SOCKET"
    found = checks()["jobs"]
    assert found["state"] == "warning"
    assert found["sentence"].endswith(f"set {mend} to a path in a directory of yours")
    assert found["sentence"] in gpushare("jobs").stderr
    own = checks(**{mend: str(tmp_path / "cluster.sock")}, JUPYTER_GPUSHARE_CLUSTER_NODES="n0=2")
    assert own["jobs"]["sentence"] == "local: 2 GPUs of 1 node"


@pytest.mark.system
def test_the_doctor_says_which_nodes_have_gpus_and_which_need_a_broker(checks: Checks) -> None:
    shared = "jobs share the GPUs of n1, and take turns only where a broker runs on the node"
    for nodes, sentence in (
        ("n0=0", "local: 0 GPUs of 1 node, so no job can start"),
        ("n0=2 n1=1/4", f"local: 3 GPUs of 2 nodes; {shared}"),
    ):
        assert checks(JUPYTER_GPUSHARE_CLUSTER_NODES=nodes)["jobs"]["sentence"] == sentence


L4 = f"gpu GPU-a {16 * GIB} {GIB} NVIDIA L4"


@pytest.mark.system
def test_the_doctor_finds_cards_driver_and_processes_with_their_memory(
    gpus: FakeGpus, checks: Checks
) -> None:
    gpus.say("driver 580.65", L4, f"process 77 {3 * GIB}", f"process 78 {GIB}", "gpu GPU-b 7 0 T4")
    found = checks()
    assert found["GPU driver"]["sentence"] == "580.65"
    assert found["cuda:0"]["sentence"] == (
        "NVIDIA L4, 15.0 GiB, 11.0 GiB free; 4.0 GiB of memory is unmanaged: of programs that do"
        " not share (process 77, 78)"
    )
    assert found["cuda:1"]["sentence"] == "T4, 7 B, 7 B free"
    assert "CUDA_DEVICE_ORDER=PCI_BUS_ID" in found["visible GPUs"]["sentence"]


@pytest.mark.system
def test_the_doctor_shows_slices(gpus: FakeGpus, checks: Checks) -> None:
    gpus.say("gpu GPU-m 9 0 H100", "mig", "slice MIG-0 3 0 H100 1g", "slice MIG-1 4 0 H100 2g")
    found = checks()
    assert "cuda:0" not in found
    assert found["cuda:0:0"]["sentence"] == "H100 1g, 3 B, 3 B free"
    assert found["cuda:0:1"]["sentence"] == "H100 2g, 4 B, 4 B free"
    assert found["visible GPUs"]["sentence"] == "cuda:0 is cuda:0:0 of this host"


@pytest.mark.system
def test_the_doctor_knows_which_processes_share(
    gpus: FakeGpus, checks: Checks, settings: Settings
) -> None:
    gpus.say(L4)
    with Client.connect(settings, "tests") as client:
        client.ask(m.Open("a", "a.ipynb", "cuda:0"))
        gpus.say(L4, f"process {os.getpid()} {3 * GIB}")
        assert checks()["cuda:0"]["sentence"] == "NVIDIA L4, 15.0 GiB, 12.0 GiB free"


TROUBLE = {  # lines of a log, as a bundle has them
    "process 7 of eve@lab: http://lab:81/api fails": "process 7 of u: (url) fails",
    f'  File "{launch.__file__}", line 3': '  File "jupyter_gpushare/wire/launch.py", line 3',
    '    raise of("Ada", code)': "",
    f'  File "{json.__file__}", line 9': '  File "python/json/__init__.py", line 9',
    '  File "/data/thesis of Ada/run.py", line 2': '  File "(path)", line 2',
    "'/data/thesis of Ada/a' or ~/Ada.csv, 3 MiB/s": "'(path)' or (path), 3 MiB/s",
}


@pytest.mark.system
def test_a_bundle_has_what_a_maintainer_needs_and_no_names(
    cnn: Client, settings: Settings, tmp_path: Path
) -> None:
    cnn.ask(m.Change(None, weight=2.0))
    with Client.connect(settings, "tests") as other:
        other.ask(m.Open("b", "courses/thesis of Ada.ipynb", "host"))
        file = tmp_path / "report.zip"
        with launch.log_path(Path(settings.socket)).open("a") as log:
            log.writelines(f"{line}\n" for line in TROUBLE)
        done = gpushare("doctor", "--bundle", str(file), JUPYTER_GPUSHARE_QUANTUM_SECONDS="0.5")
    assert f"{file} has README.txt, checks.json, settings.json" in done.stderr + done.stdout
    with zipfile.ZipFile(file) as written:
        parts = {name: written.read(name).decode() for name in written.namelist()}
    names = {check["name"] for check in json.loads(parts["checks.json"])}
    assert {"system", "broker", "host"} <= names
    sessions = json.loads(parts["snapshot.json"])["devices"][0]["sessions"]
    assert {view["name"] for view in sessions} == {"n1", "n2"}
    assert json.loads(parts["settings.json"])["quantum_seconds"] == 0.5
    assert "listens on" in parts["broker.log"]
    lines = re.sub(r"\bu\d+", "u", parts["broker.log"]).splitlines()
    assert lines[-5:] == [line for line in TROUBLE.values() if line]
    everything = " ".join(parts.values())
    for name in ("cnn", "thesis", "Ada", getpass.getuser(), platform.node()):
        assert not re.search(rf"(?<!\w){re.escape(name)}(?!\w)", everything), name
    assert re.findall(r"(?<!\w)~?/\w.*", everything) == []  # a path
    again = gpushare("doctor", "--bundle", str(file))
    assert f"{file} is there already: name another file" in again.stderr
    assert again.returncode != 0


@pytest.mark.parametrize("contact", ["help@lab", "Ann Lee, https://lab/help", "Ann (/room/3)"])
def test_a_bundle_has_no_name_of_the_rulebook(
    settings: Settings, tmp_path: Path, contact: str
) -> None:
    ask = Reason("ask_contact", who=contact)
    rules: dict[str, Any] = {
        "groups": [s.GroupView("course", 1.0, ["carla"])],
        "classes": [s.ClassView("seminar", "host", None)],
        "reservations": [s.ReservationView("workshop", "host", 1.0, 0.0, 1.0, True)],
    }
    view = replace(IDLE, reason=f"ask {contact}", why=[ask])
    here = Installation(settings)
    here.snapshot = replace(snapshot_of(view), **rules)
    bundle.write(str(tmp_path / "report.zip"), [], here)
    with zipfile.ZipFile(tmp_path / "report.zip") as written:
        shown = json.loads(written.read("snapshot.json"))
    (group,), (session,) = shown["groups"], shown["devices"][0]["sessions"]
    groups = [group["name"], *(shown[kind][0]["group"] for kind in ("classes", "reservations"))]
    users = [session["user"], *group["teachers"], session["why"][0]["who"]]
    assert re.fullmatch(r"g\d g\d g\d u\d+ u\d+ u\d+", " ".join([*groups, *users]))
    assert session["reason"] == f"ask {users[-1]}"


@pytest.mark.system
def test_a_bundle_is_written_where_no_broker_runs(tmp_path: Path) -> None:
    file = tmp_path / "report.zip"
    done = gpushare("doctor", "--bundle", str(file))
    assert "snapshot.json" not in done.stderr + done.stdout
    assert zipfile.is_zipfile(file)


@pytest.mark.system
def test_outside_of_its_hub_a_hubs_broker_says_what_is_missing(
    hub_broker: HubBroker, hub: StandInHub, checks: Checks
) -> None:
    missing = "set JUPYTERHUB_API_TOKEN to a token of yours"
    assert missing in gpushare("status").stderr
    found = checks()["broker"]
    assert (found["state"], missing in found["sentence"]) == ("warning", True)
    done = gpushare("status", JUPYTERHUB_API_TOKEN=hub.user("ada"))
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.system
def test_the_doctor_says_why_no_lanes_are_shared_and_what_is_used_instead(
    gpus: FakeGpus, checks: Checks
) -> None:
    assert "shared lanes" not in checks()
    gpus.say(L4)
    found = checks(CUDA_VISIBLE_DEVICES="")
    seen, lanes = found["visible GPUs"], found["shared lanes"]
    hidden = "none: CUDA_VISIBLE_DEVICES='' hides them: sessions go to the host"
    assert (seen["state"], seen["sentence"]) == ("warning", hidden)
    assert lanes["state"] == "warning"
    assert lanes["sentence"].startswith("there are none on a GPU: PyTorch finds no GPU; notebooks")
    assert "still take turns" in lanes["sentence"]


def test_the_doctor_prints_each_row_of_its_table_when_the_check_is_done(settings: Settings) -> None:
    with socket.socket(socket.AF_UNIX) as silent:  # a broker that does not answer yet
        silent.bind(settings.socket)
        silent.listen()
        doctor = subprocess.Popen([*COMMAND, "doctor"], stdout=subprocess.PIPE)
        connection, _ = silent.accept()
        begins = os.read(doctor.stdout.fileno(), 1 << 16).decode() if doctor.stdout else ""
        connection.close()
    rows = re.compile(r"^ *(Installation|system|C\+\+ module|socket|broker|host) ", re.MULTILINE)
    assert rows.findall(begins) == ["Installation", "system", "C++ module", "socket"]
    assert rows.findall(doctor.communicate()[0].decode()) == ["broker", "host"]


# --- rules and classes ----------------------------------------------------------------------------


@pytest.fixture
def rules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Rules that are in force in the broker of this test."""
    path = tmp_path / "rules.toml"
    path.write_text('[groups.course]\nteachers = ["tina"]\n')
    monkeypatch.setenv("JUPYTER_GPUSHARE_RULEBOOK", str(path))
    return path


@pytest.mark.system
def test_a_file_of_rules_is_checked_without_a_broker(rules: Path) -> None:
    done = gpushare("rules", "check", str(rules))
    assert (done.returncode, done.stdout) == (
        0,
        f"{rules} is valid: 1 group, 0 users, 0 reservations.\n",
    )
    rules.write_text("[groups.course]\nweight = 0")
    done = gpushare("rules", "check", str(rules))
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        f"jupyter gpushare: the rules in {rules} are wrong: weight in [groups.course] = 0 is wrong;"
        " right is a number from 0.001 to 1000\n"
    )


@pytest.mark.system
def test_a_class_is_begun_and_ended_and_seen_among_the_rules(rules: Path, cnn: Client) -> None:
    done = gpushare("class", "on", "course", "--device", "host")
    assert (done.returncode, done.stdout) == (0, "A class of course has host until it is ended.\n")
    shown = gpushare("rules", "show").stdout
    assert all(words in shown for words in ("Groups", "course", "tina", "Classes", "until it ends"))
    assert cnn.look().policy == "classroom"
    assert gpushare("class", "off", "course").stdout == "No class is on.\n"
    assert gpushare("class", "off", "course").stderr == (
        "jupyter gpushare: no class of course is on\n"
    )


@pytest.mark.system
def test_a_file_that_became_wrong_is_reported_by_rules_and_doctor(
    rules: Path, cnn: Client, checks: Checks
) -> None:
    rules.write_text("weight = 1")
    seen = next(view for view in cnn.watch(0.05) if view.rulebook_error)
    assert [group.name for group in seen.groups] == ["course"]
    done = gpushare("rules", "show")
    assert done.returncode == 1
    assert "weight is not known" in done.stderr
    found = checks()["rules"]
    assert found["state"] == "problem"
    assert "the rules before it stay in force" in found["sentence"]
