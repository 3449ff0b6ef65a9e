"""Health: three addresses that answer from the first moment on, and the metrics.

``/livez`` asks nothing of anybody; ``/readyz`` and ``/startupz`` look at the disk and never at the
database.  Whoever is logged in gets the detail, everybody else one word.
"""

import asyncio
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final

from aiohttp import web

from phpmq_lite.admin import limits
from phpmq_lite.admin import metrics as figures
from phpmq_lite.admin.access.identity import identity_of, may_use
from phpmq_lite.admin.conditions import Check, checks, percent
from phpmq_lite.admin.context import Context, context_of
from phpmq_lite.admin.labels import OTHER, Group
from phpmq_lite.admin.route import Role, Route
from phpmq_lite.errors import StorageError
from phpmq_lite.storage.read.measures import measure_database, measure_disk

_RETRY: Final = {"Retry-After": "1"}


async def live(request: web.Request) -> web.StreamResponse:
    """Answer as long as the loop runs."""
    return web.Response(text="alive\n")


async def ready(request: web.Request) -> web.StreamResponse:
    """Answer 200 when the broker serves clients: migrated, writable, listeners, no drain."""
    context = context_of(request)
    status = context.engine.summary()
    found = await checks(context, status)
    is_good = context.is_ready() and all(check.is_good or not check.is_needed for check in found)
    if is_good:
        word = "ready" if all(check.is_good for check in found) else "degraded"
    elif status.is_draining:
        word = "draining"
    else:
        word = "not ready" if context.is_ready() else "starting"
    detail = _detail(found) if _is_known(request) else ""
    return web.Response(
        status=200 if is_good else 503,
        text=f"{word}\n{detail}",
        headers={} if is_good else _RETRY,
    )


async def started(request: web.Request) -> web.StreamResponse:
    """Answer 200 once the start is done; before that, 503 with the step and the percent."""
    if is_started(request):
        return web.Response(text="started\n")
    step = context_of(request).engine.summary().step
    return web.Response(status=503, text=f"starting: {step}, {percent(step)} %\n", headers=_RETRY)


def is_started(request: web.Request) -> bool:
    """Tell whether the start is done: pages can be read, also while the broker drains."""
    context = context_of(request)
    return context.is_ready() or context.engine.summary().is_draining


def _is_known(request: web.Request) -> bool:
    return identity_of(request).role.may(Role.VIEWER)


def _detail(found: Iterable[Check]) -> str:
    return "".join(
        f"{'ok' if check.is_good else 'BAD':3} {check.name}: {check.text}\n" for check in found
    )


async def metrics(request: web.Request) -> web.StreamResponse:
    """Give the metrics in Prometheus's text format; what cannot be read is left out."""
    context = context_of(request)
    async with context.labels.lock:
        groups = await _read_queues(context)
        shown = [group for group in groups if _is_shown(request, group)]
        text = await figures.render(await _readings(context), shown)
    return web.Response(body=text, headers={"Content-Type": figures.CONTENT_TYPE})


def _is_shown(request: web.Request, group: Group) -> bool:
    """Show a queue to whoever may see it; the rest as one only to who may see all."""
    if group.label == OTHER:
        return not identity_of(request).queues
    return may_use(request, group.label.removeprefix("~"))


async def _read_queues(context: Context) -> Sequence[Group]:
    """Take in all queues, in slices, and when the first ready message of each was published."""
    labels, limit = context.labels, context.settings.metrics.max_queues
    waiting: list[int] = []
    labels.begin()
    for some in context.engine.queue_slices():
        labels.add(some, limit)
        waiting += [queue.queue_id for queue in some if queue.ready]
        await asyncio.sleep(0)
    labels.end()
    with suppress(StorageError):  # the ages are left out
        labels.note_oldest(await context.reader.oldest_ready(waiting))
    return labels.groups()


def _care(context: Context) -> dict[str, Any]:
    """Tell of backups and scrub what a scrape shows."""
    care = context.care
    if care is None:
        return {}
    newest, state = care.backups.newest, care.scrub.state
    return {
        "backup_at": 0 if newest is None else newest.made_at,
        "backup_failed": care.backups.error is not None,
        "scrub_at": 0 if state.last is None else state.last.ended_at,
        "damage": state.faults,
    }


async def _readings(context: Context) -> figures.Readings:
    """Read what is shown beside the queues; a database that cannot be read hides nothing else."""
    status = context.engine.summary()
    readings = figures.Readings(
        status=status,
        http=context.http,
        version=context.version,
        now_ms=context.now_ms(),
        streams=context.live.streams,
        exports=context.exports.running,
        export_ends=context.exports.ends,
        login_failures=context.entrance.refusals.total,
        limits=limits.limits(context.settings, status, limits.http_of(context)),
        **_care(context),
    )
    try:
        disk = await measure_disk(context.readers.path)
        stored = await measure_database(context.readers)
    except (StorageError, OSError):
        return readings
    return replace(
        readings,
        files=disk.files,
        disk_free=disk.free,
        history_rows=stored.history_rows,
        history_offset=stored.history_offset,
        removed=stored.removed,
    )


ROUTES: Final = (
    Route("GET", "/livez", Role.PUBLIC, "livez", live, is_early=True),
    Route("GET", "/readyz", Role.PUBLIC, "readyz", ready, is_early=True),
    Route("GET", "/startupz", Role.PUBLIC, "startupz", started, is_early=True),
    Route("GET", "/metrics", Role.METRICS, "metrics", metrics),
)
