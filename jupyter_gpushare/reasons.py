"""The reasons for a session's state: codes of the core, and the one table of their English
sentences.

The core and the broker pass reasons as values. The code that shows a reason makes its sentence,
with the names that the reader may see. `labextension/src/state/reason_texts.ts` is generated from
this table and translated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

import msgspec

from .format import clock, duration, size

GONE = "a notebook that has ended"

# These are the parts of a sentence. They are joined by "; ", except a part that begins with a
# comma, and one that follows a colon or a space. Bytes, names and times are filled in.
TEXTS = {
    "idle": "nothing to run",
    "needs_no_turn": "its cell runs and needs no turn now",
    "comes_back": "its memory comes back from disk",
    "did_not_fit": "nothing to run; the last cell did not fit",
    "paused": "paused",
    "throttled": "throttled:",  # what comes after it says why
    "throttled_for_class": "throttled: a class of {who} has the device until it ends",
    "throttled_for_class_until": "throttled: a class of {who} has the device until {until}",
    "throttled_for_reservation": "throttled: {who} has reserved the device until {until}",
    "throttled_too_many_waiting": (
        "throttled: {who} may have {count} waiting at a time by the rule {rule}"
    ),
    "throttled_used_up": (
        "throttled until {until}: {who} has had {seconds} of the device today, the most by the rule"
        " {rule}"
    ),
    "above_persistent": (
        "{who} would have {bytes} of persistent memory, where the rule {rule} allows {whole}"
    ),
    "above_lane": (
        "{who} would have {bytes} inside one iteration, where the rule {rule} allows {whole}"
    ),
    "above_class_part": (
        "{who} would have {bytes} of the device; each of the {count} of the class of {rule} has"
        " {whole} while it lasts"
    ),
    "ask_contact": "ask {who}",
    "ask_operator": "ask the administrator of this machine",
    "runs": "runs",
    "runs_beside": "computes beside {other}",
    "runs_until_measured": "runs alone until its memory is measured",
    "runs_with_whole_device": "runs, and has the whole device",
    "runs_with_whole_devices": "runs, and has {count} whole devices: {device}",
    "asked_to_yield": "was asked to yield, and ends its turn with its iteration",
    "yields_to_others": "lets others run after its iteration",
    "overdue": "overdue: was asked to yield and has not",
    "asked_to_page_out": "is asked to page out",
    "asked_to_page_out_for": "is asked to page out for {other}",
    "asked_to_page_out_for_programs": "is asked to page out for unmanaged memory",
    "paged_out": "paged out: {bytes} are on disk",
    "paged_out_for": "paged out for {other}: {bytes} are on disk",
    "paged_out_for_programs": "paged out for unmanaged memory: {bytes} are on disk",
    "recovering": (
        "waits until the notebooks that had turns before the broker was restarted have come back"
    ),
    "squeezed": "squeezed to {bytes} of {whole}, about {percent} % slower",
    "squeezed_for": ", so that {other} has room",
    "needs_whole_device": "needs the whole device",
    "waits": "waits",
    "waits_for": "waits for {other}",
    "other_is_overdue": ", which is overdue",
    "other_has_whole_device": ", which has the whole device",
    "other_runs_until_measured": ", which runs alone until its memory is measured",
    "remaining_unknown": "remaining work unknown: ordered by service so far",
    "waits_for_memory": "waits for memory:",
    "waits_to_come_back": "waits for room to come back:",
    "needs_bytes": "needs {bytes}, {free} are free",
    "used_by_programs": ", {bytes} are unmanaged memory",
    "is_next": ", and is next",
    "fewer_at_once": "with it, fewer could run at once",
    "has_no_lane": "{other} runs and has no lane",
    "comes_first": "{other} has waited longer and comes first",
    "not_paged_out": "{other} could not be paged out",
    "not_paged_out_because": "{other} could not be paged out: {text}",
    "not_paged_out_unanswered": "{other} could not be paged out: it has not answered",
    "waits_for_devices": "waits until all of its {count} devices are free:",
    "other_gangs_first": "other gangs come first",
    "device_recovering": (
        "{device} is kept for the notebooks that had it before the broker was restarted"
    ),
    "throttled_on_device": "on {device} it is ",
    "device_too_full": "{device} has too little room",
    "device_held_by": "{device} is held by {other}",
    "lanes_measured_alone": "{count} lanes at once: each notebook is measured alone first",
    "lanes_tried": "{count} lanes at once: being measured",
    "lanes_unseen": "{count} lanes at once: tried; no measurable effect",
    "lanes_gain": "{count} lanes at once: gain {percent} %",
    "lanes_lost": "{count} lanes at once: tried, lost {percent} %",
    "lanes_gain_little": "{count} lanes at once: tried, gained only {percent} %",
}


class IsReason(Protocol):
    """The fields that fill a sentence; the core's Reason has them too."""

    @property
    def code(self) -> str: ...
    @property
    def other(self) -> str: ...
    @property
    def bytes(self) -> int: ...
    @property
    def free(self) -> int: ...
    @property
    def count(self) -> int: ...
    @property
    def percent(self) -> int: ...
    @property
    def device(self) -> str: ...
    @property
    def text(self) -> str: ...
    @property
    def whole(self) -> int: ...
    @property
    def who(self) -> str: ...
    @property
    def rule(self) -> str: ...
    @property
    def seconds(self) -> float: ...
    @property
    def until(self) -> float: ...


class Reason(msgspec.Struct, frozen=True, omit_defaults=True):
    """One part of the reason for a session's state; fields that its code does not need keep their
    default.

    `other` is the id of another session. The session needs `bytes` bytes, and `free` bytes are
    free; or it is squeezed to `bytes` of the `whole` bytes that an iteration would take. `text` is
    a cause that a session gave; only viewers with the permission get it. A `rule` of the rulebook
    concerns the user or group `who`, which has had `seconds` of the device, and holds `until` a
    Unix time. `who` is also the contact that people may ask.
    """

    code: str
    other: str = ""
    bytes: int = 0
    free: int = 0
    count: int = 0
    percent: int = 0
    device: str = ""
    text: str = ""
    whole: int = 0
    who: str = ""
    rule: str = ""
    seconds: float = 0.0
    until: float = 0.0


FIELDS = Reason.__struct_fields__


def to_wire(reason: IsReason) -> Reason:
    """Return a reason of the core as the message that is sent."""
    given = {field: value for field in FIELDS if (value := getattr(reason, field))}
    return Reason(**given)


def without_cause(reason: Reason) -> Reason:
    """Return the reason as all viewers may read it: a cause may name directories of its user."""
    if reason.code != "not_paged_out_because":
        return reason
    return Reason("not_paged_out", other=reason.other)


def with_cause(reason: Reason, causes: Mapping[str, str]) -> Reason:
    """Return the reason with the cause that its other session gave, if that is among `causes`."""
    if reason.code != "not_paged_out" or reason.other not in causes:
        return reason
    return Reason("not_paged_out_because", other=reason.other, text=causes[reason.other])


def causes(why: Iterable[IsReason]) -> dict[str, str]:
    """Return the causes that sessions gave, by the ids of these sessions."""
    return {one.other: one.text for one in why if one.code == "not_paged_out_because"}


def sentence(why: Iterable[IsReason], name: Callable[[str], str]) -> str:
    """Return the reasons as one English sentence, empty if there are none. `name` returns the name
    of a session by its id."""
    said = ""
    for reason in why:
        said = _joined(said, _part(reason, name))
    return said


def _joined(said: str, part: str) -> str:
    if not said or part.startswith(",") or said.endswith(" "):
        return said + part
    return f"{said} {part}" if said.endswith(":") else f"{said}; {part}"


def _part(reason: IsReason, name: Callable[[str], str]) -> str:
    text = TEXTS.get(reason.code)
    if text is None:  # a code of a newer broker
        return reason.code.replace("_", " ")
    return text.format(
        other=name(reason.other) if reason.other else "",
        bytes=size(reason.bytes),
        free=size(reason.free),
        count=reason.count,
        percent=reason.percent,
        device=reason.device,
        text=reason.text,
        whole=size(reason.whole),
        who=reason.who,
        rule=reason.rule,
        seconds=duration(reason.seconds),
        until=clock(reason.until),
    )
