"""Frames and protocol errors on connections."""

from collections.abc import Callable
from functools import partial
from typing import Any, Final, Literal

from aiohttp import web
from pydantic import BaseModel, Field

from phpmq_lite.admin import formats
from phpmq_lite.admin.context import context_of
from phpmq_lite.admin.http.fields import QueryModel, read_query
from phpmq_lite.admin.http.identity import identity_of
from phpmq_lite.admin.http.permissions import may_use
from phpmq_lite.admin.http.rendering import render_page
from phpmq_lite.admin.system import connections
from phpmq_lite.admin.system.connections import (
    HIDDEN_QUEUE_TEXT,
    find_client,
    parse_client_number,
)
from phpmq_lite.server import frame_explanation
from phpmq_lite.server.frame_recorder import ProtocolErrorRecord, RecordedFrame

# -- frame inspector


def frame_row(
    recorded: RecordedFrame, began_at: int, may_see: Callable[[str], bool]
) -> dict[str, Any]:
    """Return a table row for a frame; line n of ``meaning`` explains line n of ``bytes``."""
    frame = recorded.frame
    row: dict[str, Any] = {
        "id": f"{began_at}.{recorded.number}",
        "kind": "in" if recorded.is_inbound else "out",
        "at": recorded.at_ms,
        "direction": "from the client" if recorded.is_inbound else "to the client",
        "what": frame.kind,
        "size": formats.format_size(frame.size),
    }
    if frame.queue is not None and not may_see(frame.queue):
        return row | {"bytes": "", "meaning": HIDDEN_QUEUE_TEXT}
    return row | {
        "bytes": "\n".join(_line(piece.raw, piece.cut) for piece in frame.pieces),
        "meaning": "\n".join(formats.escape_hidden(piece.meaning) for piece in frame.pieces),
    }


def _line(raw: bytes, cut: int) -> str:
    rest = f" … {formats.format_number(cut)} more bytes" if cut else ""
    return format_bytes(raw) + rest


def format_bytes(raw: bytes) -> str:
    """Format bytes on one line, escaping everything except visible characters."""
    return formats.escape_hidden(raw.decode(errors="backslashreplace"))


def bad_byte_row(bad: ProtocolErrorRecord, *, is_whole: bool) -> dict[str, Any]:
    """Return a table row for a protocol error; include its bytes only if ``is_whole`` is true."""
    return {
        "at": bad.at_ms,
        "client": bad.client,
        "address": bad.address,
        "code": bad.code,
        "detail": formats.escape_hidden(bad.detail) if is_whole else bad.code,
        "expected": bad.expected,
        "offset": bad.offset,
        "before": format_bytes(bad.before) if is_whole else "",
        "bad": format_bytes(bad.found[:1]) if is_whole else "",
        "after": format_bytes(bad.found[1:]) if is_whole else "",
        "got": format_bytes(bad.found) if is_whole else "",
    }


def list_protocol_errors(request: web.Request, client: int | None = None) -> list[dict[str, Any]]:
    """Return the most recent protocol errors on one or all connections, newest first."""
    is_whole = not identity_of(request).queues
    errors = context_of(request).engine.figures.inspector.errors
    return [
        bad_byte_row(bad, is_whole=is_whole)
        for bad in reversed(errors)
        if client is None or bad.client == client
    ]


FRAME_CHARACTERS: Final = 4_000  # a URL is limited to 8 KiB, and most bytes must be percent-encoded


class FramePageQuery(QueryModel):
    """The bytes to explain on the frame page; longer frames require the command line."""

    frame: str = Field("", max_length=FRAME_CHARACTERS)
    encoding: frame_explanation.Encoding = "auto"


async def show_frame(request: web.Request) -> web.StreamResponse:
    """Explain the packets, revision, framing and effect of pasted bytes."""
    query = read_query(request, FramePageQuery)
    found, error = None, ""
    pasted = query.frame.replace("\r\n", "\n").removesuffix("\n")  # browsers send CRLF line breaks
    if pasted:
        try:
            data = frame_explanation.pasted_bytes(pasted.encode("utf-8", "replace"), query.encoding)
            found = frame_explanation.as_data(frame_explanation.explain_bytes(data))
        except frame_explanation.UnreadableError as wrong:
            error = str(wrong)
    return await render_page(request, "frame.html", query=query, found=found, error=error)


class FramePieceView(BaseModel):
    """A part of a frame and its meaning."""

    bytes: str = Field(description="bytes in hex; for a body, only the first 256")
    cut: int = Field(description="number of bytes omitted from this part")
    meaning: str = Field(description="explanation of the bytes")


class FrameView(BaseModel):
    """A recorded frame."""

    number: int = Field(description="frame number within the recording, starting at 1")
    at: int = Field(description="when the frame was recorded, Unix ms")
    direction: Literal["in", "out"] = Field(description="in (from client) or out (to client)")
    kind: str = Field(description="frame type: publish, consume, dispatch, acknowledge, receipt, …")
    queue: str | None = Field(description="queue named in the frame; null if none or hidden")
    size: int = Field(description="size on the wire in bytes, including line breaks")
    pieces: list[FramePieceView] = Field(description="bytes by packet and field; empty if hidden")


class ProtocolErrorView(BaseModel):
    """A protocol error and where it occurred."""

    at: int = Field(description="when the error occurred, Unix ms")
    code: str = Field(description="violated protocol rule, such as bad-header")
    detail: str = Field(description="explanation of the error")
    offset: int = Field(description="number of bytes received before the error")
    expected: str = Field(description="what was expected instead")
    got: str = Field(description="bytes starting at the error; empty if not recorded or hidden")


class FramesView(BaseModel):
    """A connection's most recent frames and protocol errors."""

    began_at: int | None = Field(
        description="when recording began, Unix ms; null if nothing is being recorded"
    )
    missed: int = Field(description="frames that were not recorded because too many arrived")
    frames: list[FrameView] = Field(description="most recent frames, up to 50, oldest first")
    errors: list[ProtocolErrorView] = Field(description="protocol errors, newest first")


async def list_frames(request: web.Request) -> FramesView:
    """Return a connection's most recent frames. The first call starts recording."""
    number = parse_client_number(request.match_info["client"])
    await find_client(request, number)
    look = await connections.take_snapshot(request, number, is_watching=True)
    may_see = partial(may_use, request)
    recorder = look.recorder
    return FramesView(
        began_at=None if recorder is None else recorder.began_at,
        missed=0 if recorder is None else recorder.skipped,
        frames=[] if recorder is None else [_frame(one, may_see) for one in recorder.frames],
        errors=[ProtocolErrorView(**row) for row in list_protocol_errors(request, number)],
    )


def _frame(recorded: RecordedFrame, may_see: Callable[[str], bool]) -> FrameView:
    frame = recorded.frame
    is_hidden = frame.queue is not None and not may_see(frame.queue)
    return FrameView(
        number=recorded.number,
        at=recorded.at_ms,
        direction="in" if recorded.is_inbound else "out",
        kind=frame.kind,
        queue=None if is_hidden else frame.queue,
        size=frame.size,
        pieces=[
            FramePieceView(bytes=piece.raw.hex(), cut=piece.cut, meaning=piece.meaning)
            for piece in (() if is_hidden else frame.pieces)
        ],
    )
