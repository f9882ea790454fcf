"""The section of jobs in the panel, with real jobs on the engine `local`."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from jupyter_gpushare.jobs.job import Job, submit
from jupyter_gpushare.settings import Settings, load

from ...conftest import private_broker
from ...polling import until
from ...unit.cluster.program import end
from .conftest import CAPACITY

expect = pytest.importorskip("playwright.sync_api", reason="needs playwright").expect
COUNTS = """
import time
for number in range(10_000):
    print("iteration", number, flush=True)
    time.sleep(0.05)
"""


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Settings]:
    cluster = {
        "cluster_directory": str(tmp_path_factory.mktemp("jobs")),
        "cluster_nodes": "node-a=4 node-b=2",
        "cluster_look_seconds": "0.1",
    }
    with private_broker(host_capacity_bytes=CAPACITY, **cluster) as settings:
        yield settings
        end(load(socket=settings.socket))


@pytest.fixture
def start(settings: Settings, tmp_path: Path) -> Callable[..., Job]:
    script = tmp_path / "train.py"

    def start(text: str, **options: Any) -> Job:
        script.write_text(text)
        return submit(script, settings=load(socket=settings.socket), **options)

    return start


@pytest.mark.system
def test_a_job_is_seen_its_log_is_followed_and_it_is_cancelled(visit: Any, start: Any) -> None:
    lab = visit("empty.ipynb")
    section = lab.panel.locator(".jp-GpuShare-jobs")
    lab.page.wait_for_timeout(2_000)  # the panel has looked
    expect(section).to_have_count(0)
    runs, waits = start(COUNTS, gpus=5, name="resnet"), start(COUNTS, gpus=4, name="gan")
    until(lambda: runs.state == "running")
    expect(section.locator(".jp-GpuShare-headline")).to_have_text("1 running, 1 waiting.")
    expect(section.locator(".jp-GpuShare-node")).to_have_count(2)
    ours = section.locator(".jp-GpuShare-gpus .jp-mod-ours")
    expect(ours).to_have_count(5)
    row = section.locator(".jp-GpuShare-job", has_text=runs.id)
    expect(row).to_contain_text("runs on node-a and node-b")
    expect(section.locator(".jp-GpuShare-job", has_text=waits.id)).to_contain_text("waits for")

    row.get_by_role("button", name=f"Log of {runs.id}").press("Enter")
    log = row.locator(".jp-GpuShare-log")
    expect(log).to_contain_text("iteration 0")
    seen = log.inner_text().count("iteration")
    expect(log).to_have_text(re.compile(f"iteration {seen + 20}"))  # it goes on
    is_at_end = "log => Math.abs(log.scrollTop) < 2 && log.scrollHeight > log.clientHeight"
    assert lab.page.evaluate(is_at_end, log.element_handle())
    for theme in ("Light", "Dark"):
        lab.choose_theme(theme)
        assert lab.barriers() == []
        lab.picture(f"jobs-{theme.lower()}")

    row.get_by_role("button", name=f"Cancel {runs.id}…").press("Enter")
    row.get_by_role("button", name="Cancel the job").press("Enter")
    expect(lab.panel.locator(".jp-GpuShare-notice")).to_have_text(f"{runs.id} is cancelled.")
    until(lambda: runs.state == "cancelled")
    expect(section.locator(".jp-GpuShare-headline")).to_have_text("1 job runs.")
    expect(row.locator(".jp-GpuShare-reason")).to_have_text("cancelled")
    expect(ours).to_have_count(4)
