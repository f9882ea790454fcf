"""The words: every message between a broker and its clients, and the Snapshot that lookers see.

A frame is a 4-byte big-endian length and that many bytes of JSON: one object whose ``type`` names
the class below. The first frame of a connection is `Hello`; the broker answers `Welcome` or
`Error`. A connection carries at most one session. Unknown keys are ignored, so a message may gain
fields within one protocol number; a change of meaning takes the next number.

msgspec holds the messages: tagged unions and type checks that name the wrong field, without a
parser of our own and with an import ten times lighter than pydantic's.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator
from typing import Literal, TypeAlias, TypeVar

import msgspec

from .. import refusals
from ..errors import UNREADABLE, LimitExceeded, ProtocolError

PROTOCOL = 1
HEADER_BYTES = 4
KEY_LENGTH = 32  # hexadecimal digits of the key to a mailbox
MAC_BYTES = 16  # of a letter
SEALED = "s-"  # an id begins so that opens with its secret alone
MAX_NAME_LENGTH = 200  # of a session's name; a broker cuts longer ones
MAX_FRAME_BYTES = 1 << 16  # a client's frame; snapshots of a broker may be larger
MAX_SNAPSHOT_BYTES = 64 << 20


class Message(msgspec.Struct, frozen=True, tag=True):
    """Base of all messages; the class name is the tag on the wire."""


class Demand(msgspec.Struct, frozen=True):
    """What a session takes: bytes that live across iterations, and the peak inside one.

    `measured` is False until an iteration has been seen; such a session runs alone on its device.
    """

    persistent_bytes: int = 0
    ephemeral_bytes: int = 0
    measured: bool = False


By: TypeAlias = Literal["user", "group", "notebook", "day", "hour"]


# --- client to broker -------------------------------------------------------------------------


class Hello(Message, frozen=True):
    """Who speaks. Where users are a hub's, the broker answers Unidentified until it is shown a
    `token` of the hub, or a `ticket` that a Jupyter server has vouched for."""

    protocol: int
    program: str = ""
    token: str = ""
    ticket: str = ""

    def __repr__(self) -> str:
        """Without what nobody else may see."""
        return f"Hello(protocol={self.protocol}, program={self.program!r})"


class Vouch(Message, frozen=True):
    """Of a Jupyter server that has shown its token: whoever shows the ticket with this SHA-256
    `digest` (hexadecimal), once and soon, is one of its kernels, and stands for the same user."""

    digest: str


class Open(Message, frozen=True):
    """Register this connection's session. The client makes the `id`, so repeating it is harmless.
    One that is `sealed` is made from a `secret` that is shown here and nowhere else: all may see
    the id, and nobody else opens it, be it at a broker that has just started.

    `device` is the name of one, or the UUID of a GPU; or `auto`: then `among` are the UUIDs of
    those that the process sees (none: any will do), of which it gets the one with most room.
    With more `devices` than one it is a gang, which has so many of these whole, all at once or
    none; who comes back names those that it has, and `demand` is what it takes of each.

    `turn` numbers the client's requests. After a lost broker a client opens again with the same id:
    `holding` says that it still has turn `turn`, `waiting` that it has asked for it.
    `device_seconds`, `waited_seconds` and `iterations` carry the history over, with what has
    passed of the turn or wait that goes on.
    `paged_out_bytes` lie in a file, and `busy` says whether a cell runs (a script always does).
    `mailbox` is where whoever has the turn before this session hands it on, and `key` is known to
    nobody else but the broker; empty ones say that turns come from the broker alone.
    """

    id: str
    name: str
    device: str = "auto"
    among: list[str] = []
    devices: int = 1
    weight: float = 1.0
    priority: int = 0
    demand: Demand = Demand()
    remaining_iterations: int | None = None
    turn: int = 0
    holding: bool = False
    waiting: bool = False
    paused: bool = False
    device_seconds: float = 0.0
    waited_seconds: float = 0.0
    iterations: int = 0
    paged_out_bytes: int = 0
    busy: bool = True
    mailbox: str = ""
    key: str = ""
    secret: str = ""

    def __repr__(self) -> str:
        """Without what nobody else may see."""
        return f"Open(id={self.id!r}, name={self.name!r})"


class Close(Message, frozen=True):
    """The session ends; the connection may stay."""


class NewKey(Message, frozen=True):
    """The session's mailbox takes letters of this key alone from now on."""

    key: str

    def __repr__(self) -> str:
        return "NewKey()"


class Request(Message, frozen=True):
    turn: int


class Finish(Message, frozen=True):
    """The turn is over; if it was not granted yet, the request is withdrawn."""

    turn: int


class Report(Message, frozen=True):
    """What happened since the last report: `iterations` counts only those."""

    iterations: int
    demand: Demand
    remaining_iterations: int | None = None


class Keep(Message, frozen=True):
    """Ask whether the demand may grow to this, for what outlives its iteration: Done, or Error."""

    demand: Demand


class Busy(Message, frozen=True):
    """A cell begins, or ends. Who is paged out and busy waits for PageIn."""

    busy: bool


class PagedOut(Message, frozen=True):
    """So many persistent bytes lie in a file now and take no memory of the device.

    `page_ins` counts the PageIns that this connection has been sent since Opened: after one that is
    still on its way, the memory is back.
    """

    bytes: int
    page_ins: int | None = None


class Rests(Message, frozen=True):
    """This connection's session gives its place to others; it is opened again with its next cell.

    So many persistent bytes lie in a file.
    """

    bytes: int


class StaysIn(Message, frozen=True):
    """Paging out was called off, and nothing is out."""

    reason: str


class Change(Message, frozen=True):
    """Change a session live; None leaves a field as it is, `session` None means one's own."""

    session: str | None = None
    weight: float | None = None
    priority: int | None = None
    paused: bool | None = None


class Recall(Message, frozen=True):
    """Ask a session that runs to yield, whether its time is over or not."""

    session: str


class Dismiss(Message, frozen=True):
    """Ask an idle session to page out, whether its room is needed or not."""

    session: str


class Cancel(Message, frozen=True):
    """End a session's wait: its cell fails with one sentence."""

    session: str


class SetPolicy(Message, frozen=True):
    """Choose the policy, or how many lanes may run at once (0 is `auto`); None leaves it."""

    policy: str | None = None
    running_lanes: int | None = None
    device: str | None = None


class ClassMode(Message, frozen=True):
    """Give a device to a class of a group, or end that; all devices where none is named.

    With `seconds` it ends by itself. Students then have short turns and equal memory, and others
    are held back.
    """

    group: str
    on: bool
    device: str | None = None
    seconds: float | None = None


class Look(Message, frozen=True):
    """Ask for one Snapshot."""


class Watch(Message, frozen=True):
    """Ask for a Snapshot now and after each change, at most one per `interval_seconds`."""

    interval_seconds: float = 0.25


class Account(Message, frozen=True):
    """Ask for what was used from `start` until before `end`, Unix times, in sums `by` something.

    The answer has what the asker may see: own figures, a teacher's groups, or all.
    """

    start: float
    end: float
    by: By = "user"


class Shutdown(Message, frozen=True):
    """End the broker in good order."""


# --- broker to client -------------------------------------------------------------------------


class Welcome(Message, frozen=True):
    """`user` is whom the broker takes the client for; an administrator may change everything."""

    protocol: int
    version: str
    pid: int
    user: str = ""
    is_administrator: bool = False


class Opened(Message, frozen=True):
    """`capacity_bytes` is the device's, and the largest that a lane of it can be.

    Where lanes are made of chunks, these have `chunk_bytes`, and with the first message of a
    connection that says so comes the descriptor of a socket for them (chunks.py).
    `uuid` is a GPU's, whose number in the client's process may be another than in `device`.
    A gang is told all `gang` devices and their `uuids`, and the capacity of the smallest; the other
    fields are of the first. It has no part in the memory of lanes.
    """

    id: str
    device: str
    capacity_bytes: int = 0
    chunk_bytes: int = 0
    uuid: str = ""
    gang: list[str] = []
    uuids: list[str] = []


class Grant(Message, frozen=True):
    """Turn `turn` is yours until you finish it, with `bytes` of the memory of your lane.

    `memory` numbers that memory (0: the turn has none). Where the number is another than in the
    Grant before it on this connection, the descriptor of the memory comes with the message; or,
    where it is made of chunks, there are `chunks` of them, which have been sent, and the session
    makes those that are missing. Said again for the same turn, it changes the lane from the next
    boundary on.
    """

    turn: int
    lane: int
    bytes: int = 0
    memory: int = 0
    chunks: int = 0


class Trim(Message, frozen=True):
    """The memory `memory` of a lane has but so many `bytes` now: let go of all chunks above."""

    memory: int
    bytes: int


class Successor(msgspec.Struct, frozen=True):
    """Who has the turn next: put `letter` into `mailbox`."""

    mailbox: str
    letter: str


class Yield(Message, frozen=True):
    """Please finish `turn` at the next boundary: somebody waits.

    A `successor` has the turn next, however this one ends. This session may hand it the turn, which
    takes one way instead of two; the broker's own Grant follows in any case. Without a successor
    the broker decides when the turn is over.
    """

    turn: int
    successor: Successor | None = None


class RenewKey(Message, frozen=True):
    """Somebody has left the trust domain, with letters in hand: answer with a NewKey. Until then
    turns come from the broker alone."""


class Withdraw(Message, frozen=True):
    """Somebody has cancelled the wait for `turn`: withdraw the request, and say why.

    Whose wait is over by now, since it was handed the turn or was interrupted, ignores it.
    """

    turn: int
    reason: str


class PageOut(Message, frozen=True):
    """Please page out: others need the room. Answer PagedOut or StaysIn, unless a cell begins."""


class PageIn(Message, frozen=True):
    """There is room again: page in."""


class GiveBack(Message, frozen=True):
    """Please return memory to the device that is free in your allocator, unless a cell runs."""


class Rest(Message, frozen=True):
    """Please page out and give your place to others, unless a cell runs: Rests, or StaysIn."""


class Notice(Message, frozen=True):
    """A sentence for the user, to be shown in the cell that runs or the next one."""

    sentence: str


class Wait(Message, frozen=True):
    """Why turn `turn` is not granted yet. `place` 0: it is in no line, being held back or paused.

    `expected_seconds` is None where nobody can know.
    """

    turn: int
    place: int
    waiting_seconds: float
    reason: str
    holder: str | None = None
    expected_seconds: float | None = None


class Done(Message, frozen=True):
    """What was asked for was carried out; `note` is a sentence or empty."""

    note: str = ""


class AccountRow(msgspec.Struct, frozen=True):
    """Sums of one user, group, notebook, day or hour; of memory, bytes times seconds."""

    name: str
    device_seconds: float
    waited_seconds: float
    persistent_byte_seconds: float
    lane_byte_seconds: float
    turns: int


class Accounts(Message, frozen=True):
    """By name. `note` says why older figures may be missing, or is empty."""

    rows: list[AccountRow]
    note: str = ""


class Error(Message, frozen=True):
    """A message was refused and changed nothing; `code` is a key of errors.BY_CODE."""

    code: str
    message: str


# --- the one schema for every looker -------------------------------------------------------------

State: TypeAlias = Literal["idle", "waiting", "running", "overdue", "paused", "paged_out", "held"]
HOLDING: Collection[State] = ("running", "overdue")
ACTIVE: Collection[State] = (*HOLDING, "waiting")
WAITING: Collection[State] = ("waiting", "held")


class SessionView(msgspec.Struct, frozen=True):
    """One notebook. `place` counts from 1 and is None unless it waits. Seconds, bytes.

    `paged_out_bytes` of its persistent ones lie in a file; `busy`: a cell runs, or it is a script.
    `group` is one of the admin's file; it is empty for those who are in none.
    `idle_step` is the highest that was taken since nothing runs in it: `caches`, `page_out`,
    `release` or `cull`; empty, if none.
    A `gang` has all these devices at once, and is there on each; the list is empty for all others.
    """

    id: str
    name: str
    user: str
    pid: int
    state: State
    persistent_bytes: int
    ephemeral_bytes: int
    measured: bool
    lane: int | None
    place: int | None
    waiting_seconds: float | None
    expected_wait_seconds: float | None
    reason: str
    device_seconds: float
    waited_seconds: float
    iterations: int
    remaining_iterations: int | None
    weight: float
    priority: int
    paged_out_bytes: int
    busy: bool
    group: str
    idle_seconds: float | None
    idle_step: str
    gang: list[str] = []


def queue_rank(view: SessionView) -> tuple[int, int]:
    """Sorts sessions: those that hold a turn, then the queue by its positions, then all others."""
    if view.state in HOLDING:
        return 0, 0
    return (1, view.place) if view.place is not None else (2, 0)


class RestingView(msgspec.Struct, frozen=True):
    """An idle notebook whose place on the device is released until its next cell."""

    id: str
    name: str
    user: str
    pid: int
    paged_out_bytes: int
    idle_seconds: float
    idle_step: str


class Intervention(msgspec.Struct, frozen=True):
    """What the Jupyter server that owns the kernel of a session has to do to it, by the rules.

    `interrupt` its cell; `end` its kernel; `cull` its kernel, which is idle.
    """

    session: str
    deed: str
    sentence: str


class LaneView(msgspec.Struct, frozen=True):
    """A lane: as large as its largest member's ephemeral demand; `holder` is a session id."""

    id: int
    bytes: int
    holder: str | None
    members: list[str]


class TurnView(msgspec.Struct, frozen=True):
    """A session had its lane from `began` to `ended`, both in seconds before the Snapshot.

    `ended` is None while the turn goes on. Turns of a session that follow each other closely are
    one view: `held` seconds of it are its turns, the rest is between them.
    """

    session: str
    lane: int
    began: float
    ended: float | None
    held: float


class UserView(msgspec.Struct, frozen=True):
    """Seconds for which a user's sessions had turns, in each five minutes of the last hour.

    The newest are last, and have only begun. What was before this broker is left out: nobody knows.
    """

    name: str
    used_seconds: list[float]


class DeviceView(msgspec.Struct, frozen=True, kw_only=True):
    """`foreign_bytes` belong to processes that take no turns here.

    `turns` are those of the last minute, oldest first, `users` those who had turns in the last
    hour. `probation` says what several lanes at once were found to gain, or is empty.
    """

    name: str
    capacity_bytes: int
    persistent_bytes: int
    free_bytes: int
    foreign_bytes: int = 0
    running_lanes: int
    probation: str = ""
    lanes: list[LaneView]
    sessions: list[SessionView]
    resting: list[RestingView] = []
    turns: list[TurnView] = []
    users: list[UserView] = []


class BrokerView(msgspec.Struct, frozen=True):
    """`started` is Unix time in seconds; `accounts` says why these are not kept, or is empty.

    `recovering`: it was started after a crash, and grants nothing until the sessions of the broker
    before it have had time to come back; not all of them may be in the Snapshot yet.
    """

    pid: int
    protocol: int
    started: float
    accounts: str = ""
    recovering: bool = False


class PolicyView(msgspec.Struct, frozen=True):
    name: str
    sentence: str


class GroupView(msgspec.Struct, frozen=True):
    """A group of the admin's file."""

    name: str
    weight: float
    teachers: list[str]


class ClassView(msgspec.Struct, frozen=True):
    """A class has the device until `ends`, Unix time; None: until somebody ends it."""

    group: str
    device: str
    ends: float | None


class ReservationView(msgspec.Struct, frozen=True):
    """A group has a device, or a `share` of it, from `begins` to `ends`, both Unix time.

    `device` is empty for all of them.
    """

    group: str
    device: str
    share: float
    begins: float
    ends: float
    is_on: bool


class Snapshot(Message, frozen=True):
    """All there is to see. `sequence` grows by one with each change of the broker's state.

    `reservations` go on or begin within a day. `rulebook_error` says why the admin's file, as it is
    now, is not in force; it is empty where all is well.
    """

    version: str
    broker: BrokerView
    policy: str
    policies: list[PolicyView]
    sequence: int
    devices: list[DeviceView]
    interventions: list[Intervention] = []
    groups: list[GroupView] = []
    classes: list[ClassView] = []
    reservations: list[ReservationView] = []
    rulebook_error: str = ""


ToBroker: TypeAlias = (
    Hello
    | Open
    | Close
    | NewKey
    | Request
    | Finish
    | Report
    | Keep
    | Busy
    | PagedOut
    | Rests
    | StaysIn
    | Change
    | Recall
    | Dismiss
    | Cancel
    | SetPolicy
    | ClassMode
    | Look
    | Vouch
    | Watch
    | Account
    | Shutdown
)
Kind = TypeVar("Kind")
ToClient: TypeAlias = (
    Welcome
    | Opened
    | Grant
    | Trim
    | Yield
    | RenewKey
    | Withdraw
    | PageOut
    | PageIn
    | GiveBack
    | Rest
    | Notice
    | Wait
    | Accounts
    | Done
    | Error
    | Snapshot
)

_encoder = msgspec.json.Encoder()
_from_client: msgspec.json.Decoder[ToBroker] = msgspec.json.Decoder(ToBroker)
_from_broker: msgspec.json.Decoder[ToClient] = msgspec.json.Decoder(ToClient)


def encode(message: Message) -> bytes:
    """One frame: length, then JSON."""
    return frame(encode_body(message))


def frame(body: bytes) -> bytes:
    """A message that is encoded already."""
    return len(body).to_bytes(HEADER_BYTES, "big") + body


def encode_body(message: Message) -> bytes:
    """The JSON alone, for where each message is a datagram."""
    return _encoder.encode(message)


def decode_from_client(body: bytes | bytearray | memoryview) -> ToBroker:
    """Raises ProtocolError with the field that is wrong."""
    return _decode(_from_client, body)


def decode_from_broker(body: bytes | bytearray | memoryview) -> ToClient:
    """Raises ProtocolError with the field that is wrong."""
    return _decode(_from_broker, body)


def sealed(secret: str) -> str:
    """The id of a session that whoever has this secret may open."""
    return SEALED + hashlib.sha256(secret.encode()).hexdigest()[:KEY_LENGTH]


def write_letter(key: str, grant: Grant) -> str:
    """What a session finds in its mailbox: what the Grant says, behind a MAC of it (csrc/handoff).

    Whoever carries it reads it, and learns nothing by which to write another.
    """
    numbers = f"{grant.turn} {grant.lane} {grant.bytes} {grant.memory} {grant.chunks}"
    mac = hashlib.blake2s(numbers.encode(), key=key.encode(), digest_size=MAC_BYTES)
    return f"{mac.hexdigest()} {numbers}"


def _decode(decoder: msgspec.json.Decoder[Kind], body: bytes | bytearray | memoryview) -> Kind:
    try:
        return decoder.decode(body)
    except UNREADABLE:
        wrong = refusals.in_json(body, decoder.type, "it")
        raise ProtocolError(f"not a message of protocol {PROTOCOL}: {wrong}") from None


class Frames:
    """Cuts a stream of bytes into the bodies of its frames; holds what is half."""

    def __init__(self, limit_bytes: int = MAX_FRAME_BYTES) -> None:
        self._limit = limit_bytes
        self._buffer = bytearray()

    def feed(self, data: bytes | memoryview) -> Iterator[bytes]:
        """The bodies that `data` completes, in order. After them LimitExceeded, if a frame is too
        long: what came before it does not depend on how the stream was cut."""
        self._buffer += data
        return self._bodies()

    def _bodies(self) -> Iterator[bytes]:
        while (end := self._end_of_first()) is not None:
            body = bytes(self._buffer[HEADER_BYTES:end])
            del self._buffer[:end]
            yield body

    def _end_of_first(self) -> int | None:
        if len(self._buffer) < HEADER_BYTES:
            return None
        length = int.from_bytes(self._buffer[:HEADER_BYTES], "big")
        if length > self._limit:
            raise LimitExceeded(f"a frame of {length} bytes; at most {self._limit} are taken")
        end = HEADER_BYTES + length
        return end if len(self._buffer) >= end else None
