"""Hostile strings in every field that a page shows: no dialog, no CSP report, no element."""

import json
from collections.abc import AsyncIterator, Callable
from typing import Any, Final
from urllib.parse import quote

import aiohttp
import pytest
import pytest_asyncio

from phpmq_lite.admin.urls import encode_name
from phpmq_lite.storage.search.language import meta_search
from tests.browser.filled import Site, site_of
from tests.browser.tabs import Browse, open_tab
from tests.browser.tour import paths

SCRIPT: Final = "alert(1)"
TAGS: Final = (
    f"<script>{SCRIPT}</script>", f"<img src=x onerror={SCRIPT}>", f"<svg onload={SCRIPT}>",
    f"<svg><script>{SCRIPT}</script></svg>", f"<iframe src=javascript:{SCRIPT}></iframe>",
    f"<body onload={SCRIPT}>", f"<a href=javascript:{SCRIPT}>x</a>",
    f"<details open ontoggle={SCRIPT}>", f"<video><source onerror={SCRIPT}></video>",
    f"<input autofocus onfocus={SCRIPT}>", f"<marquee onstart={SCRIPT}>",
    "<base href=//evil.test/>", "<link rel=stylesheet href=//evil.test>",
    "<meta http-equiv=refresh content=0;url=//evil.test>", "<style>*{display:none}</style>",
    "<form action=//evil.test><button>", "<template><b>x</b></template>", "<xmp>", "<plaintext>",
    "<noscript><p title='</noscript><img src=x onerror=alert(1)>'>", "<math><mi xlink:href=x>",
    "<object data=//evil.test>", "<embed src=//evil.test>", "<textarea>", "</textarea><b>",
    "</title><b>", "</script><b>", "</style><b>", "<!--", "--><b>", "<![CDATA[<b>]]>",
)  # fmt: skip
BREAKS: Final = (
    f"\">{TAGS[1]}", f"'>{TAGS[1]}", f"`>{TAGS[1]}", f"\"'>{TAGS[1]}", f"&quot;>{TAGS[1]}",
    f"\\\">{TAGS[1]}", f"\" onmouseover={SCRIPT} x=\"", f"' onclick={SCRIPT} x='",
    f"javascript:{SCRIPT}", f"data:text/html,{TAGS[0]}", "{{ 7 * 7 }}", "{% raw %}", "${7*7}",
    "#{7*7}", "%3Cscript%3E", "&lt;script&gt;", "&#60;b&#62;", r"\u003cb\u003e", "=1+1",
    "@SUM(A1)", "+1", "-1",
)  # fmt: skip
SIGNS: Final = (
    "\u202eevil\u202c", "\u200bzero\u200d", "\u2066iso\u2069", "\ufeffbom", "e\u0301" * 20,
    "\U0001f4a9" * 9, "../../etc/passwd", "..\\..\\boot", "a" * 200, "/", "?x=1#y", "%00%0d%0a",
)  # fmt: skip
STRINGS: Final = tuple(dict.fromkeys(TAGS + BREAKS + SIGNS))
PARTS: Final = 3  # of the messages, one test each; no multiple of the number of views
FOREIGN: Final = (
    'document.querySelectorAll(\'main img:not([src*="/docs/images/"]), main iframe, main object, '
    "main embed, main video, main math, main marquee, base, meta[http-equiv], main style, "
    "svg script, "
    'script:not([src^="/static/"]), link[href^="//"], form[action^="//"], '
    'a[href^="javascript:"], [onload], [onerror], [onclick], [onmouseover], [onfocus]\').length'
)


@pytest_asyncio.fixture(loop_scope="session", scope="module")
async def hostile(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Site]:
    """Run a broker with a hostile string in every field that clients can set."""
    async with site_of(tmp_path_factory.mktemp("hostile") / "data") as site:
        client = site.client
        for text in STRINGS:
            await client.publish_confirmed(text[:100], text.encode())
            await client.publish_confirmed("json", envelope(text))
            await client.publish_confirmed("json.dlq", record(text))
        await site.client.publish_confirmed("orders", b"last")
        await store_in_settings_and_audit(site)
        yield site


def envelope(text: str) -> bytes:
    """Return an envelope with the text in every field, and as the name of one."""
    return json.dumps(
        {"job": f"urn:{text}", "trace_id": text, "data": {text: [text, {"x": text}]},
         "meta": {"queue": text, "id": text}, "attempts": 0}
    ).encode()  # fmt: skip


def record(text: str) -> bytes:
    """Return a dead-letter record with the text in every field of its block that allows it."""
    names = ("reason", "error", "exception", "original_queue", "lang", "detail", "message_id")
    block = dict.fromkeys(names, text) | {"failed_at": 1, "attempts": 1}
    return json.dumps(json.loads(envelope(text)) | {"dead_letter": block}).encode()


async def store_in_settings_and_audit(site: Site) -> None:
    """Store the strings in the settings of queues, the audit log and the log of errors."""
    async with aiohttp.ClientSession() as http:
        for text in STRINGS[:10]:
            path = f"/api/v1/queues/{encode_name(text[:100])}"
            note = {"note": text, "owner": text[:60]}
            async with http.patch(site.url(path), json=note) as answer:
                assert answer.status == 200
            headers = {"User-Agent": text.encode("ascii", "ignore").decode()}
            async with http.get(site.url(f"/nowhere/{encode_name(text)}"), headers=headers) as page:
                await page.read()


def test_there_are_enough_strings() -> None:
    assert len(STRINGS) >= 60


@pytest.mark.slow
@pytest.mark.timeout(400)
async def test_hostile_strings_do_nothing_on_any_page(
    hostile: Site, chromium: Any, figure: Callable[[str], None]
) -> None:
    page, troubles = await open_tab(chromium)
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    tour = await paths(hostile)
    tour |= {f"queue {text}": f"/queues/{encode_name(text[:100])}" for text in STRINGS}
    tour |= {"settings": f"/queues/{encode_name(STRINGS[0])}?tab=settings"}
    tour |= {f"search {text}": f"/messages?q={encode_name(text)}" for text in STRINGS[:12]}
    tour |= {
        f"trace {text}": f"/trace/{encode_name(text)}" for text in STRINGS if text.isprintable()
    }
    tour |= {
        f"meta {text}": f"/messages?q={quote(str(meta_search(text)))}" for text in STRINGS[:12]
    }
    tour |= {"queues": "/queues?limit=200", "json": "/queues/json?limit=200"}
    tour |= {"records": "/queues/json.dlq?limit=200", "dead": "/dead?deep=1"}
    foreign = []
    for name, path in tour.items():
        await page.goto(hostile.url(path))
        if await page.evaluate(FOREIGN):
            foreign.append(name)
    own = hostile.url("")
    figure(
        f"{len(STRINGS)} hostile strings on {len(tour)} pages: "
        f"{len(troubles)} dialogs or CSP reports, {len(foreign)} foreign nodes"
    )
    assert [url for url in asked if not url.startswith(own)] == []
    assert (foreign, troubles) == ([], [])


@pytest.mark.sample("0-json")
@pytest.mark.parametrize("queue", ["json", "json.dlq"])
@pytest.mark.parametrize("part", range(PARTS))
async def test_hostile_bodies_do_nothing_in_any_view(
    hostile: Site, browse: Browse, queue: str, part: int
) -> None:
    page = await browse()
    async with (
        aiohttp.ClientSession() as http,
        http.get(hostile.url(f"/queues/{queue}?format=json&limit=200")) as answer,
    ):
        ids = [item["id"] for item in (await answer.json())["items"]]
    assert len(ids) == len(STRINGS)
    foreign = []
    for at, message_id in list(enumerate(ids))[part::PARTS]:
        view = ("tree", "pretty", "raw", "hex")[at % 4]
        await page.goto(hostile.url(f"/messages/{message_id}?view={view}"))
        assert await page.locator("#envelope").count() == 1
        if await page.evaluate(FOREIGN):
            foreign.append((STRINGS[at], view))
    assert foreign == []
