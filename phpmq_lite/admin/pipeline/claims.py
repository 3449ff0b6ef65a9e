"""Claims held by a subscription (``docs/guides/pipeline.md``)."""

from typing import Final

from aiohttp import web
from pydantic import BaseModel, Field

from phpmq_lite.admin.context import context_of
from phpmq_lite.admin.formats import plural
from phpmq_lite.admin.http import confirmation
from phpmq_lite.admin.http.browser_sessions import FlashMessage
from phpmq_lite.admin.http.call import Call
from phpmq_lite.admin.http.confirmation import Confirmation
from phpmq_lite.admin.http.fields import (
    QueryModel,
    StrictInput,
    SubscriptionName,
    check_queue_name,
    check_text,
    read_form,
)
from phpmq_lite.admin.http.identity import identity_of
from phpmq_lite.admin.http.permissions import check_queue_right, may_use
from phpmq_lite.admin.http.problems import Problem
from phpmq_lite.admin.http.rendering import render_page
from phpmq_lite.admin.http.request_audit import audit_entry, keep_audit_entry
from phpmq_lite.admin.http.responses import ResponseModel
from phpmq_lite.admin.http.route import Role
from phpmq_lite.admin.resource import api_route
from phpmq_lite.admin.urls import own_path_or
from phpmq_lite.broker.pipeline import claims
from phpmq_lite.queue_settings import LONGEST_NAME
from phpmq_lite.storage.read.consumers import StoredPipeline, SubscriptionRow

CLAIM_MAX: Final = 100_000  # maximum number of messages per call
CLAIM_BYTES: Final = 1 << 30
NUMBER_MAX: Final = (1 << 63) - 1


class _ClaimsInput(StrictInput):
    subscription: SubscriptionName


class ClaimInput(_ClaimsInput):
    """The messages to claim; open claims numbered above ``after`` are returned before new ones."""

    queue: str = Field(min_length=1, max_length=LONGEST_NAME, description="queue name")
    max_messages: int = Field(10_000, ge=1, le=CLAIM_MAX, description="maximum number of messages")
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


async def claim_messages(request: web.Request, asked: ClaimInput) -> ClaimView:
    """Claim messages for a subscription. The first call creates the subscription."""
    context = context_of(request)
    check_queue_name(asked.queue)
    entry = audit_entry(request, target=asked.subscription, detail=asked.queue)
    check_queue_right(request, asked.queue)
    await _check_subscription(request, asked.subscription)
    hi = await context.engine.run(
        claims.claim, entry, asked.subscription, asked.queue, asked.max_messages, asked.max_bytes,
        after=asked.after,
    )  # fmt: skip
    keep_audit_entry(request)
    return ClaimView(hi=hi)


async def get_subscription(request: web.Request, query: SubscriptionQuery) -> SubscriptionView:
    """Return a subscription's progress."""
    return SubscriptionView.of(await find_subscription(request, query.subscription))


async def ack_claimed(request: web.Request, asked: AckInput) -> AckView:
    """Settle claims as acked. Repeating the call has no effect."""
    context = context_of(request)
    entry = audit_entry(request, target=asked.subscription)
    await _check_subscription(request, asked.subscription)
    acked = await context.engine.run(claims.ack_claims, entry, asked.subscription, asked.upto)
    keep_audit_entry(request)
    return AckView(acked=acked)


async def release_claimed(request: web.Request, asked: ReleaseInput) -> ReleaseView:
    """Release a subscription's messages, which return to their positions in the queue."""
    context = context_of(request)
    entry = audit_entry(request, target=asked.subscription)
    await _check_subscription(request, asked.subscription)
    released = await context.engine.run(
        claims.release_claims, entry, asked.subscription, forget=asked.forget
    )
    return ReleaseView(released=released)


async def find_subscription(request: web.Request, name: str) -> SubscriptionRow:
    """Return the stored row of a subscription.

    Raises:
        Problem: 404 if there is no such subscription, 403 if the caller cannot use its queue.
    """
    found = await _find(request, name)
    if found is None:
        raise Problem(404, "unknown_subscription", f"There is no subscription {name!r}.",
                      field="subscription")  # fmt: skip
    _check_right(request, found)
    return found


async def _check_subscription(request: web.Request, name: str) -> None:
    """Reject an invalid name, or a subscription to a queue that the caller is not allowed to use.

    Read the subscription only if the caller is limited to some queues; this reads a row per claim.
    """
    check_text(name, "subscription")
    if identity_of(request).queues and (found := await _find(request, name)) is not None:
        _check_right(request, found)


async def _find(request: web.Request, name: str) -> SubscriptionRow | None:
    check_text(name, "subscription")
    return await StoredPipeline(context_of(request).readers).subscription(name)


def _check_right(request: web.Request, row: SubscriptionRow) -> None:
    """Reject a subscription if the caller is not allowed to use its queue; do not name the queue.

    Raises:
        Problem: 403.
    """
    if not may_use(request, row.queue or ""):
        identity = identity_of(request)
        raise Problem(
            403, "foreign_queue", f"{identity.actor!r} is not allowed to use the queue of "
            f"subscription {row.name!r}.", field="subscription", bound=", ".join(identity.queues),
        )  # fmt: skip


_CLAIMS: Final = "/api/v1/pipeline/claims"


# -- releasing claims


async def show_release_form(request: web.Request, name: str, queue: str) -> web.StreamResponse:
    """Ask for confirmation before claims are released; ``queue`` names the page to return to."""
    context = context_of(request)
    if not identity_of(request).role.may(Role.OPERATOR):
        raise Problem(403, "role", "Releasing claims requires the operator role.",
                      bound=Role.OPERATOR.value)  # fmt: skip
    row = await find_subscription(request, name)
    urls = context.urls
    to = urls.to("queue", q=queue, tab="consumers") if queue else urls.to("insights", tab="claims")
    title = f"Release {row.count:,} {plural(row.count, 'claim', 'claims')}"
    ask = Confirmation(
        title=title, button=title, queue=row.name, is_danger=True,
        text="The claimed messages return to their positions in the queue, where other consumers "
        "can receive them. A query that is still processing them is not notified: its output is "
        "kept, and the messages are delivered again.",
        url=urls.to("insights-release"), back=to, crumbs=[("Claims", to)],
        hidden=[("subscription", row.name)],
        fields=[("check_field", (
            "forget", "Also delete the subscription",
            "Claim numbers then start over, and existing checkpoints become invalid.",
        ))],
        typed=confirmation.texts_to_type(context.settings, row.count, [row.name]),
    )  # fmt: skip
    return await render_page(request, "confirm.html", ask=ask)


async def submit_release(request: web.Request) -> web.StreamResponse:
    """Release a subscription's messages, which return to their positions in the queue."""
    context, form = context_of(request), await read_form(request)
    name = form.text("subscription", 255)
    entry = audit_entry(request, target=name, reason=form.reason())
    row = await find_subscription(request, name)
    confirmation.check_typed_text(
        confirmation.texts_to_type(context.settings, row.count, [row.name]), form.raw("confirm")
    )
    count = await context.engine.run(claims.release_claims, entry, name, forget=form.flag("forget"))
    goes = plural(count, "message returned to the queue", "messages returned to the queue")
    Call.of(request).tell(FlashMessage(f"{count:,} {goes}; {name} no longer holds messages."))
    raise web.HTTPSeeOther(own_path_or(form.raw("next"), context.urls.to("insights", tab="claims")))


ROUTES: Final = (
    api_route(
        "POST", f"{_CLAIMS}/claim", Role.OPERATOR, "api-claims-claim", claim_messages,
        "claims.claim",
    ),
    api_route("GET", f"{_CLAIMS}/state", Role.OPERATOR, "api-claims-state", get_subscription),
    api_route("POST", f"{_CLAIMS}/ack", Role.OPERATOR, "api-claims-ack", ack_claimed, "claims.ack"),
    api_route(
        "POST", f"{_CLAIMS}/release", Role.OPERATOR, "api-claims-release", release_claimed,
        "claims.release",
    ),
)  # fmt: skip
