"""What the metric tables contain, for the jobs and the summary; needs neither Spark nor Arrow."""

import json
from collections.abc import Mapping
from typing import Final

from phpmq_lite.spark.ledger import ArchiveLedger
from phpmq_lite.spark.results_folder import METRICS_STATE, ResultsFolder
from phpmq_lite.spark.table_columns import METRIC_COLUMNS, SPANS

VERSION: Final = 3  # table version; after a change, all dates are recomputed
TABLES: Final = tuple(METRIC_COLUMNS)
DAY_MS: Final = 86_400_000
MAX_STEPS: Final = 50  # maximum number of steps in a path
MAX_PATHS: Final = 1_000  # maximum number of paths per day
BUCKET_BASE: Final = 1.01  # durations in the same bucket differ by at most 1 %

PERCENTILES: Final = {"p50": 0.5, "p95": 0.95, "p99": 0.99}
SPAN_FIGURES: Final = tuple(f"{span}_{name}" for span in SPANS for name in (*PERCENTILES, "max"))


def bucket_percentile(buckets: Mapping[int, int], rank: float) -> float | None:
    """Return the midpoint of the bucket in which the cumulative count reaches ``rank``."""
    reached = 0
    for number in sorted(buckets):
        reached += buckets[number]
        if reached >= rank:
            return round(BUCKET_BASE ** (number - 0.5), 1) if number else 1.0
    return None


def metrics_offset(files: ResultsFolder, ledger: ArchiveLedger) -> int | None:
    """Return the offset up to which the tables are computed; None if all have to be."""
    state = json.loads(files.read(METRICS_STATE) or "{}")
    is_valid = state.get("tables") == VERSION and state["history_id"] == ledger.history_id
    return state["offset"] if is_valid and ledger.offset is not None else None
