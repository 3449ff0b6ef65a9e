"""Replay job, which republishes messages from the archive or the history.

A run has a plan, stored under a name, that cuts the selected offsets into pieces. Each piece is
published under its number in one broker transaction, so an interrupted run can be repeated without
publishing a piece twice. The driver processes one piece at a time: it removes ``dead_letter`` from
envelopes and sets their attempts to 0, but keeps meta.id and trace_id.
"""

import time
from collections.abc import Iterator
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Final
from uuid import uuid4

from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import functions as sf

from phpmq_lite.envelopes.dead_letter_record import redrive_content
from phpmq_lite.errors import RefusedError
from phpmq_lite.spark import results_folder
from phpmq_lite.spark.archive_reader import read_archive
from phpmq_lite.spark.jobs import replay_plans
from phpmq_lite.spark.jobs.options import UNCONTROLLED, JobControl, JobResult, ReplayOptions
from phpmq_lite.spark.jobs.replay_plans import ReplayPlan
from phpmq_lite.spark.results_folder import ResultsFolder, open_results
from phpmq_lite.spark.session import fit_batches, fit_shuffles

if TYPE_CHECKING:
    import pyarrow
    from pyspark.sql import DataFrame, SparkSession

MAX_ROWS: Final = 10_000  # maximum number of rows per piece
MAX_BYTES: Final = 32 << 20  # maximum size of a piece, which the driver holds in memory
COLUMNS: Final = "offset,size,queue,outcome,reason,settled_at,urn,trace_id"  # read by a selection

_REPORT_EVERY: Final = 10_000  # report progress after this many selected rows


def transform(history: "DataFrame", options: ReplayOptions) -> "DataFrame":
    """Select rows, or refuse (``bad_where``); ``body`` is null if it was removed."""
    ttl = sf.lit(options.ttl_s).cast("bigint").alias("ttl_s")
    target = sf.col("queue") if options.to_queue is None else sf.lit(options.to_queue)
    rows = select_messages(history, options)
    if "masked" in rows.columns:
        rows = rows.withColumn("body", sf.when(sf.col("masked").isNull(), sf.col("body")))
    return rows.select("offset", "size", target.alias("queue"), "body", ttl)


def select_messages(history: "DataFrame", options: ReplayOptions) -> "DataFrame":
    """Select rows of the history or the archive, or refuse (``bad_where``)."""
    rows = history
    for column, members in (
        ("queue", options.queues),
        ("outcome", options.outcomes),
        ("reason", options.reasons),
        ("urn", options.urns),
        ("trace_id", options.traces),
    ):
        if members:
            rows = rows.where(sf.col(column).isin(*members))
    if options.since_ms is not None:
        rows = rows.where(sf.col("settled_at") >= sf.timestamp_millis(sf.lit(options.since_ms)))
    if options.until_ms is not None:
        rows = rows.where(sf.col("settled_at") < sf.timestamp_millis(sf.lit(options.until_ms)))
    if options.where is not None:
        try:
            rows = rows.where(options.where)
        except (AnalysisException, ParseException) as error:
            raise RefusedError("bad_where", f"{options.where}: {error.getMessage()}") from error
    if options.queue_pattern is not None:
        names = [row["queue"] for row in rows.select("queue").distinct().collect()]
        rows = rows.where(
            sf.col("queue").isin([n for n in names if fnmatchcase(n, options.queue_pattern)])
        )
    return rows


def run(
    spark: "SparkSession", options: ReplayOptions, control: JobControl = UNCONTROLLED
) -> JobResult:
    """Publish the selected messages, or only count them (``dry_run``); stop only between pieces.

    Raises:
        RefusedError: ``no_bodies``: none of the selected messages has its body;
            ``count_differs``: a piece differs from the plan; also raised as in ``find_plan``.
    """
    files = open_results(spark, options.out)
    with files.lock("replay"):
        is_counted = options.dry_run and not options.is_continuation
        plan = None if is_counted else replay_plans.find_plan(files, options)
        if plan is not None:
            options = replay_plans.with_planned_selection(plan, options)
        rows = transform(_history(spark, files, options), options)
        if options.dry_run:
            return _count(rows)
        if plan is None:
            plan = _plan(files, rows, options, control)
        return _publish(spark, files, rows, plan, options, control)


def _history(spark: "SparkSession", files: ResultsFolder, options: ReplayOptions) -> "DataFrame":
    if options.source == "archive":
        archive = read_archive(spark, files)
        fit_shuffles(spark, archive.count())
        fit_batches(spark, archive)
        return archive
    settings = {
        **options.connection_options,
        "includeBody": "true",
        "columns": COLUMNS if options.where is None else "",  # which may name any other
        "failOnDataLoss": "false",  # not needed, because the rows of each piece are counted
    }
    return spark.read.format("phpmq").options(**settings).load()


def _count(rows: "DataFrame") -> JobResult:
    """Count messages by target queue without publishing or storing anything."""
    counts = rows.groupBy("queue").agg(
        sf.count("body").alias("rows"),
        sf.count("*").alias("all"),
        sf.sum(sf.when(sf.col("body").isNotNull(), sf.col("size"))).alias("bytes"),
    )
    queues = counts.orderBy("queue").collect()
    bodiless = sum(row["all"] - row["rows"] for row in queues)
    details: dict[str, int | str] = {row["queue"]: row["rows"] for row in queues}
    total_name = "bytes"
    while total_name in details:  # a queue may also be named "bytes"
        total_name = f"({total_name})"
    details[total_name] = sum(row["bytes"] or 0 for row in queues)
    total = sum(row["rows"] for row in queues)
    return JobResult(job="replay", rows=total, notes=_notes(total, bodiless), details=details)


def _notes(rows: int, bodiless: int) -> tuple[str, ...]:
    if not bodiless:
        return ()
    return (
        f"{bodiless} of {rows + bodiless} messages are skipped because they have no body: "
        "retention removed it, it was erased or masked, or they were archived without bodies",
    )


def _plan(
    files: ResultsFolder, rows: "DataFrame", options: ReplayOptions, control: JobControl
) -> ReplayPlan:
    name = replay_plans.plan_name(options)
    plan = ReplayPlan(name, f"replay-{name[:32]}-{uuid4().hex}", replay_plans.selection_of(options))
    selected = rows.selectExpr("offset", "size", "body IS NULL AS is_gone").orderBy("offset")

    def sized_offsets() -> Iterator[tuple[int, int]]:
        for number, row in enumerate(selected.toLocalIterator()):
            if number % _REPORT_EVERY == 0:
                control.report("select", number, None)
            if row["is_gone"]:
                plan.without_body += 1
            else:
                yield row["offset"], row["size"]

    control.report("select", 0, None)
    max_rows = max(1, min(MAX_ROWS, int(options.rate or MAX_ROWS)))
    plan.pieces = replay_plans.cut_pieces(sized_offsets(), max_rows=max_rows, max_bytes=MAX_BYTES)
    if plan.without_body and not plan.pieces:
        raise RefusedError("no_bodies", _notes(0, plan.without_body)[0])
    if plan.pieces:  # an empty plan would exclude messages that are settled later
        replay_plans.store_plan(files, plan)
    return plan


def _publish(
    spark: "SparkSession",
    files: ResultsFolder,
    rows: "DataFrame",
    plan: ReplayPlan,
    options: ReplayOptions,
    control: JobControl,
) -> JobResult:
    """Publish the remaining pieces, each in one transaction, at the requested rate."""
    free_at = 0.0  # on the monotonic clock; time lost by a slow piece is not made up for
    sent = pieces = 0
    published = replay_plans.sent_pieces(files, plan)
    before = plan.rows_of(published)
    is_stopped = False
    control.report("replay", before, plan.rows)
    for number, (first, last, expected) in enumerate(plan.pieces[published:], published + 1):
        if is_stopped := control.stop():
            break
        table = _piece(rows, first, last, expected)
        if is_stopped := _wait_or_stop(free_at, control):
            break
        if options.rate is not None:
            free_at = time.monotonic() + expected / options.rate
        publish_piece(spark, table, plan.app_id, number, options)
        files.write(results_folder.replay_progress_file(plan.name), str(number))
        sent += expected
        pieces += 1
        control.report("replay", before + sent, plan.rows)
    return JobResult(
        job="replay",
        rows=sent,
        batches=pieces,
        is_stopped=is_stopped,
        notes=_notes(plan.rows, plan.without_body) + _describe_end(plan, before + sent, sent),
        details={"name": plan.name, "rows_before": before, "pieces": len(plan.pieces)},
    )


def _describe_end(plan: ReplayPlan, sent: int, sent_now: int) -> tuple[str, ...]:
    """Explain how to continue an incomplete replay, or why nothing was sent."""
    if sent < plan.rows:
        return (f"{sent} of {plan.rows} messages were sent; continue with --name {plan.name}",)
    if plan.rows and not sent_now:
        return (
            f"all {sent} messages of {plan.name} were already sent; to repeat, use a new --name",
        )
    return ()


def _wait_or_stop(end_s: float, control: JobControl) -> bool:
    while (remaining_s := end_s - time.monotonic()) > 0:
        if control.stop():
            return True
        time.sleep(min(remaining_s, 0.2))
    return False


def _piece(rows: "DataFrame", first: int, last: int, expected: int) -> "pyarrow.Table":
    selected = rows.where(sf.col("offset").between(first, last) & sf.col("body").isNotNull())
    table = selected.orderBy("offset").select("queue", "body", "ttl_s").toArrow()
    if table.num_rows != expected:
        raise RefusedError(
            "count_differs",
            f"offsets {first} to {last} contain {table.num_rows} messages, but {expected} were"
            " planned; create a new plan with another --name",
        )
    return redriven_rows(table)


def redriven_rows(piece: "pyarrow.Table") -> "pyarrow.Table":
    """Return the rows with the bodies that a redrive would send (``docs/guides/envelopes.md``)."""
    import pyarrow

    bodies = [redrive_content(body) for body in piece.column("body").to_pylist()]
    position = piece.schema.get_field_index("body")
    return piece.set_column(position, "body", pyarrow.array(bodies, pyarrow.binary()))


def publish_piece(
    spark: "SparkSession", piece: "pyarrow.Table", app_id: str, version: int, options: ReplayOptions
) -> None:
    """Publish a piece; the broker ignores it if it already has this version for this ``app_id``."""
    (
        spark.createDataFrame(piece)
        .coalesce(1)
        .write.format("phpmq")
        .mode("append")
        .options(**options.connection_options, txnAppId=app_id, txnVersion=str(version))
        .save()
    )
