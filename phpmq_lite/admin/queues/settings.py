"""The settings of queues: fields of the form, API models, export and import."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from json import dumps
from typing import Annotated, Any, Final, Literal, cast

from pydantic import BaseModel, ConfigDict, Field, JsonValue, create_model

from phpmq_lite.admin import formats
from phpmq_lite.admin.http.call import Call, ignore_reply
from phpmq_lite.admin.http.context import Reply
from phpmq_lite.admin.http.endpoint import Endpoints
from phpmq_lite.admin.http.fields import StrictInput
from phpmq_lite.admin.http.input import parse_number
from phpmq_lite.admin.http.problems import Problem
from phpmq_lite.admin.messages import saved_items
from phpmq_lite.broker.broker import Broker
from phpmq_lite.broker.operator import queue_operations
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
    check_name,
    check_no_cycle,
    check_no_forward_cycle,
    check_settings,
)
from phpmq_lite.roles import Role
from phpmq_lite.server.status import QueueStatus
from phpmq_lite.storage.read.accounts import NAME_MAX, SAVED_MAX, saved_item_write

endpoints: Final = Endpoints()
FIELDS: Final = {  # the settings in the form, in its order
    setting.name: setting
    for group in (ABOUT, MESSAGES, LIMITS, ALERTS)
    for setting in DEFINITIONS.values()
    if setting.group == group
}
_NUMBERS: Final = ("number", "seconds", "bytes")
_FORWARD_CHOICE: Final = "forward"  # value of the field, which has the queue in another field


def _kind_of(setting: SettingDefinition) -> str:
    if setting.type is bool:
        return "switch"
    if setting.choices:
        return "choice"
    if setting.type is int:
        suffix = setting.name.rpartition("_")[2]
        return {"s": "seconds", "bytes": "bytes"}.get(suffix, "number")
    return {"note": "area", "link": "link"}.get(setting.name, "text")


@dataclass(slots=True, frozen=True)
class SettingField:
    """The form field for a setting, with its value."""

    setting: SettingDefinition
    kind: str  # text, area, link, number, seconds, bytes, choice or switch
    choices: Mapping[str, str]  # value -> label
    value: str  # text that the field contains
    target: str  # target queue, if the value is "forward"
    default: str  # default value, in words
    is_own: bool  # whether the value differs from the default
    amount: str  # value with a unit, such as "30 min", for a duration or size
    error: str = ""

    @property
    def name(self) -> str:
        return self.setting.name


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
    name, kind, target = setting.name, _kind_of(setting), ""
    value, default = getattr(own, name), getattr(defaults, name)
    is_own = value != default
    if name == "on_expire" and value.startswith(FORWARD):
        value, target = _FORWARD_CHOICE, value.removeprefix(FORWARD)
    return SettingField(
        setting,
        kind,
        {key.partition(":")[0]: label for key, label in setting.choices.items()},
        value=("yes" if value else "") if isinstance(value, bool) else str(value),
        target=target,
        default=_value_text(setting, kind, default),
        is_own=is_own,
        amount=_with_unit(kind, value),
    )


def _value_text(setting: SettingDefinition, kind: str, value: Any) -> str:
    if kind == "switch":
        return "on" if value else "off"
    if kind == "choice":
        return setting.choices.get(value, f"forward to {str(value).removeprefix(FORWARD)}")
    if kind in _NUMBERS:
        amount = _with_unit(kind, value)
        return f"{value} ({amount})" if amount else str(value)
    return value or "empty"


def _with_unit(kind: str, value: Any) -> str:
    if kind == "seconds" and value:
        return formats.format_duration(value * 1_000)
    return formats.format_size(value) if kind == "bytes" and value else ""


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
    kind, text = _kind_of(setting), value.replace("\r\n", "\n").replace("\r", "\n")
    if kind != "area":
        text = text.replace("\n", "")
    return text if kind == "choice" else text.strip()


def _value(setting: SettingDefinition, read: Callable[[str], str]) -> Any:
    kind, text = _kind_of(setting), read(setting.name)
    if kind == "switch":
        return text == "yes"
    if kind in _NUMBERS:
        digits = text.strip().replace(",", "")
        if not digits:
            return None
        if (number := parse_number(digits)) is None:
            raise BadSettingError(setting.name, "enter an integer of 0 or more")
        return number
    if setting.name == "on_expire":
        return FORWARD + read("forward_to") if text == _FORWARD_CHOICE else text
    return text if kind == "choice" else text.replace("\r\n", "\n").strip()


_ALL: Final[dict[str, Any]] = {
    name: (setting.type, Field(description=setting.help)) for name, setting in DEFINITIONS.items()
}
_AllSettings: Any = cast(Any, create_model("_AllSettings", **_ALL))


class SettingsView(_AllSettings):  # type: ignore[misc]  # made of DEFINITIONS
    """All settings of a queue, including those with the broker's defaults."""


def _changed_field(setting: SettingDefinition) -> tuple[Any, Any]:
    type_: Any = setting.type
    if setting.type is int:
        type_ = Annotated[int, Field(ge=0, le=setting.maximum)]
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


# -- definitions

_KINDS: Final = {"labels": "label", "views": "view", "templates": "template"}
QUEUES_MAX: Final = 10_000
VALUES_MAX: Final = 500_000  # maximum number of values; 10,000 queues with all settings use 250,000
DETAIL_MAX: Final = 10_000  # maximum length of the list of names in the audit row, in characters


class DefinitionsInput(StrictInput):
    """The definitions to import; definitions not listed here stay unchanged."""

    queues: dict[str, SettingsInput] = Field(
        default={}, max_length=QUEUES_MAX, description="queue settings by queue name"
    )
    labels: dict[str, JsonValue] = Field(
        default={}, max_length=SAVED_MAX, description="labels by address or network"
    )
    views: dict[str, JsonValue] = Field(
        default={}, max_length=SAVED_MAX, description="saved searches"
    )
    templates: dict[str, JsonValue] = Field(
        default={}, max_length=SAVED_MAX, description="templates for the Publish page"
    )


class DefinitionsView(BaseModel):
    """Queue settings that differ from the defaults, and all labels, views and templates."""

    queues: dict[str, dict[str, JsonValue]] = Field(description="non-default queue settings")
    labels: dict[str, JsonValue] = Field(description="labels by address or network")
    views: dict[str, JsonValue] = Field(description="saved searches")
    templates: dict[str, JsonValue] = Field(description="templates for the Publish page")


@endpoints.api("GET /definitions", "api-definitions")
async def export_definitions(call: Call) -> DefinitionsView:
    """Export queue settings, labels, views and templates."""

    def read(core: Broker, reply: Reply) -> None:
        reply({name: dict(core.queues[name].row.own) for name in sorted(core.queues)})

    own = await call.context.broker.run(read)  # all settings at once, between two batches
    kinds = {
        member: {item.name: item.content for item in await saved_items.visible_items(call, kind)}
        for member, kind in _KINDS.items()
    }
    queues = {name: settings for name, settings in own.items() if call.may_use(name)}
    return DefinitionsView(queues=queues, **kinds)


@endpoints.api(
    "PUT /definitions",
    "api-define",
    Role.ADMIN,
    "definitions.put",
    has_content=True,
    values=VALUES_MAX,
)
async def import_definitions(call: Call, body: DefinitionsInput) -> DefinitionsView:
    """Import all definitions or none; each listed queue gets exactly the settings given for it."""
    queues = {name: settings.changes() for name, settings in body.queues.items()}
    for name, settings in queues.items():
        check_name(name)
        call.check_queue(name, f"queues.{name}")
        call.check_forward(settings.get("on_expire"), f"queues.{name}.on_expire")
        if target := settings.get("dead_letter_queue"):
            call.check_queue(target, f"queues.{name}.dead_letter_queue")
        check_settings(name, settings)
    named = {"queues": list(queues)} | {member: list(getattr(body, member)) for member in _KINDS}
    entry = call.audit("definitions", detail=dumps(named, ensure_ascii=False)[:DETAIL_MAX])
    rows = [
        saved_item_write(kind, name, content, call.now_ms, entry.actor)
        for member, kind in _KINDS.items()
        for name, content in _checked(member, getattr(body, member)).items()
    ]
    for member in ("views", "templates"):  # the caller's queue limits may forbid a change
        for name, content in getattr(body, member).items():
            await saved_items.check_item_change(call, _KINDS[member], name, content or {})
    queue_operations.check_rows(rows)  # check all rows before the batch changes anything

    def run(core: Broker, reply: Reply) -> None:
        core.check_queues(entry.actor, len(queues.keys() - core.queues.keys()))
        _check_cycles(core, queues)
        for name, settings in queues.items():
            queue_operations.create_queue(core, ignore_reply, entry, name)
            changes = dict.fromkeys(core.queues[name].row.own) | settings
            queue_operations.configure(core, ignore_reply, entry, name, changes, has_no_cycles=True)
        queue_operations.write(core, reply, entry, rows)

    await call.context.broker.run(run)
    return await export_definitions(call)


def _check_cycles(core: Broker, queues: dict[str, dict[str, Any]]) -> None:
    """Reject settings that would make dead-letter queues or ``on_expire`` form a cycle."""
    named = {name: queue.settings.dead_letter_queue for name, queue in core.queues.items()} | {
        name: settings.get("dead_letter_queue") or "" for name, settings in queues.items()
    }
    for name, settings in queues.items():
        if target := settings.get("dead_letter_queue"):
            check_no_cycle(name, target, named.get)
    registry = core.registry
    imported = {
        name: settings.get("on_expire") or registry.default_on_expire(name)
        for name, settings in queues.items()
    }

    def on_expire(name: str) -> str:
        return imported.get(name) or registry.on_expire_of(name)

    for name, value in imported.items():
        check_no_forward_cycle(name, value, on_expire)


def _checked(member: str, items: dict[str, Any]) -> dict[str, Any]:
    for name in items:
        if not 1 <= len(name) <= NAME_MAX:
            detail = f"A name in {member} has {len(name)} characters; use 1 to {NAME_MAX}."
            bound = f"1 to {NAME_MAX} characters"
            raise Problem(422, "invalid", detail, field=member, bound=bound)
    try:
        dumps(items, allow_nan=False)
    except ValueError:
        detail = f"{member} contains NaN or Infinity."
        raise Problem(422, "invalid", detail, field=member, bound="JSON") from None
    return items
