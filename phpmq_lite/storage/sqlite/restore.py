"""Replaces a database with a backup; the old files are moved aside, not deleted.

After a power cut during a restore, the database is missing and startup fails; restore again.
New messages are numbered from 1,000,000 above the backup's last number, so that no late
acknowledgement of a message missing from the backup matches another message.  The history gets a
new id, so that its readers notice the change.  Login sessions end and tokens are disabled unless
they are valid in the replaced database, because a restore must not revive revoked access.
"""

import os
import shutil
import sqlite3
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from operator import attrgetter
from pathlib import Path
from time import time_ns
from typing import Final

from phpmq_lite.errors import DataDamagedError, StartRefusedError
from phpmq_lite.installation import migrations_folder
from phpmq_lite.model import ClockReading
from phpmq_lite.storage.atomic_files import create_private, new_folder, sync_file, sync_folder
from phpmq_lite.storage.batch_sql import write_statements
from phpmq_lite.storage.data_folder import DATABASE, DataFolder
from phpmq_lite.storage.database_check import DatabaseCheck
from phpmq_lite.storage.migrations import naming, table_names
from phpmq_lite.storage.read.accounts import StoredAccounts, accounts_of, globs_text
from phpmq_lite.storage.sqlite import litestream, migrate
from phpmq_lite.storage.sqlite.backups import check_space, read_backup, verify_backup
from phpmq_lite.storage.sqlite.database_file import has_wal, wal_of
from phpmq_lite.storage.sqlite.integrity import scrub
from phpmq_lite.storage.sqlite.integrity.database_check import check_all, check_log, verify
from phpmq_lite.storage.sqlite.integrity.seal import checksum_of, seal
from phpmq_lite.storage.sqlite.integrity.startup import check_files, open_stopped
from phpmq_lite.storage.sqlite.store import SqliteStore
from phpmq_lite.storage.statements import load
from phpmq_lite.writes import AddUser, DeleteSession, DeleteUser, ExpireToken, Write

ReportStep = Callable[[str], None]

_STAGED_NAME: Final = ".restored.new"
_CACHE_BYTES: Final = 8 << 20


@dataclass(slots=True)
class WithdrawnAccess:
    """Access that was granted in the backup but revoked by the restore."""

    has_proof: bool = False  # whether the replaced database could be read
    sessions: int = 0  # number of login sessions that were ended
    tokens: list[str] = field(default_factory=list)  # names of the disabled tokens
    users: list[str] = field(default_factory=list)  # names of users that were removed or changed


@dataclass(slots=True)
class RestoreResult:
    """The result of a restore or of a restore drill."""

    database: Path
    replaced_files: Path | None = None  # folder that contains the replaced files
    checks: list[DatabaseCheck] = field(default_factory=list)
    migrated: list[str] = field(default_factory=list)  # names of the migrations applied by a drill
    withdrawn: WithdrawnAccess | None = None  # access that the restore revoked
    history_id: str = ""  # of the restored database

    @property
    def problems(self) -> list[str]:
        return [problem for check in self.checks for problem in check.problems]


def restore(
    source: Path,
    data: Path,
    *,
    allow_network_fs: bool = False,
    accept_loss: bool = False,
    keep_tokens: bool = False,
    tell: ReportStep = lambda step: None,
) -> RestoreResult:
    """Restore a backup, or a bare database file, into the data folder of a stopped broker.

    With ``keep_tokens``, the users, sessions and tokens in the backup remain valid.

    Raises:
        DataDamagedError: the backup differs from its manifest or is damaged.  With ``accept_loss``,
            a damaged backup is restored anyway.
        StartRefusedError: a broker is running there, or the backup is from a newer version or from
            an unreleased one.
        StorageFullError: there is not enough space for the backup.
    """
    database = _verify_source(source, tell)
    folder = DataFolder.open(data, allow_network_fs=allow_network_fs, has_database=False)
    with closing(folder), litestream.CheckpointRight(folder.path).hold() as may_replace:
        if not may_replace:
            raise StartRefusedError(f"Litestream is running for {folder.path}; stop it first")
        staged = folder.path / _STAGED_NAME
        try:
            check_space(folder.path, database.stat().st_size)
            staged.unlink(missing_ok=True)
            os.close(create_private(staged))
            shutil.copyfile(database, staged)
            result = RestoreResult(folder.database)
            tell("checking the database")
            with _transaction(staged) as connection:
                with naming(source):  # rejects what is newer, foreign or of an unreleased version
                    migrate.pending(connection, migrations_folder())
                result.checks = check_all(connection)
                if result.problems and not accept_loss:
                    problems = "; ".join(result.problems[:3])
                    raise DataDamagedError(f"{database} is damaged: {problems}")
                for name in ("drop_sequence", "drop_lock"):  # tables of Litestream
                    connection.execute(load("standby", "sqlite")[name])
                result.history_id = SqliteStore(connection).renumber()
                if not keep_tokens:
                    tell("comparing users, sessions and tokens with those of the replaced database")
                    result.withdrawn = _withdraw_access(connection, _replaced_accounts(folder))
            litestream.change_history(folder.path, result.history_id)
            tell("moving the database into place")
            result.replaced_files = move_aside(folder)
            # After a power cut at this point, startup fails because the database is missing.
            folder.seal(None if litestream.is_configured(folder.path) else checksum_of(staged))
            folder.record(has_messages=True, is_running=False)
            staged.replace(folder.database)
            folder.staged_copy.unlink(missing_ok=True)  # the restored database replaces it, too
            sync_folder(folder.path)
        finally:
            staged.unlink(missing_ok=True)
    return result


def drill(source: Path, migrations: Path, *, tell: ReportStep = lambda step: None) -> RestoreResult:
    """Restore into a temporary folder, perform a trial startup there and verify everything.

    The folder is in TMPDIR and is deleted at the end.  ``migrations`` holds those to apply.

    Raises:
        PhpmqError: as for ``restore`` or startup.
    """
    with tempfile.TemporaryDirectory(prefix="phpmq-drill-") as place:
        data = Path(place) / "data"
        result = restore(source, data, allow_network_fs=True, tell=tell)
        with closing(DataFolder.open(data, allow_network_fs=True)) as folder:
            check_files(folder)
            tell("migrating and recovering")
            with closing(sqlite3.connect(folder.database, isolation_level=None)) as connection:
                store = SqliteStore(connection)
                store.configure(_CACHE_BYTES)
                result.migrated = migrate.migrate(connection, migrations)
                now_ms = time_ns() // 1_000_000
                list(store.recover(ClockReading(now_ms, now_ms), 0, 0).receipts)
            seal(folder)
        tell("checking the result of the trial startup")
        result.checks = verify(data, migrations)
    return result


def _verify_source(source: Path, tell: ReportStep) -> Path:
    """Verify a backup and return its database; a bare database file has no manifest to verify."""
    if source.is_file():
        if has_wal(source):
            raise DataDamagedError(
                f"{source} is not a backup: {wal_of(source).name} next to it contains newer commits"
            )
        return source
    backup = read_backup(source)
    if backup is None:
        raise DataDamagedError(
            f"{source} is not a backup: it has no {DATABASE} with a readable manifest.json"
        )
    tell("comparing the backup with its manifest")
    verify_backup(backup)
    return backup.database


def read_history_id(connection: sqlite3.Connection) -> str | None:
    """Return a database's history id, or None if no broker has created one yet."""
    if "meta" not in table_names(connection.execute, load("migrate", "sqlite")):
        return None
    row = connection.execute(load("standby", "sqlite")["history_id"]).fetchone()
    return row and str(row[0])


@contextmanager
def _transaction(staged: Path) -> Iterator[sqlite3.Connection]:
    """Run one transaction on the copy and flush the copy to disk."""
    with closing(sqlite3.connect(staged, isolation_level=None)) as connection:
        try:
            connection.execute("PRAGMA journal_mode=DELETE").fetchall()  # this removes the WAL
            connection.execute("BEGIN IMMEDIATE")
            yield connection
            connection.execute("COMMIT")
        except sqlite3.DatabaseError as error:
            raise DataDamagedError(f"the backup cannot be restored: {error}") from error
    sync_file(staged)


def _replaced_accounts(folder: DataFolder) -> StoredAccounts | None:
    """Return the accounts in the database that is about to be replaced.

    Returns None if there is no database, or if its latest commits may be missing, because access
    that those commits revoked would appear valid.
    """
    try:
        folder.check_database()
        if check_log(folder.wal, is_needed=folder.meta.needs_wal).problems or folder.has_journal:
            return None
        with open_stopped(folder.database) as connection:
            return _read_accounts(connection)
    except (sqlite3.Error, DataDamagedError, OSError):
        return None


def move_aside(folder: DataFolder) -> Path | None:
    """Move the old files aside, the database first, so that startup fails after an interruption."""
    names = (DATABASE, f"{DATABASE}-wal", f"{DATABASE}-shm", f"{DATABASE}-journal", scrub.FILE)
    files = (*map(folder.path.joinpath, names), folder.last_error_file)
    existing = [file for file in files if file.exists()]
    if not existing:
        return None
    aside = new_folder(folder.path, "replaced-")
    for file in existing:
        file.rename(aside / file.name)
    sync_folder(aside)
    sync_folder(folder.path)
    return aside


def _read_accounts(connection: sqlite3.Connection) -> StoredAccounts:
    """Return a database's accounts; raise sqlite3.Error if a table or its index is damaged."""
    execute, sql = connection.execute, load("accounts", "sqlite")
    if "user" not in table_names(execute, load("migrate", "sqlite")):
        return StoredAccounts([], [], [])
    for table in ("user", "token", "session"):
        if execute(f"PRAGMA integrity_check({table})").fetchone() != ("ok",):
            raise sqlite3.DatabaseError(f"the table {table} is damaged")
    return accounts_of(*(execute(sql[name]) for name in ("users", "tokens", "sessions")))


def _withdraw_access(
    connection: sqlite3.Connection, valid: StoredAccounts | None
) -> WithdrawnAccess:
    """Revoke access that the backup brought back; call this in a transaction on the restored copy.

    ``valid`` holds the replaced database's accounts, or is None if they cannot be read.  Sessions
    and tokens missing from ``valid`` are ended.  If the backup shares a user with ``valid``, the
    users become those of ``valid``; otherwise, the backup is from another broker and keeps its own.
    """
    now_ms = time_ns() // 1_000_000
    withdrawn = WithdrawnAccess(valid is not None)

    def write(row: Write) -> None:
        for name in write_statements(type(row)):
            connection.execute(load("writes", "sqlite")[name], row._asdict())

    restored, valid = _read_accounts(connection), valid or StoredAccounts([], [], [])
    expiries = {token.sha256: token.expires_at for token in valid.tokens}
    for token in restored.tokens:
        expires_at = expiries.get(token.sha256, now_ms)
        has_expired = token.expires_at is not None and token.expires_at <= now_ms
        if token.expires_at != expires_at and not has_expired:
            write(ExpireToken(expires_at, token.token_id))
            withdrawn.tokens.append(token.name)
    valid_sessions = {(session.sha256, session.user_id) for session in valid.sessions}
    for session in restored.sessions:
        if (session.sha256, session.user_id) not in valid_sessions:
            write(DeleteSession(session.session_id))
            withdrawn.sessions += 1
    before, after = set(map(_rights, restored.users)), set(map(_rights, valid.users))
    if not {key[:3] for key in before} & {key[:3] for key in after}:
        return withdrawn
    for key in before - after:
        write(DeleteUser(key[0]))
        withdrawn.users.append(key[1])
    for user in valid.users:
        if _rights(user) not in before:
            queues = globs_text(user.queues)
            write(
                AddUser(user.user_id, user.name, user.password, user.role, queues, user.created_at)
            )
            withdrawn.users.append(user.name)
    withdrawn.users = sorted(set(withdrawn.users))
    return withdrawn


# The three values that identify a user, then those on which a login depends.
_rights: Final = attrgetter("user_id", "name", "created_at", "password", "role", "queues")
