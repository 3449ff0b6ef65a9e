"""The queue pages of a real broker: overview, list, the tabs of a queue, its settings."""

import base64
import json
import re
from html import unescape
from pathlib import Path

from phpmq_lite.admin.urls import encode_name
from tests.support.http_site import HttpSite, error_of, note_of, running_site
from tests.unit.admin.cases import HOSTILE

TABS = ("", "dead", "history", "consumers", "charts", "settings")


def settings(page_text: str) -> dict[str, str]:
    """Return the values of the fields in the settings form."""
    fields = dict(re.findall(r'<input id="set-\w+" name="(\w+)" value="([^"]*)"', page_text))
    fields |= dict(re.findall(r'<textarea[^>]* name="(\w+)"[^>]*>\n?([^<]*)</textarea>', page_text))
    chosen = re.findall(
        r'<select[^>]* name="(\w+)".*?<option value="(\w+)" selected', page_text, flags=re.S
    )
    return {name: unescape(value) for name, value in fields.items()} | dict(chosen)


async def test_overview_of_an_empty_broker_has_the_first_steps(site: HttpSite) -> None:
    page = await site.get("/")
    assert page.status == 200
    assert "Send a test message" in page.text
    assert f"tcp://127.0.0.1:{site.broker.port}" in page.text
    assert f"{site.url}/api/v1/queues/orders/messages" in page.text


async def test_overview_names_what_needs_attention(site: HttpSite) -> None:
    await site.publish_many("orders", 3)
    page = await site.get("/")
    assert "3 ready messages and no consumer" in page.text
    assert "Needs attention" in page.text
    await site.publish("mail", "soon", ttl_s=60)
    page = await site.get("/?span=24h")
    assert "1 message expires within 10 minutes without a consumer" in page.text


async def test_overview_of_a_healthy_broker_has_no_attention_list(site: HttpSite) -> None:
    await site.publish_many("orders.dlq", 3)
    assert "Needs attention" not in (await site.get("/")).text


async def test_charts_show_each_span(site: HttpSite) -> None:
    await site.publish_many("orders", 3)
    await site.broker.service.active.sampler.sample()
    for span in ("1h", "24h", "7d", "30d"):
        page = await site.get(f"/queues/orders?tab=charts&span={span}")
        assert page.status == 200, error_of(page.text)
        assert page.text.count('<svg class="plot"') >= 2
        assert (await site.get(f"/?span={span}")).text.count('<svg class="plot"') == 2


async def test_tabs_of_a_queue_are_shown_whatever_its_name(site: HttpSite) -> None:
    for name in HOSTILE:
        await site.publish_many(name, 2)
        for tab in TABS:
            page = await site.get(f"/queues/{encode_name(name)}?tab={tab}")
            assert page.status == 200, (name, tab, error_of(page.text))
            assert "<script>alert" not in page.text
        assert (await site.get("/queues?sort=name")).status == 200


async def test_list_is_filtered_and_filters_are_removable(site: HttpSite) -> None:
    for name in ("orders.eu", "orders.us", "mail"):
        await site.publish_many(name, 1)
    page = await site.get("/queues?q=orders.*&has=backlog")
    assert "orders.</span>us" in page.text
    assert ">mail<" not in page.text
    page = await site.get("/queues?q=zzz&has=paused")
    assert "No queues match" in page.text
    assert 'href="/queues?has=paused"' in page.text


async def test_consumers_are_listed_with_what_they_hold(site: HttpSite) -> None:
    await site.publish_many("orders", 3)
    async with site.client() as client, client.consume("orders", credit=2) as deliveries:
        await anext(deliveries)
        page = await site.get("/queues/orders?tab=consumers")
    assert 'data-label="Held"><span>2</span>' in page.text
    assert re.search(r">Client \d+<", page.text)


async def test_what_spark_holds_is_listed_with_the_consumers(site: HttpSite) -> None:
    await site.publish_many("orders", 3)
    await site.publish_many("mail", 1)
    for name, queue, count in (("etl", "orders", 2), ("other", "mail", 1)):
        asked = {"subscription": name, "queue": queue, "max_messages": count}
        await site.ok("POST", "/pipeline/claims/claim", asked)
    page = (await site.get("/queues/orders?tab=consumers")).text
    assert "Held by Spark" in page
    assert 'data-label="Held"><span>2</span>' in page
    assert re.search(r'data-label="Oldest held"><time', page)
    assert "other" not in page.partition("Held by Spark")[2].partition("</table>")[0]
    link = re.search(r'href="(/insights\?[^"]*release=etl[^"]*)"', page)
    assert link is not None
    asking = (await site.get(unescape(link[1]))).text
    assert "/queues/orders?tab=consumers" in unescape(asking)
    done = await site.post("/insights/release", {
        "subscription": "etl", "next": "/queues/orders?tab=consumers",
    })  # fmt: skip
    assert (done.status, done.location) == (303, "/queues/orders?tab=consumers")
    page = (await site.get("/queues/orders?tab=consumers")).text
    assert 'data-label="Held"><span class="zero">0</span>' in page
    assert "release=etl" not in page


# -- settings


async def change(site: HttpSite, queue: str, **fields: str) -> tuple[int, str]:
    """Save the form with some fields changed; return the status and the resulting page."""
    path = f"/queues/{encode_name(queue)}"
    now = settings((await site.get(f"{path}?tab=settings")).text)
    now.pop("pinned", None)
    done = await site.post(f"{path}/settings", now | fields)
    if done.status == 303:
        assert done.location is not None
        return 303, (await site.get(done.location)).text
    return done.status, done.text


async def test_settings_are_saved_and_shown_with_their_defaults(site: HttpSite) -> None:
    await site.publish_many("orders", 1)
    status, text = await change(
        site, "orders", note="mind the gap", max_deliveries="5", on_expire="forward",
        forward_to="late", pinned="yes",
    )  # fmt: skip
    assert status == 303
    assert "Saved: note, when a message expires, deliveries, pinned." in unescape(text)
    assert "Default: 20." in text
    data = await site.ok("GET", "/queues/orders")
    expected = {
        "note": "mind the gap", "max_deliveries": 5, "on_expire": "forward:late", "pinned": True,
    }  # fmt: skip
    assert expected.items() <= data["settings"].items()
    [row] = await site.audit("queue.configure")
    assert (row["target"], row["result"]) == ("orders", "done")


async def test_setting_is_reset_to_its_default(site: HttpSite) -> None:
    await site.publish_many("orders", 1)
    await change(site, "orders", max_deliveries="5", owner="anna")
    done = await site.post("/queues/orders/settings", reset="max_deliveries")
    assert done.status == 303
    data = await site.ok("GET", "/queues/orders")
    assert (data["settings"]["max_deliveries"], data["settings"]["owner"]) == (20, "anna")


async def test_invalid_setting_keeps_the_form_and_names_the_bounds(site: HttpSite) -> None:
    await site.publish_many("orders", 1)
    for number, (field, value, problem) in enumerate(
        (
            ("max_deliveries", "many", "Enter an integer of 0 or more."),
            ("max_deliveries", "99999999999999999", "Must be a number from 0 to"),
            ("link", "javascript:alert(1)", "Must begin with https:// or http://"),
        ),
        start=1,
    ):
        status, text = await change(site, "orders", note="kept as typed", **{field: value})
        assert status == 422
        assert problem in unescape(text)
        assert settings(text)["note"] == "kept as typed"
        assert settings(text)[field] == value
        assert (await site.ok("GET", "/queues/orders"))["settings"]["note"] == ""
        assert len(await site.audit("queue.configure")) == number


async def test_live_figures_are_those_of_the_visible_rows(site: HttpSite) -> None:
    await site.publish_many("orders", 3)
    await site.publish_many("mail", 2)
    for topic, key in (("overview", "total.ready"), ("queues", "1.ready"), ("queue:orders", "")):
        data = await site.ok("GET", f"/live?topic={topic}&ids=1,99")
        assert data["shown"]["1.ready"] == "3"
        assert key == "" or key in data["shown"]
        assert "2.ready" not in data["shown"]
        assert data["new"] == (0 if topic == "queue:orders" else 1)


# -- publishing


PLAIN = {"queue": "orders", "body": '{"a": 1}', "kind": "json", "count": "1", "do": "publish",
         "create": "orders"}  # fmt: skip


async def test_publish_is_undone(site: HttpSite) -> None:
    page = await site.submit("/publish", PLAIN)
    assert note_of(page.text) == "1 message published to orders."
    assert await site.contents("orders") == ['{"a": 1}']
    await site.submit(page.undo(), next="/queues/orders")
    assert await site.contents("orders") == []


async def test_published_message_waits_for_its_delay(site: HttpSite) -> None:
    page = await site.submit("/publish", PLAIN | {"delay": "90", "delay_unit": "min"})
    text = "1 message published to orders. It becomes ready at the given time."
    assert note_of(page.text) == text
    assert await site.ready("orders") == 0
    [row] = (await site.ok("GET", "/queues/orders/messages?state=scheduled"))["items"]
    assert round((row["deliver_at"] - row["published_at"]) / 60_000) == 90
    await site.submit(page.undo(), next="/queues/orders")
    assert (await site.ok("GET", "/queues/orders"))["scheduled"] == 0


async def test_mistyped_queue_is_created_only_after_a_confirmation(site: HttpSite) -> None:
    await site.ok("PUT", "/queues/orders")
    mistyped = PLAIN | {"queue": "ordres"}
    for asked in (mistyped | {"create": ""}, mistyped, mistyped | {"create": "yes"}):
        page = await site.post("/publish", asked)
        assert page.status == 422
        assert "There is no queue 'ordres'" in unescape(error_of(page.text))
        assert '<input type="checkbox" name="create" value="ordres">' in page.text
        assert (await site.api("GET", "/queues/ordres"))[0] == 404
    await site.submit("/publish", mistyped | {"create": "ordres"})
    assert await site.contents("ordres") == ['{"a": 1}']
    await site.ok("POST", "/queues/by-program/messages", {"content": "x"})  # needs no question


async def test_copies_are_numbered(site: HttpSite) -> None:
    body = '{"n": {{n}}, "id": "{{uuid}}", "at": {{now_ms}}}'
    await site.submit("/publish", PLAIN | {"body": body, "count": "1,000", "fill": "yes"})
    contents = await site.contents("orders")
    assert len(set(contents)) == 1_000
    assert contents[999].startswith('{"n": 1000, "id": "')


REFUSED: list[tuple[dict[str, str], int, str]] = [
    ({"body": '{\n "a": 1,}'}, 422, "line 2, column"),
    ({"kind": "base64", "body": "?"}, 422, "not valid base64"),
    ({"count": "1001"}, 422, "count is not an integer in the allowed range"),
    ({"count": "0"}, 422, "count is not an integer in the allowed range"),
    ({"count": "1000", "body": "x" * 70_000, "kind": "text"}, 413, "66.8 MiB in total"),
    ({"ttl": "-1"}, 422, "ttl is not an integer in the allowed range"),
    ({"delay": "-1"}, 422, "delay is not an integer in the allowed range"),
    ({"delay": "5", "deliver_at": "2027-01-01T08:00"}, 422, "Enter either a delay or a date."),
    ({"deliver_at": "soon"}, 422, "'soon' is not a valid time"),
    ({"priority": "256"}, 422, "priority is not an integer in the allowed range"),
    ({"unique_key": "k" * 65}, 422, "of 1 to 64 bytes"),
    ({"replace": "yes"}, 422, "Enter the unique key of the message to replace."),
    ({"queue": ""}, 422, "Enter a queue"),
    ({"queue": "a\x00b"}, 422, "control character"),
    ({"body": '"' + "x" * 2_000 + '"'}, 413, "the limit is 1024"),
    ({"queue": "paused"}, 409, "is paused"),
]


async def test_refused_publish_keeps_the_form(tmp_path: Path) -> None:
    async with running_site(tmp_path / "data", limits={"max_content": 1_024}) as site:
        await site.ok("PUT", "/queues/paused")
        await site.ok("POST", "/queues/paused/pause", {"side": "publishing"})
        for number, (fields, status, problem) in enumerate(REFUSED, start=1):
            page = await site.post("/publish", PLAIN | {"urn": "kept"} | fields)
            assert page.status == status, error_of(page.text)
            assert problem in unescape(page.text)
            assert 'value="kept"' in page.text
            audit = await site.audit("message.publish")
            assert (len(audit), audit[0]["result"] in ("done", "")) == (number, False)
            assert await site.ready("orders") == 0


async def test_file_is_sent_as_it_is(site: HttpSite) -> None:
    content = bytes(range(256)) * 10
    fields = PLAIN | {"body": "not this"}
    done = await site.upload("/publish", content, **fields)
    assert done.status == 303, error_of(done.text)
    listed = await site.ok("GET", "/queues/orders/messages")
    body = await site.ok("GET", f"/messages/{listed['items'][0]['id']}/body")
    assert base64.b64decode(body["content"]) == content


async def test_body_is_checked_without_publishing(site: HttpSite) -> None:
    page = await site.post("/publish", PLAIN | {"do": "check"})
    assert page.status == 200
    assert "JSON, 8 B." in page.text
    page = await site.post("/publish", PLAIN | {"do": "check", "body": "{"})
    assert page.status == 422
    assert "line 1, column 2" in page.text
    assert (await site.ok("GET", "/queues"))["items"] == []


async def test_envelope_is_written_into_the_body(site: HttpSite) -> None:
    fields = PLAIN | {"do": "envelope", "urn": "urn:babel:orders:created", "data": '{"n": 1}'}
    page = await site.post("/publish", fields)
    assert page.status == 200
    body = re.search(r'<textarea class="code editor".*?>\n(.*?)</textarea>', page.text, flags=re.S)
    assert body is not None
    await site.submit("/publish", PLAIN | {"body": unescape(body[1]), "fill": "yes"})
    listed = await site.ok("GET", "/queues/orders/messages")
    stored = await site.ok("GET", f"/messages/{listed['items'][0]['id']}/body")
    envelope = json.loads(stored["content"])
    assert (envelope["job"], envelope["data"]) == ("urn:babel:orders:created", {"n": 1})
    assert len({envelope["trace_id"], envelope["meta"]["id"]}) == 2


async def test_template_is_saved_used_and_forgotten(site: HttpSite) -> None:
    fields = PLAIN | {"do": "save", "template": 'a "b" & c', "count": "3", "fill": "yes"}
    page = await site.post("/publish", fields | {"body": '\n{"n": {{n}}}\r\n'})
    assert page.status == 200
    assert "Saved as" in page.text
    page = await site.get("/publish?template=a+%22b%22+%26+c")
    assert "\n\n{&#34;n&#34;: {{n}}}\n</textarea>" in page.text
    assert 'value="3"' in page.text
    await site.submit("/publish/forget", template='a "b" & c')
    assert (await site.get("/publish?template=a+%22b%22+%26+c")).status == 404
    assert (await site.post("/publish", fields | {"template": ""})).status == 422


async def test_new_queue_is_pointed_out(site: HttpSite) -> None:
    assert "Create this queue" in (await site.get("/publish?queue=orders")).text
    await site.publish("orders", "a")
    assert "Create this queue" not in (await site.get("/publish?queue=orders")).text


async def test_message_edited_without_a_change_is_the_same(site: HttpSite) -> None:
    for body in ("plain\ntext", '{"a": 1}', "a\r\nb", "\n\nlead", "<b>&amp;"):
        ids = await site.publish("orders", body)
        page = await site.get(f"/messages/{ids[0]}/edit")
        shown = re.search(
            r'<textarea class="code editor".*?>\n(.*?)</textarea>', page.text, flags=re.S
        )
        kind = re.search(r'<option value="(\w+)" selected>(?:JSON|Text|Base64)', page.text)
        assert shown is not None
        assert kind is not None
        typed = unescape(shown[1]).replace("\n", "\r\n")  # as browsers send it
        fields = {"queue": "copies", "create": "copies", "kind": kind[1], "do": "publish"}
        await site.submit(f"/messages/{ids[0]}/edit", fields, body=typed)
        copy = (await site.ok("GET", "/queues/copies/messages"))["items"][-1]["id"]
        assert (await site.ok("GET", f"/messages/{copy}/body"))["content"] == body
        events = (await site.ok("GET", f"/messages/{ids[0]}/events"))["items"]
        assert [event["kind"] for event in events] == ["edit"]
