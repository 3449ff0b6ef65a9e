"""Bulk actions: background jobs on frozen selections, their progress, cancellation and undo."""

import json
from array import array
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Final, Literal, Self

from aiohttp import web
from pydantic import Field

from phpmq_lite.admin import formats
from phpmq_lite.admin.context import Context
from phpmq_lite.admin.http.browser_sessions import FlashMessage
from phpmq_lite.admin.http.call import Call
from phpmq_lite.admin.http.confirmation import check_typed_text, texts_to_type
from phpmq_lite.admin.http.endpoint import Done, Endpoints
from phpmq_lite.admin.http.fields import (
    TTL_MAX_S,
    ActionInput,
    EmptyInput,
    FormatQuery,
    RedriveTarget,
    UndoToken,
)
from phpmq_lite.admin.http.forms import Duration, Untrimmed
from phpmq_lite.admin.http.problems import Problem
from phpmq_lite.admin.http.responses import ListPage, ResponseModel
from phpmq_lite.admin.http.route import Role
from phpmq_lite.admin.messages.actions import options_of
from phpmq_lite.admin.messages.finding import find_selection
from phpmq_lite.admin.messages.jobs import BulkJob, BulkJobState, BulkWork
from phpmq_lite.admin.messages.selection_store import MESSAGES_MAX, MessageSelection
from phpmq_lite.admin.messages.texts import describe_reason, describe_result, describe_skipped
from phpmq_lite.broker.operator.message_actions import ACTION_SLICE, ActionOptions, act_on_messages
from phpmq_lite.model import AuditEntry
from phpmq_lite.operator_actions import Action
from phpmq_lite.storage.read.audit import BulkJobLog, BulkJobRow
from phpmq_lite.storage.read.search_plan import SearchQuery, SearchTerm

TARGET_MAX: Final = 1_000  # maximum length, in characters, of a search in the audit log
RATE_MAX: Final = 100_000
BULK_PREFIXES: Final = ("message.", "queue.", "undo", "dead.")
NUMBER_DIGITS: Final = 18
endpoints: Final = Endpoints()


class BulkOptions(ActionInput):
    """How to perform an action on many messages."""

    ttl_s: Annotated[int | None, Duration()] = Field(
        None, ge=0, le=TTL_MAX_S,
        description="seconds to live; 0 means forever, null unchanged (or the default on redrive)",
    )  # fmt: skip
    target: Annotated[RedriveTarget, Untrimmed()] = None
    create: bool = Field(False, description="for move: create a missing target queue")
    dispatched: bool = Field(False, description="for delete: include messages held by consumers")
    rate: int | None = Field(None, ge=1, le=RATE_MAX, description="messages/s; null means no limit")
    confirm: Annotated[str | None, Untrimmed()] = Field(
        None, max_length=300, description="one of the selection's to_confirm values"
    )


class BulkForm(BulkOptions):
    """The action to perform on many messages."""

    action: Literal["requeue", "release", "move", "delete", "redrive", "restore"] = Field(
        description="action to perform on each message"
    )


class BulkInput(BulkForm):
    """The action to perform on a selection."""

    token: str = Field(min_length=1, max_length=100, description="selection token")


# -- selections


async def freeze_selection(call: Call, query: SearchQuery, action: str = "") -> MessageSelection:
    """Freeze a selection of the visible messages that currently match a search.

    A search without a state selects live messages or, for ``restore``, deleted ones.
    """
    if not query.of("state"):
        states = ("deleted",) if action == Action.RESTORE else ("ready", "dispatched")
        query = SearchQuery((*query.terms, *(SearchTerm("state", state) for state in states)))
    call.audit(str(query)[:TARGET_MAX])
    frozen = await call.context.search.freeze(query, queues=call.allowed, limit=MESSAGES_MAX)
    return call.context.actions.selections.add(str(query), frozen, call.actor, call.now_ms)


def texts_to_type_for(call: Call, selection: MessageSelection) -> tuple[str, ...]:
    """Return the accepted confirmation texts for a selection, or () if none is required."""
    return texts_to_type(call.context.settings, selection.count, selection.frozen.by_queue)


# -- jobs


def earlier_job(call: Call, token: str, action: Action) -> BulkJob | None:
    """Return the job that has used a selection, or None.

    Raises:
        Problem: 409 if it was used for another action.
    """
    known = call.context.actions.jobs.of_selection(token, call.actor)
    if known is not None and known.order.action is not action:
        raise Problem(
            409, "selection_used",
            f"Nothing was done, because this selection was used before: {describe_job(known)} "
            "Select the messages again.",
            field="token",
        )  # fmt: skip
    return known


async def apply_to_selection(call: Call, token: str, asked: BulkForm) -> BulkJob:
    """Start a bulk job on a selection; repeated calls with the same token return the same job.

    Raises:
        Problem: 409 if the selection was used for another action, 410 if it has expired, 422 if the
            action is not confirmed.
    """
    known = earlier_job(call, token, Action(asked.action))
    if known is not None:
        return known
    selection = find_selection(call, token)
    check_typed_text(texts_to_type_for(call, selection), asked.confirm)
    seqs, query = selection.frozen.seqs, selection.query
    return await begin_job(call, Action(asked.action), asked, seqs, query, token=token)


async def begin_job(
    call: Call,
    action: Action,
    asked: BulkOptions,
    seqs: "array[int]",
    what: str,
    *,
    token: str = "",
    target: str = "",
) -> BulkJob:
    """Start a bulk job, with ``target`` in the audit log; return the job after its first slice."""
    options = options_of(call, action, asked)
    entry = call.audit(target or what[:TARGET_MAX], asked.reason, _detail(action, asked, len(seqs)))
    if entry.action.startswith(("bulk.", "message.", "selection.")):
        entry.action = f"message.{action}"
    return await _start(call, BulkWork(action, options, seqs, what, asked.rate, token=token))


def _detail(action: Action, asked: BulkOptions, total: int) -> str:
    members = {
        "total": total,
        "action": str(action),
        "ttl_s": asked.ttl_s,
        "to": asked.target,
        "dispatched": asked.dispatched or None,
        "rate": asked.rate,
    }
    return json.dumps({key: value for key, value in members.items() if value is not None})


async def act_on_search(
    call: Call,
    action: Action,
    name: str,
    asked: BulkOptions,
    query: SearchQuery,
    limit: int | None = None,
    upto: int | None = None,
) -> BulkJob:
    """Of the first ``limit`` matching messages, act on those whose seq is at most ``upto``.

    ``query`` matches only messages in the queue ``name``, in queue order.
    """
    most = min(limit or MESSAGES_MAX, MESSAGES_MAX)
    frozen = await call.context.search.freeze(query, queues=None, limit=most)
    seqs = frozen.seqs
    if upto is not None:
        seqs = array("Q", (seq for seq in seqs if seq <= upto))
    is_cut = limit is None and not frozen.is_complete
    what = f"the first {formats.format_number(len(seqs))} messages in {name}" if is_cut else name
    return await begin_job(call, action, asked, seqs, what, target=name)


async def undo(call: Call, token: str) -> BulkJob:
    """Start a bulk job that undoes an action, and return the job after its first slice.

    Raises:
        Problem: 410 if the action can no longer be undone.
    """
    undos = call.context.actions.undos
    found = undos.find(token, call.actor, call.now_ms)
    call.audit(found.target)
    options = ActionOptions(queues=call.allowed)
    job = await _start(call, BulkWork(found.action, options, found.seqs, found.target, undo=found))
    undos.take(token)
    for undone in call.context.actions.jobs.all:
        if undone.undo == token:
            undone.undo, undone.is_undone = None, True
    return job


async def _start(call: Call, order: BulkWork) -> BulkJob:
    actions, engine = call.context.actions, call.context.engine
    return await actions.jobs.start(
        lambda *work: engine.run(act_on_messages, *work), call.audit(), order, actions.undos
    )


def done_after(
    call: Call, job: BulkJob, to: str, *, is_earlier: bool = False
) -> "Done[BulkJobView]":
    """Return what to show after a job's first slice: ``to`` if it is done, else its progress."""
    view, progress = BulkJobView.of_job(job), call.url("bulk-job", job=job.number, next=to)
    if job.state is BulkJobState.RUNNING or not to:
        return Done(view, to=progress)
    text = describe_job(job)
    if is_earlier:
        text = f"Nothing more was done, because this selection was used before: {text}"
    return Done(view, FlashMessage(text, job.undo, (progress, "Details")), to)


def describe_job(job: BulkJob) -> str:
    """Describe the result of a job that has ended."""
    text = describe_result(job.order.action, job.done, job.skipped)
    if job.is_undone:
        text = f"{text} This was undone."
    if job.state is BulkJobState.STOPPED:
        text = f"{text} The job stopped: {job.error}"
    elif job.state is BulkJobState.CANCELLED:
        text = f"{text} The job was cancelled."
    return text


async def history_loss(call: Call, count: int, size: int) -> int:
    """Return how many deleted messages the history would drop if ``count`` more were deleted.

    Deleted messages can use only a certain share of the history's rows and bytes. Above that
    share, the oldest deleted messages are dropped.
    """
    bounds = call.context.settings.history
    trash = await BulkJobLog(call.context.readers).trash()
    rows = trash.rows + count - int(bounds.rows * bounds.deleted_share)
    total, most = trash.bytes + size, int(bounds.bytes * bounds.deleted_share)
    by_bytes = 0 if total <= most else (total - most) * (trash.rows + count) // max(1, total)
    return max(0, rows, by_bytes)


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


# -- one job


def _may_see(call: Call, owner: str) -> bool:
    return not call.identity.queues or call.actor == owner


def find_job(call: Call, number: int) -> BulkJob | None:
    """Return a job, or None if it is not in memory or the caller is not allowed to see it."""
    found = call.context.actions.jobs.find(number)
    return found if found is not None and _may_see(call, found.owner) else None


async def _find(call: Call) -> BulkJob | BulkJobRow:
    """Return the job in the path, or its audit row if the broker has since restarted."""
    text = call.path("job")
    unknown = Problem(404, "unknown_job", f"There is no bulk job {text}.")
    if not (text.isascii() and text.isdecimal() and len(text) <= NUMBER_DIGITS):
        raise unknown
    found = find_job(call, int(text))
    if found is not None:
        return found
    row = await BulkJobLog(call.context.readers).row(int(text))
    if row is None or not row.action.startswith(BULK_PREFIXES) or not _may_see(call, row.actor):
        raise unknown
    return row


def job_total(row: BulkJobRow) -> int | None:
    """Return how many messages a job selected, or None if the job's audit row does not say."""
    try:
        total = json.loads(row.detail)["total"]
    except (ValueError, KeyError, TypeError):
        return None
    return total if isinstance(total, int) else None


def job_time_left_s(call: Call, job: BulkJob) -> float | None:
    """Estimate how many more seconds a job will run; return None if no estimate is available."""
    spent_ms = call.now_ms - job.started_at
    if job.state is not BulkJobState.RUNNING or not job.handled or spent_ms < 1_000:
        return None
    return spent_ms / job.handled * (job.total - job.handled) / 1_000


class BulkJobView(ResponseModel):
    """A bulk job; ``undo`` is the token to use in ``POST /undo/{token}``."""

    job: int = Field(
        validation_alias="number", description="job number, which is also its audit row number"
    )
    action: str = Field(description="requeue, release, move, place (to undo a move), delete, …")
    what: str = Field(description="search or queue that selected the messages")
    total: int | None = Field(description="number of selected messages; null if unknown")
    done: int = Field(description="number of messages changed so far")
    skipped: dict[str, int] = Field(description="number of messages skipped so far, by reason")
    state: str = Field(description="running, done, cancelled, stopped, or interrupted by a restart")
    started_at: int = Field(description="when the job started, Unix ms")
    ended_at: int | None = Field(description="end time, Unix ms; null if running or unknown")
    error: str | None = Field(None, description="why the job stopped early; null if it did not")
    undo: UndoToken = None

    @classmethod
    def of_job(cls, job: BulkJob) -> Self:
        """Return the view of a job that is still in memory."""
        return cls.of(job, action=str(job.order.action), what=job.order.what)

    @classmethod
    def of_row(cls, row: BulkJobRow, number: int) -> Self:
        """Return the view of a job that is no longer in memory, from its audit row."""
        return cls(
            job=number,
            action=row.action.rpartition(".")[2],
            what=row.target,
            total=job_total(row),
            done=row.count,
            skipped={},
            state=row.result,
            started_at=row.at_ms,
            ended_at=None,
        )


@endpoints.page("/bulk/{job}", "bulk-job", Role.OPERATOR)
async def show_job(call: Call) -> web.Response:
    """Show a bulk job's progress, and how many messages it skipped and why."""
    found, back = await _find(call), call.back(call.url("bulk"))
    values: dict[str, Any] = (
        {"job": found, "row": None, "left_s": job_time_left_s(call, found)}
        if isinstance(found, BulkJob)
        else {"job": None, "row": found, "total": job_total(found), "number": call.path("job")}
    )
    return await call.render(
        "bulk.html", jobs=[], back=back, reason_of_many=describe_reason, **values
    )


@endpoints.action("/bulk/{job}/cancel", "bulk-cancel", Role.OPERATOR, "bulk.cancel", api="POST")
async def cancel_job(call: Call, _asked: EmptyInput) -> Done[BulkJobView]:
    """Cancel a bulk job after its current slice. Changes already made are kept."""
    found = await _find(call)
    to = call.url("bulk-job", job=call.path("job"), next=call.back(""))
    if isinstance(found, BulkJobRow):
        return Done(BulkJobView.of_row(found, int(call.path("job"))), to=to)
    call.audit(str(found.number))
    call.context.actions.jobs.cancel(found)
    return Done(BulkJobView.of_job(found), to=to)


@endpoints.action(
    "/undo/{token}", "undo", Role.OPERATOR, "undo", api="POST", status=202, cli="message undo"
)
async def undo_action(call: Call, _asked: EmptyInput) -> Done[BulkJobView]:
    """Undo an action. The undo runs as a bulk job."""
    job = await undo(call, call.path("token"))
    return done_after(call, job, call.back(call.url("queues")))


@endpoints.api("POST /bulk", "api-bulk-start", Role.OPERATOR, "bulk.start", status=202)
async def start_job(call: Call, asked: BulkInput) -> BulkJobView:
    """Start a bulk job on a selection. The selection token is the idempotency key."""
    return BulkJobView.of_job(await apply_to_selection(call, asked.token, asked))


def visible_jobs(call: Call) -> list[BulkJob]:
    """Return all jobs, or only the caller's own jobs if the caller is limited to some queues."""
    return [job for job in call.context.actions.jobs.all if _may_see(call, job.owner)]


@endpoints.api("GET /bulk", "api-bulk", Role.OPERATOR)
async def list_jobs(call: Call) -> ListPage[BulkJobView]:
    """List bulk jobs from the last hour."""
    jobs = visible_jobs(call)
    return ListPage[BulkJobView](items=[BulkJobView.of_job(job) for job in jobs])


@endpoints.page("/bulk", "bulk", Role.OPERATOR, data=list_jobs)
async def show_jobs(call: Call, _query: FormatQuery) -> Any:
    """List bulk jobs from the last hour."""
    return await call.render("bulk.html", jobs=visible_jobs(call), job=None, row=None)


@endpoints.api("GET /bulk/{job}", "api-bulk-job", Role.OPERATOR)
async def get_job(call: Call) -> BulkJobView:
    """Return a bulk job's progress, or the job's audit row if the broker has since restarted."""
    found = await _find(call)
    if isinstance(found, BulkJob):
        return BulkJobView.of_job(found)
    return BulkJobView.of_row(found, int(call.path("job")))


async def live_bulk(call: Call, argument: str, _ids: object) -> dict[str, Any]:
    """Return the live values for a bulk job's page."""
    found = find_job(call, int(argument)) if argument.isdecimal() else None
    if found is None:
        return {"shown": {}, "points": {}, "new": 0, "says": ""}
    left_s = job_time_left_s(call, found)
    shown = {
        "bulk.done": formats.format_number(found.done),
        "bulk.handled": formats.format_number(found.handled),
        "bulk.state": str(found.state).capitalize(),
        "bulk.skipped": describe_skipped(found.skipped),
        "bulk.left": ""
        if left_s is None
        else f"about {formats.format_duration(round(left_s * 1_000))} left",
    }
    is_over = found.state is not BulkJobState.RUNNING
    says = f"{shown['bulk.handled']} of {formats.format_number(found.total)}, {found.state}"
    return {"shown": shown, "points": {}, "new": int(is_over), "says": says}
