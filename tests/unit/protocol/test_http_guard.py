"""A request line is told from PHPMQ, at any cut."""

import pytest

from phpmq_lite.protocol.connection import HTTP, OTHER, UNDECIDED, ClientSide, HttpGuard

METHOD = ClientSide().publish("orders", b"planted")

LOOKS = [
    (b"", UNDECIDED),
    (METHOD, UNDECIDED),
    (METHOD + b" ", UNDECIDED),
    (METHOD + b" /", UNDECIDED),
    (METHOD + b" /path?x=1", UNDECIDED),
    (METHOD + b" / HTTP/1", UNDECIDED),
    (METHOD + b" / HTTP/1.", HTTP),
    (METHOD + b" / HTTP/1.1\r\nHost: evil\r\n\r\n", HTTP),
    (METHOD + b" http://127.0.0.1:9100/ HTTP/1.1\r\n", HTTP),
    (METHOD + b" * HTTP/1.0", HTTP),
    (METHOD + b" / HTTP/2", OTHER),
    (METHOD + b" / http/1.1", OTHER),
    (METHOD + b"  HTTP/1.1", OTHER),
    (METHOD + b" /\t HTTP/1.1", OTHER),
    (METHOD + b" /\xff HTTP/1.1", OTHER),
    (METHOD + b" text of a body", OTHER),
    (METHOD + b"\n", OTHER),
    (METHOD + b"{", OTHER),
    (b'H0100103{"a": 1} / HTTP/1.1', OTHER),
]


@pytest.mark.parametrize(("data", "verdict"), LOOKS)
def test_guard_gives_its_verdict_at_any_cut(data: bytes, verdict: str) -> None:
    assert HttpGuard().inspect(data) == verdict
    for size in (1, 3):
        guard = HttpGuard()
        for start in range(0, len(data), size):
            guard.inspect(data[start : start + size])
        assert guard.verdict == verdict


def test_verdict_stays() -> None:
    guard = HttpGuard()
    assert guard.inspect(b"{") == OTHER
    assert guard.inspect(b"GET / HTTP/1.1") == OTHER
