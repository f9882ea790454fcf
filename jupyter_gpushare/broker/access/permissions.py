"""Permissions: one table of them, each with the roles that have it."""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from typing import NamedTuple

from ...errors import NotPermitted
from ..admin.rulebook import Rulebook
from ..peer import Peer


class Role(Enum):
    """The relation of a user to a notebook or a group; the value is its name for people."""

    OWNER = "its owner"
    TEACHER = "a teacher of the group"
    ADMIN = "an admin"


class Permission(Enum):
    """The value completes "only ... may"."""

    SEE_NAME = "see the name of this notebook"
    SEE_CAUSE = "see why this notebook could not be paged out"
    SET_WEIGHT = "change the weight of this notebook"
    CHANGE = "change this notebook"
    RAISE_PRIORITY = "set a priority above 0"
    HOLD_CLASS = "begin or end a class"
    CHOOSE_POLICY = "choose the policy"
    END_BROKER = "end the broker"


MAY: dict[Permission, tuple[Role, ...]] = {
    Permission.SEE_NAME: (Role.OWNER, Role.TEACHER, Role.ADMIN),
    Permission.SEE_CAUSE: (Role.OWNER, Role.ADMIN),
    Permission.SET_WEIGHT: (Role.OWNER, Role.TEACHER, Role.ADMIN),
    Permission.CHANGE: (Role.OWNER, Role.ADMIN),
    Permission.RAISE_PRIORITY: (Role.ADMIN,),
    Permission.HOLD_CLASS: (Role.TEACHER, Role.ADMIN),
    Permission.CHOOSE_POLICY: (Role.ADMIN,),
    Permission.END_BROKER: (Role.ADMIN,),
}


class Resource(NamedTuple):
    """A notebook, by its owner and group, or a group. Both are empty for a permission about all of
    them."""

    owner: str = ""
    group: str = ""


EVERYTHING = Resource()


class Person(NamedTuple):
    """A user with their rights by the rules. Equal persons have equal rights."""

    user: str
    teaches: frozenset[str] = frozenset()
    is_admin: bool = False

    @classmethod
    def of(cls, peer: Peer, rules: Rulebook) -> Person:
        is_admin = peer.is_owner or (bool(peer.user) and peer.user in rules.admins)
        return cls(peer.user, rules.taught_by(peer.user), is_admin)

    def may(self, permission: Permission, what: Resource = EVERYTHING) -> bool:
        return any(role in MAY[permission] for role in self.roles(what))

    def check(self, permission: Permission, what: Resource = EVERYTHING) -> None:
        """Raise NotPermitted if this person does not have the permission. The error names the roles
        that have it."""
        if not self.may(permission, what):
            raise NotPermitted(f"only {_either(MAY[permission])} may {permission.value}")

    def roles(self, what: Resource) -> Iterator[Role]:
        if self.is_admin:
            yield Role.ADMIN
        if what.owner and what.owner == self.user:
            yield Role.OWNER
        if what.group in self.teaches:
            yield Role.TEACHER


def _either(roles: tuple[Role, ...]) -> str:
    *others, last = [role.value for role in roles]
    return f"{', '.join(others)} or {last}" if others else last
