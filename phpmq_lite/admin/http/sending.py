"""Sends large responses in pieces, within the memory budget."""

import asyncio
from typing import Final

from aiohttp import web

from phpmq_lite.admin.http.body import memory_hold_of
from phpmq_lite.admin.http.memory import FREE_BYTES
from phpmq_lite.admin.http.output import problem_json
from phpmq_lite.admin.http.problems import Problem

PIECE_BYTES: Final = 64 << 10
STALLED_S: Final = 30.0  # maximum time until the peer has read a piece


async def send_response(request: web.Request, response: web.StreamResponse) -> web.StreamResponse:
    """Send a response larger than 64 KiB in pieces; return smaller or started ones unchanged.

    Returns a 503 or 429 response if there is not enough memory.
    """
    if response.prepared or not isinstance(response, web.Response) or request.method == "HEAD":
        return response
    body = response.body
    if not isinstance(body, bytes | bytearray) or len(body) <= FREE_BYTES:
        return response
    hold = memory_hold_of(request)
    try:
        await hold.resize(len(body))
        stream = web.StreamResponse(
            status=response.status, reason=response.reason, headers=response.headers
        )
        stream.cookies.update(response.cookies)
        stream.content_length = len(body)
        await stream.prepare(request)
        hold.begin(lambda: abort_response(request))
        for at in range(0, len(body), PIECE_BYTES):
            await send_piece(stream, bytes(memoryview(body)[at : at + PIECE_BYTES]))
            hold.move(PIECE_BYTES)
        await stream.write_eof()
    except Problem as problem:
        refusal = problem_json(request, problem)
        refusal.headers["X-Request-Id"] = response.headers["X-Request-Id"]
        return refusal
    except TimeoutError:
        abort_response(request)
    finally:
        response.body, body = None, b""  # otherwise, an error would keep the body alive
    return stream


async def send_piece(stream: web.StreamResponse, piece: bytes) -> None:
    """Write one piece, and wait until the peer has read most of it.

    Raises:
        TimeoutError: the peer makes no progress.
    """
    async with asyncio.timeout(STALLED_S):
        await stream.write(piece)


def abort_response(request: web.Request) -> None:
    """Abort the connection; if it were closed normally, the response would look complete."""
    if request.transport is not None:
        request.transport.abort()
