"""Run a command in its own mount namespace. All users may reach this project and its Python there,
and the given rules of sudo hold:

    unshare --mount python tests/unit/cluster/users/reachable.py RULES COMMAND...

Project and Python may lie below a home directory that only its owner can enter. Nothing changes
outside of the namespace.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[4]
SUDOERS = Path("/etc/sudoers.d")


def mount(*words: str | Path) -> None:
    subprocess.run(["mount", *map(str, words)], check=True)


def empty(directory: Path) -> None:
    mount("-t", "tmpfs", "-o", "mode=755", "none", directory)


def closed(path: Path) -> Path | None:
    """Return the outermost directory above the path that not all users can enter."""
    return next((p for p in reversed(path.parents) if not p.stat().st_mode & 0o001), None)


def open_to_all(path: Path) -> None:
    """Replace a closed directory by one with only the way to `path`."""
    if (door := closed(path)) is None:
        return
    kept = Path(tempfile.mkdtemp(dir="/run"))
    mount("--bind", path, kept)
    empty(door)
    path.mkdir(parents=True)
    mount("--move", kept, path)
    kept.rmdir()


def main(rules: str, *command: str) -> None:
    mount("--make-rprivate", "/")
    for path in (Path(sys.base_prefix), ROOT):
        open_to_all(path)
    empty(Path("/srv"))
    empty(SUDOERS)
    (SUDOERS / "gpushare").write_text(rules)
    (SUDOERS / "gpushare").chmod(0o440)
    os.execvp(command[0], command)


if __name__ == "__main__":
    main(*sys.argv[1:])
