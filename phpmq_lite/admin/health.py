"""Health: three addresses that answer from the first moment on, without the database."""

from typing import Final

from aiohttp import web

from phpmq_lite.admin import metrics as figures
from phpmq_lite.admin.context import context_of, status_of
from phpmq_lite.admin.paging import oldest
from phpmq_lite.admin.route import Role, Route
from phpmq_lite.errors import StorageError


async def live(request: web.Request) -> web.StreamResponse:
    """Answer as long as the loop runs."""
    return web.Response(text="alive\n")


async def ready(request: web.Request) -> web.StreamResponse:
    """Answer 200 when the broker takes messages, 503 before and while it drains."""
    status = status_of(request)
    if context_of(request).is_ready() and not status.is_draining:
        return web.Response(text="ready\n")
    word = "draining" if status.is_draining else "starting"
    return web.Response(status=503, text=f"{word}\n", headers={"Retry-After": "1"})


async def started(request: web.Request) -> web.StreamResponse:
    """Answer 200 once the start is done; before that, 503 and the step it is at."""
    if is_started(request):
        return web.Response(text="started\n")
    step = status_of(request).step
    return web.Response(status=503, text=f"starting: {step}\n", headers={"Retry-After": "1"})


def is_started(request: web.Request) -> bool:
    """Tell whether the start is done: pages can be read, also while the broker drains."""
    return context_of(request).is_ready() or status_of(request).is_draining


async def metrics(request: web.Request) -> web.StreamResponse:
    """Give the metrics in Prometheus's text format; ages are left out if they cannot be read."""
    context = context_of(request)
    status = status_of(request)
    try:
        ages = await oldest(context, status.queues)
    except StorageError:
        ages = {}
    text = figures.render(status, ages, context.requests, context.version, context.now_ms())
    return web.Response(body=text, headers={"Content-Type": figures.CONTENT_TYPE})


ROUTES: Final = (
    Route("GET", "/livez", Role.PUBLIC, "livez", live, is_early=True),
    Route("GET", "/readyz", Role.PUBLIC, "readyz", ready, is_early=True),
    Route("GET", "/startupz", Role.PUBLIC, "startupz", started, is_early=True),
    Route("GET", "/metrics", Role.VIEWER, "metrics", metrics),
)
