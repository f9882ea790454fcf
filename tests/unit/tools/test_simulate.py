"""Records, workloads and `jupyter gpushare simulate`."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

import jupyter_gpushare as gpushare
from jupyter_gpushare._core import Cell, Conduct, Demand, Job, policies
from jupyter_gpushare._core_testing import think
from jupyter_gpushare.errors import InvalidValue
from jupyter_gpushare.settings import Settings
from jupyter_gpushare.simulator import recorder as record
from jupyter_gpushare.simulator import simulate as simulation
from jupyter_gpushare.simulator import workload
from jupyter_gpushare.simulator.recorder import RecordedEvent
from jupyter_gpushare.simulator.workload import Workload
from jupyter_gpushare.tools import cli
from jupyter_gpushare.wire import demand as wire
from jupyter_gpushare.wire import messages as m
from jupyter_gpushare.wire import snapshot as s
from jupyter_gpushare.wire.client import Client

from ...polling import next_of
from ...snapshots import GIB, IDLE, snapshot_of

DATA = Path(__file__).parents[2] / "data"
RECORD = [
    RecordedEvent(0.0, "device", "host", policy="fair", capacity_bytes=16 * GIB),
    RecordedEvent(1.0, "opened", "host", session="n1", user="u1", weight=2.0),
    RecordedEvent(1.0, "reported", session="n1", persistent_bytes=GIB, ephemeral_bytes=2 * GIB),
    RecordedEvent(2.0, "requested", session="n1"),
    RecordedEvent(2.0, "granted", session="n1"),
    RecordedEvent(7.0, "finished", session="n1"),
    RecordedEvent(7.1, "requested", session="n1"),
    RecordedEvent(9.0, "granted", session="n1"),
    RecordedEvent(14.0, "finished", session="n1"),
    RecordedEvent(14.0, "reported", session="n1", iterations=100, device_seconds=10.0),
    RecordedEvent(20.0, "requested", session="n1"),
    RecordedEvent(20.0, "granted", session="n1"),
    RecordedEvent(22.0, "finished", session="n1"),
    RecordedEvent(22.0, "reported", session="n1", iterations=4, device_seconds=2.0),
    RecordedEvent(30.0, "closed", session="n1"),
]


def written(path: Path, events: list[RecordedEvent]) -> str:
    path.write_bytes(b"".join(map(record.encode, events)))
    return str(path)


# --- records --------------------------------------------------------------------------------------


def test_turns_that_follow_each_other_are_a_cell_and_pauses_are_kept() -> None:
    subject = workload.from_record(RECORD)
    assert (subject.capacity, subject.devices) == (16 * GIB, 1)
    (job,) = subject.jobs
    assert (job.id, job.user, job.weight, job.arrival, job.stays) == ("n1", "u1", 2.0, 1.0, 8.0)
    assert job.demand == Demand(GIB, 2 * GIB)
    cells = [(cell.iterations, cell.iteration, think(cell)) for cell in job.cells]
    assert cells == [(100, 0.1, 1.0), (4, 0.5, 6.0)]


def test_a_request_that_was_withdrawn_is_no_cell() -> None:
    """The session rests after an interrupted wait, and comes back an hour later."""
    rest = [RecordedEvent(25.0, "requested", session="n1"), RECORD[-1]]
    back = [
        RecordedEvent(3630.0, "opened", "host", session="n1", user="u1", weight=2.0),
        RecordedEvent(3630.0, "requested", session="n1"),
        RecordedEvent(3630.0, "granted", session="n1"),
        RecordedEvent(3631.0, "finished", session="n1"),
        RecordedEvent(3631.0, "reported", session="n1", iterations=10, device_seconds=1.0),
    ]
    (job,) = workload.from_record([*RECORD[:-1], *rest, *back]).jobs
    assert [cell.iterations for cell in job.cells] == [100, 4, 10]
    assert think(job.cells[-1]) == 3630.0 - 22.0


def test_a_record_without_use_is_refused() -> None:
    with pytest.raises(InvalidValue, match="no session has used a device"):
        workload.from_record(RECORD[:3])


def view(state: str, **more: Any) -> s.SessionView:
    given: dict[str, Any] = {
        "busy": True,
        "device_seconds": 0.0,
        "iterations": 0,
        "lane": 1,
        **more,
    }
    return replace(IDLE, id="secret", name="thesis.ipynb", user="ann", state=state, **given)


def snapshot(*sessions: s.SessionView, devices: Sequence[str] = ("host",)) -> s.Snapshot:
    """Return all of them on each of the devices."""
    shown = snapshot_of(*sessions)
    (device,) = shown.devices
    return replace(shown, devices=[replace(device, name=name) for name in devices])


def recorded(shown: Iterable[s.Snapshot], times: Iterable[float] = range(9)) -> list[RecordedEvent]:
    """Return the events of a recorder that sees one of them each second, or at these times."""
    recorder = record.Recorder()
    return [
        event
        for time, one in zip(times, shown, strict=False)
        for event in recorder.events(one, time)
    ]


def test_a_record_has_a_gang_on_all_of_its_devices() -> None:
    gpus = ["cuda:0", "cuda:1"]
    small = {"gang": gpus, "ephemeral_bytes": 0}
    states = [view("waiting", **small), view("running", **small), view("running", **small)]
    done = view("idle", **small, iterations=20, device_seconds=2.0)
    events = recorded(snapshot(each, devices=gpus) for each in [*states, done])
    assert [event.gang for event in events if event.event == "opened"] == [(*gpus,)]
    told = [event.event for event in events if event.session]
    assert told == ["opened", "reported", "requested", "granted", "finished", "reported"]
    subject = workload.from_record(events)
    (job,) = subject.jobs
    assert (subject.devices, job.devices) == (2, 2)
    (run,) = gpushare.simulate(subject, ["fair"]).runs
    assert [(turn.device, turn.ended - turn.began) for turn in run.turns] == [(0, 2.0), (1, 2.0)]


def test_changes_of_a_snapshot_are_events_without_names() -> None:
    shown = [
        snapshot(),
        snapshot(view("idle")),
        snapshot(view("running")),
        snapshot(view("waiting", iterations=3, device_seconds=0.5)),
        snapshot(),
    ]
    events = recorded(shown)
    assert [(event.time, event.event) for event in events] == [
        (0, "device"),
        (1, "opened"),
        (1, "reported"),
        (2, "requested"),
        (2, "granted"),
        (3, "finished"),
        (3, "requested"),
        (3, "reported"),
        (4, "closed"),
    ]
    assert (events[-2].iterations, events[-2].device_seconds) == (3, 0.5)
    text = b"".join(map(record.encode, events)).decode()
    assert not any(name in text for name in ("ann", "thesis", "secret"))


def test_a_notebook_that_comes_back_keeps_its_cells() -> None:
    """After a rest, or a lost connection, it may be on another device."""
    first = [view("running"), view("idle", iterations=10, device_seconds=1.0)]
    later = [view("running"), view("idle", iterations=4, device_seconds=2.0)]
    shown = [
        *(snapshot(each, devices=["cuda:0"]) for each in first),
        snapshot(devices=["cuda:0"]),
        *(snapshot(each, devices=["cuda:1"]) for each in later),
    ]
    subject = workload.from_record(recorded(shown))
    (job,) = subject.jobs
    cells = [(cell.iterations, cell.iteration, think(cell)) for cell in job.cells]
    assert cells == [(10, 0.1, 0.0), (4, 0.5, 2.0)]
    assert (subject.devices, job.arrival, job.stays) == (2, 0.0, math.inf)


def squeezed_record() -> list[RecordedEvent]:
    """A notebook of 4 GiB has 10 iterations of 0.1 s, 10 squeezed to 2 GiB, and 10 as before."""
    whole = {"ephemeral_bytes": 4 * GIB}
    small = {**whole, "squeezed_bytes": 2 * GIB, "slowdown": 1.5}
    shown = [
        view("running", **whole),
        view("running", **small, iterations=10, device_seconds=1.0),
        view("running", **whole, iterations=20, device_seconds=2.5),
        view("idle", **whole, iterations=30, device_seconds=3.5),
    ]
    events = recorded(map(snapshot, shown))
    return [replace(events[0], capacity_bytes=5 * GIB), *events[1:]]


def test_a_recorded_notebook_is_squeezed_on_a_smaller_device_as_it_was() -> None:
    subject = workload.from_record(squeezed_record())
    (large,) = simulation.simulate(subject, ["fair"]).runs
    (small,) = simulation.simulate(subject, ["fair"], capacity=4 * GIB).runs
    assert (large.refused, small.refused) == (0, 0)
    assert large.outcomes[0].device_seconds == pytest.approx(3.0)
    assert small.outcomes[0].device_seconds == pytest.approx(4.5)


def test_a_size_that_was_slower_than_a_smaller_one_is_left_out() -> None:
    told = {"session": "n1", "iterations": 1, "device_seconds": 1.0}
    sizes = [(GIB // 2, 1.2), (GIB, 1.3), (3 * GIB // 2, 1.1), (2 * GIB, 1.5)]
    events = [
        RecordedEvent(15.0, "reported", **told, squeezed_bytes=size, slowdown=slowdown)
        for size, slowdown in sizes
    ]
    (job,) = workload.from_record([*RECORD[:9], *events, *RECORD[9:]]).jobs
    assert [one.bytes for one in job.demand.options] == [2 * GIB, 3 * GIB // 2, GIB // 2]


@pytest.mark.system
def test_record_writes_what_happens_at_a_broker(settings: Settings, tmp_path: Path) -> None:
    """Real broker, real recorder; it ends with the broker, and the written record can be
    simulated."""
    path = tmp_path / "record.jsonl"
    code = f"from jupyter_gpushare.tools.cli import main; main(['record', {str(path)!r}])"
    with Client.connect(settings, "tests") as notebook:
        demand = wire.Demand(GIB // 64, GIB // 64, measured=True)
        notebook.ask(m.Open("id", "cnn.ipynb", "host", demand=demand))
        recorder = subprocess.Popen([sys.executable, "-c", code])
        with Client.connect(settings, "subscriber") as subscriber:
            shown = subscriber.watch(0.05)
            while not path.exists() or b"opened" not in path.read_bytes():
                next(shown)
                notebook.ask(m.Open("id", "cnn.ipynb", "host", demand=demand))
            notebook.send(m.Request(1))
            next_of(notebook, m.Grant)
            while b"granted" not in path.read_bytes():
                assert recorder.poll() is None
            notebook.send(m.Report(40, demand))
            notebook.send(m.Finish(1))
            while b"finished" not in path.read_bytes():
                assert recorder.poll() is None
            subscriber.ask(m.Shutdown())
        assert recorder.wait(60) == 0
    (job,) = workload.from_record(record.read(path)).jobs
    assert job.id == "n1"
    assert [cell.iterations for cell in job.cells] == [40]


def test_groups_are_numbered_and_their_weights_are_kept() -> None:
    first = snapshot(view("running", group="class"))
    weights = (2.0, 2.0, 3.0)
    shown = [replace(first, groups=[s.GroupView("class", weight, [])]) for weight in weights]
    events = recorded(shown)
    groups = [(event.time, event.group, event.weight) for event in events if event.event == "group"]
    assert groups == [(0, "g1", 2.0), (2, "g1", 3.0)]
    assert [event.group for event in events if event.event == "opened"] == ["g1"]
    used = RecordedEvent(3.0, "reported", session="n1", iterations=5, device_seconds=1.0)
    subject = workload.from_record([*events, used])
    assert (subject.jobs[0].group, dict(subject.groups)) == ("g1", {"g1": 3.0})


# --- workloads ------------------------------------------------------------------------------------


def test_jobs_of_published_models_last_as_long_as_those_of_a_cluster() -> None:
    found = workload.models(DATA / "salus_mem_baseline.csv", DATA / "salus_workloads.csv")
    known = {model.name: model for model in found}
    assert len(known) == 33
    assert known["vgg11_25"].iteration == pytest.approx(606.446 / 5659)
    with (DATA / "tiresias_gpu_seconds_1000.csv").open() as file:
        wanted = [float(line) for line in list(file)[1:]]
    jobs = workload.of_models(found, wanted, seed=1)
    seconds = [job.cells[0].iterations * job.cells[0].iteration for job in jobs]
    assert seconds == pytest.approx(wanted, rel=0.02)


# --- simulations ----------------------------------------------------------------------------------


def test_a_job_that_does_not_fit_a_smaller_device_is_counted_or_squeezed() -> None:
    jobs = [Job(f"{size}", [Cell(10, 0.1)], demand=Demand(GIB, size * GIB)) for size in (1, 5)]
    subject = Workload(jobs, 8 * GIB)
    (run,) = simulation.simulate(subject, ["fair"], capacity=4 * GIB).runs
    assert (run.refused, len(run.finished)) == (1, 1)
    squeeze = {0.8: 1.1, 0.5: 1.2}
    (run,) = simulation.simulate(subject, ["fair"], capacity=4 * GIB, squeeze=squeeze).runs
    assert (run.refused, len(run.finished)) == (0, 2)
    assert run.outcomes[1].device_seconds == pytest.approx(1.2)


def long(id: str, group: str, user: str, seconds: int = 100, arrival: float = 0.0) -> Job:
    cells = [Cell(10 * seconds, 0.1)]
    demand = Demand(GIB, GIB)
    return Job(id, cells, demand=demand, user=user, group=group, arrival=arrival)


def ends(subject: Workload, **more: object) -> dict[str, float]:
    (run,) = simulation.simulate(subject, ["fair"], conduct=Conduct(checks=True), **more).runs
    return {outcome.id: outcome.ended or 0.0 for outcome in run.outcomes}


def test_groups_and_users_share_by_weight() -> None:
    jobs = [long("a", "g1", "u1"), long("b", "g2", "u2"), long("c", "g2", "u3")]
    subject = Workload(jobs, 16 * GIB, groups={"g1": 1.0, "g2": 2.0})
    assert ends(subject)["a"] == pytest.approx(300, abs=3)  # b and c have two thirds until then
    assert ends(subject, groups={"g1": 2.0})["a"] == pytest.approx(200, abs=3)
    assert ends(subject, users={"u2": 3.0})["b"] == pytest.approx(200, abs=3)


def test_a_class_has_the_devices_while_it_lasts() -> None:
    jobs = [
        long("guest", "", "u1", 100),
        long("one", "g1", "u2", 10, arrival=20.0),
        long("two", "g1", "u3", 10, arrival=25.0),
        long("late", "g1", "u4", 10, arrival=110.0),
        long("other", "g2", "u5", 10, arrival=30.0),
    ]
    subject = Workload(jobs, 16 * GIB)
    for devices in (1, 2):
        ended = ends(subject, class_of="g1", devices=devices)
        assert max(ended["one"], ended["two"]) == pytest.approx(40 if devices == 1 else 35, abs=1)
        assert ended["late"] == pytest.approx(120, abs=1)
        assert ended["other"] > 40
    assert ends(subject, class_of="g1")["guest"] == pytest.approx(140, abs=1)


def test_the_title_page_simulates_and_shows_it_in_a_notebook(tmp_path: Path) -> None:
    compared = gpushare.simulate(written(tmp_path / "r.jsonl", RECORD), ["fair"])
    assert "fair" in repr(compared)
    assert "<table" in compared._repr_html_()


# --- the command ----------------------------------------------------------------------------------


def test_figures_of_all_policies_or_of_those_named_in_either_case_come_as_json(
    capsys: pytest.CaptureFixture[str],
) -> None:
    seen = []
    for policy in ([], ["--policy", "FAIR,Las"]):
        assert cli.main(["simulate", "--generate", "3", "--seed", "2", "--json", *policy]) == 0
        seen.append(json.loads(capsys.readouterr().out))
    assert {name: figures["finished"] for name, figures in seen[0].items()} == dict.fromkeys(
        (name for name, _ in policies()), 3
    )
    assert seen[1] == {name: seen[0][name] for name in ("fair", "las")}  # the seed is the same


def test_a_plot_without_matplotlib_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    words = ["simulate", "--generate", "3", "--plot", str(tmp_path / "plot.svg")]
    assert cli.main(words) == 1
    assert "pip install 'jupyter_gpushare[evidence]'" in capsys.readouterr().err


def test_a_wrong_input_is_refused_in_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    for words, sentence in (
        ("--generate 9 --class-mode g7", "no group 'g7' in this workload; there is g1,"),
        ("--generate 2 --user-weights eve=2", "there is no user 'eve' in this workload"),
        ("--generate 2 --user-weights u1=0", "a weight must be a finite number above 0"),
        ("--generate 2 --squeeze 0.5=1.2,0.2=1.1", "has at least the slowdown of"),
    ):
        assert cli.main(["simulate", *words.split()]) == 1
        error = capsys.readouterr().err
        assert sentence in error
        assert error.count("\n") == 1


@pytest.mark.system
def test_each_question_can_be_asked_of_a_record(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Another policy, a larger card, two cards, class mode, other weights, paging, squeezing."""
    again = [RecordedEvent(0.0, "group", group="g1", weight=2.0), *RECORD[2:]]
    opened = replace(RECORD[1], group="g1")
    path = written(tmp_path / "record.jsonl", [RECORD[0], opened, *again])
    for words, shown in (
        (["--policy", "las"], "las"),
        (["--capacity", "24GiB"], "1 notebooks on 24.0 GiB"),
        (["--devices", "2"], "2 x 16.0 GiB"),
        (["--class-mode", "g1"], "a class of g1"),
        (["--group-weights", "g1=3", "--user-weights", "u1=0.5"], "fair"),
        (["--paging-rate", "2GiB"], "fair"),
        (["--squeeze", "0.5=1.1,0.2=1.3"], "fair"),
    ):
        assert cli.main(["simulate", "--from", path, *words]) == 0
        assert shown in capsys.readouterr().out


# --- two in one lane ------------------------------------------------------------------------------

RISES_AND_FALLS = wire.Curve(0.1, GIB, (10, 40, 70, 100, 70, 40, 10))


def record_of_two(curve: wire.Curve | None) -> list[RecordedEvent]:
    """Two notebooks of one user take turns: 100 iterations of 0.1 s each."""
    both = {"ephemeral_bytes": GIB, "persistent_bytes": 0, "curve": curve}

    def of(name: str, *seen: Any, **more: Any) -> s.SessionView:
        return replace(view(*seen, **both, **more), id=name)

    shown = [
        snapshot(of("a", "running"), of("b", "waiting")),
        snapshot(of("a", "running", iterations=50, device_seconds=5.0), of("b", "waiting")),
        snapshot(of("a", "idle", iterations=100, device_seconds=10.0), of("b", "running")),
        snapshot(
            of("a", "idle", iterations=100, device_seconds=10.0),
            of("b", "idle", iterations=100, device_seconds=10.0),
        ),
    ]
    return recorded(shown, (0, 5, 10, 20))


def test_a_record_keeps_the_curve_of_a_notebook_and_writes_it_once() -> None:
    events = record_of_two(RISES_AND_FALLS)
    assert [event.session for event in events if event.curve] == ["n1", "n2"]
    lines = b"".join(map(record.encode, events)).splitlines()
    assert [msgspec.json.decode(line, type=RecordedEvent) for line in lines] == events
    first, _ = workload.from_record(events).jobs
    assert first.curve == [GIB * part // 100 for part in RISES_AND_FALLS.percent]


def test_co_lanes_tell_what_two_notebooks_in_one_lane_would_have_gained() -> None:
    subject = workload.from_record(record_of_two(RISES_AND_FALLS))._replace(capacity=GIB * 6 // 5)
    found = gpushare.simulate(subject, ["fair"], co_lanes=0.5)
    turns, beside = found.runs
    assert (turns.policy, beside.policy) == ("fair", "fair, co-lanes")
    assert beside.makespan < 0.9 * turns.makespan
    assert gpushare.simulate(subject, ["fair"]).runs[0].makespan == turns.makespan


def test_co_lanes_of_a_record_without_curves_are_one_sentence() -> None:
    subject = workload.from_record(record_of_two(None))
    with pytest.raises(InvalidValue, match="no notebook of this workload tells what its"):
        gpushare.simulate(subject, ["fair"], co_lanes=0.5)


# --- which was best -------------------------------------------------------------------------------


def test_the_policy_that_was_best_is_named() -> None:
    jobs = [
        Job(name, [Cell(count, 0.1)], demand=Demand(0, GIB), user="u", declares=True)
        for name, count in (("long", 1000), ("short", 10))
    ]
    found = gpushare.simulate(Workload(jobs, GIB), ["fifo", "srtf"])
    assert found.verdict.splitlines() == [
        "shortest mean wait: srtf, 0.6 s",
        "soonest completed, in the mean: srtf, 51 s",
        "all done first: all the same, 101 s",
    ]
    assert repr(found).endswith(found.verdict)
    assert gpushare.simulate(Workload(jobs, GIB), ["fifo"]).verdict == ""


def test_no_policy_is_best_where_nothing_was_done() -> None:
    jobs = [Job("large", [Cell()], demand=Demand(2 * GIB, 0))]
    assert gpushare.simulate(Workload(jobs, GIB), ["fifo", "srtf"]).verdict == ""
