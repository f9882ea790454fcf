"""The hub's service without a hub: what it says of a wrong environment."""

from __future__ import annotations

import pytest
from jupyter_gpushare_server import hub_service


@pytest.mark.parametrize("url", ["", "127.0.0.1:18090", "http://127.0.0.1", "http://x:port"])
def test_an_address_that_is_none_is_said_in_a_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], url: str
) -> None:
    monkeypatch.setenv("JUPYTERHUB_SERVICE_URL", url)
    assert hub_service.main() == 1
    said = capsys.readouterr().err
    assert said.startswith(f"jupyter-gpushare-hub: JUPYTERHUB_SERVICE_URL is {url!r}")
    assert said.count("\n") == 1
