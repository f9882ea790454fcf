"""Rows: events at the admin's file, and at sessions that want more than their quota."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from jupyter_gpushare.errors import GpuShareError
from jupyter_gpushare.settings import Settings
from jupyter_gpushare.wire import messages as m
from jupyter_gpushare.wire.client import Client
from jupyter_gpushare.wire.demand import Demand

from ....polling import comes
from ..matrix import row, rows
from ..scene import Scene
from .kernels import SMALL

GIB = 1 << 30
Wrong = Callable[[Path], str]
RULES = """
[groups.physics]
members = ["ann"]

[quotas]
persistent = "1 GiB"
sessions = 10
"""


@pytest.fixture
def rules(settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file that the broker follows."""
    file = tmp_path / "rules.toml"
    file.write_text(RULES)
    monkeypatch.setenv("JUPYTER_GPUSHARE_RULEBOOK", str(file))
    return file


def goes_wrong(scene: Scene, wrong: Wrong, rules: Path) -> float:
    """The old rules stay in force until the file is right again."""
    said = wrong(rules)
    assert comes(lambda: said in scene.look().rulebook_error)
    assert [group.name for group in scene.look().groups] == ["physics"]
    scene.await_turn()
    replaced(rules, RULES.replace("physics", "chemistry"))
    since = time.monotonic()
    assert comes(lambda: [group.name for group in scene.look().groups] == ["chemistry"])
    return since


def replaced(rules: Path, text: str) -> None:
    """Replace the file as editors do, so that a reader sees either the old or the new one."""
    new = rules.with_suffix(".new")
    new.write_text(text)
    if rules.is_dir():
        rules.rmdir()
    new.replace(rules)


def becomes_empty(rules: Path) -> str:
    """Empty the file; return the broker's error."""
    rules.write_text("")
    return "is empty"


def becomes_pipe(rules: Path) -> str:
    rules.unlink()
    os.mkfifo(rules)
    return "is no plain file"


def becomes_directory(rules: Path) -> str:
    rules.unlink()
    rules.mkdir()
    return "rules.toml"


def becomes_garbage(rules: Path) -> str:
    rules.write_bytes(random.Random(7).randbytes(4 << 20))
    return "rules.toml"


def becomes_writable(rules: Path) -> str:
    rules.write_text('admins = ["eve"]')
    rules.chmod(0o666)
    return "may write to"


rows(
    goes_wrong,
    emptied=("the admin's file is emptied while it is in force", becomes_empty),
    pipe=(
        "a pipe takes the place of the admin's file, and no process writes into it",
        becomes_pipe,
    ),
    directory=("the admin's file is removed, and a directory takes its place", becomes_directory),
    garbage=("the admin's file becomes 4 MB of garbage", becomes_garbage),
    writable=("everybody may write to the admin's file", becomes_writable),
)


@row("the admin's file is changed 300 times, right and wrong in turn")
def changes(scene: Scene, rules: Path) -> None:
    with scene.turn_meanwhile():
        for number in range(300):
            replaced(rules, RULES if number % 2 else "[groups.")
            time.sleep(0.003)
    assert comes(lambda: not scene.look().rulebook_error)


# The demand with which a client opens its session, and the one that it wants then: one of them is
# too much.
HOGS = [
    (SMALL, Demand(2 * GIB, 1000, measured=True)),
    (SMALL, Demand(1 << 62, 1 << 62, measured=True)),
    (Demand(2 * GIB, 1000, measured=True), SMALL),
]


@row("clients ask for more memory than their quota, in each way, 20 times")
def over_quota(scene: Scene, rules: Path) -> None:
    """Each client is refused the memory, and no session waits for it."""
    with scene.turn_meanwhile():
        for opens, keeps in 20 * HOGS:
            with Client.connect(scene.settings, "hog") as client:
                assert is_refused(client, m.Open("hog", "hog", device="host", demand=opens)) or (
                    is_refused(client, m.Keep(keeps))
                )


@row("a client opens more sessions than its quota", is_quick=False)
def too_many_sessions(scene: Scene, rules: Path) -> None:
    """The last session is refused, and admitted after another one has gone."""
    opened = []
    for number in range(11):
        opened.append(Client.connect(scene.settings, "hog"))
        if is_refused(opened[-1], m.Open(f"hog{number}", "hog", device="host", demand=SMALL)):
            break
    assert 2 <= len(opened) <= 10
    scene.await_turn()
    for client in opened:
        client.close()


def is_refused(client: Client, message: m.Message) -> bool:
    try:
        client.ask(message)
    except GpuShareError:
        return True
    return False
