"""Batch and stream readers for the history, and the stream reader for a queue.

Spark creates and pickles readers in several processes, so their constructors send no requests. The
driver calls ``partitions``, the offset methods and ``commit``; executors call ``read``.
"""

import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from platform import node
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import datasource as ds
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from phpmq_lite.errors import DataLossError, OptionError
from phpmq_lite.model import OUTCOMES
from phpmq_lite.spark.columns import arrow_schema, conform_batch, requested_columns
from phpmq_lite.spark.filters import PushedFilters
from phpmq_lite.spark.history import HistoryRequest, HistorySource, open_history, resolve_position
from phpmq_lite.spark.pipeline_client import HistoryBounds, PipelineClient
from phpmq_lite.spark.source_options import DELETED, HistoryOptions, QueueOptions, Remedy
from phpmq_lite.storage.arrow import NO_FILTERS, RowFilters

if TYPE_CHECKING:
    import pyarrow as pa

OFFSETS_PER_PARTITION: Final = 1_000_000
OFFSETS_WORTH_A_TASK: Final = 50_000
BYTES_PER_BATCH: Final = 256 << 20  # of bodies in a batch of a history stream
BYTES_PER_PARTITION: Final = 32 << 20  # of bodies, which each task sorts and buffers
EXPORTS: Final = 2  # number of exports that a broker runs at a time

Offset = dict[str, Any]


@dataclass
class OffsetRange(ds.InputPartition):
    """A range ``(lo, hi]`` of offsets or claims, with the planner's ``history_id`` and ``machine``.

    Empty ``queues``, ``outcomes`` and ``allowed`` (the token's queue globs) mean all. They are part
    of the range, not of the reader, because Spark pickles the reader for the executors before it
    asks for partitions.
    """

    lo: int
    hi: int
    history_id: str
    machine: str
    queues: tuple[str, ...] = ()
    outcomes: tuple[str, ...] = ()
    allowed: tuple[str, ...] = ()
    filters: RowFilters = NO_FILTERS


def cut_range(
    offsets: OffsetRange, partitions: int | None, cuts: Iterable[int] = ()
) -> Sequence[OffsetRange]:
    """Split a range into non-empty ranges of similar length, in order, and after each of ``cuts``.

    If ``partitions`` is None, a range worth splitting is cut in two, because a broker runs two
    exports at a time, or into more if the parts would be long.
    """
    lo, span = offsets.lo, offsets.hi - offsets.lo
    if span <= 0:
        return []
    if partitions is None:
        tasks = min(EXPORTS, -(-span // OFFSETS_WORTH_A_TASK))
        partitions = max(tasks, -(-span // OFFSETS_PER_PARTITION))
    count = min(partitions, span)
    edges = sorted({*(lo + span * n // count for n in range(count + 1)), *cuts})
    return [replace(offsets, lo=lo, hi=hi) for lo, hi in pairwise(edges)]


def _range_request(
    options: HistoryOptions, part: OffsetRange, columns: Sequence[str]
) -> HistoryRequest:
    return HistoryRequest(
        history_id=part.history_id,
        lo=part.lo,
        hi=part.hi,
        columns=requested_columns(columns),
        queues=part.queues,
        queue_pattern=options.queue_pattern,
        outcomes=part.outcomes,
        allowed=part.allowed,
        filters=part.filters,
        has_events=options.has_events,
        allows_gaps=not options.fails_on_data_loss,
    )


def byte_cuts(
    history: HistorySource, options: HistoryOptions, offsets: OffsetRange, limit: int
) -> Iterator[int]:
    """Yield the offsets after which to cut, so that no part but a single body has more bytes."""
    size, last = 0, offsets.lo
    step = max(1, offsets.hi - offsets.lo) if offsets.filters.traces else OFFSETS_WORTH_A_TASK
    for lo in range(offsets.lo, offsets.hi, step):
        part = replace(offsets, lo=lo, hi=min(lo + step, offsets.hi))
        request = _range_request(options, part, ("offset", "size"))
        for batch in history.rows(replace(request, allows_gaps=True)):
            columns = (batch.column(name).to_pylist() for name in ("offset", "size"))
            for offset, row_size in zip(*columns, strict=True):
                if size and size + row_size > limit:
                    yield last
                    size = 0
                size, last = size + row_size, offset


def _plan(
    history: HistorySource, options: HistoryOptions, offsets: OffsetRange
) -> Sequence[OffsetRange]:
    cuts: Iterable[int] = ()
    if options.reads_bodies:
        cuts = byte_cuts(history, options, offsets, BYTES_PER_PARTITION)
    elif options.has_events:  # of which the broker sends a limited range
        cuts = range(offsets.lo, offsets.hi, OFFSETS_PER_PARTITION)
    partitions = options.partitions
    if partitions is None and offsets.filters.traces:
        partitions = 1  # few rows, which the broker looks up for each range
    return cut_range(offsets, partitions, cuts)


def _read_history(
    options: HistoryOptions, schema: StructType, part: OffsetRange
) -> Iterator["pa.RecordBatch"]:
    if options.connection.path is not None and part.machine != node():
        raise OptionError(
            f"path requires a local master: this executor is on {node()}, but the database is on"
            f" {part.machine}; {Remedy.SET_URL} which every executor can reach"
        )
    request = _range_request(options, part, schema.names)
    target = arrow_schema(schema)
    constants = {"history_id": part.history_id, "broker": options.broker or part.history_id}
    try:
        for batch in open_history(options.connection).rows(request):
            yield conform_batch(batch, target, constants)
    except DataLossError:  # only raised before the first row; after it, ShortReadError is raised
        if options.fails_on_data_loss:
            raise


def _check_gap(lo: int, bounds: HistoryBounds, options: HistoryOptions) -> int:
    """Return the offset to read from, skipping a gap if gaps are allowed.

    Retention removes rows of deleted messages separately, before other rows. If only those rows are
    gone, the remaining rows are still read. Raises DataLossError if retention removed requested
    rows above ``lo``.
    """
    if options.fails_on_data_loss and lo < bounds.lo:
        raise DataLossError(
            f"rows from offset {lo + 1} were requested, but retention removed all rows up to"
            f" {bounds.lo}; set {Remedy.ACCEPT_LOSS} to continue with the remaining rows"
        )
    needs_deleted = not options.outcomes or DELETED in options.outcomes
    if options.fails_on_data_loss and needs_deleted and lo < bounds.lo_deleted:
        raise DataLossError(
            f"rows from offset {lo + 1} were requested, but retention removed rows of deleted"
            f" messages up to {bounds.lo_deleted}; set {Remedy.ACCEPT_LOSS} to continue without"
            f" them, {Remedy.SELECT_UNDELETED}"
        )
    return max(lo, bounds.lo)


class HistoryReader(ds.DataSourceReader):
    """Batch reader for the history; ``partitions`` fixes the range to read."""

    def __init__(self, options: HistoryOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._pushed = PushedFilters()

    def partitions(self) -> Sequence[ds.InputPartition]:
        """Clamp the requested range to the history's bounds, and split it."""
        options, pushed = self._options, self._pushed
        outcomes = pushed.outcomes & set(options.outcomes or OUTCOMES)
        if pushed.is_empty or not outcomes:
            return []
        history = open_history(options.connection)
        bounds = history.bounds(filters=pushed.rows)
        lo = max(resolve_position(history, bounds, options.starting), pushed.lo, bounds.settled_lo)
        hi = min(resolve_position(history, bounds, options.ending), pushed.hi, bounds.settled_hi)
        queues = options.queues
        if pushed.queues is not None:
            names = pushed.queues & set(history.queues())
            queues = tuple(sorted(names & set(queues) if queues else names))
            if not queues:
                return []
        chosen = () if outcomes == set(OUTCOMES) else tuple(sorted(outcomes))
        lo = _check_gap(lo, bounds, replace(options, outcomes=chosen))
        offsets = OffsetRange(lo, hi, bounds.history_id, node(), queues, chosen, bounds.allowed)
        return _plan(history, options, replace(offsets, filters=pushed.rows))

    def read(self, partition: ds.InputPartition) -> Iterator["pa.RecordBatch"]:
        """Yield the rows of a range; without ranges, Spark calls this once and gets no rows."""
        if isinstance(partition, OffsetRange):
            yield from _read_history(self._options, self._schema, partition)


class FilteringHistoryReader(HistoryReader):
    """Batch reader that has the broker apply filters.

    This is a separate class because defining ``pushFilters`` is an error if the session does not
    push filters.
    """

    def pushFilters(self, filters: list[ds.Filter]) -> Iterable[ds.Filter]:  # noqa: N802 - Spark's name
        """Apply the filters that the broker tests exactly; return all others to Spark."""
        return [condition for condition in filters if not self._pushed.push(condition)]


def has_pushed_filters() -> bool:
    """Return whether Spark plans this read with filters to push.

    It does so in a process of its own, which alone loads this module, and only if the session's
    ``spark.sql.python.filterPushdown.enabled`` is true. Spark passes the setting to no one.
    """
    return "pyspark.sql.worker.data_source_pushdown_filters" in sys.modules


class HistoryStreamReader(ds.DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Stream reader for the history.

    Offsets are ``{"history": id, "offset": last_read, "selection": {…}}``. The selection contains
    the token's queue globs and the options that select rows: with others, the query would silently
    miss the rows that it has passed.
    """

    def __init__(self, options: HistoryOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._history = open_history(options.connection)
        self._target: int | None = None  # last offset to read if the trigger is availableNow

    def initialOffset(self) -> Offset:  # noqa: N802 - Spark's names, here and below
        """Return the offset at which a new query starts; Spark calls this twice."""
        bounds = self._history.bounds()
        start = resolve_position(self._history, bounds, self._options.starting)
        return self._offset(bounds, _check_gap(start, bounds, self._options))

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Fix the end of this run; the next run reads messages that are settled later."""
        self._target = self._history.bounds().hi

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return the maximum number of offsets per batch."""
        limit = self._options.offsets_per_trigger
        return ReadAllAvailable() if limit is None else ReadMaxRows(limit)

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: N802
        """Return the end of the next batch, and report the processed offset to the broker."""
        options = self._options
        bounds = self._history.bounds(options.reader, start["offset"])
        self._check_selection(start, bounds)
        lo = self._lo(start, bounds)
        hi = bounds.hi if self._target is None else min(bounds.hi, self._target)
        if isinstance(limit, ReadMaxRows):
            hi = min(hi, lo + limit.max_rows)
        if hi <= lo and start["history"] == bounds.history_id:
            return start
        if options.reads_bodies:
            offsets = self._range(lo, hi, bounds.history_id, bounds.allowed)
            hi = next(byte_cuts(self._history, options, offsets, BYTES_PER_BATCH), hi)
        return self._offset(bounds, max(lo, hi))

    def reportLatestOffset(self) -> Offset:  # noqa: N802
        """Return the last available offset for the query's progress report."""
        bounds = self._history.bounds()
        return self._offset(bounds, bounds.hi)

    def partitions(self, start: Offset, end: Offset) -> Sequence[ds.InputPartition]:
        """Split a batch's offsets into ranges; repeated planning produces the same ranges."""
        lo = start["offset"]
        if start["history"] != end["history"]:  # a new history was accepted; read all of it
            lo = 0
        bounds = self._history.bounds()
        self._check_selection(end, bounds)
        offsets = self._range(lo, end["offset"], end["history"], bounds.allowed)
        return _plan(self._history, self._options, offsets)

    def read(self, partition: ds.InputPartition) -> Iterator["pa.RecordBatch"]:
        """Yield the rows of one range."""
        if isinstance(partition, OffsetRange):
            yield from _read_history(self._options, self._schema, partition)

    def commit(self, end: Offset) -> None:
        """Report the processed offset to the broker."""
        if self._options.reader is not None:
            self._history.bounds(self._options.reader, end["offset"])

    def _offset(self, bounds: HistoryBounds, offset: int) -> Offset:
        selection = self._options.selection(bounds.allowed)
        return {"history": bounds.history_id, "offset": offset, "selection": selection}

    def _range(self, lo: int, hi: int, history_id: str, allowed: tuple[str, ...]) -> OffsetRange:
        options = self._options
        return OffsetRange(lo, hi, history_id, node(), options.queues, options.outcomes, allowed)

    def _check_selection(self, offset: Offset, bounds: HistoryBounds) -> None:
        selection = self._options.selection(bounds.allowed)
        if offset["selection"] != selection:
            raise OptionError(
                f"the checkpoint was created with the selection {offset['selection']}, not"
                f" {selection}, and would miss rows. Use the same selection and a token with the"
                f" same queue globs (allowed), {Remedy.USE_NEW_CHECKPOINT}"
            )

    def _lo(self, start: Offset, bounds: HistoryBounds) -> int:
        if start["history"] == bounds.history_id:
            return _check_gap(start["offset"], bounds, self._options)
        if self._options.fails_on_data_loss:
            raise DataLossError(
                f"the broker's history is {bounds.history_id}, but this query has read"
                f" {start['history']} up to {start['offset']}: the broker was restored or replaced."
                f" Start {Remedy.BEGIN_NEW_CHECKPOINT}, or set {Remedy.ACCEPT_LOSS} to read"
                " the new history from its beginning"
            )
        return bounds.lo


class QueueStreamReader(ds.DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Stream reader that consumes a queue; offsets are ``{"history", "subscription", "claim": n}``.

    Claims are numbered without gaps and stored by the broker, so a batch can be planned again
    identically. A subscription supports only one query.
    """

    def __init__(self, options: QueueOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._broker = PipelineClient(options.connection)
        self._target: int | None = None  # last claim to read if the trigger is availableNow

    def initialOffset(self) -> Offset:  # noqa: N802 - Spark's names, here and below
        """Return the last acknowledged claim, so that unacknowledged claims are read again."""
        return self._offset(self._broker.claimed(self._options.subscription).acked)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Set the end of this run, which reads only messages that are now claimed or ready."""
        claimed = self._broker.claimed(self._options.subscription).hi
        self._target = claimed + self._broker.ready(self._options.queue)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return the maximum number of messages per batch."""
        return ReadMaxRows(self._options.messages_per_trigger)

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: N802
        """Claim messages for the next batch, or reuse existing claims above ``start``."""
        self._check(start)
        options, after = self._options, int(start["claim"])
        count = limit.max_rows if isinstance(limit, ReadMaxRows) else options.messages_per_trigger
        if self._target is not None:
            count = min(count, self._target - after)
        if count <= 0:
            return start
        hi = self._broker.claim(
            options.subscription, options.queue, count, options.bytes_per_trigger, after
        )
        if hi < after:
            raise DataLossError(
                f"subscription {options.subscription!r} is at claim {hi}, but this query is at"
                f" {after}; start {Remedy.BEGIN_NEW_CHECKPOINT}"
            )
        return {**start, "claim": min(hi, after + count)}

    def partitions(self, start: Offset, end: Offset) -> Sequence[ds.InputPartition]:
        """Split a batch's claims into ranges; the same claims always produce the same ranges."""
        self._check(end)
        claims = OffsetRange(start["claim"], end["claim"], end["history"], node())
        return cut_range(claims, self._options.partitions)

    def read(self, partition: ds.InputPartition) -> Iterator["pa.RecordBatch"]:
        """Yield the messages of a range of claims, or raise DataLossError if some were released."""
        if not isinstance(partition, OffsetRange):
            return
        target = arrow_schema(self._schema)
        rows = 0
        subscription, expected = self._options.subscription, partition.hi - partition.lo
        try:
            for batch in self._broker.claims(subscription, partition.lo, partition.hi):
                rows += batch.num_rows
                yield conform_batch(batch, target)
        except DataLossError:
            if self._options.fails_on_data_loss:
                raise
            return
        if rows != expected and self._options.fails_on_data_loss:
            raise DataLossError(
                f"{expected - rows} of the claims {partition.lo + 1} to {partition.hi} held by"
                f" {subscription!r} were released; their messages will be claimed again."
                f" Set {Remedy.ACCEPT_LOSS} to continue"
            )

    def commit(self, end: Offset) -> None:
        """Acknowledge a written batch; Spark calls this while it plans the next batch."""
        self._broker.acknowledge(self._options.subscription, int(end["claim"]))

    def _offset(self, claim: int) -> Offset:
        history_id = self._broker.bounds().history_id
        subscription = self._options.subscription
        return {"history": history_id, "subscription": subscription, "claim": claim}

    def _check(self, offset: Offset) -> None:
        if offset["subscription"] != self._options.subscription:
            raise OptionError(
                f"the checkpoint belongs to subscription {offset['subscription']!r},"
                f" but the option says {self._options.subscription!r}"
            )
        history_id = self._broker.bounds().history_id
        if offset["history"] != history_id:
            raise DataLossError(
                f"the broker's history is {history_id}, but the checkpoint belongs to history"
                f" {offset['history']}. The broker was restored or replaced; start"
                f" {Remedy.BEGIN_NEW_CHECKPOINT}"
            )
