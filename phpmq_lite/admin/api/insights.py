"""The summary of the pipeline's jobs: taken from where they run, given to who asks."""

import asyncio
from typing import Final

from aiohttp import web

from phpmq_lite.admin.access.identity import entry_of, identity_of, may_use
from phpmq_lite.admin.context import context_of
from phpmq_lite.admin.insights.file import BadSummaryError
from phpmq_lite.admin.insights.summary import SUMMARY_BYTES, Summary, read_summary, seen_by
from phpmq_lite.admin.lists import as_json
from phpmq_lite.admin.problems import Problem
from phpmq_lite.admin.route import Role, Route
from phpmq_lite.admin.uploads import body_of, parse_large


async def put(request: web.Request) -> web.StreamResponse:
    """Replace the summary that the Insights page shows; at most 2 MiB of version 1."""
    context, identity = context_of(request), identity_of(request)
    if identity.queues:
        raise Problem(
            403, "foreign_queue", f"The summary is about all queues; {identity.actor!r} may not "
            "use them all.", bound=", ".join(identity.queues),
        )  # fmt: skip
    raw = bytes(await body_of(request))
    try:
        await parse_large(request, raw, lambda: read_summary(raw))
    except ValueError as error:
        raise Problem(422, "bad_summary", f"This is no summary: {error}.") from None
    await context.summaries.write(raw)
    entry_of(request, target="summary.json").count = 1
    return web.Response(status=204)


async def get(request: web.Request) -> web.StreamResponse:
    """Give the summary as PUT takes it; who may see some queues only gets what is about those.

    One shape, whoever asks: members that ``Summary`` does not name are in the file only.
    """
    try:
        summary = await seen_summary(request)
    except BadSummaryError as error:
        raise Problem(503, "bad_summary", f"The summary cannot be used: {error}.") from error
    if summary is None:
        raise Problem(404, "no_summary", "No job of the pipeline has left a summary yet.")
    return await asyncio.to_thread(as_json, summary)


async def seen_summary(request: web.Request) -> Summary | None:
    """Give what whoever asks may see of the summary; None where there is none.

    Raises:
        BadSummaryError: it cannot be read, or is none.
    """
    context = context_of(request)
    summary = await context.summaries.read()
    if summary is None or not identity_of(request).queues:
        return summary
    known = [queue.name for queue in context.engine.status().queues]
    return await asyncio.to_thread(seen_by, summary, lambda name: may_use(request, name), known)


ROUTES: Final = (
    Route(
        "PUT", "/api/v1/pipeline/insights", Role.OPERATOR, "api-insights-put", put,
        "pipeline.insights", takes=Summary, status=204, body=SUMMARY_BYTES,
        values=SUMMARY_BYTES // 4,
    ),
    Route(
        "GET", "/api/v1/pipeline/insights", Role.VIEWER, "api-insights", get, gives=Summary,
    ),
)  # fmt: skip
