"""Sizes of the database, the history and the audit log."""

from dataclasses import dataclass

from phpmq_lite.storage.read.read_pool import Readers


@dataclass(slots=True, frozen=True)
class DatabaseSize:
    """Sizes of the stored data; times are in Unix ms, or None if there are no rows."""

    pages: int
    pages_free: int
    page_bytes: int
    schema: int  # number of the newest applied migration
    history_rows: int  # number of settled messages, including deleted ones
    history_bytes: int
    deleted_rows: int
    deleted_bytes: int
    history_oldest_at: int | None
    history_offset: int  # highest offset ever assigned
    removed: int  # number of rows removed by retention since the database was created
    audit_rows: int
    audit_oldest_at: int | None
    last_seen_ms: int | None  # the most recently stored time of the steady clock, in ms

    @property
    def deleted_share(self) -> float:
        """Fraction of history rows that belong to deleted messages."""
        return self.deleted_rows / self.history_rows if self.history_rows else 0.0


async def measure_database(readers: Readers) -> DatabaseSize:
    """Compute the sizes from counters, the first and last rows, and the rows not yet counted.

    Raises:
        StorageError: the database cannot be read.
    """
    counters: dict[str, int] = dict(await readers.read("database_size", "counters"))
    pages = (await readers.read("database_size", "pages"))[0]
    oldest_at, offset = (await readers.read("database_size", "history"))[0]
    audit_at, audit_rows = (await readers.read("database_size", "audit"))[0]
    (schema,) = (await readers.read("database_size", "schema"))[0]
    rows, size, deleted_rows, deleted_bytes = (await readers.read("database_size", "totals"))[0]
    return DatabaseSize(
        pages=pages[0],
        pages_free=pages[1],
        page_bytes=pages[2],
        schema=schema,
        history_rows=rows + deleted_rows,
        history_bytes=size + deleted_bytes,
        deleted_rows=deleted_rows,
        deleted_bytes=deleted_bytes,
        history_oldest_at=oldest_at,
        history_offset=offset or 0,
        removed=counters.get("retention_removed", 0),
        audit_rows=audit_rows,
        audit_oldest_at=audit_at,
        last_seen_ms=counters.get("last_seen_ms"),
    )
