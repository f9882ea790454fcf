"""A function or a cell of a notebook as a job. Its objects are pickled, by value if only this
process has them."""

from __future__ import annotations

import ast
import builtins
import symtable
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from ..errors import InvalidValue, cause
from ..format import size

MOST_BYTES = 64 << 20
CALL, CELL, NAMES, RESULT = "call.pkl", "cell.py", "names.pkl", "result.pkl"
OF_MODULES = ("__name__", "__file__", "__builtins__", "__annotations__")
MODULE = "jupyter_gpushare.jobs.call"  # runs these files, or a script


def of_function(function: Callable[..., Any], arguments: tuple[Any, ...]) -> dict[str, bytes]:
    """Return the files of the call. Raises InvalidValue."""
    try:
        return {CALL: dumped((function, arguments))}
    except Exception as error:  # pickling an object can raise anything
        name = getattr(function, "__name__", repr(function))
        raise InvalidValue(
            f"{name} and its arguments cannot be sent to a job: {cause(error)}"
        ) from None


def of_cell(source: str, namespace: Mapping[str, Any]) -> dict[str, bytes]:
    """Return the files of a cell with the names that it reads. The names are pickled together, so
    that a model and its optimizer still share parameters. Raises InvalidValue."""
    try:
        read = read_by(source)
    except SyntaxError as error:
        raise InvalidValue(f"line {error.lineno} of the cell is wrong: {error.msg}") from None
    if "get_ipython" in read:
        raise InvalidValue("magics and shell commands (`%`, `!`) work in notebooks, not in a job")
    if unknown := sorted(unknown_in(source, read, namespace)):
        raise InvalidValue(f"the cell reads {unknown[0]}, which this notebook does not have")
    names = {name: namespace[name] for name in sorted(read) if name in namespace}
    try:
        pickled = dumped(names)
    except Exception as error:
        raise InvalidValue(refusal(names, error)) from None
    return {CELL: source.encode(), NAMES: pickled}


def read_by(source: str) -> set[str]:
    """Return the global names that the code reads, including in its functions and classes. Raises
    SyntaxError."""
    return {*_read_by(symtable.symtable(source, "cell", "exec"))}


def unknown_in(source: str, read: set[str], namespace: Mapping[str, Any]) -> set[str]:
    """Return the names that the cell reads, and that neither the cell nor the notebook nor Python
    defines. With `from module import *` there are none, since it may define any name."""
    top = symtable.symtable(source, "cell", "exec")
    if any(
        isinstance(node, ast.alias) and node.name == "*" for node in ast.walk(ast.parse(source))
    ):
        return set()
    return read - {*_given_by(top), *namespace, *vars(builtins), *OF_MODULES}


def _given_by(table: symtable.SymbolTable) -> Iterator[str]:
    is_top = table.get_type() == "module"
    for symbol in table.get_symbols():
        is_given = symbol.is_assigned() or symbol.is_imported()
        if is_given and (is_top or symbol.is_declared_global()):
            yield symbol.get_name()
    for inner in table.get_children():
        yield from _given_by(inner)


def _read_by(table: symtable.SymbolTable) -> Iterator[str]:
    is_top = table.get_type() == "module"
    for symbol in table.get_symbols():
        if symbol.is_referenced() and (is_top or symbol.is_global()):
            yield symbol.get_name()
    for inner in table.get_children():
        yield from _read_by(inner)


def refusal(names: Mapping[str, Any], error: Exception) -> str:
    """Return the refusal, with the name that cannot be pickled if it can be found."""
    for name, value in names.items():
        try:
            dumped(value)
        except Exception as reason:
            return f"the variable {name} cannot be sent to a job: {cause(reason)}"
    return f"the variables that the cell reads cannot be sent to a job: {cause(error)}"


def dumped(value: object) -> bytes:
    import cloudpickle  # it pickles code of __main__ by value

    pickled: bytes = cloudpickle.dumps(value)
    if len(pickled) > MOST_BYTES:
        raise InvalidValue(
            f"it is {size(len(pickled))}, and at most {size(MOST_BYTES)} are; write it to a file,"
            " and read that in the job"
        )
    return pickled
