"""Reading the fields of a form: bounds are checked here, one field at a time."""

from collections.abc import Iterable
from typing import Final

from aiohttp import web

from phpmq_lite.admin.acting.drafts import from_field
from phpmq_lite.admin.multipart import Field, Upload
from phpmq_lite.admin.problems import Problem
from phpmq_lite.admin.requests import check_queue_name
from phpmq_lite.admin.schemas import TTL_MAX_S
from phpmq_lite.admin.uploads import form_fields

REASON_MAX: Final = 500
_UNITS: Final = {"s": 1, "min": 60, "h": 3_600, "d": 86_400}
_YES: Final = frozenset({"yes", "on", "true", "1"})


class Form:
    """The fields of one form; what is missing reads as empty."""

    def __init__(self, fields: Iterable[tuple[str, Field]]) -> None:
        self._fields: dict[str, list[Field]] = {}
        for name, value in fields:
            self._fields.setdefault(name, []).append(value)

    def text(self, name: str, limit: int = 1_000) -> str:
        """Give a field without the blanks around it.

        Raises:
            Problem: 422 where it is too long.
        """
        value = self.raw(name).strip()
        if len(value) > limit:
            raise _bad(name, f"has {len(value)} characters", f"at most {limit} characters")
        return value

    def raw(self, name: str) -> str:
        """Give a field as it was typed."""
        value = self._first(name)
        return from_field(value) if isinstance(value, str) else ""

    def texts(self, name: str, limit: int) -> list[str]:
        """Give all values of a field that may be there several times."""
        given = self._fields.get(name, ())
        values = [from_field(value) for value in given if isinstance(value, str)]
        if len(values) > limit:
            raise _bad(name, f"is there {len(values)} times", f"at most {limit} times")
        return values

    def file(self, name: str) -> Upload | None:
        """Give an uploaded file, None where none was chosen."""
        value = self._first(name)
        return value if isinstance(value, Upload) and value.name else None

    def _first(self, name: str) -> Field | None:
        return next(iter(self._fields.get(name, ())), None)

    def flag(self, name: str) -> bool:
        """Tell whether a box is ticked."""
        return self.raw(name) in _YES

    def number(self, name: str, low: int, high: int) -> int | None:
        """Give a whole number, None where the field is empty.

        Raises:
            Problem: 422 where it is no number, or out of its bounds.
        """
        value = self.text(name, 40).replace(",", "")
        if not value:
            return None
        if not (value.isascii() and value.isdecimal() and low <= int(value) <= high):
            raise _bad(name, "is not such a number", f"{low:,} to {high:,}")
        return int(value)

    def ttl_s(self) -> int | None:
        """Give the time to live in seconds: None for the default, 0 for never.

        Fields: ``ttl`` with its ``ttl_unit`` (s, min, h, d, or never), or ``ttl_s`` alone.
        """
        unit = self.text("ttl_unit", 10)
        if unit == "never":
            return 0
        if not self.text("ttl", 40):
            return self.number("ttl_s", 0, TTL_MAX_S)
        if unit not in _UNITS and unit:
            raise _bad("ttl_unit", "is unknown", ", ".join((*_UNITS, "never")))
        length = _UNITS.get(unit, 1)
        value = self.number("ttl", 0, TTL_MAX_S // length)
        return None if value is None else value * length

    def queue(self, name: str) -> str:
        """Give the name of a queue, blanks and all; "" where none is given.

        Raises:
            Problem: 422 where no queue can be called so.
        """
        value = self.raw(name)
        if value:
            check_queue_name(value)
        return value

    def reason(self) -> str:
        """Give the reason for the audit."""
        return self.text("reason", REASON_MAX)


async def form_of(request: web.Request) -> Form:
    """Read the form of a request."""
    return Form(await form_fields(request))


def _bad(field: str, what: str, bound: str) -> Problem:
    return Problem(422, "invalid", f"{field} {what}.", field=field, bound=bound)
