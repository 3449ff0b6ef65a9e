"""Reads history and claims as Arrow batches, with ADBC or Python's ``sqlite3``.

Importing this module needs only the standard library.

ADBC's driver for SQLite has its own copy of SQLite, and two copies in one process release each
other's file locks (sqlite.org/howtocorrupt.html 2.2.1).  So it is never used in a process that has
the same database open with ``sqlite3``, and a ``HistoryRanges`` object uses only one of them.
"""

import json
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final, Literal, Self

from phpmq_lite.errors import RefusedError, StorageError
from phpmq_lite.model import OUTCOMES, checksum
from phpmq_lite.storage.statements import compiled, load, parts, postgres_value

BUSY_MS: Final = 5_000  # maximum time to wait for a lock, in ms; ADBC sets no timeout of its own
RANGE_SLICE: Final = 10_000  # maximum number of offsets or claims per statement
QUEUES_LOOKED_UP: Final = 32  # more queues are rather found by reading all rows
TIME_MIN: Final = -(1 << 60)  # Unix ms, where no bound is given
TIME_MAX: Final = 1 << 60
BOUNDARY_MS: Final = 16_000  # how exact ``boundaries`` is
PART_BYTES: Final = 4 << 20  # maximum total body size per statement; a single body may be larger

ArrowDriver = Literal["auto", "adbc", "python"]
ColumnType = Literal["int32", "int64", "string", "binary", "timestamp"]
# Only in the tables that jobs write.
TableType = Literal["date", "double", "array<string>", "map<int,bigint>"]
POSTGRES_URLS: Final = ("postgresql://", "postgres://")


@dataclass(slots=True, frozen=True)
class ArrowColumn:
    """A column that readers get; values of type ``timestamp`` are in UTC milliseconds.

    The reference page and the comments in Spark's schemas are made from its texts.
    """

    name: str
    type: ColumnType | TableType
    meaning: str
    null: str = ""  # what null means; empty: the column has no nulls
    unit: str = ""
    source: str = "broker"  # who determines the value, or the columns that it is computed from

    @property
    def is_nullable(self) -> bool:
        return bool(self.null)

    @property
    def comment(self) -> str:
        """The texts on one line."""
        unit = f" ({self.unit})" if self.unit else ""
        return f"{self.meaning}{unit}" + (f"; null: {self.null}" if self.null else "")


def arrow_schema(columns: Sequence[ArrowColumn], time_unit: str = "ms") -> Any:
    import pyarrow as pa

    types = {
        "int32": pa.int32(),
        "int64": pa.int64(),
        "string": pa.string(),
        "binary": pa.binary(),
        "timestamp": pa.timestamp(time_unit, tz="UTC"),
        "date": pa.date32(),
        "double": pa.float64(),
        "array<string>": pa.list_(pa.string()),
        "map<int,bigint>": pa.map_(pa.int32(), pa.int64()),
    }
    return pa.schema([pa.field(c.name, types[c.type], c.is_nullable) for c in columns])


def has_adbc() -> bool:
    try:
        import adbc_driver_sqlite.dbapi  # noqa: F401
    except ImportError:
        return False
    return True


class _PythonDatabase:
    """A database read through Python's ``sqlite3``, which converts each value to an object."""

    def __init__(self, uri: str) -> None:
        try:
            self.connection = sqlite3.connect(
                uri, uri=True, isolation_level=None, timeout=BUSY_MS / 1_000
            )
            self.connection.execute("PRAGMA query_only = 1")
        except sqlite3.Error as error:
            raise StorageError(f"cannot open the database: {error}") from error

    def read_table(self, text: str, values: dict[str, Any], columns: Sequence[ArrowColumn]) -> Any:
        import pyarrow as pa

        _, rows = self._fetch(text, values)
        schema = arrow_schema(columns)
        lists = zip(*rows, strict=True) if rows else [()] * len(columns)
        arrays = [pa.array(values, field.type) for values, field in zip(lists, schema, strict=True)]
        return pa.Table.from_arrays(arrays, schema=schema)

    def read_rows(self, text: str, values: dict[str, Any]) -> list[dict[str, Any]]:
        """Return the rows without importing pyarrow, which takes longer than to read a few."""
        names, rows = self._fetch(text, values)
        return [dict(zip(names, row, strict=True)) for row in rows]

    def _fetch(self, text: str, values: dict[str, Any]) -> tuple[list[str], list[tuple[Any, ...]]]:
        try:
            cursor = self.connection.execute(text, values)
            return [column[0] for column in cursor.description], cursor.fetchall()
        except sqlite3.Error as error:
            raise StorageError(f"cannot read the history: {error}") from error


class _AdbcDatabase:
    """A database read through ADBC, which converts rows to Arrow in C."""

    def __init__(self, uri: str) -> None:
        import adbc_driver_sqlite
        from adbc_driver_sqlite import dbapi

        # ADBC infers types from the first batch, so the complete result must fit into one batch.
        self._options = {adbc_driver_sqlite.StatementOptions.BATCH_ROWS.value: str(RANGE_SLICE + 1)}
        self._error = dbapi.Error
        try:  # without autocommit, all reads would share one long transaction
            self.connection = dbapi.connect(uri, autocommit=True)
            with closing(self.connection.cursor()) as cursor:
                cursor.execute(f"PRAGMA busy_timeout = {BUSY_MS}")
                cursor.fetchall()
        except dbapi.Error as error:
            raise StorageError(f"cannot open the database: {error}") from error

    def read_table(self, text: str, values: dict[str, Any], columns: Sequence[ArrowColumn]) -> Any:
        statement, names = compiled(text)  # SQLite numbers its parameters in the same order
        try:
            with closing(self.connection.cursor(adbc_stmt_kwargs=self._options)) as cursor:
                cursor.execute(statement, [values[name] for name in names] or None)
                table = cursor.fetch_arrow_table()
        except self._error as error:
            raise StorageError(f"cannot read the history: {error}") from error
        return _cast(table, arrow_schema(columns)) if columns else table

    def read_rows(self, text: str, values: dict[str, Any]) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = self.read_table(text, values, ()).to_pylist()
        return rows


class _PostgresDatabase(_AdbcDatabase):
    """A PostgreSQL database, which may be a replica."""

    def __init__(self, url: str) -> None:
        try:
            from adbc_driver_postgresql import dbapi
        except ImportError as error:
            detail = f"cannot read PostgreSQL without the extra 'postgres': {error}"
            raise StorageError(detail) from error
        self._options, self._error = {}, dbapi.Error
        try:
            self.connection = dbapi.connect(url, autocommit=True)
        except dbapi.Error as error:
            raise StorageError(f"cannot connect to the database: {error}") from error

    def read_table(self, text: str, values: dict[str, Any], columns: Sequence[ArrowColumn]) -> Any:
        storable = {name: postgres_value(value) for name, value in values.items()}
        return super().read_table(text, storable, columns)


def _cast(table: Any, schema: Any) -> Any:
    """Cast a table to a schema, because ADBC returns a column that is all null as numeric."""
    import pyarrow as pa

    if table.num_rows == 0:
        return schema.empty_table()
    arrays = [
        pa.nulls(table.num_rows, field.type)
        if column.null_count == table.num_rows
        else column.cast(field.type)
        for column, field in zip(table.columns, schema, strict=True)
    ]
    return pa.Table.from_arrays(arrays, schema=schema)


def _with_defined_bits(batch: Any) -> Any:
    """Clear the unused bits after each validity bitmap: ADBC leaves there what was in memory."""
    import pyarrow as pa

    arrays, rows = [], batch.num_rows
    for array in batch.columns:
        validity, *buffers = array.buffers()
        if array.null_count == 0:
            validity = None
        else:
            bits = bytearray(validity[: (rows + 7) // 8])
            bits[-1] &= 0xFF >> -rows % 8
            validity = pa.py_buffer(bits)
        arrays.append(pa.Array.from_buffers(array.type, rows, [validity, *buffers]))
    return pa.RecordBatch.from_arrays(arrays, schema=batch.schema)


COLUMNS: Final = (  # columns of the history, in order; see docs/reference/columns.md
    ArrowColumn("offset", "int64", "number of a settled message, without gaps, in settling order"),
    ArrowColumn("seq", "int64", "number of its arrival at the broker"),
    ArrowColumn("message_id", "string", "its id on the wire, 32 hex digits"),
    ArrowColumn("queue", "string", "its queue; if settled, the last one", source="publisher"),
    ArrowColumn("position", "int64", "its place in the order of its queue, by priority"),
    ArrowColumn("outcome", "string", "how it was settled: acked, expired, dead or deleted"),
    ArrowColumn("reason", "string", "why it was settled so", "there is no more to say"),
    ArrowColumn("published_at", "timestamp", "when it was published"),
    ArrowColumn("first_dispatched_at", "timestamp", "when a consumer first got it", "never"),
    ArrowColumn("last_dispatched_at", "timestamp", "when a consumer last got it", "never"),
    ArrowColumn("settled_at", "timestamp", "when it was settled"),
    ArrowColumn("deadline", "timestamp", "when it would have expired", "never"),
    ArrowColumn("ttl_s", "int64", "its time to live", "unlimited", "s", "publisher"),
    ArrowColumn("deliveries", "int32", "how often it was dispatched to a consumer"),
    ArrowColumn("size", "int64", "size of its body", unit="bytes", source="publisher"),
    ArrowColumn("publisher", "int64", "number of the connection that published it", "unknown"),
    ArrowColumn("consumer", "int64", "number of the connection that last held it", "none did"),
    ArrowColumn("urn", "string", "URN of its kind", "no envelope", source="envelope"),
    ArrowColumn("trace_id", "string", "id of related messages", "no envelope", source="envelope"),
    ArrowColumn("meta_id", "string", "id that its retries keep", "no envelope", source="envelope"),
    ArrowColumn("attempts", "int64", "failed attempts before it", "no envelope", source="envelope"),
    ArrowColumn("ready_at", "timestamp", "since when it was ready", "settled while scheduled"),
    ArrowColumn("deliver_at", "timestamp", "date it was scheduled for", "none", "", "publisher"),
    ArrowColumn("priority", "int32", "0 (first) to 255; 128 is the default", source="publisher"),
    ArrowColumn("retries", "int32", "failed attempts that workers reported", source="worker"),
    ArrowColumn("group", "string", "its group", "none", source="publisher"),
    ArrowColumn("unique_key", "string", "its unique key while live", "none", source="publisher"),
    ArrowColumn("charged", "int32", "deliveries that count towards max_deliveries"),
    ArrowColumn("source_seq", "int64", "seq of the message that died", "no dead letter"),
    ArrowColumn("source_queue", "string", "queue in which that one died", "no dead letter"),
    ArrowColumn("source_reason", "string", "why that one died", "no dead letter"),
    ArrowColumn("erased_at", "timestamp", "when its data was erased; see Erase data", "not erased"),
    ArrowColumn("history_id", "string", "id of the history that the offset belongs to"),
    ArrowColumn("history_offset", "int64", "the offset, whose name other databases reserve"),
)
# The same, with what only a reader knows.
READER_COLUMNS: Final = (
    *COLUMNS[:-1],
    ArrowColumn("broker", "string", "name given to the reader, or the history_id", source="reader"),
    COLUMNS[-1],
)
ACKED: Final = "acked"
DELETED: Final = "deleted"
BODY: Final = ArrowColumn(
    "body", "binary", "its content", "damaged, or removed by retention", source="publisher"
)
# These columns are read to verify bodies but are not returned.
_CHECKS: Final = (ArrowColumn("_seq", "int64", ""), ArrowColumn("_crc", "int64", ""))
_BY_NAME: Final = {column.name: column for column in (*COLUMNS, BODY)}
_OF_CLAIMS: Final = (
    "message_id queue body published_at deliveries urn trace_id meta_id "
    "ready_at priority retries group"
)
_EVENT_NAMES: Final = "history_offset seq message_id queue settled_at"
EVENT_COLUMNS: Final = (  # columns of the exceptional steps of settled messages
    *(_BY_NAME[name] for name in _EVENT_NAMES.split()),
    ArrowColumn("event_id", "int64", "number of the step, in the order of time"),
    ArrowColumn("event_at", "timestamp", "when it happened"),
    ArrowColumn("kind", "string", "what happened: return, requeue, forward, restore, …"),
    ArrowColumn("detail", "string", "by kind: a queue, a reason, …", "there is no more to say"),
    ArrowColumn("count", "int64", "how many equal steps in a row; of kind more, of all omitted"),
    ArrowColumn("last_at", "timestamp", "when the last of them happened", "the row is one step"),
)
CLAIM_COLUMNS: Final = (
    ArrowColumn("claim", "int64", "number of the message within the subscription, without gaps"),
    *(_BY_NAME[name] for name in _OF_CLAIMS.split()),
)


@dataclass(slots=True, frozen=True)
class HistoryOffsets:
    """The range of offsets in the history."""

    history_id: str  # offsets with different history_ids cannot be compared
    lo: int  # above this offset, only rows of deleted messages can be missing
    hi: int  # last assigned offset
    lo_deleted: int  # above this offset, no rows are missing


@dataclass(slots=True, frozen=True, kw_only=True)
class RowFilters:
    """Conditions on history rows, all of which must hold; times are Unix ms.

    ``from`` is inclusive and ``until`` exclusive; None means no bound.  Empty ``urns`` and
    ``traces`` mean all; with any, rows without an URN or trace do not match.
    """

    settled_from: int | None = None
    settled_until: int | None = None
    published_from: int | None = None
    published_until: int | None = None
    urns: Sequence[str] = ()
    traces: Sequence[str] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the conditions that are set, in order."""
        return tuple(name for name in self.__slots__ if getattr(self, name) not in (None, ()))


NO_FILTERS: Final = RowFilters()


@dataclass(slots=True, frozen=True)
class RowSelection:
    """Selects history rows with offsets above ``lo`` and up to ``hi`` that match all filters.

    ``pattern`` and ``allowed`` are case-sensitive globs.
    """

    lo: int
    hi: int
    queues: Sequence[str] = ()  # queue names; empty means all
    pattern: str | None = None  # glob that queue names must match
    outcomes: Sequence[str] = ()  # keys of OUTCOMES; empty means all
    columns: Sequence[str] = ()  # column names; empty means all
    body: bool = False
    allowed: Sequence[str] = ()  # globs for queues that the caller can use; empty means all
    history_id: str | None = None  # if set, the history must have this id
    filters: RowFilters = NO_FILTERS

    @property
    def needs_deleted(self) -> bool:
        """Return whether deleted messages are selected; retention removes these separately."""
        return not self.outcomes or DELETED in self.outcomes


class RangeError(StorageError):
    """Rows of a range were removed during the read; discard the result and read the range again."""


def columns_of(names: Sequence[str] = (), *, body: bool = False) -> tuple[ArrowColumn, ...]:
    """Return the requested columns in table order, or raise RefusedError; the body is last."""
    existing = {column.name for column in COLUMNS}
    for name in names:
        if name not in existing:
            hint = "; request bodies separately" if name == BODY.name else ""
            raise RefusedError("bad_value", f"column {name!r} does not exist{hint}")
    chosen = tuple(column for column in COLUMNS if not names or column.name in names)
    return (*chosen, BODY) if body else chosen


@dataclass(slots=True)
class RangeRows:
    """The number of rows in a range, and a single-use iterator of ``pyarrow.RecordBatch`` objects.

    Batches are in order, have at most ``RANGE_SLICE`` rows and are never empty.  If their
    rows do not add up to ``count``, the iterator ends with RangeError; then discard the rows.
    """

    lo: int  # the requested lower bound, or a higher bound after clipping
    hi: int
    count: int
    schema: Any
    batches: Iterator[Any]
    queue: str = ""  # the subscription's queue, if claims are read

    def __iter__(self) -> Iterator[Any]:
        returned = 0
        for batch in self.batches:
            returned += batch.num_rows
            yield batch
        if returned != self.count:
            raise RangeError(
                f"range ({self.lo}, {self.hi}] should contain {self.count} rows, "
                f"but {returned} were read"
            )


# Names of parts: what is read, and conditions; and the values of their parameters.
_Conditions = tuple[str, list[str], dict[str, Any]]


class HistoryRanges:
    """Reads ranges from one database, in one thread.  Close it or use it as a context manager.

    The database is an SQLite file or the URL of a PostgreSQL database.  With ``driver="auto"``, a
    file is read through ADBC if it is installed.  PostgreSQL is always read through ADBC.
    Methods raise StorageError if the database cannot be read.  ``on_statement`` is called before
    each statement; a statement takes about 0.1 s.

    History above ``upto`` is not read if it is set: a replica may have rows that the primary has
    not confirmed, and that a failover would lose.
    """

    def __init__(self, path: Path | str, *, driver: ArrowDriver = "auto") -> None:
        self.on_statement: Callable[[], None] = lambda: None
        self.upto: int | None = None
        is_postgres = str(path).startswith(POSTGRES_URLS)
        engine = "postgres" if is_postgres else "sqlite"
        self.parts, self._statements = parts("arrow", engine), load("arrow", engine)
        self._database: _AdbcDatabase | _PythonDatabase
        if is_postgres:
            self._database = _PostgresDatabase(str(path))
            return
        self.path = Path(path)
        if not self.path.is_file():
            raise StorageError(f"database {self.path} does not exist")
        uri = f"{self.path.resolve().as_uri()}?mode=ro"
        is_adbc = driver == "adbc" or (driver == "auto" and has_adbc())
        self._database = _AdbcDatabase(uri) if is_adbc else _PythonDatabase(uri)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._database.connection.close()

    def bounds(self) -> HistoryOffsets:
        [row] = self.read_rows(self._statements["bounds"])
        bounds = HistoryOffsets(**row)
        return bounds if self.upto is None else replace(bounds, hi=min(bounds.hi, self.upto))

    def offset_at(self, at_ms: int) -> int:
        """Return the last offset settled before ``at_ms`` (Unix ms); if none, ``bounds().lo``."""
        bounds = self.bounds()
        values = {"lo": bounds.lo, "hi": bounds.hi, "at_ms": at_ms}
        return int(self.read_rows(self._statements["offset_at"], values)[0]["offset"])

    def queues(self) -> list[str]:
        """Return the sorted names of all queues that history rows may refer to."""
        return list(self._ids_by_name())

    def history(self, selection: RowSelection, *, is_gap_ok: bool = False) -> RangeRows:
        """Return the selected settled messages, stopping at the last offset if ``hi`` is higher.

        With ``is_gap_ok``, ``lo`` is clipped to the first offset, and rows of deleted messages that
        retention removed are omitted.

        Raises:
            RefusedError: ``gap``: rows in the range were removed; ``other_history``; ``bad_value``;
                ``unknown_queue``.
        """
        return self._range(
            selection, columns_of(selection.columns, body=selection.body), is_gap_ok=is_gap_ok
        )

    def events(self, selection: RowSelection, *, is_gap_ok: bool = False) -> RangeRows:
        """Return the exceptional steps of the selected settled messages, by offset, then by time.

        Steps that follow the settlement, such as ``restore``, are included until now.  The columns
        are ``EVENT_COLUMNS``.  Raises RefusedError like ``history``.
        """
        return self._range(selection, EVENT_COLUMNS, is_gap_ok=is_gap_ok)

    def _range(
        self, selection: RowSelection, chosen: Sequence[ArrowColumn], *, is_gap_ok: bool
    ) -> RangeRows:
        bounds = self.bounds()
        if selection.history_id not in (None, bounds.history_id):
            detail = f"the history id is {bounds.history_id}, not {selection.history_id}"
            raise RefusedError("other_history", detail)
        conditions = self._conditions(selection)
        while True:
            lo, hi = _clipped(selection, bounds, is_gap_ok=is_gap_ok)
            reading = self._reader(selection.filters, lo, hi, conditions, chosen)
            counts = reading.counts()
            before, bounds = bounds, self.bounds()
            lo_deleted = max(lo, before.lo_deleted)
            has_lost_deleted = selection.needs_deleted and bounds.lo_deleted > lo_deleted
            if bounds.lo <= lo and not has_lost_deleted:  # no rows were removed during the count
                schema, batches = arrow_schema(chosen), reading.batches(counts)
                return RangeRows(lo, hi, sum(counts), schema, batches)

    def settled_range(self, settled_from: int | None, settled_until: int | None) -> tuple[int, int]:
        """Return a range (lo, hi] of offsets with all messages settled in a time (Unix ms).

        The range may contain others; without any, lo and hi are equal.
        """
        bounds = self.bounds()
        return hull(self._settled_spans(bounds.lo, bounds.hi, settled_from, settled_until), bounds)

    def _reader(
        self, filters: RowFilters, lo: int, hi: int, conditions: _Conditions, columns: Any
    ) -> "_RangeReader":
        """Return a reader of the parts of a range that can have rows that match."""
        base, names, values = conditions
        join = ""
        if columns is EVENT_COLUMNS:
            [event] = self.read_rows(self._statements["last_event"])
            join, values = self.parts["events"], values | {"last_event": event["event_id"]}
        spans = [(lo, hi)] if lo < hi else []
        if spans and "only_settled" in names:
            spans = self._settled_spans(lo, hi, filters.settled_from, filters.settled_until)
        slices = [part for span in spans for part in _slices(*span)]
        if slices and filters.traces:
            covered = {"lo": slices[0]["lo"], "hi": slices[-1]["hi"]}
            rows = self.read_rows(
                self._statements["trace_offsets"],
                {"traces": values["traces"], **covered, "limit": RANGE_SLICE + 1},
            )
            if len(rows) <= RANGE_SLICE:
                base, slices = "offset_range", [covered] if rows else []
                values = values | {"offsets": json.dumps([row["offset"] for row in rows])}
        if base == "queue_range":  # which has these conditions
            names = [name for name in names if name not in ("only_queues", "only_outcomes")]
        text = " ".join(self.parts[name] for name in (base, *names)).replace("{join}", join)
        return _RangeReader(self, 'm."offset"', text, values, columns, slices)

    def _settled_spans(
        self, lo: int, hi: int, settled_from: int | None, settled_until: int | None
    ) -> list[tuple[int, int]]:
        text, rows = self._statements["boundaries"], []
        for at_ms in boundary_times(settled_from, settled_until):
            boundaries = self.read_rows(text, {"lo": lo, "hi": hi, "at_ms": at_ms})
            rows.append([row["low"] for row in boundaries])
        return settled_spans(*rows)

    def claims(self, subscription: str, lo: int, hi: int, allowed: Sequence[str] = ()) -> RangeRows:
        """Return the messages that a subscription holds, with their bodies, in claim order.

        Raises:
            RefusedError: ``gap``: claims above ``lo`` are acknowledged; ``bad_value``: ``hi`` was
                not claimed; ``unknown_subscription``; ``foreign_queue``: the queue is not in
                ``allowed``.
        """
        rows = self.read_rows(self._statements["subscription"], {"name": subscription})
        if not rows:
            raise RefusedError("unknown_subscription", f"there is no subscription {subscription!r}")
        [held] = rows
        if not _is_match(held["queue"], allowed):
            raise RefusedError("foreign_queue", f"{subscription!r} belongs to another queue")
        if lo < held["acked_upto"]:
            detail = f"claims up to {held['acked_upto']} are acknowledged; request only later ones"
            raise RefusedError("gap", detail)
        if not lo <= hi < held["next_claim"]:
            detail = f"({lo}, {hi}] exceeds the last claim, which is {held['next_claim'] - 1}"
            raise RefusedError("bad_value", detail)
        values = {"subscription_id": held["subscription_id"]}
        text = self.parts["claim_range"]
        slices = [*_slices(lo, hi)]
        reading = _RangeReader(self, "c.claim", text, values, CLAIM_COLUMNS, slices, True)
        schema, counts = arrow_schema(CLAIM_COLUMNS), reading.counts()
        return RangeRows(lo, hi, sum(counts), schema, reading.batches(counts), held["queue"])

    def read_table(self, text: str, values: dict[str, Any], columns: Sequence[ArrowColumn]) -> Any:
        self.on_statement()
        return self._database.read_table(text, values, columns)

    def read_rows(self, text: str, values: dict[str, Any] | None = None) -> list[dict[str, Any]]:
        self.on_statement()
        return self._database.read_rows(text, values or {})

    def _conditions(self, selection: RowSelection) -> _Conditions:
        filters, outcomes = selection.filters, selection.outcomes or tuple(OUTCOMES)
        for name in outcomes:
            if name not in OUTCOMES:
                detail = f"{name!r} is not a valid outcome; use {', '.join(OUTCOMES)}"
                raise RefusedError("bad_value", detail)
        names: list[str] = []
        values: dict[str, Any] = {"outcomes": json.dumps([OUTCOMES[o].state for o in outcomes])}
        base = "history_range" if ACKED in outcomes else "unusual_range"
        queue_ids, count = self._queue_ids(selection)
        if queue_ids is not None:
            names.append("only_queues")
            values["queue_ids"] = json.dumps(queue_ids)
            # Where queues alternate, looking up each row takes half as long again as reading all.
            if len(queue_ids) <= min(QUEUES_LOOKED_UP, count // 2):
                base = "queue_range"
        if selection.outcomes:
            names.append("only_outcomes")
        for column in ("settled", "published"):
            begin, until = (getattr(filters, f"{column}_{side}") for side in ("from", "until"))
            if begin is not None or until is not None:
                names.append(f"only_{column}")
                values[f"{column}_from"] = TIME_MIN if begin is None else begin
                values[f"{column}_until"] = TIME_MAX if until is None else until
        for column in ("urns", "traces"):
            if texts := getattr(filters, column):
                names.append(f"only_{column}")
                values[column] = json.dumps([*texts])
        return base, names, values

    def _ids_by_name(self) -> dict[str, int]:
        rows = self.read_rows(self._statements["queues"])
        return {row["name"]: row["queue_id"] for row in rows}

    def _queue_ids(self, selection: RowSelection) -> tuple[list[int] | None, int]:
        """Return the ids of the selected queues that the caller can use, and the number of queues.

        The ids are None for all queues, and the number is 0 then.
        """
        if not selection.queues and selection.pattern is None and not selection.allowed:
            return None, 0
        ids = self._ids_by_name()
        for name in selection.queues:
            if name not in ids:
                raise RefusedError("unknown_queue", f"there is no queue {name!r}")
        chosen = [
            queue_id
            for name, queue_id in ids.items()
            if (not selection.queues or name in selection.queues)
            and (selection.pattern is None or fnmatchcase(name, selection.pattern))
            and _is_match(name, selection.allowed)
        ]
        return chosen, len(ids)


def _is_match(name: str, globs: Sequence[str]) -> bool:
    return not globs or any(fnmatchcase(name, glob) for glob in globs)


def _clipped(
    selection: RowSelection, bounds: HistoryOffsets, *, is_gap_ok: bool
) -> tuple[int, int]:
    if not 0 <= selection.lo <= selection.hi:
        detail = f"({selection.lo}, {selection.hi}] is invalid; 0 <= lo <= hi is required"
        raise RefusedError("bad_value", detail)
    if selection.lo < bounds.lo and not is_gap_ok:
        detail = f"rows up to {bounds.lo} were removed; the request begins above {selection.lo}"
        raise RefusedError("gap", detail)
    if selection.needs_deleted and selection.lo < bounds.lo_deleted and not is_gap_ok:
        detail = (
            f"rows of deleted messages up to {bounds.lo_deleted} were removed; the request "
            f"begins above {selection.lo}. Request only other outcomes, or accept the gap"
        )
        raise RefusedError("gap", detail)
    if selection.lo > bounds.hi and not is_gap_ok:
        detail = f"the request begins above {selection.lo}, but the last offset is {bounds.hi}"
        raise RefusedError("gap", detail)
    lo = max(selection.lo, bounds.lo)
    return lo, max(lo, min(selection.hi, bounds.hi))


@dataclass(slots=True, frozen=True)
class _RangeReader:
    """Reads the rows of a range that match the given conditions."""

    ranges: HistoryRanges
    number: str  # column that determines the row order
    range: str  # FROM and WHERE clauses
    values: dict[str, Any]
    columns: Sequence[ArrowColumn]
    slices: Sequence[dict[str, int]]  # ranges with at most RANGE_SLICE rows each
    needs_bodies: bool = False  # if set, a damaged body raises an error instead of becoming null

    def counts(self) -> list[int]:
        """Return the number of rows in each slice."""
        text = f"SELECT count(*) AS count {self.range}"
        rows = (self.ranges.read_rows(text, self.values | part)[0] for part in self.slices)
        return [row["count"] for row in rows]

    def batches(self, counts: Sequence[int]) -> Iterator[Any]:
        """Yield the rows, given their ``counts``; slices without any are not read."""
        has_bodies = BODY in self.columns
        columns = (*self.columns, *_CHECKS) if has_bodies else self.columns
        selected = ", ".join(
            f'{self._expression_of(column.name.removeprefix("_"))} AS "{column.name}"'
            for column in columns
        )
        order = self.number if self.columns is not EVENT_COLUMNS else f"{self.number}, e.event_id"
        text = f"SELECT {selected} {self.range} ORDER BY {order}"
        for part, rows in zip(self.slices, counts, strict=True):
            for piece in self._split_slice(part, rows) if rows else ():
                table = self.ranges.read_table(text, self.values | piece, columns)
                batches = map(_with_defined_bits, table.combine_chunks().to_batches())
                yield from map(self._check_bodies, batches) if has_bodies else batches

    def _expression_of(self, name: str) -> str:
        return self.ranges.parts.get(f"column_{name}", f"m.{name}")

    def _check_bodies(self, batch: Any) -> Any:
        """Replace damaged bodies with null; raise StorageError if one is of a claimed message."""
        import pyarrow as pa

        checks = (batch.column(name).to_pylist() for name in (BODY.name, "_seq", "_crc"))
        bodies = [
            body if body is not None and checksum(seq, body) == crc else None
            for body, seq, crc in zip(*checks, strict=True)
        ]
        if self.needs_bodies and None in bodies:
            message_id = batch.column("message_id")[bodies.index(None)].as_py()
            raise StorageError(f"the body of message {message_id} is damaged; delete the message")
        requested = batch.select([column.name for column in self.columns])
        if bodies.count(None) == batch.column(BODY.name).null_count:
            return requested
        at = requested.schema.get_field_index(BODY.name)
        return requested.set_column(at, requested.schema.field(at), pa.array(bodies, pa.binary()))

    def _split_slice(self, part: dict[str, int], rows: int) -> Iterator[dict[str, int]]:
        """Split a slice whose bodies are too large, or events too many, for one statement."""
        if BODY in self.columns:
            size, part_size = "m.size", PART_BYTES
        elif self.columns is EVENT_COLUMNS and rows > RANGE_SLICE // 2:
            size, part_size = "1", RANGE_SLICE // 2
        else:
            yield part
            return
        text = self.ranges.parts["part_ends"].replace("{number}", self.number)
        text = text.replace("{range}", self.range).replace("{size}", size)
        values = self.values | part | {"part_size": part_size}
        lo = part["lo"]
        for row in self.ranges.read_rows(text, values):
            yield {"lo": lo, "hi": row["number"]}
            lo = row["number"]


def boundary_times(settled_from: int | None, settled_until: int | None) -> tuple[int, int]:
    """Return ``at_ms`` of ``boundaries`` for the begin and for the end of a time (Unix ms)."""
    begin = TIME_MIN if settled_from is None else settled_from
    return begin, TIME_MAX if settled_until is None else settled_until + BOUNDARY_MS


def settled_spans(lows: Sequence[int], highs: Sequence[int]) -> list[tuple[int, int]]:
    """Return the ranges (lo, hi] between the boundaries of the begin and the end of a time."""
    return [(low - 1, high - 1) for low, high in zip(lows, highs, strict=True) if low < high]


def hull(spans: Sequence[tuple[int, int]], bounds: HistoryOffsets) -> tuple[int, int]:
    """Return the smallest range (lo, hi] with all spans, or an empty one if there are none."""
    return (spans[0][0], spans[-1][1]) if spans else (bounds.lo, bounds.lo)


def _slices(lo: int, hi: int) -> Iterator[dict[str, int]]:
    for at in range(lo, hi, RANGE_SLICE):
        yield {"lo": at, "hi": min(at + RANGE_SLICE, hi)}
