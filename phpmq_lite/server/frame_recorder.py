"""The protocol inspector: recorded frames of watched connections, and recent errors.

Watching replaces a connection's protocol object with a ``RecordedSide``.  Connections that are not
watched cost nothing, and all recordings are bounded.
"""

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol, Self

from phpmq_lite.errors import RemoteProtocolError
from phpmq_lite.protocol import frames
from phpmq_lite.protocol.connection import AppendDispatch, ServerSide
from phpmq_lite.protocol.frames import ClientFrame

CUT_BYTES: Final = 256  # maximum number of bytes recorded from each content

_MESSAGES: Final = {
    frames.PUBLISH: "publish",
    frames.CONSUME: "consume",
    frames.DISPATCH: "dispatch",
    frames.ACKNOWLEDGE: "acknowledge",
    frames.REQUEUE: "requeue",
    frames.DEAD_LETTER: "dead letter",
    frames.RECEIPT: "receipt",
}
_BREAKS: Final = b"\r\n"
_LONGEST_HEAD: Final = 38  # 36 bytes and a line break; longer lines are not packet headers


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
    """Splits a stream into frames.  Call ``reset`` at the first byte of a frame, then ``feed``.

    ``width`` is the size of compact packet headers, 32 or 36 bytes; if ``is_line`` is set, every
    piece ends with a line break.  Invalid bytes are skipped without an error.
    """

    __slots__ = (
        "_content",
        "_frame",
        "_head",
        "_left",
        "_length",
        "_packets_left",
        "_pieces",
        "_size",
        "is_line",
        "width",
    )

    def __init__(self) -> None:
        self.width = 32
        self.is_line = False
        self.reset()

    @property
    def is_between(self) -> bool:
        """Return whether the position is between two frames."""
        return not self._frame and not self._head

    def reset(self) -> None:
        """Drop an incomplete frame; the next byte must begin a new frame."""
        self._frame = b""  # message header of the incomplete frame
        self._head = b""  # an incomplete header, or the packet header of the incomplete content
        self._packets_left = 0
        self._pieces: list[tuple[bytes, bytes, int]] = []  # (header, recorded content, length)
        self._content = b""
        self._length = 0
        self._left = -1  # number of content bytes missing, or -1 if a header comes next
        self._size = 0

    def incomplete(self) -> DissectedFrame | None:
        """Return the part of an incomplete frame received so far, or None."""
        if self.is_between:
            return None
        if not self._frame:
            header = FramePiece(self._head, f"message header, {len(self._head)} of 8 bytes")
            return DissectedFrame("unknown", None, (header,), self._size)
        found = _decode_frame(self._frame, self._pieces, self._size)
        count = len(self._pieces) + self._packets_left
        pieces = [FramePiece(self._frame, f"{found.kind}, {count} packets"), *found.pieces[1:]]
        if self._left >= 0:
            came = self._length - self._left
            meaning = f"content, {came} of {self._length} bytes"
            raw = self._head + self._content
            pieces.append(FramePiece(raw, meaning, came - len(self._content)))
        elif self._head:
            pieces.append(FramePiece(self._head, "incomplete packet header"))
        return DissectedFrame(found.kind, found.queue, tuple(pieces), self._size)

    def feed(self, data: bytes) -> list[DissectedFrame]:
        """Return the frames that ``data`` completes."""
        done: list[DissectedFrame] = []
        pos, end = 0, len(data)
        while pos < end:
            start = pos
            if self._left >= 0:
                pos = self._read_content(data, pos)
            elif self._frame:
                pos = self._packet_header(data, pos)
            else:
                pos = self._message_header(data, pos)
            self._size += pos - start
            if self._frame and not self._packets_left and self._left < 0:
                done.append(_decode_frame(self._frame, self._pieces, self._size))
                self.reset()
        return done

    def _message_header(self, data: bytes, pos: int) -> int:
        if not self._head and data[pos] in _BREAKS:
            self._size -= 1  # this line break is not part of a frame
            return pos + 1
        stop = pos + frames.HEADER_BYTES - len(self._head)
        self._head += data[pos:stop]
        if len(self._head) == frames.HEADER_BYTES:
            self._frame, self._head = self._head, b""
            packets = self._frame[6:]
            self._packets_left = int(packets) if packets.isdigit() else 0
        return min(stop, len(data))

    def _packet_header(self, data: bytes, pos: int) -> int:
        if not self._head and data[pos] in _BREAKS:
            return pos + 1  # this line break ends the previous content
        if self.is_line:
            stop = data.find(b"\n", pos) + 1 or len(data)
            self._head += data[pos:stop]
            is_whole = self._head.endswith(b"\n") or len(self._head) > _LONGEST_HEAD
        else:
            stop = min(pos + self.width - len(self._head), len(data))
            self._head += data[pos:stop]
            is_whole = len(self._head) == self.width
        if is_whole:
            digits = self._head[3:].rstrip(_BREAKS)
            self._length = self._left = int(digits) if digits.isdigit() else 0
            if not self._left:
                self._end_packet()
        return stop

    def _read_content(self, data: bytes, pos: int) -> int:
        stop = min(pos + self._left, len(data))
        room = CUT_BYTES - len(self._content)
        if room > 0:
            self._content += data[pos : min(stop, pos + room)]
        self._left -= stop - pos
        if not self._left:
            self._end_packet()
        return stop

    def _end_packet(self) -> None:
        self._pieces.append((self._head, self._content, self._length))
        self._head = self._content = b""
        self._left = -1
        self._packets_left -= 1


def _decode_frame(
    header: bytes, packets: list[tuple[bytes, bytes, int]], size: int
) -> DissectedFrame:
    """Return the frame with a description of each piece."""
    number = int(header[3:6]) if header[3:6].isdigit() else 0
    kind = _MESSAGES.get(number, "unknown")
    queue = None
    pieces = [FramePiece(header, f"{kind}, {len(packets)} packets")]
    for head, content, length in packets:
        packet = int(head[1:3]) if head[1:3].isdigit() else 0
        if packet == frames.QUEUE:
            queue = content.decode(errors="replace")
        pieces.append(
            FramePiece(
                head + content,
                _describe_packet(number, packet, content, length),
                length - len(content),
            )
        )
    return DissectedFrame(kind, queue, tuple(pieces), size)


def _describe_packet(message: int, packet: int, content: bytes, length: int) -> str:
    text = content.decode(errors="backslashreplace")
    match packet:
        case frames.QUEUE:
            return f"queue {text}"
        case frames.CONTENT if message == frames.RECEIPT:
            return f"refused: {text}"
        case frames.CONTENT:
            return f"content, {length} bytes"
        case frames.ID if message in (frames.PUBLISH, frames.RECEIPT):
            return f"key {text}"
        case frames.ID:
            return f"message id {text}"
        case frames.COUNT:
            return f"credit {text}" if text.strip("0") else "credit 0: returns held messages"
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

_EXPECTED: Final = {
    frames.BAD_HEADER: "a message header: H and seven digits",
    frames.BAD_VERSION: "version 01",
    frames.UNKNOWN_TYPE: "a message type: 001, 002, 004, 005 or 006",
    frames.UNEXPECTED_TYPE: "a type that clients send: 001, 002, 004, 005 or 006",
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


def expected_syntax(code: str) -> str:
    """Return the syntax that the grammar expects where an error with this code occurred."""
    return _EXPECTED.get(code, "")


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
    found: bytes  # the wrong byte and the bytes after it; empty if it arrived in an earlier read

    @classmethod
    def of(cls, error: RemoteProtocolError, data: bytes, read_at: int = 0, **where: Any) -> Self:
        """Describe an error with the bytes around it.

        ``data`` is the last read; ``read_at`` is the offset of its first byte in the connection.
        """
        at = error.offset - read_at
        is_here = 0 <= at < len(data)
        return cls(
            code=error.code, detail=error.detail, expected=expected_syntax(error.code),
            offset=error.offset,
            before=data[max(0, at - CONTEXT_BYTES) : at] if is_here else b"",
            found=data[at : at + CONTEXT_BYTES] if is_here else b"",
            **where,
        )  # fmt: skip


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
        self.skipped = 0  # number of frames skipped by the rate limit
        self._in = Dissector()
        self._out = Dissector()
        self._is_aligned = False  # True if the next inbound byte's position in its frame is known
        self._second = 0
        self._budget = 0

    def align(self, side: ServerSide) -> None:
        """Start recording now if no frame is incomplete, otherwise with the next frame."""
        self._is_aligned = not side.partial_bytes

    def record_inbound(self, data: bytes, frames: int, side: ServerSide) -> None:
        """Record inbound data that has been parsed into ``frames`` frames."""
        self._adopt_framing(self._in, side)
        partial = side.partial_bytes
        if not self._has_budget():
            self._is_aligned = False
            self.skipped += frames
            return
        if not self._is_aligned:
            self._in.reset()
            self.skipped += frames
            if partial < len(data):
                self._is_aligned = True
                self._in.feed(data[len(data) - partial :])
            return
        seen = self._in.feed(data)
        if side.error is not None:  # the wrong byte and all bytes after it are not frames
            seen = seen[:frames]
        self._keep(seen, is_inbound=True)
        if not partial and not self._in.is_between:  # start again at the next frame
            self._in.reset()

    def record_outbound(self, parts: Sequence[bytes], side: ServerSide) -> None:
        """Record a frame, given in pieces, that is about to be written."""
        if not self._has_budget():
            self.skipped += 1
            return
        self._adopt_framing(self._out, side)
        self._out.reset()
        for part in parts:
            self._keep(self._out.feed(part), is_inbound=False)

    def _adopt_framing(self, dissector: Dissector, side: ServerSide) -> None:
        dissector.width = side.packet_header
        dissector.is_line = side.framing == "line"

    def _has_budget(self) -> bool:
        second = int(time.monotonic())
        if second != self._second:
            self._second, self._budget = second, FRAMES_PER_S
        return self._budget > 0

    def _keep(self, frames: Sequence[DissectedFrame], *, is_inbound: bool) -> None:
        now_ms = _wall_ms()
        for frame in frames:
            self.count += 1
            self.frames.append(RecordedFrame(self.count, now_ms, is_inbound, frame))
        self._budget -= len(frames)


class RecordedSide:
    """Wraps a ``ServerSide`` and records its traffic; everything else is delegated to ``side``.

    The frames that ``release`` returns were recorded on arrival.
    """

    __slots__ = ("recorder", "side")

    def __init__(self, side: ServerSide, recorder: FrameRecorder) -> None:
        self.side = side
        self.recorder = recorder
        recorder.align(side)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.side, name)

    def receive(self, data: bytes) -> list[ClientFrame]:
        """Parse data and record it."""
        frames = self.side.receive(data)
        self.recorder.record_inbound(data, len(frames), self.side)
        return frames

    @property
    def dispatcher(self) -> AppendDispatch:
        """Return the function that appends and records a dispatch."""
        return self.append_dispatch

    def append_dispatch(
        self, parts: list[bytes], queue: str, content: bytes, message_id: bytes, ttl_s: int
    ) -> None:
        """Append a dispatch and record it."""
        start = len(parts)
        self.side.append_dispatch(parts, queue, content, message_id, ttl_s)
        self.recorder.record_outbound(parts[start:], self.side)

    def append_receipts(
        self, parts: list[bytes], queue: str, keys: Sequence[bytes], reason: str | None
    ) -> None:
        """Append receipts, and record each of them."""
        for key in keys:
            start = len(parts)
            self.side.append_receipt(parts, queue, key, reason)
            self.recorder.record_outbound(parts[start:], self.side)


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
        """Number of connections being recorded."""
        return len(self._watched)

    def watch(self, client: int, session: Watchable | None, now_s: float) -> FrameRecorder | None:
        """Return the recorder of a connection; the first call starts recording.

        ``session`` is None if the connection has ended; then return any recording of it.
        At most ``WATCHED`` are recorded; another one replaces the least recently viewed.
        """
        known = self._watched.get(client)
        if known is not None:
            known[1].viewed_at = now_s
            return known[1]
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
