"""Acting on many messages: from a frozen selection to work in the background, and back."""

import json
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from aiohttp import web

from phpmq_lite.admin import formats
from phpmq_lite.admin.access.identity import allowed_queues, entry_of, identity_of
from phpmq_lite.admin.acting import commands, ladder, words
from phpmq_lite.admin.acting.doing import check_options
from phpmq_lite.admin.acting.jobs import Job, JobState, Order
from phpmq_lite.admin.acting.notes import Note
from phpmq_lite.admin.acting.selections import MESSAGES_MAX, Selection
from phpmq_lite.admin.context import Context, context_of
from phpmq_lite.admin.query import of_queue
from phpmq_lite.broker.operator.message_actions import Action, ActionOptions, ActionOutcome
from phpmq_lite.model import AuditEntry
from phpmq_lite.storage.read.audit import BulkJobLog
from phpmq_lite.storage.read.search_plan import SearchQuery, SearchTerm

TARGET_MAX: Final = 1_000  # characters of a search in the audit


@dataclass(slots=True, frozen=True)
class Asked:
    """What somebody wants done to many messages."""

    action: Action
    options: ActionOptions
    rate: int | None = None  # messages a second
    reason: str = ""
    confirm: str | None = None  # what was typed


async def select(request: web.Request, query: SearchQuery, action: str = "") -> Selection:
    """Freeze what matches now, as far as who asks may see it.

    A search that names no state selects what is alive; for ``restore`` what was deleted.
    """
    context = context_of(request)
    if not query.of("state"):
        states = ("deleted",) if action == Action.RESTORE else ("ready", "dispatched")
        query = SearchQuery((*query.terms, *(SearchTerm("state", state) for state in states)))
    entry_of(request, target=str(query)[:TARGET_MAX])
    frozen = await context.search.freeze(query, queues=allowed_queues(request), limit=MESSAGES_MAX)
    owner = identity_of(request).actor
    return context.acting.selections.add(str(query), frozen, owner, context.now_ms())


def selection_of(request: web.Request, token: str) -> Selection:
    """Give the selection of a token.

    Raises:
        Problem: 410 where it is gone.
    """
    context = context_of(request)
    return context.acting.selections.find(token, identity_of(request).actor, context.now_ms())


def typed_for(request: web.Request, selection: Selection) -> tuple[str, ...]:
    """Give the texts of which one has to be typed to act on a selection; (): none."""
    settings = context_of(request).settings
    return ladder.to_type(settings, selection.count, selection.frozen.by_queue)


async def apply(request: web.Request, token: str, asked: Asked) -> Job:
    """Act on a selection; the same token again gives the same job.

    Raises:
        Problem: 410 where the selection is gone, 422 where it is not confirmed.
    """
    context, owner = context_of(request), identity_of(request).actor
    known = context.acting.jobs.of_selection(token, owner)
    if known is not None:
        return known
    selection = selection_of(request, token)
    ladder.check_typed(typed_for(request, selection), asked.confirm)
    return await begin(request, asked, selection.frozen.seqs, selection.query, token=token)


async def begin(
    request: web.Request,
    asked: Asked,
    seqs: "array[int]",
    what: str,
    *,
    token: str = "",
    target: str = "",
) -> Job:
    """Start work on messages; returns after its first slice.  ``target`` is for the audit."""
    context = context_of(request)
    options = check_options(request, asked.action, asked.options)
    detail = _detail(asked, len(seqs))
    entry = entry_of(
        request, target=target or what[:TARGET_MAX], reason=asked.reason, detail=detail
    )
    if entry.action.startswith(("bulk.", "message.", "selection.")):
        entry.action = f"message.{asked.action}"
    order = Order(asked.action, options, seqs, what, asked.rate, token=token)
    return await _start(context, entry, order)


async def on_queue(
    request: web.Request,
    name: str,
    asked: Asked,
    states: Sequence[str],
    limit: int | None = None,
    upto: int | None = None,
) -> Job:
    """Act on the first messages of a queue, in its order; later arrivals are left alone."""
    return await on_found(request, name, asked, of_queue(name, states), limit, upto)


async def on_found(
    request: web.Request,
    name: str,
    asked: Asked,
    query: SearchQuery,
    limit: int | None = None,
    upto: int | None = None,
) -> Job:
    """Act on the first messages of a queue that a search finds, in its order."""
    context = context_of(request)
    frozen = await context.search.freeze(
        query, queues=None, limit=min(limit or MESSAGES_MAX, MESSAGES_MAX)
    )
    seqs = frozen.seqs
    if upto is not None:
        seqs = array("Q", (seq for seq in seqs if seq <= upto))
    is_cut = limit is None and not frozen.is_complete
    what = f"{name}, the first {formats.number(len(seqs))} of it" if is_cut else name
    return await begin(request, asked, seqs, what, target=name)


async def take_back(request: web.Request, token: str) -> Job:
    """Take an action back; returns after the first slice.

    Raises:
        Problem: 410 where that is not possible any more.
    """
    context = context_of(request)
    undo = context.acting.undos.find(token, identity_of(request).actor, context.now_ms())
    options = ActionOptions(queues=allowed_queues(request))
    entry = entry_of(request, target=undo.target)
    order = Order(undo.action, options, undo.seqs, undo.target, undo=undo)
    job = await _start(context, entry, order)
    context.acting.undos.take(token)
    return job


async def _start(context: Context, entry: AuditEntry, order: Order) -> Job:
    async def act(
        entry: AuditEntry, action: Action, seqs: Sequence[int], options: ActionOptions
    ) -> ActionOutcome:
        return await commands.act(context, entry, action, seqs, options)

    return await context.acting.jobs.start(act, entry, order, context.acting.undos)


def _detail(asked: Asked, total: int) -> str:
    """Give what the audit keeps of bulk work; with its count it tells how far it came."""
    options = asked.options
    members = {
        "total": total,
        "action": str(asked.action),
        "ttl_s": options.ttl_s,
        "to": options.target,
        "dispatched": options.with_dispatched or None,
        "rate": asked.rate,
    }
    return json.dumps({key: value for key, value in members.items() if value is not None})


def note_of(job: Job, link: tuple[str, str] | None = None) -> Note:
    """Say what came of finished work, with what takes it back."""
    text = words.told(job.order.action, job.done, job.skipped)
    if job.state is JobState.STOPPED:
        text = f"{text} It stopped there: {job.error}"
    elif job.state is JobState.CANCELLED:
        text = f"{text} It was cancelled there."
    return Note(text, job.undo, link)


async def leaves(context: Context, count: int, size: int) -> int:
    """Say how many deleted messages leave the history when these come to it.

    Deleted messages have a share of the history's rows and bytes; past it the oldest of them go.
    """
    bounds, trash = context.settings.history, await BulkJobLog(context.readers).trash()
    rows = trash.rows + count - int(bounds.rows * bounds.deleted_share)
    total = trash.bytes + size
    most = int(bounds.bytes * bounds.deleted_share)
    by_bytes = 0 if total <= most else (total - most) * (trash.rows + count) // max(1, total)
    return max(0, rows, by_bytes)
