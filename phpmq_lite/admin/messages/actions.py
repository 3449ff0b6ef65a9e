"""Actions on one message, and on the messages ticked in a list; ``ACTIONS`` defines them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final, NoReturn

from aiohttp import web
from pydantic import BaseModel, Field

from phpmq_lite.admin import formats
from phpmq_lite.admin.http.browser_sessions import FlashMessage
from phpmq_lite.admin.http.call import Call
from phpmq_lite.admin.http.confirmation import Confirmation, FormField, texts_to_type
from phpmq_lite.admin.http.endpoint import Done, Endpoints
from phpmq_lite.admin.http.fields import (
    ActionInput,
    Delay,
    DeliverAt,
    MessageId,
    NewTtl,
    QueueTarget,
    RedriveTarget,
    Ttl,
    UndoToken,
)
from phpmq_lite.admin.http.input import Untrimmed, check_queue_name
from phpmq_lite.admin.http.problems import Problem, invalid
from phpmq_lite.admin.messages.jobs import stores_of
from phpmq_lite.admin.messages.message import Message, no_body
from phpmq_lite.admin.messages.owned_stores import make_undo
from phpmq_lite.broker.operator.message_actions import ActionOptions, ActionOutcome, act_on_messages
from phpmq_lite.frame_options import NOW, DeliveryTime
from phpmq_lite.model import State
from phpmq_lite.operator_actions import ACTIONS, ON_MANY, ON_ONE, Action, SkipReason
from phpmq_lite.roles import Role
from phpmq_lite.storage.read.messages import MessageRow, seq_of
from phpmq_lite.storage.search.language import ids_search


def describe_result(action: Action, count: int, skipped: Mapping[SkipReason, int]) -> str:
    """Describe how many messages were changed, and how many were skipped for each reason."""
    text = f"{formats.count_messages(count)} {ACTIONS[action].participle}."
    return f"{text} {describe_skipped(skipped)}" if skipped else text


def describe_skipped(skipped: Mapping[SkipReason, int]) -> str:
    reasons = "; ".join(
        f"{formats.format_number(count)} {reason.many}" for reason, count in skipped.items()
    )
    return f"Skipped: {reasons}." if reasons else ""


def refuse_skipped(action: Action, reason: SkipReason = SkipReason.GONE) -> NoReturn:
    """Raise a ``Problem`` for the only message of an action: 410 if it is settled, else 409."""
    raise Problem(
        410 if reason.is_gone else 409,
        reason.replace(" ", "_"),
        f"The message was not {ACTIONS[action].participle}. {reason.sentence}",
    )


endpoints: Final = Endpoints()


# -- input


class TimeInput(ActionInput):
    """When a message becomes ready; neither means now."""

    delay_s: Delay = 0
    deliver_at: DeliverAt = None


class TtlInput(ActionInput):
    """A new time to live for a message."""

    ttl_s: NewTtl = None


class RequeueInput(TtlInput, TimeInput):
    """A new time to live for a message, and when it becomes ready."""


class MoveInput(ActionInput):
    """The target queue of a move."""

    target: QueueTarget
    create: bool = Field(False, description="create the target queue if it does not exist")


class DeleteInput(ActionInput):
    """Whether to delete a message that a consumer holds."""

    dispatched: bool = Field(False, description="delete even if a consumer holds the message")


class RedriveOneInput(TimeInput):
    """The target queue, the time to live and the time for redriving a dead-letter record."""

    ttl_s: Ttl = None
    target: Annotated[RedriveTarget, Untrimmed()] = None


class TickedInput(TimeInput):
    """An action on the messages that are ticked in a list."""

    action: Action
    id: list[str] = Field([])
    ttl_s: NewTtl = None
    target: Annotated[RedriveTarget, Untrimmed()] = None
    create: bool = False
    dispatched: bool = False


_INPUTS: Final[dict[tuple[str, ...], type[ActionInput]]] = {
    (): ActionInput,
    ("time",): TimeInput,
    ("ttl_s",): TtlInput,
    ("ttl_s", "time"): RequeueInput,
    ("target", "create"): MoveInput,
    ("target", "ttl_s", "time"): RedriveOneInput,
    ("dispatched",): DeleteInput,
}


def options_of(call: Call, action: Action, form: BaseModel) -> ActionOptions:
    """Return an input's options, limited to the caller's queues; refuse its target: 422 or 403."""
    values = form.model_dump()
    target = values.get("target")
    time = DeliveryTime(values.get("delay_s") or 0, values.get("deliver_at"))
    if time.delay_s and time.deliver_at is not None:
        raise invalid("Enter either a delay or a date.", "deliver_at", "a delay or a date")
    if action is Action.RESCHEDULE and time == NOW:
        raise invalid("Enter a delay or a date.", "delay_s", "a delay or a date")
    if action is Action.MOVE and not target:
        raise invalid("Enter a target queue.", "target", "a queue name")
    if target:
        check_queue_name(target)
        call.check_queue(target, "target")
    return ActionOptions(
        values.get("ttl_s"),
        NOW if time == NOW else time,
        target,
        bool(values.get("create")),
        bool(values.get("dispatched")),
        queues=call.allowed,
    )


# -- one transaction


@dataclass(slots=True, frozen=True)
class ActionResult:
    """The outcome of an action, and the token that undoes it."""

    outcome: ActionOutcome
    undo: str | None


async def apply_action(
    call: Call, action: Action, seqs: Sequence[int], form: ActionInput, target: str
) -> ActionResult:
    """Apply an action to a few messages in one transaction; ``target`` is for the audit log."""
    options = options_of(call, action, form)
    call.audit(target)
    outcome = await call.run(act_on_messages, action, seqs, options)
    undo = make_undo(action, call.actor, target)
    if undo is not None:
        undo.note(outcome)
    return ActionResult(outcome, stores_of(call).undos.add(undo, call.now_ms))


class ActionResultView(BaseModel):
    """The result of an action; ``undo`` is a token for POST /undo/{token}."""

    id: MessageId
    action: str = Field(description="deliver, reschedule, requeue, release, …")
    new_id: str | None = Field(None, description="id of the new message; null if none was created")
    undo: UndoToken = None


def fields_of(action: Action, keeps: str, origin: str, target: str = "") -> list[FormField]:
    """Return the form fields for an action's options.

    ``keeps`` is what an empty time to live means, ``origin`` what an empty target means.
    """
    is_move = action is Action.MOVE
    help_ = "" if is_move else f"Leave empty {origin}."
    fields: dict[str, FormField] = {
        "ttl_s": ("ttl_field", (keeps,)),
        "time": ("time_field", (action is not Action.RESCHEDULE,)),
        "target": ("target_field", ("Target queue", is_move, help_, target)),
        "create": ("create_field", ()),
    }
    return [fields[option] for option in ACTIONS[action].options if option in fields]


def _ask(call: Call, row: MessageRow, action: Action) -> Confirmation:
    definition, page = ACTIONS[action], call.url("message", id=row.message_id)
    title = definition.with_object("message")
    is_strict = definition.needs_admin
    origin = f" ({formats.escape_hidden(row.source_queue)})" if row.source_queue else ""
    fields = fields_of(
        action, definition.keeps, f"to use the queue where the message was dead-lettered{origin}"
    )
    if action is Action.RESTORE and row.deadline_at is not None and row.deadline_at <= call.now_ms:
        text = "The message's deadline has passed. Enter a new time to live."
        fields.append(("warning", (text,)))
    if action is Action.DELETE and row.state == State.DISPATCHED:
        help_ = "The consumer's acknowledgement will be ignored."
        fields.append(
            ("check_field", ("dispatched", "Delete the message held by a consumer", help_, True))
        )
    return Confirmation(
        title="Erase the body of message" if is_strict else title,
        number=f"#{row.seq}",
        button="Erase body" if is_strict else title,
        queue=row.queue,
        text=definition.text,
        crumbs=[("Queues", call.url("queues")), (f"Message #{row.seq}", page)],
        url=call.url(f"message-{action}", id=row.message_id),
        back=call.back(page),
        fields=fields,
        is_danger=definition.is_danger,
        typed=[f"#{row.seq}"] if is_strict else (),
        reason="required" if is_strict else "",
    )


def _declare(action: Action) -> None:
    row = ACTIONS[action]

    async def run(call: Call, message: Message, form: ActionInput) -> Done[ActionResultView]:
        id_ = message.message_id
        if message.state not in row.takes:
            refuse_skipped(action, row.refusal)
        if row.needs_body and message.erased_at is not None:
            raise no_body(message)
        result = await apply_action(call, action, [message.seq], form, id_)
        if not result.outcome.changed:
            refuse_skipped(action, *result.outcome.skipped)
        new_id = result.outcome.new_ids.get(message.seq)
        page = call.url("message", id=new_id or id_)
        link = f"Message #{message.seq}" if new_id is None else f"New message #{seq_of(new_id)}"
        return Done(
            ActionResultView(id=id_, action=str(action), new_id=new_id, undo=result.undo),
            FlashMessage(f"Message #{message.seq} {row.participle}.", result.undo, (page, link)),
            call.back(page),
        )

    run.__doc__ = row.summary
    endpoints.action(
        f"/messages/{{id}}/{action}",
        f"message-{action}",
        Role.ADMIN if row.needs_admin else Role.OPERATOR,
        f"message.{action}",
        ask=lambda call, message: _ask(call, message, action),
        takes=_INPUTS[row.options],
        api="POST",
        cli=f"message {action}" if row.cli else None,
    )(run)


for _action in ON_ONE:
    _declare(_action)


@endpoints.action("/messages/act", "messages-act", Role.OPERATOR, "message.act")
async def act_on_ticked(call: Call, form: TickedInput) -> Any:
    """Apply an action to the messages selected in a list."""
    ids, action, to = form.id, form.action, call.back(call.url("queues"))
    if action not in ON_MANY:
        raise invalid("Unknown action.", "action", ", ".join(ON_MANY))
    if not ids:
        raise invalid("Select at least one message.", "id", "at least one message")
    entry = call.audit()
    entry.action = f"message.{action}"
    frozen = await call.context.search.freeze(ids_search(ids), queues=call.allowed)
    has_time = form.delay_s or form.deliver_at is not None
    if (action is Action.MOVE and not form.target) or (
        action is Action.RESCHEDULE and not has_time
    ):
        return await _ask_option(call, action, ids, to)
    if texts_to_type(call.context.settings, len(frozen.seqs), frozen.by_queue):
        entry.action = "selection.make"
        title = f"{formats.count_messages(len(ids))} selected"
        selection = stores_of(call).selections.add(title, frozen, call.actor, call.now_ms)
        raise call.redirect("selection", token=selection.token, action=str(action), next=to)
    target = ids[0] if len(ids) == 1 else f"{ids[0]} and {len(ids) - 1} more"
    result = await apply_action(call, action, frozen.seqs, form, target)
    text = describe_result(action, len(result.outcome.changed), result.outcome.skipped)
    return Done(None, FlashMessage(text, result.undo), to)


async def _ask_option(call: Call, action: Action, ids: Sequence[str], to: str) -> web.Response:
    """Ask for the option without which an action is impossible."""
    row = ACTIONS[action]
    title = row.with_object(formats.count_messages(len(ids)))
    ask = Confirmation(
        title=title,
        button=title,
        url=call.url("messages-act"),
        back=to,
        reason="",
        text=row.text_many,
        hidden=[("action", action), *(("id", id_) for id_ in ids)],
        fields=fields_of(action, "", ""),
    )
    return await call.render("confirm.html", ask=ask)
