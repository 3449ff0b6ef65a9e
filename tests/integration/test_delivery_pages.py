"""Delays, priorities, groups, unique keys and retries on pages, in the API and in commands."""

import asyncio
import re
import sqlite3
from contextlib import closing
from datetime import UTC, datetime
from html import unescape
from pathlib import Path
from typing import Any

import pytest

from phpmq_lite.storage.data_folder import DATABASE
from tests.support.http_site import HttpSite, note_of

HOUR_MS = 3_600_000


async def publish(site: HttpSite, content: str = "a", queue: str = "orders", **options: Any) -> str:
    path = f"/queues/{queue}/messages"
    ids: list[str] = (await site.ok("POST", path, {"content": content} | options))["ids"]
    return ids[0]


async def state_of(site: HttpSite, message_id: str) -> str:
    return str((await site.ok("GET", f"/messages/{message_id}"))["state"])


async def until(site: HttpSite, message_id: str, state: str) -> None:
    async with asyncio.timeout(10):
        while await state_of(site, message_id) != state:
            pass  # each request waits for its response, so this does not spin


def words(html: str) -> str:
    """Return the texts of a page, with single spaces."""
    return re.sub(r"\s+", " ", unescape(re.sub(r"<(script|style).*?</\1>|<[^>]+>", " ", html)))


# -- scheduled


async def test_queue_counts_scheduled_messages_apart(site: HttpSite) -> None:
    await publish(site, delay_s=3_600)
    await publish(site, "b")
    queue = await site.ok("GET", "/queues/orders")
    assert (queue["ready"], queue["scheduled"], queue["dispatched"]) == (1, 1, 0)
    stats = await site.ok("GET", "/stats")
    assert (stats["ready"], stats["scheduled"]) == (1, 1)
    for path in ("/", "/queues", "/queues?sort=-scheduled", "/queues/orders"):
        assert "Scheduled" in await site.text(path)
    tab = words(await site.text("/queues/orders?tab=scheduled"))
    assert "in 59 min" in tab or "in 1 h" in tab
    assert [row["preview"] for row in (await _list(site, "scheduled"))] == ["a"]
    assert [row["preview"] for row in (await _list(site, "ready"))] == ["b"]
    assert (await site.ok("GET", "/messages?q=state:scheduled"))["items"][0]["preview"] == "a"


async def _list(site: HttpSite, state: str, queue: str = "orders") -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = (await site.ok("GET", f"/queues/{queue}/messages?state={state}"))[
        "items"
    ]
    return rows


async def test_deliver_now_and_its_undo(site: HttpSite) -> None:
    message_id = await publish(site, delay_s=3_600)
    page = await site.text(f"/messages/{message_id}")
    assert "Deliver now" in page
    assert "Change time…" in page
    assert "Becomes ready" in page
    done = await site.submit(f"/messages/{message_id}/deliver", next="/queues/orders")
    assert await state_of(site, message_id) == "ready"
    assert "Became ready" in await site.text(f"/messages/{message_id}")
    await site.submit(done.undo(), next="/queues/orders")
    assert await state_of(site, message_id) == "scheduled"


@pytest.mark.parametrize(
    ("fields", "hours"), [({"delay": "2", "delay_unit": "h"}, 2), ({"deliver_at": "3"}, 3)]
)
async def test_change_time_in_a_form(site: HttpSite, fields: dict[str, str], hours: int) -> None:
    message_id = await publish(site)
    before = await site.ok("GET", f"/messages/{message_id}")
    if "deliver_at" in fields:  # as a field of a form, in UTC
        at = datetime.fromtimestamp((before["published_at"] + hours * HOUR_MS) / 1_000, UTC)
        fields = {"deliver_at": at.strftime("%Y-%m-%dT%H:%M")}
    await site.submit(f"/messages/{message_id}/reschedule", fields, next="/queues/orders")
    row = await site.ok("GET", f"/messages/{message_id}")
    assert row["state"] == "scheduled"
    assert abs(row["deliver_at"] - before["published_at"] - hours * HOUR_MS) < 61_000
    assert "Delivery time changed" in await site.text(f"/messages/{message_id}")


async def test_change_time_needs_one_time(site: HttpSite) -> None:
    message_id = await publish(site, delay_s=60)
    path = f"/messages/{message_id}/reschedule"
    for body in ({}, {"delay_s": 5, "deliver_at": 4_000_000_000_000}):
        assert await site.refusal("POST", path, body) == (422, "invalid")
    page = await site.post(path, {})
    assert page.status == 422
    assert "Enter a delay or a date." in page.text


async def test_ticked_messages_are_delivered_and_put_off(site: HttpSite) -> None:
    ids = [await publish(site, str(n), delay_s=600) for n in range(3)]
    listed = await site.text("/queues/orders?tab=scheduled")
    assert 'value="deliver"' in listed
    assert 'value="reschedule"' in listed
    page = await site.submit(
        "/messages/act", {"action": "deliver", "id": ids[:2]}, next="/queues/orders"
    )
    assert note_of(page.text) == "2 messages made ready."
    asked = await site.post("/messages/act", {"action": "reschedule", "id": ids})
    assert "Change time of 3 messages" in asked.text
    fields = {"action": "reschedule", "id": ids, "delay": "1", "delay_unit": "d"}
    page = await site.submit("/messages/act", fields, next="/queues/orders")
    assert note_of(page.text) == "3 messages rescheduled."
    await site.submit(page.undo(), next="/queues/orders")
    assert [await state_of(site, id_) for id_ in ids] == ["ready", "ready", "scheduled"]
    done = await site.bulk("queue:orders", "deliver")
    assert (done["done"], done["skipped"]) == (1, {"not scheduled": 2})


async def test_requeue_and_redrive_take_a_time(site: HttpSite) -> None:
    message_id = await publish(site)
    await site.ok("POST", f"/messages/{message_id}/requeue", {"delay_s": 60})
    assert await state_of(site, message_id) == "scheduled"
    [record] = await site.dead_letter("mail", "x")
    done = await site.ok("POST", f"/messages/{record}/redrive", {"delay_s": 60})
    assert await state_of(site, done["new_id"]) == "scheduled"
    await site.dead_letter("shop", "y")
    await site.ok("POST", "/dead/shop/redrive", {"delay_s": 60})
    assert (await site.ok("GET", "/queues/shop"))["scheduled"] == 1


async def test_purge_and_move_take_scheduled_messages(site: HttpSite) -> None:
    await publish(site, delay_s=600)
    await site.submit("/queues/orders/move", {"target": "mail", "create": "yes"}, upto=str(1 << 40))
    assert (await site.ok("GET", "/queues/mail"))["scheduled"] == 1
    await site.submit("/queues/mail/purge", {"confirm": "mail"}, upto=str(1 << 40))
    assert (await site.ok("GET", "/queues/mail"))["scheduled"] == 0


# -- retries


async def test_retry_is_shown_with_its_error_and_next_time(site: HttpSite) -> None:
    envelope = (
        '{"job":"urn:babel:orders:made","data":{"n":1},"trace_id":"t-1","attempts":0,'
        '"meta":{"id":"m-1","queue":"orders","lang":"python","schema_version":1,"created_at":1}}'
    )
    message_id = await publish(site, envelope)
    async with site.client() as client, client.consume("orders") as consumer:
        delivery = await anext(consumer)
        delivery.retry(600, error="no stock <b>", exception="StockError", limit=3)
        await until(site, message_id, "scheduled")
    row = await site.ok("GET", f"/messages/{message_id}")
    assert (row["retries"], row["attempt"]) == (1, 2)
    page = words(await site.text(f"/messages/{message_id}"))
    assert "Attempt 1 of 3 failed StockError: no stock <b> Next attempt" in page
    for path in ("/trace/t-1", "/messages?q=queue:orders"):
        text = await site.text(path)
        assert 'class="state scheduled"' in text, path
        assert "state acked" not in text, path
    assert "Attempt 1 of 3 failed" in await site.text("/queues/orders?tab=scheduled")
    assert "Attempt 1 of 3 failed" in await site.text("/trace/t-1")
    metrics = await site.text("/metrics")
    assert 'phpmq_messages_retried_total{queue="orders"} 1' in metrics
    assert 'phpmq_queue_messages{queue="orders",state="scheduled"} 1' in metrics


async def test_failed_attempts_without_texts_or_events_are_counted(
    site: HttpSite, tmp_path: Path
) -> None:
    await publish(site)
    async with site.client() as client, client.consume("orders") as consumer:
        (await anext(consumer)).retry(600)
        async with asyncio.timeout(10):
            while not await _list(site, "scheduled"):
                pass
    page = await site.text("/queues/orders?tab=scheduled")
    assert 'title="Attempt 1 failed"' in page
    assert 'class="dim cause"' not in page
    with closing(sqlite3.connect(tmp_path / "data" / DATABASE)) as database, database:
        database.execute("DELETE FROM event")
    page = await site.text("/queues/orders?tab=scheduled")
    assert '<span class="chip bad">1 failed' in page


async def test_time_to_live_of_a_scheduled_message_begins_when_it_is_ready(site: HttpSite) -> None:
    message_id = await publish(site, delay_s=3_600, ttl_s=120)
    assert "2 min after it is ready" in words(await site.text(f"/messages/{message_id}"))


async def test_scheduled_record_waits_for_nothing_yet(site: HttpSite) -> None:
    [record] = await site.dead_letter("orders", "x")
    await site.submit(
        f"/messages/{record}/reschedule", {"delay": "2", "delay_unit": "h"}, next="/queues/orders"
    )
    tab = await site.text("/queues/orders?tab=dead")
    assert '<td class="n" role="cell" data-label="Ready since"><span class="zero">–</span>' in tab


async def test_page_behind_the_last_message_leads_to_the_first(site: HttpSite) -> None:
    for number in range(60):
        await publish(site, str(number))
    page = await site.text("/queues/orders")
    following = re.search(r'href="([^"]*cursor=[^"]*)"', page)
    assert following is not None
    await site.submit("/queues/orders/purge", {"confirm": "orders"}, upto=str(1 << 40))
    page = await site.text(unescape(following[1]))
    assert "No messages are left on this page." in page
    assert 'href="/queues/orders?tab=ready">Go to the first page' in page


# -- priorities, groups, holds


async def test_priority_is_shown_beside_the_place(site: HttpSite) -> None:
    await publish(site, "late", priority=200)
    urgent = await publish(site, "first", priority=5)
    assert await site.contents("orders") == ["first", "late"]
    rows = await _list(site, "ready")
    assert [row["priority"] for row in rows] == [5, 200]
    page = await site.ok("GET", "/queues/orders/messages?limit=1")
    following = await site.ok("GET", f"/queues/orders/messages?limit=1&cursor={page['next']}")
    assert [row["preview"] for row in following["items"]] == ["late"]
    for path in ("/queues/orders", f"/messages/{urgent}"):
        assert "priority 5" in await site.text(path)
    done = await site.bulk("queue:orders", "requeue")
    assert done["done"] == 2


async def test_edited_copy_has_the_priority_and_the_group(site: HttpSite) -> None:
    await site.create_queue("orders", group_by="group")
    old = await publish(site, priority=5, group="g")
    form = await site.text(f"/messages/{old}/edit")
    assert re.search(r'name="priority" value="5"', form)
    assert re.search(r'name="group" value="g"', form)
    made = await site.ok("POST", f"/messages/{old}/edit", {"content": "b"})
    row = await site.ok("GET", f"/messages/{made['new_id']}")
    assert (row["priority"], row["group"]) == (5, "g")


async def test_page_shows_which_message_blocks_its_group(site: HttpSite) -> None:
    await site.create_queue("orders", group_by="group", max_in_flight=7, max_rate=2.5, max_burst=9)
    head = await publish(site, "head", group="g<1>")
    blocked = await publish(site, "next", group="g<1>")
    async with site.client() as client, client.consume("orders") as consumer:
        delivery = await anext(consumer)
        await until(site, head, "dispatched")
        held = words(await site.text("/queues/orders?tab=held"))
        assert "in 29 min" in held or "in 30 min" in held
        assert ", returns " in await site.text(f"/messages/{head}")
        assert "0 of at most 7" not in held
        assert "1 of at most 7" in held
        assert "at most 2.5 burst 9" in held
        delivery.retry(600)
        await until(site, head, "scheduled")
    assert await state_of(site, blocked) == "blocked"
    waits = "another of its messages is in flight, or before this one"
    assert waits in words(await site.text(f"/messages/{blocked}"))
    [blocker] = (await site.ok("GET", "/queues/orders/groups"))["items"]
    assert (blocker["group"], blocker["id"], blocker["state"]) == ("g<1>", head, "scheduled")
    assert blocker["deliver_at"] - blocker["since"] > 590_000
    page = await site.text("/queues/orders")
    assert "Blocked groups" in page
    assert f"/messages/{head}/deliver" in page
    assert "behind another of g<1>" in words(page)
    assert "blocks the others since" in words(await site.text(f"/messages/{head}"))
    await site.submit(f"/messages/{head}/delete", next="/queues/orders")
    await until(site, blocked, "ready")
    assert "Blocked groups" not in await site.text("/queues/orders")


async def test_ready_message_of_a_group_is_not_blocked(site: HttpSite) -> None:
    await site.create_queue("orders", group_by="group")
    first = await publish(site, group="g")
    await until(site, first, "ready")
    page = words(await site.text(f"/messages/{first}"))
    assert "Group g" in page
    assert "another of its messages" not in page
    assert "blocks the others" not in page


async def test_message_without_an_ack_timeout_is_held_without_a_limit(site: HttpSite) -> None:
    await site.create_queue("orders", ack_timeout_s=0)
    message_id = await publish(site)
    async with site.client() as client, client.consume("orders") as consumer:
        await anext(consumer)
        await until(site, message_id, "dispatched")
        assert "no limit" in words(await site.text("/queues/orders?tab=held"))


async def test_page_says_that_more_heads_block(site: HttpSite) -> None:
    await site.create_queue("orders", group_by="group")
    for number in range(100):
        await publish(site, group=f"g{number // 2}")
    async with site.client() as client, client.consume("orders", 50) as consumer:
        for _ in range(50):
            delivery = await anext(consumer)
        await until(site, delivery.message_id, "dispatched")
        page = words(await site.text("/queues/orders"))
        assert "Only those that block longest are shown." in page
        delivery.ack()
        await until(site, delivery.message_id, "acked")
        assert "Only those that block longest" not in await site.text("/queues/orders")


async def test_rate_is_set_in_the_form_and_read_back(site: HttpSite) -> None:
    await site.create_queue("orders")
    chosen = {"on_expire": "history", "payload_policy": "observe", "schema_mode": "off"}
    chosen["empty_list_data"] = "php"
    page = await site.submit("/queues/orders/settings", chosen | {"max_rate": "0.5"})
    assert note_of(page.text) == "Saved: deliveries per second."
    assert 'name="max_rate" value="0.5"' in page.text
    refused = await site.post("/queues/orders/settings", chosen | {"max_rate": "fast"})
    assert refused.status == 422
    assert "Enter a number of 0 or more, such as 10 or 0.5." in refused.text


# -- unique keys


async def test_message_with_a_taken_key_is_not_stored(site: HttpSite) -> None:
    path, message = "/queues/orders/messages", {"content": "a", "unique_key": "k1"}
    status, first = await site.api("POST", path, message)
    assert (status, first["existing"]) == (201, [])
    status, second = await site.api("POST", path, message | {"content": "b"})
    assert (status, second["ids"], second["existing"]) == (200, first["ids"], first["ids"])
    await publish(site, queue="mail")
    status, second = await site.api("POST", path, message | {"content": "b"})
    assert await site.api("GET", f"/wait?after={second['cursor']}&timeout=0") == (204, None)
    status, replaced = await site.api("POST", path, message | {"if_exists": "replace"})
    assert (status, replaced["existing"]) == (201, [])
    assert replaced["ids"] != first["ids"]
    assert await site.ready("orders") == 1
    form = {"queue": "orders", "body": "c", "kind": "text", "unique_key": "k1"}
    page = await site.submit("/publish", form)
    assert "0 messages published to orders. The queue has a live message" in note_of(page.text)
    assert "k1" in await site.text(f"/messages/{replaced['ids'][0]}")


async def test_message_is_cancelled_and_rescheduled_by_its_key(site: HttpSite) -> None:
    message_id = await publish(site, unique_key="k1", delay_s=60)
    body: dict[str, Any] = {"unique_key": "k1"}
    done = await site.ok("POST", "/queues/orders/reschedule", body | {"delay_s": 3_600})
    assert done["id"] == message_id
    row = await site.ok("GET", f"/messages/{message_id}")
    assert row["deliver_at"] - row["published_at"] > HOUR_MS - 1_000
    assert await site.refusal("POST", "/queues/orders/reschedule", body) == (422, "invalid")
    done = await site.ok("POST", "/queues/orders/cancel", body)
    assert await state_of(site, message_id) == "deleted"
    unknown = await site.refusal("POST", "/queues/orders/cancel", body)
    assert unknown == (404, "unknown_unique_key")
    await site.ok("POST", f"/undo/{done['undo']}")
    [restored] = await _list(site, "scheduled")
    assert restored["unique_key"] == "k1"
