"""``jupyter gpushare policy``: show or choose the policy and the number of running lanes."""

from __future__ import annotations

import argparse

from ...wire.messages import SetPolicy
from .argument_types import lanes
from .connection import connect
from .output import show

HELP = "show the policies, or choose one for all notebooks at once"


def add_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument("name", nargs="?", metavar="NAME", help="the policy to choose")
    command.add_argument(
        "--lanes",
        type=lanes,
        metavar="N",
        help="number of lanes that may run at once; auto: as the policy says",
    )


def run(arguments: argparse.Namespace) -> int:
    from .. import overview

    with connect(arguments) as client:
        if arguments.name is not None or arguments.lanes is not None:
            client.ask(SetPolicy(policy=arguments.name, running_lanes=arguments.lanes))
        snapshot = client.look()
    show(overview.policies(snapshot.policies, snapshot.policy))
    for device in snapshot.devices:
        print(f"{device.name}: {overview.at_once(device)}")
    return 0
