"""The two ends of a PHPMQ connection, which convert bytes to frames and back without I/O."""

from collections.abc import Callable, Sequence
from typing import Final, cast

from phpmq_lite.errors import RemoteProtocolError
from phpmq_lite.protocol import frames
from phpmq_lite.protocol.encoder import BrokerEncoder, ClientEncoder, encoder_for
from phpmq_lite.protocol.fast_path import FastBrokerFrames, FastClientFrames
from phpmq_lite.protocol.frames import BrokerFrame, ClientFrame, Revision, WireLimits
from phpmq_lite.protocol.parser import Parser

_TOKEN: Final = b"!#$%&'*+-.^_`|~0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_TARGET: Final = bytes(range(0x21, 0x7F))
_VERSION: Final = b"HTTP/1."
_BLANK: Final = 0x20

UNDECIDED: Final = "undecided"
HTTP: Final = "http"
OTHER: Final = "other"


class HttpRequestDetector:
    """Detects HTTP requests in the first bytes of a connection."""

    def __init__(self) -> None:
        self.verdict: str = UNDECIDED
        self._look: Callable[[HttpRequestDetector, bytes], bytes] = HttpRequestDetector._method
        self._has_target = False
        self._version = b""

    def inspect(self, data: bytes) -> str:
        """Inspect the next bytes; return UNDECIDED or a final verdict, HTTP or OTHER."""
        while data and self.verdict == UNDECIDED:
            data = self._look(self, data)
        return self.verdict

    def _method(self, data: bytes) -> bytes:
        other = data.translate(None, _TOKEN)
        if not other:
            return b""
        if other[0] != _BLANK:
            self.verdict = OTHER
            return b""
        self._look = HttpRequestDetector._target
        return data[data.index(b" ") + 1 :]

    def _target(self, data: bytes) -> bytes:
        other = data.translate(None, _TARGET)
        if not other:
            self._has_target = True
            return b""
        if other[0] != _BLANK or not (self._has_target or data[0] != _BLANK):
            self.verdict = OTHER
            return b""
        self._look = HttpRequestDetector._http
        return data[data.index(b" ") + 1 :]

    def _http(self, data: bytes) -> bytes:
        self._version = (self._version + data[: len(_VERSION)])[: len(_VERSION)]
        if self._version == _VERSION:
            self.verdict = HTTP
        elif not _VERSION.startswith(self._version):
            self.verdict = OTHER
        return b""


AppendDispatch = Callable[[list[bytes], str, bytes, bytes, int], None]
GUARDED_BYTES: Final = 4 << 20  # maximum total size of complete frames that the guard holds back


class _ConnectionEnd:
    """What both ends have: a parser, which learns the peer's style from the bytes it receives."""

    def __init__(self, parser: Parser) -> None:
        self.parser = parser

    @property
    def error(self) -> RemoteProtocolError | None:
        """Return the peer's protocol error, after which the connection must be closed, or None."""
        return self.parser.error

    @property
    def packet_header(self) -> int:
        """Return the packet header width, 32 or 36 bytes; this is 32 until the width is known."""
        return self.parser.packet_header or 32


class ServerSide(_ConnectionEnd):
    """The broker's end, which reads what clients send and writes 003, 007, 013 and 015.

    ``packet_header`` sets the width of compact headers (``32`` or ``36``); ``auto`` learns it from
    the first packet (R4).  ``revision`` (``ttl`` or ``legacy``) applies until the peer shows which
    one it uses (R7).  With ``http_guard``, frames are held back while the peer may still be a
    browser: see :attr:`is_waiting`.
    """

    def __init__(
        self,
        limits: WireLimits,
        *,
        packet_header: str = "auto",
        revision: Revision = "ttl",
        http_guard: bool = True,
    ) -> None:
        pinned = None if packet_header == "auto" else int(packet_header)
        super().__init__(Parser(limits, frames.FROM_CLIENT, FastClientFrames, pinned))
        self._default_revision = revision
        self._encoder: BrokerEncoder | None = None  # set by the first dispatch
        self._guard = HttpRequestDetector() if http_guard else None  # None if decided or disabled
        self._held: list[ClientFrame] = []  # frames held back by the guard
        self._inspected_bytes = 0  # number of bytes inspected by the guard

    @property
    def error(self) -> RemoteProtocolError | None:
        """Return the peer's protocol error, or None; also None while frames are held back."""
        return None if self._held else self.parser.error

    @property
    def is_waiting(self) -> bool:
        """Return whether the HTTP guard is holding frames back.

        If so, keep reading.  Call :meth:`release` once no bytes have arrived for 20 ms (a pause in
        reading does not count), or once the peer has closed its side.
        """
        return bool(self._held)

    def receive(self, data: bytes) -> list[ClientFrame]:
        """Return the frames that ``data`` completes, in order; check :attr:`error` afterwards.

        After an error, no more frames are returned.
        """
        if self._guard is not None:
            return self._receive_guarded(self._guard, data)
        return cast("list[ClientFrame]", self.parser.feed(data))

    def _receive_guarded(self, guard: HttpRequestDetector, data: bytes) -> list[ClientFrame]:
        self._held += cast("list[ClientFrame]", self.parser.feed(data))
        self._inspected_bytes += len(data)
        verdict = guard.inspect(data)
        if verdict == HTTP:
            return self._refuse_http()
        if verdict == OTHER or self._inspected_bytes - self.parser.partial_bytes > GUARDED_BYTES:
            return self._decided()
        return []

    def _refuse_http(self) -> list[ClientFrame]:
        if self._held or self.parser.error is None:
            detail = "looks like HTTP: the bytes parsed as frames were a request method"
            self.parser.fail(
                RemoteProtocolError(frames.HTTP_REQUEST, detail, self._inspected_bytes)
            )
        self._held = []
        self._guard = None
        return []

    def _decided(self) -> list[ClientFrame]:
        frames, self._held = self._held, []
        self._guard = None
        return frames

    def release(self) -> list[ClientFrame]:
        """Return the frames that the HTTP guard holds back; check :attr:`error` afterwards."""
        return self._decided() if self._held else []

    @property
    def dispatcher(self) -> AppendDispatch:
        """The function behind ``append_dispatch``; calling it directly saves a call each time."""
        return (self._encoder or self._fix_encoder()).append_dispatch

    def append_dispatch(
        self, parts: list[bytes], queue: str, content: bytes, message_id: bytes, ttl_s: int
    ) -> None:
        """Append the parts of one 003 in this connection's style (R7, R9), to be written together.

        ``content`` is appended without copying.  ``ttl_s`` is the number of seconds left, rounded
        up, or 0 for a message that never expires (R8).
        """
        append = self.dispatcher  # a variable, because mypyc would omit a direct call
        append(parts, queue, content, message_id, ttl_s)

    def append_dispatch_with_info(
        self, parts: list[bytes], queue: str, content: bytes, message_id: bytes, ttl_s: int,
        info: bytes,
    ) -> None:  # fmt: skip
        """Append the parts of one 013, as ``append_dispatch`` does."""
        style = self._encoder or self._fix_encoder()
        style.append_dispatch_with_info(parts, queue, content, message_id, ttl_s, info)

    def append_welcome(self, parts: list[bytes], key: bytes, options: bytes) -> None:
        """Append the parts of one 015."""
        self._style("ttl").append_welcome(parts, key, options)

    def append_receipts(
        self, parts: list[bytes], queue: str, keys: Sequence[bytes], reason: str | None
    ) -> None:
        """Append the parts of one 007 for each key, in order."""
        self._style("ttl").append_receipts(parts, queue, keys, reason)

    def _fix_encoder(self) -> BrokerEncoder:
        """Fix the style of dispatches for the lifetime of the connection (R7)."""
        self._encoder = self._style(self.parser.revision_seen or self._default_revision)
        return self._encoder

    def _style(self, revision: Revision) -> BrokerEncoder:
        return encoder_for(self.parser.line_break or b"", self.packet_header, revision)


class ClientSide(_ConnectionEnd):
    """A client's end, which reads 003, 007, 013 and 015 and writes all other frames.

    Writes compact frames with 32-byte headers in the newer revision; reads every style, and learns
    the width of compact packet headers from the first one unless ``packet_header`` sets it.
    :attr:`publish`, ``consume``, ``acknowledge``, ``requeue`` and ``dead_letter`` return the bytes
    to send; they raise ``LocalProtocolError`` if the grammar does not allow an argument.
    """

    def __init__(
        self, limits: WireLimits | None = None, *, packet_header: int | None = None
    ) -> None:
        limits = limits or WireLimits()
        super().__init__(Parser(limits, frames.FROM_BROKER, FastBrokerFrames, packet_header))
        self._use(ClientEncoder(limits))

    def limit_content(self, max_content: int) -> None:
        """Refuse to write content that is longer, because the peer has a lower limit."""
        self._use(ClientEncoder(WireLimits(max_content)))

    def _use(self, encoder: ClientEncoder) -> None:
        self.publish = encoder.publish
        self.consume = encoder.consume
        self.acknowledge = encoder.acknowledge
        self.requeue = encoder.requeue
        self.dead_letter = encoder.dead_letter
        self.publish_with_options = encoder.publish_with_options
        self.settle = encoder.settle
        self.consume_with_options = encoder.consume_with_options
        self.hello = encoder.hello

    def receive(self, data: bytes) -> list[BrokerFrame]:
        """Return the frames that ``data`` completes, in order; check :attr:`error` afterwards."""
        return cast("list[BrokerFrame]", self.parser.feed(data))
