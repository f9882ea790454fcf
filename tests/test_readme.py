"""What the README says of commands and settings is what there is."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from jupyter_gpushare import _core
from jupyter_gpushare.settings import Settings

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text()


def settings_table() -> str:
    """The rows as the README should have them."""
    properties = msgspec.json.schema(Settings)["$defs"]["Settings"]["properties"]
    return "\n".join(
        f"| `{name}` | {shown(row['default'])} | {row['description']} |"
        for name, row in properties.items()
    )


def shown(default: object) -> str:
    return "empty" if default == "" else str(default)


def test_the_table_of_settings_is_the_table_of_settings() -> None:
    assert settings_table() in README


def test_the_table_of_policies_is_the_table_of_policies() -> None:
    rows = "\n".join(f"| `{name}` | {sentence} |" for name, sentence in _core.policies())
    assert rows in (ROOT / "docs" / "explanation" / "scheduling.md").read_text()


@pytest.mark.parametrize("command", sorted(set(re.findall(r"jupyter gpushare ([a-z]+)", README))))
def test_each_command_of_the_readme_exists(command: str) -> None:
    code = "import sys; from jupyter_gpushare.tools.cli import main; sys.exit(main(sys.argv[1:]))"
    run = [sys.executable, "-c", code, command, "--help"]
    assert subprocess.run(run, capture_output=True, check=False).returncode == 0


@pytest.mark.parametrize("target", sorted(set(re.findall(r"`make ([a-z-]+)`", README))))
def test_each_target_of_the_readme_exists(target: str) -> None:
    assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.MULTILINE)


@pytest.mark.parametrize("path", sorted(set(re.findall(r"\]\(((?!https?:)[^)#]+)", README))))
def test_each_file_that_the_readme_links_to_exists(path: str) -> None:
    assert (ROOT / path).exists()
