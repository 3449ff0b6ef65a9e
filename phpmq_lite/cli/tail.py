"""``tail`` and ``top``: what happens now, as it happens."""

import asyncio
import json
import sys
import time
from collections.abc import AsyncIterator
from typing import Any, Final

import aiohttp
import click

from phpmq_lite.cli.node import Node, node_options, read_answer
from phpmq_lite.cli.options import talk
from phpmq_lite.logs import escape

_BUSIEST: Final = 30  # queues that top shows


@click.command()
@click.argument("queue")
@click.option("--kind", multiple=True, help="Only these: publish, dispatch, ack, ….  Repeatable.")
@click.option("-n", "--number", type=click.IntRange(min=1), help="Stop after so many.")
@node_options
def tail(node: Node, queue: str, kind: tuple[str, ...], number: int | None) -> None:
    """Show what happens in QUEUE as it happens, one JSON line each; Ctrl-C ends it."""

    async def follow() -> None:
        left = number
        async for update in updates(node, f"tail:{queue}"):
            if update.get("missed"):
                talk(f"{update['missed']:,} not shown")
            for row in update.get("rows", ()):
                if kind and row.get("kind") not in kind:
                    continue
                click.echo(json.dumps(row))
                sys.stdout.flush()
                left = None if left is None else left - 1
                if left == 0:
                    return

    asyncio.run(follow())


async def updates(node: Node, topic: str) -> AsyncIterator[dict[str, Any]]:
    """Yield the updates of a topic as the pages get them; ends when the broker stops."""
    async with node.open("GET", "/events", query={"topic": topic}, timeout_s=None) as response:
        if response.status != 200:
            read_answer(response.status, await response.read())
        async for line in _lines(response):
            if line.startswith("data:"):
                yield json.loads(line.removeprefix("data:"))


async def _lines(response: aiohttp.ClientResponse) -> AsyncIterator[str]:
    """Yield whole lines, however long."""
    rest = b""
    async for piece in response.content.iter_any():
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            yield line.decode("utf-8", "replace").rstrip("\r")


@click.command()
@click.option("--once", is_flag=True, help="Print it once and end.")
@click.option(
    "--every", "every_s", type=click.FloatRange(0.2), default=1.0, show_default=True,
    help="Seconds between two looks.",
)  # fmt: skip
@node_options
def top(node: Node, once: bool, every_s: float) -> None:
    """Show the busiest queues, again and again; Ctrl-C ends it."""
    from rich.console import Console
    from rich.live import Live

    if once or not sys.stdout.isatty():
        Console(width=None if sys.stdout.isatty() else 120).print(_table(node))
        return
    with Live(_table(node), screen=True, auto_refresh=False) as live:
        try:
            while True:
                time.sleep(every_s)
                live.update(_table(node), refresh=True)
        except KeyboardInterrupt:
            return


def _table(node: Node) -> Any:
    from rich.table import Table
    from rich.text import Text

    from phpmq_lite.cli.output import cell
    from phpmq_lite.cli.queue import COLUMNS

    stats = node.get("/stats")
    rows = list(node.list("/queues", _BUSIEST, sort="-in"))
    title = (
        f"{stats['ready']:,} ready · {stats['dispatched']:,} dispatched · {stats['dead']:,} dead"
        f" · in {stats['published_per_s']:,.0f}/s · out {stats['acked_per_s']:,.0f}/s"
    )
    table = Table(title=title, title_justify="left", box=None, header_style="bold")
    for column in COLUMNS:
        table.add_column(column.title, justify="right" if column.is_number else "left")
    for row in rows:
        table.add_row(*(Text(escape(cell(row.get(column.key)))) for column in COLUMNS))
    return table
