"""A broker as teams leave it after a month: 22 queues, 14,000 messages, 12 error groups, 3 roles.

Names and errors have their maximum lengths, so that the pages are tested at their fullest.
Everything is sent through a client and the HTTP API, in batches.
"""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import aiohttp

from tests.browser.filled import PASSWORD, Site, site_of, write_schemas
from tests.browser.tour import filled_paths
from tests.support.stores import ON_POSTGRES
from tests.unit.admin.pipeline.cases import summary

LONG: Final = "warehouse.eu-central-1.fulfilment.priority-shipments.cross-border.returns-repairs"
LONGEST: Final = ("reports.quarterly-revenue-by-region." * 8)[:240]
LONG_URN: Final = "urn:babel:fulfilment:cross-border-return-label.requested-by-customer.v12"
# Queue: messages published and, of those, consumed.  The .dlq queues get the records of DEATHS.
QUEUES: Final = {
    "orders": (9_000, 2_000),
    "orders.retry": (300, 0),
    "invoices": (250, 50),
    "mail.outgoing": (350, 150),
    "mail.bounces": (60, 0),
    "shop.cart": (240, 40),
    "catalog.index": (200, 0),
    "users.registered": (150, 50),
    "payments.captured": (150, 50),
    "payments.refunds": (60, 0),
    "exports.customers": (60, 0),
    "webhooks.outgoing": (150, 0),
    "audit.events": (250, 0),
    "thumbnails": (60, 0),
    LONG: (300, 0),
    LONGEST: (200, 0),
}
# Queue, URN, reason, exception, error, records: one group of /dead each, with 2,200 records.
DEATHS: Final = (
    ("orders", "urn:orders:invoice.requested", "failed", "PaymentGatewayTimeoutException",
     "cURL error 28: Operation timed out after 30001 milliseconds with 0 bytes received", 520),
    ("orders", "urn:orders:invoice.requested", "failed", "PDOException",
     "SQLSTATE[40001]: Serialization failure: 1213 Deadlock found when trying to get lock", 310),
    ("orders", "urn:orders:placed", "unknown_urn", None, "", 40),
    ("orders", LONG_URN, "failed", "App\\Fulfilment\\CrossBorder\\LabelPrinterUnavailableException",
     "https://labels.example.com/v2/accounts/4711/labels?format=zpl&size=100x150 answered 503", 90),
    ("invoices", "urn:billing:invoice.issued", "failed", "DomainException",
     "VAT number DE999999999 of customer 88213 is not valid on 2026-01-31", 260),
    ("invoices", "urn:billing:invoice.issued", "failed", "ErrorException", "Undefined index: iban",
     75),
    ("mail.outgoing", "urn:mail:send", "failed", "Swift_TransportException",
     "Expected response code 250 but got code 554, with message 554 5.7.1 Relay access denied",
     470),
    ("mail.outgoing", "urn:mail:send", "max_deliveries", None, "", 35),
    ("shop.cart", "urn:shop:cart.checked-out", "failed", "TypeError",
     "Cart::total(): Argument #1 ($currency) must be of type string, null given", 180),
    ("shop.cart", "urn:shop:cart.abandoned", "failed", "RuntimeException", "", 20),
    ("webhooks.outgoing", "urn:webhooks:deliver", "failed", "ConnectException",
     "Failed to connect to hooks.customer-with-a-long-name.example.org port 443", 150),
    ("webhooks.outgoing", "urn:webhooks:deliver", "failed", "JsonException",
     "Malformed UTF-8 characters, possibly incorrectly encoded", 50),
)  # fmt: skip
SCHEMA_URNS: Final = ("urn:orders:invoice.requested", "urn:billing:invoice.issued", LONG_URN)
ORDER: Final = {
    "type": "object", "required": ["order_id", "total"],
    "properties": {"order_id": {"type": "integer"}, "total": {"type": "string"}},
}  # fmt: skip
TRACE: Final = "7b3f1c2a-0000-4000-8000-000000000042"
SCHEDULE: Final = "reminders-of-open-offers"
PEOPLE: Final = {
    "admin": "ada",
    "operator": "oskar.operations@example.com",
    "viewer": "victoria.von-und-zu-lichtenstein",
}
ENOUGH_S: Final = 60.0


def envelope(queue: str, urn: str, number: int, **more: Any) -> bytes:
    """Return a message as a PHP producer sends it."""
    data = {
        "order_id": 100_000 + number, "customer": f"customer-{number % 977}@example.com",
        "total": f"{number % 500}.90", "currency": "EUR",
        "lines": [{"sku": f"SKU-{number % 40:05}", "quantity": 1 + number % 3}],
    }  # fmt: skip
    meta = {
        "id": f"a1c2d3e4-0000-4000-8000-{number:012d}", "queue": queue, "lang": "php",
        "schema_version": 1, "created_at": 1_767_326_400_000 + number,
    }  # fmt: skip
    trace_id = TRACE if number % 1_000 == 42 else f"7b3f1c2a-0000-4000-9000-{number:012d}"
    body = {"job": urn, "trace_id": trace_id, "data": data, "meta": meta, "attempts": 0} | more
    return json.dumps(body).encode()


def records(queue: str) -> Iterator[bytes]:
    """Yield the dead-letter records of a queue as workers leave them."""
    for place, (origin, urn, reason, exception, error, count) in enumerate(DEATHS):
        for number in range(count if origin == queue else 0):
            block = {
                "reason": reason, "error": error, "detail": reason, "exception": exception,
                "failed_at": 1_767_326_400_000 + number, "original_queue": queue, "attempts": 3,
                "lang": "php",
            }  # fmt: skip
            at = 1_000_000 + place * 10_000 + number
            yield envelope(queue, urn, at, attempts=3, dead_letter=block)


@asynccontextmanager
async def production(data: Path) -> AsyncIterator[tuple[Site, dict[str, dict[str, str]]]]:
    """Run the broker; return it with the paths of the pages of each role by their names."""
    schemas = {"schemas": write_schemas(data.with_name("schemas"), ORDER, *SCHEMA_URNS)}
    async with site_of(data, is_filled=False, envelopes=schemas) as site:
        control = aiohttp.UnixConnector(path=str(site.running.data / "control.sock"))
        async with (
            asyncio.timeout(ENOUGH_S),
            aiohttp.ClientSession(
                "http://localhost", connector=control, headers={"Origin": "http://localhost"}
            ) as http,
        ):
            await _publish(site)
            await _consume(site)
            paths = await _operate(site, http)
        yield site, paths


async def _publish(site: Site) -> None:
    client = await site.connect()
    urns = ("urn:orders:invoice.requested", "urn:catalog:item.indexed", "urn:users:registered")
    for queue, (count, _) in QUEUES.items():
        urn = LONG_URN if queue == LONG else urns[len(queue) % 3]
        ttl_s = 86_400 if queue.startswith("mail") else 0
        bodies = (envelope(queue, urn, number) for number in range(count))
        if queue == "thumbnails":
            bodies = (bytes(range(200)) for _ in range(count))
        await client.publish_many(queue, bodies, ttl_s=ttl_s)
    for origin in dict.fromkeys(death[0] for death in DEATHS):
        await client.publish_many(f"{origin}.dlq", records(origin))


async def _consume(site: Site) -> None:
    """Settle some of the messages; other clients hold more of them."""
    client = await site.connect()
    for queue, (_, wanted) in QUEUES.items():
        if wanted:
            async with client.consume(queue, 500) as deliveries:
                async for delivery in deliveries:
                    wanted -= 1
                    delivery.ack()
                    if not wanted:
                        break
    worker = await site.connect()
    for queue in ("orders", "invoices", "mail.outgoing", LONG):
        deliveries = worker.consume(queue, 25)
        first = await anext(deliveries)
        site.ids.setdefault(queue, first.message_id)
        site.held.append(deliveries)


async def _expire(site: Site, call: Any) -> None:
    """Publish messages that expire in each way, dead-letter retries, and schedule some."""
    client = await site.connect()
    ends = {"offers": "dead_letter", "reminders": "forward:reminders.due", "coupons": "history"}
    for number, (queue, on_expire) in enumerate(ends.items()):
        await client.publish_confirmed(queue, b"{}")
        await call("PATCH", f"/queues/{queue}", {"on_expire": on_expire})
        bodies = [envelope(queue, "urn:babel:offers:ended", each) for each in range(40 + number)]
        await client.publish_many(queue, bodies, ttl_s=1)
    later = [envelope("orders", "urn:orders:placed", each) for each in range(30)]
    await client.publish_many("shop.cart.retry", later, ttl_s=3_600)
    async with client.consume("orders.retry", 5) as deliveries:
        for _ in range(5):
            (await anext(deliveries)).dead_letter()
    for at, count in (
        ("messages?q=queue:offers.dlq", 40),
        ("messages?q=queue:reminders.due", 41),
        ("history?outcome=expired", 42),
    ):
        while len((await call("GET", f"/{at}&limit=100"))["items"]) < count:  # noqa: ASYNC110
            await asyncio.sleep(0.05)


async def _delay(site: Site, call: Any) -> None:
    """Store delayed, urgent, grouped and retried messages in a queue with limits, and schedules."""
    queue, client, worker = "calls", site.clients[0], site.clients[2]
    limits = {"group_by": "group", "max_rate": 2.5, "max_burst": 4, "max_in_flight": 5}
    await call("PUT", f"/queues/{queue}", {})
    await call("PATCH", f"/queues/{queue}", limits)
    bodies = [envelope(queue, "urn:calls:make", number) for number in range(12)]
    await client.publish_confirmed(queue, bodies[0], priority=5, group="customer-7")
    async with client.consume(queue, 1) as deliveries:
        error = TimeoutError("no answer after 30 s")
        (await anext(deliveries)).retry(3_600, exception=error, limit=5)
    await client.publish_many(queue, bodies[1:4], group="customer-7")
    await client.publish_confirmed(queue, bodies[4], group="customer-8")
    site.held.append(worker.consume(queue, 1))
    await anext(site.held[-1])
    await client.publish_many(queue, bodies[5:7], 300, delay_s=7_200)
    await client.publish_confirmed(queue, bodies[7], deliver_at="2099-01-01T08:00+01:00")
    await client.publish_many(queue, bodies[8:], priority=200)
    schedule = {
        "name": SCHEDULE, "cron": "30 8 * * MON-FRI", "timezone": "Europe/Berlin", "queue": queue,
        "content": '{"tick": "{{tick}}"}', "ttl_s": 5_400, "priority": 64, "group": "customer-7",
        "missed": "all", "missed_max": 7,
    }  # fmt: skip
    await call("POST", "/schedules", schedule)
    await call("POST", f"/schedules/{SCHEDULE}/run", {})
    await call("POST", "/schedules", schedule | {"name": "paused", "is_enabled": False})


async def _operate(site: Site, http: aiohttp.ClientSession) -> dict[str, dict[str, str]]:
    """Create a month of users, settings, claims and bulk jobs."""

    async def call(method: str, path: str, body: Any = None) -> Any:
        async with http.request(method, f"/api/v1{path}", json=body) as answer:
            text = await answer.text()
            if answer.status >= 300:
                raise LookupError(f"{method} {path}: {answer.status} {text}")
            return json.loads(text) if text else None

    async def ids(query: str, at: str = "messages") -> list[str]:
        found = await call("GET", f"/{at}?limit=1&{query}")
        return [str(item["id"]) for item in found["items"]]

    note = "Owned by fulfilment; page the on-call before purging.\nRunbook: see the wiki."
    await _expire(site, call)
    await _delay(site, call)
    kept = {"note": note, "owner": "team-order-management", "alert_messages": 1_000}
    await call("PATCH", "/queues/orders", kept)
    await call("POST", "/queues/payments.refunds/pause", {"side": "delivery"})
    for role, name in PEOPLE.items():  # the first user must be an admin
        await call("POST", "/users", {"name": name, "password": PASSWORD, "role": role})
        token = {"name": f"deploy-{role}", "role": role, "queues": ["orders*", f"{LONG[:40]}*"]}
        await call("POST", "/tokens", token)
    dropped = (await call("POST", "/selections", {"q": "queue:mail.bounces"}))["token"]
    asked = {"token": dropped, "action": "delete", "confirm": "mail.bounces"}
    job = str((await call("POST", "/bulk", asked))["job"])
    if not ON_POSTGRES:
        await call("POST", "/backups", {})
    for subscription in ("nightly", "revenue-aggregation-of-all-regions-and-currencies"):
        claim = {"subscription": subscription, "queue": "audit.events", "max_messages": 200}
        await call("POST", "/pipeline/claims/claim", claim)
    bounds = await call(
        "POST", "/pipeline/history/bounds", {"reader": "archive-to-s3", "position": 400}
    )
    insights = summary(time.time_ns() // 1_000_000, bounds["history_id"])
    for death in insights["deaths"]:
        death["queue"], death["urn"] = LONG, LONG_URN
    await call("PUT", "/pipeline/insights", insights)
    client = str((await call("GET", "/clients?state=open"))["items"][-1]["client"])
    ready, dead = await ids("q=queue:orders+state:ready"), await ids("q=queue:orders.dlq")
    acked = await ids("outcome=acked", "history")
    found = (await call("GET", "/messages?q=queue:calls"))["items"]  # the newest first
    calls = {item["state"]: str(item["id"]) for item in found}.values()
    places = {
        "q": ["orders", LONG, "orders.dlq", "calls"],
        "messages.id": [*ready, site.ids["orders"], *dead, *acked, *calls],
        "messages.id/": [*ready, *dead],
        "clients.id": [client],
        "client": [client],
        "n": [client],
        "name": [PEOPLE["viewer"]],
        "schedules.name": [SCHEDULE],
        "trace": [TRACE],
        "token": ["gone"],
        "job": [job],
    }
    tabs = [f"/queues/calls?tab={tab}" for tab in ("scheduled", "held", "settings")]
    more = {f"queue {path}": path for path in tabs}
    return {role: filled_paths(places, role) | more for role in PEOPLE}
