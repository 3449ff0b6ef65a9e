"""The admin as an aiohttp application: what every request passes on its way to a handler."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import suppress
from secrets import token_hex
from typing import Final

from aiohttp import web

from phpmq_lite.admin import render
from phpmq_lite.admin.access.headers import add_headers
from phpmq_lite.admin.access.hosts import is_control, is_known_host
from phpmq_lite.admin.access.origin import check_json, check_site
from phpmq_lite.admin.context import CONTEXT, Context, Engine, context_of, status_of
from phpmq_lite.admin.health import is_started
from phpmq_lite.admin.problems import Problem, problem_of
from phpmq_lite.admin.render import REQUEST_ID, ROUTE_NAME
from phpmq_lite.admin.requests import queue_name_of
from phpmq_lite.admin.route import Handler, Route
from phpmq_lite.admin.routes import paths, register
from phpmq_lite.admin.trends import EVERY_S
from phpmq_lite.admin.urls import Urls
from phpmq_lite.logs import get_logger
from phpmq_lite.resources import templates_folder
from phpmq_lite.settings import Settings
from phpmq_lite.storage.browse import Browser
from phpmq_lite.storage.readers import Readers

_HEAD_ROOM: Final = 1 << 20  # of a request around the content in base64

_log = get_logger(__name__)


def create_app(
    engine: Engine,
    readers: Readers,
    settings: Settings,
    *,
    version: str,
    is_ready: Callable[[], bool],
    sources: Mapping[str, str] | None = None,
    now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
) -> web.Application:
    """Make the application; the caller runs it, and closes ``readers`` after it.

    Args:
        engine: figures and commands; asked from the first request on.
        readers: opened on first use, so not before the database exists.
        settings: all of the broker's; what the admin does not need it shows.
        version: shown in the frame and in the metrics.
        is_ready: until it returns True only the health addresses answer.
        sources: where each setting comes from.
        now_ms: Unix milliseconds; the ages on pages count from it.
    """
    folder = templates_folder()
    static = render.Static(folder / "static")
    urls = Urls(settings.admin.base_path, paths(), static.version)
    app = web.Application(
        middlewares=[_observe, _guard_host, _answer_problems],
        client_max_size=settings.limits.max_content * 4 // 3 + _HEAD_ROOM,
    )
    app[CONTEXT] = Context(
        engine=engine,
        readers=readers,
        reader=Browser(readers),
        settings=settings,
        sources=sources or {},
        urls=urls,
        templates=render.environment(folder),
        version=version,
        is_ready=is_ready,
        now_ms=now_ms,
    )
    app.on_response_prepare.append(add_headers)
    app.cleanup_ctx.append(_sampling)
    register(app, urls.base_path, _guarded)
    for prefix in dict.fromkeys((urls.base_path, "")):
        app.router.add_get(prefix + "/static/{name}", static.handle)
    return app


async def _sampling(app: web.Application) -> AsyncIterator[None]:
    """Take a sample of the status every few seconds, for the small charts."""
    context = app[CONTEXT]

    async def sample() -> None:
        while True:
            if context.is_ready():
                context.trends.add(context.engine.status())
            await asyncio.sleep(EVERY_S)

    task = asyncio.create_task(sample())
    yield
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


# -- from the outside in


@web.middleware
async def _observe(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Give the request an id, count the answer."""
    request[REQUEST_ID] = token_hex(8)
    response = await handler(request)
    response.headers["X-Request-Id"] = request[REQUEST_ID]
    route = request.get(ROUTE_NAME, "other")
    context_of(request).requests[route, _method(request), response.status] += 1
    return response


def _method(request: web.Request) -> str:
    return request.method if request.method in ("GET", "HEAD", "POST") else "other"


@web.middleware
async def _guard_host(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Answer nobody who calls this machine by a foreign name (``security.md`` 5)."""
    if is_control(request) or is_known_host(request, context_of(request).settings.admin.hosts):
        return await handler(request)
    return web.Response(status=421)


@web.middleware
async def _answer_problems(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Turn whatever is raised into an answer; nothing of an exception leaks."""
    try:
        return await handler(request)
    except web.HTTPRedirection as redirection:
        location = redirection.headers["Location"]
        return web.Response(status=redirection.status, headers={"Location": location})
    except Exception as error:
        problem = problem_of(error)
        if problem is None:
            _log.exception("request_failed", request_id=request[REQUEST_ID], path=request.path)
            problem = Problem(500, "internal", "The broker could not make this page.")
        return _shown(request, problem)


def _shown(request: web.Request, problem: Problem) -> web.Response:
    context = context_of(request)
    path = request.path.removeprefix(context.urls.base_path)
    is_data = request.query.get("format", "html") != "html"
    if path.startswith("/api/") or is_data or request.content_type == "application/json":
        return render.problem_json(request, problem)
    try:
        return render.problem_page(request, problem)
    except Exception:  # the page of the error fails too: say it in plain words
        _log.exception("problem_page_failed", request_id=request[REQUEST_ID])
        return render.problem_json(request, problem)


def _guarded(route: Route) -> Handler:
    """Wrap a handler into what its route asks for, so that no handler can forget it."""

    async def handle(request: web.Request) -> web.StreamResponse:
        request[ROUTE_NAME] = route.name
        if not route.is_early and not is_started(request):
            raise Problem(
                503,
                "starting",
                f"The broker is starting: {status_of(request).step}.",
                headers={"Retry-After": "1"},
            )
        if route.is_writing:
            return await _write(request, route)
        return await route.handler(request)

    return handle


async def _write(request: web.Request, route: Route) -> web.StreamResponse:
    """Check where a change comes from, make it, and log it, refused ones too."""
    result = "done"
    try:
        await _check_write(request, route, context_of(request))
        return await route.handler(request)
    except web.HTTPRedirection:
        raise
    except Exception as error:
        problem = problem_of(error)
        result = problem.code if problem is not None else "failed"
        raise
    finally:
        _log.info(
            "action",
            action=route.audit,
            target=queue_name_of(request) if "q" in request.match_info else None,
            address="control" if is_control(request) else request.remote,
            result=result,
            request_id=request[REQUEST_ID],
        )


async def _check_write(request: web.Request, route: Route, context: Context) -> None:
    check_site(request, needs_origin=not route.is_api)
    if route.is_api:
        check_json(request)
    elif not is_control(request):
        await context.sessions.check_form(request)
