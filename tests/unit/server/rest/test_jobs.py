"""Jobs of a cluster over REST and in metrics, with real processes on the engine `local`."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from jupyter_gpushare_server.jobs import LOG_BYTES, Jobs, JobsWatch

from jupyter_gpushare.errors import BrokerUnavailable
from jupyter_gpushare.jobs.connection import Cluster
from jupyter_gpushare.jobs.job import Job, submit
from jupyter_gpushare.jobs.submission import Wanted, made
from jupyter_gpushare.settings import Settings, cluster_socket_path, load

from ....polling import comes, until
from ...cluster.program import end, kill

WAITS = "import time; print('begun', flush=True); time.sleep(600)"
IDLE_SECONDS = 2.0


@pytest.fixture
def cluster(settings: Settings, tmp_path: Path) -> Iterator[Settings]:
    """Settings of a cluster of two nodes."""
    given = load(
        {},
        socket=settings.socket,
        cluster_directory=str(tmp_path / "jobs"),
        cluster_nodes="n0=2 n1=1",
        cluster_look_seconds=0.05,
        idle_exit_seconds=IDLE_SECONDS,
    )
    yield given
    end(given)


@pytest.fixture
def extension_config(cluster: Settings) -> dict[str, Any]:
    return {name: getattr(cluster, name) for name in ("cluster_directory", "cluster_nodes")}


Start = Callable[..., Job]


@pytest.fixture
def start(cluster: Settings, tmp_path: Path) -> Start:
    def start(text: str, **options: Any) -> Job:
        script = tmp_path / "train.py"
        script.write_text(text)
        return submit(script, settings=cluster, **options)

    return start


async def test_no_service_is_started_to_look_where_no_job_was_submitted(
    api: Any, cluster: Settings
) -> None:
    status, body = await api("jobs", params={"all": "true"})
    assert (status, body["jobs"], body["nodes"], body["cluster"]) == (200, [], [], "")
    for path in (("train-1",), ("train-1", "log")):
        status, body = await api("jobs", *path)
        assert (status, body["code"], "train-1" in body["message"]) == (404, "unknown_job", True)
    status, body = await api("jobs", params={"all": "some"})
    assert (status, body["message"]) == (400, "`all` is true or false.")
    assert not cluster_socket_path(cluster).exists()


@pytest.mark.system
async def test_a_job_is_seen_and_cancelled(api: Any, start: Start) -> None:
    job = await asyncio.to_thread(start, WAITS, gpus=3)
    await asyncio.to_thread(until, lambda: job.log().count("begun") == 2)  # on each node
    await asyncio.to_thread(until, lambda: job.state == "running")
    status, body = await api("jobs")
    assert status == 200
    assert [(view["id"], view["state"], view["gpus"]) for view in body["jobs"]] == [
        (job.id, "running", 3)
    ]
    assert {node["name"]: node["ours"] for node in body["nodes"]} == {"n0": 2, "n1": 1}
    assert (await api("jobs", job.id))[1]["sentence"] == "runs on n0 and n1"
    assert (await api("jobs", job.id, "log"))[1] == {"text": "begun\nbegun\n", "is_cut": False}
    status, body = await api("jobs", job.id, "asks", method="POST", body={"ask": "cancel"})
    assert (status, body["id"]) == (200, job.id)
    await asyncio.to_thread(until, lambda: job.state == "cancelled")
    assert (await api("jobs"))[1]["jobs"] == []
    _, body = await api("jobs", params={"all": "true"})
    assert [(view["id"], view["state"]) for view in body["jobs"]] == [(job.id, "cancelled")]


@pytest.mark.system
async def test_a_job_whose_directory_is_made_is_submitted(api: Any, cluster: Settings) -> None:
    wish = made(cluster, [sys.executable, "-c", "print('done')"], Wanted(name="train"), {})
    given = {"id": wish.id, "directory": wish.directory, "gpus": 2}
    for _ in range(2):  # the same again changes nothing
        status, body = await api("jobs", method="POST", body=given)
        assert (status, body["id"], body["gpus"]) == (200, wish.id, 2)
    await asyncio.to_thread(Job(wish.id, cluster).wait, 60)
    _, body = await api("jobs", params={"all": "true"})
    assert [(view["id"], view["state"]) for view in body["jobs"]] == [(wish.id, "done")]
    for wrong, expected, sentence in (
        ({"gpus": 1.5}, 400, "a whole number of GPUs"),
        ({"gpus": 5}, 409, "never fits"),
        ({"directory": "/nowhere"}, 400, "/nowhere"),
        ({"speed": 1}, 400, "speed"),
    ):
        status, body = await api("jobs", method="POST", body={**given, "id": "other", **wrong})
        assert (status, sentence in body["message"]) == (expected, True), body


@pytest.mark.system
@pytest.mark.parametrize("end", ["\n", "\r", "\r\n"])  # a progress bar writes \r alone
async def test_a_long_log_is_cut_to_whole_lines(api: Any, start: Start, end: str) -> None:
    lines = LOG_BYTES // 10
    script = f"for i in range({lines}): print(f'line {{i:>9}}', end={end!r})"
    job = await asyncio.to_thread(start, script)
    await asyncio.to_thread(job.wait, 60)
    _, body = await api("jobs", job.id, "log")
    assert body["is_cut"]
    assert len(body["text"]) <= LOG_BYTES
    found = body["text"].splitlines()
    assert found == [f"line {i:>9}" for i in range(lines - len(found), lines)]


@pytest.mark.system
async def test_of_one_long_line_the_end_is_shown(api: Any, start: Start) -> None:
    job = await asyncio.to_thread(start, f"print({LOG_BYTES} * 'é', end='!')")
    await asyncio.to_thread(job.wait, 60)
    _, body = await api("jobs", job.id, "log")
    assert body == {"text": (LOG_BYTES // 2 - 1) * "é" + "!", "is_cut": True}


@pytest.mark.system
async def test_jobs_and_nodes_are_in_the_metrics(jp_fetch: Any, api: Any, start: Start) -> None:
    job = await asyncio.to_thread(start, WAITS, gpus=3)
    await asyncio.to_thread(start, WAITS, gpus=2)
    await asyncio.to_thread(until, lambda: job.state == "running")

    async def scraped() -> str:
        return str((await jp_fetch("metrics")).body.decode())

    end = time.monotonic() + 60
    while 'gpushare_jobs{state="running"} 1.0' not in await scraped():
        assert time.monotonic() < end, "the jobs have not come into the metrics"
        await asyncio.sleep(0.5)
    text = await scraped()
    assert 'gpushare_jobs{state="queued"} 1.0' in text
    assert 'gpushare_node_gpus{node="n0"} 2.0' in text
    assert 'gpushare_node_jobs_gpus{node="n0"} 2.0' in text
    assert 'gpushare_node_up{node="n1"} 1.0' in text


@pytest.mark.system
def test_metrics_find_the_service_that_follows_one_that_was_killed(
    cluster: Settings, start: Start
) -> None:
    job = start(WAITS)
    until(lambda: job.state == "running")
    watch = JobsWatch(Jobs(cluster))
    watch.look()
    assert watch.view is not None
    kill(watch.view.pid, signal.SIGKILL)
    watch.look()
    assert watch.view is None  # it is not known what the jobs do
    job.look()  # starts another one
    watch.look()
    assert watch.view is not None
    assert [view.id for view in watch.view.jobs] == [job.id]


@pytest.mark.system
def test_metrics_do_not_keep_a_service_without_jobs(cluster: Settings, start: Start) -> None:
    watch = JobsWatch(Jobs(cluster))
    watch.look()
    assert watch.view is None
    start("print('done')").wait(60)
    with Cluster(cluster) as service:
        pid = service.look().pid

    def has_ended() -> bool:
        watch.look()
        return not psutil.pid_exists(pid) or psutil.Process(pid).status() == "zombie"

    assert comes(has_ended)
    watch.look()
    assert watch.view is None or watch.view.jobs == []
    with pytest.raises(BrokerUnavailable):
        Cluster(cluster)
    assert os.path.exists(Jobs(cluster).journal)
