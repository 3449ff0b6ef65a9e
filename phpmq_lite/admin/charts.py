"""Draws the lines, axes and tables of charts from a trend.  Pure."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final, NamedTuple

from phpmq_lite.admin import formats
from phpmq_lite.admin.trends import Trend, TrendBucket
from phpmq_lite.durations import DAY_S, HOUR_S, MINUTE_S, WEEK_S

STEP: Final = 4  # width of each bucket, in plot units
HEIGHT: Final = 100
_STEPS_MAX: Final = 4  # maximum number of marks above zero on a linear axis
_MARKS_MAX: Final = 5  # maximum number of marks on a logarithmic axis

BucketValue = float | None
FormatValue = Callable[[float], str]


class AxisMark(NamedTuple):
    """A label on an axis, with its distance from the left or top edge as a percentage."""

    at: float
    text: str
    iso: str = ""  # on a time axis, the time in ISO 8601 format
    style: str = ""  # on a time axis, how the browser writes it: clock or day


@dataclass(slots=True, frozen=True)
class ChartLine:
    """A line, split into runs at gaps; ``runs`` and ``areas`` contain SVG ``points``."""

    key: str  # CSS class of the line
    title: str
    newest: str  # newest value, formatted for display
    runs: Sequence[str]
    areas: Sequence[str] = ()
    is_dashed: bool = False


@dataclass(slots=True, frozen=True)
class Chart:
    """A chart; ``about`` is a description for screen readers."""

    key: str
    title: str
    about: str
    lines: Sequence[ChartLine]
    times: Sequence[AxisMark]
    scale: Sequence[AxisMark]
    width: int  # in plot units
    is_empty: bool  # whether there is no data to draw


@dataclass(slots=True, frozen=True)
class ChartTable:
    """The data of a chart as a table, with the newest row first and no rows for gaps."""

    head: Sequence[str]
    rows: Sequence[tuple[str, str, Sequence[str]]]  # (ISO time, displayed time, cells)
    style: str  # how the browser writes the times: second or moment


class ChartSeries(NamedTuple):
    """The data of a line: a value for each bucket, or None where there is a gap.

    ``key`` is the CSS class of the line.
    """

    key: str
    title: str
    values: Sequence[BucketValue]
    has_area: bool = False
    is_dashed: bool = False
    column: str = ""  # title of the table's column, if it differs from that of the line


def format_count(value: float) -> str:
    """Format a count, or the mark of an axis for counts or rates."""
    return formats.format_number(round(value)) if value == round(value) else f"{value:g}"


def format_ms(value: float) -> str:
    return formats.format_duration(round(value), with_seconds=False)


class ValueKind(NamedTuple):
    """What the values of a chart are: how they are written, and how the axis is divided."""

    write: FormatValue
    unit: str = ""  # added to the titles of the table's columns
    is_logarithmic: bool = False


COUNT: Final = ValueKind(format_count)
RATE: Final = ValueKind(formats.format_rate, "/s")
TIME: Final = ValueKind(format_ms, is_logarithmic=True)


class TrendLine(NamedTuple):
    """A line that is drawn from the buckets of a trend."""

    key: str
    title: str
    value: Callable[[TrendBucket], BucketValue]
    column: str = ""
    has_area: bool = False
    is_dashed: bool = False
    is_of_records: bool = False  # whether it shows the trend of the dead-letter queue
    is_optional: bool = False  # whether it is left out if all values are zero


class TrendChart(NamedTuple):
    """A chart that is drawn from a trend."""

    title: str
    kind: ValueKind
    lines: tuple[TrendLine, ...]


# A stalled queue has no wait times, but the age of its oldest message is still drawn.
TREND_CHARTS: Final = {
    "depth": TrendChart("Depth", COUNT, (
        TrendLine("ready", "Ready", lambda bucket: bucket.ready, has_area=True),
        TrendLine("dispatched", "Dispatched", lambda bucket: bucket.held),
        TrendLine("dead", "Dead letters", lambda bucket: bucket.ready,
                  is_of_records=True, is_optional=True),
    )),
    "rates": TrendChart("Rates/s", RATE, (
        TrendLine("in", "Published", lambda bucket: bucket.published, has_area=True),
        TrendLine("out", "Acked", lambda bucket: bucket.acked),
        TrendLine("dead", "Not acked", lambda bucket: bucket.expired + bucket.dead + bucket.deleted,
                  is_optional=True),
    )),
    "waits": TrendChart("Wait for a consumer", TIME, (
        TrendLine("p50", "Median", lambda bucket: bucket.wait_p50_ms, "Wait, median"),
        TrendLine("p95", "95 %", lambda bucket: bucket.wait_p95_ms, "Wait, 95 %"),
        TrendLine("age", "Oldest ready", lambda bucket: bucket.oldest_age_ms, is_dashed=True),
    )),
    "holds": TrendChart("Held by consumers", TIME, (
        TrendLine("p50", "Median", lambda bucket: bucket.hold_p50_ms, "Hold, median"),
        TrendLine("p95", "95 %", lambda bucket: bucket.hold_p95_ms, "Hold, 95 %"),
    )),
}  # fmt: skip


def draw_trend(key: str, trend: Trend, records: Trend | None = None) -> Chart:
    """Draw one of ``TREND_CHARTS``; ``records`` is the trend of the dead-letter queue."""
    chart = TREND_CHARTS[key]
    return draw_lines(key, chart.title, trend, _series(chart, trend, records), chart.kind)


def trend_table(keys: Iterable[str], trend: Trend, records: Trend | None = None) -> ChartTable:
    """Return the data of some of ``TREND_CHARTS`` as a table."""
    charts = [TREND_CHARTS[key] for key in keys]
    return make_table(
        trend, [(chart.kind, line) for chart in charts for line in _series(chart, trend, records)]
    )


def _series(chart: TrendChart, trend: Trend, records: Trend | None) -> list[ChartSeries]:
    series = []
    for line in chart.lines:
        source = records if line.is_of_records else trend
        buckets = () if source is None else source.drawn
        values = [None if bucket is None else line.value(bucket) for bucket in buckets]
        if any(values) or not line.is_optional:
            series.append(
                ChartSeries(
                    line.key, line.title, values, line.has_area, line.is_dashed, line.column
                )
            )
    return series


def draw_lines(
    key: str,
    title: str,
    trend: Trend,
    series: Sequence[ChartSeries],
    kind: ValueKind = COUNT,
    when: str = "",
) -> Chart:
    """Draw a chart with a line for each series; a series has a value for each bucket.

    ``when`` describes the period; if it is empty, the description begins with "The last …".
    """
    values = [value for line in series for value in line.values if value is not None]
    scale = _Logarithmic(values) if kind.is_logarithmic else _Linear(values)
    return Chart(
        key,
        title,
        about=_about(series, trend, kind.write, when),
        lines=[_line(line, scale, kind.write) for line in series],
        times=time_marks(trend),
        scale=scale.marks,
        width=STEP * len(trend.buckets),
        is_empty=not values,
    )


# -- lines


def _line(series: ChartSeries, scale: "_Linear | _Logarithmic", write: FormatValue) -> ChartLine:
    newest = next((value for value in reversed(series.values) if value is not None), None)
    is_current = newest is not None and any(value is not None for value in series.values[-3:])
    runs, areas = [], []
    for start, values in _split_at_gaps(series.values):
        left = start * STEP + STEP // 2
        if len(values) == 1:  # a line requires two points
            left, values = start * STEP, values * 2
        places = [f"{left + at * STEP},{scale.place(value):.1f}" for at, value in enumerate(values)]
        runs.append(" ".join(places))
        if series.has_area:
            right = left + (len(values) - 1) * STEP
            areas.append(f"{left},{HEIGHT} {runs[-1]} {right},{HEIGHT}")
    text = write(newest) if is_current and newest is not None else formats.DASH
    return ChartLine(series.key, series.title, text, runs, areas, series.is_dashed)


def _split_at_gaps(values: Sequence[BucketValue]) -> list[tuple[int, list[float]]]:
    """Split values into runs without gaps; return the start index and values of each run."""
    runs: list[tuple[int, list[float]]] = []
    was_gap = True
    for at, value in enumerate(values):
        if value is not None:
            if was_gap:
                runs.append((at, []))
            runs[-1][1].append(value)
        was_gap = value is None
    return runs


def _about(series: Sequence[ChartSeries], trend: Trend, write: FormatValue, when: str) -> str:
    sentences = []
    for line in series:
        values = [value for value in line.values if value is not None]
        if values:
            sentences.append(
                f"{line.title}: from {write(min(values))} to {write(max(values))}, "
                f"last {write(values[-1])}."
            )
    gaps = sum(bucket is None for bucket in trend.buckets)
    if gaps and sentences:
        sentences.append(f"No data for {gaps} of {len(trend.buckets)} steps.")
    when = when or f"The last {trend.period.title}."
    return f"{when} " + (" ".join(sentences) or "Nothing was measured.")


# -- axes


class _Linear:
    """A linear scale from zero to a round number at or above the highest value."""

    def __init__(self, values: Sequence[float]) -> None:
        self._top, self.marks = linear_scale(max(values, default=0.0))

    def place(self, value: float) -> float:
        """Return the distance of a value from the top of the plot, in plot units."""
        return HEIGHT - HEIGHT * min(value, self._top) / self._top


_TIMES_MS: Final = (
    *(10**at for at in range(5)),
    *(at * MINUTE_S * 1_000 for at in (1, 10, 60, 360)),
    *(10**at * DAY_S * 1_000 for at in range(6)),
)


class _Logarithmic:
    """A logarithmic scale from milliseconds to days; each mark is about ten times the previous."""

    def __init__(self, values: Sequence[float]) -> None:
        low, high = min(values, default=1.0), max(values, default=10.0)
        first = max((at for at, ms in enumerate(_TIMES_MS) if ms <= low), default=0)
        last = next((at for at, ms in enumerate(_TIMES_MS) if ms >= high), len(_TIMES_MS) - 1)
        last = max(last, first + 1)
        self._low = math.log(_TIMES_MS[first])
        self._width = math.log(_TIMES_MS[last]) - self._low
        every = -(-(last - first) // _MARKS_MAX)
        self.marks = [
            AxisMark(self.place(_TIMES_MS[at]), format_ms(_TIMES_MS[at]))
            for at in range(last, first - 1, -every)
        ]

    def place(self, value: float) -> float:
        share = (math.log(max(value, 1.0)) - self._low) / self._width
        return HEIGHT - HEIGHT * min(max(share, 0.0), 1.0)


def linear_scale(highest: float, least_step: float = 0.1) -> tuple[float, list[AxisMark]]:
    """Return the upper end and the marks of an axis that starts at zero."""
    step = max(round_step(highest), least_step)
    count = max(1, math.ceil(highest / step - 1e-9))
    marks = [
        AxisMark(100 - 100 * at / count, format_count(step * at)) for at in range(count, -1, -1)
    ]
    return step * count, marks


def round_step(top: float) -> float:
    """Return the distance between grid lines: a power of ten multiplied by 1, 2 or 5."""
    if top <= 0:
        return 1.0
    raw = top / _STEPS_MAX
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(power * times for times in (1, 2, 5, 10) if power * times >= raw * (1 - 1e-9))
    return max(step, 0.1)


_EVERY_S: Final = {"1h": 600, "24h": 4 * HOUR_S, "7d": 2 * DAY_S, "30d": WEEK_S}


def time_marks(trend: Trend) -> list[AxisMark]:
    """Return marks for a time axis, at round UTC times that are not too close to its ends."""
    every, start, length = _EVERY_S[trend.period.key], trend.start_s, trend.end_s - trend.start_s
    pattern, style = ("%H:%M", "clock") if every < DAY_S else ("%b %-d", "day")
    marks = []
    for at_s in range(-(-start // every) * every, trend.end_s + 1, every):
        share = 100 * (at_s - start) / length
        if 4 <= share <= 96:
            at = datetime.fromtimestamp(at_s, UTC)
            marks.append(AxisMark(round(share, 2), at.strftime(pattern), _iso(at), style))
    return marks


def _iso(at: datetime) -> str:
    return at.isoformat().replace("+00:00", "Z")


# -- tables


def make_table(trend: Trend, columns: Sequence[tuple[ValueKind, ChartSeries]]) -> ChartTable:
    """Return the values of series, each with a value for each bucket, as a table."""
    is_hour = trend.period.length_s <= HOUR_S
    pattern, style = ("%H:%M:%S", "second") if is_hour else ("%b %-d, %H:%M", "moment")
    rows: list[tuple[str, str, Sequence[str]]] = []
    for at in range(len(trend.buckets) - 1, -1, -1):
        if trend.buckets[at] is None:
            continue
        when = datetime.fromtimestamp(trend.start_s + at * trend.period.step_s, UTC)
        cells = [
            formats.DASH if (value := series.values[at]) is None else kind.write(value)
            for kind, series in columns
        ]
        rows.append((_iso(when), when.strftime(pattern), cells))
    head = [f"{series.column or series.title}{kind.unit}" for kind, series in columns]
    return ChartTable(head, rows, style)
