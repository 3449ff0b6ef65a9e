"""The transactional outbox: an envelope is written with the business data, or neither is.

The writer's side puts a row into a table of the caller's own SQLite database, inside the
caller's transaction.  ``relay.py`` sends the rows later, byte for byte.

The id of a row, 32 random hex digits, is its receipt key: a row that is sent again after a crash
is stored once, within the broker's window of keys (10 minutes or 100,000 keys unless set
otherwise).  After that it is at least once, and the consumer tells by ``meta.id``.
"""

import re
import secrets
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Final, NamedTuple

from babelqueue.outbox import OutboxRecord

from phpmq_lite.client.session import ClientSession
from phpmq_lite.envelopes import producer
from phpmq_lite.envelopes.sqlite_file import transaction, wall_ms
from phpmq_lite.envelopes.verdict import judge
from phpmq_lite.errors import EnvelopeError

TABLE: Final = "phpmq_outbox"
LEASE_S: Final = 30.0  # a relay that died holds its queues no longer
RETRY_FIRST_S: Final = 5.0  # doubles with each failure of a row
RETRY_LONGEST_S: Final = 300.0
PURGE_ROWS: Final = 1_000  # in one transaction
ERROR_CHARACTERS: Final = 500
_CHECKS: Final = ClientSession(1).side  # sends nothing
_IDENTIFIER: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,99}")

_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS {table} (
    seq INTEGER PRIMARY KEY AUTOINCREMENT, -- the order of the commits
    id TEXT NOT NULL UNIQUE,               -- the receipt key
    queue TEXT NOT NULL,
    body BLOB NOT NULL,
    ttl_s INTEGER NOT NULL DEFAULT 0,      -- from when the broker has it; 0: never expires
    written_ms INTEGER NOT NULL,
    attempts INTEGER NOT NULL DEFAULT 0,   -- failed ones
    error TEXT,                            -- of the last one
    next_ms INTEGER NOT NULL DEFAULT 0,    -- not tried again before
    sent_ms INTEGER                        -- null: it waits
);
CREATE INDEX IF NOT EXISTS {table}_waiting ON {table} (queue, seq) WHERE sent_ms IS NULL;
CREATE INDEX IF NOT EXISTS {table}_sent ON {table} (sent_ms) WHERE sent_ms IS NOT NULL;
CREATE TABLE IF NOT EXISTS {table}_lease (
    queue TEXT PRIMARY KEY,
    relay TEXT NOT NULL,      -- the one that sends this queue
    until_ms INTEGER NOT NULL
)
"""
_INSERT: Final = "INSERT INTO {table} (id, queue, body, ttl_s, written_ms) VALUES (?, ?, ?, ?, ?)"
_FIRST_QUEUE: Final = "SELECT min(queue) FROM {table} WHERE sent_ms IS NULL"
_NEXT_QUEUE: Final = f"{_FIRST_QUEUE} AND queue > ?"
_WAITING: Final = """
SELECT seq, id, queue, CAST(body AS BLOB), ttl_s, attempts FROM {table}
WHERE sent_ms IS NULL AND queue = ? AND next_ms <= ? ORDER BY seq LIMIT ?
"""
_LEASE: Final = """
INSERT INTO {table}_lease (queue, relay, until_ms) VALUES (:queue, :relay, :until_ms)
ON CONFLICT (queue) DO UPDATE SET relay = excluded.relay, until_ms = excluded.until_ms
WHERE {table}_lease.relay = :relay OR {table}_lease.until_ms <= :now_ms
"""
_SENT: Final = "UPDATE {table} SET sent_ms = ?, error = NULL WHERE id = ? AND sent_ms IS NULL"
_FAILED: Final = """
UPDATE {table} SET attempts = attempts + 1, error = :error, next_ms = CASE
    WHEN :is_row THEN :now_ms + min(:longest_ms, :first_ms << min(attempts, 20)) ELSE next_ms END
WHERE id = :id AND sent_ms IS NULL
"""
_PURGE: Final = """
DELETE FROM {table} WHERE seq IN (
    SELECT seq FROM {table} WHERE sent_ms IS NOT NULL AND sent_ms <= ? LIMIT ?)
"""
_STATUS: Final = """
SELECT queue, count(*) AS waiting, sum(error IS NOT NULL) AS failing,
    min(written_ms) AS oldest_ms, max(attempts) AS attempts,
    (SELECT error FROM {table} AS first WHERE first.queue = {table}.queue
        AND first.sent_ms IS NULL AND first.error IS NOT NULL ORDER BY seq LIMIT 1) AS error
FROM {table} WHERE sent_ms IS NULL GROUP BY queue ORDER BY queue
"""


def checked_table(table: str) -> str:
    """Return the name of a table.

    Raises:
        ValueError: it is not made of letters, digits and underscores.
    """
    if _IDENTIFIER.fullmatch(table) is None:
        raise ValueError(f"{table!r} is no name of a table: letters, digits and _ only")
    return table


def create_tables(connection: sqlite3.Connection, table: str = TABLE) -> None:
    """Create the tables where they are missing; inside a transaction if one is open."""
    for statement in schema(table):
        connection.execute(statement)


def schema(table: str = TABLE) -> tuple[str, ...]:
    """Return the statements of :func:`create_tables`, for a migration of your own."""
    text = _SCHEMA.format(table=checked_table(table))
    return tuple(part.strip() for part in text.split(";\n"))


def insert(
    envelope: Mapping[str, Any], *, queue: str | None = None, ttl_s: int = 0, table: str = TABLE
) -> tuple[str, tuple[str, str, bytes, int, int]]:
    """Return the statement that writes an envelope, and its values: for any SQLite driver.

    The first value is the row's id.

    Raises:
        EnvelopeError: it cannot be written, or no consumer could handle it.
        LocalProtocolError: the queue's name or the ttl is not allowed.
    """
    made = producer.prepare_publish(envelope, queue)
    return _insert(table, made.queue, made.content, ttl_s)


def _insert(
    table: str, queue: str, content: bytes, ttl_s: int
) -> tuple[str, tuple[str, str, bytes, int, int]]:
    row_id = secrets.token_hex(16)
    _CHECKS.publish(queue, b"", ttl_s)  # refuses what the protocol does not allow
    return (
        _INSERT.format(table=checked_table(table)),
        (row_id, queue, content, ttl_s, wall_ms()),
    )


class Outbox:
    """Writes envelopes into the outbox of the caller's own connection, in its transaction.

    ::

        with connection:  # the caller's transaction
            connection.execute("INSERT INTO orders …")
            outbox.publish("urn:babel:orders:created", {"order_id": 1042})

    Nothing here begins or commits.  Without an open transaction ``sqlite3`` begins one, which
    the caller commits; with ``isolation_level=None`` the row is committed at once.
    """

    def __init__(
        self, connection: sqlite3.Connection, *, queue: str = "default", table: str = TABLE
    ) -> None:
        self.queue = queue  # of envelopes that name no other
        self._connection = connection
        self._table = checked_table(table)

    def publish(
        self,
        job: str | producer.EnvelopeSource,
        data: Mapping[str, Any] | str | None = None,
        queue: str | None = None,
        *,
        trace_id: str | None = None,
        ttl_s: int = 0,
        meta: Mapping[str, Any] | None = None,
    ) -> str:
        """Write a new envelope; return its ``meta.id``.

        The arguments are those of ``Producer.publish``; ``ttl_s`` counts from when the broker
        has it.

        Raises:
            EnvelopeError: it cannot be written; the message has the JSON pointer.
            LocalProtocolError: the queue's name or the ttl is not allowed.
            sqlite3.Error: the insert failed.
        """
        envelope = producer.make_for(job, data, queue, self.queue, trace_id=trace_id, meta=meta)
        self.write(envelope, ttl_s=ttl_s)
        return str(envelope["meta"]["id"])

    def publish_message(self, message: Any, *, queue: str | None = None, ttl_s: int = 0) -> str:
        """Write an object with ``get_babel_urn`` and ``to_payload``; as :meth:`publish`."""
        envelope = producer.make_from_object(message, queue=self.queue if queue is None else queue)
        self.write(envelope, ttl_s=ttl_s)
        return str(envelope["meta"]["id"])

    def write(
        self, envelope: Mapping[str, Any], *, queue: str | None = None, ttl_s: int = 0
    ) -> str:
        """Write a made envelope for ``queue``, else its ``meta.queue``; return the row's id."""
        statement, values = insert(envelope, queue=queue, ttl_s=ttl_s, table=self._table)
        self._connection.execute(statement, values)
        return values[0]


class OutboxRow(NamedTuple):
    """A row that a relay is to send."""

    seq: int
    row_id: str
    queue: str
    body: bytes
    ttl_s: int
    attempts: int  # failed ones


class OutboxQueueStatus(NamedTuple):
    """What waits for one queue."""

    queue: str
    waiting: int
    failing: int  # of them, those with an error
    oldest_ms: int  # when the oldest was written, Unix ms
    attempts: int  # the most of a row
    error: str | None  # of the first that has one


class SqliteOutboxStore:
    """The SDK's ``OutboxStore``: the SDK's ``Outbox`` writes into it, a relay empties it.

    ``save`` belongs into the caller's transaction.  All else is for relays and commits by
    itself: give a relay a connection of its own (``sqlite_file.open_file``).

    Several relays: each *queue* is leased to one of them for ``lease_s``, renewed by each look,
    so that the order of a queue holds.
    """

    def __init__(
        self,
        connection: sqlite3.Connection,
        table: str = TABLE,
        *,
        lease_s: float = LEASE_S,
        now_ms: Callable[[], int] = wall_ms,
    ) -> None:
        self._connection = connection
        self._table = checked_table(table)
        self._lease_ms = round(lease_s * 1_000)
        self._now_ms = now_ms
        self._relay = secrets.token_hex(16)

    # -- the SDK's protocol

    def save(self, encoded: str, queue: str) -> str:
        """Write an encoded envelope, inside the caller's transaction; return the row's id.

        Raises:
            EnvelopeError: no consumer could handle it (the SDK's codec writes NaN, for one).
            LocalProtocolError: the queue's name is not allowed.
        """
        try:
            content = encoded.encode()
        except UnicodeEncodeError as error:
            raise EnvelopeError(f"/: a lone surrogate at character {error.start}") from None
        problem = judge(content, "never").problem
        if problem is not None:
            raise EnvelopeError(f"{problem.pointer or '/'}: {problem.reason}: {problem.detail}")
        statement, values = _insert(self._table, queue, content, 0)
        self._connection.execute(statement, values)
        return values[0]

    def fetch_unpublished(self, limit: int) -> list[OutboxRecord]:
        """Return at most ``limit`` rows of queues that are ours now, oldest first.

        A body that is no UTF-8 is left out and marked as failed: the SDK's relay sends text.
        """
        rows: list[OutboxRow] = []
        for queue in self.queues():
            rows += self.take(queue, limit)
        records: list[OutboxRecord] = []
        for row in sorted(rows)[:limit]:
            try:
                text = row.body.decode()
            except UnicodeDecodeError as error:
                self.fail(row.row_id, str(error))
                continue
            records.append(OutboxRecord(row.row_id, text, row.queue, row.attempts))
        return records

    def mark_published(self, ids: Sequence[str]) -> None:
        """Mark rows as sent; those that are already stay as they are."""
        now_ms = self._now_ms()
        with self._transaction():
            self._connection.executemany(self._sql(_SENT), [(now_ms, row_id) for row_id in ids])

    def mark_failed(self, id: str, error: str) -> None:
        """Keep a row for another try, with its error."""
        self.fail(id, error)

    # -- for our relay

    def queues(self) -> list[str]:
        """Return the names of the queues that something waits for, each found in O(log n)."""
        found: list[str] = []
        row = self._connection.execute(self._sql(_FIRST_QUEUE)).fetchone()
        while row[0] is not None:
            found.append(row[0])
            row = self._connection.execute(self._sql(_NEXT_QUEUE), (row[0],)).fetchone()
        return found

    def take(self, queue: str, limit: int, most_bytes: int = 4 << 20) -> list[OutboxRow]:
        """Lease a queue and return its oldest rows that are due; none where another relay has it.

        At most ``limit`` rows, and no more after ``most_bytes`` of bodies.
        """
        now_ms = self._now_ms()
        with self._transaction():
            values = {
                "queue": queue, "relay": self._relay, "now_ms": now_ms,
                "until_ms": now_ms + self._lease_ms,
            }  # fmt: skip
            if not self._connection.execute(self._sql(_LEASE), values).rowcount:
                return []
        rows: list[OutboxRow] = []
        size = 0
        cursor = self._connection.execute(self._sql(_WAITING), (queue, now_ms, limit))
        for row in map(OutboxRow._make, cursor):
            rows.append(row)
            size += len(row.body)
            if size >= most_bytes:
                break
        cursor.close()  # ends the read transaction
        return rows

    def fail(self, row_id: str, error: str, *, is_row: bool = True) -> None:
        """Keep a row with its error; ``is_row``: it is to blame, and waits 5 s to 300 s."""
        values = {
            "id": row_id, "error": error[:ERROR_CHARACTERS], "is_row": is_row,
            "now_ms": self._now_ms(), "first_ms": round(RETRY_FIRST_S * 1_000),
            "longest_ms": round(RETRY_LONGEST_S * 1_000),
        }  # fmt: skip
        with self._transaction():
            self._connection.execute(self._sql(_FAILED), values)

    def release(self) -> None:
        """Give back the queues of this relay: others need not wait for the end of its leases."""
        with self._transaction():
            self._connection.execute(
                f"DELETE FROM {self._table}_lease WHERE relay = ?",  # noqa: S608 - checked name
                (self._relay,),
            )

    def purge(self, keep_s: float) -> int:
        """Remove rows that were sent more than ``keep_s`` ago; return how many that were."""
        before_ms = self._now_ms() - round(keep_s * 1_000)
        removed = 0
        while True:
            with self._transaction():
                count = self._connection.execute(
                    self._sql(_PURGE), (before_ms, PURGE_ROWS)
                ).rowcount
            removed += count
            if count < PURGE_ROWS:
                return removed

    def status(self) -> list[OutboxQueueStatus]:
        """Return what waits, by queue, in the order of the names."""
        cursor = self._connection.execute(self._sql(_STATUS))
        return [OutboxQueueStatus(*row) for row in cursor]

    def changes(self) -> int:
        """Return a number that is another one when somebody else has committed to the file."""
        return int(self._connection.execute("PRAGMA data_version").fetchone()[0])

    def _transaction(self) -> AbstractContextManager[sqlite3.Connection]:
        return transaction(self._connection)

    def _sql(self, text: str) -> str:
        return text.format(table=self._table)
