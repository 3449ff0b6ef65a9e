"""The aiohttp application of the admin interface: its middlewares, startup and shutdown."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import suppress
from functools import cache, partial
from pathlib import Path
from secrets import token_hex
from typing import Any, Final

import jinja2
from aiohttp import web

from phpmq_lite import logs
from phpmq_lite.admin import formats
from phpmq_lite.admin.accounts import middleware
from phpmq_lite.admin.accounts.accounts import Accounts
from phpmq_lite.admin.accounts.audit import begin_entry, finish_entry, write_entry
from phpmq_lite.admin.accounts.refused_forms import ask_again, typed_form
from phpmq_lite.admin.accounts.services import (
    MINUTE_MS,
    SERVICES,
    STANDBY_ACCOUNTS_MS,
    AccountServices,
    services_of,
)
from phpmq_lite.admin.accounts.setup_token import SetupToken
from phpmq_lite.admin.http.body import check_length, release_memory
from phpmq_lite.admin.http.browser_sessions import BASE_PATH
from phpmq_lite.admin.http.call import Call
from phpmq_lite.admin.http.context import CONTEXT, Context
from phpmq_lite.admin.http.headers import HSTS, add_headers, check_encoding, media_type_of
from phpmq_lite.admin.http.identity import set_identity
from phpmq_lite.admin.http.input import check_path
from phpmq_lite.admin.http.memory import FREE_BYTES
from phpmq_lite.admin.http.output import problem_json, send_response
from phpmq_lite.admin.http.page_layout import layout_values
from phpmq_lite.admin.http.problems import Problem, forget_frames, problem_of
from phpmq_lite.admin.http.route import REQUEST_ID, ROUTE, ROUTE_NAME, Handler, Route
from phpmq_lite.admin.http.source import (
    address_of,
    as_browser_sent,
    host_name,
    is_control,
    is_known_host,
    is_program,
    known_hosts,
)
from phpmq_lite.admin.http.templates import PageTemplates, StaticFiles
from phpmq_lite.admin.messages import bodies
from phpmq_lite.admin.messages.arrow_export import EXPORTS
from phpmq_lite.admin.messages.envelope_card import RowVerdicts, shorten
from phpmq_lite.admin.messages.jobs import STORES, MessageStores
from phpmq_lite.admin.messages.schemas import SCHEMAS
from phpmq_lite.admin.pipeline.staging import UPLOAD_SLOTS, UPLOADS
from phpmq_lite.admin.pipeline.summary import SUMMARIES, SummaryFile
from phpmq_lite.admin.routes import ROUTES, register_routes, route_paths
from phpmq_lite.admin.slow_clients import LIMITS, ConnectionLimits, connection_of
from phpmq_lite.admin.system.docs import DOCS
from phpmq_lite.admin.system.health import (
    HEALTH_PATHS,
    check_started,
    is_relaying,
    is_started,
    list_access_warnings,
    list_broker_problems,
)
from phpmq_lite.admin.system.metric_labels import MetricLabels
from phpmq_lite.admin.system.metrics import HTTP_COUNTERS, LABELS, HttpCounters
from phpmq_lite.admin.trends import polyline
from phpmq_lite.admin.urls import Urls
from phpmq_lite.documentation import Documentation
from phpmq_lite.durations import FORM_UNITS
from phpmq_lite.envelopes.schema_registry import ActiveSchemas
from phpmq_lite.errors import StorageError
from phpmq_lite.export.exports import ExportProcesses
from phpmq_lite.installation import docs_folder, templates_folder
from phpmq_lite.logs import get_logger, is_quiet
from phpmq_lite.model import OUTCOMES, STATE_NAMES, AuditEntry
from phpmq_lite.operator_actions import ACTIONS
from phpmq_lite.queue_settings import LONGEST_NAME, LONGEST_TTL_S
from phpmq_lite.roles import Role
from phpmq_lite.server.addresses import address_key
from phpmq_lite.server.status import BrokerHandle
from phpmq_lite.settings import Settings
from phpmq_lite.storage.read.messages import MessageReader
from phpmq_lite.storage.read.read_pool import FairReadSlots, Readers
from phpmq_lite.storage.search.language import meta_search
from phpmq_lite.storage.search.reader import SLICE_LIMIT_S, Search

_HOST_CHARACTERS: Final = 255  # of a refused host name, which is shown
_log = get_logger(__name__)
_access_log = logs.get_logger(f"phpmq_lite.{logs.ACCESS}")


def _record_response(request: web.Request, response: web.StreamResponse, seconds: float) -> None:
    """Count a response, and log it if ``log.access`` is set.

    The log line omits the query string, because searches are private.
    """
    call, context = Call.of(request), request.app[CONTEXT]
    route = request.get(ROUTE_NAME, "other")
    is_stream = response.content_type == "text/event-stream"
    counted_s = None if is_stream else seconds
    context.app[HTTP_COUNTERS].add(route, request.method, response.status, counted_s)
    if context.settings.log.access:
        _access_log.info(
            "request",
            method=request.method,
            path=request.path,
            status=response.status,
            bytes=response.body_length if response.prepared else response.content_length,
            ms=round(seconds * 1_000, 1),
            address=address_of(request),
            actor=call.actor,
            request_id=request.get(REQUEST_ID, ""),
        )


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
    app = web.Application(middlewares=_MIDDLEWARES, client_max_size=FREE_BYTES)
    app[SERVICES] = AccountServices(Accounts(readers, broker), SetupToken(settings.data))
    app[STORES] = MessageStores(now_ms)
    app[SUMMARIES] = SummaryFile(settings.data)
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
        version=version,
        is_ready=is_ready,
        now_ms=now_ms,
        layout=page_values,
    )
    app[BASE_PATH] = urls.base_path
    app.on_response_prepare.append(add_headers)
    app.cleanup_ctx.append(_count_refusals)
    app.on_shutdown.append(_stop)
    register_routes(app, urls.base_path, _guarded, static.handle)
    return app


@cache
def page_environment(folder: Path) -> jinja2.Environment:
    """Return the environment of the templates, which escapes values and rejects undefined names.

    All brokers in a process share the environment and its compiled templates.
    """
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(folder),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    environment.filters.update(
        number=formats.format_number,
        rate=formats.format_rate,
        size=formats.format_size,
        duration=formats.format_duration,
        visible=formats.escape_hidden,
        lines=formats.escape_hidden_lines,
        state=STATE_NAMES.__getitem__,
        points=polyline,
    )
    environment.globals.update(
        moment=formats.format_time,
        pieces=formats.split_hidden,
        client_name=formats.client_name,
        plural=formats.plural,
        preview=bodies.preview,
        preview_data=bodies.preview_data,
        cut=shorten,
        meta_search=lambda meta_id: str(meta_search(meta_id)),
        ACTIONS=ACTIONS,
        FORM_UNITS=FORM_UNITS,
        OUTCOMES=OUTCOMES,
        LONGEST_NAME=LONGEST_NAME,
        LONGEST_TTL_S=LONGEST_TTL_S,
    )
    return environment


def page_values(call: Call) -> dict[str, Any]:
    """Return the values that every page requires."""
    return layout_values(call) | {
        "dangers": list(list_access_warnings(call)),
        "troubles": list_broker_problems(call),
        "badge_of": RowVerdicts(lambda: call.queues).of,
    }


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


# -- middlewares, from the outermost to the innermost


@web.middleware
async def _see_through_proxies(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Undo a trusted proxy's changes to the request; record when the request starts and ends."""
    trusted = request.app[CONTEXT].settings.admin.trusted_proxies
    connection = connection_of(request)
    if connection is None:
        return await handler(as_browser_sent(request, trusted))
    connection.take(request)
    try:
        return await handler(as_browser_sent(request, trusted))
    finally:
        connection.finish()


@web.middleware
async def _send_in_pieces(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Send a large response in pieces, and then release the memory reserved for the request."""
    try:
        return await send_response(request, await handler(request))
    finally:
        release_memory(request)
        Call.forget(request)


@web.middleware
async def _observe(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Assign an id to the request, measure how long it takes, and count the response."""
    request[REQUEST_ID] = token_hex(8)
    started = time.perf_counter()
    response = await handler(request)
    seconds = time.perf_counter() - started
    if not response.prepared:
        response.headers["X-Request-Id"] = request[REQUEST_ID]
        response.headers["Server-Timing"] = f"total;dur={seconds * 1_000:.1f}"
        if request.secure and request.app[CONTEXT].settings.admin.hsts:
            response.headers["Strict-Transport-Security"] = HSTS
    _record_response(request, response, seconds)
    return response


@web.middleware
async def _guard_host(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Refuse requests with an unknown Host header (``docs/operate/security.md``, section 5)."""
    context = request.app[CONTEXT]
    if is_control(request) or is_known_host(request, known_hosts(context.settings)):
        return await handler(request)
    path = request.path.removeprefix(context.urls.base_path)
    if path in HEALTH_PATHS and is_program(request):
        return await handler(request)
    name = host_name(request.host)[:_HOST_CHARACTERS]
    if not is_quiet("host_refused"):
        _log.warning("host_refused", host=name, address=address_of(request), setting="admin.hosts")
    detail = f"The host name {name!r} is not one of this broker's. If browsers or programs use it, "
    detail += "add it to admin.hosts, or set admin.public_url to the address that they use."
    if path.startswith("/api/"):
        problem = Problem(421, "unknown_host", detail, field="Host", bound="admin.hosts")
        return problem_json(request, problem)
    return web.Response(status=421, text=f"{detail}\n")


@web.middleware
async def _answer_problems(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Turn exceptions into responses that reveal no internal details."""
    try:
        return await handler(request)
    except web.HTTPRedirection as redirection:
        location = redirection.headers["Location"]
        if request.headers.get("X-Dialog"):  # a script must go there itself to show the message
            return web.Response(headers={"X-Location": location})
        return web.Response(status=redirection.status, headers={"Location": location})
    except Exception as error:
        problem = problem_of(error)
        if problem is None:
            _log_failure("request_failed", request)
            problem = Problem(
                500, "internal", "The page could not be rendered. The log contains the error."
            )
        forget_frames(error)
        return await _problem_response(Call.of(request), problem)


async def _problem_response(call: Call, problem: Problem) -> web.StreamResponse:
    request, sessions = call.request, call.context.sessions
    path = request.path.removeprefix(call.context.urls.base_path)
    is_data = request.query.get("format", "html") != "html"
    if path.startswith("/api/") or is_data or media_type_of(request) == "application/json":
        return problem_json(request, problem)
    try:
        form = await typed_form(call)
        if form is not None and problem.code == "login":
            sessions.keep_form(sessions.open(request), form)
        elif form is not None:
            response = await ask_again(call, form, problem)
            if response is not None:
                return response
        response = await call.render(
            "error.html",
            status=problem.status,
            problem=problem,
            kept=form,
            is_change=request.method not in ("GET", "HEAD"),
        )
    except Exception:  # rendering the error page failed as well
        _log_failure("problem_page_failed", request)
        return problem_json(request, problem)
    response.headers.update(problem.headers)
    return response


def _log_failure(event: str, request: web.Request) -> None:
    if not is_quiet(event):
        _log.exception(event, request_id=request[REQUEST_ID], path=request.path)


@web.middleware
async def _identify(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Identify the caller; health checks do not require an account."""
    call, context = Call.of(request), request.app[CONTEXT]
    connection, path = connection_of(request), request.path.removeprefix(context.urls.base_path)
    is_standby = not is_started(context)
    is_named = path not in HEALTH_PATHS or middleware.bearer_of(request) is not None
    if not is_standby or (is_named and is_relaying(context)):
        try:
            await services_of(call).load(call.now_ms, STANDBY_ACCOUNTS_MS if is_standby else None)
        except StorageError as error:
            if not is_quiet("accounts_not_read"):
                _log.error("accounts_not_read", reason=str(error))
    identity = middleware.find_identity(call)
    set_identity(request, identity)
    if connection is not None and path not in HEALTH_PATHS:
        has_login = identity.kind != "nobody"
        caller = identity.actor if has_login else address_key(address_of(request))
        connection.identify(caller, has_login=has_login)
    return await handler(request)


_MIDDLEWARES: Final = (
    _see_through_proxies,
    _send_in_pieces,
    _observe,
    _guard_host,
    _answer_problems,
    _identify,
)


def _guarded(route: Route) -> Handler:
    """Wrap a handler so that the checks required by its route always run first."""

    async def handle(request: web.Request) -> web.StreamResponse:
        request[ROUTE_NAME], request[ROUTE] = route.name, route
        if route.audit is not None:
            return await _write(Call.of(request), route)
        _check_request(Call.of(request), route)
        return await route.handler(request)

    return handle


def _check_request(call: Call, route: Route) -> None:
    request, context = call.request, call.context
    if not (route.is_early or (route.role is Role.METRICS and is_relaying(context))):
        check_started(context)
    middleware.check_role(call, route)
    check_path(request)
    check_encoding(request)
    check_length(request)


async def _write(call: Call, route: Route) -> web.StreamResponse:
    """Check a change and carry it out; write an audit row even if the change is refused.

    Also handles reads that have an audit name.
    """
    entry = begin_entry(call, route)
    try:
        _check_request(call, route)
        if route.is_writing:
            await middleware.check_change(call, route)
        return await route.handler(call.request)
    except web.HTTPRedirection:
        if not route.is_writing:  # the caller was redirected to the login page
            entry.result = "login"
        raise
    except Exception as error:
        problem = problem_of(error)
        entry.result = problem.code if problem is not None else "failed"
        raise
    finally:
        await finish_entry(call)
        _log_action(entry)


def _log_action(entry: AuditEntry) -> None:
    """Log a change or a refusal; refusals are rate-limited, because anyone can cause them."""
    if entry.result in ("done", "running") or not is_quiet("action_refused"):
        _log.info(
            "action",
            action=entry.action,
            actor=entry.actor,
            target=entry.target,
            address=entry.address,
            result=entry.result,
            request_id=entry.request_id,
        )
