"""Step after step, also after one that failed."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from threading import Event

import pytest

from jupyter_gpushare.cluster.loop import Loop
from jupyter_gpushare.cluster.service import Service

from .site import STEP, Site
from .work import generations, iterations


def test_a_service_that_could_not_write_is_made_anew_and_goes_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    site, stopped = Site(tmp_path), Event()
    job = site.submit("a", 10, STEP)
    other = sqlite3.connect(tmp_path / "cluster.sqlite", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    made: list[Service] = []

    def make() -> Service:
        if len(made) == 2:  # two could not write
            other.execute("ROLLBACK")
        made.append(site.made())
        return made[-1]

    def tell(service: Service) -> None:
        assert service is made[-1]
        if site.state("a") == "done":
            stopped.set()

    try:
        Loop(make, 0.01).run(tell, stopped)
    finally:
        other.close()
        site.close()
    assert len(made) == 3
    assert iterations(generations(job)) == [*range(1, 11)]
    said = capsys.readouterr().err.splitlines()
    assert said == ["nothing is started, since a step failed: database is locked"] * 2
