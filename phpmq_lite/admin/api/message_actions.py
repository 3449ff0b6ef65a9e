"""What is done to messages over HTTP: publish, and one action on one message."""

from collections.abc import Awaitable, Callable
from typing import Any, Final

from aiohttp import web
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from phpmq_lite.admin.access.identity import check_queue_right, entry_of, identity_of
from phpmq_lite.admin.acting import commands, doing
from phpmq_lite.admin.acting.undo import undo_of_publish
from phpmq_lite.admin.context import Context, context_of
from phpmq_lite.admin.lists import as_json
from phpmq_lite.admin.problems import Problem
from phpmq_lite.admin.requests import check_queue_name, json_of, message_of, queue_name_of
from phpmq_lite.admin.route import Handler, Role, Route
from phpmq_lite.admin.schemas import PUBLISH_MAX, TTL_MAX_S, PublishIn
from phpmq_lite.admin.uploads import json_body
from phpmq_lite.admin.waiting import Mark
from phpmq_lite.broker.operator.message_actions import Action, ActionOptions
from phpmq_lite.queue_settings import LONGEST_NAME

KEY_BYTES: Final = 64
_MESSAGES: Final = TypeAdapter(list[PublishIn])


class _In(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    reason: str = Field("", max_length=500)  # for the audit


class TtlIn(_In):
    """A time to live in seconds; null: as it is, or the queue's default; 0: never expires."""

    ttl_s: int | None = Field(None, ge=0, le=TTL_MAX_S)


class ActIn(_In):
    """Nothing but a reason."""


class MoveIn(_In):
    """Where to move to."""

    target: str = Field(min_length=1, max_length=LONGEST_NAME)
    create: bool = False  # make the queue where there is none


class DeleteIn(_In):
    """What a delete takes along."""

    dispatched: bool = False  # also where a consumer holds it


class RedriveOneIn(TtlIn):
    """Where a dead-letter record goes; null: where it died."""

    target: str | None = Field(None, min_length=1, max_length=LONGEST_NAME)


class EditIn(PublishIn):
    """A new message made from an old one."""

    queue: str | None = Field(None, min_length=1, max_length=LONGEST_NAME)  # null: the same
    reason: str = Field("", max_length=500)  # for the audit


class PublishedOut(BaseModel):
    """Ids in the order given; ``cursor`` is where to wait for what comes after."""

    ids: list[str]
    cursor: str
    # id -> reason of those that are dead letters at once: the queue takes proper envelopes only
    quarantined: dict[str, str] = {}


class ActedOut(BaseModel):
    """What came of an action; ``undo`` is a token for POST /undo/{token}."""

    id: str
    action: str
    new_id: str | None = None
    undo: str | None = None


async def publish(request: web.Request) -> web.StreamResponse:
    """Store one message, or an array of them all or none; 201 after the commit.

    A repeated Idempotency-Key stores nothing and gives the first answer.
    """
    context, name = context_of(request), queue_name_of(request)
    check_queue_name(name)
    check_queue_right(request, name)
    key = _key_of(request)
    data = await json_body(request)
    asked = _MESSAGES.validate_python(data if isinstance(data, list) else [data])
    if not 1 <= len(asked) <= PUBLISH_MAX:
        raise Problem(
            422, "invalid", f"The array has {len(asked)} messages.", bound=f"1 to {PUBLISH_MAX}"
        )
    pieces = [(message.body(), message.ttl_s) for message in asked]
    for at, (body, _) in enumerate(pieces):
        check_size(context, body, f"{at}.content")
    entry = entry_of(request, target=name)
    before = await Mark.now(context.readers)  # so that what settles at once is not missed
    ids = await commands.publish(context, entry, name, pieces, key=key)
    cursor = before.after(ids).text
    out = PublishedOut(ids=ids, cursor=cursor, quarantined=ids.quarantined)
    return as_json(out, status=201)


def _key_of(request: web.Request) -> bytes | None:
    text = request.headers.get("Idempotency-Key")
    if text is None:
        return None
    key = text.encode(errors="surrogateescape")
    if not 1 <= len(key) <= KEY_BYTES:
        raise Problem(
            422, "invalid", f"The key is {len(key)} bytes.", field="Idempotency-Key",
            bound=f"1 to {KEY_BYTES} bytes",
        )  # fmt: skip
    return key


def check_size(context: Context, body: bytes, field: str) -> None:
    """Refuse content that no message may have.

    Raises:
        Problem: 413, naming the limit.
    """
    limit = int(context.settings.limits.max_content)
    if len(body) > limit:
        raise Problem(
            413, "too_large", f"{field} is {len(body)} bytes, the limit is {limit}.",
            field=field, bound=f"{limit} bytes",
        )  # fmt: skip


async def edit(request: web.Request) -> web.StreamResponse:
    """Publish a changed copy of a message; the old one stays as it is."""
    context, asked = context_of(request), await json_of(request, EditIn)
    row = await message_of(request, context)
    name = asked.queue or row.queue
    if name is None:
        raise Problem(422, "invalid", "Its queue is gone; name one.", field="queue")
    check_queue_name(name)
    check_queue_right(request, name)
    body = asked.body()
    check_size(context, body, "content")
    entry = entry_of(request, target=row.message_id, reason=asked.reason)
    ids = await commands.publish(
        context, entry, name, [(body, asked.ttl_s)], source=(row.seq, "edit")
    )
    undo = undo_of_publish(ids, identity_of(request).actor, row.message_id)
    token = context.acting.undos.add(undo, context.now_ms())
    return as_json(ActedOut(id=row.message_id, action="edit", new_id=ids[0], undo=token))


def _doer(
    action: Action, model: type[_In]
) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
    async def do(request: web.Request) -> web.StreamResponse:
        context, asked = context_of(request), await json_of(request, model)
        row = await message_of(request, context)
        done = await doing.act_on_one(request, action, row, _options(asked), asked.reason)
        out = ActedOut(
            id=row.message_id, action=str(action),
            new_id=done.outcome.made.get(row.seq), undo=done.undo,
        )  # fmt: skip
        return as_json(out)

    do.__doc__ = _SUMMARIES[action]
    return do


_SUMMARIES: Final = {
    Action.REQUEUE: "Put a message at the end of its queue, under its old id.",
    Action.RELEASE: "Take a message back from who holds it, to its old place.",
    Action.MOVE: "Put a ready message at the end of another queue.",
    Action.DELETE: "Settle a message as deleted.",
    Action.REDRIVE: "Send a dead-letter record back to where it died, as a new message.",
    Action.RESTORE: "Bring a deleted message back to its old place, as a new message.",
    Action.ERASE: "Take the body of a settled message away for good; its row stays.",
}
_MODELS: Final[dict[Action, type[_In]]] = {
    Action.REQUEUE: TtlIn,
    Action.RELEASE: ActIn,
    Action.MOVE: MoveIn,
    Action.DELETE: DeleteIn,
    Action.REDRIVE: RedriveOneIn,
    Action.RESTORE: TtlIn,
    Action.ERASE: ActIn,
}
_COMMANDS: Final = {
    Action.REQUEUE: "msg requeue",
    Action.RELEASE: "msg release",
    Action.MOVE: "msg move",
    Action.DELETE: "msg rm",
    Action.RESTORE: "msg restore",
}


def _options(asked: _In) -> ActionOptions:
    values: dict[str, Any] = asked.model_dump(exclude={"reason"})
    if "dispatched" in values:
        values["with_dispatched"] = values.pop("dispatched")
    return ActionOptions(**values)


def _route(action: Action) -> Route:
    do: Handler = _doer(action, _MODELS[action])
    return Route(
        "POST", f"/api/v1/messages/{{id}}/{action}",
        Role.ADMIN if action is Action.ERASE else Role.OPERATOR,
        f"api-message-{action}", do, f"message.{action}",
        takes=_MODELS[action], gives=ActedOut, cli=_COMMANDS.get(action),
    )  # fmt: skip


ROUTES: Final = (
    Route(
        "POST", "/api/v1/queues/{q}/messages", Role.OPERATOR, "api-publish", publish,
        "message.publish", takes=list[PublishIn], gives=PublishedOut, status=201, cli="publish",
        has_content=True,
    ),
    *map(_route, _MODELS),
    Route(
        "POST", "/api/v1/messages/{id}/edit", Role.OPERATOR, "api-message-edit", edit,
        "message.edit", takes=EditIn, gives=ActedOut, has_content=True,
    ),
)  # fmt: skip
