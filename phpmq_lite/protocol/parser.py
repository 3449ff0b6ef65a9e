"""Parsing of byte chunks of any size into frames, as a state machine with named steps.

``fast_path.py`` parses common frames (compact, with 32-byte headers, in the usual packet order, and
complete in one read); all other frames go byte by byte through the steps below.  Each step consumes
the available bytes, so each byte is copied a fixed number of times, however the chunks are divided.
"""

from collections.abc import Callable
from enum import Enum
from typing import Any, Final, NoReturn

from phpmq_lite.errors import RemoteProtocolError
from phpmq_lite.protocol import frames
from phpmq_lite.protocol.fast_path import FastFrames
from phpmq_lite.protocol.frames import (
    REVISION_OF_HEADER,
    Acknowledge,
    Consume,
    ConsumeWithOptions,
    DeadLetter,
    Dispatch,
    DispatchWithInfo,
    Frame,
    Hello,
    Publish,
    PublishWithOptions,
    ReceiptFrame,
    Requeue,
    Revision,
    Settle,
    Welcome,
    WireLimits,
)

_H: Final = 0x48
_P: Final = 0x50
_CR: Final = 0x0D
_LF: Final = 0x0A
_DIGITS: Final = frozenset(b"0123456789")
_MAX_NAMES: Final = 16_384  # for all connections; 10 to 22 MiB if each name has the maximum length
_NAMES: Final[dict[bytes, str]] = {}  # verified names; verifying a name takes 15 µs

Values = dict[int, Any]  # packet type -> content, in the order of the frame

Step = Callable[["Parser", bytes, int], int]  # consumes bytes and returns the new position

_MAKE: Final[dict[int, Callable[[Values], Frame]]] = {
    frames.PUBLISH: lambda v: Publish(v[1], v[2], v.get(5), v.get(3)),
    frames.CONSUME: lambda v: Consume(v[1], v[4]),
    frames.DISPATCH: lambda v: Dispatch(v[1], v[2], v[3], v.get(5)),
    frames.ACKNOWLEDGE: lambda v: Acknowledge(v[1], v[3]),
    frames.REQUEUE: lambda v: Requeue(v[1], v[3], v[5]),
    frames.DEAD_LETTER: lambda v: DeadLetter(v[1], v[3]),
    frames.RECEIPT: lambda v: ReceiptFrame(
        v[1], v[3], None if 2 not in v else v[2].decode(errors="replace")
    ),
    frames.PUBLISH_WITH_OPTIONS: lambda v: PublishWithOptions(v[1], v[2], v[6], v.get(3)),
    frames.SETTLE: lambda v: Settle(v[1], v[3], v[6], v.get(2)),
    frames.CONSUME_WITH_OPTIONS: lambda v: ConsumeWithOptions(v[1], v[4], v[6]),
    frames.DISPATCH_WITH_INFO: lambda v: DispatchWithInfo(v[1], v[2], v[3], v[5], v[6]),
    frames.HELLO: lambda v: Hello(v[3], v[6]),
    frames.WELCOME: lambda v: Welcome(v[3], v[6]),
}


class Part(Enum):
    """The parts of a frame that an observer sees, in their order on the wire."""

    MESSAGE_HEADER = 1
    PACKET_HEADER = 2  # without its line break
    LINE_BREAK = 3  # one byte of it
    CONTENT = 4  # all of it; ends the packet
    END = 5  # of the frame; no bytes


FrameObserver = Callable[[Part, bytes], None]


class Parser:
    """Parses one direction of a connection, from its first byte to its first error.

    ``framing``, ``line_break``, ``packet_header`` and ``revision_seen`` are learned from the bytes;
    each is None until it is known.  Replies use the same style (R9).  ``error`` is set at the first
    invalid byte; from then on, :meth:`feed` returns no frames.
    """

    def __init__(
        self,
        limits: WireLimits,
        shapes: frames.Shapes,
        fast_frames: Callable[[dict[bytes, str], WireLimits], FastFrames],
        pinned: int | None = None,
    ) -> None:
        self.error: RemoteProtocolError | None = None
        self.framing: str | None = None
        self.line_break: bytes | None = None
        self.packet_header: int | None = pinned
        self.revision_seen: Revision | None = None  # set by the first frame that shows it (R7)
        self._shapes = shapes
        self._limits = limits.by_packet()
        self._max_queue = limits.max_queue
        self._names = _NAMES
        self._fast_frames = fast_frames(self._names, limits)
        self._width = pinned  # compact packet header width; None until the first one shows it (R4)
        self._is_plain = False  # True for compact framing with 32-byte headers, if not observed
        self._observer: FrameObserver | None = None
        self._frames: list[Frame] = []  # frames completed in this read
        self._fed = 0  # number of bytes received on the connection before this read
        # -- the current frame
        self._in_frame = False
        self._began = 0  # offset of the frame's first byte
        self._header = b""  # the frame's message header
        self._shape: tuple[int, ...] = ()
        self._left = 0  # number of packets still missing
        self._values: Values = {}
        # -- the current step
        self._step: Step = Parser._message_header  # unbound, to avoid a reference cycle
        self._next: Step = Parser._message_header  # the step after a line break
        self._break_code = frames.BAD_FRAMING  # error code if the line break is missing
        self._cr = False  # True if CR has been seen, so LF must follow
        self._head = b""  # the part of a header received so far
        self._head_at = 0
        self._packet = 0
        self._length = 0
        self._content = bytearray()

    @property
    def partial_bytes(self) -> int:
        """Return the number of bytes received of an incomplete frame; 0 between frames."""
        return self._fed - self._began if self._in_frame else 0

    @property
    def partial_header(self) -> bytes:
        """Return the part that was received of an incomplete message header or packet header."""
        return self._head

    @property
    def partial_content(self) -> tuple[bytes, int] | None:
        """Return the received part of an incomplete content and its length, or None."""
        if self._step is not Parser._content_bytes:
            return None
        return bytes(self._content), self._length

    def observe(self, observer: FrameObserver | None) -> None:
        """Show all further parts to ``observer``; meanwhile, the fast path is not used."""
        self._observer = observer
        self._is_plain = self.framing == "compact" and self._width == 32 and observer is None

    def feed(self, data: bytes) -> list[Frame]:
        """Return the frames that ``data`` completes, in order; check ``error`` afterwards.

        Frames completed before the first invalid byte are returned (R16).
        """
        if self.error is not None:
            return []
        frames = self._frames = []
        pos, end = 0, len(data)
        try:
            while pos < end:
                if self._is_plain and not self._in_frame:
                    pos = self._fast_frames.parse(data, pos, frames)
                    if pos == end:
                        break
                pos = self._step(self, data, pos)
        except RemoteProtocolError as error:
            self.fail(error)
        self._fed += end
        return frames

    def fail(self, error: RemoteProtocolError) -> None:
        """Stop parsing and drop the incomplete frame."""
        self.error = error.with_traceback(None)  # a traceback would keep the data alive
        self._in_frame = False
        self._values = {}
        self._content = bytearray()

    # -- step 1: the message header, R1 and R2

    def _message_header(self, data: bytes, pos: int) -> int:
        if not self._in_frame:
            if self.framing == "line" and (data[pos] != _H or self._cr):
                return self._blank_line(data, pos)
            self._in_frame = True
            self._began = self._fed + pos
        head, pos = self._gather(data, pos, frames.HEADER_BYTES)
        shape = self._shapes.get(head)
        if shape is None:
            self._check_message_header(head)
            return pos
        self._head = b""
        self._header = head
        self._shape = shape
        self._left = len(shape)
        if self._observer is not None:
            self._observer(Part.MESSAGE_HEADER, head)
        if self.framing is None:
            self._step = Parser._first_framing
        elif self.framing == "compact":
            self._step = Parser._packet_header
        else:
            self._expect_break(Parser._packet_header, frames.BAD_FRAMING)
        return pos

    def _check_message_header(self, head: bytes) -> None:
        """Raise an error at the first invalid byte of ``head``, which may be incomplete."""
        for index, byte in enumerate(head):
            if index == 0:
                if byte != _H:
                    self._fail(frames.BAD_HEADER, _describe(head), self._began)
            elif byte not in _DIGITS:
                self._fail(frames.BAD_HEADER, _describe(head[index:]), self._began + index)
            elif index <= 2:
                if byte != frames.VERSION[index - 1]:
                    self._fail(frames.BAD_VERSION, "the version must be 01", self._began + index)
            elif index == 5:
                self._check_type(int(head[3:6]))
            elif index == 7:
                detail = frames.wrong_count(self._shapes, int(head[3:6]), int(head[6:]))
                self._fail(frames.BAD_PACKET_COUNT, detail, self._began + 6)

    def _check_type(self, message_type: int) -> None:
        if message_type not in _MAKE:
            detail = f"message type {message_type:03} does not exist"
            self._fail(frames.UNKNOWN_TYPE, detail, self._began + 3)
        if not any(int(header[3:6]) == message_type for header in self._shapes):
            detail = f"this side does not send messages of type {message_type:03}"
            self._fail(frames.UNEXPECTED_TYPE, detail, self._began + 3)

    def _blank_line(self, data: bytes, pos: int) -> int:
        """Skip a line break between messages (R10)."""
        byte = data[pos]
        if byte == _CR and not self._cr:
            self._cr = True
        elif byte == _LF:
            self._cr = False
        else:
            self._fail(frames.BAD_HEADER, _describe(data[pos : pos + 8]), self._fed + pos)
        return pos + 1

    def _first_framing(self, data: bytes, pos: int) -> int:
        """Detect the framing from the byte that follows the first message header (R3)."""
        byte = data[pos]
        if byte == _P:
            self.framing = "compact"
            self._step = Parser._packet_header
        elif byte in (_CR, _LF):
            self.framing = "line"
            self._expect_break(Parser._packet_header, frames.BAD_FRAMING)
        else:
            detail = "expected a packet or a line break after the message header"
            self._fail(frames.BAD_FRAMING, detail, self._fed + pos)
        return pos

    # -- step 2: the packet header, R4, R5, R12 and R13

    def _packet_header(self, data: bytes, pos: int) -> int:
        if not self._head:
            self._head_at = self._fed + pos
        width = 32 if self.framing == "line" else self._width or 32
        head, pos = self._gather(data, pos, width)
        self._check_packet_header(head)
        if len(head) < width:
            return pos
        self._packet = int(head[1:3])
        self._length = int(head[3:])
        if self.framing == "line":
            self._step = Parser._line_width
        elif self._width is None and not self._length:
            self._step = Parser._first_width
        else:
            self._begin_content(width)
        return pos

    def _first_width(self, data: bytes, pos: int) -> int:
        """Detect the width from the first packet; a digit after 29 zeros means 36 bytes (R4)."""
        if data[pos] not in _DIGITS:
            self._begin_content(32)
            return pos
        self._width = 36
        self._step = Parser._packet_header
        return pos

    def _line_width(self, data: bytes, pos: int) -> int:
        """Detect from the bytes after 29 digits whether a header line has 32 or 36 bytes (R5)."""
        if len(self._head) == 32 and data[pos] in (_CR, _LF):
            self._begin_content(32)
            return pos
        head, after = self._gather(data, pos, 36)
        self._check_packet_header(head)
        if len(head) == 36:
            self._length = int(head[3:])
            self._begin_content(36)
        return after

    def _check_packet_header(self, head: bytes) -> None:
        """Raise an error at the first invalid byte of ``head``, which may be incomplete."""
        if head[0] != _P:
            self._fail(frames.BAD_PACKET_HEADER, "expected a packet", self._head_at)
        self._check_digits(head, 1, 3)
        if len(head) >= 3:
            packet = int(head[1:3])
            if packet not in self._shape:
                detail = f"packet {packet:02} is not allowed in type {self._header[3:6].decode()}"
                self._fail(frames.BAD_PACKET_TYPE, detail, self._head_at + 1)
            if packet in self._values:
                detail = f"packet {packet:02} occurs more than once"
                self._fail(frames.DUPLICATE_PACKET, detail, self._head_at + 1)
            self._check_digits(head, 3, len(head))

    def _check_digits(self, head: bytes, start: int, stop: int) -> None:
        part = head[start:stop]
        if part and not part.isdigit():
            index_of_byte = next(index for index, byte in enumerate(part) if byte not in _DIGITS)
            detail = "a packet header must consist of P and digits"
            self._fail(frames.BAD_PACKET_HEADER, detail, self._head_at + start + index_of_byte)

    # -- step 3: the content

    def _begin_content(self, width: int) -> None:
        """Check the length against its limit before any content is buffered (R13)."""
        limit = self._limits[self._packet]
        if self._length > limit:
            detail = f"packet {self._packet:02} is {self._length} bytes; the limit is {limit}"
            self._fail(frames.TOO_LARGE, detail, self._head_at + 3)
        if self._observer is not None:
            self._observer(Part.PACKET_HEADER, self._head)
        self._head = b""
        if self.packet_header is None:
            self.packet_header = width
        if self.framing == "compact":
            self._width = width
            self._is_plain = width == 32 and self._observer is None
            self._step = Parser._content_bytes
            if not self._length:
                self._end_packet(b"", self._head_at + width)
        else:
            self._expect_break(Parser._content_bytes, frames.BAD_PACKET_HEADER)

    def _content_bytes(self, data: bytes, pos: int) -> int:
        stop = pos + self._length - len(self._content)
        if stop > len(data):
            self._content += data[pos:]
            return len(data)
        content = data[pos:stop]
        if self._content:
            self._content += content
            content = bytes(self._content)
            self._content = bytearray()
        self._end_packet(content, self._fed + stop - self._length)
        return stop

    def _end_packet(self, content: bytes, at: int) -> None:
        packet = self._packet
        if packet == frames.QUEUE:
            if self._length > self._max_queue and not content.endswith(frames.DEAD_LETTER_SUFFIX):
                detail = f"a queue name of {len(content)} bytes must end in .dlq"
                self._fail(frames.TOO_LARGE, detail, at)
            self._values[packet] = self._names.get(content) or self._queue_name(content, at)
        elif packet in (frames.COUNT, frames.TTL):
            if not content.isdigit():
                self._fail(frames.BAD_NUMBER, "a number must have 1 to 19 digits", at)
            self._values[packet] = int(content)
        else:
            self._values[packet] = content
        if self._observer is not None:
            self._observer(Part.CONTENT, content)
        self._left -= 1
        if not self._left:
            self._end_frame()
        elif self.framing == "compact":
            self._step = Parser._packet_header
        else:
            self._expect_break(Parser._packet_header, frames.BAD_FRAMING)

    def _queue_name(self, raw: bytes, at: int) -> str:
        if not raw:
            return ""  # _end_frame raises EMPTY_QUEUE, unless a wrong header width raises first
        name = frames.decode_queue(raw)
        if name is None:
            detail = "a queue name must be UTF-8 with no control characters except line feeds"
            self._fail(frames.BAD_QUEUE, detail, at)
        if len(self._names) >= _MAX_NAMES:
            self._names.clear()
        self._names[raw] = name
        return name

    def _end_frame(self) -> None:
        if self._values.get(frames.QUEUE) == "":
            self._fail(frames.EMPTY_QUEUE, "a queue name must have at least 1 byte", self._began)
        if self._values.get(frames.ID) == b"":
            self._fail(frames.EMPTY_ID, "an id or key must have at least 1 byte", self._began)
        if self._observer is not None:
            self._observer(Part.END, b"")
        self._frames.append(_MAKE[int(self._header[3:6])](self._values))
        self._fast_frames.headers.add(self._header)
        self._values = {}
        self._in_frame = False
        self._step = Parser._message_header
        if self.revision_seen is None:
            self.revision_seen = REVISION_OF_HEADER.get(self._header)

    # -- shared by the steps

    def _gather(self, data: bytes, pos: int, size: int) -> tuple[bytes, int]:
        """Return the part of a header received so far, at most ``size`` bytes, and its end."""
        stop = min(pos + size - len(self._head), len(data))
        self._head += data[pos:stop]
        return self._head, stop

    def _expect_break(self, after: "Step", code: str) -> None:
        self._step = Parser._line_break
        self._next = after
        self._break_code = code

    def _line_break(self, data: bytes, pos: int) -> int:
        """Consume LF or CR LF; both are always valid (R10), and replies use the first one seen."""
        byte = data[pos]
        if self._observer is not None and byte in (_CR, _LF):
            self._observer(Part.LINE_BREAK, data[pos : pos + 1])
        if byte == _CR and not self._cr:
            self._cr = True
        elif byte == _LF:
            if self.line_break is None:
                self.line_break = b"\r\n" if self._cr else b"\n"
            self._cr = False
            self._step = self._next
            if self._next is Parser._content_bytes and not self._length:
                self._end_packet(b"", self._fed + pos + 1)
        else:
            self._fail(self._break_code, "expected a line break", self._fed + pos)
        return pos + 1

    def _fail(self, code: str, detail: str, offset: int) -> NoReturn:
        raise RemoteProtocolError(code, detail, offset)


def _describe(received: bytes) -> str:
    """Describe bytes that are not a message header, naming the protocol if it is a common one."""
    if received[:1] == b"\x16":
        return "not a message header; looks like TLS"
    if received[:4] in (b"GET ", b"POST", b"PUT ", b"HEAD", b"OPTI", b"DELE", b"PATC", b"CONN"):
        return "not a message header; looks like HTTP"
    return f"not a message header: {received[:8]!r}"
