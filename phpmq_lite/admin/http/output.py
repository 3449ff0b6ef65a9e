"""Turns what a handler returns into a response: JSON, JSON lines, CSV, pages of lists."""

import asyncio
import json
from collections.abc import Sequence
from typing import Annotated, Any, Final, Generic, Self, TypeVar, get_args

from aiohttp import web
from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from phpmq_lite.admin.http.body import memory_hold_of
from phpmq_lite.admin.http.context import CONTEXT
from phpmq_lite.admin.http.memory import FREE_BYTES
from phpmq_lite.admin.http.problems import Problem
from phpmq_lite.admin.http.route import REQUEST_ID
from phpmq_lite.text_files import csv_line

Item = TypeVar("Item")


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
