"""Remembers what an import has stored, for second runs beyond the broker's window of keys."""

from collections.abc import Iterable
from pathlib import Path

from phpmq_lite.envelopes.sqlite_file import open_file, transaction


class ImportJournal:
    """An SQLite file with the keys of what is stored.

    The broker remembers keys for 10 minutes or 100,000 publishes, unless set otherwise.
    """

    def __init__(self, path: Path) -> None:
        self._connection = open_file(path)
        self._connection.execute(
            "CREATE TABLE IF NOT EXISTS imported (key BLOB PRIMARY KEY) WITHOUT ROWID"
        )

    def has(self, key: bytes) -> bool:
        """Tell whether this was stored by an earlier run."""
        found = self._connection.execute("SELECT 1 FROM imported WHERE key = ?", (key,))
        return found.fetchone() is not None

    def add(self, keys: Iterable[bytes]) -> None:
        """Remember what is stored, in one transaction."""
        with transaction(self._connection) as connection:
            connection.executemany(
                "INSERT OR IGNORE INTO imported (key) VALUES (?)", [(key,) for key in keys]
            )

    def close(self) -> None:
        """Close the file."""
        self._connection.close()
