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
from phpmq_lite.admin.http.browser_sessions import FlashMessage
from phpmq_lite.admin.http.call import Call
from phpmq_lite.admin.http.confirmation import check_typed_text, texts_to_type
from phpmq_lite.admin.http.context import Context
from phpmq_lite.admin.http.endpoint import Done, Endpoints, From
from phpmq_lite.admin.http.fields import EmptyInput, RedriveTarget, UndoToken
from phpmq_lite.admin.http.input import InUnits, Untrimmed, parse_number
from phpmq_lite.admin.http.live_feeds import LiveValues
from phpmq_lite.admin.http.output import ListPage, ResponseModel
from phpmq_lite.admin.http.problems import Problem
from phpmq_lite.admin.messages.actions import (
    TimeInput,
    describe_result,
    describe_skipped,
    options_of,
)
from phpmq_lite.admin.messages.jobs import BulkJob, BulkJobState, BulkWork, stores_of
from phpmq_lite.admin.messages.owned_stores import MESSAGES_MAX, MessageSelection
from phpmq_lite.broker import reasons
from phpmq_lite.broker.operator.message_actions import ACTION_SLICE, ActionOptions, act_on_messages
from phpmq_lite.model import AuditEntry
from phpmq_lite.operator_actions import Action, SkipReason
from phpmq_lite.queue_settings import LONGEST_TTL_S
from phpmq_lite.roles import Role
from phpmq_lite.storage.read.audit import AuditRow, BulkJobLog
from phpmq_lite.storage.search.language import LIVE_STATES, SearchQuery, SearchTerm

TARGET_MAX: Final = 1_000  # maximum length, in characters, of a search in the audit log
RATE_MAX: Final = 100_000
UNDO: Final = "undo"  # action in the audit log
endpoints: Final = Endpoints()


class BulkOptions(TimeInput):
    """How to perform an action on many messages."""

    ttl_s: Annotated[int | None, InUnits()] = Field(
        None,
        ge=0,
        le=LONGEST_TTL_S,
        description="seconds to live; 0 means forever, null unchanged (or the default on redrive)",
    )
    target: Annotated[RedriveTarget, Untrimmed()] = None
    create: bool = Field(False, description="for move: create a missing target queue")
    dispatched: bool = Field(False, description="for delete: include messages held by consumers")
    rate: int | None = Field(None, ge=1, le=RATE_MAX, description="messages/s; null means no limit")
    confirm: Annotated[str | None, Untrimmed()] = Field(
        None, max_length=300, description="one of the selection's to_confirm values"
    )


class BulkForm(BulkOptions):
    """The action to perform on many messages."""

    action: Literal[
        "deliver", "reschedule", "requeue", "release", "move", "delete", "redrive", "restore"
    ] = Field(description="action to perform on each message")


class BulkInput(BulkForm):
    """The action to perform on a selection."""

    token: str = Field(min_length=1, max_length=100, description="selection token")


# -- selections


def find_selection(call: Call, token: str) -> MessageSelection:
    """Return the caller's selection with this token; raise a 410 ``Problem`` if it has expired."""
    return stores_of(call).selections.find(token, call.actor, call.now_ms)


Selection = Annotated[MessageSelection, From(lambda call: find_selection(call, call.path("token")))]


async def freeze_selection(call: Call, query: SearchQuery, action: str = "") -> MessageSelection:
    """Freeze a selection of the visible messages that currently match a search.

    A search without a state selects live messages or, for ``restore``, deleted ones.
    """
    if not query.of("state"):
        states = ("deleted",) if action == Action.RESTORE else LIVE_STATES
        query = SearchQuery((*query.terms, *(SearchTerm("state", state) for state in states)))
    call.audit(str(query)[:TARGET_MAX])
    frozen = await call.context.search.freeze(query, queues=call.allowed, limit=MESSAGES_MAX)
    return stores_of(call).selections.add(str(query), frozen, call.actor, call.now_ms)


def texts_to_type_for(call: Call, selection: MessageSelection) -> tuple[str, ...]:
    """Return the accepted confirmation texts for a selection, or () if none is required."""
    return texts_to_type(call.context.settings, selection.count, selection.frozen.by_queue)


# -- jobs


def earlier_job(call: Call, token: str, action: Action) -> BulkJob | None:
    """Return the job that used a selection; raise a 409 ``Problem`` if for another action."""
    job = stores_of(call).jobs.of_selection(token, call.actor)
    if job is not None and job.work.action is not action:
        raise Problem(
            409,
            "selection_used",
            f"Nothing was done, because this selection was used before: {describe_job(job)} "
            "Select the messages again.",
            field="token",
        )
    return job


async def apply_to_selection(call: Call, token: str, form: BulkForm) -> BulkJob:
    """Start a bulk job on a selection; repeated calls with the same token return the same job.

    Raises:
        Problem: 409 if the selection was used for another action, 410 if it has expired, 422 if the
            action is not confirmed.
    """
    job = earlier_job(call, token, Action(form.action))
    if job is not None:
        return job
    selection = find_selection(call, token)
    check_typed_text(texts_to_type_for(call, selection), form.confirm)
    seqs, audit = selection.frozen.seqs, f"message.{form.action}"
    return await begin_job(
        call, Action(form.action), form, seqs, selection.query, token=token, audit=audit
    )


async def begin_job(
    call: Call,
    action: Action,
    form: BulkOptions,
    seqs: "array[int]",
    description: str,
    *,
    token: str = "",
    target: str = "",
    audit: str = "",
    delete_reason: str = reasons.DELETED,
) -> BulkJob:
    """Start a bulk job, and return it after its first slice.

    ``target`` and ``audit``, if not empty, replace the target and the action in the audit log.
    ``delete_reason`` is what the history says of messages that it deletes.
    """
    options = replace(options_of(call, action, form), delete_reason=delete_reason)
    detail = _detail(action, form, len(seqs))
    entry = call.audit(target or description[:TARGET_MAX], detail=detail)
    entry.action = audit or entry.action
    return await _start(call, BulkWork(action, options, seqs, description, form.rate, token=token))


def _detail(action: Action, form: BulkOptions, total: int) -> str:
    members = {
        "total": total,
        "action": str(action),
        "ttl_s": form.ttl_s,
        "delay_s": form.delay_s or None,
        "deliver_at": form.deliver_at,
        "to": form.target,
        "dispatched": form.dispatched or None,
        "rate": form.rate,
    }
    return json.dumps({key: value for key, value in members.items() if value is not None})


async def act_on_search(
    call: Call,
    action: Action,
    name: str,
    form: BulkOptions,
    query: SearchQuery,
    limit: int | None = None,
    upto: int | None = None,
) -> BulkJob:
    """Of the first ``limit`` matching messages, act on those whose seq is at most ``upto``.

    ``query`` matches only messages in the queue ``name``, in queue order.
    """
    count = min(limit or MESSAGES_MAX, MESSAGES_MAX)
    frozen = await call.context.search.freeze(query, queues=None, limit=count)
    seqs = frozen.seqs
    if upto is not None:
        seqs = array("Q", (seq for seq in seqs if seq <= upto))
    is_cut = limit is None and not frozen.is_complete
    description = (
        f"the first {formats.format_number(len(seqs))} messages in {name}" if is_cut else name
    )
    return await begin_job(
        call, action, form, seqs, description, target=name, delete_reason=reasons.PURGED
    )


async def undo(call: Call, token: str) -> BulkJob:
    """Begin the undo of an action as a job; raise a 410 ``Problem`` if it is too late."""
    undos = stores_of(call).undos
    record = undos.find(token, call.actor, call.now_ms)
    call.audit(record.target)
    options = ActionOptions(queues=call.allowed, delete_reason=reasons.UNDONE)
    job = await _start(
        call, BulkWork(record.action, options, record.seqs, record.target, undo=record)
    )
    undos.take(token)
    for undone in stores_of(call).jobs.all:
        if undone.undo == token:
            undone.undo, undone.is_undone = None, True
    return job


async def _start(call: Call, work: BulkWork) -> BulkJob:
    broker = call.context.broker
    return await stores_of(call).jobs.start(
        lambda *arguments: broker.run(act_on_messages, *arguments), call.audit(), work
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
    text = describe_result(job.work.action, job.changed, job.skipped)
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
    total, limit = trash.bytes + size, int(bounds.bytes * bounds.deleted_share)
    by_bytes = 0 if total <= limit else (total - limit) * (trash.rows + count) // max(1, total)
    return max(0, rows, by_bytes)


@dataclass(slots=True, frozen=True)
class RedrivePlan:
    """The predicted result of a redrive."""

    targets: Counter[str]  # number of messages that would be published, by queue
    poisoned: Counter[str]  # number of messages that would be quarantined again, by reason
    skipped: Counter[SkipReason]  # number of records that would be skipped, by reason


async def plan_redrive(
    context: Context, entry: AuditEntry, seqs: Sequence[int], options: ActionOptions
) -> RedrivePlan:
    """Predict what a redrive of these records would do; change nothing and write no audit row."""
    options = replace(options, is_dry_run=True)
    plan = RedrivePlan(Counter(), Counter(), Counter())
    for at in range(0, len(seqs), ACTION_SLICE):
        part = seqs[at : at + ACTION_SLICE]
        outcome = await context.broker.run(act_on_messages, entry, Action.REDRIVE, part, options)
        plan.targets.update(outcome.targets)
        plan.poisoned.update(outcome.poisoned)
        plan.skipped.update(outcome.skipped)
    return plan


# -- one job


def _may_see(call: Call, owner: str) -> bool:
    return not call.identity.queues or call.actor == owner


def find_job(call: Call, number: int) -> BulkJob | None:
    """Return a job, or None if it is not in memory or the caller is not allowed to see it."""
    job = stores_of(call).jobs.find(number)
    return job if job is not None and _may_see(call, job.owner) else None


async def _find(call: Call) -> BulkJob | AuditRow:
    """Return the job in the path, or its audit row if the broker has since restarted."""
    text = call.path("job")
    unknown = Problem(404, "unknown_job", f"There is no bulk job {text}.")
    if (number := parse_number(text)) is None:
        raise unknown
    job = find_job(call, number)
    if job is not None:
        return job
    row = await BulkJobLog(call.context.readers).row(number)
    if row is None or not _may_see(call, row.actor):
        raise unknown
    if row.action != UNDO and job_total(row) is None:  # the audit row of something else
        raise unknown
    return row


def _detail_of(row: AuditRow) -> dict[str, Any]:
    try:
        detail = json.loads(row.detail)
    except ValueError:
        return {}
    return detail if isinstance(detail, dict) else {}


def job_total(row: AuditRow) -> int | None:
    """Return how many messages a job selected, or None if the job's audit row does not say."""
    total = _detail_of(row).get("total")
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
        return cls.of(job, action=str(job.work.action), what=job.work.description, done=job.changed)

    @classmethod
    def of_row(cls, row: AuditRow, number: int) -> Self:
        """Return the view of a job that is no longer in memory, from its audit row."""
        return cls(
            job=number,
            action=_detail_of(row).get("action", row.action),
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
    job, back = await _find(call), call.back(call.url("bulk"))
    values: dict[str, Any] = (
        {"job": job, "row": None, "left_s": job_time_left_s(call, job)}
        if isinstance(job, BulkJob)
        else {"job": None, "row": job, "total": job_total(job), "number": call.path("job")}
    )
    return await call.render("bulk.html", jobs=[], back=back, **values)


@endpoints.action("/bulk/{job}/cancel", "bulk-cancel", Role.OPERATOR, "bulk.cancel", api="POST")
async def cancel_job(call: Call, _body: EmptyInput) -> Done[BulkJobView]:
    """Cancel a bulk job after its current slice. Changes already made are kept."""
    job = await _find(call)
    to = call.url("bulk-job", job=call.path("job"), next=call.back(""))
    if isinstance(job, AuditRow):
        return Done(BulkJobView.of_row(job, int(call.path("job"))), to=to)
    call.audit(str(job.number))
    stores_of(call).jobs.cancel(job)
    return Done(BulkJobView.of_job(job), to=to)


@endpoints.action(
    "/undo/{token}", "undo", Role.OPERATOR, UNDO, api="POST", status=202, cli="message undo"
)
async def undo_action(call: Call, _body: EmptyInput) -> Done[BulkJobView]:
    """Undo an action. The undo runs as a bulk job."""
    job = await undo(call, call.path("token"))
    return done_after(call, job, call.back(call.url("queues")))


@endpoints.api("POST /bulk", "api-bulk-start", Role.OPERATOR, "bulk.start", status=202)
async def start_job(call: Call, body: BulkInput) -> BulkJobView:
    """Start a bulk job on a selection. The selection token is the idempotency key."""
    return BulkJobView.of_job(await apply_to_selection(call, body.token, body))


def visible_jobs(call: Call) -> list[BulkJob]:
    """Return all jobs, or only the caller's own jobs if the caller is limited to some queues."""
    return [job for job in stores_of(call).jobs.all if _may_see(call, job.owner)]


@endpoints.api("GET /bulk", "api-bulk", Role.OPERATOR)
async def list_jobs(call: Call) -> ListPage[BulkJobView]:
    """List bulk jobs from the last hour."""
    jobs = visible_jobs(call)
    return ListPage[BulkJobView](items=[BulkJobView.of_job(job) for job in jobs])


@endpoints.page("/bulk", "bulk", Role.OPERATOR, data=list_jobs)
async def show_jobs(call: Call) -> Any:
    """List bulk jobs from the last hour."""
    return await call.render("bulk.html", jobs=visible_jobs(call), job=None, row=None)


@endpoints.api("GET /bulk/{job}", "api-bulk-job", Role.OPERATOR)
async def get_job(call: Call) -> BulkJobView:
    """Return a bulk job's progress, or the job's audit row if the broker has since restarted."""
    job = await _find(call)
    if isinstance(job, BulkJob):
        return BulkJobView.of_job(job)
    return BulkJobView.of_row(job, int(call.path("job")))


async def live_bulk(call: Call, argument: str, _ids: object) -> LiveValues:
    """Return the live values for a bulk job's page."""
    number = parse_number(argument)
    job = None if number is None else find_job(call, number)
    if job is None:
        return LiveValues(new=0, says="")
    left_s = job_time_left_s(call, job)
    values = {
        "bulk.done": formats.format_number(job.changed),
        "bulk.handled": formats.format_number(job.handled),
        "bulk.state": str(job.state).capitalize(),
        "bulk.skipped": describe_skipped(job.skipped),
        "bulk.left": ""
        if left_s is None
        else f"about {formats.format_duration(round(left_s * 1_000))} left",
    }
    is_over = job.state is not BulkJobState.RUNNING
    summary = f"{values['bulk.handled']} of {formats.format_number(job.total)}, {job.state}"
    return LiveValues(values, new=int(is_over), says=summary)
