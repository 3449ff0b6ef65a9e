"""The commands ``publish`` and ``consume``."""

import base64
import io
import json
import os
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from typing import Final, cast

import click

from phpmq_lite.cli.broker_connection import ClientFactory, client_options
from phpmq_lite.cli.errors import ERROR, TIMED_OUT, CommandError
from phpmq_lite.cli.output import escape_content, format_message_count, is_terminal, print_message
from phpmq_lite.cli.parameters import duration
from phpmq_lite.cli.progress import progress_bar
from phpmq_lite.cli.signals import Interruption
from phpmq_lite.client.blocking_client import BlockingClient, BlockingConsumer
from phpmq_lite.client.session import Delivery

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
    client: ClientFactory,
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
    print_message(
        f"{format_message_count(stored)} stored in {queue} by the broker on {broker.target}"
    )


def _publish(
    client: BlockingClient,
    queue: str,
    groups: Iterator[list[bytes]],
    ttl_s: int,
    total: int | None,
) -> int:
    """Publish group by group, so that a slow pipe is not held back; give how many are stored."""
    stored = 0
    with progress_bar("publishing", total) as advance:
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


_CREDIT: Final = 100
_LOOKED_AT: Final = 10  # messages shown by --no-ack without -n

Handler = Callable[[Delivery], bool]  # True: the message is done


@click.command()
@click.argument("queue")
@click.option(
    "-n", "--number", type=click.IntRange(min=1),
    help="Stop after so many.  [default: no end; with --no-ack 10]",
)  # fmt: skip
@click.option(
    "--ack/--no-ack", "is_acked", default=True,
    help="Acknowledge what was printed, or give it back at the end.  [default: ack]",
)  # fmt: skip
@click.option(
    "--exec", "program", metavar="CMD",
    help="Run CMD for each message, its content on standard input; MESSAGE_QUEUE, MESSAGE_ID and "
    "MESSAGE_TTL_S tell the rest. Exit code 0 acknowledges, another one requeues.",
)  # fmt: skip
@click.option(
    "--timeout", "timeout_s", type=click.FloatRange(min=0), metavar="SECONDS",
    help="Stop when nothing came for so long.  [default: wait for ever]",
)  # fmt: skip
@click.option(
    "--format", "style", type=click.Choice(["raw", "json"]), default="raw", show_default=True,
    help="raw: the content and a line feed; json: a line with id, ttl_s and content.",
)  # fmt: skip
@click.option("--create", is_flag=True, help="Create the queue if it is not there, and wait.")
@client_options
def consume(
    client: ClientFactory,
    queue: str,
    number: int | None,
    is_acked: bool,
    program: str | None,
    timeout_s: float | None,
    style: str,
    create: bool,
) -> None:
    """Take messages from a queue and print them.

    A message is acknowledged after it was printed. Exits with 3 if there is no such queue, with 5
    if fewer than -n came in time.
    """
    if program is not None and not is_acked:
        raise click.UsageError("--exec and --no-ack do not go together")
    if number is None and not is_acked:
        number = _LOOKED_AT
    handler = _printer(style) if program is None else _runner(program)
    credit = 1 if program else min(number or _CREDIT, _CREDIT)
    if not is_acked:
        credit = number or _CREDIT
    with (
        client(queue=None if create else queue) as broker,
        broker.consume(queue, credit, timeout_s) as deliveries,
        Interruption() as interruption,
    ):
        turn = AckSchedule(broker, queue, credit, number)
        try:
            for delivery in _first(deliveries, number, interruption):
                turn.end(delivery, is_done=handler(delivery), is_acked=is_acked)
        finally:
            turn.finish()
    if interruption.is_asked and number is not None:
        raise click.Abort
    _tell(turn, number, queue)


def _tell(turn: "AckSchedule", number: int | None, queue: str) -> None:
    """Say how it went, and end with the exit code of it."""
    print_message(f"{format_message_count(turn.taken)} taken from {queue}")
    if turn.failed:
        raise CommandError(f"{turn.failed:,} of them failed and were requeued", ERROR)
    if number is not None and turn.taken < number:
        raise CommandError(f"{number:,} messages were asked for", TIMED_OUT)


def _first(
    deliveries: BlockingConsumer, number: int | None, interruption: "Interruption"
) -> Iterator[Delivery]:
    """Yield at most ``number`` messages, without waiting for one more."""
    taken = 0
    while not interruption.is_asked and (number is None or taken < number):
        delivery = interruption.wait(partial(next, deliveries, None))
        if delivery is None:
            return
        taken += 1
        yield delivery


class AckSchedule:
    """Ends messages so that the broker never dispatches more than were asked for.

    Each end lets the broker dispatch another message.  So the last ends wait, as many as the
    credit, and leave in one write with a credit of 0.
    """

    __slots__ = ("_client", "_credit", "_ended", "_number", "_queue", "_waiting", "failed", "taken")

    def __init__(self, client: BlockingClient, queue: str, credit: int, number: int | None) -> None:
        self._client = client
        self._queue = queue
        self._credit = credit
        self._number = number
        self._ended = 0
        self._waiting: list[tuple[Delivery, bool]] = []
        self.taken = 0
        self.failed = 0

    def end(self, delivery: Delivery, *, is_done: bool, is_acked: bool) -> None:
        """Acknowledge, requeue, or leave a message that was handled."""
        self.taken += 1
        self.failed += not is_done
        if not is_acked:
            return
        if self._number is None or self._ended + self._credit < self._number:
            self._ended += 1
            _end(delivery, is_done=is_done)
        else:
            self._waiting.append((delivery, is_done))

    def finish(self) -> None:
        """Send the ends that wait."""
        waiting, self._waiting = self._waiting, []
        if not waiting:
            return
        if not self._client.is_connected:  # they leave with the next connection, if there is one
            for delivery, is_done in waiting:
                _end(delivery, is_done=is_done)
            return
        side = self._client.session.side
        frames = [
            side.acknowledge(self._queue, delivery.message_id.encode())
            if is_done
            else side.requeue(self._queue, delivery.message_id.encode(), delivery.ttl_s or 0)
            for delivery, is_done in waiting
        ]
        self._client.send_now(b"".join([*frames, side.consume(self._queue, 0)]))


def _end(delivery: Delivery, *, is_done: bool) -> None:
    if is_done:
        delivery.ack()
    else:
        delivery.requeue(delivery.ttl_s or 0)


def _printer(style: str) -> Handler:
    out = sys.stdout.buffer
    is_shown = sys.stdout.isatty()

    def show(delivery: Delivery) -> bool:
        if style == "json":
            line = _as_json(delivery)
        else:
            line = escape_content(delivery.body) if is_shown else delivery.body
        out.write(line + b"\n")
        out.flush()  # ahead of the acknowledgement
        return True

    return show


def _as_json(delivery: Delivery) -> bytes:
    try:
        content, encoding = delivery.body.decode("utf-8"), "utf-8"
    except UnicodeDecodeError:
        content, encoding = base64.b64encode(delivery.body).decode("ascii"), "base64"
    return json.dumps(
        {
            "queue": delivery.queue,
            "id": delivery.message_id,
            "ttl_s": delivery.ttl_s,
            "content": content,
            "encoding": encoding,
        }
    ).encode()


def _runner(program: str) -> Handler:
    try:
        command = shlex.split(program)
    except ValueError as error:
        raise click.UsageError(f"--exec: {error}") from None
    if not command:
        raise click.UsageError("--exec: no command")

    def run(delivery: Delivery) -> bool:
        environment = os.environ | {
            "MESSAGE_QUEUE": delivery.queue,
            "MESSAGE_ID": delivery.message_id,
            "MESSAGE_TTL_S": str(delivery.ttl_s or 0),
        }
        # the command is the caller's own, and no shell sees what a message holds
        done = subprocess.run(command, input=delivery.body, env=environment, check=False)
        return done.returncode == 0

    return run
