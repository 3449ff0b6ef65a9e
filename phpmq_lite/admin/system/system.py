"""The System page and API: health, settings, starts, log, clock, listeners and draining."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final, Literal

from aiohttp import web
from pydantic import BaseModel, Field

from phpmq_lite import logs, settings
from phpmq_lite.admin.context import Context, context_of, status_of
from phpmq_lite.admin.formats import format_number, plural
from phpmq_lite.admin.http.body import read_form_field
from phpmq_lite.admin.http.confirmation import Confirmation, check_typed_text
from phpmq_lite.admin.http.fields import (
    JsonFormatQuery,
    QueryModel,
    StrictInput,
    read_form,
    read_next_path,
    read_query,
)
from phpmq_lite.admin.http.identity import identity_of
from phpmq_lite.admin.http.permissions import may_use
from phpmq_lite.admin.http.problems import Problem
from phpmq_lite.admin.http.rendering import render_page
from phpmq_lite.admin.http.request_audit import audit_entry
from phpmq_lite.admin.http.responses import ListPage
from phpmq_lite.admin.http.route import Role, Route
from phpmq_lite.admin.resource import Api, Page, Resource, api_route, check_reason
from phpmq_lite.admin.system import limits, view
from phpmq_lite.admin.system.health import run_checks
from phpmq_lite.admin.system.view import read_certificates
from phpmq_lite.broker.operator import queue_operations
from phpmq_lite.errors import StorageError
from phpmq_lite.storage.disk_space import DiskUsage, measure_disk
from phpmq_lite.storage.read.database_size import DatabaseSize, measure_database
from phpmq_lite.storage.start_report import StoredStarts
from phpmq_lite.writes import DismissStartReport

COUNTED: Final = 1_000_000  # maximum number of expiring messages to count
ClockDecision = Literal["expire", "keep"]


class ClockView(BaseModel):
    """The state of the broker's clock."""

    now_ms: int = Field(description="the broker's clock, Unix ms")
    jumps: int = Field(description="clock changes since startup, including the last downtime")
    last_jump_ms: int = Field(description="last clock change, ms; negative if set back, 0 if none")
    doubt_ms: int = Field(description="downtime or clock step awaiting a decision, ms; 0 if none")
    would_expire: int | None = Field(
        description="messages that expire if that time counts; null if no decision is needed"
    )


class ClockDecisionInput(StrictInput):
    """A decision on whether the clock can be trusted."""

    decision: ClockDecision = Field(description="expire if the time counts, keep if it does not")
    reason: str = Field("", description="reason for the audit log")


async def get_clock(request: web.Request) -> ClockView:
    """Return the state of the clock, and whether it needs a decision."""
    context = context_of(request)
    status = context.engine.summary()
    doubt_ms, would_expire = status.clock_doubt_ms, None
    if doubt_ms:
        would_expire = await context.reader.count_expiring(
            status.clock_steady_ms + doubt_ms, status.clock_doubt_number, COUNTED
        )
    return ClockView(
        now_ms=context.now_ms(),
        jumps=status.clock_jumps,
        last_jump_ms=status.clock_jump_ms,
        doubt_ms=doubt_ms,
        would_expire=would_expire,
    )


async def decide_clock(request: web.Request, asked: ClockDecisionInput) -> ClockView:
    """Decide whether a clock that was far ahead at startup is correct, so that downtime counts."""
    identity = identity_of(request)
    if identity.queues:
        raise Problem(403, "foreign_queue", "This decision requires access to all queues.",
                      bound=", ".join(identity.queues))  # fmt: skip
    entry = audit_entry(request, target=asked.decision, reason=asked.reason[:1_000])
    await context_of(request).engine.decide_clock(entry, is_right=asked.decision == "expire")
    return await get_clock(request)


_DECIDED: Final = {
    "expire": "The clock is right: the downtime counts, and messages past their deadline expire.",
    "keep": "The clock was changed: the downtime does not count.",
}


class SettingView(BaseModel):
    """A setting with the value that is in effect."""

    setting: str = Field(description="name, such as limits.credit")
    value: Any = Field(description="effective value; sizes are in bytes, secrets are masked")
    text: str = Field(description="value as written in an environment variable")
    default: str = Field(description="default value, written in the same way as text")
    source: str = Field(description="flag, environment NAME, file PATH, … or default")
    help: str = Field(description="what the setting does")
    bounds: str = Field(description="allowed values; empty if any value of the type is allowed")


async def list_settings(request: web.Request, _query: JsonFormatQuery) -> ListPage[SettingView]:
    """List the effective settings and their sources; secrets are masked."""
    return ListPage[SettingView](items=settings_in_force(request))


def settings_in_force(request: web.Request) -> list[SettingView]:
    """Return all settings, each with its effective value and where that value was set."""
    context = context_of(request)
    return [
        SettingView(
            setting=name,
            value=settings.as_json(value),
            text=settings.as_text(value),
            default=settings.as_text(settings.SETTINGS[name].default),
            source=context.sources.get(name, "default"),
            help=settings.SETTINGS[name].help,
            bounds=settings.SETTINGS[name].bounds,
        )
        for name, value in settings.all_values(context.settings).items()
    ]


DRAIN: Final = web.AppKey[Callable[[], None]]("drain")  # same effect as sending SIGTERM
LINES_SHOWN: Final = 200  # maximum number of log lines shown, unless all are requested


class SystemPageQuery(QueryModel):
    """Query for the System page: the selected tab and its filters."""

    tab: Literal["health", "settings", "starts", "log"] = "health"
    level: Literal["debug", "info", "warning", "error"] = "debug"
    lines: Literal["all"] | None = None
    confirm: Literal["drain"] | None = None


async def show_system(request: web.Request) -> web.StreamResponse:
    """Show the broker's health, versions, storage, limits, settings, starts and log."""
    query = read_query(request, SystemPageQuery)
    if query.confirm == "drain":
        _need_admin(request, "drain the broker")
        return await _ask_to_drain(request)
    if query.tab in ("settings", "log"):
        _need_admin(request, f"see the {query.tab}")
    is_admin = _is_for_all(request, Role.ADMIN)  # can read the log and drain
    values = {
        "health": _health,
        "settings": _settings,
        "starts": _starts,
        "log": _log,
    }[query.tab]
    return await render_page(
        request, "system.html", query=query, is_admin=is_admin, **await values(request, query)
    )


async def _health(request: web.Request, _query: SystemPageQuery) -> dict[str, Any]:
    context, status = context_of(request), status_of(request)
    stored, disk = await _measured(context)
    reached = limits.list_limits(context, status)
    return {
        "clock": await _clock(request) if status.clock_doubt_ms else None,
        "may_decide": _is_for_all(request, Role.OPERATOR),
        "checks": await run_checks(context, status),
        "times": view.process_facts(status),
        "versions": view.version_facts(context.version, status.store),
        "listeners": view.listener_facts(context.settings, status),
        "certificates": await read_certificates(context.settings),
        "storage": view.storage_facts(context.settings, disk, stored, context.settings.data)
        if status.store.has_file
        else list(view.server_facts(status.store)),
        "retention": view.retention_facts(context.settings, stored),
        "limits": reached,
        "waiting": view.waiting_facts(status, reached),
        "refused": view.refusal_facts(status),
    }


async def _clock(request: web.Request) -> ClockView | None:
    try:
        return await get_clock(request)
    except StorageError:
        return None


async def _measured(context: Context) -> tuple[DatabaseSize | None, DiskUsage | None]:
    try:
        return await measure_database(context.readers), await measure_disk(context.database)
    except (StorageError, OSError):
        return None, None


async def _settings(request: web.Request, _query: SystemPageQuery) -> dict[str, Any]:
    found = settings_in_force(request)
    return {
        "own": [setting for setting in found if _is_set(setting)],
        "others": [setting for setting in found if not _is_set(setting)],
    }


def _is_set(setting: SettingView) -> bool:
    return setting.source != "default" or setting.text != setting.default


async def _starts(request: web.Request, _query: SystemPageQuery) -> dict[str, Any]:
    found = await StoredStarts(context_of(request).readers).newest(50)
    return {"starts": [_seen_by(request, view.describe_restart(start)) for start in found]}


async def _log(_request: web.Request, query: SystemPageQuery) -> dict[str, Any]:
    lines = logs.recent.lines(query.level)
    most = None if query.lines == "all" else LINES_SHOWN
    return {"lines": lines[:most], "count": len(lines), "levels": logs.LEVELS[:-1]}


# -- restart report


async def read_restart_report(request: web.Request) -> view.RestartReport | None:
    """Return the report on the most recent start, or None if the report has been dismissed.

    Also return None for the first start, and if the record of the start cannot be read.
    """
    try:
        found = await StoredStarts(context_of(request).readers).newest(1)
    except StorageError:
        return None
    if not found or found[0].is_first or found[0].dismissed_by is not None:
        return None
    return _seen_by(request, view.describe_restart(found[0]))


def _seen_by(request: web.Request, report: view.RestartReport) -> view.RestartReport:
    """Return the report without the queues that the caller is not allowed to see."""
    expired = [(name, count) for name, count in report.expired if may_use(request, name)]
    return replace(report, expired=expired)


async def submit_dismissal(request: web.Request) -> web.StreamResponse:
    """Dismiss the report on a start, so that the overview no longer shows the report."""
    context = context_of(request)
    number = await read_form_field(request, "start")
    if not number.isascii() or not number.isdecimal() or len(number) > 15:
        raise Problem(422, "invalid", f"start is {number[:20]!r}, not a number.", field="start")
    starts = await StoredStarts(context.readers).newest(50)
    if all(start.start_id != int(number) for start in starts):
        raise Problem(404, "unknown_start", f"There is no record of start {number}.", field="start")
    entry = audit_entry(request, target=number)
    rows = [DismissStartReport(entry.actor, int(number))]
    await context.engine.run(queue_operations.write, entry, rows)
    raise web.HTTPSeeOther(await read_next_path(request, context.urls.to("overview")))


# -- drain


async def _ask_to_drain(request: web.Request) -> web.Response:
    context, status = context_of(request), status_of(request)
    to = context.urls.to("system")
    clients, held = len(status.clients), status.held
    ask = Confirmation(
        title="Drain and stop the broker", button="Drain and stop the broker", is_danger=True,
        text="The broker stops accepting and dispatching messages, waits up to 5 s for "
        "acknowledgements, stores everything and exits, as after SIGTERM. The process that "
        f"started it decides whether to restart it. {format_number(clients)} "
        f"{plural(clients, 'connection is', 'connections are')} open; consumers hold "
        f"{format_number(held)} {plural(held, 'message', 'messages')}. Messages that are not "
        "acknowledged return to their positions in the queues.",
        url=context.urls.to("system-drain"), back=to, crumbs=[("System", to)],
        typed=[_word(context)], reason="required",
    )  # fmt: skip
    return await render_page(request, "confirm.html", ask=ask)


async def submit_drain(request: web.Request) -> web.StreamResponse:
    """Drain and stop the broker, as SIGTERM does."""
    _need_admin(request, "drain the broker")
    context = context_of(request)
    form = await read_form(request)
    check_typed_text([_word(context)], form.raw("confirm"))
    check_reason(form)
    stop = request.app.get(DRAIN)
    if stop is None:
        raise Problem(503, "no_drain", "This broker cannot be stopped from the admin interface.")
    entry = audit_entry(request, target="broker", reason=form.reason())
    await context.engine.run(queue_operations.record_only, entry, 1)
    context.sessions.store_message(
        request, "The broker is draining: it accepts no new messages and will stop soon."
    )
    stop()
    raise web.HTTPSeeOther(context.urls.to("system"))


def _word(context: Context) -> str:
    """Return the text that confirms a drain: the environment's name, or ``drain`` if not set."""
    return context.settings.ui.environment.strip() or "drain"


def _is_for_all(request: web.Request, role: Role) -> bool:
    """Return whether the caller has a role and is not limited to some queues."""
    identity = identity_of(request)
    return identity.role.may(role) and not identity.queues


def _need_admin(request: web.Request, what: str) -> None:
    identity = identity_of(request)
    if not identity.role.may(Role.ADMIN):
        raise Problem(403, "role", f"Only an admin may {what}; your role is {identity.role}.",
                      bound=Role.ADMIN.value)  # fmt: skip
    if identity.queues:
        raise Problem(403, "foreign_queue", f"Only an admin with access to all queues may {what}.",
                      bound=", ".join(identity.queues))  # fmt: skip


class ListenerView(BaseModel):
    """An open listener; a wildcard address stands for all addresses of the broker's machine."""

    address: str = Field(description="HOST:PORT, or unix:PATH")
    transport: Literal["tcp", "tls", "unix"] = Field(description="plain TCP, TLS or a Unix socket")
    has_ttl: bool = Field(description="false if it serves the older protocol revision")


class ListenersView(ListPage[ListenerView]):
    """All open listeners; listeners for the older protocol revision come last."""

    content_bytes: int = Field(description="maximum body size in bytes (limits.max_content)")


async def list_listeners(request: web.Request) -> ListenersView:
    """List the open PHPMQ listeners."""
    context = context_of(request)
    items = [ListenerView(**one._asdict()) for one in context.engine.summary().listeners]
    return ListenersView(items=items, content_bytes=context.settings.limits.max_content)


ROUTES: Final = (
    api_route("GET", "/api/v1/clock", Role.VIEWER, "api-clock", get_clock, cli="clock show"),
    *Resource(
        run=decide_clock, role=Role.OPERATOR, audit="clock.decide",
        page=Page(
            "/system/clock", "clock-decide",
            done=lambda request, asked, _clock: (
                _DECIDED[asked.decision], context_of(request).urls.to("system")
            ),
        ),
        api=Api("POST", "/api/v1/clock", "api-clock-decide", cli="clock decide"),
    ).routes(),
    api_route(
        "GET", "/api/v1/config", Role.ADMIN, "api-config", list_settings, cli="config show"
    ),
    Route("GET", "/system", Role.VIEWER, "system", show_system),
    Route("POST", "/system/drain", Role.ADMIN, "system-drain", submit_drain, "system.drain"),
    Route(
        "POST", "/restart/dismiss", Role.OPERATOR, "restart-dismiss", submit_dismissal,
        "restart.dismiss",
    ),
    api_route(
        "GET", "/api/v1/listeners", Role.VIEWER, "api-listeners", list_listeners, cli="publish"
    ),
)  # fmt: skip
