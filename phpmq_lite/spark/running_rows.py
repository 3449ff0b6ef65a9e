"""Counts the rows of the query that Spark is running, for the progress display."""

import re
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_METRIC: Final = "number of output rows"
_RECENT: Final = 4  # queries; a batch of a stream runs several, one within the other
_NUMBER: Final = re.compile(r"[\d,]+")


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
