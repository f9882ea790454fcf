"""The words after ``%gpushare``: one table of commands and options, also for help and
completion."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

from jupyter_gpushare.client.options import squeezing
from jupyter_gpushare.errors import InvalidValue
from jupyter_gpushare.refusals import nearest
from jupyter_gpushare.wire.jobs import Gpus, gpus_in
from jupyter_gpushare.wire.messages import MAX_NAME_LENGTH, MAX_WEIGHT, MIN_WEIGHT, WEIGHTS

if TYPE_CHECKING:
    from jupyter_gpushare.tables import Table


SHOWN_LENGTH = 60
SQUEEZE = "auto|off|SIZE"


class Option(NamedTuple):
    """`read` converts the word after the flag, or raises ValueError; None if no word follows the
    flag."""

    flag: str
    value: str
    read: Callable[[str], Any] | None
    sentence: str


class Command(NamedTuple):
    name: str
    sentence: str
    options: tuple[Option, ...] = ()
    takes: str = ""  # what the one word that may follow stands for; empty: no word follows
    takes_phrase: bool = False  # several words may follow
    needs_word: bool = False
    passes: str = ""  # what the words behind `--` are for; empty: there are none


class Arguments(NamedTuple):
    """A command; `given` has the options that were written, by name without dashes."""

    command: Command
    word: str | None
    given: dict[str, Any]


def _weight(word: str) -> float:
    weight = float(word)
    if not MIN_WEIGHT <= weight <= MAX_WEIGHT:
        raise ValueError(word)
    return weight


def _count(word: str) -> int:
    count = int(word)
    if count < 0:
        raise ValueError(word)
    return count


def _devices(word: str) -> int:
    if not (count := _count(word)):
        raise ValueError(word)
    return count


def _gpus(word: str) -> Gpus:
    try:
        return gpus_in(word)
    except InvalidValue:
        raise ValueError(word) from None


def _name(word: str) -> str:
    if not word.strip() or len(word) > MAX_NAME_LENGTH:
        raise ValueError(word)
    return word


SHARING = (
    Option(
        "--device",
        "auto|host|cuda:N",
        str,
        "where this notebook computes, as PyTorch numbers the GPUs here; auto: the visible GPU"
        " with most room, else host",
    ),
    Option(
        "--devices",
        "N",
        _devices,
        "a whole number from 1 on: the number of whole GPUs at once, all or none, as for"
        " DataParallel",
    ),
    Option(
        "--weight",
        "W",
        _weight,
        f"{WEIGHTS}: a notebook of weight 2 gets twice the time of one of weight 1",
    ),
    Option("--priority", "P", int, "a whole number: notebooks of a higher priority go first"),
    Option(
        "--iterations",
        "N",
        _count,
        "a whole number from 0 on: the iterations that are still to come",
    ),
    Option(
        "--name",
        "TEXT",
        _name,
        f"what others see, up to {MAX_NAME_LENGTH} characters; by default the notebook's file name",
    ),
    Option(
        "--squeeze",
        SQUEEZE,
        squeezing,
        "auto, off, or the memory that an iteration may take, such as 4GiB: what does not fit is"
        " recomputed or written to a file meanwhile, at unchanged results",
    ),
)
JOB = (
    Option(
        "--gpus",
        "N",
        _gpus,
        "a whole number from 1 on, or a part of one GPU in hundredths such as 0.25: the GPUs of the"
        " job",
    ),
    Option("--nodes", "N", _count, "a whole number from 0 on: its nodes at most; 0: any number"),
    Option("--name", "TEXT", _name, "what its id begins with; by default cell"),
    Option("--resumes", "", None, "it saves when it is asked to yield, and goes on from there"),
    Option("--restarts", "", None, "it may be run again from its beginning, where it was lost"),
    Option("--rank-for-each-gpu", "", None, "a process for each GPU, and not for each node"),
)
HELP = {"-h", "--help"}
END = "--"
RESUME = Option("--resume", "", None, "end the pause")

COMMANDS = {
    command.name: command
    for command in (
        Command("on", "share the device from now on; again: change options, end a pause", SHARING),
        Command("off", "stop sharing, and release the place on the device"),
        Command("status", "show this notebook, its neighbours and the devices"),
        Command("top", "the same, live while cells run"),
        Command(
            "pause",
            "pause this notebook, or another of yours, until `%gpushare on`",
            (RESUME,),
            "NAME",
        ),
        Command(
            "tidy",
            "free displayed results and the last error, and tell what each held, and what variables"
            " hold of finished iterations",
        ),
        Command(
            "policy", "show the policies, or choose one, at once and for all notebooks", (), "NAME"
        ),
        Command(
            "cell",
            "share until this cell ends; `%%gpushare` as its first line does the same",
            SHARING,
        ),
        Command(
            "squeeze",
            "squeeze iterations into less memory: auto, as others need it; off; or to a size such"
            " as 4 GiB",
            (),
            SQUEEZE,
            takes_phrase=True,
        ),
        Command(
            "submit",
            "as the first line of a cell, `%%gpushare submit`: run the cell as a job, once GPUs are"
            " free; options of sbatch may follow `--`, where jobs run on Slurm",
            JOB,
            passes="options",
        ),
        Command("jobs", "show your jobs, and what they wait for"),
        Command(
            "logs", "print what the job of this id has printed so far", (), "JOB", needs_word=True
        ),
        Command(
            "cancel",
            "end the job of this id, or take it out of the queue",
            (),
            "JOB",
            needs_word=True,
        ),
        Command("help", "show this text"),
    )
}


def read(line: str) -> Arguments:
    """Read a command line. Raises InvalidValue with a sentence that says what would be right."""
    words = _split(line) or ["status"]
    if HELP.intersection(words):
        return Arguments(COMMANDS["help"], None, {})
    command = COMMANDS.get(words[0].lower())
    if command is None:
        raise InvalidValue(f"there is no `%gpushare {words[0]}`; {nearest(words[0], COMMANDS)}")
    return _read_rest(command, words[1:])


def of_cell(line: str) -> str:
    """Return the command of ``%%gpushare`` with this `line`: options may follow the word `on`."""
    if is_job(line):
        return line.strip()
    first, *rest = line.split(None, 1) or [""]
    return f"cell {''.join(rest) if first.lower() in ('on', 'cell') else line}".strip()


def is_job(line: str) -> bool:
    """Whether the cell of ``%%gpushare`` with this `line` is not run here, but as a job."""
    return line.split(None, 1)[:1] == ["submit"]


def documentation() -> str:
    """Return the text that ``%gpushare?`` shows."""
    width = max(len(short(command)) for command in COMMANDS.values())
    lines = [f"    {short(command):{width}}  {command.sentence}" for command in COMMANDS.values()]
    return "\n".join(["Share the device with other notebooks.", "", "%gpushare COMMAND:", *lines])


def usage(command: Command) -> str:
    """Return the usage, such as ``on [--device auto|host|cuda:N] ...``"""
    parts = [f"[{option.flag} {option.value}".strip() + "]" for option in command.options]
    word = command.takes if command.needs_word else f"[{command.takes}]"
    return " ".join([command.name, *parts, *([word] if command.takes else [])])


def commands_table() -> Table:
    from jupyter_gpushare.tables import Column, table_of

    name = Column("Command", lambda command: f"%gpushare {short(command)}")
    what = Column("What it does", lambda command: command.sentence, wraps=True)
    return table_of("Commands", [name, what], COMMANDS.values())


def options_tables() -> list[Table]:
    from jupyter_gpushare.tables import Column, table_of

    name = Column("Option", lambda option: f"{option.flag} {option.value}")
    what = Column("What it means", lambda option: option.sentence, wraps=True)
    return [
        table_of("Options of on, cell and %%gpushare", [name, what], SHARING),
        table_of("Options of %%gpushare submit", [name, what], JOB),
    ]


def short(command: Command) -> str:
    return f"{command.name} [options]" if command.options in (SHARING, JOB) else usage(command)


def _split(line: str) -> list[str]:
    try:
        return shlex.split(line)
    except ValueError:
        raise InvalidValue(f"a quotation mark is not closed in: {line.strip()}") from None


def _read_rest(command: Command, words: list[str]) -> Arguments:
    word, given, rest = None, {}, iter(words)
    for written in rest:
        if written == END and command.passes:
            given[command.passes] = [*rest]
        elif written.startswith("-"):
            flag, _, value = written.partition("=")
            option = _option(command, flag)
            given[flag.lstrip("-")] = _value(option, value or None, rest)
        elif command.takes and word is None:
            word = written
        elif command.takes_phrase:
            word = f"{word} {written}"
        else:
            raise InvalidValue(
                f"unexpected argument `{written}`. Usage: %gpushare {usage(command)}"
            )
    if command.needs_word and word is None:
        raise InvalidValue(
            f"`%gpushare {command.name}` wants {command.takes}, to {command.sentence}"
        )
    return Arguments(command, word, given)


def _option(command: Command, flag: str) -> Option:
    known = {option.flag: option for option in command.options}
    if flag not in known:
        advice = nearest(flag, known) if known else f"right is: %gpushare {usage(command)}"
        raise InvalidValue(f"`%gpushare {command.name}` has no option {flag}; {advice}")
    return known[flag]


def _value(option: Option, value: str | None, rest: Iterable[str]) -> Any:
    if option.read is None:
        return True
    word = value if value is not None else next(iter(rest), None)
    if word is None:
        raise InvalidValue(f"{option.flag} wants a value: {option.sentence}")
    try:
        return option.read(word)
    except ValueError:
        said = f"{option.flag} {_shown(word)} is wrong"
        raise InvalidValue(f"{said}; it takes {option.sentence}") from None


def _shown(word: str) -> str:
    """Return the word as it was written, or its beginning where it is long."""
    return f"{word[:SHOWN_LENGTH]}…" if len(word) > SHOWN_LENGTH else shlex.quote(word)
