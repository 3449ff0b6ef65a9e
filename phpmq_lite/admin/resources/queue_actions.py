"""Create, remove, pause, purge, move and redrive a queue."""

import json
from collections.abc import Sequence
from typing import Final, Literal

from aiohttp import web
from pydantic import BaseModel, Field

from phpmq_lite.admin.actions import bulk, confirmation
from phpmq_lite.admin.actions.confirmation import Confirmation, FormField
from phpmq_lite.admin.actions.flash_messages import FlashMessage, store_message
from phpmq_lite.admin.actions.selections import MESSAGES_MAX
from phpmq_lite.admin.actions.single_message import read_options
from phpmq_lite.admin.auth.permissions import (
    check_queue_right,
    find_queue,
    queue_name_of,
    require_queue,
)
from phpmq_lite.admin.auth.request_audit import audit_entry
from phpmq_lite.admin.base import formats
from phpmq_lite.admin.base.context import context_of, status_of
from phpmq_lite.admin.base.input import (
    EmptyInput,
    Form,
    StrictInput,
    check_queue_name,
    read_form,
    read_json_model,
)
from phpmq_lite.admin.base.problems import Problem
from phpmq_lite.admin.base.responses import json_response
from phpmq_lite.admin.base.route import Role, Route
from phpmq_lite.admin.base.search_query import queue_search
from phpmq_lite.admin.base.urls import own_path_or
from phpmq_lite.admin.resources.bulk_jobs import next_page_after
from phpmq_lite.admin.resources.queue import QueueDetailView, check_etag, configure_queue, get_queue
from phpmq_lite.admin.resources.selections import RATE_MAX
from phpmq_lite.admin.views.dead_letter_queues import dead_letter_queue_of
from phpmq_lite.admin.views.queue_settings_form import SettingsInput, SettingsView
from phpmq_lite.admin.views.rendering import render_page
from phpmq_lite.broker.operator import publishing, queue_operations
from phpmq_lite.broker.operator.message_actions import Action, ActionOptions
from phpmq_lite.server.status import QueueStatus
from phpmq_lite.storage.read.audit import BulkJobLog

TEST_QUEUE: Final = "hello"
_SIDES: Final = ("delivery", "publishing")
_SEQ_MAX: Final = 1 << 62


# -- pause, resume, test message


async def submit_pause(request: web.Request) -> web.StreamResponse:
    """Pause a side of a queue."""
    return await _submit_turn(request, is_paused=True)


async def submit_resume(request: web.Request) -> web.StreamResponse:
    """Resume a side of a queue."""
    return await _submit_turn(request, is_paused=False)


async def _submit_turn(request: web.Request, *, is_paused: bool) -> web.StreamResponse:
    context, queue, form = context_of(request), require_queue(request), await read_form(request)
    side = form.text("side", 40)
    if side not in _SIDES:
        raise Problem(422, "invalid", "side: unknown.", field="side", bound=" or ".join(_SIDES))
    entry = audit_entry(request, target=queue.name, reason=form.reason())
    await context.engine.run(queue_operations.pause, entry, queue.name, side, is_paused)
    store_message(request, FlashMessage(f"{side.capitalize()} of {queue.name} was "
                        f"{'paused' if is_paused else 'resumed'}."))  # fmt: skip
    raise web.HTTPSeeOther(_back(request, form, queue))


async def submit_test_message(request: web.Request) -> web.StreamResponse:
    """Publish a test message."""
    context = context_of(request)
    content = json.dumps({"hello": "world", "sent_at": context.now_ms()})
    check_queue_right(request, TEST_QUEUE)
    entry = audit_entry(request, target=TEST_QUEUE)
    ids = await context.engine.run(
        publishing.publish, entry, TEST_QUEUE, [(content.encode(), None)]
    )
    raise web.HTTPSeeOther(context.urls.to("message", id=ids[0]))


def _back(request: web.Request, form: Form, queue: QueueStatus) -> str:
    return own_path_or(form.raw("next"), context_of(request).urls.to("queue", q=queue.name))


# -- pages that ask first

_TARGET: Final = ("target_field", ("To the queue", True))
_RECORDS_TARGET: Final = (
    "target_field",
    ("To another queue", False, "Empty: the queue where each was dead-lettered."),
)
_LATER: Final = "Messages that arrive after this page was opened are not included."
_ASKS: Final[dict[str, tuple[str, tuple[FormField, ...]]]] = {  # action -> text, fields
    "purge": (
        "They are settled as deleted and stay in the history for the retention time. Undo "
        f"restores them. {_LATER}",
        (("limit_field", ("messages",)),),
    ),
    "move": (
        "Ready messages move to the end of the other queue, in their order. They keep their ids. "
        f"{_LATER}",
        (_TARGET, ("create_field", ()), ("limit_field", ("messages",))),
    ),
    "redrive": (
        "Each record is published again, at the end of the queue where it was dead-lettered, and "
        "is then deleted. Records that a client published here itself stay.",
        (_RECORDS_TARGET, ("ttl_field", ("the queue's default",)), ("rate_field", ()),
         ("limit_field", ("records",))),
    ),
    "remove": (
        "A queue can be removed if it is empty, not pinned and has no consumers. Its settings are "
        "removed with it; its history stays for the retention time. The next message published "
        "to this name creates the queue again.",
        (),
    ),
}  # fmt: skip


async def show_purge_form(request: web.Request) -> web.StreamResponse:
    """Ask before the messages of a queue are deleted."""
    return await _ask(request, "purge")


async def show_move_form(request: web.Request) -> web.StreamResponse:
    """Ask for the queue to move all ready messages to."""
    return await _ask(request, "move")


async def show_redrive_form(request: web.Request) -> web.StreamResponse:
    """Ask before the dead letters of a queue are redriven."""
    return await _ask(request, "redrive")


async def show_remove_form(request: web.Request) -> web.StreamResponse:
    """Ask before an empty queue is removed."""
    return await _ask(request, "remove")


async def _ask(request: web.Request, action: str) -> web.Response:
    """Show the form of an action on a whole queue.

    It contains ``upto``, the number of the last message: later messages are not included.
    """
    context, queue = context_of(request), require_queue(request)
    urls = context.urls
    records = find_queue(request, dead_letter_queue_of(status_of(request).queues, queue.name))
    source = records if action == "redrive" else queue
    count = source.ready if source is not None else 0
    text, fields = _ASKS[action]
    if action == "purge" and queue.dispatched:
        label = f"Also the {formats.format_number(queue.dispatched)} that consumers hold now"
        help_ = "Their acknowledgements will be ignored."
        fields = (*fields, ("check_field", ("dispatched", label, help_)))
    verb = "Delete" if action == "purge" else action.capitalize()
    noun = "record" if action == "redrive" else "message"
    title = f"{verb} {formats.format_number(count)} {formats.plural(count, noun, noun + 's')}"
    is_remove, is_danger = action == "remove", action in ("purge", "remove")
    upto = await BulkJobLog(context.readers).next_number() - 1
    search = str(queue_search((source or queue).name, ("ready",)))
    ask = Confirmation(
        title=title if not is_remove else "Remove the queue", queue=queue.name, text=text,
        button=title if not is_remove else "Remove queue", fields=fields, is_danger=is_danger,
        url=urls.to(f"queue-{action}", q=queue.name),
        back=own_path_or(request.query.get("next", ""), urls.to("queue", q=queue.name)),
        crumbs=[("Queues", urls.to("queues")), (queue.name, urls.to("queue", q=queue.name))],
        hidden=[] if is_remove else [("upto", upto)],
        typed=[queue.name] if is_danger
        else confirmation.texts_to_type(context.settings, count, [queue.name]),
        is_disabled=not (count or is_remove or (is_danger and queue.dispatched)),
        preview=None if is_remove or not count else (search, "delete" if is_danger else action),
    )  # fmt: skip
    return await render_page(request, "confirm.html", ask=ask)


# -- actions on a whole queue


async def submit_purge(request: web.Request) -> web.StreamResponse:
    """Delete the messages of a queue, or only the oldest."""
    queue, form = require_queue(request), await read_form(request)
    confirmation.check_typed_text([queue.name], form.raw("confirm") or form.raw("name"))
    is_all = form.flag("dispatched")
    states = ("ready", "dispatched") if is_all else ("ready",)
    limit = form.number("limit", 1, MESSAGES_MAX)
    asked = bulk.BulkRequest(
        Action.DELETE, ActionOptions(with_dispatched=is_all), reason=form.reason()
    )
    return await _run(request, form, queue, asked, states, limit)


async def submit_move(request: web.Request) -> web.StreamResponse:
    """Move the ready messages of a queue to the end of another queue."""
    queue, form = require_queue(request), await read_form(request)
    settings = context_of(request).settings
    typed = confirmation.texts_to_type(settings, queue.ready, [queue.name])
    confirmation.check_typed_text(typed, form.raw("confirm"))
    asked = bulk.BulkRequest(Action.MOVE, read_options(form), reason=form.reason())
    return await _run(
        request, form, queue, asked, ("ready",), form.number("limit", 1, MESSAGES_MAX)
    )


async def submit_redrive(request: web.Request) -> web.StreamResponse:
    """Redrive the dead-letter records of a queue, with an optional rate."""
    queue, form = require_queue(request), await read_form(request)
    name = dead_letter_queue_of(status_of(request).queues, queue.name)
    records = find_queue(request, name)
    if records is None:
        raise Problem(404, "unknown_queue", f"There is no queue {name!r}.")
    settings = context_of(request).settings
    confirmation.check_typed_text(
        confirmation.texts_to_type(settings, records.ready, [queue.name]), form.raw("confirm")
    )
    rate = form.number("rate", 1, RATE_MAX)
    asked = bulk.BulkRequest(Action.REDRIVE, read_options(form), rate, form.reason())
    limit = form.number("limit", 1, MESSAGES_MAX)
    return await _run(request, form, records, asked, ("ready",), limit)


async def _run(
    request: web.Request,
    form: Form,
    queue: QueueStatus,
    asked: bulk.BulkRequest,
    states: Sequence[str],
    limit: int | None,
) -> web.StreamResponse:
    """Act on the messages that the form was opened for."""
    upto = form.number("upto", 0, _SEQ_MAX)
    job = await bulk.act_on_queue(request, queue.name, asked, states, limit, upto)
    raise web.HTTPSeeOther(next_page_after(request, job, _back(request, form, queue)))


async def submit_removal(request: web.Request) -> web.StreamResponse:
    """Remove an empty queue."""
    context, queue, form = context_of(request), require_queue(request), await read_form(request)
    confirmation.check_typed_text([queue.name], form.raw("confirm"))
    entry = audit_entry(request, target=queue.name, reason=form.reason())
    await context.engine.run(queue_operations.remove_queue, entry, queue.name)
    store_message(
        request,
        FlashMessage(f"{queue.name} was removed. Its history stays for the retention time."),
    )
    raise web.HTTPSeeOther(own_path_or(form.raw("next"), context.urls.to("queues")))


class PauseInput(StrictInput):
    """The side of a queue to pause or resume."""

    side: Literal["delivery", "publishing", "publish"] = Field(
        "delivery", description="delivery or publishing; publish means publishing"
    )


class CreatedView(BaseModel):
    """A queue that exists now."""

    queue: str = Field(description="name of the queue")
    is_new: bool = Field(description="false: the queue existed already")


class PurgeInput(StrictInput):
    """Which messages a purge deletes."""

    dispatched: bool = Field(False, description="true: include messages held by consumers")
    limit: int | None = Field(
        None, ge=1, le=1 << 50, description="only the oldest, at most this many; null: all"
    )


class PurgedView(BaseModel):
    """The number of deleted messages."""

    settled: int = Field(description="messages deleted")


class PausedView(BaseModel):
    """The state of one side of a queue."""

    queue: str = Field(description="name of the queue")
    side: str = Field(description="delivery or publishing; publish means publishing")
    paused: bool = Field(description="true: paused")


async def create_queue(request: web.Request) -> web.StreamResponse:
    """Create a queue: 201, or 200 if it exists."""
    context, name = context_of(request), queue_name_of(request)
    await read_json_model(request, EmptyInput)
    check_queue_name(name)
    check_queue_right(request, name)
    is_new = await context.engine.run(
        queue_operations.create_queue, audit_entry(request, target=name), name
    )
    return json_response(CreatedView(queue=name, is_new=is_new), status=201 if is_new else 200)


async def remove_queue(request: web.Request) -> web.StreamResponse:
    """Remove a queue that is empty, not pinned and has no consumers. Its history stays."""
    context, name = context_of(request), require_queue(request).name
    entry = audit_entry(request, target=name)
    await context.engine.run(
        queue_operations.remove_queue, entry, name, check=check_etag(request, name)
    )
    return web.Response(status=204)


async def purge_queue(request: web.Request) -> web.StreamResponse:
    """Settle the messages of a queue as deleted, or only the oldest."""
    context, asked = context_of(request), await read_json_model(request, PurgeInput)
    name = _existing(request)
    count = await context.engine.run(
        queue_operations.purge, audit_entry(request, target=name), name,
        with_dispatched=asked.dispatched, limit=asked.limit,
    )  # fmt: skip
    return json_response(PurgedView(settled=count))


async def pause_queue(request: web.Request) -> web.StreamResponse:
    """Pause delivery or publishing of a queue. A restart keeps it paused."""
    return await _set_paused(request, is_paused=True)


async def resume_queue(request: web.Request) -> web.StreamResponse:
    """Resume delivery or publishing of a queue."""
    return await _set_paused(request, is_paused=False)


async def _set_paused(request: web.Request, *, is_paused: bool) -> web.StreamResponse:
    context, asked = context_of(request), await read_json_model(request, PauseInput)
    name = _existing(request)
    entry = audit_entry(request, target=name)
    side = "publishing" if asked.side == "publish" else asked.side
    await context.engine.run(queue_operations.pause, entry, name, side, is_paused)
    return json_response(PausedView(queue=name, side=asked.side, paused=is_paused))


def _existing(request: web.Request) -> str:
    """Return the name of an existing queue that the caller may use."""
    return require_queue(request).name


_Q: Final = "/api/v1/queues/{q}"


ROUTES: Final = (
    Route("POST", "/queues/{q}/pause", Role.OPERATOR, "queue-pause", submit_pause, "queue.pause"),
    Route(
        "POST", "/queues/{q}/resume", Role.OPERATOR, "queue-resume", submit_resume, "queue.resume",
    ),
    Route("GET", "/queues/{q}/purge", Role.OPERATOR, "queue-purge-form", show_purge_form),
    Route("POST", "/queues/{q}/purge", Role.OPERATOR, "queue-purge", submit_purge, "queue.purge"),
    Route("GET", "/queues/{q}/move", Role.OPERATOR, "queue-move-form", show_move_form),
    Route("POST", "/queues/{q}/move", Role.OPERATOR, "queue-move", submit_move, "queue.move"),
    Route("GET", "/queues/{q}/redrive", Role.OPERATOR, "queue-redrive-form", show_redrive_form),
    Route(
        "POST", "/queues/{q}/redrive", Role.OPERATOR, "queue-redrive", submit_redrive,
        "dead.redrive",
    ),
    Route("GET", "/queues/{q}/remove", Role.OPERATOR, "queue-remove-form", show_remove_form),
    Route(
        "POST", "/queues/{q}/remove", Role.OPERATOR, "queue-remove", submit_removal, "queue.remove",
    ),
    Route(
        "POST", "/test-message", Role.OPERATOR, "test-message", submit_test_message,
        "message.publish",
    ),

    Route("GET", _Q, Role.VIEWER, "api-queue", get_queue, gives=QueueDetailView, cli="queue show"),
    Route(
        "PUT", _Q, Role.OPERATOR, "api-queue-create", create_queue, "queue.create",
        takes=EmptyInput, gives=CreatedView, cli="queue create",
    ),
    Route(
        "PATCH", _Q, Role.ADMIN, "api-queue-configure", configure_queue, "queue.configure",
        takes=SettingsInput, gives=SettingsView, cli="queue set",
    ),
    Route(
        "DELETE", _Q, Role.OPERATOR, "api-queue-remove", remove_queue, "queue.remove", status=204,
        cli="queue delete",
    ),
    Route(
        "POST", f"{_Q}/purge", Role.OPERATOR, "api-purge", purge_queue, "queue.purge",
        takes=PurgeInput, gives=PurgedView, cli="queue purge",
    ),
    Route(
        "POST", f"{_Q}/pause", Role.OPERATOR, "api-pause", pause_queue, "queue.pause",
        takes=PauseInput, gives=PausedView, cli="queue pause",
    ),
    Route(
        "POST", f"{_Q}/resume", Role.OPERATOR, "api-resume", resume_queue, "queue.resume",
        takes=PauseInput, gives=PausedView, cli="queue resume",
    ),
)  # fmt: skip
