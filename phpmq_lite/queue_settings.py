"""The settings of a queue, each defined once, and the names that queues may have.

Broker, SQL columns, the section ``[queues]`` of the configuration, the API's models, the form and
the command line derive from ``DEFINITIONS``.  A new setting is one field of ``QueueSettings`` and
its use; with ``column=True`` it also needs a migration, otherwise it is stored as JSON.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Final

from phpmq_lite.errors import RefusedError

DEAD_LETTER_SUFFIX: Final = ".dlq"
RETRY_SUFFIX: Final = ".retry"
NAME_BYTES: Final = 255
LONGEST_NAME: Final = NAME_BYTES + len(DEAD_LETTER_SUFFIX)  # of a name that ends with it
NAME_RULE: Final = (
    f"1 to {NAME_BYTES} bytes of UTF-8, up to {LONGEST_NAME} if it ends with {DEAD_LETTER_SUFFIX}, "
    "no control characters except line feeds"
)
LONGEST_TTL_S: Final = 100 * 365 * 86_400  # 100 years: nothing overflows 63 bits
FORWARD: Final = "forward:"
_CONTROL: Final = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f]")  # the wire allows line feeds
HOME_SETTINGS: Final = ("payload_policy", "schema_mode", "empty_list_data")  # shared with .retry
_COUNT_MAX: Final = 10**12
_SECONDS_MAX: Final = 10**9


ABOUT: Final = "About this queue"
MESSAGES: Final = "Messages"
LIMITS: Final = "Limits"
ALERTS: Final = "Alerts on the overview"


@dataclass(slots=True, frozen=True)
class SettingDefinition:
    """All that is known about one setting."""

    label: str
    help: str
    group: str = ""  # of the form; empty: not in the form
    maximum: int = 0  # of a number; the minimum is 0
    max_length: int = 0  # of a text, in characters
    choices: Mapping[str, str] = field(default_factory=dict)  # value -> label
    column: bool = False  # has a column in the table ``queue``
    broker_default: bool = False  # its default can be set in ``[queues]``
    # -- from the field of ``QueueSettings``
    name: str = ""
    type: type = str  # bool, int or str
    default: Any = None

    def problem(self, queue: str, value: Any) -> str | None:
        """Return what is wrong with a value, as the rest of a sentence, or None."""
        if self.type is bool:
            return None if isinstance(value, bool) else "must be true or false"
        if self.type is int:
            is_number = isinstance(value, int) and not isinstance(value, bool)
            is_valid = is_number and 0 <= value <= self.maximum
            return None if is_valid else f"must be a number from 0 to {self.maximum}"
        if not isinstance(value, str):
            return f"must be one of {', '.join(self.choices)}" if self.choices else "must be text"
        if self.name == "on_expire":
            return _on_expire_problem(queue, value)
        if self.name == "dead_letter_queue":
            return _dead_letter_queue_problem(queue, value)
        if self.choices:
            return None if value in self.choices else f"must be one of {', '.join(self.choices)}"
        return self._text_problem(value)

    def _text_problem(self, value: str) -> str | None:
        try:
            value.encode()
        except UnicodeEncodeError:
            return "must be UTF-8"
        if len(value) > self.max_length:
            return f"has {len(value)} characters, the limit is {self.max_length}"
        if self.name == "link" and value and not value.startswith(("https://", "http://")):
            return "must begin with https:// or http://"
        return None


@dataclass(slots=True)
class QueueSettings:
    """What an operator decides about one queue, with the broker's defaults filled in."""

    on_expire: str = field(default="history", metadata={"definition": SettingDefinition(
        "When a message expires", "What happens to a message whose TTL has passed.",
        group=MESSAGES, column=True, broker_default=True, choices={
            "history": "Move it to the history as expired",
            "dead_letter": "Dead-letter it",
            "forward:QUEUE": "Forward it to another queue",
        },
    )})  # fmt: skip
    max_deliveries: int = field(default=20, metadata={"definition": SettingDefinition(
        "Deliveries", "Dead-letter a message after this many counted deliveries. 0: no limit.",
        group=MESSAGES, maximum=_COUNT_MAX, column=True, broker_default=True,
    )})  # fmt: skip
    ack_timeout_s: int = field(default=1_800, metadata={"definition": SettingDefinition(
        "Acknowledgement timeout",
        "Seconds until a message that was not acknowledged returns to the queue. 0: never.",
        group=MESSAGES, maximum=_SECONDS_MAX, column=True, broker_default=True,
    )})  # fmt: skip
    default_ttl_s: int = field(default=0, metadata={"definition": SettingDefinition(
        "Time to live",
        "Seconds to live for messages without a TTL and for forwarded ones. 0: forever.",
        group=MESSAGES, maximum=LONGEST_TTL_S, broker_default=True,
    )})  # fmt: skip
    max_messages: int = field(default=0, metadata={"definition": SettingDefinition(
        "Messages", "Refuse publishes above this many messages. 0: no limit.",
        group=LIMITS, maximum=_COUNT_MAX, column=True, broker_default=True,
    )})  # fmt: skip
    max_bytes: int = field(default=0, metadata={"definition": SettingDefinition(
        "Bytes", "Refuse publishes above this many bytes of bodies. 0: no limit.",
        group=LIMITS, maximum=1 << 50, column=True, broker_default=True,
    )})  # fmt: skip
    payload_policy: str = field(default="observe", metadata={"definition": SettingDefinition(
        "Payload policy", "How the broker treats message bodies.",
        group=MESSAGES, column=True, broker_default=True, choices={
            "opaque": "Opaque: do not inspect bodies",
            "observe": "Observe: show problems of envelopes",
            "envelope": "Envelope: dead-letter invalid envelopes",
        },
    )})  # fmt: skip
    schema_mode: str = field(default="off", metadata={"definition": SettingDefinition(
        "Schemas", "What happens to data that its schema rejects, in envelope queues.",
        group=MESSAGES, broker_default=True, choices={
            "off": "Off: do not check",
            "warn": "Warn: count it",
            "quarantine": "Quarantine: dead-letter it",
        },
    )})  # fmt: skip
    dead_letter_queue: str = field(default="", metadata={"definition": SettingDefinition(
        "Dead-letter queue",
        "Queue that receives dead-letter records. Empty: the name of this queue with .dlq.",
        group=MESSAGES, max_length=LONGEST_NAME,
    )})  # fmt: skip
    empty_list_data: str = field(default="php", metadata={"definition": SettingDefinition(
        "Empty list as data", "When the data [] of an envelope is read as {}.",
        group=MESSAGES, broker_default=True, choices={
            "php": "In envelopes made by PHP",
            "never": "Never",
            "always": "Always",
        },
    )})  # fmt: skip
    delivery_paused: bool = field(default=False, metadata={"definition": SettingDefinition(
        "Delivery paused", "Consumers receive nothing while it is set."
    )})  # fmt: skip
    publishing_paused: bool = field(default=False, metadata={"definition": SettingDefinition(
        "Publishing paused", "Publishes are refused or wait while it is set."
    )})  # fmt: skip
    pinned: bool = field(default=False, metadata={"definition": SettingDefinition(
        "Pinned", "The queue cannot be deleted while it is set.", group=LIMITS
    )})  # fmt: skip
    note: str = field(default="", metadata={"definition": SettingDefinition(
        "Note", "What the queue is for, and what to do when it stalls.",
        group=ABOUT, max_length=2_000,
    )})  # fmt: skip
    owner: str = field(default="", metadata={"definition": SettingDefinition(
        "Owner", "Who is responsible for the queue.", group=ABOUT, max_length=200
    )})  # fmt: skip
    link: str = field(default="", metadata={"definition": SettingDefinition(
        "Link", "Runbook or dashboard, https:// or http://.", group=ABOUT, max_length=2_000
    )})  # fmt: skip
    alert_messages: int = field(default=0, metadata={"definition": SettingDefinition(
        "Ready messages", "Alert above this many ready messages. 0: never.",
        group=ALERTS, maximum=_COUNT_MAX,
    )})  # fmt: skip
    alert_age_s: int = field(default=0, metadata={"definition": SettingDefinition(
        "Oldest ready message", "Alert if the oldest ready message waits longer (s). 0: never.",
        group=ALERTS, maximum=_SECONDS_MAX,
    )})  # fmt: skip


def _definitions() -> dict[str, SettingDefinition]:
    found = {}
    for each in fields(QueueSettings):
        default: Any = each.default
        found[each.name] = replace(
            each.metadata["definition"], name=each.name, type=type(default), default=default
        )
    return found


DEFINITIONS: Final = _definitions()  # by name, in order
COLUMNS: Final = tuple(name for name, each in DEFINITIONS.items() if each.column)


def to_dict(settings: QueueSettings) -> dict[str, Any]:
    """Return settings by name; ``asdict`` takes 35 µs, and definitions set 10,000 queues."""
    return {name: getattr(settings, name) for name in DEFINITIONS}


def home_of(name: str) -> str | None:
    """Return the name of the queue that a ``.retry`` queue belongs to; None: it is not one."""
    home = name.removesuffix(RETRY_SUFFIX)
    return home if home and home != name else None


# -- checks


def name_problem(name: str) -> str | None:
    """Return what is wrong with the name of a queue, or None."""
    try:
        size = len(name.encode())
    except UnicodeEncodeError:
        return "is not UTF-8"
    longest = LONGEST_NAME if name.endswith(DEAD_LETTER_SUFFIX) else NAME_BYTES
    if not 0 < size <= longest:
        return f"is {size} bytes long, the limit is 1 to {longest}"
    return "has a control character" if _CONTROL.search(name) else None


def check_name(name: str) -> None:
    """Check the name of a queue.

    Raises:
        RefusedError: ``bad_name``.
    """
    if (problem := name_problem(name)) is not None:
        raise RefusedError("bad_name", f"the name of the queue {problem}")


def check_settings(queue: str, changes: Mapping[str, Any]) -> None:
    """Check changed settings of a queue; None, which restores the default, is always valid.

    Raises:
        RefusedError: ``unknown_setting``, or ``bad_setting``; the text names setting and bound.
    """
    for name, value in changes.items():
        definition = DEFINITIONS.get(name)
        if definition is None:
            raise RefusedError("unknown_setting", f"no queue setting {name!r}")
        if value is not None and (problem := definition.problem(queue, value)) is not None:
            raise RefusedError("bad_setting", f"{name} {problem}")


def check_no_cycle(queue: str, target: str, configured: Callable[[str], str | None]) -> None:
    """Refuse a dead-letter queue whose own dead letters would come back to ``queue``.

    ``configured`` returns the ``dead_letter_queue`` of a queue; empty or None: not set.

    Raises:
        RefusedError: ``bad_setting``.
    """
    at, seen = target, {queue}
    while at not in seen:
        seen.add(at)
        following = configured(at)
        if not following and at.endswith(DEAD_LETTER_SUFFIX):
            return
        at = following or at + DEAD_LETTER_SUFFIX
    raise RefusedError(
        "bad_setting",
        f"dead_letter_queue {target!r} would send dead letters in a circle, through {at!r}",
    )


def _on_expire_problem(queue: str, value: str) -> str | None:
    if value in ("history", "dead_letter"):
        return None
    target = value.removeprefix(FORWARD)
    if target == value:
        return "must be history, dead_letter or forward:QUEUE"
    if target == queue:
        return "cannot forward to the same queue"
    problem = name_problem(target)
    return None if problem is None else f"forwards to a queue whose name {problem}"


def _dead_letter_queue_problem(queue: str, value: str) -> str | None:
    """Cycles through other queues are found by ``check_no_cycle``."""
    if not value:
        return None
    if value == queue:
        return "cannot be the queue itself"
    problem = name_problem(value)
    return None if problem is None else f"is a queue whose name {problem}"
