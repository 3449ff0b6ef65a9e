"""Backups and the scrub: what there is, how the last ones went, and a button for each."""

from typing import Final

from aiohttp import web

from phpmq_lite.admin import formats
from phpmq_lite.admin.access.headers import as_download
from phpmq_lite.admin.access.identity import check_all_queues, entry_of
from phpmq_lite.admin.acting import commands
from phpmq_lite.admin.api import backups as api
from phpmq_lite.admin.context import Context, context_of
from phpmq_lite.admin.problems import Problem
from phpmq_lite.admin.render import page
from phpmq_lite.admin.route import Role, Route
from phpmq_lite.admin.systems import Fact
from phpmq_lite.admin.views import plural
from phpmq_lite.server.maintenance import Maintenance
from phpmq_lite.storage.backup.backups import is_id, read_backup
from phpmq_lite.storage.integrity.scrub import ScrubRound, ScrubState


async def backups(request: web.Request) -> web.StreamResponse:
    """Backups and the scrub of this broker."""
    check_all_queues(request, "see the backups")
    context = context_of(request)
    care = api.care_of(context)
    return await page(
        request,
        "backups.html",
        backups=await care.backups.all(),
        making=care.backups.is_making,
        facts=_facts(context, care),
        scrubbing=care.scrub.is_working,
        scrub=_scrubbed(context, care),
    )


async def make(request: web.Request) -> web.StreamResponse:
    """Begin a backup; the page shows it when it is there."""
    context = context_of(request)
    await api.begin_backup(request)
    context.sessions.note(request, "The backup is being made; it shows up here when it is whole.")
    raise web.HTTPSeeOther(context.urls.to("backups"))


async def start_scrub(request: web.Request) -> web.StreamResponse:
    """Have every body and the structure looked at now."""
    context = context_of(request)
    await api.begin_scrub(request)
    context.sessions.note(request, "The scrub has begun.")
    raise web.HTTPSeeOther(context.urls.to("backups"))


async def stop_scrub(request: web.Request) -> web.StreamResponse:
    """Give up the look at the bodies that is under way."""
    context = context_of(request)
    await api.end_scrub(request)
    context.sessions.note(request, "The scrub is given up.")
    raise web.HTTPSeeOther(context.urls.to("backups"))


async def download(request: web.Request) -> web.StreamResponse:
    """Give the database of a backup: all messages, and the hashes of passwords and tokens."""
    check_all_queues(request, "download a backup")
    name = request.match_info["n"]
    context = context_of(request)
    folder = api.care_of(context).backups.folder
    backup = read_backup(folder / name) if is_id(name) else None
    if backup is None:
        raise Problem(404, "unknown_backup", "There is no such backup.")
    await commands.write(context, entry_of(request), [])  # ahead of the first byte
    return web.FileResponse(backup.database, headers=as_download(f"phpmq-{name}.db"))


def _facts(context: Context, care: Maintenance) -> list[Fact]:
    """Say how the backups go."""
    settings, made = context.settings.backups, care.backups
    if made.error is not None:
        last = [Fact("The last one", "failed", made.error, "bad")]
    elif made.newest is None:
        last = [
            Fact("The last one", "none yet", "a disk that dies takes everything with it", "warn")
        ]
    else:
        last = [Fact("The last one", "", "", at_ms=made.newest.made_at)]
    when = f"every {settings.every_h:g} h" if settings.every_h else "on demand only"
    return [
        *last,
        Fact("Made", when, "" if settings.every_h else "backups.every_h makes them by the clock"),
        Fact("Kept", f"the newest {formats.number(settings.keep)}", "backups.keep"),
        Fact("Folder", str(made.folder), "copy them to another machine"),
    ]


def _scrubbed(context: Context, care: Maintenance) -> list[Fact]:
    """Say what the scrub found, and how far it is."""
    state, settings = care.scrub.state, context.settings.scrub
    found = [_faults(state)]
    if state.is_under_way:
        found.append(Fact("Under way", _counted(state.now)))
    if state.last is None:
        found.append(Fact("All bodies", "not looked at yet"))
    else:
        found.append(Fact("All bodies", "", _counted(state.last), at_ms=state.last.ended_at))
    if state.structure_at:
        found.append(Fact("Structure", "", "pages and indexes", at_ms=state.structure_at))
    when = f"every {settings.every_h:g} h" if settings.every_h else "on demand only"
    found.append(Fact("Looks", when, f"structure every {settings.structure_days:g} days"
                      if settings.structure_days else "never at the structure"))  # fmt: skip
    return found


def _faults(state: ScrubState) -> Fact:
    if not state.faults:
        return Fact("Damage", "none known")
    text = f"{formats.number(state.faults)} {plural(state.faults, 'fault', 'faults')}"
    return Fact("Damage", text, "; ".join(state.damage), "bad")


def _counted(one: ScrubRound) -> str:
    return f"{formats.number(one.bodies)} bodies, {formats.size(one.bytes)}"


_PATH: Final = "/system/backups"
ROUTES: Final = (
    Route("GET", _PATH, Role.ADMIN, "backups", backups),
    Route("POST", _PATH, Role.ADMIN, "backup-make", make, "backup.make"),
    Route("GET", f"{_PATH}/{{n}}", Role.ADMIN, "backup-download", download, "backup.download"),
    Route("POST", "/system/scrub", Role.ADMIN, "scrub-start", start_scrub, "scrub.start"),
    Route("POST", "/system/scrub/stop", Role.ADMIN, "scrub-stop", stop_scrub, "scrub.stop"),
)
