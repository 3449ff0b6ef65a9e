"""Bulk work as somebody may see it: what is remembered, and what the audit has of the rest."""

import json
from typing import Final

from aiohttp import web

from phpmq_lite.admin.access.identity import Identity, identity_of
from phpmq_lite.admin.acting.jobs import Job, JobState
from phpmq_lite.admin.context import Context, context_of
from phpmq_lite.admin.problems import Problem
from phpmq_lite.storage.read.audit import BulkJobLog, BulkJobRow

BULK_PREFIXES: Final = ("message.", "queue.", "undo", "dead.")
NUMBER_DIGITS: Final = 18


def number_of(request: web.Request) -> int:
    """Give the number of the work that the path names."""
    text = request.match_info["job"]
    if not (text.isascii() and text.isdecimal() and len(text) <= NUMBER_DIGITS):
        raise unknown_job(text)
    return int(text)


def jobs_of(request: web.Request) -> list[Job]:
    """Give the jobs that somebody may see: all of them, or their own where rights are limited."""
    identity = identity_of(request)
    return [job for job in context_of(request).acting.jobs.all if _may_see(identity, job.owner)]


def find_job(request: web.Request, number: int) -> Job | None:
    """Give a job that is remembered, None where there is none."""
    found = context_of(request).acting.jobs.find(number)
    return found if found is not None and _may_see(identity_of(request), found.owner) else None


def _may_see(identity: Identity, owner: str) -> bool:
    return not identity.queues or identity.actor == owner


def unknown_job(number: object) -> Problem:
    """Say that there is no such work."""
    return Problem(404, "unknown_job", f"There is no bulk work {number}.")


async def stored(request: web.Request, number: int) -> BulkJobRow:
    """Give what the audit has of work that is not remembered: of before a restart, or long ago."""
    row = await BulkJobLog(context_of(request).readers).row(number)
    is_bulk = row is not None and row.action.startswith(BULK_PREFIXES)
    if row is None or not is_bulk or not _may_see(identity_of(request), row.actor):
        raise unknown_job(number)
    return row


def total_of(row: BulkJobRow) -> int | None:
    """Give how many messages were selected, as far as the audit says so."""
    try:
        total = json.loads(row.detail)["total"]
    except (ValueError, KeyError, TypeError):
        return None
    return total if isinstance(total, int) else None


def left_s(context: Context, job: Job) -> float | None:
    """Estimate how long it still takes; None where nothing is known yet."""
    spent_ms = context.now_ms() - job.started_at
    if job.state is not JobState.RUNNING or not job.handled or spent_ms < 1_000:
        return None
    return spent_ms / job.handled * (job.total - job.handled) / 1_000
