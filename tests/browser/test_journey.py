"""The work of operators in Chromium: publish, find, move, delete, undo, redrive."""

import re
from typing import Any

import aiohttp
import pytest

from tests.browser.filled import Site, log_in
from tests.browser.tabs import Browse

playwright = pytest.importorskip("playwright.async_api")
expect: Any = playwright.expect


async def publish(page: Any, site: Site, queue: str, body: str, count: int = 1) -> None:
    await page.goto(site.url("/publish"))
    await page.get_by_label("Queue", exact=True).fill(queue)
    await page.get_by_label("Body", exact=True).fill(body)
    await page.get_by_label("Number of copies").fill(str(count))
    await page.get_by_role("button", name="Publish", exact=True).click()
    is_new = page.get_by_label("Create this queue")
    await page.locator(".note").or_(is_new).wait_for()
    if await is_new.count():
        await is_new.check()
        await page.get_by_role("button", name="Publish", exact=True).click()
        await page.locator(".note").wait_for()


async def bodies(site: Site, queue: str) -> list[str]:
    async with aiohttp.ClientSession() as http:
        path = f"/api/v1/queues/{queue}/messages"
        async with http.get(site.url(path)) as answer:
            return [row["preview"] for row in (await answer.json())["items"]]


async def undo(page: Any) -> None:
    await page.locator(".note").get_by_role("button", name="Undo").click()
    await page.locator(".note").wait_for()


async def test_message_is_published_found_and_requeued(empty_site: Site, browse: Browse) -> None:
    page = await browse()
    await publish(page, empty_site, "orders", '{"order_id": 1}')
    await publish(page, empty_site, "orders", '{"order_id": 2}')
    await page.locator("input[name=q]").first.fill("queue:orders data.order_id:1")
    await page.keyboard.press("Enter")
    await page.locator("a.id").first.click()
    await expect(page.get_by_role("heading", name=re.compile("Message"))).to_be_visible()
    await page.get_by_role("button", name="Requeue").click()
    assert await bodies(empty_site, "orders") == ['{"order_id": 2}', '{"order_id": 1}']
    await undo(page)
    assert await bodies(empty_site, "orders") == ['{"order_id": 1}', '{"order_id": 2}']


async def test_message_is_moved_and_moved_back(empty_site: Site, browse: Browse) -> None:
    page = await browse()
    await publish(page, empty_site, "orders", '"first"')
    await page.goto(empty_site.url("/queues/orders"))
    await page.locator("a.id").first.click()
    await page.get_by_role("link", name="Move…").click()
    dialog = page.locator("dialog[open]")
    await dialog.get_by_label("Queue").first.fill("mail")
    await dialog.get_by_text("Create the queue").click()
    await dialog.get_by_role("button", name=re.compile("Move")).click()
    await page.locator(".note").wait_for()
    assert await bodies(empty_site, "mail") == ['"first"']
    await undo(page)
    assert await bodies(empty_site, "orders") == ['"first"']


@pytest.mark.parametrize(("action", "target"), [("Move", "invoices"), ("Delete", "")])
async def test_head_that_blocks_its_group_is_delivered_put_off_and_taken_away(
    site: Site, browse: Browse, action: str, target: str
) -> None:
    page = await browse(site.url("/queues/reminders"))
    head = page.locator("section[aria-labelledby=heads-title] tbody tr")
    states = page.locator("section[aria-label=Messages] tbody .state")
    dialog = page.locator("dialog[open]")
    await expect(states).to_have_text(["blocked"] * 2)
    await head.get_by_role("button", name="Deliver now").click()
    await expect(states).to_have_text(["ready", "blocked", "blocked"])
    await undo(page)
    await expect(head).to_contain_text("ready in 59 min")
    await head.locator("a.id").click()
    await page.get_by_role("link", name="Change time…").click()
    await dialog.get_by_label("Deliver after").fill("2")
    await dialog.get_by_label("Unit").first.select_option("d")
    await dialog.get_by_role("button", name="Change time of message").click()
    await expect(page.get_by_text("in 1 d 23 h").first).to_be_visible()
    await undo(page)
    await expect(page.get_by_text("in 59 min").first).to_be_visible()
    await page.goto(site.url("/queues/reminders"))
    await head.get_by_role("link", name=f"{action}…").click()
    if target:
        await dialog.get_by_label("Queue").first.fill(target)
    await dialog.get_by_role("button", name=re.compile(action)).click()
    await expect(states).to_have_text(["ready", "blocked"])
    await expect(head).to_have_count(0)
    await undo(page)
    await expect(page.get_by_role("link", name="Scheduled 3")).to_be_visible()


async def test_matching_messages_are_deleted_without_later_arrivals_and_restored(
    empty_site: Site, browse: Browse
) -> None:
    page = await browse()
    await publish(page, empty_site, "orders", '{"n": {{n}}}', 30)
    await page.goto(empty_site.url("/messages?q=queue:orders"))
    await page.get_by_role("button", name=re.compile("Act on all")).click()
    await page.get_by_role("link", name="Delete", exact=True).click()
    client = await empty_site.connect()
    await client.publish_confirmed("orders", b"later")
    await page.get_by_role("button", name="Delete 30 messages").click()
    await expect(page.locator(".note")).to_contain_text("30 messages")
    assert await bodies(empty_site, "orders") == ["later"]
    await undo(page)
    assert len(await bodies(empty_site, "orders")) == 31
    assert (await bodies(empty_site, "orders"))[-1] == "later"  # the others keep their old places


async def test_dead_letters_are_found_by_cause_and_redriven(site: Site, browse: Browse) -> None:
    page = await browse(site.url("/dead"))
    await expect(page.get_by_text("orders").first).to_be_visible()
    before = len(await bodies(site, "orders"))
    row = page.get_by_role("row").filter(has=page.get_by_role("link", name="orders", exact=True))
    await row.first.get_by_role("button", name=re.compile("Redrive")).click()
    await page.get_by_role("button", name=re.compile(r"^Redrive 3")).click()
    await expect(page.get_by_text(re.compile("Done|redriven")).first).to_be_visible()
    assert await bodies(site, "orders.dlq") == []
    assert len(await bodies(site, "orders")) == min(50, before + 3)


async def test_token_is_made_shown_once_used_and_revoked(guarded: Site, browse: Browse) -> None:
    page = await browse()
    await log_in(page, guarded, "/tokens")
    await page.get_by_label("Name").fill("ci")
    await page.get_by_role("button", name="Create token").click()
    token = await page.locator("#made").inner_text()
    await page.goto(guarded.url("/tokens"))
    await expect(page.locator("#made")).to_have_count(0)

    async def status() -> int:
        headers = {"Authorization": f"Bearer {token}"}
        async with (
            aiohttp.ClientSession(headers=headers) as http,
            http.get(guarded.url("/api/v1/queues")) as answer,
        ):
            return answer.status

    assert await status() == 200
    await page.get_by_role("button", name=re.compile("Revoke|Remove")).first.click()
    await page.wait_for_load_state()
    assert await status() == 401
