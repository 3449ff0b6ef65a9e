"""Reads names in paths, query strings and JSON bodies, and refuses what is not valid."""

from datetime import UTC, datetime
from typing import TypeVar
from urllib.parse import unquote_to_bytes

from aiohttp import web
from pydantic import BaseModel

from phpmq_lite.admin.http.body import read_json_body
from phpmq_lite.admin.http.problems import Problem
from phpmq_lite.admin.http.route import ROUTE
from phpmq_lite.admin.urls import decode_name
from phpmq_lite.queue_settings import NAME_RULE, name_problem

Model = TypeVar("Model", bound=BaseModel)


def check_path(request: web.Request) -> None:
    """Refuse a path that is not valid UTF-8 after percent-decoding.

    aiohttp leaves undecodable bytes unchanged: ``%FF`` would become the name ``%FF``, whose correct
    encoding is ``%25FF``.

    Raises:
        Problem: 422, naming the bound.
    """
    try:
        unquote_to_bytes(request.rel_url.raw_path).decode()
    except UnicodeDecodeError:
        detail = "A name in the path is not valid UTF-8 after percent-decoding."
        raise Problem(422, "invalid", detail, field="path", bound="UTF-8") from None


def path_name(request: web.Request, key: str) -> str:
    """Return the name at the position of ``{key}`` in the request path.

    Reads the raw path, because aiohttp's ``match_info`` does not distinguish ``%7E`` from the
    ``~`` that ``encode_name`` adds.
    """
    places = request[ROUTE].path.split("/")
    segments = request.rel_url.raw_path.split("/")
    return decode_name(segments[places.index(f"{{{key}}}") - len(places)])


def read_query(request: web.Request, model: type[Model]) -> Model:
    """Parse the query string into a model, ignoring empty values.

    Raises:
        ValidationError: a value is out of bounds.
    """
    return model.model_validate({key: value for key, value in request.query.items() if value})


async def read_json_model(request: web.Request, model: type[Model]) -> Model:
    """Parse the JSON body into a model; a missing body is treated as an empty object.

    Raises:
        Problem: 400 if the body is not JSON, or an error from ``read_json_body``.
        ValidationError: a member is unknown or out of bounds.
    """
    return model.model_validate(await read_json_body(request) or {})


def check_queue_name(name: str) -> None:
    """Refuse a queue name that the wire protocol does not permit.

    Raises:
        Problem: 422, naming the bound.
    """
    if (problem := name_problem(name)) is not None:
        detail = f"The queue name {problem}."
        raise Problem(422, "invalid", detail, field="queue", bound=NAME_RULE)


def check_text(text: str, field: str) -> None:
    """Refuse a name that is not valid UTF-8 with a 422 ``Problem`` that names the field."""
    try:
        text.encode()
    except UnicodeEncodeError:
        detail = f"The {field} name is not valid UTF-8."
        raise Problem(422, "invalid", detail, field=field, bound="UTF-8") from None


def parse_time(text: str, field: str) -> int | None:
    """Parse a time in Unix ms, or in ISO 8601 format, for which UTC is the default zone.

    Raises:
        Problem: 422 if it is neither.
    """
    if not text:
        return None
    if text.isascii() and text.isdecimal() and len(text) <= 15:
        return int(text)
    try:
        at = datetime.fromisoformat(text)
        return round((at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp() * 1_000)
    except (ValueError, OverflowError):
        detail, bound = (
            f"{field}: {text!r} is not a valid time.",
            "Unix milliseconds or 2026-01-31T15:00",
        )
        raise Problem(422, "invalid", detail, field=field, bound=bound) from None
