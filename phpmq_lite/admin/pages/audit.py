"""Who did what: every change and every refusal, the newest first."""

from typing import Final

from aiohttp import web

from phpmq_lite.admin.audits import RESULTS, SPANS, AuditOut, AuditQuery, audit_page, shown
from phpmq_lite.admin.context import context_of, status_of
from phpmq_lite.admin.lists import as_data
from phpmq_lite.admin.render import page
from phpmq_lite.admin.requests import query_of
from phpmq_lite.admin.route import Role, Route


async def audit(request: web.Request) -> web.StreamResponse:
    """Who did what, from where, and with which result; the newest first."""
    query = query_of(request, AuditQuery)
    listed = await audit_page(request, query)
    if query.format != "html":
        return as_data(
            query.format, AuditOut, [AuditOut.of(row) for row in listed.rows], listed.next
        )
    chosen = query.model_dump(mode="json", exclude={"format", "limit", "cursor"}, exclude_none=True)
    return await page(
        request,
        "audit.html",
        query=query,
        chosen=chosen,
        listed=listed,
        rows=shown(listed.rows, {queue.name for queue in status_of(request).queues}),
        actions=_actions(request),
        results=RESULTS,
        spans=tuple(SPANS),
    )


def _actions(request: web.Request) -> list[str]:
    """Name all that is audited, and each group of it."""
    names = {route.audit for route in context_of(request).routes if route.audit}
    groups = {name.partition(".")[0] for name in names if "." in name}
    return sorted(names | groups)


ROUTES: Final = (Route("GET", "/audit", Role.OPERATOR, "audit", audit),)
