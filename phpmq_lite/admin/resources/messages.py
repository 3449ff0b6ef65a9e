"""Pages of live or settled messages, and their API models."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, Self

from aiohttp import web
from pydantic import BaseModel, Field

from phpmq_lite.admin.auth.permissions import allowed_queues, require_queue
from phpmq_lite.admin.base import formats, responses
from phpmq_lite.admin.base.context import Context, context_of, status_of
from phpmq_lite.admin.base.input import (
    LIMIT_MAX,
    BodySize,
    Deliveries,
    EnvelopeUrn,
    ListQuery,
    MessageId,
    TraceId,
)
from phpmq_lite.admin.base.responses import ListPage, ResponseModel
from phpmq_lite.admin.base.search_query import traces_search
from phpmq_lite.admin.views import trace_view
from phpmq_lite.admin.views.bodies import as_content, preview
from phpmq_lite.admin.views.dead_letter_queues import dead_letter_queues_named
from phpmq_lite.model import State
from phpmq_lite.storage.read.messages import Body, MessageRow
from phpmq_lite.storage.read.search_plan import SearchQuery


class MessagesQuery(ListQuery):
    """A page of a queue's live messages."""

    state: Literal["ready", "dispatched"] | None = Field(None, description="only in this state")


class SettledQuery(ListQuery):
    """A page of a queue's settled messages."""

    outcome: Literal["acked", "expired", "dead", "deleted"] | None = None


class MessageView(ResponseModel):
    """A message without its body."""

    id: MessageId = Field(validation_alias="message_id")
    queue: str | None = Field(description="name of the queue; null: the queue no longer exists")
    state: str = Field(description="ready, dispatched, acked, expired, dead or deleted")
    seq: int = Field(description="number in order of arrival; never reused")
    position: int = Field(description="position in the queue; lower positions are dispatched first")
    published_at: int = Field(description="when it was published, Unix ms")
    first_dispatched_at: int | None = Field(description="Unix ms; null: never dispatched")
    last_dispatched_at: int | None = Field(description="Unix ms; null: never dispatched")
    settled_at: int | None = Field(description="Unix ms; null: live")
    ttl_s: int | None = Field(description="seconds to live, as published; null: never expires")
    deadline_at: int | None = Field(description="when it expires, Unix ms; null: never")
    deliveries: Deliveries
    size: BodySize
    urn: EnvelopeUrn
    trace_id: TraceId
    meta_id: str | None = Field(description="meta.id of the envelope; null: none")
    attempts: int | None = Field(description="attempts counted in the envelope; null: none")
    publisher: str | None = Field(
        validation_alias="publisher_address",
        description="the publisher's address; null: no longer known",
    )
    holder: str | None = Field(description="address of the consumer that holds it; null: none")
    reason: str | None = Field(description="more about the outcome; null: nothing")
    offset: int | None = Field(description="offset in the history; null: live")
    origin: str | None = Field(
        validation_alias="source_queue", description="queue a dead letter came from; null: none"
    )
    origin_id: str | None = Field(
        validation_alias="source_id", description="id of a dead letter's original; null: none"
    )
    origin_reason: str | None = Field(
        validation_alias="source_reason", description="why it was dead-lettered; null: it was not"
    )
    preview: str = Field(description="beginning of the body on one line; hex if it is not UTF-8")

    @classmethod
    def of_row(cls, row: MessageRow) -> Self:
        """Return the view of a stored message."""
        return cls.of(
            row,
            state=State(row.state).name.lower(),
            holder=row.consumer_address if row.state == State.DISPATCHED else None,
            preview="".join(piece.text for piece in preview(row.preview, row.size)),
        )


class EventView(ResponseModel):
    """An exceptional step in a message's life."""

    at: int = Field(validation_alias="at_ms", description="when it happened, Unix ms")
    kind: str = Field(description="requeue, return, forward, dead_letter, redrive, restore, …")
    detail: str | None = Field(description="queues, another message's id, …; null: none")


class BodyView(BaseModel):
    """A body; ``content`` is text if the body is UTF-8, otherwise base64."""

    content: str = Field(description="the body or its beginning, encoded as encoding says")
    encoding: str = Field(description="how content is encoded")
    size: int = Field(description="size of the whole body, bytes")
    is_whole: bool = Field(description="false: content is only the beginning of the body")

    @classmethod
    def of(cls, body: Body) -> Self:
        """Return the view of a body."""
        content, encoding = as_content(body.content)
        return cls(content=content, encoding=encoding, size=body.size, is_whole=body.is_whole)


@dataclass(slots=True, frozen=True)
class MessagePage:
    """A page of messages, with cursors to the adjacent pages."""

    rows: Sequence[MessageRow]
    next: str | None = None
    previous: str | None = None
    searched: int | None = None  # number of offsets searched, if the time limit was reached


async def read_messages_page(context: Context, query: MessagesQuery, queue_id: int) -> MessagePage:
    """Return a page of a queue's messages in order, with cursors."""
    scope = f"messages {queue_id} {query.state}"
    cursor = responses.decode_cursor(scope, query.cursor)
    place = responses.position_in(cursor)
    state = State[query.state.upper()] if query.state else None
    rows = await context.reader.messages(queue_id, **place, state=state, limit=query.limit)
    ends = (rows[0].position, rows[-1].position) if rows else (None, None)
    is_full = len(rows) == query.limit
    return MessagePage(
        rows, *responses.cursors_around(scope, "after", cursor, ends, has_more=is_full)
    )


async def read_history_page(
    context: Context,
    query: SettledQuery,
    queue_id: int | None,
    *,
    since: int | None = None,
    until: int | None = None,
) -> MessagePage:
    """Return a page of settled messages, newest first, with cursors.

    ``since`` (inclusive) and ``until`` (exclusive) limit when they were settled, Unix ms.
    """
    scope = f"history {queue_id} {query.outcome} {since} {until}"
    cursor = responses.decode_cursor(scope, query.cursor)
    place = responses.position_in(cursor)
    outcome = State[query.outcome.upper()] if query.outcome else None
    found = await context.reader.history(
        **place, queue_id=queue_id, outcome=outcome, since=since, until=until, limit=query.limit
    )
    ends = (found.rows[0].offset, found.rows[-1].offset) if found.rows else (None, None)
    older, newer = responses.cursors_around(
        scope, "before", cursor, ends, has_more=found.has_more, searched_to=found.searched_to
    )
    start = place.get("before", found.highest or 0)
    searched = None if found.searched_to is None else abs(start - found.searched_to)
    return MessagePage(found.rows, older, newer, searched)


@dataclass(slots=True, frozen=True)
class SearchPage:
    """A page of search results, after ``searched`` of about ``total`` messages."""

    query: SearchQuery
    rows: Sequence[MessageRow]
    next: str | None
    searched: int
    total: int
    is_done: bool
    is_full: bool = False

    @property
    def is_cut(self) -> bool:
        """Return whether the time limit was reached before the page was full."""
        return not self.is_done and self.next is not None and not self.is_full


async def read_search_page(
    request: web.Request, query: SearchQuery, cursor: str | None, limit: int
) -> SearchPage:
    """Return a page of matching messages, newest first, from the caller's visible queues."""
    context, allowed = context_of(request), allowed_queues(request)
    scope = f"search {query} {sorted(allowed) if allowed is not None else ''}"
    found = await context.search.page(
        query, queues=allowed, limit=limit,
        place=responses.pair_in(responses.decode_cursor(scope, cursor)),
    )  # fmt: skip
    goes_on = (
        None if found.next is None else responses.encode_cursor(scope, "after", list(found.next))
    )
    return SearchPage(
        query, found.rows, goes_on, found.searched, found.total, found.is_done,
        is_full=len(found.rows) >= limit,
    )  # fmt: skip


async def read_failed_attempts(request: web.Request, rows: Iterable[MessageRow]) -> frozenset[int]:
    """Return the seqs of acked rows whose attempt failed, as far as their traces show."""
    traces = {
        row.trace_id
        for row in rows
        if row.state == State.ACKED and row.trace_id is not None and row.meta_id is not None
    }
    if not traces:
        return frozenset()
    found = await read_search_page(request, traces_search(*sorted(traces)), None, LIMIT_MAX)
    return trace_view.find_failed_attempts(
        found.rows, dead_letter_queues_named(status_of(request).queues)
    )


def describe_searched(found: SearchPage) -> str:
    """Describe how far a search went: ``Searched 412,000 of about 2.1 million, newest first``."""
    return (
        f"Searched {formats.format_number(found.searched)} of about "
        f"{format_about(found.total)}, newest first."
    )


def format_about(count: int) -> str:
    """Format a large count approximately: ``2.1 million``, ``412,000``."""
    if count >= 999_500:
        return f"{count / 1e6:.1f}".removesuffix(".0") + " million"
    digits = max(0, len(str(count)) - 3)
    return formats.format_number(round(count, -digits))


def messages_view(rows: Iterable[MessageRow], next_: str | None = None) -> ListPage[MessageView]:
    """Return the API view of a page of messages."""
    return ListPage[MessageView](items=[MessageView.of_row(row) for row in rows], next=next_)


async def list_queue_messages(request: web.Request, query: MessagesQuery) -> ListPage[MessageView]:
    """List a queue's messages in order, without their bodies."""
    queue_id = require_queue(request).queue_id
    listed = await read_messages_page(context_of(request), query, queue_id)
    return messages_view(listed.rows, listed.next)
