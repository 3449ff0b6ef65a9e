"""The exception for error responses, rendered as ``application/problem+json``."""

from http import HTTPStatus
from traceback import clear_frames
from typing import Any, Final

from aiohttp import web
from pydantic import ValidationError

from phpmq_lite.errors import (
    ReadTooLongError,
    RefusedError,
    SearchError,
    StorageError,
    StorageFullError,
)
from phpmq_lite.frame_options import OptionError
from phpmq_lite.settings.loading import describe_error

_STATUSES: Final = {  # maps a RefusedError code to an HTTP status; all other codes use 409
    code: status
    for status, codes in (
        (403, "foreign_queue foreign_app_id foreign_reader"),
        (404, "unknown_queue unknown_client unknown_app_id unknown_subscription unknown_token"),
        (404, "unknown_reader unknown_schedule"),
        (412, "stale"),
        (413, "too_large"),
        (422, "bad_side unknown_setting bad_setting bad_name bad_key bad_value key_conflict"),
        (422, "too_many too_many_queues unknown_claims bad_token bad_app_id bad_version"),
        (422, "bad_cron bad_timezone too_many_schedules"),
        (503, "not_writable draining not_ready"),
        (507, "stage_full disk_full database_full"),
    )
    for code in codes.split()
}
DOCS: Final = {  # maps an error code to the documentation page about it
    "bad_query": "guides/admin#find-a-message",
    "cross_site": "operate/security#4-changes-from-elsewhere",
    "database_full": "concepts/durability#when-the-disk-is-full",
    "disk_full": "concepts/durability#when-the-disk-is-full",
    "foreign_origin": "operate/security#4-changes-from-elsewhere",
    "foreign_queue": "guides/admin#users-and-roles",
    "local": "guides/admin#users-and-roles",
    "login": "guides/admin#users-and-roles",
    "no_origin": "operate/security#4-changes-from-elsewhere",
    "not_sqlite": "operate/cluster#back-up",
    "not_writable": "operate/reliability#a-write-or-an-fsync-that-fails",
    "role": "guides/admin#users-and-roles",
}
_BOUNDS: Final = ("ge", "gt", "le", "lt", "max_length", "min_length", "expected", "pattern")


class Problem(Exception):  # noqa: N818 - the term in RFC 9457
    """An error response, with a stable ``code`` for programs and a ``detail`` for people.

    ``field`` and ``bound`` name the invalid input and its allowed values.  ``says_unchanged`` is
    true if the detail says that nothing was changed, which the page of an error says otherwise.
    """

    def __init__(
        self,
        status: int,
        code: str,
        detail: str,
        *,
        field: str | None = None,
        bound: str | None = None,
        headers: dict[str, str] | None = None,
        says_unchanged: bool = False,
    ) -> None:
        super().__init__(detail)
        self.status = status
        self.code = code
        self.detail = detail
        self.field = field
        self.bound = bound
        self.headers = headers or {}
        self.says_unchanged = says_unchanged

    @property
    def title(self) -> str:
        """The HTTP reason phrase for the status, such as ``Not Found``."""
        return HTTPStatus(self.status).phrase

    @property
    def docs(self) -> str | None:
        """The documentation page that explains this error, or None if there is none."""
        return DOCS.get(self.code)

    def as_json(self, request_id: str, type_url: str | None = None) -> dict[str, Any]:
        """Return the problem document, omitting members without a value."""
        members = {
            "type": type_url,
            "title": self.title,
            "status": self.status,
            "code": self.code,
            "detail": self.detail,
            "field": self.field,
            "bound": self.bound,
            "request_id": request_id,
        }
        return {key: value for key, value in members.items() if value is not None}


def forget_frames(error: BaseException) -> None:
    """Free local variables, such as a 64 MiB body, that an error's traceback keeps alive.

    An error stored in a local variable forms a reference cycle with its traceback, which would keep
    these variables alive until the next garbage collection.
    """
    at: BaseException | None = error
    while at is not None:
        clear_frames(at.__traceback__)
        at.__traceback__ = None
        at = at.__context__


def invalid(detail: str, field: str | None = None, bound: str | None = None) -> Problem:
    """Return the problem of an input that is not valid, with its name and what is allowed."""
    return Problem(422, "invalid", detail, field=field, bound=bound)


def not_found(kind: str, name: str) -> Problem:
    return Problem(404, f"unknown_{kind}", f"There is no {kind} {name!r}.")


def problem_of(error: Exception) -> Problem | None:
    """Return the problem for an error, or None if the error is a bug in the broker."""
    match error:
        case Problem():
            return error
        case ValidationError():
            first = error.errors(include_url=False)[0]
            field = ".".join(str(part) for part in first["loc"]) or None
            context = first.get("ctx", {})
            bound = next((f"{key} {context[key]}" for key in _BOUNDS if key in context), None)
            text = describe_error(field or "", first).removesuffix(".") + "."
            return invalid(text, field, bound)
        case SearchError():
            return Problem(422, "bad_query", str(error), field="q", bound=error.bound)
        case OptionError():
            return Problem(422, error.code, f"{str(error).removesuffix('.')}.", field=error.field)
        case RefusedError():
            return Problem(_STATUSES.get(error.code, 409), error.code, _sentence(str(error)))
        case ReadTooLongError():
            return Problem(503, "too_slow", _sentence(str(error)), headers={"Retry-After": "5"})
        case StorageFullError():
            return Problem(507, "disk_full", _sentence(str(error)))
        case StorageError():
            return Problem(503, "storage", _sentence(str(error)), headers={"Retry-After": "5"})
        case web.HTTPException():
            return _of_http(error)
        case TimeoutError():
            return Problem(
                503,
                "no_answer",
                "The broker did not answer in time. The action may still take effect.",
            )
        case _:
            return None


def _of_http(error: web.HTTPException) -> Problem:
    details = {
        404: ("unknown_page", "There is no page at this address."),
        405: ("method", f"This address does not support {getattr(error, 'method', 'it')}."),
        413: ("too_large", "The request is larger than the broker accepts."),
    }
    code, detail = details.get(error.status, (f"http_{error.status}", _sentence(error.reason)))
    headers = {key: error.headers[key] for key in ("Allow",) if key in error.headers}
    return Problem(error.status, code, detail, headers=headers)


def _sentence(text: str) -> str:
    if text.partition(" ")[0].isalpha():  # skip field names such as max_bytes
        text = text[:1].upper() + text[1:]
    return text if text.endswith((".", "?", "!")) else f"{text}."
