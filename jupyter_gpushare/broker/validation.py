"""Checks the ranges of the values in messages; access/permissions.py has the permissions."""

from __future__ import annotations

import hmac
import re
from itertools import pairwise

from .. import _core
from ..errors import InvalidValue, NotPermitted
from ..refusals import nearest
from ..wire.demand import Demand, SqueezeOption
from ..wire.messages import (
    KEY_LENGTH,
    MAX_WEIGHT,
    MIN_WEIGHT,
    SEALED,
    WEIGHTS,
    Account,
    Open,
    Report,
    sealed,
)

ID = re.compile(r"[A-Za-z0-9_-]{1,64}")
KEY = re.compile(rf"[0-9a-f]{{{KEY_LENGTH}}}")
MAX_AMONG = 64  # more GPUs than a host has
MAX_PRIORITY = 100
MAX_COUNT = 1 << 62
MAX_LANES = 1 << 20
MAX_OPTIONS = 16
MAX_SLOWDOWN = 1000.0
MAX_ITERATIONS = 1 << 40  # in one report, so that sums stay within MAX_COUNT


def check_open(message: Open) -> None:
    """Raise InvalidValue for an impossible id, demand or count, such as NaN, and NotPermitted for
    an id that belongs to another session."""
    if not ID.fullmatch(message.id):
        raise InvalidValue("a session's id is 1 to 64 letters, digits, - or _")
    if message.id.startswith(SEALED) and not hmac.compare_digest(
        message.id, sealed(message.secret)
    ):
        raise NotPermitted(f"the session {message.id} opens with the secret of its own alone")
    if len(message.among) > MAX_AMONG:
        raise InvalidValue(f"a session may be on one of at most {MAX_AMONG} devices")
    if not 1 <= message.devices <= MAX_AMONG:
        raise InvalidValue(f"a session has 1 to {MAX_AMONG} devices at once")
    check_demand(message.demand)
    check_bearable(message.bears_slowdown)
    if message.holding and message.waiting:
        raise InvalidValue("a session holds its turn or waits for it, not both")
    if message.handoff_slot:
        if not ID.fullmatch(message.handoff_slot):
            raise InvalidValue(
                "a handoff slot has a name like an id: 1 to 64 letters, digits, - or _"
            )
        check_key(message.key)
    counts = (
        message.turn,
        message.iterations,
        message.paged_out_bytes,
        message.squeezed_bytes,
        message.remaining_iterations or 0,
        message.loop_iterations or 0,
        message.device_seconds,
        message.waited_seconds,
    )
    if not all(0 <= count < MAX_COUNT for count in counts):
        raise InvalidValue("a session's counts and seconds are from 0 upwards")


def check_key(key: str) -> None:
    """Raise InvalidValue for a key of another form."""
    if not KEY.fullmatch(key):
        raise InvalidValue(f"the key of a handoff slot has {KEY_LENGTH} digits, 0 to 9 and a to f")


def check_report(message: Report) -> None:
    """Raise InvalidValue for counts or bytes out of range, such as below 0."""
    check_demand(message.demand)
    loop = (message.remaining_iterations or 0, message.loop_iterations or 0)
    counts = (message.iterations, *loop)
    if not all(0 <= count < MAX_ITERATIONS for count in counts):
        raise InvalidValue("iterations are counted from 0 upwards")
    for part in (message.curve, message.squeezing):
        if part is not None and (flaw := part.flaw()):
            raise InvalidValue(flaw)


def check_demand(demand: Demand) -> None:
    if not all(0 <= size < MAX_COUNT for size in (demand.persistent_bytes, demand.ephemeral_bytes)):
        raise InvalidValue("a demand is in bytes, from 0 upwards")
    if demand.options:
        check_options(demand)


def check_options(demand: Demand) -> None:
    """Raise InvalidValue unless the options go from the unsqueezed demand down to the floor."""
    options = demand.options
    if not demand.measured:
        raise InvalidValue("a demand has options only once it is measured")
    if len(options) > MAX_OPTIONS:
        raise InvalidValue(f"a demand has at most {MAX_OPTIONS} options, not {len(options)}")
    if options[0] != SqueezeOption(demand.ephemeral_bytes, 1.0):
        raise InvalidValue(
            f"the first option is the unsqueezed demand, {demand.ephemeral_bytes} bytes at a"
            f" slowdown of 1, not {options[0].bytes} bytes at {options[0].slowdown:g}"
        )
    if not all(option.bytes >= 0 and option.slowdown <= MAX_SLOWDOWN for option in options):
        raise InvalidValue(
            f"an option has 0 bytes or more, and a slowdown of at most {MAX_SLOWDOWN:g}"
        )
    for larger, smaller in pairwise(options):
        if not (smaller.bytes < larger.bytes and smaller.slowdown >= larger.slowdown):
            raise InvalidValue(
                "each option has fewer bytes than the one before it, and is not faster"
            )


def check_bearable(slowdown: float) -> None:
    if not 1 <= slowdown <= MAX_SLOWDOWN:
        raise InvalidValue(
            f"a session bears a slowdown of 1, which is none, to {MAX_SLOWDOWN:g}, not {slowdown:g}"
        )


def check_bytes(count: int) -> None:
    if not 0 <= count < MAX_COUNT:
        raise InvalidValue("bytes are counted from 0 upwards")


def check_turn(number: int) -> None:
    if not 0 <= number < MAX_COUNT:
        raise InvalidValue("turns are counted from 0 upwards")


def check_policy(name: str) -> None:
    try:
        _core.policy_named(name)
    except ValueError:
        advice = nearest(name, (policy for policy, _ in _core.policies()))
        raise InvalidValue(f"there is no policy {name!r}; {advice}") from None


def check_running_lanes(lanes: int | None) -> None:
    if lanes is not None and not 0 <= lanes <= MAX_LANES:
        raise InvalidValue(
            f"running lanes are 0, as the policy says, or at most {MAX_LANES}, not {lanes}"
        )


def check_span(message: Account) -> None:
    """Raise InvalidValue for impossible times, such as NaN."""
    if not 0 <= message.start <= message.end < MAX_COUNT:
        raise InvalidValue("accounts are asked for from one Unix time until a later one")


def check_values(weight: float | None, priority: int | None) -> None:
    if weight is not None and not MIN_WEIGHT <= weight <= MAX_WEIGHT:
        raise InvalidValue(f"a weight is {WEIGHTS}, not {weight:g}")
    if priority is not None and not -MAX_PRIORITY <= priority <= MAX_PRIORITY:
        raise InvalidValue(f"a priority is from -{MAX_PRIORITY} to {MAX_PRIORITY}, not {priority}")
