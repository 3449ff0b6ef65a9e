"""The pages in Chromium: nothing fails, nothing hostile runs, it fits 360 px, numbers stay live."""

import re
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from pathlib import Path
from shutil import which
from typing import Any, Literal

import pytest
from aiohttp.test_utils import TestServer

from phpmq_lite.admin.app import create_app
from phpmq_lite.admin.urls import encode_name
from phpmq_lite.settings import Settings
from phpmq_lite.storage.readers import Readers
from tests.unit.admin.cases import (
    HOSTILE,
    NOW_MS,
    Database,
    FakeEngine,
    broker_status,
    client_status,
    queue_status,
)

playwright = pytest.importorskip("playwright.async_api")
CHROMIUM = which("chromium") or which("chromium-browser") or which("google-chrome")
pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed"),
]

Scheme = Literal["light", "dark"]
BODY = '{"note":"\u202e<img src=x onerror=alert(1)>","n":12345678901234567890}'.encode()


@dataclass
class Site:
    """A running admin with something of everything in it."""

    server: TestServer
    engine: FakeEngine
    paths: dict[str, str]

    def url(self, path: str) -> str:
        return f"http://127.0.0.1:{self.server.port}{path}"


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    database = Database(tmp_path / "phpmq.db")
    names = ("orders", "orders.dlq", "mail", *HOSTILE)
    for queue_id, name in enumerate(names, 1):
        database.queue(name, queue_id)
    database.client(7, "10.0.0.21:51514")
    shown = {
        "json": database.message(1, BODY, publisher=7),
        "held": database.message(1, BODY, state=1, consumer=7, deliveries=1),
        "hex": database.message(1, bytes(range(256)) * 20),
        "long": database.message(1, b"W" * 20_000),
        "empty": database.message(1, b""),
        "dead": database.settled(1, BODY, outcome=4, reason="max_deliveries", consumer=7),
    }
    database.event(shown["dead"], "return", "connection ended")
    database.message(2, BODY, source_seq=6, source_queue_id=1, source_reason="max_deliveries")
    for at in range(len(HOSTILE)):
        database.message(4 + at, BODY)
    queues = [queue_status(name, at, ready=at * 1_000, dead=at) for at, name in enumerate(names, 1)]
    queues[0] = replace(queues[0], delivery_paused=True, publishing_paused=True, dispatched=1)
    client = client_status(7, queues=dict.fromkeys(HOSTILE, (10, 1)), paused_reason="disk full")
    engine = FakeEngine(broker_status(*queues, clients=(client,), refused={"paused": 3}))
    readers = Readers(database.path)
    app = create_app(
        engine, readers, Settings(), version="0.1.0", is_ready=lambda: True,
        now_ms=lambda: NOW_MS,
    )  # fmt: skip
    server = TestServer(app)
    await server.start_server()
    paths = {
        "overview": "/", "queues": "/queues?sort=-ready", "no match": "/queues?q=zzz&has=dead",
        "queue": "/queues/orders", "records": "/queues/orders?tab=dead",
        "settled": "/queues/orders?tab=history", "purge": "/queues/orders?confirm=purge",
        "redrive": "/queues/orders?confirm=redrive", "nothing": "/queues/mail",
        "dead": "/dead", "clients": "/clients", "history": "/history",
        "missing": "/queues/nope", "gone": f"/messages/{1:016x}{1:016x}",
    } | {f"message {key}": f"/messages/{value}" for key, value in shown.items()}  # fmt: skip
    yield Site(server, engine, paths)
    await server.close()
    await readers.close()


@pytest.fixture
async def chromium() -> AsyncIterator[Any]:
    async with playwright.async_playwright() as driver:
        browser = await driver.chromium.launch(
            executable_path=CHROMIUM,
            args=["--no-sandbox", "--disable-gpu", "--disable-background-networking"],
        )
        yield browser
        await browser.close()


async def open_page(
    chromium: Any, *, width: int = 1280, scheme: Scheme = "light", scripts: bool = True
) -> tuple[Any, list[str]]:
    """Open a page; the list takes every console error, script error and dialog."""
    context = await chromium.new_context(
        viewport={"width": width, "height": 800},
        color_scheme=scheme,
        java_script_enabled=scripts,
    )
    page = await context.new_page()
    troubles: list[str] = []

    def heard(message: Any) -> None:
        if message.type == "error" and "status of 4" not in message.text:  # our own error pages
            troubles.append(message.text)

    async def asked(dialog: Any) -> None:
        troubles.append(f"dialog: {dialog.message}")
        await dialog.dismiss()

    page.on("console", heard)
    page.on("pageerror", lambda error: troubles.append(str(error)))
    page.on("dialog", asked)
    return page, troubles


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 768, 360])
async def test_pages_render_and_fit(site: Site, chromium: Any, scheme: Scheme, width: int) -> None:
    page, troubles = await open_page(chromium, width=width, scheme=scheme)
    too_wide = {}
    for name, path in site.paths.items():
        await page.goto(site.url(path))
        if (await page.evaluate("document.documentElement.scrollWidth")) > width:
            too_wide[name] = await page.evaluate("document.documentElement.scrollWidth")
    assert (troubles, too_wide) == ([], {})


async def test_empty_broker_renders_and_fits(site: Site, chromium: Any) -> None:
    site.engine.now = broker_status(listeners=("127.0.0.1:9100",))
    page, troubles = await open_page(chromium, width=360)
    for path in ("/", "/queues", "/dead", "/clients", "/history"):
        await page.goto(site.url(path))
        assert await page.evaluate("document.documentElement.scrollWidth") <= 360
    await page.goto(site.url("/"))
    assert await page.locator(".snippet").count() == 4
    assert troubles == []


async def test_theme_follows_the_system(site: Site, chromium: Any) -> None:
    shades = []
    schemes: tuple[Scheme, ...] = ("light", "dark")
    for scheme in schemes:
        page, _ = await open_page(chromium, scheme=scheme)
        await page.goto(site.url("/"))
        shade = await page.evaluate("getComputedStyle(document.body).backgroundColor")
        shades.append(sum(map(int, re.findall(r"\d+", shade)[:3])))
    assert shades[0] > 600
    assert shades[1] < 120


async def test_hostile_queue_names_show_as_text_and_lead_to_their_pages(
    site: Site, chromium: Any
) -> None:
    page, troubles = await open_page(chromium)
    seen = {}
    for name in HOSTILE:
        await page.goto(site.url("/queues"))
        await page.locator(f'.lead a[href="/queues/{encode_name(name)}"]').click()
        await page.wait_for_url(re.compile("/queues/"))
        seen[name] = await page.locator("h1").text_content()
    expected = {name: name.replace("\u202e", r"\u202e").replace("\u200b", r"\u200b")
                for name in HOSTILE}  # fmt: skip
    assert (seen, troubles) == (expected, [])
    assert await page.evaluate("document.querySelectorAll('main script, main img').length") == 0


async def test_hostile_body_shows_as_text(site: Site, chromium: Any) -> None:
    page, troubles = await open_page(chromium)
    for view in ("pretty", "raw", "hex"):
        await page.goto(site.url(site.paths["message json"] + f"?view={view}"))
        assert await page.locator("pre.body").count() == 1
        assert await page.locator("main img").count() == 0
    assert troubles == []


async def test_pages_read_and_buttons_work_without_scripts(site: Site, chromium: Any) -> None:
    page, _ = await open_page(chromium, scripts=False)
    await page.goto(site.url("/"))
    await page.get_by_role("link", name="orders", exact=True).first.click()
    await page.get_by_role("button", name="Resume delivery").click()
    assert "Delivery of orders is going on." in await page.locator("main").inner_text()
    await page.get_by_role("link", name="Purge…").click()
    await page.get_by_label("Type orders to confirm").fill("orders")
    await page.get_by_role("button", name=re.compile("^Delete")).click()
    assert "3 messages deleted" in await page.locator("main").inner_text()
    assert site.engine.core.asked == [
        ("pause", "orders", "delivery", False),
        ("purge", "orders", False),
    ]


async def test_numbers_change_in_place_and_new_queues_wait_behind_a_pill(
    site: Site, chromium: Any
) -> None:
    page, troubles = await open_page(chromium)
    await page.goto(site.url("/"))
    rows = await page.locator("tbody tr").count()
    queues = (*site.engine.now.queues, queue_status("brand.new", 99, ready=10**9))
    site.engine.now = broker_status(replace(queues[0], ready=777), *queues[1:])
    expect = playwright.expect
    await expect(page.locator('[data-live="1.ready"]')).to_have_text("777", timeout=10_000)
    await expect(page.locator("#new-rows")).to_have_text("1 new, show")
    await expect(page.locator("#live-text")).to_have_text("Live")
    assert await page.locator("tbody tr").count() == rows
    await page.locator("#new-rows").click()
    await expect(page.get_by_role("link", name="brand.new")).to_be_visible()
    assert troubles == []


async def test_lost_connection_is_said_and_numbers_stay(site: Site, chromium: Any) -> None:
    page, _ = await open_page(chromium)
    await page.goto(site.url("/"))
    before = await page.locator('[data-live="total.ready"]').text_content()
    await page.route("**/*format=live*", lambda route: route.abort())
    expect = playwright.expect
    await expect(page.locator("#live-text")).to_have_text("Not live, retrying", timeout=10_000)
    assert await page.locator('[data-live="total.ready"]').text_content() == before
    await page.unroute("**/*format=live*")
    await expect(page.locator("#live-text")).to_have_text("Live", timeout=10_000)


async def test_snippet_is_copied(site: Site, chromium: Any) -> None:
    site.engine.now = broker_status(listeners=("127.0.0.1:9100",))
    page, _ = await open_page(chromium)
    await page.goto(site.url("/"))
    await page.locator('[data-copy="snippet-cli"]').click()
    await playwright.expect(page.locator('[data-copy="snippet-cli"]')).to_have_text("Copied")


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_pages_have_no_serious_barrier(site: Site, chromium: Any, scheme: Scheme) -> None:
    axe = pytest.importorskip("axe_playwright_python.async_playwright")
    page, _ = await open_page(chromium, scheme=scheme)
    found = []
    for name, path in site.paths.items():
        await page.goto(site.url(path))
        results = await axe.Axe().run(page)
        found += [
            (name, violation["id"], violation["nodes"][0]["html"])
            for violation in results.response["violations"]
            if violation["impact"] in ("serious", "critical")
        ]
    assert found == []
