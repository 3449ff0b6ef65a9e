"""Makes pages: the jinja2 environment, the frame that all pages share, and the static files."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import jinja2
from aiohttp import web

from phpmq_lite.admin import bodies, formats, views
from phpmq_lite.admin.context import Context, context_of, status_of
from phpmq_lite.admin.problems import Problem
from phpmq_lite.admin.trends import polyline

REQUEST_ID: Final = web.RequestKey("request_id", str)
ROUTE_NAME: Final = web.RequestKey("route_name", str)

# The rail: route, title, icon.  Only what exists.
RAIL: Final = (
    ("overview", "Overview"),
    ("queues", "Queues"),
    ("dead", "Dead letters"),
    ("clients", "Clients"),
    ("history", "History"),
)
_TYPES: Final = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}


def environment(folder: Path) -> jinja2.Environment:
    """Make the environment: everything is escaped, an unknown name is an error."""
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
        state=views.state_name,
        points=polyline,
    )
    made.globals.update(
        moment=formats.moment,
        preview=bodies.preview,
        client_name=views.client_name,
        plural=views.plural,
        rail=RAIL,
    )
    return made


class Static:
    """The files of ``templates/static/`` in memory; nothing else can be asked for."""

    def __init__(self, folder: Path) -> None:
        self._files = {
            path.name: (path.read_bytes(), _TYPES[path.suffix])
            for path in sorted(folder.iterdir())
            if path.suffix in _TYPES
        }
        digest = hashlib.sha256(b"".join(content for content, _ in self._files.values()))
        self.version = digest.hexdigest()[:12]

    async def handle(self, request: web.Request) -> web.Response:
        """Answer with a file; it may be kept for good, its URL changes with its content."""
        try:
            content, type_ = self._files[request.match_info["name"]]
        except KeyError:
            raise Problem(404, "unknown_page", "There is no page at this address.") from None
        is_current = request.query.get("v") == self.version
        return web.Response(
            body=content,
            content_type=type_,
            charset="utf-8",
            headers={
                "Cache-Control": "public, max-age=31536000, immutable" if is_current else "no-cache"
            },
        )


def page(
    request: web.Request, template: str, /, *, status: int = 200, **values: Any
) -> web.Response:
    """Render a page in the frame; sets the session cookie where the page has a form."""
    context = context_of(request)
    text = context.templates.get_template(template).render(**frame(request, context), **values)
    response = web.Response(text=text, status=status, content_type="text/html", charset="utf-8")
    context.sessions.keep(request, response)
    return response


def frame(request: web.Request, context: Context) -> dict[str, Any]:
    """Give what the frame of every page needs."""
    return {
        "url": context.urls.to,
        "static": context.urls.static,
        "here": request.get(ROUTE_NAME, ""),
        "now_ms": context.now_ms(),
        "version": context.version,
        "broker": status_of(request),
        "note": context.sessions.take_note(request),
        "csrf": lambda: context.sessions.token(request),
        "request_id": request.get(REQUEST_ID, ""),
        "search_text": "",
    }


def live(
    shown: Mapping[str, str], points: Mapping[str, str], is_new: int, says: str
) -> web.Response:
    """Answer a page that refreshes itself: shown texts and chart points by field.

    ``is_new`` counts rows that the page does not have yet; ``says`` is for screen readers.
    """
    return web.json_response({"shown": shown, "points": points, "new": is_new, "says": says})


def problem_page(request: web.Request, problem: Problem) -> web.Response:
    """Show an error as a page, in the frame."""
    response = page(request, "error.html", status=problem.status, problem=problem)
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
