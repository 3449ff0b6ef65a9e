"""The audit log page and API."""

import asyncio
import json
from collections.abc import Container, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Final, Literal

from aiohttp import web
from pydantic import Field

from phpmq_lite.admin.accounts.services import services_of
from phpmq_lite.admin.http import cursors
from phpmq_lite.admin.http.call import Call
from phpmq_lite.admin.http.context import Context
from phpmq_lite.admin.http.endpoint import Endpoints
from phpmq_lite.admin.http.fields import ListQuery
from phpmq_lite.admin.http.identity import LOCAL, NOBODY
from phpmq_lite.admin.http.input import path_name
from phpmq_lite.admin.http.output import ListPage, ResponseModel
from phpmq_lite.admin.http.problems import Problem
from phpmq_lite.admin.http.route import REQUEST_ID, Route
from phpmq_lite.admin.http.source import address_of
from phpmq_lite.broker.operator import queue_operations
from phpmq_lite.logs import get_logger, is_quiet
from phpmq_lite.model import AuditEntry
from phpmq_lite.roles import Role
from phpmq_lite.storage.read.audit import AuditFilter, AuditLog, AuditRow
from phpmq_lite.storage.read.messages import is_message_id

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
            await context.broker.run(queue_operations.record_only, entry, more)
    except Exception as error:
        if not is_quiet("audit_row_not_written"):
            _log.warning("audit_row_not_written", action=entry.action, reason=repr(error))


async def count_refused_login(call: Call, problem: Problem) -> None:
    """Count a refused login in the audit row for its address and minute."""
    entry, call.is_audit_deferred = call.audit(), True
    entry.result = problem.code
    write = partial(write_entry, call.context)
    await services_of(call).refused_logins.add(entry, call.now_ms, write)


endpoints: Final = Endpoints()
RESULTS: Final = ("done", "refused", "running", "cancelled", "interrupted")
SPANS: Final = {"1h": 3_600_000, "24h": 86_400_000, "7d": 604_800_000, "30d": 2_592_000_000}

_NO_QUEUES: Final = ("user.", "token.", "session.", "login", "saved.")  # actions without a queue


class AuditQuery(ListQuery):
    """Filters for the audit log; if both ``span`` and ``since`` are set, both apply."""

    actor: str | None = Field(None, max_length=200, description="user, token, local or control")
    action: str | None = Field(
        None, max_length=100, description="an action such as queue.purge, or a group such as queue"
    )
    result: str | None = Field(
        None, max_length=100, description="a result such as done, or refused for all refusals"
    )
    target: str | None = Field(None, max_length=1_000, description="a queue, message id, user, …")
    span: Literal["1h", "24h", "7d", "30d"] | None = Field(None, description="maximum row age")
    since: datetime | None = Field(None, description="earliest time, inclusive; UTC by default")
    upto: datetime | None = Field(None, description="latest time, exclusive; UTC by default")

    def filter(self, now_ms: int) -> AuditFilter:
        starts = [_ms(self.since)] if self.since else []
        if self.span:
            starts.append(now_ms - SPANS[self.span])
        return AuditFilter(
            actor=self.actor,
            action=self.action,
            result=self.result,
            target=self.target,
            since=max(starts, default=None),
            upto=_ms(self.upto) if self.upto else None,
        )

    @property
    def scope(self) -> str:
        """Return the cursor scope, using ``span`` because the start time keeps changing."""
        names = ("actor", "action", "result", "target", "span", "since", "upto")
        return f"audit {tuple(getattr(self, name) for name in names)}"


def _ms(at: datetime) -> int:
    at = at if at.tzinfo is not None else at.replace(tzinfo=UTC)
    return round(at.timestamp() * 1_000)


class AuditView(ResponseModel):
    """A row of the audit log."""

    audit_id: int = Field(description="row number")
    at: int = Field(validation_alias="at_ms", description="time of the action, Unix ms")
    actor: str = Field(description="user or token; local or control on the broker's machine")
    source: str = Field(description="interface that was used: ui, http or cli")
    address: str = Field(description="host or host:port; unix or control on the broker's machine")
    action: str = Field(description="action, such as queue.purge or message.delete")
    target: str = Field(description="target of the action: queue, message id, user, …")
    count: int = Field(description="number of messages, queues or other objects affected")
    reason: str = Field(description="reason given for the action")
    result: str = Field(description="done, running, cancelled, interrupted, or a refusal code")
    detail: str = Field(description="details as JSON, such as old and new settings; may be empty")
    request_id: str = Field(description="request id, as in the log and the X-Request-Id header")


@dataclass(slots=True, frozen=True)
class AuditListPage:
    """A page of the audit log with cursors to the adjacent pages."""

    rows: list[AuditRow]
    next: str | None = None
    previous: str | None = None
    searched_to: int | None = None  # audit_id at which the search stopped, if it stopped early


async def _find_rows(call: Call, query: AuditQuery) -> AuditListPage:
    if call.identity.queues:
        query = query.model_copy(update={"actor": call.actor})
    cursor = cursors.decode_cursor(query.scope, query.cursor)
    page = await AuditLog(call.context.readers).page(
        query.filter(call.now_ms), **cursors.position_in(cursor), limit=query.limit
    )
    ends = (page.rows[0].audit_id, page.rows[-1].audit_id) if page.rows else (None, None)
    older, newer = cursors.cursors_around(
        query.scope, "before", cursor, ends, has_more=page.has_more, searched_to=page.searched_to
    )
    return AuditListPage(page.rows, older, newer, page.searched_to)


@endpoints.api("GET /audit", "api-audit", Role.OPERATOR)
async def list_audit_rows(call: Call, query: AuditQuery) -> ListPage[AuditView]:
    """List audited actions, including refused ones, newest first.

    Callers limited to some queues see only their own rows.
    """
    page = await _find_rows(call, query)
    items = [AuditView.of(row) for row in page.rows]
    return ListPage[AuditView](items=items, next=page.next)


# -- row rendering


@dataclass(slots=True, frozen=True)
class SettingChange:
    """A setting's values before and after a change; None means that the setting did not exist."""

    name: str
    before: str | None
    after: str | None


@dataclass(slots=True, frozen=True)
class AuditRowText:
    """An audit row with the texts that the page shows for the row."""

    row: AuditRow
    level: str  # CSS class of the result: good, info, warn, bad or empty
    link: tuple[str, dict[str, str]] | None  # route name and URL parameters of the target's page
    changes: list[SettingChange]
    detail: str  # the row's details as text; empty if ``changes`` contains them


def describe_rows(rows: Iterable[AuditRow], queues: Container[str]) -> list[AuditRowText]:
    """Prepare rows for the page; ``queues`` contains the names of existing queues."""
    return [
        AuditRowText(
            row,
            result_class(row.result),
            target_link(row, queues),
            changes,
            "" if changes else row.detail,
        )
        for row in rows
        for changes in [read_changes(row.detail)]
    ]


def result_class(result: str) -> str:
    levels = {"done": "good", "running": "info", "cancelled": "", "interrupted": "warn"}
    return levels.get(result, "bad")


def target_link(row: AuditRow, queues: Container[str]) -> tuple[str, dict[str, str]] | None:
    """Return the route and parameters of the target's page, or None if there is no such page."""
    if is_message_id(row.target):
        return "message", {"id": row.target}
    if row.target in queues and not row.action.startswith(_NO_QUEUES):
        return "queue", {"q": row.target}
    return None


def read_changes(detail: str) -> list[SettingChange]:
    """Return the setting changes in a row's detail, or an empty list if there are none."""
    try:
        changes = json.loads(detail) if detail else {}
    except ValueError:
        return []
    if not isinstance(changes, dict):
        return []
    before, after = changes.get("before") or {}, changes.get("after") or {}
    if not isinstance(before, dict) or not isinstance(after, dict):
        return []
    names = dict.fromkeys([*before, *after])
    return [SettingChange(name, _text(before, name), _text(after, name)) for name in names]


def _text(values: dict[str, object], name: str) -> str | None:
    if name not in values:
        return None
    value = values[name]
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


@endpoints.page("/audit", "audit", Role.OPERATOR, data=list_audit_rows)
async def show_audit_log(call: Call, query: AuditQuery) -> web.Response:
    """List audited actions, including refused ones, newest first."""
    page = await _find_rows(call, query)
    chosen = query.model_dump(mode="json", exclude={"format", "limit", "cursor"}, exclude_none=True)
    actions = {route.audit for route in call.context.routes if route.audit}
    groups = {name.partition(".")[0] for name in actions if "." in name}
    return await call.render(
        "audit.html",
        query=query,
        chosen=chosen,
        times={key: _ms(at) for key in ("since", "upto") if (at := getattr(query, key))},
        listed=page,
        rows=describe_rows(page.rows, {queue.name for queue in call.queues}),
        actions=sorted(actions | groups),
        results=RESULTS,
        spans=tuple(SPANS),
    )
