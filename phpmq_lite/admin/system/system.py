"""The System page and API: health, settings, starts, log, clock, listeners and draining."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final, Literal

from aiohttp import web
from pydantic import BaseModel, Field

from phpmq_lite import logs, settings
from phpmq_lite.admin.formats import format_number, plural
from phpmq_lite.admin.http.call import Call
from phpmq_lite.admin.http.confirmation import Confirmation
from phpmq_lite.admin.http.context import Context
from phpmq_lite.admin.http.endpoint import Done, Endpoints
from phpmq_lite.admin.http.fields import ActionInput, JsonFormatQuery, QueryModel
from phpmq_lite.admin.http.input import Form, parse_number
from phpmq_lite.admin.http.output import ListPage
from phpmq_lite.admin.http.problems import Problem
from phpmq_lite.admin.system import facts
from phpmq_lite.admin.system.health import run_checks
from phpmq_lite.broker.operator import queue_operations
from phpmq_lite.errors import StorageError
from phpmq_lite.roles import Role
from phpmq_lite.server.tls import read_certificates
from phpmq_lite.storage.disk_space import DatabaseSize, DiskUsage, measure_database, measure_disk
from phpmq_lite.storage.start_report import StoredStarts
from phpmq_lite.writes import DismissStartReport

endpoints: Final = Endpoints()
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


class ClockDecisionInput(ActionInput):
    """A decision on whether the clock can be trusted."""

    decision: ClockDecision = Field(description="expire if the time counts, keep if it does not")
    reason: str = Field("", description="reason for the audit log")


@endpoints.api("GET /clock", "api-clock", cli="clock show")
async def get_clock(call: Call) -> ClockView:
    """Return the state of the clock, and whether it needs a decision."""
    status, would_expire = call.context.broker.summary(), None
    if status.clock_doubt_ms:
        would_expire = await call.context.reader.count_expiring(
            status.clock_steady_ms + status.clock_doubt_ms, status.clock_doubt_number, COUNTED
        )
    return ClockView(
        now_ms=call.now_ms,
        jumps=status.clock_jumps,
        last_jump_ms=status.clock_jump_ms,
        doubt_ms=status.clock_doubt_ms,
        would_expire=would_expire,
    )


_DECIDED: Final = {
    "expire": "The clock is right: the downtime counts, and messages past their deadline expire.",
    "keep": "The clock was changed: the downtime does not count.",
}


@endpoints.action(
    "/system/clock",
    "clock-decide",
    Role.OPERATOR,
    "clock.decide",
    api="POST /clock",
    cli="clock decide",
)
async def decide_clock(call: Call, body: ClockDecisionInput) -> Done[ClockView]:
    """Decide whether a clock that was far ahead at startup is correct, so that downtime counts."""
    if globs := call.identity.queues:
        detail = "This decision requires access to all queues."
        raise Problem(403, "foreign_queue", detail, bound=", ".join(globs))
    entry = call.audit(target=body.decision)
    await call.context.broker.decide_clock(entry, is_right=body.decision == "expire")
    return Done(await get_clock(call), _DECIDED[body.decision], call.back(call.url("system")))


class SettingView(BaseModel):
    """A setting with the value that is in effect."""

    setting: str = Field(description="name, such as limits.credit")
    value: Any = Field(description="effective value; sizes are in bytes, secrets are masked")
    text: str = Field(description="value as written in an environment variable")
    default: str = Field(description="default value, written in the same way as text")
    source: str = Field(description="flag, environment NAME, file PATH, … or default")
    help: str = Field(description="what the setting does")
    bounds: str = Field(description="allowed values; empty if any value of the type is allowed")


@endpoints.api("GET /config", "api-config", Role.ADMIN, cli="config show")
async def list_settings(call: Call, _query: JsonFormatQuery) -> ListPage[SettingView]:
    """List the effective settings and their sources; secrets are masked."""
    return ListPage[SettingView](items=effective_settings(call.context))


def effective_settings(context: Context) -> list[SettingView]:
    """Return all settings, each with its effective value and where that value was set."""
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


@endpoints.page("/system", "system")
async def show_system(call: Call, query: SystemPageQuery) -> web.Response:
    """Show the broker's health, versions, storage, limits, settings, starts and log."""
    if query.confirm == "drain":
        _check_admin(call, "drain the broker")
        return await call.render("confirm.html", ask=_drain_confirmation(call))
    if query.tab in ("settings", "log"):
        _check_admin(call, f"see the {query.tab}")
    is_admin = _is_for_all(call, Role.ADMIN)  # can read the log and drain
    values = await _TABS[query.tab](call, query)
    return await call.render("system.html", query=query, is_admin=is_admin, **values)


async def _health(call: Call, _query: SystemPageQuery) -> dict[str, Any]:
    context, status = call.context, call.status
    stored, disk = await _measured(context)
    usages = facts.list_limits(context, status)
    return {
        "clock": await _clock(call) if status.clock_doubt_ms else None,
        "may_decide": _is_for_all(call, Role.OPERATOR),
        "checks": await run_checks(context, status),
        "times": facts.process_facts(status),
        "versions": facts.version_facts(context.version, status.store),
        "listeners": facts.listener_facts(context.settings, status),
        "certificates": await read_certificates(context.settings),
        "storage": facts.storage_facts(context.settings, disk, stored, context.settings.data)
        if status.store.has_file
        else list(facts.server_facts(status.store)),
        "retention": facts.retention_facts(context.settings, stored),
        "limits": usages,
        "waiting": facts.waiting_facts(status, usages),
        "refused": facts.refusal_facts(status),
    }


async def _clock(call: Call) -> ClockView | None:
    try:
        return await get_clock(call)
    except StorageError:
        return None


async def _measured(context: Context) -> tuple[DatabaseSize | None, DiskUsage | None]:
    try:
        return await measure_database(context.readers), await measure_disk(context.database)
    except (StorageError, OSError):
        return None, None


async def _settings(call: Call, _query: SystemPageQuery) -> dict[str, Any]:
    rows: dict[str, list[SettingView]] = {"own": [], "others": []}
    for setting in effective_settings(call.context):
        is_set = setting.source != "default" or setting.text != setting.default
        rows["own" if is_set else "others"].append(setting)
    return rows


async def _starts(call: Call, _query: SystemPageQuery) -> dict[str, Any]:
    starts = await StoredStarts(call.context.readers).newest(50)
    return {"starts": [_visible_report(call, facts.describe_restart(start)) for start in starts]}


async def _log(_call: Call, query: SystemPageQuery) -> dict[str, Any]:
    lines = logs.recent.lines(query.level)
    count = None if query.lines == "all" else LINES_SHOWN
    return {"lines": lines[:count], "count": len(lines), "levels": logs.LEVELS[:-1]}


_TABS: Final = {"health": _health, "settings": _settings, "starts": _starts, "log": _log}


# -- restart report


async def read_restart_report(call: Call) -> facts.RestartReport | None:
    """Return the report on the most recent start, or None if the report has been dismissed.

    Also return None for the first start, and if the record of the start cannot be read.
    """
    try:
        starts = await StoredStarts(call.context.readers).newest(1)
    except StorageError:
        return None
    if not starts or starts[0].is_first or starts[0].dismissed_by is not None:
        return None
    return _visible_report(call, facts.describe_restart(starts[0]))


def _visible_report(call: Call, report: facts.RestartReport) -> facts.RestartReport:
    """Return the report without the queues that the caller is not allowed to see."""
    return replace(report, expired=[row for row in report.expired if call.may_use(row[0])])


@endpoints.action("/restart/dismiss", "restart-dismiss", Role.OPERATOR, "restart.dismiss")
async def submit_dismissal(call: Call, form: Form) -> Done[None]:
    """Dismiss the report on a start, so that the overview no longer shows the report."""
    text = form.raw("start")
    if (number := parse_number(text)) is None:
        raise Problem(422, "invalid", f"start is {text[:20]!r}, not a number.", field="start")
    starts = await StoredStarts(call.context.readers).newest(50)
    if all(start.start_id != number for start in starts):
        raise Problem(404, "unknown_start", f"There is no record of start {number}.", field="start")
    rows = [DismissStartReport(call.actor, number)]
    call.audit(str(number))
    await call.run(queue_operations.write, rows)
    return Done(None, to=call.back(call.url("overview")))


# -- drain


def _drain_confirmation(call: Call) -> Confirmation:
    to, clients, held = call.url("system"), len(call.status.clients), call.status.held
    return Confirmation(
        title="Drain and stop the broker",
        button="Drain and stop the broker",
        is_danger=True,
        text="The broker stops accepting and dispatching messages, waits up to 5 s for "
        "acknowledgements, stores everything and exits, as after SIGTERM. The process that "
        f"started it decides whether to restart it. {format_number(clients)} "
        f"{plural(clients, 'connection is', 'connections are')} open; consumers hold "
        f"{format_number(held)} {plural(held, 'message', 'messages')}. Messages that are not "
        "acknowledged return to their positions in the queues.",
        url=call.url("system-drain"),
        back=to,
        crumbs=[("System", to)],
        typed=[call.context.settings.ui.environment.strip() or "drain"],
        reason="required",
    )


@endpoints.action("/system/drain", "system-drain", Role.ADMIN, "system.drain")
async def submit_drain(call: Call, form: Form) -> Done[None]:
    """Drain and stop the broker, as SIGTERM does."""
    call.check_all_queues("drain the broker")
    _drain_confirmation(call).check(form)
    stop = call.request.app.get(DRAIN)
    if stop is None:
        raise Problem(503, "no_drain", "This broker cannot be stopped from the admin interface.")
    call.audit("broker")
    await call.run(queue_operations.record_only, 1)
    stop()
    text = "The broker is draining: it accepts no new messages and will stop soon."
    return Done(None, text, call.url("system"))


def _is_for_all(call: Call, role: Role) -> bool:
    """Return whether the caller has a role and is not limited to some queues."""
    return call.identity.role.may(role) and not call.identity.queues


def _check_admin(call: Call, action: str) -> None:
    if not (role := call.identity.role).may(Role.ADMIN):
        detail = f"Only an admin may {action}; your role is {role}."
        raise Problem(403, "role", detail, bound=Role.ADMIN.value)
    call.check_all_queues(action)


class ListenerView(BaseModel):
    """An open listener; a wildcard address stands for all addresses of the broker's machine."""

    address: str = Field(description="HOST:PORT, or unix:PATH")
    transport: Literal["tcp", "tls", "unix"] = Field(description="plain TCP, TLS or a Unix socket")
    has_ttl: bool = Field(description="false if it serves the older protocol revision")


class ListenersView(ListPage[ListenerView]):
    """All open listeners; listeners for the older protocol revision come last."""

    content_bytes: int = Field(description="maximum body size in bytes (limits.max_content)")


@endpoints.api("GET /listeners", "api-listeners", cli="publish")
async def list_listeners(call: Call) -> ListenersView:
    """List the open PHPMQ listeners."""
    items = [ListenerView(**row._asdict()) for row in call.context.broker.summary().listeners]
    return ListenersView(items=items, content_bytes=call.context.settings.limits.max_content)
