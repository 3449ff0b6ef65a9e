"""``pipeline archive | metrics | compact | consume | run``: jobs in a Spark session."""

from datetime import date
from typing import Any

import click

from phpmq_lite.cli.options import duration
from phpmq_lite.cli.output import output_option
from phpmq_lite.cli.pipeline.running import Job, execute
from phpmq_lite.cli.pipeline.sessions import connection
from phpmq_lite.cli.pipeline.target import Target, target_options
from phpmq_lite.spark.options import OUTCOMES

_continuous = click.option(
    "--continuous", is_flag=True, help="Go on until Ctrl-C or SIGTERM, not only once."
)
_every = click.option(
    "--every",
    "every_s",
    type=duration,
    default="60s",
    show_default=True,
    metavar="DURATION",
    help="With --continuous: from the end of a round to the next.",
)


def starting(value: str) -> str:
    """Take ``earliest``, ``latest`` or an offset; a click type."""
    if value in ("earliest", "latest") or (value.isascii() and value.isdigit()):
        return value
    raise click.BadParameter(f"{value!r} is no offset; write earliest, latest or a number")


def _archive_options(command: Any) -> Any:
    """Add what is about reading the history; `archive` and `run` have it."""
    for option in (
        click.option("--accept-gap", is_flag=True,
                     help="Go on where retention took rows that were not archived yet."),
        click.option("--partitions", type=click.IntRange(min=1), metavar="N",
                     help="Ranges that are read at the same time."
                     "  [default: 1 to 50,000 offsets, then 2; more above 2,000,000]"),
        click.option("--max-offsets", type=click.IntRange(min=1), default=1_000_000,
                     show_default=True, metavar="N", help="Offsets of one batch."),
        click.option("--starting", type=starting, default="earliest", show_default=True,
                     metavar="OFFSET",
                     help="Where the very first run begins: earliest, latest or the first offset"
                     " to archive."),
        click.option("--queue-pattern", metavar="GLOB", help="Only queues that match."),
        click.option("--queue", "queues", multiple=True, metavar="NAME",
                     help="Only this queue. Repeatable; an archive keeps to what it began with."),
        click.option("--outcome", "outcomes", multiple=True,
                     type=click.Choice(OUTCOMES),
                     help="Only messages that ended so. Repeatable; without deleted, retention of"
                     " deleted messages is no gap."),
        click.option("--bodies", is_flag=True, help="Keep the bodies too: replay needs them."),
    ):  # fmt: skip
        command = option(command)
    return command


def _archive(target: Target, **given: Any) -> Job:
    from phpmq_lite.spark.jobs.options import ArchiveOptions

    options = ArchiveOptions(
        connection=connection(target),
        out=target.out,
        bodies=given["bodies"],
        queues=given["queues"],
        queue_pattern=given["queue_pattern"],
        outcomes=given["outcomes"],
        starting_offsets=given["starting"],
        max_offsets_per_trigger=given["max_offsets"],
        num_partitions=given["partitions"],
        fail_on_data_loss=not given["accept_gap"],
    )
    return Job("archive", options)


def _metrics(target: Target, dates: tuple[date, ...] = ()) -> Job:
    from phpmq_lite.spark.jobs.options import MetricsOptions

    return Job(
        "metrics", MetricsOptions(connection=connection(target), out=target.out, dates=dates)
    )


def _compact(target: Target) -> Job:
    from phpmq_lite.spark.jobs.options import CompactOptions

    return Job("compact", CompactOptions(connection=connection(target), out=target.out))


@click.command()
@_archive_options
@_continuous
@_every
@output_option
@target_options
def archive(
    target: Target, continuous: bool, every_s: int, output: str | None, **given: Any
) -> None:
    """Carry the history into Parquet: OUT/archive/date=…/batch=…, each offset exactly once.

    Goes on where the last run stopped. Rows that retention took before they were archived are an
    error, unless --accept-gap.
    """
    connection(target)
    job = _archive(target, **given)
    execute(target, [job], every_s=every_s if continuous else None, output=output)


def a_date(value: str) -> date:
    """Give the day of ``2026-01-31``; a click type."""
    try:
        return date.fromisoformat(value)
    except ValueError:
        raise click.BadParameter(f"{value!r} is no date; write 2026-01-31") from None


@click.command()
@click.option("--date", "dates", type=a_date, multiple=True, metavar="YYYY-MM-DD",
              help="Compute this day (UTC) anew, touched or not. Repeatable.")  # fmt: skip
@_continuous
@_every
@output_option
@target_options
def metrics(
    target: Target,
    dates: tuple[date, ...],
    continuous: bool,
    every_s: int,
    output: str | None,
) -> None:
    """Compute the metrics of the archive per queue and minute: OUT/metrics/TABLE/date=….

    Each date that new rows touch is computed anew and overwritten whole.
    """
    connection(target)
    job = _metrics(target, dates)
    execute(target, [job], every_s=every_s if continuous else None, output=output)


@click.command()
@output_option
@target_options
def compact(target: Target, output: str | None) -> None:
    """Join the small files of the archive's closed dates; counts are compared before the swap."""
    connection(target)
    execute(target, [_compact(target)], output=output)


@click.command()
@_archive_options
@_continuous
@_every
@output_option
@target_options
def run(target: Target, continuous: bool, every_s: int, output: str | None, **given: Any) -> None:
    """Archive, metrics and compact in one session: for a timer, or --continuous."""
    connection(target)
    jobs = [_archive(target, **given), _metrics(target), _compact(target)]
    execute(target, jobs, every_s=every_s if continuous else None, output=output)


@click.command()
@click.argument("queue")
@click.option("--subscription", metavar="NAME", default="pipeline", show_default=True,
              help="Who holds the messages until they are acknowledged.")  # fmt: skip
@click.option("--max-messages", type=click.IntRange(1, 100_000), default=10_000,
              show_default=True, metavar="N", help="Messages of one batch.")  # fmt: skip
@click.option("--accept-gap", is_flag=True,
              help="Go on where somebody released what a batch under way had claimed;"
              " it comes again.")  # fmt: skip
@_continuous
@_every
@output_option
@target_options
def consume(
    target: Target,
    queue: str,
    subscription: str,
    max_messages: int,
    accept_gap: bool,
    continuous: bool,
    every_s: int,
    output: str | None,
) -> None:
    """Take the messages of QUEUE into Parquet: OUT/consumed/QUEUE, acknowledged after the batch.

    At least once; a repeated batch overwrites itself. Needs the role operator.
    """
    connection(target)
    from phpmq_lite.spark.jobs.options import ConsumeOptions

    if target.url is None:
        raise click.UsageError("consume asks the broker: give --url and no --path")
    options = ConsumeOptions(
        connection=connection(target),
        out=target.out,
        queue=queue,
        subscription=subscription,
        max_messages=max_messages,
        fail_on_data_loss=not accept_gap,
    )
    execute(
        target,
        [Job("consume", options)],
        every_s=every_s if continuous else None,
        output=output,
    )
