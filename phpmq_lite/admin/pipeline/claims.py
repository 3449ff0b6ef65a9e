"""Claims held by a subscription (``docs/guides/pipeline.md``)."""

from typing import Final

from pydantic import BaseModel, Field

from phpmq_lite.admin.formats import count_of, plural
from phpmq_lite.admin.http.call import Call
from phpmq_lite.admin.http.confirmation import Confirmation, texts_to_type
from phpmq_lite.admin.http.endpoint import Done, Endpoints
from phpmq_lite.admin.http.fields import QueryModel, StrictInput, SubscriptionName
from phpmq_lite.admin.http.input import check_queue_name, check_text
from phpmq_lite.admin.http.output import ResponseModel
from phpmq_lite.admin.http.problems import Problem
from phpmq_lite.broker.pipeline import claims
from phpmq_lite.queue_settings import LONGEST_NAME
from phpmq_lite.roles import Role
from phpmq_lite.storage.read.consumers import StoredPipeline, SubscriptionRow

CLAIM_BYTES: Final = 1 << 30
NUMBER_MAX: Final = (1 << 63) - 1
endpoints: Final = Endpoints()


class _ClaimsInput(StrictInput):
    subscription: SubscriptionName


class ClaimInput(_ClaimsInput):
    """The messages to claim; open claims numbered above ``after`` are returned before new ones."""

    queue: str = Field(min_length=1, max_length=LONGEST_NAME, description="queue name")
    max_messages: int = Field(
        10_000, ge=1, le=claims.CLAIM_MAX, description="maximum number of messages"
    )
    max_bytes: int = Field(64 << 20, ge=1, le=CLAIM_BYTES, description="maximum total body size")
    after: int | None = Field(
        None,
        ge=0,
        le=NUMBER_MAX,
        description="last claim number received; later open claims are returned before new ones; "
        "null for new claims only",
    )


class ClaimView(BaseModel):
    """The number of the last claim."""

    hi: int = Field(description="number of the last claim; 0 if there are no claims")


class SubscriptionQuery(QueryModel):
    """The subscription to query."""

    subscription: SubscriptionName


class SubscriptionView(ResponseModel):
    """A subscription; claims up to ``acked`` are settled, and ``count`` claims are open."""

    queue: str | None = Field(description="queue name; null if the queue no longer exists")
    acked: int = Field(
        validation_alias="acked_upto", description="all claims up to this number are settled"
    )
    hi: int = Field(description="number of the last claim; 0 if there are no claims")
    oldest_at_ms: int | None = Field(
        description="time of the oldest open claim, Unix ms; null if none"
    )
    count: int = Field(description="number of claims that are neither acknowledged nor released")


class SubscriptionClaimsView(ResponseModel):
    """A subscription and its open claims."""

    subscription: str = Field(validation_alias="name")
    queue: str | None
    claims: int = Field(validation_alias="count")
    bytes: int
    oldest_at: int | None = Field(validation_alias="oldest_at_ms")
    acked: int = Field(validation_alias="acked_upto")
    hi: int
    created_at: int


class AckInput(_ClaimsInput):
    """The claims to settle: all up to and including ``upto``."""

    upto: int = Field(ge=0, le=NUMBER_MAX, description="last claim to settle, inclusive")


class AckView(BaseModel):
    """The number of claims settled by this call."""

    acked: int = Field(description="claims settled by this call; 0 if the call is repeated")


class ReleaseInput(_ClaimsInput):
    """The subscription whose claims are released; ``forget`` also deletes the subscription."""

    forget: bool = Field(False, description="whether to also delete the subscription")


class ReleaseView(BaseModel):
    """The number of released messages."""

    released: int = Field(description="messages returned to their positions in the queue")


@endpoints.api("POST /pipeline/claims/claim", "api-claims-claim", Role.OPERATOR, "claims.claim")
async def claim_messages(call: Call, body: ClaimInput) -> ClaimView:
    """Claim messages for a subscription. The first call creates the subscription."""
    check_queue_name(body.queue)
    call.audit(body.subscription, detail=body.queue)
    call.check_queue(body.queue)
    await _check_subscription(call, body.subscription)
    bounds = body.max_messages, body.max_bytes
    hi = await call.run(claims.claim, body.subscription, body.queue, *bounds, after=body.after)
    call.is_audit_deferred = True
    return ClaimView(hi=hi)


@endpoints.api("GET /pipeline/claims/state", "api-claims-state", Role.OPERATOR)
async def get_subscription(call: Call, query: SubscriptionQuery) -> SubscriptionView:
    """Return a subscription's progress."""
    return SubscriptionView.of(await find_subscription(call, query.subscription))


@endpoints.api("POST /pipeline/claims/ack", "api-claims-ack", Role.OPERATOR, "claims.ack")
async def ack_claimed(call: Call, body: AckInput) -> AckView:
    """Settle claims as acked. Repeating the call has no effect."""
    call.audit(body.subscription)
    await _check_subscription(call, body.subscription)
    acked = await call.run(claims.ack_claims, body.subscription, body.upto)
    call.is_audit_deferred = True
    return AckView(acked=acked)


@endpoints.api(
    "POST /pipeline/claims/release", "api-claims-release", Role.OPERATOR, "claims.release"
)
async def release_claimed(call: Call, body: ReleaseInput) -> ReleaseView:
    """Release a subscription's messages, which return to their positions in the queue."""
    call.audit(body.subscription)
    await _check_subscription(call, body.subscription)
    released = await call.run(claims.release_claims, body.subscription, forget=body.forget)
    return ReleaseView(released=released)


async def find_subscription(call: Call, name: str) -> SubscriptionRow:
    """Return a subscription's row; raise ``Problem``: 404, or 403 without access to its queue."""
    row = await _find(call, name)
    if row is None:
        detail = f"There is no subscription {name!r}."
        raise Problem(404, "unknown_subscription", detail, field="subscription")
    _check_right(call, row)
    return row


async def read_claims(call: Call) -> list[SubscriptionClaimsView]:
    """Return the subscriptions visible to the caller, those with the oldest claims first."""
    rows = await StoredPipeline(call.context.readers).subscriptions()
    views = [SubscriptionClaimsView.of(row) for row in rows if call.may_use(row.queue or "")]
    views.sort(key=lambda row: (row.oldest_at or 1 << 62, row.subscription))
    return views


async def _check_subscription(call: Call, name: str) -> None:
    """Reject an invalid name, or a subscription to a queue that the caller is not allowed to use.

    Read the subscription only if the caller is limited to some queues; this reads a row per claim.
    """
    check_text(name, "subscription")
    if call.identity.queues and (row := await _find(call, name)) is not None:
        _check_right(call, row)


async def _find(call: Call, name: str) -> SubscriptionRow | None:
    check_text(name, "subscription")
    return await StoredPipeline(call.context.readers).subscription(name)


def _check_right(call: Call, row: SubscriptionRow) -> None:
    """Raise a 403 ``Problem`` without the queue's name if the caller cannot use the queue."""
    if not call.may_use(row.queue or ""):
        detail = f"{call.actor!r} is not allowed to use the queue of subscription {row.name!r}."
        bound = ", ".join(call.identity.queues)
        raise Problem(403, "foreign_queue", detail, field="subscription", bound=bound)


# -- releasing claims from a page


async def ask_release(call: Call, name: str, queue: str = "") -> Confirmation:
    """Return the confirmation before claims are released; ``queue`` is the page to return to."""
    if not call.identity.role.may(Role.OPERATOR):
        detail = "Releasing claims requires the operator role."
        raise Problem(403, "role", detail, bound=Role.OPERATOR.value)
    row = await find_subscription(call, name)
    back = call.url("insights", tab="claims")
    if queue:
        back = call.url("queue", q=queue, tab="consumers")
    title = f"Release {count_of(row.count, 'claim', 'claims')}"
    forget_help = "Claim numbers then start over, and existing checkpoints become invalid."
    return Confirmation(
        title=title,
        button=title,
        queue=row.name,
        is_danger=True,
        text="The claimed messages return to their positions in the queue, where other consumers "
        "can receive them. A query that is still processing them is not notified: its output is "
        "kept, and the messages are delivered again.",
        url=call.url("insights-release"),
        back=back,
        crumbs=[("Claims", back)],
        hidden=[("subscription", row.name)],
        fields=[("check_field", ("forget", "Also delete the subscription", forget_help))],
        typed=texts_to_type(call.context.settings, row.count, [row.name]),
    )


@endpoints.action("/insights/release", "insights-release", Role.OPERATOR, "claims.release")
async def submit_release(call: Call, body: ReleaseInput) -> Done[None]:
    """Release a subscription's messages, which return to their positions in the queue."""
    call.audit(body.subscription)
    (await ask_release(call, body.subscription)).check(await call.form())
    count = (await release_claimed(call, body)).released
    messages = plural(count, "message returned to the queue", "messages returned to the queue")
    text = f"{count:,} {messages}; {body.subscription} no longer holds messages."
    return Done(None, text, call.back(call.url("insights", tab="claims")))
