"""Messages over HTTP: publish, list, look at one."""

from typing import Final

from aiohttp import web
from pydantic import TypeAdapter

from phpmq_lite.admin import paging
from phpmq_lite.admin.access.headers import as_download
from phpmq_lite.admin.acting import commands
from phpmq_lite.admin.context import Context, context_of
from phpmq_lite.admin.lists import as_data, as_json
from phpmq_lite.admin.problems import Problem
from phpmq_lite.admin.requests import (
    any_json,
    check_queue_name,
    message_of,
    query_of,
    queue_name_of,
    queue_of,
)
from phpmq_lite.admin.route import Role, Route
from phpmq_lite.admin.schemas import (
    PUBLISH_MAX,
    BodyOut,
    EventOut,
    MessageOut,
    MessagesQuery,
    PublishIn,
)
from phpmq_lite.storage.browse import MessageRow

_MESSAGES: Final = TypeAdapter(list[PublishIn])


async def messages(request: web.Request) -> web.StreamResponse:
    """List the messages of a queue in order, without their bodies."""
    context, query = context_of(request), query_of(request, MessagesQuery)
    listed = await paging.messages_page(context, query, queue_of(request).queue_id)
    return as_data(query.format, MessageOut, [MessageOut.of(m) for m in listed.rows], listed.next)


async def publish(request: web.Request) -> web.StreamResponse:
    """Store one message, or an array of them all or none; 201 after the commit."""
    context, name = context_of(request), queue_name_of(request)
    check_queue_name(name)
    if "Idempotency-Key" in request.headers:
        raise Problem(
            501, "idempotency_key", "Keys are taken on the wire only, not here yet.",
            field="Idempotency-Key",
        )  # fmt: skip
    data = await any_json(request)
    asked = _MESSAGES.validate_python(data if isinstance(data, list) else [data])
    if not 1 <= len(asked) <= PUBLISH_MAX:
        raise Problem(
            422, "invalid", f"The array has {len(asked)} messages.", bound=f"1 to {PUBLISH_MAX}"
        )
    bodies = [(message.body(), message.ttl_s) for message in asked]
    for at, (body, _) in enumerate(bodies):
        _check_size(context, body, at)
    ids = await commands.publish(context, name, bodies)
    return as_json({"ids": ids}, status=201)


def _check_size(context: Context, body: bytes, at: int) -> None:
    limit = context.settings.limits.max_content
    if len(body) > limit:
        raise Problem(
            413, "too_large", f"content is {len(body)} bytes, the limit is {int(limit)}",
            field=f"{at}.content", bound=f"{int(limit)} bytes",
        )  # fmt: skip


async def message(request: web.Request) -> web.StreamResponse:
    """Give one message, alive or settled, without its body."""
    row = await message_of(request, context_of(request))
    return as_json(MessageOut.of(row))


async def events(request: web.Request) -> web.StreamResponse:
    """List the unusual turns of a message's life."""
    context = context_of(request)
    row = await message_of(request, context)
    rows = await context.reader.events(row.seq)
    return as_data("json", EventOut, [EventOut.of(event) for event in rows])


async def body(request: web.Request) -> web.StreamResponse:
    """Give the body of a message: ``content`` with its ``encoding``, or as a download."""
    context = context_of(request)
    row = await message_of(request, context)
    if "download" in request.query:
        return await download(request)
    found = await context.reader.body(row)
    if found is None:
        raise _no_body(row)
    return as_json(BodyOut.of(found))


async def download(request: web.Request) -> web.StreamResponse:
    """Give the whole body as a file that no browser shows; a damaged one says so in its name."""
    context = context_of(request)
    row = await message_of(request, context)
    found = await context.reader.whole_body(row)
    if found is None:
        raise _no_body(row)
    name = row.message_id + (".damaged" if found.is_damaged else "")
    return web.Response(
        body=found.content,
        content_type="application/octet-stream",
        headers=as_download(name),
    )


def _no_body(row: MessageRow) -> Problem:
    return Problem(410, "gone_body", f"The body of {row.message_id} is not stored any more.")


ROUTES: Final = (
    Route("GET", "/api/v1/queues/{q}/messages", Role.VIEWER, "api-queue-messages", messages),
    Route(
        "POST", "/api/v1/queues/{q}/messages", Role.OPERATOR, "api-publish", publish,
        "message.publish",
    ),
    Route("GET", "/api/v1/messages/{id}", Role.VIEWER, "api-message", message),
    Route("GET", "/api/v1/messages/{id}/body", Role.VIEWER, "api-body", body),
    Route("GET", "/api/v1/messages/{id}/events", Role.VIEWER, "api-events", events),
)  # fmt: skip
