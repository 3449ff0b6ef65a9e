"""Actions on many messages, which background jobs perform on frozen selections."""

import json
from array import array
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from aiohttp import web

from phpmq_lite.admin.actions import confirmation, flash_messages
from phpmq_lite.admin.actions.bulk_jobs import BulkJob, BulkJobState, BulkWork
from phpmq_lite.admin.actions.selections import MESSAGES_MAX, MessageSelection
from phpmq_lite.admin.actions.single_message import check_options
from phpmq_lite.admin.auth.permissions import allowed_queues
from phpmq_lite.admin.auth.request_audit import audit_entry
from phpmq_lite.admin.auth.sessions import FlashMessage
from phpmq_lite.admin.base import formats
from phpmq_lite.admin.base.context import Context, context_of
from phpmq_lite.admin.base.identity import Identity, identity_of
from phpmq_lite.admin.base.problems import Problem
from phpmq_lite.broker.operator.message_actions import (
    ACTION_SLICE,
    Action,
    ActionOptions,
    act_on_messages,
)
from phpmq_lite.model import AuditEntry
from phpmq_lite.storage.read.audit import BulkJobLog, BulkJobRow
from phpmq_lite.storage.read.search_plan import SearchQuery, SearchTerm

TARGET_MAX: Final = 1_000  # maximum length, in characters, of a search in the audit log


@dataclass(slots=True, frozen=True)
class BulkRequest:
    """A request to perform an action on many messages."""

    action: Action
    options: ActionOptions
    rate: int | None = None  # maximum number of messages per second
    reason: str = ""
    confirm: str | None = None  # confirmation text that the user typed


async def freeze_selection(
    request: web.Request, query: SearchQuery, action: str = ""
) -> MessageSelection:
    """Freeze a selection of the visible messages that currently match a search.

    A search without a state selects live messages or, for ``restore``, deleted ones.
    """
    context = context_of(request)
    if not query.of("state"):
        states = ("deleted",) if action == Action.RESTORE else ("ready", "dispatched")
        query = SearchQuery((*query.terms, *(SearchTerm("state", state) for state in states)))
    audit_entry(request, target=str(query)[:TARGET_MAX])
    frozen = await context.search.freeze(query, queues=allowed_queues(request), limit=MESSAGES_MAX)
    owner = identity_of(request).actor
    return context.actions.selections.add(str(query), frozen, owner, context.now_ms())


def find_selection(request: web.Request, token: str) -> MessageSelection:
    """Return the selection with this token; raise a 410 ``Problem`` if it has expired."""
    context = context_of(request)
    return context.actions.selections.find(token, identity_of(request).actor, context.now_ms())


def texts_to_type_for(request: web.Request, selection: MessageSelection) -> tuple[str, ...]:
    """Return the accepted confirmation texts for a selection, or () if none is required."""
    settings = context_of(request).settings
    return confirmation.texts_to_type(settings, selection.count, selection.frozen.by_queue)


def earlier_job(request: web.Request, token: str, action: Action) -> BulkJob | None:
    """Return the job that has used a selection, or None.

    Raises:
        Problem: 409 if it was used for another action.
    """
    known = context_of(request).actions.jobs.of_selection(token, identity_of(request).actor)
    if known is not None and known.order.action is not action:
        raise Problem(
            409, "selection_used",
            f"Nothing was done, because this selection was used before: {job_message(known).text} "
            "Select the messages again.",
            field="token",
        )  # fmt: skip
    return known


async def apply_to_selection(request: web.Request, token: str, asked: BulkRequest) -> BulkJob:
    """Start a bulk job on a selection; repeated calls with the same token return the same job.

    Raises:
        Problem: 409 if the selection was used for another action, 410 if it has expired, 422 if the
            action is not confirmed.
    """
    known = earlier_job(request, token, asked.action)
    if known is not None:
        return known
    selection = find_selection(request, token)
    confirmation.check_typed_text(texts_to_type_for(request, selection), asked.confirm)
    return await begin_job(request, asked, selection.frozen.seqs, selection.query, token=token)


async def begin_job(
    request: web.Request,
    asked: BulkRequest,
    seqs: "array[int]",
    what: str,
    *,
    token: str = "",
    target: str = "",
) -> BulkJob:
    """Start a bulk job, with ``target`` in the audit log; return the job after its first slice."""
    context = context_of(request)
    options = check_options(request, asked.action, asked.options)
    detail = _detail(asked, len(seqs))
    entry = audit_entry(
        request, target=target or what[:TARGET_MAX], reason=asked.reason, detail=detail
    )
    if entry.action.startswith(("bulk.", "message.", "selection.")):
        entry.action = f"message.{asked.action}"
    order = BulkWork(asked.action, options, seqs, what, asked.rate, token=token)
    return await _start(context, entry, order)


async def act_on_search(
    request: web.Request,
    name: str,
    asked: BulkRequest,
    query: SearchQuery,
    limit: int | None = None,
    upto: int | None = None,
) -> BulkJob:
    """Of the first ``limit`` matching messages, act on those whose seq is at most ``upto``.

    ``query`` matches only messages in the queue ``name``, in queue order.
    """
    context = context_of(request)
    frozen = await context.search.freeze(
        query, queues=None, limit=min(limit or MESSAGES_MAX, MESSAGES_MAX)
    )
    seqs = frozen.seqs
    if upto is not None:
        seqs = array("Q", (seq for seq in seqs if seq <= upto))
    is_cut = limit is None and not frozen.is_complete
    what = f"the first {formats.format_number(len(seqs))} messages in {name}" if is_cut else name
    return await begin_job(request, asked, seqs, what, target=name)


async def undo_action(request: web.Request, token: str) -> BulkJob:
    """Start a bulk job that undoes an action, and return the job after its first slice.

    Raises:
        Problem: 410 if the action can no longer be undone.
    """
    context = context_of(request)
    undo = context.actions.undos.find(token, identity_of(request).actor, context.now_ms())
    options = ActionOptions(queues=allowed_queues(request))
    entry = audit_entry(request, target=undo.target)
    order = BulkWork(undo.action, options, undo.seqs, undo.target, undo=undo)
    job = await _start(context, entry, order)
    context.actions.undos.take(token)
    for undone in context.actions.jobs.all:
        if undone.undo == token:
            undone.undo, undone.is_undone = None, True
    return job


async def _start(context: Context, entry: AuditEntry, order: BulkWork) -> BulkJob:
    return await context.actions.jobs.start(
        lambda *work: context.engine.run(act_on_messages, *work),
        entry,
        order,
        context.actions.undos,
    )


def _detail(asked: BulkRequest, total: int) -> str:
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


def job_message(
    job: BulkJob, link: tuple[str, str] | None = None, *, is_earlier: bool = False
) -> FlashMessage:
    """Return a flash message that describes a finished bulk job and contains its undo token."""
    text = flash_messages.describe_result(job.order.action, job.done, job.skipped)
    if job.is_undone:
        text = f"{text} This was undone."
    if is_earlier:
        text = f"Nothing more was done, because this selection was used before: {text}"
    if job.state is BulkJobState.STOPPED:
        text = f"{text} The job stopped: {job.error}"
    elif job.state is BulkJobState.CANCELLED:
        text = f"{text} The job was cancelled."
    return FlashMessage(text, job.undo, link)


async def history_loss(context: Context, count: int, size: int) -> int:
    """Return how many deleted messages the history would drop if ``count`` more were deleted.

    Deleted messages can use only a certain share of the history's rows and bytes. Above that
    share, the oldest deleted messages are dropped.
    """
    bounds, trash = context.settings.history, await BulkJobLog(context.readers).trash()
    rows = trash.rows + count - int(bounds.rows * bounds.deleted_share)
    total = trash.bytes + size
    most = int(bounds.bytes * bounds.deleted_share)
    by_bytes = 0 if total <= most else (total - most) * (trash.rows + count) // max(1, total)
    return max(0, rows, by_bytes)


BULK_PREFIXES: Final = ("message.", "queue.", "undo", "dead.")
NUMBER_DIGITS: Final = 18


def job_number(request: web.Request) -> int:
    """Return the job number from the request path."""
    text = request.match_info["job"]
    if not (text.isascii() and text.isdecimal() and len(text) <= NUMBER_DIGITS):
        raise unknown_job(text)
    return int(text)


def visible_jobs(request: web.Request) -> list[BulkJob]:
    """Return all jobs, or only the caller's own jobs if the caller is limited to some queues."""
    identity = identity_of(request)
    return [job for job in context_of(request).actions.jobs.all if _may_see(identity, job.owner)]


def find_job(request: web.Request, number: int) -> BulkJob | None:
    """Return a job, or None if it is not in memory or the caller is not allowed to see it."""
    found = context_of(request).actions.jobs.find(number)
    return found if found is not None and _may_see(identity_of(request), found.owner) else None


def _may_see(identity: Identity, owner: str) -> bool:
    return not identity.queues or identity.actor == owner


def unknown_job(number: object) -> Problem:
    """Return the 404 ``Problem`` for an unknown job."""
    return Problem(404, "unknown_job", f"There is no bulk job {number}.")


async def stored_job(request: web.Request, number: int) -> BulkJobRow:
    """Return the audit row of a job that is no longer in memory."""
    row = await BulkJobLog(context_of(request).readers).row(number)
    is_bulk = row is not None and row.action.startswith(BULK_PREFIXES)
    if row is None or not is_bulk or not _may_see(identity_of(request), row.actor):
        raise unknown_job(number)
    return row


def job_total(row: BulkJobRow) -> int | None:
    """Return how many messages a job selected, or None if the job's audit row does not say."""
    try:
        total = json.loads(row.detail)["total"]
    except (ValueError, KeyError, TypeError):
        return None
    return total if isinstance(total, int) else None


def job_time_left_s(context: Context, job: BulkJob) -> float | None:
    """Estimate how many more seconds a job will run; return None if no estimate is available."""
    spent_ms = context.now_ms() - job.started_at
    if job.state is not BulkJobState.RUNNING or not job.handled or spent_ms < 1_000:
        return None
    return spent_ms / job.handled * (job.total - job.handled) / 1_000


@dataclass(slots=True, frozen=True)
class RedrivePlan:
    """The predicted result of a redrive."""

    targets: Counter[str]  # number of messages that would be published, by queue
    poisoned: Counter[str]  # number of messages that would be quarantined again, by reason
    skipped: Counter[str]  # number of records that would be skipped, by reason


async def plan_redrive(
    context: Context, entry: AuditEntry, seqs: Sequence[int], options: ActionOptions
) -> RedrivePlan:
    """Predict what a redrive of these records would do; change nothing and write no audit row."""
    options = replace(options, is_dry_run=True)
    plan = RedrivePlan(Counter(), Counter(), Counter())
    for at in range(0, len(seqs), ACTION_SLICE):
        some = seqs[at : at + ACTION_SLICE]
        found = await context.engine.run(act_on_messages, entry, Action.REDRIVE, some, options)
        plan.targets.update(found.targets)
        plan.poisoned.update(found.poisoned)
        plan.skipped.update(found.skipped)
    return plan
