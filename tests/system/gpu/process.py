"""A process that runs a case: ``process.py CASE DEVICE stock|shared``; the last line is JSON.

`scribbler` is no case. In each of its turns it fills the lane with 0xFF, which is NaN to a reader
of floats, until its input ends.
"""

from __future__ import annotations

import ctypes
import faulthandler
import hashlib
import json
import select
import sys
import tempfile
import traceback
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[2]))
from programs.cells import CASES_ON_GPU, HEAD_ON_GPU

MIB = 1 << 20
SCRIBBLED_BYTES = {"cuda": 768 * MIB, "cpu": 24 * MIB}  # more than a case has of the lane


class Skip(Exception):
    """The case makes no sense here, as the sentence says."""


class Watch:
    """Inspects a case from inside its process."""

    def __init__(self, session: Any) -> None:
        self._session = session
        self.seen: dict[str, list[bool]] = {}
        self.paged: tuple[int, str] | None = None

    def note(self, name: str, tensor: Any) -> None:
        """Note whether a tensor lies in the lane now."""
        if self._session is not None and tensor.device.type == "cuda":
            from jupyter_gpushare import _core

            self.seen.setdefault(name, []).append(_core.CudaLane.owns(tensor.data_ptr()))

    def page(self) -> None:
        if self._session is None:
            return
        from jupyter_gpushare.client.notebook.sharing import cell_begins, cell_ended

        cell_ended()
        with tempfile.TemporaryDirectory(dir=sys.argv[4]) as directory:
            self.paged = self._session.memory.page_out(directory)
            trouble = self._session.memory.page_in()
        assert not trouble, trouble
        cell_begins()

    def lane(self) -> dict[str, Any]:
        """Return what the session says of its lane, and the most that an iteration had of it."""
        if self._session is None:
            return {}
        memory = self._session.memory
        part = memory.lane
        return {
            "kind": type(part).__name__,
            "is_open": part.is_open,
            "trouble": self._session._lane_use.trouble,
            "how": memory.how,
            "bytes": max((each.ephemeral for each in memory.estimator.recent), default=0),
            "waited_seconds": self._session.waited_seconds,
        }


def digest(modules: Any) -> str:
    total = hashlib.sha256()
    for module in modules:
        for tensor in module.state_dict().values():
            copy = tensor.cpu().contiguous()
            total.update(ctypes.string_at(copy.data_ptr(), copy.nbytes))
    return total.hexdigest()


def run(case: str, torch_device: Any, watch: Watch) -> dict[str, Any]:
    names = {"device": torch_device, "note": watch.note, "page": watch.page, "Skip": Skip}
    exec(compile(HEAD_ON_GPU, "head", "exec"), names)
    exec(compile(CASES_ON_GPU[case], case, "exec"), names)
    found = {"losses": [loss.hex() for loss in names["losses"]], "digest": digest(names["modules"])}
    return {**found, "seen": watch.seen, "paged": watch.paged, "lane": watch.lane()}


def scribble(torch_device: Any) -> dict[str, Any]:
    import torch

    import jupyter_gpushare as gpushare

    def until_input_ends() -> Iterator[None]:
        while not select.select([sys.stdin], [], [], 0)[0]:
            yield

    turns = 0
    size = SCRIBBLED_BYTES[torch_device.type]
    for _ in gpushare.iterations(until_input_ends()):
        turns += 1
        torch.full((size,), 255, dtype=torch.uint8, device=torch_device)
        if torch_device.type == "cuda":
            torch.cuda.synchronize()
    return {"turns": turns}


def main(case: str, device: str, sharing: str) -> dict[str, Any]:
    import torch

    import jupyter_gpushare as gpushare

    torch_device = torch.device("cpu" if device == "host" else device)
    is_shared = sharing == "shared"
    with gpushare.session(name=case, device=device) if is_shared else nullcontext() as session:
        if case == "scribbler":
            return scribble(torch_device)
        try:
            return run(case, torch_device, Watch(session))
        except Skip as reason:
            return {"skip": str(reason)}


if __name__ == "__main__":
    faulthandler.enable()
    try:
        print("\n" + json.dumps(main(*sys.argv[1:4])))
    except BaseException:
        print("\n" + json.dumps({"failed": traceback.format_exc()}))
