"""The command ``pipeline erase``."""

from typing import Any

import click

from phpmq_lite.cli.errors import NOT_FOUND, CommandError
from phpmq_lite.cli.output import columns, format_utc, number_columns, output_option, write_rows
from phpmq_lite.cli.parameters import flag, option, repeatable
from phpmq_lite.cli.pipeline.job_runner import PipelineJob, run_jobs, source_connection
from phpmq_lite.cli.pipeline.target import PipelineTarget, target_options
from phpmq_lite.spark.erased_ids import runs_with
from phpmq_lite.spark.results_folder import open_results


@click.command()
@repeatable(("--trace", "traces"), "Messages with this trace id. Repeatable.", metavar="ID")
@option(
    "--where",
    "Settled messages matching a Spark SQL expression, such as \"message_id = '…'\".",
    metavar="SQL",
)
@flag("--live", "Delete live messages and dead-letter records, too, then erase them.")
@flag("--now", "Remove replaced files of the archive now instead of after a day.")
@flag("--dry-run", "Count, and change nothing.")
@option("--check", "Only show when this message id or trace id was erased.", metavar="ID")
@output_option
@target_options
def erase(target: PipelineTarget, check: str | None, output: str | None, **fields: Any) -> None:
    """Erase the data of messages in all places.

    These are the broker, the archive and all tables. Rows stay, with null instead of data. Copies
    are erased, too: dead-letter records, and what was restored, redriven or edited. If any of them
    is live, nothing is changed without --live. Repeat the command if it was interrupted. Requires
    the admin role.
    """
    if check is not None:
        _show_runs(target, check, output)
        return
    if bool(fields["traces"]) == bool(fields["where"]):
        raise click.UsageError("select messages, with either --trace or --where")
    if target.url is None:
        raise click.UsageError("erase requires a broker; use --url instead of --path")
    connection = source_connection(target)
    from phpmq_lite.spark.jobs.options import EraseOptions

    options = EraseOptions(connection=connection, out=target.results, **fields)
    run_jobs(target, [PipelineJob("erase", options, is_noted=False)], output=output)


def _show_runs(target: PipelineTarget, id_: str, output: str | None) -> None:
    if target.results_folder is None:
        raise CommandError("--check needs a results folder on this machine")
    runs = runs_with(open_results(None, target.results), id_)
    if not runs:
        raise CommandError("no run has erased this id", NOT_FOUND)
    rows = [
        {**run, "began": format_utc(run["at_ms"]), "finished": format_utc(run["finished_at"])}
        for run in runs
    ]
    write_rows(rows, (*columns("began", "finished"), *number_columns("hashes")), output, "no runs")
