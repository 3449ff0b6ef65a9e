"""Which acknowledged messages were no success: their worker had sent the envelope again.

A worker that fails publishes the envelope with higher ``attempts`` and acknowledges what it had
(``docs/workers.md``).  So a row is *retried* where it was acked, and another one with the same
``meta_id``, a later ``seq`` and higher ``attempts`` was published while this one was held: between
its first dispatch and its end.  A redrive or a replay comes after the end, and is no retry.

Comparing each row with all others of its ``meta_id`` would be quadratic in the attempts of one
message.  So the rows of a message go through one pass, the last ``seq`` first, in n log n steps.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from itertools import chain, groupby, islice
from operator import itemgetter
from typing import TYPE_CHECKING, Final, NamedTuple

from pyspark.sql import Window
from pyspark.sql import functions as sf

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

_ROWS_AT_ONCE: Final = 10_000


class Event(NamedTuple):
    """An acked row, or one that may repeat another (``offset`` None); times are microseconds."""

    meta_id: str
    seq: int
    attempts: int
    offset: int | None
    since: int  # of an acked row its first dispatch, else when it was published
    until: int  # of an acked row its end, else when it was published


def mark(rows: "DataFrame", archive: "DataFrame") -> "DataFrame":
    """Add the BOOLEAN ``retried`` to ``rows``; looks for retries in ``archive``."""
    has_id = sf.col("meta_id").isNotNull()
    again = archive.where((sf.col("attempts") > 0) & has_id)
    held = rows.where((sf.col("outcome") == "acked") & has_id)
    is_held = sf.col("first_dispatched_at").isNotNull() & sf.col("settled_at").isNotNull()
    events = _events(held.where(is_held), "offset", "first_dispatched_at", "settled_at").union(
        _events(again, "CAST(NULL AS BIGINT)", "published_at", "published_at")
    )
    of_one = Window.partitionBy("meta_id").orderBy(sf.desc("seq"))
    whole = of_one.rowsBetween(Window.unboundedPreceding, Window.unboundedFollowing)
    in_order = (
        events.withColumn("repeats", sf.max(sf.col("offset").isNull()).over(whole))
        .where("repeats")  # the others need not leave the JVM
        .drop("repeats")
        .sortWithinPartitions("meta_id", sf.desc("seq"))
    )
    found = in_order.mapInArrow(_offsets, "offset BIGINT").withColumn("retried", sf.lit(True))
    joined = rows.join(found, "offset", "left")
    return joined.withColumn("retried", sf.coalesce("retried", sf.lit(False)))


def _events(rows: "DataFrame", offset: str, since: str, until: str) -> "DataFrame":
    return rows.select(
        "meta_id",
        "seq",
        sf.coalesce("attempts", sf.lit(0)).alias("attempts"),
        sf.expr(offset).alias("offset"),
        sf.unix_micros(since).alias("since"),
        sf.unix_micros(until).alias("until"),
    )


def _offsets(batches: Iterable["pa.RecordBatch"]) -> Iterator["pa.RecordBatch"]:
    """Yield the offsets of retried rows; events come by ``meta_id``, the last ``seq`` first."""
    import pyarrow as pa

    def events() -> Iterator[Event]:
        for batch in batches:
            columns = (batch.column(name).to_pylist() for name in Event._fields)
            yield from map(Event._make, zip(*columns, strict=True))

    groups = (list(of_one) for _, of_one in groupby(events(), itemgetter(0)))
    found = chain.from_iterable(map(retried, groups))
    while offsets := list(islice(found, _ROWS_AT_ONCE)):
        yield pa.RecordBatch.from_arrays([pa.array(offsets, pa.int64())], names=["offset"])


def retried(events: list[Event]) -> list[int]:
    """Return the offsets of the rows of one message that are retried; ``events`` as ``_offsets``.

    Whatever was published later has been seen when a row is looked at, so it is asked for the most
    attempts within the times at which the row was held: a tree of maxima over those times.
    """
    times = sorted({event.since for event in events if event.offset is None})
    tree = [0] * (2 * len(times))
    found = []
    for _, same in groupby(events, itemgetter(1)):  # a row may be both, and repeats not itself
        at_once = list(same)
        for event in at_once:
            if event.offset is not None:
                lo, hi = bisect_left(times, event.since), bisect_right(times, event.until)
                if _most(tree, lo, hi) > event.attempts:
                    found.append(event.offset)
        for event in at_once:
            if event.offset is None:
                _raise(tree, bisect_left(times, event.since), event.attempts)
    return found


def _raise(tree: list[int], at: int, value: int) -> None:
    """Raise one leaf, and the maxima above it."""
    node = at + len(tree) // 2
    while node and tree[node] < value:
        tree[node] = value
        node //= 2


def _most(tree: list[int], lo: int, hi: int) -> int:
    """Return the maximum of the leaves from ``lo`` (inclusive) to ``hi`` (exclusive)."""
    most, lo, hi = 0, lo + len(tree) // 2, hi + len(tree) // 2
    while lo < hi:
        if lo & 1:
            most = max(most, tree[lo])
            lo += 1
        if hi & 1:
            hi -= 1
            most = max(most, tree[hi])
        lo //= 2
        hi //= 2
    return most
