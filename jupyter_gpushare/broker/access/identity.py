"""The user that a connection stands for: the Unix user of its process."""

from __future__ import annotations

import contextlib
import grp
import os
import pwd
from functools import lru_cache
from typing import NamedTuple

FRESH_SECONDS = 60.0  # the groups of a user are cached for this time


class Identity(NamedTuple):
    """A user. An owner of the broker has all permissions. A Jupyter server that may issue one-time
    tokens does so for kernels of the same user."""

    user: str
    groups: frozenset[str] = frozenset()
    is_owner: bool = False
    may_issue_tokens: bool = False


ANONYMOUS = Identity("")  # stands for a client that has not shown a token yet


def of_process(uid: int, now: float) -> Identity:
    """Return the user of a process by its Unix user id. Root and the user that runs the broker
    are its owners."""
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
