"""Measure each step of a message in microseconds, without sockets and threads.

The real parser, core, rows, SQLite file and encoder, called one after the other as
``server/session.py`` and ``server/engine.py`` do, in batches of a fixed size::

    python benchmarks/profile_paths.py --path confirmed --batch 100 --rounds 300 --data .
    python benchmarks/profile_paths.py --path confirmed --queues 10000 --data /dev/shm

With several queues each gets one message in turn, and one consumer has them all.

The paths: ``confirmed`` and ``plain`` are dispatched in the batch of their publish and acknowledged
in the next one; ``early`` ones were stored before, and are acknowledged in the batch that
dispatches them; ``backlog`` ones are stored first, so every dispatch has to load them; ``expiry``
ones expire at once; ``history`` reads what was settled, as an export does.

Each figure is the mean of all rounds: what comes rarely, a page to load, counts its share.
Sockets, the event loop and the hop to the writer's thread come on top: compare the sum with
``phpmq-lite bench``.
"""

import argparse
import sqlite3
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import cycle
from pathlib import Path
from typing import Any, Final

from phpmq_lite.bench.workloads import temporary_folder
from phpmq_lite.broker import batches, commands
from phpmq_lite.broker.broker import Broker
from phpmq_lite.broker.flow_control import FlowControl, PublishQuota
from phpmq_lite.broker.queue import Connection
from phpmq_lite.installation import migrations_folder
from phpmq_lite.model import ClockReading, Limits, LoadedRows, Message, Outbox
from phpmq_lite.protocol.connection import ClientSide, ServerSide
from phpmq_lite.protocol.frames import ClientFrame, Dispatch, WireLimits
from phpmq_lite.queue_settings import QueueSettings
from phpmq_lite.server.frame_processing import apply_frame, apply_frames
from phpmq_lite.server.session import encode_batch
from phpmq_lite.storage.arrow import HistoryRanges, RowSelection
from phpmq_lite.storage.batch_sql import batch_statements
from phpmq_lite.storage.sqlite.migrate import migrate
from phpmq_lite.storage.sqlite.store import LONG_WAL_BYTES, SqliteStore
from phpmq_lite.testing import FakeClock

QUEUE: Final = "orders"  # where there are several, the beginning of their names
KEY: Final = b"%016x"
WARM: Final = 20  # rounds that are not counted

# Statements by their beginning, as the steps of the report.
STATEMENTS: Final = {
    "INSERT INTO message": "insert message",
    "INSERT INTO body": "insert body",
    "INSERT INTO history": "settle: history",
    "DELETE FROM message": "settle: remove",
    "UPDATE message": "update: dispatched",
    "INSERT INTO receipt": "insert receipt",
    "SELECT seq, token": "load messages",
    "SELECT seq, crc": "load checksums",
    "SELECT seq, content": "load bodies",
    "COMMIT": "COMMIT",
    "PRAGMA wal_checkpoint": "checkpoint, between batches",
}
OTHER: Final = "counters, queue rows, BEGIN"
IN_COMMIT: Final = {*STATEMENTS.values(), OTHER} - {"checkpoint, between batches"}


class Meter:
    """Seconds by step; one list of rounds each."""

    def __init__(self) -> None:
        self.rounds: defaultdict[str, list[float]] = defaultdict(list)
        self._open: dict[str, float] = {}

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Count the time of the block."""
        began = time.perf_counter()
        yield
        self.add(name, time.perf_counter() - began)

    def add(self, name: str, seconds: float) -> None:
        """Count time for this round."""
        self._open[name] = self._open.get(name, 0.0) + seconds

    def end_round(self) -> None:
        """Close the round; commit time outside of statements counts as building rows."""
        in_commit = sum(seconds for name, seconds in self._open.items() if name in IN_COMMIT)
        self.add("rows laid out", self._open.pop("commit, whole") - in_commit)
        for name, seconds in self._open.items():
            self.rounds[name].append(seconds)
        self._open.clear()

    def forget(self) -> None:
        """Discard the samples after the caches have warmed up."""
        self.rounds.clear()


class Cursor:
    """A cursor that also measures fetching, where a SELECT does its work."""

    def __init__(self, cursor: sqlite3.Cursor, count: Callable[[float], None]) -> None:
        self._cursor = cursor
        self._count = count

    def fetchall(self) -> list[Any]:
        """Fetch and count."""
        began = time.perf_counter()
        rows = self._cursor.fetchall()
        self._count(time.perf_counter() - began)
        return rows

    def fetchone(self) -> Any:
        """Fetch; one row is not worth counting."""
        return self._cursor.fetchone()


class Peer:
    """Stores what the broker would send to one connection."""

    def __init__(self) -> None:
        self.side = ServerSide(WireLimits(), http_guard=False)
        self.connection: Connection | None = None
        self.written = b""

    def send(self, outbox: Outbox, now_ms: int) -> list[Message]:
        """Encode; nothing is late here."""
        contents = (outbox.dispatches, outbox.receipts)
        parts, _ = encode_batch(self.side, self.connection, *contents, now_ms, lambda _: b"")
        self.written = b"".join(parts)
        return []

    def resume(self) -> None:
        """Nothing waits."""

    def end(self, reason: str) -> None:
        """Nothing is open."""


class Walk:
    """One producer, one consumer, a message to each queue in turn; a batch at a time."""

    def __init__(
        self, database: Path, meter: Meter, size: int, queues: int, *, is_confirmed: bool
    ) -> None:
        self.database = database
        self.meter = meter
        self.client = ClientSide()
        self.body = b"x" * size
        self.is_confirmed = is_confirmed
        connection = sqlite3.connect(database, isolation_level=None, cached_statements=256)
        self.store = SqliteStore(connection)
        self.store.configure(16 << 20)
        migrate(connection, migrations_folder())
        stored = self.store.recover(ClockReading(0, 0), 0, 100_000)
        self.core = Broker(stored, Limits(queues=queues), QueueSettings())
        self.queues = [QUEUE] if queues == 1 else [f"{QUEUE}{at:05}" for at in range(queues)]
        self.turns = cycle(self.queues)
        self.shares = FlowControl(self.core)
        self.clock = FakeClock()
        self.ttl_s = 0
        self.producer, self.consumer = Peer(), Peer()
        self.publishing: Connection
        self.consuming: Connection
        self.keys = iter(range(1 << 62))
        self.loaded: LoadedRows | None = None
        self._batch(self._connect)
        self.store.execute = self._timed(self.store.execute)

    def _connect(self) -> None:
        self.publishing = self.core.connect(self.producer, "tcp", "127.0.0.1:1")
        self.consuming = self.core.connect(self.consumer, "tcp", "127.0.0.1:2")
        self.consumer.connection = self.consuming

    def consume(self, count: int) -> None:
        """Start the consumer with ``count`` credit on each queue."""
        self._batch(
            lambda: [commands.consume(self.core, self.consuming, q, count) for q in self.queues]
        )

    def _timed(self, execute: Callable[..., Any]) -> Callable[..., Any]:
        add = self.meter.add

        def timed(text: str, *parameters: Any) -> Any:
            steps = (step for start, step in STATEMENTS.items() if text.startswith(start))
            step = next(steps, OTHER)
            began = time.perf_counter()
            cursor = execute(text, *parameters)
            add(step, time.perf_counter() - began)
            return Cursor(cursor, lambda seconds: add(step, seconds))

        return timed

    def _batch(
        self, commands: Callable[[], object] = lambda: None, step: str = "core: commands"
    ) -> None:
        """Decide, record, act."""
        core, meter = self.core, self.meter
        with meter.step("core: begin, take what was loaded"):
            batches.begin(core, self.clock.now(), self.loaded)
        with meter.step(step):
            commands()
        with meter.step("core: dispatch, finish"):
            batch = batches.finish(core)
        with meter.step("commit, whole"):
            self.store.begin(batch_statements(batch) if batch.stores else [])
            self.loaded = self.store.end(batch)
        for connection, outbox in batch.sends.items():
            is_consumer = connection is self.consuming
            with meter.step("encode dispatch" if is_consumer else "encode receipt"):
                connection.peer.send(outbox, 0)

    def step(self) -> None:
        """Run a batch without a command."""
        self._batch()

    def publish(self, count: int) -> None:
        """Publish in one batch, which also dispatches the messages if the consumer has credit."""
        frames = self._parse_publishes(count)
        self._batch(lambda: self._walk(self.publishing, frames), "core: publish")

    def publish_and_take(self, count: int) -> None:
        """Publish, and dispatch and acknowledge the previous messages, in one batch."""
        frames = self._parse_publishes(count)
        core, meter = self.core, self.meter
        with meter.step("core: begin, take what was loaded"):
            batch = batches.begin(core, self.clock.now(), self.loaded)
        with meter.step("core: dispatch, finish"):
            batches.dispatch(core)
        outbox = batch.sends.pop(self.consuming, Outbox())
        with meter.step("encode dispatch"):
            self.consumer.send(Outbox(outbox.dispatches), 0)
        ends = self._parse_acks()
        with meter.step("core: acknowledge"):
            self._walk(self.consuming, ends)
        with meter.step("core: publish"):
            self._walk(self.publishing, frames)
        core.needs_dispatch.clear()  # these are dispatched in the next batch, once they are stored
        with meter.step("core: dispatch, finish"):
            batch = batches.finish(core)
        core.needs_dispatch.update((queue.queue_id, queue) for queue in core.queues_by_id.values())
        with meter.step("commit, whole"):
            self.store.begin(batch_statements(batch) if batch.stores else [])
            self.loaded = self.store.end(batch)

    def acknowledge(self, count: int) -> None:
        """Acknowledge the messages of the last batch, which dispatches more if there are more."""
        frames = self._parse_acks()
        assert len(frames) == count, len(frames)
        self._batch(lambda: self._walk(self.consuming, frames), "core: acknowledge")

    def end_round(self) -> None:
        """Copy the WAL into the database as the broker does between batches."""
        if self.store.wal_bytes >= LONG_WAL_BYTES:
            self.store.checkpoint("PASSIVE")
        self.meter.end_round()

    def _parse_publishes(self, count: int) -> list[ClientFrame]:
        data = b"".join([self._publish() for _ in range(count)])
        with self.meter.step("parse publish"):
            return self.producer.side.receive(data)

    def _publish(self) -> bytes:
        key = KEY % next(self.keys) if self.is_confirmed else None
        return self.client.publish(next(self.turns), self.body, self.ttl_s, key)

    def _parse_acks(self) -> list[ClientFrame]:
        """Acknowledge what the consumer received last, and parse it as the broker does."""
        received = ClientSide().receive(self.consumer.written)
        acks = b"".join(
            self.client.acknowledge(frame.queue, frame.message_id)
            for frame in received
            if isinstance(frame, Dispatch)
        )
        with self.meter.step("parse ack"):
            return self.consumer.side.receive(acks)

    def _walk(self, connection: Connection, frames: list[ClientFrame]) -> None:
        """Apply the frames of a read, as ``server/session.py`` does."""
        waiting, rooms = deque(frames), PublishQuota(self.shares.available)
        while waiting:
            if not apply_frames(self.core, connection, waiting, len(waiting), rooms)[0]:
                apply_frame(self.core, connection, waiting.popleft())


def born_and_gone(walk: Walk, rounds: int, count: int) -> None:
    """Dispatch in the batch of the publish, as with a consumer that keeps up."""
    walk.consume(count)
    warm = max(WARM, len(walk.queues) // count + 1)  # each queue has had a message
    for number in range(rounds + warm):
        if number == warm:
            walk.meter.forget()
        walk.publish(count)
        walk.acknowledge(count)
        walk.end_round()


def from_disk(walk: Walk, rounds: int, count: int) -> None:
    """Publish everything first, then dispatch messages that have to be loaded."""
    for _ in range(rounds + WARM):
        walk.publish(count)
        walk.end_round()
    walk.consume(count)
    walk.step()  # takes the first page in
    for number in range(rounds + WARM - 1):
        if number == WARM:
            walk.meter.forget()
        walk.acknowledge(count)
        walk.end_round()


def early(walk: Walk, rounds: int, count: int) -> None:
    """Acknowledge in the batch that dispatches, because the messages are already stored."""
    walk.consume(count)
    for number in range(rounds + WARM):
        if number == WARM:
            walk.meter.forget()
        walk.publish_and_take(count)
        walk.end_round()


def expiry(walk: Walk, rounds: int, count: int) -> None:
    """Publish everything with a TTL, then expire it, up to 1,000 messages per batch."""
    walk.ttl_s = 1
    for _ in range(rounds):
        walk.publish(count)
        walk.clock.advance(0.001)
        walk.end_round()
    walk.meter.forget()
    walk.clock.advance(10)
    walk.step()  # asks for what is due
    while walk.loaded is not None and walk.loaded.due:
        walk.step()
    walk.end_round()


def history(walk: Walk, rounds: int, count: int) -> None:
    """Settle messages, then read their rows in Arrow's form, with the bodies too."""
    born_and_gone(walk, rounds, count)
    walk.meter.forget()
    with HistoryRanges(walk.database) as ranges:
        hi = ranges.bounds().hi
        for name, selection in (
            ("rows", RowSelection(hi - rounds * count, hi)),
            ("rows with bodies", RowSelection(hi - rounds * count, hi, body=True)),
        ):
            with walk.meter.step(name):
                assert sum(batch.num_rows for batch in ranges.history(selection)) == rounds * count
    walk.meter.add("commit, whole", 0.0)
    walk.meter.end_round()


PATHS: Final = {
    "confirmed": born_and_gone,
    "plain": born_and_gone,
    "early": early,
    "backlog": from_disk,
    "expiry": expiry,
    "history": history,
}


def main() -> None:
    """Print a table of microseconds per message."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--batch", type=int, default=100, help="messages a batch")
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--size", type=int, default=256, help="bytes of a body")
    parser.add_argument("--queues", type=int, default=1, help="on the first two paths")
    parser.add_argument("--path", choices=PATHS, default="confirmed")
    parser.add_argument("--data", type=Path, default=Path(), help="a folder on the disk to use")
    options = parser.parse_args()
    meter = Meter()
    with temporary_folder(options.data) as folder:
        file, queues = folder / "phpmq.db", options.queues
        walk = Walk(file, meter, options.size, queues, is_confirmed=options.path == "confirmed")
        PATHS[options.path](walk, options.rounds, options.batch)
    means = {name: sum(times) / options.rounds for name, times in meter.rounds.items()}
    total = sum(means.values())
    print(
        f"{options.path}: {options.batch} a batch, {options.size} bytes, {options.rounds} rounds,"
        f" {options.queues} queues"
    )
    for name, seconds in means.items():
        print(f"{name:36}{seconds / options.batch * 1e6:8.2f} µs {seconds / total * 100:5.1f} %")
    each = total / options.batch
    print(f"{'all':36}{each * 1e6:8.2f} µs, {1 / each:,.0f} messages/s on one thread")


if __name__ == "__main__":
    main()
