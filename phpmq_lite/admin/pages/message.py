"""One message: facts, body, life, and what belongs to it."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from aiohttp import web
from pydantic import BaseModel, ConfigDict, Field

from phpmq_lite.admin import bodies, envelopes, paging, timeline
from phpmq_lite.admin.access.hosts import host_name
from phpmq_lite.admin.access.identity import allowed_queues
from phpmq_lite.admin.api.message_list import download
from phpmq_lite.admin.context import Context, context_of, status_of
from phpmq_lite.admin.copies import COPY_BYTES, copies
from phpmq_lite.admin.lists import as_data
from phpmq_lite.admin.problems import Problem
from phpmq_lite.admin.query import QUERY_CHARACTERS, parse
from phpmq_lite.admin.render import page
from phpmq_lite.admin.requests import find_queue, message_of, query_of
from phpmq_lite.admin.route import Role, Route
from phpmq_lite.admin.schemas import MessageOut, OutputFormat
from phpmq_lite.admin.shelves import is_shelf
from phpmq_lite.admin.snippets import Snippet, http_address, tcp_address
from phpmq_lite.model import State
from phpmq_lite.storage.read.audit import AuditLog, AuditRow
from phpmq_lite.storage.read.messages import Body, EventRow, LinkRow, MessageRow

RELATIVES: Final = 20  # messages told along in the life of one
_ROUNDS: Final = 4  # of following their links
_DELETIONS: Final = ("message.delete", "message.act")


class MessagePageQuery(BaseModel):
    """How to show one message; ``q`` is the search it was found by."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    view: Literal["tree", "pretty", "raw", "hex"] | None = None
    q: str = Field("", max_length=QUERY_CHARACTERS)
    format: OutputFormat = "html"


@dataclass(slots=True, frozen=True)
class Life:
    """The messages of one life, by number, with their events and what ties them."""

    rows: dict[int, MessageRow]
    events: dict[int, list[EventRow]]
    links: list[LinkRow]


async def message(request: web.Request) -> web.StreamResponse:
    """One message: facts, body, life."""
    context = context_of(request)
    query, row = query_of(request, MessagePageQuery), await message_of(request, context)
    if query.format != "html":
        return as_data(query.format, MessageOut, [MessageOut.of(row)])
    body, sha256, life = await asyncio.gather(
        context.reader.body(row), context.reader.sha256(row), _life(request, context, row)
    )
    shown = None
    if body is not None:  # indenting 256 KiB takes a while
        shown = await asyncio.to_thread(bodies.show, body.content, body.size, query.view)
    card = await envelopes.card_of(request, context, row, body)
    newer, older = await _beside(request, context, query, row)
    others = {seq: (life.rows[seq], life.events[seq]) for seq in life.rows if seq != row.seq}
    return await page(
        request,
        "message.html",
        row=row,
        body=body,
        shown=shown,
        sha256=sha256 if body is not None else None,
        card=card,
        elsewhere=envelopes.elsewhere(card, row) if card is not None else "",
        is_too_large=envelopes.is_too_large(row),
        is_record=is_shelf(status_of(request).queues, row.queue or ""),
        is_failed=row.seq in await paging.failed_attempts(request, [row]),
        policy=envelopes.policy_of(request, row.queue_id),
        has_queue=lambda name: find_queue(request, name) is not None,
        steps=timeline.timeline(row, life.events[row.seq], context.now_ms(), others),
        relatives=timeline.relatives(row, life.links, life.rows),
        last=await _deletion(context, row),
        copied=_copies(request, row, body),
        newer=newer,
        older=older,
        query=query,
    )


async def _life(request: web.Request, context: Context, row: MessageRow) -> Life:
    """Follow what ties a message to others: restore, redrive, edit, dead letter; bounded."""
    allowed = allowed_queues(request)
    rows = {row.seq: row}
    links: dict[tuple[int, str, str], LinkRow] = {}
    asked: list[int] = [row.seq]
    for _ in range(_ROUNDS):
        found = await context.reader.links(asked)
        links |= {(link.seq, link.kind, link.other): link for link in found}
        wanted = {link.other_seq for link in found if link.other_seq}
        wanted |= {rows[seq].source_seq or 0 for seq in asked if seq in rows}
        asked = sorted(wanted - rows.keys() - {0})[: RELATIVES - len(rows) + 1]
        if not asked:
            break
        for other in await context.reader.rows(asked):
            if allowed is None or other.queue_id in allowed:
                rows[other.seq] = other
    events = {seq: await context.reader.events(seq) for seq in rows}
    return Life(rows, events, list(links.values()))


async def _beside(
    request: web.Request, context: Context, query: MessagePageQuery, row: MessageRow
) -> tuple[MessageRow | None, MessageRow | None]:
    """Find the neighbours in the search that led here."""
    if not query.q:
        return None, None
    try:
        asked = parse(query.q)
    except Problem:
        return None, None
    allowed = allowed_queues(request)
    return (
        await context.search.newer(asked, row, queues=allowed),
        await context.search.older(asked, row, queues=allowed),
    )


async def _deletion(context: Context, row: MessageRow) -> AuditRow | None:
    """Say who deleted it, where the audit names the message itself and nothing later."""
    if row.state != State.DELETED:
        return None
    last = await AuditLog(context.readers).last_of(row.message_id)
    return last if last is not None and last.action in _DELETIONS else None


def _copies(request: web.Request, row: MessageRow, body: Body | None) -> Sequence[Snippet]:
    """Give the code to publish it again; nothing for what is large or gone."""
    if body is None or not body.is_whole or body.size > COPY_BYTES or row.queue is None:
        return ()
    context = context_of(request)
    host, port = tcp_address(status_of(request).listeners, host_name(request.host))
    where = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    base = http_address(request.scheme, request.host, context.urls.base_path)
    return copies(row.queue, body.content, row.message_id, row.ttl_s, base, where)


ROUTES: Final = (
    Route("GET", "/messages/{id}", Role.VIEWER, "message", message),
    Route("GET", "/messages/{id}/body", Role.VIEWER, "body", download),
)
