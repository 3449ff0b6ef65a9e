"""The form fields and the API models for the settings of a queue."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, Final, Literal, NamedTuple, Self, cast

from pydantic import ConfigDict, Field, create_model

from phpmq_lite.admin import formats
from phpmq_lite.broker.queue import effective_settings
from phpmq_lite.model import QueueRow
from phpmq_lite.queue_settings import (
    ABOUT,
    ALERTS,
    DEFINITIONS,
    FORWARD,
    LIMITS,
    LONGEST_NAME,
    MESSAGES,
    QueueSettings,
    SettingDefinition,
    to_dict,
)
from phpmq_lite.server.status import QueueStatus


class _FieldKind(NamedTuple):
    """The form field for a setting, without a value."""

    name: str
    title: str
    help: str
    kind: str  # text, area, link, number, seconds, bytes, choice or switch
    choices: tuple[tuple[str, str], ...] = ()


def _kind_of(setting: SettingDefinition) -> _FieldKind:
    if setting.type is bool:
        kind = "switch"
    elif setting.choices:
        kind = "choice"
    elif setting.type is int:
        suffix = setting.name.rpartition("_")[2]
        kind = {"s": "seconds", "bytes": "bytes"}.get(suffix, "number")
    else:
        kind = {"note": "area", "link": "link"}.get(setting.name, "text")
    choices = tuple((value.partition(":")[0], label) for value, label in setting.choices.items())
    return _FieldKind(setting.name, setting.label, setting.help, kind, choices)


@dataclass(slots=True, frozen=True)
class SettingField:
    """The form field for a setting, with its value."""

    name: str
    title: str
    help: str
    kind: str
    choices: tuple[tuple[str, str], ...]
    value: str  # text that the field contains
    target: str  # target queue, if the value is "forward"
    default: str  # default value, in words
    is_own: bool  # whether the value differs from the default
    shown: str  # value with a unit, such as "30 min", for a duration or size
    error: str = ""


GROUPS: Final[tuple[tuple[str, tuple[_FieldKind, ...]], ...]] = tuple(
    (title, tuple(_kind_of(each) for each in DEFINITIONS.values() if each.group == title))
    for title in (ABOUT, MESSAGES, LIMITS, ALERTS)
)
KINDS: Final = {kind.name: kind for _, kinds in GROUPS for kind in kinds}
_NUMBERS: Final = ("number", "seconds", "bytes")


def form_fields_of(
    queue: QueueStatus,
    defaults: Mapping[str, Any],
    typed: Mapping[str, str] | None = None,
    error: tuple[str, str] = ("", ""),
    *,
    home: QueueStatus | None = None,
) -> list[tuple[str, list[SettingField]]]:
    """Return the form's fields by group, with any ``typed`` values and the ``error``, if any.

    ``home`` is the queue to which a ``.retry`` queue belongs.
    """
    plain = _plain(queue, defaults, home)
    made = []
    for title, kinds in GROUPS:
        shown = [_field(kind, queue.settings, plain) for kind in kinds]
        if typed is not None:
            shown = [_as_typed(field, typed) for field in shown]
        made.append(
            (title, [replace(f, error=error[1]) if f.name == error[0] else f for f in shown])
        )
    return made


def _plain(
    queue: QueueStatus, defaults: Mapping[str, Any], home: QueueStatus | None
) -> QueueSettings:
    """Return the settings that would apply if the queue had none of its own."""
    row = QueueRow(0, queue.name, 0)
    return effective_settings(
        row,
        QueueSettings(**defaults),
        has_records=queue.is_dead_letter_queue,
        home=None if home is None else home.settings,
    )


def _field(kind: _FieldKind, settings: QueueSettings, plain: QueueSettings) -> SettingField:
    value, default = getattr(settings, kind.name), getattr(plain, kind.name)
    target = ""
    if kind.name == "on_expire" and value.startswith(FORWARD):
        value, target = "forward", value.removeprefix(FORWARD)
    text = ("yes" if value else "") if isinstance(value, bool) else str(value)
    return SettingField(
        kind.name, kind.title, kind.help, kind.kind, kind.choices,
        text, target, _value_text(kind, default),
        getattr(settings, kind.name) != default, _in_words(kind, value),
    )  # fmt: skip


def _as_typed(field: SettingField, typed: Mapping[str, str]) -> SettingField:
    target = typed.get("forward_to", "") if field.name == "on_expire" else ""
    return replace(field, value=typed.get(field.name, ""), target=target)


def _value_text(kind: _FieldKind, default: Any) -> str:
    if kind.kind == "switch":
        return "on" if default else "off"
    if kind.kind == "choice":
        known = dict(kind.choices)
        return known.get(default, f"forward to {str(default).removeprefix(FORWARD)}")
    if kind.kind in _NUMBERS:
        meaning = _in_words(kind, default)
        return f"{default} ({meaning})" if meaning else str(default)
    return default or "empty"


def _in_words(kind: _FieldKind, value: Any) -> str:
    if not value:
        return ""
    if kind.kind == "seconds":
        return formats.format_duration(value * 1_000)
    return formats.format_size(value) if kind.kind == "bytes" else ""


# -- submitted values


class BadFieldError(ValueError):
    """Raised if a field's value is invalid; the text says what is allowed."""

    def __init__(self, field: str, text: str) -> None:
        super().__init__(text)
        self.field = field


def changed_settings(
    queue: QueueStatus,
    defaults: Mapping[str, Any],
    read: Callable[[str], str],
    *,
    home: QueueStatus | None = None,
) -> dict[str, Any]:
    """Return the settings that the user changed; an empty number field means the default.

    ``home`` has the same meaning as in ``form_fields_of``.

    Raises:
        BadFieldError: a number is invalid.
    """
    plain = _plain(queue, defaults, home)
    found: dict[str, Any] = {}
    for kind in KINDS.values():
        value = _value(kind, read)
        now, default = getattr(queue.settings, kind.name), getattr(plain, kind.name)
        wanted = default if value is None else value
        if wanted not in (now, _as_sent(kind, now)):
            found[kind.name] = None if wanted == default else wanted
    return found


def _as_sent(kind: _FieldKind, value: Any) -> Any:
    """Return what a browser sends for a field that the user has not changed.

    Single-line fields lose line breaks; white space at both ends is removed.
    """
    if not isinstance(value, str):
        return value
    text = value.replace("\r\n", "\n").replace("\r", "\n")
    if kind.kind != "area":
        text = text.replace("\n", "")
    return text if kind.kind == "choice" else text.strip()


def _value(kind: _FieldKind, read: Callable[[str], str]) -> Any:
    text = read(kind.name)
    if kind.kind == "switch":
        return text == "yes"
    if kind.kind in _NUMBERS:
        digits = text.strip().replace(",", "")
        if not digits:
            return None
        if not (digits.isascii() and digits.isdecimal() and len(digits) <= 18):
            raise BadFieldError(kind.name, "Enter an integer of 0 or more.")
        return int(digits)
    if kind.name == "on_expire":
        return FORWARD + read("forward_to") if text == "forward" else text
    return text if kind.kind == "choice" else text.replace("\r\n", "\n").strip()


_ALL: Final[dict[str, Any]] = {
    name: (each.type, Field(description=each.help)) for name, each in DEFINITIONS.items()
}
_AllSettings: Any = cast(Any, create_model("_AllSettings", **_ALL))


class SettingsView(_AllSettings):  # type: ignore[misc]  # made of DEFINITIONS
    """All settings of a queue, including those with the broker's defaults."""

    @classmethod
    def of(cls, settings: QueueSettings) -> Self:
        """Return a view of a queue's settings."""
        return cls(**to_dict(settings))


def _changed_field(setting: SettingDefinition) -> tuple[Any, Any]:
    of_type: Any = setting.type
    if setting.type is int:
        of_type = Annotated[int, Field(ge=0, le=setting.maximum)]
    elif setting.name == "on_expire":
        of_type = Annotated[str, Field(max_length=len(FORWARD) + LONGEST_NAME)]
    elif setting.choices:
        of_type = Literal[tuple(setting.choices)]
    elif setting.type is str:
        of_type = Annotated[str, Field(max_length=setting.max_length)]
    return of_type | None, Field(None, description=setting.help)


_CHANGED: Final[dict[str, Any]] = {name: _changed_field(each) for name, each in DEFINITIONS.items()}
_STRICT: Final = ConfigDict(extra="forbid", strict=True)
_ChangedSettings: Any = cast(Any, create_model("_ChangedSettings", __config__=_STRICT, **_CHANGED))


class SettingsInput(_ChangedSettings):  # type: ignore[misc]  # made of DEFINITIONS
    """Settings to change; null resets to the broker's default, and omitted ones are unchanged."""

    def changes(self) -> dict[str, Any]:
        """Return the settings that the request contains."""
        changed: dict[str, Any] = self.model_dump(exclude_unset=True)
        return changed
