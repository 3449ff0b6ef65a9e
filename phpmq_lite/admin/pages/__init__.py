"""The pages, one module each, with the routes that lead to it."""

from typing import Final

from phpmq_lite.admin.pages import (
    clients,
    dead,
    history,
    message,
    overview,
    queue,
    queue_forms,
    queues,
    search,
)
from phpmq_lite.admin.route import Route

# Of two routes that fit a path the first answers.
ROUTES: Final[tuple[Route, ...]] = (
    *overview.ROUTES,
    *search.ROUTES,
    *queues.ROUTES,
    *queue.ROUTES,
    *queue_forms.ROUTES,
    *message.ROUTES,
    *dead.ROUTES,
    *clients.ROUTES,
    *history.ROUTES,
)
