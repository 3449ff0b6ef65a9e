"""The only connection that writes; it stores batches, loads rows and runs checkpoints.

SQLite before 3.51.3 can corrupt a WAL when two connections write or checkpoint at once, so no
other connection opens the file writable, and checkpoints run here.
"""

import json
import sqlite3
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import accumulate
from time import perf_counter
from typing import Any, Final

from phpmq_lite.errors import NotWritableError, StartRefusedError, StorageFullError
from phpmq_lite.model import (
    Batch,
    ClockReading,
    KeyRun,
    LoadedRows,
    Message,
    PageKind,
    PageRequest,
    PipelineRows,
    QueueRow,
    RecoveredState,
    RowsRequest,
    WindowRequest,
    checksum,
)
from phpmq_lite.queue_settings import COLUMNS
from phpmq_lite.storage import batch_sql
from phpmq_lite.storage.batch_sql import Step, batch_statements, write_statements
from phpmq_lite.storage.sqlite.errors import raise_as_unknown, translate_errors
from phpmq_lite.storage.sqlite.history_index import HistoryIndexer
from phpmq_lite.storage.statements import load, many

_PAGES: Final = {
    PageKind.ALL: "all_page",
    PageKind.READY: "ready_page",
    PageKind.CLAIMED: "claimed_page",
}
DUE_AT_ONCE: Final = 1_000  # maximum number of messages to expire per batch
_RECEIPTS_AT_ONCE: Final = 1_000  # number of rows read per statement at startup
_PAGE_BYTES: Final = 4 << 20  # maximum total size of the bodies in a page
_RECORD_BYTES: Final = 16 << 20  # maximum total size of client-written records loaded per batch
# Later batches do not rewrite the pages of messages this large, so these are checkpointed at once.
# A checkpoint of 1 MiB delays other batches by 3 ms, one of 8 MiB by 17 ms.
_LARGE_BYTES: Final = 256 << 10
_STAGED_WEIGHT: Final = 8  # staged rows are not rewritten either; this forces a checkpoint per MiB
LONG_WAL_BYTES: Final = 8 << 20  # a WAL of this size is checkpointed between two batches
_RETRY_BYTES: Final = 1 << 20  # bytes to write before a blocked checkpoint is retried
# Growth of the WAL per commit is estimated, because getting its size requires an SQLite call.
_ROW_BYTES: Final = 500
_COMMIT_BYTES: Final = 16 << 10
_COMMITS: Final = 8  # number of commits in the moving average

_PRAGMAS: Final[dict[str, Any]] = {
    "journal_mode": "wal",
    "synchronous": 2,  # FULL; no setting can lower it (see docs/concepts/durability.md)
    "locking_mode": "normal",
    "wal_autocheckpoint": 0,  # we run checkpoints ourselves, after sending the replies
    "busy_timeout": 5_000,
    "foreign_keys": 1,
    "trusted_schema": 0,
    "secure_delete": 0,  # some systems overwrite deleted content by default, at triple the cost
    "mmap_size": 0,
    "cell_size_check": 1,
    "temp_store": 2,
} | ({"fullfsync": 1, "checkpoint_fullfsync": 1} if sys.platform == "darwin" else {})


# A callback, the rows to pass to it, and whether they are the last rows.
LoadedPage = tuple[Callable[[list[Message], bool], None], list[Message], bool]


class Store:
    """The synchronous store; ``writer.py`` runs blocking calls in the writer's thread."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self.connection = connection
        self.execute = connection.execute
        self._sql = load("batch")
        self.wal_bytes = 0  # estimated bytes written since the last checkpoint
        self.commit_s = 1.0  # moving average of COMMIT durations; initially assumed slow
        self.indexer = HistoryIndexer()
        self._waits_for_locks = True  # whether SQLite currently waits for locks

    # -- startup

    def configure(self, cache_bytes: int) -> None:
        """Set the pragmas and verify their values.

        Raises:
            StartRefusedError: SQLite did not accept the value of a pragma, which the message names.
        """
        for name, value in _PRAGMAS.items():
            self.execute(f"PRAGMA {name}={value}").fetchall()
            row = self.execute(f"PRAGMA {name}").fetchone()
            # SQLite built without memory-mapped I/O returns no row for mmap_size.
            if row is None and name == "mmap_size":
                continue
            if row is None or row[0] != value:
                raise StartRefusedError(f"PRAGMA {name} is {row and row[0]!r}, not {value!r}")
        self.execute(f"PRAGMA cache_size=-{cache_bytes // 1024}")
        self.connection.create_function("checksum", 2, checksum, deterministic=True)

    def recover(
        self, now: ClockReading, receipt_window_ms: int, receipt_limit: int
    ) -> RecoveredState:
        """Release the messages that connections held, and return the core's initial state."""
        execute, sql = self.execute, self._sql
        execute("BEGIN IMMEDIATE")
        returned = execute(sql["release_dispatched"]).rowcount
        execute(sql["create_history_id"])
        execute(sql["drop_unfinished_stages"])
        execute(sql["delete_queues_of_dropped_stages"])
        execute(sql["close_clients"], (now.wall_ms, "the broker stopped"))
        execute(sql["interrupt_audit"])
        execute(sql["delete_forgotten_queues"])
        execute("COMMIT")
        newest_key = execute(sql["newest_key"]).fetchone()[0]
        return RecoveredState(
            queues=[_queue_row(row) for row in execute(sql["queues"])],
            receipts=self._receipts(newest_key - receipt_limit, now.steady_ms - receipt_window_ms),
            counters=self.counters(),
            next_deadline_ms=execute(sql["next_deadline"], (-1,)).fetchone()[0],
            returned=returned,
            newest_key=newest_key,
            pipeline=PipelineRows(
                subscriptions=execute(sql["subscriptions"]).fetchall(),
                held=execute(sql["claimed_by_queue"]).fetchall(),
                staged=execute(sql["stages"]).fetchall(),
                parts=execute(sql["stage_queues"]).fetchall(),
                published=execute(sql["published_versions"]).fetchall(),
                next_stage_id=execute(sql["next_stage_id"]).fetchone()[0],
            ),
        )

    def counters(self) -> dict[str, int]:
        """Return all stored counters, keyed by name."""
        return dict(self.execute(self._sql["counters"]).fetchall())

    def _receipts(self, after: int, after_ms: int) -> Iterator[KeyRun]:
        """Yield the rows with keys above number ``after`` that are still valid, oldest first.

        Receipts are read in slices, because reading 100,000 in one go took 26 MB more.
        """
        execute, sql = self.execute, self._sql
        while some := execute(sql["receipts"], (after, after_ms, _RECEIPTS_AT_ONCE)).fetchall():
            after = some[-1][0]
            yield from some

    def set_lock_wait(self, is_patient: bool) -> None:
        """Set whether SQLite waits for locks held by other programs or fails immediately.

        The setting is cached, because changing it per batch would take a third as long as BEGIN.
        """
        if is_patient is not self._waits_for_locks:
            self.execute(f"PRAGMA busy_timeout={_PRAGMAS['busy_timeout'] if is_patient else 0}")
            self._waits_for_locks = is_patient

    # -- batches

    def commit(self, batch: Batch) -> LoadedRows | None:
        """Store a batch in one transaction, then load the rows that it requests.

        Raises:
            StorageFullError, NotWritableError: nothing is stored.
            OutcomeUnknownError: the batch may or may not be on disk; send no replies.
        """
        self.begin(batch_statements(batch) if batch.stores else [])
        return self.end(batch)

    def begin(self, steps: Sequence[Step], *, at_once: bool = False) -> bool:
        """Begin a transaction and execute a batch's steps; without steps, do nothing.

        With ``at_once``, do not wait if the disk is full or nothing can be written; instead, return
        False with nothing stored.

        Raises:
            StorageFullError, NotWritableError: nothing is stored.
            OutcomeUnknownError: as for ``commit``.
        """
        if not steps:
            return True
        execute, sql = self.execute, self._sql
        try:
            with translate_errors(self.connection):
                self.set_lock_wait(not at_once)
                execute("BEGIN IMMEDIATE")
                for name, values, before in steps:
                    if before is None:
                        execute(sql[name], values)
                    else:
                        many("batch", name).write(execute, values, before)
        except (StorageFullError, NotWritableError):
            if at_once:
                return False
            raise
        return True

    def end(self, batch: Batch, *, with_index: bool = False) -> LoadedRows | None:
        """Commit the transaction begun by ``begin``, then load the rows that the batch requests.

        If ``with_index``, settled messages are added to the index of the history, once many are
        waiting for that.

        Raises:
            StorageFullError, NotWritableError: nothing is stored; call ``begin`` again.
            OutcomeUnknownError: as for ``commit``.
        """
        if self.connection.in_transaction:
            self.finish(with_index=with_index and self.needs_index(batch))
            self.count(batch)
        return self.load(batch)

    def needs_index(self, batch: Batch) -> bool:
        """Return whether enough settled messages wait to be indexed within this batch."""
        return bool(batch.settled) and self.indexer.is_due(
            batch.settled_count, len(batch.queue_rows)
        )

    def finish(self, *, with_index: bool) -> float:
        """Commit the transaction begun by ``begin``; first index settled messages if requested.

        Returns the duration of the COMMIT in seconds.

        Raises:
            StorageFullError, NotWritableError: nothing is stored; call ``begin`` again.
            OutcomeUnknownError: as for ``commit``.
        """
        with translate_errors(self.connection):
            if with_index:
                self.indexer.index_in_batch(self.connection)
                self.wal_bytes += self.indexer.wal_bytes
            began_at = perf_counter()
            self.execute("COMMIT")
            commit_s = perf_counter() - began_at
        self.note_duration(commit_s)
        return commit_s

    def note_duration(self, commit_s: float) -> None:
        """Add a COMMIT's duration to the moving average."""
        self.commit_s += (commit_s - self.commit_s) / _COMMITS

    def count(self, batch: Batch, index_bytes: int = 0) -> None:
        """Add what a stored batch has written to the estimated size of the WAL."""
        changed = len(batch.created) + len(batch.dispatched) + len(batch.changed)
        self.wal_bytes += index_bytes + _COMMIT_BYTES + batch.created_bytes + _ROW_BYTES * changed
        if batch.staged_rows:
            contents = (value for value in batch.staged_rows if isinstance(value, bytes))
            self.wal_bytes += _STAGED_WEIGHT * sum(map(len, contents))
        if batch.created_bytes >= _LARGE_BYTES * len(batch.created) > 0:
            self.wal_bytes = max(self.wal_bytes, LONG_WAL_BYTES)

    # -- loading

    def load(self, batch: Batch) -> LoadedRows | None:
        """Load the rows that a stored batch requests; return None if it requests none.

        Raises:
            OutcomeUnknownError: the rows cannot be read, so the core cannot continue.
        """
        if not batch.loads:
            return None
        with raise_as_unknown():
            self.set_lock_wait(True)
            return self._load(batch)

    def _load(self, batch: Batch) -> LoadedRows:
        loaded = LoadedRows()
        for request in batch.windows:
            loaded.windows.append(self._window(request))
        for page_request in batch.pages:
            loaded.pages.append(self._page(page_request))
        for rows_request in batch.rows:
            loaded.pages.append(self._rows(rows_request))
        for query, take in batch.queries:
            [name] = write_statements(type(query))
            found = self.execute(self._sql[name], query._asdict()).fetchall()
            loaded.query_results.append((take, found))
        if batch.seqs:
            loaded.by_seq = dict.fromkeys(batch.seqs)
            for row in many("batch", "messages_by_seq").run(self.execute, list(batch.seqs)):
                loaded.by_seq[row[0]] = batch_sql.message_of(row)
        if batch.body_seqs:
            loaded.bodies = self._bodies(list(batch.body_seqs))
        if batch.record_seqs:
            loaded.records = self._records(batch.record_seqs)
        if batch.due_at is not None:
            loaded.has_due = True
            found = self.execute(self._sql["due_messages"], (batch.due_at, DUE_AT_ONCE)).fetchall()
            loaded.due = [batch_sql.message_of(row) for row in found]
            after = batch.due_at if len(found) < DUE_AT_ONCE else found[-1][6] - 1
            soonest = self.execute(self._sql["next_deadline"], (after,))
            loaded.next_deadline_ms = soonest.fetchone()[0]
        return loaded

    def _window(self, request: WindowRequest) -> tuple[int, list[Message], bool]:
        found = self.execute(
            self._sql["next_ready"], (request.queue_id, request.after, request.limit)
        ).fetchall()
        page = [batch_sql.message_of(row) for row in found]
        self._load_bodies(page[: _count_fitting(page, request.body_bytes)])
        return request.queue_id, page, len(page) < request.limit

    def _page(self, request: PageRequest) -> LoadedPage:
        given = {"of": request.queue_id, "after": request.after, "upto": request.upto}
        found = self.execute(
            self._sql[_PAGES[request.kind]], given | {"limit": request.limit}
        ).fetchall()
        page = [batch_sql.message_of(row) for row in found]
        return self._with_bodies(request, page, is_last=len(page) < request.limit)

    def _rows(self, request: RowsRequest) -> LoadedPage:
        name = "settled_by_seq" if request.settled else "messages_by_seq"
        found = {row[0]: row for row in many("batch", name).run(self.execute, request.seqs)}
        page = [batch_sql.message_of(found[seq]) for seq in request.seqs if seq in found]
        checksums = "settled_checksums" if request.settled else "checksums"
        return self._with_bodies(request, page, is_last=True, checksums=checksums)

    def _with_bodies(
        self,
        request: PageRequest | RowsRequest,
        page: list[Message],
        *,
        is_last: bool,
        checksums: str = "checksums",
    ) -> LoadedPage:
        """Load the bodies of a page if requested, shortening the page if they are too large."""
        if request.bodies:
            count = max(1, _count_fitting(page, _PAGE_BYTES))
            is_last = is_last and count >= len(page)
            page = page[:count]
            self._load_bodies(page, checksums)
        return request.on_rows, page, is_last

    def _load_bodies(self, page: list[Message], checksums: str = "checksums") -> None:
        bodies = self._bodies([message.seq for message in page], checksums)
        for message in page:
            message.body = bodies[message.seq]

    def _bodies(self, seqs: list[int], checksums: str = "checksums") -> dict[int, bytes | None]:
        """Return bodies, keyed by seq; None if a body is missing or has a wrong checksum."""
        expected = dict(many("batch", checksums).run(self.execute, seqs))
        found = many("batch", "bodies").run(self.execute, seqs)
        whole = {seq: body for seq, body in found if checksum(seq, body) == expected.get(seq)}
        return {seq: whole.get(seq) for seq in seqs}

    def _records(
        self, places: dict[int, tuple[int, int, int]]
    ) -> dict[int, list[tuple[bytes, bytes]]]:
        """Return the ids and contents of dead-letter records, keyed by the seqs of their messages.

        If their total size is too large, only the smallest are returned: real records, not padding.
        """
        flat = [number for seq, others in places.items() for number in (seq, *others)]
        found = many("batch", "client_records").run(self.execute, flat)
        found.sort(key=lambda row: row[3])
        sums = accumulate(row[3] for row in found)
        some = [row for row, size in zip(found, sums, strict=True) if size <= _RECORD_BYTES]
        bodies = self._bodies([seq for _, seq, _, _ in some])
        about: dict[int, list[tuple[bytes, bytes]]] = {}
        for source_seq, seq, token, _ in sorted(some):
            body = bodies[seq]
            if body is not None:
                about.setdefault(source_seq, []).append((b"%016x%016x" % (seq, token), body))
        return about

    # -- between batches

    def used_bytes(self) -> int:
        """Return the size of the database without its free pages."""
        pages, free, page_bytes = self.execute(load("database_size")["pages"]).fetchone()
        return int((pages - free) * page_bytes)

    def checkpoint(self, mode: str) -> bool:
        """Copy the WAL into the database and restart the WAL; mode TRUNCATE also truncates it.

        The other mode is RESTART.  Waits a few seconds for readers.  Returns False if a reader
        still uses the WAL, which then keeps growing; the caller tries again soon.
        """
        self.wal_bytes = LONG_WAL_BYTES - _RETRY_BYTES  # set beforehand, in case the disk is full
        is_busy, _, _ = self.execute(f"PRAGMA wal_checkpoint({mode})").fetchone()
        if not is_busy:
            self.wal_bytes = 0
        return not is_busy

    def checkpoint_without_waiting(self, mode: str) -> bool:
        """Checkpoint without waiting for readers, because the next batch would wait too."""
        self.set_lock_wait(False)
        try:
            return self.checkpoint(mode)
        finally:
            self.set_lock_wait(True)


def _count_fitting(page: list[Message], room: int) -> int:
    """Return how many of the first messages fit into ``room`` bytes."""
    for count, message in enumerate(page):
        room -= message.size
        if room < 0:
            return count
    return len(page)


def _queue_row(row: tuple[Any, ...]) -> QueueRow:
    own = dict(zip(COLUMNS, row[3:9], strict=True)) | json.loads(row[9])
    return QueueRow(
        row[0], row[1], row[2], {name: v for name, v in own.items() if v is not None},
        row[10], row[11], (row[10], row[11]), row[12],
    )  # fmt: skip


_MIN_STEP_MS: Final = 2_000  # smaller clock differences are not recorded at startup


def note_clock(
    connection: sqlite3.Connection, counters: Mapping[str, int], *, has_jumped: bool = False
) -> None:
    """Store the state of the clocks, and any jump, in a separate transaction.

    Runs in the writer's thread.  Without a jump, a row is inserted only if it differs considerably
    from the newest one.  If the disk is full, nothing is stored, and the next call catches up.

    Raises:
        NotWritableError: nothing was stored.
        OutcomeUnknownError: fail-stop, as for a batch.
    """
    sql, step_ms = load("batch"), counters["clock_step_ms"]
    with suppress(StorageFullError), translate_errors(connection):
        newest = connection.execute(sql["newest_clock_step"]).fetchone()
        is_new = newest is None or has_jumped or abs(newest[0] - step_ms) > _MIN_STEP_MS
        connection.execute("BEGIN IMMEDIATE")
        for counter in counters.items():
            connection.execute(sql["set_counter"], counter)
        if is_new:
            connection.execute(sql["insert_clock_step"], (counters["last_seen_ms"], step_ms))
        connection.execute("COMMIT")
