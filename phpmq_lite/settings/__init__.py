"""Settings: the one list of them, with default, bounds and help, and where each value comes from.

A value comes from a flag, else from the environment (``environment.py``), else from the TOML file,
else it is the default.  ``load()`` reads all four; ``Settings()`` alone is the defaults and
looks nowhere.  What is unknown or out of bounds is a ``SettingsError`` that names the setting.
"""

import os
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from pydantic import BaseModel, ByteSize, ConfigDict, TypeAdapter, ValidationError
from pydantic.fields import FieldInfo

from phpmq_lite.errors import SettingsError
from phpmq_lite.settings.loading import read_environment, variable_of
from phpmq_lite.settings.model import (
    GIB,
    KIB,
    MIB,
    TIB,
    AdminSettings,
    AuditSettings,
    BackupSettings,
    EnvelopeSettings,
    HistorySettings,
    LimitSettings,
    LogSettings,
    MetricSettings,
    QueueDefaultSettings,
    ReceiptSettings,
    ScrubSettings,
    Section,
    StorageSettings,
    TcpSettings,
    UiSettings,
    field,
)
from phpmq_lite.settings.wording import explain

_JSON: Final[TypeAdapter[Any]] = TypeAdapter(Any)
FOLDER_FILE: Final = Path("config.toml")  # in the current folder, where `init` writes it
SYSTEM_FILE: Final = Path("/etc/phpmq-lite/config.toml")
BOUNDS: Final = {"ge": "at least", "gt": "above", "le": "at most"}  # pydantic's names, and ours


class Settings(BaseModel):
    """Everything that an operator decides; ``Settings()`` is the defaults, ``load()`` looks."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    data: Path = field(Path("phpmq-data"), "folder of the database, lock and control socket")
    tcp: TcpSettings = TcpSettings()
    admin: AdminSettings = AdminSettings()
    limits: LimitSettings = LimitSettings()
    queues: QueueDefaultSettings = QueueDefaultSettings()
    envelopes: EnvelopeSettings = EnvelopeSettings()
    receipts: ReceiptSettings = ReceiptSettings()
    history: HistorySettings = HistorySettings()
    storage: StorageSettings = StorageSettings()
    backups: BackupSettings = BackupSettings()
    scrub: ScrubSettings = ScrubSettings()
    ui: UiSettings = UiSettings()
    audit: AuditSettings = AuditSettings()
    metrics: MetricSettings = MetricSettings()
    log: LogSettings = LogSettings()

    @property
    def backups_folder(self) -> Path:
        """Where backups are kept."""
        return self.backups.folder or self.data / "backups"


@dataclass(frozen=True, slots=True)
class Setting:
    """One line of the list: what ``config show`` and the reference page tell about a setting."""

    name: str  # section.name
    help: str
    default: object
    bounds: str  # "" where the type says it all
    is_path: bool

    @property
    def environment(self) -> str:
        """Name of its environment variable."""
        return variable_of(self.name)


@dataclass(frozen=True, slots=True)
class Effective:
    """Settings in force, and how they came about."""

    settings: Settings
    # every setting -> "flag", "environment VARIABLE", "credential NAME", "file PATH" or "default"
    sources: Mapping[str, str]
    warnings: list[str]


def as_text(value: object) -> str:
    """Write a value as it may stand in the environment: ``8 MiB``, ``a, b``, ``true``.

    A secret is masked, here and in ``as_json``: pydantic's SecretStr sees to it.
    """
    if isinstance(value, ByteSize):
        return _size_text(value)
    if isinstance(value, list):
        return ", ".join(map(as_text, value))
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:g}"
    return "" if value is None else str(value)


def as_json(value: object) -> object:
    """Give a value as JSON has it; sizes are bytes."""
    return _JSON.dump_python(value, mode="json")


def _size_text(size: int) -> str:
    for unit, factor in (("TiB", TIB), ("GiB", GIB), ("MiB", MIB), ("KiB", KIB)):
        if size and size % factor == 0:
            return f"{size // factor} {unit}"
    return str(int(size))


def _bounds(field: FieldInfo) -> str:
    found: dict[str, Any] = {}
    for piece in field.metadata:
        for inner in getattr(piece, "metadata", [piece]):
            found |= {n: getattr(inner, n) for n in BOUNDS if hasattr(inner, n)}
    is_size = isinstance(field.default, ByteSize)
    shown = {n: as_text(ByteSize(v) if is_size else v) for n, v in found.items()}
    return ", ".join(f"{words} {shown[n]}" for n, words in BOUNDS.items() if n in shown)


def _list_settings() -> Iterator[Setting]:
    for name, info in Settings.model_fields.items():
        section = info.annotation
        if not (isinstance(section, type) and issubclass(section, Section)):
            yield _setting(name, info)
            continue
        for key, leaf in section.model_fields.items():
            yield _setting(f"{name}.{key}", leaf)


def _setting(name: str, field: FieldInfo) -> Setting:
    is_path = field.annotation in (Path, Path | None)
    return Setting(name, field.description or "", field.default, _bounds(field), is_path)


SETTINGS: Final[Mapping[str, Setting]] = MappingProxyType({s.name: s for s in _list_settings()})
SECTIONS: Final = frozenset(name.partition(".")[0] for name in SETTINGS if "." in name)


def by_section() -> dict[str, list[Setting]]:
    """Group the settings by section, in the order of the model; no section is an empty name."""
    groups: dict[str, list[Setting]] = {}
    for name, setting in SETTINGS.items():
        groups.setdefault(name.partition(".")[0] if "." in name else "", []).append(setting)
    return groups


def section_help(section: str) -> str:
    """Say what a section is about."""
    return (Settings.model_fields[section].annotation or Section).__doc__ or ""


def load(flags: Mapping[str, object] | None = None, config: Path | None = None) -> Effective:
    """Gather the settings from flags, environment and file.

    Args:
        flags: values by name (``tcp.listen``); None means that the flag was not given.
        config: the TOML file; without it the first that exists of
            ``$CONFIGURATION_DIRECTORY/config.toml``, ``./config.toml`` and
            ``/etc/phpmq-lite/config.toml``.

    Raises:
        SettingsError: a setting is unknown, malformed or out of bounds; the message names it.
    """
    given = {name: value for name, value in (flags or {}).items() if value is not None}
    for name in given:
        _check_name(name, "a flag")
    path = config if config is not None else find_file()
    in_file = _read_file(path) if path is not None else {}
    in_environment, warnings = read_environment({s.name: s.is_path for s in SETTINGS.values()})
    flat = in_file | {name: found.value for name, found in in_environment.items()} | given
    sources = {name: "default" for name in SETTINGS}
    sources |= {name: f"file {path}" for name in in_file}
    sources |= {name: found.source for name, found in in_environment.items()}
    sources |= {name: "flag" for name in given}
    try:
        settings = Settings(**_nest(flat))
    except ValidationError as error:
        raise SettingsError(_explain(error, sources)) from None
    return Effective(settings, sources, warnings)


def find_file() -> Path | None:
    """Return the TOML file that is read without ``--config``, or None where there is none."""
    folder = os.environ.get("CONFIGURATION_DIRECTORY")  # systemd; several are joined by colons
    places = [Path(piece) / "config.toml" for piece in folder.split(":")] if folder else []
    return next((path for path in [*places, FOLDER_FILE, SYSTEM_FILE] if path.is_file()), None)


def all_values(settings: Settings) -> dict[str, object]:
    """Return the value of every setting by its name."""
    found: dict[str, object] = {}
    for name in SETTINGS:
        value: Any = settings
        for key in name.split("."):
            value = getattr(value, key)
        found[name] = value
    return found


def _check_name(name: str, where: str) -> None:
    """Refuse what is no setting, with the nearest one that is."""
    if name in SETTINGS:
        return
    if name in SECTIONS:
        raise SettingsError(f"{name} in {where} is a section and needs {name}.SOMETHING")
    near = get_close_matches(name, SETTINGS, n=1, cutoff=0.7)
    near = near or [s for s in SETTINGS if s.partition(".")[2] == name.rpartition(".")[2]][:1]
    hint = f"; did you mean {near[0]}?" if near else ""
    raise SettingsError(f"{name} in {where} is no setting{hint}")


def _read_file(path: Path) -> dict[str, object]:
    try:
        tree = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"cannot read the settings in {path}: {error}") from None
    except tomllib.TOMLDecodeError as error:
        raise SettingsError(f"{path} is not TOML: {error}") from None
    found = _flatten(tree)
    for name in found:
        try:
            _check_name(name, str(path))
        except SettingsError as error:
            if path != FOLDER_FILE:
                raise
            raise SettingsError(
                f"{error} (./config.toml has the settings of PHPMQ Lite; if this one belongs to "
                "another program, name yours with --config)"
            ) from None
    return found


def _flatten(tree: Mapping[str, Any], prefix: str = "") -> dict[str, object]:
    flat: dict[str, object] = {}
    for key, value in tree.items():
        name = prefix + key
        flat |= _flatten(value, f"{name}.") if isinstance(value, dict) else {name: value}
    return flat


def _nest(flat: Mapping[str, object]) -> dict[str, Any]:
    tree: dict[str, Any] = {}
    for name, value in flat.items():
        section, dot, key = name.partition(".")
        if dot:
            tree.setdefault(section, {})[key] = value
        else:
            tree[section] = value
    return tree


def _explain(error: ValidationError, sources: Mapping[str, str]) -> str:
    """Say of each wrong value which setting it is, what is wrong, and where it was given."""
    lines = []
    for detail in error.errors(include_url=False):
        name = ".".join(map(str, detail["loc"][:2]))
        if name not in SETTINGS:  # a rule over a whole section
            lines.append(explain(name, detail))
            continue
        wrong = explain("it", detail).removeprefix("it: ")
        if BOUNDS.keys() & detail.get("ctx", {}).keys():
            wrong = f"it must be {SETTINGS[name].bounds}"
        lines.append(f"{name} is {detail['input']!r}, {wrong} (from {sources[name]})")
    return "; ".join(lines)
