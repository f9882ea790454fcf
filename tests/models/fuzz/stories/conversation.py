"""Target `service`: a story for the real service. Time passes only by the steps of the story."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path

import msgspec

from jupyter_gpushare._core import HostLaneMemory
from jupyter_gpushare.broker.accounting.accounts import AccountBook
from jupyter_gpushare.broker.admin.rulebook_file import RulebookFile
from jupyter_gpushare.broker.grants.recovery import RecoveryJournal
from jupyter_gpushare.broker.service import Service
from jupyter_gpushare.devices import Device
from jupyter_gpushare.devices.nvml import GpuUse
from jupyter_gpushare.errors import BY_CODE, LimitExceeded, ProtocolError
from jupyter_gpushare.settings import Settings
from jupyter_gpushare.wire import chunks, messages
from jupyter_gpushare.wire.framing import (
    HEADER_BYTES,
    Frames,
    ToBroker,
    decode_from_broker,
    decode_from_client,
    encode,
    encode_body,
)
from jupyter_gpushare.wire.snapshot import DeviceView, Snapshot

from ....unit.broker.listener import Listener
from ..drawing import GB, MB
from . import neighbour, story
from .story import Step

RULES = Path(__file__).with_name("rules.toml")
CHUNK = 2 * MB
RULEBOOK = RulebookFile(str(RULES))  # it never changes
SETTINGS = Settings(recovery_seconds=2.0, max_sessions=12, max_sessions_per_user=8)
WEEK = 7 * 86400.0  # each story has one, and ends in it
MORNING = 9 * 3600.0
MOST_EVENTS = 1000  # of the scheduler while a step of time passes
PARTLY_TAKEN = (messages.Report,)  # a demand over a quota is refused, and counts until then
RULERS = ("admin", "tutor")  # users that may throttle others


class Clock:
    """The time of all stories, one after the other: monotonic and Unix, in seconds."""

    now = 0.0

    def next_week(self) -> float:
        self.now = (self.now // WEEK + 1) * WEEK + MORNING
        return self.now


CLOCK = Clock()
ACCOUNTS = AccountBook(clock=lambda: CLOCK.now, now=0.0)  # of all stories: they have a thread


def devices(usage: Callable[[], GpuUse] | None = None) -> list[Device]:
    """Return a host, and a GPU with this answer of its driver."""
    gpu = Device(
        "cuda:0", 64 * MB, "a GPU", partial(chunks.KeptChunks, CHUNK), CHUNK, "GPU-a", usage
    )
    return [Device("host", GB, "main memory", partial(HostLaneMemory, GB)), gpu]


class Client(Listener):
    """A connection of a story, which keeps exactly the messages that the other end would read."""

    def __init__(self, user: str, is_owner: bool = False) -> None:
        super().__init__(user)
        self.is_owner = is_owner
        self.may_issue_tokens = user == "tutor"
        self.frames = Frames()

    def send(self, *messages: messages.Message) -> None:
        for message in messages:
            frame = encode(message)
            assert decode_from_broker(frame[HEADER_BYTES:]) == message
            self.send_frame(frame)

    def send_frame(self, frame: bytes) -> None:
        if self.user != neighbour.NAME:
            neighbour.check_others_heard(frame, self.is_owner)
        self.heard += map(decode_from_broker, self._frames.feed(frame))

    def send_with(self, message: messages.Message, descriptor: int) -> None:
        os.fstat(descriptor)  # it is open
        self.send(message)

    def is_alive(self) -> bool:
        return self.user == "eve"  # the killed processes of this user still write for a while

    def is_behind(self) -> bool:
        return self.user == "bob"  # this user never reads


class Broker:
    """The service, with a neighbour that has a turn on the device `host`."""

    def __init__(self) -> None:
        self.began = CLOCK.next_week()
        self.used_bytes = 0
        self.is_governed = False  # a session may have been throttled, or a user has used up a day
        self.service: Service
        self._journal = os.memfd_create("journal")
        self._asked = {(neighbour.NAME, 1)}  # sessions and turns that were requested
        self._begin(0.0)

    def _begin(self, grants_from: float) -> None:
        self.clients: dict[str, Client] = {}
        self.service = Service(
            SETTINGS,
            devices(lambda: GpuUse(self.used_bytes, {2: self.used_bytes})),
            started=0.0,
            grants_from=grants_from,
            rulebook=RULEBOOK,
            accounts=ACCOUNTS,
            journal=RecoveryJournal(self._journal, neighbour.OPEN.handoff_slot.__eq__),
            clock=lambda: CLOCK.now,
        )
        self.neighbour = Client(neighbour.NAME)
        for message in neighbour.GREETING_AGAIN if grants_from else neighbour.GREETING:
            self.service.handle(self.neighbour, message, CLOCK.now)
        self.neighbour.heard.clear()
        self.empty = self.look()

    # --- the steps of a story -------------------------------------------------------------------

    def take(self, step: Step) -> None:
        if step.verb == "later":
            self._pass_time(max(0.0, story.numbers(step.rest, 1)[0]))
        elif step.verb == "unmanaged":
            self.used_bytes = max(0, int(story.numbers(step.rest, 1)[0]))
        elif step.verb == "restart":
            self._restart()
        else:
            self._hear(step)
        self.check()

    def _restart(self) -> None:
        self.service.close(CLOCK.now)
        self._begin(CLOCK.now + SETTINGS.recovery_seconds)

    def _hear(self, step: Step) -> None:
        client = self._client(step.who)
        if step.verb == "leaves":
            self._lose(step.who)
        elif step.verb == "chunks":
            self._give_chunks(client, *map(int, story.numbers(step.rest, 3)))
        elif (body := story.body(step)) is not None:
            self._say(step.who, body)
        elif step.verb == "bytes":
            self._say_bytes(step)

    def _client(self, who: str) -> Client:
        if who not in self.clients:
            self.clients[who] = client = Client(story.user_of(who), who == "admin")
            client.open_channel = client.send  # type: ignore[method-assign]
            if who != "eve":  # the first message of eve may be any
                self.service.handle(client, messages.Hello(messages.PROTOCOL), CLOCK.now)
        return self.clients[who]

    def _say_bytes(self, step: Step) -> None:
        try:
            for body in self._client(step.who).frames.feed(story.raw(step.rest)):
                self._say(step.who, body)
        except LimitExceeded:
            self._lose(step.who)

    def _say(self, who: str, body: bytes) -> None:
        """Send a message. A client that sends an unreadable one loses its connection."""
        try:
            message = decode_from_client(body)
        except ProtocolError:
            self._lose(who)
            return
        assert decode_from_client(encode_body(message)) == message
        client = self._client(who)
        before, heard = self.look(), len(client.heard)
        self.service.handle(client, message, CLOCK.now)
        self._check_answer(message, client.heard[heard:], before)
        self._check_turn(client, message)
        self.is_governed |= client.user in RULERS
        for name in [name for name, one in self.clients.items() if not one.is_open]:
            self._lose(name)

    def _give_chunks(self, client: Client, memory: int, first: int, count: int) -> None:
        descriptors = [os.open(os.devnull, os.O_RDONLY) for _ in range(min(count, 40))]
        self.service.take_chunks(client, chunks.Batch(memory, first, descriptors))

    def _lose(self, who: str) -> None:
        """Close a connection if it is still open: of messages that come in one piece, several may
        be wrong."""
        if (client := self.clients.pop(who, None)) is not None:
            self.service.lost(client, CLOCK.now)

    def _pass_time(self, seconds: float) -> None:
        end = CLOCK.now + min(seconds, 4000.0)
        for _ in range(MOST_EVENTS):
            due = self.service.next_event(CLOCK.now)
            if due is None or due > end:
                break
            CLOCK.now = max(CLOCK.now, due)
            self.service.pass_time(CLOCK.now)
            if self.service.next_event(CLOCK.now) == due:
                raise AssertionError("what is due stays due: the broker would never rest")
        CLOCK.now = end
        self.service.tick(CLOCK.now)
        self.is_governed |= CLOCK.now > self.began + 600.0

    # --- invariants -------------------------------------------------------------------------------

    def look(self) -> Snapshot:
        return self.service.snapshot(CLOCK.now)

    def check(self) -> None:
        assert self.service._host.is_valid() == "", self.service._host.is_valid()
        assert self.service.is_valid() == "", self.service.is_valid()
        self._check_limits()
        snapshot = self.look()
        for device in snapshot.devices:
            check_shown(device)
        assert decode_from_broker(encode_body(snapshot)) == snapshot
        neighbour.check_heard(self.neighbour.heard)
        self.neighbour.heard.clear()
        assert neighbour.view(snapshot).state in neighbour.STILL
        assert self.neighbour.is_open

    def _check_answer(
        self, said: ToBroker, heard: list[messages.Message], before: Snapshot
    ) -> None:
        errors = [message for message in heard if isinstance(message, messages.Error)]
        for error in errors:
            assert error.code in BY_CODE, error
            assert "argument" not in error.message, f"no sentence for people: {error}"
        # A session that comes back and has become too large is admitted, and told so.
        is_taken = isinstance(said, PARTLY_TAKEN) or any(
            isinstance(m, messages.Opened) for m in heard
        )
        if errors and not is_taken:
            assert _of_clients(self.look()) == _of_clients(before), f"{said} was refused"

    def _check_turn(self, client: Client, said: ToBroker) -> None:
        """Check that no session has a turn without a request, whatever it claims about its past."""
        if isinstance(said, messages.Request) and client.session is not None:
            self._asked.add((client.session, said.turn))
        if not isinstance(said, messages.Open) or client.session != said.id:
            return
        if said.waiting:
            self._asked.add((said.id, said.turn))
        elif said.holding and (said.id, said.turn) not in self._asked:
            views = [view for device in self.look().devices for view in device.sessions]
            state = next(view.state for view in views if view.id == said.id)
            assert state not in neighbour.STILL, f"{said.id} has turn {said.turn}"

    def _check_limits(self) -> None:
        """Check the limits on sessions that are open or rest."""
        known = self.service.sessions.all_known()
        assert len(known) <= SETTINGS.max_sessions
        of = Counter(record.peer.user for record in known)
        assert all(count <= SETTINGS.max_sessions_per_user for count in of.values()), of

    def finish(self) -> None:
        """Close all connections but the neighbour's. The neighbour gives its turn back, and gets
        the next one."""
        for who in [*self.clients]:
            self._lose(who)
        self._pass_time(1.0)
        self.check()
        shown = self.look()
        assert [len(device.sessions) for device in shown.devices] == [1, 0]
        assert not any(device.resting for device in shown.devices)
        self.service.handle(self.neighbour, messages.Finish(1), CLOCK.now)
        self.service.handle(self.neighbour, messages.Request(2), CLOCK.now)
        self._pass_time(1.0)
        grants = [
            message.turn for message in self.neighbour.heard if isinstance(message, messages.Grant)
        ]
        assert grants == [2] or (self.is_governed and not grants), grants
        self.service.handle(self.neighbour, messages.Close(), CLOCK.now)
        self.service.tick(CLOCK.now + 1)
        last = self.look()
        assert all(
            device.free_bytes == device.capacity_bytes - device.unmanaged_bytes and not device.lanes
            for device in last.devices
        )
        self.service.close(CLOCK.now)
        os.close(self._journal)


def check_shown(device: DeviceView) -> None:
    """Check that each admitted session is in one lane, and that the device never holds more than
    its capacity."""
    lane_of = {member: lane.id for lane in device.lanes for member in lane.members}
    placed = {view.id: view.lane for view in device.sessions if view.lane is not None}
    assert lane_of == placed, device
    used = device.persistent_bytes + sum(lane.bytes for lane in device.lanes)
    assert used <= device.capacity_bytes, device
    assert device.free_bytes == max(0, device.capacity_bytes - used - device.unmanaged_bytes), (
        device
    )


def _of_clients(snapshot: Snapshot) -> Snapshot:
    """Return the snapshot without the values that a look changes: the number of looks, and the
    unmanaged memory of a GPU."""
    devices = [
        msgspec.structs.replace(device, free_bytes=0, unmanaged_bytes=0)
        for device in snapshot.devices
    ]
    return msgspec.structs.replace(snapshot, sequence=0, devices=devices)


def fuzz(data: bytes) -> None:
    broker = Broker()
    for step in story.read(data):
        broker.take(step)
    broker.finish()
