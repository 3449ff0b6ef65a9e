"""Reads the history's bounds and rows, either over HTTP or from the database file."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final
from urllib.parse import urlencode

from phpmq_lite.errors import (
    DataLossError,
    OptionError,
    PipelineError,
    RefusedError,
    ShortReadError,
    StorageError,
)
from phpmq_lite.spark.pipeline_client import HistoryBounds, PipelineClient, check_row_count
from phpmq_lite.spark.source_options import HistoryPosition, SourceConnection
from phpmq_lite.storage.arrow import NO_FILTERS, RowFilters

if TYPE_CHECKING:
    import pyarrow as pa

    from phpmq_lite.storage.arrow import ArrowDriver, HistoryRanges

BODY: Final = "body"
NAMES_MAX: Final = 1_000  # maximum number of queue names per request
NAMES_BYTES: Final = 4_000  # maximum bytes of queue names; a request line is limited to 8,190


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryRequest:
    """A request for rows ``(lo, hi]`` of one history; empty ``queues`` means all queues.

    ``allows_gaps`` skips rows removed by retention instead of failing. ``allowed`` are the queue
    globs to which the token must be limited.
    """

    history_id: str
    lo: int
    hi: int
    columns: tuple[str, ...]
    queues: tuple[str, ...] = ()
    queue_pattern: str | None = None
    outcomes: tuple[str, ...] = ()
    allowed: tuple[str, ...] = ()
    filters: RowFilters = NO_FILTERS
    has_events: bool = False  # whether rows are exceptional steps of the messages
    allows_gaps: bool = False

    @property
    def has_body(self) -> bool:
        """Return True if message bodies are requested."""
        return BODY in self.columns

    @property
    def plain_columns(self) -> tuple[str, ...]:
        """The columns except the body; never empty, because an empty list means all columns."""
        return tuple(name for name in self.columns if name != BODY) or ("offset",)


def open_history(connection: SourceConnection) -> "HistorySource":
    """Return the source of history rows for a connection, without connecting yet."""
    return _FileHistory(connection.path) if connection.path else _BrokerHistory(connection)


def resolve_position(
    history: "HistorySource", bounds: HistoryBounds, position: HistoryPosition
) -> int:
    """Return the last offset before a position; raise OptionError if it is in the future.

    Use the result as ``lo`` of a read that starts at the position (inclusive), or as ``hi`` of a
    read that ends there (exclusive), as in Kafka's source.
    """
    if position.kind == "earliest":
        return bounds.lo
    if position.kind == "latest":
        return bounds.hi
    if position.kind == "time":
        offset = history.bounds(at_ms=position.number).offset
        return bounds.lo if offset is None else offset
    if position.number > bounds.hi + 1:
        raise OptionError(f"offset {position.number} is beyond the next offset {bounds.hi + 1}")
    return max(position.number - 1, 0)


class _BrokerHistory(PipelineClient):
    def rows(self, request: HistoryRequest) -> Iterator["pa.RecordBatch"]:
        query: list[tuple[str, str | int]] = [("lo", request.lo), ("hi", request.hi)]
        names = [("queue", name) for name in request.queues]
        if len(names) <= NAMES_MAX and len(urlencode(names)) <= NAMES_BYTES:
            return self._to_query(request, [*query, *names])
        return self._filtered_rows(request, query)

    def _filtered_rows(
        self, request: HistoryRequest, query: list[tuple[str, str | int]]
    ) -> Iterator["pa.RecordBatch"]:
        """Request the rows of all queues, and keep only those of the requested queues.

        The column ``queue`` is included even if it was not requested.
        """
        import pyarrow as pa
        from pyarrow import compute

        readable = set(self.queues())
        for name in request.queues:  # reject unknown names, just as the broker would
            if name not in readable:
                raise OptionError(f"queue {name!r} does not exist, or the token cannot read it")
        requested = pa.array(request.queues, pa.string())
        columns = tuple(dict.fromkeys((*request.columns, "queue")))
        for batch in self._to_query(replace(request, columns=columns), query):
            is_requested = compute.is_in(batch.column("queue"), value_set=requested)
            yield batch.filter(is_requested)

    def _to_query(
        self, request: HistoryRequest, query: list[tuple[str, str | int]]
    ) -> Iterator["pa.RecordBatch"]:
        # The client continues after the last offset if the connection breaks.
        if not request.has_events:
            columns = dict.fromkeys(("offset", *request.plain_columns))
            query.append(("columns", ",".join(columns)))
        optional: dict[str, str | int | None] = {
            "pattern": request.queue_pattern,
            "outcomes": ",".join(request.outcomes),
            "body": int(request.has_body),
            "gap": "ok" if request.allows_gaps else None,
        }
        query += [(name, value) for name, value in optional.items() if value]
        return self.history(
            query, request.history_id, request.allowed, request.filters, request.has_events
        )


class _FileHistory:
    """History read from the database file in this process; reader positions are not recorded.

    ``rows`` yields in offset order; if the iteration ends with an error, rows are missing.
    """

    def __init__(self, path: str) -> None:
        self._path = path

    @contextmanager
    def _open(self, driver: "ArrowDriver") -> Iterator["HistoryRanges"]:
        """Open the file, and translate storage errors into errors of the data source."""
        from phpmq_lite.storage.arrow import HistoryRanges, RangeError

        try:
            with HistoryRanges(self._path, driver=driver) as ranges:
                yield ranges
        except RefusedError as error:
            if error.code in ("gap", "other_history"):
                raise DataLossError(str(error)) from error
            raise OptionError(str(error)) from error
        except RangeError as error:
            raise ShortReadError(str(error)) from error
        except StorageError as error:
            raise PipelineError(str(error)) from error

    def bounds(
        self,
        reader: str | None = None,
        position: int | None = None,
        at_ms: int | None = None,
        filters: RowFilters = NO_FILTERS,
    ) -> HistoryBounds:
        # Use Python's SQLite library, because this process may have the file open with sqlite3.
        with self._open("python") as ranges:
            bounds = ranges.bounds()
            offset = None if at_ms is None else ranges.offset_at(at_ms)
            answer = HistoryBounds(
                bounds.history_id, bounds.lo, bounds.hi, bounds.lo_deleted, offset
            )
            begin, until = filters.settled_from, filters.settled_until
            if begin is None and until is None:
                return answer
            settled_lo, settled_hi = ranges.settled_range(begin, until)
            return replace(answer, settled_lo=settled_lo, settled_hi=settled_hi)

    def queues(self) -> list[str]:
        with self._open("python") as ranges:
            return ranges.queues()

    def rows(self, request: HistoryRequest) -> Iterator["pa.RecordBatch"]:
        from phpmq_lite.storage.arrow import RowSelection

        selection = RowSelection(
            request.lo,
            request.hi,
            request.queues,
            request.queue_pattern,
            request.outcomes,
            request.plain_columns,
            request.has_body,
            history_id=request.history_id,
            filters=request.filters,
        )
        with self._open("auto") as ranges:
            read = ranges.events if request.has_events else ranges.history
            rows = read(selection, is_gap_ok=request.allows_gaps)
            yield from check_row_count(iter(rows), rows.count)


HistorySource = _BrokerHistory | _FileHistory
