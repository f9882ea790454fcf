"""The device of a session, or its devices: asked for, then given for life."""

from __future__ import annotations

from ..devices import visible
from ..errors import ProtocolError
from ..wire.messages import Opened
from .memory import Memory, ProcessOnGpu, ProcessOnGpus, WholeProcess

OLD_BROKER = (
    "this broker gives one device at a time, being older than this notebook: end it with"
    " `jupyter gpushare broker --stop`, and a new one starts"
)


class Placement:
    """`device` is the name in this process, `host_device` that of the broker: of several devices
    at once the first, and `host_devices` are all of them."""

    def __init__(self, device: str, devices: int) -> None:
        self.device = device
        self.devices = devices
        self.host_device = ""
        self.host_devices: list[str] = []
        self.capacity = 0  # bytes of the device, once the session is open
        self._uuid = ""  # of the GPU that the session has
        self._uuids: list[str] = []  # where it has several

    @property
    def is_gpu(self) -> bool:
        """Whether it is one GPU, and known already."""
        return bool(self._uuid)

    @property
    def name(self) -> str:
        """A name that no other device of this broker has."""
        return ",".join(self.host_devices) or self.host_device

    def wanted(self) -> tuple[str, list[str]]:
        """The device to ask for, and those among which to choose; later, what the session has."""
        if self.devices != 1:
            return "auto", self._uuids or visible.wanted_at_once(self.device, self.devices)
        here = self._uuid or self.host_device
        return (here, []) if here else visible.wanted(self.device)

    def settle(self, answer: Opened) -> None:
        """The first answer says which device it is; later it is the same one. Raises ProtocolError
        where the broker has given fewer than were asked for."""
        if len(answer.gang or [answer.device]) != self.devices:
            raise ProtocolError(OLD_BROKER)
        if not self.host_device:
            self._settle(answer)
        self.host_device = answer.device
        self.capacity = answer.capacity_bytes

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
        """`memory`; or on GPUs the driver's figures, where that would count the whole process."""
        if type(memory) is not WholeProcess:
            return memory
        if self.host_devices:
            return ProcessOnGpus(self._uuids)
        return ProcessOnGpu(self._uuid) if self._uuid else memory
