"""Pure functions that compute charts and totals from a pipeline summary."""

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Final, NamedTuple

from phpmq_lite.admin import charts, formats
from phpmq_lite.admin.charts import Chart, ChartSeries, ChartTable
from phpmq_lite.admin.trends import SPANS, Trend, TrendBucket, TrendPeriod
from phpmq_lite.durations import HOUR_S, MINUTE_S
from phpmq_lite.insights_document import (
    COUNTS,
    TIMES,
    PipelineSummary,
    QueueTotals,
    StepFigures,
    SummaryStep,
)

_ROW_S: Final = {
    "24h": MINUTE_S,
    "30d": HOUR_S,
}  # number of seconds covered by a row of the summary


class InsightsCharts(NamedTuple):
    """The charts for a time span, and a table of the same numbers."""

    span: TrendPeriod
    charts: tuple[Chart, ...]
    table: ChartTable
    until: str  # end of the span, such as "Nov 21, 22:40 UTC"
    step: str  # length of a bucket, such as "6 min"


def steps_of(summary: PipelineSummary, key: str, queue: str = "") -> Sequence[SummaryStep]:
    """Return a span's summary rows, for one queue or for all queues."""
    steps = summary.last24h if key == "24h" else summary.last30d
    return [step for step in steps if step.queue == queue] if queue else steps


def draw_insights(summary: PipelineSummary, key: str, queue: str = "") -> InsightsCharts:
    """Draw charts for one queue or all queues combined, ending when the summary was completed."""
    span, now_s, row_s = SPANS[key], summary.finished_at // 1_000, _ROW_S[key]
    count = span.length_s // span.step_s
    start_s = (now_s // row_s + 1) * row_s - span.length_s  # so that the last bucket is complete
    sums = [_BucketSums() for _ in range(count)]
    for step in steps_of(summary, key, queue):
        at = (step.at_ms // 1_000 - start_s) // span.step_s
        if 0 <= at < count:
            sums[at].add(step)
    trend = Trend(span, start_s, [TrendBucket()] * count)
    length = formats.format_duration(span.step_s * 1_000)
    until = f"{datetime.fromtimestamp(now_s, UTC):%b %-d, %H:%M} UTC"
    when = f"The {span.title} up to {until}, in steps of {length}."

    def line(
        key: str, count: str, *, has_area: bool = False, is_dashed: bool = False
    ) -> ChartSeries:
        values = [bucket.counts[count] for bucket in sums]
        return ChartSeries(key, count.capitalize(), values, has_area, is_dashed)

    flow = [
        line("in", "published", has_area=True),
        line("given", "dispatched"),
        line("out", "acked"),
    ]
    loss = [
        line("dead", "dead"),
        line("expired", "expired"),
        line("deleted", "deleted"),
        line("again", "redelivered", is_dashed=True),
    ]
    waits, holds = _times(sums, "wait"), _times(sums, "hold")
    figures = (
        charts.draw_lines("flow", f"Messages per {length}", trend, flow, when=when),
        charts.draw_lines("lost", f"Lost or redelivered per {length}", trend, loss, when=when),
        charts.draw_lines("waits", "Wait for a consumer", trend, waits, charts.TIME, when),
        charts.draw_lines("holds", "Held by consumers", trend, holds, charts.TIME, when),
    )
    columns = [
        *((charts.COUNT, series) for series in (*flow, *loss)),
        *((charts.TIME, series) for series in (*waits, *holds)),
    ]
    return InsightsCharts(span, figures, charts.make_table(trend, columns), until, length)


class _BucketSums:
    __slots__ = ("counts", "times")

    def __init__(self) -> None:
        self.counts = dict.fromkeys(COUNTS, 0)
        self.times: dict[str, float] = {}

    def add(self, step: StepFigures) -> None:
        for name in COUNTS:
            self.counts[name] += getattr(step, name)
        for name in TIMES:
            value = getattr(step, name)
            if value is not None:
                self.times[name] = max(value, self.times.get(name, 0.0))


def _times(sums: Sequence[_BucketSums], what: str) -> list[ChartSeries]:
    return [
        ChartSeries(
            key,
            title,
            [bucket.times.get(f"{what}_{key}") for bucket in sums],
            is_dashed=key == "max",
            column=f"{what.capitalize()}, {title.lower()}",
        )
        for key, title in (("p50", "Median"), ("p95", "95 %"), ("p99", "99 %"), ("max", "Longest"))
    ]


# -- one row per queue


def queue_totals(steps: Iterable[SummaryStep]) -> list[QueueTotals]:
    """Return each queue's totals, sorted by published plus settled messages, highest first."""
    sums: dict[str, _BucketSums] = {}
    for step in steps:
        sums.setdefault(step.queue, _BucketSums()).add(step)
    rows = [
        QueueTotals.model_validate({"queue": name} | total.counts | total.times)
        for name, total in sums.items()
    ]
    rows.sort(key=lambda row: (-row.published - row.settled, row.queue))
    return rows
