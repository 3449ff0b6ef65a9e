"""Permissions: the queues and messages that a caller is allowed to use."""

import json
from hashlib import sha256

from aiohttp import web

from phpmq_lite.admin.context import Context, is_match, status_of
from phpmq_lite.admin.http.fields import path_name
from phpmq_lite.admin.http.identity import identity_of
from phpmq_lite.admin.http.problems import Problem, not_found
from phpmq_lite.queue_settings import FORWARD
from phpmq_lite.server.status import QueueStatus
from phpmq_lite.storage.read.messages import MessageRow, is_message_id, wire_id

# -- queues and messages


def allowed_queues(request: web.Request) -> frozenset[int] | None:
    """Return the ids of the queues that the caller can see, or None for all queues."""
    if not identity_of(request).queues:
        return None
    return frozenset(queue.queue_id for queue in status_of(request).queues)


def may_use(request: web.Request, name: str) -> bool:
    """Return whether the caller is allowed to use a queue with this name, which need not exist."""
    globs = identity_of(request).queues
    return not globs or is_match(name, globs)


def globs_in_force(request: web.Request) -> list[str]:
    """Return the caller's queue globs in order, or an empty list if all queues are allowed."""
    globs = identity_of(request).queues
    return [] if "*" in globs else sorted(globs)


def globs_digest(globs: list[str]) -> str:
    """Return a short digest of sorted queue globs, which may be too long for a header."""
    return sha256(json.dumps(globs).encode()).hexdigest()[:16]


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


async def find_message(request: web.Request, context: Context) -> MessageRow:
    """Return the row of the live or settled message whose id or number, such as #34, is the path's.

    Raises:
        Problem: 404 if the id is unknown, 410 if its number was assigned but it has no row:
            retention removed it, or the second half of the id is wrong.
    """
    message_id = request.match_info["id"]
    number = message_id.removeprefix("#")
    if number.isascii() and number.isdigit() and len(number) < 19:  # 63 bits
        rows = await context.reader.rows([int(number)])
        message_id = rows[0].message_id if rows else wire_id(int(number), 0)
    if not is_message_id(message_id):
        raise Problem(
            404, "unknown_message", f"{message_id!r} is not a valid message id.", field="id",
            bound="32 lowercase hex digits, or the number that pages show",
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
            "No message with this id is stored. Either retention removed the message from the "
            "history, or a digit of the id is wrong.",
        )
    raise Problem(404, "unknown_message", "This broker never assigned this message id.")


def queue_id_of(request: web.Request, name: str) -> int | None:
    """Return the id of the requested queue, or None for all queues.

    Raises:
        Problem: 404 if the queue does not exist; 422 if a caller who can see only some queues
            requests all queues.
    """
    if name:
        return queue_named(request, name).queue_id
    if allowed_queues(request) is not None:
        raise Problem(
            422, "invalid", "You can see only some queues. Specify one of them.", field="queue"
        )
    return None
