"""Page and API for a single message: details, body, events and download."""

import asyncio
import hashlib
from base64 import b64encode
from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import partial
from time import gmtime, strftime
from typing import Annotated, Final, Literal, Self

from aiohttp import web
from pydantic import BaseModel, Field

from phpmq_lite.admin.dead_letter_queues import is_dead_letter_queue
from phpmq_lite.admin.http.body import memory_hold_of
from phpmq_lite.admin.http.call import Call
from phpmq_lite.admin.http.endpoint import Endpoints, From
from phpmq_lite.admin.http.fields import EnvelopeUrn, OutputFormat, QueryModel, TraceId
from phpmq_lite.admin.http.headers import download_headers
from phpmq_lite.admin.http.input import parse_number
from phpmq_lite.admin.http.output import ListPage, respond
from phpmq_lite.admin.http.problems import Problem
from phpmq_lite.admin.http.source import host_name
from phpmq_lite.admin.messages import bodies, envelope_card, message_life
from phpmq_lite.admin.messages.listing import BodyView, EventView, MessageView, messages_view
from phpmq_lite.admin.messages.message_life import MessageLife
from phpmq_lite.admin.messages.schemas import SCHEMAS
from phpmq_lite.admin.messages.snippets import (
    COPY_BYTES,
    Snippet,
    copy_snippets,
    http_address,
    tcp_address,
)
from phpmq_lite.admin.messages.traces import read_failed_attempts
from phpmq_lite.envelopes import validation
from phpmq_lite.errors import SearchError
from phpmq_lite.frame_options import DEFAULT_PRIORITY
from phpmq_lite.model import State
from phpmq_lite.queue_settings import QueueSettings
from phpmq_lite.storage.read.audit import AuditLog
from phpmq_lite.storage.read.messages import Body, LinkRow, MessageRow, is_message_id, wire_id
from phpmq_lite.storage.search.language import QUERY_CHARACTERS, parse_search

endpoints: Final = Endpoints()


async def find_message(call: Call) -> MessageRow:
    """Return the row of the live or settled message whose id or number, such as #34, is the path's.

    Raises:
        Problem: 404 if the id is unknown, 410 if its number was assigned but it has no row:
            retention removed it, or the second half of the id is wrong.
    """
    reader, message_id = call.context.reader, call.path("id")
    if (number := parse_number(message_id.removeprefix("#"))) is not None:
        rows = await reader.rows([number])
        message_id = rows[0].message_id if rows else wire_id(number, 0)
    if not is_message_id(message_id):
        detail = f"{message_id!r} is not a valid message id."
        bound = "32 lowercase hex digits, or the number that pages show"
        raise Problem(404, "unknown_message", detail, field="id", bound=bound)
    row = await reader.message(message_id)
    if row is not None:
        if call.allowed is None or row.queue_id in call.allowed:
            return row
        raise Problem(404, "unknown_message", "There is no message with this id.", field="id")
    if await reader.was_assigned(message_id):
        raise Problem(
            410,
            "gone_message",
            "No message with this id is stored. Either retention removed the message from the "
            "history, or a digit of the id is wrong.",
        )
    raise Problem(404, "unknown_message", "This broker never assigned this message id.")


Message = Annotated[MessageRow, From(find_message)]


class BodyInput(QueryModel):
    """The response format: the entire body as a file, or at most 64 KiB of the body as JSON."""

    download: str | None = Field(None, description="any value downloads the entire body as a file")


class ProblemView(BaseModel):
    """A problem in an envelope."""

    reason: str = Field(description="poison, missing_meta, … or the name of a producer-schema rule")
    detail: str = Field(description="explanation of the problem")
    pointer: str = Field(description="JSON pointer into the envelope; empty for the whole envelope")

    @classmethod
    def of(cls, problem: validation.EnvelopeProblem) -> Self:
        """Return the API view of a problem, with long texts truncated."""
        cut = envelope_card.shorten
        return cls(reason=problem.reason, detail=cut(problem.detail), pointer=cut(problem.pointer))


class BlockView(BaseModel):
    """The ``dead_letter`` block of a dead-letter record."""

    reason: str = Field(description="failed, unknown_urn or poison")
    detail: str | None = Field(
        description="verdict reason, max_deliveries, expired, …; null if none"
    )
    error: str | None = Field(description="the handler's last error; null if none")
    exception: str | None = Field(description="exception class; null if none")
    failed_at: int = Field(description="when the message failed, Unix ms")
    original_queue: str = Field(description="queue in which the message failed")
    attempts: int = Field(description="number of attempts made by the worker")
    lang: str = Field(description="the worker's language, such as python")
    message_id: str | None = Field(description="id of the original message; null if not recorded")


class EnvelopeView(BaseModel):
    """An envelope and the verdict on it; for a dead letter, what a redrive would send."""

    urn: EnvelopeUrn
    trace_id: TraceId
    meta_id: str | None = Field(description="the envelope's meta.id; null if none")
    attempts: int | None = Field(description="attempt count in the envelope; null if none")
    lang: str | int | float | None = Field(description="meta.lang as written; null if missing")
    queue: str | int | float | None = Field(description="meta.queue as written; null if missing")
    created_at: str | int | float | None = Field(
        description="meta.created_at as written; null if missing"
    )
    schema_version: str | int | float | None = Field(
        description="meta.schema_version; null if missing"
    )
    reason: str | None = Field(description="why the envelope is rejected; null if accepted")
    tolerated: bool = Field(description="whether data: [] was read as {}")
    warnings: list[str] = Field(description="warnings, such as outdated members")
    problems: list[ProblemView] = Field(description="problems; the first determined the verdict")
    more_problems: int = Field(description="number of additional problems that were omitted")
    dead_letter: BlockView | None = Field(description="record's dead_letter block; null if none")

    @classmethod
    def of(cls, card: envelope_card.EnvelopeCard) -> Self:
        block = None
        if card.block is not None:
            block = BlockView.model_validate(asdict(card.block))
            block.error = block.error and envelope_card.shorten(block.error)
            block.exception = block.exception and envelope_card.shorten(block.exception)
        return cls(
            urn=card.index.urn,
            trace_id=card.index.trace_id,
            meta_id=card.index.meta_id,
            attempts=card.index.attempts,
            **{name: card.members[name] for name in envelope_card.MEMBERS},
            reason=card.reason,
            tolerated=card.verdict.is_tolerated,
            warnings=list(card.verdict.warnings),
            problems=[ProblemView.of(problem) for problem in card.problems],
            more_problems=card.hidden,
            dead_letter=block,
        )


class MessageDetailView(MessageView):
    """A message with its envelope."""

    envelope: EnvelopeView | None = Field(
        None, description="null if not an envelope, larger than 1 MiB or no longer stored"
    )


@endpoints.api("GET /messages/{id}", "api-message", cli="message show")
async def get_message(call: Call, row: Message) -> MessageDetailView:
    """Return a live or settled message and the verdict on its envelope, but not its body."""
    card = await _card_of(call, row, await call.context.reader.body(row))
    view = MessageDetailView.of_row(row)
    view.envelope = None if card is None else EnvelopeView.of(card)
    return view


async def _card_of(
    call: Call, row: MessageRow, body: Body | None
) -> envelope_card.EnvelopeCard | None:
    """Return a message's card, or None if its body is missing, too large or not an envelope.

    ``body`` is the part of the body that has already been read.
    """
    if body is None or not 0 < row.size <= envelope_card.CARD_BYTES:
        return None
    if not body.is_whole:
        body = await call.context.reader.whole_body(row)
        if body is None:
            return None
    rules = envelope_card.JudgeOptions.of(
        _settings_of(call, row), call.context.app[SCHEMAS].registry
    )
    if envelope_card.is_settled_by_verdict(row):
        rules = replace(rules, is_meant=True)
    return await envelope_card.inspect_content(body.content, rules)


def _settings_of(call: Call, row: MessageRow) -> QueueSettings | None:
    """Return a queue's settings, or None if the queue no longer exists or is not visible."""
    queue = next((queue for queue in call.queues if queue.queue_id == row.queue_id), None)
    return None if queue is None else queue.settings


@endpoints.api("GET /messages/{id}/body", "api-body", gives=BodyView, cli="message show")
async def get_body(call: Call, row: Message, _query: BodyInput) -> web.StreamResponse:
    """Return a message's body, either as ``content`` with its ``encoding`` or as a download."""
    if "download" in call.request.query:
        return await download_body(call, row)
    body = await call.context.reader.body(row)
    if body is None:
        raise no_body(row)
    return respond(BodyView.of(body))


@endpoints.api("GET /messages/{id}/events", "api-message-events")
async def list_events(call: Call, row: Message) -> ListPage[EventView]:
    """List a message's exceptional events, such as requeues and redrives."""
    rows = await call.context.reader.events(row.seq)
    return ListPage[EventView](items=[EventView.of(event) for event in rows])


@endpoints.page("/messages/{id}/body", "body")
async def download_body(call: Call, row: Message) -> web.Response:
    """Return the entire body as a download; a damaged body has ``.damaged`` in its file name.

    The header ``Repr-Digest`` contains its SHA-256.
    """
    await memory_hold_of(call.request).resize(row.size)
    body = await call.context.reader.whole_body(row)
    if body is None:
        raise no_body(row)
    name = row.message_id + (".damaged" if body.is_damaged else "")
    digest = await asyncio.to_thread(lambda: hashlib.sha256(body.content).digest())
    return web.Response(
        body=body.content,
        content_type="application/octet-stream",
        headers=download_headers(name) | {"Repr-Digest": f"sha-256=:{b64encode(digest).decode()}:"},
    )


def no_body(row: MessageRow) -> Problem:
    if row.erased_at is not None:
        at = strftime("%Y-%m-%d %H:%M", gmtime(row.erased_at / 1_000))
        detail = f"The data of message {row.message_id} was erased on {at} UTC."
        return Problem(410, "erased", detail)
    return Problem(410, "gone_body", f"The body of message {row.message_id} is no longer stored.")


RELATIVES: Final = 20  # maximum number of related messages shown for a message
_ROUNDS: Final = 4  # maximum number of links between a message and a related one
_DELETIONS: Final = ("message.delete", "message.act")


class MessagePageQuery(QueryModel):
    """Display options for a message; ``q`` is the search that found the message."""

    view: Literal["tree", "pretty", "raw", "hex"] | None = None
    q: str = Field("", max_length=QUERY_CHARACTERS)
    format: OutputFormat = "html"


async def list_one(_call: Call, row: Message) -> ListPage[MessageView]:
    """Return a page's message as a list, for the formats that lists have."""
    return messages_view([row])


@endpoints.page("/messages/{id}", "message", data=list_one)
async def show_message(call: Call, row: Message, query: MessagePageQuery) -> web.Response:
    """Show a message's details, body and timeline."""
    reader = call.context.reader
    body, sha256, life = await asyncio.gather(
        reader.body(row), reader.sha256(row), _life(call, row)
    )
    body_view = None
    if body is not None:  # use a thread, because indenting 256 KiB takes a while
        body_view = await asyncio.to_thread(bodies.view_body, body.content, body.size, query.view)
    card = await _card_of(call, row, body)
    settings = _settings_of(call, row)
    newer, older = await _neighbours(call, query, row)
    others = {seq: (life.rows[seq], life.events[seq]) for seq in life.rows if seq != row.seq}
    deletion = None  # the audit row for the message's deletion, if it names the message
    if row.state == State.DELETED:
        deletion = await AuditLog(call.context.readers).last_of(row.message_id)
    return await call.render(
        "message.html",
        row=row,
        body=body,
        body_view=body_view,
        sha256=sha256 if body is not None else None,
        card=card,
        hold_end=call.context.broker.hold_ends([row.seq]).get(row.seq),
        named_queue=envelope_card.other_queue(card, row) if card is not None else "",
        is_too_large=envelope_card.is_too_large(row),
        is_record=is_dead_letter_queue(call.queues, row.queue or ""),
        is_failed=row.seq in await read_failed_attempts(call, [row]),
        policy="" if settings is None else settings.payload_policy,
        has_queue=lambda name: call.find_queue(name) is not None,
        steps=message_life.make_timeline(row, life.events[row.seq], call.now_ms, others),
        relatives=message_life.list_relatives(row, life.links, life.rows),
        deletion=deletion if deletion is not None and deletion.action in _DELETIONS else None,
        snippets=_snippets_of(call, row, body),
        newer=newer,
        older=older,
        query=query,
    )


async def _life(call: Call, row: MessageRow) -> MessageLife:
    """Collect messages linked by a restore, redrive, edit or dead-lettering, up to a limit."""
    allowed, reader = call.allowed, call.context.reader
    rows = {row.seq: row}
    links: dict[tuple[int, str, str], LinkRow] = {}
    seqs: list[int] = [row.seq]
    for _ in range(_ROUNDS):
        new_links = await reader.links(seqs)
        links |= {(link.seq, link.kind, link.other): link for link in new_links}
        linked = {link.other_seq for link in new_links if link.other_seq}
        linked |= {rows[seq].source_seq or 0 for seq in seqs if seq in rows}
        seqs = sorted(linked - rows.keys() - {0})[: RELATIVES - len(rows) + 1]
        if not seqs:
            break
        for other in await reader.rows(seqs):
            if allowed is None or other.queue_id in allowed:
                rows[other.seq] = other
    events = {seq: await reader.events(seq) for seq in rows}
    return MessageLife(rows, events, list(links.values()))


async def _neighbours(
    call: Call, query: MessagePageQuery, row: MessageRow
) -> tuple[MessageRow | None, MessageRow | None]:
    """Return a pair: the next newer and the next older search result."""
    if not query.q:
        return None, None
    try:
        search = parse_search(query.q)
    except SearchError:
        return None, None
    find = partial(call.context.search.neighbour, search, row, queues=call.allowed)
    return await find(is_newest_first=False), await find(is_newest_first=True)


def _snippets_of(call: Call, row: MessageRow, body: Body | None) -> Sequence[Snippet]:
    """Return code snippets that republish the message, or none if the body is large or missing."""
    if body is None or not body.is_whole or body.size > COPY_BYTES or row.queue is None:
        return ()
    request = call.request
    host, port = tcp_address(call.status.listeners, host_name(request.host))
    where = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    base = http_address(request.scheme, request.host, call.context.urls.base_path)
    priority = None if row.priority == DEFAULT_PRIORITY else row.priority
    options = {"ttl_s": row.ttl_s, "priority": priority, "group": row.group}
    options = {name: value for name, value in options.items() if value is not None}
    return copy_snippets(row.queue, body.content, row.message_id, options, base, where)
