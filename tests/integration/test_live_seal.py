"""The database is sealed between checkpoints, so damage is detected after a crash."""

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
from phpmq_lite.storage.sqlite.integrity import seal
from phpmq_lite.storage.sqlite.integrity.seal import LiveSeal, checksum_of
from phpmq_lite.storage.sqlite.integrity.startup import check_files
from tests.support.fork_server import broker_process
from tests.support.socket_client import SocketClient


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[DataFolder]:
    with closing(DataFolder.open(tmp_path / "data")) as folder:
        folder.database.write_bytes(b"SQLite format 3\0" + bytes(5_000_000))
        yield folder


@pytest.fixture
def live_seal(folder: DataFolder) -> Iterator[LiveSeal]:
    with closing(LiveSeal(folder.database)) as live_seal:
        yield live_seal


def wait_for_seal(live_seal: LiveSeal) -> None:
    assert live_seal._thread is not None
    live_seal._thread.join()


def test_database_is_sealed_until_the_next_checkpoint(
    folder: DataFolder, live_seal: LiveSeal
) -> None:
    live_seal.renew()
    wait_for_seal(live_seal)
    assert seal.read_seal(folder.path) == checksum_of(folder.database)
    live_seal.erase()
    assert seal.read_seal(folder.path) is None


def test_seal_is_skipped_when_no_thread_can_be_started(
    folder: DataFolder, live_seal: LiveSeal, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        live_seal.renew()
    assert seal.read_seal(folder.path) is None
    live_seal.renew()
    wait_for_seal(live_seal)
    assert seal.read_seal(folder.path) == checksum_of(folder.database)


def test_checkpoint_during_sealing_leaves_no_seal(folder: DataFolder, live_seal: LiveSeal) -> None:
    """The thread may have read parts of two states of the file."""
    read, resume = threading.Event(), threading.Event()
    file = live_seal._database

    class Slow:
        fileno, seek, close = file.fileno, file.seek, file.close

        def read(self, size: int) -> bytes:
            data = file.read(size)
            assert data is not None
            read.set()
            resume.wait()
            return data

    live_seal._database = Slow()  # type: ignore[assignment]
    live_seal.renew()
    read.wait()
    live_seal.erase()
    resume.set()
    wait_for_seal(live_seal)
    assert seal.read_seal(folder.path) is None


def test_database_is_sealed_at_intervals_only(folder: DataFolder, live_seal: LiveSeal) -> None:
    live_seal.renew()
    wait_for_seal(live_seal)
    first = live_seal._thread
    live_seal.renew()
    assert live_seal._thread is first


def crash_between_checkpoints(broker: BrokerProcess) -> None:
    """Kill a broker that has sealed its database and written to its log since."""
    process = broker.process
    assert process is not None
    database, wal = broker.data / DATABASE, broker.data / f"{DATABASE}-wal"
    with SocketClient(broker.port) as peer:
        peer.store("orders", *[b"one"] * 100)
        while True:
            while seal.read_seal(broker.data) is None:
                time.sleep(0.01)
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
        broker.start()  # the original is undamaged
        with SocketClient(broker.port) as peer:
            peer.barrier()
