"""A base path behind a proxy that passes it on, and behind one that strips it."""

import json
import re
from collections.abc import AsyncIterator, Iterator
from html import unescape
from pathlib import Path
from typing import Any

import pytest

from phpmq_lite.admin.urls import encode_name
from phpmq_lite.installation import templates_folder
from tests.support.full_broker import PAGES, FullBroker, full_broker
from tests.unit.admin.cases import HOSTILE

BASE = "/team/mq"
PARTS = {  # other views of a page
    "queue": ("?tab=dead", "?tab=history", "?tab=consumers", "?tab=charts", "?tab=settings"),
    "message": ("?view=hex", "?q=queue:orders"),
    "clients": ("?state=closed",),
    "messages": ("?q=queue:orders", "?q=nonsense:1"),
    "system": ("?tab=settings", "?tab=log"),
    "history": ("?outcome=deleted",),
    "queues": ("?q=none", "?limit=1"),
}
NOT_ADDRESSES = {"data-key"}  # the key that opens the search


@pytest.fixture
async def filled(tmp_path: Path) -> AsyncIterator[FullBroker]:
    async with full_broker(tmp_path / "data", BASE) as made:
        yield made


def strays(text: str) -> list[str]:
    """Return the attributes of a page that contain a local address outside the base path."""
    found = re.findall(r'\s([\w-]+)="(/[^"]*)"', text)
    return [
        f"{name}={value}"
        for name, value in found
        if name not in NOT_ADDRESSES and not f"{unescape(value)}/".startswith(f"{BASE}/")
    ]


def texts(data: Any) -> Iterator[str]:
    if isinstance(data, dict):
        for value in data.values():
            yield from texts(value)
    elif isinstance(data, list):
        for value in data:
            yield from texts(value)
    elif isinstance(data, str):
        yield data


async def test_every_address_on_every_page_begins_with_the_base_path(filled: FullBroker) -> None:
    wrong, count = {}, 0
    for route in PAGES:
        for part in ("", *PARTS.get(route.name, ())):
            answer = await filled.me.get(filled.path(route) + part)
            count += len(re.findall(r'="/', answer.text))
            if found := strays(answer.text):
                wrong[route.name + part] = found
            if answer.location and not answer.location.startswith(f"{BASE}/"):
                wrong[route.name + part] = [answer.location]
    for path in ("/nowhere", "/queues/nowhere", "/messages/" + "f" * 32, "/queues/orders/nothing"):
        if found := strays((await filled.me.get(path)).text):
            wrong[path] = found
    assert wrong == {}
    assert count > 500


async def test_pages_without_a_login_stay_below_it(filled: FullBroker) -> None:
    await filled.me.post("/logout")
    for path in ("/login", "/setup", "/queues", "/nowhere"):
        answer = await filled.me.get(path)
        assert strays(answer.text) == []
        assert (answer.location or BASE).startswith(BASE)


async def test_queue_of_any_name_is_reached_below_it(filled: FullBroker) -> None:
    listed = (await filled.me.get("/queues")).text
    for name in HOSTILE:
        address = f"{BASE}/queues/{encode_name(name)}"
        assert f'href="{address}"' in unescape(listed)
        answer = await filled.me.get(address.removeprefix(BASE))
        assert (name, answer.status, strays(answer.text)) == (name, 200, [])


async def test_stream_contains_no_other_address(filled: FullBroker) -> None:
    arguments = {"queue": "orders", "tail": "orders"}
    arguments |= {"client": filled.places["client"], "bulk": filled.places["job"]}
    refused = json.loads((await filled.me.get("/api/v1/live?topic=x")).text)
    for name in refused["bound"].split(", "):
        kind = name.partition(":")[0]
        topic = f"{kind}:{arguments[kind]}" if ":" in name else name
        data = await filled.ok("GET", f"/live?topic={topic}&ids=1,2")
        links = [text for text in texts(data) if text.startswith("/")]
        assert (topic, [text for text in links if not text.startswith(BASE)]) == (topic, [])


def test_script_and_style_know_no_address() -> None:
    for path in (templates_folder() / "static").iterdir():
        text = path.read_text(encoding="utf-8")
        assert re.findall(r"""["'`(]/(?:api|static|queues|messages)\b""", text) == [], path.name


async def test_forms_lead_back_below_it(filled: FullBroker) -> None:
    answer = await filled.me.post("/queues/orders/pause", side="delivery")
    assert (answer.status, answer.location) == (303, f"{BASE}/queues/orders")
    answer = await filled.me.post("/queues/orders/resume", side="delivery", next=f"{BASE}/queues")
    assert answer.location == f"{BASE}/queues"
    answer = await filled.me.post("/test-message")
    assert re.fullmatch(f"{BASE}/messages/[0-9a-f]{{32}}", answer.location or "")
    known = filled.places["id"]
    answer = await filled.me.post("/messages/act", action="requeue", id=known, next=f"{BASE}/dead")
    assert (answer.status, (answer.location or "").partition("?")[0]) == (303, f"{BASE}/dead")
    answer = await filled.me.get(f"/search?q={known}")
    assert (answer.location or "").startswith(f"{BASE}/messages/{known}")


async def test_work_under_way_and_its_undo_stay_below_it(filled: FullBroker) -> None:
    made = await filled.ok("POST", "/selections", {"q": "state:ready"})
    order = {"token": made["token"], "action": "requeue", "rate": 1}
    job = await filled.ok("POST", "/bulk", order)
    page = await filled.me.get(f"/bulk/{job['job']}")
    assert f'action="{BASE}/bulk/{job["job"]}/cancel"' in page.text
    assert strays(page.text) == []
    answer = await filled.me.post(f"/bulk/{job['job']}/cancel")
    assert (answer.location or "").startswith(f"{BASE}/bulk/")
    answer = await filled.me.post("/messages/act", action="requeue", id=filled.places["id"])
    page = await filled.me.get((answer.location or "").removeprefix(BASE))
    assert f'action="{BASE}/undo/' in page.text
    assert strays(page.text) == []


async def test_proxy_may_strip_it(filled: FullBroker) -> None:
    filled.me.base = filled.me.base.removesuffix(BASE)
    page = await filled.me.get("/queues")
    assert (page.status, strays(page.text)) == (200, [])
    assert (await filled.me.get("/static/x/app.css")).status == 200
    assert json.loads((await filled.me.get("/api/v1/queues")).text)["items"]
