"""Data source options: their names, where they apply, and suggestions for misspelled names.

Spark passes options as strings with lower-case names. Names and meanings follow Kafka's source
(``docs/guides/pipeline.md``, Options). This module does not import pyspark.
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from enum import StrEnum
from typing import Any, Final, Literal
from urllib.parse import urlsplit

from phpmq_lite.errors import OptionError
from phpmq_lite.model import OUTCOMES


class Remedy(StrEnum):
    """What an error advises, in the words of the data source; commands replace it with theirs.

    It is part of the text because an error from a worker process arrives as text.
    """

    ACCEPT_LOSS = "failOnDataLoss to false"
    SELECT_UNDELETED = "or outcomes to acked,expired,dead"
    SET_TOKEN = "(option token)"  # noqa: S105 - the name of the option
    SET_OPTION_URL = "set the option url"
    SET_URL = "set url,"
    USE_NEW_CHECKPOINT = "or a new checkpoint"
    BEGIN_NEW_CHECKPOINT = "a new checkpoint"


class SourceMode(StrEnum):
    """Ways to use the data source, each of which accepts different options."""

    BATCH_READ = "a batch read"
    HISTORY_STREAM = "a stream read of the history"
    QUEUE_STREAM = "a stream read of a queue"
    BATCH_WRITE = "a batch write"
    STREAM_WRITE = "a stream write"


_BATCH: Final = frozenset({SourceMode.BATCH_READ})
_STREAM: Final = frozenset({SourceMode.HISTORY_STREAM})
_QUEUE: Final = frozenset({SourceMode.QUEUE_STREAM})
_BATCH_WRITE: Final = frozenset({SourceMode.BATCH_WRITE})
_STREAM_WRITE: Final = frozenset({SourceMode.STREAM_WRITE})
_HISTORY: Final = _BATCH | _STREAM
_READS: Final = _HISTORY | _QUEUE
_WRITES: Final = _BATCH_WRITE | _STREAM_WRITE

OPTIONS: Final[Mapping[str, frozenset[SourceMode]]] = {
    "url": _READS | _WRITES,
    "token": _READS | _WRITES,
    "path": _HISTORY,
    "mode": _READS,
    "queue": _READS | _WRITES,
    "queues": _HISTORY,
    "queuePattern": _HISTORY,
    "outcomes": _HISTORY,
    "startingOffsets": _HISTORY,
    "startingTimestamp": _HISTORY,
    "endingOffsets": _BATCH,
    "endingTimestamp": _BATCH,
    "maxOffsetsPerTrigger": _STREAM,
    "maxMessagesPerTrigger": _QUEUE,
    "maxBytesPerTrigger": _QUEUE,
    "subscription": _QUEUE,
    "numPartitions": _READS,
    "failOnDataLoss": _READS,
    "includeBody": _HISTORY,
    "columns": _HISTORY,
    "broker": _HISTORY,
    "pushFilters": _BATCH,
    "reader": _STREAM,
    "txnAppId": _BATCH_WRITE,
    "txnVersion": _BATCH_WRITE,
    "checkpointLocation": _STREAM_WRITE,  # Spark's own option
}
KAFKA_NAMES: Final[Mapping[str, str]] = {  # option name in Kafka's source -> our option name
    "kafka.bootstrap.servers": "url",
    "subscribe": "queue or queues",
    "subscribePattern": "queuePattern",
    "assign": "queues",
    "topic": "queue",
    "minPartitions": "numPartitions",
    "kafka.group.id": "subscription",
    "groupIdPrefix": "subscription",
    "includeHeaders": "includeBody",
    "startingOffsetsByTimestamp": "startingTimestamp",
    "endingOffsetsByTimestamp": "endingTimestamp",
}
_BY_LOWER: Final = {name.lower(): name for name in OPTIONS}
_KAFKAS_BY_LOWER: Final = {name.lower(): name for name in KAFKA_NAMES}

_JSON_LIST: Final = re.compile(r'\s*\[\s*"')  # names can start with [ but not with ["

MODES: Final = ("history", "events", "queue", "write")
DELETED: Final = "deleted"
MESSAGES_PER_TRIGGER: Final = 10_000
BYTES_PER_TRIGGER: Final = 64 << 20
MESSAGES_MAX: Final = 100_000  # MESSAGES_MAX and BYTES_MAX are the broker's limits per claim
BYTES_MAX: Final = 1 << 30


def is_local(master: str) -> bool:
    """Return whether all of Spark's processes run on this machine."""
    return master == "local" or master.startswith(("local[", "local-cluster["))


@dataclass(frozen=True, slots=True)
class SourceConnection:
    """Location of the history: a broker's admin address or its database file.

    ``url`` is the admin address without ``/api``, as in ``http://127.0.0.1:9101``; ``token`` is the
    API token to send there. ``path`` requires a local master, because SQLite over a network file
    system is unsafe.

    Raises:
        OptionError: neither or both of ``url`` and ``path`` are set, or a value is invalid.
    """

    url: str | None = None
    token: str | None = field(default=None, repr=False)
    path: str | None = None

    def __post_init__(self) -> None:
        if (self.url is None) == (self.path is None):
            raise OptionError(
                "set either url (the broker's admin address, http://127.0.0.1:9101) or path"
                " (its database file, local master only); a table created with columns"
                " stores no options: create it without columns, or query it WITH ('url' = '...')"
            )
        if self.url is not None:
            _check_url(self.url)
        # checked here because an error from http.client would show the token
        if self.token is not None and not all("!" <= character <= "~" for character in self.token):
            raise OptionError(
                "the token contains an invalid character, possibly a space or a line break"
            )

    def as_options(self) -> dict[str, str]:
        """Return the values that are set, as data source options."""
        members = {"url": self.url, "token": self.token, "path": self.path}
        return {name: value for name, value in members.items() if value is not None}

    def check_master(self, master: str) -> None:
        """Raise OptionError if a database file is to be read by executors on other machines."""
        if self.path is not None and not is_local(master):
            raise OptionError(
                f"path requires a local master, not {master}: SQLite over a network file system is"
                f" unsafe; {Remedy.SET_URL} which every executor can reach"
            )


def _check_url(url: str) -> None:
    if not url.startswith(("http://", "https://")):
        raise OptionError(f"url is {url!r}, but it must begin with http:// or https://")
    parts = urlsplit(url)
    if "@" in parts.netloc:  # the URL is not shown because it may contain a password
        raise OptionError(f"url has a user name for {parts.hostname}; remove it, and set a token")
    try:
        is_fine = parts.hostname is not None and (parts.port is None or parts.port > 0)
    except ValueError:
        is_fine = False
    if not is_fine:
        raise OptionError(f"url is {url!r}; it must have a host and a port from 1 to 65535")


@dataclass(frozen=True, slots=True)
class HistoryPosition:
    """A position in the history: ``number`` is an offset or a time in Unix ms (``settled_at``)."""

    kind: Literal["earliest", "latest", "offset", "time"]
    number: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryOptions:
    """Options for a batch or stream read of the history.

    Empty ``outcomes`` means all. ``columns`` keeps the given order; empty means all columns, and
    ``has_body`` appends the body. ``broker`` is the value of that column, by default the
    ``history_id``. With ``has_events``, rows are exceptional steps of the messages. If
    ``partitions`` is None, the reader chooses a suitable number. Ranges are ``(lo, hi]``.
    """

    connection: SourceConnection
    queues: tuple[str, ...] = ()
    queue_pattern: str | None = None
    outcomes: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    has_body: bool = False
    starting: HistoryPosition = HistoryPosition("earliest")
    ending: HistoryPosition = HistoryPosition("latest")
    partitions: int | None = None
    fails_on_data_loss: bool = True
    pushes_filters: bool = True
    offsets_per_trigger: int | None = None
    broker: str | None = None
    has_events: bool = False
    reader: str | None = None

    @property
    def reads_bodies(self) -> bool:
        """Whether rows contain bodies, so that batches and ranges are also limited by bytes."""
        return self.has_body or "body" in self.columns

    def selection(self, allowed: Sequence[str]) -> dict[str, Any]:
        """Return what decides which rows are read; ``allowed`` are the token's queue globs."""
        parts = {
            "allowed": sorted(allowed),
            "queues": sorted(self.queues),
            "queue_pattern": self.queue_pattern,
            "outcomes": sorted(self.outcomes),
        }
        return {name: value for name, value in parts.items() if value}


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueOptions:
    """Options for a streaming read that consumes one queue by claiming its messages."""

    connection: SourceConnection
    queue: str
    subscription: str
    messages_per_trigger: int = MESSAGES_PER_TRIGGER
    bytes_per_trigger: int = BYTES_PER_TRIGGER
    partitions: int | None = None
    fails_on_data_loss: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteOptions:
    """Options for a write: the queue (None if a column names it) and the deduplication key.

    ``is_table`` is set for an INSERT: then ``queue`` is only for rows that do not name one.
    """

    connection: SourceConnection
    queue: str | None = None
    is_table: bool = False
    app_id: str | None = None
    version: int | None = None


def history_options(options: Mapping[str, str], use: SourceMode) -> HistoryOptions:
    """Parse the options of a read of the history; raise OptionError if one is wrong."""
    parser = _OptionParser(options, use)
    queue, queues = parser.text("queue"), parser.queues()
    if sum(map(bool, (queue, queues, parser.text("queuePattern")))) > 1:
        raise OptionError("set only one of queue, queues and queuePattern")
    is_stream = use is SourceMode.HISTORY_STREAM
    return HistoryOptions(
        connection=parser.connection(),
        queues=queues or ((queue,) if queue else ()),
        queue_pattern=parser.text("queuePattern"),
        outcomes=parser.outcomes(),
        columns=parser.names("columns"),
        has_body=parser.flag("includeBody", default=False),
        starting=parser.position("starting", "latest" if is_stream else "earliest", is_stream),
        ending=parser.position("ending", "latest", is_stream),
        partitions=parser.number("numPartitions", 1, 10_000),
        fails_on_data_loss=parser.flag("failOnDataLoss", default=True),
        pushes_filters=parser.flag("pushFilters", default=True),
        offsets_per_trigger=parser.number("maxOffsetsPerTrigger", 1, 1 << 62),
        broker=parser.text("broker"),
        has_events=parser.text("mode") == "events",
        reader=parser.text("reader"),
    )


def queue_options(options: Mapping[str, str]) -> QueueOptions:
    """Parse the options of a stream that consumes a queue; raise OptionError if one is wrong."""
    parser = _OptionParser(options, SourceMode.QUEUE_STREAM)
    return QueueOptions(
        connection=parser.connection(),
        queue=parser.required("queue"),
        subscription=parser.required("subscription"),
        messages_per_trigger=parser.number("maxMessagesPerTrigger", 1, MESSAGES_MAX)
        or MESSAGES_PER_TRIGGER,
        bytes_per_trigger=parser.number("maxBytesPerTrigger", 1, BYTES_MAX) or BYTES_PER_TRIGGER,
        partitions=parser.number("numPartitions", 1, 10_000),
        fails_on_data_loss=parser.flag("failOnDataLoss", default=True),
    )


def queues_text(names: Sequence[str]) -> str:
    """Encode names as JSON for the option ``queues``, so they can contain commas and spaces."""
    return json.dumps(list(names), ensure_ascii=False)


def write_options(
    options: Mapping[str, str], use: SourceMode, table: Mapping[str, str] | None = None
) -> WriteOptions:
    """Parse the options of a write; raise OptionError if one is wrong, or the key incomplete.

    ``table`` are options of the table that is written to, which those of the write replace.
    """
    stored = {name.lower(): value for name, value in (table or {}).items()}
    is_table = stored.pop("mode", "") == "write"
    values = {**(stored if is_table else {}), **{n.lower(): v for n, v in options.items()}}
    parser = _OptionParser(values, use)
    if parser.text("url") is None:
        raise OptionError(
            "the option url is missing. INSERT needs a table that was created without columns, and"
            " with OPTIONS (url 'http://...', mode 'write'); INSERT INTO it BY NAME. To CREATE"
            " TABLE ... AS SELECT, Spark passes no options"
        )
    app_id, version = parser.text("txnAppId"), parser.number("txnVersion", 0, (1 << 63) - 1)
    if (app_id is None) != (version is None):
        raise OptionError("set both txnAppId and txnVersion, or neither")
    return WriteOptions(
        connection=parser.connection(),
        queue=parser.text("queue"),
        is_table=is_table,
        app_id=app_id,
        version=version,
    )


def read_mode(options: Mapping[str, str]) -> str:
    """Return the ``mode`` option, or raise OptionError for it or an unknown option."""
    check_option_names(options)
    mode = {name.lower(): value for name, value in options.items()}.get("mode", "history")
    if mode not in MODES:
        raise OptionError(f"unknown mode {mode!r}{suggestion(mode, MODES)}")
    return mode


def check_option_names(options: Mapping[str, str], use: SourceMode | None = None) -> None:
    """Raise OptionError if an option is unknown or not for ``use``, with what to use instead."""
    for name in options:
        lower = name.lower()
        if lower in _KAFKAS_BY_LOWER:
            kafka_name = _KAFKAS_BY_LOWER[lower]
            raise OptionError(f"option {kafka_name!r} is for Kafka; use {KAFKA_NAMES[kafka_name]}")
        if lower not in _BY_LOWER:
            raise OptionError(f"unknown option {name!r}{suggestion(name, OPTIONS)}")
        option = _BY_LOWER[lower]
        if use is not None and use not in OPTIONS[option]:
            uses = " and ".join(sorted(OPTIONS[option]))
            raise OptionError(f"option {option!r} is for {uses}, but this is {use}")


def suggestion(name: str, names: Iterable[str]) -> str:
    """Return the end of an error message, suggesting the most similar name or listing all names."""
    by_lower = {candidate.lower(): candidate for candidate in names}
    similar = get_close_matches(name.lower(), by_lower, n=1, cutoff=0.5)
    if similar:
        return f": did you mean {by_lower[similar[0]]!r}?"
    return f"; choose from {', '.join(by_lower.values())}"


class _OptionParser:
    def __init__(self, options: Mapping[str, str], use: SourceMode) -> None:
        check_option_names(options, use)
        self._values = {name.lower(): value for name, value in options.items()}

    def connection(self) -> SourceConnection:
        """Return the connection; a write has no option ``path``, so it requires ``url``."""
        return SourceConnection(self.text("url"), self.text("token"), self.text("path"))

    def text(self, name: str) -> str | None:
        return self._values.get(name.lower()) or None

    def required(self, name: str) -> str:
        value = self.text(name)
        if value is None:
            raise OptionError(f"option {name!r} is missing")
        return value

    def names(self, name: str) -> tuple[str, ...]:
        parts = (part.strip() for part in self._values.get(name.lower(), "").split(","))
        return tuple(dict.fromkeys(part for part in parts if part))

    def queues(self) -> tuple[str, ...]:
        """Return the names in ``queues``, comma-separated or as JSON, which allows any name."""
        text = self._values.get("queues", "")
        if not _JSON_LIST.match(text):
            return self.names("queues")
        try:
            names = json.loads(text)
        except ValueError:
            names = None
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise OptionError(
                f"option 'queues' is {text!r}, which is not a valid JSON list of names"
                ' such as ["a,b", "c"]'
            )
        if "" in names:
            raise OptionError(
                f"option 'queues' is {text!r}; a JSON list of names must not contain an empty name"
            )
        return tuple(dict.fromkeys(names))

    def outcomes(self) -> tuple[str, ...]:
        """Return the outcomes in a comma-separated list, in lower case."""
        names = tuple(name.lower() for name in self.names("outcomes"))
        for name in names:
            if name not in OUTCOMES:
                raise OptionError(
                    f"option 'outcomes' contains the unknown outcome {name!r}"
                    f"{suggestion(name, OUTCOMES)}"
                )
        return names

    def flag(self, name: str, *, default: bool) -> bool:
        value = self._values.get(name.lower(), str(default)).lower()
        if value not in ("true", "false"):
            raise OptionError(f"option {name!r} is {value!r}, but it must be true or false")
        return value == "true"

    def number(self, name: str, minimum: int, maximum: int) -> int | None:
        value = self._values.get(name.lower())
        if value is None:
            return None
        if not value.isascii() or not value.isdigit() or not minimum <= int(value) <= maximum:
            raise OptionError(
                f"option {name!r} is {value!r}; it must be an integer from {minimum} to {maximum}"
            )
        return int(value)

    def position(
        self, side: Literal["starting", "ending"], default: str, is_stream: bool
    ) -> HistoryPosition:
        """Return where a read starts or ends, by offset or by time."""
        offsets, time = f"{side}Offsets", f"{side}Timestamp"
        at_ms = self.number(time, 0, 1 << 62)
        word = self.text(offsets)
        if at_ms is not None and word is not None:
            raise OptionError(f"set only one of {offsets} and {time}")
        if at_ms is not None:
            return HistoryPosition("time", at_ms)
        word = (word or default).lower()
        if word == "earliest" and side == "starting":
            return HistoryPosition("earliest")
        if word == "latest" and (side == "ending" or is_stream):
            return HistoryPosition("latest")
        if word.isascii() and word.isdigit():
            return HistoryPosition("offset", int(word))
        words = "latest" if side == "ending" else "earliest, latest" if is_stream else "earliest"
        raise OptionError(f"option {offsets!r} is {word!r}, but it must be {words} or a number")
