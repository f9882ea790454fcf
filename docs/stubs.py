"""Writes the stubs of the C++ modules from their bindings: `make reference`.
tests/house/test_docs.py keeps them so."""

from __future__ import annotations

import re
import subprocess
import sys
import textwrap
from pathlib import Path
from tempfile import TemporaryDirectory

import jupyter_gpushare
from jupyter_gpushare import _core
from jupyter_gpushare.wire.snapshot import State

FOLDER = Path(jupyter_gpushare.__file__).parent
MODULES = ("_core", "_core_testing")
RUFF = ("--quiet", "--config", str(FOLDER.parent / "pyproject.toml"))
RULES = ", ".join(
    f"{name}: {type(default).__name__} = {default}"
    for name in _core.Rules.names
    for default in [getattr(_core.Rules(), name)]
)
# Regular expressions of what the bindings do not tell.
REPLACED = {
    r"typing\.SupportsFloat \| typing\.SupportsIndex": "float",
    r"typing\.SupportsInt \| typing\.SupportsIndex": "int",
    r"\*\*kwargs": f"*, {RULES}",
    r"names: typing\.ClassVar\[list\] = .*": "names: typing.ClassVar[list[str]]",
    r"def state\(self\) -> str": f"def state(self) -> {State}",
    r"def stacks\(\) -> dict": "def stacks() -> dict[int, list[types.CodeType]]",
    r"collections\.abc\.Callable\b": "collections.abc.Callable[..., typing.Any]",
    r"\blist\b(?!\[)": "list[typing.Any]",
    r"__eq__\(self, arg0: \w+\)": "__eq__(self, other: object)",
    r"^ +__hash__: .*\n": "",
    r"^__all__: .*\n": "",
    r"^import typing$": "import types\nimport typing",
}


def stubs() -> dict[str, str]:
    """Return the text of each stub, by the name of its module."""
    with TemporaryDirectory() as folder:
        for name in MODULES:
            run("pybind11_stubgen", f"jupyter_gpushare.{name}", "--output-dir", folder)
        files = [*Path(folder).rglob("*.pyi")]
        for file in files:
            file.write_text(replaced(file.read_text()))
        run("ruff", "check", "--fix", "--exit-zero", *RUFF, folder)
        run("ruff", "format", *RUFF, folder)
        return {file.stem: file.read_text() for file in files}


def run(*words: str) -> None:
    subprocess.run([sys.executable, "-m", *words], check=True, capture_output=True)


def replaced(text: str) -> str:
    for pattern, replacement in REPLACED.items():
        text = re.sub(pattern, replacement, text, flags=re.MULTILINE)
    return re.sub(r'(?ms)^( *)"""\n(.*?)\n *"""$', docstring, text)


def docstring(found: re.Match[str]) -> str:
    """Break the lines of a docstring."""
    indent, text = found.groups()
    paragraphs = textwrap.dedent(f'{indent}"""{text.lstrip()}"""').split("\n\n")
    filled = (textwrap.fill(" ".join(each.split()), 100 - len(indent)) for each in paragraphs)
    return textwrap.indent("\n\n".join(filled), indent)


def main() -> None:
    for name, text in stubs().items():
        (FOLDER / f"{name}.pyi").write_text(text)


if __name__ == "__main__":
    main()
