"""Makes pages: the jinja2 environment, the frame that all pages share, and the static files."""

import asyncio
import hashlib
import json
from functools import cache
from pathlib import Path
from typing import Any, Final

import jinja2
from aiohttp import web

from phpmq_lite.admin import bodies, formats, views
from phpmq_lite.admin import frame as frame_parts
from phpmq_lite.admin.access.identity import identity_of
from phpmq_lite.admin.context import Context, context_of, status_of
from phpmq_lite.admin.envelopes import Badges, cut
from phpmq_lite.admin.pauses import gather_slowly
from phpmq_lite.admin.problems import Problem
from phpmq_lite.admin.query import of_meta
from phpmq_lite.admin.trends import polyline

REQUEST_ID: Final = web.RequestKey("request_id", str)
ROUTE_NAME: Final = web.RequestKey("route_name", str)

THEMES: Final = ("light", "dark")
_THEME_COOKIE: Final = "phpmq-theme"  # set by choices.js; read here, so that no page flashes
_MARK_FILL: Final = b"#5357c6"  # of mark.svg
_TYPES: Final = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}


@cache
def environment(folder: Path) -> jinja2.Environment:
    """Give the environment of a folder: everything is escaped, an unknown name is an error.

    One for all brokers of a process, with what they have made into code.
    """
    made = jinja2.Environment(
        loader=jinja2.FileSystemLoader(folder),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    made.filters.update(
        number=formats.number,
        rate=formats.rate,
        size=formats.size,
        duration=formats.duration,
        visible=formats.visible,
        lines=formats.visible_lines,
        state=views.state_name,
        points=polyline,
    )
    made.globals.update(
        moment=formats.moment,
        pieces=formats.pieces,
        preview=bodies.preview,
        preview_data=bodies.preview_data,
        client_name=views.client_name,
        cut=cut,
        meta_search=lambda meta_id: str(of_meta(meta_id)),
        plural=views.plural,
    )
    return made


class Templates:
    """The templates; each is made into code at its first use: up to 100 ms, beside the loop."""

    def __init__(self, folder: Path) -> None:
        self._environment = environment(folder)
        self._ready: set[str] = set()

    async def get(self, name: str) -> jinja2.Template:
        """Give a template; all that it may include is ready too."""
        if name not in self._ready:
            await asyncio.to_thread(self._make, name)
            self._ready.add(name)
        return self._environment.get_template(name)

    def _make(self, name: str) -> None:
        shared = () if self._ready else self._environment.list_templates(filter_func=_is_shared)
        for each in (*shared, name):
            self._environment.get_template(each)


def _is_shared(name: str) -> bool:
    return name == "base.html" or name.startswith("_partials/")


class Static:
    """The files of ``templates/static/`` in memory; nothing else can be asked for."""

    def __init__(self, folder: Path) -> None:
        self._files = {
            path.name: (path.read_bytes(), _TYPES[path.suffix])
            for path in sorted(folder.iterdir())
            if path.suffix in _TYPES
        }
        mark, type_ = self._files["mark.svg"]
        for name, colour in frame_parts.COLOURS.items():  # the favicon of each environment
            painted = mark.replace(_MARK_FILL, colour.encode())
            self._files[f"mark-{name}.svg"] = painted, type_
        digest = hashlib.sha256(b"".join(content for content, _ in self._files.values()))
        self.version = digest.hexdigest()[:12]

    async def handle(self, request: web.Request) -> web.Response:
        """Answer with a file; it may be kept for good, its URL changes with their content."""
        try:
            content, type_ = self._files[request.match_info["name"]]
        except KeyError:
            raise Problem(404, "unknown_page", "There is no page at this address.") from None
        is_current = request.match_info["version"] == self.version
        return web.Response(
            body=content,
            content_type=type_,
            charset="utf-8",
            headers={
                "Cache-Control": "public, max-age=31536000, immutable" if is_current else "no-cache"
            },
        )


async def page(
    request: web.Request, template: str, /, *, status: int = 200, **values: Any
) -> web.Response:
    """Render a page in the frame; sets the session cookie where the page has a form.

    ``values`` may replace what the frame gives: ``search_text``, and ``is_bare`` for a page without
    rail, search and menu (login).
    """
    context = context_of(request)
    made = await context.templates.get(template)
    parts = made.generate(frame(request, context) | values)
    text = "".join(await gather_slowly(parts, context.engine.pause))
    response = web.Response(text=text, status=status, content_type="text/html", charset="utf-8")
    context.sessions.keep(request, response)
    return response


def frame(request: web.Request, context: Context) -> dict[str, Any]:
    """Give what the frame of every page needs."""
    urls, ui = context.urls, context.settings.ui
    here = request.get(ROUTE_NAME, "")
    theme = request.cookies.get(_THEME_COOKIE, "")
    search = frame_parts.url_or_none(urls, "messages")
    return {
        "url": urls.to,
        "static": urls.static,
        "here": here,
        "rail": frame_parts.rail(request, here),
        "may": lambda name: frame_parts.may(request, name),
        "environment": ui.environment,
        "colour": frame_parts.colour_of(ui.environment, ui.colour),
        "theme": theme if theme in THEMES else "auto",
        "now_ms": context.now_ms(),
        "version": context.version,
        "broker": status_of(request),
        "who": frame_parts.who(request),
        "dangers": list(frame_parts.dangers(request)),
        "troubles": frame_parts.troubles(request, context),
        "events_url": frame_parts.url_or_none(urls, "events"),
        "live_url": frame_parts.url_or_none(urls, "live"),
        "search_url": search or urls.to("search"),
        "can_search": search is not None,
        "complete_url": frame_parts.url_or_none(urls, "api-completions"),
        "note": context.sessions.take_note(request),
        "csrf": lambda: context.sessions.token(request),
        "back_to": _own_path(request),
        "request_id": request.get(REQUEST_ID, ""),
        "badge_of": Badges(request).of,
        "search_text": "",
        "is_bare": identity_of(request).kind == "nobody",
    }


def _own_path(request: web.Request) -> str:
    """Give where this page is, for the field ``next`` of a form in the frame."""
    if request.method not in ("GET", "HEAD"):
        return ""
    base = context_of(request).urls.base_path
    return base + request.path_qs.removeprefix(base)  # a proxy may have taken the base path off


async def problem_page(request: web.Request, problem: Problem) -> web.Response:
    """Show an error as a page, in the frame."""
    response = await page(
        request,
        "error.html",
        status=problem.status,
        problem=problem,
        is_change=request.method not in ("GET", "HEAD"),
        login_url=frame_parts.url_or_none(context_of(request).urls, "login"),
    )
    response.headers.update(problem.headers)
    return response


def problem_json(request: web.Request, problem: Problem) -> web.Response:
    """Show an error as ``application/problem+json``."""
    return web.Response(
        status=problem.status,
        text=json.dumps(problem.as_json(request.get(REQUEST_ID, "")), ensure_ascii=False),
        content_type="application/problem+json",
        headers=problem.headers,
    )
