"""Counts the rows of the query that Spark is running, for the progress display."""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from threading import Event, Thread
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_METRIC: Final = "number of output rows"
PERIOD_S: Final = 1.0
_RECENT: Final = 4  # queries; a batch of a stream runs several, one within the other
_NUMBER: Final = re.compile(r"[\d,]+")


@contextmanager
def watch_rows(
    spark: "SparkSession", at_most: int, report: Callable[[int], None]
) -> Iterator[None]:
    """Report the rows of running queries each second, from a thread, until the block ends."""
    is_over = Event()

    def watch() -> None:
        while not is_over.wait(PERIOD_S):
            report(min(count_running_rows(spark), at_most))

    thread = Thread(target=watch, name="rows", daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


def count_running_rows(spark: "SparkSession") -> int:
    """Return how many rows the largest step of the running queries has produced; 0 if none runs.

    Spark's status store has the metrics of running queries even if its UI is off. Executors report
    them with each heartbeat (``spark.executor.heartbeatInterval``). Returns 0 if Spark has another
    status store than the one of version 4.3, because progress is not worth a failure.
    """
    with suppress(Exception):  # an error of py4j
        return _largest_running(spark)
    return 0


def _largest_running(spark: "SparkSession") -> int:
    store: Any = spark._jsparkSession.sharedState().statusStore()
    count = store.executionsCount()
    executions = store.executionsList(max(count - _RECENT, 0), _RECENT)
    return max(
        (
            _largest_count(store, executions.apply(at))
            for at in range(executions.size())
            if executions.apply(at).completionTime().isEmpty()
        ),
        default=0,
    )


def _largest_count(store: Any, execution: Any) -> int:
    metrics, largest = execution.metrics(), 0
    values = store.executionMetrics(execution.executionId())
    for at in range(metrics.size()):
        metric = metrics.apply(at)
        if metric.name() == _METRIC:
            # "1,200", or several figures of which the first is the total
            value = values.get(metric.accumulatorId())
            if value.isDefined() and (number := _NUMBER.search(value.get())):
                largest = max(largest, int(number[0].replace(",", "")))
    return largest
