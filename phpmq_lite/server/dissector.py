"""Bytes of one direction, frame by frame and piece by piece, for people who look at them.

The grammar is the parser's business: what comes here was found right by it, or was written by the
encoder.  So this one only finds the borders, and keeps no more than the beginning of a content.
"""

from dataclasses import dataclass
from typing import Final

from phpmq_lite.protocol import wire

CUT_BYTES: Final = 256  # kept of each content

_MESSAGES: Final = {
    wire.PUBLISH: "publish",
    wire.CONSUME: "consume",
    wire.DISPATCH: "dispatch",
    wire.ACKNOWLEDGE: "acknowledge",
    wire.REQUEUE: "requeue",
    wire.DEAD_LETTER: "dead letter",
    wire.RECEIPT: "receipt",
}
_BREAKS: Final = b"\r\n"
_LONGEST_HEAD: Final = 38  # 36 and a break; a longer line is no packet header


@dataclass(slots=True, frozen=True)
class Piece:
    """Bytes that belong together, and what they say; ``cut`` counts those that were not kept."""

    raw: bytes
    meaning: str
    cut: int = 0


@dataclass(slots=True, frozen=True)
class Frame:
    """One frame: the message header, then the packets."""

    kind: str  # publish, consume, …
    queue: str | None
    pieces: tuple[Piece, ...]
    size: int  # bytes on the wire, breaks included


class Dissector:
    """Cuts a stream into frames.  ``reset`` at the first byte of a frame; then ``feed``.

    ``width`` is that of compact packet headers, 32 or 36; with ``is_line`` every piece ends with
    a line break.  Bytes that are no frame are passed over, never an error.
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
        """Tell whether no frame is begun."""
        return not self._frame and not self._head

    def reset(self) -> None:
        """Forget what was begun: the next byte opens a frame."""
        self._frame = b""  # its message header
        self._head = b""  # a header begun, or the packet header of the content begun
        self._packets_left = 0
        self._pieces: list[tuple[bytes, bytes, int]] = []  # header, content kept, its length
        self._content = b""
        self._length = 0
        self._left = -1  # bytes of content to come; -1: a header is due
        self._size = 0

    def begun(self) -> Frame | None:
        """Return the pieces of the frame that is begun, the last one as far as it came."""
        if self.is_between:
            return None
        if not self._frame:
            header = Piece(self._head, f"message header, {len(self._head)} of 8 bytes")
            return Frame("unknown", None, (header,), self._size)
        found = _decoded(self._frame, self._pieces, self._size)
        count = len(self._pieces) + self._packets_left
        pieces = [Piece(self._frame, f"{found.kind}, {count} packets"), *found.pieces[1:]]
        if self._left >= 0:
            came = self._length - self._left
            meaning = f"content, {came} of {self._length} bytes"
            raw = self._head + self._content
            pieces.append(Piece(raw, meaning, came - len(self._content)))
        elif self._head:
            pieces.append(Piece(self._head, "packet header, not whole"))
        return Frame(found.kind, found.queue, tuple(pieces), self._size)

    def feed(self, data: bytes) -> list[Frame]:
        """Return the frames that ``data`` completes."""
        done: list[Frame] = []
        pos, end = 0, len(data)
        while pos < end:
            start = pos
            if self._left >= 0:
                pos = self._take_content(data, pos)
            elif self._frame:
                pos = self._packet_header(data, pos)
            else:
                pos = self._message_header(data, pos)
            self._size += pos - start
            if self._frame and not self._packets_left and self._left < 0:
                done.append(_decoded(self._frame, self._pieces, self._size))
                self.reset()
        return done

    def _message_header(self, data: bytes, pos: int) -> int:
        if not self._head and data[pos] in _BREAKS:
            self._size -= 1  # it belongs to no frame
            return pos + 1
        stop = pos + wire.HEADER_BYTES - len(self._head)
        self._head += data[pos:stop]
        if len(self._head) == wire.HEADER_BYTES:
            self._frame, self._head = self._head, b""
            packets = self._frame[6:]
            self._packets_left = int(packets) if packets.isdigit() else 0
        return min(stop, len(data))

    def _packet_header(self, data: bytes, pos: int) -> int:
        if not self._head and data[pos] in _BREAKS:
            return pos + 1  # the one behind the content before
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

    def _take_content(self, data: bytes, pos: int) -> int:
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


def _decoded(header: bytes, packets: list[tuple[bytes, bytes, int]], size: int) -> Frame:
    """Say what the pieces of a frame mean."""
    number = int(header[3:6]) if header[3:6].isdigit() else 0
    kind = _MESSAGES.get(number, "unknown")
    queue = None
    pieces = [Piece(header, f"{kind}, {len(packets)} packets")]
    for head, content, length in packets:
        packet = int(head[1:3]) if head[1:3].isdigit() else 0
        if packet == wire.QUEUE:
            queue = content.decode(errors="replace")
        pieces.append(
            Piece(head + content, _meaning(number, packet, content, length), length - len(content))
        )
    return Frame(kind, queue, tuple(pieces), size)


def _meaning(message: int, packet: int, content: bytes, length: int) -> str:
    text = content.decode(errors="backslashreplace")
    match packet:
        case wire.QUEUE:
            return f"queue {text}"
        case wire.CONTENT if message == wire.RECEIPT:
            return f"refused: {text}"
        case wire.CONTENT:
            return f"content, {length} bytes"
        case wire.ID if message in (wire.PUBLISH, wire.RECEIPT):
            return f"key {text}"
        case wire.ID:
            return f"message id {text}"
        case wire.COUNT:
            return f"credit {text}" if text.strip("0") else "credit 0: gives back"
        case wire.TTL:
            return f"TTL {text} s" if text.strip("0") else "TTL 0: never expires"
        case _:
            return f"packet {packet:02}"
