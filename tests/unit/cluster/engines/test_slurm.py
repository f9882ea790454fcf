"""The service of jobs on a real Slurm: nothing is lost, and nothing runs twice."""

from __future__ import annotations

import getpass
import os
import re
import signal
from pathlib import Path

import pytest
from msgspec.structs import replace
from slurm import Slurm

from jupyter_gpushare.cluster.engines.engine import Lease, Node, Refused, Start
from jupyter_gpushare.cluster.engines.slurm import SlurmEngine, gpus_in, node_of, options_in
from jupyter_gpushare.cluster.views import cluster_view
from jupyter_gpushare.errors import EngineUnavailable, InvalidValue, JobFailed, NoRoom
from jupyter_gpushare.jobs.connection import Cluster
from jupyter_gpushare.jobs.job import submit
from jupyter_gpushare.settings import Settings

from ....polling import until
from ..conftest import NODES, MakesSettings, Sites
from ..launch.test_launcher import lives
from ..site import LONG
from ..test_service import ENDLESS, seen


@pytest.mark.system
def test_a_job_that_has_computed_yields_to_one_that_has_not(make_site: Sites) -> None:
    make_site().check_that_one_yields()


def test_a_job_in_the_queue_of_slurm_says_why(make_site: Sites) -> None:
    site = make_site("--hold")
    site.submit("a", 5, 0.0)
    why = "Slurm: JobHeldUser"
    site.until(lambda: seen(site, "a").sentence == f"waits in the engine's queue for n0 ({why})")
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
    (others,) = cluster_view(site.service, "ada", "a", False, "", 0.0).jobs
    assert others.sentence.endswith("its last start came to nothing")
    site.until_state(a="failed")
    assert site.events("a").count("not started") == 3
    assert site.job("a").sentence.startswith("it did not start, as 2 times before: ")
    assert why in site.job("a").sentence


@pytest.mark.system
def test_jobs_go_on_while_the_controller_is_away(make_site: Sites, slurm: Slurm) -> None:
    """Squeue waits for it, and the service does not."""
    site = make_site()
    site.answer_seconds = 1.0
    site.restart()
    site.begin("a", ENDLESS, 0.02, gpus=2)
    slurm.save(f"gs.{site.journal.cluster()}.a.g1")
    pid = slurm.pid("slurmctld")
    os.kill(pid, signal.SIGKILL)
    until(lambda: not lives(pid))
    for _ in range(2):
        site.service.step()
        assert site.state("a") == "running"
    computed = len(site.computed("a"))
    slurm.start_controller()
    until(lambda: "idle" not in slurm.states().values() and bool(slurm.states()))
    site.until(lambda: len(site.computed("a")) > computed)
    assert (site.state("a"), site.job("a").generation) == ("running", 1)
    site.service.cancel("a")
    site.until_state(a="cancelled")


@pytest.mark.system
def test_a_job_leaves_a_node_that_is_drained(make_site: Sites, slurm: Slurm) -> None:
    site = make_site()
    site.begin("a", LONG, 0.02, gpus=1)
    (node,) = site.job("a").place
    slurm.run("scontrol", "update", f"nodename={node}", "state=drain", "reason=it is hot")
    try:
        site.until(lambda: site.job("a").generation == 2)
        assert site.engine.nodes()[node] == Node(0, used=0, reason="it is hot")
        assert {*site.job("a").place} == {"n0", "n1"} - {node}
        site.finish(a=LONG)
    finally:
        slurm.run("scontrol", "update", f"nodename={node}", "state=resume")
    assert site.job("a").losses == 0


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


def test_a_job_that_slurm_never_takes_fails_with_its_words(settings: Settings) -> None:
    refused = replace(settings, cluster_sbatch="--account=x --partition=nowhere")
    said = (
        "Slurm: invalid partition specified: nowhere;"
        " Batch job submission failed: Invalid partition name specified"
    )
    with pytest.raises(JobFailed, match=f"a.*{said}"):
        submit(lambda: None, name="a", settings=refused).wait(60)


@pytest.mark.parametrize(
    ("said", "kind"),
    [
        ("Invalid account or account/partition combination specified", Refused),
        ("Invalid qos specification", Refused),
        ("unrecognized option '--nonsense'", Refused),
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
    program = path / name
    program.write_text(f'#!/bin/sh\necho "{name}: error: {said}" >&2\nexit 1\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(path))


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
    cluster_settings: MakesSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    settings = cluster_settings(cluster_engine="slurm")
    said = "Slurm: scontrol cannot be run: No such file or directory"
    with pytest.raises(EngineUnavailable, match=f"^{said}$"):
        submit(lambda: None, settings=settings)
    with Cluster(settings) as cluster:
        assert cluster.look().trouble == f"{said}; so this is as it was before"


@pytest.mark.parametrize(
    "said",
    [
        "Unable to contact slurm controller (connect failure)",
        "slurm_load_node error: Transport endpoint is not connected",
    ],
)
def test_a_controller_that_is_not_reached_has_refused_nothing(
    said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    says(tmp_path, "scontrol", said, monkeypatch)
    with pytest.raises(EngineUnavailable, match=re.escape(said)):
        SlurmEngine("c").nodes()


@pytest.mark.parametrize(
    ("text", "options"),
    [
        ("", []),
        ("--partition=gpu --account='my lab'", ["--partition=gpu", "--account=my lab"]),
        ("-p gpu", ["-p", "gpu"]),
    ],
)
def test_options_are_those_of_a_shell(text: str, options: list[str]) -> None:
    assert options_in(text) == options


@pytest.mark.parametrize("text", ["'", "--nodes=2", "-N", "--gpus-per-node=4", "--output=x"])
def test_options_of_which_a_job_has_its_own_are_refused(text: str) -> None:
    with pytest.raises(InvalidValue, match="`cluster_sbatch` "):
        options_in(text)


@pytest.mark.parametrize(
    ("resources", "gpus"),
    [
        ("gpu:4", 4),
        ("shard:4", 0),
        ("gpu:a100:4(S:0-1),shard:16", 4),
        ("gpu:a:1,gpu:b:2", 3),
        ("(null)", 0),
    ],
)
def test_gpus_are_counted_whatever_they_are(resources: str, gpus: int) -> None:
    assert gpus_in(resources) == gpus


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
        ("State=DOWN* Gres=gpu:4 GresUsed=gpu:2", Node(4, 2, alive=False)),
        (
            "State=MIXED Gres=gpu:2,shard:8 GresUsed=gpu:1,shard:(null):2(IDX:0)",
            Node(2, 1, shards=4),
        ),
        ("State=IDLE Gres=gpu:a100:1,shard:a100:3 GresUsed=gpu:1,shard:0", Node(1, 1, shards=3)),
        ("State=IDLE*+NOT_RESPONDING Gres=gpu:4 GresUsed=gpu:0", Node(4, 0, alive=False)),
    ],
)
def test_a_node_is_read_from_what_slurm_says(told: str, node: Node) -> None:
    assert node_of(f"NodeName=n1 Arch=x86_64 {told}") == ("n1", node)
