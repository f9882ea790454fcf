"""The service of jobs on a real Slurm: nothing is lost, and nothing runs twice."""

from __future__ import annotations

import getpass
import os
import re
import shutil
import socket
from collections.abc import Sequence
from pathlib import Path

import pytest
from slurm import Slurm

from jupyter_gpushare.cluster.engines.engine import Lease, Node, Refused, Start, Status
from jupyter_gpushare.cluster.engines.sbatch import options_in, options_of_job, reservation_in
from jupyter_gpushare.cluster.engines.slurm import SlurmEngine
from jupyter_gpushare.cluster.engines.slurm_nodes import node_of
from jupyter_gpushare.cluster.hands.command import SECONDS, Ran
from jupyter_gpushare.cluster.looks.looks import look_at
from jupyter_gpushare.cluster.program import answer_seconds_of
from jupyter_gpushare.errors import EngineUnavailable, InvalidValue, JobFailed, NoRoom
from jupyter_gpushare.jobs.connection import Cluster
from jupyter_gpushare.jobs.job import submit
from jupyter_gpushare.settings import Settings
from jupyter_gpushare.tools.slurm_checks import gpus_check, slurm_checks

from ....polling import until
from ..conftest import NODES, MakesSettings, Sites
from ..site import LONG
from ..test_service import ENDLESS, seen
from ..work import Makes, opened


@pytest.mark.system
def test_a_job_that_has_computed_yields_to_one_that_has_not(make_site: Sites, slurm: Slurm) -> None:
    """The job has its options at each start."""
    site = make_site("--comment=of-all", "--time=9")
    site.check_that_one_yields(options=("--comment=mine",))
    told = slurm.run("squeue", "-h", "-t", "all", "-o", "%j %k %l")
    named = f"gs.{site.journal.cluster()}.long.g"
    for generation in (1, 2):
        assert f"{named}{generation} mine 9:00" in told.splitlines()


def test_a_job_in_the_queue_of_slurm_says_why_to_all(make_site: Sites) -> None:
    site = make_site("--hold")
    site.submit("a", 5, 0.0)
    why = "Slurm: JobHeldUser"
    site.until(lambda: seen(site, "a").sentence == f"waits in the engine's queue for n0 ({why})")
    assert seen(site, "a", "ada").sentence == seen(site, "a").sentence
    site.restart(pending=0.1)
    site.until(lambda: "no room" in site.events("a"))
    assert seen(site, "a").sentence == (
        f"waits for 1 GPU; 4 are free, but its last start was refused: {why}"
    )


def test_a_job_that_cannot_run_on_its_node_says_so_and_fails(make_site: Sites) -> None:
    site = make_site(python="/no/such/python")
    site.submit("a", 5, 0.0)
    why = "/no/such/python: No such file or directory"
    site.until(lambda: "came to nothing: " in (told := seen(site, "a").sentence) and why in told)
    assert site.job("a").losses in (1, 2)
    assert seen(site, "a", "ada").sentence.endswith("its last start came to nothing")
    site.until_state(a="failed")
    assert site.events("a").count("not started") == 3
    assert site.job("a").sentence.startswith("it did not start, as 2 times before: ")
    assert why in site.job("a").sentence


def test_the_nodes_are_those_of_the_partition_alone(
    make_site: Sites, slurm: Slurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the setting names another partition, a job that cannot resume keeps its node."""
    slurm.run("scontrol", "create", "partition=small", "nodes=n1")
    try:
        site = make_site()
        site.begin("a", LONG, 0.02, resumes=False)
        assert (site.service.nodes.keys(), {*site.job("a").place}) == (NODES.keys(), {"n0"})
        site.engine = SlurmEngine(site.journal.cluster(), ["-psmall"])
        site.restart()
        site.service.step()
        assert site.service.nodes["n0"] == Node(0, reason="it is not in the partition small")
        site.finish(a=LONG)
        slurm.run("scontrol", "update", "partition=small", "default=yes")
        assert [*SlurmEngine("c").nodes()] == ["n1"]
        monkeypatch.setenv("SBATCH_PARTITION", "nowhere,none")
        there = "partition nowhere,none, which `cluster_sbatch` names; there is all and small"
        with pytest.raises(EngineUnavailable, match=there):
            SlurmEngine("c").nodes()
    finally:
        slurm.run("scontrol", "update", "partition=all", "default=yes")
        slurm.run("scontrol", "delete", "partition=small")


@pytest.mark.system
def test_the_nodes_are_those_of_the_reservation_alone(make_site: Sites, slurm: Slurm) -> None:
    def said(options: str) -> dict[str, str]:
        given = Settings(cluster_sbatch=options, cluster_directory="/proc/jobs")
        return {check.name: check.sentence for check in slurm_checks(given)}

    lab = ("reservation=lab", "nodes=n1", "users=root", "starttime=now", "duration=60")
    slurm.run("scontrol", "create", "reservation", *lab)
    try:
        until(lambda: slurm.states()["n1"] == "resv")  # Slurm takes some seconds
        assert [name for name, node in SlurmEngine("c").nodes().items() if not node.gpus] == ["n1"]
        site = make_site("--reservation=lab")
        site.begin("a", LONG, 0.02)
        assert (site.service.nodes.keys(), site.job("a").place) == ({"n1"}, {"n1": 1})
        assert said("--reservation lab")["Slurm GPUs"] == "2 GPUs on 1 of 1 node"
        assert said("")["Slurm GPUs"] == "3 GPUs on 2 of 3 nodes"
        why = "Slurm has no reservation x, which `cluster_sbatch` names; there is lab"
        assert said("--reservation=x")["Slurm reservation"] == why
        with pytest.raises(EngineUnavailable, match=why):
            SlurmEngine("c", ["--reservation=x"]).nodes()
        site.finish(a=LONG)
        until(lambda: slurm.run("squeue", "-h") == "")
    finally:
        slurm.run("scontrol", "delete", "reservation=lab")


def test_a_look_asks_slurm_as_often_for_twenty_jobs_as_for_one(
    make_job: Makes, slurm: Slurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (log := tmp_path / "log").touch()
    for name in ("scontrol", "squeue", "sinfo", "sacct"):
        there = shutil.which(name)
        script(tmp_path / name, f'echo {name} >> {log}\nexec {there} "$@"')
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    engine, leases, asked = SlurmEngine("c"), [], []
    for number in range(20):
        opened(job := make_job(ENDLESS, 0.02, name=f"a{number}"), n0=1, n1=1)
        leases.append(engine.start(Start("c", job.name, 1, job, {"n0": 1, "n1": 1})))
        if number in (0, 19):
            until(lambda: engine.poll(leases[:1])[leases[0]].state == "running")
            log.write_text("")
            assert look_at(engine, leases, True).found == {*leases}
            asked.append(log.read_text().split())
    slurm.run("scancel", *(lease.handle for lease in leases))
    assert asked == [["scontrol", "scontrol", "squeue"]] * 2  # partitions, nodes, jobs


def test_a_look_has_time_for_each_of_its_commands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of them may take SECONDS."""
    notes = f'echo "$*" >> {tmp_path / "log"}'
    shows = """case "$*" in
        *nodes) echo "NodeName=n0 State=IDLE Gres=gpu:2 Partitions=all";;
        *partitions) echo "PartitionName=all Nodes=n0 State=UP Default=YES";;
        *reservations) echo "ReservationName=lab Nodes=n0";;
    esac"""
    script(tmp_path / "scontrol", f"{notes}\n{shows}")
    script(tmp_path / "squeue", notes)
    monkeypatch.setenv("PATH", str(tmp_path))
    look = look_at(SlurmEngine("c", ["--reservation=lab"]), [], True)
    assert (look.nodes, look.found) == ({"n0": Node(2)}, set())
    ran = (tmp_path / "log").read_text().splitlines()
    assert answer_seconds_of(Settings(cluster_engine="slurm")) > len(ran) * SECONDS


@pytest.mark.system
def test_a_job_that_is_cancelled_by_others_saves_and_comes_back(
    make_site: Sites, slurm: Slurm
) -> None:
    site = make_site()
    site.begin("a", LONG, 0.02)
    slurm.run("scancel", site.job("a").handle)
    site.until(lambda: site.job("a").generation == 2)
    assert (site.job("a").yields, site.job("a").losses) == (1, 0)
    site.finish(a=LONG)


@pytest.fixture
def settings(slurm: Slurm, cluster_settings: MakesSettings) -> Settings:
    return cluster_settings(cluster_engine="slurm")


def test_a_function_is_called_on_slurm_and_its_result_comes_back(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPUSHARE_ADDRESS", "127.0.0.1")
    monkeypatch.setenv("SLURM_NTASKS", "17")  # of the notebook, which may be a job of Slurm itself

    def rank() -> tuple[str, str, bool]:
        import os

        return os.environ["RANK"], os.environ["WORLD_SIZE"], "SLURM_NTASKS" in os.environ

    job = submit(rank, gpus=3, rank_for_each_gpu=True, settings=settings)
    assert job.result(60) == ("0", "3", False)
    with Cluster(settings) as cluster:
        assert [(node.name, node.gpus) for node in cluster.look().nodes] == [*NODES.items()]


def test_the_doctor_says_what_is_wrong_with_slurm(
    slurm: Slurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def said(options: str = "", directory: str = "/proc/jobs") -> dict[str, str]:
        given = Settings(cluster_sbatch=options, cluster_directory=directory)
        return {c.name: f"{c.state}: {c.sentence}" for c in slurm_checks(given)}

    assert [text.partition(":")[0] for text in said().values()] == ["ok"] * 6
    assert said()["Slurm GPUs"] == "ok: 5 GPUs on 3 of 3 nodes"
    monkeypatch.setattr(socket, "gethostname", lambda: "login")
    assert said()["jobs' directory"].startswith("ok: /proc/jobs is on proc, which nodes may share")
    told = said("", str(tmp_path))["jobs' directory"]
    assert told.startswith(f"warning: {tmp_path} is on a disk of this machine")
    without = gpus_check("a", ["NodeName=n0 State=IDLE Gres=(null)"])
    assert (without.state, without.sentence[:12]) == ("problem", "no node of a")
    assert said("-pa,all")["Slurm partition"] == "ok: all is up"
    assert "problem: there is no a, but all" in said("-pa")["Slurm partition"]
    slurm.run("scontrol", "create", "partition=a", "nodes=n1", "state=down")
    slurm.run("scontrol", "update", "nodename=n1", "state=drain", "reason=x")
    try:
        assert said("-pa")["Slurm partition"].startswith("problem: a is not up")
        assert "problem: each node with GPUs is down" in said("-pa")["Slurm GPUs"]
    finally:
        slurm.run("scontrol", "update", "nodename=n1", "state=resume")
        slurm.run("scontrol", "delete", "partition=a")
    text = Path(os.environ["SLURM_CONF"]).read_text()
    (tmp_path / "slurm.conf").write_text(re.sub("(?<=SlurmctldPort=).*", "1", text))
    monkeypatch.setenv("SLURM_CONF", str(tmp_path / "slurm.conf"))
    assert said()["Slurm controller"].startswith("problem: Slurm: ")


WRONG = {
    "--constraint=nowhere": "Batch job submission failed: Invalid feature specification",
    "--nonsense": "unrecognized option '--nonsense'",
    "--mem=9T": "Memory specification can not be satisfied; Batch job submission failed: Requested"
    " node configuration is not available",
}


def test_a_job_with_a_wrong_option_fails_at_once_with_the_words_of_sbatch(
    settings: Settings, slurm: Slurm
) -> None:
    for option, said in WRONG.items():
        job = submit(lambda: None, options=["--account=lab", option], settings=settings)
        with pytest.raises(JobFailed, match=f": Slurm: {said}$"):
            job.wait(60)
        assert job.look().generation == 1
    assert slurm.run("squeue", "-h") == ""
    with pytest.raises(InvalidValue, match="CLUSTER_SBATCH of the service names the partition"):
        submit(lambda: None, options=["-p", "all"], settings=settings)


def test_a_node_that_does_not_suit_a_job_is_refused_for_now(make_job: Makes, slurm: Slurm) -> None:
    engine = SlurmEngine("c")
    start = Start("c", "a", 1, opened(make_job(5, 0)).parent, {"n0": 1}, "", ["--constraint=fast"])
    slurm.run("scontrol", "update", "nodename=n1", "features=fast")
    with pytest.raises(NoRoom, match="Requested node configuration is not available"):
        engine.start(start)
    engine.kill(engine.start(start._replace(where={"n1": 1})))


@pytest.mark.parametrize(
    ("said", "kind"),
    [
        ("Invalid account or account/partition combination specified", Refused),
        ("Invalid qos specification", Refused),
        ("Invalid --time specification", Refused),
        ("User's group not permitted to use this partition", Refused),
        ("Requested node configuration is not available", NoRoom),
        ("Job violates accounting/QOS policy (job submit limit, user's size and time)", NoRoom),
        ("Required partition not available (inactive or drain)", NoRoom),
        ("Invalid node name specified", NoRoom),
    ],
)
def test_what_slurm_refuses_is_refused_for_ever_or_for_now(
    said: str, kind: type[Exception], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    says(tmp_path, "sbatch", said, monkeypatch)
    with pytest.raises(kind, match=re.escape(f"Slurm: {said}")):
        SlurmEngine("c").start(Start("c", "a", 1, tmp_path, {"n0": 1}))


def says(path: Path, name: str, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    script(path / name, f'echo "{name}: error: {said}" >&2\nexit 1')
    monkeypatch.setenv("PATH", str(path))


# scontrol answers with these: default or not, the partitions of n0, and a reservation.
GONE = [
    ("--partition=all --reservation=lab", "YES", "all", "", "has no reservation lab"),
    ("--reservation=lab", "YES", "all", "lab Nodes=n1", "lab has no node of the partition"),
    ("--partition=all", "YES", "", "", "has no node in the partition all"),
    ("", "NO", "all", "", "has no default partition"),
]


@pytest.mark.parametrize(("options", "is_default", "partitions", "reservation", "said"), GONE)
def test_jobs_are_looked_at_even_if_no_node_is_left_for_others(
    options: str,
    is_default: str,
    partitions: str,
    reservation: str,
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A reservation has ended, for example."""
    shows = f"""case "$*" in
        *nodes) echo "NodeName=n0 State=IDLE Gres=gpu:2 Partitions={partitions}";;
        *partitions) echo "PartitionName=all Nodes=n0 State=UP Default={is_default}";;
        *reservations) [ "{reservation}" ] && echo "ReservationName={reservation}" || true;;
    esac"""
    script(tmp_path / "scontrol", shows)
    own, rest = getpass.getuser(), "None|n0|gres:gpu:1"
    rows = (f"7|RUNNING|{own}|{rest}|gs.c.a.g1", f"8|CANCELLED|{own}|{rest}|gs.c.b.g1")
    said_of = (f'echo "${{shown%%|*}}|{row}"' for row in rows)
    script(tmp_path / "squeue", "\n".join(("for shown; do :; done", *said_of)))
    monkeypatch.setenv("PATH", str(tmp_path))
    runs, ended = Lease("a", 1, "7"), Lease("b", 1, "8")
    look = look_at(SlurmEngine("c", options_in(options)), [runs, ended], True)
    assert (look.nodes, look.statuses, look.found) == (None, {runs: Status("running")}, {runs})
    assert said in look.trouble


@pytest.mark.parametrize(
    ("options", "names"),
    [("", "--partition=small --reservation=lab "), ("-pall", "--partition=all --reservation=lab ")],
)
def test_sbatch_is_told_what_was_counted_though_it_has_another_environment(
    options: str, names: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []

    def run_as(user: str, command: Sequence[str], given: str) -> Ran:
        told.extend(command)
        return Ran(0, "7", "")

    monkeypatch.setenv("SBATCH_PARTITION", "small")
    monkeypatch.setenv("SBATCH_RESERVATION", "lab")
    engine = SlurmEngine("c", options_in(options), run_as=run_as)
    assert engine.start(Start("c", "a", 1, tmp_path, {"n0": 1}, "ada")).user == "ada"
    assert f" {names}{options}" in " ".join(told)


def script(path: Path, text: str) -> None:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


def test_other_jobs_of_the_user_may_have_any_name(slurm: Slurm) -> None:
    own = getpass.getuser()
    names = ("gs.c.a.g1", "a|b", "\n", f"a\n7|PENDING|{own}|gs.c.b.g1\n7|gs.c.b.g1|PENDING|{own}")
    held = ("--parsable", "--hold", "--wrap=true")
    numbers = [slurm.run("sbatch", *held, f"--job-name={name}").strip() for name in names]
    try:
        assert SlurmEngine("c").adopt() == {Lease("a", 1, numbers[0])}
    finally:
        slurm.run("scancel", *numbers)


def test_where_slurm_is_not_installed_no_job_is_taken(
    cluster_settings: MakesSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    settings = cluster_settings(cluster_engine="slurm")
    said = "Slurm: scontrol cannot be run: No such file or directory"
    with pytest.raises(EngineUnavailable, match=f"^{said}$"):
        submit(lambda: None, settings=settings)
    assert [*tmp_path.glob("state/jobs/*")] == []
    with Cluster(settings) as cluster:
        assert cluster.look().trouble == f"{said}; so this is as it was before"


def test_a_controller_that_is_not_reached_has_refused_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for said in ("Unable to contact slurm controller", "Transport endpoint is not connected"):
        says(tmp_path, "scontrol", said, monkeypatch)
        with pytest.raises(EngineUnavailable, match=said):
            SlurmEngine("c").nodes()


def test_options_are_those_of_a_shell() -> None:
    given = options_in("-p gpu -t 5 --account='my lab' --exclusive")
    assert given == ["-pgpu", "-t5", "--account=my lab", "--exclusive"]


def test_the_last_reservation_counts_and_else_that_of_sbatch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SBATCH_RESERVATION", "of-all")
    given = {"": "of-all", "-pa": "of-all", "--reservation a --reserv=b,c": "b,c"}
    assert {text: reservation_in(options_in(text)) for text in given} == given


@pytest.mark.parametrize(
    ("option", "what"), [("-pall", "partition"), ("--reserv=lab", "reservation")]
)
def test_what_is_the_same_for_all_jobs_is_refused_for_one(option: str, what: str) -> None:
    with pytest.raises(InvalidValue, match=f"SBATCH of the service names the {what}$"):
        options_of_job([option])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("'", "is no list of options"),
        ("--nodes=2", "`--nodes N` says how many"),
        ("-QN2", "`--nodes N` says how many"),  # several at once
        ("--job a", "--job=a: `--name NAME` names a job"),  # the beginning of --job-name
        ("--gpus-per-node=4", "`--gpus N`"),
        ("-o x", "-ox: `jupyter gpushare logs`"),
        ("train.py", "'train.py' is none"),
        ("--exclusive user train.py", "'train.py' is none"),  # otherwise sbatch would run it
    ],
)
def test_options_that_the_service_sets_are_refused_with_what_to_use(text: str, said: str) -> None:
    with pytest.raises(InvalidValue, match=f"^`cluster_sbatch` .*{said}"):
        options_in(text)


@pytest.mark.parametrize(
    ("told", "node"),
    [
        ("State=IDLE Gres=gpu:4 GresUsed=gpu:0(IDX:N/A)", Node(4)),
        ("State=MIXED+PLANNED Gres=gpu:4 GresUsed=gpu:1(IDX:0)", Node(4, used=1)),
        ("State=IDLE+COMPLETING Gres=gpu:4 GresUsed=gpu:0", Node(4, used=4)),
        (
            "State=IDLE+DRAIN Gres=gpu:4 Reason=it is hot [root@2026-01-01]",
            Node(0, 0, True, "it is hot"),
        ),
        ("State=DOWN Gres=gpu:4 GresUsed=gpu:2", Node(4, 2, alive=False)),
        ("State=DOWN*+DRAIN Gres=gpu:4", Node(0, alive=False)),
        ("State=IDLE+CLOUD+POWERED_DOWN Gres=gpu:4", Node(0, alive=False)),
        ("State=MIXED+DRAIN+POWER_DOWN Gres=gpu:4 GresUsed=gpu:2", Node(0, 2)),
        ("State=MIXED+FAIL Gres=gpu:4 GresUsed=gpu:2", Node(0, 2)),
        (
            "State=MIXED Gres=gpu:2,shard:8 GresUsed=gpu:1,shard:(null):2(IDX:0)",
            Node(2, 1, shards=4),
        ),
        ("State=IDLE Gres=gpu:a100:1,shard:a100:3 GresUsed=gpu:1,shard:0", Node(1, 1, shards=3)),
        ("State=IDLE Gres=gpu:a:1(S:0-1),gpu:b:2 GresUsed=(null)", Node(3)),
        (
            "State=MIXED*+NOT_RESPONDING Gres=gpu:4 GresUsed=gpu:1",
            Node(4, 4, reason="it does not respond", is_silent=True),
        ),
    ],
)
def test_a_node_is_read_from_what_slurm_says(told: str, node: Node) -> None:
    assert node_of(f"NodeName=n1 Arch=x86_64 {told}") == ("n1", node)


@pytest.mark.parametrize(
    ("state", "ours", "gpus"),
    [
        ("IDLE+RESERVED", [], 0),
        ("IDLE+RESERVED", ["n1"], 4),
        ("IDLE+RESERVED", ["n11"], 0),
        ("IDLE+MAINTENANCE+RESERVED", ["n1"], 0),
    ],
)
def test_a_reserved_node_has_gpus_for_those_for_whom_it_is(
    state: str, ours: list[str], gpus: int
) -> None:
    assert node_of(f"NodeName=n1 State={state} Gres=gpu:4", ours) == ("n1", Node(gpus))
