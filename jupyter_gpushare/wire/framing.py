"""Frames: messages as bytes, and bytes as messages.

A frame is a 4-byte big-endian length, followed by that number of bytes of JSON: one object whose
``type`` names the class of the message.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias, TypeVar

import msgspec

from .. import refusals
from ..errors import UNREADABLE, InvalidValue, LimitExceeded, ProtocolError
from .jobs import FromCluster, ToCluster
from .messages import (
    PROTOCOL,
    Account,
    Accounts,
    AddTicket,
    Busy,
    Cancel,
    Change,
    ClassMode,
    Close,
    Done,
    Error,
    Evict,
    Finish,
    GiveBack,
    Grant,
    Hello,
    Keep,
    Ledger,
    Look,
    Message,
    NewKey,
    Notice,
    Open,
    Opened,
    PagedOut,
    PageIn,
    PageOut,
    Preempt,
    RenewKey,
    Report,
    Request,
    Rest,
    Rests,
    Room,
    SetPolicy,
    Shutdown,
    StaysIn,
    Trim,
    Wait,
    Watch,
    Welcome,
    Withdraw,
    Yield,
)
from .snapshot import Snapshot

HEADER_BYTES = 4
MAX_FRAME_BYTES = 1 << 16  # a client's frame; snapshots of a broker may be larger
MAX_SNAPSHOT_BYTES = 64 << 20
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
    | Preempt
    | Evict
    | Cancel
    | SetPolicy
    | ClassMode
    | Look
    | AddTicket
    | Watch
    | Account
    | Shutdown
)
Kind = TypeVar("Kind")
ToClient: TypeAlias = (
    Welcome
    | Opened
    | Grant
    | Ledger
    | Trim
    | Yield
    | RenewKey
    | Withdraw
    | PageOut
    | PageIn
    | GiveBack
    | Rest
    | Room
    | Notice
    | Wait
    | Accounts
    | Done
    | Error
    | Snapshot
)
_encoder = msgspec.json.Encoder()
_to_cluster: msgspec.json.Decoder[ToCluster] = msgspec.json.Decoder(ToCluster)
_from_cluster: msgspec.json.Decoder[FromCluster] = msgspec.json.Decoder(FromCluster)
_from_client: msgspec.json.Decoder[ToBroker] = msgspec.json.Decoder(ToBroker)
_from_broker: msgspec.json.Decoder[ToClient] = msgspec.json.Decoder(ToClient)


def encode(message: Message) -> bytes:
    """Return one frame: length, then JSON. Raises as `encode_body` does."""
    return frame(encode_body(message))


def frame(body: bytes) -> bytes:
    """Return the frame of a message that is encoded already."""
    return len(body).to_bytes(HEADER_BYTES, "big") + body


def encoded(part: object) -> bytes:
    """Part of a message as JSON, for a message that is sent several times with other parts."""
    return _encoder.encode(part)


def encode_body(message: Message) -> bytes:
    """Return the JSON alone, for channels where each message is a datagram. Raises InvalidValue for
    text that is not Unicode, such as the name of a file in another encoding."""
    try:
        return _encoder.encode(message)
    except UnicodeEncodeError as error:
        raise InvalidValue(
            f"{error.object[: refusals.SHOWN_LENGTH]!r} has a character that UTF-8 lacks;"
            " choose another name"
        ) from None


def decode_from_client(body: bytes | bytearray | memoryview) -> ToBroker:
    """Decode a message. Raises ProtocolError with the field that is wrong."""
    return _decode(_from_client, body)


def decode_from_broker(body: bytes | bytearray | memoryview) -> ToClient:
    """Decode a message. Raises ProtocolError with the field that is wrong."""
    return _decode(_from_broker, body)


def decode_to_cluster(body: bytes) -> ToCluster:
    """Decode a message. Raises ProtocolError with the field that is wrong."""
    return _decode(_to_cluster, body)


def decode_from_cluster(body: bytes) -> FromCluster:
    """Decode a message. Raises ProtocolError with the field that is wrong."""
    return _decode(_from_cluster, body)


def _decode(decoder: msgspec.json.Decoder[Kind], body: bytes | bytearray | memoryview) -> Kind:
    try:
        return decoder.decode(body)
    except UNREADABLE:
        wrong = refusals.in_json(body, decoder.type, "it")
        raise ProtocolError(f"not a message of protocol {PROTOCOL}: {wrong}") from None


class Frames:
    """Cuts a stream of bytes into the bodies of its frames; keeps an incomplete frame."""

    def __init__(self, limit_bytes: int = MAX_FRAME_BYTES) -> None:
        self._limit = limit_bytes
        self._buffer = bytearray()

    def feed(self, data: bytes | memoryview) -> Iterator[bytes]:
        """Return the bodies that `data` completes, in order. After them it raises LimitExceeded,
        if a frame is too long: the bodies before it do not depend on how the stream was cut."""
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
