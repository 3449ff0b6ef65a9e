"""Connections and threads leave no memory behind, which a broker would accumulate."""

import asyncio
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final
from weakref import ref

import pytest
from aiohttp import web

from phpmq_lite import process
from phpmq_lite.admin.http.call import Call
from phpmq_lite.os_process import resident_bytes
from phpmq_lite.server.session import Session
from phpmq_lite.testing import running_service
from tests.support.fork_server import broker_process
from tests.support.http_users import HttpUser, broker_fixture, wait_until
from tests.support.socket_client import WAIT_S, SocketClient

HEAP_BYTES: Final = 64 << 20  # glibc reserves heaps of this size, aligned to it


def consume_and_leave(port: int) -> None:
    with SocketClient(port) as peer:
        peer.consume("orders", 10)
        peer.store("orders", *[b"{}"] * 20)
        peer.ack(*peer.dispatches(5))


def reset_connection(port: int) -> None:
    peer = SocketClient(port)
    peer.store("orders", b"{}")
    peer.reset()


def send_garbage(port: int) -> None:
    with SocketClient(port) as peer:
        peer.store("orders", b"{}")
        peer.send(b"garbage")
        peer.rest()


def half_close(port: int) -> None:
    with SocketClient(port) as peer:
        peer.barrier()
        peer.half_close()
        peer.rest()


@pytest.mark.usefixtures("no_garbage_collector")
@pytest.mark.parametrize("use", [consume_and_leave, reset_connection, send_garbage, half_close])
async def test_closed_connection_is_freed_at_once(
    tmp_path: Path, use: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It does not wait for the garbage collector, which rarely visits old objects."""
    opened = _watch_sessions(monkeypatch)
    async with running_service(tmp_path / "data") as running:
        await asyncio.to_thread(use, running.port)
        (mark,) = opened
        await asyncio.to_thread(half_close, running.port)  # the engine keeps its last batch
        async with asyncio.timeout(WAIT_S):
            await wait_until(lambda: mark() is None)


@pytest.mark.usefixtures("no_garbage_collector")
async def test_answered_call_is_freed_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With its body, of which a request may have megabytes."""
    requests: list[ref[web.Request]] = []
    init = Call.__init__

    def noting(call: Call, request: web.Request) -> None:
        requests.append(ref(request))
        init(call, request)

    monkeypatch.setattr(Call, "__init__", noting)
    async with broker_fixture(tmp_path / "data") as home, HttpUser(home.url) as me:
        message = {"content": "a"}
        answer = await me.request("POST", "/api/v1/queues/orders/messages", json=message)
        assert answer.status == 201
        async with asyncio.timeout(WAIT_S):
            await wait_until(lambda: [each() for each in requests] == [None])


class _Mark:
    """Belongs to a session, and is freed with it."""


def _watch_sessions(patch: pytest.MonkeyPatch) -> list["ref[_Mark]"]:
    """Return a list that receives weak references to a mark of each new session.

    Mypyc 2.4.1 leaves weak references to the session itself dangling, and frees them twice.
    """
    opened: list[ref[_Mark]] = []
    connection_made = Session.connection_made

    def noting(session: Session, transport: asyncio.BaseTransport) -> None:
        mark = _Mark()
        session.mark = mark  # type: ignore[attr-defined]
        opened.append(ref(mark))
        connection_made(session, transport)

    patch.setattr(Session, "connection_made", noting)
    return opened


def burst() -> None:
    """Print the bytes that a trim returns of free memory between blocks in use."""
    process.limit_malloc()
    blocks = [b"x" * 100_000 for _ in range(600)]
    used = blocks[::10]
    del blocks
    before = resident_bytes(os.getpid())
    process.trim_malloc()
    print(before - resident_bytes(os.getpid()), len(used))  # noqa: T201 - read by the test


@pytest.mark.skipif(sys.platform != "linux", reason="of glibc")
def test_trim_returns_memory_that_a_burst_left_free() -> None:
    program = [sys.executable, "-c", f"from {__name__} import burst; burst()"]
    returned, _ = subprocess.run(program, capture_output=True, text=True, check=True).stdout.split()
    assert int(returned) > 40_000_000


async def test_broker_trims_regularly(monkeypatch: pytest.MonkeyPatch) -> None:
    trims: list[int] = []
    monkeypatch.setattr(process, "TRIM_S", 0.0)
    monkeypatch.setattr(process, "trim_malloc", lambda: trims.append(1))
    trimming = asyncio.create_task(process._trim_regularly())
    await wait_until(lambda: len(trims) > 2)
    trimming.cancel()


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_threads_of_a_broker_share_one_heap(tmp_path: Path) -> None:
    with broker_process(tmp_path / "data", "--admin", "127.0.0.1:0") as broker:
        with SocketClient(broker.port) as peer:
            peer.store("orders", b"{}")
        maps = Path(f"/proc/{broker.pid}/maps").read_text(encoding="ascii")
    starts = re.findall(r"^(\w+)-\w+ rw-p 00000000 00:00 0 *$", maps, re.MULTILINE)
    assert len([start for start in starts if int(start, 16) % HEAP_BYTES == 0]) <= 1
