"""Readers of the history, batch and stream, and of a queue: what Spark plans and executes.

Spark makes them in several processes and pickles them, so making one asks nobody anything.
Driver: ``partitions``, offsets, ``commit``; executors: ``read``.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from platform import node
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import (
    DataSourceReader,
    DataSourceStreamReader,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
)
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from phpmq_lite.spark.columns import arrow_schema, conform_batch
from phpmq_lite.spark.errors import DataLossError, OptionError
from phpmq_lite.spark.history import HistoryRequest, open_history, resolve_position
from phpmq_lite.spark.pipeline_client import HistoryBounds, PipelineClient
from phpmq_lite.spark.source_options import DELETED, OUTCOMES, HistoryOptions, QueueOptions

if TYPE_CHECKING:
    import pyarrow as pa

OFFSETS_PER_PARTITION: Final = 1_000_000
OFFSETS_WORTH_A_TASK: Final = 50_000
EXPORTS: Final = 2  # that a broker runs at a time

Offset = dict[str, Any]


@dataclass
class OffsetRange(InputPartition):
    """Offsets or claims ``(lo, hi]``; ``history_id`` and ``machine`` are the planner's.

    ``queues``, ``outcomes``: which of them; empty means all.  They travel here and not in the
    reader, which Spark has pickled for the executors before it asks for partitions.
    """

    lo: int
    hi: int
    history_id: str
    machine: str
    queues: tuple[str, ...] = ()
    outcomes: tuple[str, ...] = ()


def cut_range(lo: int, hi: int, partitions: int | None) -> list[tuple[int, int]]:
    """Cut ``(lo, hi]`` into ranges of about the same length, in order, none of them empty.

    None: two where that is worth it, as a broker exports two at a time; more where they are long.
    """
    span = hi - lo
    if span <= 0:
        return []
    if partitions is None:
        few = min(EXPORTS, -(-span // OFFSETS_WORTH_A_TASK))
        partitions = max(few, -(-span // OFFSETS_PER_PARTITION))
    count = min(partitions, span)
    edges = [lo + span * n // count for n in range(count + 1)]
    return list(pairwise(edges))


def _ranges(
    lo: int,
    hi: int,
    partitions: int | None,
    history_id: str,
    queues: tuple[str, ...] = (),
    outcomes: tuple[str, ...] = (),
) -> list[InputPartition]:
    return [
        OffsetRange(*piece, history_id, node(), queues, outcomes)
        for piece in cut_range(lo, hi, partitions)
    ]


def _read_history(
    options: HistoryOptions, schema: StructType, part: OffsetRange
) -> Iterator["pa.RecordBatch"]:
    if options.connection.path is not None and part.machine != node():
        raise OptionError(
            f"path is for a local master: this executor is on {node()}, the database on"
            f" {part.machine}; give url, which every executor can reach"
        )
    request = HistoryRequest(
        history_id=part.history_id,
        lo=part.lo,
        hi=part.hi,
        columns=tuple(schema.names),
        queues=part.queues,
        queue_pattern=options.queue_pattern,
        outcomes=part.outcomes,
        takes_gaps=not options.fails_on_data_loss,
    )
    wanted = arrow_schema(schema)
    try:
        for batch in open_history(options.connection).rows(request):
            yield conform_batch(batch, wanted)
    except DataLossError:  # ahead of the first row: a range that broke later is a short read
        if options.fails_on_data_loss:
            raise


def _check_gap(lo: int, ends: HistoryBounds, options: HistoryOptions) -> int:
    """Return where reading starts; past the gap, if that is allowed.

    Retention takes rows of deleted messages on their own, ahead of the others: where only those
    are gone nothing is passed over, for the other rows are still there.

    Raises:
        DataLossError: retention took rows above ``lo`` that the reader asked for.
    """
    if options.fails_on_data_loss and lo < ends.lo:
        raise DataLossError(
            f"rows from offset {lo + 1} on were asked for, retention took all up to {ends.lo};"
            " set failOnDataLoss to false to go on with what is left"
        )
    needs_deleted = not options.outcomes or DELETED in options.outcomes
    if options.fails_on_data_loss and needs_deleted and lo < ends.lo_deleted:
        raise DataLossError(
            f"rows from offset {lo + 1} on were asked for, retention took those of deleted messages"
            f" up to {ends.lo_deleted}; set failOnDataLoss to false to go on with what is left, or"
            f" outcomes to {','.join(name for name in OUTCOMES if name != DELETED)}"
        )
    return max(lo, ends.lo)


class HistoryReader(DataSourceReader):
    """A batch read of the history; ``partitions`` fixes the range, so it is read once only."""

    def __init__(self, options: HistoryOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._least = 0  # of pushed filters: lo is at least this
        self._most = 1 << 62
        self._only: frozenset[str] | None = None
        self._outcomes: frozenset[str] = frozenset(options.outcomes or OUTCOMES)

    def partitions(self) -> Sequence[InputPartition]:
        """Ask for the ends of the history and cut the range."""
        options = self._options
        history = open_history(options.connection)
        ends = history.bounds()
        lo = max(resolve_position(history, ends, options.starting), self._least)
        hi = min(resolve_position(history, ends, options.ending), self._most)
        queues = options.queues
        if self._only is not None:
            queues = self._narrowed(history.queues())
            if not queues:
                return []
        if not self._outcomes:
            return []
        outcomes = tuple(sorted(self._outcomes)) if len(self._outcomes) < len(OUTCOMES) else ()
        lo = _check_gap(lo, ends, replace(options, outcomes=outcomes))
        return _ranges(lo, hi, options.partitions, ends.history_id, queues, outcomes)

    def _narrowed(self, known: list[str]) -> tuple[str, ...]:
        """Keep the queues that option and filter allow; a filter may name one that is nowhere."""
        only = (self._only or frozenset()) & set(known)
        if self._options.queues:
            only &= set(self._options.queues)
        return tuple(sorted(only))

    def read(self, partition: InputPartition) -> Iterator["pa.RecordBatch"]:
        """Yield the rows of one range; without ranges Spark asks once, and there is nothing."""
        if isinstance(partition, OffsetRange):
            yield from _read_history(self._options, self._schema, partition)


class FilteringHistoryReader(HistoryReader):
    """Takes filters on ``offset``, ``queue`` and ``outcome``; Spark keeps the others.

    A class of its own: where the session does not push filters, having the method is an error.
    """

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 - Spark's name
        """Take what narrows the range or the queues; return the rest."""
        return [each for each in filters if not self._take(each)]

    def _take(self, condition: Filter) -> bool:
        match condition:
            case GreaterThan(("offset",), int(value)):
                self._least = max(self._least, value)
            case GreaterThanOrEqual(("offset",), int(value)):
                self._least = max(self._least, value - 1)
            case LessThan(("offset",), int(value)):
                self._most = min(self._most, value - 1)
            case LessThanOrEqual(("offset",), int(value)):
                self._most = min(self._most, value)
            case EqualTo(("offset",), int(value)):
                self._least = max(self._least, value - 1)
                self._most = min(self._most, value)
            case EqualTo(("queue",), str(name)):
                self._keep(frozenset([name]))
            case In(("queue",), names) if all(isinstance(name, str) for name in names):
                self._keep(frozenset(names))
            case EqualTo(("outcome",), str(name)):
                self._outcomes &= {name}
            case In(("outcome",), names) if all(isinstance(name, str) for name in names):
                self._outcomes &= set(names)
            case IsNotNull(("offset",)) | IsNotNull(("queue",)) | IsNotNull(("outcome",)):
                pass  # they never are
            case _:
                return False
        return True

    def _keep(self, names: frozenset[str]) -> None:
        self._only = names if self._only is None else self._only & names


class HistoryStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Follows the history.  Offsets: ``{"history": id, "offset": n}``, all up to n is done."""

    def __init__(self, options: HistoryOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._history = open_history(options.connection)
        self._target: int | None = None  # of availableNow: not beyond this

    def initialOffset(self) -> Offset:  # noqa: N802 - Spark's names, here and below
        """Say where a new query starts; Spark calls this twice."""
        ends = self._history.bounds()
        start = resolve_position(self._history, ends, self._options.starting)
        return {"history": ends.history_id, "offset": _check_gap(start, ends, self._options)}

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Fix the end: what settles from now on is for the next run."""
        self._target = self._history.bounds().hi

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Give the limit of one batch, in offsets."""
        most = self._options.offsets_per_trigger
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: N802
        """Say how far the next batch goes; also notes at the broker what is done."""
        ends = self._history.bounds(self._options.reader, self._done(start))
        lo = self._lo(start, ends)
        hi = ends.hi if self._target is None else min(ends.hi, self._target)
        if isinstance(limit, ReadMaxRows):
            hi = min(hi, lo + limit.max_rows)
        if hi <= lo and start["history"] == ends.history_id:
            return start
        return {"history": ends.history_id, "offset": max(lo, hi)}

    def reportLatestOffset(self) -> Offset:  # noqa: N802
        """Say what there is, for the progress of the query."""
        ends = self._history.bounds()
        return {"history": ends.history_id, "offset": ends.hi}

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        """Cut the offsets of a batch; the same when it is planned again."""
        lo = start["offset"]
        if start["history"] != end["history"]:  # allowed by latestOffset, so from the first on
            lo = 0
        options = self._options
        return _ranges(
            lo,
            end["offset"],
            options.partitions,
            end["history"],
            options.queues,
            options.outcomes,
        )

    def read(self, partition: InputPartition) -> Iterator["pa.RecordBatch"]:
        """Yield the rows of one range."""
        if isinstance(partition, OffsetRange):
            yield from _read_history(self._options, self._schema, partition)

    def commit(self, end: Offset) -> None:
        """Note at the broker how far this reader is."""
        if self._options.reader is not None:
            self._history.bounds(self._options.reader, end["offset"])

    def _done(self, start: Offset) -> int | None:
        return start["offset"] if self._options.reader is not None else None

    def _lo(self, start: Offset, ends: HistoryBounds) -> int:
        if start["history"] == ends.history_id:
            return _check_gap(start["offset"], ends, self._options)
        if self._options.fails_on_data_loss:
            raise DataLossError(
                f"the broker's history is {ends.history_id} now, this query read"
                f" {start['history']} up to {start['offset']}: the broker was restored or is"
                " another one.  Start a new checkpoint, or set failOnDataLoss to false to read"
                " the new history from its beginning"
            )
        return ends.lo


class QueueStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Consumes a queue.  Offsets: ``{"history", "subscription", "claim": n}``.

    Claims are numbered without gaps and stored at the broker, so a batch is planned again as it
    was.  One query per subscription.
    """

    def __init__(self, options: QueueOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._broker = PipelineClient(options.connection)
        self._target: int | None = None  # of availableNow: claims beyond are for the next run

    def initialOffset(self) -> Offset:  # noqa: N802 - Spark's names, here and below
        """Start behind what is acknowledged; claims that nobody acknowledged come again."""
        return self._offset(self._broker.claimed(self._options.subscription).acked)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Fix how many messages this run takes: those claimed and those ready now."""
        claimed = self._broker.claimed(self._options.subscription).hi
        self._target = claimed + self._broker.ready(self._options.queue)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Give the limit of one batch, in messages."""
        return ReadMaxRows(self._options.messages_per_trigger)

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: N802
        """Claim messages for the next batch, or find those that are claimed above ``start``."""
        self._check(start)
        options, after = self._options, int(start["claim"])
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else options.messages_per_trigger
        if self._target is not None:
            most = min(most, self._target - after)
        if most <= 0:
            return start
        hi = self._broker.claim(
            options.subscription, options.queue, most, options.bytes_per_trigger, after
        )
        if hi < after:
            raise DataLossError(
                f"subscription {options.subscription!r} is at claim {hi}, this query was at"
                f" {after}: start a new checkpoint"
            )
        return {**start, "claim": min(hi, after + most)}

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        """Cut the claims of a batch; the same when it is planned again."""
        self._check(end)
        lo, hi = start["claim"], end["claim"]
        return _ranges(lo, hi, self._options.partitions, end["history"])

    def read(self, partition: InputPartition) -> Iterator["pa.RecordBatch"]:
        """Yield the messages of some claims.

        Raises:
            DataLossError: some are no longer claimed: released by hand, or acknowledged.
        """
        if not isinstance(partition, OffsetRange):
            return
        wanted = arrow_schema(self._schema)
        rows = 0
        subscription, asked = self._options.subscription, partition.hi - partition.lo
        try:
            for batch in self._broker.claims(subscription, partition.lo, partition.hi):
                rows += batch.num_rows
                yield conform_batch(batch, wanted)
        except DataLossError:
            if self._options.fails_on_data_loss:
                raise
            return
        if rows != asked and self._options.fails_on_data_loss:
            raise DataLossError(
                f"{asked - rows} of the claims {partition.lo + 1} to {partition.hi} of"
                f" {subscription!r} are released; they come again under new numbers."
                "  Set failOnDataLoss to false to go on"
            )

    def commit(self, end: Offset) -> None:
        """Acknowledge a batch that is in the sink; Spark says so while it plans the next one."""
        self._broker.acknowledge(self._options.subscription, int(end["claim"]))

    def _offset(self, claim: int) -> Offset:
        history_id = self._broker.bounds().history_id
        subscription = self._options.subscription
        return {"history": history_id, "subscription": subscription, "claim": claim}

    def _check(self, offset: Offset) -> None:
        if offset["subscription"] != self._options.subscription:
            raise OptionError(
                f"the checkpoint is of subscription {offset['subscription']!r},"
                f" the option says {self._options.subscription!r}"
            )
        now = self._broker.bounds().history_id
        if offset["history"] != now:
            raise DataLossError(
                f"the broker's history is {now} now, this query claimed in {offset['history']}:"
                " the broker was restored or is another one; start a new checkpoint"
            )
