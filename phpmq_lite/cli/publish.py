"""``publish``: contents from an argument, a file or a pipe, each confirmed by the broker."""

import io
import os
import sys
from collections.abc import Iterator
from contextlib import closing
from typing import Final, cast

import click

from phpmq_lite.cli.connect import GiveClient, client_options
from phpmq_lite.cli.main import CommandError
from phpmq_lite.cli.options import duration, is_terminal, message_count, talk
from phpmq_lite.cli.output import counting
from phpmq_lite.client.blocking_client import BlockingClient

_READ_BYTES: Final = 1 << 20
_LINE_BYTES: Final = 512 << 20  # no broker takes more
_AT_ONCE: Final = 1_000  # copies between two steps of the progress bar


@click.command()
@click.argument("queue")
@click.argument("source", required=False, metavar="[-|FILE]")
@click.option("--data", help="The content itself, instead of a file.")
@click.option(
    "--ttl", "ttl_s", type=duration, default="0", metavar="DURATION",
    help="Time to live: 90, 90s, 15m, 1h, 7d; 0: it never expires.  [default: 0]",
)  # fmt: skip
@click.option("--count", type=click.IntRange(min=1), help="Publish it so many times.")
@click.option("--lines", is_flag=True, help="Each line is a message, without its line feed.")
@client_options
def publish(
    client: GiveClient,
    queue: str,
    source: str | None,
    data: str | None,
    ttl_s: int,
    count: int | None,
    lines: bool,
) -> None:
    """Publish messages, each confirmed.

    Reads FILE, or standard input for "-" or without FILE. Ends when the broker has stored all.
    """
    if data is not None and source is not None:
        raise click.UsageError("give --data or a file, not both")
    if lines and count is not None:
        raise click.UsageError("--lines and --count do not go together")
    with closing(_open(source, data)) as file, client() as broker:
        groups = read_lines(file) if lines else copies(file.read(), count or 1)
        stored = _publish(broker, queue, groups, ttl_s, None if lines else count or 1)
    talk(f"{message_count(stored)} stored in {queue} by the broker on {broker.target}")


def _publish(
    client: BlockingClient,
    queue: str,
    groups: Iterator[list[bytes]],
    ttl_s: int,
    total: int | None,
) -> int:
    """Publish group by group, so that a slow pipe is not held back; give how many are stored."""
    stored = 0
    with counting("publishing", total) as advance:
        for bodies in groups:
            stored += client.publish_many(queue, bodies, ttl_s)
            advance(len(bodies))
    return stored


def _open(source: str | None, data: str | None) -> io.BufferedIOBase:
    if data is not None:
        return io.BytesIO(os.fsencode(data))
    if source is not None and source != "-":
        return open(source, "rb")
    if source is None and is_terminal():
        raise click.UsageError("nothing to publish: give --data, a file, or - and type")
    return cast("io.BufferedIOBase", sys.stdin.buffer)


def copies(content: bytes, count: int) -> Iterator[list[bytes]]:
    """Yield the content ``count`` times, in groups."""
    for done in range(0, count, _AT_ONCE):
        yield [content] * min(_AT_ONCE, count - done)


def read_lines(file: io.BufferedIOBase) -> Iterator[list[bytes]]:
    """Yield the lines that each read completes, without their line feeds; a last one needs none.

    Costs the same however long the lines are: what is incomplete is kept in pieces.
    """
    pieces: list[bytes] = []
    while data := file.read1(_READ_BYTES):
        first, *rest = data.split(b"\n")
        pieces.append(first)
        if rest:
            yield [b"".join(pieces), *rest[:-1]]
            pieces = [rest[-1]]
        elif sum(map(len, pieces)) > _LINE_BYTES:
            raise CommandError(f"a line has more than {_LINE_BYTES} bytes")
    if last := b"".join(pieces):
        yield [last]
