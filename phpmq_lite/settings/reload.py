"""Which settings a running broker takes over when it is told to read them anew (SIGHUP)."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from phpmq_lite.settings import Settings, all_values

# All else is built into listeners, connections and the core at the start.  Certificates and keys
# are read anew too, from the files that were set.
RELOADABLE: Final = frozenset(
    {"log.level", "log.access", "metrics.max_queues"}
    | {"backups.keep", "scrub.bytes_per_s"}
    | {f"limits.{key}" for key in ("max_queues", "credit", "credit_bytes", "held", "held_bytes")}
    | {"limits.memory"}
    | {"storage.free_bytes", "storage.max_bytes"}
    | {f"ui.{key}" for key in ("environment", "colour", "confirm_count")}
    | {f"audit.{key}" for key in ("days", "rows")}
    | {f"history.{key}" for key in ("days", "rows", "bytes", "deleted_share")}
)


@dataclass(frozen=True, slots=True)
class Reloaded:
    """The settings in force afterwards, and what became of what had changed."""

    settings: Settings
    changed: tuple[str, ...]  # in force from now on
    waiting: tuple[str, ...]  # changed too, in force after a restart


def reloaded(now: Settings, wanted: Settings) -> Reloaded:
    """Take over what a running broker can; the rest stays as it is."""
    before, after = all_values(now), all_values(wanted)
    different = [name for name in before if before[name] != after[name]]
    changed = tuple(name for name in different if name in RELOADABLE)
    waiting = tuple(name for name in different if name not in RELOADABLE)
    return Reloaded(_with(now, changed, after), changed, waiting)


def _with(settings: Settings, names: Iterable[str], values: dict[str, object]) -> Settings:
    sections: dict[str, Any] = {}
    for name in names:
        section, _, key = name.partition(".")
        old = sections.get(section) or getattr(settings, section)
        sections[section] = old.model_copy(update={key: values[name]})
    return settings.model_copy(update=sections)
