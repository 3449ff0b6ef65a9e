"""Metrics of a real broker: they count what happens, and counters never decrease."""

import asyncio
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from tests.support.http_site import HttpSite, running_site
from tests.support.http_users import HttpUser
from tests.support.stores import ON_POSTGRES

Samples = dict[tuple[str, ...], float]


async def scrape(site: HttpSite) -> Samples:
    page = await site.get("/metrics")
    assert page.status == 200
    found: Samples = {}
    for family in text_string_to_metric_families(page.text):
        for sample in family.samples:
            key = (sample.name, *(value for _, value in sorted(sample.labels.items())))
            assert key not in found, key
            found[key] = sample.value
    return found


async def test_metrics_count_what_happens(site: HttpSite) -> None:
    await site.ok("POST", "/queues/orders/messages", [{"content": "a"}] * 3)
    async with site.client() as client:
        for key in (b"one", b"two", b"two"):
            await client.publish_confirmed("orders", b"x", key=key)
        async with client.consume("orders", 1) as deliveries:
            (await anext(deliveries)).ack()
            (await anext(deliveries)).dead_letter()
    await site.ok("POST", "/queues/orders/purge")
    found = await scrape(site)
    expected = {
        ("phpmq_messages_published_total", "orders", "http"): 3,
        ("phpmq_messages_published_total", "orders", "tcp"): 2,
        ("phpmq_publishes_deduplicated_total", "orders"): 1,
        ("phpmq_messages_acked_total", "orders"): 1,
        ("phpmq_messages_dead_total", "orders", "client"): 1,
        ("phpmq_messages_deleted_total", "orders"): 3,
        ("phpmq_queue_dead_letters", "orders"): 1,
        ("phpmq_queue_messages", "orders", "ready"): 0,
        ("phpmq_clients_opened_total",): 1,
        ("phpmq_audit_rows_total", "queue.purge"): 1,
        ("phpmq_audit_rows_total", "message.publish"): 1,
        ("phpmq_wait_seconds_count", "orders"): found["phpmq_messages_dispatched_total", "orders"],
        ("phpmq_hold_seconds_count", "orders"): 2,
        ("phpmq_http_requests_total", "POST", "api-purge", "200"): 1,
        ("phpmq_ready",): 1,
    }
    assert {key: found.get(key) for key in expected} == expected
    assert found["phpmq_commit_seconds_count",] >= 5
    assert found["phpmq_commit_seconds_sum",] > 0
    assert found["phpmq_db_bytes", "database"] > 0
    assert ON_POSTGRES or found["phpmq_disk_free_bytes",] > 0
    assert found["phpmq_history_rows",] == 5


async def test_counters_do_not_decrease_when_queue_and_client_leave(tmp_path: Path) -> None:
    async with running_site(tmp_path / "data", metrics={"max_queues": 2}) as site:
        async with site.client() as client:
            for queue in ("a", "b", "c", "d"):
                await client.publish_confirmed(queue, b"x")
        before = await scrape(site)
        assert ("phpmq_messages_published_total", "~other", "tcp") in before
        for queue in ("a", "c"):
            await site.ok("POST", f"/queues/{queue}/purge")
            await site.ok("DELETE", f"/queues/{queue}")
        after = await scrape(site)
    decreased = {
        key: (count, after.get(key))
        for key, count in before.items()
        if key[0].endswith(("_total", "_bucket", "_count")) and after.get(key, -1) < count
    }
    assert decreased == {}


async def test_label_of_a_removed_queue_is_replaced(tmp_path: Path) -> None:
    async with running_site(tmp_path / "data", metrics={"max_queues": 1}) as site:
        await site.ok("POST", "/queues/a/messages", {"content": "x"})
        await scrape(site)
        await site.ok("POST", "/queues/a/purge")
        await site.ok("DELETE", "/queues/a")
        await scrape(site)
        await site.ok("POST", "/queues/b/messages", {"content": "x"})
        found = await scrape(site)
    labels = {key[1] for key in found if key[0] == "phpmq_messages_acked_total"}
    assert labels == {"b"}


async def test_concurrent_scrapes_agree(site: HttpSite) -> None:
    for queue in "abc":
        await site.ok("POST", f"/queues/{queue}/messages", {"content": "x"})
    first, second = await asyncio.gather(scrape(site), scrape(site))
    name = "phpmq_messages_published_total"
    assert {key: value for key, value in first.items() if key[0] == name} == {
        key: value for key, value in second.items() if key[0] == name
    }


async def test_format_does_not_depend_on_the_accept_header(site: HttpSite) -> None:
    async with HttpUser(site.url) as scraper:
        for accepted in ("application/openmetrics-text", "text/plain", "*/*"):
            response = await scraper.get("/metrics", Accept=accepted)
            assert response.headers["Content-Type"].startswith("text/plain; version=0.0.4")
