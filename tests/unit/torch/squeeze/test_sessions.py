"""Sessions at a real broker: what does not fit is squeezed until it does, at unchanged losses."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from jupyter_gpushare.client.notebook import sharing
from jupyter_gpushare.client.session.session import Session
from jupyter_gpushare.errors import InvalidValue
from jupyter_gpushare.format import size
from jupyter_gpushare.settings import Settings, as_environment

from ....conftest import end_broker
from ....programs.networks import Residual, cnn, images, train
from ....violations import ROOT
from .conftest import is_same, run

MIB = 1 << 20


def model_of() -> torch.nn.Module:
    return cnn(*(Residual() for _ in range(6)))


def program() -> Any:
    return train(model_of(), images(32), 12)


CHILD = """
import json, sys
sys.path.insert(0, {root!r})
import torch
torch.set_num_threads(1)
import jupyter_gpushare as gpushare
from tests.unit.torch.squeeze.conftest import run
from tests.unit.torch.squeeze.test_sessions import program
with gpushare.session(name="squeezed") as session:
    losses, _ = run(program)
    squeeze, demand = session.memory.squeeze, session.memory.demand()
    least = min(one.ephemeral for one in session.memory.estimator.recent)
    print(json.dumps([losses, squeeze.granted, squeeze.tier.written + squeeze.cache.dropped,
                      demand.persistent_bytes, demand.ephemeral_bytes, least,
                      [option.bytes for option in demand.options]]))
"""


class Ended:
    """The report of a training in a process of its own at its end; sizes are bytes."""

    def __init__(self, settings: Settings) -> None:
        words = [sys.executable, "-c", CHILD.format(root=str(ROOT))]
        environment = {**os.environ, **as_environment(settings)}
        output = subprocess.run(
            words, env=environment, stdout=subprocess.PIPE, text=True, timeout=240, check=True
        ).stdout
        told = json.loads(output.splitlines()[-1])
        self.losses, self.granted, self.moved, self.persistent = told[:4]
        self.ephemeral, self.least, self.options = told[4:]


@contextmanager
def shared(settings: Settings, **options: Any) -> Iterator[Session]:
    opened = sharing.start(settings, name="here", **options)
    try:
        yield opened
    finally:
        sharing.stop()


@pytest.mark.system
@pytest.mark.unsqueezed("the size that the broker chooses")
def test_what_does_not_fit_the_device_is_squeezed_and_trains_the_same(settings: Settings) -> None:
    stock = run(program)[0]
    plenty = Ended(settings)
    assert plenty.losses == stock
    assert plenty.granted == plenty.moved == 0
    capacity = plenty.persistent + plenty.ephemeral // 2
    socket = str(Path(settings.socket).with_name("small.sock"))
    small = msgspec.structs.replace(settings, socket=socket, host_capacity_bytes=capacity)
    try:
        squeezed = Ended(small)
    finally:
        end_broker(small)
    assert squeezed.losses == stock
    assert squeezed.moved > 0
    assert squeezed.granted in squeezed.options
    assert squeezed.least <= squeezed.granted <= capacity - plenty.persistent
    assert squeezed.ephemeral == squeezed.options[0]


def test_a_session_squeezes_to_a_size(settings: Settings) -> None:
    stock = run(program)
    with shared(settings, squeeze="16 MiB") as session:
        assert session.squeeze == 16 * MIB
        assert is_same(run(program), stock)
        demand = session.memory.demand()
        assert demand.options == ()
        assert min(one.ephemeral for one in session.memory.estimator.recent) <= 16 * MIB
        session.squeeze_as("off")
        assert is_same(run(program), stock)


@pytest.mark.unsqueezed("which sizes are refused")
def test_a_size_below_a_known_floor_is_refused_and_set_back_all_the_same(
    settings: Settings,
) -> None:
    stock = run(program)
    with shared(settings, squeeze="1 MiB") as session:
        assert is_same(run(program), stock)
        floor = session.memory.squeeze_floor
        assert floor > MIB
        refusal = f"squeeze is 2.0 MiB, and iterations cannot be below {size(floor)}, which one"
        with pytest.raises(InvalidValue, match=refusal):
            session.squeeze_as("2 MiB")
        with pytest.raises(InvalidValue, match=refusal), sharing.session(squeeze="2 MiB", weight=2):
            pytest.fail("the block has begun")
        assert (session.squeeze, session.weight) == (MIB, 1)
        session.squeeze_as(size(floor))
        with sharing.session(squeeze="off"):
            assert session.squeeze == "off"
        session.squeeze_again(MIB)
        with sharing.session(squeeze="off"):
            pass
        assert session.squeeze == MIB
        assert is_same(run(program), stock)


@pytest.mark.system
def test_an_admin_sets_what_the_files_of_all_notebooks_may_have(settings: Settings) -> None:
    stock, told = run(program), []
    with shared(msgspec.structs.replace(settings, all_page_files_bytes=MIB), squeeze="1 MiB") as it:
        it.on_trouble = told.append
        assert is_same(run(program), stock)
    assert any("all_page_files_bytes allows all notebooks 1.0 MiB" in said for said in told)


@pytest.mark.parametrize(
    "wrong", ["", "lots", "4 Gigs", "-1", "0", 0, "4", "nan", "4 TB", "1e9 GiB", "auto off"]
)
def test_a_wrong_size_says_what_would_be_right(wrong: Any) -> None:
    with pytest.raises(InvalidValue, match=r"it takes auto, off, or a size such as 4 GiB"):
        Session(name="wrong", squeeze=wrong)


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("auto", "auto"),
        (" OFF ", "off"),
        ("4 GiB", 4 << 30),
        ("512mib", 512 << 20),
        ("1.5 KiB", 1536),
        (4096, 4096),
        ("4096 B", 4096),
    ],
)
def test_sizes_are_read_as_people_write_them(given: Any, meant: Any) -> None:
    assert Session(name="right", squeeze=given).squeeze == meant
