"""Queue actions: create, remove, pause, purge, move and redrive."""

import json
from dataclasses import dataclass
from typing import Any, Final, Literal

from aiohttp import web
from pydantic import BaseModel, Field

from phpmq_lite.admin import formats
from phpmq_lite.admin.http.call import Call
from phpmq_lite.admin.http.confirmation import Confirmation, FormField, texts_to_type
from phpmq_lite.admin.http.endpoint import Done, Endpoints, Queue, QueueName
from phpmq_lite.admin.http.fields import EmptyInput, StrictInput
from phpmq_lite.admin.http.input import check_queue_name
from phpmq_lite.admin.http.output import json_response
from phpmq_lite.admin.messages.bulk import BulkJobView, BulkOptions, act_on_search, done_after
from phpmq_lite.admin.messages.owned_stores import MESSAGES_MAX
from phpmq_lite.admin.queues.queue import check_etag
from phpmq_lite.broker.operator import publishing, queue_operations
from phpmq_lite.operator_actions import ACTIONS, Action
from phpmq_lite.roles import Role
from phpmq_lite.server.status import QueueStatus
from phpmq_lite.storage.read.audit import BulkJobLog
from phpmq_lite.storage.search.language import LIVE_STATES, WAITING_STATES, queue_search

TEST_QUEUE: Final = "hello"
endpoints: Final = Endpoints()


@endpoints.action("/test-message", "test-message", Role.OPERATOR, "message.publish")
async def publish_test_message(call: Call) -> Done[None]:
    """Publish a test message to a queue."""
    content = json.dumps({"hello": "world", "sent_at": call.now_ms})
    call.check_queue(TEST_QUEUE)
    call.audit(TEST_QUEUE)
    published = await call.run(publishing.publish, TEST_QUEUE, [(content.encode(), None)])
    return Done(None, to=call.url("message", id=published.ids[0]))


# -- all messages of a queue


@dataclass(slots=True, frozen=True)
class WholeQueueAction:
    """An action on all messages of a queue: its confirmation page and its name in the audit log."""

    action: Action
    audit: str
    summary: str
    text: str
    fields: tuple[FormField, ...]
    noun: str = "message"


_LATER: Final = "Messages that arrive after this page is opened are not included."
_RECORDS_TARGET: Final = "Leave empty for the queue where each record was dead-lettered."
ON_QUEUES: Final = {
    "purge": WholeQueueAction(
        Action.DELETE, "queue.purge", "Delete all of a queue's messages, or only the oldest.",
        "The messages are marked as deleted and kept in the history for the retention period. Undo "
        f"restores them. {_LATER}",
        (("limit_field", ("messages",)),),
    ),
    "move": WholeQueueAction(
        Action.MOVE, "queue.move", "Move a queue's messages to the end of another queue.",
        "Messages that no consumer holds move to the end of the target queue in order and keep "
        f"their ids; scheduled ones stay scheduled. {_LATER}",
        (("target_field", ("Target queue", True)), ("create_field", ()),
         ("limit_field", ("messages",))),
    ),
    "redrive": WholeQueueAction(
        Action.REDRIVE, "dead.redrive",
        "Redrive a queue's dead-letter records, with an optional rate limit.",
        "Each record is republished at the end of the queue where it was dead-lettered, and "
        "the record is then deleted. Messages that clients published directly to the dead-letter "
        "queue stay there.",
        (("target_field", ("Target queue", False, _RECORDS_TARGET)),
         ("ttl_field", ("the queue's default",)), ("time_field", (True,)), ("rate_field", ()),
         ("limit_field", ("records",))),
        "record",
    ),
}  # fmt: skip


class WholeQueueForm(BulkOptions):
    """An action on a queue's messages; ``upto`` excludes those that arrived after the page."""

    limit: int | None = Field(None, ge=1, le=MESSAGES_MAX)
    upto: int | None = Field(None, ge=0, le=1 << 62)


def _source(call: Call, queue: QueueStatus, action: Action) -> QueueStatus | None:
    """Return the queue that has the messages: for a redrive, its dead-letter queue."""
    return call.find_queue(queue.records_queue) if action is Action.REDRIVE else queue


async def _ask(call: Call, queue: QueueStatus, name: str) -> Confirmation:
    row = ON_QUEUES[name]
    source, fields = _source(call, queue, row.action), row.fields
    is_danger, names = ACTIONS[row.action].is_danger, [queue.name]
    count = source.waiting if source is not None else 0
    if is_danger and queue.dispatched:
        label = f"Also delete {formats.count_messages(queue.dispatched)} held by consumers"
        help_ = "The consumers' acknowledgements will be ignored."
        fields = (*fields, ("check_field", ("dispatched", label, help_)))
    amount = f"{formats.format_number(count)} {formats.plural(count, row.noun, row.noun + 's')}"
    title = f"{ACTIONS[row.action].verb} {amount}"
    upto = await BulkJobLog(call.context.readers).next_number() - 1
    search = str(queue_search((source or queue).name, WAITING_STATES))
    return Confirmation(
        title=title,
        button=title,
        queue=queue.name,
        text=row.text,
        fields=fields,
        hidden=[("upto", upto)],
        typed=names if is_danger else texts_to_type(call.context.settings, count, names),
        is_danger=is_danger,
        is_disabled=not (count or (is_danger and queue.dispatched)),
        preview=(search, str(row.action)) if count else None,
        **_place(call, queue, name),
    )


def _place(call: Call, queue: QueueStatus, action: str) -> dict[str, Any]:
    page = call.url("queue", q=queue.name)
    return {
        "url": call.url(f"queue-{action}", q=queue.name),
        "back": call.back(page),
        "crumbs": [("Queues", call.url("queues")), (queue.name, page)],
    }


def _declare(name: str, row: WholeQueueAction) -> None:
    async def run(call: Call, queue: Queue, form: WholeQueueForm) -> Done[BulkJobView]:
        source = _source(call, queue, row.action) or call.queue(queue.records_queue)
        is_all = row.action is Action.DELETE and form.dispatched
        query = queue_search(source.name, LIVE_STATES if is_all else WAITING_STATES)
        job = await act_on_search(call, row.action, source.name, form, query, form.limit, form.upto)
        return done_after(call, job, call.back(call.url("queue", q=source.name)))

    run.__doc__ = row.summary
    endpoints.action(
        f"/queues/{{q}}/{name}",
        f"queue-{name}",
        Role.OPERATOR,
        row.audit,
        ask=lambda call, queue: _ask(call, queue, name),
    )(run)


for _name, _row in ON_QUEUES.items():
    _declare(_name, _row)


class PurgeInput(StrictInput):
    """Which of a queue's messages a purge deletes."""

    dispatched: bool = Field(False, description="also delete messages held by consumers")
    limit: int | None = Field(
        None, ge=1, le=1 << 50, description="maximum number to delete, oldest first; null for all"
    )


class PurgedView(BaseModel):
    """The number of deleted messages."""

    settled: int = Field(description="number of messages deleted")


@endpoints.api(
    "POST /queues/{q}/purge", "api-purge", Role.OPERATOR, "queue.purge", cli="queue purge"
)
async def purge_queue(call: Call, queue: Queue, body: PurgeInput) -> PurgedView:
    """Settle a queue's messages as deleted: all messages, or only the oldest ones."""
    count = await call.run(
        queue_operations.purge, queue.name, with_dispatched=body.dispatched, limit=body.limit
    )
    return PurgedView(settled=count)


# -- the queue itself


class CreatedView(BaseModel):
    """A queue that was created or already existed."""

    queue: str = Field(description="queue name")
    is_new: bool = Field(description="whether this request created the queue")


@endpoints.api(
    "PUT /queues/{q}",
    "api-queue-create",
    Role.OPERATOR,
    "queue.create",
    gives=CreatedView,
    status=201,
    others={200: "the queue exists already"},
    cli="queue create",
)
async def create_queue(call: Call, name: QueueName, _body: EmptyInput) -> web.Response:
    """Create a queue unless it exists."""
    check_queue_name(name)
    is_new = await call.run(queue_operations.create_queue, name)
    return json_response(CreatedView(queue=name, is_new=is_new), status=201 if is_new else 200)


def _ask_removal(call: Call, queue: QueueStatus) -> Confirmation:
    return Confirmation(
        title="Remove the queue",
        button="Remove queue",
        queue=queue.name,
        is_danger=True,
        text="A queue can be removed if it is empty, is not pinned and has no consumers. Its "
        "settings are also removed; its history is kept for the retention period. Publishing to "
        "this name creates the queue again.",
        typed=[queue.name],
        **_place(call, queue, "remove"),
    )


@endpoints.action(
    "/queues/{q}/remove",
    "queue-remove",
    Role.OPERATOR,
    "queue.remove",
    ask=_ask_removal,
    api="DELETE /queues/{q}",
    status=204,
    cli="queue delete",
)
async def remove_queue(call: Call, queue: Queue) -> Done[None]:
    """Remove a queue if it is empty and unpinned and has no consumers; its history is kept."""
    check = check_etag(call, queue.name)
    await call.run(queue_operations.remove_queue, queue.name, check=check)
    text = f"{queue.name} was removed. Its history is kept for the retention period."
    return Done(None, text, call.back(call.url("queues")))


class PauseInput(StrictInput):
    """Which side of a queue to pause or resume: delivery or publishing."""

    side: Literal["delivery", "publishing", "publish"] = Field(
        "delivery", description="delivery or publishing; publish is a synonym for publishing"
    )


class PausedView(BaseModel):
    """Whether delivery or publishing is paused."""

    queue: str = Field(description="queue name")
    side: str = Field(description="delivery or publishing; publish is a synonym for publishing")
    paused: bool = Field(description="whether delivery or publishing is paused")


def _declare_pause(verb: str, summary: str, *, is_paused: bool) -> None:
    async def run(call: Call, queue: Queue, form: PauseInput) -> Done[PausedView]:
        side = "publishing" if form.side == "publish" else form.side
        await call.run(queue_operations.pause, queue.name, side, is_paused)
        text = f"{form.side.capitalize()} for {queue.name} was {verb}d."
        view = PausedView(queue=queue.name, side=form.side, paused=is_paused)
        return Done(view, text, call.back(call.url("queue", q=queue.name)))

    run.__doc__ = summary
    endpoints.action(
        f"/queues/{{q}}/{verb}",
        f"queue-{verb}",
        Role.OPERATOR,
        f"queue.{verb}",
        api="POST",
        api_name=f"api-{verb}",
        cli=f"queue {verb}",
    )(run)


_declare_pause(
    "pause",
    "Pause delivery or publishing for a queue; the pause remains in effect after a restart.",
    is_paused=True,
)
_declare_pause("resume", "Resume delivery or publishing for a queue.", is_paused=False)
