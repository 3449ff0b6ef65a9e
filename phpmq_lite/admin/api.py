"""The HTTP API ``/api/v1``: JSON in, JSON out, errors as problem+json."""

from typing import Final

from aiohttp import web
from pydantic import TypeAdapter

from phpmq_lite.admin import actions, pages
from phpmq_lite.admin.context import Context, context_of, status_of
from phpmq_lite.admin.lists import as_data, page_of_queues
from phpmq_lite.admin.problems import Problem
from phpmq_lite.admin.requests import (
    any_json,
    check_queue_name,
    json_of,
    message_of,
    query_of,
    queue_name_of,
    queue_of,
)
from phpmq_lite.admin.schemas import (
    PUBLISH_MAX,
    BodyOut,
    DeadGroupOut,
    EventOut,
    MessageOut,
    MessagesQuery,
    PauseIn,
    PublishIn,
    PurgeIn,
    QueueOut,
    QueueQuery,
    RedriveIn,
)
from phpmq_lite.admin.security import as_download
from phpmq_lite.storage.browse import MessageRow

_MESSAGES: Final = TypeAdapter(list[PublishIn])


async def queues(request: web.Request) -> web.StreamResponse:
    """List queues with their live figures."""
    context, query = context_of(request), query_of(request, QueueQuery)
    status = status_of(request)
    ages = await pages.oldest(context, status.queues)
    listed = page_of_queues(status.queues, ages, query)
    now_ms = context.now_ms()
    items = [QueueOut.of(q.status, q.oldest_at, now_ms) for q in listed.queues]
    return as_data(query.format, QueueOut, items, listed.next)


async def queue(request: web.Request) -> web.StreamResponse:
    """Give one queue."""
    context = context_of(request)
    status = queue_of(request)
    ages = await pages.oldest(context, [status])
    out = QueueOut.of(status, ages.get(status.queue_id), context.now_ms())
    return _json(out.model_dump(mode="json"))


async def messages(request: web.Request) -> web.StreamResponse:
    """List the messages of a queue in order, without their bodies."""
    context, query = context_of(request), query_of(request, MessagesQuery)
    listed = await pages.messages_page(context, query, queue_of(request).queue_id)
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
    ids = await actions.publish(context, name, bodies)
    return _json({"ids": ids}, status=201)


def _check_size(context: Context, body: bytes, at: int) -> None:
    if len(body) > context.max_content:
        raise Problem(
            413, "too_large", f"content is {len(body)} bytes, the limit is {context.max_content}",
            field=f"{at}.content", bound=f"{context.max_content} bytes",
        )  # fmt: skip


async def purge(request: web.Request) -> web.StreamResponse:
    """Settle what is in a queue as deleted."""
    context, asked = context_of(request), await json_of(request, PurgeIn)
    name = queue_name_of(request)
    count = await actions.purge(context, name, with_dispatched=asked.dispatched)
    return _json({"settled": count})


async def pause(request: web.Request) -> web.StreamResponse:
    """Stop delivery or publishing of a queue; it stays so over a restart."""
    return await _turn(request, is_paused=True)


async def resume(request: web.Request) -> web.StreamResponse:
    """Let delivery or publishing of a queue go on."""
    return await _turn(request, is_paused=False)


async def _turn(request: web.Request, *, is_paused: bool) -> web.StreamResponse:
    context, asked = context_of(request), await json_of(request, PauseIn)
    name = queue_name_of(request)
    await actions.pause(context, name, asked.side, is_paused=is_paused)
    return _json({"queue": name, "side": asked.side, "paused": is_paused})


async def message(request: web.Request) -> web.StreamResponse:
    """Give one message, alive or settled, without its body."""
    row = await message_of(request, context_of(request))
    return _json(MessageOut.of(row).model_dump(mode="json"))


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
    return _json(BodyOut.of(found).model_dump(mode="json"))


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


async def dead(request: web.Request) -> web.StreamResponse:
    """List dead-letter records, grouped by origin queue and reason."""
    context, query = context_of(request), query_of(request, MessagesQuery)
    groups = await context.reader.dead_groups()
    return as_data(query.format, DeadGroupOut, [DeadGroupOut.of(group) for group in groups])


async def redrive(request: web.Request) -> web.StreamResponse:
    """Send the records of a queue back to it, or to a target; with or without ``.dlq``."""
    context, asked = context_of(request), await json_of(request, RedriveIn)
    count = await actions.redrive(
        context,
        queue_name_of(request),
        target=asked.target,
        ttl_s=asked.ttl_s,
        limit=asked.limit,
    )
    return _json({"redriven": count})


def _json(data: object, status: int = 200) -> web.Response:
    return web.json_response(data, status=status)
