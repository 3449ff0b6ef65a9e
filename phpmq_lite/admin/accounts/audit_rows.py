"""The audit row of a request: begun before all checks, stored even if the request is refused."""

import asyncio
from functools import partial
from typing import Final

from phpmq_lite.admin.accounts.services import services_of
from phpmq_lite.admin.http.call import Call
from phpmq_lite.admin.http.context import Context
from phpmq_lite.admin.http.identity import LOCAL, NOBODY
from phpmq_lite.admin.http.input import path_name
from phpmq_lite.admin.http.problems import Problem
from phpmq_lite.admin.http.route import REQUEST_ID, Route
from phpmq_lite.admin.http.source import address_of
from phpmq_lite.broker.operator import queue_operations
from phpmq_lite.logs import get_logger, is_quiet
from phpmq_lite.model import AuditEntry

NOTE_S: Final = 10.0  # maximum time for writing an audit row
_FOREIGN_SITE: Final = ("no_origin", "foreign_origin", "cross_site", "no_token", "stale_form")

_log = get_logger(__name__)


def begin_entry(call: Call, route: Route) -> AuditEntry:
    """Create the audit entry for a change; called before any check that can refuse the change."""
    request, identity = call.request, call.identity
    source = "http" if route.is_api else "ui"
    target = ""  # the last name or id in the path
    for name, value in request.match_info.items():
        target = path_name(request, name) if name in ("q", "name") else value
    call.entry = AuditEntry(
        actor=identity.actor,
        source="cli" if identity.kind == "control" else source,
        address=address_of(request),
        action=route.audit or route.name,
        target=target,
        request_id=request[REQUEST_ID],
    )
    return call.entry


async def finish_entry(call: Call) -> None:
    """Write a request's audit row unless an operation has written it or another task will do so.

    Refusals of callers without an identity share a row per address, action and minute, because
    any caller can cause them.  While the broker starts or drains, the entry is only logged.
    """
    entry = call.audit()
    if entry.audit_id is not None or call.is_audit_deferred:
        return
    if entry.result in _FOREIGN_SITE and entry.actor == LOCAL.actor:
        entry.actor = NOBODY.actor  # a page of any site may have sent this
    if entry.actor == NOBODY.actor and entry.result != "done":
        write = partial(write_entry, call.context)
        await services_of(call).refusals.add(entry, call.now_ms, write)
    else:
        await write_entry(call.context, entry)


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


async def count_refused_login(call: Call, problem: Problem) -> None:
    """Count a refused login in the audit row for its address and minute."""
    call.mark_refused(problem)
    call.keep_audit_entry()
    write = partial(write_entry, call.context)
    await services_of(call).refused_logins.add(call.audit(), call.now_ms, write)
