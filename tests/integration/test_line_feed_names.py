"""A queue may have line feeds in its name, as clients make it: it is handled as any other."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import quote

import aiohttp
import pytest

from phpmq_lite.admin.base.search_query import queue_search
from phpmq_lite.admin.base.urls import encode_name
from tests.support.http_site import HttpSite, error_of, running_site

NAME = "\nto day\nmore"
PATH = f"/queues/{encode_name(NAME)}"
SEARCH = str(queue_search(NAME))


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[HttpSite]:
    """Run a broker to which a client has published."""
    async with running_site(tmp_path / "data") as it:
        async with it.client() as client:
            for body in (b"a", b"b", b"c"):
                await client.publish(NAME, body)
        yield it


async def test_it_is_shown_and_searched(site: HttpSite) -> None:
    assert (await site.ok("GET", PATH))["name"] == NAME
    assert await site.contents(NAME) == ["a", "b", "c"]
    found = await site.ok("GET", f"/messages?q={quote(SEARCH)}")
    assert [item["queue"] for item in found["items"]] == [NAME] * 3
    for path in (PATH, "/queues", f"/messages?q={quote(SEARCH)}"):
        page = await site.get(path)
        assert (path, page.status) == (path, 200)
        assert "\\nto day\\nmore" in page.text


async def test_it_is_published_to_claimed_and_drained(site: HttpSite) -> None:
    ids = await site.publish(NAME, "d")
    await site.ok("POST", f"/messages/{ids[0]}/move", {"target": "other", "create": True})
    assert await site.contents("other") == ["d"]
    await site.ok("POST", f"/messages/{ids[0]}/move", {"target": NAME})
    assert await site.contents(NAME) == ["a", "b", "c", "d"]
    asked = {"subscription": "spark", "queue": NAME, "max_messages": 1}
    claimed = await site.ok("POST", "/pipeline/claims/claim", asked)
    await site.ok("POST", "/pipeline/claims/release", {"subscription": "spark"})
    assert claimed["hi"] > 0
    job = await site.bulk(SEARCH, "move", target="other")
    assert (job["done"], await site.contents("other")) == (4, ["a", "b", "c", "d"])
    await site.ok("DELETE", PATH)
    assert (await site.api("GET", PATH))[0] == 404


async def test_its_dead_letters_go_back_and_its_history_is_read(site: HttpSite) -> None:
    async with site.client() as client, client.consume(NAME, credit=1) as consumer:
        (await anext(consumer)).dead_letter()
        async with asyncio.timeout(10):
            while not await site.ready(f"{NAME}.dlq"):
                pass  # each look waits for an answer, so this does not spin
    assert (await site.get(f"/dead?queue={quote(NAME)}")).status == 200
    done = await site.ok("POST", f"/dead/{encode_name(NAME)}/redrive", {"target": NAME})
    assert done["redriven"] == 1
    assert await site.contents(NAME) == ["b", "c", "a"]
    async with aiohttp.ClientSession() as program:
        asked = {"lo": "0", "hi": "1000", "queue": NAME}
        url = f"{site.url}/api/v1/pipeline/history/arrow"
        async with program.get(url, params=asked) as answer:
            assert (answer.status, answer.headers["X-Row-Count"]) == (200, "1")


async def test_its_export_is_imported(site: HttpSite) -> None:
    async with aiohttp.ClientSession() as program:
        url = f"{site.url}/api/v1"
        async with program.get(f"{url}/export", params={"q": SEARCH}) as answer:
            export = await answer.read()
        assert json.loads(export.splitlines()[0])["queue"] == NAME
        media = {"Content-Type": "application/x-ndjson"}
        async with program.post(f"{url}/import", data=export, headers=media) as answer:
            assert (answer.status, await answer.json()) == (201, {"stored": 3})
    assert await site.contents(NAME) == ["a", "b", "c"] * 2


async def test_form_of_a_browser_names_it(site: HttpSite) -> None:
    """A browser sends a line feed of a hidden field as CR LF; no name has a CR."""
    sent = NAME.replace("\n", "\r\n")
    page = await site.post("/publish", {"queue": sent, "kind": "text", "body": "d"})
    assert page.status == 303, error_of(page.text)
    assert await site.contents(NAME) == ["a", "b", "c", "d"]


@pytest.mark.parametrize("name", ["tab\there", "cr\rhere", "nul\0here", "del\x7f", "c1\x85"])
async def test_no_other_control_character_is_taken(site: HttpSite, name: str) -> None:
    status, problem = await site.api(
        "POST", f"/queues/{encode_name(name)}/messages", {"content": "a"}
    )
    assert (status, problem["code"], problem["field"]) == (422, "invalid", "queue")
    assert "line feed" in problem["bound"]
