"""Claims over HTTP: how Spark consumes a queue (``docs/pipeline.md``)."""

from typing import Final

from aiohttp import web
from pydantic import BaseModel, ConfigDict, Field

from phpmq_lite.admin.access.identity import (
    check_queue_right,
    entry_of,
    identity_of,
    leave_entry,
    may_use,
)
from phpmq_lite.admin.acting import pipeline
from phpmq_lite.admin.context import context_of
from phpmq_lite.admin.lists import as_json
from phpmq_lite.admin.problems import Problem
from phpmq_lite.admin.requests import check_queue_name, check_text, json_of, query_of
from phpmq_lite.admin.route import Role, Route
from phpmq_lite.queue_settings import LONGEST_NAME
from phpmq_lite.storage.read.consumers import PipelineReaders, SubscriptionRow

CLAIM_MAX: Final = 100_000  # messages in one call
CLAIM_BYTES: Final = 1 << 30
NUMBER_MAX: Final = (1 << 63) - 1


class _In(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    subscription: str = Field(min_length=1, max_length=255)


class ClaimIn(_In):
    """What to claim; claims behind ``after`` are answered before anything new is claimed."""

    queue: str = Field(min_length=1, max_length=LONGEST_NAME)
    max_messages: int = Field(10_000, ge=1, le=CLAIM_MAX)
    max_bytes: int = Field(64 << 20, ge=1, le=CLAIM_BYTES)
    after: int | None = Field(None, ge=0, le=NUMBER_MAX)


class ClaimOut(BaseModel):
    """The number of the last claim; those not acknowledged yet lie at or below it."""

    hi: int


class StateQuery(BaseModel):
    """Which subscription to look at."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    subscription: str = Field(min_length=1, max_length=255)


class StateOut(BaseModel):
    """A subscription; claims up to ``acked`` are settled, ``count`` are open."""

    queue: str | None
    acked: int
    hi: int
    oldest_at_ms: int | None  # when the oldest open one was claimed
    count: int


class AckIn(_In):
    """Claims to settle: all up to ``upto``, itself included."""

    upto: int = Field(ge=0, le=NUMBER_MAX)


class AckOut(BaseModel):
    """How many claims this call settled; 0 when it is repeated."""

    acked: int


class ReleaseIn(_In):
    """Whose claims go back; ``forget`` takes the subscription away with them."""

    forget: bool = False


class ReleaseOut(BaseModel):
    """How many messages went back to their places."""

    released: int


async def claim(request: web.Request) -> web.StreamResponse:
    """Claim messages for a subscription; the first call makes it."""
    context, asked = context_of(request), await json_of(request, ClaimIn)
    check_queue_name(asked.queue)
    entry = entry_of(request, target=asked.subscription, detail=asked.queue)
    check_queue_right(request, asked.queue)
    await _check_subscription(request, asked.subscription)
    hi = await pipeline.claim(
        context, entry, asked.subscription, asked.queue,
        max_messages=asked.max_messages, max_bytes=asked.max_bytes, after=asked.after,
    )  # fmt: skip
    leave_entry(request)
    return as_json(ClaimOut(hi=hi))


async def state(request: web.Request) -> web.StreamResponse:
    """Say how far a subscription is."""
    row = await subscription_of(request, query_of(request, StateQuery).subscription)
    return as_json(
        StateOut(queue=row.queue, acked=row.acked_upto, hi=row.hi,
                 oldest_at_ms=row.oldest_at_ms, count=row.count)
    )  # fmt: skip


async def ack(request: web.Request) -> web.StreamResponse:
    """Settle claims as acked; a repeated call settles nothing."""
    context, asked = context_of(request), await json_of(request, AckIn)
    entry = entry_of(request, target=asked.subscription)
    await _check_subscription(request, asked.subscription)
    acked = await pipeline.ack_claims(context, entry, asked.subscription, asked.upto)
    leave_entry(request)
    return as_json(AckOut(acked=acked))


async def release(request: web.Request) -> web.StreamResponse:
    """Send all that a subscription holds back to its place."""
    context, asked = context_of(request), await json_of(request, ReleaseIn)
    entry = entry_of(request, target=asked.subscription)
    await _check_subscription(request, asked.subscription)
    released = await pipeline.release_claims(
        context, entry, asked.subscription, forget=asked.forget
    )
    return as_json(ReleaseOut(released=released))


async def subscription_of(request: web.Request, name: str) -> SubscriptionRow:
    """Give a subscription as it is stored.

    Raises:
        Problem: 404 where there is none, 403 where its queue is not among the caller's.
    """
    found = await _find(request, name)
    if found is None:
        raise Problem(404, "unknown_subscription", f"There is no subscription {name!r}.",
                      field="subscription")  # fmt: skip
    _check_right(request, found)
    return found


async def _check_subscription(request: web.Request, name: str) -> None:
    """Refuse a subscription whose queue is not among the caller's, and what is no name.

    It is read only where somebody is limited to queues: that costs a row a claim.
    """
    check_text(name, "subscription")
    if identity_of(request).queues and (found := await _find(request, name)) is not None:
        _check_right(request, found)


async def _find(request: web.Request, name: str) -> SubscriptionRow | None:
    check_text(name, "subscription")
    return await PipelineReaders(context_of(request).readers).subscription(name)


def _check_right(request: web.Request, row: SubscriptionRow) -> None:
    """Refuse a subscription of a foreign queue, without its name: the caller named none.

    Raises:
        Problem: 403.
    """
    if not may_use(request, row.queue or ""):
        identity = identity_of(request)
        raise Problem(
            403, "foreign_queue", f"{identity.actor!r} may not use the queue of the subscription "
            f"{row.name!r}.", field="subscription", bound=", ".join(identity.queues),
        )  # fmt: skip


_CLAIMS: Final = "/api/v1/pipeline/claims"

ROUTES: Final = (
    Route(
        "POST", f"{_CLAIMS}/claim", Role.OPERATOR, "api-claims-claim", claim, "claims.claim",
        takes=ClaimIn, gives=ClaimOut,
    ),
    Route(
        "GET", f"{_CLAIMS}/state", Role.OPERATOR, "api-claims-state", state,
        query=StateQuery, gives=StateOut,
    ),
    Route(
        "POST", f"{_CLAIMS}/ack", Role.OPERATOR, "api-claims-ack", ack, "claims.ack",
        takes=AckIn, gives=AckOut,
    ),
    Route(
        "POST", f"{_CLAIMS}/release", Role.OPERATOR, "api-claims-release", release,
        "claims.release", takes=ReleaseIn, gives=ReleaseOut,
    ),
)  # fmt: skip
