"""Names in paths are percent-decoded; invalid names are refused."""

import asyncio
import json
from pathlib import Path
from urllib.parse import quote

import aiohttp
import pytest

from phpmq_lite.admin.urls import encode_name
from phpmq_lite.storage.search.language import queue_search
from tests.support.http_site import HttpSite, error_of
from tests.support.http_users import HttpUser, broker_fixture


async def test_name_that_is_not_utf8_is_refused_and_creates_no_queue(site: HttpSite) -> None:
    for segment in ("%FF", "a%C3", "%ED%A0%80", "%25%FF"):
        for method, path in (
            ("PUT", f"/queues/{segment}"),
            ("GET", f"/queues/{segment}"),
            ("POST", f"/queues/{segment}/messages"),
            ("DELETE", f"/tokens/{segment}"),
        ):
            status, problem = await site.api(method, path, {})
            assert (method, path, status, problem["bound"]) == (method, path, 422, "UTF-8")
        assert (await site.get(f"/queues/{segment}")).status == 422
    assert (await site.ok("GET", "/queues"))["items"] == []


@pytest.mark.parametrize(
    ("segment", "name"), [("%25FF", "%FF"), ("%2525", "%25"), ("%C3%A9", "é"), ("%7Bid%7D", "{id}")]
)
async def test_percent_signs_and_braces_may_be_in_a_name(
    site: HttpSite, segment: str, name: str
) -> None:
    assert (await site.ok("PUT", f"/queues/{segment}"))["is_new"]
    assert [item["name"] for item in (await site.ok("GET", "/queues"))["items"]] == [name]


async def test_longest_queue_has_a_usable_dead_letter_queue(site: HttpSite) -> None:
    """The name of that queue exceeds 255 bytes; its records could be neither read nor redriven."""
    queue, dead = "q" * 255, "q" * 255 + ".dlq"
    await site.publish(queue, "poison", "again")
    async with site.client() as client:
        async with client.consume(queue) as consumer:
            for _ in range(2):
                (await anext(consumer)).dead_letter()
        async with client.consume(dead, credit=1) as consumer:
            record = await anext(consumer)
            assert (record.queue, b"poison" in record.body) == (dead, True)
            record.ack()
        await client.publish_confirmed(dead, b"last")
    for path in (f"/queues/{dead}", f"/queues/{dead}?tab=settings", "/dead"):
        page = await site.get(path)
        assert (path, page.status, "q" * 200 in page.text) == (path, 200, True)
    assert ["again" in content for content in await site.contents(dead)] == [True, False]
    done = await site.bulk(f"queue:{dead} again", "redrive")
    assert (done["state"], await site.contents(queue)) == ("done", ["again"])
    for name in (f"{dead}.dlq", f"{queue}.retry", "q" * 256):
        assert (await site.api("PUT", f"/queues/{name}"))[0] == 422
        changes = {"dead_letter_queue": name}
        assert (await site.api("PATCH", "/queues/" + queue, changes))[0] == 422
        page = await site.post(f"/queues/{queue}/settings", {"dead_letter_queue": name})
        assert page.status == 422
    assert (await site.api("PATCH", "/queues/" + queue, {"dead_letter_queue": dead}))[0] == 200


@pytest.mark.parametrize(
    ("segment", "name"),
    [
        ("%7Eorders", "~orders"), ("%7eorders", "~orders"), ("~orders", "~orders"),
        ("~~orders", "~orders"), ("%7E~orders", "~~orders"), ("~%7Eorders", "~orders"),
        ("~..", ".."), ("%7E..", "~.."), ("~%2E%2E", ".."),
    ],
)  # fmt: skip
async def test_encoded_tilde_is_part_of_the_name(site: HttpSite, segment: str, name: str) -> None:
    """A purge of ``%7Eorders`` once purged ``orders``."""
    await site.ok("POST", "/queues/orders/messages", {"content": "kept"})
    assert (await site.ok("PUT", f"/queues/{segment}"))["is_new"]
    await site.ok("POST", f"/queues/{segment}/purge", {})
    queues = {item["name"]: item["ready"] for item in (await site.ok("GET", "/queues"))["items"]}
    assert queues == {"orders": 1, name: 0}
    assert (await site.get(f"/queues/{segment}")).status == 200
    audit = (await site.ok("GET", "/audit"))["items"]
    assert {item["target"] for item in audit if item["action"] == "queue.purge"} == {name}


async def test_encoded_tilde_is_part_of_user_and_token_names(tmp_path: Path) -> None:
    async with broker_fixture(tmp_path / "data") as home:
        await home.add_user("ci")
        await home.token("ci", "viewer")
        connector = aiohttp.UnixConnector(str(home.data / "control.sock"))
        async with HttpUser("http://any.name", connector=connector) as me:
            for path in ("/api/v1/tokens/%7Eci", "/api/v1/users/%7Eci"):
                assert (path, (await me.request("DELETE", path, json={})).status) == (path, 404)
        assert home.rows('SELECT name FROM "user"') == [("ci",)]


# -- line feeds in a name


NAME = "\nto day\nmore"
PATH = f"/queues/{encode_name(NAME)}"
SEARCH = str(queue_search(NAME))


@pytest.fixture
async def published(site: HttpSite) -> HttpSite:
    async with site.client() as client:
        for body in (b"a", b"b", b"c"):
            await client.publish(NAME, body)
    return site


async def test_line_feed_name_is_shown_and_searched(published: HttpSite) -> None:
    assert (await published.ok("GET", PATH))["name"] == NAME
    assert await published.contents(NAME) == ["a", "b", "c"]
    found = await published.ok("GET", f"/messages?q={quote(SEARCH)}")
    assert [item["queue"] for item in found["items"]] == [NAME] * 3
    for path in (PATH, "/queues", f"/messages?q={quote(SEARCH)}"):
        page = await published.get(path)
        assert (path, page.status) == (path, 200)
        assert "\\nto day\\nmore" in page.text


async def test_line_feed_queue_is_published_to_claimed_and_moved(published: HttpSite) -> None:
    ids = await published.publish(NAME, "d")
    await published.ok("POST", f"/messages/{ids[0]}/move", {"target": "other", "create": True})
    assert await published.contents("other") == ["d"]
    await published.ok("POST", f"/messages/{ids[0]}/move", {"target": NAME})
    assert await published.contents(NAME) == ["a", "b", "c", "d"]
    asked = {"subscription": "spark", "queue": NAME, "max_messages": 1}
    claimed = await published.ok("POST", "/pipeline/claims/claim", asked)
    await published.ok("POST", "/pipeline/claims/release", {"subscription": "spark"})
    assert claimed["hi"] > 0
    job = await published.bulk(SEARCH, "move", target="other")
    assert (job["done"], await published.contents("other")) == (4, ["a", "b", "c", "d"])
    await published.ok("DELETE", PATH)
    assert (await published.api("GET", PATH))[0] == 404


async def test_line_feed_queue_redrives_dead_letters_and_has_a_history(published: HttpSite) -> None:
    async with published.client() as client, client.consume(NAME, credit=1) as consumer:
        (await anext(consumer)).dead_letter()
        async with asyncio.timeout(10):
            while not await published.ready(f"{NAME}.dlq"):
                pass  # each request waits for its response
    assert (await published.get(f"/dead?queue={quote(NAME)}")).status == 200
    done = await published.ok("POST", f"/dead/{encode_name(NAME)}/redrive", {"target": NAME})
    assert done["redriven"] == 1
    assert await published.contents(NAME) == ["b", "c", "a"]
    async with aiohttp.ClientSession() as program:
        asked = {"lo": "0", "hi": "1000", "queue": NAME}
        url = f"{published.url}/api/v1/pipeline/history/arrow"
        async with program.get(url, params=asked) as answer:
            assert (answer.status, answer.headers["X-Row-Count"]) == (200, "1")


async def test_line_feed_queue_is_exported_and_imported(published: HttpSite) -> None:
    async with aiohttp.ClientSession() as program:
        url = f"{published.url}/api/v1"
        async with program.get(f"{url}/export", params={"q": SEARCH}) as answer:
            export = await answer.read()
        assert json.loads(export.splitlines()[0])["queue"] == NAME
        media = {"Content-Type": "application/x-ndjson"}
        async with program.post(f"{url}/import", data=export, headers=media) as answer:
            assert (answer.status, await answer.json()) == (201, {"stored": 3, "skipped": 0})
    assert await published.contents(NAME) == ["a", "b", "c"] * 2


async def test_form_of_a_browser_names_a_line_feed_queue(published: HttpSite) -> None:
    """Browsers send a line feed in a hidden field as CR LF; names contain no CR."""
    sent = NAME.replace("\n", "\r\n")
    page = await published.post("/publish", {"queue": sent, "kind": "text", "body": "d"})
    assert page.status == 303, error_of(page.text)
    assert await published.contents(NAME) == ["a", "b", "c", "d"]


async def test_other_control_characters_are_refused(site: HttpSite) -> None:
    for name in ("tab\there", "cr\rhere", "nul\0here", "del\x7f", "c1\x85"):
        path = f"/queues/{encode_name(name)}/messages"
        status, problem = await site.api("POST", path, {"content": "a"})
        assert (name, status, problem["code"], problem["field"]) == (name, 422, "invalid", "queue")
        assert "line feed" in problem["bound"]
