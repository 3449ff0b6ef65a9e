"""JSON lines over HTTP: exports are imported unchanged, and other sites cannot send any."""

import json

import aiohttp
import pytest

from tests.support.http_site import HttpSite

LINES = "application/x-ndjson"


async def sent(
    site: HttpSite, path: str, content: bytes, media: str, **headers: str
) -> tuple[int, str]:
    async with (
        aiohttp.ClientSession() as program,
        program.post(
            f"{site.url}/api/v1{path}", data=content, headers={"Content-Type": media, **headers}
        ) as answer,
    ):
        return answer.status, (await answer.text()).removesuffix("\n")


async def test_export_is_imported_unchanged(site: HttpSite) -> None:
    await site.publish("orders", "one", "two", "three")
    async with (
        aiohttp.ClientSession() as program,
        program.get(f"{site.url}/api/v1/export?q=queue:orders") as answer,
    ):
        assert answer.content_type == LINES
        export = await answer.read()
    assert await sent(site, "/import", export, LINES) == (201, '{"stored": 3, "skipped": 0}')
    assert sorted(await site.contents("orders")) == sorted(["one", "two", "three"] * 2)


async def test_options_of_live_messages_are_exported_and_imported(site: HttpSite) -> None:
    messages: list[dict[str, object]] = [
        {"content": "plain", "ttl_s": 60},
        {"content": "delayed", "delay_s": 3_600, "ttl_s": 60},
        {"content": "dated", "deliver_at": 4_000_000_000_000, "priority": 0},
        {"content": "last", "priority": 255, "group": "g", "unique_key": "k"},
    ]
    await site.ok("POST", "/queues/orders/messages", messages)

    async def exported() -> dict[str, dict[str, object]]:
        async with (
            aiohttp.ClientSession() as program,
            program.get(f"{site.url}/api/v1/export?q=queue:orders") as answer,
        ):
            lines = [json.loads(line) for line in (await answer.text()).splitlines()]
        return {line["content"]: line for line in lines[:-1]}

    names = ("state", "ttl_s", "deliver_at", "priority", "group", "unique_key", "ready_at")
    before = await exported()
    assert 3_590 < float(str(before["delayed"]["delay_s"])) <= 3_600
    assert [before[name]["delay_s"] for name in ("plain", "dated", "last")] == [0, 0, 0]
    assert before["dated"]["state"] == "scheduled"
    lines = "\n".join(map(json.dumps, before.values())).encode()
    await site.ok("POST", "/queues/orders/purge", {})
    assert await sent(site, "/import", lines, LINES) == (201, '{"stored": 4, "skipped": 0}')
    await sent(site, "/import", lines.splitlines()[-1], LINES)  # a message with its key is live
    after = await exported()
    for content in before:
        assert {n: after[content][n] for n in names[:-1]} == {
            n: before[content][n] for n in names[:-1]
        }
    wrong = [
        {"queue": "q", "content": "x", "delay_s": 1, "deliver_at": 4_000_000_000_000},
        {"queue": "q", "content": "x", "priority": 256},
    ]
    for line in wrong:
        status, text = await sent(site, "/import", json.dumps(line).encode(), LINES)
        assert (status, "Message 1: " in text) == (422, True), text


async def test_settled_messages_are_stored_only_if_they_are_asked_for(site: HttpSite) -> None:
    """Otherwise, an import of a whole export would run finished jobs again."""
    lines = [
        {"queue": "orders", "content": state, "state": state}
        for state in ("ready", "acked", "dispatched", "expired", "dead", "deleted", "unknown")
    ] + [{"queue": "orders", "content": None, "state": "acked"}]
    export = "\n".join(map(json.dumps, lines)).encode()
    assert await sent(site, "/import", export, LINES) == (201, '{"stored": 3, "skipped": 5}')
    assert await site.contents("orders") == ["ready", "dispatched", "unknown"]
    answer = await site.ok("POST", "/import?settled=true", {"messages": lines[:-1]})
    assert answer == {"stored": 7, "skipped": 0}
    status, text = await sent(site, "/import?settled=true", export, LINES)
    assert (status, "Message 8" in text) == (422, True)  # retention has removed its content
    assert (await sent(site, "/import?settled=perhaps", export, LINES))[0] == 422


async def test_incomplete_export_and_invalid_line_store_nothing(site: HttpSite) -> None:
    line = b'{"queue": "orders", "content": "one"}\n'
    for content, word in (
        (line + b'{"complete": false, "error": "gone"}\n', "is incomplete"),
        (line + b"\n{", "Line 3 is not valid JSON"),
    ):
        status, text = await sent(site, "/import", content, f"{LINES}; charset=utf-8")
        assert (status, word in text) == (422, True), text
    status, _ = await site.api("GET", "/queues/orders")
    assert status == 404


@pytest.mark.parametrize(
    "media", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data"]
)
async def test_content_types_of_forms_are_refused(site: HttpSite, media: str) -> None:
    status, text = await sent(site, "/import", b'{"queue": "orders", "content": "x"}', media)
    assert (status, f"application/json or {LINES}" in text) == (415, True)


async def test_page_of_another_site_cannot_send_lines(site: HttpSite) -> None:
    """Without users, its origin is taken for that of a proxy, which nobody has decided about."""
    line = b'{"queue": "orders", "content": "x"}'
    port = site.url.rpartition(":")[2]
    for origin, status, code in (
        ("http://evil.example", 401, "forwarded"),
        (f"http://127.0.0.1:{int(port) ^ 1}", 403, "foreign_origin"),  # of the same host
    ):
        found, text = await sent(site, "/import", line, LINES, Origin=origin)
        assert (found, f'"{code}"' in text) == (status, True), text
    status, _ = await site.api("GET", "/queues/orders")
    assert status == 404  # nothing was stored
    async with (
        aiohttp.ClientSession() as browser,  # sends a preflight request
        browser.options(
            f"{site.url}/api/v1/import",
            headers={
                "Origin": "http://evil.example",
                "Access-Control-Request-Method": "POST",
                "Access-Control-Request-Headers": "content-type",
            },
        ) as answer,
    ):
        assert "Access-Control-Allow-Origin" not in answer.headers
        assert answer.status >= 400


async def test_other_routes_refuse_lines(site: HttpSite) -> None:
    status, _ = await sent(site, "/queues/orders/messages", b'{"content": "x"}', LINES)
    assert status == 415
