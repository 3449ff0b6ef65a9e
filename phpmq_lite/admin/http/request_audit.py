"""The audit entry of a request."""

import asyncio
from functools import partial
from typing import Final

from aiohttp import web

from phpmq_lite.admin.context import Context, context_of
from phpmq_lite.admin.http.fields import path_name
from phpmq_lite.admin.http.identity import LOCAL, NOBODY, identity_of
from phpmq_lite.admin.http.problems import Problem
from phpmq_lite.admin.http.route import Route
from phpmq_lite.admin.http.source import address_of
from phpmq_lite.broker.operator import queue_operations
from phpmq_lite.logs import get_logger, is_quiet
from phpmq_lite.model import AuditEntry

_ENTRY: Final = web.RequestKey("entry", AuditEntry)
_IS_LEFT: Final = web.RequestKey("is_left", bool)


def begin_entry(request: web.Request, route: Route, request_id: str) -> AuditEntry:
    """Create the audit entry for a change; called before any check that can refuse the change."""
    identity = identity_of(request)
    source = "http" if route.is_api else "ui"
    entry = AuditEntry(
        actor=identity.actor,
        source="cli" if identity.kind == "control" else source,
        address=address_of(request),
        action=route.audit or route.name,
        target=_target(request),
        request_id=request_id,
    )
    request[_ENTRY] = entry
    return entry


def _target(request: web.Request) -> str:
    """Return the last name or id in the request path."""
    for name, value in reversed(request.match_info.items()):
        return path_name(request, name) if name in ("q", "name") else value
    return ""


def audit_entry(
    request: web.Request, target: str = "", reason: str = "", detail: str = ""
) -> AuditEntry:
    """Set fields in the request's audit entry and return the entry.

    A broker operation writes the entry; if none does, the wrapper in ``app.py`` writes it.
    """
    entry = request[_ENTRY]
    entry.target = target or entry.target
    entry.reason = reason or entry.reason
    entry.detail = detail or entry.detail
    return entry


def keep_audit_entry(request: web.Request) -> None:
    """Record that a task that continues after the response will write the audit entry."""
    request[_IS_LEFT] = True


_FROM_ELSEWHERE: Final = ("no_origin", "foreign_origin", "cross_site", "no_token", "stale_form")
NOTE_S: Final = 10.0  # maximum time for writing an audit row

_log = get_logger(__name__)


# -- audit rows that no operation wrote


async def finish_entry(request: web.Request, entry: AuditEntry) -> None:
    """Write a request's audit row unless an operation has written it or another task will do so.

    Refusals of callers without an identity share a row per address, action and minute, because
    any caller can cause them.  While the broker starts or drains, the entry is only logged.
    """
    if entry.audit_id is not None or _IS_LEFT in request:
        return
    context = context_of(request)
    if entry.result in _FROM_ELSEWHERE and entry.actor == LOCAL.actor:
        entry.actor = NOBODY.actor  # a page of any site may have sent this
    if entry.actor == NOBODY.actor and entry.result != "done":
        note = partial(write_entry, context)
        await context.auth.refusals.add(entry, context.now_ms(), note)
    else:
        await write_entry(context, entry)


async def write_entry(context: Context, entry: AuditEntry, more: int = 0) -> None:
    """Write an audit row and add ``more`` to its count; log a failure instead of raising it."""
    if not context.is_ready():
        return
    try:
        async with asyncio.timeout(NOTE_S):
            await context.engine.run(queue_operations.record_only, entry, more)
    except Exception as error:
        if not is_quiet("audit_row_not_written"):
            _log.warning("audit_row_not_written", action=entry.action, reason=repr(error))


def mark_refused(request: web.Request, problem: Problem) -> None:
    """Record that a change was refused; the response shows the form again."""
    audit_entry(request).result = problem.code


async def count_refused_login(request: web.Request, problem: Problem) -> None:
    """Count a refused login in the audit row for its address and minute."""
    context = context_of(request)
    entry = audit_entry(request)
    entry.result = problem.code
    keep_audit_entry(request)
    await context.auth.refused_logins.add(entry, context.now_ms(), partial(write_entry, context))
