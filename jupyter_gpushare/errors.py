"""Every error that a user of the package can see, and the codes that carry them over the socket."""

from __future__ import annotations

import msgspec

# What msgspec raises for somebody's bytes: they may also be no UTF-8, or lists without end.
UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


def cause(error: BaseException) -> str:
    """What the system says of an error, without its number and what people have typed."""
    return getattr(error, "strerror", None) or str(error)


class GpuShareError(Exception):
    """Base of all errors of this package. Its text is one sentence for people."""

    code = "error"


class BrokerUnavailable(GpuShareError):
    """No broker answers on the socket and none could be started."""

    code = "unavailable"


class ConnectionLost(GpuShareError):
    """The connection ended in the middle of something."""

    code = "lost"


class Unanswered(ConnectionLost):
    """The broker stands still: what was asked is not answered in time, and the connection ended."""


class ProtocolError(GpuShareError):
    """The other side sent something that is no message of this protocol."""

    code = "protocol"


class InvalidValue(GpuShareError, ValueError):
    """A value is out of its range; the text says which and what would be right."""

    code = "invalid"


class UnknownOption(InvalidValue, TypeError):
    """There is no option of that name; the text says which is like it."""


class UnknownDevice(GpuShareError):
    """The broker has no device of that name."""

    code = "unknown_device"


class UnknownSession(GpuShareError):
    """The broker has no session of that id."""

    code = "unknown_session"


class DoesNotFit(GpuShareError):
    """The demand is larger than the whole device; waiting would not help."""

    code = "does_not_fit"


class OverQuota(DoesNotFit):
    """It is more than the admin's rules allow; the text names the rule and whom to ask."""

    code = "quota"


class NoRoom(GpuShareError):
    """There is no room on the device now; waiting or letting go of something would help."""

    code = "no_room"


class NotPermitted(GpuShareError):
    """The caller may look, but not change this."""

    code = "not_permitted"


class Unidentified(GpuShareError):
    """The broker has to be shown first whom this connection stands for."""

    code = "unidentified"


class Cancelled(GpuShareError):
    """Somebody with the permission has ended this wait."""

    code = "cancelled"


class LimitExceeded(GpuShareError):
    """A limit on sizes, rates or counts was reached; the text gives the number."""

    code = "limit"


BY_CODE: dict[str, type[GpuShareError]] = {
    kind.code: kind
    for kind in (
        GpuShareError,
        BrokerUnavailable,
        ConnectionLost,
        ProtocolError,
        InvalidValue,
        UnknownDevice,
        UnknownSession,
        DoesNotFit,
        OverQuota,
        NoRoom,
        NotPermitted,
        Unidentified,
        Cancelled,
        LimitExceeded,
    )
}


def from_code(code: str, message: str) -> GpuShareError:
    """The error that `code` names; an unknown code (a newer broker) is the base class."""
    return BY_CODE.get(code, GpuShareError)(message)
