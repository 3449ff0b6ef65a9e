"""Machines that vanish: their network is cut, so that no packet says that they are gone."""

import asyncio
import importlib
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from phpmq_lite.client import BlockingClient, Delivery, connect, connect_blocking
from phpmq_lite.client.blocking_client import client_from_url
from phpmq_lite.envelopes.worker_connection import WorkerConnection
from phpmq_lite.errors import ConnectionLostError
from phpmq_lite.spark.pipeline_client import PipelineClient
from phpmq_lite.spark.source_options import SourceConnection
from tests.support.fork_server import BrokerProcess, broker_process
from tests.support.node_network import NodeNetwork, ip, needs_namespaces
from tests.support.scripted_broker import ScriptedBroker

pytestmark = [pytest.mark.acceptance, needs_namespaces]

LIMIT_S = 150.0  # a dead peer is noticed within this time
PORT = 9100


class Site:
    """A broker on another machine, whose cable can be cut."""

    def __init__(self, network: NodeNetwork, folder: Path) -> None:
        self.network = network
        self.address = network.addresses[0]
        command = [
            *network.prefix(0), sys.executable, "-m", "phpmq_lite", "serve",
            "--data", str(folder), "--listen", f"{self.address}:{PORT}", "--admin", "none",
            "--set", f"tcp.allow=127.0.0.0/8,{network.gateway}/32",
            "--set", "tcp.legacy_listen=none",
        ]  # fmt: skip
        self.log = folder.with_suffix(".log")
        with self.log.open("w") as log:
            self.process = subprocess.Popen(command, stderr=log, stdout=log)

    def client(self, **options: Any) -> BlockingClient:
        """Return an open client; wait until the broker has started."""
        while True:
            client = connect_blocking(self.address, PORT, **options)
            try:
                client.open()
            except ConnectionLostError:
                assert self.process.poll() is None, self.log.read_text()
                time.sleep(0.05)
            else:
                return client


@contextmanager
def machine(folder: Path) -> Iterator[Site]:
    with NodeNetwork(1) as network:
        site = Site(network, folder)
        try:
            yield site
        finally:
            site.process.kill()
            site.process.wait()


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with machine(tmp_path / "data") as made:
        yield made


@pytest.fixture
def short_timers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten what the kernel waits for, not what it waits with."""
    sockets = importlib.import_module("phpmq_lite.sockets")
    shorter = {60: 1, 15: 1, 4: 2}
    options = [
        (level, option, shorter.get(value, value)) for level, option, value in sockets.KEEPALIVE
    ]
    monkeypatch.setattr(sockets, "KEEPALIVE", tuple(options))
    monkeypatch.setattr(sockets, "UNACKNOWLEDGED_MS", 2_000)


def hold_one(client: BlockingClient) -> tuple[Any, Delivery]:
    client.publish_confirmed("orders", b"1")
    deliveries = client.consume("orders")
    return deliveries, next(deliveries)


@pytest.mark.usefixtures("short_timers")
@pytest.mark.parametrize("has_written", [False, True], ids=["idle", "after an acknowledgement"])
def test_blocking_consumer_notices_a_dead_broker(site: Site, has_written: bool) -> None:
    deliveries, held = hold_one(site.client(reconnect=False))
    site.network.cut_off(0)
    if has_written:
        held.ack()
    with pytest.raises(ConnectionLostError):
        next(deliveries)


@pytest.mark.usefixtures("short_timers")
@pytest.mark.parametrize("has_written", [False, True], ids=["idle", "after an acknowledgement"])
def test_asyncio_consumer_notices_a_dead_broker(site: Site, has_written: bool) -> None:
    site.client().close()

    async def consume() -> None:
        client = connect(site.address, PORT, reconnect=False)
        await client.open()
        await client.publish_confirmed("orders", b"1")
        deliveries = client.consume("orders")
        held = await anext(deliveries)
        await asyncio.to_thread(site.network.cut_off, 0)
        if has_written:
            held.ack()
        with pytest.raises(ConnectionLostError):
            await anext(deliveries)
        await client.close()

    asyncio.run(asyncio.wait_for(consume(), LIMIT_S))


@pytest.mark.usefixtures("short_timers")
@pytest.mark.parametrize("has_written", [False, True], ids=["idle", "after an acknowledgement"])
def test_worker_is_served_again_after_a_cut(site: Site, has_written: bool) -> None:
    site.client().close()
    link = WorkerConnection(client_from_url(f"phpmq://{site.address}:{PORT}"))
    link.publish("orders", b"1")
    held = link.receive("orders", 30.0)
    assert held is not None
    site.network.cut_off(0)
    if has_written:
        held.ack()
    with pytest.raises(ConnectionLostError):
        link.receive("orders", LIMIT_S)
    site.network.heal(0)
    while True:
        try:
            link.publish("orders", b"2")
            break
        except ConnectionLostError:
            continue
    link.close()


def test_clients_set_the_timers_of_the_promise(site: Site) -> None:
    client = site.client()
    used = client._stream._socket  # type: ignore[union-attr]
    tcp = socket.IPPROTO_TCP
    idle_s = used.getsockopt(tcp, socket.TCP_KEEPIDLE) + used.getsockopt(
        tcp, socket.TCP_KEEPINTVL
    ) * used.getsockopt(tcp, socket.TCP_KEEPCNT)
    assert used.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
    assert idle_s <= LIMIT_S
    assert 0 < used.getsockopt(tcp, socket.TCP_USER_TIMEOUT) <= LIMIT_S * 1_000
    client.close()


@pytest.mark.slow
@pytest.mark.timeout(500)
def test_both_sides_notice_a_cut_within_150_s_with_the_real_timers(
    tmp_path: Path, figure: Callable[[str], None]
) -> None:
    with machine(tmp_path / "idle") as idle, machine(tmp_path / "written") as written:
        waits = []
        for name, site in (("idle", idle), ("after an acknowledgement", written)):
            deliveries, held = hold_one(site.client(reconnect=False))
            site.network.cut_off(0)
            if site is written:
                held.ack()
            waits.append((name, deliveries))
        begun = time.monotonic()
        for name, deliveries in waits:
            with pytest.raises(ConnectionLostError):
                next(deliveries)
            noticed_s = time.monotonic() - begun
            figure(f"a cut, {name}: noticed after {noticed_s:.0f} s")
            assert noticed_s < LIMIT_S
        for site in (idle, written):  # the broker returns the message in the same time
            site.network.heal(0)
            again = site.client()
            assert next(again.consume("orders")).body == b"1"
            again.close()


# -- names with several addresses


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    with broker_process(tmp_path / "alive", "--admin", "none") as running:
        yield running


@pytest.fixture
def two_addresses(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Resolve ``brokers.test`` to an address that drops all packets, then to this machine."""
    with NodeNetwork(1) as network:
        off = f"{network.addresses[0].rpartition('.')[0]}.200"
        ip("neighbour", "replace", off, "lladdr", "02:00:00:00:00:01", "nud", "permanent",
           "dev", ip("-o", "route", "get", off).split(" dev ")[1].split()[0])  # fmt: skip
        original, asked = socket.getaddrinfo, [off, "127.0.0.1"]

        def resolve(host: Any, port: Any, *words: Any, **options: Any) -> Any:
            if host != "brokers.test":
                return original(host, port, *words, **options)
            return [each for one in asked for each in original(one, port, *words, **options)]

        monkeypatch.setattr(socket, "getaddrinfo", resolve)
        yield asked


def attempts_of(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list to which the address of each further attempt to connect is appended."""
    seen: list[str] = []

    class Recording(socket.socket):
        def connect(self, address: Any) -> None:
            seen.append(address[0])
            super().connect(address)

        def connect_ex(self, address: Any) -> int:
            seen.append(address[0])
            return super().connect_ex(address)

    monkeypatch.setattr(socket, "socket", Recording)
    return seen


def test_blocking_client_uses_the_second_address_and_begins_with_it_next(
    broker: BrokerProcess, two_addresses: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    client = connect_blocking("brokers.test", broker.port, timeout_s=5)  # for both addresses
    with client:
        client.publish_confirmed("orders", b"1")
    seen = attempts_of(monkeypatch)
    with client:
        client.publish_confirmed("orders", b"2")
    assert seen == two_addresses[1:]


def test_asyncio_client_uses_the_second_address_and_begins_with_it_next(
    broker: BrokerProcess, two_addresses: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def use() -> None:
        client = connect("brokers.test", broker.port, connect_timeout_s=5)
        async with client:
            await client.publish_confirmed("orders", b"1")
        seen = attempts_of(monkeypatch)
        async with client:
            await client.publish_confirmed("orders", b"2")
        assert seen == two_addresses[1:]

    asyncio.run(use())


def test_one_time_limit_counts_for_all_addresses(two_addresses: list[str]) -> None:
    two_addresses[:] = two_addresses[:1] * 3
    begun = time.monotonic()
    with pytest.raises(ConnectionLostError):
        connect_blocking("brokers.test", PORT, timeout_s=2).open()
    assert time.monotonic() - begun < 3 * 2  # the limit for each address


async def test_refused_addresses_do_not_wait_for_the_next(two_addresses: list[str]) -> None:
    two_addresses[0] = "127.0.0.2"
    async with ScriptedBroker() as peer:
        async with connect("brokers.test", peer.port) as client:
            await client.publish_confirmed("orders", b"1")
        await asyncio.to_thread(publish_blocking, peer.port)
    assert len(peer.stored) == 2


def publish_blocking(port: int) -> None:
    with connect_blocking("brokers.test", port) as client:
        client.publish_confirmed("orders", b"2")


def test_spark_uses_the_second_address(two_addresses: list[str], tmp_path: Path) -> None:
    with broker_process(tmp_path / "spark", "--admin", "127.0.0.1:0") as running:
        url = running.admin[0].rstrip("/").replace("127.0.0.1", "brokers.test")
        with PipelineClient(SourceConnection(url=url))._http._connect() as connection:
            assert connection.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
