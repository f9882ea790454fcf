"""Ray: a placement group on the nodes that the service has chosen, and on each of them an actor
that holds a launcher.

Both are detached, so they outlive the service. Ray does not tell the users of a cluster apart, so
this engine does not either.
"""

from __future__ import annotations

import contextlib
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import wraps
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import ray
from ray.util import (
    get_placement_group,
    placement_group,
    placement_group_table,
    remove_placement_group,
)
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from ...errors import EngineUnavailable, NoRoom, cause
from .engine import Lease, Node, Start, Status, parse

NAMESPACE = "gpushare"
ROOM_SECONDS = 3.0  # a gang waits for its GPUs at most this time
ANSWER_SECONDS = 5.0  # an actor has this time to answer
MARK = "GPUSHARE_LEASE"  # a variable
ROUNDS = 100  # of killing: a process may start another one meanwhile
LOOK_SECONDS = 0.02  # the wait for an answer, which the look before asked for
# The launcher ignores the signal to yield until it has a handler.
QUIET = ("/bin/sh", "-c", "trap '' USR2; exec \"$@\"", "sh")

Given = ParamSpec("Given")
Answer = TypeVar("Answer")


class Holder:
    """The actor of one node of a gang. Its launcher ends with it, even if the actor is killed. All
    processes of the launcher have `mark` in their environment."""

    def __init__(self, command: list[str], mark: str) -> None:
        environment = {**os.environ, MARK: mark, "GPUSHARE_ENDS_WITH": str(os.getpid())}
        self._mark = f"{MARK}={mark}".encode()
        self._launcher = subprocess.Popen(
            [*QUIET, *command], env=environment, start_new_session=True
        )

    def has_ended(self) -> bool:
        return self._launcher.poll() is not None

    def ask_yield(self) -> None:
        if not self.has_ended():
            self._launcher.send_signal(signal.SIGUSR2)

    def kill(self) -> None:
        for _ in range(ROUNDS):
            if not (found := self._marked()):
                return
            for pid in found:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(LOOK_SECONDS)
            self.has_ended()  # otherwise the launcher would stay as a zombie

    def _marked(self) -> list[int]:
        found = []
        for name in filter(str.isdigit, os.listdir("/proc")):
            with contextlib.suppress(OSError):  # another user's, or ended just now
                if self._mark in Path(f"/proc/{name}/environ").read_bytes().split(b"\0"):
                    found.append(int(name))
        return found


def answered(verb: Callable[Given, Answer]) -> Callable[Given, Answer]:
    """Raise EngineUnavailable if Ray could not be asked."""

    @wraps(verb)
    def asked(*given: Given.args, **named: Given.kwargs) -> Answer:
        try:
            return verb(*given, **named)
        except (ray.exceptions.RayError, ConnectionError, TimeoutError, RuntimeError) as error:
            raise EngineUnavailable(f"Ray: {cause(error).splitlines()[0]}") from None

    return asked


class RayEngine:
    """`address` is the address of the head, like ``10.0.0.5:6379``; ``auto``: the Ray of this
    machine.

    A handle is the name of a placement group with the number of its nodes.
    """

    def __init__(self, cluster: str, address: str = "auto", python: str = sys.executable) -> None:
        self._cluster, self._address, self._python = cluster, address, python
        self._asked: dict[Lease, list[Any]] = {}  # pending answers of `has_ended`
        self._remote: Any = None

    @answered
    def nodes(self) -> Mapping[str, Node]:
        self._connect()
        free = ray._private.state.available_resources_per_node()
        found: dict[str, Node] = {}
        for node in ray.nodes():
            name, gpus = node["NodeName"], int(node["Resources"].get("GPU", 0))
            left = int(free.get(node["NodeID"], {}).get("GPU", 0))
            if node["Alive"] and gpus:
                found[name] = Node(gpus, gpus - left)
            elif not node["Alive"]:
                found.setdefault(name, Node(0, alive=False))
        return found

    @answered
    def start(self, start: Start) -> Lease:
        self._connect()
        where = {node: math.ceil(gpus) for node, gpus in start.where.items()}  # no node has shards
        group = placement_group(
            [{"GPU": gpus} for gpus in where.values()],
            name=start.name,
            lifetime="detached",
            bundle_label_selector=[{"ray.io/node-id": id} for id in ids_of(where)],
        )
        if not group.wait(ROOM_SECONDS):
            remove_placement_group(group)
            raise NoRoom(f"Ray: there are no such GPUs: {where}")
        for number, (node, gpus) in enumerate(where.items()):
            self._remote.options(
                name=f"{start.name}.{number}",
                namespace=NAMESPACE,
                lifetime="detached",
                num_gpus=gpus,
                num_cpus=0,
                max_restarts=0,
                scheduling_strategy=PlacementGroupSchedulingStrategy(group, number),
            ).remote([*start.command(self._python), node], f"{start.name}.{number}")
        return Lease(start.job, start.generation, f"{start.name}|{len(start.where)}")

    @answered
    def ask_yield(self, lease: Lease) -> None:
        self._connect()
        for holder in holders_of(lease):
            if holder is not None:
                holder.ask_yield.remote()

    @answered
    def kill(self, lease: Lease) -> None:
        self._connect()
        for holder in holders_of(lease):
            if holder is not None:
                with contextlib.suppress(ray.exceptions.RayError):
                    ray.get(holder.kill.remote(), timeout=ANSWER_SECONDS)
                ray.kill(holder)
        with contextlib.suppress(ValueError):  # it is not there any more
            remove_placement_group(get_placement_group(group_of(lease)))

    @answered
    def poll(self, leases: Collection[Lease]) -> Mapping[Lease, Status]:
        self._connect()
        self._asked = {lease: asked for lease, asked in self._asked.items() if lease in leases}
        found = {}
        for lease in leases:
            if (status := self._status(lease)) is not None:
                found[lease] = status
        return found

    def _status(self, lease: Lease) -> Status | None:
        """Return the status; None for a gang that is gone. A gang whose launchers have all ended
        gives its GPUs back here."""
        if not is_there(lease):
            return None
        asked = self._asked.pop(lease, None) or [
            holder and holder.has_ended.remote() for holder in holders_of(lease)
        ]
        try:
            ended = [one is None or self._answer(one) for one in asked]
        except ray.exceptions.GetTimeoutError:
            self._asked[lease] = asked  # the next look reads their answers
            return Status("running")
        except ray.exceptions.RayActorError:
            return Status("unreachable")
        if None in asked:
            return Status("unreachable")
        if all(ended):
            self.kill(lease)
            return None
        return Status("running")

    def _answer(self, one: Any) -> bool:
        return bool(ray.get(one, timeout=LOOK_SECONDS))

    @answered
    def adopt(self) -> Collection[Lease]:
        """Look for groups, not for actors: a service that was killed between creating the two has
        left a group that holds its GPUs."""
        self._connect()
        found = set()
        for group in placement_group_table().values():
            of = parse(group["name"], self._cluster)
            if of is not None and group["state"] != "REMOVED":
                found.add(Lease(*of, f"{group['name']}|{len(group['bundles'])}"))
        return found

    def _connect(self) -> None:
        """Connect to Ray, again if the node of the connection is lost. Workers get the class by
        value, so they do not need this package."""
        if ray.is_initialized() and not is_connected():
            ray.shutdown()
        if not ray.is_initialized():
            ray.init(
                self._address, namespace=NAMESPACE, log_to_driver=False, configure_logging=False
            )
        if self._remote is None:
            ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])
            self._remote = ray.remote(Holder)


def is_connected() -> bool:
    own = ray.get_runtime_context().get_node_id()
    return any(node["NodeID"] == own and node["Alive"] for node in ray.nodes())


def ids_of(where: Mapping[str, int]) -> Iterator[str]:
    """Raises NoRoom."""
    ids = {node["NodeName"]: node["NodeID"] for node in ray.nodes() if node["Alive"]}
    for name in where:
        if name not in ids:
            raise NoRoom(f"Ray: {name} is there no more")
        yield ids[name]


def group_of(lease: Lease) -> str:
    return lease.handle.partition("|")[0]


def is_there(lease: Lease) -> bool:
    groups = placement_group_table().values()
    return any(g["name"] == group_of(lease) and g["state"] != "REMOVED" for g in groups)


def holders_of(lease: Lease) -> Iterator[Any]:
    """Yield the actor of each node, or None if it is gone."""
    name, _, count = lease.handle.partition("|")
    for number in range(int(count) if count.isdigit() else 0):
        try:
            yield ray.get_actor(f"{name}.{number}", namespace=NAMESPACE)
        except ValueError:
            yield None
