"""What a service manager hears of a broker: a start, a pulse, a hanging disk, a stop."""

import os
import secrets
import signal
import socket
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from phpmq_lite import testing
from tests.faults.shim import IS_AVAILABLE, Shim
from tests.support.fork_server import BrokerProcess
from tests.support.socket_client import WAIT_S, SocketClient

pytestmark = pytest.mark.acceptance

EACH_S = 0.05
HANGS_MS = 3_000
SILENCE_S = 1.0  # twenty beats
MOST = 200  # messages, ten seconds of beats


class Manager:
    """A service manager: where it listens, and what it has heard."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind("\0" + address[1:] if address.startswith("@") else address)

    def close(self) -> None:
        self._socket.close()

    @property
    def environment(self) -> dict[str, str]:
        period_us = int(EACH_S * 4 * 1_000_000)
        return {**os.environ, "NOTIFY_SOCKET": self.address, "WATCHDOG_USEC": str(period_us)}

    def hear(self, within_s: float = WAIT_S) -> dict[str, str]:
        """Give the next message; TimeoutError: there is none."""
        self._socket.settimeout(within_s)
        lines = self._socket.recv(4_096).decode().split("\n")
        return {name: value for name, _, value in (line.partition("=") for line in lines)}

    def hear_until(self, name: str, value: str = "1") -> list[dict[str, str]]:
        """Give what comes up to a message that says so, that one last."""
        heard = [self.hear()]
        while heard[-1].get(name) != value:
            heard.append(self.hear())
        return heard

    def hear_rest(self, within_s: float = 0.0) -> list[dict[str, str]]:
        """Give what comes until for so long nothing has come."""
        heard: list[dict[str, str]] = []
        with suppress(TimeoutError, BlockingIOError):
            while len(heard) < MOST:
                heard.append(self.hear(within_s))
        assert len(heard) < MOST, "it does not end"
        return heard


@pytest.fixture(params=["path", "abstract"])
def manager(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Manager]:
    is_path = request.param == "path"
    found = Manager(str(tmp_path / "notify") if is_path else f"@phpmq-{secrets.token_hex(8)}")
    yield found
    found.close()


@pytest.fixture
def manager_at_path(tmp_path: Path) -> Iterator[Manager]:
    found = Manager(str(tmp_path / "notify"))
    yield found
    found.close()


def test_manager_hears_start_pulse_and_stop(manager: Manager, tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path / "data", env=manager.environment)
    try:
        broker.start()
        *starting, ready = manager.hear_until("READY")
        assert starting
        for told in starting:
            assert told["STATUS"].startswith("starting: ")
            assert int(told["EXTEND_TIMEOUT_USEC"]) > 0
        assert ready["STATUS"] == f"ready: {broker.phpmq[0]}"
        for _ in range(3):
            assert manager.hear()["WATCHDOG"] == "1"
        assert broker.terminate() == 0
        assert "WATCHDOG" not in manager.hear_until("STOPPING")[-1]
        assert manager.hear_rest() == []
    finally:
        broker.kill()


def test_manager_hears_no_ready_of_a_start_that_is_refused(
    manager_at_path: Manager, tmp_path: Path
) -> None:
    flags = ["--admin", "0.0.0.0:0"]
    broker = BrokerProcess(tmp_path / "data", flags, env=manager_at_path.environment)
    with pytest.raises(testing.StartFailedError):
        broker.start()
    assert not any("READY" in told for told in manager_at_path.hear_rest())


@pytest.mark.skipif(not IS_AVAILABLE, reason="needs Linux and gcc: the disk is made to hang")
def test_watchdog_is_fed_only_while_the_writer_moves(
    manager_at_path: Manager, tmp_path: Path
) -> None:
    """A disk that hangs is waited for in the writer's thread: the loop lives, health answers."""
    shim = Shim(tmp_path / "shim", tmp_path / "data")
    environment = shim.env(manager_at_path.environment)
    broker = testing.BrokerProcess(tmp_path / "data", ["--admin", "127.0.0.1:0"], env=environment)
    try:
        broker.start()
        manager_at_path.hear_until("WATCHDOG")
        shim.delay_sync_ms = HANGS_MS
        with SocketClient(broker.port) as peer:
            peer.publish("orders", b"{" * 100_000)  # so much is stored in the thread
            manager_at_path.hear_rest(SILENCE_S)
            with urllib.request.urlopen(f"{broker.admin[0]}livez", timeout=WAIT_S) as answer:
                assert answer.status == 200
            shim.delay_sync_ms = 0
            manager_at_path.hear_until("WATCHDOG")
    finally:
        broker.kill()


def test_broker_that_a_watchdog_ends_says_where_it_stood(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path / "data")
    try:
        broker.start()
        os.kill(broker.pid, signal.SIGABRT)
        assert broker.process is not None
        assert broker.process.wait(WAIT_S) == -signal.SIGABRT
        assert "Fatal Python error: Aborted" in (words := broker.log.read_text(encoding="utf-8"))
        assert words.count("Thread 0x") > 1  # the writer's is among them
    finally:
        broker.kill()
