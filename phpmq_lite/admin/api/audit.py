"""The audit over HTTP."""

from typing import Final

from aiohttp import web

from phpmq_lite.admin.audits import AuditOut, AuditPageOut, AuditQuery, audit_page
from phpmq_lite.admin.lists import as_data
from phpmq_lite.admin.requests import query_of
from phpmq_lite.admin.route import Role, Route


async def audit(request: web.Request) -> web.StreamResponse:
    """List who did what, the newest first; refusals are rows too."""
    query = query_of(request, AuditQuery)
    listed = await audit_page(request, query)
    return as_data(query.format, AuditOut, [AuditOut.of(row) for row in listed.rows], listed.next)


ROUTES: Final = (
    Route(
        "GET", "/api/v1/audit", Role.OPERATOR, "api-audit", audit,
        query=AuditQuery, gives=AuditPageOut,
    ),
)  # fmt: skip
