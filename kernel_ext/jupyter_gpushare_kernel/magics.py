"""``%gpushare`` and ``%%gpushare``: a command is a method, its answer a sentence or a table."""

from __future__ import annotations

import html
import importlib.util
import os
import shutil
import sys
from typing import Any

from IPython.core.error import UsageError
from IPython.core.inputtransformer2 import cell_magic
from IPython.core.magic import Magics, line_cell_magic, magics_class

from jupyter_gpushare.client import Client
from jupyter_gpushare.errors import GpuShareError, InvalidValue
from jupyter_gpushare.protocol import Change, SessionView, SetPolicy, Snapshot
from jupyter_gpushare.session import Session
from jupyter_gpushare.sharing import current, start, stop
from jupyter_gpushare.waiting import WaitingLine

from . import arguments
from .arguments import COMMANDS, Arguments
from .cells import Cells
from .display import as_page, show

CELL_MAGIC = "%%gpushare"


@magics_class
class GpuShareMagics(Magics):  # type: ignore[misc]  # IPython is untyped for us
    def __init__(self, shell: Any, cells: Cells, line: WaitingLine) -> None:
        super().__init__(shell)
        self._cells = cells
        self._line = line

    @line_cell_magic  # type: ignore[untyped-decorator]
    def gpushare(self, line: str, cell: str | None = None) -> None:
        """Share the device with other notebooks: `%gpushare help` lists the commands."""
        try:
            asked = arguments.read(line if cell is None else f"cell {line}")
            getattr(self, f"_{asked.command.name}")(asked)
        except GpuShareError as error:
            raise UsageError(str(error)) from None
        if cell is not None:  # only for who calls run_cell_magic: see `share_one_cell`
            self.shell.run_cell(cell)

    def share_automatically(self) -> None:
        """As `%gpushare on`, but nobody asked in a cell: what is wrong is said, and no more."""
        try:
            self.gpushare("on")
        except UsageError as error:
            print(f"Notebooks do not share: {error}", file=sys.stderr)

    # --- commands ----------------------------------------------------------------------------

    def _on(self, asked: Arguments) -> None:
        if current() is None:
            show(_begun(self._start(asked.given)))
        else:
            show(_changed(self._change(asked.given)))

    def _off(self, asked: Arguments) -> None:
        session = current()
        stop()
        show(f"Sharing is off: {_totals(session)}." if session else "Sharing was not on.")

    def _status(self, asked: Arguments) -> None:
        from jupyter_gpushare import pictures

        session = current()
        mine = _sentence(session)
        try:
            snapshot = _look()
        except GpuShareError as error:
            return show(f"{mine} There is nothing to show of others: {error}.")
        drawn = pictures.tables(snapshot, session.id if session else "")
        lines = [mine, pictures.sentence(snapshot)]
        text = "\n".join(lines) + "\n\n" + pictures.as_text(drawn, _width())
        # a bar for each device says in a notebook what the table of devices says elsewhere
        page = "".join(map(as_page, lines)) + pictures.bars_html(snapshot)
        return show(text, page + pictures.as_html(drawn[1:]))

    def _pause(self, asked: Arguments) -> None:
        paused = not asked.given.get("resume", False)
        session = current()
        if asked.word is None and session is None:
            raise InvalidValue("sharing is not on here, so there is nothing to pause")
        if asked.word is None and session is not None:
            session.change(paused=paused)
            return show(_paused("This notebook", paused))
        name = _pause_another(asked.word or "", paused, session)
        return show(_paused(name, paused))

    def _policy(self, asked: Arguments) -> None:
        from jupyter_gpushare import pictures

        with Client.connect(start=False) as client:
            known = client.look().policies
            if asked.word is None:
                drawn = [pictures.policies(known, client.look().policy)]
                return show(pictures.as_text(drawn, _width()), pictures.as_html(drawn))
            if asked.word not in (names := [policy.name for policy in known]):
                advice = arguments.nearest(asked.word, names)
                raise InvalidValue(f"there is no policy {asked.word}; {advice}")
            client.ask(SetPolicy(policy=asked.word))
        sentence = next(policy.sentence for policy in known if policy.name == asked.word)
        return show(f"The policy is now {asked.word}: {sentence}")

    def _cell(self, asked: Arguments) -> None:
        before = current()
        if before is None:
            self._start(asked.given)
            self._cells.at_end(stop)
        else:
            options = _options(before) | {"paused": before.paused}
            self._change(asked.given)
            self._cells.at_end(lambda: self._restore(options))

    def _help(self, asked: Arguments) -> None:
        show(_help_text(), f"<pre style='font-size:90%'>{html.escape(_help_text())}</pre>")

    # --- the session -------------------------------------------------------------------------

    def _start(self, given: dict[str, Any]) -> Session:
        options = {"name": default_name(self.shell.user_ns)} | given
        if "iterations" in options:
            options["remaining_iterations"] = options.pop("iterations")
        session = start(**options)
        session.on_wait = self._line
        return session

    def _change(self, given: dict[str, Any]) -> list[str]:
        """Change what is on and return what, in words. A new device or name needs a new place."""
        session = current()
        assert session is not None
        changed = [f"{name} {value}" for name, value in given.items()]
        if session.paused and not given.get("paused"):
            given = given | {"paused": False}
            changed.append("the pause is over")
        if any(
            given.get(name, getattr(session, name)) != getattr(session, name)
            for name in ("device", "name")
        ):
            session = self._move(session, given)
        if "iterations" in given:
            session.declare(given["iterations"])
        session.change(**{name: given[name] for name in LIVE if name in given})
        return changed

    def _move(self, session: Session, given: dict[str, Any]) -> Session:
        options = _options(session)
        wanted = {name: value for name, value in given.items() if name in options}
        try:
            return self._start(options | wanted)
        except GpuShareError:
            self._start(options)  # as it was; if that fails too, its reason is the one to tell
            raise

    def _restore(self, options: dict[str, Any]) -> None:
        try:
            self._change(options)
        except GpuShareError as error:
            print(f"%gpushare could not be set back after the cell: {error}", file=sys.stderr)


LIVE = ("weight", "priority", "paused")  # what a session may change without a new place


def share_one_cell(lines: list[str]) -> list[str]:
    """Make of a first line ``%%gpushare ...`` a ``%gpushare cell ...``, and leave the rest alone.

    The rest then runs as any cell does: line numbers, tracebacks, `await` and the last value are
    those of the user's code, which a magic that runs the cell itself would lose.
    """
    name, *_ = (lines[0] if lines else "").split(None, 1) or [""]
    if name != CELL_MAGIC:
        return lines
    return [f"%gpushare cell{lines[0][len(CELL_MAGIC) :]}", *cell_magic(lines[1:])]


# Asked whether input is complete, IPython must still see a cell magic, which ends at a blank line.
share_one_cell.has_side_effects = True  # type: ignore[attr-defined]


def default_name(names: dict[str, Any]) -> str:
    """What the front end calls this notebook: Jupyter by environment, VS Code by a variable."""
    path = os.environ.get("JPY_SESSION_NAME") or names.get("__vsc_ipynb_file__") or ""
    return os.path.basename(str(path)) or f"kernel {os.getpid()}"


def _options(session: Session) -> dict[str, Any]:
    return {name: getattr(session, name) for name in ("name", "device", "weight", "priority")}


def _look() -> Snapshot:
    with Client.connect(start=False) as client:
        return client.look()


def _pause_another(name: str, paused: bool, session: Session | None) -> str:
    with Client.connect(start=False) as client:
        found = _find(name, client.look(), session)
        if session is not None and found.id == session.id:
            session.change(paused=paused)
        else:
            client.ask(Change(found.id, paused=paused))
    return found.name


def _find(name: str, snapshot: Snapshot, session: Session | None) -> SessionView:
    """The notebook of that name or id; one's own where several users have one of that name."""
    views = [view for device in snapshot.devices for view in device.sessions]
    users = {view.user for view in views if session is not None and view.id == session.id}
    named = [view for view in views if name in (view.id, view.name)]
    found = [view for view in named if view.user in users] or named
    if not found:
        advice = arguments.nearest(name, dict.fromkeys(view.name for view in views))
        raise InvalidValue(f"no notebook is named {name}; {advice}")
    if len(found) > 1:
        ids = ", ".join(view.id for view in found)
        raise InvalidValue(f"{len(found)} notebooks are named {name}; give the id of one: {ids}")
    return found[0]


# --- sentences ------------------------------------------------------------------------------------


def _begun(session: Session) -> str:
    return f"Sharing {session.device} as {session.name}. {_noticed(session)}"


def _noticed(session: Session) -> str:
    if "torch" in sys.modules:
        return f"Iterations of PyTorch take turns; {session.meter.how}."
    if importlib.util.find_spec("torch") is not None:
        return "Iterations of PyTorch will take turns as soon as it is imported."
    return "PyTorch is not installed: code takes a turn inside `with jupyter_gpushare.turn():`."


def _changed(changed: list[str]) -> str:
    if not changed:
        return "Sharing is on already; nothing was changed."
    return f"Sharing is on already; now {', '.join(changed)}."


def _paused(name: str, paused: bool) -> str:
    return f"{name} stands aside until it is resumed." if paused else f"{name} takes turns again."


def _sentence(session: Session | None) -> str:
    if session is None:
        return "Sharing is off in this notebook; `%gpushare on` begins it."
    aside = ", paused" if session.paused else ""
    shared = f"Sharing {session.device} as {session.name}{aside}"
    return f"{shared}: {_totals(session)}; {session.meter.how}."


def _totals(session: Session) -> str:
    from jupyter_gpushare.pictures import duration

    count = "one iteration" if session.iterations == 1 else f"{session.iterations} iterations"
    used, waited = duration(session.device_seconds), duration(session.waited_seconds)
    return f"{count}, {used} on the device, {waited} waited"


def _width() -> int:
    return shutil.get_terminal_size((120, 24)).columns


def _help_text() -> str:
    lines = ["Notebooks share a device: they take turns, iteration by iteration.", ""]
    lines += [f"%gpushare {command.name:<8} {command.sentence}" for command in COMMANDS.values()]
    lines += ["", "Options of `on`, `cell` and `%%gpushare`:"]
    lines += [
        f"  {option.flag + ' ' + option.value:<26} {option.sentence}"
        for option in arguments.SHARING
    ]
    lines += ["", "%gpushare pause [--resume] [NAME] and %gpushare policy [NAME] take a name."]
    lines += [
        "JUPYTER_GPUSHARE_AUTO=1 in the environment: loading the extension does `%gpushare on`."
    ]
    return "\n".join(lines)
