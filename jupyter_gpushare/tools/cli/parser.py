"""The parser of the command line, from the table of its commands."""

from __future__ import annotations

import argparse
from types import ModuleType
from typing import Any, NoReturn

from ..._version import __version__
from ...refusals import nearest
from ...settings import descriptions
from . import (
    broker,
    cancel,
    class_mode,
    cluster,
    doctor,
    jobs,
    logs,
    nodes,
    policy,
    record,
    report,
    rules,
    simulate,
    status,
    submit,
    top,
)

COMMANDS: dict[str, ModuleType] = {
    "status": status,
    "top": top,
    "broker": broker,
    "policy": policy,
    "report": report,
    "class": class_mode,
    "rules": rules,
    "record": record,
    "simulate": simulate,
    "submit": submit,
    "jobs": jobs,
    "logs": logs,
    "cancel": cancel,
    "nodes": nodes,
    "cluster": cluster,
    "doctor": doctor,
}


class Parser(argparse.ArgumentParser):
    """Print one sentence for a wrong command line; `--help` has the rest."""

    def error(self, message: str) -> NoReturn:
        sentence = message.removeprefix("argument ")
        see = " See" if sentence.endswith("?") else "; see"
        self.exit(2, f"{self.prog}: {sentence}{see} `{self.prog} --help`\n")

    def refuse(self, word: str) -> NoReturn:
        """Exit with a sentence about a word that no command takes."""
        if not word.startswith("-"):
            self.error(f"unexpected argument {word!r}")
        flag = word.partition("=")[0]
        self.error(f"there is no option {flag}; {nearest(flag, self._option_string_actions)}")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            known = list(map(str, action.choices))
            option = action if action.option_strings else None
            raise argparse.ArgumentError(option, f"there is no {value!r}; {nearest(value, known)}")


def make_parser() -> Parser:
    parser = Parser(
        prog="jupyter gpushare",
        description="Share one GPU among many notebooks, iteration by iteration.",
    )
    parser.add_argument("--version", action="version", version=__version__)
    parser.set_defaults(parser=parser)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for name, module in COMMANDS.items():
        _add(commands, name, module)
    return parser


def _add(commands: argparse._SubParsersAction[Parser], name: str, module: ModuleType) -> None:
    command = commands.add_parser(name, help=module.HELP, description=module.HELP)
    command.set_defaults(run=module.run, parser=command)
    command.add_argument("--socket", metavar="PATH", help=descriptions()["socket"])
    module.add_arguments(command)
