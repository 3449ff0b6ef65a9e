"""``tail`` and ``top``: what happens now, as it happens."""

import asyncio
import json
import sys
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any, Final

import aiohttp
import click

from phpmq_lite.cli.main import CommandError
from phpmq_lite.cli.node import Node, node_options, read_answer
from phpmq_lite.cli.options import talk
from phpmq_lite.logs import escape

_BUSIEST: Final = 30  # queues that top shows
_LOOK_S: Final = 1.0  # between two looks without a stream
_LOOKS: Final = 30  # before a stream is asked for again


@click.command()
@click.argument("queue")
@click.option("--kind", multiple=True, help="Only these: publish, dispatch, ack, ….  Repeatable.")
@click.option("-n", "--number", type=click.IntRange(min=1), help="Stop after so many.")
@node_options
def tail(node: Node, queue: str, kind: tuple[str, ...], number: int | None) -> None:
    """Show what happens in QUEUE as it happens, one JSON line each; Ctrl-C ends it.

    It ends with an error when the broker stops and when the queue is removed.
    """

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

    with suppress(KeyboardInterrupt):
        asyncio.run(follow())


async def updates(node: Node, topic: str) -> AsyncIterator[dict[str, Any]]:
    """Yield the updates of a topic as the pages get them, none twice.

    The broker ends each stream after some time, and lets no more than some be open: this goes on
    where the last one ended, and where it gets none it looks once a second.

    Raises:
        CommandError: the broker stops, cannot be reached any more, or has no such thing any more.
    """
    seen: str | None = None
    looks: int | None = None  # to come before the next stream is asked for; None: none was refused
    while True:
        # It says what is wrong, which a stream that has begun cannot.
        async with node.open("GET", "/live", query={"topic": topic, "after": seen}) as response:
            found = read_answer(response.status, await response.read())
        feed, seen = seen, found.pop("id")
        if feed and feed.partition("-")[0] != seen.partition("-")[0]:
            talk("the broker has forgotten what was shown: some rows may be missing or come twice")
        yield found
        if not looks:
            asked, since = {"topic": topic}, {"Last-Event-ID": seen}
            async with node.open(
                "GET", "/events", query=asked, timeout_s=None, headers=since
            ) as response:
                if response.status == 204:
                    if looks is None:
                        talk("the broker has no place for another stream: looking once a second")
                    looks = _LOOKS
                else:
                    async for event in _events(response):
                        seen = event.get("id", seen)
                        yield json.loads(event["data"])
        looks = looks and looks - 1
        await asyncio.sleep(_LOOK_S)


async def _events(response: aiohttp.ClientResponse) -> AsyncIterator[dict[str, str]]:
    """Yield the events of a stream, each with its fields, until the broker says that it ends."""
    if response.status != 200:
        read_answer(response.status, await response.read())
    event: dict[str, str] = {}
    async for line in _lines(response):
        if line:
            name, _, value = line.partition(":")  # a comment has no name: it keeps the line open
            event[name] = value.removeprefix(" ")
            continue
        if event.get("event") == "bye":
            if json.loads(event["data"])["reason"] == "stopping":
                raise CommandError("the broker stops")
            return
        if "data" in event:
            yield event
        event = {}
    raise CommandError("the broker has closed the connection")


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
