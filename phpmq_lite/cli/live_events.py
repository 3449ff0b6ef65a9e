"""The commands ``queue tail`` and ``message wait``, which follow events as they happen."""

import asyncio
import json
import sys
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any, Final

import aiohttp
import click

from phpmq_lite.cli.admin_client import (
    AdminClient,
    BrokerUnavailableError,
    ConnectionEndedError,
    admin_client_options,
    check_response,
    read_response,
)
from phpmq_lite.cli.errors import TIMED_OUT, CommandError
from phpmq_lite.cli.output import print_message
from phpmq_lite.cli.parameters import duration
from phpmq_lite.storage.search.language import queue_search

_POLL_S: Final = 1.0  # seconds between polls while no stream is available
_POLLS: Final = 30  # number of polls before another request for a stream


@click.command()
@click.argument("queue")
@click.option(
    "--kind", multiple=True, help="Only these events: publish, dispatch, ack, ….  Repeatable."
)
@click.option("-n", "--limit", type=click.IntRange(min=1), metavar="N", help="Stop after N events.")
@admin_client_options
def tail(admin: AdminClient, queue: str, kind: tuple[str, ...], limit: int | None) -> None:
    """Print the events of QUEUE as they happen.

    Each event is a JSON line. Ctrl-C ends the command. If the broker stops, the command continues
    when it is back. The command fails if the queue is deleted.
    """

    async def print_events() -> None:
        left = limit
        async for update in topic_updates(admin, f"tail:{queue}"):
            if update.get("missed"):
                print_message(f"{update['missed']:,} events were skipped")
            if update.get("gap"):
                print_message("events may be missing here: the connection was lost for too long")
            for row in update.get("rows", ()):
                if kind and row.get("kind") not in kind:
                    continue
                click.echo(json.dumps(row))
                sys.stdout.flush()
                left = None if left is None else left - 1
                if left == 0:
                    return

    with suppress(KeyboardInterrupt):
        asyncio.run(print_events())


async def topic_updates(admin: AdminClient, topic: str) -> AsyncIterator[dict[str, Any]]:
    """Yield each update of a topic exactly once, in the same form as for the web pages.

    After the broker has stopped, this continues when it is back.

    Raises:
        CommandError: the broker is unreachable from the beginning, or the topic no longer exists.
    """
    stream = TopicStream(admin, topic)
    is_away = False
    while True:
        try:
            async for update in stream.updates():
                if is_away:
                    print_message("connected to the broker again")
                is_away = False
                yield update
        except (BrokerUnavailableError, ConnectionEndedError) as error:
            if stream.newest_id is None:
                raise
            if not is_away:
                print_message(f"{error}; trying again")
            is_away = True
        await asyncio.sleep(_POLL_S)


class TopicStream:
    """The updates of a topic, over any number of streams.

    The broker limits the number and duration of streams.  The next stream continues where the last
    one ended; while no stream is available, the topic is polled once a second.
    """

    def __init__(self, admin: AdminClient, topic: str) -> None:
        self.newest_id: str | None = None  # of the updates that were yielded
        self._admin = admin
        self._topic = topic
        self._polls: int | None = None  # left until a stream is requested; None: none was refused

    async def updates(self) -> AsyncIterator[dict[str, Any]]:
        """Yield the next updates, until a stream ends or after a poll."""
        admin, topic, seen = self._admin, self._topic, self.newest_id
        # Make this request first, because a stream that has begun cannot report a problem.
        async with admin.open("GET", "/live", query={"topic": topic, "after": seen}) as response:
            update = read_response(response.status, await response.read())
        newest = self.newest_id = str(update.pop("id"))
        if seen and seen.partition("-")[0] != newest.partition("-")[0]:
            print_message(
                "the broker no longer knows which events were shown; some may be lost or repeated"
            )
        yield update
        if not self._polls:
            since = {"Last-Event-ID": newest}
            async with admin.open(
                "GET", "/events", query={"topic": topic}, timeout_s=None, headers=since
            ) as response:
                if response.status == 204:
                    if self._polls is None:
                        print_message("the broker has too many open streams; polling once a second")
                    self._polls = _POLLS
                else:
                    async for event in _events(response):
                        self.newest_id = event.get("id", self.newest_id)
                        yield json.loads(event["data"])
        self._polls = self._polls and self._polls - 1


async def _events(response: aiohttp.ClientResponse) -> AsyncIterator[dict[str, str]]:
    """Yield each event as a mapping of its fields, until the broker ends the stream."""
    await check_response(response)
    event: dict[str, str] = {}
    async for line in _lines(response):
        if line:
            name, _, value = line.partition(":")  # comment lines have an empty name
            event[name] = value.removeprefix(" ")
            continue
        if event.get("event") == "bye":
            if json.loads(event["data"])["reason"] == "stopping":
                raise BrokerUnavailableError("the broker is stopping")
            return
        if "data" in event:
            yield event
        event = {}
    raise ConnectionEndedError("the broker closed the connection")


async def _lines(response: aiohttp.ClientResponse) -> AsyncIterator[str]:
    """Yield the complete lines of a response, which may be of any length."""
    incomplete = b""
    async for piece in response.content.iter_any():
        *lines, incomplete = (incomplete + piece).split(b"\n")
        for line in lines:
            yield line.decode("utf-8", "replace").rstrip("\r")


_REQUEST_S: Final = 60  # maximum number of seconds that a single request waits


@click.command()
@click.argument("queue")
@click.argument("query", default="")
@click.option(
    "--until",
    type=click.Choice(["published", "settled"]),
    default="published",
    show_default=True,
    help="The event to wait for.",
)
@click.option("--after", metavar="CURSOR", help="Count events after this --cursor output.")
@click.option(
    "--timeout",
    "timeout_s",
    type=duration,
    default="30s",
    show_default=True,
    metavar="DURATION",
    help="Exit with code 5 if nothing matches within this time.",
)
@click.option("--cursor", is_flag=True, help="Print the current cursor for --after and exit.")
@admin_client_options
def wait(
    admin: AdminClient,
    queue: str,
    query: str,
    until: str,
    after: str | None,
    timeout_s: int,
    cursor: bool,
) -> None:
    """Wait until a message in QUEUE matches QUERY, then print it.

    Without --after, only future events count.
    """
    if cursor:
        _, now = asyncio.run(_wait(admin, {"until": until, "timeout": 0}, 0))
        click.echo(now)
        return
    ends_s = time.monotonic() + timeout_s
    text = f"{queue_search(queue)} {query}".strip()  # with wildcards in the queue's name escaped
    while (left_s := ends_s - time.monotonic()) > 0:
        wait_s = min(_REQUEST_S, max(1, round(left_s)))
        wait_query: dict[str, Any] = {"q": text, "until": until, "after": after, "timeout": wait_s}
        message, after = asyncio.run(_wait(admin, wait_query, wait_s))
        if message is not None:
            click.echo(json.dumps(message))
            return
    raise CommandError(f"no message matched within {timeout_s} s", TIMED_OUT)


async def _wait(
    admin: AdminClient, wait_query: dict[str, Any], wait_s: int
) -> tuple[object | None, str | None]:
    async with admin.open("GET", "/wait", query=wait_query, timeout_s=wait_s + 30) as response:
        content = await response.read()
        if response.status == 204:
            return None, response.headers.get("X-Cursor")
        return read_response(response.status, content), None
