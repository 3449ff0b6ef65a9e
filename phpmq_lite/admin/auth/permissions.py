"""Which queues and messages a caller may use."""

from typing import Final

from aiohttp import web

from phpmq_lite.admin.base.context import Context, is_match, status_of
from phpmq_lite.admin.base.identity import identity_of
from phpmq_lite.admin.base.input import path_name
from phpmq_lite.admin.base.problems import Problem, not_found
from phpmq_lite.server.status import QueueStatus
from phpmq_lite.storage.read.messages import MessageRow, is_message_id

_FORWARD: Final = "forward:"  # what on_expire begins with, ahead of a queue


# -- rights


def allowed_queues(request: web.Request) -> frozenset[int] | None:
    """Give the queue_ids that the identity may see; None: all."""
    if not identity_of(request).queues:
        return None
    return frozenset(queue.queue_id for queue in status_of(request).queues)


def may_use(request: web.Request, name: str) -> bool:
    """Tell whether the identity may use a queue of this name, also one that does not exist yet."""
    globs = identity_of(request).queues
    return not globs or is_match(name, globs)


def check_queue_right(request: web.Request, name: str, field: str = "queue") -> None:
    """Refuse a queue that is not among those of the identity.

    Raises:
        Problem: 403, naming the globs.
    """
    if not may_use(request, name):
        identity = identity_of(request)
        raise Problem(
            403, "foreign_queue", f"{identity.actor!r} may not use the queue {name!r}.",
            field=field, bound=", ".join(identity.queues),
        )  # fmt: skip


def check_all_queues(request: web.Request, what: str) -> None:
    """Refuse what concerns all queues to who is limited to some.

    Raises:
        Problem: 403, naming the globs.
    """
    identity = identity_of(request)
    if identity.queues:
        raise Problem(403, "foreign_queue", f"Only an admin of all queues may {what}.",
                      bound=", ".join(identity.queues))  # fmt: skip


def check_forward_right(request: web.Request, on_expire: object, field: str = "on_expire") -> None:
    """Refuse a setting that forwards into a queue that is not among those of the identity.

    Raises:
        Problem: 403, naming the globs.
    """
    if isinstance(on_expire, str) and on_expire.startswith(_FORWARD):
        check_queue_right(request, on_expire.removeprefix(_FORWARD), field)


def queue_name_of(request: web.Request) -> str:
    """Give the queue that the path names; it may not exist.

    Raises:
        Problem: 403 where something is to be done to a queue that is not among the caller's.
    """
    name = path_name(request, "q")
    if request.method not in ("GET", "HEAD"):
        check_queue_right(request, name)
    return name


def require_queue(request: web.Request) -> QueueStatus:
    """Give the status of the queue that the path names.

    Raises:
        Problem: 404 where there is none.
    """
    name = queue_name_of(request)
    found = find_queue(request, name)
    if found is None:
        raise not_found("queue", name)
    return found


def find_queue(request: web.Request, name: str) -> QueueStatus | None:
    """Give the status of a queue, None where there is none of that name."""
    return next((q for q in status_of(request).queues if q.name == name), None)


async def find_message(request: web.Request, context: Context) -> MessageRow:
    """Give the row of the message that the path names, alive or settled.

    Raises:
        Problem: 404 where the id is unknown, 410 where its number was given out but no row is
            left: retention took it, or the second half of the id is wrong.
    """
    message_id = request.match_info["id"]
    if not is_message_id(message_id):
        raise Problem(
            404, "unknown_message", f"{message_id!r} is no message id.", field="id",
            bound="32 hex digits, lower case",
        )  # fmt: skip
    found = await context.reader.message(message_id)
    if found is not None:
        allowed = allowed_queues(request)
        if allowed is None or found.queue_id in allowed:
            return found
        raise Problem(404, "unknown_message", "There is no message with this id.", field="id")
    if await context.reader.was_assigned(message_id):
        raise Problem(
            410,
            "gone_message",
            "No message with this id is stored any more. Its row has left the history with the "
            "retention time, or a digit of the id is wrong.",
        )
    raise Problem(404, "unknown_message", "This broker never gave out this message id.")


def queue_id_of(request: web.Request, name: str) -> int | None:
    """Give the number of the queue that is asked for, None for all.

    Raises:
        Problem: 404 where there is none; 422 where all are asked for by somebody who may see
            some only.
    """
    if name:
        queue = find_queue(request, name)
        if queue is None:
            raise not_found("queue", name)
        return queue.queue_id
    if allowed_queues(request) is not None:
        raise Problem(422, "invalid", "You see some queues only: name one of them.", field="queue")
    return None
