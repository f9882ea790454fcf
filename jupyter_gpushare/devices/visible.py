"""The GPUs that this process sees, and CUDA's numbers of them here.

The broker sees every GPU of the host. A process sees those that `CUDA_VISIBLE_DEVICES` lets it see,
counted in CUDA's own order: the device that users and PyTorch call `cuda:0` is the first of them. A
UUID means the same GPU in every process, so the broker is told the UUID.

If a session may have any of several GPUs (`auto`), the GPU that it gets becomes the only visible
one, so that unchanged code computes there. Once CUDA runs in this process, its GPUs stay fixed:
then `auto` is the first visible one.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from ..errors import InvalidValue, UnknownDevice
from .nvml import Gpu, gpus

VARIABLE = "CUDA_VISIBLE_DEVICES"
ORDER = "CUDA_DEVICE_ORDER"
BEFORE = "GPUSHARE_VISIBLE_BEFORE"  # our value of VARIABLE, and the former one if there was one
UUIDS = ("GPU-", "MIG-")
DOUBT = (
    "CUDA numbers different GPUs by their speed, which only CUDA knows: set"
    f" {ORDER}=PCI_BUS_ID, or {VARIABLE} to UUIDs as `nvidia-smi -L` shows them, before Jupyter"
    " starts"
)
TOO_LATE = "CUDA runs in this process already, and not on that GPU: restart the kernel first"


class Visible:
    """The GPUs that a process with the environment `environ` sees, of the GPUs `there` of the host.

    `doubt` is empty, or the sentence that says why the numbers of the GPUs are not known.
    """

    def __init__(self, there: Sequence[Gpu], environ: Mapping[str, str] = os.environ) -> None:
        self._setting = setting = environ.get(VARIABLE)
        is_by_number = setting is None or not setting.startswith(UUIDS)
        is_in_order = environ.get(ORDER) == "PCI_BUS_ID" or _are_alike(there)
        self.doubt = "" if is_in_order or not is_by_number else DOUBT
        self._allowed = list(there) if setting is None else _listed(setting, there)

    @property
    def allowed(self) -> list[Gpu]:
        """The GPUs that this process may make its own. Raises InvalidValue in doubt."""
        if self.doubt and self._setting is not None:
            raise InvalidValue(self.doubt)
        return self._allowed

    @property
    def numbered(self) -> list[Gpu]:
        """The GPUs in CUDA's order, which has at most one slice, and no card beside it. Raises
        InvalidValue in doubt."""
        if self.doubt:
            raise InvalidValue(self.doubt)
        return next(([gpu] for gpu in self.allowed if gpu.is_slice), self.allowed)

    def named(self, name: str) -> Gpu:
        """Return the GPU by `cuda:N`, by UUID, or a slice by its name. Raises UnknownDevice, or
        InvalidValue."""
        if name.startswith(UUIDS) or name.count(":") > 1:
            known = {key: gpu for gpu in self.allowed for key in (gpu.uuid, gpu.name)}
        else:
            known = {f"cuda:{number}": gpu for number, gpu in enumerate(self.numbered)}
        if (gpu := known.get("cuda:0" if name == "cuda" else name)) is None:
            raise UnknownDevice(f"there is no device {name!r} here; there is {self._in_words()}")
        return gpu

    def number_of(self, uuid: str) -> int | None:
        """Return N of `cuda:N`; None in doubt, and where CUDA does not show the GPU at present."""
        uuids = [] if self.doubt else [gpu.uuid for gpu in self.numbered]
        return uuids.index(uuid) if uuid in uuids else None

    def _in_words(self) -> str:
        if self.doubt:
            shown = [(gpu.uuid, gpu) for gpu in self.allowed]
        else:
            shown = [(f"cuda:{number}", gpu) for number, gpu in enumerate(self.numbered)]
        why = "" if self._setting is None else f" (with {VARIABLE}={self._setting!r})"
        return ", ".join([*(f"{name} ({gpu.model})" for name, gpu in shown), "host"]) + why


def wanted(device: str) -> tuple[str, list[str]]:
    """Return the device to request from the broker for a device as the user typed it: `host`, or
    the UUID of a GPU; or `auto`, with the UUIDs among which the broker chooses. Raises
    GpuShareError."""
    if device == "host":
        return device, []
    visible = Visible(gpus())
    if device != "auto":
        return _reachable(visible, visible.named(device)).uuid, []
    if not visible.allowed:
        return "host", []
    if has_begun():
        return visible.named("cuda:0").uuid, []
    return device, [gpu.uuid for gpu in visible.allowed]


def settle(asked: str, uuid: str) -> str:
    """Return PyTorch's name here of the GPU that the broker gave when the session asked for
    `asked`."""
    visible = Visible(gpus())
    number = visible.number_of(uuid)
    is_one_of_many = asked == "auto" and len(visible.allowed) > 1
    if (number is None or is_one_of_many) and not has_begun():
        _narrow_to(uuid)
        number = 0
    return f"cuda:{number or 0}"


def wanted_at_once(device: str, count: int) -> list[str]:
    """Return the UUIDs among which the broker chooses `count` devices at once. A device with a name
    is the only choice. CUDA computes on one slice at most and, once it runs, on the first GPUs that
    it has numbered. Raises GpuShareError."""
    if device != "auto":
        named, _ = wanted(device)
        return [named]
    if has_begun():
        usable = Visible(gpus()).numbered[:count]
    else:
        allowed = Visible(gpus(), _as_before()).allowed
        usable = [gpu for gpu in allowed if not gpu.is_slice] or allowed[:1]
    return [gpu.uuid for gpu in usable] or ["host"]


def settle_at_once(uuids: Sequence[str]) -> str:
    """Let this process see only these GPUs from now on; return PyTorch's name of the first one."""
    if not has_begun():
        _narrow_to(",".join(uuids))
    return "cuda:0"


def narrowed(setting: str, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that let a process with such an environment see only these GPUs."""
    first = as_at_first(environ).get(VARIABLE)
    return {VARIABLE: setting, BEFORE: setting if first is None else f"{setting};{first}"}


def as_at_first(environ: Mapping[str, str]) -> Mapping[str, str]:
    """Return an environment as it was before a session or an engine of jobs has narrowed it."""
    setting, was_set, first = environ.get(BEFORE, "").partition(";")
    if BEFORE not in environ or environ.get(VARIABLE) != setting:
        return environ
    others = {name: value for name, value in environ.items() if name != VARIABLE}
    return {**others, VARIABLE: first} if was_set else others


def _narrow_to(setting: str) -> None:
    _narrowed[:] = [setting, _as_before().get(VARIABLE)]
    os.environ.update(narrowed(setting, os.environ))


def _as_before() -> Mapping[str, str]:
    """Return the environment as it was before a session of this process made its GPU the only
    visible one."""
    if not _narrowed or os.environ.get(VARIABLE) != _narrowed[0]:
        return os.environ
    others = {name: value for name, value in os.environ.items() if name != VARIABLE}
    return others if _narrowed[1] is None else {**others, VARIABLE: _narrowed[1]}


_narrowed: list[str | None] = []  # our value of VARIABLE, and the former one


def has_begun() -> bool:
    """Whether PyTorch or other code runs CUDA in this process: then CUDA has numbered the GPUs for
    good."""
    global _has_begun  # CUDA never ends, and a look takes long in a large process
    _has_begun = _has_begun or "libcuda.so" in Path("/proc/self/maps").read_text(errors="replace")
    return _has_begun


_has_begun = False


def _are_alike(there: Sequence[Gpu]) -> bool:
    """Whether all cards are of one kind; a slice has its card's name, then MIG and a profile."""
    kinds = {gpu.card: gpu.model.partition(" MIG ")[0] for gpu in there}
    return len(set(kinds.values())) < 2


def _reachable(visible: Visible, gpu: Gpu) -> Gpu:
    if visible.number_of(gpu.uuid) is None and has_begun():
        raise InvalidValue(TOO_LATE)
    return gpu


def _listed(setting: str, there: Sequence[Gpu]) -> list[Gpu]:
    """Return the GPUs of the list as CUDA reads it: up to the first entry that names no GPU, and
    none at all if a GPU is there twice. All entries are of the kind of the first, number or
    UUID."""
    means = _by_uuid if setting.startswith(UUIDS) else _by_number
    found: list[Gpu] = []
    for entry in setting.split(","):
        meant = means(entry.strip(), there)
        if not meant:
            break
        if meant[0] in found:
            return []
        found += meant
    return found


def _by_uuid(entry: str, there: Sequence[Gpu]) -> list[Gpu]:
    """Return the one GPU whose UUID begins with `entry`; none if several do."""
    alike = [gpu for gpu in there if entry.startswith(UUIDS) and gpu.uuid.startswith(entry)]
    return alike if len(alike) == 1 else []


def _by_number(entry: str, there: Sequence[Gpu]) -> list[Gpu]:
    """Return the card, or all slices of it. Text behind the digits is ignored, as strtoul does."""
    digits = re.match(r"\+?\d+", entry)
    return [gpu for gpu in there if digits and gpu.card == int(digits[0])]
