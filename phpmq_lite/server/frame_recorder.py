"""The protocol inspector: recorded frames of watched connections, and recent errors.

Watching replaces a connection's protocol object with a ``RecordedSide``.  Connections that are not
watched cost nothing, and all recordings are bounded.
"""

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Protocol, Self, cast

from phpmq_lite.errors import RemoteProtocolError
from phpmq_lite.protocol import frames
from phpmq_lite.protocol.connection import AppendDispatch, ClientSide, ServerSide
from phpmq_lite.protocol.frames import ClientFrame, WireLimits
from phpmq_lite.protocol.parser import Part

CUT_BYTES: Final = 256  # maximum number of bytes recorded from each content

_MESSAGES: Final = {
    frames.PUBLISH: "publish",
    frames.CONSUME: "consume",
    frames.DISPATCH: "dispatch",
    frames.ACKNOWLEDGE: "acknowledge",
    frames.REQUEUE: "requeue",
    frames.DEAD_LETTER: "dead letter",
    frames.RECEIPT: "receipt",
    frames.PUBLISH_WITH_OPTIONS: "publish with options",
    frames.SETTLE: "settle",
    frames.CONSUME_WITH_OPTIONS: "consume with options",
    frames.DISPATCH_WITH_INFO: "dispatch with info",
    frames.HELLO: "hello",
    frames.WELCOME: "welcome",
}
_ANY_CONTENT: Final = WireLimits(max_content=1 << 62)  # what the broker sends was checked before


@dataclass(slots=True, frozen=True)
class FramePiece:
    """A piece of a frame and its meaning; ``cut`` is the number of bytes dropped."""

    raw: bytes
    meaning: str
    cut: int = 0


@dataclass(slots=True, frozen=True)
class DissectedFrame:
    """A frame, split into a message header and packets."""

    kind: str  # such as publish or consume
    queue: str | None
    pieces: tuple[FramePiece, ...]
    size: int  # number of bytes on the wire, including line breaks


class Dissector:
    """Splits the frames that a parser reads into described pieces; ``see`` is a ``FrameObserver``.

    ``keep`` receives each complete frame.  A frame that has begun before is counted, but skipped.
    """

    __slots__ = ("_head", "_header", "_keep", "_packets", "_size", "skipped")

    def __init__(self, keep: Callable[[DissectedFrame], None]) -> None:
        self.skipped = 0
        self._keep = keep
        self._header = b""  # message header of the current frame; empty if it is skipped
        self._head = b""  # packet header of the current content
        self._packets: list[tuple[bytes, bytes, int]] = []  # (header, recorded content, length)
        self._size = 0

    def see(self, part: Part, data: bytes) -> None:
        if part is Part.MESSAGE_HEADER:
            self._header, self._head, self._packets, self._size = data, b"", [], 0
        elif part is Part.PACKET_HEADER:
            self._head = data
        elif part is Part.LINE_BREAK:
            self._head += data if self._head else b""
        elif part is Part.CONTENT:
            self._packets.append((self._head, data[:CUT_BYTES], len(data)))
            self._head = b""
        else:
            if self._header:
                self._keep(_decode_frame(self._header, self._packets, self._size))
            else:
                self.skipped += 1
            self.reset()
        self._size += len(data)

    def reset(self) -> None:
        """Skip what follows until the next frame begins."""
        self._header, self._head, self._packets = b"", b"", []

    def incomplete(self, side: ServerSide | ClientSide) -> DissectedFrame | None:
        """Return the part of an incomplete frame that ``side`` has received so far, or None."""
        size, head = side.parser.partial_bytes, side.parser.partial_header
        if side.error is not None and self._head:  # an empty content was refused
            self.see(Part.CONTENT, b"")
            size = self._size
        if not size:
            return None
        if not self._header:
            header = FramePiece(head, f"message header, {len(head)} of 8 bytes")
            return DissectedFrame("unknown", None, (header,), size)
        begun = _decode_frame(self._header, self._packets, size)
        header = FramePiece(self._header, f"{begun.kind}, {int(self._header[6:])} packets")
        pieces = [header, *begun.pieces[1:]]
        received, length = side.parser.partial_content or (b"", 0)
        if length:
            raw, meaning = received[:CUT_BYTES], f"content, {len(received)} of {length} bytes"
            pieces.append(FramePiece(self._head + raw, meaning, len(received) - len(raw)))
        elif head or self._head:
            pieces.append(FramePiece(head or self._head, "incomplete packet header"))
        return DissectedFrame(begun.kind, begun.queue, tuple(pieces), size)


def _decode_frame(
    header: bytes, packets: list[tuple[bytes, bytes, int]], size: int
) -> DissectedFrame:
    number = int(header[3:6]) if header[3:6].isdigit() else 0
    kind = _MESSAGES.get(number, "unknown")
    queue = None
    pieces = [FramePiece(header, f"{kind}, {len(packets)} packets")]
    for head, content, length in packets:
        packet = int(head[1:3]) if head[1:3].isdigit() else 0
        if packet == frames.QUEUE:
            queue = content.decode(errors="replace")
        meaning = _describe_packet(number, packet, content, length)
        pieces.append(FramePiece(head + content, meaning, length - len(content)))
    return DissectedFrame(kind, queue, tuple(pieces), size)


_WITH_KEYS: Final = (
    frames.PUBLISH, frames.RECEIPT, frames.PUBLISH_WITH_OPTIONS, frames.HELLO, frames.WELCOME
)  # fmt: skip


def _describe_packet(message: int, packet: int, content: bytes, length: int) -> str:
    text = content.decode(errors="backslashreplace")
    match packet:
        case frames.QUEUE:
            return f"queue {text}"
        case frames.CONTENT if message == frames.RECEIPT:
            return f"refused: {text}"
        case frames.CONTENT:
            return f"content, {length} bytes"
        case frames.ID if message in _WITH_KEYS:
            return f"key {text}"
        case frames.ID:
            return f"message id {text}"
        case frames.COUNT:
            return f"credit {text}" if text.strip("0") else "credit 0: returns held messages"
        case frames.OPTIONS:
            return f"{'info' if message == frames.DISPATCH_WITH_INFO else 'options'} {text}"
        case frames.TTL:
            return f"TTL {text} s" if text.strip("0") else "TTL 0: never expires"
        case _:
            return f"packet {packet:02}"


FRAMES: Final = 50  # number of frames recorded per connection
FRAMES_PER_S: Final = 200  # limit for both directions together; frames beyond it are skipped
IDLE_S: Final = 60.0  # recording ends after this long without a viewer
WATCHED: Final = 16  # maximum number of connections watched at the same time
ERRORS: Final = 100  # number of protocol errors kept
CONTEXT_BYTES: Final = 32  # number of bytes recorded on either side of a wrong byte

_CLIENT_TYPES: Final = "001, 002, 004, 005, 006, 010, 011, 012 or 014"
_EXPECTED: Final = {
    frames.BAD_HEADER: "a message header: H and seven digits",
    frames.BAD_VERSION: "version 01",
    frames.UNKNOWN_TYPE: f"a message type: {_CLIENT_TYPES}",
    frames.UNEXPECTED_TYPE: f"a type that clients send: {_CLIENT_TYPES}",
    frames.BAD_PACKET_COUNT: "a packet count allowed for this message type",
    frames.BAD_FRAMING: "a packet or a line break, as in the first frame",
    frames.BAD_PACKET_HEADER: "a packet header: P and digits",
    frames.BAD_PACKET_TYPE: "a packet type allowed in this message",
    frames.DUPLICATE_PACKET: "each packet type at most once",
    frames.TOO_LARGE: "a length within the limit",
    frames.EMPTY_QUEUE: "a queue name of 1 to 255 bytes, up to 259 if it ends in .dlq",
    frames.BAD_QUEUE: "UTF-8 without control characters except line feeds",
    frames.EMPTY_ID: "an id or key of 1 to 64 bytes",
    frames.BAD_NUMBER: "a number of 1 to 19 digits",
    frames.HTTP_REQUEST: "PHPMQ, not HTTP",
}


@dataclass(slots=True, frozen=True)
class RecordedFrame:
    """A recorded frame; the frames of a connection are numbered from 1."""

    number: int
    at_ms: int  # Unix ms
    is_inbound: bool  # True if sent by the client
    frame: DissectedFrame


@dataclass(slots=True, frozen=True)
class WrongByte:
    """A protocol error: its position, what was expected and what was found."""

    code: str
    detail: str
    expected: str
    offset: int  # position of the first wrong byte in the connection
    before: bytes  # correct bytes that arrived before the wrong byte in the same read
    received: bytes  # the wrong byte and the bytes after it; empty if it arrived in an earlier read

    @classmethod
    def of(cls, error: RemoteProtocolError, data: bytes, read_at: int = 0, **where: Any) -> Self:
        """Describe an error with the bytes around it.

        ``data`` is the last read; ``read_at`` is the offset of its first byte in the connection.
        """
        at = error.offset - read_at
        is_here = 0 <= at < len(data)
        return cls(
            code=error.code,
            detail=error.detail,
            expected=_EXPECTED.get(error.code, ""),
            offset=error.offset,
            before=data[max(0, at - CONTEXT_BYTES) : at] if is_here else b"",
            received=data[at : at + CONTEXT_BYTES] if is_here else b"",
            **where,
        )


@dataclass(slots=True, frozen=True)
class ProtocolErrorRecord(WrongByte):
    """A protocol error on a connection."""

    at_ms: int  # Unix ms
    client: int | None
    address: str


class FrameRecorder:
    """The most recent frames on a connection; times are event-loop times in seconds."""

    def __init__(self, now_s: float) -> None:
        self.frames: deque[RecordedFrame] = deque(maxlen=FRAMES)
        self.began_at = _wall_ms()
        self.viewed_at = now_s
        self.count = 0  # number of frames recorded
        self._unseen = 0  # number of frames skipped by the rate limit
        self._inbound = Dissector(partial(self._keep, is_inbound=True))
        self._outbound: ClientSide | None = None  # parses what the broker sends, once it does
        self._second = 0
        self._budget = 0

    @property
    def skipped(self) -> int:
        return self._unseen + self._inbound.skipped

    def receive(self, side: ServerSide, data: bytes) -> list[ClientFrame]:
        """Parse and record inbound data; return the frames that it completes."""
        has_budget = self._has_budget()
        if not has_budget:
            self._inbound.reset()
        side.parser.observe(self._inbound.see if has_budget else None)
        frames = side.receive(data)
        if not has_budget:
            self._unseen += len(frames)
        return frames

    def record_outbound(self, parts: Sequence[bytes], side: ServerSide) -> None:
        """Record a frame, given in pieces, that is about to be written."""
        if not self._has_budget():
            self._unseen += 1
            return
        if self._outbound is None:
            self._outbound = ClientSide(_ANY_CONTENT, packet_header=side.packet_header)
            self._outbound.parser.observe(Dissector(partial(self._keep, is_inbound=False)).see)
        for part in parts:
            self._outbound.receive(part)

    def _has_budget(self) -> bool:
        second = int(time.monotonic())
        if second != self._second:
            self._second, self._budget = second, FRAMES_PER_S
        return self._budget > 0

    def _keep(self, frame: DissectedFrame, *, is_inbound: bool) -> None:
        self.count += 1
        self.frames.append(RecordedFrame(self.count, _wall_ms(), is_inbound, frame))
        self._budget -= 1


class RecordedSide:
    """Wraps a ``ServerSide`` and records its traffic; everything else is delegated to ``side``.

    The frames that ``release`` returns were recorded on arrival.
    """

    __slots__ = ("recorder", "side")

    def __init__(self, side: ServerSide, recorder: FrameRecorder) -> None:
        self.side = side
        self.recorder = recorder

    def __getattr__(self, name: str) -> Any:
        method = getattr(self.side, name)
        return partial(self._append, method) if name.startswith("append_") else method

    def _append(self, method: Callable[..., None], parts: list[bytes], *values: Any) -> None:
        start = len(parts)
        method(parts, *values)
        self.recorder.record_outbound(parts[start:], self.side)

    def receive(self, data: bytes) -> list[ClientFrame]:
        return self.recorder.receive(self.side, data)

    @property
    def dispatcher(self) -> AppendDispatch:
        return cast("AppendDispatch", self.append_dispatch)

    def append_receipts(
        self, parts: list[bytes], queue: str, keys: Sequence[bytes], reason: str | None
    ) -> None:
        for key in keys:
            self._append(self.side.append_receipts, parts, queue, (key,), reason)


Side = ServerSide | RecordedSide


class Watchable(Protocol):
    """A session that can be watched."""

    side: Side


class Inspector:
    """Watched connections, and recent protocol errors on all connections."""

    def __init__(self) -> None:
        self.errors: deque[ProtocolErrorRecord] = deque(maxlen=ERRORS)
        self._watched: dict[int, tuple[Watchable | None, FrameRecorder]] = {}  # by client number

    @property
    def watched(self) -> int:
        return len(self._watched)

    def watch(self, client: int, session: Watchable | None, now_s: float) -> FrameRecorder | None:
        """Return the recorder of a connection; the first call starts recording.

        ``session`` is None if the connection has ended; then return any recording of it.
        At most ``WATCHED`` are recorded; another one replaces the least recently viewed.
        """
        watched = self._watched.get(client)
        if watched is not None:
            watched[1].viewed_at = now_s
            return watched[1]
        if session is None:
            return None
        if len(self._watched) >= WATCHED:
            self._end(min(self._watched, key=lambda number: self._watched[number][1].viewed_at))
        recorder = FrameRecorder(now_s)
        if isinstance(session.side, ServerSide):
            session.side = RecordedSide(session.side, recorder)
        self._watched[client] = (session, recorder)
        return recorder

    def end_idle(self, now_s: float) -> None:
        """End recordings that have not been viewed for ``IDLE_S``; call it regularly."""
        for client, (_, recorder) in list(self._watched.items()):
            if now_s - recorder.viewed_at > IDLE_S:
                self._end(client)

    def _end(self, client: int) -> None:
        session, _ = self._watched.pop(client)
        if session is not None and isinstance(session.side, RecordedSide):
            session.side = session.side.side
            session.side.parser.observe(None)

    def record_error(
        self,
        error: RemoteProtocolError,
        client: int | None,
        address: str,
        data: bytes,
        read_at: int,
    ) -> None:
        """Record a protocol error; ``data`` and ``read_at`` are those of ``WrongByte.of``."""
        where = {"at_ms": _wall_ms(), "client": client, "address": address}
        self.errors.append(ProtocolErrorRecord.of(error, data, read_at, **where))


def watch_client(
    core: Any, inspector: Inspector, client: int, now_s: float
) -> FrameRecorder | None:
    """Watch the connection with client number ``client``; call this within a batch."""
    connection = core.connections.get(client)
    return inspector.watch(client, None if connection is None else connection.peer, now_s)


def _wall_ms() -> int:
    return time.time_ns() // 1_000_000
