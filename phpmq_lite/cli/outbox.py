"""``outbox``: sends what services wrote into the outbox of their own SQLite database."""

import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial, wraps
from pathlib import Path
from typing import Any, Final, TypeVar

import click

from phpmq_lite.cli.broker_connection import ClientFactory, client_options
from phpmq_lite.cli.errors import CommandError
from phpmq_lite.cli.output import Column, output_option, print_message, write_rows
from phpmq_lite.cli.parameters import duration
from phpmq_lite.cli.signals import Interruption
from phpmq_lite.client.blocking_client import BlockingClient
from phpmq_lite.client.publish_each import publish_each
from phpmq_lite.envelopes import outbox as tables
from phpmq_lite.envelopes import sqlite_file
from phpmq_lite.envelopes.outbox import OutboxRow, SqliteOutboxStore
from phpmq_lite.envelopes.outbox_relay import BATCH_ROWS, Relay, RelayPass
from phpmq_lite.envelopes.sqlite_file import open_file, transaction
from phpmq_lite.errors import ConnectionLostError
from phpmq_lite.logs import escape

Command = TypeVar("Command", bound=Callable[..., Any])

COLUMNS: Final = (
    Column("queue", "QUEUE"),
    Column("waiting", "WAITING", is_number=True),
    Column("failing", "FAILING", is_number=True),
    Column("oldest_s", "OLDEST S", is_number=True),
    Column("attempts", "TRIES", is_number=True),
    Column("error", "ERROR"),
)

_ANSWER_S: Final = 20.0  # the broker has this long; less than a lease
_PASS_S: Final = 5.0  # between two passes, though nobody has written: for what is to be retried
_PURGE_S: Final = 60.0
_AWAY_S: Final = 2.0  # between two tries to connect for the first time


def database_options(command: Command) -> Command:
    """Add ``--database`` and ``--table``; errors of SQLite become one line."""

    @wraps(command)
    def tell(*args: Any, table: str, **others: Any) -> Any:
        try:
            return command(*args, table=tables.check_table_name(table), **others)
        except ValueError as error:
            raise click.UsageError(str(error)) from None
        except sqlite3.Error as error:
            raise CommandError(f"{others['database'].name}: {error}") from None

    tell = click.option(
        "--table", default=tables.TABLE, show_default=True, help="The table of the outbox."
    )(tell)
    path = click.Path(exists=True, dir_okay=False, path_type=Path)
    return click.option(
        "--database", type=path, required=True, help="The service's SQLite database."
    )(tell)  # type: ignore[return-value]


@click.group()
def outbox() -> None:
    """Send what services wrote into their outbox tables."""


@outbox.command()
@database_options
def init(database: Path, table: str) -> None:
    """Create the tables of the outbox where they are missing."""
    with closing(open_file(database)) as connection, transaction(connection):
        tables.create_tables(connection, table)
    print_message(f"{database.name} has the tables {table} and {table}_lease")


@outbox.command()
@output_option
@database_options
def status(database: Path, table: str, output: str | None) -> None:
    """Show what waits, by queue, and what the first failing row failed with."""
    with _store(database, table, tables.LEASE_S) as store:
        now_ms = sqlite_file.wall_ms()
        rows = [
            row._asdict() | {"oldest_s": max(0, now_ms - row.oldest_ms) // 1_000}
            for row in store.status()
        ]
    write_rows(rows, COLUMNS, output, "nothing waits")


@outbox.command()
@click.option("--once", is_flag=True, help="Send what is due, then end; exit 1 if a row stays.")
@click.option(
    "--interval", type=click.FloatRange(0.01, 60), default=0.2, show_default=True,
    metavar="SECONDS", help="Between two looks whether somebody has written.",
)  # fmt: skip
@click.option(
    "--batch", type=click.IntRange(1, 1_000), default=BATCH_ROWS, show_default=True,
    help="Rows sent without waiting for an answer.",
)  # fmt: skip
@click.option(
    "--keep", "keep_s", type=duration, default="1d", show_default=True, metavar="DURATION",
    help="Keep rows that were sent for so long.",
)  # fmt: skip
@click.option(
    "--lease", "lease_s", type=duration, default="30s", show_default=True, metavar="DURATION",
    help="A queue of a relay that died goes to another after this.",
)  # fmt: skip
@client_options
@database_options
def relay(
    client: ClientFactory,
    database: Path,
    table: str,
    once: bool,
    interval: float,
    batch: int,
    keep_s: int,
    lease_s: int,
) -> None:
    """Send the rows of an outbox, each confirmed, queue by queue in the order of the commits.

    A row that fails stays with its error and is tried again; the rest goes on. Several relays
    may run. After a crash a row is sent again under the same key, so the broker stores it once.
    """
    with _store(database, table, lease_s) as store, Interruption() as interruption:
        opened = client(is_patient=not once)
        turns = _RelayLoop(store, opened, interruption, batch)
        if not turns.connect(is_patient=not once):
            return
        try:
            if once:
                _end(turns.run(), sum(row.waiting for row in store.status()))
            else:
                turns.go_on(interval, keep_s)
                print_message(f"{turns.sent:,} sent")
        finally:
            opened.close()
            store.release()


class _RelayLoop:
    """The relay's passes, one after the other, until a signal."""

    def __init__(
        self,
        store: SqliteOutboxStore,
        client: BlockingClient,
        interruption: Interruption,
        batch: int,
    ) -> None:
        self.sent = 0
        self._store = store
        self._client = client
        self._interruption = interruption
        self._relay = Relay(
            store,
            partial(publish_each, client, timeout_s=_ANSWER_S),
            time.monotonic,
            batch=batch,
            report=_report,
            is_stopped=lambda: interruption.is_asked,
        )

    def connect(self, *, is_patient: bool) -> bool:
        """Connect, where ``is_patient`` however long it takes; False after a signal.

        Raises:
            ConnectionLostError: nobody answers, and it is not patient.
        """
        is_told = False
        while not self._interruption.is_asked:
            try:
                self._client.open()
            except ConnectionLostError as error:
                if not is_patient:
                    raise
                if not is_told:
                    print_message(f"{error}; trying on")
                is_told = True
                self._rest(_AWAY_S)
            else:
                return True
        return False

    def run(self) -> RelayPass:
        """Do one pass.

        Raises:
            ConnectionLostError: there will be no other connection.
        """
        done = self._relay.run()
        self.sent += done.sent
        if done.is_unreachable:
            self._client.raise_if_ended()
        return done

    def go_on(self, interval_s: float, keep_s: float) -> None:
        """Pass after each commit of others, and now and then, until a signal."""
        seen, pass_at, purge_at = -1, 0.0, 0.0
        while not self._interruption.is_asked:
            try:
                now_s = time.monotonic()
                if now_s >= purge_at:
                    self._store.purge(keep_s)
                    purge_at = now_s + _PURGE_S
                changes = self._store.data_version()  # before the pass, which may miss a later one
                if changes != seen or now_s >= pass_at:
                    is_away = self.run().is_unreachable
                    seen, pass_at = changes, time.monotonic() + (0 if is_away else _PASS_S)
            except sqlite3.OperationalError as error:  # another writer holds the file for long
                print_message(f"{error}; trying on")
            self._rest(interval_s)

    def _rest(self, seconds: float) -> None:
        self._interruption.wait(partial(time.sleep, seconds))


def _report(row: OutboxRow, why: str) -> None:
    print_message(f"row {row.row_id} for {escape(row.queue) or 'no queue'} stays: {escape(why)}")


def _end(done: RelayPass, left: int) -> None:
    print_message(f"{done.sent:,} sent")
    if done.is_unreachable:
        raise CommandError("the broker did not answer; what is left stays")
    if left:  # failed, not due yet, or of a queue that another relay has
        raise CommandError(f"{left:,} stay; `phpmq-lite outbox status` shows them")


@contextmanager
def _store(database: Path, table: str, lease_s: float) -> Iterator[SqliteOutboxStore]:
    with closing(open_file(database)) as connection:
        if not connection.execute(f"PRAGMA table_info({table})").fetchall():
            raise CommandError(
                f"{database.name} has no table {table}; `phpmq-lite outbox init` creates it"
            )
        yield SqliteOutboxStore(connection, table, lease_s=lease_s)
