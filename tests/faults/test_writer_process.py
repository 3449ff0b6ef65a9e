"""The writer process is killed, stopped or loses its broker: nothing confirmed is lost.

All other fault tests also have cases in which it stores the batches, see ``mutants.py``.
"""

import asyncio
import os
import random
import signal
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, TextIO
from urllib.error import HTTPError

import pytest

from phpmq_lite.broker_process import BrokerProcess, StartFailedError
from phpmq_lite.server.status import LATE_S
from phpmq_lite.storage.data_folder import DATABASE, read_meta
from tests.faults.ledger import Crowd, Ledger, Load, is_drained
from tests.faults.mutants import mutant_process, program_of
from tests.faults.shim import Kind, Record, Shim, read_log
from tests.faults.shimmed_broker import NEEDS_SHIM, shimmed_broker
from tests.faults.writer_mutants import is_running, wait_until_unlocked, writer_pid
from tests.support.fork_server import start_error
from tests.support.seed import SEED
from tests.support.socket_client import AdminApi, SocketClient
from tests.support.waiting import until

pytestmark = [
    pytest.mark.faults,
    pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="the system has no /proc"),
]

FAIL_STOP: Final = 74
SOON_S: Final = 5.0  # for the end of a process
WAIT_S: Final = 5.0  # of a start for the lock
RECEIPTS: Final = 2_000
HELD_UP_S: Final = 2.0
IN_FLIGHT_S: Final = 0.5  # until the receipts of what was stored have arrived


@contextmanager
def second_broker(data: Path, *flags: str, mutant: str = "") -> Iterator[BrokerProcess]:
    """Run a broker whose writer process stores all batches; in the end, also kill the latter."""
    with mutant_process(data, mutant, *flags, is_second=True) as broker:
        pid = writer_pid(data)
        try:
            yield broker
        finally:
            if is_running(pid):
                os.kill(pid, signal.SIGKILL)


def wait_for_exit(broker: BrokerProcess) -> int:
    """Wait until a broker exits by itself; return its exit code."""
    process = broker.process
    assert process is not None
    code = process.wait(SOON_S)
    broker.kill()
    return code


async def check(ledger: Ledger, broker: BrokerProcess) -> None:
    """Start the broker again, process what is left, stop it, and compare everything."""
    await asyncio.to_thread(broker.start)
    ledger.compare(broker.data)
    crowd = Crowd(ledger, broker.port, Load(acks_all=True))
    await crowd.drain(lambda: is_drained(broker.data))
    assert await asyncio.to_thread(broker.terminate) == 0
    ledger.audit(broker.data)
    assert ledger.offences == []


# -- the writer process is killed


def test_broker_stops_when_its_idle_writer_process_is_killed(tmp_path: Path) -> None:
    with second_broker(tmp_path / "data") as broker:
        pid = writer_pid(broker.data)
        with SocketClient(broker.port) as peer:
            assert peer.confirm("orders", b"body") is None
            os.kill(pid, signal.SIGKILL)
            assert wait_for_exit(broker) == FAIL_STOP
        assert f"the writer process (pid {pid}) ended with signal 9" in broker.log.read_text()
        broker.start()
        with SocketClient(broker.port) as peer:
            peer.consume("orders", 1)
            assert peer.bodies(1) == [b"body"]


async def test_broker_that_started_its_writer_process_under_load_loses_nothing_when_that_is_killed(
    tmp_path: Path, figure: Callable[[str], None]
) -> None:
    """This broker has no changes: it starts the process after a number of large batches."""
    ledger = Ledger(random.Random(SEED))
    broker = mutant_process(tmp_path / "data", "")
    broker.start()
    try:
        crowd = Crowd(ledger, broker.port)
        pids = []

        def kill() -> None:
            pids.append(writer_pid(broker.data))
            os.kill(pids[0], signal.SIGKILL)

        await crowd.work(4 * RECEIPTS, kill)
        assert await asyncio.to_thread(wait_for_exit, broker) == FAIL_STOP
        assert f'"pid": {pids[0]}, "event": "writer_process_started"' in broker.log.read_text()
        await check(ledger, broker)
    finally:
        broker.kill()
    figure(f"writer process killed under load: {len(ledger.confirmed):,} confirmed, 0 lost")


class Elsewhere(BrokerProcess):
    """A broker whose working directory has another package of our name."""

    def _open(self, log: TextIO) -> "subprocess.Popen[str]":
        package = self.data.with_name("elsewhere") / "phpmq_lite"
        package.mkdir(parents=True)
        (package / "__init__.py").write_text("raise SystemExit('the wrong one')")
        return subprocess.Popen(
            self.command, stdout=subprocess.PIPE, stderr=log, text=True, cwd=package.parent
        )


async def test_writer_process_imports_nothing_from_the_working_directory(tmp_path: Path) -> None:
    """Python searches it first for ``-m``, but not for the broker's own program."""
    with Elsewhere(tmp_path / "data", program=("-P", "-m", "phpmq_lite")) as broker:
        crowd = Crowd(Ledger(random.Random(SEED)), broker.port)
        await crowd.work(4 * RECEIPTS, crowd.leave)
        assert "writer_process_not_started" not in broker.log.read_text()
        writer_pid(broker.data)


# -- the broker is killed, and its writer process is not


def refused_after_kill(data: Path, mutant: str = "") -> tuple[str, float]:
    """Kill a broker while its writer process is stopped, and start it again.

    Returns the refusal, in which P and W stand for the pids, and the seconds until then.  Then
    the writer process continues, and the broker must start.
    """
    with second_broker(data, mutant=mutant) as broker:
        broker_pid, pid = broker.pid, writer_pid(data)
        with SocketClient(broker.port) as peer:
            assert peer.confirm("orders", b"body") is None
            os.kill(pid, signal.SIGSTOP)
            peer.publish("orders", b"unconfirmed")
            time.sleep(0.1)  # so that it has a request
        broker.kill()
        began = time.monotonic()
        with pytest.raises(StartFailedError) as refused:
            broker.start()
        seconds = time.monotonic() - began
        os.kill(pid, signal.SIGCONT)
        broker.start()
        assert not is_running(pid)
        with SocketClient(broker.port) as peer:
            peer.consume("orders", 2)
            assert peer.bodies(2) == [b"body", b"unconfirmed"]
        text = str(refused.value)
        return text.replace(str(broker_pid), "P").replace(str(pid), "W"), seconds


def test_start_is_refused_while_the_writer_process_of_a_killed_broker_runs(tmp_path: Path) -> None:
    """It stores what it was asked to store; another broker would not know."""
    text, seconds = refused_after_kill(tmp_path / "data")
    assert "in use by process W, which writes for a broker that has ended (pid P)" in text
    assert seconds >= WAIT_S


def test_start_finds_a_writer_process_that_does_not_share_the_lock(tmp_path: Path) -> None:
    with pytest.raises(pytest.fail.Exception, match="DID NOT RAISE"):
        refused_after_kill(tmp_path / "data", "SharesNoLock")


def test_start_waits_for_the_end_of_a_writer_process_whose_broker_was_killed(
    tmp_path: Path,
) -> None:
    with second_broker(tmp_path / "data") as broker:
        pid = writer_pid(broker.data)
        os.kill(pid, signal.SIGSTOP)
        broker.kill()
        with subprocess.Popen(["sh", "-c", f"sleep 1; kill -CONT {pid}"]):
            assert broker.start() > 0.5
        assert not is_running(pid)


def test_end_of_a_broker_process_is_also_that_of_its_writer_process(tmp_path: Path) -> None:
    with mutant_process(tmp_path / "data", "", is_second=True) as broker:
        pid = writer_pid(broker.data)
        os.kill(pid, signal.SIGSTOP)
        broker.kill()
        goes_on = subprocess.Popen(["sh", "-c", f"sleep 0.5; kill -CONT {pid}"])
    assert not is_running(pid)
    goes_on.wait()


def kill_and_start(data: Path, mutant: str = "") -> None:
    """Kill a broker, wait for the end of its writer process, and start the broker again."""
    with second_broker(data, mutant=mutant) as broker:
        with SocketClient(broker.port) as peer:
            assert peer.confirm("orders", b"body") is None
        broker.kill()
        wait_until_unlocked(data)
        assert data.joinpath(f"{DATABASE}-wal").exists()
        broker.start()
        with SocketClient(broker.port) as peer:
            peer.consume("orders", 1)
            assert peer.bodies(1) == [b"body"]


def test_writer_process_leaves_the_log_of_a_killed_broker(tmp_path: Path) -> None:
    """The next start decides what to do with it."""
    kill_and_start(tmp_path / "data")


def test_killed_broker_reveals_a_writer_process_that_closes_the_database(tmp_path: Path) -> None:
    with pytest.raises(AssertionError):
        kill_and_start(tmp_path / "data", "ClosesTheDatabase")


def test_other_broker_is_refused_at_once_while_both_processes_run(tmp_path: Path) -> None:
    with second_broker(tmp_path / "data") as broker:
        began = time.monotonic()
        assert f"in use by phpmq-lite (pid {broker.pid})" in start_error(broker.data)
        assert time.monotonic() - began < WAIT_S


# -- it is stopped for some time


async def test_receipts_wait_for_a_writer_process_that_is_held_up(
    tmp_path: Path, figure: Callable[[str], None]
) -> None:
    ledger = Ledger(random.Random(SEED))
    with second_broker(tmp_path / "data") as broker:
        pid = writer_pid(broker.data)
        crowd = Crowd(ledger, broker.port, Load(acks_all=True))
        counts: list[int] = []

        async def hold() -> None:
            os.kill(pid, signal.SIGSTOP)
            await asyncio.sleep(IN_FLIGHT_S)
            counts.append(len(ledger.confirmed))
            await asyncio.sleep(HELD_UP_S)
            counts.append(len(ledger.confirmed))
            os.kill(pid, signal.SIGCONT)
            crowd.receipts_left, crowd.at_the_end = RECEIPTS, crowd.leave

        held: list[asyncio.Task[None]] = []
        await crowd.work(RECEIPTS, lambda: held.append(asyncio.create_task(hold())))
        await held[0]
        assert counts[0] == counts[1]
        assert writer_pid(broker.data) == pid
        assert await asyncio.to_thread(broker.terminate) == 0
        await check(ledger, broker)
    assert ledger.redelivered == 0
    figure(
        f"writer process stopped for {HELD_UP_S:.0f} s: no receipts meanwhile, "
        f"{len(ledger.confirmed):,} confirmed, 0 lost"
    )


def test_broker_reports_a_stopped_writer_process_and_does_not_leave_it(tmp_path: Path) -> None:
    with (
        second_broker(tmp_path / "data", "--admin", "127.0.0.1:0") as broker,
        SocketClient(broker.port) as peer,
    ):
        pid, admin = writer_pid(broker.data), AdminApi(broker.admin[0])
        assert peer.confirm("orders", b"body") is None
        assert admin.metrics()["phpmq_oldest_batch_seconds"] < LATE_S
        os.kill(pid, signal.SIGSTOP)
        peer.publish("orders", b"body", key=b"late")
        until(lambda: admin.metrics()["phpmq_oldest_batch_seconds"] >= LATE_S)
        with pytest.raises(HTTPError, match="503") as refused:
            admin.get("/readyz")
        assert "BAD batches: the oldest without an answer: " in refused.value.read().decode()
        stats = admin.get("/api/v1/stats")
        assert stats["oldest_batch_s"] >= LATE_S
        assert "for the database's answer" in stats["storing_stopped"]
        with urllib.request.urlopen(admin.url) as page:
            assert "Nothing can be stored: a batch has waited " in page.read().decode()
        until(lambda: "batch_not_answered" in broker.log.read_text())
        assert broker.terminate() == FAIL_STOP
        assert peer.rest() == b""  # without a receipt
        assert not is_running(pid)
        assert "the stop was cut off" in broker.log.read_text()
        broker.start()
        with SocketClient(broker.port) as other:
            assert other.confirm("orders", b"body") is None
        assert broker.terminate() == 0


# -- signals to all processes of the broker


class GroupLeader(BrokerProcess):
    """A broker whose process group consists of itself and what it starts."""

    def _open(self, log: TextIO) -> "subprocess.Popen[str]":
        return subprocess.Popen(
            self.command, stdout=subprocess.PIPE, stderr=log, text=True, start_new_session=True
        )


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_signal_to_all_processes_is_a_clean_stop(
    tmp_path: Path, number: signal.Signals
) -> None:
    """Ctrl-C signals the group of the terminal, and systemd each process of the service."""
    ledger = Ledger(random.Random(SEED))
    broker = GroupLeader(tmp_path / "data", program=program_of(is_second=True))
    with broker:
        pid = writer_pid(broker.data)

        def stop() -> None:
            os.kill(pid, number)
            os.killpg(broker.pid, number)

        await Crowd(ledger, broker.port, Load(acks_all=True)).work(RECEIPTS, stop)
        assert await asyncio.to_thread(wait_for_exit, broker) == 0
        assert not is_running(pid)
        meta = read_meta(broker.data)
        assert not meta.is_running
        assert meta.seal is not None
        assert not broker.data.joinpath(f"{DATABASE}-wal").exists()
        ledger.see_ended(broker.data)
        await check(ledger, broker)


# -- the end of each


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL, signal.SIGABRT])
def test_no_process_remains_after_the_end_of_the_broker(
    tmp_path: Path, number: signal.Signals
) -> None:
    with second_broker(tmp_path / "data") as broker:
        pid = writer_pid(broker.data)
        with SocketClient(broker.port) as peer:
            assert peer.confirm("orders", b"body") is None
        os.kill(broker.pid, number)
        wait_for_exit(broker)
        until(lambda: not is_running(pid), SOON_S)


# -- the index of the WAL, through which the two processes see each other's locks


@pytest.mark.parametrize("how", ["removed", "replaced"])
async def test_broker_stops_when_the_shared_index_is(tmp_path: Path, how: str) -> None:
    ledger = Ledger(random.Random(SEED))
    with second_broker(tmp_path / "data") as broker:
        index = broker.data / f"{DATABASE}-shm"

        def replace() -> None:
            if how == "removed":
                index.unlink()
            else:
                copy = index.with_name("copy")
                copy.write_bytes(index.read_bytes())
                copy.rename(index)

        await Crowd(ledger, broker.port).work(RECEIPTS, replace)
        assert await asyncio.to_thread(wait_for_exit, broker) == FAIL_STOP
        assert f"{index} was {how} while the broker was running" in broker.log.read_text()
        await check(ledger, broker)


# -- one process writes at a time


def overlaps(records: Iterable[Record]) -> int:
    """Count writes while another process writes, which it does until its sync."""
    names: dict[tuple[int, int], str] = {}
    busy: dict[int, set[str]] = {}  # pid -> files that it has written and not synced
    found = 0
    for record in records:
        pid = record.owner[0]
        if record.kind is Kind.OPENED:
            names[record.owner] = record.content.decode()
        name = names.get(record.owner, "")
        if name not in (DATABASE, f"{DATABASE}-wal"):
            continue
        if record.kind is Kind.WRITTEN:
            found += any(files for other, files in busy.items() if other != pid)
            busy.setdefault(pid, set()).add(name)
        elif record.kind is Kind.SYNC_ENDED:
            busy.setdefault(pid, set()).discard(name)
    assert len(busy) == 2, "both processes have written"
    return found


def checkpoints(records: Iterable[Record]) -> int:
    """Count the checkpoints that processes ended with a sync of the database."""
    owners = {
        record.owner
        for record in records
        if record.kind is Kind.OPENED and record.content == DATABASE.encode()
    }
    return sum(record.kind is Kind.SYNC_ENDED and record.owner in owners for record in records)


async def overlaps_of(folder: Path, mutant: str = "") -> tuple[int, int]:
    """Load a broker, on a slow disk, so that it checkpoints in between."""
    shim = Shim(folder)
    shim.record(folder / "log")
    shim.delay_sync_ms = 5
    with shimmed_broker(shim, mutant=mutant, is_second=True) as broker:
        crowd = Crowd(Ledger(random.Random(SEED)), broker.port, Load(large=0.7, acks_all=True))
        await crowd.work(2 * RECEIPTS, crowd.leave)
    wait_until_unlocked(shim.data)
    records = list(read_log(folder / "log"))
    return overlaps(records), checkpoints(records)


@NEEDS_SHIM
async def test_one_process_writes_at_a_time(tmp_path: Path, figure: Callable[[str], None]) -> None:
    found, number = await overlaps_of(tmp_path)
    figure(f"{number} checkpoints between the commits of the writer process: {found} overlaps")
    assert number > 3
    assert found == 0


@NEEDS_SHIM
async def test_log_of_writes_reveals_a_broker_that_writes_at_once(
    tmp_path: Path, figure: Callable[[str], None]
) -> None:
    for number in range(5):  # it depends on the times of checkpoints
        found, _ = await overlaps_of(tmp_path / str(number), "WritesAtOnce")
        if found:
            break
    figure(f"mutant WritesAtOnce: {found} writes while the other process was writing")
    assert found
