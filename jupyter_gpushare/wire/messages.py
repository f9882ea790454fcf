"""All messages that a broker and its clients exchange, except for the Snapshot.

The first frame of a connection is `Hello`; the broker answers `Welcome` or `Error`. A connection
carries at most one session. Unknown keys are ignored, so a message may gain fields within one
protocol number; a change of meaning takes the next number.

The messages are msgspec structs. They give tagged unions and type checks that name the wrong field,
with an import ten times lighter than pydantic's.
"""

from __future__ import annotations

import hashlib
from typing import Literal, TypeAlias

import msgspec
from msgspec.structs import replace

from ..reasons import GONE, Reason, sentence
from .demand import Curve, Demand, Squeezing

PROTOCOL = 1
ALONE = -1  # the end of a lane that no other session uses at the same time
KEY_LENGTH = 32  # hexadecimal digits of the key to a handoff slot
SEALED = "s-"  # the prefix of an id that only its secret opens
MAX_NAME_LENGTH = 200  # of a session's name; a broker cuts longer ones
MIN_WEIGHT, MAX_WEIGHT = 0.001, 1000
WEIGHTS = f"a number from {MIN_WEIGHT:g} to {MAX_WEIGHT:g}"


class Message(msgspec.Struct, frozen=True, tag=True):
    """Base of all messages; the class name is the tag on the wire."""


By: TypeAlias = Literal["user", "group", "notebook", "day", "hour"]


# --- client to broker -------------------------------------------------------------------------


class Hello(Message, frozen=True):
    """The first message of a client. If users come from a hub, the broker answers Unidentified
    until it is shown a `token` of the hub, or a `ticket` that a Jupyter server has registered."""

    protocol: int
    program: str = ""
    token: str = ""
    ticket: str = ""

    def __repr__(self) -> str:
        """Leave out the token and the ticket, which other users may not see."""
        return f"Hello(protocol={self.protocol}, program={self.program!r})"


class AddTicket(Message, frozen=True):
    """Sent by a Jupyter server that has shown its token. One of its kernels will soon show the
    ticket with this SHA-256 `digest` (hexadecimal), once; that connection stands for the same
    user."""

    digest: str


class Open(Message, frozen=True):
    """Register this connection's session. The client makes the `id`, so repeating the message is
    harmless. A `sealed` id is made from a `secret` that is shown only here: all may see the id, but
    no other client can open it, even at a broker that has just started.

    `device` is a name, the UUID of a GPU, or `auto`. With `auto`, `among` are the UUIDs that the
    process sees (empty: any will do), and the session gets the device with the most room. If
    `devices` is above 1, the session is a gang: it gets that number of whole devices, all or none,
    and `demand` is its demand on each. A gang that reconnects names the devices that it has.

    `turn` numbers the client's requests. After a lost broker a client opens again with the same id:
    `holding` says that it still has turn `turn`, `waiting` that it has requested it.
    `device_seconds`, `waited_seconds` and `iterations` carry the history over, with the present
    turn or wait so far. `paged_out_bytes` lie in a file, and `busy` says whether a cell runs (a
    script is always busy).

    `handoff_slot` receives direct handoffs, and `key` is known only to the session and the broker;
    if they are empty, turns come from the broker alone. `bears_slowdown` is the slowdown up to
    which the session may be squeezed to admit others; 1.0: it is not. To fit at all, the session
    accepts any slowdown. `squeezed_bytes` are the bytes that the Grant of a turn it is `holding`
    allowed an iteration. `shares` says that the session can use a lane from one end while another
    one uses it from the other. The `remaining_iterations` are of a loop that has `loop_iterations`.
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
    handoff_slot: str = ""
    key: str = ""
    secret: str = ""
    bears_slowdown: float = 1.0
    squeezed_bytes: int = 0
    shares: bool = False
    loop_iterations: int | None = None

    def __repr__(self) -> str:
        """Leave out the secret and the key, which other users may not see."""
        return f"Open(id={self.id!r}, name={self.name!r})"


class Close(Message, frozen=True):
    """The session ends; the connection may stay."""


class NewKey(Message, frozen=True):
    """The session's handoff slot accepts direct handoffs with this key alone from now on."""

    key: str

    def __repr__(self) -> str:
        return "NewKey()"


class Request(Message, frozen=True):
    turn: int


class Finish(Message, frozen=True):
    """The turn has ended; if it was not granted yet, the request is withdrawn."""

    turn: int


class Report(Message, frozen=True):
    """The events since the last report: `iterations` counts only those. Without a `curve` the last
    one still holds. The `remaining_iterations` are of a loop that has `loop_iterations`; without
    them, no loop is known. Without `squeezing` the session is not squeezed."""

    iterations: int
    demand: Demand
    remaining_iterations: int | None = None
    curve: Curve | None = None
    loop_iterations: int | None = None
    squeezing: Squeezing | None = None


class Keep(Message, frozen=True):
    """Ask whether the demand may grow to `demand`, for memory that outlives its iteration. The
    answer is Done or Error."""

    demand: Demand


class Busy(Message, frozen=True):
    """A cell begins, or ends. A session that is paged out and busy waits for PageIn."""

    busy: bool


class PagedOut(Message, frozen=True):
    """`bytes` persistent bytes lie in a file now and take no memory of the device.

    `page_ins` counts the PageIns that the session has received on this connection since Opened. If
    the broker has sent more, one is still on its way, and the memory is back after it.
    """

    bytes: int
    page_ins: int | None = None


class Rests(Message, frozen=True):
    """This connection's session releases its memory to others; it is opened again with its next
    cell.

    `bytes` persistent bytes lie in a file.
    """

    bytes: int


class StaysIn(Message, frozen=True):
    """Paging out was cancelled, and nothing is out."""

    reason: str


class Change(Message, frozen=True):
    """Change a session live; None leaves a field as it is, `session` None means one's own."""

    session: str | None = None
    weight: float | None = None
    priority: int | None = None
    paused: bool | None = None


class Preempt(Message, frozen=True):
    """Ask a running session to yield, whether its time has passed or not."""

    session: str


class Evict(Message, frozen=True):
    """Ask an idle session to page out, whether its memory is needed or not."""

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

    After `seconds` it ends by itself. During a class, students have short turns and equal memory,
    and others are throttled.
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
    """Ask for the usage from `start` until before `end`, Unix times, summed `by` user, group,
    notebook, day or hour.

    The answer has the rows that the asker may see: own figures, a teacher's groups, or all.
    """

    start: float
    end: float
    by: By = "user"


class Shutdown(Message, frozen=True):
    """End the broker in good order."""


# --- broker to client -------------------------------------------------------------------------


class Welcome(Message, frozen=True):
    """`user` is the user that the broker has authenticated; an administrator may change
    everything."""

    protocol: int
    version: str
    pid: int
    user: str = ""
    is_administrator: bool = False


class Opened(Message, frozen=True):
    """The broker has registered the session. `capacity_bytes` is the capacity of the device, and
    the largest size of a lane.

    If lanes are made of chunks, a chunk has `chunk_bytes`, and the first such message of a
    connection carries the descriptor of a socket for chunks (fd_channel.py). `uuid` is that of the
    GPU, whose number in the client's process may differ from that in `device`. A gang gets the
    names of all its devices in `gang` and their `uuids`, and the capacity of the smallest one; the
    other fields are those of the first. A gang does not use the memory of lanes.
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

    `memory` numbers that memory (0: the turn has none). If the number differs from that of the
    Grant before it on this connection, the message carries the descriptor of the memory. Memory
    that is made of chunks has no descriptor: `chunks` of them exist and have been sent, and the
    session makes the missing ones. A repeated Grant for the same turn changes the lane from the
    next boundary on. An iteration may take at most `squeezed_bytes`, one of the session's options;
    0: it is not squeezed. If another session may use the lane at the same time, this one has the
    `end` 0 or 1 of its `bytes`, and follows the Ledger of that memory.
    """

    turn: int
    lane: int
    bytes: int = 0
    memory: int = 0
    chunks: int = 0
    squeezed_bytes: int = 0
    end: int = ALONE


class Ledger(Message, frozen=True):
    """The ledger of the memory `memory` of a lane, whose descriptor comes with this message.

    It says what each of two sessions has of the lane that they use at once. It comes before the
    first Grant with an `end` in that memory, and again when a new ledger replaces it.
    """

    memory: int


class Trim(Message, frozen=True):
    """The memory `memory` of a lane has only `bytes` bytes now: release all chunks above. If the
    memory is of no lane any more, `bytes` is 0; the memory is free once no process has a descriptor
    of it."""

    memory: int
    bytes: int


class Successor(msgspec.Struct, frozen=True):
    """The session that has the turn next: send `handoff_token` to `handoff_slot`."""

    handoff_slot: str
    handoff_token: str


class Yield(Message, frozen=True, omit_defaults=True):
    """Please finish `turn` at the next boundary: another session waits.

    A `successor` has the turn next, however this one ends. This session may send it the turn
    directly, which takes one way instead of two; the broker's own Grant follows in any case.
    Without a successor the broker decides when the turn has ended. If the policy lets turns last
    `until_cell_ends`, the session keeps later turns over the times between its iterations.
    """

    turn: int
    successor: Successor | None = None
    until_cell_ends: bool = False


class RenewKey(Message, frozen=True):
    """A session has left the trust domain with direct handoffs that it has not sent: answer with a
    NewKey. Until then turns come from the broker alone."""


class Withdraw(Message, frozen=True):
    """A user has cancelled the wait for `turn`: withdraw the request, and say why.

    A session whose wait has ended by now, since it got the turn or was interrupted, ignores it.
    """

    turn: int
    reason: str


class PageOut(Message, frozen=True):
    """Please page out: others need the memory. Answer PagedOut or StaysIn, unless a cell begins."""


class PageIn(Message, frozen=True):
    """There is memory again: page in."""


class GiveBack(Message, frozen=True):
    """Please return memory to the device that is free in your allocator, unless a cell runs."""


class Rest(Message, frozen=True):
    """Please page out and release your memory to others, unless a cell runs: Rests, or StaysIn."""


class Room(Message, frozen=True):
    """The other sessions leave this one `bytes` bytes of the device, its lane included, if all
    sessions use one lane. A session that needs more learns how far its iterations can be
    squeezed."""

    bytes: int


class Notice(Message, frozen=True):
    """A sentence for the user, to be shown in the cell that runs or the next one."""

    sentence: str


class Wait(Message, frozen=True):
    """The reason why turn `turn` is not granted yet. `position` is the queue position; 0: the
    session is not in the queue, because it is throttled by a rule or paused.

    `expected_seconds` is None if it is not known. If `expected_is_bound`, the session waits that
    long at most, since a cell before it may end at any iteration. `remaining_seconds` last until
    the session has done the iterations that it has declared; None if that is not known. `why` are
    the parts of the `reason`, a sentence that is empty on its way from the broker. `names` has, by
    id, the names of sessions in it that this client may see. `others` counts the other sessions of
    the device that take turns, including one that loads its next batch between two turns; 0: not
    known.
    """

    turn: int
    position: int
    waiting_seconds: float
    reason: str
    holder: str | None = None
    expected_seconds: float | None = None
    why: list[Reason] = []
    names: dict[str, str] = {}
    remaining_seconds: float | None = None
    expected_is_bound: bool = False
    others: int = 0

    def in_words(self) -> Wait:
        """Return the message as people read it; a message that is in words already stays as it
        is."""
        said = sentence(self.why, lambda session: self.names.get(session, GONE))
        return replace(self, reason=self.reason or said)

    def names_holder(self) -> bool:
        """Whether the reason says for which session this one waits."""
        return self.holder in {self.names.get(one.other) for one in self.why}


class Done(Message, frozen=True):
    """A request was carried out; `note` is a sentence or empty."""

    note: str = ""


class AccountRow(msgspec.Struct, frozen=True):
    """Sums of one user, group, notebook, day or hour; those of memory are in byte-seconds."""

    name: str
    device_seconds: float
    waited_seconds: float
    persistent_byte_seconds: float
    lane_byte_seconds: float
    turns: int


class Accounts(Message, frozen=True):
    """The sums by name. `note` says why older figures may be missing, or is empty."""

    rows: list[AccountRow]
    note: str = ""


class Error(Message, frozen=True, omit_defaults=True):
    """A message was refused and changed nothing; `code` is a key of errors.BY_CODE. Without
    `is_answer` the refused message was one of UNANSWERED, so no client waits for this."""

    code: str
    message: str
    is_answer: bool = True


# A session sends these without waiting for an answer.
UNANSWERED = (NewKey, Request, Finish, Report, Busy, PagedOut, Rests, StaysIn)


def sealed(secret: str) -> str:
    """Return the id of a session that only a client with this secret may open."""
    return SEALED + hashlib.sha256(secret.encode()).hexdigest()[:KEY_LENGTH]
