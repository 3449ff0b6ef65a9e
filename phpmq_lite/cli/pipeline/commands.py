"""The commands of ``pipeline`` but ``doctor``: jobs, replay, status, keys, package."""

import json
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict
from datetime import UTC, date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from phpmq_lite.cli.admin_client import AdminClient, admin_client_options
from phpmq_lite.cli.errors import NOT_FOUND, CommandError
from phpmq_lite.cli.output import Column, output_option, print_message, write_rows
from phpmq_lite.cli.parameters import duration, messages_per_second, time_ms
from phpmq_lite.cli.pipeline.job_runner import PipelineJob, run_jobs, source_connection
from phpmq_lite.cli.pipeline.target import PipelineTarget, target_options
from phpmq_lite.spark import executor_zip
from phpmq_lite.spark.jobs.archive_gaps import read_gaps
from phpmq_lite.spark.results_folder import LocalResultsFolder
from phpmq_lite.spark.source_options import DELETED, OUTCOMES

if TYPE_CHECKING:
    from phpmq_lite.spark.jobs.options import ReplayOptions

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


def starting_offset(value: str) -> str:
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
        click.option("--starting", type=starting_offset, default="earliest", show_default=True,
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


def _archive(target: PipelineTarget, **given: Any) -> PipelineJob:
    from phpmq_lite.spark.jobs.options import ArchiveOptions

    options = ArchiveOptions(
        connection=source_connection(target),
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
    return PipelineJob("archive", options)


def _metrics(target: PipelineTarget, dates: tuple[date, ...] = ()) -> PipelineJob:
    from phpmq_lite.spark.jobs.options import MetricsOptions

    return PipelineJob(
        "metrics", MetricsOptions(connection=source_connection(target), out=target.out, dates=dates)
    )


def _compact(target: PipelineTarget) -> PipelineJob:
    from phpmq_lite.spark.jobs.options import CompactOptions

    return PipelineJob(
        "compact", CompactOptions(connection=source_connection(target), out=target.out)
    )


@click.command()
@_archive_options
@_continuous
@_every
@output_option
@target_options
def archive(
    target: PipelineTarget, continuous: bool, every_s: int, output: str | None, **given: Any
) -> None:
    """Carry the history into Parquet: OUT/archive/date=…/batch=…, each offset exactly once.

    Goes on where the last run stopped. Rows that retention took before they were archived are an
    error, unless --accept-gap.
    """
    source_connection(target)
    job = _archive(target, **given)
    run_jobs(target, [job], every_s=every_s if continuous else None, output=output)


def utc_date(value: str) -> date:
    """Give the day of ``2026-01-31``; a click type."""
    try:
        return date.fromisoformat(value)
    except ValueError:
        raise click.BadParameter(f"{value!r} is no date; write 2026-01-31") from None


@click.command()
@click.option("--date", "dates", type=utc_date, multiple=True, metavar="YYYY-MM-DD",
              help="Compute this day (UTC) anew, touched or not. Repeatable.")  # fmt: skip
@_continuous
@_every
@output_option
@target_options
def metrics(
    target: PipelineTarget,
    dates: tuple[date, ...],
    continuous: bool,
    every_s: int,
    output: str | None,
) -> None:
    """Compute the metrics of the archive per queue and minute: OUT/metrics/TABLE/date=….

    Each date that new rows touch is computed anew and overwritten whole.
    """
    source_connection(target)
    job = _metrics(target, dates)
    run_jobs(target, [job], every_s=every_s if continuous else None, output=output)


@click.command()
@output_option
@target_options
def compact(target: PipelineTarget, output: str | None) -> None:
    """Join the small files of the archive's closed dates; counts are compared before the swap."""
    source_connection(target)
    run_jobs(target, [_compact(target)], output=output)


@click.command()
@_archive_options
@_continuous
@_every
@output_option
@target_options
def run(
    target: PipelineTarget, continuous: bool, every_s: int, output: str | None, **given: Any
) -> None:
    """Archive, metrics and compact in one session: for a timer, or --continuous."""
    source_connection(target)
    jobs = [_archive(target, **given), _metrics(target), _compact(target)]
    run_jobs(target, jobs, every_s=every_s if continuous else None, output=output)


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
    target: PipelineTarget,
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
    source_connection(target)
    from phpmq_lite.spark.jobs.options import ConsumeOptions

    if target.url is None:
        raise click.UsageError("consume asks the broker: give --url and no --path")
    options = ConsumeOptions(
        connection=source_connection(target),
        out=target.out,
        queue=queue,
        subscription=subscription,
        max_messages=max_messages,
        fail_on_data_loss=not accept_gap,
    )
    run_jobs(
        target,
        [PipelineJob("consume", options)],
        every_s=every_s if continuous else None,
        output=output,
    )


_SELECTORS: Final = (
    "queues", "queue_pattern", "outcomes", "reasons", "urns", "traces", "where"
)  # fmt: skip
REPLAY_OUTCOMES: Final = ("acked", "expired", "dead", "deleted")


@click.command()
@click.option(
    "--queue", "queues", multiple=True, metavar="NAME", help="Only this queue. Repeatable."
)
@click.option("--queue-pattern", metavar="GLOB", help="Only queues that match.")
@click.option("--since", "since_ms", type=time_ms, metavar="TIME", help="Settled then or later.")
@click.option("--until", "until_ms", type=time_ms, metavar="TIME", help="Settled before then.")
@click.option("--outcome", "outcomes", type=click.Choice(REPLAY_OUTCOMES), multiple=True,
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
@click.option(
    "--rate", type=messages_per_second, metavar="N/s", help="At most so many a second, as 20/s."
)
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
    target: PipelineTarget,
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
    source = source_connection(target)
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
        print_message(line)
    run_jobs(target, [PipelineJob("replay", options, is_noted=not options.dry_run)], output=output)


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


def _told(target: PipelineTarget, options: "ReplayOptions") -> Iterator[str]:
    """Say what is selected by absolute times, under which name, and how to go on.

    Raises:
        RefusedError: the plans stored in a folder of this machine speak against it; on other
            storage the job finds that out.
    """
    from phpmq_lite.spark.jobs import replay_plans
    from phpmq_lite.spark.results_folder import open_results

    name = replay_plans.plan_name(options)
    plan = None
    if target.out_folder is not None and (options.goes_on or not options.dry_run):
        files = open_results(None, target.out)
        plan = replay_plans.find_plan(files, options)
        if plan is not None:
            options = replay_plans.with_planned_selection(plan, options)
            sent = plan.rows_of(replay_plans.sent_pieces(files, plan))
            yield f"going on with the replay {name}: {sent:,} of {plan.rows:,} messages are sent"
    for word, at_ms in (("since", options.since_ms), ("until", options.until_ms)):
        if at_ms is not None:
            yield f"settled {word} {replay_plans.time_text(at_ms)}"
    if plan is None and not options.dry_run:
        yield f"the replay's name is {name}; to go on after an interruption: --name {name}"


JOB_COLUMNS: Final = (
    Column("name", "JOB"),
    Column("state", "STATE"),
    Column("finished", "FINISHED (UTC)"),
    Column("offset", "OFFSET", is_number=True),
    Column("behind", "BEHIND", is_number=True),
    Column("error", "ERROR"),
)

GAP_COLUMNS: Final = (
    Column("first", "FIRST OFFSET", is_number=True),
    Column("hi", "LAST OFFSET", is_number=True),
    Column("rows", "ROWS MISSING", is_number=True),
    Column("accepted", "ACCEPTED (UTC)"),
    Column("batch", "BATCH"),
)


@click.command()
@click.option("--gaps", "lists_gaps", is_flag=True,
              help="List the gaps that were accepted, instead of the jobs.")  # fmt: skip
@output_option
@target_options
def status(target: PipelineTarget, lists_gaps: bool, output: str | None) -> None:
    """Show the jobs and how far they are behind; needs neither Spark nor Java.

    Reads the summary of the last run, from --out or from the broker, and asks the broker where
    its history ends.
    """
    summary = read_summary(target)
    style = output or ("table" if sys.stdout.isatty() else "jsonl")
    if lists_gaps:
        write_rows(gap_rows(target, summary or {}), GAP_COLUMNS, style, "no gap was accepted")
        return
    bounds, trouble = _bounds(target)
    if summary is None:
        raise CommandError(
            f"no run has left a summary in {target.out}: phpmq-lite pipeline run", NOT_FOUND
        )
    write_rows(job_rows(summary, bounds), JOB_COLUMNS, style, "no job has run yet")
    if style == "table":
        for line in status_notes(summary, bounds, time.time() * 1_000):
            click.echo(line)
    if trouble:
        print_message(f"the end of the history is not known: {trouble}")


def gap_rows(target: PipelineTarget, summary: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the accepted gaps, the newest first: of the ledger, or of the summary."""
    folder = target.out_folder
    found = summary.get("gaps", [])
    if folder is not None and folder.is_dir():
        found = [asdict(gap) for gap in read_gaps(LocalResultsFolder(folder))]
    return [{**gap, "first": gap["lo"] + 1, "accepted": time_text(gap["at_ms"])} for gap in found]


def read_summary(target: PipelineTarget) -> dict[str, Any] | None:
    """Read ``summary.json`` beside the results, else ask the broker; None where there is none."""
    folder = target.out_folder
    try:
        if folder is not None:
            return _document((folder / "summary.json").read_text(encoding="utf-8"), folder)
    except FileNotFoundError:
        pass
    if target.url is None:
        return None
    try:
        found: dict[str, Any] = target.node.get("/pipeline/insights")
    except CommandError as error:
        if error.code == NOT_FOUND:
            return None
        raise
    return found


def _document(text: str, folder: Path) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads(text)
    except ValueError as error:
        raise CommandError(f"{folder / 'summary.json'} is no JSON: {error}") from None
    return found


def _bounds(target: PipelineTarget) -> tuple[dict[str, Any] | None, str | None]:
    """Ask where the history ends; the second says why that is not known."""
    if target.url is None:
        return None, None
    try:
        return target.node.get("/pipeline/history/bounds"), None
    except CommandError as error:
        return None, str(error)


def job_rows(summary: dict[str, Any], bounds: dict[str, Any] | None) -> list[dict[str, Any]]:
    """Give a row per job: the summary's, with ``finished`` as text and ``behind`` in offsets."""
    end = bounds["hi"] if bounds and bounds["history_id"] == summary.get("history_id") else None
    return [
        {
            **job,
            "finished": time_text(job.get("finished_at")),
            "behind": None
            if end is None or job.get("offset") is None
            else max(end - job["offset"], 0),
        }
        for job in summary.get("jobs", [])
    ]


def status_notes(
    summary: dict[str, Any], bounds: dict[str, Any] | None, now_ms: float
) -> list[str]:
    """Say what the table does not: age, archive, another history."""
    finished_at = summary.get("finished_at") or 0
    found = [f"last run: {time_text(finished_at)} UTC, {_age((now_ms - finished_at) / 1_000)} ago"]
    archive = summary.get("archive") or {}
    if archive:
        found.append(
            f"archive: {archive.get('rows') or 0:,} rows of {archive.get('dates') or 0:,} dates,"
            f" {archive.get('bytes') or 0:,} bytes, to offset {archive.get('offset') or 0:,}"
        )
    if archive.get("gaps"):
        found.append(
            f"accepted gaps: {archive['gaps']:,}, up to {archive['missing']:,} rows are missing in"
            " the archive (status --gaps lists them)"
        )
    if bounds and summary.get("history_id") not in (None, bounds["history_id"]):
        found.append(
            "the broker's history is another one than the archive's: it was restored or replaced"
        )
    elif bounds and archive:
        has_deleted = not archive.get("outcomes") or DELETED in archive["outcomes"]
        lo = max(bounds["lo"], bounds["lo_deleted"] if has_deleted else 0)
        missing = lo - (archive.get("offset") or 0)
        if missing > 0:
            found.append(f"retention took up to {missing:,} rows before they were archived")
    return found


def time_text(at_ms: float | None) -> str | None:
    """Write Unix milliseconds as a UTC time to the second."""
    if not at_ms:
        return None
    return f"{datetime.fromtimestamp(at_ms / 1_000, UTC):%Y-%m-%d %H:%M:%S}"


def _age(seconds: float) -> str:
    for unit, length in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{max(seconds, 0):.0f} s"


APP_ID_COLUMNS: Final = (
    Column("app_id", "APP ID"),
    Column("owner", "OWNER"),
    Column("version", "VERSION", is_number=True),
    Column("at", "PUBLISHED (UTC)"),
    Column("rows", "ROWS", is_number=True),
)


@click.command(name="app-ids")
@admin_client_options
@output_option
def app_ids(node: AdminClient, output: str | None) -> None:
    """List the keys of exactly-once writes (a stream's query id, or txnAppId) and their owners.

    One without an owner belongs to the next user who publishes under it.
    """
    rows = [{**row, "at": time_text(row["at_ms"])} for row in node.list("/pipeline/app-ids")]
    write_rows(rows, APP_ID_COLUMNS, output, "nothing was published with a key")


@click.command()
@click.argument("app_id")
@click.option(
    "--to",
    "owner",
    metavar="USER",
    help="A user, or 'token NAME' for who made that token; without: the next who publishes.",
)
@admin_client_options
def transfer(node: AdminClient, app_id: str, owner: str | None) -> None:
    """Transfer APP_ID, the key of exactly-once writes, to another user.

    Only its owner can publish under it; needs an admin.
    """
    done = node.post("/pipeline/app-ids/transfer", {"app_id": app_id, "owner": owner})
    print_message(f"{app_id} belongs to {done['owner'] or 'the next who publishes under it'}")


@click.command()
@click.option(
    "--to",
    type=click.Path(path_type=Path),
    default=Path(),
    help="File, or the folder for it.  [default: .]",
)
def package(to: Path) -> None:
    """Build the zip for --py-files; prints its path.

    For sessions of your own on a cluster: spark-submit --py-files ZIP, or
    spark.sparkContext.addPyFile(ZIP) before the first query. The pipeline's own commands ship it
    themselves. The same code gives the same bytes.
    """
    path = executor_zip.build_zip(to / executor_zip.zip_name() if to.is_dir() else to)
    print_message(f"{path.stat().st_size:,} bytes, sha256 {executor_zip.sha256_of(path)}")
    click.echo(path)
