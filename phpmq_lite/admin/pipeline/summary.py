"""The summary that the pipeline writes: the file that stores it, its charts and totals."""

import asyncio
import json
import os
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, NamedTuple, NoReturn

from aiohttp import web
from pydantic import ValidationError

from phpmq_lite.admin import charts, formats
from phpmq_lite.admin.charts import Chart, ChartSeries, ChartTable
from phpmq_lite.admin.trends import PERIODS, Trend, TrendBucket, TrendPeriod
from phpmq_lite.durations import DAY_S, HOUR_S
from phpmq_lite.errors import StorageError
from phpmq_lite.insights_document import (
    COUNTS,
    OTHER_QUEUES,
    SUMMARY_BYTES,
    TIMES,
    PipelineSummary,
    QueueTotals,
    StepFigures,
    SummaryStep,
    TracePath,
    encode,
    merge_summaries,
)
from phpmq_lite.settings.loading import describe_error
from phpmq_lite.storage.atomic_files import PRIVATE_FOLDER, write_whole
from phpmq_lite.storage.read.activity import QUARTER_S


def read_summary(raw: bytes) -> PipelineSummary:
    """Parse a summary, which takes about 30 ms for 2 MiB.

    Raises:
        ValueError: the summary is not JSON or is invalid; the text names the member and the bound.
    """
    try:
        return PipelineSummary.model_validate(_read(raw))
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise ValueError(describe_error(where, first)) from None


def _read(raw: bytes) -> object:
    def refuse(word: str) -> NoReturn:
        raise ValueError(f"the content is not valid JSON: {word} is not allowed")

    try:
        return json.loads(raw.decode(), parse_constant=refuse)
    except RecursionError:
        raise ValueError("the content is nested too deeply") from None
    except UnicodeDecodeError:
        raise ValueError("the content is not valid UTF-8") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"the content is not valid JSON: {error}") from None


def _merged(stored: bytes, raw: bytes) -> bytes:
    """Merge valid figures into the stored ones; if those are invalid or too much, drop them."""
    try:
        read_summary(stored)
    except ValueError:
        return raw
    document = json.loads(raw)
    merged = merge_summaries(json.loads(stored), document)
    if merged == document:
        return raw
    text = encode(merged).encode()
    return text if len(text) <= SUMMARY_BYTES else raw


def visible_to(
    summary: PipelineSummary, allow: Callable[[str], bool], queues: Iterable[str] = ()
) -> PipelineSummary:
    """Return the parts of the summary about queues visible to the caller, without combined rows.

    Only paths whose steps all belong to allowed queues remain.  A step belongs to the queue with
    the longest name, in the summary or in ``known``, that the step begins with.
    """
    names = sorted({*summary.queues(), *queues}, key=len, reverse=True)

    def is_shown(part: Any) -> bool:
        return part.queue != OTHER_QUEUES and allow(part.queue)

    def is_walked(path: TracePath) -> bool:
        queues = (
            next((name for name in names if f"{step}:".startswith(f"{name}:")), "")
            for step in path.path
        )
        return all(queue and allow(queue) for queue in queues)

    return summary.model_copy(
        update={
            "last24h": tuple(filter(is_shown, summary.last24h)),
            "last30d": tuple(filter(is_shown, summary.last30d)),
            "urns": tuple(filter(is_shown, summary.urns)),
            "deaths": tuple(filter(is_shown, summary.deaths)),
            "expiries": tuple(filter(is_shown, summary.expiries)),
            "paths": tuple(filter(is_walked, summary.paths)),
            "jobs": tuple(job.model_copy(update={"error": None}) for job in summary.jobs),
        }
    )


FOLDER: Final = "pipeline"
NAME: Final = "summary.json"


class BadSummaryError(Exception):
    """Raised if the summary file exists but cannot be used; the text says why."""


class SummaryFile:
    """The summary file and its parsed content, which is cached until the file changes.

    The file is the source of truth, because pipeline jobs on this machine also write it.
    """

    def __init__(self, data: Path) -> None:
        self.path = data / FOLDER / NAME
        # the file's inode, time and size, and its content
        self._cached: tuple[tuple[int, int, int], PipelineSummary | BadSummaryError] | None = None
        self._writing = threading.Lock()  # all writers use the same temporary file

    async def read(self) -> PipelineSummary | None:
        """Return the summary, or None if there is none; raise BadSummaryError if it is invalid."""
        return await asyncio.to_thread(self._read)

    async def write(self, raw: bytes) -> None:
        """Merge a valid summary into the file, atomically; raise StorageError if that fails."""
        await asyncio.to_thread(self._write, raw)

    def _write(self, raw: bytes) -> None:
        try:
            with self._writing:
                self.path.parent.mkdir(mode=PRIVATE_FOLDER, exist_ok=True)
                with suppress(FileNotFoundError):
                    raw = _merged(self.path.read_bytes(), raw)
                write_whole(self.path, raw)
        except OSError as error:
            raise StorageError(f"{self.path} cannot be written: {error.strerror}") from error

    def _read(self) -> PipelineSummary | None:
        try:
            with self.path.open("rb") as file:
                stat = os.fstat(file.fileno())
                stamp = stat.st_ino, stat.st_mtime_ns, stat.st_size
                cached = self._cached
                if cached is None or cached[0] != stamp:
                    cached = self._cached = stamp, _parse_summary(file.read(SUMMARY_BYTES + 1))
        except FileNotFoundError:
            return None
        except OSError as error:
            raise BadSummaryError(f"the file cannot be read: {error.strerror}") from error
        if isinstance(cached[1], BadSummaryError):
            raise BadSummaryError(str(cached[1]))
        return cached[1]


def _parse_summary(raw: bytes) -> PipelineSummary | BadSummaryError:
    if len(raw) > SUMMARY_BYTES:
        return BadSummaryError(f"the file is larger than {SUMMARY_BYTES} bytes")
    try:
        return read_summary(raw)
    except ValueError as error:
        return BadSummaryError(str(error))


SUMMARIES: Final = web.AppKey("summaries", SummaryFile)


# -- charts and totals


# The period that a chart covers, by its name in URLs, and the seconds covered by a row.
_PERIODS: Final = {
    "24h": (TrendPeriod("24h", "24 h", DAY_S, QUARTER_S), QUARTER_S),
    "30d": (PERIODS["30d"], HOUR_S),
}


class InsightsCharts(NamedTuple):
    """The charts for a time span, and a table of the same numbers."""

    span: TrendPeriod
    charts: tuple[Chart, ...]
    table: ChartTable
    until: str  # end of the span, such as "Nov 21, 22:40 UTC"
    step: str  # length of a bucket, such as "6 min"


def steps_of(summary: PipelineSummary, queue: str = "") -> Sequence[SummaryStep]:
    """Return the rows of the last 30 days, for one queue or for all queues."""
    return [step for step in summary.last30d if queue in ("", step.queue)]


def draw_insights(steps: Iterable[SummaryStep], key: str, end_ms: int) -> InsightsCharts:
    """Draw charts of all steps combined in the period that ends with the hour or quarter hour."""
    (period, row_s), now_s = _PERIODS[key], end_ms // 1_000
    count = period.length_s // period.step_s
    start_s = (now_s // row_s + 1) * row_s - period.length_s  # so that the last bucket is complete
    sums = [_BucketSums() for _ in range(count)]
    for step in steps:
        at = (step.at_ms // 1_000 - start_s) // period.step_s
        if 0 <= at < count:
            sums[at].add(step)
    trend = Trend(period, start_s, [TrendBucket()] * count)
    length = formats.format_duration(period.step_s * 1_000)
    until = f"{datetime.fromtimestamp(now_s, UTC):%b %-d, %H:%M} UTC"
    when = f"The {period.title} up to {until}, in steps of {length}."

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
    drawn = (
        charts.draw_lines("flow", f"Messages per {length}", trend, flow, when=when),
        charts.draw_lines("lost", f"Lost or redelivered per {length}", trend, loss, when=when),
        charts.draw_lines("waits", "Wait for a consumer", trend, waits, charts.TIME, when),
        charts.draw_lines("holds", "Held by consumers", trend, holds, charts.TIME, when),
    )
    columns = [
        *((charts.COUNT, series) for series in (*flow, *loss)),
        *((charts.TIME, series) for series in (*waits, *holds)),
    ]
    return InsightsCharts(period, drawn, charts.make_table(trend, columns), until, length)


class _BucketSums:
    __slots__ = ("counts", "times")

    def __init__(self) -> None:
        self.counts = dict.fromkeys(COUNTS, 0)
        self.times: dict[str, float] = {}

    def add(self, step: StepFigures) -> None:
        for name in COUNTS:
            self.counts[name] += getattr(step, name) or 0
        for name in TIMES:
            value = getattr(step, name)
            if value is not None:
                self.times[name] = max(value, self.times.get(name, 0.0))


def _times(sums: Sequence[_BucketSums], kind: str) -> list[ChartSeries]:
    return [
        ChartSeries(
            key,
            title,
            [bucket.times.get(f"{kind}_{key}") for bucket in sums],
            is_dashed=key == "max",
            column=f"{kind.capitalize()}, {title.lower()}",
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
