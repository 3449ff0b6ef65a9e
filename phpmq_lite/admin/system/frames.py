"""Frames: those recorded on a connection, protocol errors, and the page that explains bytes."""

from collections.abc import Callable
from typing import Any, Final, Literal

from aiohttp import web
from pydantic import BaseModel, Field

from phpmq_lite.admin import formats
from phpmq_lite.admin.http.call import Call
from phpmq_lite.admin.http.endpoint import Endpoints
from phpmq_lite.admin.http.fields import QueryModel
from phpmq_lite.admin.system.connections import Client, take_snapshot
from phpmq_lite.server import frame_explanation
from phpmq_lite.server.frame_recorder import ProtocolErrorRecord, RecordedFrame

endpoints: Final = Endpoints()
HIDDEN_QUEUE_TEXT: Final = "hidden: you do not have access to this queue"


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
        "bytes": "\n".join(
            format_bytes(piece.raw)
            + (f" … {formats.format_number(piece.cut)} more bytes" if piece.cut else "")
            for piece in frame.pieces
        ),
        "meaning": "\n".join(formats.escape_hidden(piece.meaning) for piece in frame.pieces),
    }


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
        "bad": format_bytes(bad.received[:1]) if is_whole else "",
        "after": format_bytes(bad.received[1:]) if is_whole else "",
        "got": format_bytes(bad.received) if is_whole else "",
    }


def list_protocol_errors(call: Call, client: int | None = None) -> list[dict[str, Any]]:
    """Return the most recent protocol errors on one or all connections, newest first."""
    is_whole = not call.identity.queues
    return [
        bad_byte_row(bad, is_whole=is_whole)
        for bad in reversed(call.context.broker.counters.inspector.errors)
        if client is None or bad.client == client
    ]


FRAME_CHARACTERS: Final = 4_000  # a URL is limited to 8 KiB, and most bytes must be percent-encoded


class FramePageQuery(QueryModel):
    """The bytes to explain on the frame page; longer frames require the command line."""

    frame: str = Field("", max_length=FRAME_CHARACTERS)
    encoding: frame_explanation.Encoding = "auto"


@endpoints.page("/frame", "frame")
async def show_frame(call: Call, query: FramePageQuery) -> web.Response:
    """Explain the packets, revision, framing and effect of pasted bytes."""
    explanation, problem = None, ""
    pasted = query.frame.replace("\r\n", "\n").removesuffix("\n")  # browsers send CRLF line breaks
    if pasted:
        try:
            data = frame_explanation.pasted_bytes(pasted.encode("utf-8", "replace"), query.encoding)
            explanation = frame_explanation.as_data(frame_explanation.explain_bytes(data))
        except frame_explanation.UnreadableError as error:
            problem = str(error)
    return await call.render("frame.html", query=query, found=explanation, error=problem)


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


@endpoints.api("GET /clients/{client}/frames", "api-client-frames")
async def list_frames(call: Call, client: Client) -> FramesView:
    """Return a connection's most recent frames. The first call starts recording."""
    number = client.client
    recorder = (await take_snapshot(call, number, is_watching=True)).recorder
    return FramesView(
        began_at=None if recorder is None else recorder.began_at,
        missed=0 if recorder is None else recorder.skipped,
        frames=[] if recorder is None else [_frame(call, frame) for frame in recorder.frames],
        errors=[ProtocolErrorView(**row) for row in list_protocol_errors(call, number)],
    )


def _frame(call: Call, recorded: RecordedFrame) -> FrameView:
    frame = recorded.frame
    is_hidden = frame.queue is not None and not call.may_use(frame.queue)
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
