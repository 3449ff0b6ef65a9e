"""This version's documentation, readable offline at ``/docs/``."""

import asyncio
from typing import Annotated, Final

from aiohttp import web
from pydantic import BaseModel, StringConstraints

from phpmq_lite.admin.context import Context, context_of
from phpmq_lite.admin.http.fields import read_query
from phpmq_lite.admin.http.problems import Problem
from phpmq_lite.admin.http.rendering import render_page
from phpmq_lite.admin.http.route import Role, Route
from phpmq_lite.admin.system.documentation import INDEX, PICTURE_TYPES


class DocsQuery(BaseModel):
    """The words to search for in the documentation."""

    q: Annotated[str, StringConstraints(strip_whitespace=True, max_length=200)] = ""


async def docs(request: web.Request) -> web.Response:
    """Show the documentation index, or the pages and sections that contain the words ``q``."""
    context = context_of(request)
    query = read_query(request, DocsQuery)
    if not query.q:
        return await _render(request, context, INDEX)
    found = await asyncio.to_thread(context.docs.search, query.q)
    return await render_page(
        request, "docs.html", docs=context.docs, name="", text=query.q, found=found, body=""
    )


async def docs_page(request: web.Request) -> web.Response:
    """Show a documentation page, or return an image from the documentation."""
    context = context_of(request)
    name = f"{request.match_info['section']}/{request.match_info['page']}"
    section, _, file = name.partition("/")
    if section == "images" and (path := context.docs.pictures.get(file)):
        content = await asyncio.to_thread(path.read_bytes)
        return web.Response(body=content, content_type=PICTURE_TYPES[path.suffix])
    if name in await asyncio.to_thread(lambda: context.docs.outlines):
        return await _render(request, context, name)
    return await _redirect(context, name)


async def docs_short(request: web.Request) -> web.Response:
    """Redirect a short documentation URL to the page's full URL."""
    return await _redirect(context_of(request), request.match_info.get("page", INDEX))


async def _render(request: web.Request, context: Context, name: str) -> web.Response:
    body = await asyncio.to_thread(context.docs.render, name)
    return await render_page(
        request, "docs.html", docs=context.docs, name=name, text="", found=None, body=body
    )


async def _redirect(context: Context, name: str) -> web.Response:
    target = await asyncio.to_thread(context.docs.find, name)
    if target is None:
        raise Problem(404, "unknown_page", f"The documentation has no page named {name!r}.")
    raise web.HTTPSeeOther(context.urls.docs(target))


ROUTES: Final = (
    Route("GET", "/docs/", Role.VIEWER, "docs", docs),
    Route("GET", "/docs", Role.VIEWER, "docs-root", docs_short),
    Route("GET", "/docs/{page}", Role.VIEWER, "docs-short", docs_short),
    Route("GET", "/docs/{section}/{page}", Role.VIEWER, "docs-page", docs_page),
)
