"""Target `frames`: any bytes, cut anywhere, into the decoder of either side of a connection.

The first byte chooses the side that reads, and the second one the length of the pieces.
"""

from __future__ import annotations

import random
import socket
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, get_args

from jupyter_gpushare.errors import LimitExceeded, ProtocolError
from jupyter_gpushare.wire.framing import (
    HEADER_BYTES,
    MAX_FRAME_BYTES,
    Frames,
    ToBroker,
    ToClient,
    decode_from_broker,
    decode_from_client,
    encode_body,
    frame,
)
from jupyter_gpushare.wire.handoff_slot import HandoffSlot
from jupyter_gpushare.wire.messages import KEY_LENGTH

from .drawing import bytes_changed, fields

KEY = "5" * KEY_LENGTH
SMALL = 1 << 10  # a limit that the fuzzer reaches
TURN = 7
SLOT = HandoffSlot()
SLOT.renew(KEY)
SOCKETS = socket.socketpair()
SOCKETS[1].send(b"!")  # so that no call waits for a direct handoff


class Side(NamedTuple):
    decode: Callable[[bytes], Any]
    limit_bytes: int


SIDES = (Side(decode_from_client, MAX_FRAME_BYTES), Side(decode_from_broker, SMALL))


KINDS = (*get_args(ToBroker), *get_args(ToClient))


def mutated(data: bytes, most: int, seed: int) -> bytes:
    """Return additional frames, the same frames cut otherwise, or a mutation by libFuzzer."""
    draw = random.Random(seed)
    if draw.random() < 0.4:
        return bytes_changed(data, most)
    kind = draw.choice(KINDS)
    others = fields(kind, draw, draw.choice((0.2, 0.9))).removeprefix("{").strip()
    said = f'{{"type":"{kind.__name__}"{"" if others == "}" else ","}{others}'.encode()
    if draw.random() < 0.3:
        said = bytes_changed(said, most)
    head = bytes([draw.randrange(256), draw.choice((0, 1, 3, 4, 5, 50, 255))])
    numbers = (draw.choice((TURN, draw.getrandbits(64))) for _ in range(5))
    handoff_token = (KEY + "".join(f" {number}" for number in numbers)).encode()
    new = draw.choice((frame(said), said, handoff_token, frame(said)[:-1]))
    return (head + draw.choice((new, data[2:] + new, new + data[2:])))[:most]


def fuzz(data: bytes) -> None:
    if len(data) < 2:
        return
    side, piece, stream = SIDES[data[0] % len(SIDES)], data[1] + 1, data[2:]
    whole = list(bodies(side, [stream]))
    pieces = [stream[at : at + piece] for at in range(0, len(stream), piece)]
    assert list(bodies(side, pieces)) == whole, "other frames by other cuts"
    for body in whole:
        check_message(side, body)
    check_message(side, stream)
    check_handoff_token(stream)


def bodies(side: Side, pieces: list[bytes]) -> Iterator[bytes]:
    """Yield the bodies of frames until a frame is too long."""
    frames = Frames(side.limit_bytes)
    for piece in pieces:
        try:
            for body in frames.feed(piece):
                assert len(body) <= side.limit_bytes
                yield body
        except LimitExceeded:
            return
        held = len(frames._buffer)
        assert held <= HEADER_BYTES + side.limit_bytes, f"{held} bytes are kept"


def check_message(side: Side, body: bytes) -> None:
    """Check that a message can be decoded and encoded again, or raises ProtocolError."""
    try:
        message = side.decode(body)
    except ProtocolError:
        return
    assert side.decode(encode_body(message)) == message
    repr(message)


def check_handoff_token(handoff_token: bytes) -> None:
    """Check that any bytes, as a direct handoff, give a turn or none."""
    for text in (handoff_token, KEY.encode() + handoff_token):
        SLOT.send(SLOT.name, text)
        given = SLOT.wait(SOCKETS[0].fileno(), TURN)
        assert given is None or given[0] == TURN
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.send(handoff_token[:SMALL] or b"?")
        assert SLOT.look(ours.fileno(), TURN)
        SLOT.hand_off()
