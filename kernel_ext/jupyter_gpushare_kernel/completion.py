"""Completions after ``%gpushare``: commands, options, devices, policies, notebooks."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterable
from typing import Any

from IPython.core import completer

from jupyter_gpushare.errors import GpuShareError
from jupyter_gpushare.wire.client import Client
from jupyter_gpushare.wire.snapshot import Snapshot

from .arguments import COMMANDS, SHARING

MAGIC = re.compile(r"^\s*(%?%gpushare)\s(.*)$", re.DOTALL)
NAMES = ("%gpushare", "%%gpushare")
QUOTES = "'\""


def register(ipython: Any) -> None:
    """Complete with IPython's matchers (from 8.6 on), else with its older completion hook."""
    if hasattr(completer, "SimpleCompletion"):
        ipython.Completer.custom_matchers.append(matcher)
    else:
        for name in NAMES:
            ipython.set_hook("complete_command", complete_command, str_key=name)


def unregister(ipython: Any) -> None:
    """Unregister the matcher. The older hook cannot be removed, but completes nothing without the
    magic."""
    if matcher in getattr(ipython.Completer, "custom_matchers", ()):
        ipython.Completer.custom_matchers.remove(matcher)


def matcher(context: Any) -> dict[str, Any]:
    """A matcher of IPython's second interface; `context.token` is what it will replace."""
    found = _in_place_of(context.token, context.text_until_cursor)
    return {
        "completions": [completer.SimpleCompletion(text=word, type="param") for word in found],
        "suppress": bool(found),
        "ordered": True,
    }


matcher.matcher_api_version = 2  # type: ignore[attr-defined]
matcher.matcher_identifier = "gpushare_matcher"  # type: ignore[attr-defined]


def complete_command(ipython: Any, event: Any) -> list[str]:
    """IPython's older completion hook; `event.symbol` is what it will replace."""
    return _in_place_of(event.symbol, event.text_until_cursor)


def candidates(text: str) -> tuple[str, list[str]]:
    """Return the fragment at the end of `text` (a line up to the cursor), and what it may
    become."""
    match = MAGIC.match(text)
    if match is None:
        return "", []
    *words, fragment = re.split(r"[\s=]+", match[2].lstrip())
    if match[1] == "%%gpushare":
        words.insert(0, "cell")
    begun = fragment.lstrip(QUOTES)
    return fragment, [word for word in _next(words) if word.lstrip(QUOTES).startswith(begun)]


def _in_place_of(token: str, text: str) -> list[str]:
    """Return completions of IPython's token, which may be only the end of our fragment: ``1`` of
    ``cuda:1``."""
    fragment, found = candidates(text)
    kept = len(fragment) - len(token)
    return [word[kept:] for word in found if word.startswith(fragment[:kept])]


def _next(words: list[str]) -> Iterable[str]:
    if not words:
        return COMMANDS
    command = COMMANDS.get(words[0])
    if command is None:
        return ()
    if words[-1] in (option.flag for option in SHARING):
        return _VALUES.get(words[-1], tuple)()
    flags = [option.flag for option in command.options if option.flag not in words]
    return [*flags, *_WORDS.get(command.name, tuple)()]


def _devices() -> Iterable[str]:
    return dict.fromkeys(
        ("auto", "host", *_seen(lambda snapshot: [d.name for d in snapshot.devices]))
    )


def _counts() -> Iterable[str]:
    """Numbers of devices that a session may have at once."""
    there = [name for name in _devices() if name not in ("auto", "host")]
    return map(str, range(1, len(there) + 1))


def _notebooks() -> Iterable[str]:
    seen = _seen(lambda snapshot: [s.name for d in snapshot.devices for s in d.sessions])
    return map(shlex.quote, seen)


def _squeezings() -> Iterable[str]:
    return ("auto", "off")


def _policies() -> Iterable[str]:
    from jupyter_gpushare._core import policies

    return [name for name, _ in policies()]


_VALUES: dict[str, Callable[[], Iterable[str]]] = {"--device": _devices, "--devices": _counts} | {
    "--squeeze": _squeezings
}
_WORDS = {"pause": _notebooks, "policy": _policies, "squeeze": _squeezings}


def _seen(names: Callable[[Snapshot], list[str]]) -> list[str]:
    """Return words from a running broker; a completion starts no broker."""
    try:
        with Client.connect(start=False) as client:
            return names(client.look())
    except GpuShareError:
        return []
