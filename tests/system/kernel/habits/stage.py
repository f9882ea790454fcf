"""Kernels that run one habit after the other: plain, sharing alone, and beside two neighbours."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

from jupyter_gpushare.settings import Settings, as_environment
from jupyter_gpushare.wire.client import Client
from tests.conftest import private_broker
from tests.polling import comes
from tests.programs.cells import LARGE, MODEL, RESULT, STEP
from tests.system.whole.conftest import CELL_SECONDS, Notebook, last_json
from tests.system.whole.scribbler import Scribbler

PROLOGUE = LARGE + MODEL + STEP
# The magic does nothing in a kernel without sharing, so that both run the same cells.
NO_MAGIC = "get_ipython().register_magic_function(lambda line: None, 'line', 'gpushare')"
FOREVER = "while True:\n    step(*data[0])"


class Kernel:
    """A kernel that is started again after one of its habits has failed."""

    def __init__(self, name: str, start: list[str], environment: dict[str, str]) -> None:
        self._name = name
        self._start = start
        self._environment = environment
        self._notebook: Notebook | None = None
        self._folder = ""  # for what it writes, while it runs

    def run(self, habit: str) -> Any:
        """Return the output of the last cell of the notebook. Raises AssertionError with a
        traceback."""
        try:
            notebook = self._begun()
            notebook.run("%reset -f")
            notebook.run("__spec__ = None")  # as before the reset; processes are spawned by it
            cells = [PROLOGUE, *habit.split("# %%"), RESULT]
            return last_json([notebook.run(cell.strip()) for cell in cells][-1])
        except BaseException:
            self.close()
            raise

    def train_for_ever(self) -> None:
        notebook = self._begun()
        notebook.run(PROLOGUE)
        notebook.start(FOREVER)

    def _begun(self) -> Notebook:
        if self._notebook is None:
            self._folder = tempfile.mkdtemp(prefix="gs-")
            own = {"TMPDIR": self._folder, "IPYTHONDIR": f"{self._folder}/ipython"}
            self._notebook = Notebook(self._name, {**self._environment, **own})
            for cell in self._start:
                self._notebook.run(cell)
        return self._notebook

    def close(self) -> None:
        if self._notebook is not None:
            self._notebook.kill()
            self._notebook = None
        if self._folder:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = ""


class Stage:
    """A broker of its own, a notebook that shares, and perhaps a neighbour."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self.ours = self.kernel("ours")
        self.scribbler: Scribbler | None = None
        self.neighbour: Kernel | None = None

    def kernel(self, name: str, *cells: str, **environment: str) -> Kernel:
        """Start a notebook that shares, after it has run these cells."""
        share = ["%load_ext jupyter_gpushare", f"%gpushare on --device host --name {name}"]
        environment = {**as_environment(self._settings), "HABIT_SHARES": "yes", **environment}
        return Kernel(name, [*cells, *share], environment)

    @contextmanager
    def is_overwritten(self, takes_turns: bool) -> Iterator[None]:
        """During the block the neighbour overwrites a lane that has any bytes."""
        before = self.scribbler.overwrites if self.scribbler is not None else 0
        yield
        if takes_turns and self.scribbler is not None:
            assert self.scribbler.overwrites > before

    def neighbour_goes_on(self) -> None:
        """Return when the neighbour has computed, while our notebook has nothing to run."""
        if self.neighbour is not None:
            with Client.connect(self._settings, "tests") as client:
                before = self._iterations(client)
                goes_on = comes(lambda: self._iterations(client) >= before + 2, CELL_SECONDS)
                assert goes_on, "the neighbour waits for an idle notebook"

    def _iterations(self, client: Client) -> int:
        views = [view for device in client.look().devices for view in device.sessions]
        return sum(view.iterations for view in views if view.name == "neighbour")

    def close(self) -> None:
        for each in (self.ours, self.neighbour, self.scribbler):
            if each is not None:
                each.close()


def plain_kernel() -> Kernel:
    """A kernel in which sharing was never turned on."""
    return Kernel("plain", [NO_MAGIC], {})


@contextmanager
def stage(neighbour: str) -> Iterator[Stage]:
    """Start a stage; `neighbour` is one of alone, trains, overwrites."""
    # where it overwrites, each turn ends at the next boundary
    own = {"quantum_seconds": 1e-6} if neighbour == "overwrites" else {}
    with private_broker(**own) as settings, closing(Stage(settings)) as opened:
        if neighbour == "trains":
            opened.neighbour = opened.kernel("neighbour")
            opened.neighbour.train_for_ever()
        elif neighbour == "overwrites":
            opened.scribbler = Scribbler(settings)
        yield opened
