"""``import-initphp``: publishes what waits in the tables of an InitPHP Queue database."""

import sqlite3
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import click

from phpmq_lite.cli.connect import client_options
from phpmq_lite.cli.main import CommandError
from phpmq_lite.cli.options import duration, talk
from phpmq_lite.cli.output import Column, counting, output_option, write
from phpmq_lite.client.blocking import BlockingClient
from phpmq_lite.envelopes import initphp
from phpmq_lite.envelopes.initphp import Journal, Kind, Layout, Planned
from phpmq_lite.envelopes.keyed import NoAnswerError, Outgoing, publish_each
from phpmq_lite.envelopes.outbox import wall_ms
from phpmq_lite.logs import escape

_AT_ONCE: Final = 500
_AT_ONCE_BYTES: Final = 4 << 20

Batch = list[tuple[Planned, Outgoing]]

COLUMNS: Final = (
    Column("table", "TABLE"),
    Column("queue", "QUEUE"),
    Column("target", "TO"),
    Column("rows", "ROWS", is_number=True),
    Column("held", "HELD", is_number=True),
    Column("before", "STORED BEFORE", is_number=True),
    Column("not_valid", "NOT VALID", is_number=True),
    Column("stored", "STORED", is_number=True),
)


def timezone(name: str) -> ZoneInfo:
    """Give a time zone; a click type."""
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError):
        raise click.BadParameter(f"{name!r} is no time zone; write Europe/Berlin") from None


def mapping(value: str) -> tuple[str, str]:
    """Give both names of ``payload=body``; a click type."""
    name, sign, column = value.partition("=")
    known = {*initphp.REQUIRED, *initphp.OPTIONAL["jobs"], *initphp.OPTIONAL["failed"]}
    if not sign or not column or name.removeprefix("failed.") not in known:
        raise click.BadParameter(f"{value!r} is no NAME=COLUMN with NAME of {', '.join(known)}")
    return name, column


@click.command("import-initphp")
@click.argument("database", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--table", default="jobs", show_default=True, help="The table of jobs.")
@click.option("--failed-table", help="That of failed jobs.  [default: TABLE_failed]")
@click.option("--no-failed", is_flag=True, help="Leave the failed jobs alone.")
@click.option(
    "--column", "columns", type=mapping, multiple=True, metavar="NAME=COLUMN",
    help="Where a column is called otherwise: payload=body; failed.payload=body for the table "
    "of failed jobs alone. Repeatable.",
)  # fmt: skip
@click.option(
    "--timezone", "zone", type=timezone, default="UTC", show_default=True,
    help="The time zone of the PHP processes, in which the tables' times are.",
)  # fmt: skip
@click.option(
    "--retry-after", "reserved_s", type=duration, default="90s", show_default=True,
    metavar="DURATION",
    help="A job that a worker reserved less than this ago is left out.",
)  # fmt: skip
@click.option(
    "--journal", "journal_path", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE",
    help="Remember in FILE what is stored, so that a run next week leaves it out too.",
)  # fmt: skip
@click.option("--dry-run", is_flag=True, help="Show what would be published; connect to nobody.")
@output_option
@client_options
def import_initphp(
    client: BlockingClient,
    database: Path,
    table: str,
    failed_table: str | None,
    no_failed: bool,
    columns: tuple[tuple[str, str], ...],
    zone: ZoneInfo,
    reserved_s: int,
    journal_path: Path | None,
    dry_run: bool,
    output: str | None,
) -> None:
    """Publish what waits in the tables jobs and jobs_failed of an InitPHP Queue database.

    Stop its workers first. The database is only read. Jobs that wait for a retry go to
    QUEUE.retry with the rest of their delay, failed ones to QUEUE.dlq. Each has a key of its own:
    a second run within the broker's window of keys stores nothing twice.
    """
    layout = Layout(
        table,
        failed_table or f"{table}_failed",
        {name: column for name, column in columns if not name.startswith("failed.")},
        {name[7:]: column for name, column in columns if name.startswith("failed.")},
    )
    kinds: tuple[Kind, ...] = ("jobs",) if no_failed else ("jobs", "failed")
    tally = _Tally(layout)
    try:
        with closing(initphp.open_source(database)) as source, _journal(journal_path) as journal:
            now_ms, name = wall_ms(), str(database.resolve())
            planned = (
                initphp.plan(row, now_ms, source=name, reserved_s=reserved_s)
                for kind in kinds
                for row in initphp.read_rows(source, kind, layout, zone)
            )
            batches = _batches(planned, tally, journal)
            if dry_run:
                deque(batches, maxlen=0)
            else:
                _publish(client, batches, tally, journal)
    except sqlite3.Error as error:
        raise CommandError(f"{database.name}: {error}") from None
    finally:
        if tally.rows():
            write(tally.rows(), COLUMNS, output, "")
    _end(tally, dry_run)


@contextmanager
def _journal(path: Path | None) -> Iterator[Journal | None]:
    if path is None:
        yield None
    else:
        with closing(Journal(path)) as journal:
            yield journal


def _end(tally: "_Tally", dry_run: bool) -> None:
    if tally.held:
        talk(f"{tally.held:,} left out: a worker has reserved them; run this again later")
    talk(f"{tally.total:,} would be published" if dry_run else f"{tally.stored:,} stored")
    if tally.errors:
        raise CommandError(f"{tally.errors:,} could not be stored")


def _publish(
    client: BlockingClient, batches: Iterable[Batch], tally: "_Tally", journal: Journal | None
) -> None:
    """Publish all, batch by batch, in the order of the rows.

    Raises:
        CommandError: the broker does not answer.
    """
    with client, counting("import", None) as advance:
        for batch in batches:
            outcomes = publish_each(client, [message for _, message in batch])
            if journal is not None:
                done = zip(batch, outcomes, strict=True)
                journal.add(message.key for (_, message), outcome in done if outcome is None)
            for (item, _), outcome in zip(batch, outcomes, strict=True):
                if isinstance(outcome, NoAnswerError):
                    raise CommandError(f"{outcome}; run this again, nothing is stored twice")
                if outcome is None:
                    tally.store(item)
                else:
                    tally.errors += 1
                    what = f"{item.row.kind} row {item.row.row_id}"
                    talk(f"{what} for {escape(item.row.queue)}: {escape(str(outcome))}")
            advance(len(batch))


def _batches(
    planned: Iterable[Planned], tally: "_Tally", journal: Journal | None
) -> Iterator[Batch]:
    """Count all; yield what is to be sent at once, without what a worker has or an earlier run."""
    batch: Batch = []
    size = 0
    for item in planned:
        is_stored = (
            journal is not None and item.message is not None and journal.has(item.message.key)
        )
        tally.count(item, is_stored=is_stored)
        if item.message is None or is_stored:
            continue
        batch.append((item, item.message))
        size += len(item.message.content)
        if len(batch) == _AT_ONCE or size >= _AT_ONCE_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


@dataclass(slots=True)
class _Tally:
    """What is shown at the end, by table, queue and target."""

    layout: Layout
    total: int = 0  # to be published
    stored: int = 0
    held: int = 0
    errors: int = 0
    _groups: dict[tuple[str, str, str], dict[str, Any]] = field(default_factory=dict)

    def count(self, item: Planned, *, is_stored: bool) -> None:
        """Count a row; ``is_stored``: an earlier run has published it."""
        group = self._group(item)
        group["rows"] += 1
        if item.message is None:
            group["held"] += 1
            self.held += 1
        elif is_stored:
            group["before"] += 1
        else:
            self.total += 1
        if item.problem is not None:
            group["not_valid"] += 1
            reasons = group["reasons"]
            reasons[item.problem] = reasons.get(item.problem, 0) + 1

    def store(self, item: Planned) -> None:
        """Count a row that the broker has."""
        self._group(item)["stored"] += 1
        self.stored += 1

    def rows(self) -> list[dict[str, Any]]:
        """Return the groups, in the order in which they were seen first."""
        return list(self._groups.values())

    def _group(self, item: Planned) -> dict[str, Any]:
        table = self.layout.table(item.row.kind)
        target = item.row.queue if item.message is None else item.message.queue
        fresh = {
            "table": table, "queue": item.row.queue, "target": target, "rows": 0, "held": 0,
            "before": 0, "not_valid": 0, "reasons": {}, "stored": 0,
        }  # fmt: skip
        return self._groups.setdefault((table, item.row.queue, target), fresh)
