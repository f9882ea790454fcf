"""Build the JupyterLab extension and the widget where their sources changed since the last build.

CMake runs this in every install. A hash decides, not time stamps: a build in isolation touches
files, and running Node.js each time would cost ten seconds. Needs Node.js >= 20, and jlpm, which
the package jupyter-builder brings; neither is needed where the hash says that the result is there,
as in a source distribution.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

HERE = Path(__file__).resolve().parent
HASH = HERE.parent / "jupyter_gpushare" / "labextension" / ".hash"
WIDGET = HERE.parent / "jupyter_gpushare" / "static" / "widget.js"
FILES = ("build.py", "package.json", "tsconfig.json", "yarn.lock", ".yarnrc.yml")
FOLDERS = ("schema", "src", "style")


def sources() -> Iterator[Path]:
    yield from (HERE / name for name in FILES)
    for folder in FOLDERS:
        yield from sorted(path for path in (HERE / folder).rglob("*") if path.is_file())


def digest() -> str:
    """Return one hash over the names and contents of all files that the result depends on."""
    total = hashlib.sha256()
    for path in sources():
        total.update(f"{path.relative_to(HERE).as_posix()}\0".encode())
        total.update(hashlib.sha256(path.read_bytes()).digest())
    return total.hexdigest()


def jlpm() -> str | None:
    """Return jlpm of the PATH, else the one beside this Python."""
    return shutil.which("jlpm") or shutil.which("jlpm", path=str(Path(sys.executable).parent))


def main() -> int:
    wanted = digest()
    if WIDGET.exists() and HASH.exists() and HASH.read_text().strip() == wanted:
        print("labextension: up to date")
        return 0
    builder = jlpm()
    if builder is None or shutil.which("node") is None:
        print("labextension: building it needs Node.js >= 20 and jlpm", file=sys.stderr)
        return 1
    for arguments in (["install", "--immutable"], ["build:prod"]):
        subprocess.run([builder, *arguments], cwd=HERE, check=True)
    HASH.write_text(wanted + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
