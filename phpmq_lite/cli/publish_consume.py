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
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, cast

import click

from phpmq_lite.cli.admin_client import ClientFactory, client_options
from phpmq_lite.cli.errors import TIMED_OUT, CommandError
from phpmq_lite.cli.output import escape_content, format_message_count, is_terminal, print_message
from phpmq_lite.cli.parameters import choice, date, duration, flag, number_option, option
from phpmq_lite.cli.progress import progress_bar
from phpmq_lite.cli.signals import StopRequest
from phpmq_lite.client.blocking_client import STOP_S, BlockingClient
from phpmq_lite.client.delivery import Delivery
from phpmq_lite.errors import RefusedError
from phpmq_lite.frame_options import PublishOptions

_READ_BYTES: Final = 1 << 20
_LINE_BYTES: Final = 512 << 20  # maximum line length; no broker accepts a body longer than this
_GROUP: Final = 1_000  # number of copies per step of the progress bar


@click.command()
@click.argument("queue")
@click.argument("source", required=False, metavar="[-|FILE]")
@option("--body", "Message content, instead of a file.")
@option(
    ("--ttl", "ttl_s"),
    "Time to live, such as 90s, 15m, 1h or 7d; 0 means no expiry.",
    duration,
    "0",
)
@option(("--delay", "delay_s"), "Deliver after this time, such as 30s or 15m.", duration)
@option(("--at", "deliver_at"), "Deliver at this date.", date, metavar="2027-01-01T08:00+01:00")
@option("--priority", "0 is delivered first, 255 last.  [default: 128]", click.IntRange(0, 255))
@option("--group", "Group, of which one message at a time is delivered.")
@option(("--unique", "unique_key"), "Store nothing if a live message of QUEUE has this key.")
@flag(("--replace", "replaces"), "Replace the live message with the key of --unique.")
@number_option("--count", "Publish the content N times.")
@flag("--lines", "Publish each line, without its line feed, as a message.")
@client_options
def publish(
    client: ClientFactory,
    queue: str,
    source: str | None,
    body: str | None,
    ttl_s: int,
    count: int | None,
    lines: bool,
    replaces: bool,
    **options: Any,
) -> None:
    """Publish messages and wait until they are stored.

    The content comes from FILE, or from standard input if FILE is "-" or missing.
    """
    if body is not None and source is not None:
        raise click.UsageError("--body cannot be combined with a file")
    if lines and count is not None:
        raise click.UsageError("--lines and --count cannot be combined")
    if options["delay_s"] and options["deliver_at"]:
        raise click.UsageError("--delay and --at cannot be combined")
    if replaces and options["unique_key"] is None:
        raise click.UsageError("--replace needs --unique")
    fields = {name: value for name, value in options.items() if value is not None}
    fields |= {"if_exists": "replace"} if replaces else {}
    try:
        PublishOptions.of(fields)
    except RefusedError as error:
        raise click.UsageError(str(error)) from None
    with closing(_open_source(source, body)) as file, client() as broker:
        content = b"" if lines else file.read()
        if not (lines or content) and source in (None, "-") and body is None:
            raise click.UsageError(
                "standard input is empty, so nothing was published; for an empty message, use "
                "--body ''"
            )
        groups = read_lines(file) if lines else repeat_content(content, count or 1)
        stored = 0
        with progress_bar("publishing", None if lines else count or 1) as advance:
            for bodies in groups:  # publish each group immediately, in case a pipe is slow
                stored += broker.publish_many(queue, bodies, ttl_s, **fields)
                advance(len(bodies))
    print_message(
        f"{format_message_count(stored)} stored in {queue} by the broker on {broker.target}"
    )


def _open_source(source: str | None, body: str | None) -> io.BufferedIOBase:
    if body is not None:
        return io.BytesIO(os.fsencode(body))
    if source is not None and source != "-":
        return open(source, "rb")
    if source is None and is_terminal():
        raise click.UsageError("nothing to publish: use --body, a file, or - for standard input")
    return cast("io.BufferedIOBase", sys.stdin.buffer)


def repeat_content(content: bytes, count: int) -> Iterator[list[bytes]]:
    """Yield groups that together contain ``count`` copies of the content."""
    for start in range(0, count, _GROUP):
        yield [content] * min(_GROUP, count - start)


def read_lines(file: io.BufferedIOBase) -> Iterator[list[bytes]]:
    """Yield the lines that each read completes, without their line feeds, in linear time."""
    pieces: list[bytes] = []
    while data := file.read1(_READ_BYTES):
        first, *following = data.split(b"\n")
        pieces.append(first)
        if following:
            yield [b"".join(pieces), *following[:-1]]
            pieces = [following[-1]]
        elif sum(map(len, pieces)) > _LINE_BYTES:
            raise CommandError(f"a line exceeds the limit of {_LINE_BYTES:,} bytes")
    if line := b"".join(pieces):
        yield [line]


_CREDIT: Final = 100
_PEEK_LIMIT: Final = 10  # default of --limit if --no-ack is given

Handler = Callable[[Delivery], bool]  # returns whether the message was handled


@click.command()
@click.argument("queue")
@number_option(("-n", "--limit"), "Stop after N messages.  [default: no limit; 10 with --no-ack]")
@option(
    ("--ack/--no-ack", "is_acked"),
    "Acknowledge printed messages, or return them to the queue on exit.  [default: ack]",
    default=True,
    show_default=False,
)
@option(
    ("--exec", "program"),
    "Run CMD for each message, with the content on standard input and MESSAGE_QUEUE, "
    "MESSAGE_ID and MESSAGE_TTL_S in the environment. Exit code 0 acknowledges, others requeue. "
    "No shell runs it: for pipes and variables, pass \"sh -c '…'\".",
    metavar="CMD",
)
@option(
    ("--timeout", "timeout_s"),
    "Stop after this time without a message.  [default: wait forever]",
    click.FloatRange(min=0),
    metavar="SECONDS",
)
@choice(
    ("--format", "style"),
    "raw: the content and a line feed; bytes: only the content, even on a terminal; "
    "json: one line with id, ttl_s and content.",
    "raw",
    "bytes",
    "json",
)
@flag("--create", "Create the queue if it does not exist.")
@client_options
def consume(
    client: ClientFactory,
    queue: str,
    limit: int | None,
    is_acked: bool,
    program: str | None,
    timeout_s: float | None,
    style: str,
    create: bool,
) -> None:
    """Consume messages from a queue and print them.

    A message is acknowledged after it is printed. Exits with 3 if the queue does not exist, and
    with 5 if fewer than --limit messages arrive in time.
    """
    if program is not None and not is_acked:
        raise click.UsageError("--exec and --no-ack cannot be combined")
    handler = _print_handler(style) if program is None else _exec_handler(program)
    credit = 1 if program else min(limit or _CREDIT, _CREDIT)
    if not is_acked:
        credit = limit = limit or _PEEK_LIMIT
    with (
        client(queue=None if create else queue) as broker,
        broker.consume(queue, credit, timeout_s) as deliveries,
        StopRequest() as stop,
    ):
        schedule = AckSchedule(broker, queue, credit, limit)
        try:
            while not stop.is_requested and (limit is None or schedule.consumed < limit):
                delivery = stop.interruptible(partial(next, deliveries, None))
                if delivery is None:
                    break
                schedule.settle(delivery, is_done=handler(delivery), is_acked=is_acked)
        finally:
            if stop.is_requested:
                broker.close_s = STOP_S
            schedule.finish()
    if stop.is_requested and limit is not None:
        raise click.Abort
    print_message(f"{format_message_count(schedule.consumed)} consumed from {queue}")
    if schedule.failed:
        raise CommandError(f"--exec failed: {format_message_count(schedule.failed)} requeued")
    if limit is not None and schedule.consumed < limit:
        raise CommandError(f"only {schedule.consumed:,} of {limit:,} messages arrived", TIMED_OUT)


@dataclass(slots=True)
class AckSchedule:
    """Settles messages in such a way that the broker dispatches at most ``limit`` messages.

    Each acknowledgement lets the broker dispatch another message.  Therefore, the last ones (as
    many as the credit) are held back and sent in a single write, together with a credit of 0.
    """

    client: BlockingClient
    queue: str
    credit: int
    limit: int | None
    consumed: int = 0
    failed: int = 0
    _settled: int = 0
    _held_back: list[tuple[Delivery, bool]] = field(default_factory=list)

    def settle(self, delivery: Delivery, *, is_done: bool, is_acked: bool) -> None:
        """Count a message; if ``is_acked``, acknowledge it (``is_done``) or requeue it."""
        self.consumed += 1
        self.failed += not is_done
        if not is_acked:
            return
        if self.limit is None or self._settled + self.credit < self.limit:
            self._settled += 1
            _settle(delivery, is_done=is_done)
        else:
            self._held_back.append((delivery, is_done))

    def finish(self) -> None:
        """Send all acknowledgements that were held back."""
        held_back, self._held_back = self._held_back, []
        if not held_back:
            return
        if not self.client.is_connected:  # they are sent on the next connection, if any
            for delivery, is_done in held_back:
                _settle(delivery, is_done=is_done)
            return
        side = self.client.session.side
        frames = [
            side.acknowledge(self.queue, delivery.message_id.encode())
            if is_done
            else side.requeue(self.queue, delivery.message_id.encode(), delivery.ttl_s or 0)
            for delivery, is_done in held_back
        ]
        self.client.send_now(b"".join([*frames, side.consume(self.queue, 0)]))


def _settle(delivery: Delivery, *, is_done: bool) -> None:
    if is_done:
        delivery.ack()
    else:
        delivery.requeue(delivery.ttl_s or 0)


def _print_handler(style: str) -> Handler:
    stdout = sys.stdout.buffer
    is_escaped = style == "raw" and sys.stdout.isatty()
    end = b"" if style == "bytes" else b"\n"

    def show(delivery: Delivery) -> bool:
        if style == "json":
            line = _format_json(delivery)
        else:
            line = escape_content(delivery.body) if is_escaped else delivery.body
        stdout.write(line + end)
        stdout.flush()  # write the message before it is acknowledged
        return True

    return show


def _format_json(delivery: Delivery) -> bytes:
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


def _exec_handler(program: str) -> Handler:
    try:
        command = shlex.split(program)
    except ValueError as error:
        raise click.UsageError(f"--exec: {error}") from None
    if not command:
        raise click.UsageError("--exec: the command is empty")

    def run(delivery: Delivery) -> bool:
        environment = os.environ | {
            "MESSAGE_QUEUE": delivery.queue,
            "MESSAGE_ID": delivery.message_id,
            "MESSAGE_TTL_S": str(delivery.ttl_s or 0),
        }
        # the user chose this command, and no shell sees the content
        process = subprocess.run(command, input=delivery.body, env=environment, check=False)
        return process.returncode == 0

    return run
