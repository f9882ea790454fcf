"""``jupyter gpushare doctor``: checks the installation, and tells how to mend problems."""

from __future__ import annotations

import glob
import importlib.metadata
import json
import os
import platform
import re
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from .._version import __version__
from ..broker.admin import rulebook_file
from ..cluster.engines.engine import NO_GPU, Node
from ..cluster.hands.hands import Hands, words_of
from ..cluster.program import engine_of
from ..errors import BrokerUnavailable, GpuShareError, NotPermitted
from ..format import counted
from ..jobs.connection import Cluster
from ..settings import Settings, cluster_socket_path, socket_path
from ..wire.client import Client
from ..wire.jobs import NodeView
from .check import Check, State
from .slurm_checks import slurm_checks

if TYPE_CHECKING:
    from ..devices.nvml import GpuUse
    from ..tables import Table
    from ..wire.snapshot import Snapshot

TORCH_SECONDS = 120  # a first import from a cold network disk takes long

# A separate process imports torch, so that the doctor stays light and survives an import that
# crashes.
TORCH_TEST = """
import json, torch
from jupyter_gpushare import _core
from jupyter_gpushare.client.torch.lanes import cuda_lane
from jupyter_gpushare.client.torch.demand.counters import self_test
lanes = cuda_lane.why_not() or _core.cuda_trouble(0)
print(json.dumps([torch.__version__, self_test(), lanes]))
"""
WITHOUT_LANES = "notebooks still take turns, and PyTorch's cache is emptied at the end of each turn"


class Installation:
    def __init__(self, settings: Settings) -> None:
        self.settings = settings

    @cached_property
    def snapshot(self) -> Snapshot | None:
        """The Snapshot of the broker, which is asked once; None if no broker responds."""
        with (
            suppress(GpuShareError),
            Client.connect(self.settings, "jupyter gpushare doctor", start=False) as client,
        ):
            return client.look()
        return None


def examine(here: Installation) -> Iterator[Check]:
    """Return all checks, in the order in which a user would mend the problems."""
    for look in CHECKS:
        yield from look(here)


def picture(found: list[Check]) -> Table:
    from .. import tables

    columns = [
        tables.Column("Check", lambda check: check.name, least=len("server extension")),
        tables.Column("State", lambda check: check.state, least=len("problem")),
        tables.Column("", lambda check: check.sentence, wraps=True, least=tables.TEXT_WIDTH),
    ]
    return tables.table_of("Installation", columns, found)


# --- checks ---------------------------------------------------------------------------------------


SEEN = ("0", "off")  # values of hidepid


def _proc(here: Installation) -> Iterator[Check]:
    """Warn if /proc hides processes of other users."""
    with suppress(OSError):
        mounts = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
        options = [mount[3] for mount in mounts if mount[1] == "/proc"][-1:]
        hidden = re.findall(r"\bhidepid=(\w+)", " ".join(options))
        if hidden and hidden[-1] not in SEEN:
            sentence = (
                f"/proc hides processes of other users (hidepid={hidden[-1]}): a broker for several"
                " users cannot see whether one of theirs still computes, and leaves lane memory to"
                " it until it has ended; mount /proc with gid= of the broker's group"
            )
            yield Check("processes", "warning", sentence)


def _system(here: Installation) -> Iterator[Check]:
    text = f"Python {platform.python_version()} on {platform.platform()}"
    if sys.platform == "linux":
        yield Check("system", "ok", text)
    else:
        yield Check("system", "problem", f"{text}: only Linux is supported")


def _packages(here: Installation) -> Iterator[Check]:
    for name, if_missing in PACKAGES.items():
        try:
            yield Check(name, "ok", importlib.metadata.version(name))
        except importlib.metadata.PackageNotFoundError:
            state: State = "warning" if if_missing else "problem"
            yield Check(name, state, if_missing or f"is not installed: pip install {name}")


def _core(here: Installation) -> Iterator[Check]:
    try:
        from .. import _core
    except ImportError as error:
        yield Check("C++ module", "problem", f"does not load ({error}): install the package again")
        return
    if _core.__version__ == __version__:
        yield Check("C++ module", "ok", _core.__version__)
    else:
        versions = f"is of version {_core.__version__}, the package of {__version__}"
        yield Check("C++ module", "problem", f"{versions}: install the package again")


def _server_extension(here: Installation) -> Iterator[Check]:
    enabled = None
    for directory in reversed(_jupyter_paths("jupyter_config_path")):
        # glob finds nothing in a directory without access, unlike Path.glob
        for name in sorted(glob.glob("jupyter_server_config.d/*.json", root_dir=directory)):
            enabled = _is_enabled(directory / name, enabled)
        enabled = _is_enabled(directory / "jupyter_server_config.json", enabled)
    if enabled:
        yield Check("server extension", "ok", "enabled")
    else:
        command = "jupyter server extension enable jupyter_gpushare"
        yield Check("server extension", "problem", f"is not enabled: {command}")


def _is_enabled(file: Path, before: bool | None) -> bool | None:
    """Return whether `file` enables our server extension, or `before` if it does not mention it."""
    try:
        listed = json.loads(file.read_text())["ServerApp"]["jpserver_extensions"]
        return bool(listed["jupyter_gpushare"])
    except (OSError, ValueError, KeyError, TypeError):
        return before


def _lab_extension(here: Installation) -> Iterator[Check]:
    for directory in _jupyter_paths("jupyter_path", "labextensions"):
        if os.path.isfile(directory / "jupyter-gpushare" / "package.json"):
            yield Check("lab extension", "ok", str(directory / "jupyter-gpushare"))
            return
    yield Check("lab extension", "problem", "is not installed: install the package again")


def _jupyter_paths(function: str, *parts: str) -> list[Path]:
    from jupyter_core import paths

    return [Path(path) for path in getattr(paths, function)(*parts)]


def _socket(here: Installation) -> Iterator[Check]:
    from ..wire.launch import checked

    try:
        directory = checked(socket_path(here.settings)).parent
        status = os.stat(f"{directory}/")  # the slash makes stat fail for a plain file
    except GpuShareError as error:
        yield Check("socket", "problem", str(error))
    except FileNotFoundError:
        yield Check("socket", "ok", f"{directory} will be made by the first broker")
    except OSError as error:
        mend = "ask its owner, or set JUPYTER_GPUSHARE_SOCKET to a path in a directory of yours"
        sentence = f"{directory} cannot be reached ({error.strerror}): {mend}"
        yield Check("socket", "problem", sentence)
    else:
        yield _mode(directory, stat.S_IMODE(status.st_mode), status.st_uid == os.getuid())


def _mode(directory: Path, mode: int, is_own: bool) -> Check:
    if not is_own:
        return Check(
            "socket", "ok", f"{directory} belongs to another user: a broker for all of a host"
        )
    if mode & 0o077:
        mend = f"others may enter {directory} (mode {mode:o})"
        return Check("socket", "warning", f"{mend}: chmod 700 {directory}, unless that is wanted")
    return Check("socket", "ok", f"{directory}, mode {mode:o}")


def _broker(here: Installation) -> Iterator[Check]:
    try:
        with Client.connect(here.settings, "jupyter gpushare doctor", start=False) as client:
            welcome = client.welcome
    except (BrokerUnavailable, NotPermitted) as error:
        yield Check("broker", "warning", str(error))
    except GpuShareError as error:
        yield Check("broker", "problem", f"{error}: jupyter gpushare broker --stop ends it")
    else:
        text = f"process {welcome.pid}, protocol {welcome.protocol}, version {welcome.version}"
        same = welcome.version == __version__
        mend = "" if same else ": jupyter gpushare broker --stop lets a new one start"
        yield Check("broker", "ok" if same else "warning", text + mend)


def _accounts(here: Installation) -> Iterator[Check]:
    """Check the accounts, by the answer of the broker, which has the file open and may run as
    another user."""
    if here.snapshot is None:
        return  # another check reports this
    if trouble := here.snapshot.broker.accounts:
        mend = "set JUPYTER_GPUSHARE_ACCOUNTS to a file that the broker can make"
        yield Check("accounts", "warning", f"{trouble}: {mend}")
    else:
        yield Check("accounts", "ok", "kept: `jupyter gpushare report` shows them")


def _rulebook(here: Installation) -> Iterator[Check]:
    """Check the rulebook. The broker's answer comes first, since its file may differ from ours."""
    rulebook = here.settings.rulebook
    if here.snapshot is not None and here.snapshot.rulebook_error:
        yield Check("rules", "problem", here.snapshot.rulebook_error)
    elif rulebook:
        try:
            rulebook_file.load(rulebook)
        except GpuShareError as error:
            yield Check("rules", "problem", str(error))
        else:
            yield Check("rules", "ok", rulebook)


SHARED = "jobs share the GPUs of {}, and take turns only where a broker runs on the node"


def _jobs(here: Installation) -> Iterator[Check]:
    """Tell where jobs would run: by the service of another user, or by the user's own engine."""
    from ..wire.launch import is_of_another_user

    settings = here.settings
    nodes: Mapping[str, Node | NodeView]
    is_of_others = is_of_another_user(cluster_socket_path(settings))
    # Another user who runs the broker need not run a service of jobs.
    is_wanted = settings.cluster_url or settings.cluster_socket or not is_of_others
    try:
        if settings.cluster_url or is_of_others:
            with Cluster(settings) as cluster:
                nodes = {node.name: node for node in cluster.look().nodes}
        else:
            if settings.cluster_engine == "slurm":
                yield from slurm_checks(settings)
            engine = engine_of(settings, Hands(words_of(settings.cluster_as_user)))("doctor")
            nodes = {**engine.nodes()}
    except GpuShareError as error:
        yield Check("jobs", "problem" if is_wanted else "warning", str(error))
        return
    if NO_GPU in (node.reason for node in nodes.values()):
        yield Check("jobs", "ok", f"{settings.cluster_engine}: {NO_GPU}")
        return
    gpus = sum(node.gpus for node in nodes.values())
    there = f"{settings.cluster_engine}: {counted(gpus, 'GPU')} of {counted(len(nodes), 'node')}"
    if not gpus:
        yield Check("jobs", "warning", f"{there}, so no job can start")
    elif shared := [name for name, node in nodes.items() if node.shards]:
        yield Check("jobs", "ok", f"{there}; {SHARED.format(', '.join(sorted(shared)))}")
    else:
        yield Check("jobs", "ok", there)


def _devices(here: Installation) -> Iterator[Check]:
    from ..devices import find_all
    from ..format import size

    sessions = _sessions(here.snapshot)
    yield _driver()
    for device in find_all(here.settings):
        text = f"{device.description}, {size(device.capacity_bytes)}"
        usage = device.usage() if device.usage is not None else None
        if usage is not None:
            text += _memory(device.capacity_bytes, usage, sessions.get(device.name, set()))
        yield Check(device.name, "ok", text)


def _driver() -> Check:
    from ..devices import nvml

    version, reason = nvml.driver()
    if reason:
        sentence = f"no GPU can be shared, only the device host: {reason}"
        return Check("GPU driver", "warning", sentence)
    return Check("GPU driver", "ok", version)


def _sessions(snapshot: Snapshot | None) -> dict[str, set[int]]:
    """Return the processes that share, by device; none if no broker runs."""
    devices = snapshot.devices if snapshot is not None else []
    return {device.name: {view.pid for view in device.sessions} for device in devices}


def _memory(capacity: int, usage: GpuUse, sessions: set[int]) -> str:
    from ..format import size

    unmanaged = {pid: used for pid, used in usage.processes.items() if pid not in sessions}
    text = f", {size(max(0, capacity - usage.used_bytes))} free"
    if not unmanaged:
        return text
    told = (
        "" if None in unmanaged.values() else f"{size(sum(filter(None, unmanaged.values())))} of "
    )
    which = ", ".join(map(str, sorted(unmanaged)))
    return f"{text}; {told}memory is unmanaged: of programs that do not share (process {which})"


def _visible(here: Installation) -> Iterator[Check]:
    """Tell which GPUs of the host `cuda:N` means in this environment."""
    from ..devices import nvml
    from ..devices.visible import VARIABLE, Visible

    if not (there := nvml.gpus()):
        return
    try:
        numbered = Visible(there).numbered
    except GpuShareError as error:
        yield Check("visible GPUs", "warning", str(error))
        return
    names = [f"cuda:{number} is {gpu.name} of this host" for number, gpu in enumerate(numbered)]
    if names:
        yield Check("visible GPUs", "ok", ", ".join(names))
    else:
        setting = os.environ.get(VARIABLE)
        hidden = f"none: {VARIABLE}={setting!r} hides them: sessions go to the host"
        yield Check("visible GPUs", "warning", hidden)


def _torch(here: Installation) -> Iterator[Check]:
    """Check whether torch can be imported, and whether its memory can be measured, and shared on a
    GPU."""
    try:
        importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        return
    try:
        ran = subprocess.run(
            [sys.executable, "-c", TORCH_TEST],
            cwd="/",  # so that no file of the user shadows a module
            capture_output=True,
            text=True,
            timeout=TORCH_SECONDS,
        )
    except subprocess.TimeoutExpired:
        yield Check("torch hooks", "problem", f"importing torch took over {TORCH_SECONDS} s")
        return
    if ran.returncode:
        reason = (ran.stderr.strip().splitlines() or ["without a word"])[-1]
        sentence = f"importing torch and testing its hooks failed: {reason}"
        yield Check("torch hooks", "problem", sentence)
        return
    version, hooks, lanes = json.loads(ran.stdout.strip().splitlines()[-1])
    yield _hooks(version, hooks)
    yield from _lanes(lanes)


def _hooks(version: str, reason: str) -> Check:
    if reason:
        mend = "sharing works, but all memory of a notebook counts as its model and data"
        return Check("torch hooks", "warning", f"{reason}; {mend}")
    return Check("torch hooks", "ok", f"memory of torch {version} is measured")


def _lanes(reason: str) -> Iterator[Check]:
    """Check shared lanes, if there is a GPU."""
    from ..devices import nvml

    if not nvml.gpus():
        return
    if reason:
        sentence = f"there are none on a GPU: {reason}; {WITHOUT_LANES}"
        yield Check("shared lanes", "warning", sentence)
    else:
        yield Check("shared lanes", "ok", "notebooks on a GPU use one piece of memory in turn")


# package -> the sentence if it is missing; empty: nothing works without it
PACKAGES = {
    "jupyter_gpushare": "",
    "ipykernel": "",
    "jupyter_server": "",
    "jupyterlab": "is not installed: notebooks share, but there is no panel to see it",
    "torch": "is not installed: code takes turns inside `with jupyter_gpushare.turn():` only",
}

CHECKS: tuple[Callable[[Installation], Iterator[Check]], ...] = (
    _system,
    _packages,
    _core,
    _server_extension,
    _lab_extension,
    _socket,
    _proc,
    _broker,
    _accounts,
    _rulebook,
    _jobs,
    _devices,
    _visible,
    _torch,
)
