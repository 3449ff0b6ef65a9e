"""Clients of a standby, whose connections are relayed to the active broker."""

import asyncio
import hashlib
import json
import socket
import ssl
from collections.abc import Callable
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from structlog.testing import capture_logs

from phpmq_lite import logs
from phpmq_lite.admin.slow_clients import LIMITS
from phpmq_lite.errors import SettingsError
from phpmq_lite.relay import standby
from phpmq_lite.relay.active import MAX_HANDSHAKES, RelayListener
from phpmq_lite.relay.handshake import MAGIC, create_relay_secret
from phpmq_lite.relay.standby import Relay
from phpmq_lite.server.admission import NOT_ALLOWED
from phpmq_lite.server.counters import RelayCounters
from tests.support.certificates import CertificateAuthority
from tests.support.event_loops import on_both_loops
from tests.support.http_users import PASSWORD, BrokerFixture, HttpUser, wait_until
from tests.support.live_pages import EventStream
from tests.support.relayed_brokers import (
    EPOCH,
    PLAIN,
    SECRET,
    SECURED,
    RelayedBrokers,
    as_client,
    relayed_brokers,
)
from tests.support.socket_client import SocketClient, assert_closed_without_reply, exchange

pytestmark = pytest.mark.timeout(60)

BIG = bytes(1 << 20)
links = pytest.mark.parametrize("listen", [PLAIN, SECURED], ids=["plain", "tls"])


@pytest.fixture(autouse=True)
def all_lines_are_logged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "_peers", logs.RateLimit(1_000_000))


async def in_thread(call: Callable[[], Any]) -> Any:
    return await asyncio.to_thread(call)


# -- PHPMQ


@links
@on_both_loops
async def test_client_publishes_and_consumes_through_a_standby(tmp_path: Path, listen: str) -> None:
    async with relayed_brokers(tmp_path, listen) as brokers:
        await as_client(brokers.port, exchange)
        counters, gate = brokers.relay.counters, brokers.standby.service.handle.admission
        assert gate is not None
        await wait_until(lambda: not (counters.open or brokers.listener.counters.open))
        assert brokers.standby.service.handle.counters.clients_opened == 0
        assert counters.opened == brokers.listener.counters.opened == 1
        assert counters.bytes_in > 0 < counters.bytes_out
        assert (counters.refused, brokers.listener.counters.refused) == ({}, {})
        assert (brokers.relay.connections, gate.connections) == (set(), 0)


@on_both_loops
async def test_active_broker_shows_the_client_and_its_relay(tmp_path: Path) -> None:
    unix = tmp_path / "mq.sock"
    cert, key = CertificateAuthority(tmp_path).make("server")
    tcp = {"listen": [f"unix:{unix}", "127.0.0.1:0"], "legacy_listen": ["127.0.0.1:0"]}
    secured = {"tls_cert": cert, "tls_key": key, "tls_client_ca": cert}
    context = ssl.create_default_context(cafile=str(cert))
    context.load_cert_chain(cert, key)
    async with relayed_brokers(tmp_path, standby={"tcp": tcp | secured}) as brokers:
        await as_client(brokers.active.port, lambda one: one.store("orders", b"", ttl_s=900))
        newer, older = brokers.standby.port, brokers.standby.legacy_port
        shown: list[tuple[str, str, str, bool]] = []
        for address, tls in ((unix, None), (newer, context), (older, context)):
            with await in_thread(partial(SocketClient, address, tls)) as client:
                client.consume("orders", 1)
                (dispatch,) = await in_thread(partial(client.dispatches, 1))
                (one,) = (each for each in brokers.clients() if each.queues)
                name = client.socket.getsockname()
                assert one.address == (f"{name[0]}:{name[1]}" if tls else "unix")
                shown.append((one.kind, one.relay, one.certificate, bool(dispatch.ttl_s)))
            await wait_until(lambda: not brokers.clients())
        assert shown == [
            ("unix", "broker-2", "", True),
            ("tls", "broker-2", "commonName=server", True),
            ("tls", "broker-2", "commonName=server", False),
        ]


@links
async def test_big_bodies_pass_both_ways(tmp_path: Path, listen: str) -> None:
    async with relayed_brokers(tmp_path, listen) as brokers:

        def use(client: SocketClient) -> None:
            bodies = [bytes([at]) * (5 << 20) for at in range(3)]
            for body in bodies:
                assert client.confirm("orders", body) is None
            client.consume("orders", 3)
            assert client.bodies(3) == bodies

        await as_client(brokers.port, use)


@links
@on_both_loops
async def test_slow_reader_fills_only_bounded_buffers(tmp_path: Path, listen: str) -> None:
    limits = {"credit_bytes": 64 << 20}  # more than the kernel's buffers hold
    async with relayed_brokers(tmp_path, listen, active={"limits": limits}) as brokers:
        await as_client(brokers.port, lambda one: [one.confirm("orders", BIG) for _ in range(40)])
        await wait_until(lambda: not brokers.relay.connections)
        with await in_thread(lambda: SocketClient(brokers.port)) as client:
            client.read_nothing()
            client.consume("orders", 40)
            session = brokers.active.service.active.sessions.sessions
            await wait_until(lambda: any(one.blocked_at is not None for one in session))
            (relayed,) = brokers.relay.connections
            assert relayed.transport.get_write_buffer_size() < 1 << 20
            assert await in_thread(lambda: client.bodies(40)) == [BIG] * 40


async def test_client_that_reads_nothing_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even if the active broker has already closed its connection."""
    monkeypatch.setattr(standby, "_WRITE_S", 0.3)
    limits = {"credit_bytes": 64 << 20}
    async with relayed_brokers(tmp_path, active={"limits": limits}) as brokers:
        await as_client(brokers.port, lambda one: [one.confirm("orders", BIG) for _ in range(40)])
        with await in_thread(lambda: SocketClient(brokers.port)) as client:
            client.read_nothing()
            client.consume("orders", 40)
            await wait_until(lambda: bool(brokers.clients()))
            await wait_until(lambda: not brokers.clients())
            await wait_until(lambda: not brokers.relay.connections)


@links
@on_both_loops
async def test_publisher_waits_while_the_active_broker_does_not_read(
    tmp_path: Path, listen: str
) -> None:
    async with relayed_brokers(tmp_path, listen) as brokers:
        with await in_thread(lambda: SocketClient(brokers.port)) as client:
            await in_thread(lambda: client.confirm("orders", b"first"))
            (session,) = brokers.active.service.active.sessions.sessions
            session.pause_reading("test")
            bodies = [BIG] * 40
            sending = asyncio.gather(
                in_thread(lambda: [client.publish("orders", body) for body in bodies])
            )
            (relayed,) = brokers.relay.connections
            assert relayed.link is not None
            transport = relayed.link.transport
            await wait_until(lambda: not relayed.transport.is_reading())
            assert transport.get_write_buffer_size() < 1 << 20
            assert not sending.done()
            session.resume_reading("test")
            await sending
            await in_thread(client.barrier)


@links
@on_both_loops
async def test_half_closed_client_gets_its_receipts_and_messages(
    tmp_path: Path, listen: str
) -> None:
    """As with ``printf … | nc -N``."""
    async with relayed_brokers(tmp_path, listen) as brokers:

        def publish(client: SocketClient) -> None:
            client.publish("orders", BIG, key=b"key")
            client.half_close()
            assert client.receipt_for(b"key").reason is None
            assert client.rest() == b""

        def consume(client: SocketClient) -> None:
            client.consume("orders", 1)
            client.half_close()
            assert client.bodies(1) == [BIG]
            assert client.rest() == b""

        await as_client(brokers.port, publish)
        await as_client(brokers.port, consume)


async def test_reset_client_leaves_the_active_broker(tmp_path: Path) -> None:
    async with relayed_brokers(tmp_path) as brokers:
        client = await in_thread(lambda: SocketClient(brokers.port))
        client.consume("orders", 1)
        await wait_until(lambda: bool(brokers.clients()))
        client.reset()
        await wait_until(lambda: not brokers.clients())
        await wait_until(lambda: not brokers.relay.connections)


async def test_client_whose_machine_is_gone_leaves_both_brokers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with relayed_brokers(tmp_path) as brokers:
        relay = brokers.relay
        seen: list[asyncio.Transport] = []

        def is_unanswered(transport: asyncio.Transport) -> bool:
            seen.append(transport)
            return True

        monkeypatch.setattr(standby, "is_unanswered", is_unanswered)
        peer = await in_thread(lambda: SocketClient(brokers.port))
        await wait_until(lambda: relay.counters.open == 1)
        relay.end_dead(100.0)
        await wait_until(lambda: not (relay.counters.open or brokers.listener.counters.open))
        assert len(seen) == 1
        await in_thread(lambda: assert_closed_without_reply(peer))
        peer.close()
        with await in_thread(lambda: SocketClient(brokers.port)):
            await wait_until(lambda: relay.counters.open == 1)
            relay.end_dead(114.0)  # not yet
            assert len(seen) == 1


# -- the active broker changes


@on_both_loops
async def test_change_of_the_active_broker_closes_all_relayed_connections(tmp_path: Path) -> None:
    async with relayed_brokers(tmp_path) as brokers:
        address = brokers.listener.address
        for epoch, place in ((EPOCH, None), (EPOCH + 1, address), (EPOCH, address)):
            brokers.relay.set_active(EPOCH, address)
            clients = [await in_thread(lambda: SocketClient(brokers.port)) for _ in range(3)]
            await wait_until(lambda: len(brokers.clients()) == 3)
            brokers.relay.set_active(EPOCH, address)  # the same again changes nothing
            await in_thread(clients[0].barrier)
            if (epoch, place) != (EPOCH, address):
                brokers.relay.set_active(epoch, place)
                for client in clients:
                    await in_thread(lambda: assert_closed_without_reply(client))  # noqa: B023
            for client in clients:
                client.close()
            await wait_until(lambda: not brokers.clients())


async def test_connection_waits_for_an_active_broker(tmp_path: Path) -> None:
    async with relayed_brokers(tmp_path) as brokers:
        brokers.relay.set_active(EPOCH, None)
        working = asyncio.create_task(as_client(brokers.port, exchange))
        await wait_until(lambda: bool(brokers.relay.connections))
        brokers.relay.set_active(EPOCH, brokers.listener.address)
        await working


@pytest.mark.parametrize(
    ("address", "code"),
    [(None, "no_active_broker"), ("127.0.0.1:1", "unreachable"), ("none", "unreachable")],
)
async def test_connection_is_closed_while_no_broker_is_active(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, address: str | None, code: str
) -> None:
    monkeypatch.setattr(standby, "WAIT_S", 0.2)
    async with relayed_brokers(tmp_path) as brokers:
        brokers.relay.set_active(EPOCH, address)
        with capture_logs() as lines:
            await as_client(brokers.port, assert_closed_without_reply)
        assert brokers.relay.counters.refused == {code: 1}
        (line,) = [one for one in lines if one["event"] == "connection_not_relayed"]
        assert (line["code"], line["address"]) == (code, "127.0.0.1")


async def test_absence_of_the_active_broker_is_logged_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(standby, "WAIT_S", 0.2)
    async with relayed_brokers(tmp_path) as brokers:
        brokers.relay.set_active(EPOCH, "127.0.0.1:1")
        with capture_logs() as lines:
            for _ in range(3):
                await as_client(brokers.port, assert_closed_without_reply)
            brokers.relay.set_active(EPOCH + 1, None)
            await as_client(brokers.port, assert_closed_without_reply)
            brokers.relay.set_active(EPOCH, brokers.listener.address)
            await as_client(brokers.port, exchange)
        names = [line["event"] for line in lines if line["event"].startswith("active_broker")]
        assert names == ["active_broker_away", "active_broker_reached"]


async def test_stop_of_the_active_broker_closes_its_clients(tmp_path: Path) -> None:
    async with relayed_brokers(tmp_path) as brokers:
        with await in_thread(lambda: SocketClient(brokers.port)) as client:
            await in_thread(client.barrier)
            await brokers.listener.close()
            brokers.active.service.stop()
            await in_thread(lambda: assert_closed_without_reply(client))


# -- limits


def connect_from(host: str, port: int) -> SocketClient:
    return SocketClient(socket.create_connection(("127.0.0.1", port), 20, (host, 0)))


async def test_limits_apply_to_the_address_of_the_client(tmp_path: Path) -> None:
    limits = {"connections_per_loopback_address": 2}
    async with relayed_brokers(tmp_path, active={"limits": limits}) as brokers:
        hosts = ("127.0.0.2", "127.0.0.2", "127.0.0.3", "127.0.0.3")
        clients = [await in_thread(lambda: connect_from(host, brokers.port)) for host in hosts]  # noqa: B023
        for client in clients:
            await in_thread(client.barrier)
        with connect_from("127.0.0.2", brokers.port) as third:
            await in_thread(lambda: assert_closed_without_reply(third))
        for client in clients:
            client.close()


@pytest.mark.parametrize("side", ["standby", "active"])
async def test_allow_list_applies_to_the_address_of_the_client(tmp_path: Path, side: Any) -> None:
    options: dict[str, Any] = {side: {"tcp": {"allow": ["127.0.0.2/32"]}}}
    async with relayed_brokers(tmp_path, **options) as brokers:
        with await in_thread(lambda: connect_from("127.0.0.2", brokers.port)) as client:
            await in_thread(client.barrier)
        with await in_thread(lambda: connect_from("127.0.0.3", brokers.port)) as client:
            await in_thread(lambda: assert_closed_without_reply(client))
        gate = getattr(brokers, side).service.handle.admission
        assert gate.refused == {NOT_ALLOWED: 1}


async def test_many_clients_connect_at_once(tmp_path: Path) -> None:
    limits = {"connections_per_loopback_address": 400}
    async with relayed_brokers(
        tmp_path, SECURED, active={"limits": limits}, standby={"limits": limits}
    ) as brokers:
        pairs = [await asyncio.open_connection("127.0.0.1", brokers.port) for _ in range(400)]
        await wait_until(lambda: len(brokers.clients()) == 400)
        assert brokers.relay.counters.refused == {}
        for _, writer in pairs:
            writer.close()


# -- HTTP


async def site_of(brokers: RelayedBrokers) -> tuple[str, BrokerFixture]:
    """Return the URL of the standby, and the active broker with the admin ``anna``."""
    home = BrokerFixture(brokers.active)
    await home.add_user("anna")
    return brokers.standby.admin_url, home


@links
@on_both_loops
async def test_browser_uses_the_pages_through_a_standby(tmp_path: Path, listen: str) -> None:
    async with relayed_brokers(tmp_path, listen) as brokers:
        url, home = await site_of(brokers)
        async with HttpUser(url) as me:
            assert (await me.get("/queues")).status == 303
            assert (await me.log_in("anna")).status == 303
            assert (await me.call("PUT", "/queues/orders")).status == 201
            big = {"content": "x" * 1_000_000}
            assert (await me.call("POST", "/queues/orders/messages", big)).status == 201
            page = await me.get("/api/v1/queues/orders/messages")
            assert '"size":1000000' in page.text.replace(" ", "")
            assert "commonName" not in (await me.get("/clients")).text
            addresses = home.rows("SELECT DISTINCT address FROM audit WHERE actor = 'anna'")
            assert addresses == [("127.0.0.1",)]


@on_both_loops
async def test_backup_is_downloaded_through_a_standby(tmp_path: Path) -> None:
    async with relayed_brokers(tmp_path) as brokers:
        url, _ = await site_of(brokers)
        async with HttpUser(url) as me:
            await me.log_in("anna")
            await me.call("POST", "/backups")
            made = json.loads((await me.get("/api/v1/backups")).text)
            path = f"{url}system/backups/{made['items'][0]['id']}"
            async with me._session.get(path) as response:
                content = await response.read()
            assert content.startswith(b"SQLite format 3"), content[:300]
            assert hashlib.sha256(content).hexdigest() == made["items"][0]["sha256"]


@links
async def test_event_stream_lasts_through_a_standby(
    tmp_path: Path, listen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(standby, "HEAD_S", 0.2)  # must not apply to the stream
    async with relayed_brokers(tmp_path, listen) as brokers:
        url, _ = await site_of(brokers)
        async with HttpUser(url) as me:
            await me.log_in("anna")
            path = f"{url}api/v1/events?topic=queues"
            async with me._session.get(path) as response:
                assert response.content_type == "text/event-stream"
                stream = EventStream(response)
                for number in range(3):
                    await as_client(brokers.port, lambda one: one.store(f"queue-{number}", b""))  # noqa: B023
                    assert await stream.next()
                    await asyncio.sleep(0.2)
                brokers.relay.set_active(EPOCH + 1, None)
                with pytest.raises(aiohttp.ClientError):
                    await response.content.read()


@on_both_loops
async def test_standby_answers_health_checks_itself(tmp_path: Path) -> None:
    async with relayed_brokers(tmp_path) as brokers:
        async with HttpUser(brokers.standby.admin_url) as me:
            for path in ("/livez", "/readyz?x=1", "/startupz"):
                assert (await me.get(path)).status == 200
        assert brokers.relay.counters.opened == 0


@on_both_loops
async def test_fallback_serves_pages_while_no_broker_is_active(tmp_path: Path) -> None:
    async with relayed_brokers(tmp_path) as brokers:
        for address in (None, "127.0.0.1:1"):
            brokers.relay.set_active(EPOCH, address)
            async with HttpUser(brokers.standby.admin_url) as me:
                assert (await me.get("/queues")).status == 200
        context = brokers.standby.service.pages.context
        assert context is not None
        await wait_until(lambda: not context.app[LIMITS].admission.connections)


async def test_http_connection_without_a_request_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(standby, "HEAD_S", 0.1)
    async with relayed_brokers(tmp_path) as brokers:
        port = int(brokers.standby.admin_url.rstrip("/").rpartition(":")[2])
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET /li")
        assert await reader.read() == b""
        writer.close()


async def test_long_first_line_is_left_to_the_active_broker(tmp_path: Path) -> None:
    async with relayed_brokers(tmp_path) as brokers:
        port = int(brokers.standby.admin_url.rstrip("/").rpartition(":")[2])
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET /" + b"x" * 20_000)
        assert (await reader.read()).startswith(b"HTTP/1.0 400")
        writer.close()
        assert brokers.relay.counters.opened == 1


async def test_relayed_request_is_never_from_the_machine_of_the_broker(tmp_path: Path) -> None:
    """Without users, a browser on loopback needs no login, but one behind a relay does."""
    async with relayed_brokers(tmp_path) as brokers:
        async with HttpUser(brokers.active.admin_url) as me:
            assert (await me.get("/queues")).status == 200
        async with HttpUser(brokers.standby.admin_url) as me:
            assert (await me.get("/queues")).status == 303


async def test_https_is_shown_to_the_active_broker(tmp_path: Path) -> None:
    cert, key = CertificateAuthority(tmp_path).make("server")
    trusting = ssl.create_default_context(cafile=str(cert))
    trusting.check_hostname = False
    admin = {"tls_cert": cert, "tls_key": key}
    async with relayed_brokers(tmp_path, standby={"admin": admin}) as brokers:
        url, _ = await site_of(brokers)
        assert url.startswith("https://")
        async with HttpUser(url, connector=aiohttp.TCPConnector(ssl=trusting)) as me:
            reply = await me.log_in("anna", PASSWORD)
            assert (reply.status, "Secure" in reply.headers["Set-Cookie"]) == (303, True)
            assert (await me.get("/livez")).status == 200
        async with HttpUser(url, connector=aiohttp.TCPConnector(ssl=trusting)) as me:
            assert (await me.get("/livez")).status == 200
        await wait_until(lambda: not brokers.relay.connections)


async def test_relayed_connections_are_in_the_metrics_and_on_the_page(tmp_path: Path) -> None:
    async with relayed_brokers(tmp_path) as brokers:
        with await in_thread(lambda: SocketClient(brokers.port)) as client:
            await in_thread(client.barrier)
            async with HttpUser(brokers.active.admin_url) as me:
                assert "through broker-2" in (await me.get("/clients")).text
                text = (await me.get("/metrics")).text
                assert "phpmq_relayed_connections 1.0" in text
                (row,) = (await me.get("/api/v1/clients")).text.splitlines()
                assert '"relay": "broker-2"' in row
            (one,) = brokers.clients()
            async with HttpUser(brokers.active.admin_url) as me:
                assert "through broker-2" in (await me.get(f"/clients/{one.client}")).text
            brokers.relay.set_active(EPOCH, None)
            async with HttpUser(brokers.standby.admin_url) as me:
                text = (await me.get("/metrics")).text
            assert 'phpmq_relayed_bytes_total{direction="in"}' in text


# -- peers that are no brokers of this database


@links
async def test_broker_with_another_key_is_refused(tmp_path: Path, listen: str) -> None:
    async with relayed_brokers(tmp_path, listen, secret=create_relay_secret()) as brokers:
        with pytest.MonkeyPatch.context() as patch, capture_logs() as lines:
            patch.setattr(standby, "WAIT_S", 0.3)
            await as_client(brokers.port, assert_closed_without_reply)
        (code,) = brokers.relay.counters.refused
        assert code == "unreachable"  # the standby refuses the certificate, or the active broker it
        if listen == PLAIN:
            assert set(brokers.listener.counters.refused) == {"authentication"}
            assert any(line.get("code") == "authentication" for line in lines)
        assert brokers.listener.counters.opened == 0


async def test_key_of_another_database_does_not_fool_the_standby(tmp_path: Path) -> None:
    """A certificate that was copied without its key is of no use either: TLS proves the key."""
    other = create_relay_secret()
    async with relayed_brokers(tmp_path) as brokers:
        impostor = RelayListener(
            PLAIN, other, brokers.active.service.session,
            brokers.active.service.pages.connect, RelayCounters(),
        )  # fmt: skip
        impostor.epoch = EPOCH
        await impostor.open()
        try:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(standby, "WAIT_S", 0.3)
                brokers.relay.set_active(EPOCH, impostor.address)
                await as_client(brokers.port, assert_closed_without_reply)
        finally:
            await impostor.close()
        assert impostor.counters.opened == 0


async def test_captured_request_is_refused(tmp_path: Path) -> None:
    async with relayed_brokers(tmp_path) as brokers:
        captured = b""

        async def eavesdrop(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal captured
            host, port = brokers.listener.address.rsplit(":", 1)
            there, to_there = await asyncio.open_connection(host, int(port))
            writer.write(await there.read(1_000))
            captured = await reader.read(1_000)
            to_there.close()
            writer.close()

        async with await asyncio.start_server(eavesdrop, "127.0.0.1", 0) as server:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(standby, "WAIT_S", 0.3)
                port = server.sockets[0].getsockname()[1]
                brokers.relay.set_active(EPOCH, f"127.0.0.1:{port}")
                await as_client(brokers.port, assert_closed_without_reply)
        assert len(captured) > 100
        before = brokers.listener.counters.refused["authentication"]
        host, listening = brokers.listener.address.rsplit(":", 1)
        reader, writer = await asyncio.open_connection(host, int(listening))
        assert (await reader.read(1_000)).startswith(MAGIC)
        writer.write(captured)
        assert await reader.read() == b""
        writer.close()
        assert brokers.listener.counters.refused["authentication"] == before + 1


@pytest.mark.parametrize(("epoch", "code"), [(EPOCH + 1, "epoch"), (None, "not_active")])
async def test_broker_of_another_epoch_refuses_with_a_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, epoch: int | None, code: str
) -> None:
    monkeypatch.setattr(standby, "WAIT_S", 0.3)
    async with relayed_brokers(tmp_path) as brokers:
        brokers.listener.epoch = epoch
        with capture_logs() as lines:
            await as_client(brokers.port, assert_closed_without_reply)
        assert set(brokers.listener.counters.refused) == {code}
        assert brokers.relay.counters.refused == {"refused": 1}
        reasons = [line["reason"] for line in lines if line.get("code") == "refused"]
        assert "not active" in reasons[0] or "epoch" in reasons[0]


async def test_waiting_client_is_served_by_the_standby_that_becomes_active(tmp_path: Path) -> None:
    async with relayed_brokers(tmp_path) as brokers:
        brokers.relay.set_active(EPOCH, None)
        waiting = asyncio.create_task(as_client(brokers.port, exchange))
        await wait_until(lambda: bool(brokers.relay.connections))
        await brokers.relay.end()
        await waiting
        assert not brokers.relay.counters.refused


async def test_relayed_connection_is_not_relayed_again(tmp_path: Path) -> None:
    async with relayed_brokers(tmp_path) as brokers:
        again = Relay("broker-3", SECRET, RelayCounters())
        again.set_active(EPOCH, brokers.listener.address)
        gate = brokers.standby.service.handle.admission
        assert gate is not None
        between = RelayListener(
            PLAIN, SECRET,
            lambda kind, revision: again.accept(gate, kind, revision, asyncio.Protocol),
            brokers.standby.service.pages.connect, RelayCounters(),
        )  # fmt: skip
        between.epoch = EPOCH
        await between.open()
        try:
            brokers.relay.set_active(EPOCH, between.address)
            await as_client(brokers.port, assert_closed_without_reply)
        finally:
            await between.close()
        assert again.counters.refused == {"already_relayed": 1}


async def test_silent_peers_are_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("phpmq_lite.relay.active.HANDSHAKE_S", 0.5)
    async with relayed_brokers(tmp_path) as brokers:
        host, port = brokers.listener.address.rsplit(":", 1)
        reader, writer = await asyncio.open_connection(host, int(port))
        assert (await reader.read()).startswith(MAGIC)
        writer.close()
        assert brokers.listener.counters.refused == {"authentication": 1}
        await as_client(brokers.port, exchange)


@links
async def test_standby_relays_although_silent_peers_hold_all_places(
    tmp_path: Path, listen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With TLS, they do not even begin a handshake."""
    monkeypatch.setattr("phpmq_lite.relay.active.HANDSHAKE_S", 600)
    async with relayed_brokers(tmp_path, listen) as brokers, AsyncExitStack() as stack:
        host, port = brokers.listener.address.rsplit(":", 1)
        for number in range(MAX_HANDSHAKES + 20):
            peer = socket.create_connection((host, int(port)), 20, (f"127.0.0.{2 + number % 5}", 0))
            stack.callback(peer.close)
            await asyncio.sleep(0)
        await as_client(brokers.port, exchange)


async def test_huge_preamble_is_refused(tmp_path: Path) -> None:
    async with relayed_brokers(tmp_path) as brokers:
        host, port = brokers.listener.address.rsplit(":", 1)
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(bytes(32) + b"\xff\xff")
        assert (await reader.read()).startswith(MAGIC)
        writer.close()
        assert brokers.listener.counters.refused == {"authentication": 1}


@pytest.mark.parametrize("text", ["none", "unix:/tmp/x", "0.0.0.0:0", "[::]:9103", "9103"])
def test_address_that_others_cannot_use_is_refused(text: str) -> None:
    with pytest.raises(SettingsError, match=r"store\.relay_listen"):
        RelayListener(text, SECRET, None, None, RelayCounters())  # type: ignore[arg-type]
