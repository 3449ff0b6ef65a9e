"""A data folder as the source or target of a copy.

The statements follow from the schema, so they are composed here.
"""

import os
import re
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Final

from phpmq_lite.errors import StartRefusedError
from phpmq_lite.installation import migrations_folder
from phpmq_lite.model import checksum
from phpmq_lite.storage.atomic_files import create_private, sync_file, sync_folder
from phpmq_lite.storage.copy_state import (
    BLOCK_BYTES,
    ESCAPES,
    NULL,
    Block,
    CopyMark,
    CopyState,
    Table,
    tables_of,
    unescape,
)
from phpmq_lite.storage.data_folder import DataFolder, has_never_had_database
from phpmq_lite.storage.sqlite.backup.restore import move_aside
from phpmq_lite.storage.sqlite.integrity.seal import checksum_of, seal
from phpmq_lite.storage.sqlite.integrity.startup import check_files
from phpmq_lite.storage.sqlite.migrate import migrate
from phpmq_lite.storage.sqlite.store import SqliteStore
from phpmq_lite.storage.statements import load

_CACHE_BYTES: Final = 64 << 20
_WAL_BYTES: Final = 64 << 20  # a longer one is checkpointed after a block
_AT_ONCE: Final = 1_000  # rows read at once; bodies may have megabytes
_BODIES_AT_ONCE: Final = 16
_SPECIAL: Final = re.compile(rb"[\0\b\v\f\r]")
_CONTROLS: Final = [(one, escaped) for one, escaped in ESCAPES.items() if one != b"\\"]


class SqliteSide:
    """A locked data folder.  A target's database is staged, until it is whole."""

    def __init__(
        self,
        folder: DataFolder,
        *,
        is_target: bool = False,
        block_bytes: int = BLOCK_BYTES,
    ) -> None:
        self.name = str(folder.path)
        self.folder = folder
        self.replaced_files: Path | None = None  # where the old database is
        self._block_bytes = block_bytes
        self._database = folder.staged_copy if is_target else folder.database
        self._connect(self._database if self._database.exists() else ":memory:")

    def _connect(self, database: Path | str) -> None:
        self.connection = sqlite3.connect(database, isolation_level=None, check_same_thread=False)
        self.store = SqliteStore(self.connection)
        if database == self._database:
            self.store.configure(_CACHE_BYTES)
        self.connection.create_function("checksum", 2, checksum, deterministic=True)
        migrate(self.connection, migrations_folder())
        self.store.checkpoint("TRUNCATE")

    # -- both sides

    def tables(self) -> dict[str, Table]:
        """Return the tables by name."""
        return tables_of(self.connection.execute(load("copy")["tables"]).fetchall())

    def count(self, table: Table) -> int:
        """Return the number of rows."""
        return int(self.connection.execute(f'SELECT count(*) FROM "{table.name}"').fetchone()[0])

    def blocks(self, table: Table, after: Sequence[Any] | None) -> Iterator[Block]:
        """Yield all rows after a key, in the order of the keys."""
        # A connection of its own, because texts are read as bytes.
        uri = f"{self._database.as_uri()}?mode=ro"
        with closing(sqlite3.connect(uri, uri=True, check_same_thread=False)) as connection:
            connection.text_factory = bytes
            cursor = connection.execute(_select(table, after), after or ())
            kinds = table.columns.values()
            at_once = _BODIES_AT_ONCE if "BLOB" in kinds else _AT_ONCE
            pieces, size, count, replaced = [], 0, 0, dict[str, int]()
            while rows := cursor.fetchmany(at_once):
                text = b"\n".join(map(b"\t".join, rows)) + b"\n"
                if "TEXT" in kinds and not _is_plain(text, len(rows), len(kinds)):
                    text = b"".join([_cleaned(table, row, replaced) for row in rows])
                pieces.append(text)
                size, count = size + len(text), count + len(rows)
                if size >= self._block_bytes:
                    yield Block(b"".join(pieces), count, replaced)
                    pieces, size, count, replaced = [], 0, 0, {}
            if pieces:
                yield Block(b"".join(pieces), count, replaced)

    # -- as a source

    def mark(self) -> CopyMark | None:
        """Return where the data was copied to."""
        return self.folder.meta.copy

    def set_mark(self, mark: CopyMark | None) -> None:
        """Store where the data was copied to."""
        self.folder.mark_copied(mark)

    def release(self) -> None:
        """Use the data here again, with new numbers if the copy may have been used."""
        mark = self.mark()
        if mark is None:
            raise StartRefusedError(f"{self.name} was not copied, so there is nothing to release")
        if mark.is_complete:
            with self.store.transaction():
                self.store.renumber()
        self.set_mark(None)

    # -- as a target

    def state(self) -> CopyState | None:
        """Return the progress of an incomplete copy."""
        names = {name for (name,) in self.connection.execute(load("migrate")["tables"])}
        if "copy_state" not in names:
            return None
        row = self.connection.execute("SELECT content FROM copy_state").fetchone()
        return CopyState.from_json(row[0])

    def is_empty(self) -> bool:
        """Return whether there is no database."""
        return not (self.folder.database.exists() and self.folder.database.stat().st_size)

    def begin(self, state: CopyState) -> None:
        """Create an empty staged database."""
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
        values = ", ".join("?" for _ in table.columns)
        insert = f'INSERT INTO "{table.name}" ({columns}) VALUES ({values})'
        plain, others = _parsed(table, block.text)
        with self.store.transaction():
            self.connection.executemany(insert.replace("?", f"nullif(?, '{NULL}')"), plain)
            self.connection.executemany(insert, others)
            self._update(state)
        self._shorten_log()

    def _shorten_log(self) -> None:
        if self._database.with_name(f"{self._database.name}-wal").stat().st_size > _WAL_BYTES:
            self.store.checkpoint("TRUNCATE")

    def save(self, state: CopyState) -> None:
        """Store whether the copy is verified; if so, forget the totals of the index."""
        with self.store.transaction():
            self._update(state)
            if state.is_verified:
                self.connection.execute(load("copy")["forget_index"])

    def _update(self, state: CopyState) -> None:
        self.connection.execute("UPDATE copy_state SET content = ?", (state.to_json(),))

    def is_finishing(self) -> bool:
        """Return whether ``finish`` was interrupted after it had removed the progress."""
        return self._database.exists() and self.state() is None

    def finish(self, progress: Callable[[str, int, int | None], None]) -> None:
        """Index the history, then move the database into place; an old one is moved aside."""
        done = 0
        while rows := self.store.indexer.run(self.connection, 0, is_idle=True):
            done += rows
            progress("indexing", done, None)
            self._shorten_log()
        progress("moving into place", 0, None)
        self.connection.execute("DROP TABLE IF EXISTS copy_state")
        self.store.checkpoint("TRUNCATE")
        self.connection.close()
        sync_file(self._database)
        self.replaced_files = move_aside(self.folder)
        self.folder.replace_database(checksum_of(self._database))
        self._database.replace(self.folder.database)
        sync_folder(self.folder.path)

    def close(self) -> None:
        """Close the database."""
        self.connection.close()


@contextmanager
def open_source(
    path: Path,
    tell: Callable[[str], None],
    *,
    allow_network_fs: bool = False,
    accept_loss: bool = False,
    block_bytes: int = BLOCK_BYTES,
) -> Iterator[SqliteSide]:
    """Lock a folder, check and migrate its database as at a start, and seal it at the end.

    Raises:
        StartRefusedError, DataDamagedError: as for a start, except that it may have been copied.
    """
    if has_never_had_database(path):
        raise StartRefusedError(f"there is no database in {path}")
    with closing(DataFolder.open(path, allow_network_fs=allow_network_fs, for_copy=True)) as folder:
        check_files(folder, accept_loss=accept_loss, tell=tell)
        side = SqliteSide(folder, block_bytes=block_bytes)
        try:
            yield side
        finally:
            folder.record(is_running=False)  # must come first, because closing removes the WAL
            side.close()
            seal(folder)


@contextmanager
def open_target(
    path: Path, *, allow_network_fs: bool = False, block_bytes: int = BLOCK_BYTES
) -> Iterator[SqliteSide]:
    """Lock a folder, and open or create the database that is moved into place at the end."""
    with closing(
        DataFolder.open(path, allow_network_fs=allow_network_fs, has_database=False)
    ) as folder:
        side = SqliteSide(folder, is_target=True, block_bytes=block_bytes)
        try:
            yield side
        finally:
            side.close()


def _select(table: Table, after: Sequence[Any] | None) -> str:
    """Return the query for rows as text; only controls must still be escaped."""
    as_text = {
        "INTEGER": "\"{0}\" || ''",
        "TEXT": r"""replace("{0}", '\', '\\')""",
        "BLOB": r"""CASE WHEN "{0}" IS NOT NULL THEN '\\x' || lower(hex("{0}")) END""",
    }
    values = (
        f"ifnull({as_text[kind].format(name)}, '{NULL}')" for name, kind in table.columns.items()
    )
    key = ", ".join(f'"{name}"' for name in table.key)
    where = "" if after is None else f"WHERE ({key}) > ({', '.join('?' for _ in after)})"
    return f'SELECT {", ".join(values)} FROM "{table.name}" {where} ORDER BY {key}'


def _is_plain(text: bytes, rows: int, width: int) -> bool:
    """Return whether all values are UTF-8 without controls."""
    if text.count(b"\n") != rows or text.count(b"\t") != rows * (width - 1):
        return False
    if _SPECIAL.search(text):
        return False
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True


def _cleaned(table: Table, row: Sequence[bytes], replaced: dict[str, int]) -> bytes:
    """Return a row as text; U+FFFD replaces what PostgreSQL's texts cannot contain.

    ``replaced`` counts the texts that change, by column.
    """
    found = []
    for value, (name, kind) in zip(row, table.columns.items(), strict=True):
        if kind == "TEXT":
            clean = value.replace(b"\0", "\ufffd".encode()).decode("utf-8", "replace").encode()
            if clean != value:
                replaced[name] = replaced.get(name, 0) + 1
            for one, escaped in _CONTROLS:
                clean = clean.replace(one, escaped)
            value = clean
        found.append(value)
    return b"\t".join(found) + b"\n"


def _parsed(table: Table, text: bytes) -> tuple[list[list[str]], list[list[Any]]]:
    """Return the rows without escapes, in which NULL is a text, and all others."""
    plain: list[list[str]] = []
    others: list[list[Any]] = []
    kinds = list(table.columns.values())
    has_blobs = "BLOB" in kinds
    for line in text.decode().split("\n")[:-1]:
        values = line.split("\t")
        if not has_blobs and line.count("\\") == line.count(NULL):
            plain.append(values)
        else:
            others.append([_value(kind, v) for kind, v in zip(kinds, values, strict=True)])
    return plain, others


def _value(kind: str, value: str) -> Any:
    if value == NULL:
        return None
    if kind == "BLOB":
        return bytes.fromhex(value[3:])
    return unescape(value)
