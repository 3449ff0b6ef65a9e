"""Charts and their numbers, made from the steps of a summary.  Pure.

A step without a row had nothing to count; the last one ends with the summary, not with now.
Counts of a bucket are sums.  Percentiles cannot be added up, so of them, as of the longest times,
a bucket has the highest one of its minutes or hours, and of its queues.
"""

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Final, NamedTuple

from phpmq_lite.admin import charts, formats
from phpmq_lite.admin.charts import Chart, Series, Table
from phpmq_lite.admin.insights.summary import COUNTS, TIMES, Figures, QueueTotals, Step, Summary
from phpmq_lite.admin.trends import SPANS, Bucket, Span, Trend

_ROW_S: Final = {"24h": 60, "30d": 3_600}  # what a row of the summary stands for
_SEEN: Final = Bucket()


class Drawn(NamedTuple):
    """The charts of a span, and their numbers."""

    span: Span
    charts: tuple[Chart, ...]
    table: Table
    until: str  # the end of the span: "Nov 21, 22:40 UTC"
    step: str  # how long a bucket is: "6 min"


def steps_of(summary: Summary, key: str, queue: str = "") -> Sequence[Step]:
    """Give the rows of a span, of one queue or of all."""
    steps = summary.last24h if key == "24h" else summary.last30d
    return [step for step in steps if step.queue == queue] if queue else steps


def draw(summary: Summary, key: str, queue: str = "") -> Drawn:
    """Draw one queue, or all of them together, over a span that ended with the summary."""
    span, now_s, row_s = SPANS[key], summary.finished_at // 1_000, _ROW_S[key]
    count = span.length_s // span.step_s
    start_s = (now_s // row_s + 1) * row_s - span.length_s  # so that the last bucket is full
    sums: list[_Sum] = [_Sum() for _ in range(count)]
    for step in steps_of(summary, key, queue):
        at = (step.at_ms // 1_000 - start_s) // span.step_s
        if 0 <= at < count:
            sums[at].add(step)
    trend = Trend(span, start_s, [_SEEN] * count)
    length = formats.duration(span.step_s * 1_000)
    until = f"{datetime.fromtimestamp(now_s, UTC):%b %-d, %H:%M} UTC"
    when = f"The {span.title} up to {until}, in steps of {length}."
    came, lost, waits, holds = _came(sums), _lost(sums), _times(sums, "wait"), _times(sums, "hold")
    drawn = (
        charts.draw("flow", f"Messages per {length}", trend, came, when=when),
        charts.draw("lost", f"Not acked, or again, per {length}", trend, lost, when=when),
        charts.draw("waits", "Wait for a consumer", trend, waits, are_times=True, when=when),
        charts.draw("holds", "Held by consumers", trend, holds, are_times=True, when=when),
    )
    times = [
        one._replace(title=f"{what}, {one.title.lower()}")
        for what, some in (("Wait", waits), ("Hold", holds))
        for one in some
    ]
    return Drawn(span, drawn, charts.table_of(trend, [*came, *lost], times), until, length)


class _Sum:
    """What one bucket has."""

    __slots__ = ("counts", "times")

    def __init__(self) -> None:
        self.counts = dict.fromkeys(COUNTS, 0)
        self.times: dict[str, float] = {}

    def add(self, step: Figures) -> None:
        for name in COUNTS:
            self.counts[name] += getattr(step, name)
        for name in TIMES:
            value = getattr(step, name)
            if value is not None:
                self.times[name] = max(value, self.times.get(name, 0.0))


def _counted(sums: Sequence[_Sum], name: str) -> list[float | None]:
    return [one.counts[name] for one in sums]


def _came(sums: Sequence[_Sum]) -> list[Series]:
    return [
        Series("in", "Published", _counted(sums, "published"), has_area=True),
        Series("given", "Dispatched", _counted(sums, "dispatched")),
        Series("out", "Acked", _counted(sums, "acked")),
    ]


def _lost(sums: Sequence[_Sum]) -> list[Series]:
    return [
        Series("dead", "Dead", _counted(sums, "dead")),
        Series("expired", "Expired", _counted(sums, "expired")),
        Series("deleted", "Deleted", _counted(sums, "deleted")),
        Series("again", "Redelivered", _counted(sums, "redelivered"), is_dashed=True),
    ]


_LINES: Final = (("p50", "Median"), ("p95", "95 %"), ("p99", "99 %"), ("max", "Longest"))


def _times(sums: Sequence[_Sum], what: str) -> list[Series]:
    return [
        Series(key, title, [one.times.get(f"{what}_{key}") for one in sums], is_dashed=key == "max")
        for key, title in _LINES
    ]


# -- one row a queue


def queue_totals(steps: Iterable[Step]) -> list[QueueTotals]:
    """Sum up the steps by queue, the one with the most messages first."""
    sums: dict[str, _Sum] = {}
    for step in steps:
        sums.setdefault(step.queue, _Sum()).add(step)
    rows = [
        QueueTotals.model_validate({"queue": name} | one.counts | one.times)
        for name, one in sums.items()
    ]
    rows.sort(key=lambda row: (-row.published - row.settled, row.queue))
    return rows
