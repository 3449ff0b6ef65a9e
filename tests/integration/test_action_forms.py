"""The buttons and forms of the pages, used without scripts, on a real broker."""

import re
from html import unescape
from pathlib import Path

from phpmq_lite.admin.urls import encode_name
from tests.support.http_site import HttpSite, error_of, note_of, running_site

HOSTILE = '../<script>alert(1)</script>"\u00e9'


# -- one message


async def test_message_is_requeued_and_back_on_the_page_it_came_from(site: HttpSite) -> None:
    ids = await site.publish("orders", "a", "b")
    page = await site.submit(f"/messages/{ids[0]}/requeue", next="/queues/orders?state=ready")
    assert page.status == 200
    assert "requeued" in note_of(page.text)
    assert await site.contents("orders") == ["b", "a"]
    await site.submit(page.undo(), next="/queues/orders")
    assert await site.contents("orders") == ["a", "b"]


async def test_next_does_not_redirect_to_another_site(site: HttpSite) -> None:
    ids = await site.publish("orders", "a")
    for where in ("//evil.example", "https://evil.example", "/\\evil", "x"):
        done = await site.post(f"/messages/{ids[0]}/requeue", next=where)
        assert (where, done.location) == (where, f"/messages/{ids[0]}")


async def test_message_is_deleted_after_a_confirmation_and_restored(site: HttpSite) -> None:
    ids = await site.publish("orders", "a", "b")
    asked = await site.get(f"/messages/{ids[0]}/delete?next=/queues/orders")
    fields = asked.fields(f"/messages/{ids[0]}/delete")
    assert fields["next"] == "/queues/orders"
    assert "Delete message" in asked.text
    page = await site.submit(f"/messages/{ids[0]}/delete", fields)
    assert await site.contents("orders") == ["b"]
    page = await site.submit(page.undo(), next="/queues/orders")
    assert note_of(page.text) == "1 message restored."
    assert await site.contents("orders") == ["a", "b"]


async def test_message_is_moved_to_a_new_queue_only_if_requested(site: HttpSite) -> None:
    ids = await site.publish("orders", "a")
    path = f"/messages/{ids[0]}/move"
    assert "Target queue" in (await site.get(path)).text
    assert (await site.post(path, target="")).status == 422
    assert (await site.post(path, target="mail")).status == 404
    assert await site.contents("orders") == ["a"]
    await site.submit(path, target="mail", create="yes")
    assert await site.contents("mail") == ["a"]


async def test_dispatched_message_is_released_and_deleted_only_if_requested(site: HttpSite) -> None:
    ids = await site.publish("orders", "a")
    async with site.client() as client, client.consume("orders", credit=1) as consumer:
        await anext(consumer)
        assert (await site.post(f"/messages/{ids[0]}/delete")).status == 409
        await site.post("/queues/orders/pause", side="delivery")
        await site.submit(f"/messages/{ids[0]}/release")
        assert (await site.ok("GET", f"/messages/{ids[0]}"))["state"] == "ready"


async def test_restored_message_is_shown(site: HttpSite) -> None:
    ids = await site.publish("orders", "a")
    await site.submit(f"/messages/{ids[0]}/delete", next="/queues/orders")
    assert "previous deadline" in (await site.get(f"/messages/{ids[0]}/restore")).text
    done = await site.post(f"/messages/{ids[0]}/restore", ttl="5", ttl_unit="min")
    assert done.location is not None
    assert done.location != f"/messages/{ids[0]}"
    assert await site.contents("orders") == ["a"]


async def test_body_is_erased_only_when_typed_and_reasoned(site: HttpSite) -> None:
    ids = await site.publish("orders", "secret")
    await site.submit(f"/messages/{ids[0]}/delete", next="/queues/orders")
    path, number = f"/messages/{ids[0]}/erase", f"#{int(ids[0][:16], 16)}"
    assert (await site.post(path, confirm=number)).status == 422
    assert (await site.post(path, confirm="1", reason="r")).status == 422
    assert (await site.api("GET", f"/messages/{ids[0]}/body"))[0] == 200
    await site.submit(path, confirm=number, reason="a password")
    assert (await site.api("GET", f"/messages/{ids[0]}/body"))[0] == 410
    row = (await site.audit("message.erase"))[0]
    assert (row["reason"], row["result"]) == ("a password", "done")


async def test_each_form_of_a_message_is_shown(site: HttpSite) -> None:
    ids = await site.publish(HOSTILE, "<b>a</b>")
    for action in (
        "requeue", "release", "move", "delete", "redrive", "restore", "erase", "edit",
    ):  # fmt: skip
        page = await site.get(f"/messages/{ids[0]}/{action}")
        assert (action, page.status) == (action, 200)
        assert "<script>alert" not in page.text
        assert page.fields(f"/messages/{ids[0]}/{action}")["csrf"]


async def test_form_of_another_session_is_refused(site: HttpSite) -> None:
    ids = await site.publish("orders", "a")
    assert (await site.post(f"/messages/{ids[0]}/requeue", csrf="0" * 64)).status == 403
    assert (await site.audit("message.requeue"))[0]["result"] == "stale_form"


# -- selected rows


async def test_selected_messages_are_deleted_and_undone(site: HttpSite) -> None:
    ids = await site.publish_many("orders", 5)
    page = await site.submit(
        "/messages/act", {"id": ids[1:4]}, action="delete", next="/queues/orders"
    )
    assert note_of(page.text) == "3 messages deleted."
    assert await site.contents("orders") == ["m0", "m4"]
    await site.submit(page.undo(), next="/queues/orders")
    assert await site.contents("orders") == ["m0", "m1", "m2", "m3", "m4"]
    assert [row["count"] for row in await site.audit("message.delete")] == [3]


async def test_selected_messages_are_skipped_with_a_reason(site: HttpSite) -> None:
    ids = await site.publish_many("orders", 3)
    await site.ok("POST", f"/messages/{ids[0]}/delete")
    page = await site.submit("/messages/act", {"id": ids}, action="requeue", next="/queues/orders")
    assert note_of(page.text) == "2 messages requeued. Skipped: 1 already settled."


async def test_move_of_selected_messages_asks_for_the_target(site: HttpSite) -> None:
    ids = await site.publish_many("orders", 3)
    asked = await site.post("/messages/act", {"id": ids[:2]}, action="move", next="/queues/orders")
    assert asked.status == 200
    assert "Move 2 messages" in asked.text
    await site.submit(
        "/messages/act", {"id": ids[:2]}, action="move", target="mail", create="yes",
        next="/queues/orders",
    )  # fmt: skip
    assert await site.contents("mail") == ["m0", "m1"]


async def test_invalid_form_of_a_list_is_rejected(site: HttpSite) -> None:
    for path, fields in (
        ("/messages/act", {"action": "delete"}),
        ("/messages/act", {"action": "explode", "id": "x"}),
        ("/messages/act", {"id": "x"}),
        ("/queues/act", {"action": "remove"}),
        ("/queues/act", {"action": "x", "queue": "a"}),
    ):
        assert (path, fields, (await site.post(path, fields)).status) == (path, fields, 422)


async def test_action_on_selected_messages_is_previewed_in_production(tmp_path: Path) -> None:
    async with running_site(tmp_path / "data", ui={"environment": "production"}) as site:
        ids = await site.publish_many("orders", 2)
        page = await site.submit(
            "/messages/act", {"id": ids}, action="delete", next="/queues/orders"
        )
        assert "Type <bdi" in page.text
        assert await site.ready("orders") == 2


# -- selections


async def _preview(site: HttpSite, query: str, action: str, back: str = "/queues/orders") -> str:
    made = await site.post("/selections", q=query, action=action, next=back)
    assert made.status == 303, error_of(made.text)
    assert made.location is not None
    return made.location


async def test_preview_shows_what_will_happen(site: HttpSite) -> None:
    await site.publish_many("orders", 3)
    await site.publish("mail", "<i>x</i>")
    page = await site.get(await _preview(site, "state:ready", "delete"))
    for text in ("4 messages selected", "Delete 4 messages", "are not included", "m0", "mail"):
        assert text in page.text
    assert "<i>x</i>" not in page.text


async def test_preview_applies_to_the_shown_messages_and_is_undone(site: HttpSite) -> None:
    await site.publish_many("orders", 3)
    where = await _preview(site, "queue:orders", "delete")
    page = await site.get(where)
    path = where.partition("?")[0] + "/apply"
    await site.publish("orders", "later")
    page = await site.submit(path, page.fields(path), reason="a flood")
    assert note_of(page.text) == "3 messages deleted."
    assert await site.contents("orders") == ["later"]
    again = await site.post(path, action="delete", next="/queues/orders")
    assert again.status == 303
    assert len(await site.audit("message.delete")) == 1
    await site.submit(page.undo(), next="/queues/orders")
    assert await site.contents("orders") == ["m0", "m1", "m2", "later"]


async def test_preview_has_a_form_for_each_action(site: HttpSite) -> None:
    ids = await site.publish("orders.dlq", "a", "b", "c")
    await site.ok("POST", f"/messages/{ids[2]}/delete")
    matching = {"requeue": 2, "release": 1, "move": 1, "delete": 1, "redrive": 1, "restore": 1}
    async with site.client() as client, client.consume("orders.dlq", credit=1) as consumer:
        await anext(consumer)
        for action, count in matching.items():
            text = "queue:orders.dlq state:ready state:dispatched state:deleted"
            page = await site.get(await _preview(site, text, action))
            assert f'name="action" value="{action}"' in page.text
            assert f"{action.capitalize()} {count} message" in page.text
            skipped = f"{3 - count} of these messages are in another state and will be skipped"
            assert (action, skipped in page.text) == (action, True)


async def test_preview_reports_an_empty_selection(site: HttpSite) -> None:
    await site.publish("orders", "a")
    page = await site.get(await _preview(site, "queue:orders text", "delete"))
    assert "No matching messages" in page.text


async def test_selection_of_another_token_is_gone(site: HttpSite) -> None:
    page = await site.get("/selections/unknown")
    assert page.status == 410
    assert "Select the messages again" in page.text


async def test_queue_name_must_be_typed_above_the_count(tmp_path: Path) -> None:
    async with running_site(tmp_path / "data", ui={"confirm_count": 2}) as site:
        await site.publish_many("orders", 3)
        where = await _preview(site, "queue:orders", "delete")
        path = where.partition("?")[0] + "/apply"
        page = await site.get(where)
        assert "Type <bdi" in page.text
        assert (await site.post(path, page.fields(path), confirm="order")).status == 422
        assert await site.ready("orders") == 3
        await site.submit(path, page.fields(path), confirm="orders")
        assert await site.ready("orders") == 0


async def test_long_work_shows_its_progress_and_is_cancelled(site: HttpSite) -> None:
    await site.publish_many("orders", 50)
    where = await _preview(site, "queue:orders", "delete")
    path = where.partition("?")[0] + "/apply"
    page = await site.submit(path, action="delete", rate="5", next="/queues/orders")
    for text in ("Delete 50 messages", "<progress", "Running", "Cancel after the current slice"):
        assert text in page.text
    number = (await site.ok("GET", "/bulk"))["items"][0]["job"]
    await site.submit(f"/bulk/{number}/cancel", next="/queues/orders")
    await site.finished(number)
    page = await site.get(f"/bulk/{number}?next=/queues/orders")
    assert "Cancelled" in page.text
    await site.submit(page.undo(), next="/queues/orders")
    assert await site.ready("orders") == 50
    listed = await site.get("/bulk")
    assert f"/bulk/{number}" in listed.text


# -- a whole queue


async def test_purge_deletes_only_messages_from_before_the_form_was_opened(site: HttpSite) -> None:
    await site.publish_many("orders", 3)
    asked = await site.get("/queues/orders/purge")
    fields = asked.fields("/queues/orders/purge")
    await site.publish("orders", "later")
    assert (await site.post("/queues/orders/purge", fields, confirm="order")).status == 422
    page = await site.submit("/queues/orders/purge", fields, confirm="orders", reason="test")
    assert await site.contents("orders") == ["later"]
    await site.submit(page.undo(), next="/queues/orders")
    assert await site.contents("orders") == ["m0", "m1", "m2", "later"]
    row = (await site.audit("queue.purge"))[0]
    assert (row["target"], row["count"], row["reason"]) == ("orders", 3, "test")


async def test_whole_queue_can_be_previewed(site: HttpSite) -> None:
    await site.publish_many("a *", 3)
    asked = await site.get(f"/queues/{encode_name('a *')}/purge")
    page = await site.submit("/selections", asked.fields("/selections"))
    assert "Delete 3 messages" in page.text


async def test_purge_of_the_oldest(site: HttpSite) -> None:
    await site.publish_many("orders", 5)
    await site.submit("/queues/orders/purge", confirm="orders", limit="2")
    assert await site.contents("orders") == ["m2", "m3", "m4"]


async def test_purge_of_a_hostile_queue_takes_its_escaped_name(site: HttpSite) -> None:
    for name in ("\u202eevil", "..", "a/b", " a  b ", "100%&q=1#x?y", HOSTILE, 'a"b*?\\'):
        await site.publish(name, "a")
        path = f"/queues/{encode_name(name)}/purge"
        page = await site.get(path)
        found = re.search(r'Type <bdi class="name mono all">(.*?)</bdi>', page.text)
        assert found is not None
        await site.submit(path, page.fields(path), confirm=unescape(found[1]))
        assert await site.ready(name) == 0, name


async def test_purge_deletes_dispatched_messages_only_if_requested(site: HttpSite) -> None:
    await site.publish_many("orders", 3)
    async with site.client() as client, client.consume("orders", credit=1) as consumer:
        await anext(consumer)
        await site.post("/queues/orders/pause", side="delivery")
        page = await site.get("/queues/orders/purge")
        assert "Also delete 1 message held by consumers" in page.text
        await site.submit("/queues/orders/purge", confirm="orders")
        assert (await site.ok("GET", "/queues/orders"))["dispatched"] == 1
        await site.submit("/queues/orders/purge", confirm="orders", dispatched="yes")
        assert (await site.ok("GET", "/queues/orders"))["dispatched"] == 0


async def test_all_of_a_queue_is_moved_in_order(site: HttpSite) -> None:
    await site.publish_many("orders", 5)
    await site.get("/queues/orders/move")
    await site.submit("/queues/orders/move", target="mail", create="yes")
    assert await site.contents("mail") == ["m0", "m1", "m2", "m3", "m4"]
    assert (await site.post("/queues/orders/move", target="")).status == 422


async def test_dead_letters_are_redriven(site: HttpSite) -> None:
    await site.dead_letter("orders", "m0", "m1", "m2")
    assert "Redrive 3 records" in (await site.get("/queues/orders/redrive")).text
    await site.submit("/queues/orders/redrive", limit="1", ttl="1", ttl_unit="h")
    assert await site.contents("orders") == ["m0"]
    page = await site.submit("/queues/orders.dlq/redrive")
    assert await site.contents("orders") == ["m0", "m1", "m2"]
    await site.submit(page.undo(), next="/queues/orders")
    assert await site.contents("orders") == ["m0"]


async def test_sides_of_a_queue_are_paused_and_resumed(site: HttpSite) -> None:
    await site.publish("orders", "a")
    page = await site.submit("/queues/orders/pause", side="publishing", next="/queues/orders")
    assert note_of(page.text) == "Publishing for orders was paused."
    assert (await site.api("POST", "/queues/orders/messages", {"content": "b"}))[0] == 409
    page = await site.submit("/queues/orders/resume", side="publishing", next="/queues")
    assert note_of(page.text) == "Publishing for orders was resumed."
    await site.publish("orders", "b")
    assert (await site.post("/queues/orders/pause", side="inside")).status == 422


async def test_empty_queue_is_removed(site: HttpSite) -> None:
    await site.publish("orders", "a")
    assert (await site.post("/queues/orders/remove", confirm="orders")).status == 409
    await site.ok("POST", "/queues/orders/purge")
    assert (await site.post("/queues/orders/remove", confirm="x")).status == 422
    await site.get("/queues/orders/remove")
    done = await site.post("/queues/orders/remove", confirm="orders")
    assert done.location == "/queues"
    assert (await site.api("GET", "/queues/orders"))[0] == 404


# -- selected queues


async def test_selected_queues_are_paused_purged_and_removed(site: HttpSite) -> None:
    for name in ("a", "b *?", "c"):
        await site.publish(name, "x")
    ticked = {"queue": ["a", "b *?"]}
    await site.submit("/queues/act", ticked, action="pause-delivery", next="/queues")
    queues = {q["name"]: q for q in (await site.ok("GET", "/queues"))["items"]}
    assert [queues[name]["delivery_paused"] for name in ("a", "b *?", "c")] == [True, True, False]
    page = await site.submit("/queues/act", ticked, action="purge", next="/queues")
    assert "2 messages selected" in page.text
    path = re.search(r'action="(/selections/[\w-]+/apply)"', page.text)
    assert path is not None
    await site.submit(path[1], page.fields(path[1]))
    assert [await site.ready(name) for name in ("a", "b *?", "c")] == [0, 0, 1]
    page = await site.submit("/queues/act", {"queue": ["a", "c"]}, action="remove", next="/queues")
    assert note_of(page.text).startswith("1 queue removed. 'c' has 1 messages")
    assert len(await site.audit("queue.remove")) == 1


async def test_forecast_warns_of_a_queue_without_consumers(site: HttpSite) -> None:
    await site.publish("orders", "a")
    warning = re.compile(r'<span class="chip warn"><span data-live="\d+\.forecast"')
    page = await site.text("/queues/orders")
    assert warning.search(page)
    assert "No consumers</span></span>" in page
    async with site.client() as client, client.consume("orders", credit=1) as consumer:
        await anext(consumer)
        await site.publish("orders", "b")
        assert not warning.search(await site.text("/queues/orders"))
