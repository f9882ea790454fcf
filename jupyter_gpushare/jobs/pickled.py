"""A function or a cell of a notebook as a job. Its objects are pickled, by value if only this
process has them."""

from __future__ import annotations

import ast
import builtins
import io
import symtable
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any, BinaryIO

from ..errors import InvalidValue, cause
from ..format import size

MOST_BYTES = 64 << 20
CALL, CELL, NAMES, RESULT = "call.pkl", "cell.py", "names.pkl", "result.pkl"
OF_MODULES = ("__name__", "__file__", "__builtins__", "__annotations__")
MODULE = "jupyter_gpushare.jobs.call"  # runs these files, or a script


def of_function(function: Callable[..., Any], arguments: tuple[Any, ...]) -> dict[str, bytes]:
    """Return the files of the call. Raises InvalidValue."""
    try:
        return {CALL: sent((function, arguments))}
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
        pickled = sent(names, namespace)
    except Exception as error:
        raise InvalidValue(refusal(names, namespace, error)) from None
    return {CELL: source.encode(), NAMES: pickled}


def read_by(source: str) -> set[str]:
    """Return the global names that the code reads, including in its functions and classes. Raises
    SyntaxError."""
    top = symtable.symtable(source, "cell", "exec")
    return {*_read_by(top, {*_changed_by(ast.parse(source))})}


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


def _read_by(table: symtable.SymbolTable, changed: set[str]) -> Iterator[str]:
    is_top = table.get_type() == "module"
    for symbol in table.get_symbols():
        is_read = symbol.is_referenced() or symbol.get_name() in changed
        if is_read and (is_top or symbol.is_global()):
            yield symbol.get_name()
    for inner in table.get_children():
        yield from _read_by(inner, changed)


def _changed_by(tree: ast.AST) -> Iterator[str]:
    """Yield the names, of any scope, that `+=` and `del` change. They have to be there before, but
    symbol tables call them assigned only."""
    for node in ast.walk(tree):
        if isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
            yield node.target.id
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Del):
            yield node.id


def refusal(names: Mapping[str, Any], main: Mapping[str, Any], error: Exception) -> str:
    """Return the refusal, with the name that cannot be pickled if it can be found."""
    for name, value in names.items():
        try:
            sent(value, main)
        except Exception as reason:
            return f"the variable {name} cannot be sent to a job: {cause(reason)}"
    return f"the variables that the cell reads cannot be sent to a job: {cause(error)}"


def sent(value: object, main: Mapping[str, Any] | None = None) -> bytes:
    """Return the pickled value, as `dump` does. Raises InvalidValue if it is too large."""
    file = io.BytesIO()
    dump(value, file, main)
    pickled = file.getvalue()
    if len(pickled) > MOST_BYTES:
        raise InvalidValue(
            f"it is {size(len(pickled))}, and at most {size(MOST_BYTES)} are; write it to a file,"
            " and read that in the job"
        )
    return pickled


def dump(value: object, file: BinaryIO, main: Mapping[str, Any] | None = None) -> None:
    """Pickle a value, and code of `__main__` by value. Functions whose globals are `main` get those
    of the job's `__main__`, together with the names that they read."""
    import cloudpickle

    pickler = cloudpickle.Pickler(file)
    if main is not None:
        pickler.globals_ref[id(main)] = OfMain(__name__="__main__")  # an empty one would be filled
    pickler.dump(value)


class OfMain(dict[str, Any]):
    """The globals of `__main__`, of the process that unpickles them."""

    def __reduce__(self) -> tuple[Callable[[], dict[str, Any]], tuple[()]]:
        return globals_of_main, ()


def globals_of_main() -> dict[str, Any]:
    return vars(sys.modules["__main__"])
