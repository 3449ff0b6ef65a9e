"""The page and API for backups and the database scrub."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from typing import Any, Final

from aiohttp import web
from pydantic import BaseModel, Field

from phpmq_lite.admin import formats
from phpmq_lite.admin.http.call import Call
from phpmq_lite.admin.http.context import Context
from phpmq_lite.admin.http.endpoint import Done, Endpoints
from phpmq_lite.admin.http.headers import download_headers
from phpmq_lite.admin.http.output import ListPage, ResponseModel, json_response
from phpmq_lite.admin.http.problems import Problem
from phpmq_lite.admin.system.facts import SystemFact
from phpmq_lite.broker.operator import queue_operations
from phpmq_lite.roles import Role
from phpmq_lite.server.maintenance import Maintenance, ScrubRunner
from phpmq_lite.storage.backend import StoreStatus
from phpmq_lite.storage.sqlite.backups import is_id, read_backup
from phpmq_lite.storage.sqlite.integrity.scrub import ScrubRound

endpoints: Final = Endpoints()
WAIT_S: Final = 20.0  # maximum time to wait for a backup; after that, the client must poll


class BackupView(BaseModel):
    """A backup, with statistics about the database that it contains."""

    id: str = Field(description="backup name, which is its start time, such as 20261231T235959Z")
    made_at: int = Field(description="when the backup began, Unix ms")
    took_ms: int = Field(description="duration of the backup, ms")
    version: str = Field(description="version of the broker that made the backup")
    schema_version: int = Field(description="schema version of the database")
    sha256: str = Field(description="SHA-256 of the database file, in hex")
    bytes: int = Field(description="size of the database file, bytes")
    queues: int = Field(description="number of queues")
    messages: int = Field(description="number of live messages")
    settled: int = Field(description="number of settled messages")
    bodies: int = Field(description="number of stored bodies")
    last_seq: int = Field(description="last assigned seq")
    last_offset: int = Field(description="last offset in the history")
    path: str | None = Field(None, description="folder on the broker's machine; null if hidden")


class BackupsView(ListPage[BackupView]):
    """All backups, newest first."""

    is_running: bool = Field(description="whether a backup is in progress")
    made: str | None = Field(description="last backup since the broker started; null if none")
    error: str | None = Field(description="why the last backup failed; null if it did not")


class ScrubRoundView(ResponseModel):
    """A single scrub, which checks all message bodies."""

    began_at: int = Field(description="when the scrub began, Unix ms")
    ended_at: int = Field(description="when the scrub ended, Unix ms; 0 if it is still running")
    bodies: int = Field(description="number of bodies checked so far")
    bytes: int = Field(description="total size of the bodies checked so far, bytes")
    bad_alive: int = Field(description="damaged live messages, settled as dead unless held")
    bad_settled: int = Field(description="damaged settled messages")
    seqs: list[int] = Field(
        validation_alias="named", description="seqs of up to 100 messages with damaged bodies"
    )


class ScrubView(BaseModel):
    """The scrub's progress and findings."""

    is_running: bool = Field(description="whether a scrub is running")
    now: ScrubRoundView | None = Field(description="the running scrub; null if none")
    last: ScrubRoundView | None = Field(description="the last completed scrub; null if none")
    structure_at: int = Field(description="last check of pages and indexes, Unix ms; 0 if none")
    structure: list[str] = Field(description="problems found in pages and indexes")


def maintenance_of(context: Context) -> Maintenance:
    """Return the database's maintenance; raise ``Problem``: 409 on PostgreSQL, 503 at the start."""
    if not (store := context.broker.summary().store).has_file:
        detail = (
            f"This broker stores in {store.engine} ({store.place}), whose own tools make backups: "
            "pg_dump, pg_basebackup or pgBackRest. `phpmq-lite database verify` checks messages."
        )
        raise Problem(409, "not_sqlite", detail)
    if context.maintenance is None:
        raise Problem(503, "not_ready", "The broker is not ready.")
    return context.maintenance


@endpoints.api("GET /backups", "api-backups", Role.ADMIN)
async def list_backups(call: Call) -> BackupsView:
    """List the backups, newest first."""
    call.check_all_queues("view backups")
    return await _backups_view(maintenance_of(call.context))


@endpoints.api(
    "POST /backups",
    "api-backup",
    Role.ADMIN,
    "backup.make",
    gives=BackupsView,
    status=201,
    cli="backup create",
)
async def make_backup(call: Call) -> web.Response:
    """Create a backup; if the response is 202 (after 20 s), poll until ``is_running`` is false."""
    maintenance = await _begin_backup(call)
    status = 201
    try:
        async with asyncio.timeout(WAIT_S):
            await maintenance.backups.wait()
    except TimeoutError:
        status = 202
    return json_response(await _backups_view(maintenance), status)


async def _begin_backup(call: Call) -> Maintenance:
    call.check_all_queues("create a backup")
    maintenance = maintenance_of(call.context)
    await maintenance.backups.start_after(_audit_writer(call, "backup"))
    return maintenance


async def _backups_view(maintenance: Maintenance) -> BackupsView:
    backups = maintenance.backups
    return BackupsView(
        items=[
            BackupView(
                schema_version=backup.manifest.schema,
                path=str(backup.folder),
                **asdict(backup.manifest),
            )
            for backup in await backups.all()
        ],
        is_running=backups.is_running,
        made=backups.last_id,
        error=backups.error,
    )


# -- the scrub


@endpoints.api("GET /scrub", "api-scrub", cli="database scrub")
async def get_scrub(call: Call) -> ScrubView:
    """Return the scrub's progress and findings."""
    view = _scrub_view(maintenance_of(call.context))
    for scrub_round in (view.now, view.last):
        if scrub_round is not None and call.identity.queues:
            scrub_round.seqs = []
    return view


def _audit_writer(call: Call, target: str) -> Callable[[], Awaitable[None]]:
    """Return a callback that writes the audit row for an action on the backup or scrub."""
    call.audit(target)  # of a refused action, too
    return lambda: call.run(queue_operations.record_only, 1)


def _scrub_view(maintenance: Maintenance) -> ScrubView:
    state = maintenance.scrub.state
    return ScrubView(
        is_running=maintenance.scrub.is_working,
        now=ScrubRoundView.of(state.now) if state.is_under_way else None,
        last=None if state.last is None else ScrubRoundView.of(state.last),
        structure_at=state.structure_at,
        structure=state.structure,
    )


# -- the page


@endpoints.page("/system/backups", "backups", Role.ADMIN)
async def show_backups(call: Call) -> web.Response:
    """Show the backups and the scrub."""
    call.check_all_queues("view backups")
    if not (store := call.status.store).has_file:
        return await call.render("backups.html", store=store, facts=_server_facts(store))
    maintenance = maintenance_of(call.context)
    return await call.render(
        "backups.html",
        store=store,
        backups=await maintenance.backups.all(),
        making=maintenance.backups.is_running,
        facts=_backup_facts(call.context, maintenance),
        scrubbing=maintenance.scrub.is_working,
        scrub=_scrub_facts(call.context, maintenance),
    )


@endpoints.action("/system/backups", "backup-make", Role.ADMIN, "backup.make")
async def submit_backup(call: Call) -> Done[None]:
    """Start a backup. The page lists the backup when it is complete."""
    await _begin_backup(call)
    text = "The backup has started. It will be listed here when it is complete."
    return Done(None, text, call.url("backups"))


@endpoints.page("/system/backups/{n}", "backup-download", Role.ADMIN, audit="backup.download")
async def download_backup(call: Call) -> web.StreamResponse:
    """Download a backup's database, which contains all messages, and password and token hashes."""
    call.check_all_queues("download a backup")
    name = call.path("n")
    folder = maintenance_of(call.context).backups.folder
    backup = read_backup(folder / name) if is_id(name) else None
    if backup is None:
        raise Problem(404, "unknown_backup", f"There is no backup {name!r}.")
    await call.run(queue_operations.record_only, 1)  # before the first byte is sent
    return web.FileResponse(backup.database, headers=download_headers(f"phpmq-{name}.db"))


@endpoints.action(
    "/system/scrub",
    "scrub-start",
    Role.ADMIN,
    "scrub.start",
    api="POST /scrub",
    status=202,
    cli="database scrub",
)
async def start_scrub(call: Call) -> Done[ScrubView]:
    """Start a check of all message bodies and the database structure."""
    call.check_all_queues("start a scrub")
    return await _change_scrub(call, ScrubRunner.start, "The scrub has started.")


@endpoints.action(
    "/system/scrub/stop",
    "scrub-stop",
    Role.ADMIN,
    "scrub.stop",
    api="DELETE /scrub",
    status=202,
    cli="database scrub",
)
async def stop_scrub(call: Call) -> Done[ScrubView]:
    """Stop the running scrub."""
    call.check_all_queues("stop the scrub")
    return await _change_scrub(call, ScrubRunner.stop, "The scrub was stopped.")


async def _change_scrub(call: Call, change: Any, message: str) -> Done[ScrubView]:
    maintenance = maintenance_of(call.context)
    await change(maintenance.scrub, _audit_writer(call, "scrub"))
    return Done(_scrub_view(maintenance), message, call.back(call.url("backups")))


def _backup_facts(context: Context, maintenance: Maintenance) -> list[SystemFact]:
    settings, backups = context.settings.backups, maintenance.backups
    if backups.error is not None:
        newest = SystemFact("Last backup", "failed", backups.error, "bad")
    elif backups.last_manifest is None:
        note = "without a backup, a disk failure destroys all data"
        newest = SystemFact("Last backup", "none yet", note, "warn")
    else:
        newest = SystemFact("Last backup", "", at_ms=backups.last_manifest.made_at)
    schedule = f"every {settings.every_h:g} h" if settings.every_h else "on demand only"
    return [
        newest,
        SystemFact("Schedule", schedule, "" if settings.every_h else "set by backups.every_h"),
        SystemFact("Retention", f"newest {formats.format_number(settings.keep)}", "backups.keep"),
        SystemFact("Folder", str(backups.folder), "copy backups to another machine"),
    ]


def _server_facts(store: StoreStatus) -> list[SystemFact]:
    facts, server = [SystemFact("Database", store.place)], store.server
    if server is not None:
        size = formats.format_size(server.database_bytes)
        facts.append(SystemFact("Size", size, "with indexes"))
        checks, level = ("on", "") if server.has_checksums else ("off", "warn")
        note = "with checksums, PostgreSQL detects damaged pages"
        facts.append(SystemFact("Page checksums", checks, note, level))
    return facts


def _scrub_facts(context: Context, maintenance: Maintenance) -> list[SystemFact]:
    state, settings = maintenance.scrub.state, context.settings.scrub
    facts = [SystemFact("Damage", "none found")]
    if state.problem_count:
        damage = formats.count_of(state.problem_count, "problem", "problems")
        facts = [SystemFact("Damage", damage, "; ".join(state.damage), "bad")]
    if state.is_under_way:
        facts.append(SystemFact("Running", _counted(state.now)))
    if state.last is None:
        facts.append(SystemFact("All bodies", "not checked yet"))
    else:
        facts.append(SystemFact("All bodies", "", _counted(state.last), at_ms=state.last.ended_at))
    if state.structure_at:
        facts.append(SystemFact("Structure", "", "pages and indexes", at_ms=state.structure_at))
    schedule = f"every {settings.every_h:g} h" if settings.every_h else "on demand only"
    days = settings.structure_days
    structure = f"structure every {days:g} days" if days else "structure checks are off"
    facts.append(SystemFact("Schedule", schedule, structure))
    return facts


def _counted(scrub_round: ScrubRound) -> str:
    size = formats.format_size(scrub_round.bytes)
    return f"{formats.format_number(scrub_round.bodies)} bodies, {size}"
