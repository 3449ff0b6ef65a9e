"""Settings: the one list of them, with default, bounds and help, and where each value comes from.

A value comes from a flag, else from the environment (``PHPMQ_SECTION__NAME``), else from the TOML
file, else it is the default.  ``load()`` reads all four; ``Settings()`` alone is the defaults and
looks nowhere.  What is unknown or out of bounds is a ``SettingsError`` that names the setting.
"""

import os
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Final, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ByteSize,
    ConfigDict,
    Field,
    IPvAnyNetwork,
    TypeAdapter,
    ValidationError,
    model_validator,
)
from pydantic.fields import FieldInfo
from pydantic_settings import (
    BaseSettings,
    EnvSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
)

from phpmq_lite.errors import SettingsError

KIB: Final = 1 << 10
MIB: Final = 1 << 20
GIB: Final = 1 << 30
TIB: Final = 1 << 40
_JSON: Final[TypeAdapter[Any]] = TypeAdapter(Any)
SYSTEM_FILE: Final = Path("/etc/phpmq-lite/config.toml")
PREFIX: Final = "PHPMQ_"
BOUNDS: Final = {"ge": "at least", "gt": "above", "le": "at most"}  # pydantic's names, and ours


def _split(value: object) -> object:
    """Take ``a, b`` for a list: flags and environment have no brackets."""
    if isinstance(value, str):
        return [piece.strip() for piece in value.split(",") if piece.strip()]
    return value


def _digits(value: object) -> object:
    return str(value) if isinstance(value, int) else value


def _base_path(value: str) -> str:
    path = value.strip("/")
    return f"/{path}" if path else ""


def _on_expire(value: str) -> str:
    kind, _, queue = value.partition(":")
    if (kind, bool(queue)) in {("history", False), ("dead_letter", False), ("forward", True)}:
        return value
    raise ValueError("it must be history, dead_letter or forward:QUEUE")


Texts = Annotated[list[str], BeforeValidator(_split)]
Networks = Annotated[list[IPvAnyNetwork], BeforeValidator(_split)]
Number = Annotated[int, Field(ge=1, le=10**9)]
NumberOrOff = Annotated[int, Field(ge=0, le=10**12)]
Seconds = Annotated[int, Field(ge=1, le=10**9)]
SecondsOrOff = Annotated[int, Field(ge=0, le=10**9)]
Size = Annotated[ByteSize, Field(ge=1, le=TIB)]
SizeOrOff = Annotated[ByteSize, Field(ge=0, le=1024 * TIB)]
# SQLite takes 1,000,000,000 bytes in a row; half of it leaves room for the rest of the frame
ContentSize = Annotated[ByteSize, Field(ge=1, le=512 * MIB)]


def _size(bytes_: int, help_text: str) -> Any:
    return Field(ByteSize(bytes_), description=help_text)


def _field(default: Any, help_text: str) -> Any:
    return Field(default, description=help_text)


class Section(BaseModel):
    """One table of the TOML file; knows all its keys and refuses others."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Tcp(Section):
    """Listeners that speak PHPMQ.  The protocol has no login: who can connect can do everything."""

    listen: Texts = _field(
        ["127.0.0.1:9100"],
        "for clients of the newer revision, with TTL: HOST:PORT, unix:PATH or none; port 0: any",
    )
    legacy_listen: Texts = _field(
        ["127.0.0.1:9102"], "for clients of the older revision, without TTL"
    )
    allow: Networks = _field([], "networks that may connect; empty: all who reach the listener")
    open: bool = _field(False, "allow a listener beyond loopback without tcp.allow and TLS")
    http_guard: bool = _field(True, "hold bytes back while they may be a browser's request")
    packet_header: Annotated[Literal["auto", "32", "36"], BeforeValidator(_digits)] = _field(
        "auto", "bytes of a packet header: auto, 32 or 36"
    )
    tls_cert: Path | None = _field(None, "certificate chain, PEM; with tls_key: TLS only")
    tls_key: Path | None = _field(None, "private key, PEM, readable by the owner only")
    tls_client_ca: Path | None = _field(None, "clients need a certificate of this authority, PEM")

    @model_validator(mode="after")
    def _check_tls(self) -> "Tcp":
        if (self.tls_cert is None) != (self.tls_key is None):
            raise ValueError("tls_cert and tls_key are needed together")
        if self.tls_client_ca and not self.tls_cert:
            raise ValueError("tls_client_ca needs tls_cert and tls_key")
        return self


class Admin(Section):
    """The web pages, the HTTP API, health and metrics."""

    listen: Texts = _field(["127.0.0.1:9101"], "HOST:PORT, unix:PATH or none; port 0: any")
    hosts: Texts = _field([], "names that a browser may use for this host, besides loopback's")
    plaintext: bool = _field(False, "allow plain http beyond loopback")
    trusted_proxies: Networks = _field([], "networks whose X-Forwarded-* headers count")
    base_path: Annotated[str, AfterValidator(_base_path)] = _field(
        "", "path under which a proxy serves the pages, as /broker"
    )


class Limits(Section):
    """What one peer, or all together, may cost."""

    max_content: ContentSize = _size(8 * MIB, "content of a message; longer: closed, HTTP 413")
    max_queues: Number = _field(10_000, "queues; past it a publish to a new one is refused")
    connections: Number = _field(500, "PHPMQ connections in all")
    connections_per_address: Number = _field(100, "the same from one address")
    connections_per_loopback_address: Number = _field(500, "the same from this machine")
    frame_timeout_s: Seconds = _field(
        60, "a message begun is whole by then, or frame_rate_bytes come"
    )
    frame_rate_bytes: Size = _size(
        64 * KIB, "bytes a second that save a begun message from frame_timeout_s"
    )
    write_buffer: Size = _size(MIB, "waiting to be sent to one connection; past it none is added")
    write_timeout_s: Seconds = _field(30, "a reader without progress for this long is closed")
    credit: Number = _field(1_000, "unacknowledged messages of one consumer")
    credit_bytes: Size = _size(16 * MIB, "the same in bytes; one message always goes")
    held: Number = _field(50_000, "unacknowledged messages of all consumers")
    held_bytes: Size = _size(256 * MIB, "the same in bytes")
    window: Number = _field(1_000, "ready messages in memory, per queue with consumers")
    body_cache: Size = _size(64 * MIB, "bodies in memory, over all queues")
    unstored_frames: Number = _field(2_000, "read and not yet stored, per connection")
    unstored_bytes: Size = _size(2 * MIB, "the same in bytes, and a message")
    unstored_total: Size = _size(64 * MIB, "the same over all connections")
    batch_commands: Number = _field(5_000, "commands in one transaction")
    batch_bytes: Size = _size(4 * MIB, "bodies in one transaction")


class Queues(Section):
    """Defaults of every queue; a queue may have its own."""

    max_deliveries: NumberOrOff = _field(20, "past it a message is a dead letter; 0: no limit")
    ack_timeout_s: SecondsOrOff = _field(1_800, "then a message goes back to its place; 0: never")
    on_expire: Annotated[str, AfterValidator(_on_expire)] = _field(
        "history", "what becomes of an expired message: history, dead_letter or forward:QUEUE"
    )
    default_ttl_s: SecondsOrOff = _field(0, "for messages without a TTL; 0: they never expire")
    max_messages: NumberOrOff = _field(0, "past it a publish is refused; 0: no limit")
    max_bytes: SizeOrOff = _size(0, "the same in bytes; 0: no limit")


class Receipts(Section):
    """Keys of confirmed publishes: the same key within the window is stored once."""

    window_s: Seconds = _field(600, "how long a key is remembered")
    limit: Number = _field(100_000, "how many keys are remembered")


class History(Section):
    """How long settled messages stay: until the first of the bounds is passed."""

    days: Annotated[float, Field(gt=0, le=36_500)] = _field(7, "age in days")
    rows: Number = _field(5_000_000, "messages")
    bytes: Size = _size(2 * GIB, "bytes of their bodies")
    deleted_share: Annotated[float, Field(ge=0, le=1)] = _field(
        0.1, "part of rows and bytes that deleted messages may take"
    )


class Storage(Section):
    """The SQLite database in the data folder."""

    allow_network_fs: bool = _field(False, "start on a network file system: its locks may lie")
    cache_bytes: Size = _size(8 * MIB, "SQLite's page cache")
    wal_bytes: Size = _size(64 * MIB, "the write-ahead log is cut back above this")
    accept_loss: bool = _field(False, "start although the write-ahead log is damaged, once")


class Log(Section):
    """The log, on standard error."""

    level: Literal["debug", "info", "warning", "error"] = _field(
        "info", "the least that is written: debug, info, warning or error"
    )
    format: Literal["auto", "json", "console"] = _field(
        "auto", "json, console, or auto: console on a terminal"
    )


class Settings(BaseSettings):
    """Everything that an operator decides; ``Settings()`` is the defaults, ``load()`` looks."""

    model_config = SettingsConfigDict(
        extra="forbid",
        frozen=True,
        env_prefix=PREFIX,
        env_nested_delimiter="__",
        env_ignore_empty=True,
        enable_decoding=False,
    )

    data: Path = _field(Path("phpmq-data"), "folder of the database, lock and control socket")
    tcp: Tcp = Tcp()
    admin: Admin = Admin()
    limits: Limits = Limits()
    queues: Queues = Queues()
    receipts: Receipts = Receipts()
    history: History = History()
    storage: Storage = Storage()
    log: Log = Log()

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Read nothing but the arguments: ``load()`` asks the other sources and notes which won."""
        return (init_settings,)


@dataclass(frozen=True, slots=True)
class Setting:
    """One line of the list: what ``config show`` and the reference page tell about a setting."""

    name: str  # section.name
    help: str
    default: object
    bounds: str  # "" where the type says it all

    @property
    def environment(self) -> str:
        """Name of its environment variable."""
        return PREFIX + self.name.replace(".", "__").upper()


@dataclass(frozen=True, slots=True)
class Effective:
    """Settings in force, and how they came about."""

    settings: Settings
    sources: Mapping[
        str, str
    ]  # every setting -> "flag", "environment NAME", "file PATH", "default"
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
    for name, field in Settings.model_fields.items():
        section = field.annotation
        if not (isinstance(section, type) and issubclass(section, Section)):
            yield Setting(name, field.description or "", field.default, "")
            continue
        for key, leaf in section.model_fields.items():
            yield Setting(f"{name}.{key}", leaf.description or "", leaf.default, _bounds(leaf))


SETTINGS: Final[Mapping[str, Setting]] = MappingProxyType({s.name: s for s in _list_settings()})
SECTIONS: Final = frozenset(name.partition(".")[0] for name in SETTINGS if "." in name)


def section_help(section: str) -> str:
    """Say what a section is about."""
    return (Settings.model_fields[section].annotation or Section).__doc__ or ""


def load(flags: Mapping[str, object] | None = None, config: Path | None = None) -> Effective:
    """Gather the settings from flags, environment and file.

    Args:
        flags: values by name (``tcp.listen``); None means that the flag was not given.
        config: the TOML file; without it the first that exists of
            ``$CONFIGURATION_DIRECTORY/config.toml`` and ``/etc/phpmq-lite/config.toml``.

    Raises:
        SettingsError: a setting is unknown, malformed or out of bounds; the message names it.
    """
    given = {name: value for name, value in (flags or {}).items() if value is not None}
    for name in given:
        _check_name(name, "a flag")
    path = config if config is not None else find_file()
    in_file = _read_file(path) if path is not None else {}
    in_environment, warnings = _read_environment()
    flat = in_file | in_environment | given
    sources = {name: "default" for name in SETTINGS}
    sources |= {name: f"file {path}" for name in in_file}
    sources |= {name: f"environment {SETTINGS[name].environment}" for name in in_environment}
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
    return next((path for path in [*places, SYSTEM_FILE] if path.is_file()), None)


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
        _check_name(name, str(path))
    return found


def _read_environment() -> tuple[dict[str, object], list[str]]:
    """Return the values and one warning for each variable that is no setting.

    A stranger only warns: Kubernetes sets ``PHPMQ_PORT`` for a service called phpmq.
    """
    known = {setting.environment for setting in SETTINGS.values()}
    source = EnvSettingsSource(Settings)
    source.env_vars = {n: v for n, v in source.env_vars.items() if n.upper() in known}
    strangers = [n for n in os.environ if n.upper().startswith(PREFIX) and n.upper() not in known]
    warnings = [f"{name} in the environment is no setting and is ignored" for name in strangers]
    return _flatten(source()), warnings


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
        wrong = detail["msg"].removeprefix("Value error, ")
        if name not in SETTINGS:  # a rule over a whole section
            lines.append(f"{name}: {wrong}")
            continue
        if BOUNDS.keys() & detail.get("ctx", {}).keys():
            wrong = f"it must be {SETTINGS[name].bounds}"
        lines.append(f"{name} is {detail['input']!r}, {wrong} (from {sources[name]})")
    return "; ".join(lines)
