"""Directives of rules interrupt, end and cull real kernels of a real server."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from jupyter_gpushare_server.events.audit import INTERVENTION

from jupyter_gpushare.wire.client import Client
from jupyter_gpushare.wire.demand import Demand
from jupyter_gpushare.wire.messages import Grant, Request

from ....polling import next_of, until
from ..conftest import Events

pytestmark = pytest.mark.system

SECONDS = 60.0
SHARE = "%load_ext jupyter_gpushare\n%gpushare on --device host --name kernel"
HANG = """
import time
import jupyter_gpushare as gpushare
with gpushare.turn():
    print("hangs", flush=True)
    while True:
        try:
            time.sleep(600)
        except KeyboardInterrupt:
            if {gives_up}:
                raise
"""


Message = dict[str, Any]
Is = Callable[[Message], bool]


class Kernel:
    """A kernel of the server, and the messages that it publishes."""

    def __init__(self, name: str, manager: Any) -> None:
        self.name = name
        self.client = manager.client()  # an AsyncKernelClient
        self.client.start_channels()

    async def run(self, code: str, until: Is) -> list[Message]:
        """Run a cell; return its messages up to the first one for which `until` is true."""
        return await self.go_on(self.client.execute(code), until)

    async def go_on(self, cell: str, until: Is) -> list[Message]:
        heard: list[Message] = []
        while not heard or not until(heard[-1]):
            message = await self.client.get_iopub_msg(timeout=SECONDS)
            if message["parent_header"].get("msg_id") == cell:
                heard.append(message)
        return heard


def is_over(message: Message) -> bool:
    return message["content"].get("execution_state") == "idle"


def hangs(message: Message) -> bool:
    return message["content"].get("text", "").startswith("hangs")


@pytest.fixture
def rules(tmp_path: Path, extension_config: dict[str, Any]) -> Callable[[str], int]:
    """Write rules: `rules("...")` replaces the admin's file."""
    file = tmp_path / "rules.toml"
    file.touch()
    extension_config.update(rulebook=str(file), lease_seconds=0.2)
    return file.write_text


@pytest.fixture
def kernel(
    rules: Any, jp_serverapp: Any, found: Any, jp_asyncio_loop: Any
) -> Iterator[Callable[[], Awaitable[Kernel]]]:
    """Start a kernel: `await kernel()` is a new kernel of this server, which shares."""
    kernels = jp_serverapp.kernel_manager
    started: list[Kernel] = []

    async def start() -> Kernel:
        await found()
        name = await kernels.start_kernel()
        started.append(one := Kernel(name, kernels.get_kernel(name)))
        await one.client.wait_for_ready(timeout=SECONDS)
        await one.run(SHARE, is_over)
        return one

    yield start
    for one in started:
        one.client.stop_channels()
    jp_asyncio_loop.run_until_complete(kernels.shutdown_all(now=True))


async def waiter(join: Any) -> Client:
    """Another session, which wants the device."""
    client: Client = await join("waiter", demand=Demand(1000, 1000, measured=True))
    client.send(Request(1))
    return client


def done(events: Events) -> list[tuple[str, str]]:
    """Return the interventions of the server, each with its kernel."""
    interventions = (data for schema, data in events if schema == INTERVENTION)
    return [(data["action"], data["kernel"]) for data in interventions]


async def are_done(events: Events, *kinds: str) -> None:
    """Wait until the server has made exactly these interventions."""
    await asyncio.to_thread(until, lambda: [action for action, _ in done(events)] == [*kinds])


async def test_a_cell_that_hangs_is_interrupted_and_told_why(
    rules: Any, kernel: Any, join: Any, events: Events
) -> None:
    rules("[overdue]\ninterrupt_after = 1")
    one = await kernel()
    begun = await one.run(HANG.format(gives_up=True), hangs)
    other = await waiter(join)
    heard = await one.go_on(begun[0]["parent_header"]["msg_id"], is_over)
    kinds = [message["content"].get("ename") for message in heard]
    assert "KeyboardInterrupt" in kinds
    shown = [message["content"] for message in heard if message["msg_type"] == "display_data"]
    said = [content["data"]["text/plain"] for content in shown]
    assert any(text.endswith("So its cell is interrupted.") for text in said), said
    assert sum("has come to no iteration boundary" in text for text in said) == 1, said
    await asyncio.to_thread(next_of, other, Grant)
    assert done(events) == [("interrupt", one.name)]
    printed = await one.run("print('hangs no more')", is_over)
    assert any(hangs(message) for message in printed)


async def test_a_kernel_that_no_interrupt_ends_is_ended_only_if_the_rules_say_so(
    rules: Any, kernel: Any, join: Any, events: Events, jp_serverapp: Any
) -> None:
    rules("[overdue]\ninterrupt_after = 1")
    one = await kernel()
    await one.run(HANG.format(gives_up=False), hangs)
    other = await waiter(join)
    await are_done(events, "interrupt")
    assert one.name in jp_serverapp.kernel_manager
    rules("[overdue]\ninterrupt_after = 1\nend_after = 2")
    await asyncio.to_thread(next_of, other, Grant)
    await are_done(events, "interrupt", "end")
    assert one.name not in jp_serverapp.kernel_manager


async def test_an_idle_kernel_is_culled_and_others_are_not(
    rules: Any, kernel: Any, events: Events, jp_serverapp: Any, join: Any
) -> None:
    """Others are a kernel that computes without a turn, and a session that is no kernel of this
    server."""
    idle, busy = await kernel(), await kernel()
    await busy.run("import time\nprint('hangs', flush=True)\ntime.sleep(600)", hangs)
    await join("elsewhere", busy=False)
    rules("[idle]\ncull_after = 1")
    await are_done(events, "cull")
    assert done(events) == [("cull", idle.name)]
    kernels = jp_serverapp.kernel_manager
    assert (idle.name in kernels, busy.name in kernels) == (False, True)
