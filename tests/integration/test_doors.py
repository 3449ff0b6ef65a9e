"""Connections to the admin: how many there may be, and how slow one may be.

``docs/operate/security.md`` 9.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from unittest.mock import Mock

import pytest

from phpmq_lite.admin.connection_limits import (
    ANSWER,
    BODY,
    HEAD,
    ConnectionLimits,
    LimitedConnection,
    SlowClientTimeouts,
)
from phpmq_lite.server.admission import Admission
from phpmq_lite.testing import RunningBroker, running_service
from tests.support.http_users import wait_until

WAIT_S = 20
Come = Callable[[], Awaitable["Visitor"]]
GET = b"GET /livez HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
POST = (  # without its type it is refused unread
    b"POST /api/v1/queues/orders/messages HTTP/1.1\r\nHost: 127.0.0.1\r\n"
    b"Content-Type: application/json\r\nContent-Length: 9\r\n\r\n"
)


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[RunningBroker]:
    limits = {"http_connections": 5, "http_connections_per_address": 3}
    async with running_service(tmp_path / "data", limits=limits) as running:
        yield running


def doors_of(broker: RunningBroker) -> ConnectionLimits:
    context = broker.service._context
    assert context is not None
    return context.connection_limits


@pytest.fixture
async def come(broker: RunningBroker) -> AsyncIterator[Come]:
    """Connect; all are closed at the end."""
    port = int(broker.admin_url.rstrip("/").rpartition(":")[2])
    visitors: list[Visitor] = []

    async def connect() -> Visitor:
        visitors.append(Visitor(*await asyncio.open_connection("127.0.0.1", port)))
        return visitors[-1]

    yield connect
    for visitor in visitors:
        visitor.writer.transport.abort()


class Visitor:
    """A connection to the admin."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def ask(self) -> bytes:
        """Ask, and give the first line of the answer; empty where it was turned away."""
        try:
            self.writer.write(GET)
            async with asyncio.timeout(WAIT_S):
                line = await self.reader.readline()
                if line:
                    head = await self.reader.readuntil(b"\r\n\r\n")
                    await self.reader.readexactly(
                        int(head.split(b"Content-Length: ")[1].split()[0])
                    )
                return line
        except ConnectionError:
            return b""

    async def rest(self) -> bytes:
        try:
            async with asyncio.timeout(WAIT_S):
                return await self.reader.read()
        except ConnectionError:
            return b""


async def test_connections_past_the_limit_are_refused_and_places_come_free(
    broker: RunningBroker, come: Come
) -> None:
    inside = [await come() for _ in range(5)]
    for visitor in inside:
        assert b"200" in await visitor.ask()
    assert await (await come()).ask() == b""
    assert b"200" in await inside[0].ask(), "who is in goes on"
    inside[0].writer.close()
    doors = doors_of(broker)
    await wait_until(lambda: len(doors.open) < 5)
    assert b"200" in await (await come()).ask()
    assert doors.gate.refused.total() == 1


async def test_control_socket_lets_in_though_all_places_are_taken(
    broker: RunningBroker, come: Come
) -> None:
    """Only the account of the broker reaches it: nobody else can shut it out."""
    inside = [await come() for _ in range(5)]
    for visitor in inside:
        assert b"200" in await visitor.ask()
    visitor = Visitor(*await asyncio.open_unix_connection(broker.data / "control.sock"))
    assert b"200" in await visitor.ask()
    visitor.writer.close()
    doors = doors_of(broker)
    await wait_until(lambda: len(doors.open) == 5)
    assert doors.gate.connections == 5


async def test_slow_peers_are_ended_with_a_reason(broker: RunningBroker, come: Come) -> None:
    doors, loop = doors_of(broker), asyncio.get_running_loop()
    silent, head, body, idle = [await come() for _ in range(4)]
    head.writer.write(GET[:-2])
    body.writer.write(POST + b"{")
    assert b"200" in await idle.ask()
    await wait_until(lambda: sum(door.has_begun for door in doors.open) == 2)
    assert len(doors.open) == 4
    doors.close_slow(loop.time() + 5)
    assert doors.ended.total() == 0
    doors.close_slow(loop.time() + 25)
    assert doors.ended == {HEAD: 2}
    assert (await head.rest()).startswith(b"HTTP/1.1 408 ")
    assert await silent.rest() == b""
    doors.close_slow(loop.time() + 60)
    assert doors.ended == {HEAD: 2, BODY: 1}
    assert b"408" in await body.rest()
    assert b"200" in await idle.ask(), "between two requests it may be silent"


async def test_peer_that_does_not_read_its_answer_is_ended(
    broker: RunningBroker, come: Come
) -> None:
    doors, loop = doors_of(broker), asyncio.get_running_loop()
    doors.timeouts = SlowClientTimeouts(answer_s=1.0)
    visitor = await come()
    page = b"GET /static/x/app.js HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
    visitor.writer.transport.pause_reading()  # type: ignore[attr-defined]
    visitor.writer.write(page * 2_000)
    async with asyncio.timeout(WAIT_S):
        at = loop.time()
        while not doors.ended:
            at += 0.7
            doors.close_slow(at)
            await asyncio.sleep(0.01)
    assert set(doors.ended) == {ANSWER}


def refused_door(doors: ConnectionLimits) -> tuple[LimitedConnection, Mock, Mock]:
    """Return a connection whose request was refused before its body came, and its two ends."""
    inner = Mock()
    transport = Mock(**{"is_closing.return_value": False, "get_extra_info.return_value": None})
    door = LimitedConnection(doors, inner)
    door.connection_made(transport)
    door.take(Mock(**{"content.is_eof.return_value": False}))
    door.finish()
    return door, inner, transport


async def test_refused_bodies_are_read_one_connection_at_a_time() -> None:
    """Read as fast as they came, those of 95 connections held up the loop by 60 ms at a time."""
    doors = ConnectionLimits(Admission(9, 9, 9))
    refused = [refused_door(doors) for _ in range(3)]
    for part in (b"the ", b"rest"):
        for door, _, _ in refused:
            door.data_received(part)
    assert all(transport.pause_reading.called for _, _, transport in refused)
    assert not any(inner.data_received.called for _, inner, _ in refused)
    counts: list[int] = []
    async with asyncio.timeout(WAIT_S):
        while not counts or counts[-1] < 3:
            counts.append(sum(inner.data_received.called for _, inner, _ in refused))
            await asyncio.sleep(0)
    assert sorted(set(counts)) == [0, 1, 2, 3]
    for _, inner, transport in refused:
        transport.resume_reading.assert_called_once_with()
        inner.data_received.assert_called_once_with(b"the rest")


async def test_next_request_does_not_overtake_the_rest_of_a_refused_one() -> None:
    """A client may send it at once, and aiohttp may begin to read again before it is our turn."""
    door, inner, _ = refused_door(ConnectionLimits(Admission(9, 9, 9)))
    door.data_received(b"rest, POST 1 ")
    door.take(Mock(**{"content.is_eof.return_value": False}))
    door.data_received(b"body")
    async with asyncio.timeout(WAIT_S):
        while not inner.data_received.called:  # noqa: ASYNC110 - nothing tells
            await asyncio.sleep(0)
    inner.data_received.assert_called_once_with(b"rest, POST 1 body")


async def test_request_after_a_refused_one_is_answered(come: Come) -> None:
    visitor = await come()
    refused = POST.replace(b"application/json", b"text/plain") + b"123456789"
    for request, status in ((refused, b"415"), (refused, b"415"), (GET + b"\r\n", b"200")):
        visitor.writer.write(request)
        head = await asyncio.wait_for(visitor.reader.readuntil(b"\r\n\r\n"), WAIT_S)
        assert head.split(b" ")[1] == status
        length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
        await visitor.reader.readexactly(length)


def test_trusted_proxy_is_not_one_address() -> None:
    from ipaddress import ip_network

    doors = ConnectionLimits(Admission(5, 1, 5), [ip_network("10.0.0.0/8")])
    assert [doors.name_of(host) for host in ("10.1.2.3", "192.0.2.1", None)] == [
        None, "192.0.2.1", None,
    ]  # fmt: skip
