"""Two users, a third one without rights, and a service that runs as a fourth one, with real user
ids, sudo, and a real Slurm. `test_users.py` runs this."""

from __future__ import annotations

import json
import os
import pwd
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from slurm import Slurm

from jupyter_gpushare.errors import InvalidValue, NotPermitted
from jupyter_gpushare.jobs.connection import Cluster
from jupyter_gpushare.settings import Settings, as_environment, load
from jupyter_gpushare.wire.jobs import Submit
from jupyter_gpushare.wire.launch import try_connect

from ....polling import until

PLACES = "/srv"  # where not all users may make directories
SERVICE, ADA, BOB, STRANGER = "daemon", "games", "man", "nobody"


def as_user(name: str, *command: object, **environment: str) -> subprocess.Popen[str]:
    """Start a command as this user, with no rights of another one."""
    user = pwd.getpwnam(name)
    return subprocess.Popen(
        [str(word) for word in command],
        env={**os.environ, "HOME": f"/tmp/{name}", "USER": name, "LOGNAME": name, **environment},
        cwd="/",
        user=user.pw_uid,
        group=user.pw_gid,
        extra_groups=[],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


class Site:
    """`place` is for all; each user has a directory in it."""

    def __init__(self, place: Path, slurm: Slurm) -> None:
        self.place, self.slurm = place, slurm
        for name in (SERVICE, ADA, BOB, STRANGER):
            (place / name).mkdir(mode=0o700)
            shutil.chown(place / name, name)
        self.socket = place / SERVICE / "run" / "c.sock"
        (place / SERVICE).chmod(0o755)
        self._service = self.start()

    def environment(self, user: str) -> dict[str, str]:
        settings = load(
            {},
            cluster_socket=str(self.socket),
            cluster_directory=str(self.place / user / "jobs"),
            cluster_engine="slurm",
            cluster_as_user="sudo -n -u {user}",
            cluster_bounds="2 1000",
            cluster_least_seconds=0.5,
            cluster_most_least_seconds=0,
            cluster_look_seconds=0.1,
            cluster_jobs_per_user=3,
            socket_mode="0666",
            start_broker=False,
            idle_exit_seconds=0,
        )
        own = {"GPUSHARE_ADDRESS": "127.0.0.1", "TMPDIR": str(self.place / user)}
        return {**as_environment(settings), **self.slurm.environment, **own}

    def start(self) -> subprocess.Popen[str]:
        program = (sys.executable, "-m", "jupyter_gpushare.cluster")
        service = as_user(SERVICE, *program, **self.environment(SERVICE))
        until(lambda: try_connect(self.socket) is not None or service.poll() is not None)
        assert service.poll() is None, service.communicate()
        return service

    def restart(self) -> None:
        self._service.kill()
        self._service.communicate()
        self._service = self.start()

    def ask(self, user: str, *words: object) -> tuple[int, str, str]:
        """Run `jupyter gpushare` as this user; return its exit status and output."""
        program = Path(sys.executable).with_name("jupyter-gpushare")
        process = as_user(user, program, *words, **self.environment(user))
        out, said = process.communicate(timeout=60)
        return process.returncode, out, said

    def submit(self, user: str, script: str, *words: object, gpus: int = 1, name: str = "") -> str:
        """Return the id of the job of a script with this text."""
        path = self.place / user / f"{name or 'job'}.py"
        path.write_text(script)
        shutil.chown(path, user)
        command = ("submit", "--gpus", gpus, "--name", name or "job", *words, path)
        status, out, said = self.ask(user, *command)
        assert status == 0, out + said
        return next(word for word in out.split() if word.startswith(f"{name or 'job'}-"))

    def jobs(self, user: str) -> dict[str, dict[str, Any]]:
        status, out, said = self.ask(user, "jobs", "--all", "--json")
        assert status == 0, out + said
        return {job["id"]: job for job in json.loads(out)}

    def state(self, id: str, user: str = ADA) -> str:
        return str(self.jobs(user)[id]["state"])

    def directory(self, user: str, id: str) -> Path:
        return self.place / user / "jobs" / "jobs" / id

    def end(self) -> None:
        self.slurm.run("scancel", "--user", ADA, check=False)
        self.slurm.run("scancel", "--user", BOB, check=False)
        self._service.terminate()
        self._service.communicate()


@pytest.fixture(scope="module")
def slurm() -> Iterator[Slurm]:
    folder = Path(tempfile.mkdtemp(prefix="gs-"))
    slurm = Slurm(folder, {"n0": 2, "n1": 2})
    yield slurm
    slurm.end()
    shutil.rmtree(folder)


@pytest.fixture
def site(slurm: Slurm) -> Iterator[Site]:
    place = Path(tempfile.mkdtemp(dir=PLACES))
    place.chmod(0o755)
    until(lambda: slurm.states() == {"n0": "idle", "n1": "idle"})
    site = Site(place, slurm)
    yield site
    site.end()
    until(lambda: slurm.states() == {"n0": "idle", "n1": "idle"})
    shutil.rmtree(place)


SAVES = """
import os, time
import jupyter_gpushare as gpushare
done = []
gpushare.checkpoint(done=done, every=0.5)
print("as", os.getuid(), flush=True)
for number in gpushare.iterations(range(400)):
    done.append(number)
    time.sleep(0.02)
print("counted", len(done), done == [*range(400)])
"""
SLEEPS = "import time; time.sleep(60)"
SHORT = "import os, time; print('as', os.getuid()); time.sleep(2.5)"  # for some beats


def test_one_user_yields_to_another_and_all_files_are_their_own(site: Site) -> None:
    long = site.submit(ADA, SAVES, "--nodes", 1, gpus=2, name="long")
    until(lambda: (site.jobs(ADA)[long]["iteration"] or 0) > 10)
    short = site.submit(BOB, SHORT, gpus=4, name="short")
    until(lambda: site.state(short) == "done")
    until(lambda: site.state(long) == "done")
    assert site.jobs(ADA)[long]["yields"] == 1
    for user, id in ((ADA, long), (BOB, short)):
        uid = pwd.getpwnam(user).pw_uid
        made = [site.directory(user, id), *site.directory(user, id).rglob("*")]
        assert {path.stat().st_uid for path in made} == {uid}
        status, log, _ = site.ask(user, "logs", id)
        assert (status, f"as {uid}" in log) == (0, True)
        (used,) = json.loads(site.ask(user, "report", "--jobs", "--json")[1])
        assert (used["name"], used["jobs"]) == (user, 1)
    of_all = json.loads(site.ask("root", "report", "--jobs", "--json")[1])
    assert {used["name"] for used in of_all} == {ADA, BOB}
    assert "counted 400 True" in site.ask(ADA, "logs", long)[1]


def test_a_user_sees_the_queue_and_not_what_another_ones_job_has_said(site: Site) -> None:
    failed = site.submit(ADA, "raise SystemExit('my secret is 42')", name="failed")
    until(lambda: site.state(failed) == "failed")
    own, seen = site.jobs(ADA)[failed], site.jobs(BOB)[failed]
    assert "my secret is 42" in own["sentence"]
    assert (seen["sentence"], seen["directory"], seen["user"]) == ("failed", "", ADA)
    assert site.ask(BOB, "logs", failed)[0] != 0


def test_a_user_cancels_no_job_of_another(site: Site) -> None:
    job = site.submit(ADA, SLEEPS, name="sleeps")
    until(lambda: site.state(job) == "running")
    status, out, said = site.ask(BOB, "cancel", job)
    assert (status, f"the job {job} is of {ADA}" in out + said) == (1, True), out + said
    assert site.state(job) == "running"
    assert site.ask(ADA, "cancel", job)[0] == 0
    until(lambda: site.state(job) == "cancelled")


SPEAKS = """
import sys
from jupyter_gpushare.jobs.connection import Cluster
from jupyter_gpushare.settings import load
Cluster(load(), speak_for=sys.argv[1])
"""


def test_root_speaks_for_a_user_whom_a_hub_has_identified(site: Site) -> None:
    job = site.submit(ADA, SLEEPS, name="sleeps")
    here = load(site.environment("root"))
    with Cluster(here, speak_for=BOB) as bob, pytest.raises(NotPermitted, match=f"is of {ADA}"):
        bob.cancel(job)
    with Cluster(here, speak_for=BOB) as bob:
        # The service would run its contents as the submitting user, or reveal that user's files.
        wish = Submit("of-bob", str(site.directory(ADA, job)), 1)
        with pytest.raises(InvalidValue, match="has none"):
            bob.submit(wish)
    with Cluster(here, speak_for=ADA) as ada:
        assert ada.cancel(job).user == ADA
    until(lambda: site.state(job) == "cancelled")
    for name in ("root", SERVICE):
        with pytest.raises(NotPermitted, match="are asked for on the socket alone"):
            Cluster(here, speak_for=name)
    for name in ("no-such-user", "a\0b"):
        with pytest.raises(NotPermitted, match="has no account on this machine"):
            Cluster(here, speak_for=name)


def test_no_other_user_speaks_for_one(site: Site) -> None:
    for speaker in (ADA, STRANGER):
        process = as_user(speaker, sys.executable, "-c", SPEAKS, BOB, **site.environment(speaker))
        _, said = process.communicate(timeout=60)
        assert "only root, and the user that runs the service, speak for others" in said


@pytest.mark.thorough
def test_a_service_that_is_killed_finds_the_jobs_of_all_users(site: Site) -> None:
    jobs = {site.submit(user, SAVES, name=f"of-{user}"): user for user in (ADA, BOB)}
    until(lambda: all((site.jobs(ADA)[id]["iteration"] or 0) > 0 for id in jobs))
    site.restart()
    until(lambda: all(site.state(id) == "done" for id in jobs))
    assert {site.jobs(ADA)[id]["generation"] for id in jobs} == {1}


@pytest.mark.thorough
def test_a_user_has_no_more_jobs_than_the_limit(site: Site) -> None:
    """Another user may still submit jobs."""
    for number in range(3):
        site.submit(ADA, SLEEPS, gpus=4, name=f"n{number}")
    script = site.place / ADA / "n0.py"
    status, out, said = site.ask(ADA, "submit", script)
    assert (status, "a user has at most 3 jobs that are not over" in out + said) == (1, True)
    id = site.submit(BOB, SLEEPS)
    for user, job in [(BOB, id), *((ADA, id) for id in site.jobs(ADA))]:
        site.ask(user, "cancel", job)


def test_a_user_without_a_right_is_told_so(site: Site) -> None:
    script = site.place / STRANGER / "job.py"
    script.write_text(SLEEPS)
    status, out, said = site.ask(STRANGER, "submit", script)
    assert status == 1
    assert f"nothing can be done as {STRANGER}: sudo: a password is required" in out + said


@pytest.mark.thorough
def test_a_name_like_ours_of_a_stranger_is_neither_adopted_nor_ended(site: Site) -> None:
    with Cluster(Settings(cluster_socket=str(site.socket))) as cluster:
        name = f"gs.{cluster.look().cluster}"
    first = site.submit(ADA, SLEEPS, gpus=4, name="first")
    until(lambda: site.state(first) == "running")
    waits = site.submit(ADA, SLEEPS, gpus=4, name="waits")
    foreign = (site.place / STRANGER / "foreign").as_posix()
    batch = ("sbatch", "--parsable", "--hold", f"--job-name={name}.{waits}.g1", "--wrap=sleep 60")
    process = as_user(STRANGER, *batch, f"--output={foreign}", **site.slurm.environment)
    number = process.communicate(timeout=60)[0].strip()
    site.restart()
    site.ask(ADA, "cancel", first)
    until(lambda: site.state(waits) == "running")
    held = site.slurm.run("squeue", "-h", "-j", number, "-o", "%u %T")
    assert held.split() == [STRANGER, "PENDING"]
    site.ask(ADA, "cancel", waits)
    until(lambda: site.state(waits) == "cancelled")
    site.slurm.run("scancel", number)


@pytest.mark.thorough
def test_hands_end_with_the_jobs_of_their_user(site: Site) -> None:
    job = site.submit(ADA, "print(1)")
    until(lambda: site.state(job) == "done")

    def hands() -> list[str]:
        return [
            process.name()
            for process in psutil.process_iter()
            if process.username() == ADA and process.name().startswith("jupyter-gpushar")
        ]

    until(lambda: not hands())
