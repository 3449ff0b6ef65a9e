"""Streaming export of all messages that match a search."""

import asyncio
from array import array
from collections.abc import AsyncIterator
from typing import Final, Literal, Self

from aiohttp import web
from pydantic import Field

from phpmq_lite.admin.http.body import memory_hold_of
from phpmq_lite.admin.http.call import Call
from phpmq_lite.admin.http.endpoint import Endpoints
from phpmq_lite.admin.http.fields import (
    BodySize,
    Deliveries,
    EnvelopeUrn,
    MessageId,
    QueryModel,
    TraceId,
)
from phpmq_lite.admin.http.memory import MemoryReservation
from phpmq_lite.admin.http.output import (
    PIECE_BYTES,
    ResponseModel,
    abort_response,
    json_line,
    send_piece,
)
from phpmq_lite.admin.messages.bodies import as_content
from phpmq_lite.logs import get_logger, is_quiet
from phpmq_lite.model import STATE_NAMES, State
from phpmq_lite.storage.read.messages import MessageReader, MessageRow
from phpmq_lite.storage.search.language import QUERY_CHARACTERS, parse_search
from phpmq_lite.text_files import csv_line

PAGE_ROWS: Final = 100
PAGE_BYTES: Final = 1 << 20  # maximum total size of a page's bodies; a single body may be larger
_COPIES: Final = 5  # maximum number of copies of a body in memory (bytes, text, JSON and line)
endpoints: Final = Endpoints()

MessageWithBody = tuple[MessageRow, bytes | None]

_log = get_logger(__name__)


class ExportInput(QueryModel):
    """The search and format of an export."""

    q: str = Field("", max_length=QUERY_CHARACTERS, description="search; empty matches all")
    format: Literal["jsonl", "csv"] = Field("jsonl", description="JSON lines or CSV")


class ExportView(ResponseModel):
    """An exported message, in the format that ``import`` accepts.

    The last line of a JSON lines export is ``{"complete": true, "count": n}``.
    """

    id: MessageId = Field(validation_alias="message_id")
    queue: str | None = Field(description="queue name; null if the queue no longer exists")
    state: str = Field(description=", ".join(STATE_NAMES))
    content: str | None = Field(description="encoded body; null if no longer stored")
    encoding: str = Field(description="encoding of content")
    ttl_s: int = Field(description="seconds to live, as published; 0 means it never expires")
    delay_s: float = Field(description="rest of a scheduled message's delay, in seconds; else 0")
    deliver_at: int | None = Field(description="date of a scheduled message, Unix ms; else null")
    priority: int = Field(description="0 is first, 255 last")
    group: str | None = Field(description="its group; null if none, and for a dead letter")
    unique_key: str | None = Field(description="unique key; null if none, and for a dead letter")
    published_at: int = Field(description="when the message was published, Unix ms")
    ready_at: int | None = Field(description="since when it is ready, Unix ms; null if scheduled")
    deadline_at: int | None = Field(description="when the message expires, Unix ms; null if never")
    settled_at: int | None = Field(description="time of settlement, Unix ms; null if live")
    reason: str | None = Field(description="reason for the outcome; null if none")
    deliveries: Deliveries
    retries: int = Field(description="failed attempts that workers reported")
    size: BodySize
    urn: EnvelopeUrn
    trace_id: TraceId

    @classmethod
    def of_row(cls, row: MessageRow, body: bytes | None, now_ms: int) -> Self:
        content, encoding = as_content(body) if body is not None else (None, "utf-8")
        is_scheduled = row.state == State.SCHEDULED
        left_ms = (row.due_at or 0) - now_ms if is_scheduled and row.deliver_at is None else 0
        # In a dead-letter queue, group and key would have an effect after an import.
        is_record = row.source_seq is not None or row.source_queue is not None
        return cls.of(
            row,
            state=STATE_NAMES[row.state],
            content=content,
            encoding=encoding,
            ttl_s=row.ttl_s or 0,
            delay_s=max(0, left_ms) / 1_000,
            deliver_at=row.deliver_at if is_scheduled else None,
            ready_at=None if is_scheduled else row.waiting_since,
            group=None if is_record else row.group,
            unique_key=None if is_record else row.unique_key,
            retries=row.retries or 0,
        )


@endpoints.api("GET /export", "api-export", gives=ExportView, cli="message export")
async def export_messages(call: Call, query: ExportInput) -> web.StreamResponse:
    """Export all matching messages, oldest first; ``X-Total-Count`` contains their number.

    A message that retention removes during the export is missing from the lines and from the
    count in the last line.
    """
    request, is_csv = call.request, query.format == "csv"
    frozen = await call.context.search.freeze(parse_search(query.q), queues=call.allowed)
    response = web.StreamResponse(
        headers={
            "Content-Type": "text/csv; charset=utf-8" if is_csv else "application/x-ndjson",
            "Content-Disposition": f'attachment; filename="phpmq.{query.format}"',
            "X-Total-Count": str(len(frozen.seqs)),
            "X-Total-Complete": "true" if frozen.is_complete else "false",
        }
    )
    await response.prepare(request)
    if request.method == "HEAD":
        return response
    count, hold = 0, memory_hold_of(request)
    try:
        hold.begin(lambda: abort_response(request))
        if is_csv:
            await _write(hold, response, csv_line(ExportView.model_fields).encode())
        async for pairs in _messages(call.context.reader, hold, frozen.seqs):
            # 4 MiB take 50 ms.
            lines = await asyncio.to_thread(_lines, pairs, call.now_ms, is_csv=is_csv)
            await _write(hold, response, lines)
            count += len(pairs)
        if not is_csv:
            summary = {"complete": frozen.is_complete, "count": count}
            await _write(hold, response, json_line(summary).encode())
        await response.write_eof()
    except Exception as error:  # the search is not logged, because it may contain parts of bodies
        if not is_quiet("export_broken"):
            _log.warning("export_broken", reason=repr(error)[:200])
        abort_response(request)
    return response


def _lines(pairs: list[MessageWithBody], now_ms: int, *, is_csv: bool) -> bytes:
    documents = (
        ExportView.of_row(row, body, now_ms).model_dump(mode="json") for row, body in pairs
    )
    lines = (csv_line(row.values()) if is_csv else json_line(row) for row in documents)
    return "".join(lines).encode(errors="replace")


async def _messages(
    reader: MessageReader, hold: MemoryReservation, seqs: "array[int]"
) -> AsyncIterator[list[MessageWithBody]]:
    """Yield pages of rows with their bodies; ``hold`` reserves the memory for a single page."""
    for at in range(0, len(seqs), PAGE_ROWS):
        page: list[MessageRow] = []
        size = 0
        for row in await reader.rows(seqs[at : at + PAGE_ROWS].tolist()):
            if page and size + row.size > PAGE_BYTES:
                yield await _with_bodies(reader, hold, page, size)
                page, size = [], 0
            page.append(row)
            size += row.size
        yield await _with_bodies(reader, hold, page, size)


async def _with_bodies(
    reader: MessageReader, hold: MemoryReservation, page: list[MessageRow], size: int
) -> list[MessageWithBody]:
    await hold.resize(size * _COPIES)
    bodies = await reader.bodies([row.seq for row in page])
    return [(row, bodies.get(row.seq)) for row in page]


async def _write(hold: MemoryReservation, response: web.StreamResponse, data: bytes) -> None:
    """Write the data piece by piece, with a timeout for each piece."""
    for at in range(0, len(data), PIECE_BYTES):
        await send_piece(response, data[at : at + PIECE_BYTES])
        hold.move(PIECE_BYTES)
