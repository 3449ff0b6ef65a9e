"""A form that is refused comes back with what was typed; one sent after a logout waits."""

import re
from html import unescape
from pathlib import Path

import pytest

from tests.support.http_site import HttpSite, running_site


def value_of(page: str, name: str) -> str | None:
    tag = re.search(rf'<input[^>]* name="{name}"[^>]*>', page)
    if tag is None:
        area = re.search(rf'<textarea[^>]* name="{name}"[^>]*>\n?(.*?)</textarea>', page, re.DOTALL)
        return None if area is None else unescape(area[1])
    if 'type="checkbox"' in tag[0]:
        return "yes" if " checked" in tag[0] else ""
    value = re.search(r' value="([^"]*)"', tag[0])
    return unescape(value[1]) if value else ""


def reason_beside(page: str, name: str) -> str:
    """Return why a field was refused."""
    found = re.search(rf'<p class="field-error" id="{name}-error">(.*?)</p>', page)
    return unescape(found[1]) if found else ""


CONFIRMATIONS = (
    ("/messages/{id}/move", {"target": "", "create": "yes"}, "target"),
    ("/messages/{id}/requeue", {"ttl": "-5", "ttl_unit": "h"}, "ttl"),
    ("/messages/{id}/requeue", {"ttl": "soon", "ttl_unit": "min"}, "ttl"),
    ("/messages/{id}/erase", {"confirm": "#99", "reason": "a <b>password</b>"}, "confirm"),
    ("/messages/{id}/erase", {"confirm": "#1", "reason": ""}, "reason"),
    ("/queues/orders/purge", {"confirm": "odrers", "limit": "7", "reason": "old"}, "confirm"),
    ("/queues/orders/purge", {"confirm": "orders", "limit": "0", "reason": "old"}, "limit"),
    ("/queues/orders/purge", {"confirm": "orders", "reason": "x" * 501}, "reason"),
    ("/queues/orders/remove", {"confirm": "order"}, "confirm"),
    ("/queues/orders/move", {"target": "x" * 300, "create": "yes", "reason": "r"}, "target"),
    ("/queues/orders/move", {"target": "mail", "limit": "all", "create": "yes"}, "limit"),
)


@pytest.mark.parametrize(("path", "typed", "field"), CONFIRMATIONS)
async def test_refused_confirmation_comes_back_with_what_was_typed(
    site: HttpSite, path: str, typed: dict[str, str], field: str
) -> None:
    ids = await site.publish("orders", "a")
    path = path.format(id=ids[0])
    refused = await site.post(path, typed, next="/queues?has=backlog")
    assert refused.status == 422
    shown = {name: value_of(refused.text, name) for name in typed if name != "ttl_unit"}
    assert shown == {name: text for name, text in typed.items() if name != "ttl_unit"}
    assert reason_beside(refused.text, field)
    assert value_of(refused.text, "next") == "/queues?has=backlog"
    if unit := typed.get("ttl_unit"):
        assert f'<option value="{unit}" selected>' in refused.text
    assert await site.contents("orders") == ["a"]


async def test_unknown_target_is_refused_beside_its_field(site: HttpSite) -> None:
    ids = await site.publish("orders", "a")
    refused = await site.post(f"/messages/{ids[0]}/move", target="nowhere", reason="")
    assert refused.status == 404
    assert value_of(refused.text, "target") == "nowhere"
    assert "nowhere" in reason_beside(refused.text, "target")
    done = await site.submit(f"/messages/{ids[0]}/move", target="nowhere", create="yes")
    assert done.status == 200


async def test_refusal_of_no_field_is_on_top_of_the_confirmation(site: HttpSite) -> None:
    ids = await site.publish("orders", "a")
    async with site.client() as client, client.consume("orders", credit=1) as consumer:
        await anext(consumer)
        refused = await site.post(f"/messages/{ids[0]}/move", target="orders")
    assert refused.status == 409
    assert value_of(refused.text, "target") == "orders"
    assert '<p class="inset bad" role="alert">' in refused.text


async def test_refused_selection_comes_back_with_what_was_typed(tmp_path: Path) -> None:
    async with running_site(tmp_path / "data", ui={"confirm_count": 2}) as site:
        await site.publish_many("orders", 3)
        made = await site.select("queue:orders")
        typed = {"action": "move", "target": "mail", "create": "yes", "confirm": "4"}
        path = f"/selections/{made['token']}/apply"
        refused = await site.post(path, typed, reason="a month old", next="/queues")
        assert refused.status == 422
        assert value_of(refused.text, "target") == "mail"
        assert value_of(refused.text, "create") == "yes"
        assert value_of(refused.text, "reason") == "a month old"
        assert reason_beside(refused.text, "confirm")
        await site.submit(path, typed | {"confirm": "3"})
        assert len(await site.contents("mail")) == 3


async def test_other_refused_form_shows_what_was_typed(site: HttpSite) -> None:
    ids = await site.publish("orders", "a", "b")
    fields = {"action": "move", "id": ids, "target": "no such <queue>", "next": "/queues"}
    refused = await site.post("/messages/act", fields)
    assert refused.status == 404
    assert value_of(refused.text, "target") == "no such <queue>"
    assert all(f'value="{one}"' in refused.text for one in ids)


async def test_form_of_a_broker_that_has_restarted_is_shown_again(site: HttpSite) -> None:
    fields = {"queue": "orders", "body": 'a "long"\ntext', "csrf": "0" * 64}
    refused = await site.post("/publish", fields)
    assert refused.status == 403
    assert value_of(refused.text, "body") == 'a "long"\ntext'
    assert value_of(refused.text, "csrf") not in ("", "0" * 64)


async def test_form_of_another_site_is_not_shown(site: HttpSite) -> None:
    data = {"queue": "orders", "content": "planted"}
    async with site._browser.post(
        site.url + "/publish", data=data, headers={"Origin": "https://evil.example"}
    ) as answer:
        assert answer.status in (401, 403)
        assert "planted" not in await answer.text()
