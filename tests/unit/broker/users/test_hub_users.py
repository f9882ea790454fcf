"""A broker for the users of a JupyterHub: which users it admits, and under which names."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import itertools
import secrets
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from jupyter_gpushare.broker.access.authentication import (
    MOST_FAILED,
    QUESTIONS_A_SECOND,
    QUESTIONS_AT_ONCE,
    Authentication,
    FailedAttempts,
    HubRate,
)
from jupyter_gpushare.broker.access.tickets import LIFE_SECONDS, MOST_OF_A_USER, Tickets
from jupyter_gpushare.broker.peer import Peer
from jupyter_gpushare.errors import (
    BrokerUnavailable,
    ConnectionLost,
    GpuShareError,
    InvalidValue,
    LimitExceeded,
    NotPermitted,
    Unidentified,
)
from jupyter_gpushare.settings import load
from jupyter_gpushare.wire import messages as m
from jupyter_gpushare.wire.client import Client
from jupyter_gpushare.wire.framing import encode, frame
from jupyter_gpushare.wire.launch import connect
from jupyter_gpushare.wire.snapshot import Snapshot

from ....makers import maker


def digest(ticket: str) -> str:
    return hashlib.sha256(ticket.encode()).hexdigest()


def ticket_of(server: Client) -> str:
    """Return a ticket that a Jupyter server has registered."""
    ticket = secrets.token_urlsafe(32)
    assert server.ask(m.AddTicket(digest(ticket))) == m.Done()
    return ticket


Enter = Callable[..., Client]


@pytest.fixture
def enter(hub_broker: Any) -> Iterator[Enter]:
    """Connect with a token or a ticket."""
    with maker(hub_broker.connect, Client.close) as enter:
        yield enter


# --- authentication -------------------------------------------------------------------------------


USERS: tuple[tuple[str, dict[str, Any], str, bool], ...] = (
    ("ada", {}, "ada", False),
    ("ada", {"scopes": ["custom:gpushare:admin", "custom:gpushare:read"]}, "ada", True),
    ("bob", {"scopes": ["admin:users"]}, "bob", True),
    ("bob", {"scopes": ["custom:gpushare:read"]}, "bob", False),
    ("gpushare", {}, "gpushare", False),
    ("gpushare", {"kind": "service"}, "service:gpushare", True),  # our own
    ("ada", {"kind": "service"}, "service:ada", False),
)


def test_the_hub_says_whose_a_token_is_and_its_scopes_whether_that_is_an_admin(
    hub: Any, enter: Enter
) -> None:
    for name, facts, user, is_administrator in USERS:
        welcome = enter(token=hub.user(name, **facts)).welcome
        assert (welcome.user, welcome.is_administrator) == (user, is_administrator), facts


@pytest.mark.parametrize(
    "scopes",
    [
        [],
        ["custom:gpushare:read"],
        ["admin:users!group=students", "custom:gpushare:admin!user=ada", "admin:servers"],
    ],
)
def test_a_narrow_token_of_an_admin_makes_no_administrator(
    hub: Any, enter: Enter, scopes: list[str]
) -> None:
    """Such a token is meant to permit little; it may be in a script, or be lost."""
    ada = enter(token=hub.person("ada", scopes, admin=True))
    assert not ada.welcome.is_administrator
    with pytest.raises(NotPermitted, match="only an admin"):
        ada.ask(m.SetPolicy("fifo"))


def test_only_the_token_of_a_server_registers_tickets(hub: Any, enter: Enter) -> None:
    narrow = ["custom:gpushare:read", "access:servers!user=ada", "access:servers"]
    scope = "access:servers!server=ada/"
    for token in (
        hub.person("ada", narrow),
        hub.person("gpushare", [scope], kind="service"),
        hub.person("other", [scope], kind="service"),
    ):
        with pytest.raises(NotPermitted, match="may add a ticket"):
            enter(token=token).ask(m.AddTicket(digest("mine")))
    with pytest.raises(NotPermitted, match="opens nothing"):
        enter(ticket="mine")
    assert enter(ticket=ticket_of(enter(token=hub.user("ada")))).welcome.user == "ada"


@pytest.mark.system
@pytest.mark.parametrize(
    "message",
    [
        m.Open(id="a", name="a"),
        m.Look(),
        m.Request(1),
        m.AddTicket("0" * 64),
        m.SetPolicy("fifo"),
        m.Shutdown(),
        m.Hello(m.PROTOCOL),
    ],
    ids=lambda message: type(message).__name__,
)
def test_a_process_that_has_shown_nothing_gets_nothing_even_root(
    hub: Any, hub_broker: Any, message: m.Message
) -> None:
    """All of these processes have the same uid, as in a hub of containers."""
    with Client(raw(hub_broker)) as client:
        with pytest.raises(GpuShareError) as refused:
            client.ask(message)
        assert refused.value.code == (
            Unidentified.code if isinstance(message, m.Hello) else "protocol"
        )
    with hub_broker.connect(token=hub.user("ada")) as ada:
        assert ada.look().policy == "fair"


def raw(hub_broker: Any) -> Any:
    return connect(hub_broker.settings, start=False)


def test_a_forged_token_is_refused_and_the_right_one_is_not(hub: Any, enter: Enter) -> None:
    right = hub.user("ada")
    wrong = ("", "guessed", "with space", "a\r\nHost: b", "x" * 9999)
    for forged in (*wrong, right + "x", right[:-1]):
        with pytest.raises((NotPermitted, Unidentified)):
            enter(token=forged)
    assert enter(token=right).welcome.user == "ada"


def test_where_a_scope_is_required_a_user_without_it_is_refused(
    hub: Any, hub_broker: Any, enter: Enter
) -> None:
    hub_broker.restart(hub_scope="custom:gpushare:read")
    with pytest.raises(NotPermitted, match="carol has not the scope custom:gpushare:read"):
        enter(token=hub.user("carol", scopes=["self"]))
    assert enter(token=hub.user("ada", scopes=["custom:gpushare:read"])).welcome.user == "ada"


def enter_on_and_on(enter: Enter, token: str) -> None:
    """Connect again and again. The first attempts may come while the cached answer of the hub is
    valid."""
    for _ in range(100):
        enter(token=token)


def test_the_hub_is_asked_once_for_a_token_and_again_when_its_answer_is_old(
    hub: Any, hub_broker: Any, enter: Enter
) -> None:
    token = hub.user("ada")
    for _ in range(3):
        enter(token=token)
    assert hub.asked == [token]
    hub_broker.restart(hub_cache_seconds=0.001)
    enter(token=token)
    del hub.of[token]  # revoked
    with pytest.raises(NotPermitted, match="not any more"):
        enter_on_and_on(enter, token)


def choose_on_and_on(client: Client) -> None:
    for policy in itertools.cycle(("fair", "fifo")):
        client.ask(m.SetPolicy(policy))
        time.sleep(0.05)


@pytest.mark.system
@pytest.mark.parametrize("is_kernel", [False, True])
def test_a_connected_user_or_kernel_keeps_no_right_that_the_hub_has_taken(
    hub: Any, hub_broker: Any, enter: Enter, is_kernel: bool
) -> None:
    """While the client is connected the hub takes the token's rights, and then the token."""
    hub_broker.restart(hub_cache_seconds=0.001)
    token = hub.user("ada", ["admin:users"])
    server, other = enter(token=token), enter(token=hub.user("bob"))
    client = enter(ticket=ticket_of(server)) if is_kernel else server
    client.ask(m.SetPolicy("fifo"))
    hub.of[token]["scopes"].remove("admin:users")
    with pytest.raises(NotPermitted, match="only an admin"):
        choose_on_and_on(client)
    del hub.of[token]
    last = next(message for message in iter(client.receive, None) if isinstance(message, m.Error))
    assert "not any more" in last.message
    if not is_kernel:
        with pytest.raises(ConnectionLost):
            client.receive()
    assert other.look()


def test_a_user_whose_name_cannot_be_shown_is_refused(hub: Any, enter: Enter) -> None:
    with pytest.raises(NotPermitted, match="cannot be shown"):
        enter(token=hub.user("eve\x1b[31m"))


def test_early_messages_are_handled_in_order_after_authentication(
    hub: Any, hub_broker: Any
) -> None:
    with Client(raw(hub_broker)) as client:
        client.send(m.Hello(m.PROTOCOL, token=hub.user("ada")), m.Open(id="a", name="a"), m.Look())
        answers = [client.receive() for _ in range(3)]
    assert [type(answer).__name__ for answer in answers] == ["Welcome", "Opened", "Snapshot"]
    assert isinstance(answers[2], Snapshot)
    assert [view.user for view in answers[2].devices[0].sessions] == ["ada"]


def test_no_user_writes_lines_of_the_log(hub: Any, hub_broker: Any, enter: Enter) -> None:
    ada = enter(token=hub.user("ada"))
    ada.ask(m.Open(id="a", name="a"))
    ada.send(m.StaysIn("no\nWARNING all is lost\r" + "x" * 60_000))
    ada.look()
    body = b'{"type": "no\\nWARNING all is lost"}'
    with raw(hub_broker) as connection:
        connection.sendall(frame(body))
        while connection.recv(4096):
            pass
    said = hub_broker.log.read_text()
    assert "no?WARNING all is lost?xxx" in said
    assert r"'no\nWARNING all is lost'" in said
    assert not [line for line in said.splitlines() if line.startswith("WARNING")]
    assert "\nWARNING" not in said
    assert len(said) < 10_000


@pytest.mark.system
def test_nothing_more_is_read_of_a_connection_before_authentication(
    hub: Any, hub_broker: Any
) -> None:
    """Messages before that fill the buffers of the client's own socket, and are handled
    afterwards."""
    hub.stop()
    with raw(hub_broker) as connection:
        connection.sendall(encode(m.Hello(m.PROTOCOL, token=hub.user("ada"))))
        said = send_until_it_blocks(connection, encode(m.StaysIn("x" * 60_000)))
        assert said < 1 << 20
        hub.start()
        connection.settimeout(60)
        assert isinstance(Client(connection).receive(), m.Welcome)


def send_until_it_blocks(connection: Any, frame: bytes) -> int:
    """Send, and return how many bytes went. The waiting time of a second is enough for any
    reader."""
    connection.settimeout(1.0)
    sent = 0
    with contextlib.suppress(TimeoutError):
        while sent < 8 << 20:
            sent += connection.send(frame)
    return sent


# --- while the hub is away --------------------------------------------------------------------


@pytest.mark.system
def test_while_the_hub_is_away_known_users_continue_and_new_ones_wait(
    hub: Any, hub_broker: Any, enter: Enter
) -> None:
    hub_broker.restart(hub_cache_seconds=0.001)  # every cached answer is old at once
    known, new = hub.user("ada"), hub.user("bob")
    enter(token=known)
    hub.stop()
    assert enter(token=known).welcome.user == "ada"
    with pytest.raises(BrokerUnavailable, match="JupyterHub does not answer"):
        enter(token=new)
    hub.start()
    assert enter(token=new).welcome.user == "bob"


# --- tickets ----------------------------------------------------------------------------------


def test_a_ticket_opens_one_connection_and_no_second(hub: Any, enter: Enter) -> None:
    ada, bob = enter(token=hub.user("ada")), enter(token=hub.user("bob"))
    ticket, another = ticket_of(ada), ticket_of(bob)
    enter(ticket=ticket)
    with pytest.raises(NotPermitted, match="has been used"):
        enter(ticket=ticket)
    assert enter(ticket=another).welcome.user == "bob"


def test_a_ticket_of_a_server_that_has_gone_opens_nothing(hub: Any, enter: Enter) -> None:
    gone, stays = enter(token=hub.user("ada")), enter(token=hub.user("bob"))
    ticket, another, kernel = ticket_of(gone), ticket_of(stays), enter(ticket=ticket_of(gone))
    gone.close()
    stays.look()  # it has been seen by now
    with pytest.raises(NotPermitted, match="has gone"):
        enter(ticket=ticket)
    assert enter(ticket=another).welcome.user == "bob"
    assert kernel.look(), "a client that is in stays in"


def test_a_kernel_cannot_register_tickets(hub: Any, enter: Enter) -> None:
    server = enter(token=hub.user("ada"))
    kernel = enter(ticket=ticket_of(server))
    with pytest.raises(NotPermitted, match="Jupyter server"):
        kernel.ask(m.AddTicket(digest("mine")))
    with pytest.raises(NotPermitted):
        enter(ticket="mine")
    assert enter(ticket=ticket_of(server)).welcome.user == "ada"


def test_a_registered_ticket_cannot_be_registered_by_another_user_too(
    hub: Any, enter: Enter
) -> None:
    ada, bob = enter(token=hub.user("ada")), enter(token=hub.user("bob"))
    ticket = ticket_of(ada)
    with pytest.raises(InvalidValue, match="already"):
        bob.ask(m.AddTicket(digest(ticket)))
    assert enter(ticket=ticket).welcome.user == "ada"


@pytest.mark.parametrize("wrong", ["", "0" * 63, "0" * 65, "G" * 64, "0" * 63 + "\n"])
def test_an_invalid_digest_is_not_registered(hub: Any, enter: Enter, wrong: str) -> None:
    with pytest.raises(InvalidValue, match="64 hexadecimal"):
        enter(token=hub.user("ada")).ask(m.AddTicket(wrong))


def test_where_users_are_unix_users_no_tickets_are_registered(settings: Any) -> None:
    with Client.connect(settings) as client, pytest.raises(NotPermitted, match="may add a ticket"):
        client.ask(m.AddTicket(digest("a")))


class Server(Peer):
    """The connection of a server, which only has to tell its user."""

    uid, may_issue_tokens = 7, True

    def __init__(self, user: str, pid: int = 7) -> None:
        self.user, self.pid = user, pid

    def _nothing(self, *told: object) -> Any:
        raise AssertionError("nothing is sent")

    send = send_frame = send_with = is_alive = is_behind = close = _nothing


def test_a_ticket_ends_after_a_minute_and_a_younger_one_does_not() -> None:
    tickets, ada = Tickets(), Server("ada")
    tickets.add(digest("old"), ada, now=0.0)
    tickets.add(digest("young"), ada, now=1.0)
    with pytest.raises(NotPermitted, match="older than 60 s"):
        tickets.use("old", now=LIFE_SECONDS)
    assert tickets.use("young", now=LIFE_SECONDS).user == "ada"


def test_unused_tickets_are_limited_by_user_whatever_the_number_of_servers() -> None:
    tickets, ada, ada_too, bob = Tickets(), Server("ada"), Server("ada"), Server("bob")
    for number in range(MOST_OF_A_USER):
        tickets.add(digest(str(number)), (ada, ada_too)[number % 2], now=0.0)
    for server in (ada, ada_too):
        with pytest.raises(LimitExceeded):
            tickets.add(digest("one more"), server, now=0.0)
    tickets.add(digest("of bob"), bob, now=0.0)
    tickets.use("0", now=0.0)
    tickets.add(digest("for one that was used"), ada, now=0.0)
    tickets.forget(ada_too)
    tickets.add(digest("for a server that has gone"), ada, now=0.0)
    tickets.add(digest("later"), ada, now=LIFE_SECONDS)


# --- failed attempts --------------------------------------------------------------------------


def test_a_process_with_too_many_failed_attempts_is_not_answered_for_a_while_and_others_are() -> (
    None
):
    failed, ada, bob = FailedAttempts(), Server("ada"), Server("bob", pid=8)
    for _ in range(MOST_FAILED):
        failed.begin(ada, now=0.0)
    with pytest.raises(LimitExceeded, match="too many"):
        failed.begin(ada, now=59.0)
    failed.begin(bob, now=59.0)
    failed.begin(ada, now=60.0)


async def test_a_token_that_ended_and_is_shown_again_and_again_locks_no_other_out(
    hub: Any,
) -> None:
    """The service of the hub, one process, shows the tokens of all visitors."""
    authentication = Authentication(load({}, hub_api_url=hub.api_url), Tickets())
    service, ended = Server(""), m.Hello(m.PROTOCOL, token="ended")
    for _ in range(2 * MOST_FAILED):
        with pytest.raises(NotPermitted, match="not any more"):
            await authentication.identify(service, ended, 0.0)
    assert hub.asked == ["ended"]
    right = m.Hello(m.PROTOCOL, token=hub.user("ada"))
    assert (await authentication.identify(service, right, 0.0)).user == "ada"


def test_a_right_token_is_no_failed_attempt() -> None:
    failed, ada = FailedAttempts(), Server("ada")
    for _ in range(10 * MOST_FAILED):
        failed.begin(ada, now=0.0)
        failed.was_none(ada)


def test_failed_attempts_of_invisible_processes_lock_no_user_out() -> None:
    failed, container = FailedAttempts(), Server("ada", pid=0)
    for _ in range(1000):
        failed.begin(container, now=0.0)


@pytest.mark.system
async def test_a_right_token_is_let_in_while_wrong_ones_of_its_unix_user_wait(hub: Any) -> None:
    authentication = Authentication(load({}, hub_api_url=hub.api_url), Tickets())
    peers = [Server("", pid=0) for _ in range(QUESTIONS_AT_ONCE + 20)]
    guesses = (m.Hello(m.PROTOCOL, token=f"guess{number}") for number in range(len(peers)))
    failed = [
        asyncio.create_task(authentication.identify(peer, guess, 0.0))
        for peer, guess in zip(peers, guesses, strict=True)
    ]
    await asyncio.sleep(0)
    assert authentication._rates[7].waiting == 20
    right = m.Hello(m.PROTOCOL, token=hub.user("ada"))
    identity = await authentication.identify(peers[0], right, 0.0)
    assert identity.user == "ada"
    refused = await asyncio.gather(*failed, return_exceptions=True)
    assert {type(one) for one in refused} == {NotPermitted}


def test_only_wrong_tokens_slow_a_unix_user_down() -> None:
    rate = HubRate()
    for _ in range(10 * QUESTIONS_AT_ONCE):
        assert rate.take(1.0)
        rate.give_back()
    taken = [rate.take(1.0) for _ in range(2 * QUESTIONS_AT_ONCE)]
    assert taken == [True] * QUESTIONS_AT_ONCE + [False] * QUESTIONS_AT_ONCE
    assert rate.take(1.0 + 1.5 / QUESTIONS_A_SECOND)


def test_failed_attempts_stop_reaching_the_hub_and_a_known_token_is_let_in_all_the_same(
    hub: Any, enter: Enter
) -> None:
    token = hub.user("ada")
    enter(token=token)
    for number in range(2 * MOST_FAILED):
        with pytest.raises((NotPermitted, LimitExceeded)):
            enter(token=f"guess{number}")
    assert len(hub.asked) == 1 + MOST_FAILED
    assert enter(token=token).welcome.user == "ada"


# --- ownership ------------------------------------------------------------------------------------


def test_a_hello_cannot_say_another_name(hub: Any, hub_broker: Any) -> None:
    """Hello has no field for a name, and unknown fields are ignored."""
    with Client(raw(hub_broker)) as client:
        body = encode(m.Hello(m.PROTOCOL, token=hub.user("ada")))[4:-1] + b',"user":"bob"}'
        client._socket.sendall(len(body).to_bytes(4, "big") + body)
        answer = client.receive()
    assert isinstance(answer, m.Welcome)
    assert answer.user == "ada"


def test_no_token_and_no_ticket_is_written_anywhere(
    hub: Any, hub_broker: Any, enter: Enter
) -> None:
    right, wrong = hub.user("ada"), "forged-" + secrets.token_hex(16)
    server = enter(token=right)
    ticket, used = ticket_of(server), ticket_of(server)
    enter(ticket=used).ask(m.Open(id="a", name="a", device="host"))
    said = ""
    for shown in ({"token": wrong}, {"ticket": used}, {"token": wrong + "\n"}):
        with pytest.raises(GpuShareError) as refused:
            enter(**shown)
        said += str(refused.value) + repr(refused.value)
    said += repr(m.Hello(m.PROTOCOL, "tests", token=right, ticket=ticket))
    said += repr(server.look()) + hub_broker.log.read_text()
    for secret in (right, wrong, ticket, used):
        assert secret not in said
    assert "does not know this token" in hub_broker.log.read_text()
