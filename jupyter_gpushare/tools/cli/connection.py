"""A command's connection to the broker. No command but `broker` starts one."""

from __future__ import annotations

import argparse
from typing import Any

from ... import settings
from ...settings import Settings
from ...wire.client import Client


def settings_of(arguments: argparse.Namespace) -> Settings:
    """Return the settings of the environment, overridden by those of the command line."""
    given: dict[str, Any] = {
        name: getattr(arguments, name, None) for name in Settings.__struct_fields__
    }
    return settings.load(**given)


def connect(arguments: argparse.Namespace) -> Client:
    return Client.connect(settings_of(arguments), "jupyter gpushare", start=False)
