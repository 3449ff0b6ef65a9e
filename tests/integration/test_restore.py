"""Backup, verify, seal, restore and drill on real files."""

import json
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager, nullcontext
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace

import pytest

from phpmq_lite.errors import (
    DataDamagedError,
    StartRefusedError,
    StorageError,
    StorageFullError,
    UnreleasedDataError,
)
from phpmq_lite.installation import migrations_folder
from phpmq_lite.storage.data_folder import DataFolder, DataFolderMetadata, read_meta
from phpmq_lite.storage.sqlite import backups
from phpmq_lite.storage.sqlite import restore as restores
from phpmq_lite.storage.sqlite.backups import (
    Backup,
    BackupMaker,
    list_backups,
    read_backup,
    remove_old,
)
from phpmq_lite.storage.sqlite.integrity.database_check import verify
from phpmq_lite.storage.sqlite.integrity.startup import check_files
from phpmq_lite.storage.sqlite.restore import WithdrawnAccess, drill, restore
from phpmq_lite.storage.store import NUMBER_GAP
from tests.support.core_and_store import Driver
from tests.support.stopped_folder import (
    driver_with_history,
    execute_sql,
    flip_bit,
    problems,
    query_value,
    stopped_folder,
)

NEXT = "CREATE TABLE later (x INTEGER);\nALTER TABLE queue ADD COLUMN colour TEXT;\n"


@pytest.fixture
def driver(tmp_path: Path) -> Iterator[Driver]:
    with closing(driver_with_history(tmp_path)) as made:
        yield made


@pytest.fixture
def backup(driver: Driver, tmp_path: Path) -> Backup:
    return BackupMaker(driver.path, tmp_path / "backups", "1.2.3").run()


@pytest.fixture
def data(driver: Driver, tmp_path: Path) -> Path:
    return stopped_folder(driver, tmp_path / "data")


# -- backup


def test_backup_has_all_rows_and_counts_them(backup: Backup, driver: Driver) -> None:
    told = backup.manifest
    assert (told.queues, told.messages, told.settled, told.bodies) == (2, 3, 2, 5)
    assert (told.last_seq, told.last_offset, told.version) == (5, 2, "1.2.3")
    assert told.bytes == backup.database.stat().st_size
    assert problems(backup.database) == []
    with closing(sqlite3.connect(backup.database)) as copy:
        assert copy.execute("SELECT * FROM body").fetchall() == driver.rows("SELECT * FROM body")


def test_backup_is_private_and_has_no_path_of_others(backup: Backup) -> None:
    assert backups.is_id(backup.manifest.id)
    assert backup.folder.stat().st_mode & 0o777 == 0o700
    assert {file.name: file.stat().st_mode & 0o777 for file in backup.folder.iterdir()} == {
        "phpmq.db": 0o600, "manifest.json": 0o600,
    }  # fmt: skip


@pytest.mark.parametrize("text", ["", "..", "a", "20260101T000000Z/..", "20260101T000000Z-", "/"])
def test_other_text_is_not_an_id(text: str) -> None:
    assert not backups.is_id(text)


def test_backups_are_listed_newest_first_and_the_oldest_go(driver: Driver, tmp_path: Path) -> None:
    folder = tmp_path / "backups"
    made = [BackupMaker(driver.path, folder, "").run().manifest.id for _ in range(4)]
    assert len(set(made)) == 4
    assert [each.manifest.id for each in list_backups(folder)] == made[::-1]
    assert remove_old(folder, 2, made[3]) == made[1::-1]
    assert [each.manifest.id for each in list_backups(folder)] == made[:1:-1]
    assert sorted(path.name for path in folder.iterdir()) == sorted(made[2:])


def test_new_backup_stays_after_a_clock_step_back(driver: Driver, tmp_path: Path) -> None:
    folder = tmp_path / "backups"
    first, second, now = [BackupMaker(driver.path, folder, "").run() for _ in range(3)]
    for ahead, made in enumerate((first, second), start=1):
        told = asdict(made.manifest) | {"made_at": made.manifest.made_at + ahead * 10**9}
        (made.folder / "manifest.json").write_text(json.dumps(told))
    assert remove_old(folder, 2, now.manifest.id) == [first.manifest.id]
    left = {each.manifest.id for each in list_backups(folder)}
    assert left == {second.manifest.id, now.manifest.id}


def test_incomplete_folder_is_not_a_backup(backup: Backup) -> None:
    folder = backup.folder.parent
    (folder / "20200101T000000Z").mkdir()
    (folder / ".half.new").mkdir()
    (folder / "notes").write_text("mine")
    assert list_backups(folder) == [backup]
    (backup.folder / "manifest.json").write_text("{}")
    assert list_backups(folder) == []


def set_free_space(monkeypatch: pytest.MonkeyPatch, free: int) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: SimpleNamespace(free=free))


def test_backup_needs_twice_the_space(
    driver: Driver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = driver.path.stat().st_size
    set_free_space(monkeypatch, 2 * size - 1)
    with pytest.raises(StorageFullError, match=f"but {2 * size:,} are required"):
        BackupMaker(driver.path, tmp_path / "backups", "").run()
    assert list_backups(tmp_path / "backups") == []


@pytest.mark.parametrize(("free", "is_made"), [(-1, False), (0, True)])
def test_backup_leaves_the_space_that_publishing_needs(
    driver: Driver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free: int, is_made: bool
) -> None:
    """On the disk of the database, a scheduled backup must not stop publishers."""
    need = driver.path.stat().st_size + (reserve := 1 << 30)
    set_free_space(monkeypatch, need + free)
    making = BackupMaker(driver.path, tmp_path / "backups", "", reserve=reserve)
    refusal = pytest.raises(StorageFullError, match=f"but {need:,} are required")
    with nullcontext() if is_made else refusal:
        making.run()
    assert len(list_backups(tmp_path / "backups")) == is_made


def test_backup_that_is_stopped_leaves_nothing(driver: Driver, tmp_path: Path) -> None:
    making = BackupMaker(driver.path, tmp_path / "backups", "")
    making.stop()
    with pytest.raises(StorageError, match="was stopped"):
        making.run()
    assert list((tmp_path / "backups").iterdir()) == []


def test_backup_that_takes_too_long_is_stopped(driver: Driver, tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="was stopped"):
        BackupMaker(driver.path, tmp_path / "backups", "").run(limit_s=0)


def test_backup_of_a_damaged_database_fails(data: Path, tmp_path: Path) -> None:
    with (data / "phpmq.db").open("r+b") as file:
        file.seek(4_096)
        file.write(b"\xff" * 8_192)
    with pytest.raises(DataDamagedError):
        BackupMaker(data / "phpmq.db", tmp_path / "backups", "", is_open=False).run()
    assert list_backups(tmp_path / "backups") == []


def test_backup_of_a_closed_database_leaves_no_trace(data: Path, tmp_path: Path) -> None:
    before = sorted((p.name, p.stat().st_mtime_ns) for p in data.iterdir())
    BackupMaker(data / "phpmq.db", tmp_path / "backups", "", is_open=False).run()
    assert sorted((p.name, p.stat().st_mtime_ns) for p in data.iterdir()) == before


# -- verify


def test_verify_finds_nothing_and_leaves_no_trace(data: Path, driver: Driver) -> None:
    before = sorted((p.name, p.stat().st_mtime_ns) for p in data.iterdir())
    assert problems(data) == []
    assert sorted((p.name, p.stat().st_mtime_ns) for p in data.iterdir()) == before


def test_verify_reads_what_is_in_the_wal(data: Path) -> None:
    with writer_without_checkpoints(data) as writer:
        writer.execute("DELETE FROM queue")
        shutil.copytree(data, data.with_name("killed"))
    killed = data.with_name("killed")
    before = sorted((p.name, p.stat().st_mtime_ns) for p in killed.iterdir())
    assert "5 messages belong to queues that do not exist" in problems(killed)
    assert sorted((p.name, p.stat().st_mtime_ns) for p in killed.iterdir()) == before


@pytest.mark.parametrize(
    ("sql", "found"),
    [
        ("UPDATE body SET content = x'ff' WHERE seq = 3", "have a damaged body: seq 3"),
        ("DELETE FROM body WHERE seq = 3", "have a damaged body: seq 3"),
        ("UPDATE body SET content = 'text' WHERE seq = 3", "have a damaged body: seq 3"),
        ("UPDATE body SET content = x'ff' WHERE seq = 1", "settled messages have a damaged body"),
        ("UPDATE queue SET live_count = 7 WHERE queue_id = 1", "1 queues have wrong"),
        ("UPDATE message SET queue_id = 9 WHERE seq = 3", "1 messages belong to queues"),
        ("UPDATE history SET seq = 3 WHERE seq = 1", "1 messages exist twice"),
        ("UPDATE message SET position = 99 WHERE seq = 4", "1 rows have a number that has not"),
        ("UPDATE message SET position = position + (127 << 48) + 99 WHERE seq = 4",
         "1 rows have a number that has not"),
        ("UPDATE message SET state = 6, due_ms = 5 WHERE seq = 4", "1 queues have wrong counts of"),
        ("UPDATE message SET unique_key = 'k' WHERE seq IN (3, 4)", "1 messages have the unique"),
        ("UPDATE message SET group_name = 'g', head_since = 1", "1 groups have more than one"),
        ("INSERT INTO counter VALUES ('deleted_lo', 1), ('history_lo', 1); "
         'UPDATE history SET "offset" = 9 WHERE "offset" = 2', "7 history offsets are missing"),
        ("INSERT INTO counter VALUES ('placed_upto', 2)", "4 settled messages do not match"),
        ("INSERT INTO counter VALUES ('history_rows', 5)", "1 history totals differ"),
        ("INSERT INTO claim VALUES (1, 1, 1, 0)", "1 claims refer to messages that are not"),
        ("PRAGMA user_version = 99", "schema version 99"),
    ],
)  # fmt: skip
def test_verify_finds(data: Path, sql: str, found: str) -> None:
    for each in sql.split("; "):
        execute_sql(data / "phpmq.db", each)
    assert any(found in problem for problem in problems(data))


def test_verify_accepts_priorities_and_keys_of_records(data: Path) -> None:
    file = data / "phpmq.db"
    execute_sql(file, "UPDATE message SET position = position + ((seq % 256 - 128) << 48)")
    execute_sql(file, "UPDATE message SET unique_key = 'k', source_queue_id = 1")
    assert problems(data) == []


def test_verify_accepts_a_damaged_body_that_was_dead_lettered(data: Path) -> None:
    """It was reported at that time."""
    execute_sql(data / "phpmq.db", "UPDATE body SET content = x'ff' WHERE seq = 1")
    execute_sql(data / "phpmq.db", "UPDATE history SET reason = 'crc' WHERE seq = 1")
    assert problems(data) == []


def test_verify_refuses_the_folder_of_a_running_broker(data: Path) -> None:
    with closing(DataFolder.open(data)), pytest.raises(StartRefusedError, match="is in use"):
        verify(data)


def test_verify_refuses_the_database_of_a_running_broker(data: Path) -> None:
    """The database and its log would be read at different moments."""
    with closing(DataFolder.open(data)), pytest.raises(StartRefusedError, match="in use"):
        verify(data / "phpmq.db")


def test_verify_reports_a_missing_database(tmp_path: Path) -> None:
    with pytest.raises(DataDamagedError, match="does not exist"):
        verify(tmp_path)


def test_verify_finds_a_missing_wal(data: Path) -> None:
    with closing(DataFolder.open(data)) as folder:
        folder.record(is_running=True)
    assert problems(data) == ["the log is missing, but the broker did not stop cleanly"]


# -- restore


def test_restore_puts_the_backup_in_place_and_the_rest_aside(backup: Backup, data: Path) -> None:
    old = (data / "phpmq.db").read_bytes()
    (data / "scrub.json").write_text("of the old one")
    done = restore(backup.folder, data)
    assert not (data / "scrub.json").exists()
    assert done.replaced_files is not None
    assert (done.replaced_files / "phpmq.db").read_bytes() == old
    assert problems(data) == []
    with closing(DataFolder.open(data)) as folder:
        assert "every byte" in check_files(folder).checks[-1]


@pytest.mark.parametrize("priority", [0, 128, 255])
def test_numbers_continue_after_a_gap(backup: Backup, data: Path, priority: int) -> None:
    changed = data.with_name("changed.db")
    shutil.copy(backup.database, changed)
    execute_sql(changed, f"UPDATE message SET position = position + {priority - 128 << 48}")
    restore(changed, data)
    assert query_value(data / "phpmq.db", "SELECT next_number FROM line") == 6 + NUMBER_GAP


def test_restored_history_has_a_new_id(backup: Backup, data: Path) -> None:
    before = query_value(backup.database, "SELECT value FROM meta WHERE name = 'history_id'")
    restore(backup.folder, data)
    after = query_value(data / "phpmq.db", "SELECT value FROM meta WHERE name = 'history_id'")
    assert before != after


def test_late_acknowledgement_matches_no_message_after_a_restore(
    driver: Driver, backup: Backup, data: Path, tmp_path: Path
) -> None:
    """Its message came after the backup; no other message gets its number."""
    driver.consume()
    driver.publish(b"after the backup")
    got = (each for client in driver.clients for each in client.take())
    late = next(each for each in got if each.body == b"after the backup")
    restore(backup.folder, data)
    driver.store.connection.close()
    shutil.copyfile(data / "phpmq.db", driver.path)
    for end in ("-wal", "-shm"):
        driver.path.with_name(driver.path.name + end).unlink(missing_ok=True)
    driver.kill_and_restart()
    driver.publish(b"new")
    driver.connect().acknowledge("orders", late.message_id)
    driver.step()
    assert driver.rows("SELECT content FROM body JOIN message USING (seq) ORDER BY seq DESC LIMIT 1"
                       ) == [(b"new",)]  # fmt: skip
    assert driver.core.ignored.total() == 1


def test_restore_replaces_a_missing_or_broken_database(backup: Backup, data: Path) -> None:
    (data / "phpmq.db").write_bytes(b"no database")
    (data / "phpmq.db-wal").write_bytes(b"of another one")
    done = restore(backup.folder, data)
    assert done.replaced_files is not None
    replaced = {path.name for path in done.replaced_files.iterdir()}
    assert replaced == {"phpmq.db", "phpmq.db-wal"}
    assert problems(data) == []
    (data / "phpmq.db").unlink()
    assert restore(backup.folder, data).replaced_files is None
    assert problems(data) == []


def test_restore_makes_a_new_folder(backup: Backup, tmp_path: Path) -> None:
    assert restore(backup.folder, tmp_path / "new" / "data").replaced_files is None
    assert problems(tmp_path / "new" / "data") == []


def test_restore_of_a_bare_file(backup: Backup, tmp_path: Path) -> None:
    """``before-migration-NNNN.db`` is such a file."""
    assert restore(backup.database, tmp_path / "data").problems == []


@pytest.mark.parametrize("file", ["phpmq.db", "manifest.json"])
def test_restore_refuses_a_changed_backup(backup: Backup, data: Path, file: str) -> None:
    before = (data / "phpmq.db").read_bytes()
    flip_bit(backup.folder / file, 9_000 if file == "phpmq.db" else 0)
    with pytest.raises(DataDamagedError, match=r"SHA-256|is not a backup"):
        restore(backup.folder, data)
    assert (data / "phpmq.db").read_bytes() == before
    assert list(data.glob("replaced-*")) == []


def test_restore_refuses_a_damaged_file_by_default(backup: Backup, data: Path) -> None:
    execute_sql(backup.database, "UPDATE body SET content = x'ff' WHERE seq = 3")
    with pytest.raises(DataDamagedError, match="seq 3"):
        restore(backup.database, data)
    assert len(restore(backup.database, data, accept_loss=True).problems) == 1


def test_restore_refuses_a_newer_backup(backup: Backup, data: Path) -> None:
    execute_sql(backup.database, "PRAGMA user_version = 99")
    with pytest.raises(StartRefusedError, match="schema version 99"):
        restore(backup.database, data)


def test_backup_of_an_unreleased_version_is_refused_by_its_name(
    backup: Backup, data: Path, tmp_path: Path
) -> None:
    execute_sql(backup.database, "UPDATE migration SET sha256 = 'another'")
    old, before = tmp_path / "old.db", (data / "phpmq.db").read_bytes()
    shutil.copy(backup.database, old)
    message = f"{old} was made by an unreleased version"
    with pytest.raises(UnreleasedDataError, match=message):
        restore(old, data)
    with pytest.raises(UnreleasedDataError, match=message):
        drill(old, migrations_folder())
    with pytest.raises(UnreleasedDataError, match=message):
        verify(old)
    assert (data / "phpmq.db").read_bytes() == before
    assert list(data.glob("replaced-*")) == []


def test_restore_refuses_a_running_broker(backup: Backup, data: Path) -> None:
    with closing(DataFolder.open(data)), pytest.raises(StartRefusedError, match="is in use"):
        restore(backup.folder, data)


def test_restore_refuses_a_database_that_has_a_wal(data: Path, tmp_path: Path) -> None:
    (data / "phpmq.db-wal").write_bytes(b"more of it")
    with pytest.raises(DataDamagedError, match="contains newer commits"):
        restore(data / "phpmq.db", tmp_path / "other")


@pytest.mark.parametrize("step", ["move_aside", "replace"])
def test_interrupted_restore_starts_no_empty_broker(
    backup: Backup, data: Path, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The old database is kept, and the restore can be repeated."""
    old = (data / "phpmq.db").read_bytes()

    def cut(*_given: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        if step == "replace":
            patch.setattr(Path, "replace", cut)
        else:
            patch.setattr(restores, step, cut)
        with pytest.raises(KeyboardInterrupt):
            restore(backup.folder, data)
    kept = [
        path for path in (data / "phpmq.db", *data.glob("replaced-*/phpmq.db")) if path.exists()
    ]
    assert [path.read_bytes() for path in kept] == [old]
    if step == "replace":
        with pytest.raises(DataDamagedError, match="is missing"):
            DataFolder.open(data)
    restore(backup.folder, data)
    assert problems(data) == []


# -- drill


def test_drill_passes_and_leaves_nothing(backup: Backup, tmp_path: Path) -> None:
    before = sorted(tmp_path.rglob("*"))
    assert drill(backup.folder, migrations_folder()).problems == []
    assert sorted(tmp_path.rglob("*")) == before


def test_drill_passes_on_the_next_versions_schema(backup: Backup, tmp_path: Path) -> None:
    later = shutil.copytree(migrations_folder(), tmp_path / "migrations")
    number = len(list(later.glob("*.sql"))) + 1
    (later / f"{number:04d}_later.sql").write_text(NEXT, encoding="utf-8")
    done = drill(backup.folder, later)
    assert done.migrated == [f"{number:04d}_later"]
    assert done.problems == []


def test_drill_finds_a_migration_that_fails(backup: Backup, tmp_path: Path) -> None:
    later = shutil.copytree(migrations_folder(), tmp_path / "migrations")
    number = len(list(later.glob("*.sql"))) + 1
    (later / f"{number:04d}_later.sql").write_text("DROP TABLE nothing;", encoding="utf-8")
    with pytest.raises(StartRefusedError, match="later failed"):
        drill(backup.folder, later)


# -- the manifest


def test_manifest_of_another_version_is_no_backup(backup: Backup) -> None:
    told = json.loads((backup.folder / "manifest.json").read_text())
    (backup.folder / "manifest.json").write_text(json.dumps({**told, "more": 1}))
    assert read_backup(backup.folder) is None


def test_meta_without_a_seal_is_read(tmp_path: Path) -> None:
    (tmp_path / "meta.json").write_text('{"created_at": 5, "seal": "no number"}')
    assert read_meta(tmp_path) == DataFolderMetadata(5, has_messages=True)


# -- access after a restore

LATER = 1 << 50  # Unix ms


def _add_accounts(database: Path) -> None:
    """Store two users, two tokens and two sessions as a broker does."""
    for sql in (
        "INSERT INTO user VALUES (1, 'ann', 'hash', 'admin', '[]', 7, NULL)",
        "INSERT INTO user VALUES (2, 'bob', 'hash', 'operator', '[\"bob.*\"]', 8, NULL)",
        "INSERT INTO token VALUES (1, 'ci', x'aa', 'operator', '[]', 7, 'ann', NULL, NULL)",
        f"INSERT INTO token VALUES (2, 'ops', x'bb', 'admin', '[]', 7, 'ann', {LATER}, NULL)",
        f"INSERT INTO session VALUES (1, x'cc', 1, 'csrf', 7, 7, {LATER}, '', '')",
        f"INSERT INTO session VALUES (2, x'dd', 2, 'csrf', 7, 7, {LATER}, '', '')",
    ):
        execute_sql(database, sql)


@pytest.fixture
def with_accounts(data: Path, tmp_path: Path) -> Backup:
    _add_accounts(data / "phpmq.db")
    _seal(data)
    return BackupMaker(data / "phpmq.db", tmp_path / "of-accounts", "", is_open=False).run()


def _seal(data: Path) -> None:
    with closing(DataFolder.open(data)) as folder:
        folder.seal(None)


def _access(data: Path) -> tuple[list[str], int, list[tuple[str, str]]]:
    """Return the valid tokens, the number of sessions, and users with passwords."""
    with closing(sqlite3.connect(data / "phpmq.db")) as connection:
        tokens = connection.execute(
            "SELECT name FROM token WHERE coalesce(expires_at, ?) >= ? ORDER BY 1", (LATER, LATER)
        )
        sessions = connection.execute("SELECT count(*) FROM session").fetchone()[0]
        users = connection.execute("SELECT name, password FROM user ORDER BY 1").fetchall()
        return [name for (name,) in tokens], sessions, users


BOTH = [("ann", "hash"), ("bob", "hash")]


def test_restore_keeps_revoked_access_revoked(with_accounts: Backup, data: Path) -> None:
    for sql in (
        "DELETE FROM token WHERE name = 'ops'",
        "DELETE FROM session WHERE session_id = 2",
        "UPDATE user SET password = 'newer' WHERE name = 'bob'",
    ):
        execute_sql(data / "phpmq.db", sql)
    done = restore(with_accounts.folder, data)
    assert _access(data) == (["ci"], 1, [("ann", "hash"), ("bob", "newer")])
    assert done.withdrawn == WithdrawnAccess(
        has_proof=True, sessions=1, tokens=["ops"], users=["bob"]
    )
    assert problems(data) == []


def test_restore_keeps_access_that_is_still_valid(with_accounts: Backup, data: Path) -> None:
    done = restore(with_accounts.folder, data)
    assert _access(data) == (["ci", "ops"], 2, BOTH)
    assert done.withdrawn == WithdrawnAccess(has_proof=True)


def test_restore_keeps_the_current_users(with_accounts: Backup, data: Path) -> None:
    """The only admin of the backup was removed: their successor must still be able to log in."""
    execute_sql(data / "phpmq.db", "DELETE FROM user WHERE name = 'ann'")
    execute_sql(
        data / "phpmq.db", "INSERT INTO user VALUES (3, 'cyd', 'hash', 'admin', '[]', 9, NULL)"
    )
    done = restore(with_accounts.folder, data)
    assert _access(data)[2] == [("bob", "hash"), ("cyd", "hash")]
    assert done.withdrawn is not None
    assert done.withdrawn.users == ["ann", "cyd"]


@pytest.mark.parametrize("harm", ["gone", "no database", "no users", "wal", "wal is missing"])
def test_restore_ends_all_access_if_the_replaced_database_is_unreadable(
    with_accounts: Backup, data: Path, harm: str
) -> None:
    database = data / "phpmq.db"
    if harm == "gone":
        database.unlink()
    elif harm == "no database":
        database.write_bytes(b"no database")
    elif harm == "no users":
        for table in ("user", "token", "session"):
            execute_sql(database, f"DELETE FROM {table}")
    elif harm == "wal":
        _leave_damaged_log(data)
    else:
        with closing(DataFolder.open(data)) as folder:
            folder.record(is_running=True)
    done = restore(with_accounts.folder, data)
    assert _access(data) == ([], 0, BOTH)
    assert done.withdrawn == WithdrawnAccess(
        has_proof=harm == "no users", sessions=2, tokens=["ci", "ops"]
    )


@contextmanager
def writer_without_checkpoints(data: Path) -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(data / "phpmq.db", isolation_level=None)) as writer:
        writer.execute("PRAGMA journal_mode=WAL").fetchall()
        writer.execute("PRAGMA wal_autocheckpoint=0")
        yield writer


def _leave_damaged_log(data: Path) -> None:
    """Leave a write-ahead log of two commits whose first frame is damaged."""
    with writer_without_checkpoints(data) as writer:
        writer.execute("DELETE FROM token WHERE name = 'ci'")
        writer.execute("DELETE FROM session")
        log = (data / "phpmq.db-wal").read_bytes()
    (data / "phpmq.db-wal").write_bytes(log)
    flip_bit(data / "phpmq.db-wal", 100)


def test_restore_reads_what_was_revoked_from_the_wal(with_accounts: Backup, data: Path) -> None:
    with writer_without_checkpoints(data) as writer:
        writer.execute("DELETE FROM token WHERE name = 'ci'")
        shutil.copytree(data, data.with_name("killed"))
    restore(with_accounts.folder, data.with_name("killed"))
    assert _access(data.with_name("killed"))[:2] == (["ops"], 2)


def test_restore_keeps_all_access_when_asked_to(with_accounts: Backup, data: Path) -> None:
    for table in ("user", "token", "session"):
        execute_sql(data / "phpmq.db", f"DELETE FROM {table}")
    done = restore(with_accounts.folder, data, keep_tokens=True)
    assert _access(data) == (["ci", "ops"], 2, BOTH)
    assert done.withdrawn is None
