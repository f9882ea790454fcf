"""The tensors that autograd has saved in this iteration, within a budget of bytes.

As long as memory suffices nothing moves. Above the budget entries leave memory, first those that
are needed last. An entry is dropped if a recipe recomputes it in less time than the slower tier
takes, else it is written there. It comes back when autograd takes it; entries are read ahead in
reverse order.
"""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Callable, Iterator

import torch

from .files.page_file import BeyondQuota, Extent, PageFile
from .files.tier import Tier
from .kinds import SaveEvent
from .profile import NeedProfile
from .recompute.entries import Body, Entry, Reference

AHEAD = 3  # entries that may be on their way back at one time
LATEST = 16  # entries; the operation that runs uses some of them
BEHIND = 8  # entries that wait until user code cannot reach them, to be written
WINDOW = 64  # entries among which those to be read ahead are looked for
TRIED = 3  # iterations that use none of their recipes, after which none is noted
PERIOD = 64  # iterations after which recipes are tried again


class Cache:
    """The entries of one process. A budget of infinity moves nothing."""

    def __init__(self, tier: Tier, profile: NeedProfile, tell: Callable[[str], None]) -> None:
        self._tier, self._profile, self._tell = tier, profile, tell
        self.lock = threading.RLock()
        self.budget = math.inf
        self.dropped = self.remade = 0  # bytes, in total
        self._let_go: deque[Reference] = deque()  # to entries that autograd has let go
        self.ended: deque[int] = deque()  # their ordinals in this iteration
        self._found: dict[int, Reference] = {}  # by the address of the storage
        self._written: set[int] = set()  # entries that have left memory for the file, by ordinal
        self._written_before: set[int] = set()
        self._dropped_before = 0  # bytes, in total
        self._unused = 0  # iterations in a row that have used no recipe
        self._order: list[Reference] = []
        self._earlier: list[Reference] = []
        self.begin(math.inf)

    # --- an iteration ------------------------------------------------------------------------

    def begin(self, budget: float) -> None:
        """Begin an iteration within `budget` bytes."""
        is_used = self.dropped > self._dropped_before
        starts_to_write = bool(self._written) and not self._written_before
        is_new = is_used or starts_to_write or budget < self.budget
        self._unused = 0 if is_new else self._unused + 1
        self.budget = budget
        self.collect()
        self._let_unused_leave()
        self._dropped_before = self.dropped
        self._earlier = [weak for weak in (*self._earlier, *self._order) if weak() is not None]
        for entry in self._living(self._earlier):
            entry.is_unused = True
        self._found = {key: weak for key, weak in self._found.items() if weak() is not None}
        self._order = []  # of this iteration, by ordinal
        self._here: dict[int, Reference] = {}  # whose bytes are in memory, by ordinal
        self._behind: deque[Reference] = deque(maxlen=BEHIND)  # to be written soon
        self._written_before, self._written = self._written, set()
        self._latest: deque[int] = deque(maxlen=LATEST)
        self._last_gone = -1  # the largest ordinal that has left memory
        self.ended.clear()

    def _let_unused_leave(self) -> None:
        """Free the memory of entries that a whole iteration after their own has not used, since a
        variable or a displayed result holds their graph. If they are used after all, the same bytes
        come back."""
        if self.budget != math.inf:
            with self.lock:
                for entry in self._living(self._earlier):
                    if entry.is_unused:
                        self._free(entry)

    @property
    def takes_recipes(self) -> bool:
        """Whether entries of this iteration may get a recipe. Noting recipes takes time, and none
        is used if memory suffices or the slower tier is faster."""
        return self.budget == math.inf or self._unused % PERIOD < TRIED

    def end(self) -> None:
        """End the iteration, and wait for all transfers: no thread may move its memory later."""
        with self.lock:
            for entry in self._living(self._order):
                self._settle(entry)

    def bring_all(self) -> None:
        """Bring everything into memory, whatever the budget."""
        self.budget = math.inf
        for entry in self._living([*self._earlier, *self._order]):
            self._settle(entry)
            self.bring(entry)
            entry.filed.leave()

    def _living(self, references: list[Reference]) -> Iterator[Entry]:
        return (entry for weak in references if (entry := weak()) is not None)

    # --- entries -----------------------------------------------------------------------------

    def find(self, storage: torch.UntypedStorage, version: int) -> Entry | None:
        entry = self._at(storage)
        return entry if entry is not None and entry.is_of(storage, version) else None

    def _at(self, storage: torch.UntypedStorage) -> Entry | None:
        reference = self._found.get(storage._cdata)
        return None if reference is None else reference()

    def open(self, storage: torch.UntypedStorage) -> None:
        """Note that user code changes the bytes of a storage."""
        if (entry := self._at(storage)) is not None:
            entry.is_open = True

    def held_beside(self, entry: Entry) -> tuple[int, ...]:
        """Return the entries that have to stay now, among the latest that autograd has saved or
        taken; this one is the latest."""
        self._latest.append(entry.ordinal)
        living = self._living([self._order[n] for n in set(self._latest) if n < len(self._order)])
        return tuple(one.ordinal for one in living if not one.is_private())

    def open_reachable(self) -> None:
        """Note that user code runs unseen from now on: it may change all that it can reach."""
        for entry in self._living(list(self._here.values())):
            entry.is_open = not entry.is_closed()

    def open_unpacked(self, entry: Entry) -> None:
        """Bring an entry into memory for user code that gets its bytes and may change them. Recipes
        that read these bytes run before, and the copy in the file is of no use afterwards."""
        was_open, entry.is_open = entry.is_open, True  # from now on it is written, if it leaves
        if not was_open:
            for other in self._living([*self._earlier, *self._order]):
                if other.body is None and other.filed.place is None:
                    self.bring(other)
        self._settle(entry)
        self.bring(entry)
        entry.filed.leave()

    def add(self, storage: torch.UntypedStorage, version: int) -> Entry:
        """Return a new entry. The caller keeps it alive."""
        entry = Entry(storage, version, len(self._order))
        reference = Reference(entry, self._let_go.append)
        self._profile.kinds.add(entry.nbytes)
        self._order.append(reference)
        self._found[storage._cdata] = self._here[entry.ordinal] = reference
        if entry.ordinal in self._written_before:
            self._behind.append(reference)
        return entry

    def collect(self) -> None:
        """Free the places of entries that autograd has let go."""
        while self._let_go:
            reference = self._let_go[0]
            reference.filed.leave()  # first, so that an interrupt right after it does no harm
            ordinal = reference.ordinal
            if ordinal < len(self._order) and self._order[ordinal] is reference:
                self.ended.append(ordinal)
            self._let_go.popleft()

    @property
    def used(self) -> int:
        """The bytes of the page file that are in use."""
        self.collect()
        return self._tier.used

    def bring(self, entry: Entry) -> torch.UntypedStorage:
        """Return the storage of an entry, in memory. Raises RuntimeError if it cannot be read."""
        entry.is_unused = False
        if entry.body is None:
            self._restore(entry)
        elif entry.filed.arriving is not None:
            self._await_read(entry)
        assert entry.body is not None
        return entry.body.storage

    def offer(self, entry: Entry, storage: torch.UntypedStorage) -> None:
        """Use these bytes for an entry that has none in memory."""
        if entry.body is None:
            entry.body = Body(storage, is_whole=True)
            if entry.ordinal < len(self._order) and self._order[entry.ordinal]() is entry:
                self._here[entry.ordinal] = self._order[entry.ordinal]

    def _restore(self, entry: Entry) -> None:
        if entry.filed.place is not None:
            self.evict(entry.nbytes, entry)
            storage = torch.UntypedStorage(entry.nbytes)
            self._read(entry, storage)
        else:
            storage = _remade(entry, self)
            self.remade += entry.nbytes
        self.offer(entry, storage)

    # --- the budget --------------------------------------------------------------------------

    def fit(self, event: SaveEvent, size: int, spared: Entry | None = None) -> None:
        """Let other entries leave until the need after the event, of `size` bytes, fits into the
        budget."""
        if self.budget != math.inf:
            need = self._profile.need(event, size)
            self.evict(self._profile.most if need is None else need, spared, need is not None)

    def evict(self, need: int, spared: Entry | None = None, is_known: bool = False) -> None:
        """Let entries leave until `need` more bytes fit. If a single operation needs more than the
        budget, that need takes the place of the budget in this iteration."""
        if self._has_room(need):
            return
        for ordinal in sorted(self._here):
            entry = self._here[ordinal]()
            if entry is None:
                del self._here[ordinal]
            elif entry is not spared and self._leave(entry) and self._has_room(need):
                return
        if is_known and not self._has_room(need):
            self._profile.kinds.open.floor = self._profile.used() + need

    def _has_room(self, need: int) -> bool:
        limit = max(self.budget, self._profile.kinds.floor)
        return self._profile.used() + need <= limit

    def _leave(self, entry: Entry) -> bool:
        """Free the memory of an entry of this iteration; return False if it has to stay."""
        if not self._free(entry):
            return False
        self._here.pop(entry.ordinal, None)
        self._last_gone = max(self._last_gone, entry.ordinal)
        if entry.filed.place is not None:
            self._written.add(entry.ordinal)
        return True

    def _free(self, entry: Entry) -> bool:
        body = entry.body
        if body is None or not body.is_private():
            return False
        self._settle(entry)
        is_closed = entry.is_closed()
        if entry.filed.place is None and is_closed and self._is_remade(entry):
            self.dropped += entry.nbytes
        elif entry.filed.place is None and not self._write(entry, body.storage):
            return False
        entry.is_open = not is_closed  # its bytes may differ from those of a recipe
        entry.body = None
        return True

    def _is_remade(self, entry: Entry) -> bool:
        """Whether recomputing the entry takes less time than writing and reading it."""
        node = entry.node
        if node is None or node.seconds >= 2 * entry.nbytes * self._tier.pace:
            return False
        return node.is_closed()

    # --- transfers ---------------------------------------------------------------------------

    def write_behind(self) -> None:
        """Begin to write entries that had to leave in the last iteration, once user code can no
        longer change them."""
        for reference in tuple(self._behind):
            entry = reference()
            if entry is None or (entry.body is not None and entry.body.is_private()):
                self._behind.remove(reference)
                if entry is not None and entry.filed.place is None and self.budget != math.inf:
                    self._begin_to_write(entry)

    def _take(self, size: int) -> tuple[PageFile, Extent]:
        self.collect()
        return self._tier.take(size)

    def _begin_to_write(self, entry: Entry) -> None:
        assert entry.body is not None
        try:
            file, place = self._take(entry.nbytes)
        except OSError as error:
            self._call_off(error)
            return
        filed = entry.filed
        # An interrupt in here loses the place for good, since the write may be on its way.
        filed.file, filed.leaving = file, self._tier.write_behind(file, place, entry.body.storage)
        filed.place = place

    def read_ahead(self, entry: Entry) -> None:
        """Begin to read what autograd takes next: about the reverse of the order of saving."""
        first = max(0, entry.ordinal - WINDOW)
        if self._last_gone < first or self.budget == math.inf or entry.ordinal >= len(self._order):
            return
        arriving, need = 0, self._need_of(entry)
        for before in self._living(self._order[first : entry.ordinal][::-1]):
            need = max(need, self._need_of(before))
            if before.body is not None:
                arriving += before.filed.is_arriving()
            elif before.filed.place is not None:
                if arriving >= AHEAD or not self._has_room(need + before.nbytes):
                    return
                self._begin_to_read(before)
                arriving += 1

    def _need_of(self, entry: Entry) -> int:
        need = self._profile.need(SaveEvent(False, entry.ordinal), entry.nbytes)
        return self._profile.most if need is None else need

    def _begin_to_read(self, entry: Entry) -> None:
        filed = entry.filed
        assert filed.file is not None
        assert filed.place is not None
        storage = torch.UntypedStorage(entry.nbytes)
        filed.arriving = self._tier.read_ahead(filed.file, filed.place, storage)
        self.offer(entry, storage)

    def _write(self, entry: Entry, storage: torch.UntypedStorage) -> bool:
        if self.budget == math.inf:
            return False  # squeezing has been called off
        try:
            file, place = self._take(entry.nbytes)
        except OSError as error:
            self._call_off(error)
            return False
        try:
            self._tier.write(file, place, storage)
        except OSError as error:
            file.leave(place, None)
            self._call_off(error)
            return False
        except BaseException:  # an interrupt
            file.leave(place, None)
            raise
        entry.filed.file, entry.filed.place = file, place
        return True

    def _read(self, entry: Entry, storage: torch.UntypedStorage) -> None:
        assert entry.filed.file is not None
        assert entry.filed.place is not None
        try:
            self._tier.read(entry.filed.file, entry.filed.place, storage)
        except OSError as error:
            raise RuntimeError(LOST.format(error)) from error

    def _settle(self, entry: Entry) -> None:
        """Wait for the transfers of an entry."""
        if entry.filed.arriving is not None:
            self._await_read(entry)
        if entry.filed.leaving is not None:
            self._await_write(entry)

    def _await_read(self, entry: Entry) -> None:
        assert entry.filed.arriving is not None
        try:
            entry.filed.arriving.result()
        except OSError:  # once more, at once
            if entry.body is not None:
                self._read(entry, entry.body.storage)
        entry.filed.arriving = None

    def _await_write(self, entry: Entry) -> None:
        assert entry.filed.leaving is not None
        try:
            entry.filed.leaving.result()
        except OSError as error:
            entry.filed.leave()
            self._call_off(error)
        entry.filed.leaving = None

    def _call_off(self, error: OSError) -> None:
        """Move nothing more, since the slower tier has failed; the bytes there can still be
        read."""
        if self.budget != math.inf:
            self.budget = math.inf
            advice = "" if isinstance(error, BeyondQuota) else WITH_ROOM
            self._tell(FAILED.format(error) + advice)


def _remade(entry: Entry, cache: Cache) -> torch.UntypedStorage:
    """Return the storage that the entry's recipe makes. No mode of user code sees the
    operations."""
    assert entry.node is not None
    with torch._C._DisableTorchDispatch(), torch.no_grad(), torch.autocast("cpu", enabled=False):
        storage = entry.node.make(cache)
    if storage.nbytes() != entry.nbytes:
        raise RuntimeError(DIFFERENT)
    return storage


FAILED = "squeezing is off from now on: the page file cannot be written ({}). Nothing is lost"
WITH_ROOM = "; set page_directory to a directory on a disk with room"
LOST = (
    "a part of this iteration cannot be read back from the page file ({}): run it again, after"
    " `%gpushare squeeze off`"
)
DIFFERENT = (
    "an operation gave a result of another size when it ran again: run the iteration again, after"
    " `%gpushare squeeze off`"
)
