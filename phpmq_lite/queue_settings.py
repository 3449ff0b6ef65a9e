"""All settings of a queue, each defined in a single place, and the rules for queue names.

The broker, the SQL columns, the configuration section ``[queues]``, the API models, the form and
the command line derive from ``DEFINITIONS``.  To add a setting, add a field to ``QueueSettings``
and use it; with ``column=True``, it also needs a migration; otherwise, it is stored as JSON.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Final

from phpmq_lite.durations import DAY_S
from phpmq_lite.errors import BadSettingError, RefusedError

DEAD_LETTER_SUFFIX: Final = ".dlq"  # of the queue for dead letters; see ``dead_letter_name``
RETRY_SUFFIX: Final = ".retry"  # of the queue for delayed messages; see ``retry_name``
NAME_BYTES: Final = 255
KEY_BYTES: Final = 64  # maximum length of a publish key
LONGEST_NAME: Final = NAME_BYTES + len(DEAD_LETTER_SUFFIX)  # limit for a .dlq queue's name
NAME_RULE: Final = (
    f"1 to {NAME_BYTES} bytes of UTF-8 (up to {LONGEST_NAME} with suffix {DEAD_LETTER_SUFFIX}), "
    "without control characters except line feeds"
)
LONGEST_TTL_S: Final = 100 * 365 * DAY_S  # 100 years, so that all times fit into 63 bits
FORWARD: Final = "forward:"
_CONTROL: Final = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f]")  # not line feeds, which PHPMQ allows
HOME_SETTINGS: Final = ("payload_policy", "schema_mode", "empty_list_data")  # also apply to .retry
_COUNT_MAX: Final = 10**12
_SECONDS_MAX: Final = 10**9

ABOUT: Final = "About this queue"
MESSAGES: Final = "Messages"
LIMITS: Final = "Limits"
ALERTS: Final = "Alerts on the overview"


@dataclass(slots=True, frozen=True)
class SettingDefinition:
    """The definition of a queue setting: its texts, its bounds, and how it is stored."""

    label: str
    help: str
    kind: str  # in the form: text, area, link, number, rate, seconds, bytes, choice or switch
    group: str = ""  # section in the form; empty if the form does not show the setting
    maximum: int = 0  # maximum value of a number; the minimum is 0
    max_length: int = 0  # maximum length of a text, or of a target queue, in characters
    choices: Mapping[str, str] = field(default_factory=dict)  # value -> label in the form
    column: bool = False  # whether the table ``queue`` has a column for it
    broker_default: bool = False  # whether ``[queues]`` can set the broker's default
    # -- copied from the ``QueueSettings`` field
    name: str = ""
    type: type = str  # type of the value: bool, int, float or str
    default: Any = None

    def problem(self, queue: str, value: Any) -> str | None:
        """Return what is wrong with a value, worded to follow the setting's name, or None."""
        if self.type is bool:
            return None if isinstance(value, bool) else "must be true or false"
        if self.type in (int, float):
            kinds = int if self.type is int else int | float
            is_number = isinstance(value, kinds) and not isinstance(value, bool)
            is_valid = is_number and 0 <= value <= self.maximum
            return None if is_valid else f"must be a number from 0 to {self.maximum}"
        if not isinstance(value, str):
            return f"must be one of {', '.join(self.choices)}" if self.choices else "must be text"
        if self.name == "on_expire":
            return _on_expire_problem(queue, value)
        if self.name == "dead_letter_queue":  # ``check_no_cycle`` finds indirect cycles
            if value == queue:
                return "must not be the queue itself"
            problem = name_problem(value) if value else None
            return None if problem is None else f"is not a valid queue name: it {problem}"
        if self.choices:
            return None if value in self.choices else f"must be one of {', '.join(self.choices)}"
        if self.name == "group_by" and value and not re.match(r"/|(urn|group)\Z", value):
            return "must be urn, group or a JSON pointer, which begins with /"
        return self._text_problem(value)

    def _text_problem(self, value: str) -> str | None:
        try:
            value.encode()
        except UnicodeEncodeError:
            return "must be UTF-8"
        if len(value) > self.max_length:
            return f"has {len(value)} characters; the limit is {self.max_length}"
        if self.kind == "link" and value and not value.startswith(("https://", "http://")):
            return "must begin with https:// or http://"
        return None


def _setting(default: Any, label: str, text: str, **bounds: Any) -> Any:
    of_type = {bool: "switch", int: "number", float: "rate"}.get(type(default), "text")
    kind = bounds.pop("kind", "choice" if "choices" in bounds else of_type)
    definition = SettingDefinition(label, text, kind, **bounds)
    return field(default=default, metadata={"definition": definition})


@dataclass(slots=True)
class QueueSettings:
    """The settings that an operator can change for a queue, with defaults filled in."""

    # fmt: off
    on_expire: str = _setting("history",
        "When a message expires", "What happens to a message when its TTL has passed.",
        group=MESSAGES, max_length=LONGEST_NAME, column=True, broker_default=True, choices={
            "history": "Move the message to the history as expired",
            "dead_letter": "Dead-letter the message",
            "forward:QUEUE": "Forward the message to another queue",
        },
    )
    max_deliveries: int = _setting(20,
        "Deliveries", "Dead-letter a message after this many counted deliveries. 0 means no limit.",
        group=MESSAGES, maximum=_COUNT_MAX, column=True, broker_default=True,
    )
    ack_timeout_s: int = _setting(1_800,
        "Acknowledgement timeout",
        "Seconds until an unacknowledged message returns to the queue. 0 means never.",
        kind="seconds", group=MESSAGES, maximum=_SECONDS_MAX, column=True, broker_default=True,
    )
    default_ttl_s: int = _setting(0,
        "Time to live",
        "TTL in seconds for forwarded messages and messages published without a TTL. 0 means none.",
        kind="seconds", group=MESSAGES, maximum=LONGEST_TTL_S, broker_default=True,
    )
    max_messages: int = _setting(0,
        "Messages", "Refuse messages above this number. 0 means no limit.",
        group=LIMITS, maximum=_COUNT_MAX, column=True, broker_default=True,
    )
    max_bytes: int = _setting(0,
        "Bytes", "Refuse messages above this total body size in bytes. 0 means no limit.",
        kind="bytes", group=LIMITS, maximum=1 << 50, column=True, broker_default=True,
    )
    max_rate: float = _setting(0.0,
        "Deliveries per second",
        "Deliver at most this many messages a second, redeliveries included; may have decimals. "
        "0 means no limit.",
        group=LIMITS, maximum=1_000_000, broker_default=True,
    )
    max_burst: int = _setting(0,
        "Burst",
        "Deliver at most this many messages at once after a pause, if the rate is limited. "
        "0 means one second's worth, at least 1.",
        group=LIMITS, maximum=1_000_000, broker_default=True,
    )
    max_in_flight: int = _setting(0,
        "In flight",
        "Let all consumers together hold at most this many messages. 0 means no limit.",
        group=LIMITS, maximum=1_000_000, broker_default=True,
    )
    group_by: str = _setting("",
        "One at a time",
        "Deliver one message of a group at a time: urn, group (given when publishing), or a JSON "
        "pointer such as /data/order_id. If empty, messages have no groups.",
        group=LIMITS, max_length=500,
    )
    payload_policy: str = _setting("observe",
        "Payload policy", "How the broker treats message bodies.",
        group=MESSAGES, column=True, broker_default=True, choices={
            "opaque": "Opaque: do not inspect bodies",
            "observe": "Observe: show problems in envelopes",
            "envelope": "Envelope: dead-letter invalid envelopes",
        },
    )
    schema_mode: str = _setting("off",
        "Schemas", "How envelope queues handle data that its schema rejects.",
        group=MESSAGES, broker_default=True, choices={
            "off": "Off: do not check data",
            "warn": "Warn: count rejected data",
            "quarantine": "Quarantine: dead-letter the message",
        },
    )
    dead_letter_queue: str = _setting("",
        "Dead-letter queue",
        "Queue that receives dead-letter records. If empty, this queue's name followed by .dlq.",
        group=MESSAGES, max_length=LONGEST_NAME,
    )
    empty_list_data: str = _setting("php",
        "Empty list as data", "When to read empty-list data ([]) in an envelope as {}.",
        group=MESSAGES, broker_default=True, choices={
            "php": "In envelopes created by PHP",
            "never": "Never",
            "always": "Always",
        },
    )
    delivery_paused: bool = _setting(False,
        "Delivery paused", "While this is on, consumers receive no messages."
    )
    publishing_paused: bool = _setting(False,
        "Publishing paused", "While this is on, publish requests wait or are refused."
    )
    pinned: bool = _setting(False,
        "Pinned", "While this is on, the queue cannot be deleted.", group=LIMITS
    )
    note: str = _setting("",
        "Note", "What the queue is for, and what to do when it stalls.",
        kind="area", group=ABOUT, max_length=2_000,
    )
    owner: str = _setting("",
        "Owner", "Who is responsible for the queue.", group=ABOUT, max_length=200
    )
    link: str = _setting("",
        "Link", "Runbook or dashboard URL, http:// or https://.",
        kind="link", group=ABOUT, max_length=2_000,
    )
    alert_messages: int = _setting(0,
        "Ready messages",
        "Pages show an alert above this many ready messages; nobody is notified. 0 means never.",
        group=ALERTS, maximum=_COUNT_MAX,
    )
    alert_age_s: int = _setting(0,
        "Oldest ready message",
        "Pages show an alert if the oldest ready message is older than this many seconds; nobody "
        "is notified. 0 means never.",
        kind="seconds", group=ALERTS, maximum=_SECONDS_MAX,
    )
    # fmt: on


DEFINITIONS: Final[dict[str, SettingDefinition]] = {  # by name, in the order of the fields
    row.name: replace(
        row.metadata["definition"], name=row.name, type=type(row.default), default=row.default
    )
    for row in fields(QueueSettings)
}
COLUMNS: Final = tuple(name for name, row in DEFINITIONS.items() if row.column)


def to_dict(settings: QueueSettings) -> dict[str, Any]:
    """Return settings as a dict, faster than ``asdict``, which takes 35 µs for each queue."""
    return {name: getattr(settings, name) for name in DEFINITIONS}


def dead_letter_name(queue: str) -> str:
    """Return the name of the queue for dead letters, unless a setting names another."""
    return queue + DEAD_LETTER_SUFFIX


def retry_name(queue: str) -> str:
    """Return the name of the queue in which delayed messages wait."""
    return queue + RETRY_SUFFIX


def home_of(name: str) -> str | None:
    """Return the name of the queue that a ``.retry`` queue belongs to, or None for other queues."""
    home = name.removesuffix(RETRY_SUFFIX)
    return home if home and home != name else None


# -- checks


def name_problem(name: str) -> str | None:
    """Return what is wrong with a queue name, or None if it is valid."""
    try:
        size = len(name.encode())
    except UnicodeEncodeError:
        return "is not UTF-8"
    longest = LONGEST_NAME if name.endswith(DEAD_LETTER_SUFFIX) else NAME_BYTES
    if not 0 < size <= longest:
        return f"is {size} bytes long; it must be 1 to {longest}"
    return "contains a control character" if _CONTROL.search(name) else None


def check_name(name: str) -> None:
    """Raise RefusedError (``bad_name``) if a queue name is invalid."""
    if (problem := name_problem(name)) is not None:
        raise RefusedError("bad_name", f"the queue name {problem}")


def check_settings(queue: str, changes: Mapping[str, Any]) -> None:
    """Check changes, in which None restores a default; raise BadSettingError or RefusedError."""
    for name, value in changes.items():
        definition = DEFINITIONS.get(name)
        if definition is None:
            raise RefusedError("unknown_setting", f"unknown queue setting {name!r}")
        if value is not None and (problem := definition.problem(queue, value)) is not None:
            raise BadSettingError(name, problem)


def check_no_cycle(queue: str, target: str, configured: Callable[[str], str | None]) -> None:
    """Raise BadSettingError if the dead letters of ``target`` would return to ``queue``.

    ``configured`` returns a queue's ``dead_letter_queue`` setting, or an empty text or None.
    """
    at, visited = target, {queue}
    while at not in visited:
        visited.add(at)
        following = configured(at)
        if not following and at.endswith(DEAD_LETTER_SUFFIX):
            return
        at = following or dead_letter_name(at)
    problem = f"{target!r} would form a cycle of dead-letter queues through {at!r}"
    raise BadSettingError("dead_letter_queue", problem)


def check_no_forward_cycle(queue: str, value: str, on_expire: Callable[[str], str]) -> None:
    """Raise BadSettingError if ``value`` as ``on_expire`` could return a message to ``queue``.

    ``on_expire`` returns the setting of a queue, or its default if the queue does not exist.
    """
    at, following, visited = queue, value, {queue}
    while following.startswith(FORWARD) and (target := following.removeprefix(FORWARD)) != at:
        if target in visited:
            cycle = f"a cycle of expired messages through {at!r}, which forwards to {target!r}"
            raise BadSettingError("on_expire", f"{value!r} would form {cycle}")
        visited.add(target)
        at, following = target, on_expire(target)


def _on_expire_problem(queue: str, value: str) -> str | None:
    if value in ("history", "dead_letter"):
        return None
    target = value.removeprefix(FORWARD)
    if target == value:
        return "must be history, dead_letter or forward:QUEUE"
    if target == queue:
        return "must not forward to the queue itself"
    problem = name_problem(target)
    return None if problem is None else f"forwards to an invalid queue name, which {problem}"
