"""``pipeline``: the history as data, by Spark; a file per purpose, imported when it is used."""

from typing import Final

import click

from phpmq_lite.cli.main import Entry, LazyGroup

COMMANDS: Final = {
    "doctor": Entry(
        "phpmq_lite.cli.pipeline.doctor", "Check Java, Python, versions, broker and write access."
    ),
    "run": Entry(
        "phpmq_lite.cli.pipeline.jobs", "Archive, metrics and compact, one after another."
    ),
    "archive": Entry("phpmq_lite.cli.pipeline.jobs", "Carry the history into Parquet."),
    "metrics": Entry("phpmq_lite.cli.pipeline.jobs", "Compute the metrics from the archive."),
    "compact": Entry("phpmq_lite.cli.pipeline.jobs", "Join the small files of closed dates."),
    "replay": Entry("phpmq_lite.cli.pipeline.replay", "Put archived messages into queues again."),
    "consume": Entry("phpmq_lite.cli.pipeline.jobs", "Take a queue's messages into Parquet."),
    "status": Entry("phpmq_lite.cli.pipeline.status", "Show the jobs and how far they are behind."),
    "app-ids": Entry(
        "phpmq_lite.cli.pipeline.app_ids",
        "List the keys of exactly-once writes and their owners.",
        "app_ids",
    ),
    "transfer": Entry(
        "phpmq_lite.cli.pipeline.app_ids", "Transfer a key of exactly-once writes to another user."
    ),
    "package": Entry("phpmq_lite.cli.pipeline.package", "Build the zip for --py-files."),
}


class PipelineCommands(LazyGroup):
    """Commands whose help needs neither Spark nor the broker."""

    entries = COMMANDS


@click.group(cls=PipelineCommands)
def pipeline() -> None:
    """Read the history with Spark: archive, metrics, replay.

    Needs the extra `spark` and Java 17 or newer (extra `java` if the machine has none):
    `phpmq-lite pipeline doctor` says what is missing, and the command that installs it.
    """
