"""Journal of the messages stored by imports, kept after the broker has forgotten their keys."""

from collections.abc import Iterable
from pathlib import Path

from phpmq_lite.envelopes.sqlite_file import open_file, transaction


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
        found = self._connection.execute("SELECT 1 FROM imported WHERE key = ?", (key,))
        return found.fetchone() is not None

    def add(self, keys: Iterable[bytes]) -> None:
        """Add the keys of stored messages to the journal in one transaction."""
        with transaction(self._connection) as connection:
            connection.executemany(
                "INSERT OR IGNORE INTO imported (key) VALUES (?)", [(key,) for key in keys]
            )

    def close(self) -> None:
        """Close the file."""
        self._connection.close()
