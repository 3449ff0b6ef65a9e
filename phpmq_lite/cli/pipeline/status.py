"""``pipeline status``: the jobs as the last run left them, and how far they are behind."""

import json
import sys
import time
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import click

from phpmq_lite.cli.main import NOT_FOUND, CommandError
from phpmq_lite.cli.options import talk
from phpmq_lite.cli.output import Column, output_option, write
from phpmq_lite.cli.pipeline.target import Target, target_options
from phpmq_lite.spark.jobs.files import LocalFiles
from phpmq_lite.spark.jobs.gaps import ledger
from phpmq_lite.spark.options import DELETED

COLUMNS: Final = (
    Column("name", "JOB"),
    Column("state", "STATE"),
    Column("finished", "FINISHED (UTC)"),
    Column("offset", "OFFSET", is_number=True),
    Column("behind", "BEHIND", is_number=True),
    Column("error", "ERROR"),
)

GAPS: Final = (
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
def status(target: Target, lists_gaps: bool, output: str | None) -> None:
    """Show the jobs and how far they are behind; needs neither Spark nor Java.

    Reads the summary of the last run, from --out or from the broker, and asks the broker where
    its history ends.
    """
    summary = read_summary(target)
    style = output or ("table" if sys.stdout.isatty() else "jsonl")
    if lists_gaps:
        write(gap_rows(target, summary or {}), GAPS, style, "no gap was accepted")
        return
    bounds, trouble = _bounds(target)
    if summary is None:
        raise CommandError(
            f"no run has left a summary in {target.out}: phpmq-lite pipeline run", NOT_FOUND
        )
    write(rows_of(summary, bounds), COLUMNS, style, "no job has run yet")
    if style == "table":
        for line in sentences(summary, bounds, time.time() * 1_000):
            click.echo(line)
    if trouble:
        talk(f"the end of the history is not known: {trouble}")


def gap_rows(target: Target, summary: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the accepted gaps, the newest first: of the ledger, or of the summary."""
    folder = target.out_folder
    found = summary.get("gaps", [])
    if folder is not None and folder.is_dir():
        found = [asdict(gap) for gap in ledger(LocalFiles(folder))]
    return [{**gap, "first": gap["lo"] + 1, "accepted": text_of(gap["at_ms"])} for gap in found]


def read_summary(target: Target) -> dict[str, Any] | None:
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


def _bounds(target: Target) -> tuple[dict[str, Any] | None, str | None]:
    """Ask where the history ends; the second says why that is not known."""
    if target.url is None:
        return None, None
    try:
        return target.node.get("/pipeline/history/bounds"), None
    except CommandError as error:
        return None, str(error)


def rows_of(summary: dict[str, Any], bounds: dict[str, Any] | None) -> list[dict[str, Any]]:
    """Give a row per job: the summary's, with ``finished`` as text and ``behind`` in offsets."""
    end = bounds["hi"] if bounds and bounds["history_id"] == summary.get("history_id") else None
    return [
        {
            **job,
            "finished": text_of(job.get("finished_at")),
            "behind": None
            if end is None or job.get("offset") is None
            else max(end - job["offset"], 0),
        }
        for job in summary.get("jobs", [])
    ]


def sentences(summary: dict[str, Any], bounds: dict[str, Any] | None, now_ms: float) -> list[str]:
    """Say what the table does not: age, archive, another history."""
    finished_at = summary.get("finished_at") or 0
    found = [f"last run: {text_of(finished_at)} UTC, {_age((now_ms - finished_at) / 1_000)} ago"]
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


def text_of(at_ms: float | None) -> str | None:
    """Write Unix milliseconds as a UTC time to the second."""
    if not at_ms:
        return None
    return f"{datetime.fromtimestamp(at_ms / 1_000, UTC):%Y-%m-%d %H:%M:%S}"


def _age(seconds: float) -> str:
    for unit, length in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{max(seconds, 0):.0f} s"
