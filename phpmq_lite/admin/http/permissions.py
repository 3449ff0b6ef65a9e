"""Permissions: the queues that a caller is allowed to use."""

from aiohttp import web

from phpmq_lite.admin.context import is_match, status_of
from phpmq_lite.admin.http.fields import path_name
from phpmq_lite.admin.http.identity import identity_of
from phpmq_lite.admin.http.problems import Problem, not_found
from phpmq_lite.queue_settings import FORWARD
from phpmq_lite.server.status import QueueStatus


def allowed_queues(request: web.Request) -> frozenset[int] | None:
    """Return the ids of the queues that the caller can see, or None for all queues."""
    if not identity_of(request).queues:
        return None
    return frozenset(queue.queue_id for queue in status_of(request).queues)


def may_use(request: web.Request, name: str) -> bool:
    """Return whether the caller is allowed to use a queue with this name, which need not exist."""
    globs = identity_of(request).queues
    return not globs or is_match(name, globs)


def check_queue_right(request: web.Request, name: str, field: str = "queue") -> None:
    """Raise a 403 ``Problem`` that names the caller's globs if a queue matches none of them."""
    if not may_use(request, name):
        identity = identity_of(request)
        raise Problem(
            403, "foreign_queue", f"{identity.actor!r} is not allowed to use the queue {name!r}.",
            field=field, bound=", ".join(identity.queues),
        )  # fmt: skip


def check_all_queues(request: web.Request, what: str) -> None:
    """Refuse an action on all queues if the caller is limited to some queues.

    Raises:
        Problem: 403, naming the allowed globs.
    """
    identity = identity_of(request)
    if identity.queues:
        raise Problem(403, "foreign_queue", f"Only an admin with access to all queues can {what}.",
                      bound=", ".join(identity.queues))  # fmt: skip


def check_forward_right(request: web.Request, on_expire: object, field: str = "on_expire") -> None:
    """Refuse a setting that forwards messages to a queue that the caller is not allowed to use.

    Raises:
        Problem: 403, naming the allowed globs.
    """
    if isinstance(on_expire, str) and on_expire.startswith(FORWARD):
        check_queue_right(request, on_expire.removeprefix(FORWARD), field)


def queue_name_of(request: web.Request) -> str:
    """Return the queue name in the path; the queue itself need not exist.

    Raises:
        Problem: 403 for a change to a queue that the caller is not allowed to use.
    """
    name = path_name(request, "q")
    if request.method not in ("GET", "HEAD"):
        check_queue_right(request, name)
    return name


def require_queue(request: web.Request) -> QueueStatus:
    """Return the status of the queue in the path; raise a 404 ``Problem`` if it does not exist."""
    return queue_named(request, queue_name_of(request))


def queue_named(request: web.Request, name: str) -> QueueStatus:
    """Return the status of a queue; raise a 404 ``Problem`` if it does not exist."""
    found = find_queue(request, name)
    if found is None:
        raise not_found("queue", name)
    return found


def find_queue(request: web.Request, name: str) -> QueueStatus | None:
    """Return the status of a queue, or None if it does not exist."""
    return next((q for q in status_of(request).queues if q.name == name), None)
