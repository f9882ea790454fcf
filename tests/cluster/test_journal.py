"""The journal of a cluster: what it has is on disk, whole, and for one service."""

from __future__ import annotations

import sqlite3
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from jupyter_gpushare.cluster.engines.engine import PART, Capacity
from jupyter_gpushare.cluster.jobs import Job, Spec
from jupyter_gpushare.cluster.journal import MIGRATIONS, Event, Journal
from jupyter_gpushare.errors import LimitExceeded

A = Job(id="a", user="mia", directory="/jobs/a", spec=Spec(2, nodes=1, resumes=True), submitted=1.0)
RUNS = Job(
    id="b",
    user="noah",
    directory="/jobs/b",
    spec=Spec(1, tells=True),
    submitted=0.5,
    state="running",
    generation=3,
    place={"n0": 1},
    handle="17",
    resume="g2.closed/it-5",
    told=1.25,
    first=0.75,
    core={"queue": 1, "run": 2.5},
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state" / "cluster.sqlite"


@pytest.fixture
def journal(path: Path) -> Iterator[Journal]:
    journal = Journal(path)
    yield journal
    journal.close()


def event(job: Job, what: str) -> Event:
    return Event(2.0, job.id, job.generation, what)


def test_jobs_come_back_as_they_were(path: Path) -> None:
    journal = Journal(path)
    journal.write(A, event(A, "submitted"))
    journal.write(RUNS, event(RUNS, "computes"))
    journal.close()
    again = Journal(path)
    assert again.present() == [RUNS, A]  # in the order in which they were submitted
    assert again.job("a") == A
    assert again.job("c") is None
    again.close()


def test_a_job_that_is_over_is_kept_and_not_present(journal: Journal) -> None:
    over = Job(id="c", user="", directory="/c", spec=Spec(1), submitted=0, state="done", ended=3.0)
    journal.write(over, event(over, "done"))
    assert journal.present() == []
    assert journal.job("c") == over


def test_an_arrow_has_its_event_in_the_same_transaction(journal: Journal, path: Path) -> None:
    journal.write(A, event(A, "submitted"))
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("CREATE TRIGGER full BEFORE INSERT ON events BEGIN SELECT RAISE(ABORT, 'x'); END")
    with pytest.raises(sqlite3.Error):
        journal.write(RUNS, event(RUNS, "computes"))
    assert journal.present() == [A]
    assert [one.what for one in journal.events("a")] == ["submitted"]
    other.execute("DROP TRIGGER full")
    other.close()
    journal.write(RUNS, event(RUNS, "computes"))
    assert journal.present() == [RUNS, A]


def test_nodes_keep_their_order_and_the_most_that_they_have_had(journal: Journal) -> None:
    journal.set_nodes({"n1": Capacity(4), "n0": Capacity(2)}, Event(0, "", 0, "nodes"))
    journal.set_nodes({"n0": Capacity(3, 1), "n2": Capacity(0, 1)}, Event(1, "", 0, "nodes"))
    assert list(journal.nodes().items()) == [("n1", (4, 0)), ("n0", (3, 1)), ("n2", (0, 1))]


def test_a_second_service_is_refused(journal: Journal, path: Path) -> None:
    with pytest.raises(LimitExceeded, match=r"another cluster service has .*; one directory"):
        Journal(path)


def test_a_journal_is_for_its_user_alone(journal: Journal, path: Path) -> None:
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_a_journal_of_a_newer_version_is_left_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "cluster.sqlite"
    newer = sqlite3.connect(path, isolation_level=None)
    newer.execute(f"PRAGMA user_version = {len(MIGRATIONS) + 1}")
    with pytest.raises(sqlite3.DatabaseError, match="of a newer version"):
        Journal(path)
    assert newer.execute("SELECT count(*) FROM sqlite_master").fetchone() == (0,)
    newer.close()


def test_a_row_has_a_column_for_each_field_of_a_job(journal: Journal, path: Path) -> None:
    with sqlite3.connect(path) as database:
        columns = [row[1] for row in database.execute("PRAGMA table_info(jobs)")]
    assert sorted(columns) == sorted(Job.__struct_fields__)


def test_each_journal_has_a_cluster_of_its_own(path: Path, tmp_path: Path) -> None:
    """Else a service would end what another one has started."""
    journal, other = Journal(path), Journal(tmp_path / "other" / "cluster.sqlite")
    name = journal.cluster()
    assert PART.fullmatch(name)
    assert name != other.cluster()
    journal.close()
    other.close()
    again = Journal(path)
    assert again.cluster() == name
    again.close()
