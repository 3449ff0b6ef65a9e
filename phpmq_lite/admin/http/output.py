"""Turns what a handler returns into a response: JSON, JSON lines, CSV, pages of lists."""

import asyncio
import json
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Sequence
from typing import Annotated, Any, Final, Generic, Literal, NamedTuple, Self, TypeVar, get_args
from zlib import crc32

from aiohttp import web
from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from phpmq_lite.admin.http.body import memory_hold_of
from phpmq_lite.admin.http.context import CONTEXT
from phpmq_lite.admin.http.memory import FREE_BYTES
from phpmq_lite.admin.http.problems import Problem
from phpmq_lite.admin.http.route import REQUEST_ID
from phpmq_lite.text_files import csv_line

Item = TypeVar("Item")
ReadDirection = Literal["after", "before"]
CursorPlace = int | list[int | float | str]


class ListCursor(NamedTuple):
    """A position in a list; a page begins after or before the row at this position."""

    direction: ReadDirection
    place: CursorPlace


def encode_cursor(scope: str, direction: ReadDirection, place: CursorPlace) -> str:
    """Return a position as an opaque cursor for the list, filter and order in ``scope``."""
    text = json.dumps([crc32(scope.encode()), direction, place], separators=(",", ":"))
    return urlsafe_b64encode(text.encode()).decode().rstrip("=")


def decode_cursor(scope: str, text: str | None) -> ListCursor | None:
    """Parse a cursor, None if empty; raise a 422 ``Problem`` if it is not of the list ``scope``."""
    if not text:
        return None
    try:
        padded = text + "=" * (-len(text) % 4)
        check, direction, place = json.loads(urlsafe_b64decode(padded))
    except (ValueError, TypeError, RecursionError):
        raise _bad_cursor("is malformed") from None
    if direction not in ("after", "before") or not _is_place(place):
        raise _bad_cursor("is malformed")
    if check != crc32(scope.encode()):
        raise _bad_cursor("belongs to another list or filter")
    return ListCursor(direction, place)


def position_in(cursor: ListCursor | None) -> dict[str, int]:
    """Return a cursor's position in a numbered list as the argument ``after`` or ``before``."""
    if cursor is None:
        return {}
    if not isinstance(cursor.place, int) or not 0 <= cursor.place < 1 << 62:
        raise _bad_cursor("is malformed")
    return {cursor.direction: cursor.place}


def pair_in(cursor: ListCursor | None) -> tuple[int, int] | None:
    """Return a cursor's position in a list that is ordered by two numbers."""
    if cursor is None:
        return None
    match cursor.place:
        case [int() as first, int() as second] if 0 <= first <= 1 << 62 and 0 <= second <= 1 << 62:
            return first, second
    raise _bad_cursor("is malformed")


def cursors_around(
    scope: str,
    onward: ReadDirection,
    cursor: ListCursor | None,
    ends: tuple[int | None, int | None],
    *,
    has_more: bool,
    searched_to: int | None = None,
) -> tuple[str | None, str | None]:
    """Return the cursors for the next and the previous page of a numbered list.

    ``onward`` is the direction of the list; ``ends`` are the numbers of the first and the last row.
    ``has_more`` says whether rows remain in the direction of ``cursor``. ``searched_to`` is the
    row at which a time limit ended the search; the next page starts there.
    """
    first, last = ends
    is_back = cursor is not None and cursor.direction != onward
    if searched_to is not None and (last is None or not is_back):
        last = searched_to
    has_next = is_back or has_more or searched_to is not None
    has_previous = has_more if is_back else cursor is not None
    back: ReadDirection = "after" if onward == "before" else "before"
    return (
        encode_cursor(scope, onward, last) if has_next and last is not None else None,
        encode_cursor(scope, back, first) if has_previous and first is not None else None,
    )


def _is_place(place: object) -> bool:
    if isinstance(place, list):
        return len(place) == 2 and all(isinstance(part, int | float | str) for part in place)
    return isinstance(place, int) and not isinstance(place, bool)


def _bad_cursor(fault: str) -> Problem:
    return Problem(422, "bad_cursor", f"The cursor {fault}. Go to the first page.", field="cursor")


class ResponseModel(BaseModel):
    """Base class of response models."""

    model_config = ConfigDict(populate_by_name=True, defer_build=True)

    @classmethod
    def of(cls, source: object, **values: Any) -> Self:
        """Return a model filled from the attributes of ``source``, which ``values`` override.

        Each field reads the attribute named by its ``validation_alias``, else by its own name.
        """
        for name, field in cls.model_fields.items():
            attribute = str(field.validation_alias or name)
            if name not in values and hasattr(source, attribute):
                values[name] = getattr(source, attribute)
        return cls(**values)


class ListPage(ResponseModel, Generic[Item]):
    """One page of a paginated list."""

    items: list[Item] = Field(description="items on this page")
    next: str | None = Field(None, description="cursor for the next page; null on the last page")

    @classmethod
    def model_parametrized_name(cls, params: tuple[Any, ...]) -> str:
        """Return the name that the model has in the OpenAPI document, such as ``UserList``."""
        return f"{params[0].__name__.removesuffix('View')}List"


PerSecond = Annotated[float, AfterValidator(lambda rate: round(rate, 3))]


def respond(result: Any, format_: str = "json", status: int = 200) -> web.StreamResponse:
    """Return a result as JSON, a list as JSON lines or CSV, and None as an empty response."""
    if isinstance(result, web.StreamResponse):
        return result
    if result is None:
        return web.Response(status=status)
    if format_ in ("jsonl", "csv"):
        [model] = get_args(type(result).model_fields["items"].annotation)
        return list_response(format_, model, result.items, result.next)
    return json_response(result, status)


def list_response(
    format_: str, model: type[BaseModel], items: Sequence[BaseModel], next_cursor: str | None = None
) -> web.Response:
    """Return a list as ``{items, next}``, as JSON lines ending with ``complete``, or as CSV."""
    rows = [item.model_dump(mode="json") for item in items]
    if format_ == "jsonl":
        last = {"complete": True, "count": len(rows), "next": next_cursor}
        text = "".join(map(json_line, [*rows, last]))
        return web.Response(text=text, content_type="application/x-ndjson")
    if format_ == "csv":
        return web.Response(
            text="".join(map(csv_line, [model.model_fields, *(row.values() for row in rows)])),
            content_type="text/csv",
            headers={"Content-Disposition": 'attachment; filename="phpmq.csv"'},
        )
    return json_response({"items": rows, "next": next_cursor})


def json_line(data: dict[str, Any]) -> str:
    return json.dumps(data, ensure_ascii=False) + "\n"


def json_response(data: object, status: int = 200) -> web.Response:
    """Return a model or plain data as a JSON response that ends with a line feed, for terminals."""
    if isinstance(data, BaseModel):
        data = data.model_dump(mode="json")
    text = json.dumps(data) + "\n"
    return web.json_response(text=text, status=status)


def problem_json(request: web.Request, problem: Problem) -> web.Response:
    """Return an error as a response of type ``application/problem+json``."""
    type_url = request.app[CONTEXT].urls.docs(problem.docs) if problem.docs else None
    document = problem.as_json(request.get(REQUEST_ID, ""), type_url)
    return web.Response(
        status=problem.status,
        text=json.dumps(document, ensure_ascii=False),
        content_type="application/problem+json",
        headers=problem.headers,
    )


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
    """Write a piece and wait until the peer has read most of it, or raise TimeoutError."""
    async with asyncio.timeout(STALLED_S):
        await stream.write(piece)


def abort_response(request: web.Request) -> None:
    """Abort the connection; if it were closed normally, the response would look complete."""
    if request.transport is not None:
        request.transport.abort()
