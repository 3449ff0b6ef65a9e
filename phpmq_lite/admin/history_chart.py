"""The chart of settled messages over time, whose columns link to the history page."""

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final, NamedTuple

from phpmq_lite.admin import formats, trends
from phpmq_lite.admin.charts import AxisMark, linear_scale, time_marks
from phpmq_lite.admin.http.context import Context
from phpmq_lite.admin.trends import Trend, TrendPeriod, first_bucket_s, gather_points, sum_buckets
from phpmq_lite.durations import DAY_S, HOUR_S
from phpmq_lite.model import OUTCOMES
from phpmq_lite.storage.read.activity import COUNTS, Point, UptimeSpan

_OUTCOMES: Final = tuple(OUTCOMES)
_PLACES: Final = tuple(map(COUNTS.index, OUTCOMES))
_STEPS_S: Final = {"1h": 180, "24h": HOUR_S, "7d": 6 * HOUR_S, "30d": DAY_S}
SPANS: Final = {key: trends.PERIODS[key]._replace(step_s=step) for key, step in _STEPS_S.items()}
INSET: Final = 5.0  # percentage of the width occupied by the axis labels on the left
_GAP: Final = 0.12  # space on each side of a column, as a fraction of the slice's width
_LEAST: Final = 1.0  # minimum height of a nonzero bar, as a percentage
_FIRST_MS: Final = -62_135_596_800_000  # start of year 1, the earliest time that Python supports
_LAST_MS: Final = 253_402_300_799_999


class HistorySlice(NamedTuple):
    """A time slice; ``counts`` has an entry per outcome, or is None if there is no data."""

    start_s: int  # Unix seconds
    end_s: int  # Unix seconds, exclusive
    counts: tuple[int, ...] | None


class HistoryBar(NamedTuple):
    """A segment of a column; ``x``, ``y``, ``width`` and ``height`` are percentages."""

    key: str  # outcome that the segment represents
    x: float
    y: float
    width: float
    height: float


class HistoryColumn(NamedTuple):
    """The column for a slice; its link leads to the messages between ``since`` and ``until``."""

    x: float
    width: float
    when: str
    title: str
    since: str
    until: str
    bars: Sequence[HistoryBar]
    cells: Sequence[str]  # cells of the table row; empty if there is no data
    is_chosen: bool


class ChosenShade(NamedTuple):
    """The shaded area for the chosen period; values are percentages of the chart's width."""

    x: float
    width: float


@dataclass(slots=True, frozen=True)
class HistoryChart:
    """The complete chart; ``about`` is a description for screen readers."""

    span: TrendPeriod
    outcomes: Sequence[str]
    sums: Sequence[str]  # total number of messages by outcome
    columns: Sequence[HistoryColumn]
    scale: Sequence[AxisMark]
    times: Sequence[AxisMark]
    shade: ChosenShade | None
    about: str
    nothing: str  # text shown if there is nothing to plot; otherwise empty


class ChosenPeriod(NamedTuple):
    """The period chosen for the list, in Unix ms; None means unbounded."""

    since: int | None = None
    until: int | None = None


def count_slices(
    points: Iterable[Point], beats: Iterable[UptimeSpan], span: TrendPeriod, now_s: int
) -> list[HistorySlice]:
    """Count settled messages per slice; a point that overlaps two slices is divided between them.

    If the broker was running, a slice without points has counts of zero.  However, it has no data
    if the queue may have been counted in the combined point for other queues.
    """
    start_s, step_s = first_bucket_s(span, now_s), span.step_s
    return [
        HistorySlice(
            start_s + at * step_s,
            start_s + (at + 1) * step_s,
            tuple(round(sums.counts[place]) for place in _PLACES) if sums.has_data else None,
        )
        for at, sums in enumerate(sum_buckets(points, beats, span, now_s, with_times=False))
    ]


# -- drawing


def draw_history(
    slices: Sequence[HistorySlice],
    span: TrendPeriod,
    now_s: int,
    chosen: ChosenPeriod,
    outcome: str | None = None,
) -> HistoryChart:
    """Draw the slices for one outcome or for all outcomes."""
    outcomes = (outcome,) if outcome else _OUTCOMES
    selected = [
        None if part.counts is None else [part.counts[_OUTCOMES.index(key)] for key in outcomes]
        for part in slices
    ]
    measured = [counts for counts in selected if counts is not None]
    top, scale = linear_scale(max(map(sum, measured), default=0), least_step=1)
    width = (100 - INSET) / len(slices)
    word = outcome or "settled"

    def column(x: float, part: HistorySlice, counts: Sequence[int] | None) -> HistoryColumn:
        when = format_period(part.start_s * 1_000, part.end_s * 1_000, now_s * 1_000)
        text = "no data" if counts is None else f"{formats.format_number(sum(counts))} {word}"
        bars, below = [], 100.0
        for key, count in zip(outcomes, counts or [0] * len(outcomes), strict=True):
            if count:
                height = max(_LEAST, 100 * count / top)
                below -= height
                place = x + _GAP * width, below, width * (1 - 2 * _GAP), height
                bars.append(HistoryBar(key, *place))
        return HistoryColumn(
            x,
            width,
            when,
            f"{when}: {text}",
            _text(part.start_s),
            _text(part.end_s),
            bars,
            [formats.format_number(count) for count in counts or ()],
            chosen == (part.start_s * 1_000, part.end_s * 1_000),
        )

    columns = [
        column(INSET + at * width, part, counts)
        for at, (part, counts) in enumerate(zip(slices, selected, strict=True))
    ]
    sums = [sum(column) for column in zip(*measured, strict=True)] or [0] * len(outcomes)
    marks = time_marks(Trend(span, slices[0].start_s, [None] * len(slices)))
    times = [mark._replace(at=round(INSET + mark.at * (100 - INSET) / 100, 2)) for mark in marks]
    nothing = "" if any(sums) else f"No {word} messages in this period."
    return HistoryChart(
        span,
        outcomes,
        [formats.format_number(count) for count in sums],
        columns,
        scale,
        times,
        _shade(slices, chosen),
        _about(columns, outcomes, sums, selected),
        nothing if measured else "No data for this period.",
    )


def _shade(slices: Sequence[HistorySlice], chosen: ChosenPeriod) -> ChosenShade | None:
    """Return the shading for the chosen period, or None if none is chosen or visible."""
    first_ms, last_ms = slices[0].start_s * 1_000, slices[-1].end_s * 1_000
    since = first_ms if chosen.since is None else max(first_ms, chosen.since)
    until = last_ms if chosen.until is None else min(last_ms, chosen.until)
    if chosen == (None, None) or since >= until:
        return None
    share = (100 - INSET) / (last_ms - first_ms)
    return ChosenShade(INSET + share * (since - first_ms), share * (until - since))


def _about(
    columns: Sequence[HistoryColumn],
    outcomes: Sequence[str],
    sums: Sequence[int],
    selected: Sequence[Sequence[int] | None],
) -> str:
    parts = [
        f"{formats.format_number(count)} {key}" for key, count in zip(outcomes, sums, strict=True)
    ]
    text = f"{len(columns)} steps. {', '.join(parts)}."
    highest = max(range(len(columns)), key=lambda at: sum(selected[at] or ()))
    if any(sums):
        text += f" Highest count in {columns[highest].title}."
    missing = sum(counts is None for counts in selected)
    return text + (f" No data for {missing} steps." if missing else "")


def _text(at_s: int) -> str:
    """Format a UTC time for a link, in the format of ``<input type=datetime-local>``."""
    return datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%dT%H:%M")


# -- formatting


def format_period(since_ms: int, until_ms: int, now_ms: int) -> str:
    """Format a period, as in ``14:00 to 15:00``, ``Nov 20, 23:00 to 24:00`` or ``Nov 20``."""
    since, until, now = _at(since_ms), _at(until_ms), _at(now_ms)
    midnight = until.time() == datetime.min.time()
    next_day = since.date() != datetime.max.date() and since.date() + timedelta(1) == until.date()
    if midnight and next_day and since.time() == until.time():
        return _day(since, now)
    if midnight and next_day:
        end = "24:00"
    elif since.date() == until.date():
        end = _clock(until)
    else:
        end = f"{_day(until, now)}, {_clock(until)}"
    return f"{_moment(since, now)} to {end}"


def format_chosen(chosen: ChosenPeriod, now_ms: int) -> str:
    """Format the chosen period, or return an empty string if none is chosen."""
    since, until = chosen
    if since is not None and until is not None:
        return f"{format_period(since, until, now_ms)} UTC"
    if since is not None:
        return f"Since {_moment(_at(since), _at(now_ms))} UTC"
    return "" if until is None else f"Before {_moment(_at(until), _at(now_ms))} UTC"


def _at(ms: int) -> datetime:
    return datetime.fromtimestamp(min(max(ms, _FIRST_MS), _LAST_MS) / 1_000, UTC)


def _moment(at: datetime, now: datetime) -> str:
    return _clock(at) if at.date() == now.date() else f"{_day(at, now)}, {_clock(at)}"


def _day(at: datetime, now: datetime) -> str:
    return f"{at:%b} {at.day}" + ("" if at.year == now.year else f" {at.year}")


def _clock(at: datetime) -> str:
    return at.strftime("%H:%M:%S" if at.second else "%H:%M")


async def read_slices(context: Context, queue_id: int, span: TrendPeriod) -> list[HistorySlice]:
    """Count the messages settled in each slice of a span that ends now; ALL means all queues."""
    now_s = context.now_ms() // 1_000
    points, beats = await gather_points(context, queue_id, first_bucket_s(span, now_s))
    return await asyncio.to_thread(count_slices, points, beats, span, now_s)
