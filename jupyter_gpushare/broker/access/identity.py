"""Whom a connection stands for: the Unix user of its process."""

from __future__ import annotations

import contextlib
import grp
import os
import pwd
from functools import lru_cache
from typing import NamedTuple

FRESH_SECONDS = 60.0  # a user who joins a group is in it so much later at most


class Identity(NamedTuple):
    """A user. An owner may do everything; who may vouch does so for kernels of the same user."""

    user: str
    groups: frozenset[str] = frozenset()
    is_owner: bool = False
    may_vouch: bool = False


NOBODY = Identity("")  # has to show first who it is


def of_process(uid: int, now: float) -> Identity:
    """By the system's word. Root and whoever runs the broker own it."""
    return _looked_up(uid, int(now / FRESH_SECONDS))


@lru_cache(maxsize=1024)
def _looked_up(uid: int, period: int) -> Identity:
    is_owner = uid in (0, os.getuid())
    with contextlib.suppress(KeyError):
        user = pwd.getpwuid(uid)
        return Identity(user.pw_name, _groups(user), is_owner)
    return Identity(str(uid), is_owner=is_owner)


def _groups(user: pwd.struct_passwd) -> frozenset[str]:
    return frozenset(map(_group_name, os.getgrouplist(user.pw_name, user.pw_gid)))


def _group_name(gid: int) -> str:
    with contextlib.suppress(KeyError):
        return grp.getgrgid(gid).gr_name
    return str(gid)
