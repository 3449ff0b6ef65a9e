"""A slow reader is not disconnected; one that stopped reading is.

The time is simulated: a second for each 64 KiB that is read.
"""

import asyncio
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Final, cast

import pytest

from phpmq_lite.admin import slow_clients
from phpmq_lite.admin.slow_clients import ANSWER, LIMITS, SlowClientTimeouts
from phpmq_lite.protocol.connection import ClientSide
from phpmq_lite.server import watchdog
from phpmq_lite.server.backpressure import NOT_READ, SlowPeerLimits, WriteProgress, acked_bytes
from phpmq_lite.server.session import Session
from phpmq_lite.server.status import BrokerHandle
from phpmq_lite.server.watchdog import SessionMonitor
from phpmq_lite.settings import Settings
from phpmq_lite.testing import RunningBroker, running_service
from tests.support.http_users import wait_until
from tests.support.socket_client import SocketClient

PIECE: Final = 64 << 10
READS: Final = 24
PATIENCE_S: Final = 8


@pytest.fixture(autouse=True)
def simulated_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slow_clients, "_INTERVAL_S", 1e6)
    monkeypatch.setattr(watchdog, "_INTERVAL_S", 1e6)


class SlowReader:
    """Reads a piece per second; ``look`` runs the checks of the broker at a time."""

    def __init__(self, port: int, look: Callable[[float], None]) -> None:
        self.socket = socket.socket()
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2 * PIECE)
        self.socket.connect(("127.0.0.1", port))
        self._look = look
        self.at = asyncio.get_running_loop().time()

    async def pass_s(self, seconds: int, *, is_reading: bool) -> None:
        for _ in range(seconds):
            if is_reading:
                await asyncio.to_thread(self._read)
            await asyncio.sleep(0)
            self.at += 1
            self._look(self.at)

    async def idle_until(self, check: Callable[[], bool]) -> None:
        """Read nothing until ``check`` is true; at first, the system may still be moving data."""
        while not check():
            await self.pass_s(1, is_reading=False)
            await asyncio.sleep(0.01)

    def _read(self) -> None:
        self.socket.settimeout(20)
        left = PIECE
        while left:
            data = self.socket.recv(left)
            assert data, "it was cut off"
            left -= len(data)


def test_progress_without_a_socket_is_that_of_the_buffer() -> None:
    class Transport(asyncio.Transport):
        unsent = 0

        def get_write_buffer_size(self) -> int:
            return self.unsent

    progress, transport, seen = WriteProgress(), Transport(), []
    for transport.unsent in (0, 5, 5, 4, 4, 6, 0):
        seen.append(progress.has_progress(transport))
    assert seen == [False, False, False, True, False, False, True]


async def test_slow_http_client_is_disconnected_only_when_it_stops_reading(tmp_path: Path) -> None:
    async with running_service(tmp_path / "data") as running:
        limits = (await running.service.pages.open()).app[LIMITS]
        limits.timeouts = SlowClientTimeouts(head_s=1e6, answer_s=PATIENCE_S)
        reader = SlowReader(
            int(running.admin_url.rstrip("/").rpartition(":")[2]), limits.close_slow
        )
        await wait_until(lambda: bool(limits.open))
        [connection] = limits.open
        connection._transport.write(bytes(16 << 20))  # as an answer does
        await reader.pass_s(READS, is_reading=True)
        assert not limits.ended
        await reader.idle_until(lambda: bool(limits.ended))
        assert limits.ended == {ANSWER: 1}
        reader.socket.close()


async def choked_consumer(running: RunningBroker) -> tuple[SlowReader, Session]:
    """Return a consumer with more messages than the system buffers, and its session."""
    engine = running.service.handle.engine
    assert engine is not None

    def fill() -> None:
        with SocketClient(running.port) as peer:
            for _ in range(2):
                assert peer.confirm("orders", bytes(8 << 20)) is None

    def choked() -> list[Session]:
        peers = [one.peer for one in engine.core.connections.values()]
        return [one for one in peers if isinstance(one, Session) and one.blocked_at is not None]

    def look(now_s: float) -> None:
        SessionMonitor(
            sessions, BrokerHandle(Settings()), SlowPeerLimits(write_s=PATIENCE_S)
        ).check(now_s)

    await asyncio.to_thread(fill)
    reader = SlowReader(running.port, look)
    reader.socket.sendall(ClientSide().consume("orders", 2))
    await wait_until(lambda: bool(choked()))
    [session] = choked()
    sessions = session._shared.sessions
    return reader, session


async def test_slow_consumer_is_disconnected_only_when_it_stops_reading(tmp_path: Path) -> None:
    """This also applies to the remaining data of a closing connection."""
    async with running_service(tmp_path / "data") as running:
        reader, session = await choked_consumer(running)
        await reader.pass_s(READS, is_reading=True)
        assert not session.transport.is_closing()
        session.end("the test ends it")
        await wait_until(lambda: session.closing_at is not None)
        session.closing_at = reader.at
        sessions = session._shared.sessions
        await reader.pass_s(PATIENCE_S + 2, is_reading=True)
        assert session in sessions
        await reader.idle_until(lambda: session not in sessions)
        reader.socket.close()


async def test_consumer_that_does_not_read_is_disconnected(tmp_path: Path) -> None:
    async with running_service(tmp_path / "data") as running:
        reader, _session = await choked_consumer(running)
        closed = running.service.handle.counters.closed
        await reader.idle_until(lambda: closed[NOT_READ] == 1)
        reader.socket.close()


class ClosedByUvloop:
    """A transport and its socket right after they were closed."""

    def get_extra_info(self, _name: str) -> "ClosedByUvloop":
        return self

    def getsockopt(self, *_: int) -> bytes:
        raise ValueError("negative file descriptor")


def test_closed_connection_has_no_progress() -> None:
    """The error once ended the broker."""
    assert acked_bytes(cast("asyncio.Transport", ClosedByUvloop())) is None
