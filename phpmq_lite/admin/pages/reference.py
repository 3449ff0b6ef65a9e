"""The reference of the HTTP API: each call with its models and its curl, and the document."""

from typing import Any, Final

from aiohttp import web

from phpmq_lite.admin import calls, openapi
from phpmq_lite.admin.context import context_of
from phpmq_lite.admin.lists import as_json
from phpmq_lite.admin.render import page
from phpmq_lite.admin.route import Role, Route


async def document(request: web.Request) -> web.StreamResponse:
    """Give the OpenAPI 3.1 document of this API."""
    return as_json(_document(request))


async def reference(request: web.Request) -> web.StreamResponse:
    """The HTTP API, call by call, with curl."""
    context = context_of(request)
    found = _document(request)
    origin = f"{request.scheme}://{request.host}"
    groups = calls.grouped(context.routes, found, origin + found["servers"][0]["url"])
    return await page(request, "reference.html", groups=groups)


def _document(request: web.Request) -> dict[str, Any]:
    context = context_of(request)
    server = context.urls.base_path + openapi.PREFIX
    return openapi.document(context.routes, context.version, server)


ROUTES: Final = (
    Route("GET", "/api", Role.VIEWER, "reference", reference),
    Route(
        "GET", "/api/v1/openapi.json", Role.VIEWER, "api-openapi", document, gives=dict[str, Any]
    ),
)
