"""The history over HTTP: settled messages, in either direction, numbered without gaps."""

from datetime import UTC, datetime
from typing import Final, Literal

from aiohttp import web
from pydantic import BaseModel, ConfigDict, Field

from phpmq_lite.admin.access.identity import allowed_queues
from phpmq_lite.admin.context import context_of
from phpmq_lite.admin.lists import as_data, as_json
from phpmq_lite.admin.problems import Problem, not_found
from phpmq_lite.admin.requests import find_queue, query_of
from phpmq_lite.admin.route import Role, Route
from phpmq_lite.admin.schemas import Limit, MessageOut, OutputFormat
from phpmq_lite.model import State
from phpmq_lite.queue_settings import LONGEST_NAME
from phpmq_lite.storage.read.messages import HistoryPage

OFFSET_MAX: Final = 1 << 62
Outcome = Literal["acked", "expired", "dead", "deleted"]


class HistoryIn(BaseModel):
    """Which settled messages; with neither offset the newest ones."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    after_offset: int | None = Field(None, ge=0, le=OFFSET_MAX)  # newer ones, oldest first
    before_offset: int | None = Field(None, ge=0, le=OFFSET_MAX)  # older ones, newest first
    queue: str = Field("", max_length=LONGEST_NAME)
    outcome: Outcome | None = None
    since: str = Field("", max_length=40)  # settled then or later: Unix ms, or ISO 8601
    until: str = Field("", max_length=40)  # settled before
    limit: Limit = 50
    format: OutputFormat = "json"


class HistoryOut(BaseModel):
    """Settled messages; ``offset`` of the last one goes on."""

    items: list[MessageOut]
    next: None = None
    lowest: int | None  # offsets that there are
    highest: int | None
    searched_to: int | None  # the time was over at this offset; go on from there


async def history(request: web.Request) -> web.StreamResponse:
    """List settled messages by their offset, of one queue or outcome if asked."""
    asked = query_of(request, HistoryIn)
    if asked.after_offset is not None and asked.before_offset is not None:
        raise Problem(422, "invalid", "after_offset or before_offset, not both.",
                      field="before_offset")  # fmt: skip
    queue_id = queue_id_of(request, asked.queue)
    found = await context_of(request).reader.history(
        after=asked.after_offset,
        before=asked.before_offset,
        queue_id=queue_id,
        outcome=State[asked.outcome.upper()] if asked.outcome else None,
        since=time_of(asked.since, "since"),
        until=time_of(asked.until, "until"),
        limit=asked.limit,
    )
    return _as(asked, found)


def _as(asked: HistoryIn, found: HistoryPage) -> web.Response:
    rows = found.rows if asked.after_offset is None else found.rows[::-1]
    items = [MessageOut.of(row) for row in rows]
    if asked.format in ("jsonl", "csv"):
        return as_data(asked.format, MessageOut, items)
    return as_json(
        HistoryOut(
            items=items,
            lowest=found.lowest,
            highest=found.highest,
            searched_to=found.searched_to,
        )
    )


def queue_id_of(request: web.Request, name: str) -> int | None:
    """Give the number of the queue that is asked for, None for all.

    Raises:
        Problem: 404 where there is none; 422 where all are asked for by somebody who may see
            some only.
    """
    if name:
        queue = find_queue(request, name)
        if queue is None:
            raise not_found("queue", name)
        return queue.queue_id
    if allowed_queues(request) is not None:
        raise Problem(422, "invalid", "You see some queues only: name one of them.", field="queue")
    return None


def time_of(text: str, field: str) -> int | None:
    """Read a time: Unix ms, or ISO 8601, in UTC where it names no zone.

    Raises:
        Problem: 422 where it is neither.
    """
    if not text:
        return None
    if text.isascii() and text.isdecimal() and len(text) <= 15:
        return int(text)
    try:
        at = datetime.fromisoformat(text)
        return round((at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp() * 1_000)
    except (ValueError, OverflowError):
        raise Problem(
            422, "invalid", f"{field}: {text!r} is no time.", field=field,
            bound="Unix milliseconds or 2026-01-31T15:00",
        ) from None  # fmt: skip


ROUTES: Final = (
    Route(
        "GET", "/api/v1/history", Role.VIEWER, "api-history", history,
        query=HistoryIn, gives=HistoryOut,
    ),
)  # fmt: skip
