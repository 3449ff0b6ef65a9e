"""Message pages of a real broker: hostile and large bodies, lifecycles, search, export."""

import hashlib
import io
import json
import re
from base64 import b64encode
from pathlib import Path
from typing import Any
from urllib.parse import quote

import aiohttp
import pytest

from phpmq_lite.admin.messages.bodies import HEX_BYTES
from phpmq_lite.storage.read.messages import MessageReader
from phpmq_lite.storage.sqlite.read_connections import _Reader
from tests.support.http_site import HttpSite, running_site
from tests.support.stored_rows import stored_tables

MIB = 1 << 20


CHANGED_IN_BACKGROUND = ("counter", "rollup", "history_run", "trace_place")


def dump(data: Path) -> dict[str, list[tuple[Any, ...]]]:
    """Return the rows of all tables except those that change without requests."""
    return stored_tables(data, CHANGED_IN_BACKGROUND)


# -- bodies


HOSTILE = {
    "random": bytes(range(256)) * 4,
    "malformed": b'{"a":',
    "deep": b"[" * 100_000 + b"]" * 100_000,
    "deep json": b"[" * 900 + b"1" + b"]" * 900,
    "bidi": '{"a":"x\u202ey\u200b"}'.encode(),
    "script": b'{"</script><script>alert(1)</script>":"<img src=x onerror=alert(1)>"}',
    "numbers": b'{"n":123456789012345678901234567890,"n":1e400}',
    "nul": b'{"a":"b"}\x00',
    "empty": b"",
    "long line": b'"' + b"x" * 300_000 + b'"',
    "many": b"[" + b",".join([b"{}"] * 25_000) + b"]",
}


@pytest.mark.parametrize("name", HOSTILE)
async def test_body_of_any_kind_is_shown_in_every_view(site: HttpSite, name: str) -> None:
    body = HOSTILE[name]
    [message_id] = await site.publish('../<script>"\u00e9', body)
    for view in ("", "?view=tree", "?view=pretty", "?view=raw", "?view=hex"):
        text = await site.text(f"/messages/{message_id}{view}")
        assert "<script>alert" not in text
        assert "<img src=x" not in text
        assert not re.search("[\u202e\u200b\x00]", text)
        assert len(text) < 3 * MIB
    response = await site.download(f"/messages/{message_id}/body")
    assert response.content == body
    digest = b64encode(hashlib.sha256(body).digest()).decode()
    assert response.headers["Repr-Digest"] == f"sha-256=:{digest}:"
    assert response.headers["Content-Disposition"].startswith("attachment")
    for path in ("/messages", "/messages?q=x", "/messages?format=csv", "/api/v1/messages?q=alert"):
        assert "<script>alert" not in await site.text(path) or "api" in path or "csv" in path


async def test_binary_body_opens_as_hex_and_json_as_a_tree(site: HttpSite) -> None:
    binary, tree = await site.publish("orders", b"\xff\x00A", b'{"a":{"b":[1,2]}}')
    text = await site.text(f"/messages/{binary}")
    assert "00000000  ff 00 41" in text
    text = await site.text(f"/messages/{tree}")
    assert text.count('<details class="tree" open>') == 3
    assert '<span class="key">&#34;a&#34;</span>' in text
    assert hashlib.sha256(b'{"a":{"b":[1,2]}}').hexdigest() in text


async def test_large_body_is_never_read_whole_for_a_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[int] = []
    part = _Reader.body_part

    def note(self: _Reader, seq: int, start: int, size: int) -> bytes:
        content = part(self, seq, start, size)
        taken.append(len(content))
        return content

    monkeypatch.setattr(_Reader, "body_part", note)
    async with running_site(tmp_path / "data", limits={"max_content": 11 * MIB}) as site:
        body = b'{"data":"' + b"x" * (10 * MIB) + b'"}'
        sent = io.BytesIO(json.dumps({"content": body.decode()}).encode())
        address = f"{site.url}/api/v1/queues/big/messages"
        headers = {"Content-Type": "application/json"}
        async with (
            aiohttp.ClientSession() as program,
            program.post(address, data=sent, headers=headers) as response,
        ):
            [message_id] = (await response.json())["ids"]
        for path in ("", "?view=hex", "?view=raw"):
            text = await site.text(f"/messages/{message_id}{path}")
            assert "Showing the first 64 KiB of 10 MiB" in text
            assert "included in the download" in text
            assert len(text) < 8 * HEX_BYTES
        for path in ("/messages", "/messages?q=queue:big"):
            assert "10 MiB" in await site.text(path)
        assert max(taken) == 64 * 1024
        assert sum(taken) < MIB


# -- lifecycles


async def test_lifecycle_continues_across_delete_and_restore(site: HttpSite) -> None:
    [old] = await site.publish("orders", b'{"a":1}')
    await site.ok("POST", f"/messages/{old}/delete")
    text = await site.text(f"/messages/{old}")
    assert re.search(r"Deleted <time[^>]*>just now</time> by <b>local</b>", text)
    assert "Restore</a>" in text
    assert old in await site.text("/trash")
    new = (await site.ok("POST", f"/messages/{old}/restore"))["new_id"]
    assert old not in await site.text("/trash")
    for message_id in (old, new):
        text = await site.text(f"/messages/{message_id}")
        assert "Restored as a new message" in text
        assert "Created by a restore" in text
    assert "Restored from" in await site.text(f"/messages/{new}")
    assert "Restored as" in await site.text(f"/messages/{old}")


async def test_unknown_and_removed_messages_have_their_own_status(site: HttpSite) -> None:
    [known] = await site.publish("orders", b"a")
    await site.text("/messages/" + "f" * 32, 404)
    await site.text(f"/messages/{known[:16]}{'0' * 16}", 410)
    await site.text("/messages/not-an-id", 404)


# -- search pages


async def test_search_page_has_chips_and_neighbours(site: HttpSite) -> None:
    ids = await site.publish("orders", *(b'{"data":{"n":%d}}' % at for at in range(5)))
    text = await site.text("/messages?q=queue:orders+-%22zzz%22")
    assert [message_id for message_id in ids if message_id in text] == ids
    assert 'href="/messages?q=queue%3Aorders"' in text  # link that drops the second term
    text = await site.text(f"/messages/{ids[2]}?q=queue:orders")
    assert f"/messages/{ids[1]}?q=" in text
    assert f"/messages/{ids[3]}?q=" in text
    found = await site.ok("GET", "/messages?q=data.n:3")
    assert [item["id"] for item in found["items"]] == [ids[3]]
    assert (found["complete"], found["next"]) == (True, None)


async def test_search_is_paged_by_cursor(site: HttpSite) -> None:
    ids = await site.publish("orders", *(b"%d" % at for at in range(7)))
    seen, cursor = [], ""
    while True:
        page = await site.ok("GET", f"/messages?limit=3&cursor={cursor}")
        seen += [item["id"] for item in page["items"]]
        cursor = page["next"]
        if cursor is None:
            break
    assert seen == ids[::-1]
    first = await site.ok("GET", "/messages?limit=3")
    await site.text(f"/api/v1/messages?q=x&cursor={first['next']}", 422)  # of another search


async def test_invalid_search_is_explained_next_to_the_field(site: HttpSite) -> None:
    text = await site.text("/messages?q=colour:red", 422)
    assert "no qualifier" in text
    assert 'value="colour:red"' in text
    assert "queue:" in text
    status, problem = await site.api("GET", "/messages?q=colour:red")
    assert status == 422
    assert problem["field"] == "q"


async def test_search_field_of_the_header_redirects(site: HttpSite) -> None:
    [message_id] = await site.publish("orders", b"a")
    for path, end in (
        (f"/search?q={message_id}", f"/messages/{message_id}"),
        (f"/messages?q={message_id.upper()}", f"/messages/{message_id}"),
        ("/search?q=orders", "/queues/orders"),
        ("/search?q=state:ready", "/messages?q=state:ready"),
    ):
        response = await site.download(path)
        assert (response.status, response.headers["Location"]) == (303, end)


async def test_search_terms_are_completed(site: HttpSite) -> None:
    await site.publish("orders.new", b'{"data":{"order_id":1,"deep":{"er":2}}}')
    for typed, expected in (
        ("que", ["queue:"]),
        ("x queue:ord", ["queue:orders.new"]),
        ("-state:dead", ["-state:dead"]),
        ("data.o", ["data.order_id:"]),
        ("data.deep", ["data.deep.er:"]),
    ):
        found = await site.ok("GET", f"/completions?q={quote(typed)}")
        assert found["items"] == expected


# -- history, dead letters, traces


async def test_history_is_read_in_both_directions(site: HttpSite) -> None:
    ids = await site.publish("orders", *(b"%d" % at for at in range(5)))
    await site.ok("POST", "/queues/orders/purge")
    newer = await site.ok("GET", "/history?after_offset=2&limit=2")
    older = await site.ok("GET", "/history?before_offset=3&queue=orders&outcome=deleted")
    assert [item["id"] for item in newer["items"]] == ids[2:4]
    assert [item["id"] for item in older["items"]] == ids[:2][::-1]
    assert (newer["lowest"], newer["highest"]) == (1, 5)
    await site.text("/api/v1/history?after_offset=1&before_offset=3", 422)
    await site.text("/api/v1/history?since=yesterday", 422)
    await site.text("/api/v1/history?queue=nothing", 404)
    assert (await site.ok("GET", "/history?since=2999-01-01"))["items"] == []
    text = await site.text("/history?queue=orders&since=2020-01-01T00:00&outcome=deleted")
    assert all(message_id in text for message_id in ids)


async def test_dead_letters_are_grouped_by_cause(site: HttpSite) -> None:
    assert "No dead letters" in await site.text("/dead")
    block = b'{"dead_letter":{"reason":"failed","error":"Key %d <b>is</b> gone"}}'
    await site.publish("orders.dlq", *(block % at for at in range(3)), b"other")
    found = await site.ok("GET", "/dead/groups")
    assert [(item["cause"], item["count"]) for item in found["items"]] == [
        (None, 1),
        ("Key * <b>is</b> gone", 3),
    ]
    for item in found["items"]:  # the search of a group finds its records
        matches = await site.ok("GET", f"/messages?q={quote(item['q'])}")
        assert len(matches["items"]) == item["count"]
    text = await site.text("/dead")
    assert "Key * &lt;b&gt;is&lt;/b&gt; gone" in text


# -- export and import


async def test_exported_messages_are_imported_unchanged(site: HttpSite) -> None:
    bodies = [b'{"a":1}', b"\xff\x00", "é\u202e".encode(), b""]
    await site.publish("orders", *bodies)
    response = await site.download("/api/v1/export?q=queue:orders")
    assert response.headers["X-Total-Count"] == "4"
    lines = response.content.decode().splitlines()
    assert json.loads(lines[-1]) == {"complete": True, "count": 4}
    messages = [json.loads(line) | {"queue": "copy"} for line in lines[:-1]]
    assert await site.ok("POST", "/import", {"messages": messages}) == {"stored": 4, "skipped": 0}
    found = await site.ok("GET", "/queues/copy/messages")
    for item, body in zip(found["items"], bodies, strict=True):
        response = await site.download(f"/messages/{item['id']}/body")
        assert response.content == body
    audit = (await site.ok("GET", "/audit?action=message.import"))["items"]
    assert [(row["count"], row["result"]) for row in audit] == [(4, "done")]


async def test_import_stores_nothing_if_one_message_is_invalid(site: HttpSite) -> None:
    for line in (
        {"queue": "", "content": "a"}, {"queue": "a\x01", "content": "a"},
        {"queue": "new", "content": "*", "encoding": "base64"},
        {"queue": "new", "content": "a", "ttl_s": -1}, {"queue": "new"}, "text",
        {"complete": False},
    ):  # fmt: skip
        sent = {"messages": [{"queue": "new", "content": "a"}, line]}
        status, problem = await site.api("POST", "/import", sent)
        assert (line, status, problem["field"][0]) == (line, 422, "2")
        assert (await site.ok("GET", "/queues"))["items"] == []


async def test_import_enforces_the_content_limit(tmp_path: Path) -> None:
    async with running_site(tmp_path / "data", limits={"max_content": 65_536}) as site:
        for size, status in ((65_536, 201), (65_537, 413)):
            sent = {"messages": [{"queue": "new", "content": "x" * size}]}
            assert (await site.api("POST", "/import", sent))[0] == status


async def test_csv_escapes_formulas(site: HttpSite) -> None:
    await site.publish("orders", b"=1+1")
    text = await site.text("/api/v1/export?format=csv")
    assert text.splitlines()[0].startswith("id,queue,state,content")
    assert ",'=1+1,utf-8," in text


async def test_failed_export_breaks_off_the_response(
    site: HttpSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    await site.publish("orders", *(b"%d" % at for at in range(150)))
    rows, calls = MessageReader.rows, 0

    async def broken(self: MessageReader, seqs: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls > 1:
            raise OSError("no")
        return await rows(self, seqs)

    monkeypatch.setattr(MessageReader, "rows", broken)
    for format_ in ("csv", "jsonl"):
        calls = 0
        with pytest.raises(aiohttp.ClientPayloadError):
            await site.text(f"/api/v1/export?format={format_}")


# -- viewing changes nothing


PAGES = """
/messages /messages?q=state:ready /dead /history /history?outcome=deleted /trash /trace/x
/api/v1/messages?q=a /api/v1/export /api/v1/dead/groups /api/v1/history
"""


async def test_viewing_pages_changes_no_row(site: HttpSite) -> None:
    ids = await site.publish("orders", *(b'{"a":%d}' % at for at in range(20)))
    await site.publish("orders.dlq", b'{"dead_letter":{"error":"x"}}')
    await site.ok("POST", f"/messages/{ids[0]}/delete")
    paths = [*PAGES.split(), f"/messages/{ids[1]}", f"/messages/{ids[0]}?q=queue:orders"]
    before = dump(site.broker.data)
    for path in paths * 5:
        await site.text(path)
    assert dump(site.broker.data) == before
