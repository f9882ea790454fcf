"""Every error that a user of the package can see, and the codes that carry them over the socket."""

from __future__ import annotations

import msgspec

# msgspec raises these for bytes from outside: no JSON, no UTF-8, or too deeply nested.
UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


def cause(error: BaseException) -> str:
    """Return the system's text of an error, without its number and without paths that people
    typed."""
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
    """The broker does not respond: a request was not answered in time, and the connection ended."""


class ProtocolError(GpuShareError):
    """The other side sent something that is not a message of this protocol."""

    code = "protocol"


class InvalidValue(GpuShareError, ValueError):
    """A value is out of its range; the text says which value and what would be right."""

    code = "invalid"


class UnknownOption(InvalidValue, TypeError):
    """There is no option of that name; the text names one that is similar."""


class UnknownDevice(GpuShareError):
    """The broker has no device of that name."""

    code = "unknown_device"


class UnknownSession(GpuShareError):
    """The broker has no session of that id."""

    code = "unknown_session"


class UnknownJob(GpuShareError):
    """The cluster has no job of that id."""

    code = "unknown_job"


class JobFailed(GpuShareError):
    """The job ended without success; the text says why."""

    code = "job_failed"


class DoesNotFit(GpuShareError):
    """The demand is larger than the whole device; waiting would not help."""

    code = "does_not_fit"


class OverQuota(DoesNotFit):
    """The request exceeds what the admin's rules allow; the text names the rule and whom to ask."""

    code = "quota"


class NoRoom(GpuShareError):
    """There is no room on the device now; waiting or freeing something would help."""

    code = "no_room"


class EngineUnavailable(GpuShareError):
    """The engine of a cluster did not answer; its last known state is kept, and is older."""

    code = "engine"


class NotPermitted(GpuShareError):
    """The caller may look, but may not change this."""

    code = "not_permitted"


class Unidentified(GpuShareError):
    """The broker must first authenticate the user of this connection."""

    code = "unidentified"


class Cancelled(GpuShareError):
    """A user with the permission has ended this wait."""

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
        UnknownJob,
        JobFailed,
        DoesNotFit,
        OverQuota,
        NoRoom,
        EngineUnavailable,
        NotPermitted,
        Unidentified,
        Cancelled,
        LimitExceeded,
    )
}


def from_code(code: str, message: str) -> GpuShareError:
    """Return the error class that `code` names; an unknown code (a newer broker) is the base
    class."""
    return BY_CODE.get(code, GpuShareError)(message)
