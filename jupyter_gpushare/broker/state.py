"""The parts of a broker that several other parts read and change."""

from __future__ import annotations

from typing import NamedTuple

from .. import _core
from .accounting.accounts import AccountBook
from .admin.idle import IdleCulling
from .admin.live_changes import LiveChanges
from .admin.rules import RuleEngine
from .grants.grants import Grants
from .placement import DeviceFinder
from .sessions import Sessions


class BrokerState(NamedTuple):
    """One of each part for the whole broker; `devices` are names, in the order of the host."""

    devices: list[str]
    host: _core.Host
    sessions: Sessions
    grants: Grants
    placement: DeviceFinder
    rules: RuleEngine
    idle: IdleCulling
    accounts: AccountBook
    changes: LiveChanges
