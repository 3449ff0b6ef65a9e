"""``pipeline replay``: archived messages into queues again."""

import re
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import click

from phpmq_lite.cli.options import duration, talk
from phpmq_lite.cli.output import output_option
from phpmq_lite.cli.pipeline.running import Job, execute
from phpmq_lite.cli.pipeline.sessions import connection
from phpmq_lite.cli.pipeline.target import Target, target_options

if TYPE_CHECKING:
    from phpmq_lite.spark.jobs.options import ReplayOptions

_SELECTORS: Final = (
    "queues", "queue_pattern", "outcomes", "reasons", "urns", "traces", "where"
)  # fmt: skip
OUTCOMES: Final = ("acked", "expired", "dead", "deleted")


def moment(value: str) -> int:
    """Give Unix milliseconds, whole seconds; a click type.

    Reads ``2026-01-31``, ``2026-01-31T08:00``, ``…+01:00``, UTC without an offset, or ``2h`` for
    ago: that is another time at each run.
    """
    try:
        at = datetime.fromisoformat(value)
    except ValueError:
        try:
            return (int(time.time()) - duration(value)) * 1_000
        except click.BadParameter:
            raise click.BadParameter(
                f"{value!r} is no time; write 2026-01-31, 2026-01-31T08:00, …+01:00, or 2h for ago"
            ) from None
    return int((at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp()) * 1_000


def per_second(value: str) -> float:
    """Give the messages a second of ``20/s`` or ``20``; a click type."""
    found = re.fullmatch(r"(\d{1,9}(?:\.\d+)?)(?:/s)?", value.strip())
    if found is None or not float(found[1]):
        raise click.BadParameter(f"{value!r} is no rate; write 20/s")
    return float(found[1])


@click.command()
@click.option(
    "--queue", "queues", multiple=True, metavar="NAME", help="Only this queue. Repeatable."
)
@click.option("--queue-pattern", metavar="GLOB", help="Only queues that match.")
@click.option("--since", "since_ms", type=moment, metavar="TIME", help="Settled then or later.")
@click.option("--until", "until_ms", type=moment, metavar="TIME", help="Settled before then.")
@click.option("--outcome", "outcomes", type=click.Choice(OUTCOMES), multiple=True,
              help="Only these. Repeatable.  [default: all]")  # fmt: skip
@click.option("--reason", "reasons", multiple=True, metavar="TEXT", help="Only this. Repeatable.")
@click.option("--urn", "urns", multiple=True, metavar="URN", help="Only this. Repeatable.")
@click.option("--trace", "traces", multiple=True, metavar="ID", help="Only this. Repeatable.")
@click.option("--where", metavar="SQL", help="Only rows for which this expression of Spark's SQL "
              "is true, as \"size > 1000 AND reason = 'failed'\".")  # fmt: skip
@click.option(
    "--to", "to_queue", metavar="QUEUE", help="Where they go.  [default: their own queue]"
)
@click.option("--ttl", "ttl_s", type=duration, metavar="DURATION",
              help="Their time to live.  [default: the queue's]")  # fmt: skip
@click.option("--rate", type=per_second, metavar="N/s", help="At most so many a second, as 20/s.")
@click.option("--source", type=click.Choice(["archive", "history"]), default="archive",
              show_default=True,
              help="From Parquet, or from what the broker still keeps.")  # fmt: skip
@click.option("--name", metavar="NAME",
              help="Of the stored plan; without a selection, goes on with that one."
              "  [default: made from the selection]")  # fmt: skip
@click.option("--dry-run", is_flag=True, help="Count by queue and publish nothing.")
@output_option
@target_options
def replay(
    target: Target,
    since_ms: int | None,
    until_ms: int | None,
    output: str | None,
    **selection: Any,
) -> None:
    """Put messages that were settled into queues again.

    From the archive it needs `archive --bodies`. The plan is stored and goes in pieces of at most
    10,000 messages, each published once: a run that was interrupted goes on where it stopped when
    it is repeated, or with --name alone. Envelopes lose their dead letter block and begin at 0
    attempts; their id and their trace stay. Times are UTC.
    """
    source = connection(target)
    from phpmq_lite.spark.jobs.options import ReplayOptions

    if target.url is None:
        raise click.UsageError("replay publishes to the broker: give --url and no --path")
    if since_ms is not None and until_ms is not None and since_ms >= until_ms:
        raise click.UsageError("--since is not before --until")
    is_selected = any((since_ms, until_ms, *(selection[name] for name in _SELECTORS)))
    if not is_selected:
        _check_going_on(**selection)
    options = ReplayOptions(
        connection=source,
        out=target.out,
        goes_on=not is_selected,
        since_ms=since_ms,
        until_ms=until_ms,
        **selection,
    )
    for line in _told(target, options):
        talk(line)
    execute(target, [Job("replay", options, is_noted=not options.dry_run)], output=output)


def _check_going_on(**selection: Any) -> None:
    """Refuse what without a selection is none, or would be passed over.

    Raises:
        UsageError: there is no name, or a target that the stored plan has already.
    """
    if selection["name"] is None:
        raise click.UsageError(
            "name a selection: everything that ever was is hardly meant; or a stored replay, --name"
        )
    if selection["to_queue"] is not None or selection["ttl_s"] is not None:
        raise click.UsageError("--to and --ttl go with a selection; --name alone takes the stored")


def _told(target: Target, options: "ReplayOptions") -> Iterator[str]:
    """Say what is selected by absolute times, under which name, and how to go on.

    Raises:
        RefusedError: the plans stored in a folder of this machine speak against it; on other
            storage the job finds that out.
    """
    from phpmq_lite.spark.jobs import plans
    from phpmq_lite.spark.jobs.files import open_files

    name = plans.plan_name(options)
    plan = None
    if target.out_folder is not None and (options.goes_on or not options.dry_run):
        files = open_files(None, target.out)
        plan = plans.find(files, options)
        if plan is not None:
            options = plans.adopted(plan, options)
            sent = plan.rows_of(plans.sent_pieces(files, plan))
            yield f"going on with the replay {name}: {sent:,} of {plan.rows:,} messages are sent"
    for word, at_ms in (("since", options.since_ms), ("until", options.until_ms)):
        if at_ms is not None:
            yield f"settled {word} {plans.time_text(at_ms)}"
    if plan is None and not options.dry_run:
        yield f"the replay's name is {name}; to go on after an interruption: --name {name}"
