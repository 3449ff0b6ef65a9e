"""The page templates, which are rendered in slices, and the static files."""

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from time import monotonic
from typing import Final, TypeVar

import jinja2
from aiohttp import web

from phpmq_lite.admin.http.problems import Problem

T = TypeVar("T")

# All colours have a contrast of at least 4.5:1 with white; app.css contains the same values.
COLOURS: Final = {
    "grey": "#5b6472",
    "blue": "#1f5fc4",
    "green": "#1a7043",
    "amber": "#8a5a00",
    "red": "#b3261e",
    "violet": "#7a3fb8",
}
PIECE_S: Final = 0.000_3  # maximum duration of one slice, about half as long as a commit
_MARK_FILL: Final = b"#5357c6"  # the fill colour of mark.svg
_TYPES: Final = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}


async def collect_in_slices(items: Iterable[T], pause: Callable[[], Awaitable[None]]) -> list[T]:
    """Collect all items in short time slices, and await the engine's ``pause`` between slices.

    Rendering a page in one slice of 5 ms would delay publishing by 5 ms.
    """
    collected: list[T] = []
    ends_s = 0.0
    for item in items:
        collected.append(item)
        if monotonic() >= ends_s:
            await pause()
            ends_s = monotonic() + PIECE_S
    return collected


class PageTemplates:
    """The page templates; each is compiled in a thread on first use, which takes up to 100 ms."""

    def __init__(self, environment: jinja2.Environment) -> None:
        self._environment = environment
        self._ready: set[str] = set()
        self._compiling = asyncio.Lock()  # else concurrent requests compile the same templates

    async def get(self, name: str) -> jinja2.Template:
        """Return a template after compiling it and the templates that it includes."""
        if name not in self._ready:
            async with self._compiling:
                if name not in self._ready:
                    await asyncio.to_thread(self._compile, name)
                    self._ready.add(name)
        return self._environment.get_template(name)

    def _compile(self, name: str) -> None:
        names = () if self._ready else self._environment.list_templates()
        shared = [other for other in names if other.startswith(("base.html", "_partials/"))]
        for template in (*shared, name):
            self._environment.get_template(template)


class StaticFiles:
    """The files in ``templates/static/``, kept in memory; no other files can be requested."""

    def __init__(self, folder: Path) -> None:
        self._files = {
            path.name: (path.read_bytes(), _TYPES[path.suffix])
            for path in sorted(folder.iterdir())
            if path.suffix in _TYPES
        }
        mark, type_ = self._files["mark.svg"]
        for name, colour in COLOURS.items():  # one favicon for each environment colour
            self._files[f"mark-{name}.svg"] = mark.replace(_MARK_FILL, colour.encode()), type_
        digest = hashlib.sha256(b"".join(content for content, _ in self._files.values()))
        self.version = digest.hexdigest()[:12]

    async def handle(self, request: web.Request) -> web.Response:
        """Return a file; browsers may cache it forever, because a changed file has another URL."""
        try:
            content, type_ = self._files[request.match_info["name"]]
        except KeyError:
            raise Problem(404, "unknown_page", "There is no page at this address.") from None
        is_current = request.match_info["version"] == self.version
        cache = "public, max-age=31536000, immutable" if is_current else "no-cache"
        return web.Response(
            body=content, content_type=type_, charset="utf-8", headers={"Cache-Control": cache}
        )
