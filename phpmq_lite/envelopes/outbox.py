"""Transactional outbox: stores envelopes in the same transaction as the business data.

The writer inserts a row into a table of the caller's SQLite database, in the caller's transaction.
:class:`Relay` publishes the rows later, byte for byte.

A row's id, 32 random hex digits, is its publish key: a row that is sent again after a crash is
stored only once if the broker still has the key (by default for 10 minutes or 100,000 keys).
Otherwise, delivery is at least once, and consumers recognize repeats by ``meta.id``.

What happens to a row::

    stored                    marked as sent
    refused by the queue      kept with the reason; the queue pauses for 1 to 30 s, others continue
    invalid, or the broker
      closes the connection   kept with the error, retried after 5 to 300 s; other rows continue
    no reply                  kept; the broker is unreachable, and the next pass sends it again

Rows after a failed row overtake it. All other rows keep their commit order within a queue, even
if the relay or the broker crashes and with several relays.
"""

import json
import os
import re
import secrets
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from itertools import compress
from typing import Any, Final, NamedTuple, Unpack

from babelqueue.outbox import OutboxRecord

from phpmq_lite.client.blocking_client import NoReplyError, PublishOutcome, Send
from phpmq_lite.client.publishes import (
    KeyedMessage,
    Options,
    PublishFields,
    check_fields,
    delayed_copy,
)
from phpmq_lite.client.session import ClientSession
from phpmq_lite.envelopes import producer
from phpmq_lite.envelopes.sqlite_file import PURGE_ROWS, purge, transaction, wall_ms
from phpmq_lite.envelopes.validation import validate
from phpmq_lite.errors import ClientError, ConnectionLostError, EnvelopeError, PublishRefusedError

TABLE: Final = "phpmq_outbox"
LEASE_S: Final = 30.0  # after this time, other relays take over the queues of a dead relay
RETRY_FIRST_S: Final = 5.0  # delay before a row's first retry; doubles with each failure
RETRY_MAX_S: Final = 300.0
ERROR_CHARACTERS: Final = 500
_ENCODER: Final = ClientSession(1).side  # used only to validate arguments
_IDENTIFIER: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,99}")

_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS {table} (
    seq INTEGER PRIMARY KEY AUTOINCREMENT, -- commit order
    id TEXT NOT NULL UNIQUE,               -- also the publish key
    queue TEXT NOT NULL,
    body BLOB NOT NULL,
    ttl_s INTEGER NOT NULL DEFAULT 0,      -- from arrival at the broker; 0 means no expiry
    written_ms INTEGER NOT NULL,
    attempts INTEGER NOT NULL DEFAULT 0,   -- failed attempts
    error TEXT,                            -- from the last attempt
    next_ms INTEGER NOT NULL DEFAULT 0,    -- earliest next attempt
    sent_ms INTEGER,                       -- null until sent
    options TEXT                           -- JSON: priority and others; null if there are none
);
CREATE INDEX IF NOT EXISTS {table}_waiting ON {table} (queue, seq) WHERE sent_ms IS NULL;
CREATE INDEX IF NOT EXISTS {table}_sent ON {table} (sent_ms) WHERE sent_ms IS NOT NULL;
CREATE TABLE IF NOT EXISTS {table}_lease (
    queue TEXT PRIMARY KEY,
    relay TEXT NOT NULL,      -- holder of the lease
    until_ms INTEGER NOT NULL
)
"""
_INSERT: Final = "INSERT INTO {table} (id, queue, body, ttl_s, written_ms) VALUES (?, ?, ?, ?, ?)"
_INSERT_WITH_OPTIONS: Final = """
INSERT INTO {table} (id, queue, body, ttl_s, written_ms, options) VALUES (?, ?, ?, ?, ?, ?)
"""
_HAS_OPTIONS: Final = "SELECT count(*) FROM pragma_table_info('{table}') WHERE name = 'options'"
_ADD_OPTIONS: Final = "ALTER TABLE {table} ADD COLUMN options TEXT"  # to a table of version 0.1
_FIRST_QUEUE: Final = "SELECT min(queue) FROM {table} WHERE sent_ms IS NULL"
_NEXT_QUEUE: Final = f"{_FIRST_QUEUE} AND queue > ?"
_WAITING: Final = """
SELECT seq, id, queue, CAST(body AS BLOB), ttl_s, attempts, {options} FROM {table}
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
    WHEN :delays_row THEN :now_ms + min(:max_ms, :first_ms << min(attempts, 20)) ELSE next_ms END
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


def check_table_name(table: str) -> str:
    """Return a table name; raise ValueError unless it has only letters, digits and underscores."""
    if _IDENTIFIER.fullmatch(table) is None:
        raise ValueError(f"{table!r} is not a valid table name; use letters, digits and _")
    return table


def create_tables(connection: sqlite3.Connection, table: str = TABLE) -> None:
    """Create what is missing of the outbox, within the open transaction if there is one."""
    for statement in schema(table):
        connection.execute(statement)
    if not _has_options(connection, table):
        connection.execute(_ADD_OPTIONS.format(table=table))


def _has_options(connection: sqlite3.Connection, table: str) -> bool:
    return bool(connection.execute(_HAS_OPTIONS.format(table=table)).fetchone()[0])


def schema(table: str = TABLE) -> tuple[str, ...]:
    """Return the statements that :func:`create_tables` runs, for your own migrations."""
    text = _SCHEMA.format(table=check_table_name(table))
    return tuple(part.strip() for part in text.split(";\n"))


InsertedValues = tuple[str, str, bytes, int, int] | tuple[str, str, bytes, int, int, str]


def insert(
    envelope: Mapping[str, Any],
    *,
    queue: str | None = None,
    ttl_s: float = 0,
    table: str = TABLE,
    **options: Unpack[PublishFields],
) -> tuple[str, InsertedValues]:
    """Return an SQL statement that inserts an envelope, and its values, for any SQLite driver.

    The first value is the row's id.  Options other than ``delay_s`` alone need a table with the
    column ``options``, which ``create_tables`` adds to one of version 0.1.

    Raises:
        EnvelopeError: the envelope cannot be encoded, or no consumer could handle it.
        LocalProtocolError: the queue name, the TTL or an option is invalid.
    """
    prepared = producer.prepare_publish(envelope, queue)
    checked = check_fields(ttl_s, options)
    return _insert(table, prepared.queue, prepared.content, int(ttl_s), checked)


def _insert(
    table: str, queue: str, content: bytes, ttl_s: int, options: Options | None = None
) -> tuple[str, InsertedValues]:
    row_id = secrets.token_hex(16)
    if options is not None:
        with suppress(ClientError):  # an older table and an older broker know a delay alone
            queue, ttl_s = delayed_copy(queue, options)
            options = None
    _ENCODER.publish(queue, b"", ttl_s)  # raises an error if an argument is invalid
    values = (row_id, queue, content, ttl_s, wall_ms())
    check_table_name(table)
    if options is None:
        return _INSERT.format(table=table), values
    return _INSERT_WITH_OPTIONS.format(table=table), (*values, json.dumps(options))


class Outbox:
    """Writes outbox rows over the caller's connection, within the caller's transaction.

    ::

        with connection:  # the caller's transaction
            connection.execute("INSERT INTO orders …")
            outbox.publish("urn:babel:orders:created", {"order_id": 1042})

    It never begins or commits a transaction. If none is open, ``sqlite3`` begins one that
    the caller commits; with ``isolation_level=None``, the row is committed immediately.
    """

    def __init__(
        self, connection: sqlite3.Connection, *, queue: str = "default", table: str = TABLE
    ) -> None:
        self.queue = queue  # queue for ``publish`` if none is given
        self._connection = connection
        self._table = check_table_name(table)

    def publish(
        self,
        job: str | producer.EnvelopeSource,
        data: Mapping[str, Any] | str | None = None,
        queue: str | None = None,
        *,
        trace_id: str | None = None,
        ttl_s: float = 0,
        meta: Mapping[str, Any] | None = None,
        **options: Unpack[PublishFields],
    ) -> str:
        """Write a new envelope and return its ``meta.id``.

        The arguments are those of ``Producer.publish``; ``ttl_s`` and ``delay_s`` count from
        arrival at the broker.

        Raises:
            EnvelopeError: the envelope is invalid; the message contains the JSON pointer.
            LocalProtocolError: the queue name, the TTL or an option is invalid.
            sqlite3.Error: the insert failed.
        """
        envelope = producer.envelope_for(job, data, queue, self.queue, trace_id=trace_id, meta=meta)
        self.write(envelope, ttl_s=ttl_s, **options)
        return str(envelope["meta"]["id"])

    def write(
        self,
        envelope: Mapping[str, Any],
        *,
        queue: str | None = None,
        ttl_s: float = 0,
        **options: Unpack[PublishFields],
    ) -> str:
        """Write an existing envelope and return the row's id; ``queue`` replaces ``meta.queue``."""
        statement, values = insert(envelope, queue=queue, ttl_s=ttl_s, table=self._table, **options)
        self._connection.execute(statement, values)
        return values[0]


class OutboxRow(NamedTuple):
    """An outbox row that is to be published."""

    seq: int
    row_id: str
    queue: str
    body: bytes
    ttl_s: int
    attempts: int  # number of failed attempts
    options: str | None  # JSON


class OutboxQueueStatus(NamedTuple):
    """Summary of the unsent outbox rows for one queue."""

    queue: str
    waiting: int
    failing: int  # number of rows that failed at least once
    oldest_ms: int  # when the oldest row was written, in Unix ms
    attempts: int  # maximum number of failed attempts for any one row
    error: str | None  # last error of the oldest row that failed


class SqliteOutboxStore:
    """SQLite implementation of the SDK's ``OutboxStore``, for the SDK's ``Outbox`` and for relays.

    ``save`` runs in the caller's transaction. All other methods are for relays and commit their own
    transactions, so a relay requires its own connection (``sqlite_file.open_file``).

    With several relays, each *queue* is leased to one relay for ``lease_s``, and each read renews
    the lease. This preserves the order within each queue.
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
        self._table = check_table_name(table)
        self._lease_ms = round(lease_s * 1_000)
        self._now_ms = now_ms
        self._relay = secrets.token_hex(16)

    # -- the SDK's protocol

    def save(self, encoded: str, queue: str) -> str:
        """Write an encoded envelope within the caller's transaction; return the row's id.

        Raises:
            EnvelopeError: no consumer could handle the envelope (the SDK's codec may write NaN).
            LocalProtocolError: the queue name is invalid.
        """
        try:
            content = encoded.encode()
        except UnicodeEncodeError as error:
            raise EnvelopeError(f"/: lone surrogate at character {error.start}") from None
        problem = validate(content, "never").problem
        if problem is not None:
            raise EnvelopeError(f"{problem.pointer or '/'}: {problem.reason}: {problem.detail}")
        statement, values = _insert(self._table, queue, content, 0)
        self._connection.execute(statement, values)
        return values[0]

    def fetch_unpublished(self, limit: int) -> list[OutboxRecord]:
        """Return up to ``limit`` rows from the queues leased by this relay, oldest first.

        Bodies that are not UTF-8 are skipped and marked as failed, because the SDK's relay sends
        text.
        """
        rows: list[OutboxRow] = []
        for queue in self.queues():
            rows += self.lease_rows(queue, limit)
        records: list[OutboxRecord] = []
        for row in sorted(rows)[:limit]:
            try:
                text = row.body.decode()
            except UnicodeDecodeError as error:
                self.mark_failed(row.row_id, str(error))
                continue
            records.append(OutboxRecord(row.row_id, text, row.queue, row.attempts))
        return records

    def mark_published(self, ids: Sequence[str]) -> None:
        """Mark rows as sent; rows that are already marked stay unchanged."""
        now_ms = self._now_ms()
        with transaction(self._connection):
            self._connection.executemany(self._sql(_SENT), [(now_ms, row_id) for row_id in ids])

    def mark_failed(self, id: str, error: str, *, delays_row: bool = True) -> None:
        """Record the error of a row; ``delays_row`` postpones the next attempt by 5 to 300 s."""
        values = {
            "id": id,
            "error": error[:ERROR_CHARACTERS],
            "delays_row": delays_row,
            "now_ms": self._now_ms(),
            "first_ms": round(RETRY_FIRST_S * 1_000),
            "max_ms": round(RETRY_MAX_S * 1_000),
        }
        with transaction(self._connection):
            self._connection.execute(self._sql(_FAILED), values)

    # -- for our relay

    def queues(self) -> list[str]:
        """Return the queues that have unsent rows, in O(log n) time for each queue."""
        queues: list[str] = []
        row = self._connection.execute(self._sql(_FIRST_QUEUE)).fetchone()
        while row[0] is not None:
            queues.append(row[0])
            row = self._connection.execute(self._sql(_NEXT_QUEUE), (row[0],)).fetchone()
        return queues

    def lease_rows(self, queue: str, limit: int, max_bytes: int = 4 << 20) -> list[OutboxRow]:
        """Lease a queue; return its oldest due rows, unless another relay has the lease."""
        now_ms = self._now_ms()
        with transaction(self._connection):
            values = {"queue": queue, "relay": self._holder(), "now_ms": now_ms}
            values["until_ms"] = now_ms + self._lease_ms
            if not self._connection.execute(self._sql(_LEASE), values).rowcount:
                return []
        rows: list[OutboxRow] = []
        size = 0
        options = "options" if _has_options(self._connection, self._table) else "NULL"
        waiting = _WAITING.format(table=self._table, options=options)
        cursor = self._connection.execute(waiting, (queue, now_ms, limit))
        for row in map(OutboxRow._make, cursor):
            rows.append(row)
            size += len(row.body)
            if size >= max_bytes:
                break
        cursor.close()  # closing the cursor ends the read transaction
        return rows

    def release(self) -> None:
        """Release this relay's leases, so that other relays can lease the queues immediately."""
        with transaction(self._connection):
            self._connection.execute(
                f"DELETE FROM {self._table}_lease WHERE relay = ?",  # noqa: S608 - checked name
                (self._holder(),),
            )

    def purge(self, keep_s: float) -> int:
        """Delete rows sent more than ``keep_s`` seconds ago; return the number of deleted rows."""
        before_ms = self._now_ms() - round(keep_s * 1_000)
        begin = partial(transaction, self._connection)
        return purge(begin, self._sql(_PURGE), (before_ms, PURGE_ROWS))

    def status(self) -> list[OutboxQueueStatus]:
        """Return the status of each queue that has unsent rows, ordered by queue name."""
        cursor = self._connection.execute(self._sql(_STATUS))
        return [OutboxQueueStatus(*row) for row in cursor]

    def data_version(self) -> int:
        """Return a number that changes when another connection commits to the file."""
        return int(self._connection.execute("PRAGMA data_version").fetchone()[0])

    def _holder(self) -> str:
        """Return the holder of this relay's leases, which a forked child does not share."""
        return f"{self._relay}-{os.getpid()}"

    def _sql(self, text: str) -> str:
        return text.format(table=self._table)


BATCH_ROWS: Final = 500  # number of rows to send before waiting for replies
PAUSE_FIRST_S: Final = 1.0  # first pause of a queue that rejects a message; doubles each time
PAUSE_MAX_S: Final = 30.0

Report = Callable[[OutboxRow, str], None]


@dataclass(slots=True)
class RelayPass:
    """The result of a relay's pass over all queues."""

    sent: int = 0
    failed: int = 0  # number of rows that failed and were kept
    is_unreachable: bool = False  # whether the pass ended early because the broker did not reply
    refused: set[str] = field(default_factory=set)  # queues that currently reject messages


@dataclass(slots=True)
class Relay:
    """Sends a store's unsent rows; must be used by a single thread.

    ``send`` is ``publish_each`` bound to a client. ``report`` is called with each failed row and
    the reason. ``now_s`` is a monotonic clock. ``is_stopped`` is checked between batches.
    """

    store: SqliteOutboxStore
    send: Send
    now_s: Callable[[], float]
    _: KW_ONLY
    batch: int = BATCH_ROWS
    report: Report = lambda _row, _reason: None
    is_stopped: Callable[[], bool] = lambda: False
    # queue -> (end and length of the pause)
    _pauses: dict[str, tuple[float, float]] = field(init=False, default_factory=dict)

    def run(self) -> RelayPass:
        """Send due rows until none are left or the broker is unreachable.

        Raises:
            sqlite3.Error: the file is broken, or locked for too long; rows that were sent but not
                marked are sent again with the same key.
        """
        result = RelayPass()
        for queue in self.store.queues():
            if self._pauses.get(queue, (0.0, 0.0))[0] > self.now_s():
                result.refused.add(queue)
                continue
            while not self.is_stopped() and (rows := self.store.lease_rows(queue, self.batch)):
                if not self._send_rows(queue, rows, result):
                    break
            if result.is_unreachable or self.is_stopped():
                break
        return result

    def _send_rows(self, queue: str, rows: list[OutboxRow], result: RelayPass) -> bool:
        """Send one batch of rows; return whether the queue accepts more rows."""
        outcomes = self.send([_keyed_message(row) for row in rows])
        if len(rows) > 1 and any(_is_lost(outcome) for outcome in outcomes):
            # Send rows one by one to find which one makes the broker close the connection.
            self._settle(rows, outcomes, result, is_blamed=False)
            lost_rows = compress(rows, map(_is_lost, outcomes))
            return all(self._send_rows(queue, [row], result) for row in lost_rows)
        self._settle(rows, outcomes, result, is_blamed=True)
        if any(isinstance(outcome, PublishRefusedError) for outcome in outcomes):
            last_s = self._pauses.get(queue, (0.0, 0.0))[1]
            pause_s = min(max(PAUSE_FIRST_S, 2 * last_s), PAUSE_MAX_S)
            self._pauses[queue] = (self.now_s() + pause_s, pause_s)
            result.refused.add(queue)
            return False
        if any(isinstance(outcome, NoReplyError) for outcome in outcomes):
            result.is_unreachable = True
            return False
        self._pauses.pop(queue, None)
        return True

    def _settle(
        self,
        rows: list[OutboxRow],
        outcomes: list[PublishOutcome],
        result: RelayPass,
        *,
        is_blamed: bool,
    ) -> None:
        """Record each row's result; a lost connection counts as a failure only if ``is_blamed``."""
        results = list(zip(rows, outcomes, strict=True))
        sent_ids = [row.row_id for row, outcome in results if outcome is None]
        self.store.mark_published(sent_ids)
        result.sent += len(sent_ids)
        for row, outcome in results:
            if outcome is None or isinstance(outcome, NoReplyError):
                continue
            if isinstance(outcome, ConnectionLostError) and not is_blamed:
                continue
            delays_row = not isinstance(outcome, PublishRefusedError)
            self.store.mark_failed(row.row_id, str(outcome), delays_row=delays_row)
            result.failed += 1
            self.report(row, str(outcome))


def _keyed_message(row: OutboxRow) -> KeyedMessage:
    options = None if row.options is None else json.loads(row.options)
    return KeyedMessage(row.queue, row.body, row.ttl_s, row.row_id.encode(), options)


def _is_lost(outcome: PublishOutcome) -> bool:
    return isinstance(outcome, ConnectionLostError)
