"""What pages show that changes while one looks: a function per topic, evaluated once a second."""

from collections.abc import Awaitable, Callable
from typing import Final

from aiohttp import web

from phpmq_lite.admin.context import forget_status
from phpmq_lite.admin.pages.bulk import live_bulk
from phpmq_lite.admin.pages.client import live_client
from phpmq_lite.admin.pages.clients import live_clients
from phpmq_lite.admin.pages.overview import live_overview
from phpmq_lite.admin.pages.queue import live_queue
from phpmq_lite.admin.pages.queues import live_queues
from phpmq_lite.admin.pages.tail import live_tail
from phpmq_lite.admin.problems import Problem
from phpmq_lite.admin.streams import Data, Evaluate

Topic = Callable[[web.Request, str, tuple[int, ...]], Awaitable[Data]]

# Name, or the part before the colon -> the function, and whether it has an argument.
TOPICS: Final[dict[str, tuple[Topic, bool]]] = {
    "overview": (live_overview, False),
    "queues": (live_queues, False),
    "queue": (live_queue, True),
    "clients": (live_clients, False),
    "client": (live_client, True),
    "bulk": (live_bulk, True),
    "tail": (live_tail, True),
}


def evaluation(request: web.Request, topic: str, ids: tuple[int, ...]) -> Evaluate:
    """Give what evaluates a topic for a request, each time with figures of that moment.

    Raises:
        Problem: 422 where there is no such topic.
    """
    name, colon, argument = topic.partition(":")
    known = TOPICS.get(name)
    if known is None or known[1] is not bool(colon and argument):
        shown = ", ".join(f"{key}:…" if has_argument else key
                          for key, (_, has_argument) in TOPICS.items())  # fmt: skip
        raise Problem(422, "unknown_topic", f"There is no topic {topic!r}.", field="topic",
                      bound=shown)  # fmt: skip
    look = known[0]

    async def evaluate() -> Data:
        forget_status(request)
        return await look(request, argument, ids)

    return evaluate
