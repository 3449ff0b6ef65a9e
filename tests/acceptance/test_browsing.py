"""Reading pages does not change the database: 1,000 requests leave every table unchanged."""

import asyncio
import itertools
import re
from pathlib import Path
from typing import Any, Final

import pytest
from yarl import URL

from phpmq_lite import connect
from phpmq_lite.admin.routes import ROUTES
from phpmq_lite.admin.urls import encode_name
from phpmq_lite.testing import RunningBroker, running_service
from tests.support.live_pages import pages
from tests.support.stored_rows import stored_tables

pytestmark = pytest.mark.acceptance

VISITS: Final = 1_000
# Indexed in the background.
BY_ITSELF: Final = {"rollup", "history_run", "trace_place"}
MOVING: Final = {  # counters that change without requests
    "clock_running_ms",
    "clock_step_ms",  # the drift of two clocks, stored each minute
    "history_bytes",
    "history_rows",
    "last_seen_ms",
    "next_number",  # stored only if the rows do not imply it; compared in memory
    "placed_upto",
    "traced_upto",
}
STREAMS: Final = {"events", "wait", "api-wait"}  # never-ending responses
QUERIES: Final = ("", "?format=json", "?format=csv", "?limit=2", "?tab=history", "?q=state:dead")


def everything(data: Path) -> dict[str, list[Any]]:
    """Return the rows of all tables, except those that change without requests."""
    found = stored_tables(data, BY_ITSELF)
    found["counter"] = [row for row in found["counter"] if row[0] not in MOVING]
    return found


async def fill(broker: RunningBroker) -> str:
    """Store messages in every state; return the id of one."""
    async with connect(broker.host, broker.port) as client:
        for at in range(20):
            for queue in ("orders", "mail", "a/b", ".."):
                await client.publish_confirmed(queue, b'{"n":%d}' % at, ttl_s=3_600 * (at % 2))
        async with client.consume("orders", 6) as deliveries:
            for at in range(6):
                delivery = await anext(deliveries)
                (delivery.ack, delivery.dead_letter, delivery.requeue)[at % 3]()
            await client.publish_confirmed("last", b"\xff\x00")
            return delivery.message_id


def paths(message_id: str) -> list[str]:
    """Return the path of every page with each of the queries."""
    values = {"q": "orders", "id": message_id, "client": "1"}
    found = []
    for route in ROUTES:
        if route.method == "GET" and route.audit is None and route.name not in STREAMS:
            path = re.sub(
                r"\{(\w+)\}", lambda place: encode_name(values.get(place[1], "1")), route.path
            )
            found += [path + query for query in QUERIES]
    return found


@pytest.mark.slow
async def test_a_thousand_visits_leave_every_table_unchanged(tmp_path: Path) -> None:
    async with running_service(tmp_path / "data") as broker:
        message_id = await fill(broker)
        data = tmp_path / "data"
        statuses = set()
        base = broker.admin_url.rstrip("/")
        engine = broker.service.handle.engine
        assert engine is not None
        async with pages(broker) as site:
            while await site.clients():  # a disconnect requeues what the client held
                pass
            url = site.url("/api/v1/queues/last/messages")
            async with site.session.post(url, json={"content": "x"}) as response:
                assert response.status == 201  # committed after the disconnect
            while "audit_counted" not in dict(everything(data)["counter"]):  # noqa: ASYNC110
                await asyncio.sleep(0.05)  # maintenance counts the row of this publish
            before, next_number = everything(data), engine.core.next_number
            assert len(before["message"]) > 70
            assert len(before["history"]) > 2
            for path in itertools.islice(itertools.cycle(paths(message_id)), VISITS):
                async with site.session.get(URL(base + path, encoded=True)) as response:
                    await response.read()
                    statuses.add(response.status)
        assert max(statuses) < 500
        assert 200 in statuses
        assert everything(data) == before
        assert engine.core.next_number == next_number
