"""Whoever is limited to some queues acts on those only; whoever only reads acts on nothing."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.integration.site import Site, running_site


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    async with running_site(tmp_path / "data") as made:
        yield made


async def token(site: Site, role: str, *queues: str) -> dict[str, str]:
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


async def test_limited_operator_acts_on_their_queues_only(site: Site) -> None:
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


async def test_undo_and_selection_are_for_who_made_them(site: Site) -> None:
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


async def test_viewer_changes_nothing(site: Site) -> None:
    ids = await site.publish("orders", "a")
    viewer = await token(site, "viewer")
    for path in (
        "/queues/orders/messages", "/queues/orders/purge", f"/messages/{ids[0]}/delete",
        "/selections", "/bulk", "/undo/x", "/dead/orders/redrive",
    ):  # fmt: skip
        assert (await site.api("POST", path, {"content": "b"}, **viewer))[0] == 403, path
    assert await site.contents("orders") == ["a"]


async def test_settings_and_erase_are_for_admins(site: Site) -> None:
    ids = await site.publish("orders", "a")
    operator = await token(site, "operator")
    await site.ok("POST", f"/messages/{ids[0]}/delete", **operator)
    assert (await site.api("POST", f"/messages/{ids[0]}/erase", **operator))[0] == 403
    assert (await site.api("PATCH", "/queues/orders", {"note": "n"}, **operator))[0] == 403
    assert (await site.api("PUT", "/definitions", {}, **operator))[0] == 403
