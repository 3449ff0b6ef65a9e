"""Pages of live or settled messages, and their API models."""

from collections.abc import Collection, Iterable
from typing import Final, Literal, Self

from pydantic import BaseModel, Field

from phpmq_lite.admin import formats
from phpmq_lite.admin.http import cursors
from phpmq_lite.admin.http.call import Call
from phpmq_lite.admin.http.context import Context
from phpmq_lite.admin.http.endpoint import Endpoints, Queue
from phpmq_lite.admin.http.fields import (
    BodySize,
    Deliveries,
    EnvelopeUrn,
    ListQuery,
    MessageId,
    OutputFormat,
    TraceId,
)
from phpmq_lite.admin.http.output import ListPage, ResponseModel
from phpmq_lite.admin.messages.bodies import as_content, preview_envelope
from phpmq_lite.model import ALIVE, STATE_NAMES, OutcomeName, State
from phpmq_lite.storage.read.messages import Body, MessageRow
from phpmq_lite.storage.read.read_pool import Page
from phpmq_lite.storage.search.language import STATES, SearchQuery

endpoints: Final = Endpoints()


class MessagesQuery(ListQuery):
    """Query for a page of a queue's live messages."""

    state: Literal["ready", "dispatched", "scheduled", "blocked"] | None = Field(
        None, description="state to filter by; null for all live messages"
    )


class SettledQuery(ListQuery):
    """Query for a page of a queue's settled messages."""

    outcome: OutcomeName | None = None


class MessageView(ResponseModel):
    """A message without its body."""

    id: MessageId = Field(validation_alias="message_id")
    queue: str | None = Field(description="queue name; null if the queue no longer exists")
    state: str = Field(description=", ".join(STATES))
    seq: int = Field(description="sequence number in order of arrival; never reused")
    position: int = Field(description="position in the queue; lower positions are dispatched first")
    priority: int = Field(description="0 is dispatched first, 255 last; by default 128")
    group: str | None = Field(description="group, of which one is dispatched at a time; or null")
    unique_key: str | None = Field(description="unique among live messages; null if none")
    ready_at: int | None = Field(
        validation_alias="waiting_since",
        description="since when it is ready, Unix ms; null while it is scheduled",
    )
    deliver_at: int | None = Field(
        validation_alias="scheduled_for",
        description="when a scheduled message becomes ready, Unix ms; null for others",
    )
    published_at: int = Field(description="when the message was published, Unix ms")
    first_dispatched_at: int | None = Field(description="first dispatch, Unix ms; null if never")
    last_dispatched_at: int | None = Field(description="last dispatch, Unix ms; null if never")
    settled_at: int | None = Field(description="when settled, Unix ms; null for live messages")
    ttl_s: int | None = Field(description="time to live in seconds as published; null if unlimited")
    deadline_at: int | None = Field(description="when the message expires, Unix ms; null if never")
    deliveries: Deliveries
    attempt: int = Field(description="number of the attempt that the next delivery is")
    retries: int = Field(description="failed attempts that workers reported")
    size: BodySize
    urn: EnvelopeUrn
    trace_id: TraceId
    meta_id: str | None = Field(description="the envelope's meta.id; null if none")
    attempts: int | None = Field(description="attempt count in the envelope; null if none")
    publisher: str | None = Field(
        validation_alias="publisher_address",
        description="the publisher's address; null if no longer known",
    )
    holder: str | None = Field(description="address of the current consumer; null if none")
    reason: str | None = Field(description="details about the outcome; null if none")
    erased_at: int | None = Field(description="when its data was erased, Unix ms; null if not")
    offset: int | None = Field(description="history offset; null for live messages")
    origin: str | None = Field(
        validation_alias="source_queue", description="queue a dead letter came from; null if none"
    )
    origin_id: str | None = Field(
        validation_alias="source_id", description="id of a dead letter's original; null if none"
    )
    origin_reason: str | None = Field(
        validation_alias="source_reason", description="reason for dead-lettering; null if none"
    )
    preview: str = Field(
        description="an envelope's URN and data, or else the beginning of the body, on one line; "
        "in hex if not UTF-8"
    )

    @classmethod
    def of_row(cls, row: MessageRow) -> Self:
        return cls.of(
            row,
            state=STATE_NAMES[row.state],
            holder=row.consumer_address if row.state == State.DISPATCHED else None,
            waiting_since=None if row.state == State.SCHEDULED else row.waiting_since,
            retries=row.retries or 0,
            preview="".join(piece.text for piece in preview_envelope(row.preview, row.size)),
        )


class EventView(ResponseModel):
    """An exceptional event in a message's lifecycle."""

    at: int = Field(validation_alias="at_ms", description="when the event occurred, Unix ms")
    kind: str = Field(description="requeue, return, forward, dead_letter, redrive, restore, …")
    detail: str | None = Field(description="queue names, another message's id, …; null if none")
    count: int = Field(1, description="number of equal events in a row, or of further events")
    last_at: int | None = Field(None, description="when the last of them occurred; null if one")


class BodyView(BaseModel):
    """A message body; ``content`` is text if the body is valid UTF-8, otherwise base64."""

    content: str = Field(description="the body or its beginning, in the given encoding")
    encoding: str = Field(description="encoding of content: utf-8 or base64")
    size: int = Field(description="size of the complete body in bytes")
    is_whole: bool = Field(description="whether content is the complete body")

    @classmethod
    def of(cls, body: Body) -> Self:
        content, encoding = as_content(body.content)
        return cls(content=content, encoding=encoding, size=body.size, is_whole=body.is_whole)


MessagePage = Page[MessageRow, str]


class SearchPageInput(ListQuery):
    """Which page of search results to return, and in which format."""

    format: OutputFormat = "json"


class FoundMessagesView(ListPage[MessageView]):
    """A page of search results, newest first.

    A search stops at a time limit. Continue with ``next``, even if no items were found yet.
    """

    searched: int = Field(description="approximate number of messages searched so far")
    total: int = Field(description="approximate number of messages to search")
    complete: bool = Field(description="whether all messages have been searched")

    @classmethod
    def of_page(cls, page: MessagePage) -> Self:
        items = [MessageView.of_row(row) for row in page.rows]
        return cls.of(page, items=items, complete=page.next is None)


async def read_messages_page(context: Context, query: MessagesQuery, queue_id: int) -> MessagePage:
    """Return a page of a queue's messages in queue order, with cursors."""
    states = ALIVE if query.state is None else {State[query.state.upper()]}
    return await read_live_page(context, query, queue_id, states)


async def read_live_page(
    context: Context, query: ListQuery, queue_id: int, states: Collection[State]
) -> MessagePage:
    """Return a page of a queue's messages in some states, in queue order."""
    scope = f"messages {queue_id} {sorted(states)}"
    cursor = cursors.decode_cursor(scope, query.cursor)
    place = cursors.position_in(cursor)
    rows = await context.reader.messages(queue_id, **place, states=states, limit=query.limit)
    ends = (rows[0].position, rows[-1].position) if rows else (None, None)
    has_more = len(rows) == query.limit
    following, previous = cursors.cursors_around(scope, "after", cursor, ends, has_more=has_more)
    return Page(rows, following, previous)


async def read_history_page(
    context: Context,
    query: SettledQuery,
    queue_id: int | None,
    *,
    since: int | None = None,
    until: int | None = None,
) -> MessagePage:
    """Return a page of settled messages, newest first, with cursors.

    ``since`` (inclusive) and ``until`` (exclusive) limit the time of settlement, Unix ms.
    """
    scope = f"history {queue_id} {query.outcome} {since} {until}"
    cursor = cursors.decode_cursor(scope, query.cursor)
    place = cursors.position_in(cursor)
    outcome = State[query.outcome.upper()] if query.outcome else None
    history = await context.reader.history(
        **place, queue_id=queue_id, outcome=outcome, since=since, until=until, limit=query.limit
    )
    rows, searched_to = history.rows, history.searched_to
    ends = (rows[0].offset, rows[-1].offset) if rows else (None, None)
    older, newer = cursors.cursors_around(
        scope, "before", cursor, ends, has_more=history.has_more, searched_to=searched_to
    )
    if searched_to is None:
        return Page(rows, older, newer)
    searched = abs(place.get("before", history.highest or 0) - searched_to)
    return Page(rows, older, newer, is_cut=True, searched=searched)


async def read_search_page(
    call: Call, query: SearchQuery, cursor: str | None, limit: int
) -> MessagePage:
    """Return a page of matching messages from queues visible to the caller, newest first."""
    allowed = call.allowed
    scope = f"search {query} {sorted(allowed) if allowed is not None else ''}"
    place = cursors.pair_in(cursors.decode_cursor(scope, cursor), least=-1 << 62)
    page = await call.context.search.page(query, queues=allowed, limit=limit, place=place)
    following = page.next and cursors.encode_cursor(scope, "after", list(page.next))
    return Page(page.rows, following, is_cut=page.is_cut, searched=page.searched, total=page.total)


def describe_searched(page: MessagePage) -> str:
    """Describe a search's progress: ``Searched 412,000 of about 2.1 million, newest first``."""
    return (
        f"Searched {formats.format_number(page.searched)} of about "
        f"{format_about(page.total)}, newest first."
    )


def format_about(count: int) -> str:
    """Format a large count approximately, such as ``2.1 million`` or ``412,000``."""
    if count >= 999_500:
        return f"{count / 1e6:.1f}".removesuffix(".0") + " million"
    digits = max(0, len(str(count)) - 3)
    return formats.format_number(round(count, -digits))


def messages_view(rows: Iterable[MessageRow], next_: str | None = None) -> ListPage[MessageView]:
    return ListPage[MessageView](items=[MessageView.of_row(row) for row in rows], next=next_)


@endpoints.api("GET /queues/{q}/messages", "api-queue-messages", cli="message list")
async def list_queue_messages(
    call: Call, queue: Queue, query: MessagesQuery
) -> ListPage[MessageView]:
    """List a queue's messages in queue order, without their bodies."""
    page = await read_messages_page(call.context, query, queue.queue_id)
    return messages_view(page.rows, page.next)
