"""The clock over HTTP: whether it was set, and the decision where it was far ahead at a start."""

from typing import Final, Literal

from aiohttp import web
from pydantic import BaseModel, ConfigDict

from phpmq_lite.admin.access.identity import entry_of, identity_of
from phpmq_lite.admin.context import Context, context_of
from phpmq_lite.admin.lists import as_json
from phpmq_lite.admin.problems import Problem
from phpmq_lite.admin.requests import json_of
from phpmq_lite.admin.route import Role, Route

COUNTED: Final = 1_000_000  # messages that would expire; more are not counted
Decision = Literal["expire", "keep"]


class ClockOut(BaseModel):
    """What the broker knows of its clock."""

    now_ms: int  # Unix ms
    jumps: int  # times it was set since the start, the last time away included
    last_jump_ms: int  # the last of them: ahead, or back where it is negative
    doubt_ms: int  # away for so long, or set ahead by so much; 0: nothing to decide
    would_expire: int | None  # ready messages that expire if that time counts; None: no doubt


class DecisionIn(BaseModel):
    """What is to count."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    decision: Decision  # expire: the clock is right, the time counts; keep: it was set
    reason: str = ""


async def clock_of(context: Context) -> ClockOut:
    """Read it, with what hangs on the decision."""
    status = context.engine.summary()
    doubt_ms, would_expire = status.clock_doubt_ms, None
    if doubt_ms:
        rows = await context.readers.read(
            "clock", "would_expire", moment=status.clock_steady_ms + doubt_ms,
            number=status.clock_doubt_number, most=COUNTED,
        )  # fmt: skip
        would_expire = int(rows[0][0])
    return ClockOut(
        now_ms=context.now_ms(),
        jumps=status.clock_jumps,
        last_jump_ms=status.clock_jump_ms,
        doubt_ms=doubt_ms,
        would_expire=would_expire,
    )


async def show(request: web.Request) -> web.StreamResponse:
    """Tell whether the clock was set, and whether somebody has to decide about it."""
    return as_json(await clock_of(context_of(request)))


async def decide(request: web.Request) -> web.StreamResponse:
    """Decide about a clock that was far ahead at a start: let the time count, or not."""
    asked = await json_of(request, DecisionIn)
    await decided(request, asked.decision, asked.reason)
    return as_json(await clock_of(context_of(request)))


async def decided(request: web.Request, decision: Decision, reason: str) -> None:
    """Have it decided, with its row of the audit.

    Raises:
        Problem: 403 for who may not see all queues.
        RefusedError: there is nothing to decide.
    """
    identity = identity_of(request)
    if identity.queues:
        raise Problem(403, "foreign_queue", "Only who may see all queues may decide this.",
                      bound=", ".join(identity.queues))  # fmt: skip
    entry = entry_of(request, target=decision, reason=reason[:1_000])
    await context_of(request).engine.decide_clock(entry, is_right=decision == "expire")


ROUTES: Final = (
    Route(
        "GET", "/api/v1/clock", Role.VIEWER, "api-clock", show, gives=ClockOut, cli="clock show",
    ),
    Route(
        "POST", "/api/v1/clock", Role.OPERATOR, "api-clock-decide", decide, "clock.decide",
        takes=DecisionIn, gives=ClockOut, cli="clock decide",
    ),
)  # fmt: skip
