"""Requeue, release, move, delete, redrive, restore and erase messages."""

from collections.abc import Awaitable, Callable
from typing import Any, Final

from aiohttp import web
from pydantic import Field

from phpmq_lite.admin.actions import confirmation, single, texts
from phpmq_lite.admin.actions.single import ActionResultView, read_options
from phpmq_lite.admin.actions.texts import FlashMessage, leave_message
from phpmq_lite.admin.auth.permissions import find_message
from phpmq_lite.admin.auth.request_audit import audit_entry
from phpmq_lite.admin.base import formats
from phpmq_lite.admin.base.context import context_of
from phpmq_lite.admin.base.input import (
    TTL_MAX_S,
    ActionInput,
    Form,
    RedriveTarget,
    TtlSeconds,
    read_form,
    read_json_model,
)
from phpmq_lite.admin.base.problems import Problem
from phpmq_lite.admin.base.responses import json_response
from phpmq_lite.admin.base.route import Handler, Role, Route
from phpmq_lite.admin.base.urls import own_path_or
from phpmq_lite.admin.resources.publish import (
    EditInput,
    PublishedView,
    PublishInput,
    edit_message,
    publish_messages,
)
from phpmq_lite.admin.views.rendering import render_page
from phpmq_lite.broker.operator.message_actions import Action, ActionOptions
from phpmq_lite.queue_settings import LONGEST_NAME
from phpmq_lite.storage.read.messages import MessageRow

_ON_LISTS: Final = (
    Action.REQUEUE,
    Action.RELEASE,
    Action.MOVE,
    Action.DELETE,
    Action.REDRIVE,
    Action.RESTORE,
)


def _shower(action: Action) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
    async def show(request: web.Request) -> web.StreamResponse:
        context = context_of(request)
        row = await find_message(request, context)
        return await render_page(
            request, "confirm.html", kind="message", action=str(action), row=row,
            reason=asks_for_reason(action), back=return_url(request, row),
        )  # fmt: skip

    show.__doc__ = f"Ask before a message is {texts.DONE[action]}, and how."
    return show


def asks_for_reason(action: Action) -> bool:
    """Tell whether the form asks for a reason: what cannot be undone needs one."""
    return action is Action.ERASE


def return_url(request: web.Request, row: MessageRow) -> str:
    """Give the page that a form leads back to: the one it was opened on, or the message's."""
    urls = context_of(request).urls
    return own_path_or(request.query.get("next", ""), urls.to("message", id=row.message_id))


def _submit_doer(action: Action) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
    async def do(request: web.Request) -> web.StreamResponse:
        context, form = context_of(request), await read_form(request)
        row = await find_message(request, context)
        reason = form.reason()
        if action is Action.ERASE:
            confirmation.check_typed_text([f"#{row.seq}"], form.text("confirm", 300))
            if not reason:
                raise Problem(
                    422, "invalid", "Say why: the audit keeps it.", field="reason",
                    bound="some words",
                )  # fmt: skip
        done = await single.act_on_one(request, action, row, read_options(form), reason)
        note, to = _told(request, done, row)
        leave_message(request, note)
        raise web.HTTPSeeOther(own_path_or(form.raw("next"), to))

    do.__doc__ = f"{texts.VERBS[action]} one message."
    return do


def _told(
    request: web.Request, done: single.ActionResult, row: MessageRow
) -> tuple[FlashMessage, str]:
    """Give the note on one message, and where to go without another place."""
    urls = context_of(request).urls
    text = f"Message #{row.seq} {texts.DONE[done.action]}."
    here = urls.to("message", id=row.message_id)
    made = done.outcome.made.get(row.seq)
    if made is not None:
        there = urls.to("message", id=made)
        words_of_link = f"The new message #{int(made[:16], 16)}"
        return FlashMessage(text, done.undo, (there, words_of_link)), there
    return FlashMessage(text, done.undo, (here, f"Message #{row.seq}")), here


# -- rows ticked on a list


async def submit_action(request: web.Request) -> web.StreamResponse:
    """Act on the messages ticked on a list."""
    context, form = context_of(request), await read_form(request)
    action = _action_of(form)
    ids = list(dict.fromkeys(form.texts("id", single.AT_ONCE_MAX)))
    if not ids:
        raise Problem(
            422, "invalid", "No message is ticked.", field="id", bound="at least one message"
        )
    to = own_path_or(form.raw("next"), context.urls.to("queues"))
    audit_entry(request).action = f"message.{action}"
    frozen = await single.ticked_messages(request, ids)
    if action is Action.MOVE and not form.raw("target"):
        return await render_page(
            request, "confirm.html", kind="ticked", action=str(action), ids=ids, back=to,
            count=len(frozen.seqs), reason=False,
        )  # fmt: skip
    if confirmation.texts_to_type(context.settings, len(frozen.seqs), frozen.by_queue):
        owner = audit_entry(request).actor
        what = formats.count_messages(len(ids)) + " ticked"
        audit_entry(request).action = "selection.make"
        made = context.acting.selections.add(what, frozen, owner, context.now_ms())
        raise web.HTTPSeeOther(
            context.urls.to("selection", token=made.token, action=str(action), next=to)
        )
    done = await single.act_on_some(
        request, action, frozen.seqs, read_options(form), _target_of(ids), form.reason()
    )
    leave_message(request, single.result_message(done))
    raise web.HTTPSeeOther(to)


def _target_of(ids: list[str]) -> str:
    return ids[0] if len(ids) == 1 else f"{ids[0]} and {len(ids) - 1} more"


def _action_of(form: Form) -> Action:
    try:
        action = Action(form.text("action", 40))
    except ValueError:
        action = Action.PLACE
    if action not in _ON_LISTS:
        raise Problem(
            422, "invalid", "There is no such action.", field="action",
            bound=", ".join(map(str, _ON_LISTS)),
        )  # fmt: skip
    return action


def _routes(action: Action) -> tuple[Route, Route]:
    role = Role.ADMIN if action is Action.ERASE else Role.OPERATOR
    path = f"/messages/{{id}}/{action}"
    show: Handler = _shower(action)
    do: Handler = _submit_doer(action)
    return (
        Route("GET", path, role, f"message-{action}-form", show),
        Route("POST", path, role, f"message-{action}", do, f"message.{action}"),
    )


PAGE_ROUTES: Final = (
    Route("POST", "/messages/act", Role.OPERATOR, "messages-act", submit_action, "message.act"),
    *(route for action in (*_ON_LISTS, Action.ERASE) for route in _routes(action)),
)


class TtlInput(ActionInput):
    """The new time to live of a message."""

    ttl_s: int | None = Field(
        None, ge=0, le=TTL_MAX_S, description="seconds to live; 0: forever; null: unchanged"
    )


class MoveInput(ActionInput):
    """The queue to move a message to."""

    target: str = Field(min_length=1, max_length=LONGEST_NAME, description="the queue to move to")
    create: bool = Field(False, description="move: create the target queue if it does not exist")


class DeleteInput(ActionInput):
    """Whether to delete a message that a consumer holds."""

    dispatched: bool = Field(False, description="true: delete even if a consumer holds the message")


class RedriveOneInput(ActionInput):
    """Target queue and time to live of a dead-letter record that is redriven."""

    ttl_s: TtlSeconds = None
    target: RedriveTarget = None


def _doer(
    action: Action, model: type[ActionInput]
) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
    async def do(request: web.Request) -> web.StreamResponse:
        context, asked = context_of(request), await read_json_model(request, model)
        row = await find_message(request, context)
        done = await single.act_on_one(request, action, row, _options(asked), asked.reason)
        out = ActionResultView(
            id=row.message_id, action=str(action),
            new_id=done.outcome.made.get(row.seq), undo=done.undo,
        )  # fmt: skip
        return json_response(out)

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
_MODELS: Final[dict[Action, type[ActionInput]]] = {
    Action.REQUEUE: TtlInput,
    Action.RELEASE: ActionInput,
    Action.MOVE: MoveInput,
    Action.DELETE: DeleteInput,
    Action.REDRIVE: RedriveOneInput,
    Action.RESTORE: TtlInput,
    Action.ERASE: ActionInput,
}
_COMMANDS: Final = {
    Action.REQUEUE: "msg requeue",
    Action.RELEASE: "msg release",
    Action.MOVE: "msg move",
    Action.DELETE: "msg rm",
    Action.RESTORE: "msg restore",
}


def _options(asked: ActionInput) -> ActionOptions:
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
        takes=_MODELS[action], gives=ActionResultView, cli=_COMMANDS.get(action),
    )  # fmt: skip


API_ROUTES: Final = (
    Route(
        "POST", "/api/v1/queues/{q}/messages", Role.OPERATOR, "api-publish", publish_messages,
        "message.publish", takes=list[PublishInput], gives=PublishedView, status=201, cli="publish",
        has_content=True,
    ),
    *map(_route, _MODELS),
    Route(
        "POST", "/api/v1/messages/{id}/edit", Role.OPERATOR, "api-message-edit", edit_message,
        "message.edit", takes=EditInput, gives=ActionResultView, has_content=True,
    ),
)  # fmt: skip
