"""Dead letters grouped by cause, and the redrive API call."""

from typing import Final

from aiohttp import web
from pydantic import BaseModel, Field

from phpmq_lite.admin.dead_letter_queues import dead_letter_queue_of, dead_letter_queues_named
from phpmq_lite.admin.http.call import Call
from phpmq_lite.admin.http.endpoint import Endpoints, QueueName
from phpmq_lite.admin.http.fields import (
    Delay,
    DeliverAt,
    EnvelopeUrn,
    FormatQuery,
    OutputFormat,
    RedriveTarget,
    StrictInput,
    TtlSeconds,
)
from phpmq_lite.admin.http.input import check_queue_name
from phpmq_lite.admin.http.output import ListPage, ResponseModel
from phpmq_lite.admin.http.problems import Problem
from phpmq_lite.admin.http.templates import collect_in_slices
from phpmq_lite.admin.messages import bulk
from phpmq_lite.admin.trends import polyline
from phpmq_lite.broker.operator import queue_operations
from phpmq_lite.broker.operator.message_actions import ActionOptions
from phpmq_lite.operator_actions import Action
from phpmq_lite.roles import Role
from phpmq_lite.storage.read.dead_letter_groups import (
    DEEP_LIMIT_S,
    LIMIT_S,
    SPANS,
    DeadLetterGroups,
    DeadLetterPage,
)
from phpmq_lite.storage.search.language import (
    WAITING_STATES,
    SearchQuery,
    group_search,
    parse_search,
    queue_search,
)

GROUPS_SHOWN: Final = 200
SPARK_SIZE: Final = 112, 24  # width and height of the arrivals of a group
PLAN_MAX: Final = 10_000  # maximum number of records in a dry run, which starts with the oldest
endpoints: Final = Endpoints()


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


class DeadLetterGroupsView(ListPage[DeadLetterGroupView]):
    """All groups, newest first; their counts include only the records that were read."""

    looked: int = Field(description="number of records read")
    total: int = Field(description="number of records in all dead-letter queues")


async def find_groups(call: Call, query: DeadLettersPageQuery) -> DeadLetterPage:
    """Return the groups of the dead letters that the caller can see, newest group first."""
    return await DeadLetterGroups(call.context.readers).groups(
        call.now_ms,
        queues=call.allowed,
        names=dead_letter_queues_named(call.queues),
        limit_s=DEEP_LIMIT_S if query.deep else LIMIT_S,
    )


@endpoints.api("GET /dead", "api-dead", cli="dead-letter list")
@endpoints.api("GET /dead/groups", "api-dead-groups", cli="dead-letter list --by-cause")
async def list_groups(call: Call, query: DeadLetterGroupsQuery) -> DeadLetterGroupsView:
    """Group dead-letter records by queue, URN, reason and cause, newest group first."""
    page = await find_groups(call, query)
    items = [DeadLetterGroupView.of(group, q=str(group_search(group))) for group in page.groups]
    return DeadLetterGroupsView(items=items, looked=page.scanned, total=page.total)


@endpoints.page("/dead", "dead", data=list_groups)
async def show_groups(call: Call, query: DeadLettersPageQuery) -> web.Response:
    """Group dead-letter records by queue, URN, reason and cause, newest group first."""
    page = await find_groups(call, query)
    rows = (
        (group, str(group_search(group)), polyline(group.bars, *SPARK_SIZE, SPANS))
        for group in page.groups[:GROUPS_SHOWN]
    )
    return await call.render(
        "dead.html",
        query=query,
        page=page,
        groups=await collect_in_slices(rows, call.context.broker.pause),
        more=max(0, len(page.groups) - GROUPS_SHOWN),
    )


class RedriveInput(StrictInput):
    """The target, time to live, time and rate of a redrive."""

    target: RedriveTarget = None
    ttl_s: TtlSeconds = None
    delay_s: Delay = 0
    deliver_at: DeliverAt = None
    limit: int | None = Field(
        None, ge=1, le=1 << 50, description="number of oldest records to redrive; null means all"
    )
    rate: int | None = Field(
        None, ge=1, le=bulk.RATE_MAX, description="messages/s; null means no limit"
    )
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


@endpoints.api(
    "POST /dead/{q}/redrive",
    "api-redrive",
    Role.OPERATOR,
    "dead.redrive",
    cli="dead-letter redrive",
)
async def redrive_queue(call: Call, queue: QueueName, body: RedriveInput) -> RedrivenView:
    """Redrive dead letters to their original queue or a target; the suffix ``.dlq`` is optional."""
    name = dead_letter_queue_of(call.queues, queue)
    call.check_queue(name)
    if body.target is not None:
        check_queue_name(body.target)
        call.check_queue(body.target, "target")
    further = parse_search(body.q)
    if further.of("queue") or further.of("state"):
        detail = (
            "q must not contain queue: or state:, because a redrive covers only one queue's ready "
            "records."
        )
        raise Problem(422, "bad_query", detail, field="q", bound="no queue: or state:")
    query = SearchQuery((*queue_search(name, WAITING_STATES).terms, *further.terms))
    if body.dry_run:
        return RedrivenView(redriven=0, plan=await _plan(call, name, query, body))
    if body.rate is not None or body.q or body.delay_s or body.deliver_at is not None:
        names = ("target", "ttl_s", "rate", "delay_s", "deliver_at")
        options = bulk.BulkOptions(**{option: getattr(body, option) for option in names})
        job = await bulk.act_on_search(call, Action.REDRIVE, name, options, query, body.limit)
        return RedrivenView(redriven=job.changed, job=job.number)
    count = await call.context.broker.run(
        queue_operations.redrive,
        call.audit(name),
        name,
        target=body.target,
        ttl_s=body.ttl_s,
        limit=body.limit,
        queues=call.allowed,
    )
    return RedrivenView(redriven=count)


async def _plan(call: Call, name: str, query: SearchQuery, body: RedriveInput) -> RedrivePlanView:
    context, limit = call.context, min(body.limit or PLAN_MAX, PLAN_MAX)
    records = await context.search.freeze(query, queues=None, limit=limit)
    options = ActionOptions(ttl_s=body.ttl_s, target=body.target, queues=call.allowed)
    plan = await bulk.plan_redrive(context, call.audit(name), records.seqs, options)
    skipped = {str(reason): count for reason, count in plan.skipped.items()}
    return RedrivePlanView(targets=plan.targets, quarantined=plan.poisoned, skipped=skipped)
