"""Reloads settings in a running broker (SIGHUP)."""

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
