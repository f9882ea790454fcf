"""The device or devices of a session: requested once, then fixed for its life."""

from __future__ import annotations

from ...devices import visible
from ...errors import ProtocolError
from ...wire.messages import Opened
from .memory import Memory, ProcessOnGpu, WholeProcess

OLD_BROKER = (
    "this broker gives one device at a time, being older than this notebook: end it with"
    " `jupyter gpushare broker --stop`, and a new one starts"
)


class Placement:
    """The device of a session. `device` is its name in this process, and `host_device` its name at
    the broker. If it has several devices at once, these name the first, and `host_devices` names
    all."""

    def __init__(self, device: str, devices: int) -> None:
        self.device = device
        self.devices = devices
        self.host_device = ""
        self.host_devices: list[str] = []
        self.capacity = 0  # bytes of the device, once the session is open
        self.room = 0  # bytes of it that other sessions leave, as the broker says
        self._uuid = ""  # of the one GPU of the session
        self._uuids: list[str] = []  # of its GPUs, if it has several

    @property
    def is_gpu(self) -> bool:
        """Whether the session has one GPU, which is known already."""
        return bool(self._uuid)

    @property
    def name(self) -> str:
        """A name that is unique among the devices of this broker."""
        return ",".join(self.host_devices) or self.host_device

    def wanted(self) -> tuple[str, list[str]]:
        """Return the device to request, and those among which the broker chooses. After the first
        answer this is the device that the session has."""
        if self.devices != 1:
            return "auto", self._uuids or visible.wanted_at_once(self.device, self.devices)
        here = self._uuid or self.host_device
        return (here, []) if here else visible.wanted(self.device)

    def settle(self, answer: Opened) -> None:
        """Take the device from the first answer; later answers give the same one. Raises
        ProtocolError if the broker has given fewer devices than were requested."""
        if len(answer.gang or [answer.device]) != self.devices:
            raise ProtocolError(OLD_BROKER)
        if not self.host_device:
            self._settle(answer)
        self.host_device = answer.device
        self.capacity = self.room = answer.capacity_bytes

    def _settle(self, answer: Opened) -> None:
        self._uuid = answer.uuid
        self.host_devices, self._uuids = answer.gang, answer.uuids
        if answer.gang:
            self.device = visible.settle_at_once(answer.uuids)
        elif not answer.uuid:
            self.device = answer.device
        else:
            self.device = visible.settle(self.device, answer.uuid)

    def counted(self, memory: Memory) -> Memory:
        """Return `memory`. On a GPU, if `memory` would count the whole process, return a count of
        the driver's figures instead."""
        if type(memory) is not WholeProcess:
            return memory
        if self.host_devices:
            return ProcessOnGpu(*self._uuids)
        return ProcessOnGpu(self._uuid) if self._uuid else memory
