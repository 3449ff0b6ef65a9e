"""Reloads settings in a running broker (SIGHUP)."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from phpmq_lite.settings.model import Settings
from phpmq_lite.settings.reference import SETTINGS, all_values


@dataclass(frozen=True, slots=True)
class ReloadResult:
    """The settings in use after a reload, and the names of changed and pending settings."""

    settings: Settings
    changed: tuple[str, ...]  # names of settings that have been applied
    pending: tuple[str, ...]  # names of settings that require a restart


def reload_settings(current: Settings, wanted: Settings) -> ReloadResult:
    """Return ``current`` with the values from ``wanted`` that a running broker can change.

    All other values are built into listeners, connections and the core at startup.
    """
    before, after = all_values(current), all_values(wanted)
    different = [name for name in before if before[name] != after[name]]
    changed = tuple(name for name in different if SETTINGS[name].is_reloadable)
    pending = tuple(name for name in different if not SETTINGS[name].is_reloadable)
    return ReloadResult(_replace(current, changed, after), changed, pending)


def _replace(settings: Settings, names: Iterable[str], values: dict[str, object]) -> Settings:
    sections: dict[str, Any] = {}
    for name in names:
        section, _, key = name.partition(".")
        old = sections.get(section) or getattr(settings, section)
        sections[section] = old.model_copy(update={key: values[name]})
    return settings.model_copy(update=sections)
