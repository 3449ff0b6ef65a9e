"""Columns of the tables that jobs write, with their texts; see docs/reference/columns.md."""

from typing import Final

from phpmq_lite.storage.arrow import BODY, COLUMNS, ArrowColumn

# What the archive's files have besides the history's columns.
FILE_COLUMNS: Final = (
    BODY,
    ArrowColumn(
        "masked",
        "int32",
        "members that the archive's mask replaced by null; 0: the whole body",
        "unmasked",
        source="body",
    ),
)
# What the archive has besides the history's columns and the body.
ARCHIVE_COLUMNS: Final = (
    ArrowColumn("date", "date", "UTC day of settled_at", source="settled_at"),
    ArrowColumn("batch", "string", "the batch that archived it", source="archive"),
)

_DATE: Final = ArrowColumn("date", "date", "UTC day on which it happened", source="times")
_SETTLED: Final = ArrowColumn("date", "date", "UTC day of the settlement", source="settled_at")
_QUEUE: Final = ArrowColumn("queue", "string", "the queue", source="queue")
_URN: Final = ArrowColumn("urn", "string", "the URN", source="urn")


def _count(name: str, meaning: str, source: str) -> ArrowColumn:
    return ArrowColumn(name, "int64", meaning, source=source)


_PUBLISHED: Final = (
    _count("published", "messages published", "published_at"),
    ArrowColumn("bytes", "int64", "bodies published", unit="bytes", source="size"),
)
_OUTCOMES: Final = (
    _count("acked", "messages acknowledged", "outcome"),
    _count("expired", "messages expired", "outcome"),
    _count("dead", "messages dead-lettered", "outcome"),
    _count("deleted", "messages deleted or purged", "outcome"),
)
_RETRIED: Final = _count(
    "retried", "acknowledged messages that were published again, as failed", "meta_id, attempts"
)
_AGAIN: Final = _count(
    "redelivered_messages", "settled messages with more than one delivery", "deliveries"
)
# The wait counts at the first dispatch or, after a later delay, at the last one; the hold at a
# settlement as acked or dead.
_SPANS: Final = {
    "wait": ("time from ready to dispatch", "ready_at, first_dispatched_at, last_dispatched_at"),
    "hold": ("time from the last dispatch to the settlement", "last_dispatched_at, settled_at"),
}
_FIGURES: Final = {
    "p50": "median",
    "p95": "95th percentile",
    "p99": "99th percentile",
    "max": "maximum",
}
_COUNTED: Final = (
    *_PUBLISHED,
    _count("dispatched", "messages dispatched for the first time", "first_dispatched_at"),
    _count("redelivered", "further deliveries, when the last one was", "last_dispatched_at"),
    *_OUTCOMES,
    _AGAIN,
    _RETRIED,
    _count("expired_dispatched", "messages expired after a dispatch", "outcome, deliveries"),
    _count("expired_never", "messages expired without a dispatch", "outcome, deliveries"),
)
COUNTS: Final = tuple(column.name for column in _COUNTED)
SPANS: Final = tuple(_SPANS)


def _period(name: str) -> tuple[ArrowColumn, ...]:
    """Return the columns of a table by ``name``, a minute or an hour."""
    return (
        _DATE,
        ArrowColumn(name, "timestamp", f"beginning of the {name}", unit="UTC", source="times"),
        _QUEUE,
        *_COUNTED,
        *(
            ArrowColumn(
                f"{span}_{figure}",
                "int64" if figure == "max" else "double",
                f"{words} of the {meaning}",
                "nothing was measured",
                "ms",
                source,
            )
            for span, (meaning, source) in _SPANS.items()
            for figure, words in _FIGURES.items()
        ),
    )


METRIC_COLUMNS: Final = {  # by table, in any order
    "minutes": _period("minute"),
    "hours": _period("hour"),
    "urns": (_DATE, _QUEUE, _URN, *_PUBLISHED, *_OUTCOMES, _RETRIED, _AGAIN),
    "attempts": (
        _SETTLED,
        _QUEUE,
        _URN,
        ArrowColumn("attempts", "int64", "attempts in the envelope", source="attempts"),
        _count("count", "messages settled", "all"),
    ),
    "deaths": (
        _SETTLED,
        _QUEUE,
        ArrowColumn("urn", "string", "the URN", "no envelope", source="urn"),
        ArrowColumn("reason", "string", "why they died", "unknown", source="reason"),
        _count("count", "dead letters", "outcome"),
    ),
    "expiries": (
        _SETTLED,
        _QUEUE,
        _count("dispatched", "messages expired after a dispatch", "outcome, deliveries"),
        _count("never", "messages expired without a dispatch", "outcome, deliveries"),
    ),
    "paths": (
        ArrowColumn("date", "date", "UTC day of the publishes", source="published_at"),
        ArrowColumn(
            "path", "array<string>", "queue:urn of a trace's messages by arrival", source="trace_id"
        ),
        _count("traces", "traces with this path", "trace_id"),
        *(
            ArrowColumn(
                name, "double", f"{words} of their durations, within 1 %", "", "ms", "times"
            )
            for name, words in (("p50_ms", "median"), ("p95_ms", "95th percentile"))
        ),
        ArrowColumn(
            "buckets",
            "map<int,bigint>",
            "traces by duration: n counts those up to 1.01^n ms",
            source="times",
        ),
    ),
}

_COPIED: Final = {column.name: column for column in (*COLUMNS, *ARCHIVE_COLUMNS)}
VERSION: Final = "schema_version"
MISFIT: Final = "_misfit"
KEY_COLUMNS: Final = (  # what people join typed tables on
    *(_COPIED[name] for name in ("history_offset", "queue", "message_id", "meta_id", "trace_id")),
    *(_COPIED[name] for name in ("published_at", "settled_at", "outcome", "attempts", "date")),
)
QUEUE_KEY_COLUMNS: Final = (*KEY_COLUMNS, _COPIED["urn"])
_VERSION: Final = _count(VERSION, "1, and 1 more for each change of the columns", "schema")
PAYLOAD_COLUMNS: Final = (  # before the columns of the payload
    _VERSION,
    ArrowColumn(MISFIT, "array<string>", "JSON pointers to values without a column", "none",
                source="body"),
)  # fmt: skip
REJECT_COLUMNS: Final = (
    *QUEUE_KEY_COLUMNS,
    _VERSION,
    ArrowColumn(
        "reason", "string", "`schema_mismatch`, or why the body is unreadable", source="body"
    ),
    ArrowColumn("pointer", "string", "JSON pointer to the first violation", source="body"),
    ArrowColumn("detail", "string", "the violation, without values", source="body"),
)
