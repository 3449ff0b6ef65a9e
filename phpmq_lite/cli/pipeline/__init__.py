"""``pipeline``: the history as data, by Spark; a file per purpose, imported when it is used."""

from typing import Final

import click

from phpmq_lite.cli.main import CommandEntry, LazyGroup

COMMANDS: Final = {
    "doctor": CommandEntry(
        "phpmq_lite.cli.pipeline.doctor", "Check Java, Python, versions, broker and write access."
    ),
    "run": CommandEntry(
        "phpmq_lite.cli.pipeline.commands", "Archive, metrics and compact, one after another."
    ),
    "archive": CommandEntry("phpmq_lite.cli.pipeline.commands", "Carry the history into Parquet."),
    "metrics": CommandEntry(
        "phpmq_lite.cli.pipeline.commands", "Compute the metrics from the archive."
    ),
    "compact": CommandEntry(
        "phpmq_lite.cli.pipeline.commands", "Join the small files of closed dates."
    ),
    "replay": CommandEntry(
        "phpmq_lite.cli.pipeline.commands", "Put archived messages into queues again."
    ),
    "consume": CommandEntry(
        "phpmq_lite.cli.pipeline.commands", "Take a queue's messages into Parquet."
    ),
    "status": CommandEntry(
        "phpmq_lite.cli.pipeline.commands", "Show the jobs and how far they are behind."
    ),
    "app-ids": CommandEntry(
        "phpmq_lite.cli.pipeline.commands",
        "List the keys of exactly-once writes and their owners.",
        "app_ids",
    ),
    "transfer": CommandEntry(
        "phpmq_lite.cli.pipeline.commands", "Transfer a key of exactly-once writes to another user."
    ),
    "package": CommandEntry("phpmq_lite.cli.pipeline.commands", "Build the zip for --py-files."),
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
