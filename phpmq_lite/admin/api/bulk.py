"""Bulk work over HTTP: start it with a selection, look at it, cancel it, take it back."""

from typing import Final, Literal

from aiohttp import web
from pydantic import BaseModel, ConfigDict, Field

from phpmq_lite.admin.access.identity import entry_of
from phpmq_lite.admin.acting import bulk
from phpmq_lite.admin.acting.job_models import JobOut
from phpmq_lite.admin.acting.progress import find_job, jobs_of, number_of, stored
from phpmq_lite.admin.context import context_of
from phpmq_lite.admin.lists import as_json
from phpmq_lite.admin.requests import json_of
from phpmq_lite.admin.route import Role, Route
from phpmq_lite.admin.schemas import TTL_MAX_S
from phpmq_lite.broker.operator.message_actions import Action, ActionOptions
from phpmq_lite.queue_settings import LONGEST_NAME


class _In(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class BulkIn(_In):
    """What to do to a selection."""

    token: str = Field(min_length=1, max_length=100)  # repeated, it answers with the same job
    action: Literal["requeue", "release", "move", "delete", "redrive", "restore"]
    ttl_s: int | None = Field(None, ge=0, le=TTL_MAX_S)
    target: str | None = Field(None, min_length=1, max_length=LONGEST_NAME)  # move, redrive
    create: bool = False  # move: make the target
    dispatched: bool = False  # delete: also what consumers hold
    rate: int | None = Field(None, ge=1, le=100_000)  # messages a second
    reason: str = Field("", max_length=500)  # for the audit
    confirm: str | None = Field(None, max_length=300)  # one of the selection's to_confirm

    def asked(self) -> bulk.Asked:
        """Give it as acting takes it."""
        options = ActionOptions(
            ttl_s=self.ttl_s,
            target=self.target,
            create=self.create,
            with_dispatched=self.dispatched,
        )
        return bulk.Asked(Action(self.action), options, self.rate, self.reason, self.confirm)


class NothingIn(_In):
    """An empty object."""


class JobsOut(BaseModel):
    """Bulk work of the last hour, newest first."""

    items: list[JobOut]


async def start(request: web.Request) -> web.StreamResponse:
    """Act on a selection in the background; its token is the idempotency key."""
    asked = await json_of(request, BulkIn)
    job = await bulk.apply(request, asked.token, asked.asked())
    return as_json(JobOut.of(job), 202)


async def jobs(request: web.Request) -> web.StreamResponse:
    """List bulk work of the last hour."""
    return as_json(JobsOut(items=[JobOut.of(job) for job in jobs_of(request)]))


async def job(request: web.Request) -> web.StreamResponse:
    """Tell how far bulk work is; of before a restart, what the audit has."""
    number = number_of(request)
    found = find_job(request, number)
    if found is not None:
        return as_json(JobOut.of(found))
    return as_json(JobOut.of_row(number, await stored(request, number)))


async def cancel(request: web.Request) -> web.StreamResponse:
    """Have bulk work stop before its next slice; what is done stays done."""
    await json_of(request, NothingIn)
    number = number_of(request)
    found = find_job(request, number)
    if found is None:
        row = await stored(request, number)
        return as_json(JobOut.of_row(number, row))
    entry_of(request, target=str(number))
    context_of(request).acting.jobs.cancel(found)
    return as_json(JobOut.of(found))


async def undo(request: web.Request) -> web.StreamResponse:
    """Take an action back; that is bulk work too."""
    await json_of(request, NothingIn)
    return as_json(JobOut.of(await bulk.take_back(request, request.match_info["token"])), 202)


ROUTES: Final = (
    Route(
        "POST", "/api/v1/bulk", Role.OPERATOR, "api-bulk-start", start, "bulk.start",
        takes=BulkIn, gives=JobOut, status=202,
    ),
    Route("GET", "/api/v1/bulk", Role.OPERATOR, "api-bulk", jobs, gives=JobsOut),
    Route("GET", "/api/v1/bulk/{job}", Role.OPERATOR, "api-bulk-job", job, gives=JobOut),
    Route(
        "POST", "/api/v1/bulk/{job}/cancel", Role.OPERATOR, "api-bulk-cancel", cancel,
        "bulk.cancel", takes=NothingIn, gives=JobOut,
    ),
    Route(
        "POST", "/api/v1/undo/{token}", Role.OPERATOR, "api-undo", undo, "undo",
        takes=NothingIn, gives=JobOut, status=202,
    ),
)  # fmt: skip
