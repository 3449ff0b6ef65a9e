"""The numbered SQL files that make up the schema of each engine."""

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from phpmq_lite.errors import StartRefusedError

_FILE_NAME: Final = re.compile(r"(\d{4})_(\w+)\.sql")


@dataclass(slots=True, frozen=True)
class Migration:
    """A numbered migration file."""

    number: int
    name: str  # file name without its extension, such as 0001_initial
    sql: str

    @property
    def sha256(self) -> str:
        """Checksum of the file's text, used to detect later changes."""
        return hashlib.sha256(self.sql.encode()).hexdigest()


def read_migrations(folder: Path) -> list[Migration]:
    """Read the numbered migration files in ``folder``, in order.

    Raises:
        StartRefusedError: the folder has no migrations, or a number is missing or used twice.
    """
    found = []
    for path in sorted(folder.glob("*.sql")):
        match = _FILE_NAME.fullmatch(path.name)
        if match is None:
            raise StartRefusedError(f"{path} is not a valid name; use NNNN_what_it_does.sql")
        found.append(Migration(int(match[1]), path.stem, path.read_text(encoding="utf-8")))
    if not found or [m.number for m in found] != list(range(1, len(found) + 1)):
        numbers = ", ".join(str(m.number) for m in found) or "none"
        raise StartRefusedError(f"migrations in {folder} must be 1, 2, 3, …, not {numbers}")
    return found


def check_applied(
    migrations: Sequence[Migration], version: int, applied: Mapping[int, str]
) -> None:
    """Check that these migrations created a database of this version.

    Raises:
        StartRefusedError: the version is later, or a checksum in ``applied`` (by number) differs.
    """
    newest = migrations[-1].number
    if version > newest:
        raise StartRefusedError(
            f"the database has schema version {version}, but this phpmq-lite supports versions "
            f"only up to {newest}: install the version that created the database, or a newer one"
        )
    for migration in migrations[:version]:
        if applied.get(migration.number) != migration.sha256:
            raise StartRefusedError(
                f"migration {migration.name} differs from the version that created this database: "
                "its file was changed after its release"
            )
