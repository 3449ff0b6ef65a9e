"""Consume job, which writes messages from a queue to Parquet and then acknowledges them.

Delivery is at least once; a repeated batch replaces itself, so each message is stored once.
"""

from dataclasses import replace
from typing import TYPE_CHECKING

from phpmq_lite.spark import results_folder
from phpmq_lite.spark.checkpoints import final_ack
from phpmq_lite.spark.jobs.options import UNCONTROLLED, ConsumeOptions, JobControl, JobResult
from phpmq_lite.spark.jobs.stream_writer import StreamTarget, write_stream
from phpmq_lite.spark.pipeline_client import PipelineClient
from phpmq_lite.spark.results_folder import open_results

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def run(
    spark: "SparkSession", options: ConsumeOptions, control: JobControl = UNCONTROLLED
) -> JobResult:
    """Consume all messages that are currently in the queue."""
    stream = spark.readStream.format("phpmq").options(**source_options(options)).load()
    end: int | None = None
    notes: tuple[str, ...] = ()
    if options.connection is not None:
        end, notes = count_waiting(PipelineClient(options.connection), options)
    control.report("consume", 0, end)
    return replace(consume_stream(spark, stream, options, control, end), notes=notes)


def count_waiting(broker: PipelineClient, options: ConsumeOptions) -> tuple[int, tuple[str, ...]]:
    """Return how many messages are ready or claimed by an earlier run, and any notes.

    A missing queue adds a note but is not an error, because its first message creates it.
    """
    claims = broker.claimed(options.subscription)
    ready = broker.ready_or_none(options.queue)
    notes = () if ready is not None else (f"queue {options.queue!r} does not exist",)
    return claims.hi - claims.acked + (ready or 0), notes


def source_options(options: ConsumeOptions) -> dict[str, str]:
    """Return the stream's options as strings."""
    return {
        **options.connection_options,
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
    control: JobControl = UNCONTROLLED,
    end: int | None = None,
) -> JobResult:
    """Write a stream of a queue's messages, then acknowledge the last batch.

    Spark reports a batch to the source only when it plans the next one, which may never happen.
    """
    files = open_results(spark, options.out)
    target = StreamTarget(
        name="consume",
        folder=results_folder.consumed_folder(options.queue),
        checkpoint=results_folder.consume_checkpoint_folder(options.subscription),
    )
    with files.lock(results_folder.consume_lock_name(options.subscription)):
        totals = write_stream(stream, files, target, control, end)
        details: dict[str, int | str] = {}
        if options.connection is not None:
            details["acked_at_end"] = final_ack(
                options.connection, options.subscription, files.url(target.checkpoint), spark
            )
    return JobResult(
        job="consume",
        rows=totals.rows,
        batches=totals.batches,
        is_stopped=totals.is_stopped,
        details=details,
    )
