"""Actions on a single message or a few messages."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from aiohttp import web
from pydantic import BaseModel, Field

from phpmq_lite.admin.actions import flash_messages
from phpmq_lite.admin.actions.undo import make_undo
from phpmq_lite.admin.auth.permissions import allowed_queues, check_queue_right
from phpmq_lite.admin.auth.request_audit import audit_entry
from phpmq_lite.admin.auth.sessions import FlashMessage
from phpmq_lite.admin.base.context import context_of
from phpmq_lite.admin.base.identity import identity_of
from phpmq_lite.admin.base.input import Form, MessageId, UndoToken, check_queue_name
from phpmq_lite.admin.base.problems import Problem
from phpmq_lite.admin.base.search_query import ids_search
from phpmq_lite.broker.operator.message_actions import (
    Action,
    ActionOptions,
    ActionOutcome,
    act_on_messages,
)
from phpmq_lite.model import State
from phpmq_lite.storage.read.messages import MessageRow
from phpmq_lite.storage.read.search import FrozenSelection

AT_ONCE_MAX: Final = 200  # maximum number of messages; for more, a frozen selection is required
_ALIVE: Final = frozenset({State.READY, State.DISPATCHED})
_TAKES: Final = {  # message states that each action accepts, and the skip reason for other states
    Action.REQUEUE: (_ALIVE, "gone"),
    Action.RELEASE: (frozenset({State.DISPATCHED}), "not dispatched"),
    Action.MOVE: (_ALIVE, "gone"),
    Action.DELETE: (_ALIVE, "gone"),
    Action.REDRIVE: (_ALIVE, "gone"),
    Action.RESTORE: (frozenset({State.DELETED}), "not deleted"),
    Action.ERASE: (frozenset(State) - _ALIVE, "not settled"),
}


@dataclass(slots=True, frozen=True)
class ActionResult:
    """The result of an action; ``undo`` is an undo token."""

    action: Action
    outcome: ActionOutcome
    undo: str | None


def check_options(request: web.Request, action: Action, options: ActionOptions) -> ActionOptions:
    """Validate an action's options and return a copy limited to the caller's queues.

    Raises:
        Problem: 422 if the target is missing or invalid, 403 if the caller has no access to it.
    """
    if action is Action.MOVE and not options.target:
        raise Problem(422, "invalid", "Enter a target queue.", field="target", bound="a queue name")
    if options.target:
        check_queue_name(options.target)
        check_queue_right(request, options.target, "target")
    return replace(options, queues=allowed_queues(request))


async def act_on_one(
    request: web.Request, action: Action, row: MessageRow, options: ActionOptions, reason: str = ""
) -> ActionResult:
    """Apply an action to one message.

    Raises:
        Problem: 410 if the message is already settled, 409 if it was skipped, and 422 or 403 from
            ``check_options``.
    """
    states, refusal = _TAKES[action]
    if row.state not in states:
        flash_messages.check_done(ActionOutcome(skipped=Counter([refusal])), action)
    return await act_on_selected(
        request, action, [row.seq], options, row.message_id, reason, is_one=True
    )


async def act_on_selected(
    request: web.Request,
    action: Action,
    seqs: Sequence[int],
    options: ActionOptions,
    target: str,
    reason: str = "",
    *,
    is_one: bool = False,
) -> ActionResult:
    """Apply an action to a few messages in one transaction; skip any to which it does not apply."""
    context = context_of(request)
    options = check_options(request, action, options)
    entry = audit_entry(request, target=target, reason=reason)
    outcome = await context.engine.run(act_on_messages, entry, action, seqs, options)
    if is_one:
        flash_messages.check_done(outcome, action)
    undo = make_undo(action, identity_of(request).actor, target)
    if undo is not None:
        undo.note(outcome)
    return ActionResult(action, outcome, context.actions.undos.add(undo, context.now_ms()))


async def selected_messages(request: web.Request, ids: Sequence[str]) -> FrozenSelection:
    """Select messages by id; skip unknown ids and messages in queues hidden from the caller."""
    context = context_of(request)
    return await context.search.freeze(ids_search(ids), queues=allowed_queues(request))


def result_message(done: ActionResult) -> FlashMessage:
    """Return a flash message that describes an action's result and contains its undo token."""
    return FlashMessage(
        flash_messages.describe_result(done.action, len(done.outcome.done), done.outcome.skipped),
        done.undo,
    )


def read_options(form: Form) -> ActionOptions:
    """Read an action's options from a form."""
    return ActionOptions(
        ttl_s=form.ttl_s(),
        target=form.queue("target") or None,
        create=form.flag("create"),
        with_dispatched=form.flag("dispatched"),
    )


class ActionResultView(BaseModel):
    """The result of an action; ``undo`` is a token for POST /undo/{token}."""

    id: MessageId
    action: str = Field(description="requeue, release, move, delete, redrive, restore, erase, edit")
    new_id: str | None = Field(None, description="id of the new message; null if none was created")
    undo: UndoToken = None
