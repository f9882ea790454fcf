"""This process's session: it requests turns, gives them back, and survives a lost broker.

The fast path is `enter` and `boundary` while this process holds its turn and no other session
waits: it sends no message and checks the socket once per boundary without blocking. All else is
under the link's lock. `entering` is taken before that lock to begin an iteration, and to give the
turn back: so no iteration begins while the lane is emptied for the next session. A thread that
waits for the turn keeps `entering`, and not the link's lock: other threads begin no iteration
meanwhile, but cells begin and end (`unless_waiting`).

A session has these parts. `Link` is its connection to the broker; `Registration` registers it
there, and `Dispatch` passes each message of the broker to the part that it concerns. `Turn` is the
turn that it waits for or holds, `Gaps` tells when to give it back unasked, and `LaneUse` is its use
of the lane. `Residency` knows where its memory is between cells, `Placement` knows its device, and
`Usage` counts what it has used. `Keeper` is the thread that looks after all of these while user
code runs.
"""

from __future__ import annotations

import os
import secrets
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

from ..._core import IdleTurn
from ...errors import (
    BrokerUnavailable,
    Cancelled,
    ConnectionLost,
    DoesNotFit,
    OverQuota,
    ProtocolError,
)
from ...settings import Settings, load, socket_path
from ...wire.client import ANSWER_SECONDS
from ...wire.handoff_slot import HandoffSlot
from ...wire.messages import Change, Wait, sealed
from .. import end_of_wait, options
from ..process_groups import Membership, host
from .dispatch import Dispatch
from .gaps import Gaps
from .keeper import Keeper
from .lane_use import LaneUse
from .link import LOOK_SECONDS, Link
from .memory import Memory, PageQuotas, WholeProcess
from .placement import Placement
from .registration import Registration
from .residency import Residency
from .turn import Turn
from .usage import Usage

JOINED = (
    "This process belongs to a process group of torch.distributed whose first member on this device"
    " takes the turns: it computes in that one's turns, takes none of its own, and all of its"
    " memory counts, until the group is destroyed"
)


class Session:
    """A notebook or script at the broker. Times are seconds, sizes bytes.

    `name` is what others see, at most 200 characters. `device` is `cuda:N` as PyTorch numbers it
    here, `host` or `auto`; with more `devices` than one it has that many whole GPUs at once in its
    turn, all or none. A session of `weight` 2 gets twice the time of one of weight 1; one of a
    higher `priority` goes first, and only an admin may set one above 0. `remaining_iterations`
    orders sessions under `srtf`. `squeeze` is `auto`, `off`, or the size to which iterations are
    squeezed, such as `4 GiB`. Raises InvalidValue for a value out of its range.
    """

    def __init__(
        self,
        settings: Settings | None = None,
        *,
        name: str,
        device: str | None = None,
        devices: int = 1,
        weight: float = 1.0,
        priority: int = 0,
        remaining_iterations: int | None = None,
        squeeze: str | int = "auto",
    ) -> None:
        options.check(
            {
                "name": name,
                "device": device,
                "devices": devices,
                "weight": weight,
                "priority": priority,
                "remaining_iterations": remaining_iterations,
                "squeeze": squeeze,
            }
        )
        self._settings = settings or load()
        secret = secrets.token_hex(16)  # proves that a connection belongs to the session
        self.id = sealed(secret)
        self.name = name
        self.weight = weight
        self.priority = priority
        self.paused = False
        self.squeeze = options.squeezing(squeeze)
        self.memory: Memory = WholeProcess()
        self.on_wait: Callable[[Wait], None] = lambda wait: None
        # Called at the end of each wait, with its seconds and those of all turns so far.
        self.on_waited: Callable[[float, float], None] = lambda waited, used: None
        self.on_trouble: Callable[[str], None] = lambda sentence: None
        # This lock is taken before the link's. While a thread has it, no other thread begins an
        # iteration.
        self.entering: Any = threading.RLock()
        self.inside = False  # an iteration is open
        # It is called with `entering`, and closes the open iteration if no thread computes in it.
        self.close_if_idle: Callable[[], None] = lambda: None
        self._make_parts(device or self._settings.device, devices, remaining_iterations, secret)

    def _make_parts(self, device: str, devices: int, remaining: int | None, secret: str) -> None:
        # The reference is weak, so that a closed session frees its memory of the lane at once.
        owner = weakref.proxy(self)
        self._group = Membership(self.id)
        self._placement = Placement(device, devices)
        self._usage = Usage(owner, self._group, self._settings.report_seconds, remaining)
        self._link = link = Link(self._settings, self.name)
        self._idle_turn = IdleTurn()
        self._lane_use = LaneUse(owner, link, self._placement)
        self._gaps = Gaps()
        self._turn = Turn(
            link,
            self._usage,
            self._placement,
            self._lane_use,
            self._idle_turn,
            HandoffSlot(),
            self._gaps,
        )
        self._residency = Residency(
            owner,
            link,
            self._usage,
            self._turn,
            self._placement,
            self._group,
            self._settings.page_directory,
        )
        self._lane_use.page_out = self._residency.page_out_in_turn
        self._turn.on_end = self._residency.turn_ended
        self._dispatch = Dispatch(
            owner, link, self._usage, self._lane_use, self._turn, self._residency
        )
        self._registration = Registration(
            owner, self._usage, self._turn, self._residency, self._placement, secret
        )
        link.serve(
            registration=self._registration,
            take=self._dispatch.take,
            watch=self._idle_turn.watch,
            stop_holding=self._turn.stop_holding,
        )
        self._keeper = Keeper(owner, link, self._lane_use, self._turn, self._residency)

    # --- what it has -------------------------------------------------------------------------

    @property
    def device(self) -> str:
        """The name of the device in this process."""
        return self._placement.device

    @property
    def devices(self) -> int:
        return self._placement.devices

    @property
    def host_device(self) -> str:
        """The broker's name of the device; of several at once, that of the first."""
        return self._placement.host_device

    @property
    def host_devices(self) -> list[str]:
        """The broker's names of all devices, if the session has several at once; else empty."""
        return self._placement.host_devices

    @property
    def capacity(self) -> int:
        """The bytes of the device, once the session is open."""
        return self._placement.capacity

    @property
    def room(self) -> int:
        """The bytes of the device that other sessions leave this one, as the broker has said."""
        return self._placement.room

    @property
    def iterations(self) -> int:
        return self._usage.iterations

    @property
    def device_seconds(self) -> float:
        return self._usage.device_seconds

    @property
    def waited_seconds(self) -> float:
        return self._usage.waited_seconds

    @property
    def holding(self) -> bool:
        return self._turn.holding

    @property
    def paged_out_bytes(self) -> int:
        return self._residency.paged_out_bytes

    @property
    def is_out_of_reach(self) -> bool:
        """Whether memory of this process is paged out and no code may use it: a GPU cannot read it
        from the file."""
        return self._residency.is_out_of_reach

    @property
    def page_directory(self) -> str:
        """The directory of files to which memory is written; it exists."""
        return self._residency.directory

    @property
    def page_quotas(self) -> PageQuotas:
        """The quotas of files to which squeezed iterations write."""
        return PageQuotas(self._settings.page_file_bytes, self._settings.all_page_files_bytes)

    # --- life --------------------------------------------------------------------------------

    def open(self) -> None:
        """Find or start the broker and register. Raises GpuShareError with the reason."""
        with self._link.lock:
            self._link.connect()
        _living.add(self)
        try:
            self._keeper.start()
        except RuntimeError as error:  # a limit on threads
            self.close()
            raise BrokerUnavailable(f"sharing needs one thread more: {error}") from None

    def close(self) -> None:
        """Leave the broker; the place is free at once. A thread that waits continues without a
        turn.

        A process that ends need not call this: its socket ends with it.
        """
        self._link.is_closed = True
        is_ours = self in _living  # a forked child has neither the place nor the lane
        _living.discard(self)
        try:
            if is_ours and self._link.lock.acquire(blocking=False):
                try:
                    self._say_goodbye()
                finally:
                    self._link.lock.release()
        finally:  # an interrupt comes once
            self._link.close()
            self._turn.close()
            self._keeper.end()

    def may_close(self) -> bool:
        """Page in memory that is out of reach; return whether there is none any more. Without a
        session nothing else would bring it back, and code could use it although it is not there."""
        if not self.is_out_of_reach:  # the keeper may have the lock while it connects
            return True
        with self._link.lock:
            return self._residency.page_in()

    def _say_goodbye(self) -> None:
        """Say goodbye, unless something of this process stays in the lane: then the broker finds
        the connection lost and this process alive, and leaves the lane's memory to it."""
        if self._turn.leave_lane():
            self.memory.release_lane()
            self._link.say_goodbye()

    def change(
        self,
        *,
        weight: float | None = None,
        priority: int | None = None,
        paused: bool | None = None,
    ) -> None:
        """Change this session live; None leaves a value. Raises GpuShareError when refused."""
        live = {"weight": weight, "priority": priority}
        options.check({name: value for name, value in live.items() if value is not None})
        with self._link.lock:
            if not self._link.restored():
                raise BrokerUnavailable("the broker is away, so nothing was changed: try again")
            if self._link.rests:
                self._link.end_rest()
            self._link.ask(Change(None, weight, priority, paused), ANSWER_SECONDS)
            self.weight = self.weight if weight is None else weight
            self.priority = self.priority if priority is None else priority
            self.paused = self.paused if paused is None else paused

    def squeeze_as(self, wanted: str | int) -> None:
        """Squeeze iterations from the next one on: `auto`, `off`, or the size that they may take.
        Raises InvalidValue, also for a size below the floor; then nothing changes."""
        meant = options.squeezing(wanted)
        options.check_floor(meant, self.memory.squeeze_floor)
        self.squeeze_again(meant)

    def squeeze_again(self, wanted: options.Wanted) -> None:
        """Squeeze iterations as before, even if the size is known to be below the floor now."""
        self.squeeze = wanted
        self.memory.want_squeeze(wanted)

    def declare(self, remaining_iterations: int | None) -> None:
        """Tell the broker how many iterations are still to come; None if that is not known."""
        options.check({"remaining_iterations": remaining_iterations})
        self._usage.declare(remaining_iterations)
        with self._link.lock:
            self._link.say(self._usage.report(time.monotonic(), self._turn.holding))

    # --- turns -------------------------------------------------------------------------------

    def enter(self) -> None:
        """An iteration begins: return when this process holds the turn.

        Interruptible; an interrupt withdraws the request. Raises Cancelled where another user ends
        the wait, and DoesNotFit where the measured demand is larger than the device.
        """
        __tracebackhide__ = True
        with self.entering:
            self._gaps.end(time.monotonic())
            if not self._idle_turn.enter():
                self._turn.note_gone()
            if not self._link.is_closed:
                if self._group.has_joined(self._place):
                    self._join()
                if self._group.joins and not self._turn.holding:
                    self._compute_outside()
                elif not self._turn.holding:
                    self._obtain()
            self.inside = True

    def _obtain(self) -> None:
        __tracebackhide__ = True
        asked_at = time.monotonic()
        try:
            self._turn.obtain(self._residency.ask_for_place)
        except (KeyboardInterrupt, Cancelled) as error:
            waited, has_computed = time.monotonic() - asked_at, self._turn.has_begun
            raise end_of_wait.ended(error, waited, has_computed) from None
        except OverQuota:
            raise
        except DoesNotFit as error:
            raise end_of_wait.does_not_fit(error, self._may_help) from None
        finally:
            if not self._residency.busy:
                self._keeper.wake()  # it takes the messages again

    @property
    def _may_help(self) -> bool:
        """Whether squeezing may make the demand fit: it is not on yet, and what lives across
        iterations is less than the device."""
        is_possible = self.squeeze != "auto" and not self.memory.why_not_squeezed
        return is_possible and self.memory.demand().persistent_bytes < self.capacity

    def _place(self) -> str:
        """Return a name of the device of this session that is unique over all hosts."""
        return f"{host()}{socket_path(self._settings).absolute()}:{self._placement.name}"

    def _join(self) -> None:
        """Give the turn back, if there is one: another session may need it. If there is no room
        outside of the lane for its survivors, this session keeps its turn until there is, as
        usual."""
        with self._link.lock:
            self._turn.end()
        self.on_trouble(JOINED)

    def _compute_outside(self) -> None:
        """Begin an iteration without a turn, and so without the lane, which another session uses.
        It waits only for the page-in of its own memory."""
        with self._link.lock:
            if self._residency.is_away:
                self.cell_begins()  # as for a thread that computes between cells
            self.memory.use_lane(None, 0, self.capacity)
            self.inside = True  # before any request to page out

    def boundary(self) -> None:
        """An iteration ended: count it, and give the turn away if the broker asked for it."""
        turn, link, usage = self._turn, self._link, self._usage
        usage.iterations += 1
        if not turn.holding or link.is_restoring:
            self.abandon()
            if self._group.joins and not link.is_restoring:
                self._report_outside(time.monotonic())
            return  # training continues without a broker
        if turn.asked is not None:  # the last boundary could not obey the request
            self._lane_use.await_others()
        with self.entering, link.lock:  # `with`: an interrupt may come between `acquire` and `try`
            try:
                if not (was_asked := turn.asked is not None):
                    turn.take_news()
                if turn.holding and (turn.asked is not None or self._is_before_gap()):
                    turn.give_back()
                elif self._lane_use.is_shared and turn.holding:
                    self._lane_use.may_leave()  # survivors are in the other session's way
                if was_asked:  # the next session has waited for the turn, so it comes first
                    turn.take_news()
                if usage.owes_report(now := time.monotonic(), turn.holding):
                    link.say(usage.report(now, turn.holding))
            except (ConnectionLost, ProtocolError):
                link.drop()  # the keeper restores it
            finally:
                self._gaps.begin(time.monotonic())
                self.inside = False
                self._idle_turn.leave()

    def _is_before_gap(self) -> bool:
        """Whether another session could use the time until the next iteration. In a process group
        the answer is no, since other members may compute then."""
        gaps = self._gaps
        return (
            gaps.are_wanted(time.monotonic())  # first, since it is cheap and nearly always False
            and not self._group.joins
            and self.devices == 1
            and gaps.are_long(self.memory.seconds_to_move)
        )

    def _report_outside(self, now: float) -> None:
        if not self._usage.owes_report(now, self._turn.holding):
            return
        with self.entering, self._link.lock:
            try:
                self._turn.look()
                self._link.say(self._usage.report(now, self._turn.holding))
            except (ConnectionLost, ProtocolError):
                self._link.drop()

    def abandon(self) -> None:
        """Note that the open iteration, if there is one, has ended without a boundary."""
        self.inside = False
        self._idle_turn.leave()

    def leave(self) -> None:
        """Give the turn back now, as at the end of a cell, and report what is not reported yet.

        No other thread may be inside an iteration.
        """
        with self.entering:
            self.abandon()
            self._turn.note_gone()
            if self._turn.holding or self._turn.owes_word or not self._usage.is_reported:
                with self._link.lock:
                    self._turn.end()
                    self._link.say(self._usage.report(time.monotonic(), self._turn.holding))

    def unless_waiting(self, act: Callable[[], None]) -> bool:
        """Call `act` with `entering`. Return False, without the call, if another thread has that
        lock while it waits for the turn. Then no iteration is open and no turn is held, so there is
        nothing to close or to give back."""
        if _has(self.entering):
            act()
            return True
        try:
            while not self.entering.acquire(timeout=LOOK_SECONDS):
                if self._turn.waiting:
                    return False
            act()
            return True
        finally:  # an interrupt may come as `acquire` returns
            if _has(self.entering):
                self.entering.release()

    # --- cells -------------------------------------------------------------------------------

    def cell_begins(self) -> None:
        """Return when this process's memory is back on the device. Interruptible.

        A session whose cells are announced is paged out between them when others need the room.
        """
        self._residency.cell_begins()
        self._keeper.wake()

    def cell_ends(self) -> None:
        """Note that nothing runs in this process until a cell begins."""
        self._gaps.forget()
        self._residency.cell_ends()
        self._keeper.wake()

    def take_notices(self) -> list[str]:
        """Return the sentences for the user; each is returned once."""
        return self._dispatch.take_notices()

    def forget(self) -> None:
        """Close this copy of the descriptors in a forked child; the session belongs to the parent.

        Locks are made again, since a thread that no longer exists may have held them.
        """
        self.entering = threading.RLock()
        self.memory.forget()
        self.inside = False
        self._link.forget()
        self._turn.forget()
        self._keeper.close()


def _has(lock: Any) -> bool:
    """Whether this thread has the lock, as threading.Condition asks."""
    is_owned: Callable[[], bool] = getattr(lock, "_is_owned")  # noqa: B009
    return is_owned()


_living: set[Session] = set()


def _forget_all() -> None:
    for living in tuple(_living):
        living.forget()
    _living.clear()


os.register_at_fork(after_in_child=_forget_all)
