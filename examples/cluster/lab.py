"""`make cluster`: a Slurm of three nodes on this machine, with a Jupyter server in front.

Starts Slurm and JupyterLab, on this machine alone; Ctrl-C ends them, with all jobs. The files stay
in the folder that it names. It needs root and Slurm's programs (on Debian: apt-get install
slurmctld slurmd slurm-client munge), and no GPU: those of the nodes are names alone.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

from slurm import Slurm, missing

from jupyter_gpushare.errors import BrokerUnavailable
from jupyter_gpushare.jobs.connection import Cluster
from jupyter_gpushare.settings import load

HERE = Path(__file__).resolve().parent
NODES = {"node-a": 4, "node-b": 2, "node-c": 2}
# A job yields within seconds instead of within an hour.
QUICK = {
    "BOUNDS": "20",
    "LEAST_SECONDS": "2",
    "MOST_LEAST_SECONDS": "2",
    "LOOK_SECONDS": "0.2",
}


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    options.add_argument("--port", type=int, default=8888, help="where JupyterLab listens (8888)")
    options.add_argument("--home", type=Path, help="its folder; else a new one in /tmp")
    chosen = options.parse_args()
    if reason := missing():
        print(f"cluster: {reason}", file=sys.stderr)
        return 1
    home = (chosen.home or Path(tempfile.mkdtemp(prefix="cluster-"))).resolve()
    slurm = Slurm(made(home / "slurm"), NODES)
    try:
        return run(home, chosen.port, surroundings(home, slurm))
    finally:
        end_service(home)
        slurm.end()


def made(folder: Path) -> Path:
    folder.mkdir(parents=True)
    return folder


def surroundings(home: Path, slurm: Slurm) -> dict[str, str]:
    """Return the environment of a Jupyter server, with no settings from outside."""
    outer = {name: text for name, text in os.environ.items() if not name.startswith("JUPYTER_GPU")}
    ours = {f"JUPYTER_GPUSHARE_CLUSTER_{name}": text for name, text in QUICK.items()}
    return {
        **outer,
        **slurm.environment,
        **ours,
        "JUPYTER_GPUSHARE_SOCKET": str(home / "run" / "broker.sock"),
        "JUPYTER_GPUSHARE_CLUSTER_DIRECTORY": str(home / "jobs"),
        "JUPYTER_GPUSHARE_CLUSTER_ENGINE": "slurm",
        "GPUSHARE_ADDRESS": "127.0.0.1",  # where ranks of all nodes meet
    }


def run(home: Path, port: int, environment: dict[str, str]) -> int:
    """Run JupyterLab in the foreground, until it ends."""
    made(home / "run").chmod(0o700)
    shutil.copy(HERE / "gives_way.ipynb", made(home / "notebooks"))
    command = [
        *(sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root", "--ip=127.0.0.1"),
        *(f"--port={port}", f"--ServerApp.root_dir={home}/notebooks"),
    ]
    print(
        f"Open gives_way.ipynb in JupyterLab. Files are in {home}. Ctrl-C ends it all.", flush=True
    )
    with subprocess.Popen(command, env=environment, cwd=home) as lab:
        # A terminal's Ctrl-C also reaches JupyterLab, which asks for a second one.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, lambda *_: lab.terminate())
        status = lab.wait()
    return 0 if status in (0, -signal.SIGINT, -signal.SIGTERM) else status


def end_service(home: Path) -> None:
    """End the service of jobs, which outlives a Jupyter server, and the broker."""
    settings = load({}, socket=str(home / "run" / "broker.sock"), start_broker=False)
    with suppress(BrokerUnavailable, OSError), Cluster(settings) as cluster:
        os.kill(cluster.look().pid, signal.SIGTERM)
    with suppress(OSError, ValueError):
        os.kill(int((home / "run" / "broker.lock").read_text()), signal.SIGTERM)


if __name__ == "__main__":
    sys.exit(main())
