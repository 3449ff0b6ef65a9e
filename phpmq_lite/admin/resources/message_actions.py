"""Message actions: requeue, release, move, delete, redrive, restore and erase."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from aiohttp import web
from pydantic import Field

from phpmq_lite.admin.actions import confirmation, flash_messages, single_message
from phpmq_lite.admin.actions.confirmation import Confirmation, FormField
from phpmq_lite.admin.actions.flash_messages import FlashMessage, store_message
from phpmq_lite.admin.actions.single_message import ActionResultView, read_options
from phpmq_lite.admin.auth.permissions import find_message
from phpmq_lite.admin.auth.request_audit import audit_entry
from phpmq_lite.admin.base import formats
from phpmq_lite.admin.base.context import context_of
from phpmq_lite.admin.base.input import (
    TTL_MAX_S,
    ActionInput,
    RedriveTarget,
    TtlSeconds,
    read_form,
)
from phpmq_lite.admin.base.problems import Problem
from phpmq_lite.admin.base.route import Role, Route
from phpmq_lite.admin.base.urls import own_path_or
from phpmq_lite.admin.resource import Api, Page, Resource, api_route, bind_action
from phpmq_lite.admin.resources.publish import (
    PublishedView,
    PublishInput,
    edit_message,
    publish_messages,
)
from phpmq_lite.admin.resources.selections import read_action
from phpmq_lite.admin.views.rendering import render_page
from phpmq_lite.broker.operator.message_actions import Action, ActionOptions
from phpmq_lite.model import State
from phpmq_lite.queue_settings import LONGEST_NAME
from phpmq_lite.storage.read.messages import MessageRow

# -- messages selected in a list


async def submit_action(request: web.Request) -> web.StreamResponse:
    """Apply an action to the messages selected in a list."""
    context, form = context_of(request), await read_form(request)
    action = read_action(form)
    ids = list(dict.fromkeys(form.texts("id", single_message.AT_ONCE_MAX)))
    if not ids:
        raise Problem(
            422, "invalid", "Select at least one message.", field="id", bound="at least one message"
        )
    to = own_path_or(form.raw("next"), context.urls.to("queues"))
    audit_entry(request).action = f"message.{action}"
    frozen = await single_message.selected_messages(request, ids)
    if action is Action.MOVE and not form.raw("target"):
        title = f"Move {formats.count_messages(len(frozen.seqs))}"
        ask = Confirmation(
            title=title, button=title, url=context.urls.to("messages-act"), back=to, reason="",
            text="The messages move to the end of the target queue and keep their ids and "
            "deadlines. Messages held by consumers are skipped.",
            hidden=[("action", action), *(("id", one) for one in ids)],
            fields=ACTIONS[action].fields(frozen.samples[0], 0) if frozen.samples else (),
        )  # fmt: skip
        return await render_page(request, "confirm.html", ask=ask)
    if confirmation.texts_to_type(context.settings, len(frozen.seqs), frozen.by_queue):
        owner = audit_entry(request).actor
        what = formats.count_messages(len(ids)) + " selected"
        audit_entry(request).action = "selection.make"
        made = context.actions.selections.add(what, frozen, owner, context.now_ms())
        raise web.HTTPSeeOther(
            context.urls.to("selection", token=made.token, action=str(action), next=to)
        )
    target = ids[0] if len(ids) == 1 else f"{ids[0]} and {len(ids) - 1} more"
    done = await single_message.act_on_selected(
        request, action, frozen.seqs, read_options(form), target, form.reason()
    )
    store_message(request, single_message.result_message(done))
    raise web.HTTPSeeOther(to)


class TtlInput(ActionInput):
    """A new time to live for a message."""

    ttl_s: int | None = Field(
        None, ge=0, le=TTL_MAX_S, description="seconds to live; 0 for no limit, null for no change"
    )


class MoveInput(ActionInput):
    """The target queue of a move."""

    target: str = Field(min_length=1, max_length=LONGEST_NAME, description="target queue")
    create: bool = Field(False, description="create the target queue if it does not exist")


class DeleteInput(ActionInput):
    """Whether to delete a message that a consumer holds."""

    dispatched: bool = Field(False, description="delete even if a consumer holds the message")


class RedriveOneInput(ActionInput):
    """The target queue and time to live for redriving a dead-letter record."""

    ttl_s: TtlSeconds = None
    target: RedriveTarget = None


@dataclass(slots=True, frozen=True)
class ActionDefinition:
    """A message action: its input model and the texts of its confirmation page."""

    input_model: type[ActionInput]
    summary: str
    text: str
    cli: str | None = None
    fields: Callable[[MessageRow, int], list[FormField]] = lambda _row, _now: []
    is_danger: bool = False


def _restore_fields(row: MessageRow, now_ms: int) -> list[FormField]:
    found: list[FormField] = [("ttl_field", ("the previous deadline",))]
    if row.deadline_at is not None and row.deadline_at <= now_ms:
        found.append(("warning", ("The message's deadline has passed. Enter a new time to live.",)))
    return found


def _redrive_fields(row: MessageRow, _now_ms: int) -> list[FormField]:
    origin = f" ({formats.escape_hidden(row.source_queue)})" if row.source_queue else ""
    help_ = f"Leave empty to use the queue where the message was dead-lettered{origin}."
    return [
        ("target_field", ("Target queue", False, help_)),
        ("ttl_field", ("the queue's default",)),
    ]


def _delete_fields(row: MessageRow, _now_ms: int) -> list[FormField]:
    if row.state != State.DISPATCHED:
        return []
    help_ = "The consumer's acknowledgement will be ignored."
    return [("check_field", ("dispatched", "Delete the message held by a consumer", help_, True))]


ACTIONS: Final = {
    Action.REQUEUE: ActionDefinition(
        TtlInput, "Move a message to the end of its queue. The message keeps its id.",
        "The message moves to the end of its queue and keeps its id. If a consumer holds "
        "it, that consumer's acknowledgement is ignored once another consumer holds the message.",
        "message requeue", lambda _row, _now: [("ttl_field", ("the deadline stays the same",))],
    ),
    Action.RELEASE: ActionDefinition(
        ActionInput, "Return a dispatched message to its position in its queue.",
        "The message returns to its position in the queue. The current consumer can still "
        "acknowledge the message until another consumer holds it.", "message release",
    ),
    Action.MOVE: ActionDefinition(
        MoveInput, "Move a ready message to the end of another queue.",
        "The message moves to the end of the target queue and keeps its id and deadline.",
        "message move",
        lambda _row, _now: [("target_field", ("Target queue", True)), ("create_field", ())],
    ),
    Action.DELETE: ActionDefinition(
        DeleteInput, "Settle a message as deleted.",
        "The message is marked as deleted and kept in the history for the retention period. Undo "
        "restores it to its original position as a new message.",
        "message delete", _delete_fields, is_danger=True,
    ),
    Action.REDRIVE: ActionDefinition(
        RedriveOneInput, "Republish a dead-letter record as a new message to the queue where "
        "it was dead-lettered.",
        "The message is republished at the end of the queue where it was dead-lettered, and the "
        "dead-letter record is deleted.", fields=_redrive_fields,
    ),
    Action.RESTORE: ActionDefinition(
        TtlInput, "Restore a deleted message to its original position as a new message.",
        "The message returns to its original position as a new message. The deleted message stays "
        "in the history.", "message restore", _restore_fields,
    ),
    Action.ERASE: ActionDefinition(
        ActionInput, "Permanently erase the body of a settled message, but keep the message's row.",
        "The body is erased permanently; the message's row stays in the history. Use this for "
        "secrets that were sent by mistake. The body cannot be restored, but earlier backups "
        "still contain it.", is_danger=True,
    ),
}  # fmt: skip


async def show_form(request: web.Request, action: Action) -> web.StreamResponse:
    """Ask for confirmation before acting on one message."""
    definition, is_erase = ACTIONS[action], action is Action.ERASE
    context = context_of(request)
    urls, row = context.urls, await find_message(request, context)
    here = urls.to("message", id=row.message_id)
    title = "Erase the body of message" if is_erase else f"{flash_messages.VERBS[action]} message"
    ask = Confirmation(
        title=title, number=f"#{row.seq}", queue=row.queue, text=definition.text,
        crumbs=[("Queues", urls.to("queues")), (f"Message #{row.seq}", here)],
        url=urls.to(f"message-{action}", id=row.message_id),
        back=own_path_or(request.query.get("next", ""), here),
        fields=definition.fields(row, context.now_ms()), is_danger=definition.is_danger,
        typed=await _typed(request) if is_erase else (), reason="required" if is_erase else "",
        button="Erase body" if is_erase else title,
    )  # fmt: skip
    return await render_page(request, "confirm.html", ask=ask)


async def _typed(request: web.Request) -> list[str]:
    return [f"#{(await find_message(request, context_of(request))).seq}"]


def _response(
    request: web.Request, _asked: ActionInput, view: ActionResultView
) -> tuple[FlashMessage, str]:
    """Return a notice that says what was done and links to the message or its new copy."""
    urls, seq = context_of(request).urls, int(view.id[:16], 16)
    text = f"Message #{seq} {flash_messages.DONE[Action(view.action)]}."
    there = urls.to("message", id=view.new_id or view.id)
    name = "Message" if view.new_id is None else "New message"
    link = (there, f"{name} #{int((view.new_id or view.id)[:16], 16)}")
    return FlashMessage(text, view.undo, link), there


def _resource(action: Action) -> Resource:
    definition, is_erase = ACTIONS[action], action is Action.ERASE

    async def run_action(request: web.Request, asked: ActionInput) -> ActionResultView:
        row = await find_message(request, context_of(request))
        values: dict[str, Any] = asked.model_dump(exclude={"reason"})
        if "dispatched" in values:
            values["with_dispatched"] = values.pop("dispatched")
        options = ActionOptions(**values)
        done = await single_message.act_on_one(request, action, row, options, asked.reason)
        return ActionResultView(
            id=row.message_id, action=str(action),
            new_id=done.outcome.new_ids.get(row.seq), undo=done.undo,
        )  # fmt: skip

    run_action.__doc__ = definition.summary
    run_action.__annotations__["asked"] = definition.input_model
    path = f"/messages/{{id}}/{action}"
    return Resource(
        run=run_action, role=Role.ADMIN if is_erase else Role.OPERATOR, audit=f"message.{action}",
        page=Page(path, f"message-{action}", done=_response, typed=_typed if is_erase else None,
                  needs_reason=is_erase),
        api=Api("POST", f"/api/v1{path}", f"api-message-{action}", cli=definition.cli),
    )  # fmt: skip


ROUTES: Final = (
    Route("POST", "/messages/act", Role.OPERATOR, "messages-act", submit_action, "message.act"),
    *(
        Route("GET", f"/messages/{{id}}/{action}", Role.ADMIN if action is Action.ERASE
              else Role.OPERATOR, f"message-{action}-form", bind_action(
                  show_form, action, f"Ask before a message is {flash_messages.DONE[action]}."))
        for action in ACTIONS
    ),
    Route(
        "POST", "/api/v1/queues/{q}/messages", Role.OPERATOR, "api-publish", publish_messages,
        "message.publish", takes=list[PublishInput], gives=PublishedView, status=201, cli="publish",
        has_content=True,
    ),
    *(route for action in ACTIONS for route in _resource(action).routes()),
    api_route(
        "POST", "/api/v1/messages/{id}/edit", Role.OPERATOR, "api-message-edit", edit_message,
        "message.edit", has_content=True,
    ),
)  # fmt: skip
