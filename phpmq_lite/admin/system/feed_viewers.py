"""Determines which viewers share a live feed, and toward whose limit a stream counts."""

from collections.abc import Callable, Hashable
from typing import Final

from aiohttp import web

from phpmq_lite.admin.accounts.middleware import is_still_logged_in, session_key_of
from phpmq_lite.admin.http.identity import identity_of
from phpmq_lite.admin.system.live import CONTROL

FEED: Final = web.RequestKey[Hashable]("feed", object)  # key of the feed that is requested
_NOT_FILTER: Final = frozenset({"topic", "ids", "after", "format", "cursor"})
_FILTER_CHARACTERS: Final = 4_000  # maximum length of each filter value in a key


def feed_key(request: web.Request, topic: str, ids: tuple[int, ...] = ()) -> Hashable:
    """Return a feed's key, which viewers with equal topics, rows, filters and permissions share."""
    filter_ = tuple(sorted(
        (name, value[:_FILTER_CHARACTERS])
        for name, value in request.query.items()
        if value and name not in _NOT_FILTER
    ))  # fmt: skip
    identity = identity_of(request)
    actor = identity.actor if identity.queues else ""  # limited callers have their own feeds
    return topic, ids, filter_, identity.role, identity.queues, actor


def stream_owner(request: web.Request) -> str:
    """Return the key of the browser session or program toward whose limit a stream counts."""
    if identity_of(request).kind == "control":
        return CONTROL
    return session_key_of(request)


def is_alive(request: web.Request) -> Callable[[], bool]:
    """Return a function that checks whether a stream's peer is still connected and authorized."""

    def look() -> bool:
        transport = request.transport
        if transport is None or transport.is_closing():
            return False
        return is_still_logged_in(request)

    return look
