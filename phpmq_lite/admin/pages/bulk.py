"""Bulk work under way and done: progress, cancel, and taking it back."""

from typing import Any, Final

from aiohttp import web

from phpmq_lite.admin import formats
from phpmq_lite.admin.access.identity import entry_of
from phpmq_lite.admin.acting import bulk, words
from phpmq_lite.admin.acting.flash import back
from phpmq_lite.admin.acting.forms import form_of
from phpmq_lite.admin.acting.job_models import JobOut
from phpmq_lite.admin.acting.jobs import JobState
from phpmq_lite.admin.acting.progress import (
    find_job,
    jobs_of,
    left_s,
    number_of,
    stored,
    total_of,
    unknown_job,
)
from phpmq_lite.admin.context import context_of
from phpmq_lite.admin.lists import as_data
from phpmq_lite.admin.pages.selections import after
from phpmq_lite.admin.render import page
from phpmq_lite.admin.requests import query_of
from phpmq_lite.admin.route import Role, Route
from phpmq_lite.admin.schemas import FormatQuery


async def jobs(request: web.Request) -> web.StreamResponse:
    """Bulk work of the last hour."""
    query, found = query_of(request, FormatQuery), jobs_of(request)
    if query.format != "html":
        return as_data(query.format, JobOut, [JobOut.of(job) for job in found])
    return await page(request, "bulk.html", jobs=found, job=None, row=None)


async def job(request: web.Request) -> web.StreamResponse:
    """One piece of bulk work: how far it is, what was passed over and why."""
    context = context_of(request)
    number = number_of(request)
    found = find_job(request, number)
    to = back(request.query.get("next", ""), context.urls.to("bulk"))
    if found is None:
        row = await stored(request, number)
        return await page(request, "bulk.html", jobs=[], job=None, row=row, number=number,
                    total=total_of(row), back=to)  # fmt: skip
    return await page(request, "bulk.html", jobs=[], job=found, row=None, back=to,
                left_s=left_s(context, found), reason_of_many=words.reason_of_many)  # fmt: skip


async def cancel(request: web.Request) -> web.StreamResponse:
    """Have bulk work stop before its next slice."""
    context, form = context_of(request), await form_of(request)
    found = find_job(request, number_of(request))
    if found is None:
        raise unknown_job(number_of(request))
    entry_of(request, target=str(found.number))
    context.acting.jobs.cancel(found)
    to = context.urls.to("bulk-job", job=found.number, next=back(form.raw("next"), ""))
    raise web.HTTPSeeOther(to)


async def undo(request: web.Request) -> web.StreamResponse:
    """Take an action back."""
    context, form = context_of(request), await form_of(request)
    done = await bulk.take_back(request, request.match_info["token"])
    to = back(form.raw("next"), context.urls.to("queues"))
    raise web.HTTPSeeOther(after(request, done, to))


async def live_bulk(request: web.Request, argument: str, _ids: object) -> dict[str, Any]:
    """Give what changes on the page of one piece of bulk work."""
    context = context_of(request)
    found = find_job(request, int(argument)) if argument.isdecimal() else None
    if found is None:
        return {"shown": {}, "points": {}, "new": 0, "says": ""}
    shown = {
        "bulk.done": formats.number(found.done),
        "bulk.handled": formats.number(found.handled),
        "bulk.state": str(found.state).capitalize(),
        "bulk.skipped": words.passed_over(found.skipped),
        "bulk.left": _left(left_s(context, found)),
    }
    is_over = found.state is not JobState.RUNNING
    says = f"{shown['bulk.handled']} of {formats.number(found.total)}, {found.state}"
    return {"shown": shown, "points": {}, "new": int(is_over), "says": says}


def _left(seconds: float | None) -> str:
    return "" if seconds is None else f"about {formats.duration(round(seconds * 1_000))} left"


ROUTES: Final = (
    Route("GET", "/bulk", Role.OPERATOR, "bulk", jobs),
    Route("GET", "/bulk/{job}", Role.OPERATOR, "bulk-job", job),
    Route("POST", "/bulk/{job}/cancel", Role.OPERATOR, "bulk-cancel", cancel, "bulk.cancel"),
    Route("POST", "/undo/{token}", Role.OPERATOR, "undo", undo, "undo"),
)
