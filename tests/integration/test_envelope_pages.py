"""Envelopes on the pages and in the API: card, badges, search, trace, quarantine."""

import asyncio
import json
import re
from pathlib import Path
from typing import Any
from urllib.parse import quote

from phpmq_lite.envelopes.dead_letter_record import DeadLetterBlock, build_record
from tests.support.http_site import HttpSite, error_of, running_site

TRACE = "4bf92f35-77b3-4da6-a3ce-929d0e0e4736"
META_ID = "a1c2d3e4-0000-4000-8000-000000000001"


def envelope(**changes: Any) -> str:
    meta = {
        "id": changes.pop("meta_id", META_ID), "queue": "shop", "lang": "php",
        "schema_version": 1, "created_at": 1_767_326_400_000,
    }  # fmt: skip
    body = {"job": "urn:babel:cart:done", "trace_id": TRACE, "data": {"cart": 7}, "meta": meta}
    return json.dumps(body | {"attempts": 0} | changes)


def record(content: str, **changes: Any) -> str:
    given: dict[str, Any] = {
        "reason": "failed",
        "original_queue": "shop",
        "failed_at": 1,
        "attempts": 3,
    }
    return build_record(content.encode(), DeadLetterBlock(**(given | changes))).decode()


async def require(site: HttpSite, queue: str, **settings: Any) -> None:
    await site.create_queue(queue, payload_policy="envelope", **settings)


# -- the card


async def test_card_shows_problems_on_the_page_and_in_the_api(site: HttpSite) -> None:
    right, wrong, plain = await site.publish(
        "shop", envelope(), envelope(attempts=True), '{"order_id": 1}'
    )
    page = await site.get(f"/messages/{wrong}")
    assert "attempts is true, not an integer" in page.text
    assert "/attempts" in page.text
    assert 'href="/trace/' in page.text
    detail = await site.ok("GET", f"/messages/{wrong}")
    assert detail["envelope"]["reason"] == "poison"
    assert detail["envelope"]["problems"][0]["pointer"] == "/attempts"
    detail = await site.ok("GET", f"/messages/{right}")
    assert (detail["meta_id"], detail["attempts"]) == (META_ID, 0)
    assert detail["envelope"] | {"problems": []} == {
        "urn": "urn:babel:cart:done", "trace_id": TRACE, "meta_id": META_ID, "attempts": 0,
        "lang": "php", "queue": "shop", "created_at": 1_767_326_400_000, "schema_version": 1,
        "reason": None, "tolerated": False, "warnings": [], "problems": [], "more_problems": 0,
        "dead_letter": None,
    }  # fmt: skip
    assert (await site.ok("GET", f"/messages/{plain}"))["envelope"] is None
    assert 'id="envelope"' not in (await site.get(f"/messages/{plain}")).text


async def test_card_of_a_record_has_its_block_and_where_it_goes(site: HttpSite) -> None:
    [loose] = await site.publish(
        "shop.dlq", record(envelope(attempts=3), error="no <b>answer</b>", detail="max_deliveries")
    )
    page = await site.get(f"/messages/{loose}")
    assert "no &lt;b&gt;answer&lt;/b&gt;" in page.text
    assert "max_deliveries" in page.text
    block = (await site.ok("GET", f"/messages/{loose}"))["envelope"]["dead_letter"]
    assert (block["reason"], block["detail"], block["attempts"]) == ("failed", "max_deliveries", 3)


async def test_card_shows_that_an_envelope_names_another_queue(site: HttpSite) -> None:
    [away] = await site.publish("mail", envelope())
    assert "<code>meta.queue</code> names" in (await site.get(f"/messages/{away}")).text


HOSTILE_BODIES = [
    '{"job":' * 400, "[" * 100_000, '{"job":"u","meta":{"created_at":' + "9" * 9_000 + "}}",
    r'{"job":"\ud800","trace_id":"\udfff","meta":{"id":"\ud800","lang":"\ud800"},"attempts":0}',
    '{"job":"u","trace_id":"t","dead_letter":{"reason":"\\ud800","original_queue":"\\udfff",'
    '"failed_at":1,"attempts":1}}',
    '{"job":"u","data":"' + "x" * 300_000 + '"}',
    '{"job":"u",' + ",".join(f'"attempts":"{n}"' for n in range(5_000)) + "}",
    '{"job":"\u202e<script>alert(1)</script>","trace_id":"\u202e/../\\"><b>","attempts":0}',
    '{"job":"u","meta":{"queue":{"a":[1]},"lang":true,"schema_version":1e400}}',
    '{"raw":"x","dead_letter":{"reason":"r","original_queue":"..","failed_at":9e9,"attempts":1}}',
    '{"job":"u","dead_letter":{"reason":"r","original_queue":"a/b","failed_at":' + "9" * 18
    + ',"attempts":-5}}',
]  # fmt: skip


async def test_hostile_bodies_are_shown_safely(site: HttpSite) -> None:
    await require(site, "strict")
    for number, body in enumerate(HOSTILE_BODIES):
        for queue in ("shop", "strict"):
            [message_id] = await site.publish(queue, body)
            page = await site.get(f"/messages/{message_id}")
            assert (number, page.status) == (number, 200)
            assert "<script>alert" not in page.text
            assert "\u202e" not in page.text
            assert len(page.text) < 3 << 20
            assert (await site.api("GET", f"/messages/{message_id}"))[0] == 200
    for path in ("/messages", "/queues/shop", "/history", "/dead", "/", "/queues/strict?tab=dead"):
        page = await site.get(path)
        assert page.status == 200
        assert "\u202e" not in re.sub('<input type="hidden"[^>]*>', "", page.text)


async def test_envelope_above_a_mebibyte_is_not_validated_by_a_page(site: HttpSite) -> None:
    async with site.client() as client:
        await client.publish_confirmed("shop", envelope(data={"x": "y" * (1 << 20)}).encode())
    [item] = (await site.ok("GET", "/queues/shop/messages"))["items"]
    assert "is too large to be validated here" in (await site.get(f"/messages/{item['id']}")).text
    assert (await site.ok("GET", f"/messages/{item['id']}"))["envelope"] is None


# -- tables


async def test_tables_show_badge_trace_and_attempts(site: HttpSite) -> None:
    await site.publish("shop", envelope(attempts=2), envelope(attempts="2"), envelope(data=[]))
    for path in ("/queues/shop", "/messages?q=queue:shop"):
        text = (await site.get(path)).text
        assert text.count('class="chip bad"') == 1
        assert ">poison</span>" in text
        assert ">tolerated</span>" in text
        assert text.count('class="trace"') == 3
        assert " · 2</span>" in text


async def test_badge_follows_the_switch_of_the_queue(site: HttpSite) -> None:
    await site.publish("shop", envelope(data=[]))
    await site.ok("PATCH", "/queues/shop", {"empty_list_data": "never"})
    text = (await site.get("/queues/shop")).text
    assert (">tolerated</span>" in text, ">poison</span>" in text) == (False, True)


# -- the search


async def found(site: HttpSite, q: str) -> set[str]:
    return {item["id"] for item in (await site.ok("GET", f"/messages?q={quote(q)}"))["items"]}


async def test_search_finds_by_indexed_fields(site: HttpSite) -> None:
    first, second, other = await site.publish(
        "shop", envelope(), envelope(attempts=4), envelope(meta_id="other", attempts=-1)
    )
    assert await found(site, f"meta:{META_ID}") == {first, second}
    assert await found(site, "meta:oth*") == {other}
    assert await found(site, "attempts:>3") == {second}
    assert await found(site, "attempts:-1") == {other}
    assert await found(site, "-meta:other attempts:0") == {first}
    assert await found(site, "meta:other attempts:>0") == set()


async def test_search_finds_by_the_verdict(site: HttpSite) -> None:
    await require(site, "strict")
    bad, none = await site.publish("strict", envelope(attempts=True), envelope(meta=None))
    [fine] = await site.publish("strict", envelope())
    assert fine not in await found(site, "verdict:*")
    assert await found(site, "state:dead verdict:poison") == {bad}
    assert await found(site, "state:dead verdict:missing_*") == {none}
    assert len(await found(site, "state:ready verdict:*")) == 2  # the records
    assert await found(site, "queue:strict -verdict:*") == {fine}
    status, problem = await site.api("GET", "/messages?q=verdict:nonsense")
    assert (status, problem["field"]) == (422, "q")


async def test_search_completes_names_and_reasons(site: HttpSite) -> None:
    names = (await site.ok("GET", "/completions?q=me"))["items"]
    assert "meta:" in names
    items = (await site.ok("GET", "/completions?q=verdict:miss"))["items"]
    assert items == ["verdict:missing_meta", "verdict:missing_trace_id"]


# -- the trace


async def test_trace_puts_retries_together_over_queues(site: HttpSite) -> None:
    await site.publish("shop", envelope(), envelope(attempts=1))
    await site.publish("mail", envelope(meta_id="hop", job="urn:babel:mail:send"))
    await site.publish("shop.dlq", record(envelope(attempts=2)))
    page = await site.get(f"/trace/{TRACE}")
    assert page.text.count(">retried</span>") == 1
    assert page.text.count(">dead letter</span>") == 1
    assert "Envelopes do not name a parent" in page.text
    assert page.text.count('<rect class="ready"') == 8  # in its lane, and in its row
    assert "retried once, a dead letter" in page.text
    items = (await site.ok("GET", f"/traces/{TRACE}"))["items"]
    assert sorted(item["attempts"] for item in items) == [0, 0, 1, 2]


# -- quarantine


async def test_queue_that_requires_envelopes_shows_quarantined_messages(site: HttpSite) -> None:
    await require(site, "strict", dead_letter_queue="bad.ones")
    await site.publish("strict", envelope(), envelope(attempts=True), envelope(meta=None), "{}")
    text = (await site.get("/queues/strict")).text
    assert "required" in text
    assert 'href="/queues/bad.ones"' in text
    assert "poison 2" in text
    assert "missing_meta 1" in text
    assert "3 quarantined in the last 24 h" in (await site.get("/")).text
    dead = (await site.get("/dead")).text
    assert "missing_meta" in dead
    assert "poison" in dead
    groups = (await site.ok("GET", "/dead/groups"))["items"]
    assert {(group["queue"], group["origin"]) for group in groups} == {("bad.ones", "strict")}
    assert sum(group["count"] for group in groups) == 3
    for group in groups:  # the query of a group finds it
        assert len(await found(site, group["q"])) == group["count"]


async def test_card_of_a_quarantined_message_predicts_its_redrive(site: HttpSite) -> None:
    await require(site, "strict")
    await site.publish("strict", envelope(attempts=True))
    [item] = (await site.ok("GET", "/queues/strict.dlq/messages"))["items"]
    text = (await site.get(f"/messages/{item['id']}")).text
    assert "would quarantine it again" in text
    assert "Redrive…" in text


async def test_redrive_of_a_group_shows_its_plan_first(site: HttpSite) -> None:
    await require(site, "strict")
    await site.publish("strict", envelope(attempts=True), envelope(attempts=True))
    await site.publish("strict.dlq", record(envelope(), original_queue="strict"))
    before = await site.ready("strict.dlq")
    page = await site.submit("/selections", q="queue:strict.dlq", action="redrive")
    assert "3 would go to" in page.text
    assert "2 of these would be quarantined again" in page.text
    assert await site.ready("strict.dlq") == before == 3


async def test_metrics_count_quarantined_messages(site: HttpSite) -> None:
    await require(site, "strict")
    await site.publish("strict", envelope(attempts=True), envelope(meta=None))
    text = (await site.get("/metrics")).text
    assert 'phpmq_messages_quarantined_total{queue="strict",reason="poison"} 1.0' in text
    assert 'phpmq_messages_quarantined_total{queue="strict",reason="missing_meta"} 1.0' in text


# -- publishing


async def test_envelope_is_created_validated_and_then_sent(site: HttpSite) -> None:
    await require(site, "strict")
    form = {"queue": "strict", "urn": "urn:babel:cart:done", "data": '{"cart": 7}', "kind": "json"}
    made = await site.post("/publish", form | {"do": "envelope"})
    assert made.status == 200
    assert "This envelope is valid" in made.text
    body = envelope(attempts="3")
    refused = await site.post("/publish", {"queue": "strict", "body": body, "kind": "json"})
    assert refused.status == 422
    assert "The envelope would be quarantined: poison" in error_of(refused.text)
    assert await site.ready("strict.dlq") == 0
    sent = await site.submit(
        "/publish", {"queue": "strict", "body": body, "kind": "json", "anyway": "yes"}
    )
    assert "quarantined: poison" in sent.text
    assert await site.ready("strict.dlq") == 1


async def test_data_that_a_schema_does_not_allow_is_sent_only_after_a_confirmation(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "schemas"
    folder.mkdir()
    row = {"urn": "urn:babel:cart:done", "schema": "cart.json"}
    (folder / "registry.json").write_text(json.dumps({"schemas": [row]}))
    (folder / "cart.json").write_text('{"type": "object", "required": ["total"]}')
    async with running_site(tmp_path / "data", envelopes={"schemas": folder}) as site:
        await site.ok("PUT", "/queues/observed")
        for name, mode in (("warned", "warn"), ("refused", "quarantine")):
            await require(site, name, schema_mode=mode)
        for name in ("observed", "warned", "refused"):
            form = {"queue": name, "body": envelope(job="urn:babel:cart:done"), "kind": "json"}
            page = await site.post("/publish", form)
            assert page.status == 422
            assert "schema_mismatch" in error_of(page.text)
            assert 'name="anyway"' in page.text
            assert await site.ready(name) == 0
            await site.submit("/publish", form | {"anyway": "yes"})
            assert await site.ready(name if name != "refused" else "refused.dlq") == 1


async def test_check_validates_only_envelopes(site: HttpSite) -> None:
    form = {"queue": "any", "kind": "json", "do": "check"}
    wrong = await site.post("/publish", form | {"body": envelope(meta=None)})
    assert "missing_meta" in wrong.text
    plain = await site.post("/publish", form | {"body": '{"a": 1}'})
    assert 'id="verdict-title"' not in plain.text


async def test_lists_show_which_acked_attempts_failed(site: HttpSite) -> None:
    first, second, other = await site.publish(
        "shop", envelope(), envelope(attempts=1), envelope(meta_id="b" + META_ID[1:])
    )
    async with site.client() as client, client.consume("shop") as deliveries:
        for _ in range(3):
            (await anext(deliveries)).ack()
    while len((await site.ok("GET", "/history"))["items"]) < 3:  # noqa: ASYNC110 - no event
        await asyncio.sleep(0.01)
    for path in ("/history", "/queues/shop?tab=history", f"/messages?q={quote('queue:shop')}"):
        text = (await site.get(path)).text
        rows = {key: text.split(f"/messages/{key}", 1)[1].split("</tr>")[0]
                for key in (first, second, other)}  # fmt: skip
        assert [key for key in rows if "failed attempt" in rows[key]] == [first], path
