"""Idempotency: claims each envelope before its handler runs and marks it as done afterwards.

The SDK's store records only "seen", so two workers that receive the same envelope at the same time
both handle it. Here, the first worker claims the envelope, and the second learns that it is in
flight.

A claim lasts as long as its process: on one machine, workers see each other's locks; elsewhere, the
claim is a lease that its process renews.
"""

import os
import sqlite3
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from enum import Enum
from pathlib import Path
from typing import Any, Final, Literal, Protocol, runtime_checkable

from phpmq_lite.envelopes.sqlite_file import (
    LOCKS,
    PURGE_ROWS,
    open_file,
    purge,
    transaction,
    wall_ms,
)
from phpmq_lite.os_process import reset_after_fork

LEASE_S: Final = 300  # a claim expires after this time if its machine died
_RENEWALS: Final = 3  # per lease
KEEP_S: Final = 7 * 86_400  # same as the broker's default history retention
_PURGE_EVERY: Final = 1_000  # number of claims after which expired rows are purged

_TABLE: Final = """
CREATE TABLE IF NOT EXISTS claim (
    key TEXT PRIMARY KEY,
    owner TEXT,               -- holder of a claim in flight; null if done
    until_ms INTEGER NOT NULL -- when the row expires, unless its holder is known to be alive
) WITHOUT ROWID
"""
_INDEX: Final = "CREATE INDEX IF NOT EXISTS claim_until ON claim (until_ms)"
_SELECT: Final = "SELECT owner, until_ms FROM claim WHERE key = ?"
_CLAIM: Final = """
INSERT INTO claim (key, owner, until_ms) VALUES (?, ?, ?)
ON CONFLICT (key) DO UPDATE SET owner = excluded.owner, until_ms = excluded.until_ms
"""
_RENEW: Final = "UPDATE claim SET until_ms = ? WHERE key = ? AND owner = ?"
_REMEMBER: Final = """
INSERT INTO claim (key, owner, until_ms) VALUES (?, NULL, ?)
ON CONFLICT (key) DO UPDATE SET owner = NULL, until_ms = excluded.until_ms
"""
_FORGET: Final = "DELETE FROM claim WHERE key = ? AND owner = ?"
_PURGE: Final = """
DELETE FROM claim WHERE key IN (
    SELECT key FROM claim WHERE until_ms <= :now_ms
    -- the holder of an expired claim with the name of a process may be alive
    AND (instr(coalesce(owner, ''), '/') = 0 OR until_ms <= :now_ms - :keep_ms) LIMIT :rows)
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
        """Claim a key until ``remember`` or ``forget``, unless it is done or in flight.

        A claim must end if its process dies, sooner or later.
        """

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
    if by == "trace_id":
        key = envelope.get("trace_id")
    else:
        key = meta.get("id") if isinstance(meta, Mapping) else None
    return key if isinstance(key, str) and key else None


class SqliteIdempotencyStore:
    """Claim store in an SQLite file; safe across threads, processes and forks.

    A key counts as done for ``keep_s``. A claim ends with ``remember``, ``forget`` or its process;
    on another machine, it ends ``lease_s`` after the process died, which renews it until then.
    Times are wall-clock milliseconds, which processes can compare. Expired rows are purged
    periodically. Each call commits (``synchronous=FULL``), so a done key survives a power failure.

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
        is_file = not str(path).startswith((":", "file:"))
        self._file = Path(path).absolute() if is_file and str(path) else None
        self._connection: sqlite3.Connection | None = None
        self._count = 0
        self.forked()
        reset_after_fork(self)

    def forked(self) -> None:
        """Leave the connection and the claims to the parent process."""
        self._lock = threading.RLock()
        self._inherited, self._connection = self._connection, None  # closing it would be unsafe
        self._owners: dict[str, str] = {}  # key -> owner, only for claims held by this process
        self._renewer: threading.Thread | None = None
        self._closed = threading.Event()

    def open(self) -> None:
        """Open the file now, so that a wrong path is reported (sqlite3.Error) before a claim."""
        with self._lock:
            self._connect()

    def claim(self, key: str) -> IdempotencyDecision:
        """Claim a key, unless it is done or in flight in any process."""
        self.open()  # the locks lie beside the file
        name = LOCKS.name(self._file) if self._file is not None else None
        owner = f"{name}/{os.urandom(16).hex()}" if name is not None else os.urandom(16).hex()
        decision = IdempotencyDecision.RUN
        with self._transaction() as connection:
            now_ms = self._now_ms()
            row = connection.execute(_SELECT, (key,)).fetchone()
            if row is None or not self._is_valid(row[0], row[1], now_ms):
                connection.execute(_CLAIM, (key, owner, now_ms + self._lease_ms))
                self._owners[key] = owner
            elif row[0] is None:
                decision = IdempotencyDecision.DONE
            else:
                decision = IdempotencyDecision.IN_FLIGHT
            if self._owners and self._renewer is None:
                self._renewer = threading.Thread(target=self._renew, name="claims", daemon=True)
                self._renewer.start()
            self._count += 1
        if self._count % _PURGE_EVERY == 0:
            self.purge()
        return decision

    def _is_valid(self, owner: str | None, until_ms: int, now_ms: int) -> bool:
        """Return whether a row counts: until it expires, or as long as its process is alive."""
        if owner is not None and self._file is not None and "/" in owner:
            is_alive = LOCKS.is_alive(self._file, owner.partition("/")[0])
            if is_alive is not None:
                return is_alive
        return until_ms > now_ms

    def _renew(self) -> None:
        """Renew the claims of this process, for other machines, until there are none."""
        closed = self._closed
        while not closed.wait(self._lease_ms / 1_000 / _RENEWALS):
            with self._lock:
                if not self._owners:
                    self._renewer = None
                    return
                until_ms = self._now_ms() + self._lease_ms
                rows = [(until_ms, key, owner) for key, owner in self._owners.items()]
                with suppress(sqlite3.Error), transaction(self._connect()) as connection:
                    connection.executemany(_RENEW, rows)

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
            row = connection.execute(_SELECT, (key,)).fetchone()
        return row is not None and row[0] is None and row[1] > self._now_ms()

    def purge(self) -> int:
        """Delete expired rows and return the number of deleted rows."""
        values = {"now_ms": self._now_ms(), "keep_ms": self._keep_ms, "rows": PURGE_ROWS}
        return purge(self._transaction, _PURGE, values)

    def close(self) -> None:
        """Close the connection and stop renewing claims; a later call opens a new one."""
        with self._lock:
            self._closed.set()
            self._closed, self._renewer = threading.Event(), None
            if self._connection is not None:
                self._connection.close()
            self._connection = None

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        """Lock the file for writing, so that no other process changes rows while the block runs."""
        with self._lock, transaction(self._connect()) as connection:
            yield connection

    def _connect(self) -> sqlite3.Connection:
        if self._connection is None:
            connection = open_file(self._path, is_wal=True)
            with transaction(connection):
                connection.execute(_TABLE)
                connection.execute(_INDEX)
            self._connection = connection
        return self._connection
