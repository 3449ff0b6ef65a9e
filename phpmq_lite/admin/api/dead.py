"""Dead letters over HTTP."""

from dataclasses import replace
from typing import Final

from aiohttp import web
from pydantic import BaseModel, ConfigDict, Field

from phpmq_lite.admin import shelves
from phpmq_lite.admin.access.identity import allowed_queues, check_queue_right, entry_of
from phpmq_lite.admin.acting import bulk, commands
from phpmq_lite.admin.context import context_of, status_of
from phpmq_lite.admin.lists import as_json
from phpmq_lite.admin.problems import Problem
from phpmq_lite.admin.query import of_queue, parse
from phpmq_lite.admin.requests import check_queue_name, json_of, queue_name_of
from phpmq_lite.admin.route import Role, Route
from phpmq_lite.admin.schemas import TTL_MAX_S
from phpmq_lite.broker.operator.message_actions import Action, ActionOptions
from phpmq_lite.queue_settings import LONGEST_NAME
from phpmq_lite.storage.read.search_plan import SearchQuery

PLAN_MAX: Final = 10_000  # records looked at for a plan, the oldest


class RedriveIn(BaseModel):
    """Where dead-letter records go, how long they live there, and how fast."""

    model_config = ConfigDict(extra="forbid", strict=True)

    target: str | None = Field(None, min_length=1, max_length=LONGEST_NAME)  # null: where they died
    ttl_s: int | None = Field(None, ge=0, le=TTL_MAX_S)  # null: the queue's default; 0: never
    limit: int | None = Field(None, ge=1, le=1 << 50)  # the oldest only
    rate: int | None = Field(None, ge=1, le=100_000)  # messages a second, in the background
    q: str = Field("", max_length=1_000)  # a search: only those records that match
    dry_run: bool = False  # say what would happen, change nothing


class PlanOut(BaseModel):
    """What a redrive would do, in messages."""

    targets: dict[str, int]  # published again, by queue
    quarantined: dict[str, int]  # of them: dead letters again at once, by reason
    skipped: dict[str, int]  # records that would stay, by reason


class RedrivenOut(BaseModel):
    """How many went back; with a rate or a search, so far, and the ``job`` that goes on.

    ``bypassed`` is false: no message can carry a mark that it is sent again.
    """

    redriven: int
    job: int | None = None
    plan: PlanOut | None = None  # of a dry run
    bypassed: bool = False


async def redrive(request: web.Request) -> web.StreamResponse:
    """Send the records of a queue back to it, or to a target; with or without ``.dlq``."""
    context, asked = context_of(request), await json_of(request, RedriveIn)
    name = shelves.records_of(status_of(request).queues, queue_name_of(request))
    check_queue_right(request, name)
    if asked.target is not None:
        check_queue_name(asked.target)
        check_queue_right(request, asked.target, "target")
    options = ActionOptions(ttl_s=asked.ttl_s, target=asked.target)
    query = SearchQuery((*of_queue(name, ("ready",)).terms, *_further(asked.q).terms))
    if asked.dry_run:
        plan = await _plan(request, name, query, options, asked.limit)
        return as_json(RedrivenOut(redriven=0, plan=plan))
    if asked.rate is not None or asked.q:
        order = bulk.Asked(Action.REDRIVE, options, asked.rate)
        job = await bulk.on_found(request, name, order, query, asked.limit)
        return as_json(RedrivenOut(redriven=job.done, job=job.number))
    count = await commands.redrive(
        context, entry_of(request, target=name), name,
        target=asked.target, ttl_s=asked.ttl_s, limit=asked.limit, queues=allowed_queues(request),
    )  # fmt: skip
    return as_json(RedrivenOut(redriven=count))


def _further(q: str) -> SearchQuery:
    """Read a search among the records of a queue; it names neither queue nor state."""
    query = parse(q)
    if query.of("queue") or query.of("state"):
        raise Problem(
            422, "bad_query", "The search is among the ready records of the queue.",
            field="q", bound="neither queue: nor state:",
        )  # fmt: skip
    return query


async def _plan(
    request: web.Request, name: str, query: SearchQuery, options: ActionOptions, limit: int | None
) -> PlanOut:
    context = context_of(request)
    seqs = (
        await context.search.freeze(query, queues=None, limit=min(limit or PLAN_MAX, PLAN_MAX))
    ).seqs
    options = replace(options, queues=allowed_queues(request))
    plan = await commands.plan_redrive(context, entry_of(request, target=name), seqs, options)
    return PlanOut(targets=plan.targets, quarantined=plan.poisoned, skipped=plan.skipped)


ROUTES: Final = (
    Route(
        "POST", "/api/v1/dead/{q}/redrive", Role.OPERATOR, "api-redrive", redrive, "dead.redrive",
        takes=RedriveIn, gives=RedrivenOut, cli="dead redrive",
    ),
)  # fmt: skip
