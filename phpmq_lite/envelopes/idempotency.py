"""Which envelopes were handled: a claim before the handler, a mark behind it.

The SDK's store knows "seen" alone, so two workers that get the same envelope at the same moment
both run it.  Here the first one claims it; the second one hears that it is in flight.
"""

import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from enum import Enum
from pathlib import Path
from typing import Any, Final, Literal, Protocol, runtime_checkable

from phpmq_lite.envelopes.sqlite_file import open_file, transaction

LEASE_S: Final = 300  # a claim of a process that died ends after this
KEEP_S: Final = 7 * 86_400  # as long as the broker keeps its history, unless set otherwise
PURGE_ROWS: Final = 1_000  # in one transaction, so that nobody waits long for it
_PURGE_EVERY: Final = 1_000  # claims

_TABLE: Final = """
CREATE TABLE IF NOT EXISTS claim (
    key TEXT PRIMARY KEY,
    owner TEXT,               -- of a claim in flight; null: done
    until_ms INTEGER NOT NULL -- afterwards the row counts as absent
) WITHOUT ROWID
"""
_INDEX: Final = "CREATE INDEX IF NOT EXISTS claim_until ON claim (until_ms)"
_CLAIM: Final = """
INSERT INTO claim (key, owner, until_ms) VALUES (:key, :owner, :until_ms)
ON CONFLICT (key) DO UPDATE SET owner = excluded.owner, until_ms = excluded.until_ms
WHERE claim.until_ms <= :now_ms
"""
_LOOK: Final = "SELECT owner FROM claim WHERE key = ? AND until_ms > ?"
_REMEMBER: Final = """
INSERT INTO claim (key, owner, until_ms) VALUES (?, NULL, ?)
ON CONFLICT (key) DO UPDATE SET owner = NULL, until_ms = excluded.until_ms
"""
_FORGET: Final = "DELETE FROM claim WHERE key = ? AND owner = ?"
_PURGE: Final = """
DELETE FROM claim WHERE key IN (SELECT key FROM claim WHERE until_ms <= ? LIMIT ?)
"""


class IdempotencyDecision(Enum):
    """What to do with an envelope."""

    RUN = "run"  # it is yours: handle it, then remember or forget
    DONE = "done"  # it was handled: acknowledge
    IN_FLIGHT = "in flight"  # somebody is at it: release with a delay


@runtime_checkable
class IdempotencyStore(Protocol):
    """What the worker asks, by the key of :func:`idempotency_key`."""

    def claim(self, key: str) -> IdempotencyDecision:
        """Claim a key for some minutes, unless it is done or in flight."""

    def remember(self, key: str) -> None:
        """Mark a key as done; call it before the message is acknowledged."""

    def forget(self, key: str) -> None:
        """Give back one's claim after a failure; another's claim and what is done stay."""


def idempotency_key(
    envelope: Mapping[str, Any], by: Literal["meta.id", "trace_id"] = "meta.id"
) -> str | None:
    """Return what an envelope is claimed by; None where it has none: handle it unclaimed.

    By ``trace_id`` all envelopes of a trace count as one: only for a queue that gets one of each.
    """
    meta = envelope.get("meta")
    found = envelope.get("trace_id") if by == "trace_id" else (
        meta.get("id") if isinstance(meta, Mapping) else None
    )  # fmt: skip
    return found if isinstance(found, str) and found else None


class SqliteIdempotencyStore:
    """Claims in an SQLite file; safe with several threads and processes, also after a fork.

    A key that is done counts as done for ``keep_s``.  Times are wall-clock milliseconds, as
    several processes compare them.  What is older is removed now and then.  Each call commits
    (``synchronous=FULL``): what is remembered stays remembered over a power cut.

    ``seen``, ``remember`` and ``forget`` are the SDK's ``IdempotencyStore``.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        lease_s: float = LEASE_S,
        keep_s: float = KEEP_S,
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        self._path = path
        self._lease_ms = round(lease_s * 1_000)
        self._keep_ms = round(keep_s * 1_000)
        self._now_ms = now_ms
        self._lock = threading.RLock()
        self._connection: sqlite3.Connection | None = None
        self._process = 0  # that opened the connection
        self._owners: dict[str, str] = {}  # key -> owner, of the claims made here
        self._count = 0

    def open(self) -> None:
        """Open the file now, so that a wrong path is known before the first claim.

        Raises:
            sqlite3.Error: it cannot be opened, or is no database.
        """
        with self._lock:
            self._opened()

    def claim(self, key: str) -> IdempotencyDecision:
        """Claim a key for ``lease_s``, unless it is done or in flight here or elsewhere."""
        owner = os.urandom(16).hex()
        with self._transaction() as connection:
            now_ms = self._now_ms()
            values = {
                "key": key, "owner": owner, "now_ms": now_ms, "until_ms": now_ms + self._lease_ms,
            }  # fmt: skip
            if connection.execute(_CLAIM, values).rowcount:
                self._owners[key] = owner
                answer = IdempotencyDecision.RUN
            else:
                row = connection.execute(_LOOK, (key, now_ms)).fetchone()
                answer = (
                    IdempotencyDecision.DONE if row[0] is None else IdempotencyDecision.IN_FLIGHT
                )
        self._count += 1
        if self._count % _PURGE_EVERY == 0:
            self.purge()
        return answer

    def remember(self, key: str) -> None:
        """Mark a key as done for ``keep_s``, whoever holds the claim: the work was done."""
        with self._transaction() as connection:
            self._owners.pop(key, None)
            connection.execute(_REMEMBER, (key, self._now_ms() + self._keep_ms))

    def forget(self, key: str) -> None:
        """Give back a claim made here; one that ended and went to another stays theirs."""
        owner = self._owners.pop(key, None)
        if owner is not None:
            with self._transaction() as connection:
                connection.execute(_FORGET, (key, owner))

    def seen(self, key: str) -> bool:
        """Tell whether a key is done."""
        with self._transaction() as connection:
            row = connection.execute(_LOOK, (key, self._now_ms())).fetchone()
        return row is not None and row[0] is None

    def purge(self) -> int:
        """Remove what counts as absent; return how many rows that were."""
        removed = 0
        while True:
            with self._transaction() as connection:
                count = connection.execute(_PURGE, (self._now_ms(), PURGE_ROWS)).rowcount
            removed += count
            if count < PURGE_ROWS:
                return removed

    def close(self) -> None:
        """Close the connection; a later call opens another."""
        with self._lock:
            if self._connection is not None and self._process == os.getpid():
                self._connection.close()
            self._connection = None

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        """Hold the file for writing, so that what is read is what is changed."""
        with self._lock, transaction(self._opened()) as connection:
            yield connection

    def _opened(self) -> sqlite3.Connection:
        if self._connection is None or self._process != os.getpid():  # SQLite forbids forks
            connection = open_file(self._path, is_wal=True)
            with transaction(connection):
                connection.execute(_TABLE)
                connection.execute(_INDEX)
            self._connection, self._process = connection, os.getpid()
        return self._connection
