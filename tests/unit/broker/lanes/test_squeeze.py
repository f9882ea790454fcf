"""A session is told how far it is squeezed, and people see this."""

from __future__ import annotations

from itertools import groupby
from typing import Any

from jupyter_gpushare.broker.service import Service
from jupyter_gpushare.devices import Device
from jupyter_gpushare.wire import messages as m
from jupyter_gpushare.wire.demand import Demand, SqueezeOption
from jupyter_gpushare.wire.snapshot import SessionView, Snapshot

from ..listener import GIB, Speaker

DEVICES = [Device("cuda:0", 16 * GIB, "a GPU")]
SQUEEZABLE = ((10, 1.0), (6, 1.08), (4, 1.3))


def demand(persistent: int, *sizes: tuple[int, float]) -> Demand:
    options = tuple(SqueezeOption(size * GIB, slowdown) for size, slowdown in sizes)
    return Demand(persistent * GIB, sizes[0][0] * GIB, measured=True, options=options)


class Notebook(Speaker):
    def __init__(
        self, service: Service, name: str, demand: Demand, user: str = "ada", **more: Any
    ) -> None:
        super().__init__(service, user)
        said = m.Open(id=name, name=f"{name}.ipynb", demand=demand, bears_slowdown=1.1, **more)
        self.says(said, 3.0 if more else 0.0)

    @property
    def granted(self) -> list[int]:
        """Return the GiB that an iteration may take by each grant, without repeats; 0: without
        limit."""
        told = [grant.squeezed_bytes // GIB for grant in self.heard_of(m.Grant)]
        return [size for size, _ in groupby(told)]

    def view(self, name: str) -> SessionView:
        [device] = self.says(m.Look()).last(Snapshot).devices
        return next(view for view in device.sessions if view.id == name)


def two(service: Service, **of_b: Any) -> tuple[Notebook, Notebook]:
    """Two notebooks: `a` is squeezed for `b`, and has the turn."""
    a = Notebook(service, "a", demand(4, *SQUEEZABLE))
    b = Notebook(service, "b", demand(5, (2, 1.0)), **of_b)
    b.says(m.Request(1))
    a.says(m.Request(1), 1.0)
    b.says(m.Finish(1), 2.0)
    assert a.granted == [6]
    return a, b


def test_a_holder_yields_for_a_newcomer_and_is_squeezed_from_its_next_turn(
    service: Service,
) -> None:
    a = Notebook(service, "a", demand(4, *SQUEEZABLE))
    a.says(m.Request(1))
    b = Notebook(service, "b", demand(5, (2, 1.0)))
    b.says(m.Request(1), 1.0)
    service.pass_time(2.0)
    assert [asked.successor for asked in a.heard_of(m.Yield)] == [None]
    a.says(m.Finish(1), 2.0)
    assert b.granted == [0]
    a.says(m.Request(2), 2.0)
    b.says(m.Finish(1), 3.0)
    assert a.granted == [0, 6]


def test_a_holder_is_told_at_once_that_it_may_take_more(service: Service) -> None:
    a, b = two(service)
    b.says(m.Close(), 3.0)
    assert a.granted == [6, 0]
    assert {grant.turn for grant in a.heard_of(m.Grant)} == {1}


def test_people_see_how_far_for_which_notebook_and_how_much_slower(service: Service) -> None:
    a, _ = two(service)
    view = a.view("a")
    assert (view.squeezed_bytes, view.ephemeral_bytes, view.slowdown) == (6 * GIB, 10 * GIB, 1.08)
    assert view.reason == (
        "runs; squeezed to 6.0 GiB of 10.0 GiB, about 8 % slower, so that b.ipynb has room"
    )
    assert a.view("b").squeezed_bytes == 0


def test_the_name_is_hidden_from_those_who_may_not_see_it(ruled: Any) -> None:
    a, _ = two(ruled('notebook_names = "teachers"'), user="bob")
    assert a.view("a").reason.endswith("so that a notebook of bob has room")


def rooms(notebook: Speaker) -> list[int]:
    """Return the GiB in the Rooms that the notebook was sent."""
    return [room.bytes // GIB for room in notebook.heard_of(m.Room)]


def test_a_session_is_told_its_room_once_its_demand_does_not_fit_and_once_it_does(
    service: Service,
) -> None:
    a = Notebook(service, "a", demand(4, (10, 1.0)))
    a.says(m.Request(1))
    service.tick(1.0)
    assert rooms(a) == []
    b = Notebook(service, "b", demand(5, (2, 1.0)))
    service.tick(2.0)
    assert rooms(a) == []  # b wants nothing yet
    b.says(m.Request(1), 3.0)
    service.tick(3.0)
    service.tick(4.0)
    assert (rooms(a), rooms(b)) == ([11], [])
    b.says(m.Close(), 5.0)
    service.tick(5.0)
    assert rooms(a) == [11, 16]


def test_a_session_that_opens_again_is_told_its_room_again(service: Service) -> None:
    a, b = (Notebook(service, name, demand(4, (10, 1.0))) for name in "ab")
    b.says(m.Request(1))
    a.says(m.Request(1)).says(m.Finish(1))
    service.tick(1.0)
    assert rooms(a) == [12]
    a.says(m.Rests(0), 2.0)
    again = m.Open(id="a", name="a.ipynb", demand=demand(4, (10, 1.0)), turn=1)
    a.says(again, 3.0).says(m.Request(2), 3.0)
    service.tick(3.0)
    assert rooms(a) == [12, 12]


def test_a_newcomer_is_told_its_room_before_the_turn_in_which_it_is_measured(
    service: Service,
) -> None:
    Notebook(service, "a", demand(4, (6, 1.0)))
    b = Notebook(service, "b", demand(0, (0, 1.0)))
    b.says(m.Request(1))
    assert rooms(b) == []
    c = Speaker(service, "ada").says(m.Open(id="c", name="c.ipynb")).says(m.Request(1))
    assert rooms(c) == [12]


def test_a_quota_counts_what_iterations_take_unsqueezed(ruled: Any) -> None:
    """If a notebook has chosen a smaller size for itself, only this size counts."""
    service = ruled('[quotas]\nlane = "8 GiB"')
    [refused] = Notebook(service, "a", demand(4, *SQUEEZABLE)).heard_of(m.Error)
    assert refused.code == "quota"
    assert "10.0 GiB" in refused.message
    assert not Notebook(service, "b", demand(4, (6, 1.0))).heard_of(m.Error)


def test_no_notebook_is_squeezed_for_one_that_is_above_its_quota(ruled: Any) -> None:
    service = ruled('[quotas.users.bob]\npersistent = "4 GiB"')
    a = Notebook(service, "a", demand(4, *SQUEEZABLE))
    b = Notebook(service, "b", demand(5, (2, 1.0)), user="bob")
    assert [error.code for error in b.heard_of(m.Error)] == ["quota"]
    a.says(m.Request(1), 1.0)
    assert (a.granted, a.view("a").squeezed_bytes) == ([0], 0)
