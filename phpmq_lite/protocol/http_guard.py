"""Is a browser talking?  A compact frame is a valid HTTP method, so its bytes are looked at first.

``docs/security.md`` 8: behind a rebound name a page may ``fetch`` with a method of its own; the
request head then follows inside the content.  A request line is all HTTP token characters, a
blank, a target, and `` HTTP/1.``: as long as a connection may still be the beginning of that, it
is not decided who talks.
"""

from collections.abc import Callable
from typing import Final

_TOKEN: Final = b"!#$%&'*+-.^_`|~0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_TARGET: Final = bytes(range(0x21, 0x7F))
_VERSION: Final = b"HTTP/1."
_BLANK: Final = 0x20

UNDECIDED: Final = "undecided"
HTTP: Final = "http"
OTHER: Final = "other"


class HttpGuard:
    """Looks once at each byte of a connection, from the first one until it is decided."""

    __slots__ = ("_has_target", "_look", "_version", "verdict")

    def __init__(self) -> None:
        self.verdict: str = UNDECIDED
        self._look: Callable[[HttpGuard, bytes], bytes] = HttpGuard._method
        self._has_target = False
        self._version = b""

    def look(self, data: bytes) -> str:
        """Look at the next bytes; return UNDECIDED, HTTP or OTHER, the last two for good."""
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
        self._look = HttpGuard._target
        return data[data.index(b" ") + 1 :]

    def _target(self, data: bytes) -> bytes:
        other = data.translate(None, _TARGET)
        if not other:
            self._has_target = True
            return b""
        if other[0] != _BLANK or not (self._has_target or data[0] != _BLANK):
            self.verdict = OTHER
            return b""
        self._look = HttpGuard._http
        return data[data.index(b" ") + 1 :]

    def _http(self, data: bytes) -> bytes:
        self._version = (self._version + data[: len(_VERSION)])[: len(_VERSION)]
        if self._version == _VERSION:
            self.verdict = HTTP
        elif not _VERSION.startswith(self._version):
            self.verdict = OTHER
        return b""
