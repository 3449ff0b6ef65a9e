"""Whoever is limited to some queues acts on those only; whoever only reads acts on nothing."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.support.http_site import HttpSite, running_site
from tests.support.http_users import HttpUser, broker_fixture


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[HttpSite]:
    async with running_site(tmp_path / "data") as made:
        yield made


async def token(site: HttpSite, role: str, *queues: str) -> dict[str, str]:
    """Have a token made over the control socket; gives the header that has it."""
    socket = aiohttp.UnixConnector(str(site.broker.data / "control.sock"))
    asked = {"name": f"{role}-{len(queues)}", "role": role, "queues": list(queues)}
    async with (
        aiohttp.ClientSession(connector=socket) as session,
        session.post("http://localhost/api/v1/tokens", json=asked) as answer,
    ):
        made: dict[str, Any] = await answer.json()
        assert answer.status == 201, made
    return {"Authorization": f"Bearer {made['token']}"}


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


async def test_undo_and_selection_are_for_who_made_them(site: HttpSite) -> None:
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


async def bury(site: HttpSite, queue: str, count: int) -> list[str]:
    """Have messages of a queue die; gives the ids of their records."""
    await site.publish_many(queue, count)
    async with site.client() as client, client.consume(queue, credit=count) as consumer:
        for _ in range(count):
            (await anext(consumer)).dead_letter()
        async with asyncio.timeout(10):
            while await site.ready(f"{queue}.dlq") < count:
                pass  # each look waits for an answer, so this does not spin
    page = await site.ok("GET", f"/queues/{queue}.dlq/messages")
    return [item["id"] for item in page["items"]]


async def test_records_go_back_to_queues_of_who_redrives_only(site: HttpSite) -> None:
    ids = await bury(site, "orders", 3)
    limited = await token(site, "operator", "orders.dlq")
    status, answer = await site.api("POST", f"/messages/{ids[0]}/redrive", **limited)
    assert (status, answer["code"]) == (409, "foreign_queue")
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
            status, answer = await site.api("DELETE", f"/clients/{number}", **limited)
            assert (status, answer["code"]) == (403, "foreign_queue")
            assert (await site.ok("GET", f"/clients/{number}"))["held_total"] == 2
    async with site.client() as client, client.consume("orders", credit=1) as orders:
        await anext(orders)
        [one] = (await site.ok("GET", "/clients"))["items"]
        gone = await site.ok("DELETE", f"/clients/{one['client']}", **limited)
        assert gone["returned"] == 1


async def test_admin_of_some_queues_is_not_admin_of_the_broker(site: HttpSite) -> None:
    limited = await token(site, "admin", "orders*")
    await token(site, "viewer")
    status, answer = await site.api("DELETE", "/tokens/viewer-0", **limited)
    assert (status, answer["code"]) == (403, "foreign_queue")
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


async def test_limited_user_uses_templates_and_views_of_their_queues_only(
    tmp_path: Path,
) -> None:
    """A template holds a body, so that of a foreign queue must not be read, changed or removed."""
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
