"""Read the tables ``jobs`` and ``jobs_failed`` of InitPHP Queue 2 from an SQLite database.

Their columns, as created by ``PdoTransport::createSchema``::

    jobs         id queue urn trace_id attempts payload available_at reserved_at created_at
    jobs_failed  id queue urn trace_id attempts payload reason failed_at created_at

``payload`` is the complete envelope, with ``attempts`` and, after a failure, a ``dead_letter``
block; the other columns repeat parts of the envelope. The payload is published byte for byte:

- A job is published to its queue, with the rest of its delay if it has one.
- A failed job is published to ``<queue>.dlq``, with a block built from the columns if it has none.

Times are in the PHP process's local time, without a time zone. The database is not changed.
"""

import hashlib
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, tzinfo
from typing import Any, Final, Literal

from phpmq_lite.client.publishes import KeyedMessage, check_fields
from phpmq_lite.envelopes.dead_letter_record import DeadLetterBlock, build_record, read_block
from phpmq_lite.envelopes.validation import validate
from phpmq_lite.errors import PhpmqError
from phpmq_lite.queue_settings import dead_letter_name

Kind = Literal["jobs", "failed"]

REQUIRED: Final = ("id", "queue", "payload")
OPTIONAL: Final[dict[Kind, tuple[str, ...]]] = {
    "jobs": ("available_at", "reserved_at"),
    "failed": ("reason", "failed_at", "attempts"),
}
RESERVED_S: Final = 90  # the same as InitPHP's retryAfter; older reservations count as abandoned
_PAGE: Final = 500
_REASONS: Final = ("failed", "unknown_urn", "poison")


class InitphpError(PhpmqError):
    """The database cannot be imported; the message names what is missing or invalid."""


@dataclass(slots=True, frozen=True)
class TableMapping:
    """Names of the tables and of renamed columns, such as ``{"payload": "body"}``."""

    jobs: str = "jobs"
    failed: str = "jobs_failed"
    columns: Mapping[str, str] = field(default_factory=dict)  # default name -> actual name
    failed_columns: Mapping[str, str] = field(default_factory=dict)  # exceptions for failed jobs

    def table(self, kind: Kind) -> str:
        return self.jobs if kind == "jobs" else self.failed

    def column(self, kind: Kind, name: str) -> str:
        override = self.failed_columns.get(name) if kind == "failed" else None
        return override or self.columns.get(name, name)


@dataclass(slots=True, frozen=True)
class InitphpRow:
    """A row of either table; columns that the table does not have are None."""

    kind: Kind
    row_id: int | str
    queue: str
    payload: bytes
    available_ms: int | None = None  # Unix time in milliseconds
    reserved_ms: int | None = None
    reason: str | None = None
    failed_ms: int | None = None
    attempts: int | None = None


@dataclass(slots=True, frozen=True)
class PlannedMessage:
    """A row of an InitPHP table and the message to publish for it."""

    row: InitphpRow
    message: KeyedMessage | None  # None if reserved by a PHP worker
    problem: str | None  # why the payload is invalid; None if valid


def read_rows(
    connection: sqlite3.Connection, kind: Kind, layout: TableMapping, zone: tzinfo
) -> Iterator[InitphpRow]:
    """Yield a table's rows by id, reading page by page to avoid long transactions."""
    table = _quote(layout.table(kind))
    names = find_columns(connection, kind, layout)
    selected = [
        f"CAST({_quote(column)} AS BLOB)" if name == "payload" else _quote(column)
        for name, column in names.items()
    ]
    head = f"SELECT {', '.join(selected)} FROM {table}"  # noqa: S608 - quoted names
    key = _quote(names["id"])
    tail = f"ORDER BY {key} LIMIT {_PAGE}"
    rows = connection.execute(f"{head} {tail}").fetchall()
    while rows:
        for values in rows:
            yield _row(kind, dict(zip(names, values, strict=True)), zone)
        last_id = rows[-1][list(names).index("id")]
        rows = connection.execute(f"{head} WHERE {key} > ? {tail}", (last_id,)).fetchall()


def find_columns(
    connection: sqlite3.Connection, kind: Kind, layout: TableMapping
) -> dict[str, str]:
    """Return the actual names of the columns to read by default name, or raise InitphpError."""
    table = layout.table(kind)
    existing = [row[1] for row in connection.execute(f"PRAGMA table_info({_quote(table)})")]
    if not existing:
        tables = "SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite_%'"
        tables_found = ", ".join(name for (name,) in connection.execute(tables)) or "none"
        flags = "--table" if kind == "jobs" else "--failed-table or --no-failed"
        raise InitphpError(f"there is no table {table!r}; found: {tables_found}. Use {flags}")
    columns: dict[str, str] = {}
    for name in (*REQUIRED, *OPTIONAL[kind]):
        column = layout.column(kind, name)
        if column in existing:
            columns[name] = column
        elif name in REQUIRED or column != name:
            raise InitphpError(
                f"table {table!r} has no column {column!r} for {name}; "
                f"found: {', '.join(existing)}. Use --column"
            )
    return columns


def _quote(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _row(kind: Kind, values: dict[str, Any], zone: tzinfo) -> InitphpRow:
    def time_of(name: str) -> int | None:
        try:
            return _parse_time_ms(values.get(name), zone)
        except (ValueError, OverflowError, OSError):
            raise InitphpError(
                f"row {values['id']}: {name} must be a date and time, not {values[name]!r}"
            ) from None

    attempts = values.get("attempts")
    reason = values.get("reason")
    return InitphpRow(
        kind,
        values["id"],
        str(values["queue"]),
        values["payload"] or b"",
        available_ms=time_of("available_at"),
        reserved_ms=time_of("reserved_at"),
        reason=None if reason is None else str(reason),
        failed_ms=time_of("failed_at"),
        attempts=attempts if isinstance(attempts, int) else None,
    )


def _parse_time_ms(value: object, zone: tzinfo) -> int | None:
    if value is None:
        return None
    if isinstance(value, str):
        moment = datetime.fromisoformat(value)
        return round((moment if moment.tzinfo else moment.replace(tzinfo=zone)).timestamp() * 1_000)
    if isinstance(value, int | float):
        return round(value * 1_000)
    raise ValueError(value)


def plan_row(
    row: InitphpRow, now_ms: int, *, source: str, reserved_s: float = RESERVED_S
) -> PlannedMessage:
    """Plan how to publish a row of ``source``, which replaces a missing ``meta.id`` in the key."""
    verdict = validate(row.payload)
    problem = None if verdict.problem is None else verdict.problem.reason
    if row.reserved_ms is not None and now_ms - row.reserved_ms < reserved_s * 1_000:
        return PlannedMessage(row, None, problem)
    meta_id = verdict.index.meta_id if verdict.index is not None else None
    key = _key(row, meta_id or source)
    if row.kind == "failed":
        record = KeyedMessage(dead_letter_name(row.queue), _record(row), 0, key)
        return PlannedMessage(row, record, problem)
    left_ms = max(0, (row.available_ms or 0) - now_ms)
    options = check_fields(0, {"delay_s": left_ms / 1_000})
    message = KeyedMessage(row.queue, row.payload, 0, key, options)
    return PlannedMessage(row, message, problem)


def _key(row: InitphpRow, identity: str) -> bytes:
    digest = hashlib.sha256()
    for part in (row.kind, str(row.row_id), row.queue, identity):
        encoded = part.encode("utf-8", "surrogatepass")
        digest.update(b"%d:" % len(encoded) + encoded)
    digest.update(row.payload)
    return digest.hexdigest().encode()


def _record(row: InitphpRow) -> bytes:
    """Return a failed job's payload; if it has no block, build one from the columns."""
    with suppress(ValueError):
        if read_block(row.payload) is not None:
            return row.payload
    reason = row.reason or "failed"
    return build_record(
        row.payload,
        DeadLetterBlock(
            reason=reason if reason in _REASONS else "poison",
            original_queue=row.queue,
            failed_at=row.failed_ms or 0,
            attempts=row.attempts or 0,
            error=reason,
            lang="php",
            detail=reason,
        ),
    )
