"""Clients that keep a ledger over all lives of a broker, and the audit of this ledger.

A producer knows which of its keys were confirmed, and repeats those without a receipt.  A consumer
knows which of its acknowledgements are stored: it sends a publish with a key after them, whose
receipt proves that their batch is committed.  The ledger is compared with every dispatch and with
the database.
"""

import asyncio
import os
import random
import sqlite3
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from itertools import count
from math import inf
from pathlib import Path
from typing import Final

from phpmq_lite.protocol.connection import ClientSide
from phpmq_lite.protocol.frames import Dispatch, ReceiptFrame
from phpmq_lite.storage.data_folder import DATABASE

QUEUES: Final = ("orders", "mails")
TIMED: Final = "timed"  # short TTLs, consumed by ``Late``
MARKS: Final = "marks"  # for the publishes after acknowledgements; never consumed
KEY_BYTES: Final = 16  # at the beginning of every body
WINDOW: Final = 200  # unanswered publishes of a producer
CREDIT: Final = 100
MOMENT_S: Final = 0.03  # duration of some batches
LATE_S: Final = 2.0  # maximum delay between a dispatch and its reading here
IN_MEMORY: Final = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None  # for temporary folders


@dataclass
class Ledger:
    """Knowledge of the clients, over all lives of the broker."""

    rng: random.Random
    confirmed: set[bytes] = field(default_factory=set)  # keys with a receipt
    unanswered: dict[bytes, bytes] = field(default_factory=dict)  # key -> its frame, in order
    unkeyed: int = 0  # publishes without a key: stored or not, but never twice
    seqs: dict[bytes, int] = field(default_factory=dict)  # key -> where it was seen
    stored: set[bytes] = field(default_factory=set)  # ids: their end is known to be on disk
    unknown: set[bytes] = field(default_factory=set)  # ids: ended, but without an answer
    dispatched: int = 0
    redelivered: int = 0
    ended: dict[str, int] = field(default_factory=dict)  # ends stored, by kind
    times: Counter[bytes] = field(default_factory=Counter)  # dispatches, by id
    ends_by: dict[bytes, float] = field(default_factory=dict)  # key -> deadline at the latest
    offences: list[str] = field(default_factory=list)
    checked_to: int = 0  # seq that the database was compared up to
    _numbers: "count[int]" = field(default_factory=lambda: count(1))

    def new_key(self) -> bytes:
        """Return the next key; it is also the beginning of the body."""
        return b"%0*d" % (KEY_BYTES, next(self._numbers))

    def note_dispatch(self, dispatch: Dispatch) -> None:
        key, message_id = dispatch.content[:KEY_BYTES], dispatch.message_id
        self.dispatched += 1
        self.times[message_id] += 1
        if message_id in self.stored:
            self.offences.append(f"{key!r} was dispatched after its end was stored")
        self._note_seq(key, seq_of(message_id))
        if message_id in self.unknown:
            self.redelivered += 1
        if dispatch.queue == TIMED and time.monotonic() > self.ends_by.get(key, inf) + LATE_S:
            self.offences.append(f"{key!r} was dispatched after its deadline")

    def _note_seq(self, key: bytes, seq: int) -> None:
        known = self.seqs.setdefault(key, seq)
        if known != seq:
            self.offences.append(f"{key!r} was stored twice, as {known} and {seq}")

    # -- the database

    def compare(self, data: Path) -> None:
        """Check that messages confirmed since the last comparison are on disk, once each."""
        with read_only(data) as database:
            rows = stored_keys(database, self.checked_to)
        for seq, key in rows:
            self._note_seq(key, seq)
        self.checked_to = max([self.checked_to, *(seq for seq, _ in rows)])
        for key in self.confirmed - self.seqs.keys():
            self.offences.append(f"{key!r} was confirmed and is lost")

    def see_ended(self, data: Path) -> None:
        """Check that a clean stop has stored all ends: it waits for acknowledgements."""
        with read_only(data) as database:
            alive = {row[0] for row in database.execute("SELECT seq FROM message")}
        for message_id in self.unknown:
            if seq_of(message_id) in alive:
                self.offences.append(f"the end of {message_id!r} was lost in a clean stop")
        self.unknown.clear()

    def audit(self, data: Path) -> None:
        """Compare everything, and check the database for contradictions."""
        self.checked_to = 0
        self.compare(data)
        with read_only(data) as database:
            for text, found in contradictions(database):
                self.offences.append(f"{text}: {found}")
            alive = {row[0] for row in database.execute("SELECT seq FROM message")}
            settled = {row[0] for row in database.execute("SELECT seq FROM history")}
        for message_id in self.stored:
            if seq_of(message_id) in alive or seq_of(message_id) not in settled:
                self.offences.append(f"the end of {message_id!r} was stored and is lost")
        known = alive | settled
        for key in self.confirmed:
            if self.seqs.get(key) not in known:
                self.offences.append(f"{key!r} was confirmed and is neither alive nor settled")


def seq_of(message_id: bytes) -> int:
    """Return the number at the beginning of a message id."""
    return int(message_id[:16], 16)


def read_only(data: Path) -> "closing[sqlite3.Connection]":
    """Open the database of a data folder for reading; use it in a ``with`` block."""
    return closing(sqlite3.connect(f"file:{data / DATABASE}?mode=ro", uri=True, timeout=30))


def stored_keys(database: sqlite3.Connection, after: int = 0) -> list[tuple[int, bytes]]:
    """Return seq and key of the messages after a seq, without records of dead letters."""
    return database.execute(
        "SELECT seq, substr(content, 1, ?) FROM body WHERE seq > ? AND seq NOT IN ("
        "SELECT seq FROM message WHERE source_seq IS NOT NULL UNION ALL "
        "SELECT seq FROM history WHERE source_seq IS NOT NULL) ORDER BY seq",
        (KEY_BYTES, after),
    ).fetchall()


# Queries that must find no rows.
CONTRADICTIONS: Final = {
    "alive and settled": "SELECT seq FROM message JOIN history USING (seq)",
    "settled twice": "SELECT seq FROM history GROUP BY seq HAVING count(*) > 1",
    "a gap in the history": "SELECT * FROM (SELECT count(*) AS rows, "
    'max("offset") - min("offset") + 1 AS span FROM history) AS found WHERE rows <> span',
    "without a body": "SELECT seq FROM message WHERE NOT EXISTS "
    "(SELECT * FROM body WHERE body.seq = message.seq)",
    "counted wrong": "SELECT name, live_count FROM queue WHERE live_count <> "
    "(SELECT count(*) FROM message WHERE message.queue_id = queue.queue_id)",
    "bytes counted wrong": "SELECT name, live_bytes FROM queue WHERE live_bytes <> "
    "(SELECT coalesce(sum(size), 0) FROM message WHERE message.queue_id = queue.queue_id)",
    # 3: expired.  Deadlines are stored in wall time, but compared with the steady clock; the
    # two drift.
    "expired early": "SELECT seq, settled_at - deadline_ms FROM history "
    "WHERE outcome = 3 AND settled_at < deadline_ms - 50",
}


def contradictions(database: sqlite3.Connection) -> list[tuple[str, object]]:
    """Return the rows found by queries that must find none."""
    damage = "SELECT * FROM pragma_integrity_check WHERE integrity_check <> 'ok'"
    questions = CONTRADICTIONS | {"damaged": damage}
    answers = [(text, database.execute(sql).fetchall()) for text, sql in questions.items()]
    return [(text, found[:3]) for text, found in answers if found]


@dataclass(frozen=True)
class Load:
    queues: tuple[str, ...] = QUEUES  # of the producers
    large: float = 0.01  # share of the bodies that have 20,000 bytes
    acks_all: bool = False  # consumers acknowledge everything
    work_s: float = 0.0  # from a dispatch to its end


class Client(asyncio.Protocol):
    """One connection; everything that arrived before its end counts."""

    def __init__(self, crowd: "Crowd") -> None:
        self.crowd = crowd
        self.ledger = crowd.ledger
        self.side = ClientSide()
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start to work."""
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self.begin()

    def connection_lost(self, exc: Exception | None) -> None:
        self.ended.set_result(None)

    def data_received(self, data: bytes) -> None:
        """Process the frames of a read."""
        for frame in self.side.receive(data):
            if isinstance(frame, Dispatch):
                self.take(frame)
            elif isinstance(frame, ReceiptFrame):
                self.answered(frame.key, frame.reason)
                self.crowd.count_down()
        if self.side.error is not None:
            self.ledger.offences.append(f"the broker broke the grammar: {self.side.error}")
        self.after_read()

    def confirm(self, queue: str, key: bytes, body: bytes, ttl_s: int = 0) -> None:
        frame = self.side.publish(queue, body, ttl_s, key)
        self.ledger.unanswered[key] = frame
        self.transport.write(frame)

    def answered(self, key: bytes, reason: str | None) -> None:
        """Record a receipt."""
        if reason is not None:
            self.ledger.offences.append(f"{key!r} was refused: {reason}")
        self.ledger.unanswered.pop(key, None)
        self.ledger.confirmed.add(key)

    def begin(self) -> None:
        """Send the first frames of the connection."""

    def take(self, dispatch: Dispatch) -> None:
        """Process a dispatch."""

    def after_read(self) -> None:
        """Continue after all frames of a read were processed."""


class Producer(Client):
    """Keeps a window of unanswered publishes full: short and long TTLs, small and large bodies."""

    def begin(self) -> None:
        """Repeat unanswered publishes, then continue."""
        self.waiting = len(self.ledger.unanswered)
        self.ttls_s: dict[bytes, int] = {}  # of unanswered publishes
        self.transport.write(b"".join(self.ledger.unanswered.values()))
        self.after_read()

    def answered(self, key: bytes, reason: str | None) -> None:
        """Record a receipt, and make room in the window."""
        super().answered(key, reason)
        self.waiting -= 1
        if ttl_s := self.ttls_s.pop(key, 0):
            self.ledger.ends_by[key] = time.monotonic() + ttl_s

    def after_read(self) -> None:
        """Fill the window."""
        rng, load = self.ledger.rng, self.crowd.load
        while self.waiting < WINDOW:
            key, queue = self.ledger.new_key(), rng.choice(load.queues)
            size = 20_000 if rng.random() < load.large else rng.randrange(500)
            ttl_s = rng.choice((1, 2, 4, 8) if queue == TIMED else (0, 0, 0, 0, 3_600, 1, 2))
            if queue != TIMED and rng.random() < 0.1:
                self.ledger.unkeyed += 1
                self.transport.write(self.side.publish(queue, key + b"u" * size, ttl_s))
                continue
            self.ttls_s[key] = ttl_s
            self.confirm(queue, key, key + b"c" * size, ttl_s)
            self.waiting += 1


class Consumer(Client):
    """Acknowledges most messages, requeues and dead-letters some, keeps a few; marks each read."""

    queues: tuple[str, ...] = QUEUES

    def begin(self) -> None:
        """Open a window on both queues."""
        self.ends: list[bytes] = []  # frames of this read
        self.ending: list[tuple[str, bytes]] = []  # kind and id of the ended messages
        self.marks: dict[bytes, list[tuple[str, bytes]]] = {}  # key -> ends sent before it
        self.transport.write(b"".join(self.side.consume(queue, CREDIT) for queue in self.queues))

    def take(self, dispatch: Dispatch) -> None:
        """End a message at random, or keep it."""
        self.ledger.note_dispatch(dispatch)
        queue, message_id = dispatch.queue, dispatch.message_id
        chance = 0.0 if self.crowd.load.acks_all else self.ledger.rng.random()
        if chance < 0.85:
            self.ends.append(self.side.acknowledge(queue, message_id))
            self.ending.append(("acked", message_id))
        elif chance < 0.92:
            ttl_s = self.ledger.rng.choice((0, 3_600))
            self.ends.append(self.side.requeue(queue, message_id, ttl_s))
        elif chance < 0.96:
            self.ends.append(self.side.dead_letter(queue, message_id))
            self.ending.append(("dead", message_id))

    def after_read(self) -> None:
        """Send the ends of this read, after the duration of the work."""
        if not self.ends:
            return
        ends, ending, self.ends, self.ending = self.ends, self.ending, [], []
        if self.crowd.load.work_s:
            loop = asyncio.get_running_loop()
            loop.call_later(self.crowd.load.work_s, self._end, ends, ending)
        else:
            self._end(ends, ending)

    def _end(self, ends: list[bytes], ending: list[tuple[str, bytes]]) -> None:
        """Send ends, followed by a publish whose receipt proves that they are stored."""
        if self.transport.is_closing():
            return
        if self.crowd.is_asleep:
            asyncio.get_running_loop().call_later(MOMENT_S, self._end, ends, ending)
            return
        key = self.ledger.new_key()
        self.marks[key] = ending
        self.ledger.unknown.update(message_id for _, message_id in ending)
        self.transport.write(b"".join(ends))
        self.confirm(MARKS, key, key)

    def answered(self, key: bytes, reason: str | None) -> None:
        """Record a receipt, and the ends that were sent before a mark as stored."""
        super().answered(key, reason)
        for kind, message_id in self.marks.pop(key, ()):
            self.ledger.stored.add(message_id)
            self.ledger.unknown.discard(message_id)
            self.ledger.ended[kind] = self.ledger.ended.get(kind, 0) + 1


class Late(Consumer):
    """Consumes messages of which many have nearly expired."""

    queues = (TIMED,)


class Crowd:
    """All clients of one life of the broker."""

    def __init__(self, ledger: Ledger, port: int, load: Load | None = None) -> None:
        self.ledger = ledger
        self.port = port
        self.load = load or Load()
        self.receipts_left = 0
        self.is_asleep = False  # simulates a suspended machine
        self.at_the_end: Callable[[], None] = lambda: None
        self.clients: list[Client] = []

    def count_down(self) -> None:
        """Count a receipt; shortly after the last one, call ``at_the_end``.

        The delay is random: the broker may be deciding, storing or replying then.
        """
        self.receipts_left -= 1
        if self.receipts_left == 0:
            after_s = self.ledger.rng.uniform(0, MOMENT_S)
            asyncio.get_running_loop().call_later(after_s, self.at_the_end)

    async def work(
        self,
        receipts: int,
        at_the_end: Callable[[], None],
        kinds: Sequence[type[Client]] = (Producer, Consumer, Consumer),
    ) -> None:
        """Load the broker; ``at_the_end``, called after ``receipts``, must end the connections."""
        self.receipts_left, self.at_the_end = receipts, at_the_end
        for kind in kinds:
            await self.join(kind)
        for client in self.clients:  # more may join meanwhile
            await client.ended

    async def join(self, kind: type["Client"]) -> None:
        self.clients.append(await self._connect(kind))

    def leave(self) -> None:
        """Close all connections."""
        for client in self.clients:
            client.transport.close()

    async def drain(self, is_done: Callable[[], bool]) -> None:
        """Consume with a load that ``acks_all`` until ``is_done``, which is polled each 0.1 s."""
        client = await self._connect(Consumer)
        while not is_done():
            await asyncio.wait([client.ended], timeout=0.1)
            assert not client.ended.done(), "the broker closed the connection"
        client.transport.close()
        await client.ended

    async def _connect(self, kind: type[Client]) -> Client:
        loop = asyncio.get_running_loop()
        _, client = await loop.create_connection(lambda: kind(self), "127.0.0.1", self.port)
        return client


def is_drained(data: Path) -> bool:
    """Return whether only marks and records of dead letters are alive."""
    with read_only(data) as database:
        (left,) = database.execute(
            "SELECT count(*) FROM message JOIN queue USING (queue_id) WHERE name IN (?, ?)", QUEUES
        ).fetchone()
    return bool(left == 0)
