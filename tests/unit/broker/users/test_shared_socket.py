"""One broker for all Unix users of a host: which users can connect to it, and which could replace
it."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from jupyter_gpushare import settings as settings_module
from jupyter_gpushare.broker.access.identity import of_process
from jupyter_gpushare.errors import BrokerUnavailable
from jupyter_gpushare.settings import Settings
from jupyter_gpushare.wire.client import Client
from jupyter_gpushare.wire.demand import Demand
from jupyter_gpushare.wire.launch import connect, try_connect
from jupyter_gpushare.wire.messages import Open

from ..processes import as_user, needs_root, run_broker

pytestmark = needs_root
ADA, BOB = 54321, 65534
DAEMON = 1  # a group that each Unix has
Brokers = Callable[..., Settings]


@pytest.fixture
def broker(settings: Settings) -> Iterator[Brokers]:
    """Run a broker as an admin does: `broker(socket_mode="0666")` returns the settings of its
    clients."""
    started: list[subprocess.Popen[bytes]] = []

    def broker(**own: Any) -> Settings:
        given = msgspec.structs.replace(settings, **own)
        environment = {**os.environ, **settings_module.as_environment(given)}
        command = [sys.executable, "-m", "jupyter_gpushare.broker"]
        started.append(subprocess.Popen(command, cwd="/", env=environment, umask=0o077))
        while try_connect(Path(given.socket)) is None:
            assert started[-1].poll() is None
            time.sleep(0.02)
        return msgspec.structs.replace(settings, socket=given.socket)

    Path(settings.socket).parent.chmod(0o755)
    yield broker
    for process in started:
        process.terminate()
        process.wait(60)


def whose(settings: Settings) -> list[str]:
    """Return the authenticated user of the client, and the users of all sessions after it has
    opened its own."""
    with Client.connect(settings, "tests", start=False) as client:
        mine = f"of{os.getuid()}"
        client.ask(Open(id=mine, name=mine, device="host", demand=Demand(1, 1, measured=True)))
        sessions = client.look().devices[0].sessions
        return [client.welcome.user, *(view.user for view in sessions)]


def test_a_socket_for_all_lets_each_user_in_under_their_own_name(broker: Brokers) -> None:
    settings = broker(socket_mode="0666")
    assert as_user(ADA, lambda: whose(settings)) == [str(ADA), str(ADA)]
    assert as_user(BOB, lambda: whose(settings)) == ["nobody", "nobody"]


def test_a_socket_of_a_group_lets_in_its_members_and_no_others(broker: Brokers) -> None:
    settings = broker(socket_mode="0660", socket_group="daemon")
    status = Path(settings.socket).stat()
    assert (status.st_gid, status.st_mode & 0o777) == (DAEMON, 0o660)
    assert as_user(ADA, lambda: whose(settings), groups=(DAEMON,)) == [str(ADA), str(ADA)]
    refusal = as_user(BOB, lambda: whose(settings))
    assert "cannot be used: Permission denied; only members of the group daemon" in refusal


def test_a_socket_is_private_by_default(broker: Brokers) -> None:
    settings = broker()
    assert "cannot be used: Permission denied; only root may" in as_user(
        ADA, lambda: whose(settings)
    )
    assert whose(settings)[0] == "root"


@pytest.mark.system
def test_a_directory_that_a_broker_makes_is_open_where_its_socket_is(
    broker: Brokers, socket_directory: Path
) -> None:
    open_to_all = broker(socket=str(socket_directory / "all" / "b.sock"), socket_mode="0666")
    private = broker(socket=str(socket_directory / "own" / "b.sock"))
    assert as_user(ADA, lambda: whose(open_to_all)) == [str(ADA), str(ADA)]
    assert "cannot be used: Permission denied" in as_user(ADA, lambda: whose(private))


@pytest.mark.parametrize(
    ("own", "mode", "words"),
    [
        ({"socket_mode": "0666"}, 0o777, "others may write to"),
        ({"socket_mode": "0666"}, 0o1777, "others may write to"),
        ({"socket_mode": "0660"}, 0o775, "others may write to"),
        ({"socket_group": "no such group"}, 0o755, "no Unix group 'no such group'"),
        ({"socket_mode": "rw"}, 0o755, "socket_mode"),
    ],
    ids=str,
)
def test_a_broker_that_others_could_replace_does_not_start_and_says_why(
    settings: Settings, own: dict[str, Any], mode: int, words: str
) -> None:
    Path(settings.socket).parent.chmod(mode)
    done = run_broker(**own)
    assert done.returncode == 1
    assert words in done.stderr
    assert done.stderr.count("\n") == 1
    assert not Path(settings.socket).exists()


def test_no_user_starts_a_broker_in_a_directory_of_another(settings: Settings) -> None:
    directory = Path(settings.socket).parent
    directory.chmod(0o1777)
    said = as_user(ADA, lambda: whose_started(settings))
    assert said.startswith("BrokerUnavailable: no broker answers on")
    assert "this process may not start one there" in said
    assert list(directory.iterdir()) == []
    assert whose_started(settings) == "root", "its owner may"


def whose_started(settings: Settings) -> str:
    with Client.connect(settings, "tests") as client:
        return client.welcome.user


def test_a_client_says_nothing_to_a_stranger_that_listens_in_a_directory_for_all(
    settings: Settings,
) -> None:
    path = Path(settings.socket)
    path.parent.chmod(0o1777)
    with socket.socket(socket.AF_UNIX) as listener:
        as_user(BOB, lambda: listen(listener, path))
        said = as_user(ADA, lambda: whose(settings))
        assert (
            "(user id 65534) belongs neither to this user nor to the owner of the directory" in said
        )
        connection, _ = listener.accept()
        with connection:
            assert connection.recv(4096) == b""
        connects = as_user(BOB, lambda: try_connect(path) is not None)
        assert connects is True, "he may talk to himself"


@pytest.mark.parametrize("is_link", [False, True])
def test_a_directory_of_a_stranger_below_one_for_all_makes_them_no_broker(
    settings: Settings, socket_directory: Path, is_link: bool
) -> None:
    socket_directory.chmod(0o1777)
    theirs = socket_directory / "theirs"
    as_user(BOB, theirs.mkdir)
    named = socket_directory / "link" if is_link else theirs
    if is_link:
        as_user(BOB, lambda: named.symlink_to(theirs))
    at = msgspec.structs.replace(settings, socket=str(named / "b.sock"), start_broker=False)
    with socket.socket(socket.AF_UNIX) as listener:
        as_user(BOB, lambda: listen(listener, theirs / "b.sock"))
        assert "and is told nothing" in as_user(ADA, lambda: whose(at))


@pytest.mark.parametrize("kind", [".lock", ".turns"])
def test_a_lock_that_is_a_link_empties_no_file_of_another(
    settings: Settings, socket_directory: Path, kind: str
) -> None:
    precious = socket_directory / "precious"
    precious.write_text("mine")
    Path(settings.socket).with_suffix(kind).symlink_to(precious)
    done = run_broker()
    assert "cannot be opened" in done.stderr
    assert precious.read_text() == "mine"


@pytest.mark.system
@pytest.mark.parametrize("kind", [".lock", ".turns", ".start", ".log"])
def test_a_file_that_a_stranger_has_made_is_not_used_and_is_reported(
    settings: Settings, kind: str
) -> None:
    """In a directory for all users the stranger could hold the lock, or write what the next broker
    would believe."""
    path = Path(settings.socket)
    path.parent.chmod(0o1777)
    made = path.with_suffix(kind)
    as_user(BOB, lambda: made.write_text("7\n"))
    made.chmod(0o666)
    short = msgspec.structs.replace(settings, start_seconds=2.0)
    with pytest.raises(BrokerUnavailable, match=r"belongs to another user|Permission denied"):
        connect(short)
    assert made.read_text() == "7\n"
    made.unlink()
    assert whose_started(settings) == "root"


def listen(listener: socket.socket, path: Path) -> None:
    """Listen as this user. The file is then this user's, whichever process has the descriptor."""
    listener.bind(os.fspath(path))
    path.chmod(0o666)
    listener.listen()


# --- users ----------------------------------------------------------------------------------------


def test_a_process_stands_for_its_unix_user_and_the_groups_of_it() -> None:
    assert of_process(0, 0.0).user == "root"
    assert "root" in of_process(0, 0.0).groups
    assert "daemon" in of_process(DAEMON, 0.0).groups
    assert of_process(ADA, 0.0) == (str(ADA), frozenset(), False, False)


def test_root_and_the_user_that_runs_the_broker_own_it_and_no_others() -> None:
    assert of_process(0, 0.0).is_owner
    assert not of_process(BOB, 0.0).is_owner
    assert as_user(BOB, lambda: [of_process(uid, 1e6).is_owner for uid in (0, BOB, ADA)]) == [
        True,
        True,
        False,
    ]
