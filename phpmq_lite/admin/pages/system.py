"""The broker itself: health, versions, storage, limits, settings, starts, log; and its end."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final, Literal

from aiohttp import web
from pydantic import BaseModel, ConfigDict

from phpmq_lite import logs
from phpmq_lite.admin import limits, systems
from phpmq_lite.admin.access.identity import entry_of, identity_of, may_use
from phpmq_lite.admin.acting import commands
from phpmq_lite.admin.api.clock import ClockOut, clock_of
from phpmq_lite.admin.api.config import SettingOut, settings_in_force
from phpmq_lite.admin.certificates import certificates
from phpmq_lite.admin.conditions import checks
from phpmq_lite.admin.context import Context, context_of, status_of
from phpmq_lite.admin.problems import Problem
from phpmq_lite.admin.render import page
from phpmq_lite.admin.requests import next_of, query_of
from phpmq_lite.admin.route import Role, Route
from phpmq_lite.admin.uploads import field_of
from phpmq_lite.errors import StorageError
from phpmq_lite.storage.integrity.startup import Start, Starts
from phpmq_lite.storage.read.measures import DatabaseSize, DiskUsage, measure_database, measure_disk
from phpmq_lite.writes import DismissStartReport

DRAIN: Final = web.AppKey[Callable[[], None]]("drain")  # what SIGTERM does
LINES_SHOWN: Final = 200  # of the log, before somebody asks for all

_ADMIN_TABS: Final = ("settings", "log")


class SystemQuery(BaseModel):
    """Which part of the page."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    tab: Literal["health", "settings", "starts", "log"] = "health"
    level: Literal["debug", "info", "warning", "error"] = "debug"
    lines: Literal["all"] | None = None
    confirm: Literal["drain"] | None = None


async def system(request: web.Request) -> web.StreamResponse:
    """The broker itself: health, versions, storage, limits, settings, starts and the log."""
    query = query_of(request, SystemQuery)
    if query.confirm == "drain":
        _need_admin(request, "drain the broker")
        return await page(request, "system_drain.html", word=_word(context_of(request)))
    if query.tab in _ADMIN_TABS:
        _need_admin(request, f"see the {query.tab}")
    is_admin = _is_admin(request)
    values = {
        "health": _health,
        "settings": _settings,
        "starts": _starts,
        "log": _log,
    }[query.tab]
    return await page(
        request, "system.html", query=query, is_admin=is_admin, **await values(request, query)
    )


async def _health(request: web.Request, _query: SystemQuery) -> dict[str, Any]:
    context, status = context_of(request), status_of(request)
    now_ms = context.now_ms()
    stored, disk = await _measured(context)
    reached = limits.limits(context.settings, status, limits.http_of(context))
    return {
        "clock": await _clock(context) if status.clock_doubt_ms else None,
        "may_decide": _may_decide(request),
        "checks": await checks(context, status),
        "times": systems.times(status, now_ms),
        "versions": systems.versions(context.version),
        "listeners": systems.listeners(context.settings, status),
        "certificates": await certificates(context.settings),
        "storage": systems.storage(context.settings, disk, stored, context.readers.path.parent),
        "retention": systems.retention(context.settings, stored),
        "limits": reached,
        "waiting": systems.waiting(status, reached),
        "refused": systems.refused(status),
    }


async def _clock(context: Context) -> ClockOut | None:
    try:
        return await clock_of(context)
    except StorageError:
        return None


def _may_decide(request: web.Request) -> bool:
    identity = identity_of(request)
    return identity.role.may(Role.OPERATOR) and not identity.queues


async def _measured(context: Context) -> tuple[DatabaseSize | None, DiskUsage | None]:
    try:
        return await measure_database(context.readers), await measure_disk(context.readers.path)
    except (StorageError, OSError):
        return None, None


async def _settings(request: web.Request, _query: SystemQuery) -> dict[str, Any]:
    found = settings_in_force(request)
    return {
        "own": [setting for setting in found if _is_set(setting)],
        "others": [setting for setting in found if not _is_set(setting)],
    }


def _is_set(setting: SettingOut) -> bool:
    return setting.source != "default" or setting.text != setting.default


async def _starts(request: web.Request, _query: SystemQuery) -> dict[str, Any]:
    found = await Starts(context_of(request).readers).newest(50)
    return {"starts": [_seen_by(request, systems.told(start)) for start in found]}


async def _log(_request: web.Request, query: SystemQuery) -> dict[str, Any]:
    lines = logs.recent.lines(query.level)
    most = None if query.lines == "all" else LINES_SHOWN
    return {"lines": lines[:most], "count": len(lines), "levels": logs.LEVELS[:-1]}


# -- the restart report


async def restart_report(request: web.Request) -> systems.Restart | None:
    """Give what the last start found, for the overview; None once it was dismissed.

    The very first start has nothing to report, nor has one that could not be read.
    """
    try:
        found = await Starts(context_of(request).readers).newest(1)
    except StorageError:
        return None
    if not found or found[0].is_first or found[0].dismissed_by is not None:
        return None
    return _seen_by(request, systems.told(found[0]))


def _seen_by(request: web.Request, told: systems.Restart) -> systems.Restart:
    """Leave out the queues that whoever asks may not see."""
    expired = [(name, count) for name, count in told.expired if may_use(request, name)]
    return replace(told, expired=expired)


async def dismiss(request: web.Request) -> web.StreamResponse:
    """Dismiss the report of a start: nobody needs to see it on the overview any more."""
    context = context_of(request)
    number = await field_of(request, "start")
    if not number.isascii() or not number.isdecimal() or len(number) > 15:
        raise Problem(422, "invalid", "start: not the number of a start.", field="start")
    found = await _find(context, int(number))
    if found is None:
        raise Problem(404, "unknown_start", f"There is no start {number}.", field="start")
    entry = entry_of(request, target=number)
    rows = [DismissStartReport(entry.actor, int(number))]
    await commands.write(context, entry, rows)
    raise web.HTTPSeeOther(await next_of(request, context.urls.to("overview")))


async def _find(context: Context, number: int) -> Start | None:
    starts = await Starts(context.readers).newest(50)
    return next((start for start in starts if start.start_id == number), None)


# -- the end


async def drain(request: web.Request) -> web.StreamResponse:
    """Drain the broker and end its process, as SIGTERM does; a word has to be typed."""
    _need_admin(request, "drain the broker")
    context = context_of(request)
    word = _word(context)
    if await field_of(request, "name") != word:
        raise Problem(
            422, "invalid", "The word that was typed is not the one asked for. The broker goes on.",
            field="name", bound=word,
        )  # fmt: skip
    reason = (await field_of(request, "reason")).strip()
    if not reason:
        raise Problem(422, "invalid", "A reason for the audit is missing. The broker goes on.",
                      field="reason", bound="1 character or more")  # fmt: skip
    stop = request.app.get(DRAIN)
    if stop is None:
        raise Problem(503, "no_drain", "This broker cannot be stopped from here.")
    entry = entry_of(request, target="broker", reason=reason[:1_000])
    await commands.write(context, entry, [])
    context.sessions.note(request, "The broker drains: it takes nothing new and ends soon.")
    stop()
    raise web.HTTPSeeOther(context.urls.to("system"))


def _word(context: Context) -> str:
    """Give what is typed to confirm: the environment's name, where it has one."""
    return context.settings.ui.environment.strip() or "drain"


def _is_admin(request: web.Request) -> bool:
    """Tell whether who asks is admin of all queues: the log names them all, a drain ends all."""
    identity = identity_of(request)
    return identity.role.may(Role.ADMIN) and not identity.queues


def _need_admin(request: web.Request, what: str) -> None:
    identity = identity_of(request)
    if not identity.role.may(Role.ADMIN):
        raise Problem(403, "role", f"Only an admin may {what}; you are {identity.role}.",
                      bound=Role.ADMIN.value)  # fmt: skip
    if not _is_admin(request):
        raise Problem(403, "foreign_queue", f"Only an admin of all queues may {what}.",
                      bound=", ".join(identity.queues))  # fmt: skip


ROUTES: Final = (
    Route("GET", "/system", Role.VIEWER, "system", system),
    Route("POST", "/system/drain", Role.ADMIN, "system-drain", drain, "system.drain"),
    Route("POST", "/restart/dismiss", Role.OPERATOR, "restart-dismiss", dismiss, "restart.dismiss"),
)
