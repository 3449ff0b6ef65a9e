"""What a program can do to messages and queues, on a real broker."""

import asyncio
import base64
import json
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from phpmq_lite.admin.base import responses
from tests.support.http_site import HttpSite, running_site

UNKNOWN_ID = "0" * 15 + "1" + "0" * 16


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[HttpSite]:
    async with running_site(tmp_path / "data") as made:
        yield made


# -- publishing


async def test_array_is_stored_whole_and_the_cursor_waits_behind_it(site: HttpSite) -> None:
    done = await site.ok("POST", "/queues/orders/messages", [{"content": "a"}, {"content": "b"}])
    assert await site.contents("orders") == ["a", "b"]
    assert len(done["ids"]) == 2
    assert done["cursor"]


async def test_repeated_key_stores_nothing_and_gives_the_first_ids(site: HttpSite) -> None:
    messages = [{"content": "a"}, {"content": "b"}, {"content": "c"}]
    path, key = "/queues/orders/messages", {"Idempotency-Key": "order-1042"}
    first = await site.ok("POST", path, messages, **key)
    again = await site.ok("POST", path, messages, **key)
    assert again["ids"] == first["ids"]
    assert await site.contents("orders") == ["a", "b", "c"]
    other = await site.ok("POST", path, messages, **{"Idempotency-Key": "order-1043"})
    assert other["ids"] != first["ids"]


async def test_key_outlives_a_restart(tmp_path: Path) -> None:
    path, key = "/queues/orders/messages", {"Idempotency-Key": "k"}
    async with running_site(tmp_path / "data") as site:
        first = await site.ok("POST", path, [{"content": "a"}, {"content": "b"}], **key)
    async with running_site(tmp_path / "data") as site:
        again = await site.ok("POST", path, [{"content": "a"}, {"content": "b"}], **key)
        assert again["ids"] == first["ids"]
        assert await site.contents("orders") == ["a", "b"]


@pytest.mark.parametrize("key", ["", "x" * 65])
async def test_key_out_of_bounds_is_refused(site: HttpSite, key: str) -> None:
    status, problem = await site.api(
        "POST", "/queues/orders/messages", {"content": "a"}, **{"Idempotency-Key": key}
    )
    assert (status, problem["field"]) == (422, "Idempotency-Key")


async def test_publish_to_a_paused_queue_is_refused(site: HttpSite) -> None:
    await site.publish("orders", "a")
    await site.ok("POST", "/queues/orders/pause", {"side": "publishing"})
    status, problem = await site.api("POST", "/queues/orders/messages", {"content": "b"})
    assert (status, problem["code"]) == (409, "paused")
    await site.ok("POST", "/queues/orders/resume", {"side": "publishing"})
    await site.publish("orders", "c")
    assert await site.contents("orders") == ["a", "c"]


# -- one message


async def test_requeue_and_its_undo(site: HttpSite) -> None:
    ids = await site.publish("orders", "a", "b", "c")
    done = await site.ok("POST", f"/messages/{ids[0]}/requeue")
    assert await site.contents("orders") == ["b", "c", "a"]
    job = await site.ok("POST", f"/undo/{done['undo']}")
    assert (job["action"], job["done"]) == ("place", 1)
    assert await site.contents("orders") == ["a", "b", "c"]


async def test_move_and_its_undo(site: HttpSite) -> None:
    ids = await site.publish("orders", "a", "b", "c")
    path = f"/messages/{ids[1]}/move"
    assert (await site.api("POST", path, {"target": "mail"}))[0] == 404
    done = await site.ok("POST", path, {"target": "mail", "create": True})
    assert await site.contents("orders") == ["a", "c"]
    assert await site.contents("mail") == ["b"]
    await site.ok("POST", f"/undo/{done['undo']}")
    assert await site.contents("orders") == ["a", "b", "c"]
    assert await site.contents("mail") == []


async def test_delete_and_its_undo(site: HttpSite) -> None:
    ids = await site.publish("orders", "a", "b", "c")
    done = await site.ok("POST", f"/messages/{ids[0]}/delete", {"reason": "a duplicate"})
    assert await site.contents("orders") == ["b", "c"]
    row = (await site.audit("message.delete"))[0]
    assert (row["target"], row["reason"], row["count"]) == (ids[0], "a duplicate", 1)
    await site.ok("POST", f"/undo/{done['undo']}")
    assert await site.contents("orders") == ["a", "b", "c"]
    status, problem = await site.api("POST", f"/undo/{done['undo']}")
    assert (status, problem["code"]) == (410, "undo_expired")


async def test_restore_and_its_undo(site: HttpSite) -> None:
    ids = await site.publish("orders", "a", "b")
    await site.ok("POST", f"/messages/{ids[0]}/delete")
    made = await site.ok("POST", f"/messages/{ids[0]}/restore")
    assert await site.contents("orders") == ["a", "b"]
    assert (await site.ok("GET", f"/messages/{made['new_id']}"))["state"] == "ready"
    status, problem = await site.api("POST", f"/messages/{ids[0]}/restore")
    assert (status, problem["code"]) == (409, "restored_already")
    await site.ok("POST", f"/undo/{made['undo']}")
    assert await site.contents("orders") == ["b"]


async def test_redrive_and_its_undo(site: HttpSite) -> None:
    await _kill(site, "orders", "a", "b")
    records = await site.ok("GET", "/queues/orders.dlq/messages")
    record = records["items"][0]["id"]
    made = await site.ok("POST", f"/messages/{record}/redrive", {"ttl_s": 60})
    assert await site.contents("orders") == ["a"]
    assert await site.ready("orders.dlq") == 1
    assert (await site.ok("GET", f"/messages/{made['new_id']}"))["deadline_at"] is not None
    await site.ok("POST", f"/undo/{made['undo']}")
    assert await site.contents("orders") == []


async def _kill(site: HttpSite, queue: str, *contents: str) -> None:
    """Publish messages and have a consumer give them up."""
    await site.publish(queue, *contents)
    async with site.client() as client, client.consume(queue, credit=10) as consumer:
        for _ in contents:
            delivery = await anext(consumer)
            delivery.dead_letter()
    async with asyncio.timeout(10):
        while await site.ready(f"{queue}.dlq") < len(contents):
            pass


async def test_release_takes_a_message_back_from_its_holder(site: HttpSite) -> None:
    ids = await site.publish("orders", "a", "b")
    async with site.client() as client, client.consume("orders", credit=1) as consumer:
        await anext(consumer)
        status, problem = await site.api("POST", f"/messages/{ids[0]}/delete")
        assert (status, problem["code"]) == (409, "dispatched")
        await site.ok("POST", "/queues/orders/pause", {})
        done = await site.ok("POST", f"/messages/{ids[0]}/release")
        assert done["undo"] is None
        assert (await site.ok("GET", f"/messages/{ids[0]}"))["state"] == "ready"
        status, problem = await site.api("POST", f"/messages/{ids[0]}/release")
        assert (status, problem["code"]) == (409, "not_dispatched")
    assert await site.contents("orders") == ["a", "b"]


async def test_delete_of_a_held_message_has_to_say_so(site: HttpSite) -> None:
    ids = await site.publish("orders", "a")
    async with site.client() as client, client.consume("orders", credit=1) as consumer:
        await anext(consumer)
        await site.ok("POST", f"/messages/{ids[0]}/delete", {"dispatched": True})
    assert (await site.ok("GET", f"/messages/{ids[0]}"))["state"] == "deleted"


async def test_edit_makes_a_new_message_tied_to_the_old(site: HttpSite) -> None:
    ids = await site.publish("orders", "a")
    body = base64.b64encode(b"\x00\xff").decode()
    made = await site.ok(
        "POST", f"/messages/{ids[0]}/edit",
        {"content": body, "encoding": "base64", "queue": "mail", "ttl_s": 60},
    )  # fmt: skip
    assert (await site.ok("GET", f"/messages/{made['new_id']}"))["queue"] == "mail"
    for one, other in ((ids[0], made["new_id"]), (made["new_id"], ids[0])):
        events = (await site.ok("GET", f"/messages/{one}/events"))["items"]
        assert [(event["kind"], event["detail"]) for event in events] == [("edit", other)]
    await site.ok("POST", f"/undo/{made['undo']}")
    assert await site.contents("mail") == []
    assert await site.contents("orders") == ["a"]


async def test_erase_takes_the_body_only(site: HttpSite) -> None:
    ids = await site.publish("orders", "secret")
    status, problem = await site.api("POST", f"/messages/{ids[0]}/erase")
    assert (status, problem["code"]) == (409, "not_settled")
    await site.ok("POST", f"/messages/{ids[0]}/delete")
    await site.ok("POST", f"/messages/{ids[0]}/erase", {"reason": "a password"})
    assert (await site.api("GET", f"/messages/{ids[0]}/body"))[0] == 410
    assert (await site.ok("GET", f"/messages/{ids[0]}"))["state"] == "deleted"


async def test_settled_and_unknown_messages_are_refused(site: HttpSite) -> None:
    ids = await site.publish("orders", "a")
    await site.ok("POST", f"/messages/{ids[0]}/delete")
    for action in ("requeue", "release", "delete", "redrive"):
        status, problem = await site.api("POST", f"/messages/{ids[0]}/{action}")
        assert status in (409, 410), (action, problem)
    assert (await site.api("POST", f"/messages/{UNKNOWN_ID}/requeue"))[0] == 410


async def test_passed_deadline_needs_a_new_time_to_live(site: HttpSite) -> None:
    ids = await site.publish("orders", "a", ttl_s=1)
    await site.ok("POST", f"/messages/{ids[0]}/delete")
    row = await site.ok("GET", f"/messages/{ids[0]}")
    while time.time_ns() // 1_000_000 <= row["deadline_at"]:
        await site.ok("GET", f"/messages/{ids[0]}")
    status, problem = await site.api("POST", f"/messages/{ids[0]}/restore")
    assert status == 409
    assert problem["code"] == "deadline_passed"
    made = await site.ok("POST", f"/messages/{ids[0]}/restore", {"ttl_s": 0})
    assert (await site.ok("GET", f"/messages/{made['new_id']}"))["deadline_at"] is None


# -- queues


async def test_queue_is_made_set_and_removed(site: HttpSite) -> None:
    assert (await site.api("PUT", "/queues/orders"))[0] == 201
    assert (await site.api("PUT", "/queues/orders"))[0] == 200
    shown = await site.ok("GET", "/queues/orders")
    tag = site.headers["ETag"]
    assert shown["settings"]["max_deliveries"] == 20
    made = await site.ok(
        "PATCH", "/queues/orders", {"max_deliveries": 5, "note": "n"}, **{"If-Match": tag}
    )
    assert (made["max_deliveries"], made["note"]) == (5, "n")
    newer = site.headers["ETag"]
    assert newer != tag
    status, problem = await site.api(
        "PATCH", "/queues/orders", {"max_deliveries": 6}, **{"If-Match": tag}
    )
    assert (status, problem["code"]) == (412, "stale")
    assert (await site.api("DELETE", "/queues/orders", **{"If-Match": tag}))[0] == 412
    await site.ok("PATCH", "/queues/orders", {"max_deliveries": None}, **{"If-Match": newer})
    assert (await site.ok("GET", "/queues/orders"))["settings"]["max_deliveries"] == 20
    assert (await site.api("DELETE", "/queues/orders"))[0] == 204
    assert (await site.api("GET", "/queues/orders"))[0] == 404


@pytest.mark.parametrize(
    "changes", [{"max_deliveries": -1}, {"on_expire": "away"}, {"color": 1}, {"link": "ftp://x"}]
)
async def test_odd_settings_are_refused(site: HttpSite, changes: dict[str, object]) -> None:
    await site.ok("PUT", "/queues/orders")
    assert (await site.api("PATCH", "/queues/orders", changes))[0] == 422


async def test_queue_with_messages_is_not_removed(site: HttpSite) -> None:
    await site.publish("orders", "a")
    status, problem = await site.api("DELETE", "/queues/orders")
    assert (status, problem["code"]) == (409, "queue_not_empty")


async def test_purge_takes_the_oldest_or_all(site: HttpSite) -> None:
    await site.publish_many("orders", 5)
    assert await site.ok("POST", "/queues/orders/purge", {"limit": 2}) == {"settled": 2}
    assert await site.contents("orders") == ["m2", "m3", "m4"]
    assert await site.ok("POST", "/queues/orders/purge") == {"settled": 3}


async def test_definitions_are_given_and_brought_back(tmp_path: Path) -> None:
    async with running_site(tmp_path / "one") as site:
        await site.ok("PUT", "/queues/plain")
        await site.ok("PUT", "/queues/orders")
        await site.ok("PATCH", "/queues/orders", {"max_deliveries": 5})
        saved = {"labels": {"10.0.0.7": "till"}, "views": {}, "templates": {"t": {"body": "x"}}}
        await site.ok("PUT", "/definitions", saved)
        kept = await site.ok("GET", "/definitions")
    assert kept == saved | {"queues": {"orders": {"max_deliveries": 5}, "plain": {}}}
    async with running_site(tmp_path / "two") as site:
        await site.ok("PUT", "/queues/orders")
        await site.ok("PATCH", "/queues/orders", {"ack_timeout_s": 5})
        assert await site.ok("PUT", "/definitions", kept) == kept
        assert await site.ok("GET", "/definitions") == kept
        assert len(await site.audit("definitions.put")) == 1


async def test_wrong_definitions_change_nothing(site: HttpSite) -> None:
    wrong = {"queues": {"a": {}, "b": {"on_expire": "x"}}}
    assert (await site.api("PUT", "/definitions", wrong))[0] == 422
    assert (await site.ok("GET", "/definitions"))["queues"] == {}
    assert (await site.audit("definitions.put"))[0]["result"] == "bad_setting"


async def test_refusals_are_audited_once(site: HttpSite) -> None:
    await site.api("POST", "/bulk", {"token": "x", "action": "delete"})
    rows = await site.audit()
    assert [(row["action"], row["result"]) for row in rows] == [("bulk.start", "selection_expired")]


async def test_definitions_with_a_text_that_cannot_be_stored_change_nothing(site: HttpSite) -> None:
    for wrong, code in (("\ud800", "bad_value"), (float("nan"), "invalid")):
        asked = {"queues": {"orders": {"note": "x"}}, "labels": {"10.0.0.7": wrong}}
        status, answer = await site.api("PUT", "/definitions", asked)
        assert (status, answer["code"]) == (422, code)
    assert (await site.ok("GET", "/definitions"))["queues"] == {}


async def test_import_that_ends_half_way_is_audited_as_such(site: HttpSite) -> None:
    await site.ok("PUT", "/queues/small")
    await site.ok("PATCH", "/queues/small", {"max_messages": 500})
    lines = [{"queue": "small", "content": str(at)} for at in range(501)]
    status, answer = await site.api("POST", "/import", {"messages": lines})
    assert (status, answer["code"]) == (409, "queue_full")
    [row] = await site.audit("message.import")
    assert (row["count"], row["result"]) == (500, "queue_full")


async def test_import_that_ends_half_way_has_stored_the_beginning(site: HttpSite) -> None:
    await site.ok("PUT", "/queues/full")
    await site.ok("PATCH", "/queues/full", {"max_messages": 30})
    for name, policy in (("room", "opaque"), ("judged", "envelope")):
        await site.ok("PUT", f"/queues/{name}")
        await site.ok("PATCH", f"/queues/{name}", {"payload_policy": policy})
    body = json.dumps({
        "job": "urn:babel:a:b", "trace_id": "00000000-0000-4000-8000-000000000001", "data": {},
        "meta": {"id": "x", "queue": "q", "lang": "php", "schema_version": 1, "created_at": 1},
        "attempts": 0,
    })  # fmt: skip
    lines = [
        {"queue": ("room", "full", "judged", "new")[at % 4], "content": body} for at in range(1_000)
    ]
    status, answer = await site.api("POST", "/import", {"messages": lines})
    assert (status, answer["code"]) == (409, "queue_full")
    assert "The first 121 messages were stored before" in answer["detail"]
    assert [await site.ready(name) for name in ("room", "full", "new")] == [31, 30, 30]
    [row] = await site.audit("message.import")
    assert (row["count"], row["result"]) == (121, "queue_full")


async def test_import_keeps_the_order_of_each_queue(site: HttpSite) -> None:
    for name, policy in (("judged", "observe"), ("plain", "opaque")):
        await site.ok("PUT", f"/queues/{name}")
        await site.ok("PATCH", f"/queues/{name}", {"payload_policy": policy})
    sizes = [10, 300_000, 20, 200_000, 30]  # large ones are judged outside the batch
    lines = [
        {"queue": name, "content": json.dumps({"at": at, "fill": "x" * size})}
        for at, size in enumerate(sizes)
        for name in ("judged", "plain")
    ]
    assert await site.ok("POST", "/import", {"messages": lines}) == {"stored": 10}
    for name in ("judged", "plain"):
        starts = [preview.partition(",")[0] for preview in await site.contents(name)]
        assert starts == [f'{{"at": {at}' for at in range(5)]


async def test_purge_of_ticked_queues_is_audited_once_it_is_done(site: HttpSite) -> None:
    await site.publish("orders", "a")
    page = await site.post("/queues/act", {"action": "purge", "queue": "orders"})
    assert page.status == 303
    assert [row["action"] for row in await site.audit()] == ["selection.make", "message.publish"]


async def test_cursor_past_64_bits_is_refused(site: HttpSite) -> None:
    cursor = responses.encode_cursor("closed clients", "after", [1 << 70, 1])
    status, answer = await site.api("GET", f"/clients?state=closed&cursor={cursor}")
    assert (status, answer["code"]) == (422, "bad_cursor")
