"""This version's documentation, readable offline at ``/docs/``."""

import asyncio
from typing import Annotated, Final

from aiohttp import web
from pydantic import BaseModel, StringConstraints

from phpmq_lite.admin.http.call import Call
from phpmq_lite.admin.http.endpoint import Endpoints
from phpmq_lite.admin.http.problems import Problem
from phpmq_lite.documentation import INDEX, PICTURE_TYPES, Documentation

endpoints: Final = Endpoints()
DOCS: Final = web.AppKey("documentation", Documentation)


class DocsQuery(BaseModel):
    """The words to search for in the documentation."""

    q: Annotated[str, StringConstraints(strip_whitespace=True, max_length=200)] = ""


@endpoints.page("/docs/", "docs")
async def show_index(call: Call, query: DocsQuery) -> web.Response:
    """Show the documentation index, or the pages and sections that contain the words ``q``."""
    if not query.q:
        return await _render(call, INDEX)
    docs = call.context.app[DOCS]
    matches = await asyncio.to_thread(docs.search, query.q)
    return await call.render("docs.html", docs=docs, name="", text=query.q, found=matches, body="")


@endpoints.page("/docs/{page}", "docs-short")
@endpoints.page("/docs", "docs-root")
async def redirect_short(call: Call) -> web.Response:
    """Redirect a short documentation URL to the page's full URL."""
    return await _redirect(call, call.request.match_info.get("page", INDEX))


@endpoints.page("/docs/{section}/{page}", "docs-page")
async def show_page(call: Call) -> web.StreamResponse:
    """Show a documentation page, or return an image from the documentation."""
    section, page, docs = call.path("section"), call.path("page"), call.context.app[DOCS]
    if section == "images" and (path := docs.pictures.get(page)):
        content = await asyncio.to_thread(path.read_bytes)
        return web.Response(body=content, content_type=PICTURE_TYPES[path.suffix])
    name = f"{section}/{page}"
    if name in await asyncio.to_thread(lambda: docs.outlines):
        return await _render(call, name)
    return await _redirect(call, name)


async def _render(call: Call, name: str) -> web.Response:
    docs = call.context.app[DOCS]
    body = await asyncio.to_thread(docs.render, name)
    return await call.render("docs.html", docs=docs, name=name, text="", found=None, body=body)


async def _redirect(call: Call, name: str) -> web.Response:
    target = await asyncio.to_thread(call.context.app[DOCS].find, name)
    if target is None:
        raise Problem(404, "unknown_page", f"The documentation has no page named {name!r}.")
    raise web.HTTPSeeOther(call.context.urls.docs(target))
