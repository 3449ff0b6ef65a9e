"""The name, help, bounds and text form of each setting, derived from the models."""

import json
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from pydantic import ByteSize, TypeAdapter
from pydantic.fields import FieldInfo

from phpmq_lite.settings.model import GIB, KIB, MIB, TIB, Section, Settings

BOUNDS: Final = {"ge": "at least", "gt": "above", "le": "at most"}  # pydantic name -> our words
ENVIRONMENT_PREFIX: Final = "PHPMQ_"
_JSON: Final[TypeAdapter[Any]] = TypeAdapter(Any)
_WIDTH: Final = 80
_HEAD: Final = """\
# Settings of PHPMQ Lite.
#
# A line like "#name = value" is a setting with its default: remove the # and
# change the value. Sizes have units, such as "512 MiB". Names of durations end
# with their unit: _s means seconds, _h means hours.
# A flag or a variable (PHPMQ_LIMITS__CREDIT for credit in [limits]) overrides
# this file. `phpmq-lite config show --config FILE` shows the values in use."""


@dataclass(frozen=True, slots=True)
class Setting:
    """A setting as shown by ``config show`` and the reference page."""

    name: str  # such as "limits.credit"
    help: str
    default: object
    bounds: str  # empty if only the type restricts the value
    is_path: bool
    is_reloadable: bool  # True if SIGHUP applies a new value; otherwise, a restart is required

    @property
    def environment(self) -> str:
        return ENVIRONMENT_PREFIX + self.name.replace(".", "__").upper()


def as_text(value: object) -> str:
    """Format a value for an environment variable, such as ``8 MiB``, ``a, b`` or ``true``.

    pydantic's SecretStr masks secrets here and in ``as_json``.
    """
    if isinstance(value, ByteSize):
        for unit, factor in (("TiB", TIB), ("GiB", GIB), ("MiB", MIB), ("KiB", KIB)):
            if value and value % factor == 0:
                return f"{value // factor} {unit}"
        return str(int(value))
    if isinstance(value, list):
        return ", ".join(map(as_text, value))
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:g}"
    return "" if value is None else str(value)


def as_json(value: object) -> object:
    """Convert a value to JSON types, with sizes in bytes."""
    return _JSON.dump_python(value, mode="json")


def as_toml(value: object) -> str:
    """Format a value as TOML; None becomes an empty string."""
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(as_toml, value))}]"
    if isinstance(value, bool | int | float) and not isinstance(value, ByteSize):
        return as_text(value)
    # JSON's escapes are valid in TOML, which also requires DEL to be escaped.
    return json.dumps(as_text(value), ensure_ascii=False).replace("\x7f", "\\u007f")


def _bounds_text(field: FieldInfo) -> str:
    bounds: dict[str, Any] = {}
    for metadata in field.metadata:
        for inner in getattr(metadata, "metadata", [metadata]):
            bounds |= {name: getattr(inner, name) for name in BOUNDS if hasattr(inner, name)}
    is_size = isinstance(field.default, ByteSize)
    texts = {name: as_text(ByteSize(v) if is_size else v) for name, v in bounds.items()}
    return ", ".join(f"{words} {texts[name]}" for name, words in BOUNDS.items() if name in texts)


def _setting(name: str, field: FieldInfo) -> Setting:
    extra: Any = field.json_schema_extra or {}
    return Setting(
        name,
        field.description or "",
        field.default,
        _bounds_text(field),
        is_path=field.annotation in (Path, Path | None),
        is_reloadable=bool(extra.get("reload")),
    )


def _list_settings() -> Iterator[Setting]:
    for name, info in Settings.model_fields.items():
        section = info.annotation
        if not (isinstance(section, type) and issubclass(section, Section)):
            yield _setting(name, info)
            continue
        for key, field in section.model_fields.items():
            yield _setting(f"{name}.{key}", field)


SETTINGS: Final[Mapping[str, Setting]] = MappingProxyType({s.name: s for s in _list_settings()})
SECTIONS: Final = frozenset(name.partition(".")[0] for name in SETTINGS if "." in name)


def settings_by_section() -> dict[str, list[Setting]]:
    """Group the settings by section, in the order of the models; "" is the top level."""
    groups: dict[str, list[Setting]] = {}
    for name, setting in SETTINGS.items():
        groups.setdefault(name.partition(".")[0] if "." in name else "", []).append(setting)
    return groups


def section_help(section: str) -> str:
    return (Settings.model_fields[section].annotation or Section).__doc__ or ""


def all_values(settings: Settings) -> dict[str, object]:
    values: dict[str, object] = {}
    for name in SETTINGS:
        value: Any = settings
        for key in name.split("."):
            value = getattr(value, key)
        values[name] = value
    return values


def config_file(values: Mapping[str, object] | None = None) -> str:
    """Return the text of a TOML file for ``load`` that documents all settings.

    ``values`` are keyed by setting.  All other settings are commented out and show their defaults:
    ``#name = value``.
    """
    values = values or {}
    lines = [_HEAD]
    for section, group in settings_by_section().items():
        if section:
            lines += ["", "", *_comment(section_help(section)), f"[{section}]"]
        for setting in group:
            mark = "" if setting.name in values else "#"
            value = as_toml(values.get(setting.name, setting.default))
            bounds = f"  # {setting.bounds}" if setting.bounds else ""
            name = setting.name.rpartition(".")[2]
            lines += ["", *_comment(setting.help), f"{mark}{name} = {value}{bounds}"]
    return "\n".join(lines) + "\n"


def _comment(text: str) -> list[str]:
    lines = textwrap.wrap(
        " ".join(text.split()), _WIDTH - 2, break_on_hyphens=False, break_long_words=False
    )
    return [f"# {line}" for line in lines]


@dataclass(frozen=True, slots=True)
class ReloadResult:
    """The settings in use after a reload, and the names of changed and pending settings."""

    settings: Settings
    changed: tuple[str, ...]  # names of settings that have been applied
    pending: tuple[str, ...]  # names of settings that require a restart


def reload_settings(current: Settings, requested: Settings) -> ReloadResult:
    """Return ``current`` with the values from ``requested`` that a running broker can change.

    All other values are built into listeners, connections and the core at startup.
    """
    before, after = all_values(current), all_values(requested)
    different = [name for name in before if before[name] != after[name]]
    changed = tuple(name for name in different if SETTINGS[name].is_reloadable)
    pending = tuple(name for name in different if not SETTINGS[name].is_reloadable)
    sections: dict[str, Any] = {}
    for name in changed:
        section, _, key = name.partition(".")
        settings = sections.get(section) or getattr(current, section)
        sections[section] = settings.model_copy(update={key: after[name]})
    return ReloadResult(current.model_copy(update=sections), changed, pending)
