"""``jupyter gpushare nodes``: nodes of the cluster, and the use of their GPUs."""

from __future__ import annotations

import argparse
from contextlib import suppress

from ...errors import GpuShareError
from ...format import counted
from ...jobs.connection import ask
from ...settings import Settings
from ...wire.client import Client
from .. import jobs_table, overview
from .argument_types import add_json
from .connection import settings_of
from .output import show, show_json, tell

HELP = "show nodes of the cluster and their GPUs"
SHARE = "of notebooks and jobs on the devices of this machine: see `jupyter gpushare status`"


def add_arguments(command: argparse.ArgumentParser) -> None:
    add_json(command)


def run(arguments: argparse.Namespace) -> int:
    settings = settings_of(arguments)
    view = ask(settings, lambda cluster: cluster.look())
    if arguments.json:
        show_json(view.nodes)
        return 0
    if view.trouble:
        tell(view.trouble)
    show(jobs_table.nodes(view.nodes))
    if count := count_sessions(settings):
        tell(f"{counted(count, 'session')} {SHARE}")
    return 0


def count_sessions(settings: Settings) -> int:
    """Return how many sessions this machine has; 0 if no broker runs."""
    with suppress(GpuShareError), Client.connect(settings, "nodes", start=False) as client:
        return len(overview.sharing(client.look()))
    return 0
