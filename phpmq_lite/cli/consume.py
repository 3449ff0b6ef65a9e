"""``consume``: takes messages, hands each to standard output or to a command, and ends it."""

import base64
import json
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final, Self, TypeVar

import click

from phpmq_lite.cli.connect import GiveClient, client_options
from phpmq_lite.cli.main import ERROR, TIMED_OUT, CommandError
from phpmq_lite.cli.options import message_count, talk
from phpmq_lite.client.blocking_client import BlockingClient, BlockingConsumer
from phpmq_lite.client.session import Delivery
from phpmq_lite.logs import escape

T = TypeVar("T")

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
    client: GiveClient,
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
        turn = Turn(broker, queue, credit, number)
        try:
            for delivery in _first(deliveries, number, interruption):
                turn.end(delivery, is_done=handler(delivery), is_acked=is_acked)
        finally:
            turn.finish()
    if interruption.is_asked and number is not None:
        raise click.Abort
    _tell(turn, number, queue)


def _tell(turn: "Turn", number: int | None, queue: str) -> None:
    """Say how it went, and end with the exit code of it."""
    talk(f"{message_count(turn.taken)} taken from {queue}")
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


class Interruption:
    """Ctrl-C and SIGTERM end the command between two messages; only a second one inside one."""

    __slots__ = ("_is_allowed", "_previous", "is_asked")

    def __init__(self) -> None:
        self.is_asked = False
        self._is_allowed = False
        self._previous: list[tuple[int, Any]] = []

    def __enter__(self) -> Self:
        for number in (signal.SIGINT, signal.SIGTERM):
            self._previous.append((number, signal.signal(number, self._on_signal)))
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous:
            signal.signal(number, handler)

    def _on_signal(self, *_: object) -> None:
        is_second, self.is_asked = self.is_asked, True
        if self._is_allowed or is_second:
            raise KeyboardInterrupt

    def wait(self, wait: Callable[[], T]) -> T | None:
        """Call what waits; a signal breaks it, and then, or after one, the answer is None."""
        try:
            self._is_allowed = True
            # asked only now: a signal before this line raised nothing, and none would follow
            return None if self.is_asked else wait()
        except KeyboardInterrupt:
            return None
        finally:
            self._is_allowed = False


class Turn:
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
            line = as_shown(delivery.body) if is_shown else delivery.body
        out.write(line + b"\n")
        out.flush()  # ahead of the acknowledgement
        return True

    return show


def as_shown(body: bytes) -> bytes:
    """Give a content so that it cannot command the terminal."""
    lines = body.decode("utf-8", "backslashreplace").split("\n")
    return "\n".join(map(escape, lines)).encode()


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
