"""A data folder as the source or target of a copy."""

import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Final

from phpmq_lite.errors import StartRefusedError
from phpmq_lite.installation import migrations_folder
from phpmq_lite.model import checksum
from phpmq_lite.storage.atomic_files import create_private, sync_file, sync_folder
from phpmq_lite.storage.copy_state import CopyState, Progress
from phpmq_lite.storage.data_folder import DataFolder, has_never_had_database
from phpmq_lite.storage.migrations import table_names
from phpmq_lite.storage.read.read_pool import Row
from phpmq_lite.storage.sqlite.database_file import open_read_only
from phpmq_lite.storage.sqlite.integrity.seal import checksum_of, seal
from phpmq_lite.storage.sqlite.integrity.startup import check_files
from phpmq_lite.storage.sqlite.litestream import CheckpointRight, is_configured
from phpmq_lite.storage.sqlite.migrate import migrate
from phpmq_lite.storage.sqlite.restore import move_aside
from phpmq_lite.storage.sqlite.store import SqliteStore

_CACHE_BYTES: Final = 64 << 20
_WAL_PAGES: Final = 16_384  # 64 MiB; a longer one is checkpointed
_REPLACEMENT: Final = "\ufffd"


class SqliteSide:
    """A locked data folder.  A target's database is staged, until it is whole."""

    collation = "BINARY"  # by which bytes are compared

    def __init__(self, folder: DataFolder, *, is_target: bool) -> None:
        self.name = str(folder.path)
        self.replaced = 0  # characters that PostgreSQL cannot store, in the rows that were read
        self.replaced_files: Path | None = None  # where the old database is
        self._folder, self._is_target = folder, is_target
        self._database = folder.staged_copy if is_target else folder.database
        self._connect(self._database if self._database.exists() else ":memory:")

    def _connect(self, database: Path | str) -> None:
        self.connection = sqlite3.connect(database, isolation_level=None)
        self.store = SqliteStore(self.connection)
        if database == self._database:
            self.store.configure(_CACHE_BYTES)
        self.connection.create_function("checksum", 2, checksum, deterministic=True)
        migrate(self.connection, migrations_folder())
        if self._is_target:  # beside a source, Litestream may be running
            self.connection.execute(f"PRAGMA wal_autocheckpoint={_WAL_PAGES}")

    def rows(self, query: str) -> Iterator[Row]:
        """Yield the result of a query; called in another thread, so it opens a connection."""
        with closing(open_read_only(self._database)) as connection:
            connection.text_factory = self._text
            yield from connection.execute(query)

    def _text(self, raw: bytes) -> str:
        """Return a text with U+FFFD for what PostgreSQL's texts cannot contain."""
        text = raw.decode("utf-8", "replace").replace("\0", _REPLACEMENT)
        self.replaced += text.count(_REPLACEMENT) - raw.count(_REPLACEMENT.encode())
        return text

    def insert(self, table: str, columns: str, rows: list[Row]) -> None:
        marks = ", ".join("?" * len(rows[0]))
        self.connection.executemany(f'INSERT INTO "{table}" ({columns}) VALUES ({marks})', rows)

    def states(self) -> dict[str, CopyState]:
        states = {} if self._folder.meta.copy is None else {"source": self._folder.meta.copy}
        names = table_names(self.store.execute, self.store.sql("migrate"))
        if self._is_target and "copy_state" in names:
            row = self.connection.execute("SELECT content FROM copy_state").fetchone()
            states["target"] = CopyState.from_json(row[0])
        return states

    def set_source(self, state: CopyState | None) -> None:
        self._folder.set_copy(state)

    def set_target(self, state: CopyState) -> None:
        """Store the progress in a transaction; at its end, forget totals, which are rebuilt."""
        self.connection.execute("UPDATE copy_state SET content = ?", (state.to_json(),))
        if state.is_verified:
            self.store.execute(self.store.sql("copy")["forget_index"])

    def is_empty(self, _tables: list[str]) -> bool:
        return has_never_had_database(self._folder.path)

    def begin(self, state: CopyState, tables: list[str]) -> None:
        """Create an empty staged database, with the progress in a table of its own."""
        self.connection.close()
        for file in self._folder.path.glob(f"{self._database.name}*"):  # with the WAL
            file.unlink()
        os.close(create_private(self._database))
        self._connect(self._database)
        with self.store.transaction():
            for table in tables:
                self.connection.execute(f'DELETE FROM "{table}"')
            self.connection.execute("CREATE TABLE copy_state (content TEXT NOT NULL)")
            self.connection.execute("INSERT INTO copy_state VALUES (?)", (state.to_json(),))

    def finish(self, progress: Progress) -> None:
        """Index the history, then move the database into place; an old one is moved aside."""
        indexed = 0
        while rows := self.store.indexer.run(self.connection, 0, is_idle=True):
            indexed += rows
            progress("indexing", indexed, None)
        self.store.checkpoint("TRUNCATE")
        self.connection.close()
        sync_file(self._database)
        self.replaced_files = move_aside(self._folder)
        self._folder.replace_database(checksum_of(self._database))
        if is_configured(self._folder.path):  # Litestream will change it
            self._folder.seal(None)
        self._database.replace(self._folder.database)
        sync_folder(self._folder.path)


@contextmanager
def open_folder(
    path: Path,
    tell: Callable[[str], None],
    *,
    is_target: bool,
    allow_network_fs: bool = False,
    accept_loss: bool = False,
) -> Iterator[SqliteSide]:
    """Lock a folder.  A source is checked and migrated as at a start, and sealed at the end.

    Raises:
        StartRefusedError, DataDamagedError: as for a start, except that it may have been copied.
    """
    if not is_target and has_never_had_database(path):
        raise StartRefusedError(f"there is no database in {path}")
    folder = DataFolder.open(path, allow_network_fs=allow_network_fs, has_database=False)
    with closing(folder), CheckpointRight(folder.path).hold() as may_replace:
        if is_target and not may_replace:
            raise StartRefusedError(f"Litestream is running for {folder.path}; stop it first")
        if not is_target:
            if folder.staged_copy.exists():
                folder.check_copy()
            folder.check_database()
            check_files(folder, accept_loss=accept_loss, tell=tell)
        side = SqliteSide(folder, is_target=is_target)
        try:
            yield side
        finally:
            if not is_target:
                folder.record(is_running=False)  # must come first, because closing removes the WAL
            side.connection.close()
            if not is_target and not is_configured(folder.path):
                seal(folder)
