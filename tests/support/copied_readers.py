"""Readers of a database that a test fills with SQLite, on the engine under test."""

import sqlite3
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from phpmq_lite.storage.postgres.read_connections import PostgresReaders
from phpmq_lite.storage.read.read_pool import READ_LIMIT_S, Row
from phpmq_lite.storage.sqlite.read_connections import SqliteReaders
from tests.support.both_engines import copy_rows
from tests.support.stores import ON_POSTGRES, conninfo_of


class CopiedReaders(PostgresReaders):
    """Copies the rows of a file to PostgreSQL before each read, if they have changed."""

    def __init__(self, path: Path, *, count: int = 2, limit_s: float = READ_LIMIT_S) -> None:
        super().__init__(lambda: conninfo_of(path), count=count, limit_s=limit_s)
        self._path = path
        self._source = sqlite3.connect(f"file:{path}?mode=ro", uri=True, isolation_level=None)
        weakref.finalize(self, self._source.close)
        self._copied = -1  # version of the file

    async def run(self, name: str, text: str, parameters: Mapping[str, Any]) -> list[Row]:
        [version] = self._source.execute("PRAGMA data_version").fetchone()
        if version != self._copied:
            copy_rows(self._path, self._database())
            self._copied = version
        return await super().run(name, text, parameters)

    def separate(self, *, count: int = 1, limit_s: float = READ_LIMIT_S) -> Self:
        made = type(self)(self._path, count=count, limit_s=limit_s)
        self._pools.append(made)
        return made


def readers_of(
    path: Path, *, count: int = 2, limit_s: float = READ_LIMIT_S
) -> SqliteReaders | PostgresReaders:
    """Return readers of a file, or of a copy of it in PostgreSQL."""
    kind = CopiedReaders if ON_POSTGRES else SqliteReaders
    return kind(path, count=count, limit_s=limit_s)
