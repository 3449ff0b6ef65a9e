"""Backups and the scrub over HTTP.  A backup has an id that we make; no path comes from outside."""

import asyncio
from dataclasses import asdict
from typing import Final

from aiohttp import web
from pydantic import BaseModel

from phpmq_lite.admin.access.identity import check_all_queues, entry_of, identity_of
from phpmq_lite.admin.acting import commands
from phpmq_lite.admin.context import Context, context_of
from phpmq_lite.admin.lists import as_json
from phpmq_lite.admin.problems import Problem
from phpmq_lite.admin.route import Role, Route
from phpmq_lite.server.maintenance import Maintenance
from phpmq_lite.storage.backup.backups import Backup
from phpmq_lite.storage.integrity.scrub import ScrubRound

WAIT_S: Final = 20.0  # for a backup; a longer one is asked for again


class BackupOut(BaseModel):
    """One backup; times are Unix milliseconds, numbers those of its database."""

    id: str
    made_at: int
    took_ms: int
    version: str
    schema_version: int
    sha256: str
    bytes: int
    queues: int
    messages: int
    settled: int
    bodies: int
    last_seq: int
    last_offset: int
    path: str | None = None  # on the broker's machine; to admins


class BackupsOut(BaseModel):
    """All backups, the newest first."""

    items: list[BackupOut]
    next: str | None = None
    is_running: bool  # one is being made
    made: str | None  # id of the last one made since the start; not always the first of the items
    error: str | None  # of the last one, where it failed


class RoundOut(BaseModel):
    """One look at all bodies; times are Unix milliseconds, 0 where there is none yet."""

    began_at: int
    ended_at: int
    bodies: int
    bytes: int
    bad_alive: int
    bad_settled: int
    seqs: list[int]  # of damaged ones, at most 100


class ScrubOut(BaseModel):
    """How far the scrub is, and what it found."""

    is_running: bool
    now: RoundOut | None
    last: RoundOut | None
    structure_at: int  # 0: not yet
    structure: list[str]  # what is wrong with pages and indexes


def care_of(context: Context) -> Maintenance:
    """Give what looks after the database.

    Raises:
        Problem: 503 before the broker is ready.
    """
    if context.care is None:
        raise Problem(503, "not_ready", "The broker is not ready.")
    return context.care


async def backups(request: web.Request) -> web.StreamResponse:
    """List the backups, the newest first."""
    check_all_queues(request, "see the backups")
    return as_json(await _listed(care_of(context_of(request))))


async def make_backup(request: web.Request) -> web.StreamResponse:
    """Make a backup; 202 where it takes longer than 20 s: ``is_running`` tells when it is there."""
    context = context_of(request)
    await begin_backup(request)
    care = care_of(context)
    try:
        async with asyncio.timeout(WAIT_S):
            await care.backups.ended()
    except TimeoutError:
        return as_json(await _listed(care), status=202)
    return as_json(await _listed(care), status=201)


async def begin_backup(request: web.Request) -> None:
    """Begin one, for page and API, with its row of the audit."""
    check_all_queues(request, "make a backup")
    context = context_of(request)
    entry = entry_of(request, target="backup")
    await care_of(context).backups.start_after(lambda: commands.write(context, entry, []))


async def _listed(care: Maintenance) -> BackupsOut:
    made = care.backups
    return BackupsOut(
        items=[_backup_out(backup) for backup in await made.all()],
        is_running=made.is_making,
        made=made.made,
        error=made.error,
    )


def _backup_out(backup: Backup) -> BackupOut:
    told = asdict(backup.manifest)
    return BackupOut(schema_version=told.pop("schema"), path=str(backup.folder), **told)


# -- the scrub


async def scrub(request: web.Request) -> web.StreamResponse:
    """Tell how far the scrub is, and what it found; which messages, to who may see all queues."""
    told = scrub_out(care_of(context_of(request)))
    if identity_of(request).queues:
        for one in (told.now, told.last):
            if one is not None:
                one.seqs = []
    return as_json(told)


async def start_scrub(request: web.Request) -> web.StreamResponse:
    """Look at every body and at the structure now."""
    await begin_scrub(request)
    return as_json(scrub_out(care_of(context_of(request))), status=202)


async def stop_scrub(request: web.Request) -> web.StreamResponse:
    """Give up the look at the bodies that is under way."""
    await end_scrub(request)
    return as_json(scrub_out(care_of(context_of(request))), status=202)


async def begin_scrub(request: web.Request) -> None:
    """Begin one, for page and API, with its row of the audit."""
    check_all_queues(request, "look for damage")
    context = context_of(request)
    entry = entry_of(request, target="scrub")
    await care_of(context).scrub.start(lambda: commands.write(context, entry, []))


async def end_scrub(request: web.Request) -> None:
    """Give up the one under way, with its row of the audit."""
    check_all_queues(request, "stop the scrub")
    context = context_of(request)
    entry = entry_of(request, target="scrub")
    await care_of(context).scrub.stop(lambda: commands.write(context, entry, []))


def scrub_out(care: Maintenance) -> ScrubOut:
    """Put the state of the scrub into its model."""
    state = care.scrub.state
    return ScrubOut(
        is_running=care.scrub.is_working,
        now=_round_out(state.now) if state.is_under_way else None,
        last=None if state.last is None else _round_out(state.last),
        structure_at=state.structure_at,
        structure=state.structure,
    )


def _round_out(one: ScrubRound) -> RoundOut:
    return RoundOut(
        began_at=one.began_at, ended_at=one.ended_at, bodies=one.bodies, bytes=one.bytes,
        bad_alive=one.bad_alive, bad_settled=one.bad_settled, seqs=one.named,
    )  # fmt: skip


_BACKUPS: Final = "/api/v1/backups"
_SCRUB: Final = "/api/v1/scrub"
ROUTES: Final = (
    Route("GET", _BACKUPS, Role.ADMIN, "api-backups", backups, gives=BackupsOut),
    Route("POST", _BACKUPS, Role.ADMIN, "api-backup", make_backup, "backup.make",
          gives=BackupsOut, status=201, cli="backup"),
    Route("GET", _SCRUB, Role.VIEWER, "api-scrub", scrub, gives=ScrubOut, cli="scrub"),
    Route("POST", _SCRUB, Role.ADMIN, "api-scrub-start", start_scrub, "scrub.start",
          gives=ScrubOut, status=202, cli="scrub"),
    Route("DELETE", _SCRUB, Role.ADMIN, "api-scrub-stop", stop_scrub, "scrub.stop",
          gives=ScrubOut, status=202, cli="scrub"),
)  # fmt: skip
