"""``jupyter gpushare simulate``: the same notebooks under other policies, or on other devices."""

from __future__ import annotations

import argparse

from .argument_types import add_json, count, part, parts, size, weights, whole
from .output import show, show_json, tell

HELP = "simulate recorded or generated notebooks under other policies or on other devices"


def add_arguments(command: argparse.ArgumentParser) -> None:
    _add_source(command)
    command.add_argument(
        "--policy",
        type=lambda names: names.split(","),
        metavar="NAMES",
        help="policies, separated by commas (default: all)",
    )
    _add_devices(command)
    for whose in ("group", "user"):
        command.add_argument(
            f"--{whose}-weights",
            type=weights,
            metavar="WEIGHTS",
            help=f"of {whose}s, as in {whose[0]}1=2,{whose[0]}2=0.5 (default: as recorded, or 1)",
        )
    command.add_argument(
        "--plot", metavar="FILE", help="write a plot as SVG, PNG or PDF; needs matplotlib"
    )
    add_json(command)


def _add_source(command: argparse.ArgumentParser) -> None:
    subject = command.add_mutually_exclusive_group(required=True)
    subject.add_argument("--from", dest="source", metavar="FILE", help="a file that `record` wrote")
    subject.add_argument(
        "--generate", type=count, metavar="N", help="number of random notebooks to generate"
    )
    command.add_argument(
        "--seed", type=whole, default=0, metavar="N", help="random seed (default: 0)"
    )


def _add_devices(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--capacity", type=size, metavar="SIZE", help="memory of a device, as in 24GiB"
    )
    command.add_argument("--devices", type=count, metavar="N", help="number of devices")
    command.add_argument(
        "--class-mode",
        default="",
        metavar="GROUP",
        help="that group alone has the devices while any notebook of it is open and unfinished",
    )
    command.add_argument(
        "--paging-rate",
        type=size,
        default=0,
        metavar="SIZE",
        help="page notebooks out at this many bytes per second (default: never)",
    )
    command.add_argument(
        "--squeeze",
        type=parts,
        default={},
        metavar="PARTS",
        help="notebooks can be squeezed to these parts of their peak, each with its slowdown, as in"
        " 0.6=1.03,0.2=1.1 (default: as in the record; generated ones cannot be)",
    )
    command.add_argument(
        "--co-lanes",
        type=part,
        nargs="?",
        const=0.5,
        metavar="LOAD",
        help="also run each policy with two notebooks of one user in one lane at once, where each"
        " keeps that part of the device busy while it computes (0.5 if it is not given)",
    )


def run(arguments: argparse.Namespace) -> int:
    from ... import _core
    from ...simulator import plots, simulate, workload

    source = arguments.source or workload.generated(arguments.generate, seed=arguments.seed)
    comparison = simulate.simulate(
        source,
        arguments.policy or simulate.POLICIES,
        capacity=arguments.capacity,
        devices=arguments.devices,
        groups=arguments.group_weights,
        users=arguments.user_weights,
        class_of=arguments.class_mode,
        squeeze=arguments.squeeze,
        co_lanes=arguments.co_lanes,
        conduct=_core.Conduct(paging_rate=arguments.paging_rate),
    )
    if arguments.plot:
        with plots.style():
            plots.save(comparison.plot(), arguments.plot)
        tell(f"the plot is in {arguments.plot}")
    if arguments.json:
        show_json(comparison.figures())
    else:
        for table in comparison.tables():
            show(table)
        if comparison.verdict:
            print(comparison.verdict)
    return 0
