"""Publishing by the page of the admin, against a real broker."""

import base64
import json
import re
from collections.abc import AsyncIterator
from html import unescape
from pathlib import Path

import pytest

from tests.support.http_site import HttpSite, error_of, note_of, running_site


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[HttpSite]:
    async with running_site(tmp_path / "data") as made:
        yield made


PLAIN = {"queue": "orders", "body": '{"a": 1}', "kind": "json", "count": "1", "do": "publish",
         "create": "orders"}  # fmt: skip


async def test_message_is_published_and_taken_back(site: HttpSite) -> None:
    page = await site.submit("/publish", PLAIN)
    assert note_of(page.text) == "1 message published to orders."
    assert await site.contents("orders") == ['{"a": 1}']
    await site.submit(page.undo(), next="/queues/orders")
    assert await site.contents("orders") == []


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


@pytest.mark.parametrize(
    ("fields", "status", "says"),
    [
        ({"body": '{\n "a": 1,}'}, 422, "line 2, column"),
        ({"kind": "base64", "body": "?"}, 422, "not base64"),
        ({"count": "1001"}, 422, "count is not an integer in that range"),
        ({"count": "0"}, 422, "count is not an integer in that range"),
        ({"count": "1000", "body": "x" * 70_000, "kind": "text"}, 413, "66.8 MiB in all"),
        ({"ttl": "-1"}, 422, "ttl is not an integer in that range"),
        ({"queue": ""}, 422, "Enter a queue"),
        ({"queue": "a\x00b"}, 422, "control character"),
        ({"body": '"' + "x" * 2_000 + '"'}, 413, "the limit is 1024"),
        ({"queue": "paused"}, 409, "is paused"),
    ],
)
async def test_what_is_not_taken_keeps_the_form(
    tmp_path: Path, fields: dict[str, str], status: int, says: str
) -> None:
    async with running_site(tmp_path / "data", limits={"max_content": 1_024}) as site:
        await site.ok("PUT", "/queues/paused")
        await site.ok("POST", "/queues/paused/pause", {"side": "publishing"})
        page = await site.post("/publish", PLAIN | {"urn": "kept"} | fields)
        assert page.status == status, error_of(page.text)
        assert says in unescape(page.text)
        assert 'value="kept"' in page.text
        assert (await site.audit("message.publish"))[0]["result"] not in ("done", "")
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


@pytest.mark.parametrize("body", ["plain\ntext", '{"a": 1}', "a\r\nb", "\n\nlead", "<b>&amp;"])
async def test_edited_message_is_unchanged_unless_edited(site: HttpSite, body: str) -> None:
    ids = await site.publish("orders", body)
    page = await site.get(f"/messages/{ids[0]}/edit")
    shown = re.search(r'<textarea class="code editor".*?>\n(.*?)</textarea>', page.text, flags=re.S)
    kind = re.search(r'<option value="(\w+)" selected>(?:JSON|text|base64)', page.text)
    assert shown is not None
    assert kind is not None
    typed = unescape(shown[1]).replace("\n", "\r\n")  # as browsers send it
    fields = {
        "queue": "copies",
        "create": "copies",
        "body": typed,
        "kind": kind[1],
        "do": "publish",
    }
    await site.submit(f"/messages/{ids[0]}/edit", fields)
    copy = (await site.ok("GET", "/queues/copies/messages"))["items"][0]["id"]
    assert (await site.ok("GET", f"/messages/{copy}/body"))["content"] == body
    events = (await site.ok("GET", f"/messages/{ids[0]}/events"))["items"]
    assert [event["kind"] for event in events] == ["edit"]
