"""``jupyter gpushare nodes``: nodes of the cluster, and what uses their GPUs."""

from __future__ import annotations

import argparse

from ...client.jobs.connection import ask
from .. import jobs_table
from .argument_types import add_json
from .connection import settings_of
from .output import show, show_json, tell

HELP = "show nodes of the cluster and their GPUs"


def add_arguments(command: argparse.ArgumentParser) -> None:
    add_json(command)


def run(arguments: argparse.Namespace) -> int:
    view = ask(settings_of(arguments), lambda cluster: cluster.look())
    if arguments.json:
        show_json(view.nodes)
        return 0
    if view.trouble:
        tell(view.trouble)
    show(jobs_table.nodes(view.nodes))
    return 0
