"""The ``pipeline`` command group: jobs, replay, status, exactly-once write keys, packaging."""

import json
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import asdict
from datetime import date
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

import click

from phpmq_lite.admin.formats import format_duration
from phpmq_lite.cli.admin_client import AdminClient, admin_client_options, admin_output_options
from phpmq_lite.cli.errors import NOT_FOUND, CommandError
from phpmq_lite.cli.output import (
    add_options,
    columns,
    format_utc,
    number_columns,
    output_format,
    output_option,
    print_message,
    write_rows,
)
from phpmq_lite.cli.parameters import (
    choice,
    duration,
    flag,
    messages_per_second,
    number_option,
    option,
    repeatable,
    time_ms,
)
from phpmq_lite.cli.pipeline.doctor import doctor
from phpmq_lite.cli.pipeline.erase import erase
from phpmq_lite.cli.pipeline.job_runner import (
    PipelineJob,
    command_session,
    require_spark,
    run_jobs,
    source_connection,
)
from phpmq_lite.cli.pipeline.target import PipelineTarget, target_options
from phpmq_lite.cli.status import reader_text
from phpmq_lite.errors import OptionError
from phpmq_lite.model import OUTCOMES
from phpmq_lite.spark import executor_zip
from phpmq_lite.spark.body_mask import parse_path
from phpmq_lite.spark.results_folder import (
    ARCHIVE,
    EVENTS,
    LocalResultsFolder,
    ResultsFolder,
    open_results,
    read_gaps,
)
from phpmq_lite.spark.source_options import DELETED
from phpmq_lite.text_files import TextFileError, read_text

if TYPE_CHECKING:
    from phpmq_lite.spark.jobs.options import ReplayOptions
    from phpmq_lite.spark.jobs.verify import VerifyReport


@click.group()
def pipeline() -> None:
    """Archive, measure and replay the history with Spark.

    Requires the extra `spark` and Java 17 or newer (the extra `java`, if none is installed);
    `phpmq-lite pipeline doctor` prints what is missing and how to install it.
    """


pipeline.add_command(doctor)
pipeline.add_command(erase)


def _job_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options of a job that can run repeatedly, including --continuous (``every_s``)."""

    @wraps(command)
    def run(continuous: bool, every_s: int, **others: Any) -> None:
        command(every_s=every_s if continuous else None, **others)

    return add_options(
        run,
        target_options,
        output_option,
        option(
            ("--every", "every_s"),
            "Pause between --continuous rounds; at least as long as the round before it.",
            duration,
            "60s",
        ),
        flag("--continuous", "Repeat until Ctrl-C or SIGTERM."),
    )


def starting_offset(value: str) -> str:
    """Return a starting offset, which must be ``earliest``, ``latest`` or a number."""
    if value in ("earliest", "latest") or (value.isascii() and value.isdigit()):
        return value
    raise click.BadParameter(f"{value!r} is not a valid offset; use earliest, latest or a number")


_keep_replaced: Final = option(
    ("--keep-replaced", "keep_replaced_ms"),
    "Keep files that were replaced or pruned this long, for readers of older lists.",
    lambda text: duration(text) * 1_000,
    "24h",
    metavar="DURATION",
)


def mask_paths(value: str) -> tuple[str, ...]:
    """Return the paths of a mask, separated by commas."""
    paths = tuple(filter(None, value.split(",")))
    try:
        for path in paths:
            parse_path(path)
    except OptionError as error:
        raise click.BadParameter(str(error)) from None
    return paths


_mask: Final = option(
    ("--mask", "masks"),
    "Replace these members of bodies by null, as JSON pointers or names with dots and *, separated"
    " by commas; the first run fixes them.",
    mask_paths,
    "",
    metavar="PATHS",
)


def _archive_options(command: Any) -> Any:
    return add_options(
        command,
        flag("--accept-gap", "Continue even if retention removed rows before they were archived."),
        flag(
            "--backfill",
            "If the token or the options select more than before, first add the rows that the"
            " archive lacks.",
        ),
        number_option(
            ("--partitions", "num_partitions"),
            "Number of ranges to read in parallel."
            "  [default: 1 up to 50,000 offsets, 2 up to 2,000,000, then more]",
        ),
        number_option(
            ("--max-offsets", "max_offsets_per_trigger"),
            "Maximum number of offsets per batch.",
            default=1_000_000,
        ),
        option(
            ("--starting", "starting_offsets"),
            "Where the first run starts: earliest, latest or the first offset to archive.",
            starting_offset,
            "earliest",
            metavar="OFFSET",
        ),
        option("--queue-pattern", "Only queues whose name matches.", metavar="GLOB"),
        repeatable(
            ("--queue", "queues"),
            "Only this queue. Repeatable; the first run fixes the selection.",
            metavar="NAME",
        ),
        repeatable(
            ("--outcome", "outcomes"),
            "Only messages with this outcome. Repeatable; without deleted, the"
            " removal of deleted messages is not a gap.",
            click.Choice(list(OUTCOMES)),
        ),
        flag("--bodies", "Also archive bodies, which replay requires."),
        option(
            "--broker",
            "A name for the column broker, so that several archives share a table"
            " (default: the history_id).",
            metavar="NAME",
        ),
        _mask,
        _keep_replaced,
        choice(
            "--format",
            "delta: also keep a Delta log of the same files, in OUT; from then on, every job"
            " keeps it up to date.",
            "parquet",
            "delta",
        ),
    )


def _job(target: PipelineTarget, name: str, /, **fields: Any) -> PipelineJob:
    """Return a job; its options, such as ``ArchiveOptions``, are created from ``fields``."""
    if "accept_gap" in fields:
        fields["fail_on_data_loss"] = not fields.pop("accept_gap")
    connection = source_connection(target)
    from phpmq_lite.spark.jobs import options

    options_type = getattr(options, f"{name.capitalize()}Options")
    return PipelineJob(name, options_type(connection=connection, out=target.results, **fields))


@pipeline.command()
@_archive_options
@_job_options
def archive(target: PipelineTarget, every_s: int | None, output: str | None, **fields: Any) -> None:
    """Archive the history as Parquet, each offset exactly once.

    The files are OUT/archive/date=…/batch=…. Continues after the last run. Rows that retention
    removed before they were archived cause an error unless you set --accept-gap.
    """
    run_jobs(target, [_job(target, "archive", **fields)], every_s=every_s, output=output)


def utc_date(value: str) -> date:
    """Parse a date such as ``2026-01-31``."""
    try:
        return date.fromisoformat(value)
    except ValueError:
        raise click.BadParameter(f"{value!r} is not a date; use the format YYYY-MM-DD") from None


@pipeline.command()
@repeatable(
    ("--date", "dates"),
    "Always recompute this day (UTC). Repeatable.",
    utc_date,
    metavar="YYYY-MM-DD",
)
@_job_options
def metrics(
    target: PipelineTarget, dates: tuple[date, ...], every_s: int | None, output: str | None
) -> None:
    """Compute metrics per queue and minute from the archive.

    The files are OUT/metrics/TABLE/date=…. Each date with new rows is recomputed and replaced
    completely.
    """
    run_jobs(target, [_job(target, "metrics", dates=dates)], every_s=every_s, output=output)


@pipeline.command()
@_keep_replaced
@output_option
@target_options
def compact(target: PipelineTarget, output: str | None, **fields: Any) -> None:
    """Merge the archive's small files for past dates.

    Rows are counted and compared before the files are replaced.
    """
    run_jobs(target, [_job(target, "compact", **fields)], output=output)


@pipeline.command()
@option(
    ("--older-than", "older_than_s"),
    "Remove the dates (UTC) that ended this long ago, such as 90d.",
    duration,
    required=True,
)
@_keep_replaced
@output_option
@target_options
def prune(target: PipelineTarget, output: str | None, **fields: Any) -> None:
    """Remove old dates from the archive and from typed tables.

    Their counts stay in the archive's ledger, and their metrics stay. The archive's files stay
    until --keep-replaced has passed, and a later job of the archive removes them.
    """
    run_jobs(target, [_job(target, "prune", **fields)], output=output)


VERIFY_COLUMNS: Final = (
    *columns(date="DATE", queue="QUEUE", outcome="OUTCOME"),
    *number_columns("broker", "compared", "archived", "counted", "missing", "doubled"),
)


@pipeline.command()
@output_option
@target_options
def verify(target: PipelineTarget, output: str | None) -> None:
    """Compare the archive with the broker and its ledger.

    Offsets that both still have are compared with the broker by day, queue and outcome, all rows
    with the counts in the ledger. Exits with 1 if rows are missing or doubled. The table shows the
    differences; the other formats have all rows.
    """
    connection = source_connection(target)
    with command_session(target) as (spark, progress):
        progress("verify")
        from phpmq_lite.spark.jobs import verify as verifying
        from phpmq_lite.spark.jobs.options import JobOptions

        report = verifying.run(spark, JobOptions(connection=connection, out=target.results))
    style = output_format(output)
    if style == "json":
        click.echo(json.dumps(report.document(), indent=2))
    else:
        rows = report.differences if style == "table" else report.rows
        write_rows(map(asdict, rows), VERIFY_COLUMNS, style, "no differences")
    if style == "table":
        for line in verify_notes(report):
            click.echo(line)
    if not report.is_equal:
        raise CommandError("the archive differs from what it should contain")


def verify_notes(report: "VerifyReport") -> Iterator[str]:
    """Yield lines about what was compared, and how rows that are not there are accounted for."""
    totals = report.document()
    archived, compared = totals["archived_rows"], totals["compared_rows"]
    if report.lo is not None and report.hi is not None:
        yield (
            f"{compared:,} of {archived:,} archived rows were compared with the broker"
            f" (offsets {report.lo + 1} to {report.hi}), all with the ledger's counts"
        )
    else:
        yield f"{archived:,} archived rows were compared with the ledger's counts only"
    if report.behind:
        yield f"the broker has {report.behind:,} later offsets, which are not archived yet"
    if report.removed:
        yield f"{report.removed:,} rows were pruned"
    if report.gaps:
        yield f"{report.gaps:,} accepted gaps lack up to {report.gap_rows:,} rows"
    if report.unexplained:
        yield f"{report.unexplained:,} archived offsets have neither a row nor an accepted gap"
    if report.lost_events:
        yield f"the files of events lack {report.lost_events:,} rows"
    yield from report.notes


FILE_COLUMNS: Final = (*columns(path="PATH"), *number_columns("rows", "bytes", "lo", "hi"))


@pipeline.command()
@click.argument("table", default=ARCHIVE)
@repeatable(
    ("--date", "dates"),
    "Only rows settled on this day (UTC). Repeatable.",
    utc_date,
    metavar="YYYY-MM-DD",
)
@output_option
@target_options
def files(target: PipelineTarget, table: str, dates: tuple[date, ...], output: str | None) -> None:
    """List the files of the archive, or of another table.

    TABLE is a folder in OUT, such as events or metrics/minutes. Prints one path or URI per line.
    Each row of the archive and its events is in exactly one of the files, and they stay readable
    for 24 hours, whatever other jobs do. Without --out on this machine, the command starts Spark.
    """
    with ExitStack() as stack:
        spark = None
        if target.results_folder is None:
            require_spark()
            spark, _ = stack.enter_context(command_session(target))
        folder = open_results(spark, target.results)
        rows = file_rows(folder, table, [day.isoformat() for day in dates] or None)
        if not rows:
            raise CommandError(f"{target.results} has no files of {table}", NOT_FOUND)
        for row in rows:
            url = folder.url(row["path"])
            row["path"] = url if target.results_folder is None else url.removeprefix("file://")
    if output is None:
        for row in rows:
            click.echo(row["path"])
    else:
        write_rows(rows, FILE_COLUMNS, output, "no files")


def file_rows(
    folder: ResultsFolder, table: str, dates: list[str] | None = None
) -> list[dict[str, Any]]:
    """Return the files of a table with paths relative to ``folder``, by path or by date."""
    from phpmq_lite.spark.ledger import archive_files, read_ledger

    ledger = read_ledger(folder) if table in (ARCHIVE, EVENTS) else None
    if ledger is not None:
        listed = map(asdict, archive_files(folder, ledger, table=table, dates=dates))
        return [{**file, "bytes": file.pop("size_bytes")} for file in listed]
    return [
        {"path": path, "bytes": size}
        for path, size in folder.data_files(table).items()
        if dates is None or any(f"/date={day}/" in path for day in dates)
    ]


@pipeline.command()
@choice("--by", "Write one table for each URN, or for each queue.", "urn", "queue")
@repeatable(
    "--rebuild", "First create the table of this URN or queue again. Repeatable.", metavar="NAME"
)
@_job_options
def tables(target: PipelineTarget, every_s: int | None, output: str | None, **fields: Any) -> None:
    """Write a typed Parquet table for each URN from archived bodies.

    The files are OUT/tables/NAME, by queue OUT/queue_tables/NAME. The columns are those of the
    schema registered in the broker; without one, they are inferred once from the bodies. Bodies
    that the schema rejects are in OUT/rejects/NAME. Requires `archive --bodies`. Continues after
    the last run.
    """
    run_jobs(target, [_job(target, "tables", **fields)], every_s=every_s, output=output)


@pipeline.command()
@_archive_options
@flag("--tables", "Also write typed tables by URN, as later runs with this OUT then do.")
@_job_options
def run(
    target: PipelineTarget, tables: bool, every_s: int | None, output: str | None, **fields: Any
) -> None:
    """Run archive, metrics, tables and compact in one session.

    Typed tables are written once OUT has some, or with --tables; then bodies are archived, too. If
    OUT is not on this machine, only --tables counts. Run it from a timer, or with --continuous.
    """
    groupings = _table_groupings(target, is_requested=tables)
    fields["bodies"] |= bool(groupings)
    archiving = _job(target, "archive", **fields)
    merging = _job(target, "compact", keep_replaced_ms=archiving.options.keep_replaced_ms)
    typing = [_job(target, "tables", by=by) for by in groupings]
    jobs = [archiving, _job(target, "metrics"), *typing, merging]
    run_jobs(target, jobs, every_s=every_s, output=output)


def _table_groupings(target: PipelineTarget, *, is_requested: bool) -> list[str]:
    """Return whether a run writes tables by urn and by queue."""
    require_spark()
    from phpmq_lite.spark.table_store import FOLDERS, read_state

    requested = ["urn"] if is_requested else []
    if target.results_folder is None:
        return requested
    folder = open_results(None, target.results)
    return [by for by in FOLDERS if by in requested or read_state(folder, by) is not None]


@pipeline.command()
@click.argument("queue")
@option(
    "--subscription",
    "Subscription that holds messages until acknowledged.",
    default="pipeline",
    metavar="NAME",
)
@option(
    "--max-messages", "Maximum messages per batch.", click.IntRange(1, 100_000), 10_000, metavar="N"
)
@flag(
    "--accept-gap",
    "Continue even if messages of an unfinished batch were released; they are consumed again.",
)
@_job_options
def consume(target: PipelineTarget, every_s: int | None, output: str | None, **fields: Any) -> None:
    """Consume a queue into Parquet files and acknowledge each batch.

    The files are in OUT/consumed/QUEUE. Delivery is at least once; a repeated batch overwrites its
    own files. Requires the operator role.
    """
    job = _job(target, "consume", **fields)
    if target.url is None:
        raise click.UsageError("consume requires a broker; use --url instead of --path")
    run_jobs(target, [job], every_s=every_s, output=output)


_SELECTORS: Final = ("queues", "queue_pattern", "outcomes", "reasons", "urns", "traces", "where")


@pipeline.command()
@repeatable(("--queue", "queues"), "Only this queue. Repeatable.", metavar="NAME")
@option("--queue-pattern", "Only queues whose name matches.", metavar="GLOB")
@option(("--since", "since_ms"), "Settled since this time.", time_ms, metavar="TIME")
@option(("--until", "until_ms"), "Settled before this time.", time_ms, metavar="TIME")
@repeatable(
    ("--outcome", "outcomes"),
    "Only this outcome. Repeatable.  [default: all]",
    click.Choice(list(OUTCOMES)),
)
@repeatable(("--reason", "reasons"), "Only this reason. Repeatable.", metavar="TEXT")
@repeatable(("--urn", "urns"), "Only this URN. Repeatable.", metavar="URN")
@repeatable(("--trace", "traces"), "Only this trace id. Repeatable.", metavar="ID")
@option(
    "--where",
    "Only rows matching a Spark SQL expression, such as \"size > 1000 AND reason = 'failed'\".",
    metavar="SQL",
)
@option(("--to", "to_queue"), "Target queue.  [default: each message's queue]", metavar="QUEUE")
@option(("--ttl", "ttl_s"), "Time to live.  [default: the queue's]", duration)
@option("--rate", "Maximum rate, such as 20/s.", messages_per_second, metavar="N/s")
@choice(
    "--source",
    "Read the Parquet archive, or the history that the broker keeps.",
    "archive",
    "history",
)
@option(
    "--name",
    "Name of the stored plan; without a selection, continue that plan."
    "  [default: derived from the selection]",
    metavar="NAME",
)
@flag("--dry-run", "Count messages by queue without publishing.")
@output_option
@target_options
def replay(
    target: PipelineTarget,
    since_ms: int | None,
    until_ms: int | None,
    output: str | None,
    **selection: Any,
) -> None:
    """Publish settled messages again.

    A replay from the archive needs `archive --bodies`. The plan is stored and published in pieces
    of at most 10,000 messages, each exactly once. To continue an interrupted replay, repeat the
    command, or use --name alone. Envelopes lose their dead-letter block and restart at 0 attempts;
    they keep their id and trace. Times are in UTC.
    """
    require_spark()
    if target.url is None:
        raise click.UsageError("replay requires a broker; use --url instead of --path")
    if since_ms is not None and until_ms is not None and since_ms >= until_ms:
        raise click.UsageError("--since must be before --until")
    is_selected = any((since_ms, until_ms, *(selection[name] for name in _SELECTORS)))
    if not is_selected:
        _check_continuation(**selection)
    times = {"since_ms": since_ms, "until_ms": until_ms}
    job = _job(target, "replay", is_continuation=not is_selected, **times, **selection)
    for line in _describe(target, cast("ReplayOptions", job.options)):
        print_message(line)
    run_jobs(target, [job._replace(is_noted=not selection["dry_run"])], output=output)


def _check_continuation(**selection: Any) -> None:
    """Validate the options of a replay without a selection, which continues a stored plan."""
    if selection["name"] is None:
        raise click.UsageError(
            "select messages (for example with --since), or continue a stored replay with --name"
        )
    if selection["to_queue"] is not None or selection["ttl_s"] is not None:
        raise click.UsageError(
            "--to and --ttl require a selection; --name alone uses the saved plan's values"
        )


def _describe(target: PipelineTarget, options: "ReplayOptions") -> Iterator[str]:
    """Yield lines with the period of a replay, its name, and how to continue it."""
    from phpmq_lite.spark.jobs import replay_plans

    name = replay_plans.plan_name(options)
    plan = None
    if target.results_folder is not None and (options.is_continuation or not options.dry_run):
        files = open_results(None, target.results)
        plan = replay_plans.find_plan(files, options)
        if plan is not None:
            options = replay_plans.with_planned_selection(plan, options)
            sent = plan.rows_of(replay_plans.sent_pieces(files, plan))
            yield f"continuing replay {name}: {sent:,} of {plan.rows:,} messages are published"
    for preposition, at_ms in (("since", options.since_ms), ("until", options.until_ms)):
        if at_ms is not None:
            yield f"settled {preposition} {replay_plans.time_text(at_ms)}"
    if plan is None and not options.dry_run:
        yield f"this replay is named {name}; to continue it later, use --name {name}"


JOB_COLUMNS: Final = (
    *columns(name="JOB", state="STATE", finished="FINISHED (UTC)"),
    *number_columns("offset", "behind"),
    *columns("error"),
)

GAP_COLUMNS: Final = (
    *number_columns(first="FIRST OFFSET", hi="LAST OFFSET", rows="ROWS MISSING"),
    *columns(accepted="ACCEPTED (UTC)", batch="BATCH"),
)


READER_COLUMNS: Final = (
    *columns("reader"),
    *number_columns("offset", behind="ROWS BEHIND", behind_bytes="BYTES BEHIND"),
    *columns(seen="REPORTED (UTC)", reached="REACHED BY RETENTION (UTC)", bound="BY"),
)


@pipeline.command()
@flag(("--gaps", "lists_gaps"), "List the accepted gaps instead of the jobs.")
@flag(("--readers", "lists_readers"), "List the readers of the history instead of the jobs.")
@output_option
@target_options
def status(
    target: PipelineTarget, lists_gaps: bool, lists_readers: bool, output: str | None
) -> None:
    """Show the pipeline jobs and their lag. Neither Spark nor Java is required.

    Reads the summary of the last run from --out or the broker, and the end of the history from
    the broker.
    """
    style = output_format(output)
    if lists_readers:
        rows = [reader_row(row) for row in target.admin.list("/pipeline/history/readers")]
        write_rows(rows, READER_COLUMNS, style, "no reader has reported")
        return
    summary = read_summary(target)
    if lists_gaps:
        write_rows(gap_rows(target, summary or {}), GAP_COLUMNS, style, "no gaps were accepted")
        return
    bounds: dict[str, Any] | None = None
    readers: list[dict[str, Any]] = []
    problem: CommandError | None = None
    if target.url is not None:
        try:
            bounds = target.admin.get("/pipeline/history/bounds")
            readers = list(target.admin.list("/pipeline/history/readers"))
        except CommandError as error:
            problem = error
    if summary is None:
        raise CommandError(
            f"{target.results} contains no run summary; start a run with `phpmq-lite pipeline run`",
            NOT_FOUND,
        )
    write_rows(job_rows(summary, bounds), JOB_COLUMNS, style, "no job has run yet")
    if style == "table":
        for line in (
            *status_notes(summary, bounds, time.time() * 1_000),
            *map(reader_text, readers),
        ):
            click.echo(line)
    if problem:
        print_message(f"the end of the history is unknown: {problem}")


def reader_row(reader: dict[str, Any]) -> dict[str, Any]:
    """Return a row for a reader of the history; all its fields, and its times as text."""
    reached = "removed unread rows" if reader["is_reached"] else format_utc(reader["reached_at"])
    return {**reader, "seen": format_utc(reader["seen_at"]), "reached": reached}


def gap_rows(target: PipelineTarget, summary: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the accepted gaps, newest first, from the ledger or, if it is missing, the summary."""
    folder = target.results_folder
    gaps = summary.get("gaps", [])
    if folder is not None and folder.is_dir():
        gaps = [asdict(gap) for gap in read_gaps(LocalResultsFolder(folder))]
    return [{**gap, "first": gap["lo"] + 1, "accepted": format_utc(gap["at_ms"])} for gap in gaps]


def read_summary(target: PipelineTarget) -> dict[str, Any] | None:
    """Return ``summary.json`` from the results folder or the broker, or None if neither has it."""
    summary: dict[str, Any] | None = None
    if target.results_folder is not None:
        file = target.results_folder / "summary.json"
        try:
            summary = json.loads(read_text(file))
        except FileNotFoundError:
            pass
        except (OSError, TextFileError) as error:  # the broker may have it
            print_message(f"warning: {file} is not used: {error}")
        except ValueError as error:
            raise CommandError(f"{file} is not valid JSON: {error}") from None
    if summary is None and target.url is not None:
        summary = target.admin.find("/pipeline/insights")
    return summary


def job_rows(summary: dict[str, Any], bounds: dict[str, Any] | None) -> list[dict[str, Any]]:
    """Return a row for each job; ``behind`` is the number of offsets that the job has not read."""
    end = bounds["hi"] if bounds and bounds["history_id"] == summary.get("history_id") else None
    return [
        {
            **job,
            "finished": format_utc(job.get("finished_at")),
            "behind": None
            if end is None or job.get("offset") is None
            else max(end - job["offset"], 0),
        }
        for job in summary.get("jobs", [])
    ]


def status_notes(
    summary: dict[str, Any], bounds: dict[str, Any] | None, now_ms: float
) -> list[str]:
    """Return notes on the last run's age, the archive and its gaps, and a change of history."""
    finished_at = summary.get("finished_at") or 0
    age = format_duration(int(now_ms - finished_at))
    notes = [f"last run: {format_utc(finished_at)} UTC, {age} ago"]
    archive = summary.get("archive") or {}
    if archive.get("rows") is not None:
        notes.append(
            f"archive: {archive.get('rows') or 0:,} rows for {archive.get('dates') or 0:,} dates,"
            f" {archive.get('bytes') or 0:,} bytes, up to offset {archive.get('offset') or 0:,}"
        )
    if archive.get("gaps"):
        notes.append(
            f"accepted gaps: {archive['gaps']:,}, with up to {archive['missing']:,} missing rows"
            " (status --gaps lists them)"
        )
    if bounds and summary.get("history_id") not in (None, bounds["history_id"]):
        notes.append(
            "the archive belongs to another history: the broker's database was restored or replaced"
        )
    elif bounds and archive.get("offset") is not None:
        has_deleted = not archive.get("outcomes") or DELETED in archive["outcomes"]
        lo = max(bounds["lo"], bounds["lo_deleted"] if has_deleted else 0)
        missing = lo - archive["offset"]
        if missing > 0:
            notes.append(f"retention removed up to {missing:,} rows before they were archived")
    return notes


APP_ID_COLUMNS: Final = (
    *columns("app_id", "owner"),
    *number_columns("version"),
    *columns(at="PUBLISHED (UTC)"),
    *number_columns("rows"),
)


@pipeline.command(name="app-ids")
@admin_output_options
def app_ids(admin: AdminClient, output: str | None) -> None:
    """List exactly-once write keys and their owners.

    A key is the query id of a stream, or its txnAppId. A key without an owner belongs to the next
    user who publishes with it.
    """
    rows = [{**row, "at": format_utc(row["at_ms"])} for row in admin.list("/pipeline/app-ids")]
    write_rows(rows, APP_ID_COLUMNS, output, "no keys")


@pipeline.command()
@click.argument("app_id")
@option(
    ("--to", "owner"),
    "User, or 'token NAME' for the token's creator.  [default: the next user who publishes]",
    metavar="USER",
)
@admin_client_options
def transfer(admin: AdminClient, app_id: str, owner: str | None) -> None:
    """Transfer the exactly-once write key APP_ID to another user.

    Only the owner of a key can publish with it. Requires the admin role.
    """
    key = admin.post("/pipeline/app-ids/transfer", {"app_id": app_id, "owner": owner})
    print_message(f"{app_id} belongs to {key['owner'] or 'the next user who publishes with it'}")


@pipeline.command()
@option(
    "--to",
    "File or folder to write to.  [default: .]",
    click.Path(path_type=Path),
    Path(),
    show_default=False,
)
def package(to: Path) -> None:
    """Build the zip file for --py-files and print its path.

    Use it for your own sessions on a cluster: spark-submit --py-files ZIP, or
    spark.sparkContext.addPyFile(ZIP) before the first query. The pipeline commands ship it
    automatically. The same code always produces the same bytes.
    """
    path = executor_zip.build_zip(to / executor_zip.zip_name() if to.is_dir() else to)
    print_message(f"{path.stat().st_size:,} bytes, sha256 {executor_zip.sha256_of(path)}")
    click.echo(path)
