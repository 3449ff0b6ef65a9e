"""Settings that a running broker changes when they are reloaded (SIGHUP)."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from phpmq_lite.settings.model import Settings
from phpmq_lite.settings.reference import SETTINGS, all_values


@dataclass(frozen=True, slots=True)
class ReloadResult:
    """The settings in use after a reload, and what happened to those that differ."""

    settings: Settings
    changed: tuple[str, ...]  # already in use
    pending: tuple[str, ...]  # used after a restart


def reload_settings(current: Settings, wanted: Settings) -> ReloadResult:
    """Return ``current`` with those values of ``wanted`` that a running broker can change.

    All other values are built into listeners, connections and the core at the start.
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
