"""The figures of the insights document, from the metric tables and with pyarrow only.

Spark reads the tables if they are on storage that only Spark reaches.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import reduce
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from phpmq_lite.insights_document import OTHER_QUEUES, encode
from phpmq_lite.model import OUTCOMES
from phpmq_lite.spark import results_folder
from phpmq_lite.spark.insights_tables import DAY_MS, SPAN_FIGURES, bucket_percentile
from phpmq_lite.spark.jobs.metric_tables import sums
from phpmq_lite.spark.results_folder import LocalResultsFolder, ResultsFolder
from phpmq_lite.spark.table_columns import COUNTS, METRIC_COLUMNS, SPANS
from phpmq_lite.storage.arrow import arrow_schema

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MAX_QUEUES: Final = 50  # maximum number of queues listed by name; SHARES may allow fewer
MAX_ROWS: Final = 200  # maximum length of each list: queues, urns, deaths, expiries
MAX_PATHS: Final = 50
MAX_KEYS: Final = 20  # maximum number of reasons, and of attempt counts, per URN
SHARES: Final = {"minutes": 1_150_000, "hours": 500_000}  # maximum number of bytes of each list

_DAYS: Final = 30
_MAXIMA: Final = tuple(f"{span}_max" for span in SPANS)
_URN_COUNTS: Final = ("published", "bytes", *OUTCOMES, "retried", "redelivered_messages")
Item = dict[str, Any]


def collect_figures(spark: "SparkSession | None", files: ResultsFolder, now_ms: int) -> Item:
    """Return what the document has of the metric tables; nothing if there are none."""
    if not files.names(results_folder.METRICS):
        return {}
    tables = MetricTables(spark, files, now_ms)
    return {
        "last24h": tables.periods("minutes", "minute", 1),
        "last30d": tables.periods("hours", "hour", _DAYS),
        "urns": tables.urns(),
        "deaths": tables.totals("deaths", ("queue", "urn", "reason"), ("count",)),
        "paths": tables.paths(),
        "expiries": tables.totals("expiries", ("queue",), ("dispatched", "never")),
    }


@dataclass(frozen=True, slots=True)
class MetricTables:
    """Reads as many metrics as the document can hold; a missing table counts as empty."""

    spark: "SparkSession | None"
    files: ResultsFolder
    now_ms: int

    def _read(self, table: str, days: int) -> pa.Table:
        """Return a table's rows, starting with the date ``days`` days ago, without ``date``."""
        folder = f"{results_folder.METRICS}/{table}"
        first = datetime.fromtimestamp(self.now_ms / 1000, UTC) - timedelta(days=days)
        dates = [name for name in self.files.names(folder) if name >= f"date={first.date()}"]
        columns = [column for column in METRIC_COLUMNS[table] if column.name != "date"]
        schema = pa.schema([(field.name, field.type) for field in arrow_schema(columns, "us")])
        if isinstance(self.files, LocalResultsFolder):
            paths = [path for date in dates for path in self.files.data_files(f"{folder}/{date}")]
            if paths:
                return ds.dataset([*map(self.files.path, paths)], schema).to_table()
        elif dates and self.spark is not None:
            from phpmq_lite.spark.columns import commented_schema

            urls = [self.files.url(f"{folder}/{date}") for date in dates]
            rows = self.spark.read.schema(commented_schema(columns)).parquet(*urls)
            return rows.toArrow().cast(schema)
        return schema.empty_table()

    def periods(self, table: str, name: str, days: int) -> list[Item]:
        """Return statistics by period for ``days`` days; ``name`` names the time column."""
        rows = self._read(table, days)
        rows = rows.set_column(rows.column_names.index(name), name, _millis(rows[name]))
        rows = rows.filter(pc.greater(rows[name], self.now_ms - days * DAY_MS))
        total = reduce(pc.add, (rows[count] for count in ("published", *OUTCOMES)))
        totals = sums(pa.table({"queue": rows["queue"], "n": total}), ["queue"])
        order = [("n", "descending"), ("queue", "ascending")]
        busiest = totals.sort_by(order)["queue"][:MAX_QUEUES].to_pylist()
        is_listed = pc.is_in(rows["queue"], pa.array(busiest, pa.string()))
        items = [round_times(row) for row in rows.filter(is_listed).to_pylist()]
        others = rows.filter(pc.invert(is_listed)).group_by(name)
        aggregates = [*((count, "sum") for count in COUNTS), *((m, "max") for m in _MAXIMA)]
        unnamed = others.aggregate(aggregates).rename_columns([name, *COUNTS, *_MAXIMA])
        return fit_queues(items, unnamed.to_pylist(), busiest, name, SHARES[table])

    def urns(self) -> list[Item]:
        """Return counts for the busiest URNs, with dead-letter reasons and attempts."""
        weights = ("published", "acked", "dead")
        items = self.totals("urns", ("queue", "urn"), _URN_COUNTS, weights)
        failed = self._by_urn("deaths", "reason", items)
        attempts = self._by_urn("attempts", "attempts", items)
        for item in items:
            key = item["queue"], item["urn"]
            item |= {"failed": failed.get(key, {}), "attempts": attempts.get(key, {})}
        return items

    def _by_urn(
        self, table: str, column: str, items: list[Item]
    ) -> dict[tuple[str, str], dict[str, int]]:
        """Count messages by ``column`` for each (queue, urn) of the items, most frequent first."""
        rows = self._read(table, _DAYS)
        urns = pa.array({item["urn"] for item in items}, pa.string())
        counts = sums(rows.filter(pc.is_in(rows["urn"], urns)), ["queue", "urn", column])
        order = dict.fromkeys(("queue", "urn"), "ascending")
        order |= {"count": "descending", column: "ascending"}
        ordered = _sorted(counts, order.items()).to_pylist()
        return {
            key: {str(row[column]): row["count"] for row in list(group)[:MAX_KEYS]}
            for key, group in groupby(ordered, lambda row: (row["queue"], row["urn"]))
        }

    def totals(
        self,
        table: str,
        keys: Sequence[str],
        counts: Sequence[str],
        weights: Sequence[str] | None = None,
    ) -> list[Item]:
        """Sum ``counts`` by ``keys``; sort by ``weights`` (default: ``counts``), descending."""
        rows = sums(self._read(table, _DAYS).select([*keys, *counts]), keys)
        weight = reduce(pc.add, (rows[name] for name in weights or counts))
        order = [("weight", "descending"), *((key, "ascending") for key in keys)]
        largest = _sorted(rows.append_column("weight", weight), order)[:MAX_ROWS]
        items: list[Item] = largest.drop("weight").to_pylist()
        return items

    def paths(self) -> list[Item]:
        """Return the most frequent trace paths, summed over all days."""
        rows = self._read("paths", _DAYS)
        places: dict[tuple[str, ...], list[int]] = defaultdict(list)
        totals: Counter[tuple[str, ...]] = Counter()
        rows_of_days = zip(rows["path"].to_pylist(), rows["traces"].to_pylist(), strict=True)
        for place, (path, traces) in enumerate(rows_of_days):
            places[tuple(path)].append(place)
            totals[tuple(path)] += traces
        frequent = sorted(totals, key=lambda path: (-totals[path], path))[:MAX_PATHS]
        return [
            path_item(path, map(dict, rows["buckets"].take(places[path]).to_pylist()))
            for path in frequent
        ]


def _millis(times: Any) -> Any:
    return pc.divide(times.cast(pa.int64()), 1_000)


def _sorted(table: pa.Table, order: Iterable[tuple[str, str]]) -> pa.Table:
    """Sort rows, with nulls first as in Spark."""
    keys = [(name, direction, "at_start") for name, direction in order]
    return table.take(pc.sort_indices(table, sort_keys=keys))


def path_item(path: Sequence[str], days: Iterable[Mapping[int, int]]) -> Item:
    """Sum a path's buckets (number -> traces) over all days; durations are accurate to 1 %."""
    buckets: Counter[int] = Counter()
    for day in days:
        buckets.update(day)
    traces = sum(buckets.values())
    p50, p95 = (bucket_percentile(buckets, traces * share) for share in (0.5, 0.95))
    return {"path": list(path), "traces": traces, "p50_ms": p50, "p95_ms": p95}


def fit_queues(
    items: list[Item], omitted: list[Item], busiest: Sequence[str], name: str, share: int
) -> list[Item]:
    """Return items, ordered by time, for as many of the busiest queues as fit in ``share`` bytes.

    Other items and ``omitted`` (sums without ``queue``) are summed under ``OTHER_QUEUES``.
    ``name`` is the field with the time.
    """
    by_queue: dict[str, list[Item]] = defaultdict(list)
    for item in items:
        by_queue[item["queue"]].append(item)
    sizes = {queue: _size(by_queue[queue]) for queue in busiest}
    if omitted or sum(sizes.values()) > share:
        share -= _size(_others([*items, *omitted], name))  # reserve space for other queues
    listed: list[Item] = []
    for number, queue in enumerate(busiest):
        if sizes[queue] > share:
            omitted = [i for name in busiest[number:] for i in by_queue[name]] + omitted
            break
        listed += by_queue[queue]
        share -= sizes[queue]
    listed += _others(omitted, name)
    return sorted(
        listed, key=lambda item: (item[name], item["queue"] == OTHER_QUEUES, item["queue"])
    )


def _size(items: Iterable[Item]) -> int:
    return sum(len(encode(item).encode()) + 1 for item in items)


def round_times(item: Item) -> Item:
    """Return an item with its times rounded to a tenth of a millisecond."""
    return {n: round(v, 1) if isinstance(v, float) else v for n, v in item.items()}


def _others(items: Iterable[Item], name: str) -> list[Item]:
    """Sum the items of each period, leaving out percentiles, which cannot be summed."""
    sums: dict[int, Item] = {}
    for item in items:
        empty: Item = dict.fromkeys(COUNTS, 0) | dict.fromkeys(SPAN_FIGURES)
        key = {name: item[name], "queue": OTHER_QUEUES}
        totals = sums.setdefault(item[name], key | empty)
        for count in COUNTS:
            totals[count] += item[count]
        for maximum in _MAXIMA:
            values = [m for m in (totals[maximum], item[maximum]) if m is not None]
            totals[maximum] = max(values, default=None)
    return list(sums.values())
