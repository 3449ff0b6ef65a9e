"""Dead-letter records that would be larger than any content: they refer to the original's body."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from phpmq_lite.testing import RunningBroker, running_service
from tests.support.engine_stores import engine_store as engine_store
from tests.support.http_users import BrokerFixture
from tests.support.socket_client import SocketClient

MAX_CONTENT = 1 << 20
LARGE = b"\x01" * (MAX_CONTENT - 1)  # as JSON, six times as large
ENVELOPE = json.dumps({
    "job": "urn:a", "trace_id": "t", "data": {"text": "a"},
    "meta": {"id": "1", "queue": "orders", "lang": "php", "schema_version": 1, "created_at": 1},
    "attempts": 0,
}).encode()  # fmt: skip
BARELY = ENVELOPE.replace(b'"text": "a"', b'"text": "%b"' % (b"a" * (MAX_CONTENT - 300)))


@asynccontextmanager
async def running(tmp_path: Path, store: dict[str, Any], **more: Any) -> AsyncIterator[Any]:
    limits = {"max_content": MAX_CONTENT}
    async with running_service(tmp_path / "data", store=store, limits=limits, **more) as broker:
        yield broker, BrokerFixture(broker)


def die(broker: RunningBroker, *bodies: bytes) -> list[bytes]:
    """Publish messages, dead-letter them, and return the contents of their records."""
    with SocketClient(broker.port) as peer:
        peer.store("orders", *bodies)
        peer.consume("orders", 100)
        for dispatch in peer.dispatches(len(bodies)):
            peer.dead_letter(dispatch)
        peer.consume("orders.dlq", 100)
        return peer.bodies(len(bodies))


def bodies_of(broker: RunningBroker, queue: str, number: int) -> list[bytes]:
    with SocketClient(broker.port) as peer:
        peer.consume(queue, 100)
        found = peer.dispatches(number)
        peer.ack(*found)
        peer.barrier()
        return [one.content for one in found]


@pytest.mark.parametrize("body", [LARGE, BARELY], ids=["control", "barely"])
async def test_consumer_gets_past_a_large_record_and_a_redrive_restores_the_body(
    tmp_path: Path, engine_store: dict[str, Any], body: bytes
) -> None:
    assert len(body) <= MAX_CONTENT
    async with running(tmp_path, engine_store) as (broker, home):
        records = await asyncio.to_thread(die, broker, body, b"small")
        assert [len(record) <= MAX_CONTENT for record in records] == [True, True]
        record = next(one for one in records if b"raw_sha256" in one)
        block = json.loads(record)["dead_letter"]
        assert (block["original_queue"], block["detail"]) == ("orders", "client")
        assert len(record) < 1_000
        await home.control("POST", "/dead/orders.dlq/redrive", {})
        found = await asyncio.to_thread(bodies_of, broker, "orders", 2)
        assert sorted(found, key=len) == [b"small", body]


async def test_body_stays_until_its_record_has_gone(
    tmp_path: Path, engine_store: dict[str, Any]
) -> None:
    """Even if the history has removed the message that died."""
    history = {"rows": 10}
    async with running(tmp_path, engine_store, history=history) as (broker, home):
        await asyncio.to_thread(die, broker, LARGE)

        def settle(count: int) -> None:
            with SocketClient(broker.port) as peer:
                peer.store("others", *[b"x"] * count)
            bodies_of(broker, "others", count)

        async def first_offset() -> int:
            while True:
                found = await home.control("GET", "/history?limit=200")
                if len(found["items"]) <= 10:
                    return min(int(row["offset"]) for row in found["items"])

        await asyncio.to_thread(settle, 50)
        assert await first_offset() > 1
        await home.control("POST", "/dead/orders.dlq/redrive", {})
        assert await asyncio.to_thread(bodies_of, broker, "orders", 1) == [LARGE]
        made = await home.control("POST", "/queues/others/messages", {"content": "y"})
        await home.control("POST", f"/messages/{made['ids'][0]}/delete", {})
        await asyncio.to_thread(settle, 50)
        store = broker.service.handle.engine._writer

        def large(store: Any) -> int:
            size = "octet_length" if store.engine == "postgres" else "length"
            query = f"SELECT count(*) FROM body WHERE {size}(content) > 1000"
            return int(store.execute(query).fetchone()[0])

        while await store.run(large):
            pass


async def test_record_of_another_content_is_not_redriven_as_that_content(
    tmp_path: Path, engine_store: dict[str, Any]
) -> None:
    """A client cannot read a content that it does not know by naming its message."""
    async with running(tmp_path, engine_store) as (_, home):
        made = await home.control("POST", "/queues/secret/messages", {"content": "secret"})
        block = {"reason": "failed", "original_queue": "orders", "failed_at": 1, "attempts": 1,
                 "message_id": made["ids"][0]}  # fmt: skip
        record = {"raw_sha256": "0" * 64, "dead_letter": block}
        forged = json.dumps(record, separators=(",", ":"))
        await home.control("POST", "/queues/orders/messages", {"content": "x"})
        await home.control("POST", "/queues/orders.dlq/messages", {"content": forged})
        await home.control("POST", "/dead/orders.dlq/redrive", {"target": "orders"})
        found = await home.control("GET", "/queues/orders/messages")
        assert [item["size"] for item in found["items"]] == [1]
