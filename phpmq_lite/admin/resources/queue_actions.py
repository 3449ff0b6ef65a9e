"""Queue actions: create, remove, pause, purge, move and redrive."""

import json
from typing import Final, Literal

from aiohttp import web
from pydantic import BaseModel, Field

from phpmq_lite.admin.actions import bulk, confirmation
from phpmq_lite.admin.actions.confirmation import Confirmation, FormField
from phpmq_lite.admin.actions.selections import MESSAGES_MAX
from phpmq_lite.admin.actions.single_message import read_options
from phpmq_lite.admin.auth.permissions import (
    check_queue_right,
    find_queue,
    queue_name_of,
    queue_named,
    require_queue,
)
from phpmq_lite.admin.auth.request_audit import audit_entry
from phpmq_lite.admin.base import formats
from phpmq_lite.admin.base.context import context_of, status_of
from phpmq_lite.admin.base.input import (
    EmptyInput,
    StrictInput,
    check_queue_name,
    read_form,
    read_json_model,
)
from phpmq_lite.admin.base.responses import json_response
from phpmq_lite.admin.base.route import Role, Route
from phpmq_lite.admin.base.search_query import queue_search
from phpmq_lite.admin.base.urls import own_path_or
from phpmq_lite.admin.resource import Api, Page, Resource, api_route, bind_action
from phpmq_lite.admin.resources.bulk_jobs import next_page_after
from phpmq_lite.admin.resources.queue import QueueDetailView, check_etag, configure_queue, get_queue
from phpmq_lite.admin.resources.selections import RATE_MAX
from phpmq_lite.admin.views.dead_letter_queues import dead_letter_queue_of
from phpmq_lite.admin.views.queue_settings_form import SettingsInput, SettingsView
from phpmq_lite.admin.views.rendering import render_page
from phpmq_lite.broker.operator import publishing, queue_operations
from phpmq_lite.broker.operator.message_actions import Action
from phpmq_lite.storage.read.audit import BulkJobLog

TEST_QUEUE: Final = "hello"
_SEQ_MAX: Final = 1 << 62


# -- test message


async def submit_test_message(request: web.Request) -> web.StreamResponse:
    """Publish a test message to a queue."""
    context = context_of(request)
    content = json.dumps({"hello": "world", "sent_at": context.now_ms()})
    check_queue_right(request, TEST_QUEUE)
    entry = audit_entry(request, target=TEST_QUEUE)
    ids = await context.engine.run(
        publishing.publish, entry, TEST_QUEUE, [(content.encode(), None)]
    )
    raise web.HTTPSeeOther(context.urls.to("message", id=ids[0]))


# -- confirmation pages

_TARGET: Final = ("target_field", ("Target queue", True))
_RECORDS_TARGET: Final = (
    "target_field",
    ("Target queue", False, "Leave empty for the queue where each record was dead-lettered."),
)
_LATER: Final = "Messages that arrive after this page is opened are not included."
# Maps each action to its description in the API reference, form text and form fields.
_ASKS: Final[dict[str, tuple[str, str, tuple[FormField, ...]]]] = {
    "purge": (
        "Ask for confirmation before a queue's messages are deleted.",
        "The messages are marked as deleted and kept in the history for the retention period. Undo "
        f"restores them. {_LATER}",
        (("limit_field", ("messages",)),),
    ),
    "move": (
        "Ask which queue to move all ready messages to.",
        "Ready messages move to the end of the target queue in order and keep their ids. "
        f"{_LATER}",
        (_TARGET, ("create_field", ()), ("limit_field", ("messages",))),
    ),
    "redrive": (
        "Ask for confirmation before a queue's dead letters are redriven.",
        "Each record is republished at the end of the queue where it was dead-lettered, and "
        "the record is then deleted. Messages that clients published directly to the dead-letter "
        "queue stay there.",
        (_RECORDS_TARGET, ("ttl_field", ("the queue's default",)), ("rate_field", ()),
         ("limit_field", ("records",))),
    ),
    "remove": (
        "Ask for confirmation before an empty queue is removed.",
        "A queue can be removed if it is empty, is not pinned and has no consumers. Its settings "
        "are also removed; its history is kept for the retention period. Publishing to this name "
        "creates the queue again.",
        (),
    ),
}  # fmt: skip


async def show_form(request: web.Request, action: str) -> web.StreamResponse:
    """Show the confirmation form for an action on an entire queue.

    The form's field ``upto`` is the seq of the last message, which excludes later messages.
    """
    context, queue = context_of(request), require_queue(request)
    urls = context.urls
    records = find_queue(request, dead_letter_queue_of(status_of(request).queues, queue.name))
    source = records if action == "redrive" else queue
    count = source.ready if source is not None else 0
    _, text, fields = _ASKS[action]
    if action == "purge" and queue.dispatched:
        label = f"Also delete {formats.count_messages(queue.dispatched)} held by consumers"
        help_ = "The consumers' acknowledgements will be ignored."
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


# -- actions on an entire queue


async def submit_form(request: web.Request, action: Action) -> web.StreamResponse:
    """Apply an action to the messages that were in the queue when the form was opened."""
    context, queue, form = context_of(request), require_queue(request), await read_form(request)
    is_delete, source = action is Action.DELETE, queue
    if action is Action.REDRIVE:
        source = queue_named(request, dead_letter_queue_of(status_of(request).queues, queue.name))
    typed = confirmation.texts_to_type(context.settings, source.ready, [queue.name])
    confirmation.check_typed_text([queue.name] if is_delete else typed, form.raw("confirm"))
    options, rate = read_options(form), form.number("rate", 1, RATE_MAX)
    states = ("ready", "dispatched") if is_delete and options.with_dispatched else ("ready",)
    asked = bulk.BulkRequest(action, options, rate, form.reason())
    limit, upto = form.number("limit", 1, MESSAGES_MAX), form.number("upto", 0, _SEQ_MAX)
    query = queue_search(source.name, states)
    job = await bulk.act_on_search(request, source.name, asked, query, limit, upto)
    to = own_path_or(form.raw("next"), context.urls.to("queue", q=source.name))
    raise web.HTTPSeeOther(next_page_after(request, job, to))


class PauseInput(StrictInput):
    """Which side of a queue to pause or resume: delivery or publishing."""

    side: Literal["delivery", "publishing", "publish"] = Field(
        "delivery", description="delivery or publishing; publish is a synonym for publishing"
    )


class CreatedView(BaseModel):
    """A queue that was created or already existed."""

    queue: str = Field(description="queue name")
    is_new: bool = Field(description="whether this request created the queue")


class PurgeInput(StrictInput):
    """Which of a queue's messages a purge deletes."""

    dispatched: bool = Field(False, description="also delete messages held by consumers")
    limit: int | None = Field(
        None, ge=1, le=1 << 50, description="maximum number to delete, oldest first; null for all"
    )


class PurgedView(BaseModel):
    """The number of deleted messages."""

    settled: int = Field(description="number of messages deleted")


class PausedView(BaseModel):
    """Whether delivery or publishing is paused."""

    queue: str = Field(description="queue name")
    side: str = Field(description="delivery or publishing; publish is a synonym for publishing")
    paused: bool = Field(description="whether delivery or publishing is paused")


async def create_queue(request: web.Request) -> web.StreamResponse:
    """Create a queue; respond with 201, or with 200 if the queue already exists."""
    context, name = context_of(request), queue_name_of(request)
    await read_json_model(request, EmptyInput)
    check_queue_name(name)
    check_queue_right(request, name)
    is_new = await context.engine.run(
        queue_operations.create_queue, audit_entry(request, target=name), name
    )
    return json_response(CreatedView(queue=name, is_new=is_new), status=201 if is_new else 200)


async def remove_queue(request: web.Request, _asked: None) -> None:
    """Remove a queue if it is empty and unpinned and has no consumers; its history is kept."""
    context, name = context_of(request), require_queue(request).name
    entry = audit_entry(request, target=name)
    await context.engine.run(
        queue_operations.remove_queue, entry, name, check=check_etag(request, name)
    )


async def _typed_name(request: web.Request) -> list[str]:
    return [require_queue(request).name]


def _removed(request: web.Request, _asked: None, _view: None) -> tuple[str, str]:
    text = f"{queue_name_of(request)} was removed. Its history is kept for the retention period."
    return text, context_of(request).urls.to("queues")


async def purge_queue(request: web.Request, asked: PurgeInput) -> PurgedView:
    """Settle a queue's messages as deleted: all messages, or only the oldest ones."""
    context, name = context_of(request), require_queue(request).name
    count = await context.engine.run(
        queue_operations.purge, audit_entry(request, target=name), name,
        with_dispatched=asked.dispatched, limit=asked.limit,
    )  # fmt: skip
    return PurgedView(settled=count)


async def pause_queue(request: web.Request, asked: PauseInput) -> PausedView:
    """Pause delivery or publishing for a queue; the pause remains in effect after a restart."""
    return await _set_paused(request, asked, is_paused=True)


async def resume_queue(request: web.Request, asked: PauseInput) -> PausedView:
    """Resume delivery or publishing for a queue."""
    return await _set_paused(request, asked, is_paused=False)


async def _set_paused(request: web.Request, asked: PauseInput, *, is_paused: bool) -> PausedView:
    context, name = context_of(request), require_queue(request).name
    entry = audit_entry(request, target=name)
    side = "publishing" if asked.side == "publish" else asked.side
    await context.engine.run(queue_operations.pause, entry, name, side, is_paused)
    return PausedView(queue=name, side=asked.side, paused=is_paused)


def _paused(request: web.Request, _asked: PauseInput, view: PausedView) -> tuple[str, str]:
    text = f"{view.side.capitalize()} for {view.queue} was "
    to = context_of(request).urls.to("queue", q=view.queue)
    return f"{text}{'paused' if view.paused else 'resumed'}.", to


_Q: Final = "/api/v1/queues/{q}"


ROUTES: Final = (
    *(
        Route("GET", f"/queues/{{q}}/{action}", Role.OPERATOR, f"queue-{action}-form",
              bind_action(show_form, action, summary))
        for action, (summary, *_) in _ASKS.items()
    ),
    *(
        Route("POST", f"/queues/{{q}}/{name}", Role.OPERATOR, f"queue-{name}",
              bind_action(submit_form, action, summary), audit)
        for name, action, audit, summary in (
            ("purge", Action.DELETE, "queue.purge",
             "Delete all of a queue's messages, or only the oldest."),
            ("move", Action.MOVE, "queue.move",
             "Move a queue's ready messages to the end of another queue."),
            ("redrive", Action.REDRIVE, "dead.redrive",
             "Redrive a queue's dead-letter records, with an optional rate limit."),
        )
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
    *Resource(
        run=remove_queue, role=Role.OPERATOR, audit="queue.remove",
        page=Page("/queues/{q}/remove", "queue-remove", done=_removed, typed=_typed_name),
        api=Api("DELETE", _Q, "api-queue-remove", status=204, cli="queue delete"),
    ).routes(),
    api_route(
        "POST", f"{_Q}/purge", Role.OPERATOR, "api-purge", purge_queue, "queue.purge",
        cli="queue purge",
    ),
    *(
        route
        for name, run in (("pause", pause_queue), ("resume", resume_queue))
        for route in Resource(
            run=run, role=Role.OPERATOR, audit=f"queue.{name}",
            page=Page(f"/queues/{{q}}/{name}", f"queue-{name}", done=_paused),
            api=Api("POST", f"{_Q}/{name}", f"api-{name}", cli=f"queue {name}"),
        ).routes()
    ),
)  # fmt: skip
