"""What the buttons of the pages do: a command, then back to a page (POST, 303, GET)."""

import json
from typing import Final

from aiohttp import web

from phpmq_lite.admin import formats
from phpmq_lite.admin.acting import commands
from phpmq_lite.admin.context import context_of
from phpmq_lite.admin.problems import Problem
from phpmq_lite.admin.requests import queue_of
from phpmq_lite.admin.route import Role, Route
from phpmq_lite.admin.views import plural

TEST_QUEUE: Final = "hello"
_SIDES: Final = ("delivery", "publishing")


async def pause(request: web.Request) -> web.StreamResponse:
    """Pause a side of a queue."""
    return await _turn(request, is_paused=True)


async def resume(request: web.Request) -> web.StreamResponse:
    """Resume a side of a queue."""
    return await _turn(request, is_paused=False)


async def _turn(request: web.Request, *, is_paused: bool) -> web.StreamResponse:
    context, queue = context_of(request), queue_of(request)
    side = await _field(request, "side")
    if side not in _SIDES:
        raise Problem(422, "invalid", "side: unknown.", field="side", bound=" or ".join(_SIDES))
    await commands.pause(context, queue.name, side, is_paused=is_paused)
    word = "paused" if is_paused else "going on"
    context.sessions.note(request, f"{side.capitalize()} of {queue.name} is {word}.")
    raise web.HTTPSeeOther(context.urls.to("queue", q=queue.name))


async def purge(request: web.Request) -> web.StreamResponse:
    """Delete what is in a queue; its name has to be typed."""
    context, queue = context_of(request), queue_of(request)
    if await _field(request, "name") not in (queue.name, formats.visible(queue.name)):
        raise Problem(
            422, "invalid", "The name that was typed is not that of the queue. Nothing was "
            "deleted.", field="name", bound=formats.visible(queue.name),
        )  # fmt: skip
    with_dispatched = await _field(request, "dispatched") == "yes"
    count = await commands.purge(context, queue.name, with_dispatched=with_dispatched)
    text = f"{formats.number(count)} {plural(count, 'message', 'messages')} deleted"
    context.sessions.note(request, f"{text}; the history keeps them for the retention time.")
    raise web.HTTPSeeOther(context.urls.to("queue", q=queue.name))


async def redrive(request: web.Request) -> web.StreamResponse:
    """Send the dead-letter records of a queue back to it."""
    context, queue = context_of(request), queue_of(request)
    ttl = await _field(request, "ttl_s")
    if ttl and not (ttl.isascii() and ttl.isdecimal() and len(ttl) <= 10):
        raise Problem(
            422, "invalid", "ttl_s: not a number of seconds.", field="ttl_s", bound="0 or more"
        )
    count = await commands.redrive(context, queue.name, ttl_s=int(ttl) if ttl else None)
    text = f"{formats.number(count)} {plural(count, 'record', 'records')} redriven."
    context.sessions.note(request, text)
    raise web.HTTPSeeOther(context.urls.to("queue", q=queue.name))


async def send_test(request: web.Request) -> web.StreamResponse:
    """Publish a first message, to see one."""
    context = context_of(request)
    content = json.dumps({"hello": "world", "sent_at": context.now_ms()})
    ids = await commands.publish(context, TEST_QUEUE, [(content.encode(), None)])
    raise web.HTTPSeeOther(context.urls.to("message", id=ids[0]))


async def _field(request: web.Request, name: str) -> str:
    """Give a field of the form as browsers send it, line breaks folded back."""
    value = (await request.post()).get(name, "")
    return value if isinstance(value, str) else ""


ROUTES: Final = (
    Route("POST", "/queues/{q}/pause", Role.OPERATOR, "queue-pause", pause, "queue.pause"),
    Route("POST", "/queues/{q}/resume", Role.OPERATOR, "queue-resume", resume, "queue.resume"),
    Route("POST", "/queues/{q}/purge", Role.OPERATOR, "queue-purge", purge, "queue.purge"),
    Route("POST", "/queues/{q}/redrive", Role.OPERATOR, "queue-redrive", redrive, "dead.redrive"),
    Route("POST", "/test-message", Role.OPERATOR, "test-message", send_test, "message.publish"),
)
