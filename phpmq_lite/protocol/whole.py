"""The parser's common case: whole compact frames in the usual order, by straight slices.

Only frames whose packet headers have 32 bytes come here.  Whatever is unusual, wrong, or not
whole is left where it stands, for the steps of ``parser.py``: nothing is refused here, and
nothing is taken whose bytes were not all compared.

A peer repeats itself, so the constant parts of its last frames are remembered and compared with
one ``startswith``: 0.4 us for a publish of 256 bytes, 1.8 where queues change all the time, 0.4
for an acknowledgement; the steps take 8 (``benchmarks/protocol.py``).
"""

from abc import ABC, abstractmethod
from typing import Final, Protocol

from phpmq_lite.protocol.frames import Acknowledge, Dispatch, Frame, Publish, ReceiptFrame
from phpmq_lite.protocol.wire import (
    ACKNOWLEDGE,
    DISPATCH,
    PUBLISH,
    RECEIPT,
    WireLimits,
    message_header,
)

_ID_BYTES: Final = 32  # of every message id this broker gives
_ID_HEADER: Final = b"P03%029d" % _ID_BYTES
_KNOWN_LENGTHS: Final = 4_096
_KNOWN: dict[bytes, int] = {}  # 29 digits -> their value; saves int() and the check for digits

_Never = tuple[()]  # ``startswith(())`` is False: nothing remembered yet


def read_length(digits: bytes) -> int:
    """Return the value of the 29 digits of a packet header; -1 where they are not that."""
    value = _KNOWN.get(digits)
    if value is None:
        if len(digits) != 29 or not digits.isdigit():
            return -1
        value = int(digits)
        if len(_KNOWN) < _KNOWN_LENGTHS:
            _KNOWN[digits] = value
    return value


class WholeFrames(Protocol):
    """What the parser asks of its common case."""

    headers: set[bytes]  # of the frames that came through the steps: no others are taken

    def take(self, data: bytes, pos: int, frames: list[Frame]) -> int:
        """Append the whole common frames that begin at ``pos``; return where the rest begins."""


class _Remembered(ABC):
    """The constant parts of the last long and the last short frame of one connection."""

    __slots__ = (
        "_limits",
        "_long",
        "_long_queue",
        "_max_content",
        "_names",
        "_short",
        "_short_id",
        "_short_queue",
        "_tail",
        "headers",
    )

    def __init__(self, names: dict[bytes, str], limits: WireLimits) -> None:
        self.headers: set[bytes] = set()
        self._names = names  # verified queue names, of all parsers
        self._limits = limits
        self._max_content = limits.max_content
        self._long: bytes | _Never = ()  # H…P01…queueP02, before the 29 digits of the content
        self._long_queue = ""
        self._tail: bytes | _Never = ()  # the constant packets after the content
        self._short: bytes | _Never = ()  # H…P01…queueP03 and 29 digits, before the id
        self._short_queue = ""
        self._short_id = 0

    def _learn(self, data: bytes, pos: int, short: bytes) -> bool:
        """Remember the beginning of the frame at ``pos``; False where it is not a common one."""
        header = data[pos : pos + 8]
        if header not in self.headers or data[pos + 8 : pos + 11] != b"P01":
            return False
        size = read_length(data[pos + 11 : pos + 40])
        after = pos + 40 + size
        queue = (
            self._names.get(data[pos + 40 : after]) if 0 < size <= self._limits.max_queue else None
        )
        if queue is None:
            return False
        if header == short:
            id_size = read_length(data[after + 3 : after + 32])
            if data[after : after + 3] != b"P03" or not 0 < id_size <= self._limits.max_id:
                return False
            self._short = data[pos : after + 32]
            self._short_queue, self._short_id = queue, id_size
            return True
        return data[after : after + 3] == b"P02" and self._learn_long(
            header, data[pos : after + 3], queue
        )

    @abstractmethod
    def _learn_long(self, header: bytes, head: bytes, queue: str) -> bool:
        """Remember the head of a message with content, if it is one of this direction."""

    def _number_end(self, data: bytes, pos: int) -> int:
        """Return where the whole TTL packet at ``pos`` ends; 0 where there is none."""
        size = read_length(data[pos + 3 : pos + 32])
        if data[pos : pos + 3] != b"P05" or not 0 < size <= self._limits.max_number_digits:
            return 0  # ahead of the slice: compiled, one of a negative size raises SystemError
        digits = data[pos + 32 : pos + 32 + size]
        return pos + 32 + size if len(digits) == size and digits.isdigit() else 0


class WholeFromClient(_Remembered):
    """Publishes and acknowledgements."""

    __slots__ = ("_key_size", "_packets", "_size", "_sized", "_ttl_s")

    def __init__(self, names: dict[bytes, str], limits: WireLimits) -> None:
        super().__init__(names, limits)
        self._packets = 0  # of the last publish
        self._sized = b""  # _long and the digits of the last content
        self._size = 0  # of the last content
        self._ttl_s: int | None = None
        self._key_size = 0

    def take(self, data: bytes, pos: int, frames: list[Frame]) -> int:
        """Append the whole publishes and acknowledgements that begin at ``pos``."""
        end = len(data)
        pos = self._take_like_the_last(data, pos, end, frames)
        while True:
            if data.startswith(self._short, pos):
                start = pos + len(self._short)
                stop = start + self._short_id
                if stop > end:
                    return pos
                frames.append(Acknowledge(self._short_queue, data[start:stop]))
                pos = stop
            elif data.startswith(self._long, pos):
                start = pos + len(self._long) + 29
                digits = data[start - 29 : start]
                size = _KNOWN.get(digits)
                if size is None:
                    size = read_length(digits)
                stop = start + size
                if not 0 <= size <= self._max_content or stop > end:
                    return pos
                if not data.startswith(self._tail, stop) and not self._learn_tail(data, stop):
                    return pos
                after = stop + len(self._tail)
                key = None
                if self._key_size:
                    key = data[after : after + self._key_size]
                    after += self._key_size
                    if after > end:
                        return pos
                frames.append(Publish(self._long_queue, data[start:stop], self._ttl_s, key))
                self._sized, self._size = data[pos:start], size
                pos = self._take_like_the_last(data, after, end, frames)
            elif not self._learn(data, pos, _ACKNOWLEDGE):
                return pos

    def _take_like_the_last(self, data: bytes, pos: int, end: int, frames: list[Frame]) -> int:
        """Append the publishes that differ from the last one in content and key only.

        Two comparisons and two slices a frame: 0.41 instead of 0.70 µs.
        """
        sized, tail = self._sized, self._tail
        if not sized or not data.startswith(sized, pos):
            return pos
        queue, ttl_s, key_size, head_size = (
            self._long_queue,
            self._ttl_s,
            self._key_size,
            len(sized),
        )
        size = self._size
        whole = head_size + size + len(tail) + key_size
        append = frames.append
        while pos + whole <= end and data.startswith(sized, pos):
            start = pos + head_size
            stop = start + size
            if not data.startswith(tail, stop):
                break
            pos += whole
            key = data[pos - key_size : pos] if key_size else None
            append(Publish(queue, data[start:stop], ttl_s, key))
        return pos

    def _learn_long(self, header: bytes, head: bytes, queue: str) -> bool:
        packets = _PUBLISHES.get(header)
        if packets is None:
            return False
        self._long, self._long_queue, self._sized = head, queue, b""
        if packets != self._packets:
            self._packets = packets
            self._tail = b"" if packets == 2 else ()
            self._ttl_s = None
            self._key_size = 0
        return True

    def _learn_tail(self, data: bytes, pos: int) -> bool:
        """Remember the TTL, and the header of the key where there is one."""
        number_end = after = self._number_end(data, pos)
        if not number_end:
            return False
        key_size = 0
        if self._packets == 4:
            after += 32
            key_size = read_length(data[after - 29 : after])
            if data[after - 32 : after - 29] != b"P03" or not 0 < key_size <= self._limits.max_id:
                return False
        self._tail = data[pos:after]
        self._ttl_s = int(data[pos + 32 : number_end])
        self._key_size = key_size
        return True


class WholeFromBroker(_Remembered):
    """Dispatches with a TTL, and receipts without a reason."""

    __slots__ = ("_ttl_s",)

    def __init__(self, names: dict[bytes, str], limits: WireLimits) -> None:
        super().__init__(names, limits)
        self._ttl_s = 0

    def take(self, data: bytes, pos: int, frames: list[Frame]) -> int:
        """Append the whole dispatches and receipts that begin at ``pos``."""
        end = len(data)
        while True:
            if data.startswith(self._long, pos):
                start = pos + len(self._long) + 29
                size = read_length(data[start - 29 : start])
                stop = start + size
                id_at = stop + 32
                tail_at = id_at + _ID_BYTES
                if not 0 <= size <= self._max_content or tail_at > end:
                    return pos
                if not data.startswith(_ID_HEADER, stop):
                    return pos
                if not data.startswith(self._tail, tail_at) and not self._learn_tail(data, tail_at):
                    return pos
                frames.append(
                    Dispatch(self._long_queue, data[start:stop], data[id_at:tail_at], self._ttl_s)
                )
                pos = tail_at + len(self._tail)
            elif data.startswith(self._short, pos):
                start = pos + len(self._short)
                stop = start + self._short_id
                if stop > end:
                    return pos
                frames.append(ReceiptFrame(self._short_queue, data[start:stop], None))
                pos = stop
            elif not self._learn(data, pos, _RECEIPT):
                return pos

    def _learn_long(self, header: bytes, head: bytes, queue: str) -> bool:
        if header != _DISPATCH:
            return False
        self._long, self._long_queue = head, queue
        return True

    def _learn_tail(self, data: bytes, pos: int) -> bool:
        end = self._number_end(data, pos)
        if not end:
            return False
        self._tail = data[pos:end]
        self._ttl_s = int(data[pos + 32 : end])
        return True


_ACKNOWLEDGE: Final = message_header(ACKNOWLEDGE, 2)
_RECEIPT: Final = message_header(RECEIPT, 2)
_DISPATCH: Final = message_header(DISPATCH, 4)
_PUBLISHES: Final = {message_header(PUBLISH, packets): packets for packets in (2, 3, 4)}
