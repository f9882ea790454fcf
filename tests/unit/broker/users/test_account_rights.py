"""Only the users concerned see figures of use, and names of released notebooks."""

from __future__ import annotations

import time

import pytest

from jupyter_gpushare.broker.service import Service
from jupyter_gpushare.devices import Device
from jupyter_gpushare.wire import messages as m
from jupyter_gpushare.wire.demand import Demand

from ..listener import Speaker

RULES = """
admins = ["ada"]
notebook_names = "teachers"
[groups.vision]
members = ["ann", "bob"]
teachers = ["tim"]
[groups.sound]
members = ["sue"]
teachers = ["tom"]
"""
PEOPLE = ("ann", "bob", "sue", "eve")
SEES = {
    "ann": {"ann"},
    "bob": {"bob"},
    "eve": {"eve"},
    "tim": {"ann", "bob"},
    "tom": {"sue"},
    "ada": {*PEOPLE},
    "nobody": set(),
}


DEVICES = [Device("host", 1 << 36, "")]


@pytest.fixture(autouse=True)
def used(service: Service) -> None:
    """A service at which every user has used a second of the device, and is released."""
    demand = Demand(1000, 1000, measured=True)
    for second, name in enumerate(PEOPLE):
        client = Speaker(service, name)
        client.says(m.Open(id=name, name=f"{name}s-work.ipynb", demand=demand), float(second))
        client.says(m.Request(1), float(second))
        client.says(m.Rests(1000), float(second + 1))


def reported(service: Service, user: str, by: str) -> set[str]:
    """Return the names in the rows of the report for that user."""
    client = Speaker(service, user)
    client.says(m.Account(0.0, time.time() + 1, by))  # type: ignore[arg-type]
    end, now = time.monotonic() + 60, 10.0
    while not isinstance(client.heard[-1], m.Accounts):
        assert not isinstance(client.heard[-1], m.Error)
        assert time.monotonic() < end
        service.tick(now := now + 0.1)
        time.sleep(0.01)  # a thread of its own reads, after all that these ticks write
    return {row.name for row in client.heard[-1].rows}


@pytest.mark.parametrize("user", SEES)
def test_a_person_sees_own_figures_a_teacher_the_groups_and_an_admin_all(
    user: str, service: Service
) -> None:
    names = {f"{name}: {name}s-work.ipynb" for name in SEES[user]}
    assert reported(service, user, "notebook") == names


def test_sums_of_a_group_are_for_its_teachers(service: Service) -> None:
    assert reported(service, "tim", "group") == {"vision"}
    assert reported(service, "ada", "group") == {"", "sound", "vision"}
