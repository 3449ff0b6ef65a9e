"""The parser's fast path, which slices complete compact frames if their packets are in order.

This module handles only frames whose packet headers have 32 bytes.  Anything unusual, invalid or
incomplete is left to the steps in ``parser.py``: this code never refuses a frame, and accepts a
frame only after comparing all of its bytes.

Peers repeat themselves, so the constant parts of their last frame are compared with a single
``startswith``: 0.4 µs for a publish of 256 bytes and 0.3 for an acknowledgement, or 1.2 and 0.8 if
the queue always changes; the steps take 8 (``benchmarks/protocol.py``).
"""

from typing import Final, Protocol

from phpmq_lite.protocol.frames import (
    ACKNOWLEDGE,
    DISPATCH,
    PUBLISH,
    RECEIPT,
    Acknowledge,
    Dispatch,
    Frame,
    Publish,
    ReceiptFrame,
    WireLimits,
    message_header,
)

_ID_BYTES: Final = 32  # length of all message ids from this broker
_ID_HEADER: Final = b"P03%029d" % _ID_BYTES
_KNOWN_LENGTHS: Final = 4_096
# 29 digits -> value for all name lengths; this saves calling int() and checking the digits.
_KNOWN: dict[bytes, int] = {b"%029d" % size: size for size in range(256)}

_Empty = tuple[()]  # nothing is cached; ``startswith(())`` is always False


def read_length(digits: bytes) -> int:
    """Return the number in a packet header's 29 digits, or -1 if they are not all digits."""
    value = _KNOWN.get(digits)
    if value is None:
        if len(digits) != 29 or not digits.isdigit():
            return -1
        value = int(digits)
        if len(_KNOWN) < _KNOWN_LENGTHS:
            _KNOWN[digits] = value
    return value


class FastFrames(Protocol):
    """The interface through which the parser uses a fast path."""

    headers: set[bytes]  # headers of messages that the steps in parser.py have accepted

    def parse(self, data: bytes, pos: int, frames: list[Frame]) -> int:
        """Append complete common frames, starting at ``pos``; return the offset after the last."""


class _FrameCache:
    def __init__(self, names: dict[bytes, str], limits: WireLimits) -> None:
        self.headers: set[bytes] = set()
        self._names = names  # verified queue names, shared by all parsers
        self._limits = limits
        self._max_content = limits.max_content
        self._long: bytes | _Empty = ()  # H…P01…queueP02, up to the content's 29 digits
        self._long_queue = ""
        self._tail: bytes | _Empty = ()  # the constant packets after the content
        self._short: bytes | _Empty = ()  # H…P01…queueP03 and its 29 digits, up to the id
        self._short_queue = ""
        self._short_id = 0

    def _queue_end(self, data: bytes, pos: int) -> int:
        """Return the end of the queue name in the frame at ``pos``, or 0 for an uncommon frame."""
        if data[pos : pos + 8] not in self.headers or data[pos + 8 : pos + 11] != b"P01":
            return 0
        size = read_length(data[pos + 11 : pos + 40])
        after = pos + 40 + size
        # Leave longer names, which may end in .dlq, to the steps.
        is_known = 0 < size <= self._limits.max_queue and data[pos + 40 : after] in self._names
        return after if is_known else 0

    def _id_size(self, data: bytes, pos: int) -> int:
        """Return the size of the id in the packet at ``pos``, or 0 if it is not an id packet."""
        size = read_length(data[pos + 3 : pos + 32])
        return size if data[pos : pos + 3] == b"P03" and 0 < size <= self._limits.max_id else 0

    def _number_end(self, data: bytes, pos: int) -> int:
        """Return the end of the TTL packet at ``pos``, or 0 if there is no complete TTL packet."""
        size = read_length(data[pos + 3 : pos + 32])
        if data[pos : pos + 3] != b"P05" or not 0 < size <= self._limits.max_number_digits:
            return 0  # in compiled code, slicing with a negative size raises SystemError
        digits = data[pos + 32 : pos + 32 + size]
        return pos + 32 + size if len(digits) == size and digits.isdigit() else 0


class FastClientFrames(_FrameCache):
    """Fast path for publish and acknowledgement frames."""

    def __init__(self, names: dict[bytes, str], limits: WireLimits) -> None:
        super().__init__(names, limits)
        self._opening: bytes | _Empty = ()  # beginning of the last publish, H…P01
        self._packets = 0  # number of packets in the last publish
        self._sized: bytes | _Empty = ()  # _long and the digits of the last content length
        self._size = 0  # length of the last content
        self._ttl_s: int | None = None
        self._key_size = 0
        self._id_head: bytes | _Empty = ()  # P03 and 29 digits of the last acknowledgement

    def parse(self, data: bytes, pos: int, frames: list[Frame]) -> int:
        """Append complete publish and acknowledgement frames at ``pos``; return the end offset."""
        while True:
            pos = self._parse_repeated(data, pos, frames)
            if pos == len(data) or not self._learn(data, pos):
                return pos

    def _parse_repeated(self, data: bytes, pos: int, frames: list[Frame]) -> int:
        """Append frames that differ from the last of their kind only in queue, content, TTL or ids.

        A publish takes 0.4 µs (1.2 if the queue changes), an acknowledgement 0.3 (0.8).
        """
        append, names, end, id_size = frames.append, self._names, len(data), self._short_id
        long, sized, queue, size = self._long, self._sized, self._long_queue, self._size
        short, short_queue, id_head = self._short, self._short_queue, self._id_head
        opening, tail, ttl_s, key_size = self._opening, self._tail, self._ttl_s, self._key_size
        head_size, rest_size = len(sized), len(tail) + key_size
        while True:
            if data.startswith(sized, pos):
                start = pos + head_size
            elif data.startswith(short, pos):
                step = len(short) + id_size
                if pos + step > end:
                    break
                while pos + step <= end and data.startswith(short, pos):
                    pos += step
                    append(Acknowledge(short_queue, data[pos - id_size : pos]))
                continue
            else:
                name = queue
                if data.startswith(long, pos):
                    start = pos + len(long) + 29
                else:
                    length = _KNOWN.get(data[pos + 11 : pos + 40], 0)
                    start = pos + length + 72
                    name = names.get(data[pos + 40 : start - 32], "")
                    if not name or length > self._limits.max_queue:
                        break
                    if data.startswith(id_head, start - 32) and data.startswith(_ACKNOWLEDGE, pos):
                        short, short_queue = data[pos:start], name
                        if start + id_size > end:
                            break
                        pos = start + id_size
                        append(Acknowledge(name, data[start:pos]))
                        continue
                    if not (data.startswith(opening, pos) and data.startswith(b"P02", start - 32)):
                        break
                length = read_length(data[start - 29 : start])
                if not 0 <= length <= self._max_content:
                    break
                long, sized, queue, size = data[pos : start - 29], data[pos:start], name, length
                head_size = start - pos
            stop = start + size
            if not data.startswith(tail, stop):
                if not self._learn_tail(data, stop):
                    break
                tail, ttl_s, key_size = self._tail, self._ttl_s, self._key_size
                rest_size = len(tail) + key_size
            after = stop + rest_size
            if after > end:
                break
            key = data[after - key_size : after] if key_size else None
            append(Publish(queue, data[start:stop], ttl_s, key))
            pos = after
        self._long, self._sized, self._long_queue, self._size = long, sized, queue, size
        self._short, self._short_queue = short, short_queue
        return pos

    def _learn(self, data: bytes, pos: int) -> bool:
        """Cache the frame kind at ``pos``; return False if it is already known or is uncommon."""
        after = self._queue_end(data, pos)
        if not after:
            return False
        opening = data[pos : pos + 11]
        if opening == _ACKNOWLEDGE:
            size = self._id_size(data, after)
            if not size or data.startswith(self._id_head, after):
                return False
            self._id_head, self._short_id, self._short = data[after : after + 32], size, ()
            return True
        packets = _PUBLISHES.get(opening)
        if packets is None or opening == self._opening:
            return False
        self._opening, self._long, self._sized = opening, (), ()
        self._tail = b"" if packets == 2 else ()
        self._packets, self._ttl_s, self._key_size = packets, None, 0
        return True

    def _learn_tail(self, data: bytes, pos: int) -> bool:
        number_end = after = self._number_end(data, pos)
        if not number_end:
            return False
        key_size = 0
        if self._packets == 4:
            key_size = self._id_size(data, after)
            after += 32
            if not key_size:
                return False
        self._tail = data[pos:after]
        self._ttl_s = int(data[pos + 32 : number_end])
        self._key_size = key_size
        return True


class FastBrokerFrames(_FrameCache):
    """Fast path for dispatches with a TTL, and receipts without a reason."""

    def __init__(self, names: dict[bytes, str], limits: WireLimits) -> None:
        super().__init__(names, limits)
        self._ttl_s = 0

    def parse(self, data: bytes, pos: int, frames: list[Frame]) -> int:
        """Append complete dispatch and receipt frames at ``pos``; return the end offset."""
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
            elif not self._learn(data, pos):
                return pos

    def _learn(self, data: bytes, pos: int) -> bool:
        """Cache the beginning of the frame at ``pos``; return False if the frame is uncommon."""
        after = self._queue_end(data, pos)
        if not after:
            return False
        opening, queue = data[pos : pos + 11], self._names[data[pos + 40 : after]]
        if opening == _RECEIPT:
            size = self._id_size(data, after)
            if not size:
                return False
            self._short, self._short_queue, self._short_id = data[pos : after + 32], queue, size
            return True
        if opening != _DISPATCH or data[after : after + 3] != b"P02":
            return False
        self._long, self._long_queue = data[pos : after + 3], queue
        return True

    def _learn_tail(self, data: bytes, pos: int) -> bool:
        end = self._number_end(data, pos)
        if not end:
            return False
        self._tail = data[pos:end]
        self._ttl_s = int(data[pos + 32 : end])
        return True


_ACKNOWLEDGE: Final = message_header(ACKNOWLEDGE, 2) + b"P01"
_RECEIPT: Final = message_header(RECEIPT, 2) + b"P01"
_DISPATCH: Final = message_header(DISPATCH, 4) + b"P01"
_PUBLISHES: Final = {message_header(PUBLISH, packets) + b"P01": packets for packets in (2, 3, 4)}
