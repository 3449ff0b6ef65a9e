"""The ``outbox`` command group, which publishes rows from a table in a SQLite database."""

import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial, wraps
from pathlib import Path
from typing import Any, Final

import click

from phpmq_lite.admin.formats import count_of
from phpmq_lite.cli.admin_client import ClientFactory, client_options
from phpmq_lite.cli.errors import CommandError
from phpmq_lite.cli.output import (
    Column,
    add_options,
    number_columns,
    output_option,
    print_message,
    write_rows,
)
from phpmq_lite.cli.parameters import EXISTING_FILE, duration, flag, option
from phpmq_lite.cli.signals import StopRequest
from phpmq_lite.client.blocking_client import (
    STOP_S,
    BlockingClient,
    NoReplyError,
    PublishOutcome,
    publish_each,
)
from phpmq_lite.client.publishes import KeyedMessage
from phpmq_lite.envelopes import outbox as tables
from phpmq_lite.envelopes import sqlite_file
from phpmq_lite.envelopes.outbox import OutboxRow, Relay, RelayPass, SqliteOutboxStore
from phpmq_lite.envelopes.sqlite_file import open_file, transaction
from phpmq_lite.errors import ConnectionLostError
from phpmq_lite.logs import escape

COLUMNS: Final = (
    Column("queue", "QUEUE"),
    *number_columns("waiting", "failing", oldest_s="OLDEST (s)", attempts="ATTEMPTS"),
    Column("error", "ERROR"),
)

_REPLY_S: Final = 20.0  # seconds to wait for the broker's reply; less than the duration of a lease
_PASS_S: Final = 5.0  # seconds between passes when there are only failed rows to retry
_PURGE_S: Final = 60.0  # seconds between purges of published rows
_RETRY_S: Final = 2.0  # seconds between attempts to connect


def database_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add ``--database`` and ``--table``, and report SQLite errors in one line."""

    @wraps(command)
    def run(*args: Any, table: str, database: Path, **options: Any) -> Any:
        try:
            table = tables.check_table_name(table)
            return command(*args, table=table, database=database, **options)
        except ValueError as error:
            raise click.UsageError(str(error)) from None
        except sqlite3.Error as error:
            raise CommandError(f"{database.name}: {error}") from None

    return add_options(
        run,
        option("--table", "Outbox table.", default=tables.TABLE),
        option("--database", "The service's SQLite database.", EXISTING_FILE, required=True),
    )


@click.group()
def outbox() -> None:
    """Publish rows from an outbox table in a service's database."""


@outbox.command()
@database_options
def init(database: Path, table: str) -> None:
    """Create the outbox tables if they do not exist."""
    with closing(open_file(database)) as connection, transaction(connection):
        tables.create_tables(connection, table)
    print_message(f"{database.name} has the tables {table} and {table}_lease")


@outbox.command()
@output_option
@database_options
def status(database: Path, table: str, output: str | None) -> None:
    """Show the number of unpublished rows per queue and the first error."""
    with _open_store(database, table) as store:
        now_ms = sqlite_file.wall_ms()
        rows = [
            row._asdict() | {"oldest_s": max(0, now_ms - row.oldest_ms) // 1_000}
            for row in store.status()
        ]
    write_rows(rows, COLUMNS, output, "no rows are waiting")


@outbox.command()
@flag("--once", "Publish due rows and exit, with code 1 if any rows are left.")
@option(
    "--interval",
    "Time between checks for new rows.",
    click.FloatRange(0.01, 60),
    0.2,
    metavar="SECONDS",
)
@option(("--keep", "keep_s"), "Keep published rows for this long.", duration, "1d")
@client_options
@database_options
def relay(
    client: ClientFactory, database: Path, table: str, once: bool, interval: float, keep_s: int
) -> None:
    """Publish rows from an outbox table.

    Each queue receives its rows in commit order. A row that fails keeps its error and is retried,
    while other rows continue. Several relays may run in parallel. After a crash, a row is published
    again with the same key, so the broker stores it only once.
    """
    with _open_store(database, table) as store, StopRequest() as stop:
        broker = stop.interruptible(partial(client, is_patient=not once))
        if broker is None:
            return
        loop = _RelayLoop(store, broker, stop)
        if not loop.connect(is_patient=not once):
            return
        try:
            if once:
                result = loop.run_once()
                print_message(f"{result.sent:,} published")
                if result.is_unreachable:
                    raise CommandError(
                        "the broker did not answer; the remaining rows stay in the outbox"
                    )
                # These rows failed, are not due, or are leased by another relay.
                if remaining := sum(row.waiting for row in store.status()):
                    rows = count_of(remaining, "row", "rows")
                    raise CommandError(f"{rows} left; `phpmq-lite outbox status` has details")
            else:
                loop.run(interval, keep_s)
                print_message(f"{loop.published:,} published")
        finally:
            if stop.is_requested:
                broker.close_s = STOP_S
            broker.close()
            store.release()


class _RelayLoop:
    def __init__(self, store: SqliteOutboxStore, client: BlockingClient, stop: StopRequest) -> None:
        self.published = 0
        self._store = store
        self._client = client
        self._stop = stop

        def report(row: OutboxRow, reason: str) -> None:
            queue = escape(row.queue) or "no queue"
            print_message(f"row {row.row_id} for {queue} was not published: {escape(reason)}")

        self._relay = Relay(store, self._send, time.monotonic, report=report, is_stopped=stop)

    def _send(self, messages: Sequence[KeyedMessage]) -> list[PublishOutcome]:
        """Publish messages; after a signal, wait only briefly for the broker's replies."""
        publish = partial(publish_each, self._client, messages, timeout_s=_REPLY_S)
        outcomes = self._stop.interruptible(publish, STOP_S)
        return outcomes or [NoReplyError("the relay was stopped") for _ in messages]

    def connect(self, *, is_patient: bool) -> bool:
        """Connect to the broker, repeatedly if ``is_patient``; return False if a signal arrives."""
        is_reported = False
        while not self._stop.is_requested:
            try:
                self._stop.interruptible(self._client.open)
            except ConnectionLostError as error:
                if not is_patient:
                    raise
                if not is_reported:
                    print_message(f"{error}; retrying")
                is_reported = True
                self._stop.sleep(_RETRY_S)
            else:
                return not self._stop.is_requested
        return False

    def run_once(self) -> RelayPass:
        """Run a pass over due rows; raise ConnectionLostError if the client stopped connecting."""
        result = self._relay.run()
        self.published += result.sent
        if result.is_unreachable:
            self._client.raise_if_ended()
        return result

    def run(self, interval_s: float, keep_s: float) -> None:
        """Run a pass after each commit by another process, and at least every ``_PASS_S``."""
        version, pass_at, purge_at = -1, 0.0, 0.0
        while not self._stop.is_requested:
            try:
                now_s = time.monotonic()
                if now_s >= purge_at:
                    self._store.purge(keep_s)
                    purge_at = now_s + _PURGE_S
                current = self._store.data_version()  # read first: the pass may miss later commits
                if current != version or now_s >= pass_at:
                    is_unreachable = self.run_once().is_unreachable
                    version = current
                    pass_at = time.monotonic() + (0 if is_unreachable else _PASS_S)
            except sqlite3.OperationalError as error:  # another writer has locked the file
                print_message(f"{error}; retrying")
            self._stop.sleep(interval_s)


@contextmanager
def _open_store(database: Path, table: str) -> Iterator[SqliteOutboxStore]:
    with closing(open_file(database)) as connection:
        if not connection.execute(f"PRAGMA table_info({table})").fetchall():
            raise CommandError(
                f"{database.name} contains no table {table}; `phpmq-lite outbox init` creates it"
            )
        yield SqliteOutboxStore(connection, table)
