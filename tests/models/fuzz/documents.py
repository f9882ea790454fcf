"""Targets `rulebook`, `record` and `answers`: files and answers from outside."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

from jupyter_gpushare import _core
from jupyter_gpushare.broker.access.identity import Identity
from jupyter_gpushare.broker.access.jupyterhub import Hub, _Model
from jupyter_gpushare.broker.admin import reservations, rulebook_file
from jupyter_gpushare.errors import BrokerUnavailable, GpuShareError, InvalidValue
from jupyter_gpushare.settings import Settings
from jupyter_gpushare.simulator import recorder as record
from jupyter_gpushare.simulator import workload
from jupyter_gpushare.tools.usage_report import question
from jupyter_gpushare.wire import credentials
from jupyter_gpushare.wire.fd_channel import Channel, Label
from jupyter_gpushare.wire.web import Response

from .drawing import lines_mutator_of, mutator_of

UNIX = 1_793_000_000.0
HOUR = 3600.0
MOST_EVENTS = 40
KEYS = ("persistent", "lane", "device_seconds_per_day", "sessions", "waiting")


# --- rulebook -------------------------------------------------------------------------------------


def fuzz_rulebook(data: bytes) -> None:
    """Read rules and make the usual queries on them, or get one sentence."""
    try:
        rules = rulebook_file.read(data.decode(errors="replace"))
    except InvalidValue as error:
        check_sentence(error)
        return
    for unix in (0.0, UNIX, UNIX + 12 * HOUR):
        reservations.shown(rules, unix)
        reservations.owner(rules, "host", unix)
        weights = reservations.group_weights(rules, "host", rules.groups, unix)
        assert all(0 < weight < float("inf") for weight in weights.values())
    for user in ("ada", "bob", ""):
        group = rules.group_of(user, ["students"])
        rules.domain_of(user, group)
        for key in KEYS:
            assert all(limit.amount >= 0 for limit in rules.limits(key, user, group))


def check_sentence(error: GpuShareError) -> None:
    """Check that a sentence for people is not empty."""
    assert len(str(error)) > 10


# --- record ---------------------------------------------------------------------------------------


@cache
def file() -> Path:
    """Return a file in this process's memory, which is gone when libFuzzer ends the process."""
    return Path(f"/proc/self/fd/{os.memfd_create('record')}")


mutated_record = lines_mutator_of([record.RecordedEvent])


def fuzz_record(data: bytes) -> None:
    """Replay a record, or get one sentence that says why that is impossible."""
    file().write_bytes(data)
    try:
        events = record.read(file())
        subject = workload.from_record(events[:MOST_EVENTS])
        simulate(subject)
    except InvalidValue as error:
        check_sentence(error)


def simulate(subject: workload.Workload) -> None:
    """Simulate an hour of the record; the scheduler checks itself after each event."""
    try:
        run = _core.Simulation(
            subject.jobs,
            subject.capacity,
            conduct=_core.Conduct(checks=True),
            devices=subject.devices,
        )
    except ValueError as error:
        raise InvalidValue(str(error)) from None
    run.run(until=min(job.arrival for job in subject.jobs) + HOUR)
    assert all(outcome.device_seconds >= 0 for outcome in run.outcomes)


# --- answers --------------------------------------------------------------------------------------


mutated_answer = mutator_of([credentials.Ticket, credentials._Refusal, _Model, Label], kept=1)


def fuzz_answers(data: bytes) -> None:
    """Read answers of a hub and of a Jupyter server, and labels of chunks. Each is used, or refused
    with the right type of error."""
    status, body = (200, 403, 500)[data[0] % 3] if data else 200, data[1:]
    check_ticket(body)
    check_user(Response(status, body))
    check_chunks(body)
    check_question(body.decode(errors="replace"))


def check_ticket(answer: bytes) -> None:
    try:
        ticket = credentials._ticket(answer)
    except BrokerUnavailable as error:
        check_sentence(error)
    else:
        assert isinstance(ticket, str)


@cache
def hub() -> Hub:
    return Hub(Settings(hub_api_url="http://127.0.0.1/hub/api", hub_scope="custom:gpushare:read"))


def check_user(answer: Response) -> None:
    try:
        verdict = hub().read(answer)
    except OSError:  # no hub answers so
        return
    assert isinstance(verdict, Identity | str)


def check_chunks(label: bytes) -> None:
    """Check that no label of chunks leaves a descriptor open."""
    before = len(os.listdir("/proc/self/fd"))
    ours, theirs = Channel.pair()
    theirs._send_some(label[:300] or b"{}", [0, 1])
    for batch in ours.received():
        assert len(batch.descriptors) == 2
        for descriptor in batch.descriptors:
            os.close(descriptor)
    ours.close()
    theirs.close()
    assert len(os.listdir("/proc/self/fd")) == before


def check_question(text: str) -> None:
    first, _, last = text.partition("\n")
    try:
        asked = question(first, last)
    except InvalidValue as error:
        check_sentence(error)
    else:
        assert 0 <= asked.start < asked.end
