"""Determines which viewers share a live feed."""

from collections.abc import Hashable
from typing import Final

from aiohttp import web

from phpmq_lite.admin.http.call import Call

FEED: Final = web.RequestKey[Hashable]("feed", object)  # key of the feed that is requested
_NOT_FILTER: Final = frozenset({"topic", "ids", "after", "format", "cursor"})
_FILTER_CHARACTERS: Final = 4_000  # maximum length of each filter value in a key


def feed_key(call: Call, topic: str, ids: tuple[int, ...] = ()) -> Hashable:
    """Return a feed's key, which viewers with equal topics, rows, filters and permissions share."""
    filters = [
        (name, value[:_FILTER_CHARACTERS])
        for name, value in call.request.query.items()
        if value and name not in _NOT_FILTER
    ]
    identity = call.identity
    actor = identity.actor if identity.queues else ""  # limited callers have their own feeds
    return topic, ids, tuple(sorted(filters)), identity.role, identity.queues, actor
