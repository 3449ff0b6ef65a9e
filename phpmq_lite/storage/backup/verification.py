"""Verifies a backup: its size and SHA-256 must be those of its manifest."""

from collections.abc import Callable
from pathlib import Path

from phpmq_lite.errors import DataDamagedError
from phpmq_lite.storage.backup.backups import Backup, read_backup, sha256_of
from phpmq_lite.storage.data_folder import DATABASE

ReportStep = Callable[[str], None]


def verify_backup(backup: Backup, report: ReportStep = lambda step: None) -> None:
    """Compare a backup with its manifest.

    Raises:
        DataDamagedError: it was modified.
    """
    size = backup.database.stat().st_size
    if size != backup.manifest.bytes:
        raise DataDamagedError(
            f"{backup.database} is {size:,} bytes long, its manifest says {backup.manifest.bytes:,}"
        )
    report("comparing the backup with its manifest")
    if sha256_of(backup.database) != backup.manifest.sha256:
        raise DataDamagedError(
            f"{backup.database} is damaged: its SHA-256 differs from the manifest"
        )


def verify_source(source: Path, report: ReportStep = lambda step: None) -> Path:
    """Return the database of a backup, checked against its manifest; a bare file has none.

    Raises:
        DataDamagedError: the source is not a backup, or it was modified.
    """
    if source.is_file():
        wal = source.with_name(f"{source.name}-wal")
        if wal.exists() and wal.stat().st_size:
            raise DataDamagedError(
                f"{source} is not a backup: {wal.name} beside it has newer commits"
            )
        return source
    backup: Backup | None = read_backup(source)
    if backup is None:
        raise DataDamagedError(
            f"{source} is not a backup: it has no {DATABASE} with a readable manifest.json"
        )
    verify_backup(backup, report)
    return backup.database
