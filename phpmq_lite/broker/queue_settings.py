"""What a queue may be called, and what its settings may be."""

import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from phpmq_lite.broker.deadlines import LONGEST_TTL_S
from phpmq_lite.broker.queue import DEAD_LETTER_SUFFIX
from phpmq_lite.errors import RefusedError

NAME_BYTES: Final = 255
LONGEST_NAME: Final = NAME_BYTES + len(DEAD_LETTER_SUFFIX)  # of a name that ends in it
NAME_RULE: Final = (
    f"1 to {NAME_BYTES} bytes of UTF-8, up to {LONGEST_NAME} if it ends in {DEAD_LETTER_SUFFIX}, "
    "no control characters but line feeds"
)
POLICIES: Final = ("opaque", "observe", "envelope")
_CONTROL: Final = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f]")  # a line feed is allowed on the wire
_FORWARD: Final = "forward:"
_MANY: Final = 10**12
_SECONDS: Final = 10**9

_NUMBERS: Final[dict[str, int]] = {  # setting -> the most; the least is 0
    "max_deliveries": _MANY,
    "ack_timeout_s": _SECONDS,
    "default_ttl_s": LONGEST_TTL_S,
    "max_messages": _MANY,
    "max_bytes": 1 << 50,
    "alert_messages": _MANY,
    "alert_age_s": _SECONDS,
}
_TEXTS: Final[dict[str, int]] = {"note": 2_000, "owner": 200, "link": 2_000}  # -> most characters
_CHOICES: Final[dict[str, tuple[str, ...]]] = {
    "payload_policy": POLICIES,
    "schema_mode": ("off", "warn", "quarantine"),
    "empty_list_data": ("php", "never", "always"),
}
_SWITCHES: Final = frozenset({"delivery_paused", "publishing_paused", "pinned"})
SETTINGS: Final = (
    _NUMBERS.keys() | _TEXTS.keys() | _SWITCHES | _CHOICES.keys()
    | {"on_expire", "dead_letter_queue"}
)  # fmt: skip


def name_problem(name: str) -> str | None:
    """Return what is wrong with the name of a queue, or None."""
    try:
        size = len(name.encode())
    except UnicodeEncodeError:
        return "is not UTF-8"
    longest = LONGEST_NAME if name.endswith(DEAD_LETTER_SUFFIX) else NAME_BYTES
    if not 0 < size <= longest:
        return f"has {size} bytes, it may have 1 to {longest}"
    return "has a control character" if _CONTROL.search(name) else None


def check_name(name: str) -> None:
    """Raise where no queue can be called that.

    Raises:
        RefusedError: ``bad_name``.
    """
    if (problem := name_problem(name)) is not None:
        raise RefusedError("bad_name", f"the name of the queue {problem}")


def check_settings(queue: str, changes: Mapping[str, Any]) -> None:
    """Check what a queue's settings are to be; None, back to the default, is always right.

    Raises:
        RefusedError: ``unknown_setting``, or ``bad_setting``; the text names setting and bound.
    """
    for name, value in changes.items():
        if name not in SETTINGS:
            raise RefusedError("unknown_setting", f"no queue setting {name!r}")
        if value is not None and (problem := _problem(queue, name, value)) is not None:
            raise RefusedError("bad_setting", f"{name} {problem}")


def check_circle(queue: str, target: str, named: Callable[[str], str | None]) -> None:
    """Refuse a dead-letter queue whose own dead letters would come back to ``queue``.

    ``named`` gives the dead-letter queue that a queue names; empty or None: it names none.

    Raises:
        RefusedError: ``bad_setting``.
    """
    at, seen = target, {queue}
    while at not in seen:
        seen.add(at)
        further = named(at)
        if not further and at.endswith(DEAD_LETTER_SUFFIX):
            return
        at = further or at + DEAD_LETTER_SUFFIX
    raise RefusedError(
        "bad_setting",
        f"dead_letter_queue {target!r} would send dead letters in a circle, by way of {at!r}",
    )


def _problem(queue: str, name: str, value: Any) -> str | None:
    """Return what is wrong with a value, as the rest of a sentence."""
    if name in _SWITCHES:
        return None if isinstance(value, bool) else "must be true or false"
    if (most := _NUMBERS.get(name)) is not None:
        is_number = isinstance(value, int) and not isinstance(value, bool)
        return None if is_number and 0 <= value <= most else f"must be a number from 0 to {most}"
    if (choices := _CHOICES.get(name)) is not None:
        return None if value in choices else f"must be one of {', '.join(choices)}"
    if not isinstance(value, str):
        return "must be a text"
    if name == "on_expire":
        return _on_expire_problem(queue, value)
    if name == "dead_letter_queue":
        return _dead_letter_queue_problem(queue, value)
    return _text_problem(value, _TEXTS[name], is_link=name == "link")


def _text_problem(value: str, most: int, *, is_link: bool) -> str | None:
    try:
        value.encode()
    except UnicodeEncodeError:
        return "must be UTF-8"
    if len(value) > most:
        return f"has {len(value)} characters, the limit is {most}"
    if is_link and value and not value.startswith(("https://", "http://")):
        return "must begin with https:// or http://"
    return None


def _on_expire_problem(queue: str, value: str) -> str | None:
    if value in ("history", "dead_letter"):
        return None
    target = value.removeprefix(_FORWARD)
    if target == value:
        return "must be history, dead_letter or forward:QUEUE"
    if target == queue:
        return "cannot forward to the same queue"
    problem = name_problem(target)
    return None if problem is None else f"forwards to a queue whose name {problem}"


def _dead_letter_queue_problem(queue: str, value: str) -> str | None:
    """Circles by way of other queues are found in ``Queues.check_dead_letter_queue``."""
    if not value:
        return None
    if value == queue:
        return "cannot be the queue itself"
    problem = name_problem(value)
    return None if problem is None else f"is a queue whose name {problem}"
