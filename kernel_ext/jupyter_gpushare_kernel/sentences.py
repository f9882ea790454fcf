"""Sentences of the magic about this notebook's session."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Mapping
from itertools import starmap
from typing import Any

from jupyter_gpushare.client.session.memory import HeldBytes
from jupyter_gpushare.client.session.session import Session
from jupyter_gpushare.format import duration, size
from jupyter_gpushare.tools import overview
from jupyter_gpushare.wire.snapshot import SessionView


def begun(session: Session) -> str:
    return f"GPU sharing is on for {session.name}; {_device(session)}. {noticed(session)}"


def _device(session: Session) -> str:
    """Return PyTorch's name of the device here, and the host's name if it differs."""
    if session.host_devices:
        return f"{session.devices} devices: {', '.join(session.host_devices)} of this host"
    device = f"device: {session.device}"
    same = session.host_device in ("", session.device)
    return device if same else f"{device} ({session.host_device} of this host)"


def noticed(session: Session) -> str:
    if "torch" in sys.modules:
        return f"Its PyTorch loops take turns with other notebooks; {session.memory.how}."
    if importlib.util.find_spec("torch") is not None:
        return "Its PyTorch loops will take turns with other notebooks once torch is imported."
    return "PyTorch is not installed: code takes a turn inside `with jupyter_gpushare.turn():`."


def changed(given: dict[str, Any]) -> str:
    if not given:
        return "Sharing is on already; nothing was changed."
    return f"Updated: {', '.join(starmap(_option, given.items()))}."


def _option(name: str, value: Any) -> str:
    if name == "paused":
        return "the pause has ended"
    return f"{name} {value:g}" if name == "weight" else f"{name} {value}"


def paused(name: str, paused: bool) -> str:
    return (
        f"{name} is paused. It will not use the device until it is resumed."
        if paused
        else f"{name} takes turns again."
    )


def tidied(freed: Mapping[str, int]) -> str:
    """`freed` maps each kind of reference to the bytes that forgetting it freed."""
    found = [f"{what} held {size(count)}" for what, count in freed.items() if count > 0]
    told = f": {', '.join(found)}" if found else "; no tensors were freed by that"
    return f"Displayed results and the last error are forgotten{told}."


def held(part: HeldBytes) -> str:
    """Say how the user can free this memory. The magic does not free it, since the notebook would
    notice."""
    hold = f"{' and '.join(part.names)} {'hold' if len(part.names) > 1 else 'holds'}"
    if part.kind == "gradients":
        frees = f"`{part.names[0]}.zero_grad()` frees them"
        return f"{hold} gradients of {size(part.bytes)}: {frees}."
    frees = f"`del {', '.join(part.names)}` frees it"
    return f"{hold} {size(part.bytes)} of a finished iteration: {frees}."


SQUEEZE = {
    "auto": "Iterations are squeezed as far as others, or the device, need the room",
    "off": "Iterations are not squeezed",
}


def squeezed(session: Session) -> str:
    wanted = session.squeeze
    if wanted != "off" and (why_not := session.memory.why_not_squeezed):
        return f"Iterations are not squeezed: {why_not}."
    if isinstance(wanted, int):
        what = f"Iterations are to be squeezed into {size(wanted)}"
    else:
        what = SQUEEZE[wanted]
    found = overview.squeezed(session.memory.squeezing)
    parts = [what, f"they are squeezed {found}" if found else "", session.memory.how_squeezed]
    return "; ".join(filter(None, parts)) + "."


def state(session: Session | None, view: SessionView | None) -> str:
    """Describe the session. The figures are those of the broker's `view`, as in the tables below,
    or the session's own if there is no view."""
    if session is None:
        return "GPU sharing is off in this notebook; `%gpushare on` turns it on."
    aside = ", paused" if session.paused else ""
    shared = f"GPU sharing is on for {session.name}{aside}; {_device(session)}"
    learns = session.memory.squeeze_progress
    more = f" {learns[0].upper()}{learns[1:]}." if learns else ""
    return f"{shared}; {totals(view or session)}; {session.memory.how}.{more}"


def totals(session: Session | SessionView) -> str:
    count = "one iteration" if session.iterations == 1 else f"{session.iterations} iterations"
    used, waited = duration(session.device_seconds), duration(session.waited_seconds)
    return f"{count}, {used} on the device, {waited} waited"
