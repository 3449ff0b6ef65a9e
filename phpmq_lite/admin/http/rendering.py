"""Renders pages with Jinja, serves static files, and sends large responses in pieces."""

import asyncio
import hashlib
import json
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import cache
from pathlib import Path
from time import monotonic
from typing import Any, Final, TypeVar

import jinja2
from aiohttp import web

from phpmq_lite.admin import formats
from phpmq_lite.admin.context import Context, context_of, status_of
from phpmq_lite.admin.http import page_layout
from phpmq_lite.admin.http.body import memory_hold_of
from phpmq_lite.admin.http.headers import read_cookie
from phpmq_lite.admin.http.identity import identity_of
from phpmq_lite.admin.http.memory import FREE_BYTES
from phpmq_lite.admin.http.problems import Problem
from phpmq_lite.admin.http.route import REQUEST_ID, ROUTE_NAME
from phpmq_lite.admin.messages import bodies
from phpmq_lite.admin.messages.envelope_card import RowVerdicts, shorten
from phpmq_lite.admin.trends import polyline
from phpmq_lite.durations import FORM_UNITS
from phpmq_lite.model import OUTCOMES
from phpmq_lite.operator_actions import ACTIONS
from phpmq_lite.queue_settings import LONGEST_NAME, LONGEST_TTL_S
from phpmq_lite.storage.search.language import meta_search

T = TypeVar("T")
# What was typed into a form that was refused, and why; its page shows both.
REFUSED: Final = web.RequestKey("refused", tuple[Mapping[str, str], Problem])

PIECE_S: Final = 0.000_3  # maximum duration of one slice, about half as long as a commit


async def collect_in_slices(items: Iterable[T], pause: Callable[[], Awaitable[None]]) -> list[T]:
    """Collect all items in short time slices, and await the engine's ``pause`` between slices.

    Rendering a page in one slice of 5 ms would delay publishing by 5 ms.
    """
    taken: list[T] = []
    ends_s = 0.0
    for item in items:
        taken.append(item)
        if monotonic() >= ends_s:
            await pause()
            ends_s = monotonic() + PIECE_S
    return taken


THEMES: Final = ("light", "dark")
_THEME_COOKIE: Final = "phpmq-theme"  # set by choices.js; read here to avoid a flash of colour
_MARK_FILL: Final = b"#5357c6"  # the fill colour of mark.svg
_TYPES: Final = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}


@cache
def make_environment(folder: Path) -> jinja2.Environment:
    """Return a Jinja environment that escapes all values and rejects undefined names.

    All brokers in a process share the environment and its compiled templates.
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
        number=formats.format_number,
        rate=formats.format_rate,
        size=formats.format_size,
        duration=formats.format_duration,
        visible=formats.escape_hidden,
        lines=formats.escape_hidden_lines,
        state=formats.state_name,
        points=polyline,
    )
    made.globals.update(
        moment=formats.format_time,
        pieces=formats.split_hidden,
        preview=bodies.preview,
        preview_data=bodies.preview_data,
        client_name=formats.client_name,
        cut=shorten,
        meta_search=lambda meta_id: str(meta_search(meta_id)),
        plural=formats.plural,
        ACTIONS=ACTIONS,
        FORM_UNITS=FORM_UNITS,
        OUTCOMES=OUTCOMES,
        LONGEST_NAME=LONGEST_NAME,
        LONGEST_TTL_S=LONGEST_TTL_S,
    )
    return made


class PageTemplates:
    """The page templates; each is compiled in a thread on first use, which takes up to 100 ms."""

    def __init__(self, folder: Path) -> None:
        self._environment = make_environment(folder)
        self._ready: set[str] = set()
        self._making = asyncio.Lock()  # else the first requests compile the same templates at once

    async def get(self, name: str) -> jinja2.Template:
        """Return a template after compiling it and the templates that it includes."""
        if name not in self._ready:
            async with self._making:
                if name not in self._ready:
                    await asyncio.to_thread(self._make, name)
                    self._ready.add(name)
        return self._environment.get_template(name)

    def _make(self, name: str) -> None:
        known = () if self._ready else self._environment.list_templates()
        shared = [one for one in known if one == "base.html" or one.startswith("_partials/")]
        for each in (*shared, name):
            self._environment.get_template(each)


class StaticFiles:
    """The files in ``templates/static/``, kept in memory; no other files can be requested."""

    def __init__(self, folder: Path) -> None:
        self._files = {
            path.name: (path.read_bytes(), _TYPES[path.suffix])
            for path in sorted(folder.iterdir())
            if path.suffix in _TYPES
        }
        mark, type_ = self._files["mark.svg"]
        for name, colour in page_layout.COLOURS.items():  # one favicon for each environment colour
            painted = mark.replace(_MARK_FILL, colour.encode())
            self._files[f"mark-{name}.svg"] = painted, type_
        digest = hashlib.sha256(b"".join(content for content, _ in self._files.values()))
        self.version = digest.hexdigest()[:12]

    async def handle(self, request: web.Request) -> web.Response:
        """Return a file; browsers may cache it forever, because a changed file has another URL."""
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


async def render_page(
    request: web.Request, template: str, /, *, status: int = 200, **values: Any
) -> web.Response:
    """Render a page within the layout; if the page has a form, set the session cookie.

    ``values`` can override values of the layout, such as ``search_text`` or ``is_bare``, which is
    true for a page without navigation, search and menu, such as the login page.
    """
    context = context_of(request)
    made = await context.templates.get(template)
    parts = made.generate(layout_values(request, context) | values)
    text = "".join(await collect_in_slices(parts, context.engine.pause))
    response = web.Response(text=text, status=status, content_type="text/html", charset="utf-8")
    context.sessions.set_cookie(request, response)
    return response


def layout_values(request: web.Request, context: Context) -> dict[str, Any]:
    """Return the values that the layout requires on every page."""
    urls, ui = context.urls, context.settings.ui
    here = request.get(ROUTE_NAME, "")
    theme = read_cookie(request, _THEME_COOKIE)
    search = page_layout.url_or_none(urls, "messages")
    entered, refused = request.get(REFUSED, ({}, None))
    own_path = ""  # for the next field of the layout's forms
    if request.method in ("GET", "HEAD"):  # a proxy may have removed the base path
        own_path = urls.base_path + request.path_qs.removeprefix(urls.base_path)
    return {
        "url": urls.to,
        "static": urls.static,
        "docs_url": urls.docs,
        "help_page": page_layout.help_page(request),
        "here": here,
        "rail": page_layout.navigation(request, here),
        "may": lambda name: page_layout.may_open(request, name),
        "environment": ui.environment,
        "colour": page_layout.colour_of(ui.environment, ui.colour),
        "theme": theme if theme in THEMES else "auto",
        "now_ms": context.now_ms(),
        "version": context.version,
        "broker": status_of(request),
        "who": page_layout.viewer_of(request),
        "dangers": list(page_layout.list_access_warnings(request)),
        "troubles": page_layout.list_broker_problems(request, context),
        "events_url": page_layout.url_or_none(urls, "events"),
        "live_url": page_layout.url_or_none(urls, "live"),
        "search_url": search or urls.to("search"),
        "can_search": search is not None,
        "complete_url": page_layout.url_or_none(urls, "api-completions"),
        "note": context.sessions.take_message(request),
        "csrf": lambda: context.sessions.token(request),
        "back_to": own_path,
        "request_id": request.get(REQUEST_ID, ""),
        "badge_of": RowVerdicts(lambda: status_of(request).queues).of,
        "search_text": "",
        "entered": entered,
        "refused": refused,
        "is_bare": identity_of(request).kind == "nobody",
    }


async def problem_page(request: web.Request, problem: Problem, kept: object) -> web.Response:
    """Return an error as a page within the layout; ``kept`` is the refused form, if any."""
    response = await render_page(
        request,
        "error.html",
        status=problem.status,
        problem=problem,
        kept=kept,
        help_url=_help_url(request, problem),
        is_change=request.method not in ("GET", "HEAD"),
        login_url=page_layout.url_or_none(context_of(request).urls, "login"),
    )
    response.headers.update(problem.headers)
    return response


def _help_url(request: web.Request, problem: Problem) -> str | None:
    return context_of(request).urls.docs(problem.docs) if problem.docs else None


def problem_json(request: web.Request, problem: Problem) -> web.Response:
    """Return an error as a response of type ``application/problem+json``."""
    return web.Response(
        status=problem.status,
        text=json.dumps(
            problem.as_json(request.get(REQUEST_ID, ""), _help_url(request, problem)),
            ensure_ascii=False,
        ),
        content_type="application/problem+json",
        headers=problem.headers,
    )


PIECE_BYTES: Final = 64 << 10
STALLED_S: Final = 30.0  # maximum time until the peer has read a piece


async def send_response(request: web.Request, response: web.StreamResponse) -> web.StreamResponse:
    """Send a response larger than 64 KiB in pieces; return smaller or started ones unchanged.

    Returns a 503 or 429 response if there is not enough memory.
    """
    if response.prepared or not isinstance(response, web.Response) or request.method == "HEAD":
        return response
    body = response.body
    if not isinstance(body, bytes | bytearray) or len(body) <= FREE_BYTES:
        return response
    hold = memory_hold_of(request)
    try:
        await hold.resize(len(body))
        stream = web.StreamResponse(
            status=response.status, reason=response.reason, headers=response.headers
        )
        stream.cookies.update(response.cookies)
        stream.content_length = len(body)
        await stream.prepare(request)
        hold.begin(lambda: abort_response(request))
        for at in range(0, len(body), PIECE_BYTES):
            await send_piece(stream, bytes(memoryview(body)[at : at + PIECE_BYTES]))
            hold.move(PIECE_BYTES)
        await stream.write_eof()
    except Problem as problem:
        refusal = problem_json(request, problem)
        refusal.headers["X-Request-Id"] = response.headers["X-Request-Id"]
        return refusal
    except TimeoutError:
        abort_response(request)
    finally:
        response.body, body = None, b""  # otherwise, an error would keep the body alive
    return stream


async def send_piece(stream: web.StreamResponse, piece: bytes) -> None:
    """Write one piece, and wait until the peer has read most of it.

    Raises:
        TimeoutError: the peer makes no progress.
    """
    async with asyncio.timeout(STALLED_S):
        await stream.write(piece)


def abort_response(request: web.Request) -> None:
    """Abort the connection; if it were closed normally, the response would look complete."""
    if request.transport is not None:
        request.transport.abort()
