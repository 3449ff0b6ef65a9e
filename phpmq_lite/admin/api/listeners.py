"""The PHPMQ listeners over HTTP: where clients that know the admin address connect."""

from typing import Final, Literal

from aiohttp import web
from pydantic import BaseModel, Field

from phpmq_lite.admin.context import context_of
from phpmq_lite.admin.lists import as_json
from phpmq_lite.admin.route import Role, Route


class ListenerOut(BaseModel):
    """One open listener; a wildcard address stands for every address of the broker's machine."""

    address: str = Field(description="HOST:PORT, or unix:PATH")
    transport: Literal["tcp", "tls", "unix"] = Field(description="plain TCP, TLS or a Unix socket")
    has_ttl: bool = Field(description="false: for clients of the older revision")


class ListenersOut(BaseModel):
    """All open listeners, those of the older revision last."""

    items: list[ListenerOut]
    content_bytes: int = Field(description="longest body, limits.max_content")
    next: None = None


async def listeners(request: web.Request) -> web.StreamResponse:
    """List the open PHPMQ listeners."""
    context = context_of(request)
    items = [ListenerOut(**one._asdict()) for one in context.engine.summary().listeners]
    return as_json(ListenersOut(items=items, content_bytes=context.settings.limits.max_content))


ROUTES: Final = (
    Route(
        "GET", "/api/v1/listeners", Role.VIEWER, "api-listeners", listeners,
        gives=ListenersOut, cli="publish",
    ),
)  # fmt: skip
