"""Idempotency: claims each envelope before its handler runs and marks it as done afterwards.

The SDK's store records only "seen", so two workers that receive the same envelope at the same time
both handle it. Here, the first worker claims the envelope, and the second learns that it is in
flight.
"""

import os
import sqlite3
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from enum import Enum
from pathlib import Path
from typing import Any, Final, Literal, Protocol, runtime_checkable

from phpmq_lite.envelopes.sqlite_file import open_file, transaction, wall_ms

LEASE_S: Final = 300  # a claim expires after this time if its process died
KEEP_S: Final = 7 * 86_400  # same as the broker's default history retention
PURGE_ROWS: Final = 1_000  # limit per transaction, to keep other writers from waiting long
_PURGE_EVERY: Final = 1_000  # number of claims after which expired rows are purged

_TABLE: Final = """
CREATE TABLE IF NOT EXISTS claim (
    key TEXT PRIMARY KEY,
    owner TEXT,               -- holder of a claim in flight; null if done
    until_ms INTEGER NOT NULL -- when the row expires
) WITHOUT ROWID
"""
_INDEX: Final = "CREATE INDEX IF NOT EXISTS claim_until ON claim (until_ms)"
_CLAIM: Final = """
INSERT INTO claim (key, owner, until_ms) VALUES (:key, :owner, :until_ms)
ON CONFLICT (key) DO UPDATE SET owner = excluded.owner, until_ms = excluded.until_ms
WHERE claim.until_ms <= :now_ms
"""
_SELECT: Final = "SELECT owner FROM claim WHERE key = ? AND until_ms > ?"
_REMEMBER: Final = """
INSERT INTO claim (key, owner, until_ms) VALUES (?, NULL, ?)
ON CONFLICT (key) DO UPDATE SET owner = NULL, until_ms = excluded.until_ms
"""
_FORGET: Final = "DELETE FROM claim WHERE key = ? AND owner = ?"
_PURGE: Final = """
DELETE FROM claim WHERE key IN (SELECT key FROM claim WHERE until_ms <= ? LIMIT ?)
"""


class IdempotencyDecision(Enum):
    """What a worker must do with an envelope after trying to claim it."""

    RUN = "run"  # claimed: run the handler, then call remember or forget
    DONE = "done"  # already handled: acknowledge the message
    IN_FLIGHT = "in flight"  # claimed by another worker: release the message with a delay


@runtime_checkable
class IdempotencyStore(Protocol):
    """Interface for storing a worker's claims; :func:`idempotency_key` returns the keys."""

    def claim(self, key: str) -> IdempotencyDecision:
        """Claim a key for a few minutes, unless it is done or in flight."""

    def remember(self, key: str) -> None:
        """Mark a key as done. Call this before the message is acknowledged."""

    def forget(self, key: str) -> None:
        """Release this process's claim after a failure. Other claims and done keys remain."""


def idempotency_key(
    envelope: Mapping[str, Any], by: Literal["meta.id", "trace_id"] = "meta.id"
) -> str | None:
    """Return the key for claiming an envelope, or None if it lacks the chosen member.

    With ``trace_id``, all envelopes of a trace count as one, so use it only for queues that receive
    one envelope per trace.
    """
    meta = envelope.get("meta")
    found = envelope.get("trace_id") if by == "trace_id" else (
        meta.get("id") if isinstance(meta, Mapping) else None
    )  # fmt: skip
    return found if isinstance(found, str) and found else None


class SqliteIdempotencyStore:
    """Claim store in an SQLite file; safe across threads, processes and forks.

    A key counts as done for ``keep_s``. Times are wall-clock milliseconds, which processes can
    compare. Expired rows are purged periodically. Each call commits (``synchronous=FULL``), so a
    done key survives a power failure.

    ``seen``, ``remember`` and ``forget`` implement the SDK's ``IdempotencyStore``.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        lease_s: float = LEASE_S,
        keep_s: float = KEEP_S,
        now_ms: Callable[[], int] = wall_ms,
    ) -> None:
        self._path = path
        self._lease_ms = round(lease_s * 1_000)
        self._keep_ms = round(keep_s * 1_000)
        self._now_ms = now_ms
        self._lock = threading.RLock()
        self._connection: sqlite3.Connection | None = None
        self._process = 0  # id of the process that opened the database connection
        self._owners: dict[str, str] = {}  # key -> owner, only for claims held by this process
        self._count = 0

    def open(self) -> None:
        """Open the file now, so that a wrong path is reported before the first claim.

        Raises:
            sqlite3.Error: the file cannot be opened or is not a database.
        """
        with self._lock:
            self._connect()

    def claim(self, key: str) -> IdempotencyDecision:
        """Claim a key for ``lease_s``, unless it is done or in flight in any process."""
        owner = os.urandom(16).hex()
        with self._transaction() as connection:
            now_ms = self._now_ms()
            values = {
                "key": key, "owner": owner, "now_ms": now_ms, "until_ms": now_ms + self._lease_ms,
            }  # fmt: skip
            if connection.execute(_CLAIM, values).rowcount:
                self._owners[key] = owner
                decision = IdempotencyDecision.RUN
            else:
                row = connection.execute(_SELECT, (key, now_ms)).fetchone()
                decision = (
                    IdempotencyDecision.DONE if row[0] is None else IdempotencyDecision.IN_FLIGHT
                )
        self._count += 1
        if self._count % _PURGE_EVERY == 0:
            self.purge()
        return decision

    def remember(self, key: str) -> None:
        """Mark a key as done for ``keep_s``, even if another process has claimed it since then."""
        with self._transaction() as connection:
            self._owners.pop(key, None)
            connection.execute(_REMEMBER, (key, self._now_ms() + self._keep_ms))

    def forget(self, key: str) -> None:
        """Release this process's claim, unless another process has claimed the key since then."""
        owner = self._owners.pop(key, None)
        if owner is not None:
            with self._transaction() as connection:
                connection.execute(_FORGET, (key, owner))

    def seen(self, key: str) -> bool:
        """Return whether a key is marked as done."""
        with self._transaction() as connection:
            row = connection.execute(_SELECT, (key, self._now_ms())).fetchone()
        return row is not None and row[0] is None

    def purge(self) -> int:
        """Delete expired rows and return the number of deleted rows."""
        removed = 0
        while True:
            with self._transaction() as connection:
                count = connection.execute(_PURGE, (self._now_ms(), PURGE_ROWS)).rowcount
            removed += count
            if count < PURGE_ROWS:
                return removed

    def close(self) -> None:
        """Close the connection; a later call opens a new one."""
        with self._lock:
            if self._connection is not None and self._process == os.getpid():
                self._connection.close()
            self._connection = None

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        """Lock the file for writing, so that no other process changes rows while the block runs."""
        with self._lock, transaction(self._connect()) as connection:
            yield connection

    def _connect(self) -> sqlite3.Connection:
        if self._connection is None or self._process != os.getpid():  # connect again after a fork
            connection = open_file(self._path, is_wal=True)
            with transaction(connection):
                connection.execute(_TABLE)
                connection.execute(_INDEX)
            self._connection, self._process = connection, os.getpid()
        return self._connection
