"""Reads names in paths, query strings and JSON bodies, and refuses what is not valid."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, TypeVar, get_args, get_origin
from urllib.parse import unquote_to_bytes

from aiohttp import web
from pydantic import BaseModel

from phpmq_lite.admin.http.body import FormValue, UploadedFile, read_json_body
from phpmq_lite.admin.http.problems import Problem, invalid
from phpmq_lite.admin.http.route import ROUTE
from phpmq_lite.admin.urls import decode_name
from phpmq_lite.durations import FORM_UNITS, UNITS_MS
from phpmq_lite.queue_settings import LONGEST_TTL_S, NAME_RULE, name_problem

Model = TypeVar("Model", bound=BaseModel)


def check_path(request: web.Request) -> None:
    """Refuse with 422 a path that is not valid UTF-8 after percent-decoding.

    aiohttp leaves undecodable bytes unchanged: ``%FF`` would become the name ``%FF``, whose correct
    encoding is ``%25FF``.
    """
    try:
        unquote_to_bytes(request.rel_url.raw_path).decode()
    except UnicodeDecodeError:
        detail = "A name in the path is not valid UTF-8 after percent-decoding."
        raise invalid(detail, "path", "UTF-8") from None


def path_name(request: web.Request, key: str) -> str:
    """Return the name at the position of ``{key}`` in the request path.

    Reads the raw path, because aiohttp's ``match_info`` does not distinguish ``%7E`` from the
    ``~`` that ``encode_name`` adds.
    """
    places = request[ROUTE].path.split("/")
    segments = request.rel_url.raw_path.split("/")
    return decode_name(segments[places.index(f"{{{key}}}") - len(places)])


def read_query(request: web.Request, model: type[Model]) -> Model:
    """Parse the query string into a model, ignoring empty values; see ``problem_of``."""
    return model.model_validate({key: value for key, value in request.query.items() if value})


async def read_json_model(request: web.Request, model: type[Model]) -> Model:
    """Parse the JSON body into a model; a missing body is treated as an empty object.

    Raises:
        Problem: 400 if the body is not JSON, or an error from ``read_json_body``.
        ValidationError: a member is unknown or out of bounds.
    """
    return model.model_validate(await read_json_body(request) or {})


def check_queue_name(name: str) -> None:
    """Raise a 422 ``Problem`` for a queue name that the wire protocol does not permit."""
    if (problem := name_problem(name)) is not None:
        raise invalid(f"The queue name {problem}.", "queue", NAME_RULE)


def check_text(text: str, field: str) -> None:
    """Refuse a name that is not valid UTF-8 with a 422 ``Problem`` that names the field."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise invalid(f"The {field} name is not valid UTF-8.", field, "UTF-8") from None


def parse_number(text: str) -> int | None:
    """Return a whole number of at most 18 digits, which fits into 63 bits; None for other texts."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= 18 else None


def parse_time(text: str, field: str) -> int | None:
    """Parse Unix ms, or ISO 8601 in UTC by default; raise a 422 ``Problem`` if it is neither."""
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
        raise invalid(detail, field, bound) from None


REASON_MAX: Final = 500
VALUES_MAX: Final = 200  # maximum number of values of a repeated field
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
            raise _invalid(name, f"is too long: {len(value)} characters", f"at most {limit}")
        return value

    def raw(self, name: str) -> str:
        """Return a field exactly as the user typed it."""
        value = self._first(name)
        return unify_line_breaks(value) if isinstance(value, str) else ""

    def texts(self, name: str, limit: int) -> list[str]:
        """Return all values of a repeated field."""
        values = self._fields.get(name, ())
        texts = [unify_line_breaks(value) for value in values if isinstance(value, str)]
        if len(texts) > limit:
            raise _invalid(name, f"has too many values: {len(texts)}", f"at most {limit}")
        return texts

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
        """Return an integer, None if empty; raise a 422 ``Problem`` if it is out of bounds."""
        value = self.text(name, 40).replace(",", "")
        if not value:
            return None
        if (number := parse_number(value)) is None or not low <= number <= high:
            raise _invalid(name, "is not an integer in the allowed range", f"{low:,} to {high:,}")
        return number

    def seconds(self, name: str, longest: int = LONGEST_TTL_S) -> int | None:
        """Return a time in seconds, or None if the field is empty; ``never`` is 0.

        Reads, for ``ttl``, ``ttl`` with ``ttl_unit`` (s, min, h, d or never), or ``ttl_s`` alone.
        """
        unit = self.text(f"{name}_unit", 10)
        if unit == "never":
            return 0
        if not self.text(name, 40):
            return self.number(f"{name}_s", 0, longest)
        if unit not in _UNITS and unit:
            raise _invalid(f"{name}_unit", "is not a known unit", ", ".join((*_UNITS, "never")))
        unit_s = _UNITS.get(unit, 1)
        value = self.number(name, 0, longest // unit_s)
        return None if value is None else value * unit_s

    def queue(self, name: str) -> str:
        """Return a queue name as typed, "" if empty; raise a 422 ``Problem`` if not valid."""
        value = self.raw(name)
        if value:
            check_queue_name(value)
        return value

    def reason(self) -> str:
        """Return the reason to store in the audit log."""
        return self.text("reason", REASON_MAX)


def unify_line_breaks(text: str) -> str:
    """Replace each CRLF with LF, because browsers send line breaks as CRLF."""
    return text.replace("\r\n", "\n")


def _invalid(field: str, problem: str, bound: str) -> Problem:
    return invalid(f"{field} {problem}.", field, bound)


@dataclass(slots=True, frozen=True)
class Untrimmed:
    """Marks a field whose white space is significant, such as a queue name or a password."""


@dataclass(slots=True, frozen=True)
class Lines:
    """Marks a list that a form has as one field with a line for each item."""


@dataclass(slots=True, frozen=True)
class InUnits:
    """Marks a field such as ``ttl_s``, which a form has as a number and a unit."""


@dataclass(slots=True, frozen=True)
class InUtc:
    """Marks a date, which a form has without an offset, in UTC."""


def split_lines(text: str) -> list[str]:
    """Return a text's non-blank lines, each without leading and trailing white space."""
    return [line.strip() for line in text.splitlines() if line.strip()]


def read_form_model(form: Form, model: type[Model]) -> Model:
    """Read a form into a model; empty fields count as absent.

    Raises:
        ValidationError: a value is out of bounds.
        Problem: see ``Form.seconds`` and ``Form.texts``.
    """
    values: dict[str, Any] = {}
    for name, field in model.model_fields.items():
        marks = {type(mark) for mark in field.metadata}
        if InUnits in marks:
            if (seconds := form.seconds(name.removesuffix("_s"))) is not None:
                values[name] = seconds
        elif InUtc in marks:
            values[name] = parse_time(form.raw(name).strip(), name)
        elif Lines in marks:
            if form.texts(name, 1):
                values[name] = split_lines(form.raw(name))
        elif get_origin(field.annotation) is list:
            values[name] = list(dict.fromkeys(form.texts(name, VALUES_MAX)))
        elif text := form.raw(name) if Untrimmed in marks else form.raw(name).strip():
            is_number = field.annotation is int or int in get_args(field.annotation)
            values[name] = text.replace(",", "") if is_number else text
    return model.model_validate(values, strict=False)
