"""The database is sealed between two checkpoints, too, so damage is found after a crash."""

import shutil
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from phpmq_lite.broker_process import BrokerProcess
from phpmq_lite.errors import DataDamagedError
from phpmq_lite.storage.data_folder import DATABASE, DataFolder
from phpmq_lite.storage.integrity import seal
from phpmq_lite.storage.integrity.seal import LiveSeal, checksum_of
from phpmq_lite.storage.integrity.startup import check_files
from tests.support.fork_server import broker_process
from tests.support.socket_client import SocketClient


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[DataFolder]:
    with closing(DataFolder.open(tmp_path / "data")) as folder:
        folder.database.write_bytes(b"SQLite format 3\0" + bytes(5_000_000))
        yield folder


@pytest.fixture
def resting(folder: DataFolder) -> Iterator[LiveSeal]:
    resting = LiveSeal(folder.database)
    yield resting
    resting.close()


def wait_for_seal(resting: LiveSeal) -> None:
    assert resting._thread is not None
    resting._thread.join()


def test_database_is_sealed_until_the_next_checkpoint(
    folder: DataFolder, resting: LiveSeal
) -> None:
    resting.renew()
    wait_for_seal(resting)
    assert seal.read_seal(folder.path) == checksum_of(folder.database)
    resting.erase()
    assert seal.read_seal(folder.path) is None


def test_broker_that_gets_no_thread_works_without_a_seal(
    folder: DataFolder, resting: LiveSeal, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        resting.renew()
    assert seal.read_seal(folder.path) is None
    resting.renew()
    wait_for_seal(resting)
    assert seal.read_seal(folder.path) == checksum_of(folder.database)


def test_checkpoint_that_comes_meanwhile_leaves_no_seal(
    folder: DataFolder, resting: LiveSeal
) -> None:
    """Whenever it comes: what was read may be of two states of the file."""
    read, go_on = threading.Event(), threading.Event()

    file = resting._database

    class Slow:
        fileno, seek, close = file.fileno, file.seek, file.close

        def read(self, size: int) -> bytes:
            data = file.read(size)
            assert data is not None
            read.set()
            go_on.wait()
            return data

    resting._database = Slow()  # type: ignore[assignment]
    resting.renew()
    read.wait()
    resting.erase()
    go_on.set()
    wait_for_seal(resting)
    assert seal.read_seal(folder.path) is None


def test_sealing_takes_a_small_part_of_the_time(folder: DataFolder, resting: LiveSeal) -> None:
    resting.renew()
    wait_for_seal(resting)
    first = resting._thread
    resting.renew()
    assert resting._thread is first


def crash_between_checkpoints(broker: BrokerProcess) -> None:
    """Kill a broker that has rested, and has work in its log since."""
    process = broker.process
    assert process is not None
    database, wal = broker.data / DATABASE, broker.data / f"{DATABASE}-wal"
    with SocketClient(broker.port) as peer:
        peer.store("orders", *[b"one"] * 100)
        while True:
            while seal.read_seal(broker.data) is None:
                time.sleep(0.01)  # it tells nobody
            before = database.stat().st_mtime_ns
            peer.store("orders", b"one more")
            process.send_signal(signal.SIGSTOP)
            if seal.read_seal(broker.data) is not None and database.stat().st_mtime_ns == before:
                assert wal.stat().st_size
                broker.kill()
                return
            process.send_signal(signal.SIGCONT)  # a checkpoint came in between


@pytest.mark.acceptance
def test_any_flipped_bit_of_the_database_is_refused_after_a_crash(tmp_path: Path) -> None:
    data, broken = tmp_path / "data", tmp_path / "broken"
    with broker_process(data) as broker:
        crash_between_checkpoints(broker)
        size = (data / DATABASE).stat().st_size
        for at in range(100, size, size // 40):
            shutil.copytree(data, broken, ignore=shutil.ignore_patterns("control.sock"))
            with (broken / DATABASE).open("r+b") as file:
                file.seek(at)
                byte = file.read(1)[0]
                file.seek(at)
                file.write(bytes([byte ^ 16]))
            with (
                closing(DataFolder.open(broken)) as folder,
                pytest.raises(DataDamagedError, match="differs from what the broker wrote"),
            ):
                check_files(folder)
            shutil.rmtree(broken)
        broker.start()  # as it is, it is whole
        with SocketClient(broker.port) as peer:
            peer.barrier()
