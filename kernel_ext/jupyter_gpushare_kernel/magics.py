"""``%gpushare`` and ``%%gpushare``: a command is a method, its answer a sentence or a table."""

from __future__ import annotations

import os
import shutil
import sys
from typing import TYPE_CHECKING, Any

from IPython.core.display_functions import display
from IPython.core.error import UsageError
from IPython.core.magic import Magics, line_cell_magic, magics_class

from jupyter_gpushare.client.notebook.sharing import cell_ended, current, start, stop
from jupyter_gpushare.client.notebook.waiting_line import WaitingLine
from jupyter_gpushare.client.options import name_from
from jupyter_gpushare.client.session.session import Session
from jupyter_gpushare.errors import GpuShareError, InvalidValue
from jupyter_gpushare.jobs.connection import Cluster, ask
from jupyter_gpushare.jobs.job import Job, submit_cell
from jupyter_gpushare.jobs.submission import Wanted
from jupyter_gpushare.refusals import nearest
from jupyter_gpushare.settings import load
from jupyter_gpushare.wire.client import Client
from jupyter_gpushare.wire.messages import Change, SetPolicy
from jupyter_gpushare.wire.snapshot import SessionView, Snapshot

from . import arguments, sentences
from .arguments import Arguments
from .cells import CellEnds
from .display import as_page, show
from .tidy import let_go, variables

if TYPE_CHECKING:
    from .widget import Top

WHAT = "Notebooks share a device: they take turns, iteration by iteration."
HOW = "With JUPYTER_GPUSHARE_AUTO=1 in the environment, loading the extension does `%gpushare on`."


@magics_class
class GpuShareMagics(Magics):  # type: ignore[misc]  # IPython is untyped for us
    def __init__(self, shell: Any, cells: CellEnds, line: WaitingLine) -> None:
        super().__init__(shell)
        self._cells = cells
        self._line = line
        self._live: Top | None = None  # the last output of `top`; only the newest one is live

    def close(self) -> None:
        """Stop the live view."""
        if self._live is not None:
            self._live.close()

    @line_cell_magic  # type: ignore[untyped-decorator]
    def gpushare(self, line: str, cell: str | None = None) -> Job | None:
        """Share the device with other notebooks: `%gpushare help` lists the commands."""
        try:
            asked = arguments.read(line if cell is None else arguments.of_cell(line))
            if cell is not None and arguments.is_job(line):
                return self._submit_cell(asked, cell)
            getattr(self, f"_{asked.command.name}")(asked)
        except GpuShareError as error:
            raise UsageError(str(error)) from None
        if cell is not None:  # only for callers of run_cell_magic: see cells.share_one_cell
            self.shell.run_cell(cell)
        return None

    def share_automatically(self) -> None:
        """Turn sharing on if the setting `auto` says so. No cell asked for it, so an error is only
        printed."""
        try:
            if load().auto:
                self.gpushare("on")
                if sys.displayhook is not self.shell.display_trap.hook:
                    cell_ended()  # no cell runs: the kernel is starting
        except (GpuShareError, UsageError) as error:
            print(f"Notebooks do not share: {error}", file=sys.stderr)

    # --- commands ----------------------------------------------------------------------------

    def _on(self, asked: Arguments) -> None:
        session = current()
        if session is None:
            show(sentences.begun(self._start(asked.given)))
        else:
            wanted = _unpaused(session, asked.given)
            self._change(session, wanted)
            show(sentences.changed(wanted))

    def _off(self, asked: Arguments) -> None:
        session = current()
        stop()
        show(f"Sharing is off: {sentences.totals(session)}." if session else "Sharing was not on.")

    def _status(self, asked: Arguments) -> None:
        from jupyter_gpushare import tables
        from jupyter_gpushare.tools import overview

        session = current()
        try:
            snapshot = _look()
        except GpuShareError as error:
            mine = sentences.state(session, None)
            return show(f"{mine} There is nothing to show of others: {error}.")
        drawn = overview.tables(snapshot, session.id if session else "")
        views = (view for device in snapshot.devices for view in device.sessions)
        view = next((one for one in views if session and one.id == session.id), None)
        lines = [sentences.state(session, view), overview.sentence(snapshot)]
        text = "\n".join(lines) + "\n\n" + tables.as_text(drawn, _width())
        # in a notebook a bar for each device shows what the table of devices shows elsewhere
        page = "".join(map(as_page, lines)) + overview.bars_html(snapshot)
        return show(text, page + tables.as_html(drawn[1:]))

    def _top(self, asked: Arguments) -> None:
        if not hasattr(self.shell, "kernel"):
            raise InvalidValue("a terminal shows no widgets; `jupyter gpushare top` is for it")
        from .widget import Top

        self.close()
        session = current()
        self._live = Top(own=session.id if session else "")
        display(self._live)

    def _pause(self, asked: Arguments) -> None:
        paused = not asked.given.get("resume", False)
        session = current()
        if asked.word is None and session is None:
            raise InvalidValue("sharing is not on here, so there is nothing to pause")
        if asked.word is None and session is not None:
            session.change(paused=paused)
            return show(sentences.paused("This notebook", paused))
        name = _pause_another(asked.word or "", paused, session)
        return show(sentences.paused(name, paused))

    def _tidy(self, asked: Arguments) -> None:
        session = current()
        if session is None:
            let_go(self.shell, lambda: 0)
            return show(sentences.tidied({}))
        freed = let_go(self.shell, session.memory.live)
        with session.entering:
            held = session.memory.held_by(variables(self.shell))
        return show("\n".join([sentences.tidied(freed), *map(sentences.held, held)]))

    def _policy(self, asked: Arguments) -> None:
        from jupyter_gpushare import tables
        from jupyter_gpushare.tools import overview

        with Client.connect(start=False) as client:
            if asked.word is not None:
                client.ask(SetPolicy(policy=asked.word))
            now = client.look()
        if asked.word is None:
            drawn = [overview.policies(now.policies, now.policy)]
            return show(tables.as_text(drawn, _width()), tables.as_html(drawn))
        sentence = next(policy.sentence for policy in now.policies if policy.name == now.policy)
        return show(f"The policy is now {now.policy}: {sentence}")

    def _squeeze(self, asked: Arguments) -> None:
        session = current()
        if session is None:
            raise InvalidValue("sharing is not on here, so nothing is squeezed: `%gpushare on`")
        if asked.word is not None:
            session.squeeze_as(asked.word)
        show(sentences.squeezed(session))

    def _cell(self, asked: Arguments) -> None:
        before = current()
        if before is None:
            self._start(asked.given)
            self._cells.at_end(self._stop_after_cell)
        else:
            wanted = _unpaused(before, asked.given)
            was = _options(before) | {"paused": True}
            back = {name: was[name] for name in wanted if name in was}
            # Registered before the change, since a refusal may come after a part of it.
            self._cells.at_end(lambda: self._restore(back, str(was["device"])))
            self._change(before, wanted)

    def _submit(self, asked: Arguments) -> None:
        raise InvalidValue(
            "`%%gpushare submit` is the first line of a cell, which becomes the job; for a script:"
            " gpushare.submit('train.py', gpus=2)"
        )

    def _submit_cell(self, asked: Arguments, cell: str) -> Job:
        given = {name.replace("-", "_"): value for name, value in asked.given.items()}
        source = self.shell.transform_cell(cell)
        return submit_cell(source, self.shell.user_ns, Wanted(**given))

    def _jobs(self, asked: Arguments) -> None:
        from jupyter_gpushare import tables
        from jupyter_gpushare.tools import jobs_table

        with Cluster(load(), start=True) as cluster:
            view = cluster.look(all=True)
        if not view.jobs:
            return show("There are no jobs. `%%gpushare submit` makes a cell one.")
        drawn = [jobs_table.jobs(view.jobs)]
        return show(tables.as_text(drawn, _width()), tables.as_html(drawn))

    def _logs(self, asked: Arguments) -> None:
        print(Job(asked.word or "").log(), end="")

    def _cancel(self, asked: Arguments) -> None:
        from jupyter_gpushare.tools import jobs_table

        view = ask(load(), lambda cluster: cluster.cancel(asked.word or ""))
        show(f"{jobs_table.cancelled(view)}.")

    def _help(self, asked: Arguments) -> None:
        from jupyter_gpushare import tables

        drawn = [arguments.commands_table(), *arguments.options_tables()]
        text = "\n\n".join([WHAT, tables.as_text(drawn, _width()), HOW])
        show(text, as_page(WHAT) + tables.as_html(drawn) + as_page(HOW))

    # --- the session -------------------------------------------------------------------------

    def _start(self, given: dict[str, Any]) -> Session:
        options = {"name": default_name(self.shell.user_ns)} | given
        if "iterations" in options:
            options["remaining_iterations"] = options.pop("iterations")
        session = start(**options)
        session.on_wait, session.on_waited = self._line, self._line.finish_wait
        session.on_trouble = lambda sentence: print(sentence, file=sys.stderr)
        return session

    def _change(self, session: Session, wanted: dict[str, Any]) -> None:
        """Change what is on. A new device or name needs a new session."""
        if any(wanted.get(name) not in (None, getattr(session, name)) for name in PLACE):
            session = self._move(session, wanted)
        if "iterations" in wanted:
            session.declare(wanted["iterations"])
        if "squeeze" in wanted:
            session.squeeze_as(wanted["squeeze"])
        if live := {name: wanted[name] for name in LIVE if name in wanted}:
            session.change(**live)

    def _move(self, session: Session, wanted: dict[str, Any]) -> Session:
        options = _options(session)
        if wanted.get("devices", 1) != 1:
            wanted = {"device": "auto"} | wanted
        try:
            return self._start(options | {name: wanted[name] for name in PLACE if name in wanted})
        except GpuShareError:
            self._start(options).change(paused=session.paused)  # as it was
            raise

    def _stop_after_cell(self) -> None:
        try:
            stop()
        except GpuShareError as error:
            print(f"After the cell {error}", file=sys.stderr)

    def _restore(self, options: dict[str, Any], device: str) -> None:
        """Restore the options that the cell gave; others may have changed the remaining ones
        meanwhile. A notebook that had several devices for the cell returns to `device`."""
        session = current()
        if session is None:
            return  # the cell itself has ended sharing
        if "squeeze" in options:
            session.squeeze_again(options["squeeze"])
        was = {name: value for name, value in options.items() if getattr(session, name) != value}
        if "devices" in was:
            was["device"] = device
        try:
            self._change(session, was)
        except GpuShareError as error:
            print(f"%gpushare could not be set back after the cell: {error}", file=sys.stderr)


GpuShareMagics.gpushare.__doc__ = arguments.documentation()

ANY_DEVICE = ("device", "auto")  # if sharing is on, this means the present device
PLACE = ("device", "devices", "name")  # fixed for the life of a session
LIVE = ("weight", "priority", "paused")  # changeable


def default_name(names: dict[str, Any]) -> str:
    """Return what the front end calls this notebook: Jupyter by environment, VS Code by a
    variable."""
    path = os.environ.get("JPY_SESSION_NAME") or names.get("__vsc_ipynb_file__") or ""
    return name_from(str(path)) or f"kernel {os.getpid()}"


def _options(session: Session) -> dict[str, Any]:
    """Return the options of the session. A gang may have any devices, so its device is `auto`."""
    names = ("name", "device", "devices", "weight", "priority", "squeeze")
    options = {name: getattr(session, name) for name in names}
    return options if session.devices == 1 else options | {"device": "auto"}


def _unpaused(session: Session, given: dict[str, Any]) -> dict[str, Any]:
    """Return the wanted options, and the end of a pause if the session is paused."""
    wanted = {name: value for name, value in given.items() if (name, value) != ANY_DEVICE}
    is_paused = session.paused or _is_paused(session.id)
    return {"paused": False} | wanted if is_paused else wanted


def _look() -> Snapshot:
    with Client.connect(start=False) as client:
        return client.look()


def _is_paused(session: str) -> bool:
    """Whether the session is paused, whichever user asked for that."""
    views = (view for device in _look().devices for view in device.sessions)
    return any(view.id == session and view.state == "paused" for view in views)


def _pause_another(name: str, paused: bool, session: Session | None) -> str:
    with Client.connect(start=False) as client:
        found = _find(name, client.look(), session)
        if session is not None and found.id == session.id:
            session.change(paused=paused)
        else:
            client.ask(Change(found.id, paused=paused))
    return found.name


def _find(name: str, snapshot: Snapshot, session: Session | None) -> SessionView:
    """Return the notebook of that name or id. If several users have one of that name, return the
    caller's own."""
    there = {view.id: view for device in snapshot.devices for view in device.sessions}
    views = list(there.values())  # a session with several devices is on each
    users = {view.user for view in views if session is not None and view.id == session.id}
    named = [view for view in views if name in (view.id, view.name)]
    found = [view for view in named if view.user in users] or named
    if not found:
        advice = nearest(name, dict.fromkeys(view.name for view in views))
        raise InvalidValue(f"no notebook is named {name}; {advice}")
    if len(found) > 1:
        ids = ", ".join(view.id for view in found)
        raise InvalidValue(f"{len(found)} notebooks are named {name}; give the id of one: {ids}")
    return found[0]


def _width() -> int:
    return shutil.get_terminal_size((120, 24)).columns
