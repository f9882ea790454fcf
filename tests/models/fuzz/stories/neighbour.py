"""A session that shares the broker with the sessions of a story, and must not notice them."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from jupyter_gpushare.wire import messages as m
from jupyter_gpushare.wire.demand import Demand
from jupyter_gpushare.wire.framing import ToBroker
from jupyter_gpushare.wire.snapshot import SessionView, Snapshot

from ..drawing import MB

NAME = "neighbour"
SECRET = "a name that nobody else may see"
KEY = "5ec2e7" + "0" * 26
OPEN = m.Open(
    id=NAME,
    name=SECRET,
    device="host",
    demand=Demand(64 * MB, 128 * MB, measured=True),
    handoff_slot="neighbour-box",
    key=KEY,
)
TURN = 1
GREETING: tuple[ToBroker, ...] = (m.Hello(m.PROTOCOL), OPEN, m.Request(TURN))
GREETING_AGAIN: tuple[ToBroker, ...] = (
    m.Hello(m.PROTOCOL),
    msgspec.structs.replace(OPEN, turn=TURN, holding=True),
)
# messages that a session with its turn may hear at any time
ITS_OWN = (m.Grant, m.Yield, m.Notice, m.Wait, m.Room)
STILL = ("running", "overdue")


def check_heard(messages: Iterable[m.Message]) -> None:
    """Check that the neighbour gets only its own messages, and never another turn."""
    for message in messages:
        assert isinstance(message, ITS_OWN), f"the neighbour was sent {message}"
        if isinstance(message, m.Grant | m.Yield | m.Wait):
            assert message.turn == TURN, f"the neighbour was told of another turn: {message}"


def check_others_heard(frame: bytes, is_admin: bool) -> None:
    """Check that no client gets the key of the neighbour's handoff slot, and that only an admin
    sees the name of its notebook."""
    for secret in (KEY,) if is_admin else (KEY, SECRET):
        assert secret.encode() not in frame, f"somebody was told {secret!r}"


def view(snapshot: Snapshot) -> SessionView:
    found = [view for device in snapshot.devices for view in device.sessions if view.id == NAME]
    assert len(found) == 1, f"the neighbour is there {len(found)} times"
    return found[0]
