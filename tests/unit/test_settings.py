"""One table of settings, read from the environment, with a sentence for each wrong value."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from jupyter_gpushare import _core
from jupyter_gpushare.errors import InvalidValue
from jupyter_gpushare.settings import (
    Settings,
    as_environment,
    descriptions,
    load,
    overriding_environment,
    socket_path,
)

ROOT = Path(__file__).resolve().parents[2]


def test_a_setting_that_the_core_reads_has_the_same_name_everywhere() -> None:
    (struct,) = re.findall(
        r"^struct Rules \{\n(.*?)^\};",
        (ROOT / "csrc" / "core" / "model" / "types.h").read_text(),
        re.MULTILINE | re.DOTALL,
    )
    fields = re.findall(r"^  \w+ (\w+) = ", struct, re.MULTILINE)
    settings = {name.removesuffix("_seconds") for name in Settings.__struct_fields__}
    assert {*fields} == {*_core.Rules.names}
    assert {*fields} <= settings


def test_every_setting_has_a_sentence() -> None:
    assert all(descriptions().values())


def test_the_environment_sets_and_the_call_overrides() -> None:
    environ = {"JUPYTER_GPUSHARE_QUANTUM_SECONDS": "0.5", "JUPYTER_GPUSHARE_POLICY": "srtf"}
    settings = load(environ, policy="las")
    assert (settings.quantum_seconds, settings.policy) == (0.5, "las")


def test_a_wrong_setting_is_said_to_be_in_the_environment_where_it_was_found_there() -> None:
    variable = "JUPYTER_GPUSHARE_QUANTUM_SECONDS"
    with pytest.raises(InvalidValue) as given:
        load({variable: "1"}, quantum_seconds="soon")
    assert "environment" not in str(given.value)


def test_settings_pass_through_an_environment_unchanged() -> None:
    settings = load({}, policy="las", quantum_seconds=0.125, host_capacity_bytes=1 << 33)
    assert load(as_environment(settings)) == settings


def test_settings_hold_where_an_inherited_variable_says_otherwise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settings = load({}, auto=False, policy="fair", host_capacity_bytes=0, rulebook="")
    others = {"AUTO": "1", "POLICY": "las", "HOST_CAPACITY_BYTES": "7", "RULEBOOK": "/rules"}
    for name, value in others.items():
        monkeypatch.setenv(f"JUPYTER_GPUSHARE_{name}", value)
    child = load({**os.environ, **overriding_environment(settings)})
    assert all(getattr(child, name.lower()) == getattr(settings, name.lower()) for name in others)


def test_the_default_socket_is_in_a_directory_of_the_user() -> None:
    assert socket_path(load({})).name == "broker.sock"
    assert socket_path(load({}, socket="/tmp/x.sock")) == Path("/tmp/x.sock")
