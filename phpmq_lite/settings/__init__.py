"""Settings: how they are defined, loaded, and reloaded in a running broker."""

from phpmq_lite.settings.loading import FOLDER_FILE, SYSTEM_FILE, EffectiveSettings, find_file, load
from phpmq_lite.settings.model import Settings
from phpmq_lite.settings.reference import (
    SECTIONS,
    SETTINGS,
    Setting,
    all_values,
    as_json,
    as_text,
    section_help,
    settings_by_section,
)

__all__ = [
    "FOLDER_FILE",
    "SECTIONS",
    "SETTINGS",
    "SYSTEM_FILE",
    "EffectiveSettings",
    "Setting",
    "Settings",
    "all_values",
    "as_json",
    "as_text",
    "find_file",
    "load",
    "section_help",
    "settings_by_section",
]
