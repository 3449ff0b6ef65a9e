"""The page and API for backups and the database scrub."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from typing import Final

from aiohttp import web
from pydantic import BaseModel, Field

from phpmq_lite.admin import formats
from phpmq_lite.admin.accounts.csrf import download_headers
from phpmq_lite.admin.context import Context, context_of, status_of
from phpmq_lite.admin.http.identity import identity_of
from phpmq_lite.admin.http.permissions import check_all_queues
from phpmq_lite.admin.http.problems import Problem
from phpmq_lite.admin.http.rendering import render_page
from phpmq_lite.admin.http.request_audit import audit_entry
from phpmq_lite.admin.http.responses import ListPage, ResponseModel, json_response
from phpmq_lite.admin.http.route import Role, Route
from phpmq_lite.admin.resource import Api, Page, Resource, api_route
from phpmq_lite.admin.system.view import SystemFact
from phpmq_lite.broker.operator import queue_operations
from phpmq_lite.server.maintenance import Maintenance
from phpmq_lite.storage.sqlite.backup.backups import Backup, is_id, read_backup
from phpmq_lite.storage.sqlite.integrity.scrub import ScrubRound
from phpmq_lite.storage.store_status import StoreStatus

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
    """Return the database maintenance object.

    Raises:
        Problem: 409 if the broker stores in PostgreSQL, 503 if it is not ready yet.
    """
    if not (store := context.engine.summary().store).has_file:
        raise Problem(
            409, "not_sqlite",
            f"This broker stores in {store.engine} ({store.place}), whose own tools make backups: "
            "pg_dump, pg_basebackup or pgBackRest. `phpmq-lite database verify` checks messages.",
        )  # fmt: skip
    if context.maintenance is None:
        raise Problem(503, "not_ready", "The broker is not ready.")
    return context.maintenance


async def list_backups(request: web.Request) -> BackupsView:
    """List the backups, newest first."""
    check_all_queues(request, "view backups")
    return await _listed(maintenance_of(context_of(request)))


async def make_backup(request: web.Request) -> web.StreamResponse:
    """Create a backup; if the response is 202 (after 20 s), poll until ``is_running`` is false."""
    context = context_of(request)
    await begin_backup(request)
    care = maintenance_of(context)
    try:
        async with asyncio.timeout(WAIT_S):
            await care.backups.wait()
    except TimeoutError:
        return json_response(await _listed(care), status=202)
    return json_response(await _listed(care), status=201)


async def begin_backup(request: web.Request) -> None:
    """Start a backup and write its audit row."""
    check_all_queues(request, "create a backup")
    care = maintenance_of(context_of(request))
    await care.backups.start_after(_audit_writer(request, "backup"))


async def _listed(care: Maintenance) -> BackupsView:
    made = care.backups
    return BackupsView(
        items=[_backup_out(backup) for backup in await made.all()],
        is_running=made.is_running,
        made=made.last_id,
        error=made.error,
    )


def _backup_out(backup: Backup) -> BackupView:
    manifest = asdict(backup.manifest)
    return BackupView(schema_version=manifest.pop("schema"), path=str(backup.folder), **manifest)


# -- the scrub


async def get_scrub(request: web.Request) -> ScrubView:
    """Return the scrub's progress and findings."""
    view = scrub_view(maintenance_of(context_of(request)))
    if identity_of(request).queues:
        for one in (view.now, view.last):
            if one is not None:
                one.seqs = []
    return view


async def start_scrub(request: web.Request, _asked: None) -> ScrubView:
    """Start a check of all message bodies and the database structure."""
    check_all_queues(request, "start a scrub")
    care = maintenance_of(context_of(request))
    await care.scrub.start(_audit_writer(request, "scrub"))
    return scrub_view(care)


async def stop_scrub(request: web.Request, _asked: None) -> ScrubView:
    """Stop the running scrub."""
    check_all_queues(request, "stop the scrub")
    care = maintenance_of(context_of(request))
    await care.scrub.stop(_audit_writer(request, "scrub"))
    return scrub_view(care)


def _audit_writer(request: web.Request, target: str) -> Callable[[], Awaitable[None]]:
    """Return a callback that writes the audit row for an action on the backup or scrub."""
    context, entry = context_of(request), audit_entry(request, target=target)
    return lambda: context.engine.run(queue_operations.record_only, entry, 1)


def scrub_view(care: Maintenance) -> ScrubView:
    """Return the API view of the scrub."""
    state = care.scrub.state
    return ScrubView(
        is_running=care.scrub.is_working,
        now=ScrubRoundView.of(state.now) if state.is_under_way else None,
        last=None if state.last is None else ScrubRoundView.of(state.last),
        structure_at=state.structure_at,
        structure=state.structure,
    )


_BACKUPS: Final = "/api/v1/backups"
_SCRUB: Final = "/api/v1/scrub"


async def show_backups(request: web.Request) -> web.StreamResponse:
    """Show the backups and the scrub."""
    check_all_queues(request, "view backups")
    context = context_of(request)
    if not (store := status_of(request).store).has_file:
        return await render_page(request, "backups.html", store=store, facts=_server_facts(store))
    care = maintenance_of(context)
    return await render_page(
        request,
        "backups.html",
        store=store,
        backups=await care.backups.all(),
        making=care.backups.is_running,
        facts=_facts(context, care),
        scrubbing=care.scrub.is_working,
        scrub=_scrubbed(context, care),
    )


async def submit_backup(request: web.Request) -> web.StreamResponse:
    """Start a backup. The page lists the backup when it is complete."""
    context = context_of(request)
    await begin_backup(request)
    context.sessions.store_message(
        request, "The backup has started. It will be listed here when it is complete."
    )
    raise web.HTTPSeeOther(context.urls.to("backups"))


async def download_backup(request: web.Request) -> web.StreamResponse:
    """Download a backup's database, which contains all messages, and password and token hashes."""
    check_all_queues(request, "download a backup")
    name = request.match_info["n"]
    context = context_of(request)
    folder = maintenance_of(context).backups.folder
    backup = read_backup(folder / name) if is_id(name) else None
    if backup is None:
        raise Problem(404, "unknown_backup", f"There is no backup {name!r}.")
    await context.engine.run(
        queue_operations.record_only, audit_entry(request), 1
    )  # write the audit row before the first byte is sent
    return web.FileResponse(backup.database, headers=download_headers(f"phpmq-{name}.db"))


def _facts(context: Context, care: Maintenance) -> list[SystemFact]:
    settings, made = context.settings.backups, care.backups
    if made.error is not None:
        last = [SystemFact("Last backup", "failed", made.error, "bad")]
    elif made.last_manifest is None:
        last = [
            SystemFact(
                "Last backup",
                "none yet",
                "without a backup, a disk failure destroys all data",
                "warn",
            )
        ]
    else:
        last = [SystemFact("Last backup", "", "", at_ms=made.last_manifest.made_at)]
    when = f"every {settings.every_h:g} h" if settings.every_h else "on demand only"
    return [
        *last,
        SystemFact("Schedule", when, "" if settings.every_h else "set by backups.every_h"),
        SystemFact("Retention", f"newest {formats.format_number(settings.keep)}", "backups.keep"),
        SystemFact("Folder", str(made.folder), "copy backups to another machine"),
    ]


def _server_facts(store: StoreStatus) -> list[SystemFact]:
    facts, server = [SystemFact("Database", store.place)], store.server
    if server is not None:
        checks = "on" if server.has_checksums else "off"
        facts += [
            SystemFact("Size", formats.format_size(server.database_bytes), "with indexes"),
            SystemFact("Page checksums", checks, "with checksums, PostgreSQL detects damaged pages",
                 "" if server.has_checksums else "warn"),
        ]  # fmt: skip
    return facts


def _scrubbed(context: Context, care: Maintenance) -> list[SystemFact]:
    state, settings = care.scrub.state, context.settings.scrub
    damage = formats.count_of(state.problem_count, "problem", "problems")
    found = [
        SystemFact("Damage", damage, "; ".join(state.damage), "bad")
        if state.problem_count
        else SystemFact("Damage", "none found")
    ]
    if state.is_under_way:
        found.append(SystemFact("Running", _counted(state.now)))
    if state.last is None:
        found.append(SystemFact("All bodies", "not checked yet"))
    else:
        found.append(SystemFact("All bodies", "", _counted(state.last), at_ms=state.last.ended_at))
    if state.structure_at:
        found.append(SystemFact("Structure", "", "pages and indexes", at_ms=state.structure_at))
    when = f"every {settings.every_h:g} h" if settings.every_h else "on demand only"
    found.append(SystemFact("Schedule", when, f"structure every {settings.structure_days:g} days"
                      if settings.structure_days else "structure checks are off"))  # fmt: skip
    return found


def _counted(one: ScrubRound) -> str:
    return f"{formats.format_number(one.bodies)} bodies, {formats.format_size(one.bytes)}"


def _back(text: str) -> Callable[[web.Request, object, object], tuple[str, str]]:
    return lambda request, _asked, _view: (text, context_of(request).urls.to("backups"))


_PATH: Final = "/system/backups"
ROUTES: Final = (
    api_route("GET", _BACKUPS, Role.ADMIN, "api-backups", list_backups),
    Route(
        "POST", _BACKUPS, Role.ADMIN, "api-backup", make_backup, "backup.make", gives=BackupsView,
        status=201, cli="backup create",
    ),
    api_route("GET", _SCRUB, Role.VIEWER, "api-scrub", get_scrub, cli="database scrub"),
    Route("GET", _PATH, Role.ADMIN, "backups", show_backups),
    Route("POST", _PATH, Role.ADMIN, "backup-make", submit_backup, "backup.make"),
    Route(
        "GET", f"{_PATH}/{{n}}", Role.ADMIN, "backup-download", download_backup, "backup.download",
    ),
    *(
        route
        for run, name, method, path, text in (
            (start_scrub, "start", "POST", "/system/scrub", "The scrub has started."),
            (stop_scrub, "stop", "DELETE", "/system/scrub/stop", "The scrub was stopped."),
        )
        for route in Resource(
            run=run, role=Role.ADMIN, audit=f"scrub.{name}",
            page=Page(path, f"scrub-{name}", done=_back(text)),
            api=Api(method, _SCRUB, f"api-scrub-{name}", status=202, cli="database scrub"),
        ).routes()
    ),
)  # fmt: skip
