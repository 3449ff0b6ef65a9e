"""The single definition of all settings: name, type, default, bounds and help.

Flags, environment variables, the TOML file, the reference page and the SIGHUP reload are derived
from these models.  ``Settings()`` returns the defaults; ``loading.load()`` reads the configuration.
"""

import re
from functools import partial
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

from phpmq_lite.protocol.frames import DEFAULT_MAX_CONTENT
from phpmq_lite.queue_settings import DEFINITIONS, SettingDefinition

KIB: Final = 1 << 10
MIB: Final = 1 << 20
GIB: Final = 1 << 30
TIB: Final = 1 << 40


def _split_list(value: object) -> object:
    """Split text at its commas, because flags and environment variables have no list syntax."""
    if isinstance(value, str):
        return [piece.strip() for piece in value.split(",") if piece.strip()]
    return value


def _base_path(value: str) -> str:
    path = value.strip("/")
    return f"/{path}" if path else ""


def _public_url(value: str) -> str:
    if value and not re.fullmatch(r"https?://[^/?#@\s]+(/[^?#\s]*)?", value):
        raise ValueError(
            "the value must be a URL such as https://mq.example or https://example.org/mq"
        )
    return value.rstrip("/")


def _on_expire(value: str) -> str:
    kind, _, queue = value.partition(":")
    if (kind, bool(queue)) in {("history", False), ("dead_letter", False), ("forward", True)}:
        return value
    raise ValueError("the value must be history, dead_letter or forward:QUEUE")


Texts = Annotated[list[str], BeforeValidator(_split_list)]
Networks = Annotated[list[IPvAnyNetwork], BeforeValidator(_split_list)]
PathOrNone = Annotated[  # an empty path is None, because TOML has no null
    Path | None, BeforeValidator(lambda value: None if value == "" else value)
]
Number = Annotated[int, Field(ge=1, le=10**9)]
NumberOrOff = Annotated[int, Field(ge=0, le=10**12)]
RateOrOff = Annotated[float, Field(ge=0, le=10**6)]
Seconds = Annotated[int, Field(ge=1, le=10**9)]
SecondsOrOff = Annotated[int, Field(ge=0, le=10**9)]
Size = Annotated[ByteSize, Field(ge=1, le=TIB)]
HttpMemorySize = Annotated[ByteSize, Field(ge=16 * MIB, le=TIB)]
SizeOrOff = Annotated[ByteSize, Field(ge=0, le=1024 * TIB)]
# An SQLite row holds at most 1,000,000,000 bytes; half of this leaves room for other columns.
ContentSize = Annotated[ByteSize, Field(ge=1, le=512 * MIB)]


def field(default: Any, help_text: str, *, reload: bool = False) -> Any:
    """Return a field with a help text; with ``reload``, SIGHUP applies a changed value."""
    return Field(default, description=help_text, json_schema_extra={"reload": reload})


def size(bytes_: int, help_text: str, *, reload: bool = False) -> Any:
    """Return a field that holds a size in bytes."""
    return field(ByteSize(bytes_), help_text, reload=reload)


live, live_size = partial(field, reload=True), partial(size, reload=True)


def _check_tls_pair(certificate: Path | None, key: Path | None) -> None:
    if (certificate is None) != (key is None):
        raise ValueError("tls_cert and tls_key must be set together")


class Section(BaseModel):
    """A TOML table, in which unknown keys are rejected."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class TcpSettings(Section):
    """PHPMQ listeners.  The protocol has no login: any client that can connect has full access."""

    listen: Texts = field(
        ["127.0.0.1:9100"],
        "Listeners for the newer protocol revision, which supports TTLs: HOST:PORT, unix:PATH or"
        " none. Port 0 selects a free port.",
    )
    legacy_listen: Texts = field(
        ["127.0.0.1:9102"], "Listeners for the older protocol revision, which has no TTLs."
    )
    allow: Networks = field([], "Allowed client networks. An empty list allows all networks.")
    open: bool = field(False, "Allow listeners beyond loopback without tcp.allow or TLS.")
    http_guard: bool = field(
        True, "Hold back a connection's first bytes while they could be a browser's HTTP request."
    )
    packet_header: Annotated[Literal["auto", "32", "36"], BeforeValidator(str)] = field(
        "auto", "Packet header size in bytes: auto, 32 or 36."
    )
    tls_cert: PathOrNone = field(
        None, "Certificate chain (PEM). If set with tls_key, listeners accept only TLS."
    )
    tls_key: PathOrNone = field(None, "Private key (PEM), readable only by its owner.")
    tls_client_ca: PathOrNone = field(
        None, "Require client certificates signed by this certificate authority (PEM)."
    )

    @model_validator(mode="after")
    def _check_tls(self) -> "TcpSettings":
        _check_tls_pair(self.tls_cert, self.tls_key)
        if self.tls_client_ca and not self.tls_cert:
            raise ValueError("tls_client_ca requires tls_cert and tls_key")
        return self


class AdminSettings(Section):
    """Web pages, HTTP API, health checks and metrics."""

    listen: Texts = field(
        ["127.0.0.1:9101"], "HOST:PORT, unix:PATH or none. Port 0 selects a free port."
    )
    hosts: Texts = field([], "Host names that browsers may use, in addition to loopback names.")
    plaintext: bool = field(False, "Allow unencrypted HTTP beyond loopback.")
    trusted_proxies: Networks = field([], "Networks whose X-Forwarded-* headers are trusted.")
    public_url: Annotated[str, AfterValidator(_public_url)] = field(
        "", "URL at which browsers reach the pages through a proxy, such as https://mq.example."
    )
    login: Literal["auto", "always"] = field(
        "auto",
        "auto requires a login beyond loopback, and everywhere once a user exists; always also"
        " requires a login on loopback.",
    )
    initial_password_file: PathOrNone = field(
        None,
        "File with the password for the user admin, who is created if there are no users. The file"
        " must be readable only by its owner.",
    )
    tls_cert: PathOrNone = field(
        None, "Certificate chain (PEM). If set with tls_key, listeners accept only HTTPS."
    )
    tls_key: PathOrNone = field(None, "Private key (PEM), readable only by its owner.")
    hsts: bool = field(False, "With TLS, tell browsers to use only HTTPS from now on (HSTS).")
    base_path: Annotated[str, AfterValidator(_base_path)] = field(
        "", "Path under which a proxy serves the pages, such as /broker."
    )

    @model_validator(mode="after")
    def _check_tls(self) -> "AdminSettings":
        _check_tls_pair(self.tls_cert, self.tls_key)
        return self


class UiSettings(Section):
    """Appearance of the web pages, and when they ask for confirmation."""

    environment: Annotated[str, Field(max_length=40)] = live(
        "", "Environment name shown on each page, such as staging."
    )
    colour: Literal["", "grey", "blue", "green", "amber", "red", "violet"] = live(
        "",
        "Colour of the name: grey, blue, green, amber, red or violet. If empty, the name decides.",
    )
    confirm_count: Number = live(
        1_000, "Actions on more messages than this must be confirmed by typing a name."
    )


class AuditSettings(Section):
    """Retention of the audit log."""

    days: Annotated[float, Field(gt=0, le=36_500)] = live(400, "Maximum age in days.")
    rows: Number = live(1_000_000, "Maximum number of rows.")
    refusals: Number = live(
        10_000, "Maximum number of further rows, about refused callers without an identity."
    )


class MetricSettings(Section):
    """Metrics for Prometheus."""

    max_queues: Number = live(
        200, "Number of queues with their own label; others are counted as ~other."
    )


class LimitSettings(Section):
    """Limits on what a single client, or all clients together, may use."""

    max_content: ContentSize = size(
        DEFAULT_MAX_CONTENT,
        "Largest message body. A larger body closes the connection or returns HTTP 413.",
    )
    max_queues: Number = live(
        10_000,
        "Maximum number of queues. Users, tokens and addresses that have created only a few queues"
        " may exceed it by a quarter.",
    )
    connections: Number = field(500, "Maximum number of PHPMQ connections.")
    connections_per_address: Number = field(100, "Maximum PHPMQ connections from one address.")
    connections_per_loopback_address: Number = field(500, "PHPMQ connections from this machine.")
    http_connections: Number = field(100, "Maximum number of admin connections.")
    http_connections_per_address: Number = field(
        32,
        "Maximum admin connections from one address; this machine and trusted proxies are exempt.",
    )
    http_memory: HttpMemorySize = size(
        128 * MIB,
        "Memory for large admin requests and responses. Further requests get HTTP 429 or 503.",
    )
    frame_timeout_s: Seconds = field(
        60, "Seconds within which a frame must arrive completely, unless frame_rate_bytes is met."
    )
    frame_rate_bytes: Size = size(
        64 * KIB, "Minimum bytes per second for a frame that takes longer than frame_timeout_s."
    )
    write_buffer: Size = size(
        MIB,
        "Bytes waiting to be sent on one connection. Above this, no messages are dispatched to it.",
    )
    write_timeout_s: Seconds = field(
        30, "Seconds after which a connection that reads nothing is closed."
    )
    credit: Number = live(1_000, "Maximum unacknowledged messages per consumer.")
    credit_bytes: Size = live_size(
        16 * MIB, "Maximum unacknowledged bytes per consumer. One message is always dispatched."
    )
    max_hold_s: Seconds = live(
        86_400,
        "Seconds that a consumer may hold a message in all, however often it extends the hold.",
    )
    held: Number = live(
        50_000,
        "Maximum unacknowledged messages of all consumers, shared among queues. Queues that use"
        " little of this limit may exceed it by a quarter.",
    )
    held_bytes: Size = live_size(
        256 * MIB, "Maximum unacknowledged bytes of all consumers; see limits.held."
    )
    window: Number = field(
        3_000, "Ready messages kept in memory for each queue that has consumers."
    )
    body_cache: Size = size(64 * MIB, "Total size of message bodies kept in memory.")
    unstored_frames: Number = field(2_000, "Frames read from one connection but not yet stored.")
    unstored_bytes: Size = size(
        2 * MIB, "Bytes read from one connection but not yet stored. One message may exceed this."
    )
    unstored_total: Size = size(64 * MIB, "Bytes read from all connections but not yet stored.")
    memory: Size = live_size(
        512 * MIB,
        "Memory of the process, at most 60 % of a container's limit. Above it, publishers wait.",
    )
    batch_commands: Number = field(5_000, "Maximum number of commands in one transaction.")
    batch_bytes: Size = size(4 * MIB, "Maximum total size of message bodies in one transaction.")


def _queue_field(setting: SettingDefinition) -> tuple[Any, Any]:
    """Return a queue setting's type and default field, as a pair that ``create_model`` expects."""
    if setting.name == "on_expire":
        return Annotated[str, AfterValidator(_on_expire)], field(setting.default, setting.help)
    if setting.choices:
        return Literal[tuple(setting.choices)], field(setting.default, setting.help)
    if setting.kind == "bytes":
        return SizeOrOff, size(setting.default, setting.help)
    of_type: Any = SecondsOrOff if setting.kind == "seconds" else NumberOrOff
    return RateOrOff if setting.type is float else of_type, field(setting.default, setting.help)


_FIELDS: Final[dict[str, Any]] = {
    name: _queue_field(setting) for name, setting in DEFINITIONS.items() if setting.broker_default
}
_QueueDefaults: Any = cast(Any, create_model("_QueueDefaults", __base__=Section, **_FIELDS))


class QueueDefaultSettings(_QueueDefaults):  # type: ignore[misc]  # created from DEFINITIONS
    """Defaults for all queues; each queue can override them."""


class EnvelopeSettings(Section):
    """BabelQueue envelopes."""

    schemas: PathOrNone = field(
        None, "Folder with registry.json and payload schemas, reloaded when its files change."
    )


class ReceiptSettings(Section):
    """Keys of confirmed messages.  Reusing a key within the window stores nothing."""

    window_s: Seconds = field(600, "Seconds for which a key is remembered at most.")
    limit: Number = field(100_000, "Maximum number; the queue that has most forgets its oldest.")


class HistorySettings(Section):
    """Retention of settled messages; the oldest are removed when any limit is exceeded."""

    days: Annotated[float, Field(gt=0, le=36_500)] = live(7, "Maximum age in days.")
    rows: Number = live(5_000_000, "Maximum number of messages.")
    bytes: Size = live_size(2 * GIB, "Maximum total size of bodies.")
    deleted_share: Annotated[float, Field(ge=0, le=1)] = live(
        0.1, "Fraction of rows and bytes that deleted messages may use."
    )
    clients: Number = live(100_000, "Maximum number of closed connections.")


class StorageSettings(Section):
    """The SQLite database in the data folder."""

    allow_network_fs: bool = field(
        False, "Start on a network file system, even though its locks may be unreliable."
    )
    cache_bytes: Size = size(8 * MIB, "Size of SQLite's page cache.")
    wal_bytes: Size = size(
        64 * MIB, "Size above which the write-ahead log is truncated; doubled while busy."
    )
    free_bytes: SizeOrOff = live_size(
        512 * MIB,
        "Free disk space below which publishing stops. 0 means only when the disk is full.",
    )
    max_bytes: SizeOrOff = live_size(
        10 * GIB, "Database size above which publishing stops. 0 means no limit."
    )
    ballast_bytes: SizeOrOff = size(
        32 * MIB,
        "Size of the reserve freed when the disk is full, at least two transactions. 0 means none.",
    )
    accept_loss: bool = field(False, "Start once despite damaged files, with the remaining data.")


class StoreSettings(Section):
    """Where messages are stored: in SQLite, or in PostgreSQL."""

    url: str = field(
        "",
        "PostgreSQL database that stores everything, such as"
        " postgresql://phpmq@db1,db2,db3/phpmq?sslmode=verify-full. Empty means SQLite in the data"
        " folder. The password comes from PGPASSFILE or the credential pgpass.",
    )
    allow_asynchronous: bool = field(
        False, "Confirm messages even if no quorum of replicas has them; they can be lost."
    )
    relay_listen: str = field(
        "127.0.0.1:0",
        "HOST:PORT at which standby brokers reach this one while it is active. Port 0 selects a"
        " free port. Beyond loopback, the connections use TLS.",
    )


class BackupSettings(Section):
    """Copies of the database, made while the broker runs."""

    folder: PathOrNone = field(None, "Folder for backups. Defaults to backups in the data folder.")
    keep: Number = live(
        7, "Number of backups to keep; older ones are removed when a new one is made."
    )
    every_h: Annotated[float, Field(ge=0, le=8_760)] = field(
        0, "Hours between backups. 0 means only on demand."
    )


class ScrubSettings(Section):
    """Checks for damaged data while the broker runs."""

    every_h: Annotated[float, Field(ge=0, le=8_760)] = field(
        24, "Hours between checks of all bodies. 0 means only on demand."
    )
    bytes_per_s: Size = live_size(
        5 * MIB, "Bytes read per second while idle; a tenth of that while busy."
    )
    structure_days: Annotated[float, Field(ge=0, le=365)] = field(
        7, "Days between checks of the database structure and its indexes. 0 means never."
    )


class LogSettings(Section):
    """Logging to standard error."""

    level: Literal["debug", "info", "warning", "error"] = live(
        "info", "Lowest level to write: debug, info, warning or error."
    )
    format: Literal["auto", "json", "console"] = field(
        "auto", "json, console or auto. auto means console on a terminal and json otherwise."
    )
    access: bool = live(False, "Log each HTTP request.")


class Settings(BaseModel):
    """All settings; ``Settings()`` returns the defaults without reading anything."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    data: Path = field(Path("phpmq-data"), "Folder for the database, lock and control socket.")
    tcp: TcpSettings = TcpSettings()
    admin: AdminSettings = AdminSettings()
    limits: LimitSettings = LimitSettings()
    queues: QueueDefaultSettings = QueueDefaultSettings()
    envelopes: EnvelopeSettings = EnvelopeSettings()
    receipts: ReceiptSettings = ReceiptSettings()
    history: HistorySettings = HistorySettings()
    storage: StorageSettings = StorageSettings()
    store: StoreSettings = StoreSettings()
    backups: BackupSettings = BackupSettings()
    scrub: ScrubSettings = ScrubSettings()
    ui: UiSettings = UiSettings()
    audit: AuditSettings = AuditSettings()
    metrics: MetricSettings = MetricSettings()
    log: LogSettings = LogSettings()

    @property
    def backups_folder(self) -> Path:
        return self.backups.folder or self.data / "backups"
