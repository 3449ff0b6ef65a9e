"""Buttons and forms of a whole queue: pause, purge, move, redrive, remove (POST, 303, GET)."""

import json
from collections.abc import Sequence
from typing import Final

from aiohttp import web

from phpmq_lite.admin.access.identity import check_queue_right, entry_of
from phpmq_lite.admin.acting import bulk, commands, ladder
from phpmq_lite.admin.acting.flash import back, leave
from phpmq_lite.admin.acting.forms import Form, form_of
from phpmq_lite.admin.acting.notes import Note
from phpmq_lite.admin.acting.selections import MESSAGES_MAX
from phpmq_lite.admin.context import context_of, status_of
from phpmq_lite.admin.pages.message_forms import options_of
from phpmq_lite.admin.pages.selections import RATE_MAX, after
from phpmq_lite.admin.problems import Problem
from phpmq_lite.admin.query import of_queue
from phpmq_lite.admin.render import page
from phpmq_lite.admin.requests import find_queue, queue_of
from phpmq_lite.admin.route import Role, Route
from phpmq_lite.admin.shelves import records_of
from phpmq_lite.broker.operator.message_actions import Action, ActionOptions
from phpmq_lite.server.status import QueueStatus
from phpmq_lite.storage.read.audit import BulkJobLog

TEST_QUEUE: Final = "hello"
_SIDES: Final = ("delivery", "publishing")
_SEQ_MAX: Final = 1 << 62


# -- what is done and undone in one step


async def pause(request: web.Request) -> web.StreamResponse:
    """Pause a side of a queue."""
    return await _turn(request, is_paused=True)


async def resume(request: web.Request) -> web.StreamResponse:
    """Resume a side of a queue."""
    return await _turn(request, is_paused=False)


async def _turn(request: web.Request, *, is_paused: bool) -> web.StreamResponse:
    context, queue, form = context_of(request), queue_of(request), await form_of(request)
    side = form.text("side", 40)
    if side not in _SIDES:
        raise Problem(422, "invalid", "side: unknown.", field="side", bound=" or ".join(_SIDES))
    entry = entry_of(request, target=queue.name, reason=form.reason())
    await commands.pause(context, entry, queue.name, side, is_paused=is_paused)
    leave(request, Note(f"{side.capitalize()} of {queue.name} is "
                        f"{'paused' if is_paused else 'going on'}."))  # fmt: skip
    raise web.HTTPSeeOther(_back(request, form, queue))


async def send_test(request: web.Request) -> web.StreamResponse:
    """Publish a first message, to see one."""
    context = context_of(request)
    content = json.dumps({"hello": "world", "sent_at": context.now_ms()})
    check_queue_right(request, TEST_QUEUE)
    entry = entry_of(request, target=TEST_QUEUE)
    ids = await commands.publish(context, entry, TEST_QUEUE, [(content.encode(), None)])
    raise web.HTTPSeeOther(context.urls.to("message", id=ids[0]))


def _back(request: web.Request, form: Form, queue: QueueStatus) -> str:
    return back(form.raw("next"), context_of(request).urls.to("queue", q=queue.name))


# -- pages that ask first


async def purge_form(request: web.Request) -> web.StreamResponse:
    """Ask before what is in a queue is deleted, and how much of it."""
    return await _ask(request, "purge")


async def move_form(request: web.Request) -> web.StreamResponse:
    """Ask where all that is ready in a queue is to go."""
    return await _ask(request, "move")


async def redrive_form(request: web.Request) -> web.StreamResponse:
    """Ask how the dead letters of a queue are to go back."""
    return await _ask(request, "redrive")


async def remove_form(request: web.Request) -> web.StreamResponse:
    """Ask before an empty queue is removed."""
    return await _ask(request, "remove")


async def _ask(request: web.Request, action: str) -> web.Response:
    """Show the form of an action on a whole queue.

    ``upto`` goes with it: what arrives from now on is not included, however long the form is open.
    """
    context, queue = context_of(request), queue_of(request)
    records = find_queue(request, records_of(status_of(request).queues, queue.name))
    concerned = records if action == "redrive" else queue
    count = concerned.ready if concerned is not None else 0
    typed = ladder.to_type(context.settings, count, [queue.name])
    if action in ("purge", "remove"):
        typed = (queue.name,)
    return await page(
        request, "confirm.html", kind="queue", action=action, queue=queue, count=count,
        typed=typed, query=str(of_queue((concerned or queue).name, ("ready",))),
        upto=await BulkJobLog(context.readers).next_number() - 1,
        back=back(request.query.get("next", ""), context.urls.to("queue", q=queue.name)),
    )  # fmt: skip


# -- what they do


async def purge(request: web.Request) -> web.StreamResponse:
    """Delete what is in a queue, or its oldest messages; its name has to be typed."""
    queue, form = queue_of(request), await form_of(request)
    ladder.check_typed([queue.name], form.raw("confirm") or form.raw("name"))
    is_all = form.flag("dispatched")
    states = ("ready", "dispatched") if is_all else ("ready",)
    limit = form.number("limit", 1, MESSAGES_MAX)
    asked = bulk.Asked(Action.DELETE, ActionOptions(with_dispatched=is_all), reason=form.reason())
    return await _run(request, form, queue, asked, states, limit)


async def move(request: web.Request) -> web.StreamResponse:
    """Move what is ready in a queue to the end of another one."""
    queue, form = queue_of(request), await form_of(request)
    settings = context_of(request).settings
    typed = ladder.to_type(settings, queue.ready, [queue.name])
    ladder.check_typed(typed, form.raw("confirm"))
    asked = bulk.Asked(Action.MOVE, options_of(form), reason=form.reason())
    return await _run(
        request, form, queue, asked, ("ready",), form.number("limit", 1, MESSAGES_MAX)
    )


async def redrive(request: web.Request) -> web.StreamResponse:
    """Send the dead-letter records of a queue back to it, at once or so many a second."""
    queue, form = queue_of(request), await form_of(request)
    name = records_of(status_of(request).queues, queue.name)
    records = find_queue(request, name)
    if records is None:
        raise Problem(404, "unknown_queue", f"There is no queue {name!r}.")
    settings = context_of(request).settings
    ladder.check_typed(ladder.to_type(settings, records.ready, [queue.name]), form.raw("confirm"))
    rate = form.number("rate", 1, RATE_MAX)
    asked = bulk.Asked(Action.REDRIVE, options_of(form), rate, form.reason())
    limit = form.number("limit", 1, MESSAGES_MAX)
    return await _run(request, form, records, asked, ("ready",), limit)


async def _run(
    request: web.Request,
    form: Form,
    queue: QueueStatus,
    asked: bulk.Asked,
    states: Sequence[str],
    limit: int | None,
) -> web.StreamResponse:
    """Freeze what the form was about, and act on it."""
    upto = form.number("upto", 0, _SEQ_MAX)
    job = await bulk.on_queue(request, queue.name, asked, states, limit, upto)
    raise web.HTTPSeeOther(after(request, job, _back(request, form, queue)))


async def remove(request: web.Request) -> web.StreamResponse:
    """Remove an empty queue; its name has to be typed."""
    context, queue, form = context_of(request), queue_of(request), await form_of(request)
    ladder.check_typed([queue.name], form.raw("confirm"))
    entry = entry_of(request, target=queue.name, reason=form.reason())
    await commands.remove_queue(context, entry, queue.name)
    leave(request, Note(f"{queue.name} is removed; its history stays for the retention time."))
    raise web.HTTPSeeOther(back(form.raw("next"), context.urls.to("queues")))


ROUTES: Final = (
    Route("POST", "/queues/{q}/pause", Role.OPERATOR, "queue-pause", pause, "queue.pause"),
    Route("POST", "/queues/{q}/resume", Role.OPERATOR, "queue-resume", resume, "queue.resume"),
    Route("GET", "/queues/{q}/purge", Role.OPERATOR, "queue-purge-form", purge_form),
    Route("POST", "/queues/{q}/purge", Role.OPERATOR, "queue-purge", purge, "queue.purge"),
    Route("GET", "/queues/{q}/move", Role.OPERATOR, "queue-move-form", move_form),
    Route("POST", "/queues/{q}/move", Role.OPERATOR, "queue-move", move, "queue.move"),
    Route("GET", "/queues/{q}/redrive", Role.OPERATOR, "queue-redrive-form", redrive_form),
    Route("POST", "/queues/{q}/redrive", Role.OPERATOR, "queue-redrive", redrive, "dead.redrive"),
    Route("GET", "/queues/{q}/remove", Role.OPERATOR, "queue-remove-form", remove_form),
    Route("POST", "/queues/{q}/remove", Role.OPERATOR, "queue-remove", remove, "queue.remove"),
    Route("POST", "/test-message", Role.OPERATOR, "test-message", send_test, "message.publish"),
)
