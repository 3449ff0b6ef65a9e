"""The job consume: the messages of a queue to Parquet, acknowledged once they are written.

At least once by itself; a batch that comes again replaces itself, so each message is there once.
"""

from dataclasses import replace
from typing import TYPE_CHECKING

from phpmq_lite.spark.jobs import places
from phpmq_lite.spark.jobs.batches import Target, drain
from phpmq_lite.spark.jobs.files import open_files
from phpmq_lite.spark.jobs.options import ConsumeOptions, Report, Result, Stop, never, silent
from phpmq_lite.spark.transport import Broker

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def transform(messages: "DataFrame") -> "DataFrame":
    """Give the columns that are kept: all; the batch's name is added when it is written."""
    return messages


def target(options: ConsumeOptions) -> Target:
    """Give where the messages go, and the checkpoint of the subscription."""
    return Target(
        name="consume",
        folder=places.consumed(options.queue),
        checkpoint=places.consume_checkpoint(options.subscription),
    )


def run(
    spark: "SparkSession", options: ConsumeOptions, report: Report = silent, stop: Stop = never
) -> Result:
    """Consume what is in the queue now."""
    given = source_options(options)
    stream = spark.readStream.format("phpmq").options(**given).load()
    end: int | None = None
    notes: tuple[str, ...] = ()
    if options.connection is not None:
        end, notes = waiting(Broker(options.connection), options)
    report("consume", 0, end)
    return replace(consume(spark, stream, options, report, stop, end), notes=notes)


def waiting(broker: Broker, options: ConsumeOptions) -> tuple[int, tuple[str, ...]]:
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


def consume(
    spark: "SparkSession",
    stream: "DataFrame",
    options: ConsumeOptions,
    report: Report = silent,
    stop: Stop = never,
    end: int | None = None,
) -> Result:
    """Write a stream of the queue's columns, then acknowledge the last batch.

    Spark tells the source of a batch only when it plans the next one, which may never come.
    """
    files = open_files(spark, options.out)
    where = target(options)
    with files.lock(places.consume_lock(options.subscription)):
        drained = drain(transform(stream), files, where, report, stop, end)
        details: dict[str, int | str] = {}
        if options.connection is not None:
            from phpmq_lite.spark.checkpoint import final_ack

            details["acked_at_end"] = final_ack(
                options.connection, options.subscription, files.url(where.checkpoint), spark
            )
    return Result(
        job="consume",
        rows=drained.rows,
        batches=drained.batches,
        is_stopped=drained.is_stopped,
        details=details,
    )
