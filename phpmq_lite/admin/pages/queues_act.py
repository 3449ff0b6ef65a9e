"""What is done to the queues ticked on the list of queues."""

import json
from collections.abc import Sequence
from typing import Final

from aiohttp import web

from phpmq_lite.admin import formats
from phpmq_lite.admin.access.identity import entry_of
from phpmq_lite.admin.acting import bulk, commands
from phpmq_lite.admin.acting.flash import back, leave
from phpmq_lite.admin.acting.forms import form_of
from phpmq_lite.admin.acting.notes import Note
from phpmq_lite.admin.context import Answer, Context, context_of
from phpmq_lite.admin.problems import Problem
from phpmq_lite.admin.query import of_queue
from phpmq_lite.admin.requests import find_queue
from phpmq_lite.admin.route import Role, Route
from phpmq_lite.broker.broker import Broker
from phpmq_lite.broker.operator import operations
from phpmq_lite.errors import RefusedError
from phpmq_lite.model import AuditEntry
from phpmq_lite.storage.read.search_plan import SearchQuery, SearchTerm

TICKED_MAX: Final = 200
_TURNS: Final = {
    "pause-delivery": ("delivery", True),
    "resume-delivery": ("delivery", False),
    "pause-publishing": ("publishing", True),
    "resume-publishing": ("publishing", False),
}
_ACTIONS: Final = (*_TURNS, "purge", "remove")


async def act(request: web.Request) -> web.StreamResponse:
    """Act on the queues ticked on the list."""
    context, form = context_of(request), await form_of(request)
    action = form.text("action", 40)
    if action not in _ACTIONS:
        raise Problem(
            422, "invalid", "There is no such action.", field="action", bound=", ".join(_ACTIONS)
        )
    asked = dict.fromkeys(form.texts("queue", TICKED_MAX))
    names = [name for name in asked if find_queue(request, name) is not None]
    if not names:
        raise Problem(
            422, "invalid", "No queue is ticked.", field="queue", bound="at least one queue"
        )
    to = back(form.raw("next"), context.urls.to("queues"))
    entry = entry_of(request, target=_shown(names), reason=form.reason())
    entry.action = "selection.make" if action == "purge" else f"queue.{action}"
    if action == "purge":  # only after its preview
        selection = await bulk.select(request, _ready_in(names))
        raise web.HTTPSeeOther(
            context.urls.to("selection", token=selection.token, action="delete", next=to)
        )
    if action == "remove":
        done, refused = await remove_all(context, entry, names)
        text = f"{_count(done)} removed."
        leave(request, Note(f"{text} {'; '.join(refused)}." if refused else text))
    else:
        await turn_all(context, entry, names, *_TURNS[action])
        leave(request, Note(f"{_count(len(names))}: {action.replace('-', ' ')}, done."))
    raise web.HTTPSeeOther(to)


def _ready_in(names: Sequence[str]) -> SearchQuery:
    queues = (term for name in names for term in of_queue(name).terms)
    return SearchQuery((*queues, SearchTerm("state", "ready")))


def _shown(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else json.dumps(names, ensure_ascii=False)[:1_000]


def _count(number: int) -> str:
    return f"{formats.number(number)} {'queue' if number == 1 else 'queues'}"


async def turn_all(
    context: Context, entry: AuditEntry, names: Sequence[str], side: str, is_paused: bool
) -> None:
    """Pause or resume a side of several queues, in one transaction."""

    def run(core: Broker, answer: Answer) -> None:
        known = [name for name in names if name in core.state.queues]
        for name in known:
            operations.pause(core, entry, name, side, is_paused, _nobody)
        if not known:
            raise RefusedError("unknown_queue", "these queues are gone")
        core.state.batch.replies.append((answer, len(known)))

    await commands.call(context, run)


async def remove_all(
    context: Context, entry: AuditEntry, names: Sequence[str]
) -> tuple[int, list[str]]:
    """Remove the empty ones of several queues; gives how many, and why not the others."""
    done, refused = 0, []
    for name in names:
        try:
            await commands.remove_queue(context, entry, name)
            done += 1
        except RefusedError as error:
            refused.append(str(error))
    if not done:
        raise RefusedError("nothing_removed", "; ".join(refused))
    return done, refused


def _nobody(_answer: object) -> None:
    """Take an answer that nobody waits for."""


ROUTES: Final = (
    Route("POST", "/queues/act", Role.OPERATOR, "queues-act", act, "queue.act"),
)  # fmt: skip
