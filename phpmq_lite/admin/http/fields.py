"""Parses query strings, forms and JSON bodies into models."""

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Annotated, Final, Literal, TypeVar
from urllib.parse import unquote_to_bytes

from aiohttp import web
from pydantic import BaseModel, ConfigDict, Field

from phpmq_lite.admin.http.body import (
    FormValue,
    UploadedFile,
    read_form_fields,
    read_json_body,
)
from phpmq_lite.admin.http.problems import Problem
from phpmq_lite.admin.http.route import ROUTE
from phpmq_lite.admin.urls import decode_name
from phpmq_lite.durations import FORM_UNITS, UNITS_MS
from phpmq_lite.queue_settings import LONGEST_NAME, LONGEST_TTL_S, NAME_RULE, name_problem

# -- paths


def path_name(request: web.Request, key: str) -> str:
    """Return the name at the position of ``{key}`` in the request path.

    Reads the raw path, because aiohttp's ``match_info`` does not distinguish ``%7E`` from the
    ``~`` that ``encode_name`` adds.
    """
    places = request[ROUTE].path.split("/")
    segments = request.rel_url.raw_path.split("/")
    return decode_name(segments[places.index(f"{{{key}}}") - len(places)])


Model = TypeVar("Model", bound=BaseModel)


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


def check_queue_name(name: str) -> None:
    """Refuse a queue name that the wire protocol does not permit.

    Raises:
        Problem: 422, naming the bound.
    """
    if (problem := name_problem(name)) is not None:
        raise Problem(
            422, "invalid", f"The queue name {problem}.", field="queue",
            bound=NAME_RULE,
        )  # fmt: skip


def check_text(text: str, field: str) -> None:
    """Refuse a name that is not valid UTF-8 with a 422 ``Problem`` that names the field."""
    try:
        text.encode()
    except UnicodeEncodeError:
        detail = f"The {field} name is not valid UTF-8."
        raise Problem(422, "invalid", detail, field=field, bound="UTF-8") from None


def unify_line_breaks(text: str) -> str:
    """Replace each CRLF with LF, because browsers send line breaks as CRLF."""
    return text.replace("\r\n", "\n")


LIMIT_MAX = 200
REASON_MAX: Final = 500
PUBLISH_MAX = 1_000  # maximum number of messages in one request
TTL_MAX_S = LONGEST_TTL_S

OutputFormat = Annotated[
    Literal["html", "json", "jsonl", "csv"],
    Field(description="response format; html returns the page"),
]
LimitParameter = Annotated[int, Field(ge=1, le=LIMIT_MAX, description="maximum number of items")]
CursorParameter = Annotated[
    str | None, Field(max_length=2_000, description="value of next from the previous page")
]

# Field types that several models use.
AppIdParameter = Annotated[str, Field(min_length=1, max_length=256, description="publisher name")]
AuditReason = Annotated[
    str, Field(max_length=REASON_MAX, description="reason to store in the audit log")
]
BodySize = Annotated[int, Field(description="body size in bytes")]
Deliveries = Annotated[int, Field(description="number of deliveries")]
EnvelopeUrn = Annotated[str | None, Field(description="URN of the envelope; null if it has none")]
MessageId = Annotated[str, Field(description="message id, 32 hex digits")]
RedriveTarget = Annotated[
    str | None,
    Field(
        min_length=1,
        max_length=LONGEST_NAME,
        description="target queue; null redrives each message to its original queue",
    ),
]
SubscriptionName = Annotated[
    str, Field(min_length=1, max_length=255, description="subscription name")
]
TraceId = Annotated[str | None, Field(description="trace id of the envelope; null if it has none")]
TtlSeconds = Annotated[
    int | None,
    Field(ge=0, le=TTL_MAX_S, description="seconds to live (0: forever; null: queue default)"),
]
UndoToken = Annotated[
    str | None,
    Field(description="token for POST /undo/{token}, valid for an hour; null if there is none"),
]


class QueryModel(BaseModel):
    """Base class of query models, which ignore empty values and unknown keys."""

    model_config = ConfigDict(extra="ignore", frozen=True, defer_build=True)


class FormatQuery(QueryModel):
    """The output format of an unpaginated list."""

    format: OutputFormat = "html"


class JsonFormatQuery(QueryModel):
    """The output format of an unpaginated list in the API."""

    format: OutputFormat = "json"


class ListQuery(FormatQuery):
    """The output format and page of a paginated list."""

    limit: LimitParameter = 50
    cursor: CursorParameter = None


class StrictInput(BaseModel):
    """Base class of models for JSON bodies, which refuse unknown members."""

    model_config = ConfigDict(extra="forbid", strict=True, defer_build=True)


class EmptyInput(StrictInput):
    """An empty JSON object."""


class ActionInput(StrictInput):
    """The body of an action: an optional reason."""

    reason: AuditReason = ""


_UNITS: Final = {unit: UNITS_MS[unit] // 1_000 for unit in FORM_UNITS}


class Form:
    """The fields of a submitted form; a missing field is treated as empty."""

    def __init__(self, fields: Iterable[tuple[str, FormValue]]) -> None:
        self._fields: dict[str, list[FormValue]] = {}
        for name, value in fields:
            self._fields.setdefault(name, []).append(value)

    def text(self, name: str, limit: int = 1_000) -> str:
        """Return a field stripped of white space; raise a ``Problem`` if it is too long."""
        value = self.raw(name).strip()
        if len(value) > limit:
            raise _bad(name, f"is too long: {len(value)} characters", f"at most {limit}")
        return value

    def raw(self, name: str) -> str:
        """Return a field exactly as the user typed it."""
        value = self._first(name)
        return unify_line_breaks(value) if isinstance(value, str) else ""

    def texts(self, name: str, limit: int) -> list[str]:
        """Return all values of a repeated field."""
        given = self._fields.get(name, ())
        values = [unify_line_breaks(value) for value in given if isinstance(value, str)]
        if len(values) > limit:
            raise _bad(name, f"has too many values: {len(values)}", f"at most {limit}")
        return values

    def file(self, name: str) -> UploadedFile | None:
        """Return the uploaded file, or None if no file was chosen."""
        value = self._first(name)
        return value if isinstance(value, UploadedFile) and value.name else None

    def _first(self, name: str) -> FormValue | None:
        return next(iter(self._fields.get(name, ())), None)

    def flag(self, name: str) -> bool:
        """Return whether a checkbox is checked."""
        return self.raw(name) in ("yes", "on", "true", "1")

    def number(self, name: str, low: int, high: int) -> int | None:
        """Return a field as an integer, or None if it is empty.

        Raises:
            Problem: 422 if it is not an integer or is out of bounds.
        """
        value = self.text(name, 40).replace(",", "")
        if not value:
            return None
        if not (value.isascii() and value.isdecimal() and low <= int(value) <= high):
            raise _bad(name, "is not an integer in the allowed range", f"{low:,} to {high:,}")
        return int(value)

    def ttl_s(self) -> int | None:
        """Return the time to live in seconds: None for the default, 0 for no expiry.

        Reads ``ttl`` with ``ttl_unit`` (s, min, h, d or never), or ``ttl_s`` alone.
        """
        unit = self.text("ttl_unit", 10)
        if unit == "never":
            return 0
        if not self.text("ttl", 40):
            return self.number("ttl_s", 0, TTL_MAX_S)
        if unit not in _UNITS and unit:
            raise _bad("ttl_unit", "is not a known unit", ", ".join((*_UNITS, "never")))
        length = _UNITS.get(unit, 1)
        value = self.number("ttl", 0, TTL_MAX_S // length)
        return None if value is None else value * length

    def queue(self, name: str) -> str:
        """Return a queue name with its white space unchanged, or "" if the field is empty.

        Raises:
            Problem: 422 if it is not a valid queue name.
        """
        value = self.raw(name)
        if value:
            check_queue_name(value)
        return value

    def reason(self) -> str:
        """Return the reason to store in the audit log."""
        return self.text("reason", REASON_MAX)


async def read_form(request: web.Request) -> Form:
    """Parse the form in a request's body."""
    return Form(await read_form_fields(request))


def _bad(field: str, what: str, bound: str) -> Problem:
    return Problem(422, "invalid", f"{field} {what}.", field=field, bound=bound)


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
        raise Problem(
            422, "invalid", f"{field}: {text!r} is not a valid time.", field=field,
            bound="Unix milliseconds or 2026-01-31T15:00",
        ) from None  # fmt: skip
