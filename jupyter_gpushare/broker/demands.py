"""Checks whether a session fits: the demands that it reports, and the memory it wants to keep."""

from __future__ import annotations

from .. import _core
from ..errors import DoesNotFit, NoRoom, OverQuota
from ..format import size
from ..wire.demand import Demand
from ..wire.messages import Done, Error, Keep, Notice, Report
from . import validation
from .admin import quotas
from .admin.enforcement import Enforcement
from .peer import Peer
from .sessions import SessionRecord
from .snapshot import views
from .state import BrokerState

ABOVE_QUOTA = (
    "this notebook waits, since {refusal}. It goes on as soon as that is allowed: turn off sharing"
    " in another notebook that you have; or interrupt the cell, `del` what is not needed any more,"
    " and run it again"
)
OUTGROWN = (
    "this notebook {refusal}, so it goes on only while it is alone on the device, and waits until"
    " it is: `del` what is not needed any more, and run `%gpushare tidy`"
)


def too_large(persistent: int, ephemeral: int, capacity: int, is_squeezed: bool) -> DoesNotFit:
    """Return the refusal for the bytes of the core's OverflowError. Need and capacity are written
    exactly if they would look the same when rounded."""
    needs = persistent + ephemeral
    in_words = "{} bytes".format if size(needs) == size(capacity) else size
    squeezed = ", squeezed as far as it can be" if is_squeezed else ""
    return DoesNotFit(
        f"needs {in_words(needs)} (model and data {size(persistent)}, working memory"
        f" {size(ephemeral)}{squeezed}); the device has {in_words(capacity)}"
    )


class Demands:
    """Checks the demands of open sessions. Owns no state: the answers are in the records."""

    def __init__(self, state: BrokerState, enforcement: Enforcement) -> None:
        self._state = state
        self._enforcement = enforcement

    def report(self, peer: Peer, message: Report, now: float) -> None:
        record = self._state.sessions.of(peer)
        validation.check_report(message)
        record.curve = message.curve or record.curve
        record.loop_iterations = message.loop_iterations
        record.squeezing = message.squeezing
        record.finish.report(now, message.iterations)
        why = self._state.rules.excess(record, message.demand)
        refusal: DoesNotFit | None = quotas.refusal(why) if why else None
        demand = self._counted(record, message.demand, refusal)
        try:
            decision = self._state.host.report(
                now, record.id, message.iterations, demand, message.remaining_iterations
            )
        except OverflowError as error:
            refusal = refusal or too_large(*error.args)
            if record.has_fitted:
                self._outgrew(record, message, now)
        else:
            record.remaining_iterations = message.remaining_iterations
            record.has_fitted |= refusal is None and message.iterations > 0
            self._state.grants.enact(decision)
        was_allowed = record.above_quota is None
        self.answer(record, message.demand, refusal)
        if was_allowed != (record.above_quota is None):
            self._enforcement.follow(now)

    def keep(self, peer: Peer, message: Keep, now: float) -> None:
        record = self._state.sessions.of(peer)
        validation.check_demand(message.demand)
        self._state.rules.check_memory(record, message.demand)
        if not self._state.host.may_keep(record.id, message.demand.persistent_bytes):
            free = min(self._state.host.free(device) for device in record.devices)
            raise NoRoom(f"the device has {free} bytes free, which is too little")
        demand, remaining = views.demand(message.demand), record.remaining_iterations
        decision = self._state.host.report(now, record.id, 0, demand, remaining)
        record.allowed = message.demand
        peer.send(Done())
        self._state.grants.enact(decision)

    def answer(self, record: SessionRecord, demand: Demand, refusal: DoesNotFit | None) -> None:
        """Send a refusal once until the session asks for a turn again. A session that has fitted
        before does not fail because it has grown: it gets one Notice until it fits again. If its
        quotas do not allow the demand, it is throttled meanwhile."""
        is_quota = isinstance(refusal, OverQuota)
        record.above_quota = demand if is_quota and record.has_fitted else None
        if refusal is None:
            record.is_refused = record.is_outgrown = False
            record.allowed = demand
        elif record.has_fitted:
            if not record.is_outgrown:
                record.is_outgrown = True
                sentence = ABOVE_QUOTA if is_quota else OUTGROWN
                record.peer.send(Notice(sentence.format(refusal=refusal)))
        elif not record.is_refused:
            record.is_refused = True
            record.peer.send(Error(refusal.code, str(refusal), is_answer=False))

    def _outgrew(self, record: SessionRecord, message: Report, now: float) -> None:
        """Let a running session that needs more than the whole device wait for all of it."""
        demand = views.demand(self._state.placement.whole_device(record.devices, message.demand))
        record.remaining_iterations = remaining = message.remaining_iterations
        self._state.grants.enact(
            self._state.host.report(now, record.id, message.iterations, demand, remaining)
        )

    def _counted(
        self, record: SessionRecord, demand: Demand, refusal: DoesNotFit | None
    ) -> _core.Demand:
        """Return the demand that the scheduler counts. A session above its quota runs alone, so
        that its lane does not grow at the cost of others."""
        if refusal is None:
            return views.demand(demand)
        ephemeral = record.allowed.ephemeral_bytes
        return _core.Demand(demand.persistent_bytes, ephemeral, measured=False)
