"""Sentences for refused input: each says what was given, and what would be right.

Settings, options, bodies of requests, messages and records are checked against their types. The
texts of the validator itself are for programmers; the sentences here are for all users.
"""

from __future__ import annotations

import difflib
import types
from collections.abc import Iterable
from typing import Any, TypeVar, Union, get_args, get_origin

import msgspec
from msgspec import inspect

from .errors import UNREADABLE, InvalidValue

SHOWN_LENGTH = 60
Kind = TypeVar("Kind")


def nearest(word: str, known: Iterable[str]) -> str:
    """Return ``did you mean ...?``, or all known words where none is like `word`."""
    names = list(known)
    by_stem = {_stem(name): name for name in names}
    alike = difflib.get_close_matches(_stem(word), by_stem, n=1, cutoff=0.6)
    if alike:
        return f"did you mean {by_stem[alike[0]]}?"
    return f"there are: {', '.join(names) or 'none'}"


def _stem(name: str) -> str:
    """Return the name without the ending that makes all names of notebooks alike."""
    return name.lower().removesuffix(".ipynb")


def decoded(body: bytes, kind: type[Kind], whole: str) -> Kind:
    """Decode JSON as `kind`. Raises InvalidValue; `whole` is what the sentence calls all of it."""
    try:
        return msgspec.json.decode(body, type=kind)
    except UNREADABLE:
        raise InvalidValue(in_json(body, kind, whole)) from None


def in_json(body: Any, kind: Any, whole: str) -> str:
    """Return what is wrong with JSON that was refused as `kind`."""
    try:
        value = msgspec.json.decode(body)
    except UNREADABLE:
        return f"{whole} is no JSON"
    return in_value(value, kind, whole) or f"{whole} cannot be read"


def in_value(value: Any, kind: Any, whole: str, strict: bool = True) -> str:
    """Return what is wrong with `value` as `kind`; empty where nothing is."""
    if is_tagged_union(kind):
        return _in_tagged(value, kind, whole)
    if is_struct(kind):
        return _in_struct(value, kind, whole, "", strict)
    return _in_plain(value, kind, whole, strict)


def is_struct(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, msgspec.Struct)


def is_tagged_union(kind: Any) -> bool:
    return get_origin(kind) in (Union, types.UnionType) and all(map(is_struct, get_args(kind)))


def _in_tagged(value: Any, kind: Any, whole: str) -> str:
    tag = value.get("type") if isinstance(value, dict) else None
    for one in get_args(kind):
        if one.__struct_config__.tag == tag:
            return _in_struct(value, one, whole, "", True)
    return f"{whole} should be an object whose type is that of a message, not {_shown(tag)}"


def _in_struct(table: Any, kind: Any, whole: str, place: str, strict: bool) -> str:
    if not isinstance(table, dict):
        return f"{place.rstrip('.') or whole} should be an object of names and values"
    known = {row.encode_name: row for row in msgspec.structs.fields(kind)}
    for key, value in table.items():
        if key not in known:
            if kind.__struct_config__.forbid_unknown_fields:
                return f"{place}{key} is not known; {nearest(str(key), known)}"
        elif wrong := _in_field(value, known[key].type, whole, f"{place}{key}", strict):
            return wrong
    missing = [key for key, row in known.items() if row.required and key not in table]
    return f"{place}{missing[0]} is missing" if missing else ""


def _in_field(value: Any, kind: Any, whole: str, place: str, strict: bool) -> str:
    if is_struct(kind):
        return _in_struct(value, kind, whole, f"{place}.", strict)
    return _in_plain(value, kind, place, strict)


def _in_plain(value: Any, kind: Any, place: str, strict: bool) -> str:
    try:
        msgspec.convert(value, kind, strict=strict)
    except msgspec.ValidationError:
        return f"{place} is {_shown(value)}, and should be {right(kind)}"
    return ""


def _shown(value: Any) -> str:
    if value is None:
        return "missing"
    if isinstance(value, (list, tuple, dict)):
        return "an object" if isinstance(value, dict) else "a list"
    text = f"{str(value).lower()}" if isinstance(value, bool) else f"{value!r}"
    return text if len(text) <= SHOWN_LENGTH else f"{text[:SHOWN_LENGTH]}…"


def right(kind: Any) -> str:
    """Return what a value of that type is like: ``a number above 0``."""
    return _words(inspect.type_info(kind))


def _words(kind: inspect.Type) -> str:
    if isinstance(kind, inspect.Metadata):
        examples = (kind.extra_json_schema or {}).get("examples", [])
        return " ".join([_words(kind.type), *(f"like {example}" for example in examples)])
    if isinstance(kind, inspect.UnionType):
        some = [one for one in kind.types if not isinstance(one, inspect.NoneType)]
        return " or ".join(map(_words, some))
    if isinstance(kind, inspect.LiteralType):
        return f"one of {', '.join(map(str, kind.values))}"
    if isinstance(kind, (inspect.FloatType, inspect.IntType)):
        return _number(kind)
    if isinstance(kind, inspect.StrType):
        length = kind.max_length
        return "text" if length is None else f"text of 1 to {length} Unicode characters"
    return {inspect.BoolType: "true or false", inspect.ListType: "a list"}.get(
        type(kind), "an object"
    )


def _number(kind: inspect.FloatType | inspect.IntType) -> str:
    noun = "a number" if isinstance(kind, inspect.FloatType) else "a whole number"
    return noun + _range(kind)


def _range(kind: inspect.FloatType | inspect.IntType) -> str:
    if kind.ge is not None and kind.le is not None:
        return f" from {kind.ge} to {kind.le}"
    if kind.ge is not None and kind.lt is None:
        return f" from {kind.ge} on"
    bounds = {"from": kind.ge, "above": kind.gt, "below": kind.lt, "at most": kind.le}
    said = " and ".join(f"{word} {end}" for word, end in bounds.items() if end is not None)
    return f" {said}" if said else ""
