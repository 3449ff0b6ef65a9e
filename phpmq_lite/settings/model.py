"""The sections of the settings: each one's name, default, bounds and help."""

import re
from pathlib import Path
from typing import Annotated, Any, Final, Literal, cast

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ByteSize,
    ConfigDict,
    Field,
    IPvAnyNetwork,
    create_model,
    model_validator,
)

from phpmq_lite.queue_settings import DEFINITIONS, SettingDefinition

KIB: Final = 1 << 10
MIB: Final = 1 << 20
GIB: Final = 1 << 30
TIB: Final = 1 << 40


def _split(value: object) -> object:
    """Take ``a, b`` for a list: flags and environment have no brackets."""
    if isinstance(value, str):
        return [piece.strip() for piece in value.split(",") if piece.strip()]
    return value


def _none_if_empty(value: object) -> object:
    """Take an empty text for no file: TOML has no word for nothing."""
    return None if value == "" else value


def _digits(value: object) -> object:
    return str(value) if isinstance(value, int) else value


def _base_path(value: str) -> str:
    path = value.strip("/")
    return f"/{path}" if path else ""


def _public_url(value: str) -> str:
    if value and not re.fullmatch(r"https?://[^/?#@\s]+(/[^?#\s]*)?", value):
        raise ValueError("it must be like https://mq.example or https://example.org/mq")
    return value.rstrip("/")


def _on_expire(value: str) -> str:
    kind, _, queue = value.partition(":")
    if (kind, bool(queue)) in {("history", False), ("dead_letter", False), ("forward", True)}:
        return value
    raise ValueError("it must be history, dead_letter or forward:QUEUE")


Texts = Annotated[list[str], BeforeValidator(_split)]
Networks = Annotated[list[IPvAnyNetwork], BeforeValidator(_split)]
PathOrNone = Annotated[Path | None, BeforeValidator(_none_if_empty)]
Number = Annotated[int, Field(ge=1, le=10**9)]
NumberOrOff = Annotated[int, Field(ge=0, le=10**12)]
Seconds = Annotated[int, Field(ge=1, le=10**9)]
SecondsOrOff = Annotated[int, Field(ge=0, le=10**9)]
Size = Annotated[ByteSize, Field(ge=1, le=TIB)]
HttpMemorySize = Annotated[ByteSize, Field(ge=16 * MIB, le=TIB)]
SizeOrOff = Annotated[ByteSize, Field(ge=0, le=1024 * TIB)]
# SQLite takes 1,000,000,000 bytes in a row; half of it leaves room for the rest of the frame
ContentSize = Annotated[ByteSize, Field(ge=1, le=512 * MIB)]


def size(bytes_: int, help_text: str) -> Any:
    """Give a field of a size in bytes with its help."""
    return Field(ByteSize(bytes_), description=help_text)


def field(default: Any, help_text: str) -> Any:
    """Give a field with its help."""
    return Field(default, description=help_text)


class Section(BaseModel):
    """One table of the TOML file; knows all its keys and refuses others."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class TcpSettings(Section):
    """Listeners that speak PHPMQ.  The protocol has no login: who can connect can do everything."""

    listen: Texts = field(
        ["127.0.0.1:9100"],
        "for clients of the newer revision, with TTL: HOST:PORT, unix:PATH or none; port 0: any",
    )
    legacy_listen: Texts = field(
        ["127.0.0.1:9102"], "for clients of the older revision, without TTL"
    )
    allow: Networks = field([], "networks that may connect; empty: all who reach the listener")
    open: bool = field(False, "allow a listener beyond loopback without tcp.allow and TLS")
    http_guard: bool = field(True, "hold bytes back while they may be a browser's request")
    packet_header: Annotated[Literal["auto", "32", "36"], BeforeValidator(_digits)] = field(
        "auto", "bytes of a packet header: auto, 32 or 36"
    )
    tls_cert: PathOrNone = field(None, "certificate chain, PEM; with tls_key: TLS only")
    tls_key: PathOrNone = field(None, "private key, PEM, readable by the owner only")
    tls_client_ca: PathOrNone = field(None, "clients need a certificate of this authority, PEM")

    @model_validator(mode="after")
    def _check_tls(self) -> "TcpSettings":
        if (self.tls_cert is None) != (self.tls_key is None):
            raise ValueError("tls_cert and tls_key are needed together")
        if self.tls_client_ca and not self.tls_cert:
            raise ValueError("tls_client_ca needs tls_cert and tls_key")
        return self


class AdminSettings(Section):
    """The web pages, the HTTP API, health and metrics."""

    listen: Texts = field(["127.0.0.1:9101"], "HOST:PORT, unix:PATH or none; port 0: any")
    hosts: Texts = field([], "names that a browser may use for this host, besides loopback's")
    plaintext: bool = field(False, "allow plain http beyond loopback")
    trusted_proxies: Networks = field([], "networks whose X-Forwarded-* headers count")
    public_url: Annotated[str, AfterValidator(_public_url)] = field(
        "", "address by which browsers reach the pages through a proxy, as https://mq.example"
    )
    login: Literal["auto", "always"] = field(
        "auto", "auto: once there is a user, or beyond loopback; always: on loopback too"
    )
    initial_password_file: PathOrNone = field(
        None, "password of the first user, admin, while there is none; readable by the owner only"
    )
    tls_cert: PathOrNone = field(None, "certificate chain, PEM; with tls_key: https only")
    tls_key: PathOrNone = field(None, "private key, PEM, readable by the owner only")
    hsts: bool = field(False, "with TLS: tell browsers to use https only from now on")
    base_path: Annotated[str, AfterValidator(_base_path)] = field(
        "", "path under which a proxy serves the pages, as /broker"
    )

    @model_validator(mode="after")
    def _check_tls(self) -> "AdminSettings":
        if (self.tls_cert is None) != (self.tls_key is None):
            raise ValueError("tls_cert and tls_key are needed together")
        return self


class UiSettings(Section):
    """How the pages look and ask."""

    environment: str = Field("", max_length=40, description="name shown on each page, as staging")
    colour: Literal["", "grey", "blue", "green", "amber", "red", "violet"] = field(
        "", "colour of that name: grey, blue, green, amber, red or violet; empty: by the name"
    )
    confirm_count: Number = field(
        1_000, "what concerns more messages than this is confirmed by typing a name"
    )


class AuditSettings(Section):
    """How long the rows stay that tell who did what."""

    days: Annotated[float, Field(gt=0, le=36_500)] = field(400, "age in days")
    rows: Number = field(1_000_000, "rows")


class MetricSettings(Section):
    """What Prometheus gets."""

    max_queues: Number = field(200, "queues with a label of their own; the rest is ~other")


class LimitSettings(Section):
    """What one peer, or all together, may cost."""

    max_content: ContentSize = size(8 * MIB, "content of a message; longer: closed, HTTP 413")
    max_queues: Number = field(
        10_000,
        "queues; past it a new one is refused; users, tokens and addresses that made few may exceed"
        " it by a quarter",
    )
    connections: Number = field(500, "PHPMQ connections in all")
    connections_per_address: Number = field(100, "the same from one address")
    connections_per_loopback_address: Number = field(500, "the same from this machine")
    http_connections: Number = field(100, "connections to the admin in all")
    http_connections_per_address: Number = field(
        32, "the same from one address, but this machine's and a trusted proxy's"
    )
    http_memory: HttpMemorySize = size(
        128 * MIB, "large requests to the admin and their answers; past it HTTP 429 or 503"
    )
    frame_timeout_s: Seconds = field(
        60, "a message begun is whole by then, or frame_rate_bytes come"
    )
    frame_rate_bytes: Size = size(
        64 * KIB, "bytes a second that save a begun message from frame_timeout_s"
    )
    write_buffer: Size = size(MIB, "waiting to be sent to one connection; past it none is added")
    write_timeout_s: Seconds = field(30, "a reader without progress for this long is closed")
    credit: Number = field(1_000, "unacknowledged messages of one consumer")
    credit_bytes: Size = size(16 * MIB, "the same in bytes; one message always goes")
    held: Number = field(
        50_000,
        "unacknowledged messages of all consumers, shared by the queues that want more; those that"
        " hold little may exceed it by a quarter",
    )
    held_bytes: Size = size(256 * MIB, "the same in bytes")
    window: Number = field(3_000, "ready messages in memory, per queue with consumers")
    body_cache: Size = size(64 * MIB, "bodies in memory, over all queues")
    unstored_frames: Number = field(2_000, "read and not yet stored, per connection")
    unstored_bytes: Size = size(2 * MIB, "the same in bytes, and a message")
    unstored_total: Size = size(64 * MIB, "the same over all connections")
    memory: Size = size(
        512 * MIB, "of the process, at most 60 % of a container's; past it publishers wait"
    )
    batch_commands: Number = field(5_000, "commands in one transaction")
    batch_bytes: Size = size(4 * MIB, "bodies in one transaction")


def _queue_field(setting: SettingDefinition) -> tuple[Any, Any]:
    """Return type and field of a queue setting's default, for ``create_model``."""
    if setting.name == "on_expire":
        return Annotated[str, AfterValidator(_on_expire)], field(setting.default, setting.help)
    if setting.choices:
        return Literal[tuple(setting.choices)], field(setting.default, setting.help)
    if setting.name.endswith("_bytes"):
        return SizeOrOff, size(setting.default, setting.help)
    of_type = SecondsOrOff if setting.name.endswith("_s") else NumberOrOff
    return of_type, field(setting.default, setting.help)


_FIELDS: Final[dict[str, Any]] = {
    name: _queue_field(each) for name, each in DEFINITIONS.items() if each.broker_default
}
_QueueDefaults: Any = cast(Any, create_model("_QueueDefaults", __base__=Section, **_FIELDS))


class QueueDefaultSettings(_QueueDefaults):  # type: ignore[misc]  # made of DEFINITIONS
    """Defaults of every queue; a queue may have its own."""


class EnvelopeSettings(Section):
    """What the broker knows about BabelQueue envelopes."""

    schemas: PathOrNone = field(
        None, "folder with registry.json: schemas of payloads, read anew when they change"
    )


class ReceiptSettings(Section):
    """Keys of confirmed publishes: the same key within the window is stored once."""

    window_s: Seconds = field(600, "how long a key is remembered")
    limit: Number = field(100_000, "how many keys are remembered")


class HistorySettings(Section):
    """How long settled messages stay: until the first of the bounds is passed."""

    days: Annotated[float, Field(gt=0, le=36_500)] = field(7, "age in days")
    rows: Number = field(5_000_000, "messages")
    bytes: Size = size(2 * GIB, "bytes of their bodies")
    deleted_share: Annotated[float, Field(ge=0, le=1)] = field(
        0.1, "part of rows and bytes that deleted messages may take"
    )


class StorageSettings(Section):
    """The SQLite database in the data folder."""

    allow_network_fs: bool = field(False, "start on a network file system: its locks may lie")
    cache_bytes: Size = size(8 * MIB, "SQLite's page cache")
    wal_bytes: Size = size(
        64 * MIB, "the write-ahead log is cut back above this; twice this while busy"
    )
    free_bytes: SizeOrOff = size(
        512 * MIB, "free on the disk: with less publishing stops; 0: only once it is full"
    )
    max_bytes: SizeOrOff = size(
        10 * GIB, "in use in the database: with more publishing stops; 0: no limit"
    )
    ballast_bytes: SizeOrOff = size(
        32 * MIB, "kept in a file for a full disk, at least twice a transaction; 0: none"
    )
    accept_loss: bool = field(
        False, "start although files are damaged, with what is left of them, once"
    )


class BackupSettings(Section):
    """Copies of the database, made while the broker runs."""

    folder: PathOrNone = field(None, "where they are kept; none: backups in the data folder")
    keep: Number = field(7, "how many: with each new one the oldest above it are removed")
    every_h: Annotated[float, Field(ge=0, le=8_760)] = field(
        0, "hours from one to the next; 0: only on demand"
    )


class ScrubSettings(Section):
    """What looks for damage while the broker runs."""

    every_h: Annotated[float, Field(ge=0, le=8_760)] = field(
        24, "hours from one look at all bodies to the next; 0: only on demand"
    )
    bytes_per_s: Size = size(5 * MIB, "read while the broker is idle; a tenth of it while busy")
    structure_days: Annotated[float, Field(ge=0, le=365)] = field(
        7, "days from one look at structure and indexes to the next; 0: never"
    )


class LogSettings(Section):
    """The log, on standard error."""

    level: Literal["debug", "info", "warning", "error"] = field(
        "info", "the least that is written: debug, info, warning or error"
    )
    format: Literal["auto", "json", "console"] = field(
        "auto", "json, console, or auto: console on a terminal"
    )
    access: bool = field(False, "write a line for every HTTP request, in an area of its own")
