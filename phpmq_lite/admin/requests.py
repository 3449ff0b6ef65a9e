"""Reading a request: its query, its JSON, the queue and the message that it names."""

from typing import Final, TypeVar
from urllib.parse import unquote_to_bytes

from aiohttp import web
from pydantic import BaseModel

from phpmq_lite.admin.access.identity import allowed_queues, check_queue_right, name_in
from phpmq_lite.admin.context import Context, status_of
from phpmq_lite.admin.problems import Problem, not_found
from phpmq_lite.admin.uploads import field_of, json_body
from phpmq_lite.queue_settings import NAME_RULE, name_problem
from phpmq_lite.server.status import QueueStatus
from phpmq_lite.storage.read.messages import MessageRow, is_message_id

Model = TypeVar("Model", bound=BaseModel)

_PLAIN: Final = "identity"


def query_of(request: web.Request, model: type[Model]) -> Model:
    """Read the query; empty values count as absent.

    Raises:
        ValidationError: a value is out of its bounds.
    """
    return model.model_validate({key: value for key, value in request.query.items() if value})


async def json_of(request: web.Request, model: type[Model]) -> Model:
    """Read a JSON object; no body at all counts as an empty one.

    Raises:
        Problem: 400 where it is not JSON, and as ``json_body``.
        ValidationError: a member is unknown or out of its bounds.
    """
    return model.model_validate(await json_body(request) or {})


def check_path(request: web.Request) -> None:
    """Refuse a path that is not UTF-8 once its ``%`` are decoded.

    aiohttp leaves what it cannot decode as it stands: ``%FF`` would be the name ``%FF``, which
    is written ``%25FF``.

    Raises:
        Problem: 422, naming the bound.
    """
    try:
        unquote_to_bytes(request.rel_url.raw_path).decode()
    except UnicodeDecodeError:
        detail = "A name in the path is not UTF-8 once its percent signs are decoded."
        raise Problem(422, "invalid", detail, field="path", bound="UTF-8") from None


def check_encoding(request: web.Request) -> None:
    """Refuse a compressed body: no route needs one, and its size is not known before.

    The listener hands on every body as it was sent, so nothing was decompressed.

    Raises:
        Problem: 415, naming the one encoding that is accepted.
    """
    encoding = request.headers.get("Content-Encoding", _PLAIN)
    if encoding.strip().lower() != _PLAIN:
        raise Problem(
            415, "content_encoding",
            f"The body is encoded as {encoding[:50]!r}. Send it uncompressed.",
            field="Content-Encoding", bound=_PLAIN,
        )  # fmt: skip


def queue_name_of(request: web.Request) -> str:
    """Give the queue that the path names; it may not exist.

    Raises:
        Problem: 403 where something is to be done to a queue that is not among the caller's.
    """
    name = name_in(request, "q")
    if request.method not in ("GET", "HEAD"):
        check_queue_right(request, name)
    return name


async def next_of(request: web.Request, default: str) -> str:
    """Give where a form leads back to: its field ``next``, if that is a path of ours."""
    given = await field_of(request, "next")
    return given if is_own_path(given) else default


def is_own_path(text: str) -> bool:
    r"""Tell whether a browser stays here: to it ``//host`` and ``/\host`` are other sites."""
    return (
        text.startswith("/")
        and not text.startswith("//")
        and not any(char <= " " or char in "\\\x7f" for char in text)
    )


def check_queue_name(name: str) -> None:
    """Refuse what cannot be a queue's name on the wire, and nothing else: clients make queues too.

    Raises:
        Problem: 422, naming the bound.
    """
    if (problem := name_problem(name)) is not None:
        raise Problem(
            422, "invalid", f"The name of the queue {problem}.", field="queue",
            bound=NAME_RULE,
        )  # fmt: skip


def check_text(text: str, field: str) -> None:
    """Refuse a name that cannot be stored.

    Raises:
        Problem: 422, naming the field.
    """
    try:
        text.encode()
    except UnicodeEncodeError:
        detail = f"The name of the {field} is not UTF-8."
        raise Problem(422, "invalid", detail, field=field, bound="UTF-8") from None


def queue_of(request: web.Request) -> QueueStatus:
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


async def message_of(request: web.Request, context: Context) -> MessageRow:
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
    if await context.reader.was_given(message_id):
        raise Problem(
            410,
            "gone_message",
            "No message with this id is stored any more. Its row has left the history with the "
            "retention time, or a digit of the id is wrong.",
        )
    raise Problem(404, "unknown_message", "This broker never gave out this message id.")
