"""The words after ``%gpushare``: one table of commands and options, also for help, completion."""

from __future__ import annotations

import difflib
import math
import shlex
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

from jupyter_gpushare.errors import InvalidValue

if TYPE_CHECKING:
    from jupyter_gpushare.pictures import Table


class Option(NamedTuple):
    """`read` makes a value of a word or raises ValueError; None where no word follows the flag."""

    flag: str
    value: str
    read: Callable[[str], Any] | None
    sentence: str


class Command(NamedTuple):
    name: str
    sentence: str
    options: tuple[Option, ...] = ()
    takes: str = ""  # what the one word stands for that may follow; empty: none may


class Arguments(NamedTuple):
    """`given` has the options that were written, by name without dashes."""

    command: Command
    word: str | None
    given: dict[str, Any]


def _weight(word: str) -> float:
    weight = float(word)
    if not 0 < weight < math.inf:
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
        "a whole number from 1 on: so many whole GPUs at once, all or none, as for DataParallel",
    ),
    Option(
        "--weight",
        "W",
        _weight,
        "a number above 0: a notebook of weight 2 gets twice the time of one of weight 1",
    ),
    Option("--priority", "P", int, "a whole number: notebooks of a higher priority go first"),
    Option(
        "--iterations",
        "N",
        _count,
        "a whole number from 0 on: the iterations that are still to come",
    ),
    Option("--name", "TEXT", str, "what others see; by default the notebook's file name"),
)
RESUME = Option("--resume", "", None, "end the pause")

COMMANDS = {
    command.name: command
    for command in (
        Command("on", "share the device from now on; again: change options, end a pause", SHARING),
        Command("off", "share no more, and give the place to others"),
        Command("status", "this notebook, its neighbours and the devices"),
        Command("top", "the same as a live picture, which moves while cells run"),
        Command(
            "pause",
            "stand aside until `%gpushare on`: this notebook, or another of yours",
            (RESUME,),
            "NAME",
        ),
        Command("tidy", "let go of displayed results and the last error, and of their tensors"),
        Command("policy", "the policies, or choose one, at once and for all notebooks", (), "NAME"),
        Command(
            "cell",
            "share until this cell ends; `%%gpushare` as its first line does the same",
            SHARING,
        ),
        Command("help", "this text"),
    )
}


def read(line: str) -> Arguments:
    """Raises InvalidValue with a sentence that says what would be right."""
    words = _split(line) or ["status"]
    command = COMMANDS.get(words[0])
    if command is None:
        raise InvalidValue(f"there is no `%gpushare {words[0]}`; {nearest(words[0], COMMANDS)}")
    return _read_rest(command, words[1:])


def nearest(word: str, known: Iterable[str]) -> str:
    """``did you mean ...?``, or all that is known where nothing is like `word`."""
    names = list(known)
    alike = difflib.get_close_matches(word, names, n=1, cutoff=0.5)
    return f"did you mean {alike[0]}?" if alike else f"there are: {', '.join(names) or 'none'}"


def usage(command: Command) -> str:
    """``on [--device auto|host|cuda:N] ...``"""
    parts = [f"[{option.flag} {option.value}".strip() + "]" for option in command.options]
    word = [f"[{command.takes}]"] if command.takes else []
    return " ".join([command.name, *parts, *word])


def commands_table() -> Table:
    from jupyter_gpushare.pictures import Column, table

    name = Column("Command", lambda command: f"%gpushare {_short(command)}")
    what = Column("What it does", lambda command: command.sentence, wraps=True)
    return table("Commands", [name, what], COMMANDS.values())


def options_table() -> Table:
    from jupyter_gpushare.pictures import Column, table

    name = Column("Option", lambda option: f"{option.flag} {option.value}")
    what = Column("What it means", lambda option: option.sentence, wraps=True)
    return table("Options of on, cell and %%gpushare", [name, what], SHARING)


def _short(command: Command) -> str:
    return f"{command.name} [options]" if command.options is SHARING else usage(command)


def _split(line: str) -> list[str]:
    try:
        return shlex.split(line)
    except ValueError:
        raise InvalidValue(f"a quotation mark is not closed in: {line.strip()}") from None


def _read_rest(command: Command, words: list[str]) -> Arguments:
    word, given, rest = None, {}, iter(words)
    for written in rest:
        if written.startswith("-"):
            flag, _, value = written.partition("=")
            option = _option(command, flag)
            given[flag.lstrip("-")] = _value(option, value or None, rest)
        elif command.takes and word is None:
            word = written
        else:
            raise InvalidValue(f"`{written}` is too much; right is: %gpushare {usage(command)}")
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
        raise InvalidValue(f"{option.flag} {word} is wrong; it takes {option.sentence}") from None
