"""A data folder as the source or target of a copy.

The statements follow from the schema, so they are composed here.
"""

import os
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Final

from phpmq_lite.errors import StartRefusedError
from phpmq_lite.installation import migrations_folder
from phpmq_lite.model import checksum
from phpmq_lite.storage.atomic_files import create_private, sync_file, sync_folder
from phpmq_lite.storage.copy_side import (
    BLOCK_BYTES,
    ESCAPES,
    NULL,
    Block,
    CopySide,
    Progress,
    Table,
    value_of,
)
from phpmq_lite.storage.copy_state import CopyState
from phpmq_lite.storage.data_folder import DataFolder, has_never_had_database
from phpmq_lite.storage.sqlite.backup.restore import move_aside
from phpmq_lite.storage.sqlite.integrity.seal import checksum_of, seal
from phpmq_lite.storage.sqlite.integrity.startup import check_files
from phpmq_lite.storage.sqlite.migrate import migrate
from phpmq_lite.storage.sqlite.store import SqliteStore

_CACHE_BYTES: Final = 64 << 20
_WAL_BYTES: Final = 64 << 20  # a longer one is checkpointed after a block
_REPLACEMENT: Final = "\ufffd".encode()
_ROWS_READ: Final = 1_000  # at once
_BODIES_READ: Final = 16  # one may have megabytes


def _escaped(text: str) -> str:
    for one, escaped in ESCAPES.items():
        text = f"replace({text}, char({ord(one)}), '\\{escaped}')"
    return text


_AS_TEXT: Final = {
    "INTEGER": "\"{0}\" || ''",
    "TEXT": _escaped('"{0}"'),
    "BLOB": r"""CASE WHEN "{0}" IS NOT NULL THEN '\\x' || lower(hex("{0}")) END""",
}


class SqliteSide(CopySide):
    """A locked data folder.  A target's database is staged, until it is whole."""

    collation = "BINARY"

    def __init__(self, folder: DataFolder, block_bytes: int, *, is_target: bool) -> None:
        super().__init__(str(folder.path), block_bytes)
        self.replaced_files: Path | None = None  # where the old database is
        self._folder = folder
        self._database = folder.staged_copy if is_target else folder.database
        self._connect(self._database if self._database.exists() else ":memory:")

    def _connect(self, database: Path | str) -> None:
        self.connection = sqlite3.connect(database, isolation_level=None)
        self.store: SqliteStore = SqliteStore(self.connection)
        if database == self._database:
            self.store.configure(_CACHE_BYTES)
        self.connection.create_function("checksum", 2, checksum, deterministic=True)
        migrate(self.connection, migrations_folder())
        self.store.checkpoint("TRUNCATE")

    def blocks(self, table: Table, after: Sequence[Any] | None = None) -> Iterator[Block]:
        """Yield all rows after a key, in the order of the keys."""
        values = [
            f"ifnull({_AS_TEXT[kind].format(name)}, '{NULL}')"
            for name, kind in table.columns.items()
        ]
        # A connection of its own, because texts are read as bytes, in another thread.
        uri = f"{self._database.as_uri()}?mode=ro"
        with closing(sqlite3.connect(uri, uri=True, check_same_thread=False)) as connection:
            connection.text_factory = bytes
            cursor = connection.execute(self.select(table, ", ".join(values), after))
            at_once = _BODIES_READ if "BLOB" in table.columns.values() else _ROWS_READ
            pieces, size, count = [], 0, 0
            while rows := cursor.fetchmany(at_once):
                pieces.append(b"\n".join(map(b"\t".join, rows)) + b"\n")
                size, count = size + len(pieces[-1]), count + len(rows)
                if size >= self._block_bytes:
                    yield _clean(b"".join(pieces), count)
                    pieces, size, count = [], 0, 0
            if pieces:
                yield _clean(b"".join(pieces), count)

    def states(self) -> dict[str, CopyState]:
        """Return the copies of which this is the ``source`` and, if incomplete, the ``target``."""
        found = {} if self._folder.meta.copy is None else {"source": self._folder.meta.copy}
        names = {name for (name,) in self.store.execute(self.store.sql("migrate")["tables"])}
        if self._database == self._folder.staged_copy and "copy_state" in names:
            row = self.connection.execute("SELECT content FROM copy_state").fetchone()
            found["target"] = CopyState.from_json(row[0])
        return found

    def set_source(self, state: CopyState | None) -> None:
        """Store durably which copy this is the source of."""
        self._folder.set_copy(state)

    def is_empty(self) -> bool:
        """Return whether there is no database."""
        return has_never_had_database(self._folder.path)

    def begin(self, state: CopyState) -> None:
        """Create an empty staged database, with the progress in a table of its own."""
        self.connection.close()
        for ending in ("", "-wal", "-shm"):
            self._database.with_name(self._database.name + ending).unlink(missing_ok=True)
        os.close(create_private(self._database))
        self._connect(self._database)
        with self.store.transaction():
            for table in self.tables():
                self.connection.execute(f'DELETE FROM "{table}"')
            self.connection.execute("CREATE TABLE copy_state (content TEXT NOT NULL)")
            self.connection.execute("INSERT INTO copy_state VALUES (?)", (state.to_json(),))

    def write(self, table: Table, block: Block, state: CopyState) -> None:
        """Store a block and the progress in one transaction."""
        columns = ", ".join(f'"{name}"' for name in table.columns)
        marks = ", ".join("?" * len(table.columns))
        kinds = list(table.columns.values())
        rows = (line.split("\t") for line in block.text.decode().split("\n")[:-1])
        with self.store.transaction():
            self.connection.executemany(
                f'INSERT INTO "{table.name}" ({columns}) VALUES ({marks})',
                (list(map(value_of, kinds, row)) for row in rows),
            )
            self._update(state)
        self._shorten_log()

    def _update(self, state: CopyState) -> None:
        self.connection.execute("UPDATE copy_state SET content = ?", (state.to_json(),))

    def _shorten_log(self) -> None:
        if self._database.with_name(f"{self._database.name}-wal").stat().st_size > _WAL_BYTES:
            self.store.checkpoint("TRUNCATE")

    def save(self, state: CopyState) -> None:
        """Store whether the copy is verified; if so, forget the totals of the index."""
        with self.store.transaction():
            self._update(state)
            if state.is_verified:
                self.store.execute(self.store.sql("copy")["forget_index"])

    def finish(self, progress: Progress) -> None:
        """Index the history, then move the database into place; an old one is moved aside."""
        done = 0
        while rows := self.store.indexer.run(self.connection, 0, is_idle=True):
            done += rows
            progress("indexing", done, None)
            self._shorten_log()
        self.store.checkpoint("TRUNCATE")
        self.connection.close()
        sync_file(self._database)
        self.replaced_files = move_aside(self._folder)
        self._folder.replace_database(checksum_of(self._database))
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
    block_bytes: int = BLOCK_BYTES,
) -> Iterator[SqliteSide]:
    """Lock a folder.  A source is checked and migrated as at a start, and sealed at the end.

    Raises:
        StartRefusedError, DataDamagedError: as for a start, except that it may have been copied.
    """
    if not is_target and has_never_had_database(path):
        raise StartRefusedError(f"there is no database in {path}")
    folder = DataFolder.open(path, allow_network_fs=allow_network_fs, has_database=False)
    with closing(folder):
        if not is_target:
            if folder.staged_copy.exists():
                folder.check_copy()
            folder.check_database()
            check_files(folder, accept_loss=accept_loss, tell=tell)
        side = SqliteSide(folder, block_bytes, is_target=is_target)
        try:
            yield side
        finally:
            if not is_target:
                folder.record(is_running=False)  # must come first, because closing removes the WAL
            side.connection.close()
            if not is_target:
                seal(folder)


def _clean(text: bytes, rows: int) -> Block:
    """Replace what PostgreSQL's texts cannot contain with U+FFFD."""
    clean = text.replace(b"\0", _REPLACEMENT).decode("utf-8", "replace").encode()
    return Block(clean, rows, clean.count(_REPLACEMENT) - text.count(_REPLACEMENT))
