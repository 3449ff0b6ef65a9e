"""A name in a path is what its percent signs stand for, or it is refused."""

from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest

from tests.support.http_site import HttpSite, running_site
from tests.support.http_users import HttpUser, broker_fixture


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[HttpSite]:
    async with running_site(tmp_path / "data") as it:
        yield it


@pytest.mark.parametrize("segment", ["%FF", "a%C3", "%ED%A0%80", "%25%FF"])
async def test_name_that_is_not_utf8_is_refused_and_no_queue_is_made(
    site: HttpSite, segment: str
) -> None:
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


@pytest.mark.parametrize(("segment", "name"), [("%25FF", "%FF"), ("%2525", "%25"), ("%C3%A9", "é")])
async def test_percent_sign_may_be_in_a_name(site: HttpSite, segment: str, name: str) -> None:
    assert (await site.ok("PUT", f"/queues/{segment}"))["is_new"]
    assert [item["name"] for item in (await site.ok("GET", "/queues"))["items"]] == [name]


async def test_longest_queue_has_a_dead_letter_queue_for_everybody(site: HttpSite) -> None:
    """A record in it could be neither read nor redriven: its name has more than 255 bytes."""
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
    """A purge of ``%7Eorders`` was one of ``orders``."""
    await site.ok("POST", "/queues/orders/messages", {"content": "kept"})
    assert (await site.ok("PUT", f"/queues/{segment}"))["is_new"]
    await site.ok("POST", f"/queues/{segment}/purge", {})
    queues = {item["name"]: item["ready"] for item in (await site.ok("GET", "/queues"))["items"]}
    assert queues == {"orders": 1, name: 0}
    assert (await site.get(f"/queues/{segment}")).status == 200
    audit = (await site.ok("GET", "/audit"))["items"]
    assert {item["target"] for item in audit if item["action"] == "queue.purge"} == {name}


async def test_encoded_tilde_is_part_of_the_name_of_a_user_and_a_token(tmp_path: Path) -> None:
    async with broker_fixture(tmp_path / "data") as home:
        await home.add_user("ci")
        await home.token("ci", "viewer")
        connector = aiohttp.UnixConnector(str(home.data / "control.sock"))
        async with HttpUser("http://any.name", connector=connector) as me:
            for path in ("/api/v1/tokens/%7Eci", "/api/v1/users/%7Eci"):
                assert (path, (await me.request("DELETE", path, json={})).status) == (path, 404)
        assert home.rows("SELECT name FROM user") == [("ci",)]
