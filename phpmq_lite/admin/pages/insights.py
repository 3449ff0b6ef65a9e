"""What the pipeline found out: charts, tables, the state of its jobs, and who holds what."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from aiohttp import web
from pydantic import BaseModel, ConfigDict, Field

from phpmq_lite.admin import snippets
from phpmq_lite.admin.access.identity import entry_of, identity_of
from phpmq_lite.admin.acting import ladder, pipeline
from phpmq_lite.admin.acting.flash import back, leave
from phpmq_lite.admin.acting.forms import form_of
from phpmq_lite.admin.acting.notes import Note
from phpmq_lite.admin.api.insights import seen_summary
from phpmq_lite.admin.api.pipeline import subscription_of
from phpmq_lite.admin.context import Context, context_of
from phpmq_lite.admin.insights.drawing import draw, queue_totals, steps_of
from phpmq_lite.admin.insights.file import BadSummaryError
from phpmq_lite.admin.insights.standing import (
    Bounds,
    ClaimsOut,
    ReaderOut,
    bounds_of,
    claims_of,
    readers_of,
)
from phpmq_lite.admin.insights.summary import (
    Deaths,
    Expiries,
    Job,
    Path,
    QueueTotals,
    Step,
    Summary,
    Urn,
)
from phpmq_lite.admin.lists import as_data
from phpmq_lite.admin.problems import Problem
from phpmq_lite.admin.render import page
from phpmq_lite.admin.requests import query_of
from phpmq_lite.admin.route import Role, Route
from phpmq_lite.admin.schemas import OutputFormat
from phpmq_lite.admin.views import plural
from phpmq_lite.queue_settings import LONGEST_NAME

ROWS: Final = 200  # of a table on the page; the other formats have all
OLD_MS: Final = 26 * 3_600_000  # a summary of a daily run is younger

Tab = Literal["charts", "queues", "urns", "dead", "expired", "paths", "jobs", "claims", "readers"]


class InsightsQuery(BaseModel):
    """Which part to show, of which queue and time; ``release``: ask before claims go back."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    tab: Tab = "charts"
    span: Literal["24h", "30d"] = "24h"
    queue: str = Field("", max_length=LONGEST_NAME)
    release: str = Field("", max_length=255)
    format: OutputFormat = "html"


@dataclass(slots=True, frozen=True)
class Found:
    """The summary as it may be seen; ``error`` says why there is none."""

    summary: Summary | None
    error: str = ""


async def insights(request: web.Request) -> web.StreamResponse:
    """What went through the queues over a day and a month, as the pipeline computed it."""
    query = query_of(request, InsightsQuery)
    if query.release:
        return await _ask(request, query.release, query.queue)
    found = await _find(request)
    if query.format != "html":
        return await _as_data(request, query, found)
    context, summary = context_of(request), found.summary
    bounds = await bounds_of(context)
    values: dict[str, Any] = {"queues": summary.queues() if summary else []}
    if summary is not None and query.tab == "charts":
        drawn = await asyncio.to_thread(draw, summary, query.span, query.queue)  # up to 80 ms
        values |= {"drawn": drawn}
    elif summary is not None or query.tab in ("claims", "readers"):
        rows = await _rows(request, query, found)
        values |= {"rows": rows[:ROWS], "total": len(rows)}
    return await page(
        request, "insights.html",
        query=query, summary=summary, error=found.error, bounds=bounds,
        path=str(context.summaries.path),
        state=_state(summary, bounds, context.now_ms()) if summary else {},
        commands=_commands(request, context),
        **values,
    )  # fmt: skip


async def _find(request: web.Request) -> Found:
    try:
        return Found(await seen_summary(request))
    except BadSummaryError as error:
        return Found(None, str(error))


async def _as_data(request: web.Request, query: InsightsQuery, found: Found) -> web.Response:
    if found.error and query.tab not in ("claims", "readers"):
        raise Problem(503, "bad_summary", f"The summary cannot be used: {found.error}.")
    rows = await _rows(request, query, found)
    return await asyncio.to_thread(as_data, query.format, _MODELS[query.tab], rows)


_MODELS: Final[dict[str, type[BaseModel]]] = {
    "charts": Step,
    "queues": QueueTotals,
    "urns": Urn,
    "dead": Deaths,
    "expired": Expiries,
    "paths": Path,
    "jobs": Job,
    "claims": ClaimsOut,
    "readers": ReaderOut,
}


async def _rows(request: web.Request, query: InsightsQuery, found: Found) -> Sequence[BaseModel]:
    """Give all rows of a part, in the order in which the page shows them."""
    if query.tab == "claims":
        return await claims_of(request)
    if query.tab == "readers":
        return await readers_of(context_of(request))
    if found.summary is None:
        return []
    return await asyncio.to_thread(_rows_of, found.summary, query)


def _rows_of(summary: Summary, query: InsightsQuery) -> Sequence[BaseModel]:
    if query.tab in ("charts", "queues"):
        steps = steps_of(summary, query.span, query.queue)
        return steps if query.tab == "charts" else queue_totals(steps)
    if query.tab == "jobs":
        return summary.jobs
    if query.tab == "paths":
        return sorted(summary.paths, key=lambda path: -path.traces)
    parts: dict[str, Sequence[Urn | Deaths | Expiries]] = {
        "urns": summary.urns,
        "dead": summary.deaths,
        "expired": summary.expiries,
    }
    some = (part for part in parts[query.tab] if query.queue in ("", part.queue))
    return sorted(some, key=lambda part: -part.total)


def _state(summary: Summary, bounds: Bounds, now_ms: int) -> dict[str, Any]:
    """Say how old the numbers are, how far the jobs are behind now, and what is wrong."""
    is_foreign = bool(summary.history_id) and summary.history_id != bounds.history_id
    done = None if is_foreign else summary.archive.offset
    return {
        "is_old": now_ms - summary.finished_at > OLD_MS,
        "is_ahead": summary.finished_at > now_ms + 60_000,
        "is_foreign": is_foreign,
        "behind": None if done is None else max(bounds.hi - done, 0),
        "broken": [job for job in summary.jobs if job.state == "failed"],
        "lags": {
            job.name: max(bounds.hi - job.offset, 0)
            for job in summary.jobs
            if job.offset is not None and not is_foreign
        },
    }


def _commands(request: web.Request, context: Context) -> list[snippets.Snippet]:
    """Give what to run where there is nothing yet, with the address that the browser used."""
    base = snippets.http_address(request.scheme, request.host, context.urls.base_path)
    return snippets.pipeline(base, needs_token=identity_of(request).kind != "local")


# -- claims


async def _ask(request: web.Request, name: str, queue: str) -> web.StreamResponse:
    """Ask before all that a subscription holds goes back; ``queue``: whose page asked."""
    context = context_of(request)
    if not identity_of(request).role.may(Role.OPERATOR):
        raise Problem(403, "role", "Releasing claims needs the role operator.",
                      bound=Role.OPERATOR.value)  # fmt: skip
    row = await subscription_of(request, name)
    return await page(
        request, "insights_release.html",
        row=row, typed=ladder.to_type(context.settings, row.count, [row.name]),
        back=context.urls.to("queue", q=queue, tab="consumers") if queue
        else context.urls.to("insights", tab="claims"),
    )  # fmt: skip


async def release(request: web.Request) -> web.StreamResponse:
    """Send all that a subscription holds back to its place."""
    context, form = context_of(request), await form_of(request)
    name = form.text("subscription", 255)
    entry = entry_of(request, target=name, reason=form.reason())
    row = await subscription_of(request, name)
    ladder.check_typed(ladder.to_type(context.settings, row.count, [row.name]), form.raw("confirm"))
    count = await pipeline.release_claims(context, entry, name, forget=form.flag("forget"))
    goes = plural(count, "message went back to its place", "messages went back to their places")
    leave(request, Note(f"{count:,} {goes}; {name} holds nothing any more."))
    raise web.HTTPSeeOther(back(form.raw("next"), context.urls.to("insights", tab="claims")))


ROUTES: Final = (
    Route("GET", "/insights", Role.VIEWER, "insights", insights),
    Route(
        "POST", "/insights/release", Role.OPERATOR, "insights-release", release, "claims.release"
    ),
)
