"""Pages and API for bulk jobs: progress, cancellation and undo."""

from typing import Any, Final, Literal, Self

from aiohttp import web
from pydantic import Field

from phpmq_lite.admin.actions import bulk, flash_messages
from phpmq_lite.admin.actions.bulk import (
    find_job,
    job_number,
    job_time_left_s,
    job_total,
    stored_job,
    unknown_job,
    visible_jobs,
)
from phpmq_lite.admin.actions.bulk_jobs import BulkJob, BulkJobState
from phpmq_lite.admin.actions.flash_messages import store_message
from phpmq_lite.admin.auth.request_audit import audit_entry
from phpmq_lite.admin.base import formats
from phpmq_lite.admin.base.context import context_of
from phpmq_lite.admin.base.input import (
    TTL_MAX_S,
    AuditReason,
    EmptyInput,
    FormatQuery,
    RedriveTarget,
    StrictInput,
    UndoToken,
    read_form,
)
from phpmq_lite.admin.base.responses import ListPage, ResponseModel
from phpmq_lite.admin.base.route import Role, Route
from phpmq_lite.admin.base.urls import own_path_or
from phpmq_lite.admin.resource import Api, Page, Resource, api_route
from phpmq_lite.admin.views.rendering import render_page
from phpmq_lite.broker.operator.message_actions import Action, ActionOptions
from phpmq_lite.storage.read.audit import BulkJobRow


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
    def of_row(cls, number: int, row: BulkJobRow) -> Self:
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


def next_page_after(
    request: web.Request, job: BulkJob, to: str, *, is_earlier: bool = False
) -> str:
    """Return ``to`` if the job is already done, otherwise the URL of the job's progress page."""
    context = context_of(request)
    progress = context.urls.to("bulk-job", job=job.number, next=to)
    if job.state is BulkJobState.RUNNING or not to:
        return progress
    store_message(request, bulk.job_message(job, (progress, "Details"), is_earlier=is_earlier))
    return to


async def show_job(request: web.Request) -> web.StreamResponse:
    """Show a bulk job's progress, and how many messages it skipped and why."""
    context = context_of(request)
    number = job_number(request)
    found = find_job(request, number)
    to = own_path_or(request.query.get("next", ""), context.urls.to("bulk"))
    if found is None:
        row = await stored_job(request, number)
        return await render_page(request, "bulk.html", jobs=[], job=None, row=row, number=number,
                    total=job_total(row), back=to)  # fmt: skip
    return await render_page(
        request,
        "bulk.html",
        jobs=[],
        job=found,
        row=None,
        back=to,
        left_s=job_time_left_s(context, found),
        reason_of_many=flash_messages.describe_reason,
    )


async def submit_cancel(request: web.Request) -> web.StreamResponse:
    """Cancel a bulk job after its current slice."""
    form, found = await read_form(request), _cancel(request)
    to = own_path_or(form.raw("next"), "")
    raise web.HTTPSeeOther(context_of(request).urls.to("bulk-job", job=found.number, next=to))


async def submit_undo(request: web.Request) -> web.StreamResponse:
    """Undo an action."""
    form = await read_form(request)
    job = await bulk.undo_action(request, request.match_info["token"])
    to = own_path_or(form.raw("next"), context_of(request).urls.to("queues"))
    raise web.HTTPSeeOther(next_page_after(request, job, to))


async def live_bulk(request: web.Request, argument: str, _ids: object) -> dict[str, Any]:
    """Return the live values for a bulk job's page."""
    context = context_of(request)
    found = find_job(request, int(argument)) if argument.isdecimal() else None
    if found is None:
        return {"shown": {}, "points": {}, "new": 0, "says": ""}
    left_s = job_time_left_s(context, found)
    left = "" if left_s is None else f"about {formats.format_duration(round(left_s * 1_000))} left"
    shown = {
        "bulk.done": formats.format_number(found.done),
        "bulk.handled": formats.format_number(found.handled),
        "bulk.state": str(found.state).capitalize(),
        "bulk.skipped": flash_messages.describe_skipped(found.skipped),
        "bulk.left": left,
    }
    is_over = found.state is not BulkJobState.RUNNING
    says = f"{shown['bulk.handled']} of {formats.format_number(found.total)}, {found.state}"
    return {"shown": shown, "points": {}, "new": int(is_over), "says": says}


class BulkInput(StrictInput):
    """The action to perform on a selection."""

    token: str = Field(min_length=1, max_length=100, description="selection token")
    action: Literal["requeue", "release", "move", "delete", "redrive", "restore"] = Field(
        description="action to perform on each message"
    )
    ttl_s: int | None = Field(
        None,
        ge=0,
        le=TTL_MAX_S,
        description="seconds to live; 0 means forever, null unchanged (or the default on redrive)",
    )
    target: RedriveTarget = None
    create: bool = Field(False, description="for move: create a missing target queue")
    dispatched: bool = Field(False, description="for delete: include messages held by consumers")
    rate: int | None = Field(None, ge=1, le=100_000, description="messages/s; null means no limit")
    reason: AuditReason = ""
    confirm: str | None = Field(
        None, max_length=300, description="one of the selection's to_confirm values"
    )

    def to_request(self) -> bulk.BulkRequest:
        """Convert this input to a ``BulkRequest``."""
        options = ActionOptions(
            ttl_s=self.ttl_s,
            target=self.target,
            create=self.create,
            with_dispatched=self.dispatched,
        )
        return bulk.BulkRequest(Action(self.action), options, self.rate, self.reason, self.confirm)


async def start_job(request: web.Request, asked: BulkInput) -> BulkJobView:
    """Start a bulk job on a selection. The selection token is the idempotency key."""
    job = await bulk.apply_to_selection(request, asked.token, asked.to_request())
    return BulkJobView.of_job(job)


async def find_jobs(request: web.Request, _query: FormatQuery) -> list[BulkJob]:
    """List bulk jobs from the last hour."""
    return visible_jobs(request)


async def get_job(request: web.Request) -> BulkJobView:
    """Return a bulk job's progress, or the job's audit row if the broker has since restarted."""
    number = job_number(request)
    found = find_job(request, number)
    if found is not None:
        return BulkJobView.of_job(found)
    return BulkJobView.of_row(number, await stored_job(request, number))


async def cancel_job(request: web.Request, _asked: EmptyInput) -> BulkJobView:
    """Cancel a bulk job after its current slice. Changes already made are kept."""
    if find_job(request, job_number(request)) is None:
        return await get_job(request)
    return BulkJobView.of_job(_cancel(request))


def _cancel(request: web.Request) -> BulkJob:
    found = find_job(request, job_number(request))
    if found is None:
        raise unknown_job(job_number(request))
    audit_entry(request, target=str(found.number))
    context_of(request).actions.jobs.cancel(found)
    return found


async def undo_action(request: web.Request, _asked: EmptyInput) -> BulkJobView:
    """Undo an action. The undo runs as a bulk job."""
    return BulkJobView.of_job(await bulk.undo_action(request, request.match_info["token"]))


async def _list_values(_request: web.Request, _query: object, found: object) -> dict[str, Any]:
    return {"jobs": found, "job": None, "row": None}


ROUTES: Final = (
    Route("GET", "/bulk/{job}", Role.OPERATOR, "bulk-job", show_job),
    Route("POST", "/bulk/{job}/cancel", Role.OPERATOR, "bulk-cancel", submit_cancel, "bulk.cancel"),
    Route("POST", "/undo/{token}", Role.OPERATOR, "undo", submit_undo, "undo"),
    api_route(
        "POST", "/api/v1/bulk", Role.OPERATOR, "api-bulk-start", start_job, "bulk.start",
        status=202,
    ),
    *Resource(
        run=find_jobs, role=Role.OPERATOR, view_model=ListPage[BulkJobView],
        view=lambda _request, found: ListPage[BulkJobView](
            items=[BulkJobView.of_job(job) for job in found]
        ),
        page=Page("/bulk", "bulk", "bulk.html", _list_values),
        api=Api("GET", "/api/v1/bulk", "api-bulk"),
    ).routes(),
    api_route("GET", "/api/v1/bulk/{job}", Role.OPERATOR, "api-bulk-job", get_job),
    api_route(
        "POST", "/api/v1/bulk/{job}/cancel", Role.OPERATOR, "api-bulk-cancel", cancel_job,
        "bulk.cancel",
    ),
    api_route(
        "POST", "/api/v1/undo/{token}", Role.OPERATOR, "api-undo", undo_action, "undo", status=202,
        cli="message undo",
    ),
)  # fmt: skip
