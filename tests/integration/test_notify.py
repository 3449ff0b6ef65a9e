"""Messages to a service manager: start, watchdog, a hanging disk, stop."""

import os
import secrets
import signal
import socket
import urllib.request
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest

from phpmq_lite import testing
from tests.faults.shim import IS_AVAILABLE, Shim
from tests.support.fork_server import BrokerProcess
from tests.support.socket_client import WAIT_S, SocketClient

pytestmark = pytest.mark.acceptance

EACH_S = 0.05
HANGS_MS = 2_000
SILENCE_S = 0.6  # twelve beats, three periods of the watchdog
MAX_MESSAGES = 200  # ten seconds of beats


class Manager:
    """A service manager that listens on a socket."""

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
        """Return the next message; raise TimeoutError if none comes in time."""
        self._socket.settimeout(within_s)
        lines = self._socket.recv(4_096).decode().split("\n")
        return {name: value for name, _, value in (line.partition("=") for line in lines)}

    def hear_until(self, name: str, value: str = "1") -> list[dict[str, str]]:
        heard = [self.hear()]
        while heard[-1].get(name) != value:
            heard.append(self.hear())
        return heard

    def hear_rest(self, within_s: float = 0.0) -> list[dict[str, str]]:
        """Return the messages until none has come for this time."""
        heard: list[dict[str, str]] = []
        with suppress(TimeoutError, BlockingIOError):
            while len(heard) < MAX_MESSAGES:
                heard.append(self.hear(within_s))
        assert len(heard) < MAX_MESSAGES
        return heard


@pytest.fixture
def manager(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Manager]:
    """Listen at a path, or at an abstract address if the parametrization says so."""
    is_path = getattr(request, "param", "path") == "path"
    address = str(tmp_path / "notify") if is_path else f"@phpmq-{secrets.token_hex(8)}"
    with closing(Manager(address)) as manager:
        yield manager


@pytest.mark.parametrize("manager", ["path", "abstract"], indirect=True)
def test_manager_hears_start_pulse_and_stop(manager: Manager, tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path / "data", env=manager.environment)
    try:
        broker.start()
        *starting, ready = manager.hear_until("READY")
        assert starting
        for message in starting:
            assert message["STATUS"].startswith("starting: ")
            assert int(message["EXTEND_TIMEOUT_USEC"]) > 0
        assert ready["STATUS"] == f"ready: {broker.phpmq[0]}"
        for _ in range(3):
            assert manager.hear()["WATCHDOG"] == "1"
        assert broker.terminate() == 0
        assert "WATCHDOG" not in manager.hear_until("STOPPING")[-1]
        assert manager.hear_rest() == []
    finally:
        broker.kill()


def test_manager_hears_no_ready_when_the_start_is_refused(manager: Manager, tmp_path: Path) -> None:
    flags = ["--admin", "0.0.0.0:0"]
    broker = BrokerProcess(tmp_path / "data", flags, env=manager.environment)
    with pytest.raises(testing.StartFailedError):
        broker.start()
    assert not any("READY" in message for message in manager.hear_rest())


@pytest.mark.skipif(not IS_AVAILABLE, reason="needs Linux and gcc: the disk is made to hang")
def test_watchdog_is_fed_only_while_the_writer_moves(manager: Manager, tmp_path: Path) -> None:
    """Only the writer's thread waits for a hanging disk: the loop runs and health answers."""
    shim = Shim(tmp_path / "shim", tmp_path / "data")
    environment = shim.env(manager.environment)
    broker = testing.BrokerProcess(tmp_path / "data", ["--admin", "127.0.0.1:0"], env=environment)
    try:
        broker.start()
        manager.hear_until("WATCHDOG")
        shim.delay_sync_ms = HANGS_MS
        with SocketClient(broker.port) as peer:
            peer.publish("orders", b"{" * 100_000)  # large enough to be stored by the thread
            manager.hear_rest(SILENCE_S)
            with urllib.request.urlopen(f"{broker.admin[0]}livez", timeout=WAIT_S) as answer:
                assert answer.status == 200
            shim.delay_sync_ms = 0
            manager.hear_until("WATCHDOG")
    finally:
        broker.kill()


def test_broker_aborted_by_a_watchdog_logs_its_stack(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path / "data")
    try:
        broker.start()
        os.kill(broker.pid, signal.SIGABRT)
        assert broker.process is not None
        assert broker.process.wait(WAIT_S) == -signal.SIGABRT
        assert "Fatal Python error: Aborted" in (words := broker.log.read_text(encoding="utf-8"))
        assert words.count("Thread 0x") > 1  # including the writer's
    finally:
        broker.kill()
