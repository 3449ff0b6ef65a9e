"""Bodies of requests that are read as a stream, below a bound of their own.

``docs/security.md`` 9.
"""

import asyncio
from typing import Final

from aiohttp import web

from phpmq_lite.admin.problems import Problem

WHOLE_S: Final = 600.0  # an upload
STALLED_S: Final = 30.0  # without progress
_PIECE: Final = 256 << 10


async def read_up_to(request: web.Request, limit: int) -> bytearray:
    """Read the body; what is not announced is counted as it comes.

    Raises:
        Problem: 413 above ``limit`` bytes, 408 where it stalls, 400 where it was cut off.
    """
    if (request.content_length or 0) > limit:
        raise _too_large(limit)
    raw = bytearray()
    try:
        async with asyncio.timeout(WHOLE_S):
            while piece := await _piece(request):
                raw += piece
                if len(raw) > limit:
                    raise _too_large(limit)
    except TimeoutError:
        raise Problem(
            408, "stalled", "The body did not come in time. Nothing was stored.",
            bound=f"{STALLED_S:.0f} s without progress, {WHOLE_S:.0f} s in all",
        ) from None  # fmt: skip
    except (web.RequestPayloadError, ConnectionError) as error:
        raise Problem(400, "cut_off", "The body was cut off. Nothing was stored.") from error
    return raw


async def _piece(request: web.Request) -> bytes:
    async with asyncio.timeout(STALLED_S):
        return await request.content.read(_PIECE)


def _too_large(limit: int) -> Problem:
    return Problem(
        413, "too_large", "The body is larger than this address takes. Nothing was stored.",
        bound=f"{limit} bytes",
    )  # fmt: skip
