"""Assembles the aiohttp application of the admin interface; its startup and shutdown."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import suppress
from functools import partial

from aiohttp import web

from phpmq_lite.admin.accounts.accounts import Accounts
from phpmq_lite.admin.accounts.audit import write_entry
from phpmq_lite.admin.accounts.services import MINUTE_MS, SERVICES, AccountServices
from phpmq_lite.admin.accounts.setup_token import SetupToken
from phpmq_lite.admin.http.browser_sessions import BASE_PATH
from phpmq_lite.admin.http.context import CONTEXT, Context
from phpmq_lite.admin.http.headers import add_headers
from phpmq_lite.admin.http.memory import FREE_BYTES, HttpMemory
from phpmq_lite.admin.http.templates import PageTemplates, StaticFiles
from phpmq_lite.admin.messages.arrow_export import EXPORTS
from phpmq_lite.admin.messages.jobs import STORES, MessageStores
from phpmq_lite.admin.messages.schemas import SCHEMAS
from phpmq_lite.admin.middlewares import MIDDLEWARES, guarded
from phpmq_lite.admin.page_environment import page_environment, page_values
from phpmq_lite.admin.pipeline.last_day import DAY_CACHE
from phpmq_lite.admin.pipeline.staging import UPLOAD_SLOTS, UPLOADS
from phpmq_lite.admin.pipeline.summary import SUMMARIES, SummaryFile
from phpmq_lite.admin.routes import ROUTES, register_routes, route_paths
from phpmq_lite.admin.slow_clients import LIMITS, ConnectionLimits
from phpmq_lite.admin.system.docs import DOCS
from phpmq_lite.admin.system.metric_labels import MetricLabels
from phpmq_lite.admin.system.metrics import HTTP_COUNTERS, LABELS, HttpCounters
from phpmq_lite.admin.urls import Urls
from phpmq_lite.documentation import Documentation
from phpmq_lite.envelopes.schema_registry import ActiveSchemas
from phpmq_lite.export.exports import ExportProcesses
from phpmq_lite.installation import docs_folder, templates_folder
from phpmq_lite.server.status import BrokerHandle
from phpmq_lite.settings import Settings
from phpmq_lite.storage.read.messages import MessageReader
from phpmq_lite.storage.read.read_pool import FairReadSlots, Readers
from phpmq_lite.storage.search.reader import SLICE_LIMIT_S, Search


def create_app(
    broker: BrokerHandle,
    readers: Readers,
    settings: Settings,
    *,
    version: str,
    is_ready: Callable[[], bool],
    sources: Mapping[str, str] | None = None,
    now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
) -> web.Application:
    """Create the aiohttp application; the caller runs it and closes ``readers`` afterwards.

    Args:
        broker: provides live statistics and runs operations; not used before the first request.
        readers: database connections, opened on first use, when the database exists.
        settings: all settings of the broker, which the system page shows.
        version: shown on every page and in the metrics.
        is_ready: until it returns True, only early routes such as health checks are served.
        sources: where each setting's value comes from.
        now_ms: returns the current time in Unix milliseconds, from which pages compute ages.
    """
    folder = templates_folder()
    static = StaticFiles(folder / "static")
    urls = Urls(settings.admin.base_path, route_paths(), static.version)
    # http/body.py reads bodies larger than that.
    app = web.Application(middlewares=MIDDLEWARES, client_max_size=FREE_BYTES)
    app[SERVICES] = AccountServices(Accounts(readers, broker), SetupToken(settings.data))
    app[STORES] = MessageStores(now_ms)
    app[SUMMARIES], app[DAY_CACHE] = SummaryFile(settings.data), {}
    app[UPLOAD_SLOTS] = FairReadSlots(UPLOADS)
    app[SCHEMAS] = ActiveSchemas(None)
    app[DOCS] = Documentation(docs_folder(), urls.docs)
    app[EXPORTS] = ExportProcesses(
        *readers.export_databases, passed=lambda: broker.counters.bytes_in
    )
    app[LIMITS] = ConnectionLimits.of(settings)
    app[HTTP_COUNTERS], app[LABELS] = HttpCounters(), MetricLabels()
    app[CONTEXT] = Context(
        app=app,
        broker=broker,
        readers=readers,
        reader=MessageReader(readers),
        search=Search(readers.separate(limit_s=SLICE_LIMIT_S), now_ms=now_ms),
        settings=settings,
        sources=sources or {},
        urls=urls,
        routes=ROUTES,
        templates=PageTemplates(page_environment(folder)),
        memory=HttpMemory(int(settings.limits.http_memory)),
        version=version,
        is_ready=is_ready,
        now_ms=now_ms,
        layout=page_values,
    )
    app[BASE_PATH] = urls.base_path
    app.on_response_prepare.append(add_headers)
    app.cleanup_ctx.append(_count_refusals)
    app.on_shutdown.append(_stop)
    register_routes(app, urls.base_path, guarded, static.handle)
    return app


async def _stop(app: web.Application) -> None:
    """End bulk jobs, streams and waiting requests, all of which would delay the shutdown."""
    app[CONTEXT].live.close()
    await app[STORES].jobs.close()


async def _count_refusals(app: web.Application) -> AsyncIterator[None]:
    """Store the number of refusals every minute, and close the auth services on shutdown."""
    services, write = app[SERVICES], partial(write_entry, app[CONTEXT])

    async def count() -> None:
        while True:
            await asyncio.sleep(MINUTE_MS / 1_000)
            for refusals in (services.refused_logins, services.refusals):
                await refusals.flush(write)

    task = asyncio.create_task(count())
    yield
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
    await services.close()
