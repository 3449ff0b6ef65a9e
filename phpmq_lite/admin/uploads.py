"""Bodies of requests: the one reader of all of them, bounded by their route and by memory.

``docs/security.md`` 9.  Nothing else reads a body: what aiohttp's requests offer for it knows
neither bound.
"""

import asyncio
import json
from collections.abc import Callable
from typing import Final, TypeVar
from urllib.parse import parse_qsl

from aiohttp import HttpVersion11, web

from phpmq_lite.admin.access.identity import ROUTE, identity_of
from phpmq_lite.admin.context import context_of
from phpmq_lite.admin.http_memory import FREE_BYTES, Hold
from phpmq_lite.admin.multipart import Field, boundary_of, parts
from phpmq_lite.admin.problems import Problem

WHOLE_S: Final = 600.0  # an upload
STALLED_S: Final = 30.0  # without progress
FIELDS_MAX: Final = 1_000  # of a form
FORMS: Final = frozenset({"application/x-www-form-urlencoded", "multipart/form-data"})
FREE_VALUES: Final = 10_000  # of JSON, without memory of their own
VALUE_BYTES: Final = 100  # in memory: {} takes 64, a member of an object 120 and more
_BLOCK: Final = 64 << 10
_CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"

T = TypeVar("T")

HOLD: Final = web.RequestKey("hold", Hold)
_FORM: Final = web.RequestKey[list[tuple[str, Field]]]("form", list)


def hold_of(request: web.Request) -> Hold:
    """Return the memory that a request holds; ``app.py`` gives it back at the end."""
    found = request.get(HOLD)
    if found is None:
        found = request[HOLD] = context_of(request).memory.hold(identity_of(request).actor)
    return found


def release(request: web.Request) -> None:
    """Return the memory that a request held to the budget."""
    if (hold := request.get(HOLD)) is not None:
        hold.release()


def limit_of(request: web.Request) -> int:
    """Return how many bytes the body may have."""
    return request[ROUTE].body_limit(int(context_of(request).settings.limits.max_content))


def check_length(request: web.Request) -> None:
    """Refuse a body that is announced as too large, before a byte of it is read.

    Raises:
        Problem: 413, naming the limit of the route.
    """
    if (request.content_length or 0) > limit_of(request):
        raise _too_large(request)


async def body_of(request: web.Request) -> bytearray:
    """Read the body; what is not announced is counted as it comes.

    It can be read once.  Above 64 KiB it holds memory until the request ends.

    Raises:
        Problem: 413 above the limit of the route, 429 or 503 without memory, 408 if it stalls, 400
            if it was cut off.
    """
    check_length(request)
    await _invite(request)
    hold, raw, limit = hold_of(request), bytearray(), limit_of(request)
    try:
        async with asyncio.timeout(WHOLE_S) as whole:
            hold.begin(lambda: whole.reschedule(0))
            while piece := await _piece(request):
                hold.move(len(piece))
                size = len(raw) + len(piece)
                if size > limit:
                    raise _too_large(request)
                if size > FREE_BYTES:
                    await hold.resize(size)
                raw += piece
    except TimeoutError:
        raise _late(hold) from None
    except (web.RequestPayloadError, ConnectionError) as error:
        raise Problem(400, "cut_off", "The body was cut off. Nothing was stored.") from error
    finally:
        hold.finish()
    return raw


async def _invite(request: web.Request) -> None:
    """Send 100 Continue to a client that waits for it before it sends a large body."""
    if (
        request.headers.get("Expect", "").lower() == "100-continue"
        and request.version >= HttpVersion11
        and not request.content.total_bytes
    ):
        await request.writer.write(_CONTINUE)
        request.writer.output_size = 0  # none of it is of the answer


async def _piece(request: web.Request) -> bytes:
    async with asyncio.timeout(STALLED_S):
        return await request.content.readany()


def _late(hold: Hold) -> Problem:
    if hold.is_ended:
        return Problem(
            503, "memory",
            "The memory for large requests went to one that was sent faster, or earlier. "
            "Nothing was stored. Repeat the request later.",
            headers={"Retry-After": "2"},
        )  # fmt: skip
    return Problem(
        408, "stalled", "The body did not come in time. Nothing was stored.",
        bound=f"{STALLED_S:.0f} s without progress, {WHOLE_S:.0f} s in all",
    )  # fmt: skip


def _too_large(request: web.Request) -> Problem:
    return Problem(
        413, "too_large", "The body is larger than this address takes. Nothing was stored.",
        bound=f"{limit_of(request)} bytes",
    )  # fmt: skip


# -- JSON


def read_json(raw: bytes | bytearray, values_max: int) -> object:
    """Read JSON of any shape; None where there is nothing.

    Raises:
        Problem: 400 where it is not JSON, 413 above ``values_max`` values.
    """
    if not raw.strip():
        return None
    check_values(raw, values_max)
    try:
        return json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise Problem(400, "malformed", f"The body is not JSON: {error}.") from None


async def parse_large(request: web.Request, raw: bytes | bytearray, work: Callable[[], T]) -> T:
    """Return what ``work`` makes of ``raw``: JSON of the route's number of values, or else bytes.

    It runs in a thread, one of all large bodies at a time, with memory for its values.

    Raises:
        Problem: 413 for too many values, 429 or 503 without memory, and what ``work`` raises.
    """
    memory, values_max = context_of(request).memory, request[ROUTE].values
    count = await asyncio.to_thread(check_values, raw, values_max)
    if count > FREE_VALUES:
        await hold_of(request).grow(count * VALUE_BYTES)
    async with memory.parsing:
        return await asyncio.to_thread(work)


async def json_body(request: web.Request) -> object:
    """Read the body as JSON of any shape; None where there is none.

    A large one is read in a thread, one at a time.

    Raises:
        Problem: as ``body_of`` and ``read_json``.
    """
    raw, values_max = await body_of(request), request[ROUTE].values
    if len(raw) <= FREE_BYTES:
        return read_json(raw, values_max)
    return await parse_large(request, raw, lambda: read_json(raw, values_max))


def check_values(raw: bytes | bytearray, values_max: int) -> int:
    """Return how many values JSON has at most; refuse more than its address can use.

    ``[{},{},`` takes three bytes for a value, which takes 64 and more in memory.

    Raises:
        Problem: 413, naming the bound.
    """
    count = 1
    for start in range(0, len(raw), _BLOCK):  # a call for 3 MiB would hold the GIL for 3 ms
        block = raw[start : start + _BLOCK]
        count += sum(block.count(mark) for mark in b",[{")
        if count > FREE_VALUES:  # commas in strings do not separate values
            count = _values(raw, values_max)
            break
    if count > values_max:
        raise Problem(
            413, "too_many_values",
            "The body has more JSON values than this address takes. Nothing was stored.",
            bound=f"{values_max} values",
        )  # fmt: skip
    return count


def _values(raw: bytes | bytearray, values_max: int) -> int:
    """Count values up to a bound: what begins a container or follows a comma, outside of texts."""
    count, is_text, carried = 1, False, b""
    for start in range(0, len(raw), _BLOCK):
        block = (carried + raw[start : start + _BLOCK]).replace(b"\\\\", b"")
        carried = b"\\" if block.endswith(b"\\") else b""
        pieces = block.removesuffix(b"\\").replace(b'\\"', b"").split(b'"')
        outside = b"".join(pieces[is_text::2])
        count += sum(outside.count(mark) for mark in b",[{")
        is_text ^= len(pieces) % 2 == 0
        if count > values_max:
            break
    return count


# -- forms


async def form_fields(request: web.Request) -> list[tuple[str, Field]]:
    """Read the fields of a form in their order, once a request.

    Raises:
        Problem: 400 where it cannot be read, 413 for too many fields, and as ``body_of``.
    """
    if request.content_type not in FORMS:
        return []
    if _FORM not in request:
        raw = await body_of(request)
        if len(raw) <= FREE_BYTES:
            request[_FORM] = _fields(request, raw)
        else:
            async with context_of(request).memory.parsing:
                request[_FORM] = await asyncio.to_thread(_fields, request, raw)
    return request[_FORM]


async def field_of(request: web.Request, name: str) -> str:
    """Return the first field of a name in the form; empty where there is none, or it is a file.

    Raises:
        Problem: as ``form_fields``.
    """
    values = (value for key, value in await form_fields(request) if key == name)
    value = next(values, "")
    return value if isinstance(value, str) else ""


def _fields(request: web.Request, raw: bytearray) -> list[tuple[str, Field]]:
    charset = request.charset or "utf-8"
    try:
        if request.content_type == "multipart/form-data":
            boundary = boundary_of(request.headers["Content-Type"])
            return parts(raw, boundary, FIELDS_MAX)
        text = raw.rstrip().decode(charset)
        if text.count("&") >= FIELDS_MAX:
            raise Problem(
                413, "too_many_fields", "The form has too many fields. Nothing was stored.",
                bound=f"{FIELDS_MAX} fields",
            )  # fmt: skip
        return list(parse_qsl(text, keep_blank_values=True, encoding=charset))
    except (ValueError, LookupError) as error:  # the latter: a charset that nobody knows
        raise Problem(400, "malformed", f"The form cannot be read: {error}.") from None
