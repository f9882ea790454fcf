"""Settings, environment and the front end's types."""

from __future__ import annotations

import os
import runpy
from typing import Any

import pytest
from jupyter_gpushare_server import _unload_jupyter_server_extension
from jupyter_gpushare_server.app import GpuShareExtension

from jupyter_gpushare.settings import Settings

from ...violations import ROOT


def test_every_setting_is_a_trait_with_its_sentence() -> None:
    traits = GpuShareExtension.class_traits(config=True)
    assert set(Settings.__struct_fields__) <= set(traits)
    assert "path of the broker's Unix socket" in traits["socket"].help
    assert "JUPYTER_GPUSHARE_QUANTUM_SECONDS" in traits["quantum_seconds"].help


@pytest.fixture
def a_policy(extension_config: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    extension_config["policy"] = "srtf"
    monkeypatch.setenv("JUPYTER_GPUSHARE_POLICY", "fifo")
    monkeypatch.setenv("JUPYTER_GPUSHARE_QUANTUM_SECONDS", "0.5")


async def test_a_trait_beats_the_environment_and_reaches_the_broker(
    a_policy: None, extension: GpuShareExtension, found: Any
) -> None:
    assert (extension.settings.policy, extension.settings.quantum_seconds) == ("srtf", 0.5)
    assert (await found()).policy == "srtf"


@pytest.fixture
def no_socket_in_environment(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JUPYTER_GPUSHARE_SOCKET")


async def test_kernels_inherit_the_socket_until_the_extension_is_unloaded(
    no_socket_in_environment: None,
    jp_serverapp: Any,
    extension: GpuShareExtension,
    settings: Settings,
) -> None:
    assert os.environ["JUPYTER_GPUSHARE_SOCKET"] == settings.socket
    await _unload_jupyter_server_extension(jp_serverapp)
    assert "JUPYTER_GPUSHARE_SOCKET" not in os.environ


def test_the_types_of_the_front_end_are_those_of_the_protocol() -> None:
    types = runpy.run_path(str(ROOT / "labextension" / "snapshot_types.py"))
    assert types["FILE"].read_text() == types["text"](), "run labextension/snapshot_types.py"


def test_the_build_sees_every_change_of_a_source() -> None:
    build = runpy.run_path(str(ROOT / "labextension" / "build.py"))
    names = {path.relative_to(build["HERE"]).as_posix() for path in build["sources"]()}
    assert {"package.json", "yarn.lock", "src/view/view.ts", "style/base.css"} <= names
    assert build["digest"]() == build["digest"]()
