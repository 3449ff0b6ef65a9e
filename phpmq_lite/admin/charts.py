"""Draws the lines, axes and tables of charts from a trend.  Pure."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final, NamedTuple

from phpmq_lite.admin import formats
from phpmq_lite.admin.trends import Trend, TrendBucket

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


@dataclass(slots=True, frozen=True)
class ChartLine:
    """A line, split into runs at gaps; ``runs`` and ``areas`` contain SVG ``points``."""

    key: str  # CSS class of the line
    title: str
    shown: str  # newest value, formatted for display
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


class ChartSeries(NamedTuple):
    """The data of a line: a value for each bucket, or None where there is a gap.

    ``key`` is the CSS class of the line.
    """

    key: str
    title: str
    values: Sequence[BucketValue]
    has_area: bool = False
    is_dashed: bool = False


def draw_depth(trend: Trend, records: Trend | None = None) -> Chart:
    """Draw a chart of a queue's messages by state; ``records`` adds its dead letters."""
    return draw_lines("depth", "Depth", trend, _depths(trend, records))


def draw_rates(trend: Trend) -> Chart:
    """Draw a chart of the messages published and settled per second."""
    return draw_lines("rates", "Rates/s", trend, _rates(trend), formats.format_rate)


def draw_waits(trend: Trend) -> Chart:
    """Draw a chart of wait times until the first dispatch and of the oldest message's age.

    A stalled queue has no wait times, but the age of its oldest message is still drawn.
    """
    return draw_lines("waits", "Wait for a consumer", trend, _waits(trend), format_ms)


def draw_holds(trend: Trend) -> Chart:
    """Draw a chart of the time from dispatch to settlement."""
    return draw_lines("holds", "Held by consumers", trend, _holds(trend), format_ms)


def format_count(value: float) -> str:
    """Format a count, or the mark of an axis for counts or rates."""
    return formats.format_number(round(value)) if value == round(value) else f"{value:g}"


def format_ms(value: float) -> str:
    """Format a time in milliseconds."""
    return formats.format_duration(round(value), with_seconds=False)


def draw_lines(
    key: str,
    title: str,
    trend: Trend,
    series: Sequence[ChartSeries],
    write: FormatValue = format_count,
    when: str = "",
) -> Chart:
    """Draw a chart with a line for each series; a series has a value for each bucket.

    The axis is logarithmic if ``write`` is ``format_ms``, otherwise linear.  ``when`` describes the
    period; if it is empty, the description begins with "The last …".
    """
    known = [value for one in series for value in one.values if value is not None]
    scale = _Logarithmic(known) if write is format_ms else _Linear(known)
    return Chart(
        key, title, _about(series, trend, write, when),
        [_line(one, scale, write) for one in series],
        time_marks(trend), scale.marks, STEP * len(trend.buckets), not known,
    )  # fmt: skip


def _depths(trend: Trend, records: Trend | None) -> list[ChartSeries]:
    made = [
        ChartSeries("ready", "Ready", _each(trend, lambda b: b.ready), has_area=True),
        ChartSeries("dispatched", "Dispatched", _each(trend, lambda b: b.held)),
    ]
    if records is not None and any(bucket and bucket.ready for bucket in records.buckets):
        made.append(ChartSeries("dead", "Dead letters", _each(records, lambda b: b.ready)))
    return made


def _rates(trend: Trend) -> list[ChartSeries]:
    made = [
        ChartSeries("in", "Published", _each(trend, lambda b: b.published), has_area=True),
        ChartSeries("out", "Acked", _each(trend, lambda b: b.acked)),
    ]
    others = _each(trend, lambda b: b.expired + b.dead + b.deleted)
    if any(others):
        made.append(ChartSeries("dead", "Not acked", others))
    return made


def _waits(trend: Trend) -> list[ChartSeries]:
    return [
        ChartSeries("p50", "Median", _each(trend, lambda b: b.wait_p50_ms)),
        ChartSeries("p95", "95 %", _each(trend, lambda b: b.wait_p95_ms)),
        ChartSeries("age", "Oldest ready", _each(trend, lambda b: b.oldest_age_ms), is_dashed=True),
    ]


def _holds(trend: Trend) -> list[ChartSeries]:
    return [
        ChartSeries("p50", "Median", _each(trend, lambda b: b.hold_p50_ms)),
        ChartSeries("p95", "95 %", _each(trend, lambda b: b.hold_p95_ms)),
    ]


def _each(trend: Trend, pick: Callable[[TrendBucket], BucketValue]) -> list[BucketValue]:
    return [None if bucket is None else pick(bucket) for bucket in trend.buckets]


# -- lines


def _line(one: ChartSeries, scale: "_Linear | _Logarithmic", write: FormatValue) -> ChartLine:
    newest = next((value for value in reversed(one.values) if value is not None), None)
    is_current = newest is not None and any(value is not None for value in one.values[-3:])
    runs, areas = [], []
    for start, values in _split_at_gaps(one.values):
        left = start * STEP + STEP // 2
        if len(values) == 1:  # a line requires two points
            left, values = start * STEP, values * 2
        places = [f"{left + at * STEP},{scale.place(value):.1f}" for at, value in enumerate(values)]
        runs.append(" ".join(places))
        if one.has_area:
            right = left + (len(values) - 1) * STEP
            areas.append(f"{left},{HEIGHT} {runs[-1]} {right},{HEIGHT}")
    shown = write(newest) if is_current and newest is not None else formats.DASH
    return ChartLine(one.key, one.title, shown, runs, areas, one.is_dashed)


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
    said = []
    for one in series:
        known = [value for value in one.values if value is not None]
        if known:
            said.append(
                f"{one.title}: from {write(min(known))} to {write(max(known))}, "
                f"last {write(known[-1])}."
            )
    missing = sum(bucket is None for bucket in trend.buckets)
    if missing and said:
        said.append(f"No data for {missing} of {len(trend.buckets)} steps.")
    when = when or f"The last {trend.span.title}."
    return f"{when} " + (" ".join(said) or "Nothing was measured.")


# -- axes


class _Linear:
    """A linear scale from zero to a round number at or above the highest value."""

    def __init__(self, values: Sequence[float]) -> None:
        self._top, self.marks = linear_scale(max(values, default=0.0))

    def place(self, value: float) -> float:
        """Return the distance of a value from the top of the plot, in plot units."""
        return HEIGHT - HEIGHT * min(value, self._top) / self._top


_TIMES_MS: Final = (
    1, 10, 100, 1_000, 10_000, 60_000, 600_000, 3_600_000, 6 * 3_600_000, 86_400_000,
    10 * 86_400_000, 100 * 86_400_000, 1_000 * 86_400_000, 10_000 * 86_400_000,
    100_000 * 86_400_000,
)  # fmt: skip


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
        """Return the distance of a value from the top of the plot, in plot units."""
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


_EVERY_S: Final = {"1h": 600, "24h": 4 * 3_600, "7d": 2 * 86_400, "30d": 7 * 86_400}


def time_marks(trend: Trend) -> list[AxisMark]:
    """Return marks for a time axis, at round UTC times that are not too close to its ends."""
    every, start, length = _EVERY_S[trend.span.key], trend.start_s, trend.end_s - trend.start_s
    pattern = "%H:%M" if every < 86_400 else "%b %-d"
    marks = []
    for at_s in range(-(-start // every) * every, trend.end_s + 1, every):
        share = 100 * (at_s - start) / length
        if 4 <= share <= 96:
            at = datetime.fromtimestamp(at_s, UTC)
            marks.append(AxisMark(round(share, 2), at.strftime(pattern), _iso(at)))
    return marks


def _iso(at: datetime) -> str:
    return at.isoformat().replace("+00:00", "Z")


# -- tables


def trend_table(
    trend: Trend, *, records: Trend | None = None, with_times: bool = False
) -> ChartTable:
    """Return a trend's data as a table; ``with_times`` adds wait and hold times."""
    columns: list[tuple[ChartSeries, FormatValue]] = [
        (one, format_count) for one in _depths(trend, records)
    ]
    columns += [(one, formats.format_rate) for one in _rates(trend)]
    head = [f"{one.title}{'/s' if write is formats.format_rate else ''}" for one, write in columns]
    if with_times:
        waits_, holds_ = _waits(trend), _holds(trend)
        head += ["Wait, median", "Wait, 95 %", "Oldest ready", "Hold, median", "Hold, 95 %"]
        columns += [(one, format_ms) for one in (*waits_, *holds_)]
    return ChartTable(head, _rows(trend, columns))


def lines_table(
    trend: Trend, counts: Sequence[ChartSeries], times: Sequence[ChartSeries]
) -> ChartTable:
    """Return the data drawn by ``draw_lines`` as a table with column titles."""
    columns: list[tuple[ChartSeries, FormatValue]] = [(one, format_count) for one in counts]
    columns += [(one, format_ms) for one in times]
    return ChartTable([one.title for one, _ in columns], _rows(trend, columns))


def _rows(
    trend: Trend, columns: Sequence[tuple[ChartSeries, FormatValue]]
) -> list[tuple[str, str, Sequence[str]]]:
    pattern = "%H:%M:%S" if trend.span.length_s <= 3_600 else "%b %-d, %H:%M"
    rows: list[tuple[str, str, Sequence[str]]] = []
    for at in range(len(trend.buckets) - 1, -1, -1):
        if trend.buckets[at] is None:
            continue
        when = datetime.fromtimestamp(trend.start_s + at * trend.span.step_s, UTC)
        cells = [
            formats.DASH if (value := one.values[at]) is None else write(value)
            for one, write in columns
        ]
        rows.append((_iso(when), when.strftime(pattern), cells))
    return rows
