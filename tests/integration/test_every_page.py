"""Every page and list of a real broker: it renders, has other formats, and changes nothing."""

import json
import re
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from phpmq_lite.admin.urls import encode_name
from tests.support.full_broker import PAGES, READING, STREAM, FullBroker, full_broker
from tests.support.http_site import running_site
from tests.support.http_users import visible_text
from tests.support.stored_rows import stored_rows
from tests.support.stores import ON_POSTGRES
from tests.unit.admin.cases import HOSTILE, NOW_MS
from tests.unit.admin.pipeline.cases import summary

pytestmark = pytest.mark.asyncio(loop_scope="module")  # with ``filled``

PATHS = """
/ /queues /queues/orders /queues/orders?tab=dead /queues/orders?tab=history
/messages?q=queue:orders /dead /trash /history /trace/7b3f-1 /clients /clients?state=closed
/audit /schedules /users /tokens /sessions /bulk
"""
LISTS = PATHS.split()
API_PATHS = """
/api/v1/queues /api/v1/queues/orders/messages /api/v1/messages?q=queue:orders /api/v1/dead
/api/v1/dead/groups /api/v1/history /api/v1/traces/7b3f-1 /api/v1/audit /api/v1/config
"""
API_LISTS = API_PATHS.split()
# Redirect, or return a file that does not exist.
ELSEWHERE = {"login", "setup", "search", "backup-download", "docs-root", "docs-short"}
OTHER_STATE = {"message-release-form": 1, "message-restore-form": 2, "message-redrive-form": 3}
# In rounds of different parameters.
BAD_VALUES = (
    ("limit=0", "cursor=x", "state=dead", "sort=x", "q=%22", "action=x", "confirm=all"),
    ("limit=201", "cursor=%00", "has=x", "tab=x", "q=%00", "next=//evil", "actor=%ff"),
    ("limit=x", "view=x", "span=x", "ids=a", "topic=x", "after=x", "level=x"),
    (
        "limit=9999999999999999999999", "ids=99999999999999999999", "topic=queue:", "outcome=ready",
        "until=x", "token=x",
    ),
    ("format=xml", "id=x", "after_offset=-1"),
)  # fmt: skip
TABLES = """
audit rollup counter start session token sqlite_sequence history_run trace_place
"""
UNCOMPARED = set(
    TABLES.split()
)  # the broker updates them without a change, or whenever a user is seen


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def filled(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[FullBroker]:
    async with full_broker(tmp_path_factory.mktemp("filled") / "data") as filled:
        yield filled


async def test_every_page_renders(filled: FullBroker) -> None:
    wrong = {}
    for route in PAGES:
        known = filled.message_ids[OTHER_STATE.get(route.name, 0)]
        answer = await filled.me.get(filled.path(route, id=known, q="orders"))
        expected = (303, 404) if route.name in ELSEWHERE else (200,)
        if ON_POSTGRES and route.name == "backup-download":
            expected = (409,)
        if answer.status not in expected:
            wrong[route.name] = (answer.status, visible_text(answer.text)[-300:])
        is_page = answer.headers.get("Content-Type", "").startswith("text/html")
        if is_page and "<script>alert" in answer.text:
            wrong[route.name] = (answer.status, "a hostile name is not escaped")
    assert wrong == {}


async def test_every_chart_says_its_period_and_when_it_was_drawn(filled: FullBroker) -> None:
    for path, period in (
        ("/", "Last 1 h"), ("/?span=7d", "Last 7 d"), ("/queues/orders?tab=charts", "Last 1 h"),
        ("/history", "Last 1 h"), ("/history?span=30d", "Last 30 d"), ("/insights", "24 h up to"),
    ):  # fmt: skip
        if path == "/insights":
            assert (await filled.me.call("PUT", "/pipeline/insights", summary(NOW_MS))).status < 300
        text = (await filled.me.get(path)).text
        charts = re.findall(r'<figure class="chart".*?</figcaption>', text, re.DOTALL)
        assert (path, bool(charts)) == (path, True)
        for chart in charts:
            assert re.search(
                rf"{period}.*, generated at \d{{4}}-\d\d-\d\d \d\d:\d\d UTC", visible_text(chart)
            )


async def test_list_has_other_formats_at_the_same_address(filled: FullBroker) -> None:
    for path in (*LISTS, *API_LISTS):
        address = f"{path}{'&' if '?' in path else '?'}format="
        answer = await filled.me.get(f"{address}json")
        assert (path, answer.status) == (path, 200)
        assert answer.headers["Content-Type"].startswith("application/json")
        items = json.loads(answer.text)["items"]
        assert (path, bool(items)) == (path, True)
        answer = await filled.me.get(f"{address}jsonl")
        assert answer.headers["Content-Type"].startswith("application/x-ndjson")
        *lines, last = map(json.loads, answer.text.splitlines())
        assert (path, list(map(list, lines))) == (path, list(map(list, items)))
        assert (path, last["complete"], last["count"]) == (path, True, len(items))
        answer = await filled.me.get(f"{address}csv")
        assert answer.text.splitlines()[0].split(",") == list(items[0])
        assert answer.headers["Content-Disposition"].startswith("attachment")
        answer = await filled.me.get(f"{address}xml")
        assert (path, answer.status) == (path, 422)


async def test_bad_parameter_is_never_a_server_error(filled: FullBroker) -> None:
    """A route that accepts a whole round ignores these parameters or has processed each."""
    wrong = []
    for route in READING:
        path = filled.path(route)
        for bad in BAD_VALUES:
            values = [each for each in bad if route.name != STREAM or not each.startswith("ids")]
            status = (await filled.me.get(f"{path}?{'&'.join(values)}")).status
            if 400 <= status < 500:  # for one of them, so the others may not have been read
                statuses = [(await filled.me.get(f"{path}?{each}")).status for each in values]
                status = max(statuses)
            if status >= 500:
                wrong.append((route.name, bad, status))
    assert wrong == []


async def test_bad_path_parameter_is_never_a_server_error(filled: FullBroker) -> None:
    huge, arabic = "9" * 23, "%d9%a1"
    bad = ("%00", "~", "~~", ".%2f..", "-1", "0", huge, "%ff", arabic, "x" * 999)
    wrong = []
    for route in READING:
        if "{" not in route.path:
            continue
        for piece in bad:
            answer = await filled.me.get(re.sub(r"\{\w+\}", piece, route.path))
            if answer.status >= 500:
                wrong.append((route.name, piece, answer.status))
    assert wrong == []


async def test_reading_changes_nothing(filled: FullBroker) -> None:
    before = filled.home.tables(UNCOMPARED)
    rows = filled.home.rows("SELECT count(*) FROM audit")
    for _ in range(3):
        for route in [route for route in READING if route.audit is None]:
            for known in filled.message_ids:
                if "{id}" in route.path or known == filled.message_ids[0]:
                    await filled.me.get(filled.path(route, id=known))
    assert filled.home.tables(UNCOMPARED) == before
    assert filled.home.rows("SELECT count(*) FROM audit") == rows


async def test_hostile_name_is_itself_in_the_api_and_escaped_on_pages(filled: FullBroker) -> None:
    for name in HOSTILE:
        data = await filled.ok("GET", f"/queues/{encode_name(name)}")
        assert (data["name"], data["ready"]) == (name, 1)
        [item] = (await filled.ok("GET", f"/queues/{encode_name(name)}/messages"))["items"]
        assert item["queue"] == name
    for path in ("/", "/queues", "/messages?q=state:ready", "/publish"):
        text = (await filled.me.get(path)).text
        assert "<script>alert" not in text
        assert "\u202e" not in re.sub(r' value="[^"]*"', "", text)  # returned in forms, never shown


async def test_queue_page_leads_through_all_messages(tmp_path: Path) -> None:
    async with running_site(tmp_path) as site:
        published = await site.publish_many("orders", 120)
        path, seen = "/queues/orders", []
        while path:
            text = (await site.get(path)).text
            seen += re.findall(r'class="id" href="/messages/(\w+)', text)
            found = re.search(r'rel="next" href="([^"]+)"', text)
            path = found[1].replace("&amp;", "&") if found else ""
        assert seen == published


async def test_message_page_shows_the_consumer_and_the_return(tmp_path: Path) -> None:
    async with running_site(tmp_path) as site:
        [known] = await site.publish("orders", '{"order_id":1042}')
        async with site.client() as client, client.consume("orders", credit=1) as deliveries:
            await anext(deliveries)
            holder = (await site.ok("GET", "/clients"))["items"][0]
            text = ""
            while "Dispatched" not in text:  # it is sent before its event is stored
                text = (await site.get(f"/messages/{known}")).text
            assert holder["address"] in text
            await client.close()  # a consumer that only stops adds no event
        text = ""
        while "Returned to its position" not in text:
            text = (await site.get(f"/messages/{known}")).text


async def test_page_reports_a_damaged_or_removed_body(tmp_path: Path) -> None:
    async with running_site(tmp_path) as site:
        bad, gone = await site.publish("orders", "spoiled", "removed")
        spoil = "UPDATE body SET content = ? WHERE seq = ?"
        stored_rows(tmp_path, spoil, b"SPOILED", _seq(bad))
        stored_rows(tmp_path, "DELETE FROM body WHERE seq = ?", _seq(gone))
        assert "this body is damaged" in (await site.get(f"/messages/{bad}")).text
        assert "The body is no longer stored" in (await site.get(f"/messages/{gone}")).text
        assert (await site.get(f"/messages/{gone}/body")).status == 410


def _seq(message_id: str) -> int:
    return int(message_id[:16], 16)
