"""The rows of a store, on the connection that writes: recovery, and what batches load.

Each engine has a subclass.  Its methods block and are called in the writer's thread.
"""

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from hashlib import sha256
from operator import itemgetter
from secrets import token_hex
from typing import Any, ClassVar, Final

from phpmq_lite.errors import StorageFullError
from phpmq_lite.model import (
    AFTER_ALL,
    DUE_AT_ONCE,
    RECORD_REFERENCE,
    Batch,
    ClockReading,
    DeliveryChanges,
    KeyRun,
    LoadedPage,
    LoadedRows,
    LoadedWindow,
    Message,
    NextScheduled,
    PageKind,
    PageRequest,
    PipelineRows,
    QueueRow,
    RecoveredState,
    RowsRequest,
    Schedule,
    WindowRequest,
    checksum,
)
from phpmq_lite.queue_settings import COLUMNS, DEAD_LETTER_SUFFIX
from phpmq_lite.storage.batch_sql import REMOVED_SETTINGS, message_of, write_statements
from phpmq_lite.storage.statements import load

_PAGES: Final = {
    PageKind.ALL: "all_page",
    PageKind.READY: "ready_page",
    PageKind.CLAIMED: "claimed_page",
}
_RECEIPTS_AT_ONCE: Final = 1_000  # number of rows read per statement at startup
_PAGE_BYTES: Final = 4 << 20  # maximum total size of the bodies in a page
_RECORD_BYTES: Final = 16 << 20  # maximum total size of client-written records loaded per batch

NUMBER_GAP: Final = 1_000_000  # added to the last number, so that no number is used twice


class Store(ABC):
    """The connection that writes, with the statements of its engine."""

    engine: ClassVar[str]  # name of the folder with the engine's statements
    has_index_tables: ClassVar[bool]  # whether indexes of the history are tables: runs and traces

    # Executes a statement and returns a cursor; the values are a sequence, or keyed by the
    # parameters' names.
    execute: Callable[..., Any]

    @abstractmethod
    def many(self, name: str, flat: Sequence[Any]) -> list[Any]:
        """Execute a multi-row query of ``batch.sql`` and return all rows."""

    @abstractmethod
    def transaction(self) -> AbstractContextManager[None]:
        """Store what is executed within in one transaction.

        Raises:
            StorageFullError, NotWritableError: nothing is stored.
            OutcomeUnknownError: fail-stop.
        """

    @abstractmethod
    def loading(self) -> AbstractContextManager[None]:
        """Raise any error within as OutcomeUnknownError, because the batch is already stored."""

    def sql(self, file: str) -> dict[str, str]:
        """Return the engine's statements in ``<file>.sql``, keyed by name."""
        return load(file, self.engine)

    def query(self, name: str, parameters: Any = ()) -> list[Any]:
        """Execute a query of ``batch.sql`` and return all rows."""
        rows: list[Any] = self.execute(self.sql("batch")[name], parameters).fetchall()
        return rows

    def recover(
        self, now: ClockReading, receipt_window_ms: int, receipt_limit: int
    ) -> RecoveredState:
        """Release the messages that connections held, and return the core's initial state."""
        execute, sql = self.execute, self.sql("batch")
        with self.transaction():
            returned = execute(sql["release_dispatched"]).rowcount
            execute(sql["admit_first_of_groups"])
            execute(sql["create_history_id"], (token_hex(16),))
            execute(sql["drop_unfinished_stages"])
            execute(sql["delete_queues_of_dropped_stages"])
            execute(sql["close_clients"], (now.wall_ms, "the broker stopped"))
            execute(sql["interrupt_audit"])
            execute(sql["delete_forgotten_queues"], (REMOVED_SETTINGS,))
        stored = self.state(returned)
        stored.receipts = self._receipts(now.steady_ms - receipt_window_ms, receipt_limit)
        return stored

    def state(self, returned: int = 0) -> RecoveredState:
        """Return the core's state as it is stored, without receipts."""
        [(next_deadline_ms,)] = self.query("next_deadline", (0,))
        [(newest_key,)] = self.query("newest_key")
        [(next_stage_id,)] = self.query("next_stage_id")
        queues = [_queue_row(row) for row in self.query("queues")]
        named = {row.own.get("dead_letter_queue") for row in queues}
        records = [
            (row.queue_id, source_id, count)
            for row in queues
            if row.live_count and (row.name.endswith(DEAD_LETTER_SUFFIX) or row.name in named)
            for source_id, count in self.query("records_by_source", {"of": row.queue_id})
        ]
        return RecoveredState(
            queues=queues,
            receipts=(),
            counters=self.counters(),
            next_deadline_ms=next_deadline_ms,
            returned=returned,
            newest_key=newest_key,
            records=records,
            heads=self.query("heads"),
            schedules=[Schedule(*row) for row in self.execute(self.sql("schedules")["all"])],
            ran_ticks=self.execute(self.sql("schedules")["ticks_not_passed"]).fetchall(),
            next_scheduled=NextScheduled(
                *(self.query(name, (-1,))[0][0] for name in ("next_after_delay", "next_by_date"))
            ),
            pipeline=PipelineRows(
                subscriptions=self.query("subscriptions"),
                claimed=self.query("claimed_by_queue"),
                staged=self.query("stages"),
                parts=self.query("stage_queues"),
                published=self.query("published_versions"),
                next_stage_id=next_stage_id,
                readers=self.query("reader_owners"),
            ),
        )

    def counters(self) -> dict[str, int]:
        return dict(self.query("counters"))

    def set_default_ttl(self, ttl_s: int) -> None:
        """Set the broker's default TTL for what migration 0002 scheduled without one."""
        sql = self.sql("migrate")
        with self.transaction():
            if ttl_s:
                self.execute(sql["set_default_ttl"], (ttl_s, ttl_s * 1_000))
            self.execute(sql["end_default_ttl"])

    def renumber(self) -> str:
        """Skip numbers and renew the history id, which is returned: a copy may have used both."""
        last = self.execute(self.sql("copy")["last_number"]).fetchone()[0]
        self.execute(self.sql("batch")["set_counter"], ("next_number", last + 1 + NUMBER_GAP))
        history_id = token_hex(16)
        self.execute(self.sql("batch")["renew_history_id"], (history_id,))
        return history_id

    def has_users(self) -> bool:
        return self.execute(self.sql("accounts")["users"]).fetchone() is not None

    def _receipts(self, after_ms: int, limit: int) -> Iterator[KeyRun]:
        """Yield rows added after ``after_ms``, newest first; all at once took 26 MB more."""
        before = 1 << 62
        while limit > 0 and (runs := self.query("receipts", (before, after_ms, _RECEIPTS_AT_ONCE))):
            yield from runs
            before, *_ = runs[-1]
            limit -= sum(len(keys) // size for *_, size, keys in runs)

    def load(self, batch: Batch) -> LoadedRows | None:
        """Load the rows that a stored batch requests, if any, or raise OutcomeUnknownError."""
        if not batch.loads:
            return None
        loaded = LoadedRows()
        with self.loading():
            loaded.windows = [self._window(request) for request in batch.windows]
            loaded.pages = [self._page(request) for request in batch.pages]
            loaded.pages += [self._rows(request) for request in batch.rows]
            for query, take in batch.queries:
                [name] = write_statements(type(query))
                rows = self.execute(self.sql("writes")[name], query._asdict()).fetchall()
                loaded.query_results.append((take, rows))
            if batch.seqs:
                loaded.by_seq = dict.fromkeys(batch.seqs)
                for message in map(message_of, self.many("messages_by_seq", list(batch.seqs))):
                    loaded.by_seq[message.seq] = message
            if batch.key_seqs:
                seqs = list(batch.key_seqs)
                loaded.checksums = dict.fromkeys(seqs)
                for name in ("settled_published_checksums", "published_checksums"):
                    loaded.checksums.update(self.many(name, seqs))
            if batch.delivery is not None and batch.delivery.loads:
                self._load_delivery(batch.delivery, loaded)
            if batch.body_seqs:
                seqs = list(batch.body_seqs)
                loaded.bodies = dict.fromkeys(seqs) | self._bodies(
                    dict(self.many("checksums", seqs))
                )
            if batch.record_seqs:
                loaded.records = self._records(batch.record_seqs)
            if batch.due_at is not None:
                rows = self.query("due_messages", (batch.due_from, batch.due_at, DUE_AT_ONCE))
                loaded.has_due = True
                loaded.due = [message_of(row) for row in rows]
                start = batch.due_at + 1 if len(rows) < DUE_AT_ONCE else loaded.due[-1].deadline_ms
                [(loaded.next_deadline_ms,)] = self.query("next_deadline", (start,))
            if batch.scheduled_at is not None:
                loaded.scheduled, loaded.next_scheduled = self._scheduled(batch.scheduled_at)
        return loaded

    def _load_delivery(self, delivery: DeliveryChanges, loaded: LoadedRows) -> None:
        if delivery.unique_keys:
            loaded.unique = unique = dict.fromkeys(delivery.unique_keys)
            flat = [value for place in delivery.unique_keys for value in place]
            for queue_id, unique_key, seq in self.many("unique_messages", flat):
                unique[queue_id, unique_key] = seq
        if delivery.groups:
            flat = [value for place in delivery.groups for value in place]
            firsts = self.many("first_of_groups", flat)
            upto = delivery.groups_upto
            near = [seq for seq, queue_id, position, _ in firsts if position <= upto[queue_id]]
            loaded.later_firsts = [row for row in firsts if row[2] > upto[row[1]]]
            rows = self.many("messages_by_seq", near)
            loaded.first_of_groups = page = [message_of(row) for row in rows]
            self._load_bodies(page[: _count_fitting(page, delivery.group_bytes)])

    def _scheduled(self, now: ClockReading) -> tuple[list[Message], NextScheduled]:
        """Return messages whose scheduled time has come, in order, and when others are due."""
        kinds = (
            ("scheduled_after_delay", "next_after_delay", "due_ms", now.steady_ms),
            ("scheduled_by_date", "next_by_date", "deliver_at", now.wall_ms),
        )
        due: list[tuple[int, int, Message]] = []
        for query, _, option, now_ms in kinds:
            messages = map(message_of, self.query(query, (now_ms, DUE_AT_ONCE)))
            due += [(getattr(m.options, option) - now_ms, m.seq, m) for m in messages]
        due.sort(key=itemgetter(0, 1))
        del due[DUE_AT_ONCE:]
        late_ms = due[-1][0] if len(due) == DUE_AT_ONCE else 1  # of those that come next
        following = [
            self.query(next_query, (now_ms + late_ms,))[0][0] for _, next_query, _, now_ms in kinds
        ]
        return [message for _, _, message in due], NextScheduled(*following)

    def _window(self, request: WindowRequest) -> LoadedWindow:
        bounds = {"of": request.queue_id, "after": request.after, "upto": AFTER_ALL}
        rows = self.query("ready_page", bounds | {"limit": request.limit})
        page = [message_of(row) for row in rows]
        self._load_bodies(page[: _count_fitting(page, request.body_bytes)])
        return LoadedWindow(request.queue_id, page, len(page) < request.limit)

    def _page(self, request: PageRequest) -> LoadedPage:
        parameters = {"of": request.queue_id, "after": request.after, "upto": request.upto}
        rows = self.query(_PAGES[request.kind], parameters | {"limit": request.limit})
        page = [message_of(row) for row in rows]
        return self._with_bodies(request, page, is_live=True, is_last=len(page) < request.limit)

    def _rows(self, request: RowsRequest) -> LoadedPage:
        name = "settled_by_seq" if request.settled else "messages_by_seq"
        rows = {row[0]: row for row in self.many(name, request.seqs)}
        page = [message_of(rows[seq]) for seq in request.seqs if seq in rows]
        return self._with_bodies(request, page, is_live=not request.settled, is_last=True)

    def _with_bodies(
        self,
        request: PageRequest | RowsRequest,
        page: list[Message],
        *,
        is_live: bool,
        is_last: bool,
    ) -> LoadedPage:
        """Load the bodies of a page if requested, shortening the page if they are too large."""
        if request.bodies:
            count = max(1, _count_fitting(page, _PAGE_BYTES))
            self._load_bodies(page[:count])
            if is_live:
                count = self._load_originals(page[:count])
            is_last = is_last and count >= len(page)
            page = page[:count]
        return LoadedPage(request.on_rows, page, is_last)

    def _load_originals(self, page: list[Message]) -> int:
        """Replace references in records by the contents; return how many fit into a page."""
        total = 0
        for count, message in enumerate(page):
            reference = RECORD_REFERENCE.match(message.body or b"")
            if reference is not None and message.source.seq is not None:
                rows = self.many("bodies", [message.source.seq])
                message.body = rows[0][1] if rows else None
                total += len(message.body or b"")
                if total > _PAGE_BYTES and count:
                    return count
                if sha256(message.body or b"").hexdigest() != reference[1].decode():
                    message.body = None
        return len(page)

    def _load_bodies(self, page: list[Message]) -> None:
        bodies = self._bodies({message.seq: message.crc for message in page})
        for message in page:
            message.body = bodies[message.seq]

    def _bodies(self, checksums: dict[int, int]) -> dict[int, bytes | None]:
        """Return bodies, keyed by seq; None if a body is missing or has a wrong checksum."""
        bodies = dict[int, bytes | None].fromkeys(checksums)
        for seq, body in self.many("bodies", list(checksums)):
            if checksum(seq, body) == checksums[seq]:
                bodies[seq] = body
        return bodies

    def _records(
        self, places: dict[int, tuple[int, int, int]]
    ) -> dict[int, list[tuple[bytes, bytes]]]:
        """Return ids and contents of dead-letter records by seq, the smallest ones: no padding."""
        flat = [number for seq, others in places.items() for number in (seq, *others)]
        total, records = 0, []
        for size, *record in sorted(self.many("client_records", flat)):
            total += size
            if total <= _RECORD_BYTES:
                records.append(record)
        bodies = self._bodies({seq: crc for _, seq, _, crc in records})
        about: dict[int, list[tuple[bytes, bytes]]] = {}
        for source_seq, seq, token, _ in sorted(records):
            if (body := bodies[seq]) is not None:
                about.setdefault(source_seq, []).append((b"%016x%016x" % (seq, token), body))
        return about


def _count_fitting(page: list[Message], room: int) -> int:
    """Return how many of the first messages fit into ``room`` bytes."""
    for count, message in enumerate(page):
        room -= message.size
        if room < 0:
            return count
    return len(page)


def _queue_row(row: tuple[Any, ...]) -> QueueRow:
    queue_id, name, created_at, *values, settings, live, size, scheduled, created_by = row
    is_removed, counts = settings == REMOVED_SETTINGS, (live, size, scheduled)
    own = dict(zip(COLUMNS, values, strict=True)) | ({} if is_removed else json.loads(settings))
    own = {name: value for name, value in own.items() if value is not None}
    return QueueRow(queue_id, name, created_at, own, *counts, counts, created_by, is_removed)


_MIN_STEP_MS: Final = 2_000  # smaller clock differences are not recorded at startup


def note_clock(store: Store, counters: Mapping[str, int], *, has_jumped: bool = False) -> None:
    """Store the state of the clocks, and any jump, in a separate transaction.

    Runs in the writer's thread.  Without a jump, a row is inserted only if it differs considerably
    from the newest one.  If the disk is full, nothing is stored, and the next call catches up.

    Raises:
        NotWritableError: nothing was stored.
        OutcomeUnknownError: fail-stop, as for a batch.
    """
    sql, step_ms = store.sql("batch"), counters["clock_step_ms"]
    with suppress(StorageFullError), store.transaction():
        newest = store.execute(sql["newest_clock_step"]).fetchone()
        for counter in counters.items():
            store.execute(sql["set_counter"], counter)
        if newest is None or has_jumped or abs(newest[0] - step_ms) > _MIN_STEP_MS:
            store.execute(sql["insert_clock_step"], (counters["last_seen_ms"], step_ms))
