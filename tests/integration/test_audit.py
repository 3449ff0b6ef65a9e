"""Pages and retention of the audit log in a real database, and in a whole broker."""

import json
import re
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from phpmq_lite.admin.urls import encode_name
from phpmq_lite.storage.disk_space import measure_database
from phpmq_lite.storage.read import audit as audit_module
from phpmq_lite.storage.read.audit import AuditFilter, AuditLog
from phpmq_lite.storage.retention import RetentionBounds, remove_expired
from phpmq_lite.storage.sqlite.store import SqliteStore
from phpmq_lite.storage.statements import load
from tests.support.copied_readers import readers_of
from tests.support.http_site import HttpSite
from tests.unit.admin.cases import NOW_MS, Database

ANY = AuditFilter()
FOREVER = RetentionBounds(age_ms=10**15)


class Rows:
    def __init__(self, path: Path) -> None:
        self.database = Database(path)
        self.readers = readers_of(path)
        self.audit = AuditLog(self.readers)

    def add(self, count: int = 1, at_ms: int = NOW_MS, **changes: str) -> None:
        row = {
            "audit_id": None, "at_ms": at_ms, "actor": "anna", "source": "ui",
            "address": "10.0.0.7", "action": "queue.purge", "target": "orders", "number": 1,
            "reason": "", "detail": "", "result": "done", "request_id": "r",
        } | changes  # fmt: skip
        for _ in range(count):
            self.database.connection.execute(load("writes", "sqlite")["insert_audit"], row)

    async def ids(self, wanted: AuditFilter = ANY) -> list[int]:
        return [row.audit_id for row in (await self.audit.page(wanted)).rows]

    def trim(self, bounds: RetentionBounds) -> int:
        total = 0
        while removed := remove_expired(SqliteStore(self.database.connection), bounds, NOW_MS).rows:
            total += removed
        return total


@pytest.fixture
async def rows(tmp_path: Path) -> AsyncIterator[Rows]:
    made = Rows(tmp_path / "phpmq.db")
    yield made
    await made.readers.close()
    made.database.connection.close()


async def test_empty_audit_has_an_empty_page(rows: Rows) -> None:
    page = await rows.audit.page(ANY)
    assert (page.rows, page.has_more, page.searched_to) == ([], False, None)
    assert (await rows.audit.page(ANY, after=5)).rows == []


async def test_pages_go_down_and_up_without_a_gap(rows: Rows) -> None:
    rows.add(25)
    down, seen = await rows.audit.page(ANY, limit=10), []
    pages = [down]
    while down.has_more:
        down = await rows.audit.page(ANY, before=down.rows[-1].audit_id, limit=10)
        pages.append(down)
    seen = [row.audit_id for page in pages for row in page.rows]
    assert seen == list(range(25, 0, -1))
    up = await rows.audit.page(ANY, after=pages[2].rows[0].audit_id, limit=10)
    assert up == pages[1]
    assert not (await rows.audit.page(ANY, after=up.rows[0].audit_id, limit=10)).has_more


async def test_filter_by_each_column(rows: Rows) -> None:
    rows.add(actor="bert")
    rows.add(action="queue.pause")
    rows.add(action="queue")
    rows.add(action="queues.x")
    rows.add(result="paused")
    rows.add(result="running", target="mail")
    rows.add(at_ms=NOW_MS + 10)
    assert await rows.ids(AuditFilter(actor="bert")) == [1]
    assert await rows.ids(AuditFilter(action="queue.pause")) == [2]
    assert await rows.ids(AuditFilter(action="queue")) == [7, 6, 5, 3, 2, 1]
    assert await rows.ids(AuditFilter(result="refused")) == [5]
    assert await rows.ids(AuditFilter(result="running")) == [6]
    assert await rows.ids(AuditFilter(target="mail")) == [6]
    assert await rows.ids(AuditFilter(since=NOW_MS + 10)) == [7]
    assert await rows.ids(AuditFilter(upto=NOW_MS + 10, actor="bert")) == [1]


async def test_rare_row_among_many_is_found_across_slices(
    rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit_module, "_SLICE", 7)
    rows.add(actor="rare")
    rows.add(30)
    assert await rows.ids(AuditFilter(actor="rare")) == [1]
    up = await rows.audit.page(AuditFilter(actor="anna"), after=3, limit=20)
    assert [row.audit_id for row in up.rows] == list(range(23, 3, -1))


async def test_slow_search_returns_where_to_continue(
    rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit_module, "_SLICE", 10)
    rows.add(actor="rare")
    rows.add(30)
    clock = iter(range(0, 1_000, 2))
    audit = AuditLog(rows.readers, timer=lambda: float(next(clock)))
    rare = AuditFilter(actor="rare")
    page = await audit.page(rare)
    assert (page.rows, page.has_more) == ([], False)
    hops = 1
    while page.searched_to is not None:
        page = await audit.page(rare, before=page.searched_to)
        hops += 1
    assert ([row.audit_id for row in page.rows], hops) == ([1], 4)


async def test_newest_row_about_a_target(rows: Rows) -> None:
    rows.add(actor="bert")
    rows.add(actor="anna")
    rows.add(target="mail")
    newest = await rows.audit.last_of("orders")
    assert newest is not None
    assert (newest.audit_id, newest.actor) == (2, "anna")
    assert await rows.audit.last_of("nothing") is None


async def test_rows_leave_by_age_and_by_number_from_the_front(rows: Rows) -> None:
    rows.add(5, at_ms=NOW_MS - 1_001)
    rows.add(5, at_ms=NOW_MS - 1_000)
    assert rows.trim(RetentionBounds(age_ms=10**15, audit_age_ms=1_000)) == 5
    assert await rows.ids() == [10, 9, 8, 7, 6]
    assert rows.trim(RetentionBounds(age_ms=10**15, audit_rows=2)) == 3
    assert await rows.ids() == [10, 9]
    assert rows.trim(FOREVER) == 0


async def test_rows_of_strangers_do_not_push_out_others(rows: Rows) -> None:
    """They have a bound of their own, wherever they are; all have the one by age."""
    for _ in range(4):
        rows.add(3)
        rows.add(20, actor="nobody", result="login")
    bounds = RetentionBounds(age_ms=10**15, audit_rows=10, audit_refusals=5)
    assert rows.trim(bounds) == 77
    assert len(await rows.ids(AuditFilter(actor="anna"))) == 10
    assert await rows.ids(AuditFilter(actor="nobody")) == [92, 91, 90, 89, 88]
    rows.add(5, actor="nobody", result="login")
    assert rows.trim(bounds) == 5
    assert len(await rows.ids()) == 15
    assert (await measure_database(rows.readers)).audit_rows == 15
    assert rows.trim(RetentionBounds(age_ms=10**15, audit_age_ms=-1)) == 15


async def test_many_rows_leave_in_bounded_slices(rows: Rows) -> None:
    rows.database.connection.execute("BEGIN")
    rows.add(2_500, at_ms=0)
    rows.database.connection.execute("COMMIT")
    assert remove_expired(SqliteStore(rows.database.connection), FOREVER, NOW_MS) == (1_000, True)
    assert rows.trim(FOREVER) == 1_500


async def test_row_kept_by_a_wrong_clock_keeps_later_rows(rows: Rows) -> None:
    """Only the oldest rows are removed, so the numbers have no gaps, whatever the clock did."""
    rows.add(at_ms=NOW_MS)
    rows.add(at_ms=0)
    assert rows.trim(FOREVER) == 0


# -- the whole broker


async def test_change_and_refusal_leave_one_row_each(site: HttpSite) -> None:
    await site.publish("orders", "x")
    await site.ok("POST", "/queues/orders/purge")
    await site.api("POST", "/queues/nothing/purge")
    found = [
        (row["action"], row["target"], row["count"], row["result"], row["actor"], row["source"])
        for row in await site.audit()
    ]
    assert found == [
        ("queue.purge", "nothing", 0, "unknown_queue", "local", "http"),
        ("queue.purge", "orders", 1, "done", "local", "http"),
        ("message.publish", "orders", 1, "done", "local", "http"),
    ]
    refused = (await site.ok("GET", "/audit?result=refused"))["items"]
    assert [row["target"] for row in refused] == ["nothing"]


async def test_page_shows_settings_before_and_after(site: HttpSite) -> None:
    await site.publish("orders", "x")
    await site.ok("POST", "/queues/orders/pause", {"side": "delivery"})
    page = await site.get("/audit")
    assert page.status == 200
    assert re.search(r"delivery_paused</dt>.*false</del>.*true</ins>", page.text, flags=re.DOTALL)
    assert 'href="/queues/orders"' in page.text


async def test_hostile_names_are_shown_as_text(site: HttpSite) -> None:
    name = '<script>alert(1)</script>\u202e"'
    await site.api("POST", f"/queues/{encode_name(name)}/purge")
    text = (await site.get("/audit")).text
    assert "<script>alert" not in text
    assert "\u202e" not in text
    assert [row["target"] for row in await site.audit()] == [name]


async def test_list_has_every_format_and_continues_at_a_cursor(site: HttpSite) -> None:
    for _ in range(5):
        await site.api("POST", "/queues/nothing/purge")
    first = await site.ok("GET", "/audit?limit=3")
    second = await site.ok("GET", f"/audit?limit=3&cursor={first['next']}")
    ids = [item["audit_id"] for item in first["items"] + second["items"]]
    assert (ids, second["next"]) == ([5, 4, 3, 2, 1], None)
    exported = (await site.get("/audit?format=jsonl")).text.splitlines()
    assert json.loads(exported[-1]) == {"complete": True, "count": 5, "next": None}
    assert len((await site.get("/audit?format=csv")).text.splitlines()) == 6


async def test_reading_leaves_no_row(site: HttpSite) -> None:
    for path in ("/", "/queues", "/audit", "/system", "/metrics", "/api/v1/queues"):
        assert (path, (await site.get(path)).status) == (path, 200)
    assert await site.audit() == []
