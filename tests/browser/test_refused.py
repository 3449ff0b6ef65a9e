"""What people typed is not lost: in dialogs that are refused, and when their login has ended."""

from typing import Any

import aiohttp
import pytest

from tests.browser.filled import PASSWORD, Site, log_in
from tests.browser.tabs import Browse

playwright = pytest.importorskip("playwright.async_api")
expect: Any = playwright.expect


async def call(site: Site, method: str, path: str, **fields: str) -> Any:
    """Call the API as the broker's administrator."""
    control = aiohttp.UnixConnector(path=str(site.running.data / "control.sock"))
    async with (
        aiohttp.ClientSession(connector=control, raise_for_status=True) as http,
        http.request(
            method,
            f"http://localhost/api/v1{path}",
            headers={"Origin": "http://localhost"},
            json=None if method == "GET" else fields,
        ) as answer,
    ):
        return (await answer.json())["items"] if method == "GET" else None


async def end_sessions(site: Site) -> None:
    for session in await call(site, "GET", "/sessions"):
        await call(site, "DELETE", f"/sessions/{session['id']}")


async def log_in_here(page: Any, name: str = "admin") -> None:
    await page.get_by_label("Name").fill(name)
    await page.get_by_label("Password", exact=True).fill(PASSWORD)
    await page.get_by_role("button", name="Log in").click()


@pytest.mark.parametrize("scripts", [True, False])
async def test_typo_in_a_dialog_keeps_the_dialog_and_what_was_typed(
    site: Site, browse: Browse, scripts: bool
) -> None:
    page = await browse(site.url("/queues/invoices"), scripts=scripts)
    await page.get_by_role("link", name="Purge…").click()
    box = page.locator("dialog[open] .confirm" if scripts else ".confirm")
    await box.get_by_label("Reason for the audit log").fill("older than a month")
    await box.get_by_label("Limit to the oldest").fill("3")
    await box.get_by_label("to confirm").fill("invioces")
    await box.get_by_role("button", name="Delete").click()
    await expect(box.locator("#confirm-error")).to_contain_text("invoices")
    await expect(box.get_by_label("Reason for the audit log")).to_have_value("older than a month")
    await expect(box.get_by_label("Limit to the oldest")).to_have_value("3")
    await expect(box.get_by_label("to confirm")).to_have_value("invioces")
    await box.get_by_label("to confirm").fill("invoices")
    await box.get_by_role("button", name="Delete").click()
    await expect(page.locator(".note")).to_contain_text("3 messages deleted")
    assert page.url == site.url("/queues/invoices")


@pytest.mark.parametrize("scripts", [True, False])
async def test_text_waits_for_the_next_login(guarded: Site, browse: Browse, scripts: bool) -> None:
    await call(guarded, "PUT", "/queues/orders")
    page = await browse(scripts=scripts)
    await log_in(page, guarded, "/publish")
    text = '{"order": 7,\n "note": "typed for ten minutes <b>"}'
    await page.locator("#queue").fill("orders")
    await page.locator("#body").fill(text)
    await end_sessions(guarded)
    await page.get_by_role("button", name="Publish", exact=True).click()
    await expect(page.get_by_text("What you typed is kept")).to_be_visible()
    await page.get_by_role("link", name="Log in").click()
    await log_in_here(page)
    await expect(page.locator("textarea")).to_have_value(text)
    assert [queue["ready"] for queue in await call(guarded, "GET", "/queues")] == [0]
    await page.get_by_role("button", name="Send").click()
    await expect(page.locator(".note")).to_be_visible()
    assert [queue["ready"] for queue in await call(guarded, "GET", "/queues")] == [1]


async def test_no_password_is_kept_for_the_next_login(guarded: Site, browse: Browse) -> None:
    page = await browse()
    await log_in(page, guarded, "/users")
    await page.locator("main form").last.get_by_label("Name").fill("berta")
    await page.locator("main input[type=password]").fill("a secret of berta")
    await end_sessions(guarded)
    await page.locator("main form button[type=submit]").last.click()
    await page.get_by_role("link", name="Log in").click()
    await log_in_here(page)
    await expect(page.locator(".kept input[name=name]")).to_have_value("berta")
    assert "a secret of berta" not in await page.content()


async def test_another_user_does_not_see_what_was_typed(guarded: Site, browse: Browse) -> None:
    await call(guarded, "POST", "/users", name="berta", password=PASSWORD, role="viewer")
    page = await browse()
    await log_in(page, guarded, "/publish")
    await page.locator("#queue").fill("orders")
    await page.locator("#body").fill("a secret of admin")
    await end_sessions(guarded)
    await page.get_by_role("button", name="Publish", exact=True).click()
    await page.get_by_role("link", name="Log in").click()
    await log_in_here(page, "berta")
    await expect(page.get_by_role("heading", name="Overview")).to_be_visible()
    await page.goto(guarded.url("/login"))
    assert "a secret of admin" not in await page.content()
