"""Directives of the broker's rules for kernels, carried out on the kernels of this server."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

from jupyter_core.utils import ensure_async

from jupyter_gpushare.wire.snapshot import Intervention, Snapshot

from ..processes import processes
from .audit import Audit


class Interventions:
    """Carries out each directive once. The broker decides; only kernels of this server are touched.

    A kernel that is busy according to Jupyter is not culled, even if the broker sees no running
    cell.
    """

    def __init__(
        self,
        kernels: Any,
        audit: Audit,
        log: logging.Logger | logging.LoggerAdapter[logging.Logger],
    ) -> None:
        """`kernels` is the server's MappingKernelManager."""
        self._kernels = kernels
        self._audit = audit
        self._log = log
        self._begun: set[tuple[str, str]] = set()  # session and action
        self._running: set[asyncio.Task[None]] = set()  # keeps them from garbage collection

    def observe(self, snapshot: Snapshot) -> None:
        self._begun &= {(one.session, one.action) for one in snapshot.interventions}
        if not snapshot.interventions:
            return
        pids, kernels = _pids(snapshot), {pid: name for name, pid in processes(self._kernels)}
        for one in snapshot.interventions:
            kernel = kernels.get(pids.get(one.session, 0))
            if kernel is not None and self._may_begin(one, kernel):
                self._begun.add((one.session, one.action))
                running = asyncio.ensure_future(self._carry_out(one, kernel))
                self._running.add(running)
                running.add_done_callback(self._running.discard)

    def _may_begin(self, one: Intervention, kernel: str) -> bool:
        if (one.session, one.action) in self._begun:
            return False
        state = getattr(self._kernels.get_kernel(kernel), "execution_state", "")
        return one.action != "cull" or state != "busy"

    async def _carry_out(self, one: Intervention, kernel: str) -> None:
        try:
            await ACTIONS[one.action](self._kernels, kernel)
        except Exception as error:  # no caller sees it, but an admin must
            self._log.warning(
                "jupyter_gpushare: kernel %s: %s failed: %s", kernel, one.action, error
            )
            return
        self._log.warning("jupyter_gpushare: kernel %s: %s. %s", kernel, one.action, one.sentence)
        self._audit.intervened(one, kernel)


def _pids(snapshot: Snapshot) -> dict[str, int]:
    """Return the process of each session, including sessions that are released until their next
    cell."""
    found = {}
    for device in snapshot.devices:
        found.update({view.id: view.pid for view in device.sessions})
        found.update({view.id: view.pid for view in device.resting})
    return found


async def _interrupt(kernels: Any, kernel: str) -> None:
    await ensure_async(kernels.interrupt_kernel(kernel))


async def _end(kernels: Any, kernel: str) -> None:
    await ensure_async(kernels.shutdown_kernel(kernel, now=True))


async def _cull(kernels: Any, kernel: str) -> None:
    await ensure_async(kernels.shutdown_kernel(kernel))


ACTIONS: dict[str, Callable[[Any, str], Any]] = {
    "interrupt": _interrupt,
    "end": _end,
    "cull": _cull,
}
