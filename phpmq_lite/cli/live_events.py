"""The commands ``tail`` and ``expect``, which read the broker's event stream."""

import asyncio
import json
import sys
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

import aiohttp
import click

from phpmq_lite.admin.base.search_query import queue_search
from phpmq_lite.cli.admin_client import AdminClient, admin_client_options, read_response
from phpmq_lite.cli.errors import TIMED_OUT, CommandError
from phpmq_lite.cli.output import print_message
from phpmq_lite.cli.parameters import duration
from phpmq_lite.cli.queues import _LOOK_S, _LOOKS


@click.command()
@click.argument("queue")
@click.option("--kind", multiple=True, help="Only these: publish, dispatch, ack, ….  Repeatable.")
@click.option("-n", "--number", type=click.IntRange(min=1), help="Stop after so many.")
@admin_client_options
def tail(node: AdminClient, queue: str, kind: tuple[str, ...], number: int | None) -> None:
    """Show what happens in QUEUE as it happens, one JSON line each; Ctrl-C ends it.

    It ends with an error when the broker stops and when the queue is removed.
    """

    async def follow() -> None:
        left = number
        async for update in topic_updates(node, f"tail:{queue}"):
            if update.get("missed"):
                print_message(f"{update['missed']:,} not shown")
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


async def topic_updates(node: AdminClient, topic: str) -> AsyncIterator[dict[str, Any]]:
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
            found = read_response(response.status, await response.read())
        feed, seen = seen, found.pop("id")
        if feed and feed.partition("-")[0] != seen.partition("-")[0]:
            print_message(
                "the broker has forgotten what was shown: some rows may be missing or come twice"
            )
        yield found
        if not looks:
            asked, since = {"topic": topic}, {"Last-Event-ID": seen}
            async with node.open(
                "GET", "/events", query=asked, timeout_s=None, headers=since
            ) as response:
                if response.status == 204:
                    if looks is None:
                        print_message(
                            "the broker has no place for another stream: looking once a second"
                        )
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
        read_response(response.status, await response.read())
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


_TURN_S = 60  # the longest that one request waits


@click.command()
@click.argument("queue")
@click.argument("query", default="")
@click.option(
    "--until", type=click.Choice(["published", "settled"]), default="published", show_default=True,
    help="What has to happen.",
)  # fmt: skip
@click.option("--after", metavar="CURSOR", help="Only what happened after this moment.")
@click.option(
    "--timeout", "timeout_s", type=duration, default="30s", show_default=True, help="Then exit 5."
)
@click.option("--cursor", is_flag=True, help="Print the cursor of now, for --after, and end.")
@admin_client_options
def expect(
    node: AdminClient,
    queue: str,
    query: str,
    until: str,
    after: str | None,
    timeout_s: int,
    cursor: bool,
) -> None:
    """Wait until a message of QUEUE matches QUERY; print it.

    Without --after only what happens from now on counts.
    """
    if cursor:
        _, now = asyncio.run(_wait(node, {"until": until, "timeout": 0}, 0))
        click.echo(now)
        return
    ends_s = time.monotonic() + timeout_s
    text = f"{queue_search(queue)} {query}".strip()  # the name alone, whatever marks it has
    while (left_s := ends_s - time.monotonic()) > 0:
        turn_s = min(_TURN_S, max(1, round(left_s)))
        asked: dict[str, Any] = {"q": text, "until": until, "after": after, "timeout": turn_s}
        found, after = asyncio.run(_wait(node, asked, turn_s))
        if found is not None:
            click.echo(json.dumps(found))
            return
    raise CommandError(f"nothing matched within {timeout_s} s", TIMED_OUT)


async def _wait(
    node: AdminClient, asked: dict[str, Any], turn_s: int
) -> tuple[object | None, str | None]:
    async with node.open("GET", "/wait", query=asked, timeout_s=turn_s + 30) as response:
        content = await response.read()
        if response.status == 204:
            return None, response.headers.get("X-Cursor")
        return read_response(response.status, content), None
