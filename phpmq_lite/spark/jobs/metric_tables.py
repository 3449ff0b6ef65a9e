"""Metric tables, computed from an archive's rows: statistics by period and queue, counts by day.

Spark calls ``map_rows`` for each part of the archive, distributes its partial results by key, and
calls ``reduce_parts`` for each share of the keys; ``metric_tables`` combines what comes back. All
of it works on whole columns.
"""

import json
import math
import zlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from phpmq_lite.model import OUTCOMES
from phpmq_lite.spark.insights_tables import (
    BUCKET_BASE,
    DAY_MS,
    MAX_PATHS,
    MAX_STEPS,
    PERCENTILES,
    bucket_percentile,
)
from phpmq_lite.spark.table_columns import METRIC_COLUMNS, SPANS
from phpmq_lite.storage.arrow import arrow_schema

Parts = dict[str, list[pa.Table]]
Numbers = np.ndarray[Any, Any]

TIMES: Final = ("published", "first", "last", "settled", "ready")  # milliseconds, may be null
# What map_rows needs; the shares say which part of the keys a value belongs to.
ROW_COLUMNS: Final = (
    *("seq", "queue", "outcome", "reason", "deliveries", "size", "urn", "trace_id", "meta_id"),
    *("attempts", *TIMES, "trace_share", "meta_share"),
)
MINUTES_PER_DAY: Final = DAY_MS // 60_000
ROWS_AT_ONCE: Final = 500_000  # rows of which a partial result is made

_NONE: Final = -(1 << 61)  # instead of a null time
_RADIX: Final = 1 << 33  # above any number of minutes since 1970
_DAY_KEYS: Final = ("day", "queue", "urn", "outcome", "reason", "attempts", "deliveries")
_PERIOD_KEYS: Final = ("queue", "number")
_NO_SPANS: Final = pa.schema(
    [("queue", pa.string()), ("minute", pa.int64()), ("span", pa.int8()), ("ms", pa.int64())]
).empty_table()


def sums(table: pa.Table, keys: Sequence[str]) -> pa.Table:
    """Return the sums of all other columns by ``keys``."""
    names = [name for name in table.column_names if name not in keys]
    no_nulls = pc.ScalarAggregateOptions(min_count=0)
    grouped = table.group_by(keys).aggregate([(name, "sum", no_nulls) for name in names])
    return grouped.rename_columns([*keys, *names])


# -- a part of the archive


def map_rows(
    batches: Iterable[pa.RecordBatch], days: Sequence[int], shares: int
) -> Iterator[pa.RecordBatch]:
    """Yield partial results (``share``, ``name``, ``data``) of rows with ``ROW_COLUMNS``.

    Only events on ``days`` (since 1970) count. Results of the same share are to be given to the
    same call of ``reduce_parts``.
    """
    for rows in _collected(batches):
        for name, (table, share) in _partial(rows, days, shares).items():
            for number in np.unique(share):
                yield to_record(int(number), name, table.filter(pa.array(share == number)))


def _collected(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Yield the rows in tables of about ``ROWS_AT_ONCE`` rows, without empty ones."""
    collected: list[pa.RecordBatch] = []
    count = 0
    for batch in batches:
        collected.append(batch)
        count += batch.num_rows
        if count >= ROWS_AT_ONCE:
            yield pa.Table.from_batches(collected).combine_chunks()
            collected, count = [], 0
    if count:
        yield pa.Table.from_batches(collected).combine_chunks()


def to_record(share: int, name: str, table: pa.Table) -> pa.RecordBatch:
    """Return a table as one row of Spark."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table)
    data = pa.array([sink.getvalue().to_pybytes()], pa.binary())
    columns = [pa.array([share], pa.int32()), pa.array([name]), data]
    return pa.RecordBatch.from_arrays(columns, names=["share", "name", "data"])


RECORD: Final = "share INT, name STRING, data BINARY"


def read_records(batches: Iterable[pa.RecordBatch | pa.Table]) -> Parts:
    """Return the tables of such rows by name."""
    parts: Parts = defaultdict(list)
    for batch in batches:
        for name, data in zip(batch["name"].to_pylist(), batch["data"], strict=True):
            with pa.ipc.open_stream(data.as_buffer()) as stream:
                parts[name].append(stream.read_all())
    return parts


def _partial(
    rows: pa.Table, days: Sequence[int], shares: int
) -> dict[str, tuple[pa.Table, Numbers]]:
    """Return the partial results by name, each with its rows' shares."""
    times = {name: rows[name].fill_null(_NONE).to_numpy() for name in TIMES}
    queues = rows["queue"].combine_chunks().dictionary_encode()
    names = queues.dictionary.to_pylist()
    queue_shares = np.array([zlib.crc32(name.encode()) for name in names], np.int64)
    codes = queues.indices.to_numpy().astype(np.int64)

    def periods(table: pa.Table) -> tuple[pa.Table, Numbers]:
        """Name the queues, and distribute queues and hours."""
        codes, hours = table["queue"].to_numpy(), table["minute"].to_numpy() // 60
        named = table.drop("queue").append_column("queue", queues.dictionary.take(pa.array(codes)))
        return named, (queue_shares[codes] + hours) % shares

    result = {
        "counts": periods(_count_events(rows, times, codes, days)),
        "spans": periods(_measure_spans(rows, times, codes, days)),
    }
    dated = {
        name: rows.append_column("day", pa.array(times[name] // DAY_MS))
        for name in ("published", "settled")
    }
    masks = {name: _is_on(table["day"].to_numpy(), days) for name, table in dated.items()}
    for name, table in dated.items():
        keys = _DAY_KEYS if name == "settled" else _DAY_KEYS[:3]
        counted = _count_days(table.select([*keys, "size"]).filter(pa.array(masks[name])))
        result[name] = counted, np.zeros(counted.num_rows, np.int64)
    result["traces"] = _steps(dated["published"], masks["published"])
    result["retries"] = _retry_candidates(rows, times, masks["settled"])
    return result


def _is_on(number: Numbers, days: Sequence[int]) -> Numbers:
    """Return whether each day is one of ``days``."""
    return np.isin(number, np.asarray(days))


def _minute(time: Numbers, days: Sequence[int], mask: Numbers) -> Numbers:
    """Return the minutes of times, and -1 where they do not count."""
    return np.where(mask & _is_on(time // DAY_MS, days), time // 60_000, -1)


def _count_events(
    rows: pa.Table, times: Mapping[str, Numbers], codes: Numbers, days: Sequence[int]
) -> pa.Table:
    """Count each event by ``queue`` (its code) and its own ``minute``."""
    size, deliveries = (rows[name].to_numpy() for name in ("size", "deliveries"))
    outcome = rows["outcome"]
    always = np.ones(len(codes), bool)
    is_redelivered = deliveries > 1
    has_expired = pc.equal(outcome, "expired").to_numpy()
    counted: dict[str, dict[str, Numbers]] = {
        "published": {"published": always, "bytes": size},
        "first": {"dispatched": always},
        "last": {"redelivered": np.where(is_redelivered, deliveries - 1, 0)},
        "settled": {
            **{name: pc.equal(outcome, name).to_numpy() for name in OUTCOMES},
            "redelivered_messages": is_redelivered,
            "expired_dispatched": has_expired & (deliveries > 0),
            "expired_never": has_expired & (deliveries == 0),
        },
    }
    parts = []
    for time, counts in counted.items():
        minute = _minute(times[time], days, is_redelivered if time == "last" else always)
        numbers = {name: number.astype(np.int64) for name, number in counts.items()}
        events = pa.table({"queue": codes, "minute": minute, **numbers})
        parts.append(sums(events.filter(pa.array(minute >= 0)), ["queue", "minute"]))
    return sums(pa.concat_tables(parts, promote_options="default"), ["queue", "minute"])


def _measure_spans(
    rows: pa.Table, times: Mapping[str, Numbers], codes: Numbers, days: Sequence[int]
) -> pa.Table:
    """Return ``queue`` (its code), ``minute``, ``span`` (its number) and ``ms`` of each span."""
    published, first, last, settled = (times[name] for name in TIMES[:4])
    ready = np.where(times["ready"] == _NONE, published, times["ready"])  # null in version 0.1.0
    has_first, has_last = first != _NONE, last != _NONE
    # For example, by a retry; after the clock was set back, the first dispatch can come before the
    # publish.
    is_redelivered = rows["deliveries"].to_numpy() > 1
    was_delayed_later = is_redelivered & has_last & (ready > first) & (ready > published)
    is_held = pc.is_in(rows["outcome"], pa.array(["acked", "dead"])).to_numpy() & has_last
    parts = []
    for span, begin, end, mask in (
        (0, ready, first, has_first & ~was_delayed_later),
        (0, ready, last, was_delayed_later),
        (1, last, settled, is_held),
    ):
        minute = _minute(end, days, mask)
        chosen = minute >= 0
        ms = np.maximum(end - begin, 0)[chosen]
        parts.append((codes[chosen], minute[chosen], np.full(len(ms), span, np.int8), ms))
    columns = [np.concatenate(part) for part in zip(*parts, strict=True)]
    return pa.table(columns, names=["queue", "minute", "span", "ms"])


def _count_days(rows: pa.Table) -> pa.Table:
    """Count publishes or settlements by ``day`` and what the tables by day distinguish."""
    keys = rows.column_names[:-1]
    if "outcome" in keys:
        is_dead = pc.equal(rows["outcome"], "dead")
        limited = {
            "reason": pc.if_else(is_dead, rows["reason"], pa.scalar(None, pa.string())),
            "attempts": pc.if_else(pc.is_valid(rows["urn"]), rows["attempts"], None),
            "deliveries": pc.min_element_wise(rows["deliveries"], 2),
        }
        rows = pa.table({name: limited.get(name, rows[name]) for name in rows.column_names})
    grouped = rows.group_by(keys).aggregate([("size", "sum"), ([], "count_all")])
    return grouped.rename_columns([*keys, "bytes", "count"])


def _steps(rows: pa.Table, is_published_then: Numbers) -> tuple[pa.Table, Numbers]:
    """Return the steps of traces that are published on the days to compute."""
    columns = ["day", "trace_id", "seq", "published", "settled", "queue", "urn", "trace_share"]
    chosen = pc.and_(pc.is_valid(rows["trace_id"]), pa.array(is_published_then))
    named = rows.select(columns).filter(chosen)
    # A step is encoded as JSON, so that a path can be one text.
    steps = pc.binary_join_element_wise(
        named["queue"], named["urn"], ":", null_handling="replace", null_replacement=""
    )
    encoded = steps.combine_chunks().dictionary_encode()
    texts = pa.array([json.dumps(step) for step in encoded.dictionary.to_pylist()], pa.string())
    table = named.select(columns[:5]).append_column("step", texts.take(encoded.indices))
    return table, named["trace_share"].to_numpy()


def _retry_candidates(
    rows: pa.Table, times: Mapping[str, Numbers], is_settled_then: Numbers
) -> tuple[pa.Table, Numbers]:
    """Return rows that may have been retried, and the possible retries (``is_retry``)."""
    has_id = pc.is_valid(rows["meta_id"]).to_numpy()
    attempts = rows["attempts"].fill_null(0).to_numpy()
    is_acked = pc.equal(rows["outcome"], "acked").to_numpy() & has_id & is_settled_then
    is_acked &= times["first"] != _NONE
    parts = []
    for is_retry, mask, since, until in (
        (True, has_id & (attempts > 0), "published", "published"),
        (False, is_acked, "first", "settled"),
    ):
        table = rows.select(["meta_id", "seq", "queue", "urn", "meta_share"]).filter(pa.array(mask))
        table = table.append_column("attempts", pa.array(attempts[mask]))
        table = table.append_column("since", pa.array(times[since][mask]))
        table = table.append_column("until", pa.array(times[until][mask]))
        parts.append(table.append_column("is_retry", pa.array(np.full(table.num_rows, is_retry))))
    table = pa.concat_tables(parts).combine_chunks()
    return table.drop("meta_share"), table["meta_share"].to_numpy()


# -- a share of the keys


def reduce_parts(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the results of one or several shares, in the form of ``map_rows``."""
    parts = {name: pa.concat_tables(tables) for name, tables in read_records(batches).items()}
    for name, factor in (("minutes", 1), ("hours", 60)):
        if "counts" in parts:
            periods = sums(_numbered(parts["counts"], factor), _PERIOD_KEYS)
            spans = _numbered(parts.get("spans", _NO_SPANS), factor)
            for number, span in enumerate(SPANS):
                measured = spans.filter(pc.equal(spans["span"], number))
                periods = periods.join(_span_figures(span, measured), [*_PERIOD_KEYS])
            yield to_record(0, name, periods)
    for name in ("published", "settled"):
        if name in parts:
            keys = [key for key in _DAY_KEYS if key in parts[name].column_names]
            yield to_record(0, name, sums(parts[name], keys))
    if "traces" in parts:
        yield to_record(0, "paths", _reduce_traces(parts["traces"]))
    if "retries" in parts:
        yield to_record(0, "retried", find_retried(parts["retries"]))


def _numbered(table: pa.Table, factor: int) -> pa.Table:
    """Replace the minutes by the numbers of their periods, which have ``factor`` minutes."""
    number = pa.array(table["minute"].to_numpy() // factor)
    return table.drop("minute").append_column("number", number)


def _span_figures(span: str, measured: pa.Table) -> pa.Table:
    """Return percentiles (interpolated) and the maximum of a span by queue and period."""
    queues = measured["queue"].combine_chunks().dictionary_encode()
    keys = queues.indices.to_numpy().astype(np.int64) * _RADIX + measured["number"].to_numpy()
    ms = measured["ms"].to_numpy()
    order = np.lexsort((ms, keys))
    unique, begin = np.unique(keys[order], return_index=True)
    ms, last = ms[order], np.append(begin, len(order))[1:] - 1
    columns: dict[str, Any] = {
        "queue": queues.dictionary.take(pa.array(unique // _RADIX)),
        "number": unique % _RADIX,
        f"{span}_max": ms[last],
    }
    for name, share in PERCENTILES.items():
        part, low = np.modf((last - begin) * share)
        place = begin + low.astype(np.int64)
        columns[f"{span}_{name}"] = ms[place] + (ms[np.minimum(place + 1, last)] - ms[place]) * part
    return pa.table(columns)


def _reduce_traces(steps: pa.Table) -> pa.Table:
    """Count traces by ``day``, ``path`` (steps in JSON, with commas) and ``bucket``."""
    traces = steps["trace_id"].combine_chunks().dictionary_encode().indices.to_numpy()
    keys = traces.astype(np.int64) * _RADIX + steps["day"].to_numpy()
    order = np.lexsort((steps["seq"].to_numpy(), keys))
    starts = np.flatnonzero(np.diff(keys[order], prepend=-1))
    lengths = np.diff(np.append(starts, len(order)))
    end = np.maximum.reduceat(steps["settled"].to_numpy()[order], starts)
    begin = np.minimum.reduceat(steps["published"].to_numpy()[order], starts)
    place = np.arange(len(order)) - np.repeat(starts, lengths)
    path_lengths = np.minimum(lengths, MAX_STEPS)
    text = steps["step"].combine_chunks().take(pa.array(order[place < MAX_STEPS]))
    offsets = pa.array(np.concatenate([[0], np.cumsum(path_lengths)]), pa.int32())
    ms = np.maximum(end - begin, 1)
    rounded = np.ceil(np.log(ms) / math.log(BUCKET_BASE)).astype(np.int32)
    paths = pa.table(
        {
            "day": keys[order][starts] % _RADIX,
            "path": pc.binary_join(pa.ListArray.from_arrays(offsets, text), ","),
            "bucket": rounded,
        }
    )
    counted = paths.group_by(["day", "path", "bucket"]).aggregate([([], "count_all")])
    return counted.rename_columns(["day", "path", "bucket", "traces"])


def find_retried(events: pa.Table) -> pa.Table:
    """Count the retried rows by ``minute`` of the settlement, ``queue`` and ``urn``.

    A row was acked although it failed if a later message with the same ``meta_id`` and more
    attempts was published while the row was held. ``events`` are such rows (``since`` and
    ``until`` in milliseconds) and possible retries (``is_retry``).
    """
    is_retry = events["is_retry"]
    retries, rows = events.filter(is_retry), events.filter(pc.invert(is_retry))
    rows = rows.filter(pc.is_in(rows["meta_id"], retries["meta_id"].combine_chunks()))
    ids = retries["meta_id"].combine_chunks().unique()
    of_retry, of_row = (
        pc.index_in(table["meta_id"], ids).to_numpy().astype(np.int64) for table in (retries, rows)
    )
    # Ranges of time are looked up among all times, because id and time do not fit into one number.
    at, first, last = (
        table[name].to_numpy()
        for table, name in ((retries, "since"), (rows, "since"), (rows, "until"))
    )
    instants = np.unique(at)
    radix = len(instants) + 1
    keys = of_retry * radix + np.searchsorted(instants, at)
    order = np.argsort(keys, kind="stable")
    lo = np.searchsorted(keys[order], of_row * radix + np.searchsorted(instants, first))
    hi = np.searchsorted(keys[order], of_row * radix + np.searchsorted(instants, last, "right"))
    attempts, seq = (retries[name].to_numpy()[order] for name in ("attempts", "seq"))
    attempts_before, arrived = (rows[name].to_numpy() for name in ("attempts", "seq"))
    chosen = np.flatnonzero(hi > lo)
    chosen = chosen[_range_max(attempts, lo[chosen], hi[chosen]) > attempts_before[chosen]]
    is_later = -_range_max(-seq, lo[chosen], hi[chosen]) > arrived[chosen]
    retried = [*chosen[is_later]]
    for row in chosen[~is_later]:  # a few, whose order of arrival is not that of time
        part = slice(lo[row], hi[row])
        if np.any((attempts[part] > attempts_before[row]) & (seq[part] > arrived[row])):
            retried.append(row)
    chosen_rows = rows.take(pa.array(retried, pa.int64()))
    columns = {name: chosen_rows[name] for name in ("queue", "urn")}
    columns["minute"] = pa.array(chosen_rows["until"].to_numpy() // 60_000)
    columns["retried"] = pa.array(np.ones(len(retried), np.int64))
    return sums(pa.table(columns), ["minute", "queue", "urn"])


def _range_max(values: Numbers, lo: Numbers, hi: Numbers) -> Numbers:
    """Return the maxima of ``values[lo:hi]`` for ranges that are not empty."""
    if not len(lo):
        return lo
    level = np.log2(hi - lo).astype(np.int64)
    result = np.empty(len(lo), np.int64)
    maxima = values  # of 2 ** number values from each place on
    for number in range(int(level.max()) + 1):
        chosen = level == number
        late = hi[chosen] - (1 << number)
        result[chosen] = np.maximum(maxima[lo[chosen]], maxima[late])
        half = 1 << number
        maxima = np.maximum(maxima[:-half], maxima[half:])
    return result


# -- all shares


def metric_tables(parts: Parts) -> dict[str, pa.Table]:
    """Return all tables from the results of ``reduce_parts``; a table without rows is absent."""
    results = {name: pa.concat_tables(tables) for name, tables in parts.items()}
    retried = results.get("retried")
    tables = {
        name: _period_table(results[name], name, factor, retried)
        for name, factor in (("minutes", 1), ("hours", 60))
        if name in results
    }
    if "settled" in results:
        tables |= _day_tables(results["settled"])
        tables["urns"] = _urns(results)
    if "paths" in results:
        tables["paths"] = _paths(results["paths"])
    return {name: table for name, table in tables.items() if table.num_rows}


def _dates(days: Any) -> pa.Array:
    return pa.array(np.asarray(days), pa.int64()).cast(pa.int32()).cast(pa.date32())


def _period_table(periods: pa.Table, name: str, factor: int, retried: pa.Table | None) -> pa.Table:
    none = pa.array(np.zeros(periods.num_rows, np.int64))
    if retried is None:
        table = periods.append_column("retried", none)
    else:
        counts = sums(_numbered(retried.drop("urn"), factor), _PERIOD_KEYS)
        table = periods.join(counts, [*_PERIOD_KEYS])
        place = table.column_names.index("retried")
        table = table.set_column(place, "retried", table["retried"].fill_null(0))
    begin = table["number"].to_numpy() * (factor * 60_000)
    times = pa.array(begin, pa.timestamp("ms", "UTC")).cast(pa.timestamp("us", "UTC"))
    table = table.append_column(name[:-1], times)
    return table.append_column("date", _dates(begin // DAY_MS))


def _day_tables(settled: pa.Table) -> dict[str, pa.Table]:
    """Return the tables that count settlements."""

    def count(rows: pa.Table, key: str) -> pa.Table:
        return _dated(sums(rows.select([*keys, key, "count"]), [*keys, key]))

    keys = ("day", "queue", "urn")
    expired = settled.filter(pc.equal(settled["outcome"], "expired"))
    never = pc.equal(expired["deliveries"], 0)
    counts = {
        "dispatched": pc.if_else(never, 0, expired["count"]),
        "never": pc.if_else(never, expired["count"], 0),
    }
    expiries = pa.table({key: expired[key] for key in keys[:2]} | counts)
    return {
        "attempts": count(settled.filter(pc.is_valid(settled["attempts"])), "attempts"),
        "deaths": count(settled.filter(pc.equal(settled["outcome"], "dead")), "reason"),
        "expiries": _dated(sums(expiries, keys[:2])),
    }


def _dated(table: pa.Table) -> pa.Table:
    return table.drop("day").append_column("date", _dates(table["day"].to_numpy()))


def _urns(results: Mapping[str, pa.Table]) -> pa.Table:
    """Count publishes, settlements and retries by date, queue and URN."""
    keys = ("day", "queue", "urn")
    types = {"queue": pa.string(), "urn": pa.string()}
    names = (*keys, "published", "bytes", *OUTCOMES, "retried", "redelivered_messages")
    parts = [pa.schema([(name, types.get(name, pa.int64())) for name in names]).empty_table()]
    for name, table in results.items():
        if name == "published":
            columns = {"published": table["count"], "bytes": table["bytes"]}
        elif name == "settled":
            conditions = {outcome: pc.equal(table["outcome"], outcome) for outcome in OUTCOMES}
            conditions["redelivered_messages"] = pc.greater(table["deliveries"], 1)
            columns = {n: pc.if_else(is_it, table["count"], 0) for n, is_it in conditions.items()}
        elif name == "retried":
            table = table.append_column("day", pc.divide(table["minute"], MINUTES_PER_DAY))
            columns = {"retried": table["retried"]}
        else:
            continue
        parts.append(pa.table({key: table[key] for key in keys} | columns))
    counted = pa.concat_tables(parts, promote_options="default")
    return _dated(sums(counted.filter(pc.is_valid(counted["urn"])), keys))


def _paths(counts: pa.Table) -> pa.Table:
    """Return date, path, traces, p50_ms, p95_ms and buckets of the most frequent trace paths.

    ``path`` is an array of ``queue:urn`` in order of arrival, at most ``MAX_STEPS``. A trace that
    spans midnight counts on each day, with the messages published that day. Durations are measured
    from the first publish to the last settlement. ``buckets`` (number -> traces) can be added up
    over days: bucket n counts durations up to ``BUCKET_BASE`` ** n milliseconds. Percentiles are
    those of the buckets, within 1 %.
    """
    columns = sums(counts, ["day", "path", "bucket"]).columns
    by_path: dict[tuple[int, str], dict[int, int]] = defaultdict(dict)
    for day, path, bucket, traces in zip(*(c.to_pylist() for c in columns), strict=True):
        by_path[day, path][bucket] = traces
    ranked: dict[int, list[tuple[int, str, dict[int, int]]]] = defaultdict(list)
    for (day, path), buckets in by_path.items():
        ranked[day].append((-sum(buckets.values()), path, buckets))
    rows = [
        {
            "date": day,
            "path": json.loads(f"[{path}]"),
            "traces": -negative,
            "p50_ms": bucket_percentile(buckets, -negative * 0.5),
            "p95_ms": bucket_percentile(buckets, -negative * 0.95),
            "buckets": sorted(buckets.items()),
        }
        for day, paths in ranked.items()
        for negative, path, buckets in sorted(paths, key=lambda p: p[:2])[:MAX_PATHS]
    ]
    return pa.Table.from_pylist(rows, arrow_schema(METRIC_COLUMNS["paths"]))
