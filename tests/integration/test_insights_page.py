"""The Insights page of a real broker: summaries of any kind, claims and readers."""

import asyncio
import json
import re
import time
from html import unescape
from pathlib import Path
from typing import Any

from tests.support.http_site import HttpSite, running_site
from tests.support.http_users import HttpUser, broker_fixture
from tests.unit.admin.pipeline.cases import as_bytes, summary

TABS = ("charts", "queues", "urns", "dead", "expired", "paths", "jobs", "claims", "readers")
DAY_MS = 86_400_000


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def text_of(page: str) -> str:
    main = page.partition("<main")[2].partition("</main>")[0]
    return re.sub(r"\s+", " ", unescape(re.sub(r"<[^>]+>", " ", main)))


def attention_of(page: str) -> str:
    """Return the text of the notices on the overview."""
    return text_of("<main" + page.partition("attention-title")[2].partition("</section>")[0])


async def put_summary(site: HttpSite, **changes: Any) -> None:
    history = (await site.ok("GET", "/pipeline/history/bounds"))["history_id"]
    made = summary(changes.pop("at_ms", now_ms()), changes.pop("history_id", history), **changes)
    for figures in ("last24h", "last30d"):
        made[figures] = made[figures][:40]  # storing all of them takes 0.1 s
    await site.ok("PUT", "/pipeline/insights", made)


async def claim(site: HttpSite, name: str, queue: str, count: int) -> None:
    asked = {"subscription": name, "queue": queue, "max_messages": count}
    await site.ok("POST", "/pipeline/claims/claim", asked)


async def test_older_days_without_a_summary_show_the_command_to_run(site: HttpSite) -> None:
    for path in ("/insights?span=30d", "/insights?tab=urns", "/insights?tab=jobs"):
        page = (await site.get(path)).text
        assert "The pipeline has not run yet" in page
        assert f"phpmq-lite pipeline run --url {site.url}</code>" in page
        assert 'data-copy="#snippet-run"' in page
    for tab in TABS[:-2]:
        page = (await site.get(f"/insights?tab={tab}&format=json")).text
        assert json.loads(page) == {"items": [], "next": None}


async def test_every_tab_is_shown_and_has_other_formats(site: HttpSite) -> None:
    await put_summary(site)
    await site.publish_many("orders", 2)
    await claim(site, "s", "orders", 1)
    await site.ok("POST", "/pipeline/history/bounds", {"reader": "archive", "position": 0})
    for tab in TABS:
        path = f"/insights?tab={tab}&span=30d"
        page = await site.get(path)
        assert (tab, page.status) == (tab, 200)
        assert "<script>alert" not in page.text
        items = json.loads((await site.get(f"{path}&format=json")).text)["items"]
        assert (tab, bool(items)) == (tab, True)
        lines = (await site.get(f"{path}&format=csv")).text.splitlines()
        assert (tab, lines[0].split(",")) == (tab, list(items[0]))
        last = (await site.get(f"{path}&format=jsonl")).text.splitlines()[-1]
        assert json.loads(last)["count"] == len(items)


async def test_chart_has_its_numbers_as_a_table(site: HttpSite) -> None:
    hour = now_ms() // 3_600_000 * 3_600_000
    await put_summary(site, last30d=[
        {"hour": hour, "queue": "orders", "published": 4_321, "acked": 7},
        {"hour": hour, "queue": "mail", "published": 1, "wait_p95": 90},
    ])  # fmt: skip
    page = text_of((await site.get("/insights?span=30d")).text)
    assert "Published 4,322" in page
    assert "4,322" in page.partition("Chart data")[2]
    assert "Live messages are not included" in page
    page = text_of((await site.get("/insights?span=30d&queue=orders")).text)
    assert "Published 4,321" in page
    assert "90 ms" not in page


async def test_state_and_lag_of_jobs_are_shown(site: HttpSite) -> None:
    await site.publish_many("orders", 3)
    await site.ok("POST", "/queues/orders/purge", {})
    job = {"name": "archive", "state": "failed", "offset": 1, "error": "<b>disk</b>"}
    await put_summary(site, jobs=[job], archive={"offset": 1, "rows": 1})
    page = await site.get("/insights?tab=jobs")
    said = text_of(page.text)
    assert "archive failed : <b>disk</b>" in said
    assert "Current lag 2" in said
    assert "<b>disk" not in page.text


async def test_accepted_gaps_are_shown(site: HttpSite) -> None:
    await put_summary(site)
    said = text_of((await site.get("/insights?span=30d")).text)
    assert "Messages are missing from the archive. Retention removed up to 65 messages" in said
    assert "Each gap was accepted, most recently" in said
    assert "(offsets 11 to 70)" in said
    said = text_of((await site.get("/insights?tab=jobs")).text)
    assert "11 to 70 60" in said
    assert "5 to 9 up to 5" in said
    await put_summary(site, gaps=[], archive={"offset": 10, "rows": 1})
    assert "are missing" not in text_of((await site.get("/insights?span=30d")).text)


async def test_old_summary_is_marked_with_the_command_to_renew_it(site: HttpSite) -> None:
    await put_summary(site, at_ms=now_ms() - 2 * DAY_MS)
    page = text_of((await site.get("/insights?span=30d")).text)
    assert "These figures were computed 2 d ago" in page
    assert "phpmq-lite pipeline run" in page
    assert "These figures were computed" not in text_of((await site.get("/insights")).text)
    await put_summary(site)
    page = text_of((await site.get("/insights?span=30d")).text)
    assert "These figures were computed" not in page


async def test_missing_figures_are_shown_as_unknown(site: HttpSite) -> None:
    lag, archive = {"offset": None, "rows": None}, {"offset": None, "rows": 0}
    await put_summary(site, lag=lag, archive=archive)
    page = text_of((await site.get("/insights?span=30d")).text)
    for name in ("Current lag", "Lag at last run", "Archived up to offset"):
        assert f"{name} –" in page


async def test_summary_of_another_history_is_marked_and_has_no_lag(site: HttpSite) -> None:
    await put_summary(site, history_id="f" * 32)
    page = text_of((await site.get("/insights?tab=jobs")).text)
    assert "These figures do not belong to the current history" in page
    assert "Current lag –" in page


async def test_invalid_summary_is_an_error_with_its_reason(site: HttpSite) -> None:
    for raw in (b"{", b'{"version": 9}', b"\xff", b"x" * 3_000_000):
        await put_summary(site)
        assert "cannot be used" not in (await site.get("/insights")).text
        (site.broker.data / "pipeline" / "summary.json").write_bytes(raw)
        page = await site.get("/insights?span=30d")
        assert (raw[:20], page.status) == (raw[:20], 200)
        assert "The summary cannot be used." in page.text
        assert "Run the pipeline again" in page.text
        assert (await site.get("/insights?span=30d&format=json")).status == 503
        page = await site.get("/insights")
        assert "The summary cannot be used." in page.text
        assert "Run the pipeline again" not in page.text
        assert (await site.get("/insights?format=json")).status == 200
        assert (await site.get("/insights?tab=claims")).status == 200
    await put_summary(site)
    assert "cannot be used" not in (await site.get("/insights")).text


async def test_claims_are_listed_and_released_with_a_confirmation(site: HttpSite) -> None:
    await site.publish_many("orders", 5)
    await claim(site, "nightly", "orders", 3)
    page = await site.get("/insights?tab=claims")
    assert "Release…" in page.text
    asked = await site.get("/insights?release=nightly")
    assert "Release 3 claims of" in text_of(asked.text)
    fields = asked.fields("/insights/release")
    done = await site.submit("/insights/release", fields, reason="the query is gone")
    assert "3 messages returned to the queue; nightly no longer holds" in text_of(done.text)
    assert await site.contents("orders") == ["m0", "m1", "m2", "m3", "m4"]
    [row] = await site.audit("claims.release")
    assert (row["target"], row["count"], row["reason"], row["result"]) == (
        "nightly", 3, "the query is gone", "done",
    )  # fmt: skip


async def test_claims_need_no_attention(site: HttpSite) -> None:
    await site.publish_many("orders", 3)
    await claim(site, "spark", "orders", 1)
    assert "orders" not in attention_of((await site.get("/")).text)
    await site.ok("POST", "/pipeline/claims/release", {"subscription": "spark"})
    assert "3 ready messages and no consumer" in attention_of((await site.get("/")).text)


async def test_forgotten_subscription_is_not_listed(site: HttpSite) -> None:
    await site.publish_many("orders", 1)
    await claim(site, "nightly", "orders", 1)
    await site.submit("/insights/release", {"subscription": "nightly", "forget": "yes"})
    assert "No claims" in (await site.get("/insights?tab=claims")).text


async def test_release_in_production_asks_for_the_name(tmp_path: Path) -> None:
    async with running_site(tmp_path / "data", ui={"environment": "production"}) as site:
        await site.publish_many("orders", 2)
        await claim(site, "nightly", "orders", 2)
        assert (
            'name="confirm" value="" required' in (await site.get("/insights?release=nightly")).text
        )
        refused = await site.post("/insights/release", subscription="nightly", confirm="orders")
        assert refused.status == 422
        assert await site.ready("orders") == 0
        await site.submit("/insights/release", subscription="nightly", confirm="nightly")
        assert await site.ready("orders") == 2


async def test_unknown_subscription_is_not_found(site: HttpSite) -> None:
    assert (await site.get("/insights?release=nope")).status == 404
    assert (await site.post("/insights/release", subscription="nope")).status == 404


async def test_reader_is_shown_with_its_lag(site: HttpSite) -> None:
    await site.publish("orders", *("x" * size for size in (1, 20, 300, 4_000)))
    await site.ok("POST", "/queues/orders/purge", {})
    for name, position in (("archive", 1), ("done", 4)):
        await site.ok("POST", "/pipeline/history/bounds", {"reader": name, "position": position})
    items = json.loads((await site.get("/insights?tab=readers&format=json")).text)["items"]
    assert [(row["reader"], row["behind"], row["bound"]) for row in items] == [
        ("archive", 3, "days"), ("done", 0, None),
    ]  # fmt: skip
    week = items[0]["reached_at"] - now_ms()
    assert 6.9 * DAY_MS < week <= 7 * DAY_MS
    assert (items[0]["behind_bytes"], items[1]["behind_bytes"]) == (4_320, 0)
    assert (items[0]["is_stopped"], items[1]["lag_s"], items[1]["reached_in_s"]) == (
        False, None, None,
    )  # fmt: skip
    listed = (await site.ok("GET", "/pipeline/history/readers"))["items"]
    assert [row["offset"] for row in listed] == [1, 4]
    page = text_of((await site.get("/insights?tab=readers")).text)
    assert "by history.days" in page
    assert "4.2 KiB" in page
    assert "up to date" in page
    metrics = (await site.get("/metrics")).text
    for reader, rows, size in (("archive", 3, 4_320), ("done", 0, 0)):
        assert f'phpmq_history_reader_behind_rows{{reader="{reader}"}} {rows}.0' in metrics
        assert f'phpmq_history_reader_behind_bytes{{reader="{reader}"}} {size}.0' in metrics
    assert attention_of(await site.text("/")) == ""


async def test_reader_that_retention_overtook_needs_attention(tmp_path: Path) -> None:
    async with running_site(tmp_path / "data", history={"rows": 4}) as site:
        await site.ok("POST", "/pipeline/history/bounds", {"reader": "archive", "position": 0})
        await site.publish_many("orders", 8)
        await site.ok("POST", "/queues/orders/purge", {})
        async with asyncio.timeout(30):
            while (await site.ok("GET", "/pipeline/history/bounds"))["lo_deleted"] == 0:
                pass  # each request waits for its response, so this does not spin
        [row] = (await site.ok("GET", "/pipeline/history/readers"))["items"]
        assert (row["is_reached"], row["reached_in_s"]) == (True, 0)
        told = attention_of(await site.text("/"))
        text = "8 unread messages of the history; retention has removed some of them"
        assert f"Reader archive {text}" in told
        metrics = (await site.get("/metrics")).text
        assert 'phpmq_history_reader_retention_seconds{reader="archive"} 0.0' in metrics
        assert "/insights?tab=readers" in await site.text("/")


async def test_viewer_of_some_queues_sees_only_those_and_no_button(tmp_path: Path) -> None:
    async with broker_fixture(tmp_path / "data") as home:
        for queue in ("orders", "mail"):
            await home.control("POST", f"/queues/{queue}/messages", {"content": "x"})
            asked = {"subscription": f"of-{queue}", "queue": queue, "max_messages": 1}
            await home.control("POST", "/pipeline/claims/claim", asked)
        (home.data / "pipeline").mkdir()
        (home.data / "pipeline" / "summary.json").write_bytes(as_bytes(summary(now_ms())))
        await home.add_user("anna")
        secret = await home.token("narrow", "viewer", "orders*")
        async with HttpUser(home.url, secret) as viewer:
            for tab in TABS:
                text = (await viewer.get(f"/insights?tab={tab}")).text
                assert (tab, "shop.cart" in text, "of-mail" in text) == (tab, False, False)
            text = (await viewer.get("/insights?tab=claims")).text
            assert ("of-orders" in text, "Release…" in text) == (True, False)
            assert (await viewer.get("/insights?release=of-orders")).status == 403
        secret = await home.token("narrow-operator", "operator", "orders*")
        async with HttpUser(home.url, secret) as operator:
            assert (await operator.get("/insights?release=of-mail")).status == 403
            assert (await operator.get("/insights?release=of-orders")).status == 200
