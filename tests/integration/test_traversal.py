"""Path traversal: no request returns a byte of a private file."""

import asyncio
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Final

from tests.support.http_users import broker_fixture

CLIMBS: Final = ".. %2e%2e %252e%252e .%2e ..; ..%00 %c0%ae%c0%ae %uff0e%uff0e .... ‥"
UPS: Final = CLIMBS.split()
SLASHES: Final = ("/", "%2f", "%5c", "%252f", "//")
BASES: Final = (
    "/static/x/", "/static/x/app.css", "/", "/api/v1/backups/", "/docs/", "/docs/images/",
)  # fmt: skip
DEPTHS: Final = (1, 6)
GOALS: Final = ("phpmq.db", "etc/passwd", "setup-token", "pyproject.toml")
STRINGS: Final = [
    base + slash.join([up] * depth + [GOALS[at % len(GOALS)]])
    for at, (base, up, slash, depth) in enumerate(product(BASES, UPS, SLASHES, DEPTHS))
]
SECRETS: Final = (b"SQLite format 3", b"root:", b"[project]")


async def test_path_traversal_is_refused(tmp_path: Path, figure: Callable[[str], None]) -> None:
    """``docs/operate/security.md`` 11.  Sent over a socket: client libraries normalize paths."""
    escaped, answered = [], 0
    async with broker_fixture(tmp_path / "data") as home:
        host, _, port = home.url.removeprefix("http://").partition(":")
        token = (home.data / "setup-token").read_bytes().strip()
        for path in STRINGS:
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(
                f"GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode()
            )
            answer = await asyncio.wait_for(reader.read(), 20)
            writer.close()
            answered += answer.startswith(b"HTTP/1.")
            if any(secret in answer for secret in (*SECRETS, token)):
                escaped.append(path)
    figure(f"{len(STRINGS)} traversal strings: {len(escaped)} escapes")
    assert len(STRINGS) >= 200
    assert (escaped, answered) == ([], len(STRINGS))
