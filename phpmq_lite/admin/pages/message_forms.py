"""Buttons and forms of one message, and of the rows ticked on a list."""

from collections.abc import Awaitable, Callable
from typing import Final

from aiohttp import web

from phpmq_lite.admin.access.identity import entry_of
from phpmq_lite.admin.acting import doing, ladder, words
from phpmq_lite.admin.acting.flash import back, leave
from phpmq_lite.admin.acting.forms import Form, form_of
from phpmq_lite.admin.acting.notes import Note
from phpmq_lite.admin.context import context_of
from phpmq_lite.admin.problems import Problem
from phpmq_lite.admin.render import page
from phpmq_lite.admin.requests import message_of
from phpmq_lite.admin.route import Handler, Role, Route
from phpmq_lite.broker.operator.message_actions import Action, ActionOptions
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
        row = await message_of(request, context)
        return await page(
            request, "confirm.html", kind="message", action=str(action), row=row,
            reason=ladder_reason(action), back=back_of(request, row),
        )  # fmt: skip

    show.__doc__ = f"Ask before a message is {words.DONE[action]}, and how."
    return show


def ladder_reason(action: Action) -> bool:
    """Tell whether the form asks for a reason: what cannot be undone needs one."""
    return action is Action.ERASE


def back_of(request: web.Request, row: MessageRow) -> str:
    """Give the page that a form leads back to: the one it was opened on, or the message's."""
    urls = context_of(request).urls
    return back(request.query.get("next", ""), urls.to("message", id=row.message_id))


def _doer(action: Action) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
    async def do(request: web.Request) -> web.StreamResponse:
        context, form = context_of(request), await form_of(request)
        row = await message_of(request, context)
        reason = form.reason()
        if action is Action.ERASE:
            ladder.check_typed([f"#{row.seq}"], form.text("confirm", 300))
            if not reason:
                raise Problem(
                    422, "invalid", "Say why: the audit keeps it.", field="reason",
                    bound="some words",
                )  # fmt: skip
        done = await doing.act_on_one(request, action, row, options_of(form), reason)
        note, to = _told(request, done, row)
        leave(request, note)
        raise web.HTTPSeeOther(back(form.raw("next"), to))

    do.__doc__ = f"{words.VERBS[action]} one message."
    return do


def options_of(form: Form) -> ActionOptions:
    """Read how it is to be done."""
    return ActionOptions(
        ttl_s=form.ttl_s(),
        target=form.queue("target") or None,
        create=form.flag("create"),
        with_dispatched=form.flag("dispatched"),
    )


def _told(request: web.Request, done: doing.Done, row: MessageRow) -> tuple[Note, str]:
    """Give the note on one message, and where to go without another place."""
    urls = context_of(request).urls
    text = f"Message #{row.seq} {words.DONE[done.action]}."
    here = urls.to("message", id=row.message_id)
    made = done.outcome.made.get(row.seq)
    if made is not None:
        there = urls.to("message", id=made)
        words_of_link = f"The new message #{int(made[:16], 16)}"
        return Note(text, done.undo, (there, words_of_link)), there
    return Note(text, done.undo, (here, f"Message #{row.seq}")), here


# -- rows ticked on a list


async def act(request: web.Request) -> web.StreamResponse:
    """Act on the messages ticked on a list."""
    context, form = context_of(request), await form_of(request)
    action = _action_of(form)
    ids = list(dict.fromkeys(form.texts("id", doing.AT_ONCE_MAX)))
    if not ids:
        raise Problem(
            422, "invalid", "No message is ticked.", field="id", bound="at least one message"
        )
    to = back(form.raw("next"), context.urls.to("queues"))
    entry_of(request).action = f"message.{action}"
    frozen = await doing.ticked(request, ids)
    if action is Action.MOVE and not form.raw("target"):
        return await page(
            request, "confirm.html", kind="ticked", action=str(action), ids=ids, back=to,
            count=len(frozen.seqs), reason=False,
        )  # fmt: skip
    if ladder.to_type(context.settings, len(frozen.seqs), frozen.by_queue):
        owner = entry_of(request).actor
        what = words.messages(len(ids)) + " ticked"
        entry_of(request).action = "selection.make"
        made = context.acting.selections.add(what, frozen, owner, context.now_ms())
        raise web.HTTPSeeOther(
            context.urls.to("selection", token=made.token, action=str(action), next=to)
        )
    done = await doing.act_on_some(
        request, action, frozen.seqs, options_of(form), _target_of(ids), form.reason()
    )
    leave(request, doing.note_of(done))
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
    do: Handler = _doer(action)
    return (
        Route("GET", path, role, f"message-{action}-form", show),
        Route("POST", path, role, f"message-{action}", do, f"message.{action}"),
    )


ROUTES: Final = (
    Route("POST", "/messages/act", Role.OPERATOR, "messages-act", act, "message.act"),
    *(route for action in (*_ON_LISTS, Action.ERASE) for route in _routes(action)),
)
