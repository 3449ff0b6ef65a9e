"""After the database of a running broker is unlinked or replaced, nothing is confirmed."""

import json
import os
import signal
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from phpmq_lite.errors import DatabaseReplacedError
from phpmq_lite.storage.data_folder import DATABASE, DataFolder
from phpmq_lite.storage.sqlite.backups import BackupMaker
from phpmq_lite.storage.sqlite.database_file import OpenedFiles
from phpmq_lite.storage.sqlite.integrity.seal import LiveSeal, seal
from tests.support.fork_server import BrokerProcess, broker_process
from tests.support.socket_client import SocketClient
from tests.support.stores import empty_database

FILES = (DATABASE, f"{DATABASE}-wal")
FOREIGN = empty_database()


def unlink(file: Path) -> None:
    file.unlink()


def replace(file: Path) -> None:
    new = file.with_suffix(".new")
    new.write_bytes(FOREIGN)
    new.rename(file)


def link(file: Path) -> None:
    os.link(file, file.with_suffix(".link"))


Disturb = Callable[[Path], None]
disturbed = pytest.mark.parametrize("disturb", [unlink, replace, link])
of_both = pytest.mark.parametrize("name", FILES)


def assert_stopped(broker: BrokerProcess, file: Path, disturb: Disturb) -> None:
    """Check that the broker has stopped and has left the new file unchanged."""
    assert broker.process is not None
    assert broker.process.wait(30) == 74
    if disturb is replace:
        assert file.read_bytes() == FOREIGN
    assert file.exists() == (disturb is not unlink)
    told = json.loads((broker.data / "last_error.json").read_text())
    assert told["error"] == "DatabaseReplacedError"
    assert str(file) in told["message"]
    assert json.loads((broker.data / "meta.json").read_text())["seal"] is None
    assert "was re" in broker.log.read_text()  # removed, or replaced


@of_both
@disturbed
def test_broker_confirms_nothing_once_its_file_is_another_one(
    tmp_path: Path, name: str, disturb: Disturb
) -> None:
    with broker_process(tmp_path / "data", "--admin", "none") as broker:
        file = broker.data / name
        with SocketClient(broker.port) as peer:
            assert peer.confirm("orders", b"a", key=b"a") is None
            disturb(file)
            peer.publish("orders", b"b", key=b"b")
            assert peer.rest() == b""
        assert_stopped(broker, file, disturb)


@pytest.mark.parametrize("part", [0.0, 0.5, 0.999])
@pytest.mark.parametrize("is_idle", [False, True])
def test_broker_confirms_nothing_once_its_log_was_truncated(
    tmp_path: Path, part: float, is_idle: bool
) -> None:
    with broker_process(tmp_path / "data", "--admin", "none") as broker:
        log = broker.data / f"{DATABASE}-wal"
        with SocketClient(broker.port) as peer:
            for number in range(5):
                assert peer.confirm("orders", b"a", key=b"%d" % number) is None
            os.truncate(log, int(log.stat().st_size * part))
            if not is_idle:
                peer.publish("orders", b"b", key=b"b")
                assert peer.rest() == b""
        assert broker.process is not None
        assert broker.process.wait(30) == 74
        assert json.loads((broker.data / "last_error.json").read_text())["error"] == (
            "DatabaseReplacedError"
        )
        assert f"{log} was truncated while" in broker.log.read_text()


def test_broker_goes_on_after_another_program_checkpointed_its_log(tmp_path: Path) -> None:
    with broker_process(tmp_path / "data", "--admin", "none") as broker:
        with SocketClient(broker.port) as peer:
            for number in range(50):
                assert peer.confirm("orders", b"a", key=b"%d" % number) is None
                if number % 5 == 0:
                    with closing(sqlite3.connect(broker.data / DATABASE)) as other:
                        other.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        assert broker.process is not None
        assert broker.process.poll() is None


def test_broker_does_not_confirm_a_repeated_key_of_a_lost_file(tmp_path: Path) -> None:
    """The second receipt of a key would confirm a message that is lost."""
    with broker_process(tmp_path / "data", "--admin", "none") as broker:
        with SocketClient(broker.port) as peer:
            assert peer.confirm("orders", b"a", key=b"a") is None
            unlink(broker.data / DATABASE)
            peer.publish("orders", b"a", key=b"a")
            assert peer.rest() == b""
        assert_stopped(broker, broker.data / DATABASE, unlink)


@of_both
@disturbed
def test_stop_leaves_a_foreign_file_alone(tmp_path: Path, name: str, disturb: Disturb) -> None:
    with broker_process(tmp_path / "data", "--admin", "none") as broker:
        file = broker.data / name
        with SocketClient(broker.port) as peer:
            assert peer.confirm("orders", b"a") is None
        disturb(file)
        assert broker.process is not None
        broker.process.send_signal(signal.SIGTERM)
        assert_stopped(broker, file, disturb)


def test_idle_broker_stops_too(tmp_path: Path) -> None:
    with broker_process(tmp_path / "data", "--admin", "none") as broker:
        replace(broker.data / DATABASE)
        assert_stopped(broker, broker.data / DATABASE, replace)


def opened(folder: Path) -> OpenedFiles:
    """Return the files of a closed database: there is no log."""
    folder.joinpath(DATABASE).write_bytes(FOREIGN)
    files = OpenedFiles(folder / DATABASE)
    files.note_database()
    return files


def test_foreign_file_is_not_sealed(tmp_path: Path) -> None:
    folder = DataFolder.open(tmp_path)
    files = opened(tmp_path)
    replace(folder.database)
    with pytest.raises(DatabaseReplacedError, match=r"phpmq.db was replaced while"):
        seal(folder, files)
    assert folder.meta.seal is None
    folder.close()


def test_foreign_file_is_not_sealed_between_two_checkpoints(tmp_path: Path) -> None:
    files = opened(tmp_path)
    resting = LiveSeal(tmp_path / DATABASE, files)
    replace(tmp_path / DATABASE)
    resting.renew()
    assert resting._thread is not None
    resting._thread.join()
    assert not resting._has_seal
    resting.close()


def test_backup_of_a_foreign_file_gets_no_name(tmp_path: Path) -> None:
    files = opened(tmp_path)
    replace(tmp_path / DATABASE)
    backups = tmp_path / "backups"
    making = BackupMaker(
        tmp_path / DATABASE, backups, "1", is_open=False, check_files=files.check_database
    )
    with pytest.raises(DatabaseReplacedError):
        making.run()
    assert list(backups.iterdir()) == []
