"""The numbered SQL files that make up the schema of each engine."""

import hashlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from phpmq_lite.errors import StartRefusedError, UnreleasedDataError

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
    """Return the migrations in ``folder``; raise StartRefusedError if their numbers have gaps."""
    migrations = []
    for path in sorted(folder.glob("*.sql")):
        match = _FILE_NAME.fullmatch(path.name)
        if match is None:
            raise StartRefusedError(f"{path} is not a valid name; use NNNN_what_it_does.sql")
        migrations.append(Migration(int(match[1]), path.stem, path.read_text(encoding="utf-8")))
    numbers = [migration.number for migration in migrations]
    if not migrations or numbers != list(range(1, len(migrations) + 1)):
        text = ", ".join(map(str, numbers)) or "none"
        raise StartRefusedError(f"migrations in {folder} must be 1, 2, 3, …, not {text}")
    return migrations


def table_names(execute: Callable[[str], Any], sql: Mapping[str, str]) -> set[str]:
    """Return the names of all tables; ``sql`` are the engine's statements about migrations."""
    return {name for (name,) in execute(sql["tables"])}


@contextmanager
def naming(place: object) -> Iterator[None]:
    """Name ``place`` in an UnreleasedDataError about a copy of it."""
    try:
        yield
    except UnreleasedDataError as error:
        raise UnreleasedDataError(place) from error


def check_released(first: Migration, applied: Mapping[int, str], place: str) -> None:
    """Raise UnreleasedDataError unless a database began with the first released migration."""
    if applied.get(first.number) != first.sha256:
        raise UnreleasedDataError(place)


def check_applied(
    migrations: Sequence[Migration], version: int, applied: Mapping[int, str], place: str
) -> None:
    """Check that these migrations created a database of this version; ``place`` names it.

    Raises:
        UnreleasedDataError: as for ``check_released``.
        StartRefusedError: the version is later, or a checksum in ``applied`` (by number) differs.
    """
    newest = migrations[-1].number
    if version:
        check_released(migrations[0], applied, place)
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
