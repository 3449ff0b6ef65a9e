"""The ``import`` command group, which imports messages from beanstalkd and InitPHP Queue."""

import sqlite3
from array import array
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass, field
from itertools import compress, islice
from pathlib import Path
from typing import Any, Final
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import click

from phpmq_lite.cli.admin_client import ClientFactory, client_options
from phpmq_lite.cli.errors import NOT_FOUND, CommandError
from phpmq_lite.cli.output import (
    Column,
    columns,
    number_columns,
    output_option,
    print_message,
    write_rows,
)
from phpmq_lite.cli.parameters import EXISTING_FILE, FILE, duration, flag, option, repeatable
from phpmq_lite.cli.progress import progress_bar
from phpmq_lite.cli.transfer import in_batches
from phpmq_lite.client.blocking_client import BlockingClient, NoReplyError, publish_each
from phpmq_lite.client.core import BrokerAddress, parse_address
from phpmq_lite.client.publishes import KeyedMessage
from phpmq_lite.envelopes.sqlite_file import open_file, transaction, wall_ms
from phpmq_lite.frame_options import DEFAULT_PRIORITY
from phpmq_lite.importers import beanstalkd, initphp
from phpmq_lite.importers.beanstalkd import BeanstalkdClient, BeanstalkdJob, JobGroup
from phpmq_lite.importers.initphp import Kind, PlannedMessage, TableMapping
from phpmq_lite.logs import escape

_COUNTS: Final = number_columns("found", "held", "before")  # before: an earlier run stored them
_STORED: Final = number_columns("stored")
_MAX_ERRORS: Final = 10  # maximum number of errors to print; a paused queue may cause millions
NOT_VALID: Final = number_columns("not_valid")


class ImportJournal:
    """An SQLite file with the keys of all messages that imports have stored.

    By default, the broker remembers at most 100,000 keys, and each for 10 minutes.
    """

    def __init__(self, path: Path) -> None:
        self._connection = open_file(path)
        self._connection.execute(
            "CREATE TABLE IF NOT EXISTS imported (key BLOB PRIMARY KEY) WITHOUT ROWID"
        )

    def has(self, key: bytes) -> bool:
        """Return whether an earlier run stored this message."""
        cursor = self._connection.execute("SELECT 1 FROM imported WHERE key = ?", (key,))
        return cursor.fetchone() is not None

    def add(self, keys: Iterable[bytes]) -> None:
        """Add the keys of stored messages to the journal in one transaction."""
        with transaction(self._connection) as connection:
            connection.executemany(
                "INSERT OR IGNORE INTO imported (key) VALUES (?)", [(key,) for key in keys]
            )

    def close(self) -> None:
        self._connection.close()


@dataclass(slots=True, frozen=True)
class ImportItem:
    """A message to import, with its group and any problem that was found."""

    group: tuple[str, str, str]  # the group in which ImportCounts counts the item
    name: str  # the item's name in error messages, such as "jobs row 7 for orders"
    message: KeyedMessage | None  # None if a worker has reserved the item
    problem: str | None = None  # why the envelope is invalid, or None


@dataclass(slots=True)
class ImportCounts:
    """The number of items in each group; ``columns`` are those of a group's three names."""

    columns: tuple[Column, ...]
    journal: ImportJournal | None
    validation: tuple[Column, ...] = ()  # additional columns about envelopes
    unpublished: int = 0  # number of items to publish
    stored: int = 0
    held: int = 0
    errors: int = 0
    groups: dict[tuple[str, str, str], dict[str, Any]] = field(default_factory=dict)

    def count(self, item: ImportItem) -> bool:
        """Add a found item to the counts, and return whether to publish it."""
        group = self._group(item)
        group["found"] += 1
        if item.problem is not None:
            group["not_valid"] += 1
            reasons = group["reasons"]
            reasons[item.problem] = reasons.get(item.problem, 0) + 1
        if item.message is None:
            group["held"] += 1
            self.held += 1
        elif self.journal is not None and self.journal.has(item.message.key):
            group["before"] += 1
        else:
            self.unpublished += 1
            return True
        return False

    def store(self, item: ImportItem) -> None:
        self._group(item)["stored"] += 1
        self.stored += 1

    def end(self, *, is_dry: bool) -> None:
        """Print the totals, and raise CommandError if an item could not be stored."""
        if self.held:
            print_message(
                f"{self.held:,} skipped: reserved by a worker; run the import again later"
            )
        print_message(
            f"{self.unpublished:,} would be published" if is_dry else f"{self.stored:,} stored"
        )
        if self.errors:
            raise CommandError(f"messages that could not be stored: {self.errors:,}")

    def _group(self, item: ImportItem) -> dict[str, Any]:
        names = (column.key for column in self.columns)
        group: dict[str, Any] = dict(zip(names, item.group, strict=True))
        group |= {"found": 0, "held": 0, "before": 0, "not_valid": 0, "reasons": {}, "stored": 0}
        return self.groups.setdefault(item.group, group)


def publish_items(
    client: BlockingClient, items: Sequence[ImportItem], tally: ImportCounts
) -> list[bool]:
    """Count and publish items in order; return, for each item, whether it has been stored."""
    due = [index for index, item in enumerate(items) if tally.count(item)]
    messages = [message for index in due if (message := items[index].message) is not None]
    outcomes = publish_each(client, messages)
    if tally.journal is not None:
        results = zip(messages, outcomes, strict=True)
        tally.journal.add(message.key for message, outcome in results if outcome is None)
    is_stored = [item.message is not None for item in items]
    for index, outcome in zip(due, outcomes, strict=True):
        if isinstance(outcome, NoReplyError):
            raise CommandError(f"{outcome}; run the import again, which skips stored messages")
        if outcome is None:
            tally.store(items[index])
        else:
            is_stored[index] = False
            tally.errors += 1
            if tally.errors <= _MAX_ERRORS:
                print_message(f"{escape(items[index].name)}: {escape(str(outcome))}")
    return is_stored


_journal_option = option(
    ("--journal", "journal_path"),
    "Record stored messages in FILE for later imports to skip. Use one file per broker.",
    FILE,
)


@contextmanager
def open_counts(
    columns: tuple[Column, ...],
    journal_path: Path | None,
    output: str | None,
    validation: tuple[Column, ...] = (),
) -> Iterator[ImportCounts]:
    """Yield counts that use the journal at a path, if any; write them at the end of the block."""
    opened = nullcontext() if journal_path is None else closing(ImportJournal(journal_path))
    with opened as journal:
        tally = ImportCounts(columns, journal, validation)
        try:
            yield tally
        finally:
            if tally.groups:  # in the order in which they were found
                heads = (*columns, *_COUNTS, *validation, *_STORED)
                write_rows(tally.groups.values(), heads, output, "")


_BATCH: Final = 500
_BATCH_BYTES: Final = 32 << 20  # limit for a batch, assuming that all jobs have the maximum size
_SMALLEST_BATCH: Final = 16
_BEANSTALKD_HEADS: Final = columns("tube", "state", target="TO")


def beanstalkd_address(value: str) -> BrokerAddress:
    """Parse the address of a beanstalkd server; the port is optional."""
    try:
        target = parse_address(value, default=beanstalkd.DEFAULT_PORT)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None
    if target.path:
        raise click.BadParameter(f"{value!r} is not a valid address; use HOST:PORT")
    return target


def tube_mapping(value: str) -> tuple[str, str]:
    """Parse a mapping such as ``mails=mail.out`` into the names of a tube and a queue."""
    tube, sign, queue = value.partition("=")
    if not sign or not tube or not queue:
        raise click.BadParameter(f"{value!r} is not a valid mapping; use TUBE=QUEUE")
    return tube, queue


@click.group("import")
def import_() -> None:
    """Import messages from beanstalkd or InitPHP Queue."""


@import_.command("beanstalkd")
@click.argument("source", type=beanstalkd_address, metavar="HOST[:PORT]")
@repeatable(
    ("--tube", "tubes"), "Import only this tube. Repeatable.  [default: all]", metavar="NAME"
)
@repeatable(
    ("--map", "names"),
    "Publish jobs from TUBE to QUEUE. Repeatable.  [default: the name of the tube]",
    tube_mapping,
    metavar="TUBE=QUEUE",
)
@flag("--move", "Delete each job from beanstalkd once it is stored.")
@_journal_option
@flag("--dry-run", "Count what would be published without publishing.")
@output_option
@client_options
def beanstalkd_command(
    client: ClientFactory,
    source: BrokerAddress,
    tubes: tuple[str, ...],
    names: tuple[tuple[str, str], ...],
    move: bool,
    journal_path: Path | None,
    dry_run: bool,
    output: str | None,
) -> None:
    """Copy jobs from a running beanstalkd; --move moves them.

    Jobs go to the queue named after the tube, most urgent first, then oldest, with their remaining
    delay and with priorities in the same order; buried jobs go to QUEUE.dlq. Reserved jobs are
    skipped. Workers may keep using beanstalkd during a move. Repeating the import within the
    broker's deduplication window stores no job twice, except a buried job that was kicked; with
    --journal, that job is not stored twice either.
    """
    with beanstalkd.connect_beanstalkd(source) as server:
        missing = sorted({*tubes, *(tube for tube, _ in names)} - {*server.tubes()})
        if missing:
            raise CommandError(f"beanstalkd has no tube {missing[0]!r}", NOT_FOUND)
        with open_counts(_BEANSTALKD_HEADS, journal_path, output) as tally:
            run = BeanstalkdImport(server, dict(names), tally, is_move=move)
            if dry_run:
                run.preview(tubes)
            else:
                run.publish(client(), tubes)
        if not dry_run:
            run.report()
    tally.end(is_dry=dry_run)


@dataclass(slots=True)
class BeanstalkdImport:
    """An import from beanstalkd; ``names`` maps tubes to queues."""

    server: BeanstalkdClient
    names: Mapping[str, str]
    tally: ImportCounts
    is_move: bool
    missing: int = 0  # number of listed jobs that no longer existed when they were read
    deleted: int = 0
    reserved: int = 0  # number of stored jobs that a worker reserved before they were deleted

    def preview(self, tubes: Sequence[str]) -> None:
        """Count the jobs that would be published, without reading their bodies."""
        for group, job_ids in self._find_jobs(tubes).items():
            for job_id in job_ids:
                job = BeanstalkdJob(job_id, group.tube, group.state, 0, 0)
                self.tally.count(self._item(job, DEFAULT_PRIORITY))

    def publish(self, client: BlockingClient, tubes: Sequence[str]) -> None:
        """Publish all jobs in batches; in a move, delete each batch before reading the next one."""
        is_held = self.is_move and self.server.can_reserve
        if self.is_move and not is_held:
            print_message(
                "this beanstalkd cannot reserve jobs by id; stop its workers during the move"
            )
        groups = self._find_jobs(tubes)
        ranks = beanstalkd.rank_jobs(groups, self._queue_of)
        all_ids = ((group, job_id) for group, job_ids in groups.items() for job_id in job_ids)
        total = sum(map(len, groups.values()))
        batch_size = max(_SMALLEST_BATCH, min(_BATCH, _BATCH_BYTES // self.server.max_job_bytes))
        with client, progress_bar("import", total) as advance:
            while batch := list(islice(all_ids, batch_size)):
                results = self.server.read_jobs(batch, is_held=is_held)
                ranked = [
                    (job, ranks[self._queue_of(group.tube), group.priority])
                    for (group, _), job in zip(batch, results, strict=True)
                    if job is not None
                ]
                jobs = [job for job, _ in ranked]
                self.missing += len(results) - len(jobs)
                is_stored = publish_items(
                    client, [self._item(job, rank) for job, rank in ranked], self.tally
                )
                if self.is_move:
                    stored = [job.job_id for job in compress(jobs, is_stored)]
                    deleted = self.server.delete(stored)
                    self.deleted += deleted
                    self.reserved += len(stored) - deleted
                advance(len(batch))

    def _find_jobs(self, tubes: Sequence[str]) -> "dict[JobGroup, array[int]]":
        with progress_bar("searching", self.server.jobs()) as advance:
            return beanstalkd.find_jobs(self.server, tubes, advance)

    def _queue_of(self, tube: str) -> str:
        return self.names.get(tube, tube)

    def _item(self, job: BeanstalkdJob, priority: int) -> ImportItem:
        queue, instance = self._queue_of(job.tube), self.server.instance
        message = beanstalkd.plan_job(
            job, queue, instance=instance, now_ms=wall_ms(), priority=priority
        )
        group = (job.tube, job.state, queue if message is None else message.queue)
        return ImportItem(group, f"job {job.job_id} of tube {job.tube}", message)

    def report(self) -> None:
        if self.missing:
            print_message(f"{self.missing:,} skipped: a worker finished them before they were read")
        if not self.is_move:
            print_message("the jobs remain in beanstalkd; use --move to delete stored jobs there")
            return
        if self.reserved:
            print_message(
                f"{self.reserved:,} were also reserved by a worker and may be handled twice"
            )
        print_message(f"{self.deleted:,} deleted from beanstalkd; {self.server.jobs():,} left")


_INITPHP_BATCH_BYTES: Final = 4 << 20
_INITPHP_HEADS: Final = columns("table", "queue", target="TO")


def timezone(name: str) -> ZoneInfo:
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError):
        raise click.BadParameter(
            f"{name!r} is not a time zone; use a name such as Europe/Berlin"
        ) from None


def column_mapping(value: str) -> tuple[str, str]:
    """Parse a mapping such as ``payload=body`` into the names of a field and a column."""
    name, sign, column = value.partition("=")
    optional = (*initphp.OPTIONAL["jobs"], *initphp.OPTIONAL["failed"])
    fields = dict.fromkeys((*initphp.REQUIRED, *optional))
    if not sign or not column or name.removeprefix("failed.") not in fields:
        raise click.BadParameter(
            f"{value!r} is not a valid mapping; use NAME=COLUMN, where NAME is one of "
            + ", ".join(fields)
        )
    return name, column


@import_.command("initphp")
@click.argument("database", type=EXISTING_FILE)
@option("--table", "Table with the jobs.", default="jobs")
@option("--failed-table", "Table with the failed jobs.  [default: TABLE_failed]")
@flag("--no-failed", "Skip failed jobs.")
@repeatable(
    ("--column", "columns"),
    "Read from another column, as in payload=body; failed.payload=body applies only to the "
    "table of failed jobs. Repeatable.",
    column_mapping,
    metavar="NAME=COLUMN",
)
@option(
    ("--timezone", "zone"),
    "Time zone of the PHP processes and, therefore, of the times in the tables.",
    timezone,
    "UTC",
)
@option(
    ("--retry-after", "reserved_s"),
    "Skip jobs that a worker reserved within this time.",
    duration,
    "90s",
)
@_journal_option
@flag("--dry-run", "Count what would be published; requires no broker.")
@output_option
@client_options
def initphp_command(
    client: ClientFactory,
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
    """Copy jobs and failed jobs from an InitPHP Queue database.

    Stop its workers first. The database is only read. Jobs go to their queue with their remaining
    delay, failed jobs to QUEUE.dlq. Repeating the import within the broker's deduplication window
    stores no job twice.
    """
    layout = TableMapping(
        table,
        failed_table or f"{table}_failed",
        {name: column for name, column in columns if not name.startswith("failed.")},
        {name[7:]: column for name, column in columns if name.startswith("failed.")},
    )

    def size_of(item: ImportItem) -> int:
        return 0 if item.message is None else len(item.message.content)

    kinds: tuple[Kind, ...] = ("jobs",) if no_failed else ("jobs", "failed")
    try:
        with open_counts(_INITPHP_HEADS, journal_path, output, NOT_VALID) as tally:
            read_only = f"{database.resolve().as_uri()}?mode=ro"
            with closing(sqlite3.connect(read_only, uri=True)) as source:
                for kind in kinds:  # report a missing column before anything is stored
                    initphp.find_columns(source, kind, layout)
                now_ms, name = wall_ms(), str(database.resolve())
                items = (
                    _item(initphp.plan_row(row, now_ms, source=name, reserved_s=reserved_s), layout)
                    for kind in kinds
                    for row in initphp.read_rows(source, kind, layout, zone)
                )
                connection = nullcontext() if dry_run else client()
                with connection as broker, progress_bar("import", None) as advance:
                    for batch in in_batches(items, size_of, _BATCH, _INITPHP_BATCH_BYTES):
                        if broker is None:
                            deque(map(tally.count, batch), maxlen=0)
                        else:
                            publish_items(broker, batch, tally)
                        advance(len(batch))
    except sqlite3.Error as error:
        raise CommandError(f"{database.name}: {error}") from None
    tally.end(is_dry=dry_run)


def _item(planned: PlannedMessage, layout: TableMapping) -> ImportItem:
    row, message = planned.row, planned.message
    target = row.queue if message is None else message.queue
    group = (layout.table(row.kind), row.queue, target)
    name = f"{row.kind} row {row.row_id} for {row.queue}"
    return ImportItem(group, name, message, planned.problem)
