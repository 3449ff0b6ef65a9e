"""Erase job, which removes the data of chosen messages from the results folder and the broker.

Rows stay, with null instead of data, so that counts agree. Tables come first, then the archive, and
the broker last, because each of them leads to the messages in those before. So a repeated run
completes an interrupted one.
"""

import json
from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import functions as sf

from phpmq_lite.errors import RefusedError
from phpmq_lite.spark import ledger as ledgers
from phpmq_lite.spark.archive_reader import read_archive
from phpmq_lite.spark.erased_ids import store_hashes
from phpmq_lite.spark.jobs.archive_files import open_ledger
from phpmq_lite.spark.jobs.compact import merge
from phpmq_lite.spark.jobs.options import UNCONTROLLED, EraseOptions, JobControl, JobResult
from phpmq_lite.spark.jobs.replay import select_messages
from phpmq_lite.spark.pipeline_client import PipelineClient
from phpmq_lite.spark.results_folder import (
    QUEUE_TABLES,
    REJECTS,
    REPLAYS,
    TABLES,
    ResultsFolder,
    open_results,
)
from phpmq_lite.spark.table_store import LOCK, repair_tables
from phpmq_lite.spark.table_writer import count_in_files, rewrite_files

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession

ROWS_MAX: Final = 1_000_000  # maximum number of archived messages per run
_TABLES: Final = ("consumed", TABLES, QUEUE_TABLES, REJECTS)  # folders of files without a list
_DATA: Final = ("body", "trace_id", "meta_id", "group", "unique_key", "detail")  # of the archive
_KEPT: Final = {  # columns of tables that stay; all others are data
    *("claim", "message_id", "history_offset", "queue", "urn", "outcome", "attempts", "date"),
    *("published_at", "settled_at", "ready_at", "deliveries", "priority", "retries"),
    "schema_version",
}
_PARTS: Final = 100  # maximum number of traces or ranges per request, as in the API
_OFFSETS: Final = 10_000  # maximum number of offsets per request


def transform(
    rows: "DataFrame", chosen: "DataFrame", data: Collection[str], at_ms: int
) -> "DataFrame":
    """Replace the columns ``data`` of chosen rows by null, and set ``erased_at`` if there is one.

    ``chosen`` has one column, of which rows with an equal value are chosen.
    """
    is_chosen = sf.col("_chosen").isNotNull()
    columns = []
    for field in rows.schema:
        column = sf.col(f"`{field.name}`")
        if field.name in data:
            column = sf.when(~is_chosen, column)
        elif field.name == "erased_at":
            at = sf.when(is_chosen, sf.timestamp_millis(sf.lit(at_ms)))
            column = sf.coalesce(column, at)
        columns.append(column.alias(field.name, metadata=field.metadata))
    marked = chosen.withColumn("_chosen", sf.lit(True))
    return rows.join(marked, chosen.columns, "left").select(columns)


def run(
    spark: "SparkSession", options: EraseOptions, control: JobControl = UNCONTROLLED
) -> JobResult:
    """Erase the selected messages and their copies, or only count them (``dry_run``).

    Raises:
        RefusedError: ``live_messages``: some are live and ``live`` is not set; nothing was changed.
            ``too_many``; ``is_locked``.
    """
    files = open_results(spark, options.out)
    keep_ms = 0 if options.now and not options.dry_run else options.keep_replaced_ms
    with open_ledger(spark, files, keep_ms=keep_ms) as ledger, files.lock(LOCK):
        return _EraseRun(spark, files, options, control).run(ledger, keep_ms)


class _EraseRun:
    def __init__(
        self,
        spark: "SparkSession",
        files: ResultsFolder,
        options: EraseOptions,
        control: JobControl,
    ) -> None:
        if options.connection is None or options.connection.url is None:
            raise RefusedError("no_broker", "erase needs the broker, which has the same messages")
        self.spark, self.files, self.options, self.control = spark, files, options, control
        self.broker = PipelineClient(options.connection)

    def run(self, ledger: ledgers.ArchiveLedger, keep_ms: int) -> JobResult:
        options = self.options
        self.control.report("select", 0, None)
        requests = list(_requests(options.traces, self._settled_offsets()))
        repair_tables(self.files)
        answers = [self.broker.erase({**request, "dry_run": True}) for request in requests]
        live = sum(answer["live"] for answer in answers)
        if live and not options.live and not options.dry_run:
            raise RefusedError(
                "live_messages",
                f"{live} selected messages are live, so nothing was erased: wait until they are"
                " settled, or delete them, too, with --live",
            )
        ids = {id_ for answer in answers for id_ in answer["ids"]}
        rows = self._archived(ledger, ids)
        ids |= {row["message_id"] for row in rows}
        tables = self._files_with(ids)
        details = {"archived": len(rows), "tables": sum(tables.values()), "live": live}
        notes: tuple[str, ...] = ()
        if not options.dry_run:
            traces = {*options.traces, *(row["trace_id"] for row in rows if row["trace_id"])}
            finish = store_hashes(self.files, ids | traces, ledgers.now_ms())
            self._remove_plans()
            chosen = self._values("message_id", ids)
            rewrite_files(
                self.spark, self.files, tables,
                lambda rows: transform(rows, chosen, {*rows.columns} - _KEPT, 0),
            )  # fmt: skip
            self._rewrite_archive(ledger, sorted(row["offset"] for row in rows))
            answers = [answer for request in requests for answer in self._erase(request)]
            finish(ledgers.now_ms())
            notes = self._notes(answers, keep_ms)
        details["broker"] = sum(answer["erased"] for answer in answers)
        return JobResult(job="erase", rows=len(ids), details=details, notes=notes)

    def _erase(self, request: dict[str, Any]) -> Iterator[dict[str, Any]]:
        has_more = True
        while has_more:
            answer = self.broker.erase({**request, "live": self.options.live})
            has_more = answer["more"]
            yield answer

    def _settled_offsets(self) -> list[int]:
        """Return the offsets in the broker's history that match the condition."""
        if self.options.where is None:
            return []
        settings = {**self.options.connection_options, "failOnDataLoss": "false"}
        history = self.spark.read.format("phpmq").options(**settings).load()
        rows = select_messages(history, self.options.selection).where("erased_at IS NULL")
        return sorted(row["offset"] for row in rows.select("offset").collect())

    def _archived(self, ledger: ledgers.ArchiveLedger, ids: Collection[str]) -> "list[Row]":
        """Return offset, message_id and trace_id of the archived messages to erase."""
        if not ledger.dates:
            return []
        archive = read_archive(self.spark, self.files).where("erased_at IS NULL")
        copies = archive.join(self._values("message_id", ids), "message_id", "left_semi")
        columns = ("offset", "message_id", "trace_id")
        matching = select_messages(archive, self.options.selection).select(*columns)
        rows = matching.union(copies.select(*columns)).distinct().limit(ROWS_MAX + 1).collect()
        if len(rows) > ROWS_MAX:
            detail = f"more than {ROWS_MAX:,} archived messages match; erase them in parts"
            raise RefusedError("too_many", detail)
        return rows

    def _values(self, column: str, values: Iterable[str | int]) -> "DataFrame":
        kind = "bigint" if column == "history_offset" else "string"
        rows = self.spark.createDataFrame([(value,) for value in values], f"`{column}` {kind}")
        return sf.broadcast(rows)

    def _rewrite_archive(self, ledger: ledgers.ArchiveLedger, offsets: list[int]) -> None:
        """Rewrite the files that have rows at ascending offsets, date by date."""
        chosen, at_ms = self._values("history_offset", offsets), ledgers.now_ms()
        for number, entry in enumerate(ledger.dates.values()):
            self.control.report("erase", number, len(ledger.dates))
            if not _has_any(offsets, entry):
                continue
            manifest = ledgers.read_manifest(self.files, entry.manifest)
            count = sum(_has_any(offsets, file) for file in manifest.files)
            if count:
                ledger, _ = merge(
                    self.spark, self.files, ledger, manifest, count,
                    is_old=lambda file: _has_any(offsets, file),
                    change=lambda rows: transform(rows, chosen, _DATA, at_ms),
                )  # fmt: skip

    def _files_with(self, ids: Collection[str]) -> dict[str, int]:
        """Return the number of chosen messages in each file of a table that has any."""
        if not ids:
            return {}
        chosen = self._values("message_id", ids)
        return count_in_files(
            self.spark, self.files, _TABLES,
            lambda rows: rows.join(chosen, "message_id", "left_semi"), "message_id string",
        )  # fmt: skip

    def _remove_plans(self) -> None:
        """Remove the plans of replays that name an erased trace."""
        for name in self.files.names(REPLAYS):
            text = self.files.read(f"{REPLAYS}/{name}") or ""
            if any(json.dumps(trace) in text for trace in self.options.traces):
                self.files.remove(f"{REPLAYS}/{name}")

    def _notes(self, answers: Sequence[dict[str, Any]], keep_ms: int) -> tuple[str, ...]:
        """Return the places where data remains, and until when."""
        places = {place["where"]: place for answer in answers for place in answer["remains"]}
        remains = [
            {"where": "replaced files", "until": ledgers.now_ms() + keep_ms, "how": "the next job"},
            {"where": "Spark's log", "until": None, "how": "its removal"},
            *places.values(),
        ]
        return tuple(
            f"remains in {place['where']} until {_day(place['until'])}{place['how']}"
            for place in remains
        )


def _day(at_ms: int | None) -> str:
    return (
        ""
        if at_ms is None
        else f"{datetime.fromtimestamp(at_ms / 1_000, UTC):%Y-%m-%d %H:%M} UTC: "
    )


def _has_any(offsets: Sequence[int], part: "ledgers.ArchiveFile | ledgers.DateEntry") -> bool:
    return bisect_left(offsets, part.lo) < bisect_left(offsets, part.hi + 1)


def _requests(traces: Sequence[str], offsets: Sequence[int]) -> Iterator[dict[str, Any]]:
    """Yield requests to the broker, within its bounds; ``offsets`` are ascending."""
    for at in range(0, len(traces), _PARTS):
        yield {"trace_ids": traces[at : at + _PARTS]}
    for at in range(0, len(offsets), _OFFSETS):
        ranges: list[dict[str, int]] = []
        for offset in offsets[at : at + _OFFSETS]:
            if ranges and ranges[-1]["last"] == offset - 1:
                ranges[-1]["last"] = offset
            else:
                ranges.append({"first": offset, "last": offset})
        for start in range(0, len(ranges), _PARTS):
            yield {"offsets": ranges[start : start + _PARTS]}
