"""Which viewers share a feed, and whose streams are counted together."""

from collections.abc import Callable, Hashable
from typing import Final

from aiohttp import web

from phpmq_lite.admin.auth.middleware import is_still_logged_in, session_key_of
from phpmq_lite.admin.base.identity import identity_of
from phpmq_lite.admin.monitoring.live_feeds import CONTROL

FEED: Final = web.RequestKey[Hashable]("feed", object)  # the key of the feed that it asks for
_NOT_FILTER: Final = frozenset({"topic", "ids", "after", "format", "cursor"})
_FILTER_CHARACTERS: Final = 4_000  # of a filter that is told apart


def feed_key(request: web.Request, topic: str, ids: tuple[int, ...] = ()) -> Hashable:
    """Tell viewers apart whose data differs: by topic, rows, the page's filter, and rights."""
    filter_ = tuple(sorted(
        (name, value[:_FILTER_CHARACTERS])
        for name, value in request.query.items()
        if value and name not in _NOT_FILTER
    ))  # fmt: skip
    identity = identity_of(request)
    actor = identity.actor if identity.queues else ""  # they see bulk work of their own only
    return topic, ids, filter_, identity.role, identity.queues, actor


def stream_owner(request: web.Request) -> str:
    """Give whose streams are counted together: a browser's session, or a program's."""
    if identity_of(request).kind == "control":
        return CONTROL
    return session_key_of(request)


def is_alive(request: web.Request) -> Callable[[], bool]:
    """Give what tells whether the peer of a stream is still there, and may still look."""

    def look() -> bool:
        transport = request.transport
        if transport is None or transport.is_closing():
            return False
        return is_still_logged_in(request)

    return look
