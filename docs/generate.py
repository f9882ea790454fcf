"""Writes docs/reference from the code: `make reference`. tests/house/test_docs.py keeps it so."""

from __future__ import annotations

import argparse
import inspect
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, get_args, get_type_hints

import msgspec
from jupyter_gpushare_kernel import arguments
from jupyter_gpushare_server import jobs, metrics, openapi
from prometheus_client.core import Metric

import jupyter_gpushare as gpushare
from jupyter_gpushare import _core, errors
from jupyter_gpushare.broker.admin import rulebook
from jupyter_gpushare.settings import PREFIX, Settings, descriptions
from jupyter_gpushare.tools import cli
from jupyter_gpushare.wire.snapshot import BrokerView, Snapshot

REFERENCE = Path(__file__).parent / "reference"
NOTE = "<!-- `make reference` writes this page from the code. -->"
FUNCTIONS = (
    *("session", "iterations", "turn", "checkpoint", "lightning_callback", "resumable"),
    *("trainer_callback", "submit", "simulate"),
)
MEMBERS = {
    gpushare.Session: ("open", "enter", "boundary", "leave", "change", "declare", "close"),
    gpushare.Checkpoint: ("iteration", "epoch", "resumed", "commit"),
    gpushare.Job: ("state", "directory", "look", "wait", "result", "log", "follow", "cancel"),
}


def pages() -> dict[str, str]:
    """Return the text of each page, by its name without the suffix."""
    written = {
        "settings": settings(),
        "magics": magics(),
        "command-line": command_line(),
        "python": python(),
        "policies": policies(),
        "rulebook": rules(),
        "rest": rest(),
        "metrics": exported(),
    }
    return {name: f"{NOTE}\n\n{text.rstrip()}\n" for name, text in written.items()}


# --- settings, policies ---------------------------------------------------------------------------


def settings() -> str:
    rows = [
        (code(name), shown(getattr(Settings(), name)), sentence)
        for name, sentence in descriptions().items()
    ]
    return f"""# Settings

A setting is read once, from `{PREFIX}<NAME>` in the environment. A Jupyter server
takes the same names as `c.GpuShareExtension.<name>`, and `jupyter gpushare broker` takes them as
options, as `--quantum-seconds 0.5`. Sizes are bytes, times are seconds.

{table(("setting", "default", "meaning"), rows)}
"""


def policies() -> str:
    rows = [(code(name), sentence) for name, sentence in _core.policies()]
    return f"""# Policies

A policy orders the notebooks that want the device. It is chosen by the setting `policy`, by
`jupyter gpushare policy NAME`, or in the panel. [Scheduling](../explanation/scheduling.md#policies)
tells what all of them have in common.

{table(("policy", "what it does"), rows)}
"""


# --- magics and command line ----------------------------------------------------------------------


def magics() -> str:
    commands = [
        (code(f"%gpushare {arguments.short(command)}"), command.sentence)
        for command in arguments.COMMANDS.values()
    ]
    options, of_jobs = (
        [(code(f"{option.flag} {option.value}".strip()), option.sentence) for option in of]
        for of in (arguments.SHARING, arguments.JOB)
    )
    return f"""# Magics

`%load_ext jupyter_gpushare` defines them.

{table(("command", "what it does"), commands)}

## Options of `on`, `cell` and `%%gpushare`

{table(("option", "meaning"), options)}

## Options of `%%gpushare submit`

{table(("option", "meaning"), of_jobs)}
"""


def command_line() -> str:
    whole = cli.make_parser()
    parts = [described(name, command) for name, command in subcommands(whole)]
    return "\n\n".join(
        [
            "# Command line",
            f"{whole.description} The exit status is 0 if the command succeeded, 1 if a sentence on"
            " standard error tells the problem, and 2 for a wrong command line.",
            *parts,
        ]
    )


def subcommands(parser: argparse.ArgumentParser) -> Iterator[tuple[str, argparse.ArgumentParser]]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            yield from action.choices.items()


def described(name: str, command: argparse.ArgumentParser) -> str:
    """Describe one command: its sentence, and a row for each argument and each further
    subcommand."""
    rows = [
        (code(spelt(action)), action.help or "")
        for action in command._actions
        if is_argument(action) and not is_setting(action)
    ]
    if any(map(is_setting, command._actions)):
        rows.append(("`--SETTING VALUE`", "any of the [settings](settings.md), as `--policy las`"))
    further = [
        (code(f"{word} {' '.join(positional(parser))}".strip()), sentence_of(command, word))
        for word, parser in subcommands(command)
    ]
    lines = [f"## `jupyter gpushare {name}`", f"{capital(command.description or '')}."]
    if rows := further + rows:
        lines.append(table(("argument", "meaning"), [(word, plain(text)) for word, text in rows]))
    return "\n\n".join(lines)


def is_setting(action: argparse.Action) -> bool:
    """Return all arguments but the socket, which every command takes."""
    return action.dest in Settings.__struct_fields__ and action.metavar == "VALUE"


def is_argument(action: argparse.Action) -> bool:
    return not isinstance(action, argparse._HelpAction | argparse._SubParsersAction)


def spelt(action: argparse.Action) -> str:
    """Return `--from DAY`, `--json`, `[NAME]` or `{on,off}`, whatever the version of Python."""
    value = str(action.metavar or (action.choices and f"{{{','.join(action.choices)}}}") or "")
    if not action.option_strings:
        return f"[{value}]" if action.nargs == "?" else value
    return f"{action.option_strings[-1]} {value if action.nargs != 0 else ''}".strip()


def positional(parser: argparse.ArgumentParser) -> list[str]:
    return [spelt(action) for action in parser._actions if not action.option_strings]


def sentence_of(parser: argparse.ArgumentParser, word: str) -> str:
    (action,) = [one for one in parser._actions if isinstance(one, argparse._SubParsersAction)]
    return next(choice.help or "" for choice in action._choices_actions if choice.dest == word)


# --- Python ---------------------------------------------------------------------------------------


def python() -> str:
    functions = [callable_(f"gpushare.{name}", getattr(gpushare, name)) for name in FUNCTIONS]
    kinds = [
        (code(kind.__name__), code(kind.code), prose(kind)) for kind in errors.BY_CODE.values()
    ]
    return "\n\n".join(
        [
            "# Python",
            "```python\nimport jupyter_gpushare as gpushare\n```",
            *functions,
            *(part for kind, names in MEMBERS.items() for part in class_(kind, names)),
            "## Errors",
            "They are classes of `jupyter_gpushare.errors`. The code is what travels between"
            " processes and what REST answers.",
            table(("error", "code", "meaning"), kinds),
        ]
    )


def class_(kind: type, names: Sequence[str]) -> Iterator[str]:
    """Write a class with its members; the signature of one that users make themselves."""
    yield f"## `gpushare.{kind.__name__}`"
    if kind is not gpushare.Checkpoint:
        yield signature(f"gpushare.{kind.__name__}", kind)
    yield prose(kind)
    for name in names:
        member, title = getattr(kind, name), f"{kind.__name__}.{name}"
        if isinstance(member, property):
            yield f"### `{title}`\n\n{prose(member)}"
        else:
            yield callable_(title, member, "###")


def callable_(name: str, function: Any, depth: str = "##") -> str:
    return f"{depth} `{name}`\n\n{signature(name, function)}\n\n{prose(function)}"


def signature(name: str, function: Any) -> str:
    """Write one parameter a line where they do not fit into one; annotations as they are
    written."""
    found = inspect.signature(function)
    given = list(with_star([value for key, value in found.parameters.items() if key != "self"]))
    result = f" -> {found.return_annotation}"
    if inspect.isgeneratorfunction(getattr(function, "__wrapped__", None)):
        result = result.replace("Iterator[", "AbstractContextManager[")
    text = f"{name}({', '.join(given)}){result}"
    if len(text) > 76:
        text = f"{name}(\n" + "".join(f"    {one},\n" for one in given) + f"){result}"
    return f"```python\n{text.removesuffix(' -> None')}\n```"


def with_star(parameters: Sequence[inspect.Parameter]) -> Iterator[str]:
    """Return the parameters, with the `*` before the first that is given by its name alone."""
    only = [value.kind is inspect.Parameter.KEYWORD_ONLY for value in parameters]
    for position, value in enumerate(parameters):
        if only[position] and not any(only[:position]):
            yield "*"
        yield written(value)


STARS: dict[int, str] = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}


def written(parameter: inspect.Parameter) -> str:
    stars = STARS.get(parameter.kind, "")
    default = "" if parameter.default is parameter.empty else f" = {parameter.default!r}"
    return f"{stars}{parameter.name}: {parameter.annotation}{default}"


def prose(thing: Any) -> str:
    """Return a docstring as Markdown."""
    return (inspect.getdoc(thing) or "").replace("``", "`")


# --- rulebook -------------------------------------------------------------------------------------

TABLES = (
    ("At the top", rulebook.Rulebook),
    ("`[groups.NAME]`", rulebook.Group),
    ("`[users.NAME]`", rulebook.User),
    ("`[quotas]`, `[quotas.users.NAME]`, `[quotas.groups.NAME]`", rulebook.Quota),
    ("`[[reservations]]`", rulebook.Reservation),
    ("`[idle]`", rulebook.Idle),
    ("`[overdue]`", rulebook.Overdue),
    ("`[accounting]`", rulebook.Accounting),
)


def rules() -> str:
    parts = [f"## {title}\n\n{prose(kind)}\n\n{keys(kind)}" for title, kind in TABLES]
    head = """# Rulebook

Every key of the admin's TOML file, and the values that it takes.
[Write a rulebook](../how-to/rulebook.md) tells what each of them does, with an example. The command
`jupyter gpushare rules check FILE` checks a file."""
    return "\n\n".join([head, *parts])


def keys(kind: type[rulebook.RulebookTable]) -> str:
    hints = get_type_hints(kind, include_extras=True)
    rows = [
        (code(field.encode_name), takes(hints[field.name]), default_of(field))
        for field in msgspec.structs.fields(kind)
        if takes(hints[field.name])
    ]
    return table(("key", "value", "default"), rows)


def takes(hint: Any) -> str:
    """Return the description among a type's metadata, which errors tell as well."""
    return next(
        (meta.description for meta in get_args(hint) if getattr(meta, "description", None)), ""
    )


def default_of(field: msgspec.structs.FieldInfo) -> str:
    """Return the default; empty where the key is required."""
    if field.default_factory is not msgspec.NODEFAULT:
        return shown(field.default_factory())
    return "" if field.default is msgspec.NODEFAULT else shown(field.default)


# --- REST and metrics -----------------------------------------------------------------------------


def rest() -> str:
    document = openapi.document()
    routes = [
        (code(f"{method.upper()} {path}"), route["summary"], taken(route), answer(route, document))
        for path, methods in document["paths"].items()
        for method, route in methods.items()
    ]
    schemas = document["components"]["schemas"]
    parts = [schema(name, schemas[name]) for name in sorted(schemas)]
    base = document["servers"][0]["url"]
    return "\n\n".join(
        [
            "# REST",
            f"Paths are below `{base}` of a Jupyter server, and take its authentication: the header"
            f" `Authorization: token TOKEN`, or a login cookie. `{base}/openapi.json` is the same"
            " as an OpenAPI 3.1 document. Wrong requests get status 400, 403 or 404 and a"
            " [Failure](#failure); 503 says that the broker is away.",
            table(("route", "what it does", "takes", "answers"), routes),
            "## Types",
            *parts,
        ]
    )


def taken(route: dict[str, Any]) -> str:
    """Return the body's type, or the query's parameters."""
    body = route.get("requestBody", {}).get("content", {}).get("application/json", {})
    query = [code(one["name"]) for one in route.get("parameters", []) if one["in"] == "query"]
    return type_of(body["schema"]) if body else ", ".join(query)


def answer(route: dict[str, Any], document: dict[str, Any]) -> str:
    """Return the type of a successful answer, or nothing for a WebSocket."""
    found = route["responses"].get("200", {})
    if "$ref" in found:
        found = document["components"]["responses"][found["$ref"].rpartition("/")[2]]
    body = found.get("content", {}).get("application/json", {})
    return type_of(body["schema"]) if body else ""


def schema(name: str, found: dict[str, Any]) -> str:
    text = [f"### {name}", squeezed(found.get("description", ""))]
    if rows := [
        (code(key), type_of(value), value.get("description", ""))
        for key, value in found.get("properties", {}).items()
    ]:
        has_notes = any(note for _, _, note in rows)
        head = ("field", "type", "meaning")
        text.append(table(head if has_notes else head[:2], [row[: 2 + has_notes] for row in rows]))
    return "\n\n".join(filter(None, text))


def type_of(found: dict[str, Any]) -> str:
    """Return a JSON schema in a few words, with a link where it is a type of this page."""
    if "$ref" in found:
        name = found["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if "anyOf" in found:
        return " or ".join(map(type_of, found["anyOf"]))
    if "enum" in found:
        return " or ".join(code(repr(one).replace("'", '"')) for one in found["enum"])
    if found.get("type") == "array":
        return f"list of {type_of(found.get('items', {}))}"
    if found.get("type") == "object" and "additionalProperties" in found:
        return f"object of {type_of(found['additionalProperties'])}"
    return str(found.get("type", "anything"))


def exported() -> str:
    rows = [
        (
            code(exposed(family)),
            family.type,
            ", ".join(map(code, labels(family))),
            family.documentation,
        )
        for family in families()
    ]
    return f"""# Metrics

A Jupyter server with the extension exports them at `/metrics`, and the hub's service at
`/services/gpushare/metrics`. The page on
[usage accounting](../how-to/accounting.md#prometheus-and-grafana) tells how Prometheus and Grafana
read them.

{table(("metric", "type", "labels", "meaning"), rows)}
"""


def families() -> Iterable[Metric]:
    """Return the metrics of a broker without a device and of a cluster without a node, which have
    all names and labels."""
    empty = Snapshot("", BrokerView(0, 0, 0.0), "fair", [], 0, [])
    return metrics.SnapshotCollector(lambda: empty, lambda: jobs.NONE).collect()


def exposed(family: Metric) -> str:
    return f"{family.name}_total" if family.type == "counter" else family.name


def labels(family: Metric) -> tuple[str, ...]:
    return tuple(getattr(family, "_labelnames", ()))


# --- Markdown -------------------------------------------------------------------------------------


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(map(cell, row))} |" for row in lines)


def cell(text: str) -> str:
    return squeezed(text).replace("|", "\\|")


def code(text: str) -> str:
    return f"`{text.strip()}`"


def shown(default: object) -> str:
    """Return a default as people write it."""
    if isinstance(default, bool):
        return str(default).lower()
    if isinstance(default, float):
        return f"{default:g}"
    if isinstance(default, tuple):
        return ", ".join(map(str, default))
    if isinstance(default, str):
        return code(default) if default else "empty"
    return "none" if default in ([], None) else str(default)


def plain(text: str) -> str:
    """Return a help text without argparse's own marks."""
    return text.replace("%%", "%")


def capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def squeezed(text: str) -> str:
    return re.sub(r"\s+", " ", text).strip()


def main() -> None:
    for name, text in pages().items():
        (REFERENCE / f"{name}.md").write_text(text)


if __name__ == "__main__":
    main()
