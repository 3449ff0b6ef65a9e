"""Envelopes through the whole broker: TCP, HTTP and the command line; large ones; kill -9."""

import asyncio
import json
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from phpmq_lite.broker.broker import BACKGROUND_BYTES
from phpmq_lite.client import connect_blocking
from phpmq_lite.envelopes.inspector import BabelQueueInspector
from tests.support.envelope_cases import body
from tests.support.fork_server import broker_process
from tests.support.http_site import HttpSite, running_site

LARGE = body(x='"%s"' % ("x" * BACKGROUND_BYTES))
LARGE_BAD = body(trace_id=None, x='"%s"' % ("x" * BACKGROUND_BYTES))


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[HttpSite]:
    async with running_site(tmp_path / "data", queues={"payload_policy": "envelope"}) as site:
        yield site


async def bodies(site: HttpSite, queue: str, count: int) -> list[bytes]:
    got: list[bytes] = []
    async with site.client() as client, client.consume(queue) as deliveries:
        while len(got) < count:
            delivery = await anext(deliveries)
            got.append(delivery.body)
            delivery.ack()
    return got


def note_threads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list that collects the kinds of threads that validate large contents."""
    threads: list[str] = []
    validate = BabelQueueInspector.validate

    def note(self: Any, content: bytes, settings: Any) -> Any:
        if len(content) > BACKGROUND_BYTES:
            threads.append(threading.current_thread().name.partition("_")[0])
        return validate(self, content, settings)

    monkeypatch.setattr(BabelQueueInspector, "validate", note)
    return threads


async def test_bad_content_is_receipted_and_no_consumer_sees_it(site: HttpSite) -> None:
    async with site.client() as client:
        for content in (b"bad", body(data=None), body()):
            await client.publish_confirmed("orders", content)
    assert await bodies(site, "orders", 1) == [body()]
    records = await bodies(site, "orders.dlq", 2)
    said = [json.loads(record)["dead_letter"]["detail"] for record in records]
    assert said == ["poison", "invalid_data"]


async def test_search_finds_the_detail_of_a_verdict(site: HttpSite) -> None:
    """The reason is poison; the detail, missing_urn, is in the record."""
    async with site.client() as client:
        for content in (b"bad", body(job=None), body()):
            await client.publish_confirmed("orders", content)
    found = await site.ok("GET", "/messages?q=reason:missing_urn")
    assert [(row["queue"], row["state"]) for row in found["items"]] == [
        ("orders.dlq", "ready"),
        ("orders", "dead"),
    ]


async def test_large_content_is_validated_in_a_thread_and_keeps_its_place(
    site: HttpSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads = note_threads(monkeypatch)
    contents = [body(attempts="1"), LARGE, body(attempts="2"), LARGE_BAD, LARGE, body(attempts="3")]
    async with site.client() as client:
        await client.publish_many("orders", contents)
    right = [content for content in contents if content is not LARGE_BAD]
    assert await bodies(site, "orders", 5) == right
    assert [
        json.loads(r)["dead_letter"]["detail"] for r in await bodies(site, "orders.dlq", 1)
    ] == ["missing_trace_id"]
    assert len(threads) == 3
    assert set(threads) == {"background"}


async def test_publisher_that_leaves_after_a_large_content_has_all_stored(site: HttpSite) -> None:
    async with site.client() as client:
        for content in (LARGE_BAD, LARGE, body()):
            await client.publish("orders", content)
    assert await bodies(site, "orders", 2) == [LARGE, body()]


async def test_http_reports_quarantined_messages(site: HttpSite) -> None:
    asked = [{"content": c.decode()} for c in (body(), b"bad", LARGE_BAD)]
    status, made = await site.api("POST", "/queues/orders/messages", asked)
    assert status == 201
    ids = made["ids"]
    assert made["quarantined"] == {ids[1]: "poison", ids[2]: "missing_trace_id"}
    assert await bodies(site, "orders", 1) == [body()]


async def test_plan_warns_of_poison_and_redrive_takes_matching_messages(site: HttpSite) -> None:
    async with site.client() as client:
        await client.publish_many("orders", [b"bad", body(data=None)])
    status, made = await site.api("POST", "/dead/orders/redrive", {"dry_run": True})
    assert status == 200
    assert made["plan"] == {
        "targets": {"orders": 2},
        "quarantined": {"poison": 1, "invalid_data": 1},
        "skipped": {},
    }
    await site.api("PATCH", "/queues/orders", {"payload_policy": "observe"})
    asked = {"q": "reason:invalid_data"}
    status, made = await site.api("POST", "/dead/orders/redrive", asked)
    assert (status, made["redriven"], made["bypassed"]) == (200, 1, False)
    assert await bodies(site, "orders", 1) == [body(data=None)]
    status, _ = await site.api("POST", "/dead/orders/redrive", {"q": "queue:other"})
    assert status == 422


async def test_settings_of_envelopes_are_set_and_checked_over_http(site: HttpSite) -> None:
    await site.api("PUT", "/queues/orders", {})
    given = {
        "dead_letter_queue": "orders.failed",
        "schema_mode": "warn",
        "empty_list_data": "never",
    }
    status, made = await site.api("PATCH", "/queues/orders", given)
    assert status == 200
    assert given.items() <= made.items()
    for wrong in (
        {"dead_letter_queue": "orders"}, {"schema_mode": "on"}, {"empty_list_data": "go"},
    ):  # fmt: skip
        status, _ = await site.api("PATCH", "/queues/orders", wrong)
        assert status in (409, 422)
    queues = {"a": {"dead_letter_queue": "b"}, "b": {"dead_letter_queue": "a"}}
    status, _ = await site.api("PUT", "/definitions", {"queues": queues})
    assert status in (409, 422)
    status, found = await site.api("GET", "/definitions")
    assert list(found["queues"]) == ["orders"]


async def test_delayed_copy_comes_back_without_any_setting(tmp_path: Path) -> None:
    async with running_site(tmp_path / "data") as site, site.client() as client:
        await client.publish_confirmed("orders.retry", body(attempts="1"), ttl_s=1)
        assert await bodies(site, "orders", 1) == [body(attempts="1")]


def test_record_of_a_worker_stays_the_only_one_over_kill_9(tmp_path: Path) -> None:
    """The record is stored and receipted, then the broker dies before the 006."""
    with broker_process(tmp_path / "data") as broker:
        with connect_blocking("127.0.0.1", broker.port) as client:
            client.publish_confirmed("orders", body())
            with client.consume("orders", credit=1) as deliveries:
                held = next(iter(deliveries))
                said = {"reason": "failed", "detail": "max_attempts", "original_queue": "orders",
                        "failed_at": 1, "attempts": 3, "lang": "python",
                        "message_id": held.message_id}  # fmt: skip
                block = b',"dead_letter":' + json.dumps(said).encode() + b"}"
                record = held.body[:-1] + block
                client.publish_confirmed("orders.dlq", record, key=b"1:dead")
                broker.kill()
        broker.start()
        with connect_blocking("127.0.0.1", broker.port) as client:
            with client.consume("orders", credit=1) as deliveries:
                again = next(iter(deliveries))
                assert again.message_id == held.message_id
                client.publish_confirmed("orders.dlq", record, key=b"1:dead")
                again.dead_letter()
            client.publish_confirmed("orders.dlq", b"last")
            with client.consume("orders.dlq") as records:
                assert next(iter(records)).body == record
                assert next(iter(records)).body == b"last"


def live(site: HttpSite, queue: str) -> int:
    engine = site.broker.service.handle.engine
    assert engine is not None
    queues = engine.core.queues
    return queues[queue].row.live_count if queue in queues else 0


async def test_receipt_waits_for_the_record_of_a_large_dead_letter_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    release = threading.Event()
    make = BabelQueueInspector.make_record

    def wait(self: Any, *given: Any) -> bytes:
        release.wait(10)
        return make(self, *given)

    monkeypatch.setattr(BabelQueueInspector, "make_record", wait)
    async with running_site(tmp_path / "data") as site, site.client() as client:
        await client.publish_confirmed("orders", LARGE)
        async with client.consume("orders") as deliveries:
            (await anext(deliveries)).dead_letter()
            barrier = asyncio.create_task(client.publish_confirmed("other", b"barrier"))
            await asyncio.sleep(0.3)
            assert not barrier.done()
            release.set()
            await asyncio.wait_for(barrier, 30)
        assert live(site, "orders.dlq") == 1


async def test_large_content_forced_into_a_full_queue_is_validated_in_a_thread(
    site: HttpSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    await site.create_queue("orders", max_messages=1)
    async with site.client() as client, client.consume("other") as _:
        await client.publish_confirmed("orders", body())
        threads = note_threads(monkeypatch)
        await client.publish("orders", LARGE)
        for _ in range(250):
            if live(site, "orders") == 2:
                break
            await asyncio.sleep(0.02)
        assert live(site, "orders") == 2
    assert threads == ["background"]
