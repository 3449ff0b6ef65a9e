"""The job consume: the messages of a queue to Parquet, acknowledged once they are written.

At least once by itself; a batch that comes again replaces itself, so each message is there once.
"""

from dataclasses import replace
from typing import TYPE_CHECKING

from phpmq_lite.spark import results_folder
from phpmq_lite.spark.jobs.options import (
    ConsumeOptions,
    JobResult,
    ReportProgress,
    ShouldStop,
    never_stop,
    report_nothing,
)
from phpmq_lite.spark.jobs.stream_writer import StreamTarget, write_stream
from phpmq_lite.spark.pipeline_client import PipelineClient
from phpmq_lite.spark.results_folder import open_results

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def transform(messages: "DataFrame") -> "DataFrame":
    """Give the columns that are kept: all; the batch's name is added when it is written."""
    return messages


def consume_target(options: ConsumeOptions) -> StreamTarget:
    """Give where the messages go, and the checkpoint of the subscription."""
    return StreamTarget(
        name="consume",
        folder=results_folder.consumed_folder(options.queue),
        checkpoint=results_folder.consume_checkpoint_folder(options.subscription),
    )


def run(
    spark: "SparkSession",
    options: ConsumeOptions,
    report: ReportProgress = report_nothing,
    stop: ShouldStop = never_stop,
) -> JobResult:
    """Consume what is in the queue now."""
    given = source_options(options)
    stream = spark.readStream.format("phpmq").options(**given).load()
    end: int | None = None
    notes: tuple[str, ...] = ()
    if options.connection is not None:
        end, notes = count_waiting(PipelineClient(options.connection), options)
    report("consume", 0, end)
    return replace(consume_stream(spark, stream, options, report, stop, end), notes=notes)


def count_waiting(broker: PipelineClient, options: ConsumeOptions) -> tuple[int, tuple[str, ...]]:
    """Count what there is to consume: what an earlier run left claimed, and what is ready.

    A queue that is not there is no error, as its first message makes it; a note says so.
    """
    claims = broker.claimed(options.subscription)
    ready = broker.ready_if_there(options.queue)
    notes = () if ready is not None else (f"the broker has no queue {options.queue!r}",)
    return claims.hi - claims.acked + (ready or 0), notes


def source_options(options: ConsumeOptions) -> dict[str, str]:
    """Give the options of the stream; they arrive as text."""
    return {
        **(options.connection.as_options() if options.connection else {}),
        "mode": "queue",
        "queue": options.queue,
        "subscription": options.subscription,
        "maxMessagesPerTrigger": str(options.max_messages),
        "maxBytesPerTrigger": str(options.max_bytes),
        "failOnDataLoss": str(options.fail_on_data_loss).lower(),
    }


def consume_stream(
    spark: "SparkSession",
    stream: "DataFrame",
    options: ConsumeOptions,
    report: ReportProgress = report_nothing,
    stop: ShouldStop = never_stop,
    end: int | None = None,
) -> JobResult:
    """Write a stream of the queue's columns, then acknowledge the last batch.

    Spark tells the source of a batch only when it plans the next one, which may never come.
    """
    files = open_results(spark, options.out)
    where = consume_target(options)
    with files.lock(results_folder.consume_lock_name(options.subscription)):
        drained = write_stream(transform(stream), files, where, report, stop, end)
        details: dict[str, int | str] = {}
        if options.connection is not None:
            from phpmq_lite.spark.checkpoints import final_ack

            details["acked_at_end"] = final_ack(
                options.connection, options.subscription, files.url(where.checkpoint), spark
            )
    return JobResult(
        job="consume",
        rows=drained.rows,
        batches=drained.batches,
        is_stopped=drained.is_stopped,
        details=details,
    )
