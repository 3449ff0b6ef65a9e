"""The page and API for the pipeline's results."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, Literal

from aiohttp import web
from pydantic import BaseModel, Field

from phpmq_lite.admin.http.body import parse_large, read_body
from phpmq_lite.admin.http.call import Call
from phpmq_lite.admin.http.endpoint import Endpoints
from phpmq_lite.admin.http.fields import OutputFormat, QueryModel
from phpmq_lite.admin.http.output import json_response, list_response
from phpmq_lite.admin.http.problems import Problem
from phpmq_lite.admin.messages import snippets
from phpmq_lite.admin.pipeline.claims import SubscriptionClaimsView, ask_release, read_claims
from phpmq_lite.admin.pipeline.history_readers import ReaderView, read_readers
from phpmq_lite.admin.pipeline.last_day import LastDay, LastDayView, TraceCoverage
from phpmq_lite.admin.pipeline.summary import (
    SUMMARIES,
    BadSummaryError,
    draw_insights,
    queue_totals,
    read_summary,
    steps_of,
    visible_to,
)
from phpmq_lite.durations import HOUR_S
from phpmq_lite.insights_document import (
    SUMMARY_BYTES,
    DeadLetterTotals,
    ExpiryTotals,
    PipelineJobState,
    PipelineSummary,
    QueueTotals,
    SummaryStep,
    TracePath,
    UrnTotals,
)
from phpmq_lite.queue_settings import LONGEST_NAME
from phpmq_lite.roles import Role
from phpmq_lite.storage.read.consumers import StoredPipeline

ROWS: Final = 200  # maximum number of table rows on the page; other formats contain all rows
OLD_MS: Final = 26 * HOUR_S * 1_000  # a summary older than this is outdated (allows for daily runs)
endpoints: Final = Endpoints()


@endpoints.api(
    "PUT /pipeline/insights",
    "api-insights-put",
    Role.OPERATOR,
    "pipeline.insights",
    takes=PipelineSummary,
    status=204,
    body=SUMMARY_BYTES,
    values=SUMMARY_BYTES // 4,
)
async def put_summary(call: Call) -> None:
    """Store figures of the Insights summary (version 1, up to 2 MiB). Absent figures are kept."""
    if queues := call.identity.queues:
        detail = f"The summary covers all queues, but {call.actor!r} can access only some of them."
        raise Problem(403, "foreign_queue", detail, bound=", ".join(queues))
    raw = bytes(await read_body(call.request))
    try:
        await parse_large(call.request, raw, map(read_summary, [raw]))
    except ValueError as error:
        raise Problem(422, "bad_summary", f"The summary is invalid: {error}.") from None
    await call.context.app[SUMMARIES].write(raw)
    call.audit("summary.json").count = 1


class LastDayQuery(QueryModel):
    """The queue whose quarter hours are returned; empty for all queues that the caller can see."""

    queue: str = Field("", max_length=LONGEST_NAME, description="name of a queue")


@endpoints.api("GET /insights", "api-last-day")
async def get_last_day(call: Call, query: LastDayQuery) -> LastDayView:
    """Return the last 24 hours as the broker counted them; the pipeline is not needed.

    Counts are exact, except for those of a minute in which the broker was killed.
    """
    return await (await LastDay.read(call)).view(query.queue)


@endpoints.api("GET /pipeline/insights", "api-insights", gives=PipelineSummary)
async def get_summary(call: Call) -> web.Response:
    """Return the summary in the format that PUT accepts, limited to the caller's queues.

    All callers get the same members; members unknown to ``PipelineSummary`` are omitted.
    """
    try:
        summary = await visible_summary(call)
    except BadSummaryError as error:
        raise Problem(503, "bad_summary", f"The summary cannot be used: {error}.") from error
    if summary is None:
        raise Problem(404, "no_summary", "No pipeline job has stored a summary yet.")
    return await asyncio.to_thread(json_response, summary)


async def visible_summary(call: Call) -> PipelineSummary | None:
    """Return what the caller may see of the summary, or None; raise BadSummaryError if invalid."""
    summary = await call.context.app[SUMMARIES].read()
    if summary is None or not call.identity.queues:
        return summary
    names = [queue.name for queue in call.context.broker.status().queues]
    return await asyncio.to_thread(visible_to, summary, call.may_use, names)


class InsightsPageQuery(QueryModel):
    """Query for the Insights page, or for releasing the claims of the subscription ``release``."""

    tab: Literal[
        "charts", "queues", "urns", "dead", "expired", "paths", "jobs", "claims", "readers"
    ] = "charts"
    span: Literal["24h", "30d"] = "24h"
    queue: str = Field("", max_length=LONGEST_NAME)
    release: str = Field("", max_length=255)
    format: OutputFormat = "html"

    @property
    def source(self) -> Literal["broker", "pipeline", "live"]:
        """Where the figures come from: the roll-ups, the summary, or the state of the broker."""
        if self.tab in ("claims", "readers"):
            return "live"
        return "pipeline" if self.span == "30d" or self.tab in ("urns", "jobs") else "broker"


@endpoints.page("/insights", "insights")
async def show_insights(call: Call, query: InsightsPageQuery) -> web.Response:
    """Show insights: throughput, failures, trace paths, jobs, claims and readers."""
    if query.release:
        return await call.render(
            "confirm.html", ask=await ask_release(call, query.release, query.queue)
        )
    summary, error = None, ""
    try:
        summary = await visible_summary(call)
    except BadSummaryError as bad:
        error = str(bad)
    day = await LastDay.read(call) if query.source == "broker" else None
    if error and query.source == "pipeline" and query.format != "html":
        raise Problem(503, "bad_summary", f"The summary cannot be used: {error}.")
    rows: Any
    traces = TraceCoverage()
    if day is not None and query.tab == "paths":
        rows, traces = await day.paths()
    else:
        rows = await _rows(call, query, summary, day)
    if query.format != "html":
        return await asyncio.to_thread(list_response, query.format, _MODELS[query.tab], rows)
    bounds = await StoredPipeline(call.context.readers).history_bounds()
    drawn = None
    if query.tab == "charts":
        end_ms = call.now_ms if day or summary is None else summary.finished_at
        # Drawing takes up to 80 ms.
        drawn = await asyncio.to_thread(draw_insights, rows, query.span, end_ms)
    # commands for creating the first summary, with the address that the browser used
    request, base_path = call.request, call.context.urls.base_path
    base = snippets.http_address(request.scheme, request.host, base_path)
    return await call.render(
        "insights.html",
        query=query,
        day=day,
        drawn=drawn,
        rows=rows[:ROWS],
        total=len(rows),
        traces=traces,
        queues=day.visible if day else summary.queues() if summary else [],
        summary=summary,
        error=error,
        bounds=bounds,
        path=str(call.context.app[SUMMARIES].path),
        state=_state(summary, bounds.history_id, bounds.hi, call.now_ms)
        if summary
        else {"broken": []},
        commands=snippets.pipeline_snippets(base, needs_token=call.identity.kind != "local"),
    )


_MODELS: Final[dict[str, type[BaseModel]]] = {
    "charts": SummaryStep,
    "queues": QueueTotals,
    "urns": UrnTotals,
    "dead": DeadLetterTotals,
    "expired": ExpiryTotals,
    "paths": TracePath,
    "jobs": PipelineJobState,
    "claims": SubscriptionClaimsView,
    "readers": ReaderView,
}


async def _rows(
    call: Call, query: InsightsPageQuery, summary: PipelineSummary | None, day: LastDay | None
) -> Sequence[BaseModel]:
    """Return all rows for a tab, in the order shown on the page."""
    if query.tab == "claims":
        return await read_claims(call)
    if query.tab == "readers":
        return await read_readers(call.context)
    if day is not None and query.tab == "charts":
        return await day.steps(query.queue)
    if day is not None:
        reads: dict[str, Callable[[], Awaitable[Sequence[Any]]]] = {
            "queues": day.queues,
            "dead": day.deaths,
            "expired": day.expiries,
        }
        return [row for row in await reads[query.tab]() if query.queue in ("", row.queue)]
    return [] if summary is None else await asyncio.to_thread(_rows_of, summary, query)


def _rows_of(summary: PipelineSummary, query: InsightsPageQuery) -> Sequence[BaseModel]:
    if query.tab in ("charts", "queues"):
        steps = steps_of(summary, query.queue)
        return steps if query.tab == "charts" else queue_totals(steps)
    if query.tab == "jobs":
        return summary.jobs
    if query.tab == "paths":
        return sorted(summary.paths, key=lambda path: -path.traces)
    parts: dict[str, Sequence[UrnTotals | DeadLetterTotals | ExpiryTotals]] = {
        "urns": summary.urns,
        "dead": summary.deaths,
        "expired": summary.expiries,
    }
    rows = (row for row in parts[query.tab] if query.queue in ("", row.queue))
    return sorted(rows, key=lambda row: -row.total)


def _state(summary: PipelineSummary, history_id: str, hi: int, now_ms: int) -> dict[str, Any]:
    """Return whether the summary is outdated, how far each job lags behind, and any problems."""
    is_foreign = bool(summary.history_id) and summary.history_id != history_id
    archived = None if is_foreign else summary.archive.offset
    return {
        "is_old": now_ms - summary.finished_at > OLD_MS,
        "is_ahead": summary.finished_at > now_ms + 60_000,
        "is_foreign": is_foreign,
        "behind": None if archived is None else max(hi - archived, 0),
        "broken": [job for job in summary.jobs if job.state == "failed"],
        "lags": {
            job.name: max(hi - job.offset, 0)
            for job in summary.jobs
            if job.offset is not None and not is_foreign
        },
    }
