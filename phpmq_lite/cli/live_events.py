"""The commands ``queue tail`` and ``message wait``, which follow events as they happen."""

import json
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from http.client import HTTPResponse
from typing import Any, Final

import click

from phpmq_lite.cli.admin_client import (
    AdminClient,
    BrokerUnavailableError,
    ConnectionEndedError,
    admin_client_options,
)
from phpmq_lite.cli.errors import TIMED_OUT, CommandError
from phpmq_lite.cli.output import print_message
from phpmq_lite.cli.parameters import choice, duration, flag, number_option, option, repeatable
from phpmq_lite.storage.search.language import queue_search

_POLL_S: Final = 1.0  # seconds between polls while no stream is available
_POLLS: Final = 30  # number of polls before another request for a stream


@click.command()
@click.argument("queue")
@repeatable("--kind", "Only these events: publish, dispatch, ack, ….  Repeatable.")
@number_option(("-n", "--limit"), "Stop after N events.")
@admin_client_options
def tail(admin: AdminClient, queue: str, kind: tuple[str, ...], limit: int | None) -> None:
    """Print the events of QUEUE as they happen.

    Each event is a JSON line. Ctrl-C ends the command. If the broker stops, the command continues
    when it is back. The command fails if the queue is deleted.
    """
    remaining = limit
    with suppress(KeyboardInterrupt):
        for update in topic_updates(admin, f"tail:{queue}"):
            if update.get("missed"):
                print_message(f"{update['missed']:,} events were skipped")
            if update.get("gap"):
                print_message("events may be missing here: the connection was lost for too long")
            for row in update.get("rows", ()):
                if kind and row.get("kind") not in kind:
                    continue
                click.echo(json.dumps(row))
                sys.stdout.flush()
                remaining = None if remaining is None else remaining - 1
                if remaining == 0:
                    return


def topic_updates(admin: AdminClient, topic: str) -> Iterator[dict[str, Any]]:
    """Yield each update of a topic exactly once, also after the broker was away."""
    stream = TopicStream(admin, topic)
    is_away = False
    while True:
        try:
            for update in stream.updates():
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
        time.sleep(_POLL_S)


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

    def updates(self) -> Iterator[dict[str, Any]]:
        """Yield the next updates, until a stream ends or after a poll."""
        admin, topic, last_id = self._admin, self._topic, self.newest_id
        # Make this request first, because a stream that has begun cannot report a problem.
        update = admin.get("/live", topic=topic, after=last_id)
        newest = self.newest_id = str(update.pop("id"))
        if last_id and last_id.partition("-")[0] != newest.partition("-")[0]:
            print_message(
                "the broker no longer knows which events were shown; some may be lost or repeated"
            )
        yield update
        if not self._polls:
            query = {"topic": topic}
            with admin.open("GET", "/events", None, query, timeout_s=None, since=newest) as stream:
                if stream.status == 204:
                    if self._polls is None:
                        print_message("the broker has too many open streams; polling once a second")
                    self._polls = _POLLS
                else:
                    for event in _events(admin, stream):
                        self.newest_id = event.get("id", self.newest_id)
                        yield json.loads(event["data"])
        self._polls = self._polls and self._polls - 1


def _events(admin: AdminClient, response: HTTPResponse) -> Iterator[dict[str, str]]:
    """Yield each event as a mapping of its fields, until the broker ends the stream."""
    event: dict[str, str] = {}
    incomplete = b""
    for piece in admin.pieces(response):
        *lines, incomplete = (incomplete + piece).split(b"\n")
        for line in lines:
            if text := line.decode("utf-8", "replace").rstrip("\r"):
                name, _, value = text.partition(":")  # comments have an empty name
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


_REQUEST_S: Final = 60  # maximum number of seconds that a single request waits


@click.command()
@click.argument("queue")
@click.argument("query", default="")
@choice("--until", "The event to wait for.", "published", "settled")
@option("--after", "Count events after this --cursor output.", metavar="CURSOR")
@option(
    ("--timeout", "timeout_s"),
    "Exit with code 5 if nothing matches within this time.",
    duration,
    "30s",
)
@flag("--cursor", "Print the current cursor for --after and exit.")
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
        click.echo(_wait(admin, {"until": until, "timeout": 0}, 0)[1])
        return
    ends_s = time.monotonic() + timeout_s
    text = f"{queue_search(queue)} {query}".strip()  # with wildcards in the queue's name escaped
    while (remaining_s := ends_s - time.monotonic()) > 0:
        wait_s = min(_REQUEST_S, max(1, round(remaining_s)))
        wait_query: dict[str, Any] = {"q": text, "until": until, "after": after, "timeout": wait_s}
        message, after = _wait(admin, wait_query, wait_s)
        if message is not None:
            click.echo(json.dumps(message))
            return
    raise CommandError(f"no message matched within {timeout_s} s", TIMED_OUT)


def _wait(
    admin: AdminClient, wait_query: dict[str, Any], wait_s: int
) -> tuple[object | None, str | None]:
    with admin.open("GET", "/wait", query=wait_query, timeout_s=wait_s + 30) as response:
        if response.status == 204:
            return None, response.headers.get("X-Cursor")
        return admin.read(response), None
