"""A running broker with messages in every state, for the tests of its pages."""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

from phpmq_lite.client.async_client import Client, connect
from phpmq_lite.testing import RunningBroker, running_service
from tests.support.stores import ON_POSTGRES
from tests.unit.admin.cases import HOSTILE
from tests.unit.admin.pipeline.cases import summary

SCRIPT = "<img src=x onerror=alert(1)>"
EVIL = f'{{"note":"\u202e{SCRIPT}","n":12345678901234567890,"n":1}}'.encode()
BODIES = {
    "json": EVIL,
    "hex": bytes(range(256)) * 20,
    "long": b"W" * 20_000,
    "empty": b"",
    "broken": b'{"open": [1, 2',
    "text": "Grüße, 世界\u200b\r\nsecond line\t\x1b[31m".encode(),
}
ENOUGH_S = 10.0
PASSWORD = "correct horse battery"


def envelope(number: int) -> bytes:
    body = {
        "job": "urn:orders:created",
        "trace_id": f"7b3f1c2a-0000-4000-8000-{number:012d}",
        "data": {"order_id": 1000 + number, "total": "19.90", "lines": [{"sku": "A-7", "n": 2}]},
        "meta": {"queue": "orders", "created_at": "2026-01-02T04:00:00Z", "lang": "php"},
        "attempts": 0,
    }
    return json.dumps(body).encode()


SHOP_TRACE = "4bf92f35-77b3-4da6-a3ce-929d0e0e4736"


def valid_envelope(**changes: Any) -> bytes:
    """Return a valid envelope; ``changes`` replace its fields, ``id`` that of meta."""
    meta = {
        "id": changes.pop("id", "a1c2d3e4-0000-4000-8000-000000000001"), "queue": "shop.cart",
        "lang": "php", "schema_version": 1, "created_at": 1_767_326_400_000,
    }  # fmt: skip
    body = {
        "job": "urn:babel:cart:checked-out", "trace_id": SHOP_TRACE,
        "data": {"cart": 7, "total": "19.90"}, "meta": meta, "attempts": 0,
    } | changes  # fmt: skip
    return json.dumps(body).encode()


@dataclass
class Site:
    """The broker, connections that stay open, and ids of messages by their role."""

    running: RunningBroker
    clients: list[Client] = field(default_factory=list)
    ids: dict[str, str] = field(default_factory=dict)
    held: list[Any] = field(default_factory=list)  # consumers that stay

    def url(self, path: str = "/") -> str:
        return self.running.admin_url.rstrip("/") + path

    @property
    def client(self) -> Client:
        """The first connection, to publish more."""
        return self.clients[0]

    async def connect(self) -> Client:
        """Open another connection that stays open."""
        client = connect(self.running.host, self.running.port)
        await client.open()
        self.clients.append(client)
        return client


def write_schemas(folder: Path, schema: dict[str, Any], *urns: str) -> Path:
    """Write a registry with one schema for all URNs; return its folder."""
    folder.mkdir()
    rows = [{"urn": urn, "schema": "a.json", "owner": "team-order-management"} for urn in urns]
    (folder / "registry.json").write_text(json.dumps({"schemas": rows}), encoding="utf-8")
    (folder / "a.json").write_text(json.dumps(schema), encoding="utf-8")
    return folder


async def log_in(page: Any, site: Site, path: str, name: str = "admin") -> None:
    """Open a page that requires a login, and log in."""
    await page.goto(site.url(path))
    await page.get_by_label("Name").fill(name)
    await page.get_by_label("Password", exact=True).fill(PASSWORD)
    await page.get_by_role("button", name="Log in").click()


@asynccontextmanager
async def site_of(data: Path, *, is_filled: bool = True, **sections: Any) -> AsyncIterator[Site]:
    """Run a broker; ``is_filled`` puts queues, messages of each state and clients into it."""
    async with running_service(data, **sections) as running:
        site = Site(running)
        try:
            if is_filled:
                async with asyncio.timeout(ENOUGH_S):
                    await fill(site)
            yield site
        finally:
            for client in site.clients:
                await client.close()


async def fill(site: Site) -> None:
    """Store queues, messages in every state, a claim and a backup."""
    client = await site.connect()
    await client.publish_many("orders", [envelope(number) for number in range(60)])
    await client.publish_confirmed("orders", envelope(99), ttl_s=300)
    for name in HOSTILE:
        await client.publish_confirmed(name, EVIL)
    for name in ("mail.outgoing", "mail.bounces", "invoices"):
        await client.publish_many(name, [envelope(n) for n in range(7)], ttl_s=3600)
    await client.publish_many("zoo", BODIES.values())
    await _settle(client)
    await _trace(client)
    await _hold(site)
    await _delay(site)
    await _pipeline(site)
    await _back_up(site)


async def _settle(client: Client) -> None:
    """Acknowledge some messages, requeue one, dead-letter three."""
    async with client.consume("orders", 20) as deliveries:
        count = 0
        async for delivery in deliveries:
            count += 1
            if count in (3, 7, 9):
                delivery.dead_letter()
            elif count == 5:
                delivery.requeue()
            else:
                delivery.ack()
            if count == 20:
                break
    await client.publish_confirmed("mail.outgoing", b"{}")  # the frames before it are processed


async def _trace(client: Client) -> None:
    """Store a trace with a hop, a retry and a dead letter; and invalid envelopes."""
    for queue, changes in (
        ("shop.cart", {"attempts": 0}),
        ("shop.cart", {"attempts": 1}),
        ("shop.mail", {"job": "urn:babel:mail:send", "id": "b1c2d3e4-0000-4000-8000-000000000002"}),
        ("shop.cart", {"attempts": True}),
        ("shop.cart", {"data": []}),
    ):
        await client.publish_confirmed(queue, valid_envelope(**changes))
    record = json.loads(valid_envelope(attempts=2)) | {"dead_letter": {
        "reason": "failed", "error": "RuntimeError: the mail server said 554", "detail": "failed",
        "exception": "RuntimeError", "failed_at": 1_767_326_400_000, "original_queue": "shop.cart",
        "attempts": 2, "lang": "php",
    }}  # fmt: skip
    await client.publish_confirmed("shop.cart.dlq", json.dumps(record).encode())


async def _hold(site: Site) -> None:
    """Hold messages of queues with plain and with hostile names in other clients."""
    worker = await site.connect()
    for name in ("orders", "zoo", *HOSTILE[:3]):
        deliveries = worker.consume(name, 2)
        first = await anext(deliveries)
        site.ids.setdefault(f"held in {name}", first.message_id)
        site.held.append(deliveries)


async def _delay(site: Site) -> None:
    """Store delayed, urgent, grouped and retried messages in a queue with limits."""
    settings = {"group_by": "group", "max_in_flight": 5, "max_rate": 2.5}
    async with aiohttp.ClientSession() as http:
        url = site.url("/api/v1/queues/reminders")
        (await http.put(url, json={})).raise_for_status()
        (await http.patch(url, json=settings)).raise_for_status()
    worker = await site.connect()
    await worker.publish_confirmed("reminders", envelope(1), priority=5, group="customer <7>")
    async with worker.consume("reminders", 1) as deliveries:
        error = ValueError("the mail server said 554 <no thanks>")
        (await anext(deliveries)).retry(3_600, exception=error, limit=5)
    for number in (2, 3):
        await worker.publish_confirmed("reminders", envelope(number), group="customer <7>")
    await worker.publish_confirmed("reminders", envelope(4), delay_s=600, unique_key="order-4")
    await worker.publish_confirmed("reminders", b"{}", 60, deliver_at="2099-01-01T08:00+01:00")


async def _back_up(site: Site) -> None:
    if ON_POSTGRES:  # its own tools make backups
        return
    control = aiohttp.UnixConnector(path=str(site.running.data / "control.sock"))
    async with aiohttp.ClientSession(connector=control, raise_for_status=True) as http:
        headers = {"Origin": "http://localhost"}
        await http.post("http://localhost/api/v1/backups", json={}, headers=headers)


async def _pipeline(site: Site) -> None:
    """Store what Spark jobs store: a summary, claims, the position of readers."""
    await site.client.publish_many("spool", [envelope(number) for number in range(5)])
    await site.client.publish_confirmed("spool", b"{}")
    path = site.url("/api/v1/pipeline")
    async with aiohttp.ClientSession(raise_for_status=True) as http:
        claim = {"subscription": "nightly", "queue": "spool", "max_messages": 4}
        await http.post(f"{path}/claims/claim", json=claim)
        for name, position in (("archive", 4), (SCRIPT, 0)):
            asked = {"reader": name, "position": position}
            bounds = await http.post(f"{path}/history/bounds", json=asked)
        history = (await bounds.json())["history_id"]
        await http.put(f"{path}/insights", json=summary(time.time_ns() // 1_000_000, history))
