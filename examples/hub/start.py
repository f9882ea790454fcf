"""`make hub`: a class on this machine, with three students, a teacher and an admin.

Starts a JupyterHub with the configuration beside this file, on this machine alone; Ctrl-C ends it,
with all that it has started. The files of the class stay in the folder that it names.
Needs JupyterHub and its proxy: pip install jupyter_gpushare[hub]; npm install -g
configurable-http-proxy.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))

from ports import free_ports

HERE = Path(__file__).resolve().parent
CONFIG = HERE / "jupyterhub_config.py"
MODULES = HERE.parents[1] / "labextension" / "node_modules" / ".bin"
URLS = ("CLASS_HUB_URL", "CLASS_PROXY_API_URL", "CLASS_SERVICE_URL")


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    options.add_argument("--port", type=int, default=8000, help="where people open it (8000)")
    options.add_argument("--home", type=Path, help="the class's folder; else a new one in /tmp")
    chosen = options.parse_args()
    home = (chosen.home or Path(tempfile.mkdtemp(prefix="class-"))).resolve()
    environment = surroundings(home, chosen.port)
    if shutil.which("configurable-http-proxy", path=environment["PATH"]) is None:
        print(
            "hub: its proxy is not installed: npm install -g configurable-http-proxy",
            file=sys.stderr,
        )
        return 1
    print(
        f"Open {environment['CLASS_URL']} as ada, ben or cleo (students), tess (teacher) or admin;"
        " the password is `class`.\n"
        f"The devices, for all: {environment['CLASS_URL']}/services/gpushare/\n"
        f"Files are in {home}. Ctrl-C ends it all.",
        flush=True,
    )
    return run(home, environment)


def surroundings(home: Path, port: int) -> dict[str, str]:
    """Return the environment of a hub in the folder `home`, with no settings from outside."""
    (home / "homes").mkdir(parents=True, exist_ok=True)
    (home / "run").mkdir(mode=0o700, exist_ok=True)
    rules = home / "rules.toml"  # the broker accepts only rules that no other user may write
    if not rules.exists():
        rules.write_text((HERE / "rules.toml").read_text())
        rules.chmod(0o644)
    places = {
        name: f"http://127.0.0.1:{free}"
        for name, free in zip(URLS, free_ports(len(URLS)), strict=True)
    }
    return {
        **{name: value for name, value in os.environ.items() if not name.startswith("JUPYTER")},
        **places,
        "CLASS_HOME": str(home),
        "CLASS_RULES": str(rules),
        "CLASS_URL": f"http://127.0.0.1:{port}",
        "PATH": f"{os.environ.get('PATH', os.defpath)}:{MODULES}",
    }


def run(home: Path, environment: dict[str, str]) -> int:
    """Run a hub in the foreground, until it ends."""
    command = [sys.executable, "-m", "jupyterhub", "-f", str(CONFIG)]
    with subprocess.Popen(command, env=environment, cwd=home) as hub, passing_on(hub):
        status = hub.wait()
    end_broker(home)
    return 0 if status in (0, -signal.SIGINT, -signal.SIGTERM) else status


@contextlib.contextmanager
def passing_on(hub: subprocess.Popen[bytes]) -> Iterator[None]:
    """Pass SIGTERM on to the hub, which only this process gets; a terminal's Ctrl-C also reaches
    the hub."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: hub.terminate())
    yield


def end_broker(home: Path) -> None:
    """End the broker. It outlives the hub, as it should where the hub is only restarted."""
    with contextlib.suppress(OSError, ValueError):
        os.kill(int((home / "run" / "broker.lock").read_text()), signal.SIGTERM)


if __name__ == "__main__":
    sys.exit(main())
