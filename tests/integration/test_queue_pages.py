"""The pages of queues on a real broker: overview, list, the parts of a queue, its settings."""

import re
from collections.abc import AsyncIterator
from html import unescape
from pathlib import Path

import pytest

from phpmq_lite.admin.base.urls import encode_name
from tests.support.http_site import HttpSite, error_of, running_site
from tests.unit.admin.cases import HOSTILE

TABS = ("", "dead", "history", "consumers", "charts", "settings")


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[HttpSite]:
    async with running_site(tmp_path) as made:
        yield made


def settings(page_text: str) -> dict[str, str]:
    """Give what stands in the fields of the form of settings."""
    fields = dict(re.findall(r'<input id="set-\w+" name="(\w+)" value="([^"]*)"', page_text))
    fields |= dict(re.findall(r'<textarea[^>]* name="(\w+)"[^>]*>\n?([^<]*)</textarea>', page_text))
    chosen = re.findall(
        r'<select[^>]* name="(\w+)".*?<option value="(\w+)" selected', page_text, flags=re.S
    )
    return {name: unescape(value) for name, value in fields.items()} | dict(chosen)


async def test_overview_of_an_empty_broker_has_the_first_steps(site: HttpSite) -> None:
    page = await site.get("/")
    assert page.status == 200
    assert "Send a test message" in page.text
    assert f"tcp://127.0.0.1:{site.broker.port}" in page.text
    assert f"{site.url}/api/v1/queues/orders/messages" in page.text


async def test_overview_says_what_needs_attention_and_leads_there(site: HttpSite) -> None:
    await site.publish_many("orders", 3)
    page = await site.get("/")
    assert "3 ready and no consumer" in page.text
    assert "Needs attention" in page.text
    await site.publish("mail", "soon", ttl_s=60)
    page = await site.get("/?span=24h")
    assert "1 message expires within 10 minutes without a consumer" in page.text


async def test_overview_is_calm_when_all_is_well(site: HttpSite) -> None:
    await site.publish_many("orders.dlq", 3)
    assert "Needs attention" not in (await site.get("/")).text


@pytest.mark.parametrize("span", ["1h", "24h", "7d", "30d"])
async def test_charts_show_each_span(site: HttpSite, span: str) -> None:
    await site.publish_many("orders", 3)
    await site.broker.service.sampler.sample()
    page = await site.get(f"/queues/orders?tab=charts&span={span}")
    assert page.status == 200, error_of(page.text)
    assert page.text.count('<svg class="plot"') >= 2
    assert (await site.get(f"/?span={span}")).text.count('<svg class="plot"') == 2


@pytest.mark.parametrize("name", HOSTILE)
async def test_parts_of_a_queue_stand_whatever_its_name(site: HttpSite, name: str) -> None:
    await site.publish_many(name, 2)
    for tab in TABS:
        page = await site.get(f"/queues/{encode_name(name)}?tab={tab}")
        assert page.status == 200, (tab, error_of(page.text))
        assert "<script>alert" not in page.text
    assert (await site.get("/queues?sort=name")).status == 200


async def test_list_shows_what_matches_and_how_to_see_more(site: HttpSite) -> None:
    for name in ("orders.eu", "orders.us", "mail"):
        await site.publish_many(name, 1)
    page = await site.get("/queues?q=orders.*&has=backlog")
    assert "orders.</span>us" in page.text
    assert ">mail<" not in page.text
    page = await site.get("/queues?q=zzz&has=paused")
    assert "No queue matches" in page.text
    assert 'href="/queues?has=paused"' in page.text


async def test_consumers_are_told_with_what_they_hold(site: HttpSite) -> None:
    await site.publish_many("orders", 3)
    async with site.client() as client, client.consume("orders", credit=2) as deliveries:
        await anext(deliveries)
        page = await site.get("/queues/orders?tab=consumers")
    assert 'data-label="Holds"><span>2</span>' in page.text
    assert re.search(r">Client \d+<", page.text)


async def test_what_spark_holds_is_listed_with_the_consumers(site: HttpSite) -> None:
    await site.publish_many("orders", 3)
    await site.publish_many("mail", 1)
    for name, queue, count in (("etl", "orders", 2), ("other", "mail", 1)):
        asked = {"subscription": name, "queue": queue, "max_messages": count}
        await site.ok("POST", "/pipeline/claims/claim", asked)
    page = (await site.get("/queues/orders?tab=consumers")).text
    assert "Held by Spark" in page
    assert 'data-label="Holds"><span>2</span>' in page
    assert re.search(r'data-label="Oldest held"><time', page)
    assert "other" not in page.partition("Held by Spark")[2].partition("</table>")[0]
    link = re.search(r'href="(/insights\?[^"]*release=etl[^"]*)"', page)
    assert link is not None
    asking = (await site.get(unescape(link[1]))).text
    assert "/queues/orders?tab=consumers" in unescape(asking)
    done = await site.post("/insights/release", {
        "subscription": "etl", "next": "/queues/orders?tab=consumers",
    })  # fmt: skip
    assert (done.status, done.location) == (303, "/queues/orders?tab=consumers")
    page = (await site.get("/queues/orders?tab=consumers")).text
    assert 'data-label="Holds"><span class="zero">0</span>' in page
    assert "release=etl" not in page


# -- settings


async def change(site: HttpSite, queue: str, **fields: str) -> tuple[int, str]:
    """Save the form with some fields changed; gives the status and what the person sees."""
    path = f"/queues/{encode_name(queue)}"
    now = settings((await site.get(f"{path}?tab=settings")).text)
    now.pop("pinned", None)
    done = await site.post(f"{path}/settings", now | fields)
    if done.status == 303:
        assert done.location is not None
        return 303, (await site.get(done.location)).text
    return done.status, done.text


async def test_settings_are_saved_and_shown_with_their_defaults(site: HttpSite) -> None:
    await site.publish_many("orders", 1)
    status, text = await change(
        site, "orders", note="mind the gap", max_deliveries="5", on_expire="forward",
        forward_to="late", pinned="yes",
    )  # fmt: skip
    assert status == 303
    assert "Saved: note, when a message expires, deliveries, pinned." in unescape(text)
    assert "Default: 20." in text
    data = await site.ok("GET", "/queues/orders")
    told = {key: data["settings"][key] for key in ("note", "max_deliveries", "on_expire", "pinned")}
    assert told == {"note": "mind the gap", "max_deliveries": 5, "on_expire": "forward:late",
                    "pinned": True}  # fmt: skip
    [row] = await site.audit("queue.configure")
    assert (row["target"], row["result"]) == ("orders", "done")


async def test_setting_goes_back_to_its_default(site: HttpSite) -> None:
    await site.publish_many("orders", 1)
    await change(site, "orders", max_deliveries="5", owner="anna")
    done = await site.post("/queues/orders/settings", reset="max_deliveries")
    assert done.status == 303
    data = await site.ok("GET", "/queues/orders")
    assert (data["settings"]["max_deliveries"], data["settings"]["owner"]) == (20, "anna")


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("max_deliveries", "many", "It must be an integer"),
        ("max_deliveries", "99999999999999999", "Must be a number from 0 to"),
        ("link", "javascript:alert(1)", "Must begin with https:// or http://"),
    ],
)
async def test_wrong_setting_keeps_the_form_and_says_what_is_possible(
    site: HttpSite, field: str, value: str, said: str
) -> None:
    await site.publish_many("orders", 1)
    status, text = await change(site, "orders", note="kept as typed", **{field: value})
    assert status == 422
    assert said in unescape(text)
    assert settings(text)["note"] == "kept as typed"
    assert settings(text)[field] == value
    assert (await site.ok("GET", "/queues/orders"))["settings"]["note"] == ""
    assert len(await site.audit("queue.configure")) == 1


async def test_live_figures_come_for_the_rows_on_show(site: HttpSite) -> None:
    await site.publish_many("orders", 3)
    await site.publish_many("mail", 2)
    for topic, key in (("overview", "total.ready"), ("queues", "1.ready"), ("queue:orders", "")):
        data = await site.ok("GET", f"/live?topic={topic}&ids=1,99")
        assert data["shown"]["1.ready"] == "3"
        assert key == "" or key in data["shown"]
        assert "2.ready" not in data["shown"]
        assert data["new"] == (0 if topic == "queue:orders" else 1)
