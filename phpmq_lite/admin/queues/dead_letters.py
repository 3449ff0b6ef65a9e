"""Dead letters grouped by cause, and the redrive API call."""

from dataclasses import replace
from typing import Any, Final, Self

from aiohttp import web
from pydantic import BaseModel, Field

from phpmq_lite.admin import dead_letter_queues
from phpmq_lite.admin.context import context_of, status_of
from phpmq_lite.admin.dead_letter_queues import dead_letter_queues_named
from phpmq_lite.admin.http.call import Call
from phpmq_lite.admin.http.fields import (
    EnvelopeUrn,
    FormatQuery,
    OutputFormat,
    RedriveTarget,
    StrictInput,
    TtlSeconds,
    check_queue_name,
)
from phpmq_lite.admin.http.permissions import allowed_queues, check_queue_right, queue_name_of
from phpmq_lite.admin.http.problems import Problem
from phpmq_lite.admin.http.rendering import collect_in_slices
from phpmq_lite.admin.http.request_audit import audit_entry
from phpmq_lite.admin.http.responses import ListPage, ResponseModel
from phpmq_lite.admin.http.route import Role, Route
from phpmq_lite.admin.messages import bulk
from phpmq_lite.admin.messages.search_query import group_search, parse_search, queue_search
from phpmq_lite.admin.resource import Api, Page, Resource, api_route
from phpmq_lite.broker.operator import queue_operations
from phpmq_lite.broker.operator.message_actions import ActionOptions
from phpmq_lite.operator_actions import Action
from phpmq_lite.storage.read.dead_letter_groups import (
    DEEP_LIMIT_S,
    LIMIT_S,
    SPANS,
    DeadLetterGroup,
    DeadLetterGroups,
    DeadLetterPage,
)
from phpmq_lite.storage.read.search_plan import SearchQuery


class DeadLettersPageQuery(FormatQuery):
    """Query for the dead-letter groups: how many records to read, and the output format."""

    deep: bool = Field(False, description="whether to read more records (slower)")


class DeadLetterGroupsQuery(DeadLettersPageQuery):
    """Query for the dead-letter groups in the API, where JSON is the default format."""

    format: OutputFormat = "json"


class DeadLetterGroupView(ResponseModel):
    """Dead-letter records that have the same original queue, URN, reason and cause."""

    queue: str = Field(description="dead-letter queue that contains the records")
    origin: str | None = Field(description="original queue; null if not recorded")
    urn: EnvelopeUrn
    reason: str | None = Field(description="reason for dead-lettering; null if unknown")
    cause: str | None = Field(description="worker's error with * for numbers and ids; null if none")
    count: int = Field(validation_alias="records", description="number of records")
    bytes: int = Field(validation_alias="size", description="total size of the bodies, bytes")
    first_at: int = Field(description="when the first record arrived, Unix ms")
    last_at: int = Field(description="when the newest record arrived, Unix ms")
    again: int = Field(
        validation_alias="died_again",
        description="number of records dead-lettered again after a redrive",
    )
    arrivals: list[int] = Field(
        validation_alias="bars",
        default_factory=list,
        description="number of new records in each 6-hour interval of the last 7 days",
    )
    sample_id: str = Field(description="message id of the newest record")
    q: str = Field(description="search that finds these records")

    @classmethod
    def of_group(cls, group: DeadLetterGroup) -> Self:
        """Return the view of a group, with the search that finds its records."""
        return cls.of(group, q=str(group_search(group)))


class DeadLetterGroupsView(ListPage[DeadLetterGroupView]):
    """All groups, newest first; their counts include only the records that were read."""

    looked: int = Field(description="number of records read")
    total: int = Field(description="number of records in all dead-letter queues")


GROUPS_SHOWN: Final = 200
SPARK_WIDTH: Final = 112
SPARK_HEIGHT: Final = 24


async def find_groups(request: web.Request, query: DeadLettersPageQuery) -> DeadLetterPage:
    """Group dead-letter records by queue, URN, reason and cause, newest group first."""
    context = context_of(request)
    return await DeadLetterGroups(context.readers).groups(
        context.now_ms(),
        queues=allowed_queues(request),
        names=dead_letter_queues_named(status_of(request).queues),
        limit_s=DEEP_LIMIT_S if query.deep else LIMIT_S,
    )


def _view(_request: web.Request, found: DeadLetterPage) -> DeadLetterGroupsView:
    items = [DeadLetterGroupView.of_group(group) for group in found.groups]
    return DeadLetterGroupsView(items=items, looked=found.scanned, total=found.total)


async def _values(request: web.Request, _query: object, found: DeadLetterPage) -> dict[str, Any]:
    groups = (
        (group, str(group_search(group)), read_arrivals(group))
        for group in found.groups[:GROUPS_SHOWN]
    )
    return {
        "groups": await collect_in_slices(groups, context_of(request).engine.pause),
        "more": max(0, len(found.groups) - GROUPS_SHOWN),
    }


def read_arrivals(group: DeadLetterGroup) -> str:
    """Return the sparkline points for recent arrivals, or an empty string if there are none."""
    bars = group.bars
    top = max(bars)
    if not top:
        return ""
    step = SPARK_WIDTH / (SPANS - 1)
    return " ".join(
        f"{at * step:.1f},{SPARK_HEIGHT - 1 - count / top * (SPARK_HEIGHT - 2):.1f}"
        for at, count in enumerate(bars)
    )


GROUPS: Final = Resource(
    run=find_groups, role=Role.VIEWER, view_model=DeadLetterGroupsView, view=_view,
    page=Page("/dead", "dead", "dead.html", _values),
    api=Api("GET", "/api/v1/dead", "api-dead", query=DeadLetterGroupsQuery, cli="dead-letter list"),
)  # fmt: skip


PLAN_MAX: Final = 10_000  # maximum number of records in a dry run, which starts with the oldest


class RedriveInput(StrictInput):
    """The target, time to live and rate of a redrive."""

    target: RedriveTarget = None
    ttl_s: TtlSeconds = None
    limit: int | None = Field(
        None, ge=1, le=1 << 50, description="number of oldest records to redrive; null means all"
    )
    rate: int | None = Field(None, ge=1, le=100_000, description="messages/s; null means no limit")
    q: str = Field("", max_length=1_000, description="search; empty matches all records")
    dry_run: bool = Field(False, description="whether to only report what would be done")


class RedrivePlanView(BaseModel):
    """The message counts from a dry run."""

    targets: dict[str, int] = Field(description="records that would be republished, by queue")
    quarantined: dict[str, int] = Field(
        description="republished records that would be dead-lettered again, by reason"
    )
    skipped: dict[str, int] = Field(description="records that would be skipped, by reason")


class RedrivenView(BaseModel):
    """The result of a redrive; if a rate or search is set, bulk job ``job`` redrives the rest.

    ``bypassed`` is always false, because messages are not marked as republished.
    """

    redriven: int = Field(description="number of records republished so far")
    job: int | None = Field(None, description="bulk job that redrives the rest; null if done")
    plan: RedrivePlanView | None = Field(None, description="result of a dry run, otherwise null")
    bypassed: bool = Field(
        False, description="always false, because messages are not marked as republished"
    )


async def redrive_queue(request: web.Request, asked: RedriveInput) -> RedrivenView:
    """Redrive dead letters to their original queue or a target; the suffix ``.dlq`` is optional."""
    context = context_of(request)
    name = dead_letter_queues.dead_letter_queue_of(
        status_of(request).queues, queue_name_of(request)
    )
    check_queue_right(request, name)
    if asked.target is not None:
        check_queue_name(asked.target)
        check_queue_right(request, asked.target, "target")
    options = ActionOptions(ttl_s=asked.ttl_s, target=asked.target)
    query = SearchQuery((*queue_search(name, ("ready",)).terms, *_further(asked.q).terms))
    if asked.dry_run:
        plan = await _plan(request, name, query, options, asked.limit)
        return RedrivenView(redriven=0, plan=plan)
    if asked.rate is not None or asked.q:
        order = bulk.BulkOptions(target=asked.target, ttl_s=asked.ttl_s, rate=asked.rate)
        call = Call.of(request)
        job = await bulk.act_on_search(call, Action.REDRIVE, name, order, query, asked.limit)
        return RedrivenView(redriven=job.done, job=job.number)
    count = await context.engine.run(
        queue_operations.redrive, audit_entry(request, target=name), name,
        target=asked.target, ttl_s=asked.ttl_s, limit=asked.limit, queues=allowed_queues(request),
    )  # fmt: skip
    return RedrivenView(redriven=count)


def _further(q: str) -> SearchQuery:
    """Parse a search in a single queue; reject it if it contains ``queue:`` or ``state:``."""
    query = parse_search(q)
    if query.of("queue") or query.of("state"):
        raise Problem(
            422, "bad_query", "q must not contain queue: or state:, because a redrive covers only "
            "one queue's ready records.", field="q", bound="no queue: or state:",
        )  # fmt: skip
    return query


async def _plan(
    request: web.Request, name: str, query: SearchQuery, options: ActionOptions, limit: int | None
) -> RedrivePlanView:
    context = context_of(request)
    seqs = (
        await context.search.freeze(query, queues=None, limit=min(limit or PLAN_MAX, PLAN_MAX))
    ).seqs
    options = replace(options, queues=allowed_queues(request))
    plan = await bulk.plan_redrive(context, audit_entry(request, target=name), seqs, options)
    return RedrivePlanView(targets=plan.targets, quarantined=plan.poisoned, skipped=plan.skipped)


ROUTES: Final = (
    *GROUPS.routes(),
    Route(
        "GET", "/api/v1/dead/groups", Role.VIEWER, "api-dead-groups", GROUPS.call_api,
        query=DeadLetterGroupsQuery, gives=DeadLetterGroupsView, cli="dead-letter list --by-cause",
    ),
    api_route(
        "POST", "/api/v1/dead/{q}/redrive", Role.OPERATOR, "api-redrive", redrive_queue,
        "dead.redrive", cli="dead-letter redrive",
    ),
)  # fmt: skip
