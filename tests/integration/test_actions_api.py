"""Actions on messages and queues through the API of a real broker."""

import base64
import json
import time
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from phpmq_lite.admin.http import cursors
from tests.support.http_site import HttpSite, running_site
from tests.support.http_users import BrokerFixture, HttpUser, broker_fixture

UNKNOWN_ID = "0" * 15 + "1" + "0" * 16


# -- publishing


async def test_array_is_stored_whole_and_returns_a_cursor(site: HttpSite) -> None:
    done = await site.ok("POST", "/queues/orders/messages", [{"content": "a"}, {"content": "b"}])
    assert await site.contents("orders") == ["a", "b"]
    assert len(done["ids"]) == 2
    assert done["cursor"]


async def test_repeated_key_stores_nothing_and_returns_the_first_ids(site: HttpSite) -> None:
    messages = [{"content": "a"}, {"content": "b"}, {"content": "c"}]
    path, key = "/queues/orders/messages", {"Idempotency-Key": "order-1042"}
    first = await site.ok("POST", path, messages, **key)
    again = await site.ok("POST", path, messages, **key)
    assert again["ids"] == first["ids"]
    assert await site.contents("orders") == ["a", "b", "c"]
    other = await site.ok("POST", path, messages, **{"Idempotency-Key": "order-1043"})
    assert other["ids"] != first["ids"]


async def test_key_cannot_be_used_again_for_another_list(site: HttpSite) -> None:
    path, key = "/queues/orders/messages", {"Idempotency-Key": "order-1042"}
    a, b, c = ({"content": content} for content in "abc")
    first = await site.ok("POST", path, [a, b], **key)
    for others in ([b, a], [a], a, [a, b, c], [a, c], [c, b]):
        status, problem = await site.api("POST", path, others, **key)
        assert (status, problem["code"]) == (422, "key_conflict")
        assert "order-1042" in problem["detail"]
    again = await site.ok("POST", path, [a, b | {"ttl_s": 60}], **key)
    assert again["ids"] == first["ids"]
    assert await site.contents("orders") == ["a", "b"]
    rows = (await site.ok("GET", "/audit?action=message.publish"))["items"]
    assert [row["result"] for row in rows] == ["done", *["key_conflict"] * 6, "done"]
    single = await site.ok("POST", path, a, **{"Idempotency-Key": "k"})
    assert (await site.api("POST", path, [a, b], **{"Idempotency-Key": "k"}))[0] == 422
    assert await site.ok("POST", path, [a], **{"Idempotency-Key": "k"}) == single | {
        "cursor": (await site.ok("POST", path, a, **{"Idempotency-Key": "k"}))["cursor"]
    }


async def test_key_outlives_a_restart(tmp_path: Path) -> None:
    path, key = "/queues/orders/messages", {"Idempotency-Key": "k"}
    async with running_site(tmp_path / "data") as site:
        first = await site.ok("POST", path, [{"content": "a"}, {"content": "b"}], **key)
    async with running_site(tmp_path / "data") as site:
        again = await site.ok("POST", path, [{"content": "a"}, {"content": "b"}], **key)
        assert again["ids"] == first["ids"]
        assert await site.contents("orders") == ["a", "b"]


async def test_key_out_of_bounds_is_refused(site: HttpSite) -> None:
    for key in ("", "x" * 65):
        status, problem = await site.api(
            "POST", "/queues/orders/messages", {"content": "a"}, **{"Idempotency-Key": key}
        )
        assert (key, status, problem["field"]) == (key, 422, "Idempotency-Key")


async def test_publish_to_a_paused_queue_is_refused(site: HttpSite) -> None:
    await site.publish("orders", "a")
    await site.ok("POST", "/queues/orders/pause", {"side": "publishing"})
    refused = await site.refusal("POST", "/queues/orders/messages", {"content": "b"})
    assert refused == (409, "paused")
    await site.ok("POST", "/queues/orders/resume", {"side": "publishing"})
    await site.publish("orders", "c")
    assert await site.contents("orders") == ["a", "c"]


async def test_delayed_message_is_scheduled_in_its_queue(site: HttpSite) -> None:
    path, late = "/queues/orders/messages", {"content": "b", "delay_s": 600, "ttl_s": 60}
    done = await site.ok("POST", path, [{"content": "a", "delay_s": 0.2}, late])
    shown = await site.ok("GET", f"/messages/{done['ids'][1]}")
    assert (shown["queue"], shown["state"], shown["ready_at"]) == ("orders", "scheduled", None)
    assert round((shown["deliver_at"] - shown["published_at"]) / 1_000) == 600
    assert shown["deadline_at"] - shown["deliver_at"] == 60_000
    async with site.client() as client, client.consume("orders") as ready:
        assert (await anext(ready)).body == b"a"
    assert (await site.ok("GET", "/queues/orders"))["scheduled"] == 1


REFUSED_OPTIONS = [
    ({"delay_s": 5, "deliver_at": 4_000_000_000_000}, "deliver_at"),
    ({"delay_s": -1}, "delay_s"),
    ({"deliver_at": "2027-01-01T08:00"}, "deliver_at"),  # without an offset
    ({"priority": 256}, "priority"),
    ({"unique_key": "k" * 65}, "unique_key"),
    ({"if_exists": "replace"}, "if_exists"),
    ({"group": "g" * 256}, "group"),
]


@pytest.mark.parametrize(("options", "field"), REFUSED_OPTIONS)
async def test_option_that_cannot_be_is_refused(
    site: HttpSite, options: dict[str, Any], field: str
) -> None:
    message = {"content": "a"} | options
    status, problem = await site.api("POST", "/queues/orders/messages", message)
    assert (status, problem["field"]) == (422, field)
    assert (await site.ok("GET", "/queues"))["items"] == []


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
    assert await site.refusal("POST", f"/undo/{done['undo']}") == (410, "undo_expired")


async def test_restore_and_its_undo(site: HttpSite) -> None:
    ids = await site.publish("orders", "a", "b")
    await site.ok("POST", f"/messages/{ids[0]}/delete")
    made = await site.ok("POST", f"/messages/{ids[0]}/restore")
    assert await site.contents("orders") == ["a", "b"]
    assert (await site.ok("GET", f"/messages/{made['new_id']}"))["state"] == "ready"
    assert await site.refusal("POST", f"/messages/{ids[0]}/restore") == (409, "restored_already")
    await site.ok("POST", f"/undo/{made['undo']}")
    assert await site.contents("orders") == ["b"]


async def test_redrive_and_its_undo(site: HttpSite) -> None:
    record, _ = await site.dead_letter("orders", "a", "b")
    made = await site.ok("POST", f"/messages/{record}/redrive", {"ttl_s": 60})
    assert await site.contents("orders") == ["a"]
    assert await site.ready("orders.dlq") == 1
    assert (await site.ok("GET", f"/messages/{made['new_id']}"))["deadline_at"] is not None
    job = await site.ok("POST", f"/undo/{made['undo']}")
    assert (job["done"], job["skipped"]) == (1, {})
    assert await site.contents("orders") == []
    assert await site.ready("orders.dlq") == 2
    assert "The trash is empty" in (await site.get("/trash")).text
    again = await site.ok("POST", "/dead/orders/redrive")
    assert again["redriven"] == 2
    assert sorted(await site.contents("orders")) == ["a", "b"]


async def test_undo_of_a_redrive_takes_back_what_was_not_consumed(site: HttpSite) -> None:
    await site.dead_letter("orders", *"abcde")
    records = await site.contents("orders.dlq")
    made = await site.bulk("queue:orders.dlq", "redrive")
    async with site.client() as client, client.consume("orders", credit=1) as consumer:
        (await anext(consumer)).ack()
        held = await anext(consumer)
        job = await site.ok("POST", f"/undo/{made['undo']}")
        assert (job["done"], job["skipped"]) == (3, {"consumed": 1, "dispatched": 1})
        held.ack()
    assert await site.contents("orders") == []
    assert await site.contents("orders.dlq") == records[2:]


async def test_release_takes_a_message_back_from_its_consumer(site: HttpSite) -> None:
    ids = await site.publish("orders", "a", "b")
    async with site.client() as client, client.consume("orders", credit=1) as consumer:
        await anext(consumer)
        assert await site.refusal("POST", f"/messages/{ids[0]}/delete") == (409, "dispatched")
        await site.ok("POST", "/queues/orders/pause", {})
        done = await site.ok("POST", f"/messages/{ids[0]}/release")
        assert done["undo"] is None
        assert (await site.ok("GET", f"/messages/{ids[0]}"))["state"] == "ready"
        assert await site.refusal("POST", f"/messages/{ids[0]}/release") == (409, "not_dispatched")
    assert await site.contents("orders") == ["a", "b"]


async def test_delete_of_a_dispatched_message_must_be_explicit(site: HttpSite) -> None:
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


async def test_erase_removes_only_the_body(site: HttpSite) -> None:
    ids = await site.publish("orders", "secret")
    assert await site.refusal("POST", f"/messages/{ids[0]}/erase") == (409, "not_settled")
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


async def test_queue_is_created_configured_and_removed(site: HttpSite) -> None:
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
    refused = await site.refusal(
        "PATCH", "/queues/orders", {"max_deliveries": 6}, **{"If-Match": tag}
    )
    assert refused == (412, "stale")
    assert (await site.api("DELETE", "/queues/orders", **{"If-Match": tag}))[0] == 412
    await site.ok("PATCH", "/queues/orders", {"max_deliveries": None}, **{"If-Match": newer})
    assert (await site.ok("GET", "/queues/orders"))["settings"]["max_deliveries"] == 20
    assert (await site.api("DELETE", "/queues/orders"))[0] == 204
    assert (await site.api("GET", "/queues/orders"))[0] == 404


async def test_invalid_settings_are_rejected(site: HttpSite) -> None:
    await site.ok("PUT", "/queues/orders")
    for changes in (
        {"max_deliveries": -1},
        {"on_expire": "away"},
        {"color": 1},
        {"link": "ftp://x"},
    ):
        status, _ = await site.api("PATCH", "/queues/orders", changes)
        assert (changes, status) == (changes, 422)


async def test_queue_with_messages_is_not_removed(site: HttpSite) -> None:
    await site.publish("orders", "a")
    assert await site.refusal("DELETE", "/queues/orders") == (409, "queue_not_empty")


async def test_purge_takes_the_oldest_or_all(site: HttpSite) -> None:
    await site.publish_many("orders", 5)
    assert await site.ok("POST", "/queues/orders/purge", {"limit": 2}) == {"settled": 2}
    assert await site.contents("orders") == ["m2", "m3", "m4"]
    assert await site.ok("POST", "/queues/orders/purge") == {"settled": 3}


async def test_definitions_are_exported_and_imported(tmp_path: Path) -> None:
    async with running_site(tmp_path / "one") as site:
        await site.ok("PUT", "/queues/plain")
        await site.create_queue("orders", max_deliveries=5)
        saved = {"labels": {"10.0.0.7": "till"}, "views": {}, "templates": {"t": {"body": "x"}}}
        nightly = {"cron": "0 3 * * *", "queue": "plain", "content": "{{tick}}", "priority": 7}
        await site.ok("PUT", "/definitions", saved | {"schedules": {"nightly": nightly}})
        kept = await site.ok("GET", "/definitions")
    schedule = kept.pop("schedules")["nightly"]
    assert kept == saved | {"queues": {"orders": {"max_deliveries": 5}, "plain": {}}}
    assert schedule.items() >= nightly.items()
    kept["schedules"] = {"nightly": schedule}
    async with running_site(tmp_path / "two") as site:
        await site.create_queue("orders", ack_timeout_s=5)
        assert await site.ok("PUT", "/definitions", kept) == kept
        assert await site.ok("GET", "/definitions") == kept
        assert len(await site.audit("definitions.put")) == 1


async def test_wrong_definitions_change_nothing(site: HttpSite) -> None:
    wrong = {"queues": {"a": {}, "b": {"on_expire": "x"}}}
    assert (await site.api("PUT", "/definitions", wrong))[0] == 422
    assert (await site.ok("GET", "/definitions"))["queues"] == {}
    assert (await site.audit("definitions.put"))[0]["result"] == "bad_setting"


async def test_refusals_are_audited_once(site: HttpSite) -> None:
    await site.api("POST", "/bulk", {"token": "x", "action": "delete", "reason": "too old"})
    rows = [(row["action"], row["result"], row["reason"]) for row in await site.audit()]
    assert rows == [("bulk.start", "selection_expired", "too old")]


async def test_definitions_with_a_text_that_cannot_be_stored_change_nothing(site: HttpSite) -> None:
    for wrong, code in (("\ud800", "bad_value"), (float("nan"), "invalid")):
        asked = {"queues": {"orders": {"note": "x"}}, "labels": {"10.0.0.7": wrong}}
        assert await site.refusal("PUT", "/definitions", asked) == (422, code)
    assert (await site.ok("GET", "/definitions"))["queues"] == {}


async def test_import_that_ends_half_way_is_audited_as_such(site: HttpSite) -> None:
    await site.create_queue("small", max_messages=500)
    lines = [{"queue": "small", "content": str(at)} for at in range(501)]
    assert await site.refusal("POST", "/import", {"messages": lines}) == (409, "queue_full")
    [row] = await site.audit("message.import")
    assert (row["count"], row["result"]) == (500, "queue_full")


async def test_import_that_ends_half_way_has_stored_the_beginning(site: HttpSite) -> None:
    await site.create_queue("full", max_messages=30)
    for name, policy in (("room", "opaque"), ("judged", "envelope")):
        await site.create_queue(name, payload_policy=policy)
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
    assert "The first 121 messages had already been stored" in answer["detail"]
    assert [await site.ready(name) for name in ("room", "full", "new")] == [31, 30, 30]
    [row] = await site.audit("message.import")
    assert (row["count"], row["result"]) == (121, "queue_full")


async def test_import_keeps_the_order_of_each_queue(site: HttpSite) -> None:
    for name, policy in (("judged", "observe"), ("plain", "opaque")):
        await site.create_queue(name, payload_policy=policy)
    sizes = [10, 300_000, 20, 200_000, 30]  # large ones are validated outside the batch
    lines = [
        {"queue": name, "content": json.dumps({"at": at, "fill": "x" * size})}
        for at, size in enumerate(sizes)
        for name in ("judged", "plain")
    ]
    assert await site.ok("POST", "/import", {"messages": lines}) == {"stored": 10, "skipped": 0}
    for name in ("judged", "plain"):
        starts = [preview.partition(",")[0] for preview in await site.contents(name)]
        assert starts == [f'{{"at": {at}' for at in range(5)]


async def test_purge_of_selected_queues_is_audited_when_done(site: HttpSite) -> None:
    await site.publish("orders", "a")
    page = await site.post("/queues/act", {"action": "purge", "queue": "orders"})
    assert page.status == 303
    assert [row["action"] for row in await site.audit()] == ["selection.make", "message.publish"]


async def test_cursor_past_64_bits_is_refused(site: HttpSite) -> None:
    cursor = cursors.encode_cursor("closed clients", "after", [1 << 70, 1])
    refused = await site.refusal("GET", f"/clients?state=closed&cursor={cursor}")
    assert refused == (422, "bad_cursor")


# -- permissions


async def token(site: HttpSite, role: str, *queues: str) -> dict[str, str]:
    """Create a token and return the header that carries it."""
    secret = await BrokerFixture(site.broker).token(f"{role}-{len(queues)}", role, *queues)
    return {"Authorization": f"Bearer {secret}"}


async def test_limited_operator_acts_on_their_queues_only(site: HttpSite) -> None:
    await site.publish_many("orders", 2)
    mail = await site.publish("mail", "a")
    limited = await token(site, "operator", "orders*")
    made = await site.ok("POST", "/selections", {"q": ""}, **limited)
    assert made["by_queue"] == {"orders": 2}
    asked = {"token": made["token"], "action": "move", "target": "mail"}
    assert (await site.api("POST", "/bulk", asked, **limited))[0] == 403
    assert (await site.api("POST", "/queues/mail/messages", {"content": "b"}, **limited))[0] == 403
    assert (await site.api("POST", f"/messages/{mail[0]}/delete", **limited))[0] in (403, 404)
    for path in ("purge", "pause"):
        assert (await site.api("POST", f"/queues/mail/{path}", **limited))[0] == 403
    assert (await site.api("POST", "/dead/mail/redrive", **limited))[0] == 403
    assert (await site.api("PUT", "/queues/mail2", **limited))[0] == 403
    done = await site.ok(
        "POST", "/bulk", asked | {"target": "orders.old", "create": True}, **limited
    )
    assert done["done"] == 2
    assert await site.ready("mail") == 1


async def test_undo_and_selection_belong_to_their_creator(site: HttpSite) -> None:
    await site.publish_many("orders", 2)
    one, other = await token(site, "operator"), await token(site, "operator", "*")
    made = await site.ok("POST", "/selections", {"q": "queue:orders"}, **one)
    asked = {"token": made["token"], "action": "delete"}
    assert (await site.api("POST", "/bulk", asked, **other))[0] == 410
    job = await site.ok("POST", "/bulk", asked, **one)
    assert (await site.api("POST", f"/undo/{job['undo']}", **other))[0] == 410
    assert (await site.api("GET", f"/bulk/{job['job']}", **other))[0] == 404
    await site.ok("POST", f"/undo/{job['undo']}", **one)
    assert await site.ready("orders") == 2


async def test_viewer_changes_nothing(site: HttpSite) -> None:
    ids = await site.publish("orders", "a")
    viewer = await token(site, "viewer")
    for path in (
        "/queues/orders/messages", "/queues/orders/purge", f"/messages/{ids[0]}/delete",
        "/selections", "/bulk", "/undo/x", "/dead/orders/redrive",
    ):  # fmt: skip
        assert (await site.api("POST", path, {"content": "b"}, **viewer))[0] == 403, path
    assert await site.contents("orders") == ["a"]


async def test_settings_and_erase_are_for_admins(site: HttpSite) -> None:
    ids = await site.publish("orders", "a")
    operator = await token(site, "operator")
    await site.ok("POST", f"/messages/{ids[0]}/delete", **operator)
    assert (await site.api("POST", f"/messages/{ids[0]}/erase", **operator))[0] == 403
    assert (await site.api("PATCH", "/queues/orders", {"note": "n"}, **operator))[0] == 403
    assert (await site.api("PUT", "/definitions", {}, **operator))[0] == 403


async def test_redrive_needs_rights_on_the_target_queues(site: HttpSite) -> None:
    ids = await site.dead_letter("orders", "a", "b", "c")
    limited = await token(site, "operator", "orders.dlq")
    refused = await site.refusal("POST", f"/messages/{ids[0]}/redrive", **limited)
    assert refused == (409, "foreign_queue")
    path = "/dead/orders.dlq/redrive"
    answer = await site.ok("POST", path, **limited)
    assert (answer["redriven"], answer["job"]) == (0, None)
    rated = await site.ok("POST", path, {"rate": 100_000}, **limited)
    assert rated["redriven"] == 0
    made = await site.ok("POST", "/selections", {"q": "queue:orders.dlq"}, **limited)
    asked = {"token": made["token"], "action": "redrive"}
    job = await site.ok("POST", "/bulk", asked, **limited)
    assert (job["done"], job["skipped"]) == (0, {"foreign queue": 3})
    assert (await site.ready("orders"), await site.ready("orders.dlq")) == (0, 3)
    whole = await token(site, "operator", "orders", "orders.dlq")
    assert (await site.ok("POST", "/dead/orders/redrive", {"limit": 2}, **whole))["redriven"] == 2
    assert (await site.ready("orders"), await site.ready("orders.dlq")) == (2, 1)


async def test_expired_messages_are_not_forwarded_to_queues_of_others(site: HttpSite) -> None:
    await site.publish("orders", "a")
    limited = await token(site, "admin", "orders*")
    forward = {"on_expire": "forward:mail"}
    status, answer = await site.api("PATCH", "/queues/orders", forward, **limited)
    assert (status, answer["code"], answer["field"]) == (403, "foreign_queue", "on_expire")
    both = {"queues": {"orders": forward}}
    assert (await site.api("PUT", "/definitions", both, **limited))[0] == 403
    assert (await site.ok("GET", "/queues/orders"))["settings"]["on_expire"] == "history"
    forward = {"on_expire": "forward:orders.old"}
    assert (await site.ok("PATCH", "/queues/orders", forward, **limited))["on_expire"] == (
        "forward:orders.old"
    )


async def test_connections_that_serve_other_queues_stay(site: HttpSite) -> None:
    await site.publish("mail", "a")
    await site.publish("orders", "b")
    limited = await token(site, "operator", "orders*")
    async with site.client() as client, client.consume("orders", credit=1):
        number = (await site.ok("GET", "/clients"))["items"][0]["client"]
        async with client.consume("mail", credit=1) as mails:
            await anext(mails)
            refused = await site.refusal("DELETE", f"/clients/{number}", **limited)
            assert refused == (403, "foreign_queue")
            assert (await site.ok("GET", f"/clients/{number}"))["held_total"] == 2
    async with site.client() as client, client.consume("orders", credit=1) as orders:
        await anext(orders)
        [one] = (await site.ok("GET", "/clients"))["items"]
        gone = await site.ok("DELETE", f"/clients/{one['client']}", **limited)
        assert gone["returned"] == 1


async def test_admin_of_some_queues_is_not_admin_of_the_broker(site: HttpSite) -> None:
    limited = await token(site, "admin", "orders*")
    await token(site, "viewer")
    assert await site.refusal("DELETE", "/tokens/viewer-0", **limited) == (403, "foreign_queue")
    async with aiohttp.ClientSession(headers=limited) as session:
        for tab, expected in (("health", 200), ("log", 403), ("settings", 403)):
            async with session.get(f"{site.url}/system?tab={tab}") as page:
                assert page.status == expected, tab
        asked = {"confirm": "drain", "reason": "why not"}
        async with session.post(f"{site.url}/system/drain", data=asked) as page:
            assert page.status == 403
    assert (await site.ok("GET", "/stats"))["is_draining"] is False


def _template(queue: str, name: str) -> dict[str, str]:
    return {
        "do": "save", "queue": queue, "body": f"secret of {queue}", "kind": "text",
        "template": name, "count": "1",
    }  # fmt: skip


async def test_limited_user_uses_templates_and_views_of_their_queues_only(tmp_path: Path) -> None:
    """A template contains a body, so a foreign one must not be read, changed or removed."""
    async with broker_fixture(tmp_path / "data") as home:
        await home.add_user("ann")
        await home.add_user("bob", "operator", "orders*")
        ann, bob = HttpUser(home.url), HttpUser(home.url)
        async with ann, bob:
            for who, name in ((ann, "ann"), (bob, "bob")):
                assert (await who.log_in(name)).status == 303
            for queue in ("mail", "orders", ""):
                assert (
                    await ann.post("/publish", **_template(queue, f"of {queue or 'all'}"))
                ).status == 200
            for name, q in (("mine", "queue:orders"), ("theirs", "queue:mail"), ("all", "age:>1h")):
                assert (await ann.post("/views", name=name, q=q)).status == 303

            page = (await bob.get("/publish")).text
            assert ("of orders" in page, "of mail" in page) == (True, False)
            assert (await bob.get("/publish?template=of+mail")).status == 404
            assert "secret of orders" in (await bob.get("/publish?template=of+orders")).text
            page = (await bob.get("/messages")).text
            assert [f"q={q}" in page for q in ("queue%3Aorders", "queue%3Amail")] == [True, False]
            defined = json.loads((await bob.get("/api/v1/definitions")).text)
            assert sorted(defined["templates"]) == ["of all", "of orders"]
            assert sorted(defined["views"]) == ["all", "mine"]

            before = home.rows("SELECT * FROM saved ORDER BY kind, name")
            for path, fields, status in (
                ("/publish", _template("mail", "new"), 403),
                ("/publish", _template("", "new"), 403),
                ("/publish", _template("orders", "of mail"), 409),
                ("/publish", _template("orders", "of all"), 409),
                ("/publish/forget", {"template": "of mail"}, 409),
                ("/views", {"name": "theirs", "remove": "1"}, 409),
                ("/views", {"name": "all", "remove": "1"}, 409),
                ("/views", {"name": "theirs", "q": "queue:orders"}, 409),
                ("/views", {"name": "new", "q": "queue:mail"}, 403),
                ("/views", {"name": "new", "q": "ttl:<5s"}, 403),
            ):
                assert (path, fields, (await bob.post(path, **fields)).status) == (
                    path, fields, status,
                )  # fmt: skip
            assert home.rows("SELECT * FROM saved ORDER BY kind, name") == before
            assert (await bob.post("/publish", **_template("orders", "new"))).status == 200
            assert (await bob.post("/publish/forget", template="of orders")).status == 303

        secret = await home.token("half", "admin", "orders*")
        async with HttpUser(home.url, secret) as half:
            for asked, status in (
                ({"templates": {"of mail": {"queue": "orders"}}}, 409),
                ({"templates": {"x": {"queue": "mail"}}}, 403),
                ({"views": {"x": {"q": "queue:mail"}}}, 403),
                ({"templates": {"x": {"queue": "orders"}}}, 200),
            ):
                assert (await half.call("PUT", "/definitions", asked)).status == status
