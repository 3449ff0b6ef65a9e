"""``import-initphp``: publishes what waits in the tables of an InitPHP Queue database."""

import sqlite3
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Final
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import click

from phpmq_lite.cli.connect import GiveClient, client_options
from phpmq_lite.cli.importing import NOT_VALID, Item, Tally, journal_option, opened, publish
from phpmq_lite.cli.main import CommandError
from phpmq_lite.cli.options import duration
from phpmq_lite.cli.output import Column, counting, output_option, write
from phpmq_lite.client.blocking_client import BlockingClient
from phpmq_lite.envelopes.outbox import wall_ms
from phpmq_lite.moving import initphp
from phpmq_lite.moving.initphp import Kind, Layout, Planned

_AT_ONCE: Final = 500
_AT_ONCE_BYTES: Final = 4 << 20
_HEADS: Final = (Column("table", "TABLE"), Column("queue", "QUEUE"), Column("target", "TO"))


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
@journal_option
@click.option("--dry-run", is_flag=True, help="Show what would be published; connect to nobody.")
@output_option
@client_options
def import_initphp(
    client: GiveClient,
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
    with opened(journal_path) as journal:
        tally = Tally(_HEADS, journal, (NOT_VALID,))
        try:
            with closing(initphp.open_source(database)) as source:
                for kind in kinds:  # all that is missing is said before the first is stored
                    initphp.columns(source, kind, layout)
                now_ms, name = wall_ms(), str(database.resolve())
                items = (
                    _item(initphp.plan(row, now_ms, source=name, reserved_s=reserved_s), layout)
                    for kind in kinds
                    for row in initphp.read_rows(source, kind, layout, zone)
                )
                if dry_run:
                    deque(map(tally.count, items), maxlen=0)
                else:
                    _publish(client(), _batches(items), tally)
        except sqlite3.Error as error:
            raise CommandError(f"{database.name}: {error}") from None
        finally:
            if tally.rows():
                write(tally.rows(), tally.columns, output, "")
    tally.end(is_dry=dry_run)


def _item(planned: Planned, layout: Layout) -> Item:
    row, message = planned.row, planned.message
    target = row.queue if message is None else message.queue
    group = (layout.table(row.kind), row.queue, target)
    return Item(group, f"{row.kind} row {row.row_id} for {row.queue}", message, planned.problem)


def _publish(client: BlockingClient, batches: Iterable[list[Item]], tally: Tally) -> None:
    """Publish all, batch by batch, in the order of the rows."""
    with client, counting("import", None) as advance:
        for batch in batches:
            publish(client, batch, tally)
            advance(len(batch))


def _batches(items: Iterable[Item]) -> Iterator[list[Item]]:
    """Cut into what is sent at once."""
    batch: list[Item] = []
    size = 0
    for item in items:
        batch.append(item)
        size += 0 if item.message is None else len(item.message.content)
        if len(batch) == _AT_ONCE or size >= _AT_ONCE_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch
