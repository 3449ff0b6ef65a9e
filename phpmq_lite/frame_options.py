"""The options of the frames 010 to 015: a JSON object in their packet 06.

The names are those of the HTTP API.  ``docs/reference/protocol.md`` describes each one.
"""

import json
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final, Literal, NamedTuple, Self

from phpmq_lite.durations import DAY_S
from phpmq_lite.errors import RefusedError
from phpmq_lite.queue_settings import KEY_BYTES, LONGEST_TTL_S

HIGHEST_PRIORITY: Final = 0
DEFAULT_PRIORITY: Final = 128
LOWEST_PRIORITY: Final = 255
GROUP_BYTES: Final = 255
TRACEBACK_BYTES: Final = 8 << 10
TEXT_BYTES: Final = 1_000  # of an exception's class or message, or of a reason
LONGEST_DELAY_S: Final = 10 * 365 * DAY_S
LATEST_DATE_MS: Final = 4_102_444_800_000  # 2100-01-01, Unix ms
_MILLISECONDS: Final = re.compile("[0-9]{1,13}")


class Field(NamedTuple):
    """The type and the bounds of an option."""

    kind: Literal["seconds", "whole", "text", "date", "yes or no", "choice"]
    highest: float = 0  # of a number; of a text, its bytes of UTF-8
    lowest: float = 0
    choices: tuple[str, ...] = ()
    is_cut: bool = False  # whether a longer text is cut instead of refused

    @property
    def bound(self) -> str:
        """Return which values are valid, worded to follow "must be"."""
        match self.kind:
            case "seconds" | "whole":
                number = "a number" if self.kind == "seconds" else "a whole number"
                return f"{number} from {self.lowest:.15g} to {self.highest:.15g}"
            case "text":
                return f"a text without NUL of {self.lowest:.0f} to {self.highest:.0f} bytes"
            case "date":
                return "a date up to 2100 with a UTC offset (2027-01-01T08:00+01:00) or in Unix ms"
            case "choice":
                return " or ".join(map(json.dumps, self.choices))
        return "true or false"


Fields = Mapping[str, Field]
_to_json: Final = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
_KEY: Final = Field("text", KEY_BYTES, 1)
_COUNT: Final = Field("whole", 10**9, 1)

PUBLISH: Final[Fields] = {
    "ttl_s": Field("seconds", LONGEST_TTL_S),
    "delay_s": Field("seconds", LONGEST_DELAY_S),
    "deliver_at": Field("date", LATEST_DATE_MS),
    "priority": Field("whole", LOWEST_PRIORITY, HIGHEST_PRIORITY),
    "group": Field("text", GROUP_BYTES, 1),
    "unique_key": _KEY,
    "if_exists": Field("choice", choices=("keep", "replace")),
}
_FAILURE: Final[Fields] = {
    "exception": Field("text", TEXT_BYTES, is_cut=True),
    "error": Field("text", TEXT_BYTES, is_cut=True),
    "traceback": Field("text", TRACEBACK_BYTES, is_cut=True),
}
SETTLE: Final[Mapping[str, Fields]] = {  # by the action
    "retry": {
        "delay_s": Field("seconds", LONGEST_DELAY_S),
        "attempt": _COUNT,
        "limit": Field("whole", 10**9),
        "failed": Field("yes or no"),
        **_FAILURE,
    },
    "dead_letter": {"reason": Field("text", TEXT_BYTES, is_cut=True), **_FAILURE},
    "extend": {"hold_s": Field("seconds", LONGEST_DELAY_S)},
}
_ACTION: Final = Field("choice", choices=tuple(SETTLE))
CONSUME: Final[Fields] = {"info": Field("yes or no"), "keep": Field("yes or no")}
HELLO: Final[Fields] = {
    "name": Field("text", 200, is_cut=True),
    "version": Field("text", 200, is_cut=True),
    "pid": Field("whole", 1 << 53),
    "host": Field("text", 255, is_cut=True),
}


class OptionError(RefusedError):
    """An option is unknown or invalid; ``field`` is its name, or empty for the whole object."""

    def __init__(self, field: str, problem: str) -> None:
        self.field = _printable(field)
        self.problem = _printable(problem)
        super().__init__("bad_option", f"{self.field}: {self.problem}" if field else self.problem)


def read_options(content: bytes, fields: Fields) -> dict[str, Any]:
    """Return the valid options in ``content``; raise OptionError for the first that is not.

    Options that are null are left out.  Times are seconds, dates Unix milliseconds.
    """
    return check_options(read_object(content), fields)


def check_options(options: Mapping[str, Any], fields: Fields) -> dict[str, Any]:
    """Return options without those that are None; raise OptionError for the first invalid one."""
    valid: dict[str, Any] = {}
    for name, value in options.items():
        field = fields.get(name)
        if field is None:
            names = ", ".join(fields)
            raise OptionError(name[:100], f"is not an option here; the options are {names}")
        if value is not None:
            valid[name] = check_option(name, value, field)
    return valid


def check_option(name: str, value: Any, field: Field) -> Any:
    """Return the valid value of an option, or raise OptionError."""
    valid = _READ[field.kind](value, field)
    if valid is not _INVALID:
        return valid
    if isinstance(value, list | dict):  # perhaps nested too deep to be written
        text = "a list" if isinstance(value, list) else "an object"
    else:
        text = json.dumps(value, ensure_ascii=False, default=str)
    text = text if len(text) <= 100 else f"{text[:100]}…"
    raise OptionError(name, f"must be {field.bound}, not {text}")


class Settlement(NamedTuple):
    """What a 011 asks for; ``problem`` is empty if it is valid."""

    action: object  # a key of SETTLE if it is valid
    options: dict[str, Any]
    problem: str


def read_settlement(content: bytes, *, has_content: bool) -> Settlement:
    """Return the action of a 011 with its options, valid or not; a retry may have content."""
    action, named = None, {}
    try:
        options = read_object(content)
        action = options.pop("action", None)
        named = check_options(options, SETTLE[check_option("action", action, _ACTION)])
    except OptionError as error:
        return Settlement(action, named, str(error))
    problem = ""
    if has_content and action != "retry":
        problem = f"action: {action} takes no content; only a retry replaces it"
    elif action == "extend" and "hold_s" not in named:
        problem = "hold_s: is missing"
    return Settlement(action, named, problem)


def consume_problem(content: bytes) -> str:
    """Return what is wrong with the options of a 012, or an empty text."""
    try:
        read_options(content, CONSUME)
    except OptionError as error:
        return str(error)
    return ""


def facts_of(hello: bytes) -> dict[str, Any]:
    """Return what a 014 says of its client, without what is invalid, or what this version ignores.

    A hello is always answered, so that later clients may say more.
    """
    facts: dict[str, Any] = {}
    with suppress(OptionError):
        for name, value in read_object(hello).items():
            with suppress(OptionError):
                facts |= check_options({name: value}, HELLO)
    return facts


def read_object(content: bytes) -> dict[str, Any]:
    """Return the JSON object in ``content``, or raise OptionError."""
    try:
        options = _DECODER.decode(content.decode())
    except (ValueError, RecursionError) as error:
        raise OptionError("", f"the options are not valid JSON: {error}") from None
    if not isinstance(options, dict):
        raise OptionError("", "the options must be a JSON object")
    return options


def write_options(options: Mapping[str, Any]) -> bytes:
    """Return the content of packet 06, without options that are None."""
    named = {name: value for name, value in options.items() if value is not None}
    return _to_json(named).encode(errors="replace")


def _unique_members(members: list[tuple[str, Any]]) -> dict[str, Any]:
    options = dict(members)
    if len(options) < len(members):
        raise ValueError("a member occurs more than once")
    return options


_DECODER: Final = json.JSONDecoder(object_pairs_hook=_unique_members)


def _printable(text: str) -> str:
    """Return a text that every log, receipt and database accepts."""
    return text.encode(errors="replace").decode().replace("\0", "\N{REPLACEMENT CHARACTER}")


def read_date(value: object) -> int | None:
    """Return a date in Unix ms, or raise ValueError; None and empty texts are None."""
    if value is None or value == "":
        return None
    try:
        return int(check_option("deliver_at", value, PUBLISH["deliver_at"]))
    except OptionError as error:
        raise ValueError(error.problem) from None


def _number(value: Any, field: Field) -> Any:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not field.lowest <= value <= field.highest:  # as is NaN
        return _INVALID
    if field.kind != "whole":
        return value
    return int(value) if value == int(value) else _INVALID


def _text(value: Any, field: Field) -> Any:
    if not isinstance(value, str):
        return _INVALID
    printable = _printable(value)
    if field.is_cut:
        return printable.encode()[: int(field.highest)].decode(errors="ignore")
    has_room = field.lowest <= len(printable.encode()) <= field.highest
    return value if has_room and printable == value else _INVALID


def _date(value: Any, field: Field) -> Any:
    if isinstance(value, str) and _MILLISECONDS.fullmatch(value):
        value = int(value)
    elif isinstance(value, str):
        try:
            at = datetime.fromisoformat(value)
        except ValueError:
            return _INVALID
        value = None if at.tzinfo is None else at.timestamp() * 1_000
    number = _number(value, field)
    return number if number is _INVALID else round(number)


_INVALID: Final = object()
_READ: Final[Mapping[str, Callable[[Any, Field], Any]]] = {
    "seconds": _number,
    "whole": _number,
    "text": _text,
    "date": _date,
    "choice": lambda value, field: value if value in field.choices else _INVALID,
    "yes or no": lambda value, _: value if isinstance(value, bool) else _INVALID,
}


class DeliveryTime(NamedTuple):
    """When a message becomes ready: after a delay, or at a date in Unix ms."""

    delay_s: float = 0
    deliver_at: int | None = None


NOW: Final = DeliveryTime()


@dataclass(slots=True, frozen=True)
class PublishOptions:
    """What a publisher asks for beside queue and content; ``PLAIN`` asks for nothing.

    ``ttl_s`` is None for the queue's default and 0 for no expiry.
    """

    ttl_s: float | None = None
    delay_s: float = 0
    deliver_at: int | None = None  # Unix ms
    priority: int = DEFAULT_PRIORITY
    group: str | None = None
    unique_key: str | None = None
    replaces: bool = False  # a live message with this unique key

    def delayed_by(self, ttl_s: float | None) -> Self:
        """Return the options of a publish to NAME.retry with a TTL: deliver in NAME after it."""
        return replace(self, ttl_s=None, delay_s=min(ttl_s or 0, LONGEST_TTL_S), deliver_at=None)

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> Self:
        """Return the options that ``check_options`` accepted; a delay excludes a date."""
        named = dict(options)
        if named.get("delay_s") and named.get("deliver_at") is not None:
            raise OptionError("deliver_at", "excludes delay_s; omit one of them")
        replaces = named.pop("if_exists", "keep") == "replace"
        if replaces and "unique_key" not in named:
            raise OptionError("if_exists", "replace needs a unique_key")
        return cls(**named, replaces=replaces)


PLAIN: Final = PublishOptions()
