"""Reads request bodies (JSON, forms, uploads) within the limits on their size and memory."""

import asyncio
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, TypeVar
from urllib.parse import parse_qsl

from aiohttp import HttpVersion11, web

from phpmq_lite.admin.http.context import CONTEXT
from phpmq_lite.admin.http.headers import (
    PLAIN,
    boundary_of,
    check_charset,
    encoded,
    media_type_of,
    parse_parameters,
)
from phpmq_lite.admin.http.identity import identity_of
from phpmq_lite.admin.http.memory import FREE_BYTES, MemoryReservation
from phpmq_lite.admin.http.problems import Problem
from phpmq_lite.admin.http.route import ROUTE

HEAD_BYTES: Final = 4_096  # maximum size of the headers of one part of a form
_PLAIN_CODINGS: Final = ("", PLAIN, "7bit", "8bit", "binary")


@dataclass(slots=True, frozen=True)
class UploadedFile:
    """An uploaded file; ``name``, sent by the browser, is empty if no file was chosen."""

    name: str
    content: bytes


FormValue = str | UploadedFile


def read_parts(raw: bytes | bytearray, boundary: bytes, limit: int) -> list[tuple[str, FormValue]]:
    """Parse a multipart form and return the name and value of each part, in order.

    Raises:
        ValueError: the form is malformed, has more than ``limit`` parts, or a part has more than
            4 KiB of headers.
        Problem: 415 for a part with a charset or an encoding.
    """
    mark = b"\r\n--" + boundary
    at = 0 if raw.startswith(mark[2:]) else raw.find(mark) + 2
    if at == 1:
        raise ValueError("the boundary does not occur in the body")
    parts: list[tuple[str, FormValue]] = []
    while True:
        at += len(mark) - 2
        if raw.startswith(b"--", at):
            return parts
        begin = raw.find(b"\r\n", at, at + 200)
        if begin < 0 or raw[at:begin].strip(b" \t"):
            raise ValueError("a boundary is not followed by a line break")
        if len(parts) >= limit:
            raise ValueError(f"the form has more than {limit} parts")
        head_end = raw.find(b"\r\n\r\n", begin, begin + HEAD_BYTES)
        if head_end < 0:
            raise ValueError(f"a part has more than {HEAD_BYTES} bytes of headers")
        begin = head_end + 4
        end = raw.find(mark, begin - 2)
        if end < 0:
            raise ValueError("the multipart form ends in the middle of a part")
        parts.append(_part(raw, at, begin, max(end, begin)))
        at = end + 2


def _part(raw: bytes | bytearray, at: int, begin: int, end: int) -> tuple[str, FormValue]:
    headers: dict[str, str] = {}
    for line in raw[at : begin - 4].decode().replace("\r\n ", " ").split("\r\n"):
        header, _, text = line.partition(":")
        headers.setdefault(header.strip().lower(), text)
    _, parameters = parse_parameters(headers.get("content-disposition", ""))
    name, file = parameters.get("name"), parameters.get("filename", parameters.get("filename*"))
    if name is None:
        raise ValueError("a part has no name")
    kind, declared = parse_parameters(headers.get("content-type", "text/plain"))
    check_charset(declared, f"the part {name[:50]!r}")
    check_charset({"charset*": parameters.get("filename*", "")}, f"the part {name[:50]!r}")
    for header in ("content-transfer-encoding", "content-encoding"):
        coding = headers.get(header, "").strip().lower()
        if coding not in _PLAIN_CODINGS:
            raise encoded(f"The part {name[:50]!r}", coding)
    content = bytes(memoryview(raw)[begin:end])
    if file is None and kind.startswith("text/"):
        return name, content.decode()
    return name, UploadedFile(file or "", content)


WHOLE_S: Final = 600.0  # maximum time until a body has arrived completely
STALLED_S: Final = 30.0  # maximum time without receiving any data
FIELDS_MAX: Final = 1_000  # maximum number of fields in a form
FORMS: Final = frozenset({"application/x-www-form-urlencoded", "multipart/form-data"})
FREE_VALUES: Final = 10_000  # number of JSON values that do not count toward the memory budget
VALUE_BYTES: Final = 100  # average bytes of memory per value: {} requires 64, a member at least 120
_BLOCK: Final = 64 << 10
_CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"

T = TypeVar("T")

HOLD: Final = web.RequestKey("hold", MemoryReservation)
_FORM: Final = web.RequestKey[list[tuple[str, FormValue]]]("form", list)


def memory_hold_of(request: web.Request) -> MemoryReservation:
    """Return a request's memory reservation, which ends with the request."""
    hold = request.get(HOLD)
    if hold is None:
        hold = request[HOLD] = request.app[CONTEXT].memory.hold(identity_of(request).actor)
    return hold


def release_memory(request: web.Request) -> None:
    if (hold := request.get(HOLD)) is not None:
        hold.release()


def body_limit(request: web.Request) -> int:
    """Return the maximum body size for a request, in bytes."""
    return request[ROUTE].body_limit(int(request.app[CONTEXT].settings.limits.max_content))


def check_length(request: web.Request) -> None:
    """Refuse with 413 a body whose Content-Length is too large, without reading it."""
    if (request.content_length or 0) > body_limit(request):
        raise _too_large(request)


async def read_body(request: web.Request) -> bytearray:
    """Read and return the request body; refuse it as soon as it exceeds the route's limit.

    The body can be read only once.  A body above 64 KiB holds memory until the request ends.

    Raises:
        Problem: 413 above the route's limit, 429 or 503 if no memory is available, 408 if the
            transfer stalls, 400 if the body was cut off.
    """
    check_length(request)
    await _send_continue(request)
    hold, raw, limit = memory_hold_of(request), bytearray(), body_limit(request)
    try:
        async with asyncio.timeout(WHOLE_S) as timeout:
            hold.begin(lambda: timeout.reschedule(0))
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


async def _send_continue(request: web.Request) -> None:
    """Send 100 Continue to a client that waits for it before sending a large body."""
    if (
        request.headers.get("Expect", "").lower() == "100-continue"
        and request.version >= HttpVersion11
        and not request.content.total_bytes
    ):
        await request.writer.write(_CONTINUE)
        request.writer.output_size = 0  # so that 100 Continue does not count as output


async def _piece(request: web.Request) -> bytes:
    async with asyncio.timeout(STALLED_S):
        return await request.content.readany()


def _late(hold: MemoryReservation) -> Problem:
    if hold.is_ended:
        detail = "The memory for large requests is in use by other requests. Nothing was stored. "
        detail += "Repeat the request later."
        return Problem(503, "memory", detail, headers={"Retry-After": "2"})
    bound = f"{STALLED_S:.0f} s without progress, {WHOLE_S:.0f} s in total"
    detail = "The body did not arrive in time. Nothing was stored."
    return Problem(408, "stalled", detail, bound=bound)


def _too_large(request: web.Request) -> Problem:
    setting = " (limits.max_content)" if request[ROUTE].has_content else ""
    detail = f"The body is larger than this address accepts{setting}. Nothing was stored."
    return Problem(413, "too_large", detail, bound=f"{body_limit(request)} bytes")


# -- JSON


def read_json(raw: bytes | bytearray, values_max: int) -> object:
    """Parse a JSON value, None if the body is empty; raise a ``Problem``, 400 or 413."""
    if not raw.strip():
        return None
    check_values(raw, values_max)
    try:
        return json.loads(raw.decode("utf-8-sig"))  # bytes may be UTF-16 or UTF-32, too
    except (ValueError, RecursionError) as error:
        raise Problem(400, "malformed", f"The body is not valid JSON: {error}.") from None


async def parse_large(
    request: web.Request, raw: bytes | bytearray, results: Iterator[T]
) -> list[T]:
    """Check the number of JSON values in ``raw``, and then return all results.

    They are computed by ``HttpMemory.parse``, with memory reserved for the values.

    Raises:
        Problem: 413 for too many values, 429 or 503 if no memory is available; any from
            ``results``.
    """
    memory, values_max = request.app[CONTEXT].memory, request[ROUTE].values
    count = await asyncio.to_thread(check_values, raw, values_max)
    if count > FREE_VALUES:
        await memory_hold_of(request).grow(count * VALUE_BYTES)
    return await memory.parse(identity_of(request).actor, results)


async def read_json_body(request: web.Request) -> object:
    """Read the body as a JSON value of any type; return None if it is empty.

    A large body is parsed in a thread, one at a time.

    Raises:
        Problem: see ``read_body`` and ``read_json``.
    """
    raw, values_max = await read_body(request), request[ROUTE].values
    if len(raw) <= FREE_BYTES:
        return read_json(raw, values_max)
    return (await parse_large(request, raw, map(read_json, [raw], [values_max])))[0]


def check_values(raw: bytes | bytearray, values_max: int) -> int:
    """Return an upper bound on the number of JSON values in a body; refuse a body with too many.

    In ``[{},{},``, each value occupies three bytes of the body, but at least 64 bytes of memory.

    Raises:
        Problem: 413, naming the bound.
    """
    count = 1
    for start in range(0, len(raw), _BLOCK):  # a single call for 3 MiB would hold the GIL for 3 ms
        block = raw[start : start + _BLOCK]
        count += sum(block.count(mark) for mark in b",[{")
        if count > FREE_VALUES:  # count again, ignoring commas inside strings
            count = _values(raw, values_max)
            break
    if count > values_max:
        detail = "The body has more JSON values than this endpoint accepts. Nothing was stored."
        raise Problem(413, "too_many_values", detail, bound=f"{values_max} values")
    return count


def _values(raw: bytes | bytearray, values_max: int) -> int:
    """Count opening brackets and commas outside strings; stop above ``values_max``."""
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


async def read_form_fields(request: web.Request) -> list[tuple[str, FormValue]]:
    """Return a form's fields in order; they are read only once per request.

    Raises:
        Problem: 400 if it cannot be read, 413 for too many fields, or see ``read_body``.
    """
    if media_type_of(request) not in FORMS:
        return []
    if _FORM not in request:
        raw = await read_body(request)
        if len(raw) <= FREE_BYTES:
            request[_FORM] = _fields(request, raw)
        else:
            results, owner = map(_fields, [request], [raw]), identity_of(request).actor
            (request[_FORM],) = await request.app[CONTEXT].memory.parse(owner, results)
    return request[_FORM]


def _fields(request: web.Request, raw: bytearray) -> list[tuple[str, FormValue]]:
    try:
        if media_type_of(request) == "multipart/form-data":
            fields = read_parts(raw, boundary_of(request.headers["Content-Type"]), FIELDS_MAX)
        else:
            text = raw.rstrip().decode()
            if text.count("&") >= FIELDS_MAX:
                detail = "The form has too many fields. Nothing was stored."
                raise Problem(413, "too_many_fields", detail, bound=f"{FIELDS_MAX} fields")
            fields = list(parse_qsl(text, keep_blank_values=True))
    except ValueError as error:
        raise Problem(400, "malformed", f"The form cannot be read: {error}.") from None
    for name, value in fields:
        if name == "_charset_":  # with which browsers name the charset of a form
            check_charset({"charset": str(value)}, "the form")
    return fields
