"""The settings of queues: fields of the form, and API models."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, Final, Literal, cast

from pydantic import ConfigDict, Field, create_model

from phpmq_lite.admin import formats
from phpmq_lite.admin.http.input import parse_number
from phpmq_lite.broker.queue import effective_settings
from phpmq_lite.errors import BadSettingError
from phpmq_lite.model import QueueRow
from phpmq_lite.queue_settings import (
    ABOUT,
    ALERTS,
    DEFINITIONS,
    FORWARD,
    LIMITS,
    MESSAGES,
    QueueSettings,
    SettingDefinition,
)
from phpmq_lite.server.status import QueueStatus

FIELDS: Final = {  # the settings in the form, in its order
    setting.name: setting
    for group in (ABOUT, MESSAGES, LIMITS, ALERTS)
    for setting in DEFINITIONS.values()
    if setting.group == group
}
_NUMBERS: Final = ("number", "rate", "seconds", "bytes")
_FORWARD_CHOICE: Final = "forward"  # value of the field, which has the queue in another field


@dataclass(slots=True, frozen=True)
class SettingField:
    """The form field for a setting, with its value."""

    setting: SettingDefinition
    choices: Mapping[str, str]  # value -> label
    value: str  # text that the field contains
    target: str  # target queue, if the value is "forward"
    default: str  # default value, in words
    is_own: bool  # whether the value differs from the default
    amount: str  # value with a unit, such as "30 min", for a duration or size
    error: str = ""


def default_settings(
    queue: QueueStatus, defaults: Mapping[str, Any], home: QueueStatus | None = None
) -> QueueSettings:
    """Return the settings that would apply if the queue had none of its own.

    ``home`` is the queue to which a ``.retry`` queue belongs.
    """
    return effective_settings(
        QueueRow(0, queue.name, 0),
        QueueSettings(**defaults),
        has_records=queue.is_dead_letter_queue,
        home=None if home is None else home.settings,
    )


def form_fields_of(
    queue: QueueStatus,
    defaults: QueueSettings,
    typed: Mapping[str, str] | None = None,
    error: tuple[str, str] = ("", ""),
) -> list[tuple[str, list[SettingField]]]:
    """Return the form's fields by group, with any ``typed`` values and the ``error``, if any."""
    groups: dict[str, list[SettingField]] = {}
    for setting in FIELDS.values():
        field = _field(setting, queue.settings, defaults)
        if typed is not None:
            target = typed.get("forward_to", "") if setting.name == "on_expire" else ""
            field = replace(field, value=typed.get(setting.name, ""), target=target)
        if setting.name == error[0]:
            field = replace(field, error=error[1])
        groups.setdefault(setting.group, []).append(field)
    return list(groups.items())


def _field(setting: SettingDefinition, own: QueueSettings, defaults: QueueSettings) -> SettingField:
    name, target = setting.name, ""
    value, default = getattr(own, name), getattr(defaults, name)
    is_own = value != default
    if name == "on_expire" and value.startswith(FORWARD):
        value, target = _FORWARD_CHOICE, value.removeprefix(FORWARD)
    return SettingField(
        setting,
        {key.partition(":")[0]: label for key, label in setting.choices.items()},
        value=("yes" if value else "") if isinstance(value, bool) else _plain(value),
        target=target,
        default=_value_text(setting, default),
        is_own=is_own,
        amount=_with_unit(setting, value),
    )


def _value_text(setting: SettingDefinition, value: Any) -> str:
    if setting.kind == "switch":
        return "on" if value else "off"
    if setting.kind == "choice":
        return setting.choices.get(value, f"forward to {str(value).removeprefix(FORWARD)}")
    if setting.kind in _NUMBERS:
        amount = _with_unit(setting, value)
        return f"{_plain(value)} ({amount})" if amount else _plain(value)
    return value or "empty"


def _plain(value: Any) -> str:
    """Return a text or number as it is typed, without the zero of a whole float."""
    return f"{value:.15g}" if isinstance(value, float) else str(value)


def _with_unit(setting: SettingDefinition, value: Any) -> str:
    if setting.kind == "seconds" and value:
        return formats.format_duration(value * 1_000)
    return formats.format_size(value) if setting.kind == "bytes" and value else ""


# -- submitted values


def changed_settings(
    queue: QueueStatus, defaults: QueueSettings, read: Callable[[str], str]
) -> dict[str, Any]:
    """Return the changed settings (empty: the default); raise BadSettingError for bad numbers."""
    changes: dict[str, Any] = {}
    for name, setting in FIELDS.items():
        value = _value(setting, read)
        current, default = getattr(queue.settings, name), getattr(defaults, name)
        value = default if value is None else value
        if value not in (current, _as_sent(setting, current)):
            changes[name] = None if value == default else value
    return changes


def _as_sent(setting: SettingDefinition, value: Any) -> Any:
    """Return what a browser sends for a field that the user has not changed.

    Single-line fields lose line breaks; white space at both ends is removed.
    """
    if not isinstance(value, str):
        return value
    kind, text = setting.kind, value.replace("\r\n", "\n").replace("\r", "\n")
    if kind != "area":
        text = text.replace("\n", "")
    return text if kind == "choice" else text.strip()


def _value(setting: SettingDefinition, read: Callable[[str], str]) -> Any:
    kind, text = setting.kind, read(setting.name)
    if kind == "switch":
        return text == "yes"
    if kind in _NUMBERS:
        digits = text.strip().replace(",", "")
        if not digits:
            return None
        if kind == "rate":
            return _rate(setting, digits)
        if (number := parse_number(digits)) is None:
            raise BadSettingError(setting.name, "enter an integer of 0 or more")
        return number
    if setting.name == "on_expire":
        return FORWARD + read("forward_to") if text == _FORWARD_CHOICE else text
    return text if kind == "choice" else text.replace("\r\n", "\n").strip()


def _rate(setting: SettingDefinition, digits: str) -> float:
    if re.fullmatch(r"\d{1,9}(\.\d{1,9})?", digits, re.ASCII) is None:
        raise BadSettingError(setting.name, "enter a number of 0 or more, such as 10 or 0.5")
    return float(digits)


_ALL: Final[dict[str, Any]] = {
    name: (setting.type, Field(description=setting.help)) for name, setting in DEFINITIONS.items()
}
_AllSettings: Any = cast(Any, create_model("_AllSettings", **_ALL))


class SettingsView(_AllSettings):  # type: ignore[misc]  # made of DEFINITIONS
    """All settings of a queue, including those with the broker's defaults."""


def _changed_field(setting: SettingDefinition) -> tuple[Any, Any]:
    type_: Any = setting.type
    if setting.type in (int, float):
        type_ = Annotated[setting.type, Field(ge=0, le=setting.maximum)]
    elif setting.name == "on_expire":
        type_ = Annotated[str, Field(max_length=len(FORWARD) + setting.max_length)]
    elif setting.choices:
        type_ = Literal[tuple(setting.choices)]
    elif setting.type is str:
        type_ = Annotated[str, Field(max_length=setting.max_length)]
    return type_ | None, Field(None, description=setting.help)


_CHANGED: Final[dict[str, Any]] = {
    name: _changed_field(setting) for name, setting in DEFINITIONS.items()
}
_STRICT: Final = ConfigDict(extra="forbid", strict=True)
_ChangedSettings: Any = cast(Any, create_model("_ChangedSettings", __config__=_STRICT, **_CHANGED))


class SettingsInput(_ChangedSettings):  # type: ignore[misc]  # made of DEFINITIONS
    """Settings to change; null resets to the broker's default, and omitted ones are unchanged."""

    def changes(self) -> dict[str, Any]:
        return cast(dict[str, Any], self.model_dump(exclude_unset=True))
