"""What every request passes through: middlewares, and the checks and problems of its route."""

import time
from secrets import token_hex
from typing import Final

from aiohttp import web

from phpmq_lite import logs
from phpmq_lite.admin.accounts import checks
from phpmq_lite.admin.accounts.audit import begin_entry, finish_entry
from phpmq_lite.admin.accounts.checks import CSRF_FIELD, check_site
from phpmq_lite.admin.accounts.services import STANDBY_ACCOUNTS_MS, services_of
from phpmq_lite.admin.http.body import check_length, read_form_fields, release_memory
from phpmq_lite.admin.http.browser_sessions import KeptForm
from phpmq_lite.admin.http.call import Call
from phpmq_lite.admin.http.context import CONTEXT
from phpmq_lite.admin.http.headers import HSTS, check_encoding, media_type_of
from phpmq_lite.admin.http.identity import set_identity
from phpmq_lite.admin.http.input import check_path
from phpmq_lite.admin.http.memory import FREE_BYTES
from phpmq_lite.admin.http.output import problem_json, send_response
from phpmq_lite.admin.http.page_layout import REFUSED
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
from phpmq_lite.admin.slow_clients import connection_of
from phpmq_lite.admin.system.health import HEALTH_PATHS, check_started, is_relaying, is_started
from phpmq_lite.admin.system.metrics import HTTP_COUNTERS
from phpmq_lite.errors import StorageError
from phpmq_lite.logs import get_logger, is_quiet
from phpmq_lite.model import AuditEntry
from phpmq_lite.roles import Role
from phpmq_lite.server.addresses import address_key

_HOST_CHARACTERS: Final = 255  # of a refused host name, which is shown
_log = get_logger(__name__)
_access_log = logs.get_logger(f"phpmq_lite.{logs.ACCESS}")
_SECRETS: Final = frozenset({CSRF_FIELD, "password", "again", "old"})
_HIDDEN: Final = frozenset({"next", "id", "action", "upto", "q", "side"})  # nobody types them
_TARGET_ERRORS: Final = frozenset({"unknown_queue", "bad_name"})  # errors that name no field


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


@web.middleware
async def _identify(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Identify the caller; health checks do not require an account."""
    call, context = Call.of(request), request.app[CONTEXT]
    connection, path = connection_of(request), request.path.removeprefix(context.urls.base_path)
    is_standby = not is_started(context)
    is_named = path not in HEALTH_PATHS or checks.bearer_of(request) is not None
    if not is_standby or (is_named and is_relaying(context)):
        try:
            await services_of(call).load(call.now_ms, STANDBY_ACCOUNTS_MS if is_standby else None)
        except StorageError as error:
            if not is_quiet("accounts_not_read"):
                _log.error("accounts_not_read", reason=str(error))
    identity = checks.find_identity(call)
    set_identity(request, identity)
    if connection is not None and path not in HEALTH_PATHS:
        has_login = identity.kind != "nobody"
        caller = identity.actor if has_login else address_key(address_of(request))
        connection.identify(caller, has_login=has_login)
    return await handler(request)


MIDDLEWARES: Final = (  # from the outermost to the innermost
    _see_through_proxies,
    _send_in_pieces,
    _observe,
    _guard_host,
    _answer_problems,
    _identify,
)


# -- the response to a problem


async def _problem_response(call: Call, problem: Problem) -> web.StreamResponse:
    request, sessions = call.request, call.context.sessions
    path = request.path.removeprefix(call.context.urls.base_path)
    is_data = request.query.get("format", "html") != "html"
    if path.startswith("/api/") or is_data or media_type_of(request) == "application/json":
        return problem_json(request, problem)
    try:
        form = await _typed_form(call)
        if form is not None and problem.code == "login":
            sessions.keep_form(sessions.open(request), form)
        elif form is not None:
            response = await _ask_again(call, form, problem)
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


async def _typed_form(call: Call) -> KeptForm | None:
    """Return a form of our pages if something can be typed into it and it is at most 64 KiB."""
    request, route = call.request, call.request.get(ROUTE)
    if route is None or route.is_api or not route.is_writing or route.role is Role.PUBLIC:
        return None
    try:
        public_url = call.context.settings.admin.public_url
        check_site(request, needs_origin=True, public_url=public_url)
        is_small = (request.content_length or FREE_BYTES + 1) <= FREE_BYTES
        values = await read_form_fields(request) if is_small else []
    except Problem:
        return None
    fields = [(key, text) for key, text in values if isinstance(text, str) and key not in _SECRETS]
    return (call.own_path, fields) if any(key not in _HIDDEN for key, _ in fields) else None


async def _ask_again(call: Call, form: KeptForm, problem: Problem) -> web.StreamResponse | None:
    """Return the form's page with what was typed, or None if it has none or its object is gone."""
    request, name = call.request, call.request[ROUTE].form_page
    page = next((route for route in call.context.routes if route.name == name), None)
    if page is None:
        return None
    typed = dict(form[1])
    if "target" in typed and (problem.field == "queue" or problem.code in _TARGET_ERRORS):
        problem.field = "target"
    url = request.rel_url.with_query({key: typed.get(key, "") for key in ("next", "action")})
    page_request = request.clone(method="GET", rel_url=url)
    page_request[REFUSED] = (typed, problem)
    try:
        response = await page.handler(page_request)
    except Problem:
        return None
    response.set_status(problem.status)
    response.headers.update(problem.headers)
    return response


# -- what a route requires


def guarded(route: Route) -> Handler:
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
    checks.check_role(call, route)
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
            await checks.check_change(call, route)
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
