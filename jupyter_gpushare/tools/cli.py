"""``jupyter gpushare``: status, top, broker, policy, report, rules, class, record, simulate and
doctor.

Exit status: 0 well, 1 a sentence on standard error tells the problem, 2 a wrong command line.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, BinaryIO, NoReturn, get_args

import msgspec

from .. import settings as settings_module
from .._version import __version__
from ..broker.admin import rulebook
from ..errors import BrokerUnavailable, ConnectionLost, GpuShareError, InvalidValue
from ..format import duration, moment
from ..refusals import nearest
from ..settings import Settings
from ..wire.client import Client
from ..wire.protocol import By, ClassMode, SetPolicy, Shutdown, Snapshot

if TYPE_CHECKING:
    from rich.console import RenderableType

RECONNECT_SECONDS = 0.5
UNITS = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; the exit status."""
    arguments, rest = parser().parse_known_args(argv)
    if rest:
        arguments.parser.refuse(rest[0])
    try:
        code = int(arguments.run(arguments))
        sys.stdout.flush()
        return code
    except GpuShareError as error:
        _tell(str(error))
        return 1
    except KeyboardInterrupt:
        return 130  # what a shell says of a program that was interrupted
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # no complaint at exit
        return 1  # who read us, as in `| head`, has enough: as rich ends in this case


# --- commands -------------------------------------------------------------------------------------


def status(arguments: argparse.Namespace) -> int:
    with _connect(arguments) as client:
        snapshot = client.look()
    if arguments.json:
        _print_json(snapshot)
    else:
        _print(_picture(snapshot))
    return 0


def top(arguments: argparse.Namespace) -> int:
    """The live picture; it outlives the broker and shows the next one."""
    try:
        if sys.stdout.isatty():
            _top_live(arguments)
        else:
            for view in _views(arguments):
                _print(_drawn(view))
    except KeyboardInterrupt:
        pass  # how one leaves it
    return 0


def broker(arguments: argparse.Namespace) -> int:
    if arguments.stop:
        return _stop(arguments)
    from ..broker.__main__ import main as run

    return run(_settings(arguments))


def policy(arguments: argparse.Namespace) -> int:
    from . import overview

    with _connect(arguments) as client:
        if arguments.name is not None or arguments.lanes is not None:
            client.ask(SetPolicy(policy=arguments.name, running_lanes=arguments.lanes))
        snapshot = client.look()
    _print(overview.policies(snapshot.policies, snapshot.policy))
    for device in snapshot.devices:
        print(f"{device.name}: {overview.at_once(device)}")
    return 0


def report(arguments: argparse.Namespace) -> int:
    from . import usage_report

    asked = usage_report.question(arguments.first, arguments.last, arguments.by)
    with _connect(arguments) as client:
        answer = usage_report.ask(client, asked)
    if answer.note:
        _tell(answer.note)
    if arguments.json:
        _print_json(answer.rows)
    elif arguments.csv:
        print(usage_report.as_csv(asked, answer.rows), end="")
    else:
        _print(usage_report.picture(asked, answer.rows))
    return 0


def class_(arguments: argparse.Namespace) -> int:
    is_on = arguments.switch == "on"
    wish = ClassMode(arguments.group, is_on, arguments.device, arguments.seconds)
    with _connect(arguments) as client:
        client.ask(wish)
        classes = client.look().classes
    for one in classes:
        until = "until it is ended" if one.ends is None else f"until {moment(one.ends)}"
        print(f"A class of {one.group} has {one.device} {until}.")
    if not classes:
        print("No class is on.")
    return 0


def record(arguments: argparse.Namespace) -> int:
    """What happens at the broker, to a file, until Ctrl-C or until the broker ends."""
    started = time.monotonic()
    with _connect(arguments) as client, _written(arguments.file) as file:
        _tell(f"records what happens in {arguments.file} until Ctrl-C, or until the broker ends")
        count = _record_events(client, file, arguments.names, started)
    lasted = duration(time.monotonic() - started)
    events = f"{count} event{'s' * (count != 1)}"
    _tell(f"{arguments.file} has {events} of {lasted}: `jupyter gpushare simulate --from` reads it")
    return 0


def _record_events(client: Client, file: BinaryIO, names: bool, started: float) -> int:
    """How many there were."""
    from ..simulator import recorder

    recording, count = recorder.Recorder(names), 0
    with contextlib.suppress(KeyboardInterrupt, ConnectionLost):  # how one ends it
        for snapshot in client.watch(recorder.INTERVAL_SECONDS):
            for event in recording.events(snapshot, time.monotonic() - started):
                file.write(recorder.encode(event))
                count += 1
            file.flush()
    return count


def _tell(sentence: str) -> None:
    """Beside the output, which programs read."""
    print(f"jupyter gpushare: {sentence}", file=sys.stderr, flush=True)


def simulate(arguments: argparse.Namespace) -> int:
    """The same notebooks under other policies, or on other devices."""
    from .. import _core
    from ..simulator import plots, simulate, workload

    source = arguments.source or workload.generated(arguments.generate, seed=arguments.seed)
    comparison = simulate.simulate(
        source,
        arguments.policy or simulate.POLICIES,
        capacity=arguments.capacity,
        devices=arguments.devices,
        groups=arguments.group_weights,
        users=arguments.user_weights,
        class_of=arguments.class_mode,
        conduct=_core.Conduct(paging_rate=arguments.paging_rate),
    )
    if arguments.plot:
        with plots.style():
            plots.save(comparison.plot(), arguments.plot)
        _tell(f"the plot is in {arguments.plot}")
    if arguments.json:
        _print_json(comparison.figures())
    else:
        for table in comparison.tables():
            _print(table)
    return 0


def rules(arguments: argparse.Namespace) -> int:
    """`check` needs no broker; `show` asks the one that runs."""
    if arguments.action == "check":
        found = rulebook.load(arguments.file)
        counts = (
            (len(found.groups), "group"),
            (len(found.users), "user"),
            (len(found.reservations), "reservation"),
        )
        named = ", ".join(f"{count} {word}{'s' * (count != 1)}" for count, word in counts)
        print(f"{arguments.file} is well: {named}.")
        return 0
    from .. import tables
    from . import overview

    with _connect(arguments) as client:
        snapshot = client.look()
    for table in filter(tables.is_filled, overview.rules(snapshot)):
        _print(table)
    if snapshot.rulebook_error:
        raise InvalidValue(snapshot.rulebook_error)
    if not snapshot.groups:
        print("There are no groups: the setting rulebook names no file, or one without groups.")
    return 0


def doctor(arguments: argparse.Namespace) -> int:
    from . import doctor

    found = list(doctor.examine(_settings(arguments)))
    if arguments.json:
        _print_json(found)
    else:
        _print(doctor.picture(found))
    return int(any(check.state == "problem" for check in found))


def _stop(arguments: argparse.Namespace) -> int:
    with _connect(arguments) as client:
        client.ask(Shutdown())
        print(f"The broker {client.welcome.pid} ends.")
    return 0


@contextlib.contextmanager
def _written(path: str) -> Iterator[BinaryIO]:
    try:
        with open(path, "wb") as file:
            yield file
    except OSError as error:
        raise InvalidValue(f"{path} cannot be written: {error.strerror}") from None


def _top_live(arguments: argparse.Namespace) -> None:
    from rich.live import Live

    # Between two snapshots only time passes, so the picture ages by itself.
    latest: tuple[Snapshot | str, float] = ("", time.monotonic())

    def draw() -> RenderableType:
        view, since = latest
        return _drawn(view, time.monotonic() - since)

    with Live(get_renderable=draw, refresh_per_second=4, screen=True):
        for view in _views(arguments):
            latest = (view, time.monotonic())


def _views(arguments: argparse.Namespace) -> Iterator[Snapshot | str]:
    """Snapshots as they change, and where there is no broker a sentence, once."""
    said = ""
    while True:
        try:
            with _connect(arguments) as client:
                yield from client.watch(arguments.interval)
        except (BrokerUnavailable, ConnectionLost) as error:
            if str(error) != said:
                said = str(error)
                yield f"Looking for a broker: {said}."
        time.sleep(RECONNECT_SECONDS)


# --- pictures -------------------------------------------------------------------------------------


def _drawn(view: Snapshot | str, age: float = 0.0) -> RenderableType:
    from . import overview

    return view if isinstance(view, str) else _picture(overview.aged(view, age))


def _picture(snapshot: Snapshot) -> RenderableType:
    from rich.console import Group

    from .. import tables
    from . import overview

    drawn = filter(tables.is_filled, overview.tables(snapshot))
    return Group(overview.sentence(snapshot), *drawn)


def _print(picture: RenderableType) -> None:
    from rich.console import Console

    Console(highlight=False, markup=False).print(picture)


def _print_json(value: object) -> None:
    print(msgspec.json.format(msgspec.json.encode(value), indent=2).decode())


# --- command line ---------------------------------------------------------------------------------


def _settings(arguments: argparse.Namespace) -> Settings:
    given: dict[str, Any] = {
        name: getattr(arguments, name, None) for name in Settings.__struct_fields__
    }
    return settings_module.load(**given)


def _connect(arguments: argparse.Namespace) -> Client:
    return Client.connect(_settings(arguments), "jupyter gpushare", start=False)


class _Parser(argparse.ArgumentParser):
    """A wrong command line gets one sentence; `--help` has the rest."""

    def error(self, message: str) -> NoReturn:
        sentence = message.removeprefix("argument ")
        see = " See" if sentence.endswith("?") else "; see"
        self.exit(2, f"{self.prog}: {sentence}{see} `{self.prog} --help`\n")

    def refuse(self, word: str) -> NoReturn:
        """One that nothing here takes."""
        if not word.startswith("-"):
            self.error(f"{word!r} is one word too many")
        flag = word.partition("=")[0]
        self.error(f"there is no option {flag}; {nearest(flag, self._option_string_actions)}")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            known = list(map(str, action.choices))
            option = action if action.option_strings else None
            raise argparse.ArgumentError(option, f"there is no {value!r}; {nearest(value, known)}")


def parser() -> _Parser:
    parser = _Parser(
        prog="jupyter gpushare",
        description="Notebooks that share a device, iteration by iteration.",
    )
    parser.add_argument("--version", action="version", version=__version__)
    parser.set_defaults(parser=parser)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    _json(_add(commands, status, "show devices, lanes and notebooks"))
    _interval(_add(commands, top, "show them live; Ctrl-C ends it"))
    _broker(_add(commands, broker, "run a broker in the foreground, or end one"))
    _policy(_add(commands, policy, "show the policies, or choose one, at once and for all"))
    _report(_add(commands, report, "show the usage accounts, as far as you may see them"))
    _class(_add(commands, class_, "give the device to a class of a group, or end that"))
    _rules(_add(commands, rules, "check a file of rules, or show those in force"))
    _record(_add(commands, record, "record the use of the devices, for `simulate`"))
    _json(_simulate(_add(commands, simulate, "simulate another policy or device")))
    _json(_add(commands, doctor, "check the installation, and tell how to mend it"))
    return parser


def _add(
    commands: argparse._SubParsersAction[_Parser],
    run: Callable[[argparse.Namespace], int],
    sentence: str,
) -> argparse.ArgumentParser:
    command = commands.add_parser(run.__name__.rstrip("_"), help=sentence, description=sentence)
    command.set_defaults(run=run, parser=command)
    command.add_argument("--socket", metavar="PATH", help=_descriptions()["socket"])
    return command


def _report(command: argparse.ArgumentParser) -> None:
    day = "a day as 2026-11-01, or a time as 2026-11-01T14:00"
    command.add_argument(
        "--from", dest="first", default="", metavar="DAY", help=f"{day} (default: this month's 1st)"
    )
    command.add_argument(
        "--to",
        dest="last",
        default="",
        metavar="DAY",
        help="the same; a day is included (default: now)",
    )
    command.add_argument(
        "--by", choices=get_args(By), default="user", help="group rows by (default: user)"
    )
    form = command.add_mutually_exclusive_group()
    form.add_argument(
        "--csv", action="store_true", help="print CSV, for spreadsheets, in seconds and bytes"
    )
    form.add_argument("--json", action="store_true", help="print JSON, for programs")


def _record(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "file", metavar="FILE", help="file for the record, one JSON object a line; Ctrl-C ends it"
    )
    command.add_argument(
        "--names", action="store_true", help="keep the names of users and notebooks"
    )


def _simulate(command: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """Of a record, or of notebooks that are drawn."""
    subject = command.add_mutually_exclusive_group(required=True)
    subject.add_argument(
        "--from", dest="source", metavar="FILE", help="a file that `record` has written"
    )
    subject.add_argument(
        "--generate", type=_count, metavar="N", help="simulate N notebooks, drawn at random"
    )
    command.add_argument(
        "--seed", type=_whole, default=0, metavar="N", help="seed of the drawing (default: 0)"
    )
    command.add_argument(
        "--policy",
        type=lambda names: names.split(","),
        metavar="NAMES",
        help="policies, with commas between them (default: all but fifo)",
    )
    command.add_argument(
        "--capacity", type=_bytes, metavar="SIZE", help="memory of a device, such as 24GiB"
    )
    command.add_argument("--devices", type=_count, metavar="N", help="number of devices")
    command.add_argument(
        "--class-mode",
        default="",
        metavar="GROUP",
        help="that group alone has the devices whenever a notebook of it is open and not done",
    )
    for whose in ("group", "user"):
        command.add_argument(
            f"--{whose}-weights",
            type=_weights,
            metavar="WEIGHTS",
            help=f"of {whose}s, as in {whose[0]}1=2,{whose[0]}2=0.5 (default: as recorded, or 1)",
        )
    command.add_argument(
        "--paging-rate",
        type=_bytes,
        default=0,
        metavar="SIZE",
        help="page notebooks out, at this many bytes a second (default: no paging)",
    )
    command.add_argument(
        "--plot", metavar="FILE", help="file for the plot, SVG, PNG or PDF; needs matplotlib"
    )
    return command


def _json(command: argparse.ArgumentParser) -> None:
    command.add_argument("--json", action="store_true", help="print JSON, for programs")


def _interval(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--interval",
        type=_seconds,
        default=0.25,
        metavar="S",
        help="shortest time between two updates, in seconds (default: 0.25)",
    )


def _policy(command: argparse.ArgumentParser) -> None:
    command.add_argument("name", nargs="?", metavar="NAME")
    command.add_argument(
        "--lanes",
        type=_lanes,
        metavar="N",
        help="lanes that may run at the same time; auto: the policy decides",
    )


def _class(command: argparse.ArgumentParser) -> None:
    command.add_argument("switch", choices=["on", "off"])
    command.add_argument("group", metavar="GROUP")
    command.add_argument("--device", metavar="NAME", help="the device (default: all)")
    command.add_argument(
        "--for",
        dest="seconds",
        type=_seconds,
        metavar="S",
        help="seconds until it ends by itself (default: until it is ended)",
    )


def _rules(command: argparse.ArgumentParser) -> None:
    actions = command.add_subparsers(required=True, metavar="ACTION", dest="action")
    check = actions.add_parser("check", help="check a file; exit status 1 if it has a mistake")
    check.add_argument("file", metavar="FILE")
    actions.add_parser("show", help="show the groups, reservations and classes in force")


def _broker(command: argparse.ArgumentParser) -> None:
    """Every setting is an option; its text is checked where the environment's is, too."""
    command.add_argument("--stop", action="store_true", help="end the broker that runs")
    default = Settings()
    for name, sentence in _descriptions().items():
        if name != "socket":
            command.add_argument(
                f"--{name.replace('_', '-')}",
                metavar="VALUE",
                help=f"{sentence} (default: {getattr(default, name)})".replace("%", "%%"),
            )


def _descriptions() -> dict[str, str]:
    """The sentence of each setting, which is among the metadata of its type."""
    return {
        field.name: "".join(
            getattr(meta, "description", None) or "" for meta in get_args(field.type)
        )
        for field in msgspec.structs.fields(Settings)
    }


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise argparse.ArgumentTypeError(f"seconds are a number above 0, not {text!r}")
    return seconds


def _whole(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"a whole number, not {text!r}") from None


def _lanes(text: str) -> int:
    if text == "auto":
        return 0
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"a number from 1 on, or auto; not {text!r}")
    return int(text)


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"a number from 1 on, not {text!r}")
    return int(text)


def _weights(text: str) -> dict[str, float]:
    pairs = [pair.rpartition("=") for pair in text.split(",")]
    try:
        weights = {name: float(weight) for name, _, weight in pairs}
    except ValueError:
        weights = {}
    if "" in weights or not weights:
        raise argparse.ArgumentTypeError(f"names and weights as in a=2,b=0.5, not {text!r}")
    return weights


def _bytes(text: str) -> int:
    """A number of bytes, or of the unit that follows it."""
    found = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?) ?(B|KiB|MiB|GiB|TiB)?", text)
    if found is None or float(found[1]) == 0:
        raise argparse.ArgumentTypeError(f"bytes, or a size as in 24GiB, not {text!r}")
    return int(float(found[1]) * UNITS[found[2] or "B"])
