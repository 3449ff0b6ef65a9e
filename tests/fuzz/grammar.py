"""The grammar once more, as plainly as it goes: a whole stream at once, no cuts and no speed.

It is what the parser is compared with, so it takes nothing of it but the frames and the limits.
The rules are those of ``docs/reference/wire.md``.
"""

import re
from collections.abc import Callable
from typing import Any, Final, Literal

from phpmq_lite.protocol.frames import (
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
    Settle,
    Welcome,
    WireLimits,
    decode_queue,
)

End = Literal["whole", "short", "wrong"]  # short: within a frame, or not to be told from that

_Values = dict[bytes, Any]  # packet type -> content
_Made = Callable[[_Values], Frame]

# Type and number of packets -> which packets, and the frame that they make.
FROM_CLIENT: Final[dict[bytes, tuple[set[bytes], _Made]]] = {
    b"00102": ({b"01", b"02"}, lambda v: Publish(v[b"01"], v[b"02"], None, None)),
    b"00103": ({b"01", b"02", b"05"}, lambda v: Publish(v[b"01"], v[b"02"], v[b"05"], None)),
    b"00104": (
        {b"01", b"02", b"05", b"03"},
        lambda v: Publish(v[b"01"], v[b"02"], v[b"05"], v[b"03"]),
    ),
    b"00202": ({b"01", b"04"}, lambda v: Consume(v[b"01"], v[b"04"])),
    b"00402": ({b"01", b"03"}, lambda v: Acknowledge(v[b"01"], v[b"03"])),
    b"00503": ({b"01", b"03", b"05"}, lambda v: Requeue(v[b"01"], v[b"03"], v[b"05"])),
    b"00602": ({b"01", b"03"}, lambda v: DeadLetter(v[b"01"], v[b"03"])),
    b"01003": (
        {b"01", b"02", b"06"},
        lambda v: PublishWithOptions(v[b"01"], v[b"02"], v[b"06"], None),
    ),
    b"01004": (
        {b"01", b"02", b"06", b"03"},
        lambda v: PublishWithOptions(v[b"01"], v[b"02"], v[b"06"], v[b"03"]),
    ),
    b"01103": ({b"01", b"03", b"06"}, lambda v: Settle(v[b"01"], v[b"03"], v[b"06"], None)),
    b"01104": (
        {b"01", b"03", b"06", b"02"},
        lambda v: Settle(v[b"01"], v[b"03"], v[b"06"], v[b"02"]),
    ),
    b"01203": (
        {b"01", b"04", b"06"},
        lambda v: ConsumeWithOptions(v[b"01"], v[b"04"], v[b"06"]),
    ),
    b"01402": ({b"03", b"06"}, lambda v: Hello(v[b"03"], v[b"06"])),
}
FROM_BROKER: Final[dict[bytes, tuple[set[bytes], _Made]]] = {
    b"00303": ({b"01", b"02", b"03"}, lambda v: Dispatch(v[b"01"], v[b"02"], v[b"03"], None)),
    b"00304": (
        {b"01", b"02", b"03", b"05"},
        lambda v: Dispatch(v[b"01"], v[b"02"], v[b"03"], v[b"05"]),
    ),
    b"00702": ({b"01", b"03"}, lambda v: ReceiptFrame(v[b"01"], v[b"03"], None)),
    b"00703": (
        {b"01", b"03", b"02"},
        lambda v: ReceiptFrame(v[b"01"], v[b"03"], v[b"02"].decode(errors="replace")),
    ),
    b"01305": (
        {b"01", b"02", b"03", b"05", b"06"},
        lambda v: DispatchWithInfo(v[b"01"], v[b"02"], v[b"03"], v[b"05"], v[b"06"]),
    ),
    b"01502": ({b"03", b"06"}, lambda v: Welcome(v[b"03"], v[b"06"])),
}
_TOKENS: Final = rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]*"
_REQUEST: Final = re.compile(_TOKENS + rb" [!-~]+ HTTP/1\.")


class _WrongError(Exception):
    """A byte that has no place there."""


class _ShortError(Exception):
    """The bytes end where more are due."""


class _Reader:
    """A place in a stream, and what was learnt of its style."""

    def __init__(self, data: bytes, limits: WireLimits, width: int | None) -> None:
        self.data, self.at, self.width = data, 0, width
        self.is_line: bool | None = None
        self._limits = limits.by_packet()
        self._max_queue = limits.max_queue

    def take(self, size: int) -> bytes:
        if self.at + size > len(self.data):
            raise _ShortError
        self.at += size
        return self.data[self.at - size : self.at]

    def frame(self, shapes: dict[bytes, tuple[set[bytes], _Made]]) -> Frame:
        head = self.take(8)
        if head[:3] != b"H01" or head[3:] not in shapes:
            raise _WrongError
        if self.is_line is None:
            self.is_line = self.data[self.at : self.at + 1] in (b"\r", b"\n")
        packets, made = shapes[head[3:]]
        values: _Values = {}
        while packets - values.keys():
            self.line_break()
            kind, content = self.packet(packets - values.keys())
            values[kind] = content
        if values.get(b"01") == "" or values.get(b"03") == b"":
            raise _WrongError
        return made(values)

    def packet(self, due: set[bytes]) -> tuple[bytes, Any]:
        if self.take(1) != b"P" or (kind := self.take(2)) not in due:
            raise _WrongError
        size = self.number(self.take(29))
        if self.is_wide(size):
            size = self.number(self.data[self.at - 29 : self.at] + self.take(4))
        if size > self._limits[int(kind)]:
            raise _WrongError
        self.line_break()
        content = self.take(size)
        if kind == b"01":
            name = decode_queue(content)
            is_too_long = size > self._max_queue and content[-4:] != b".dlq"
            if name is None or is_too_long:
                raise _WrongError
            return kind, name
        return kind, self.number(content) if kind in (b"04", b"05") else content

    def is_wide(self, size: int) -> bool:
        """Return whether four more digits follow the 29: R4 and R5."""
        if self.is_line:
            is_wide = self.take(1) not in (b"\r", b"\n")
            self.at -= 1
            return is_wide
        if self.width is None and size == 0:
            self.width = 36 if self.take(1).isdigit() else 32
            self.at -= 1
        self.width = self.width or 32
        return self.width == 36

    def number(self, digits: bytes) -> int:
        if not digits.isdigit():
            raise _WrongError
        return int(digits)

    def line_break(self) -> None:
        """Read one, where there are such."""
        if self.is_line and self.take(1) != b"\n":
            self.at -= 1
            if self.take(1) != b"\r" or self.take(1) != b"\n":
                raise _WrongError

    def blank_lines(self) -> None:
        """Read what may stand between frames."""
        while self.is_line and self.at < len(self.data) and self.data[self.at] != 0x48:
            self.line_break()


def read(
    data: bytes,
    shapes: dict[bytes, tuple[set[bytes], _Made]],
    limits: WireLimits,
    width: int | None = None,
) -> tuple[list[Frame], End]:
    """Return the frames of a stream and how it ends; ``width`` pins that of compact headers."""
    reader = _Reader(data, limits, width)
    frames: list[Frame] = []
    try:
        while True:
            reader.blank_lines()
            if reader.at == len(data):
                return frames, "whole"
            frames.append(reader.frame(shapes))
    except _ShortError:
        return frames, "short"
    except _WrongError:
        return frames, "wrong"


def is_http(data: bytes) -> bool:
    """Return whether a stream begins like an HTTP/1 request."""
    return _REQUEST.match(data) is not None
