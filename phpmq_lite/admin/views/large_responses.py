"""Send large responses in parts within the memory budget (``docs/operate/security.md`` 9)."""

import asyncio
from typing import Final

from aiohttp import web

from phpmq_lite.admin.base.http_memory import FREE_BYTES
from phpmq_lite.admin.base.problems import Problem
from phpmq_lite.admin.base.request_body import memory_hold_of
from phpmq_lite.admin.views.rendering import problem_json

PIECE_BYTES: Final = 64 << 10
STALLED_S: Final = 30.0  # timeout of a part that the peer does not read


async def send_response(request: web.Request, response: web.StreamResponse) -> web.StreamResponse:
    """Send a response above 64 KiB; return a smaller or already started one unchanged.

    Without memory for it the response is 503 or 429.
    """
    if response.prepared or not isinstance(response, web.Response) or request.method == "HEAD":
        return response
    body = response.body
    if not isinstance(body, bytes | bytearray) or len(body) <= FREE_BYTES:
        return response
    hold = memory_hold_of(request)
    try:
        await hold.resize(len(body))
    except Problem as problem:
        refusal = problem_json(request, problem)
        refusal.headers["X-Request-Id"] = response.headers["X-Request-Id"]
        return refusal
    stream = web.StreamResponse(
        status=response.status, reason=response.reason, headers=response.headers
    )
    stream.cookies.update(response.cookies)
    stream.content_length = len(body)
    await stream.prepare(request)
    hold.begin(lambda: abort_response(request))
    try:
        for at in range(0, len(body), PIECE_BYTES):
            await send_piece(stream, bytes(memoryview(body)[at : at + PIECE_BYTES]))
            hold.move(PIECE_BYTES)
        await stream.write_eof()
    except TimeoutError:
        abort_response(request)
    finally:
        response.body, body = None, b""  # an error raised here would keep it
    return stream


async def send_piece(stream: web.StreamResponse, piece: bytes) -> None:
    """Write a part and wait until the peer has read most of it.

    Raises:
        TimeoutError: the peer makes no progress.
    """
    async with asyncio.timeout(STALLED_S):
        await stream.write(piece)


def abort_response(request: web.Request) -> None:
    """Close the connection: a regular end would look like a complete response."""
    if request.transport is not None:
        request.transport.abort()
