"""The history, over HTTP or from the database file: its ends, and the rows of a range."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, Protocol
from urllib.parse import urlencode

from phpmq_lite.errors import RefusedError, StorageError
from phpmq_lite.spark.errors import DataLossError, OptionError, PipelineError, ShortReadError
from phpmq_lite.spark.pipeline_client import HistoryBounds, PipelineClient, check_row_count
from phpmq_lite.spark.source_options import HistoryPosition, SourceConnection

if TYPE_CHECKING:
    import pyarrow as pa

BODY: Final = "body"
NAMES_MAX: Final = 1_000  # queues that the broker takes in one request,
NAMES_BYTES: Final = 4_000  # and of them, as its request line is of 8,190 bytes; 4,190 for the rest


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryRequest:
    """Rows of ``(lo, hi]`` of one history, of these columns; ``queues`` empty: all.

    ``takes_gaps``: what retention took is left out instead of refused.
    """

    history_id: str
    lo: int
    hi: int
    columns: tuple[str, ...]
    queues: tuple[str, ...] = ()
    queue_pattern: str | None = None
    outcomes: tuple[str, ...] = ()
    takes_gaps: bool = False

    @property
    def has_body(self) -> bool:
        """Tell whether bodies are asked for."""
        return BODY in self.columns

    @property
    def plain_columns(self) -> tuple[str, ...]:
        """The columns but the body, which is asked for apart; never none, for none means all."""
        return tuple(name for name in self.columns if name != BODY) or ("offset",)


class HistorySource(Protocol):
    """Where a history can be read.

    Raises of all calls:
        DataLossError: rows that were asked for are gone, or this is another history.
        ShortReadError: what came is not all of it.
    """

    def bounds(
        self, reader: str | None = None, position: int | None = None, at_ms: int | None = None
    ) -> HistoryBounds:
        """Give the ends, and the last offset before a time if asked (``PipelineClient.bounds``)."""

    def queues(self) -> list[str]:
        """Give the names of the queues there are."""

    def rows(self, request: HistoryRequest) -> Iterator["pa.RecordBatch"]:
        """Yield rows in the order of offsets; complete only if the iteration ends well."""


def open_history(connection: SourceConnection) -> HistorySource:
    """Give the history that a connection names; nothing is opened yet."""
    return _FileHistory(connection.path) if connection.path else _BrokerHistory(connection)


def history_bounds(
    connection: SourceConnection, reader: str | None = None, position: int | None = None
) -> HistoryBounds:
    """Ask for the ends of the history; see ``PipelineClient.bounds``."""
    return open_history(connection).bounds(reader, position)


def resolve_position(history: HistorySource, ends: HistoryBounds, position: HistoryPosition) -> int:
    """Return the offset ahead of a position: rows above it are at or after the position.

    So it is the ``lo`` of a read that starts there (inclusive) and the ``hi`` of one that ends
    there (exclusive), as with Kafka's source.

    Raises:
        OptionError: the position lies beyond the offset that the next row will have.
    """
    if position.kind == "earliest":
        return ends.lo
    if position.kind == "latest":
        return ends.hi
    if position.kind == "time":
        found = history.bounds(at_ms=position.number).offset
        return ends.lo if found is None else found
    if position.number > ends.hi + 1:
        raise OptionError(
            f"offset {position.number} is beyond the next one, {ends.hi + 1}; the last is {ends.hi}"
        )
    return max(position.number - 1, 0)


class _BrokerHistory:
    """Over HTTP, as Arrow streams."""

    def __init__(self, connection: SourceConnection) -> None:
        self._broker = PipelineClient(connection)

    def bounds(
        self, reader: str | None = None, position: int | None = None, at_ms: int | None = None
    ) -> HistoryBounds:
        return self._broker.bounds(reader, position, at_ms)

    def queues(self) -> list[str]:
        return self._broker.queues()

    def rows(self, request: HistoryRequest) -> Iterator["pa.RecordBatch"]:
        query: list[tuple[str, str | int]] = [("lo", request.lo), ("hi", request.hi)]
        names = [("queue", name) for name in request.queues]
        if len(names) <= NAMES_MAX and len(urlencode(names)) <= NAMES_BYTES:
            return self._asked(request, [*query, *names])
        return self._picked(request, query)

    def _picked(
        self, request: HistoryRequest, query: list[tuple[str, str | int]]
    ) -> Iterator["pa.RecordBatch"]:
        """Ask for the rows of all queues, where the names are too long for a request; pick here.

        The column ``queue`` is there, asked for or not.
        """
        import pyarrow as pa
        from pyarrow import compute

        known = set(self.queues())
        for name in request.queues:  # the broker would refuse it
            if name not in known:
                raise OptionError(f"there is no queue {name!r}, or the token may not see it")
        wanted = pa.array(request.queues, pa.string())
        columns = tuple(dict.fromkeys((*request.columns, "queue")))
        for batch in self._asked(replace(request, columns=columns), query):
            is_wanted = compute.is_in(batch.column("queue"), value_set=wanted)
            yield batch.filter(is_wanted)

    def _asked(
        self, request: HistoryRequest, query: list[tuple[str, str | int]]
    ) -> Iterator["pa.RecordBatch"]:
        query.append(("columns", ",".join(request.plain_columns)))
        if request.queue_pattern is not None:
            query.append(("pattern", request.queue_pattern))
        if request.outcomes:
            query.append(("outcomes", ",".join(request.outcomes)))
        if request.has_body:
            query.append(("body", 1))
        if request.takes_gaps:
            query.append(("gap", "ok"))
        return self._broker.history(query, request.history_id)


class _FileHistory:
    """From the database file, in this process; nobody else's position is noted here."""

    def __init__(self, path: str) -> None:
        self._path = path

    def bounds(
        self,
        reader: str | None = None,
        position: int | None = None,
        at_ms: int | None = None,
    ) -> HistoryBounds:
        from phpmq_lite.storage.arrow import HistoryRanges

        # Python's engine: the caller's process may have the file open by sqlite3 itself.
        with _refusals(), HistoryRanges(self._path, engine="python") as ranges:
            ends = ranges.bounds()
            offset = None if at_ms is None else ranges.offset_at(at_ms)
            return HistoryBounds(ends.history_id, ends.lo, ends.hi, ends.lo_deleted, offset)

    def queues(self) -> list[str]:
        from phpmq_lite.storage.arrow import HistoryRanges

        with _refusals(), HistoryRanges(self._path, engine="python") as ranges:
            return ranges.queues()

    def rows(self, request: HistoryRequest) -> Iterator["pa.RecordBatch"]:
        from phpmq_lite.storage.arrow import HistoryRanges, RowSelection

        selection = RowSelection(
            request.lo,
            request.hi,
            request.queues,
            request.queue_pattern,
            request.outcomes,
            request.plain_columns,
            request.has_body,
            history_id=request.history_id,
        )
        with _refusals(), HistoryRanges(self._path) as ranges:
            rows = ranges.history(selection, is_gap_ok=request.takes_gaps)
            yield from check_row_count(iter(rows), rows.count)


@contextmanager
def _refusals() -> Iterator[None]:
    """Translate what the storage says into what the source says."""
    from phpmq_lite.storage.arrow import RangeError

    try:
        yield
    except RefusedError as error:
        if error.code in ("gap", "other_history"):
            raise DataLossError(str(error)) from error
        raise OptionError(str(error)) from error
    except RangeError as error:
        raise ShortReadError(str(error)) from error
    except StorageError as error:
        raise PipelineError(str(error)) from error
