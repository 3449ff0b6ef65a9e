"""Bulk jobs on a real broker: selections, slices, progress, cancel, rate and undo."""

from pathlib import Path

from tests.support.http_site import HttpSite, running_site


async def test_selection_describes_the_selected_messages(site: HttpSite) -> None:
    await site.publish_many("orders", 3)
    await site.publish("mail", "x")
    made = await site.select("state:ready")
    assert (made["count"], made["is_complete"], made["bytes"]) == (4, True, 7)
    assert made["by_queue"] == {"orders": 3, "mail": 1}
    assert made["by_state"] == {"ready": 4}
    assert len(made["samples"]) == 3
    assert made["to_confirm"] == []


async def test_selection_can_be_read_again(site: HttpSite) -> None:
    await site.publish_many("orders", 3)
    made = await site.select("queue:orders")
    await site.publish_many("orders", 1)
    assert await site.ok("GET", f"/selections/{made['token']}") == made
    assert await site.refusal("GET", "/selections/unknown") == (410, "selection_expired")


async def test_selection_without_a_state_contains_live_messages(site: HttpSite) -> None:
    ids = await site.publish_many("orders", 3)
    await site.ok("POST", f"/messages/{ids[0]}/delete")
    made = await site.select("queue:orders")
    states = "state:ready state:dispatched state:scheduled state:blocked"
    assert (made["q"], made["count"]) == (f"queue:orders {states}", 2)


async def test_later_arrivals_are_not_touched(site: HttpSite) -> None:
    await site.publish_many("orders", 700)
    made = await site.select("queue:orders")
    await site.publish_many("orders", 5, start=700)
    job = await site.ok("POST", "/bulk", {"token": made["token"], "action": "delete"})
    done = await site.finished(job["job"])
    assert (done["state"], done["done"], done["total"]) == ("done", 700, 700)
    assert await site.contents("orders") == [f"m{at}" for at in range(700, 705)]


async def test_undo_brings_order_back(site: HttpSite) -> None:
    await site.publish_many("orders", 1_200)
    before = await site.contents("orders")
    job = await site.bulk("queue:orders", "delete", reason="a flood")
    await site.publish("orders", "later")
    assert await site.contents("orders") == ["later"]
    undone = await site.ok("POST", f"/undo/{job['undo']}")
    assert (await site.finished(undone["job"]))["done"] == 1_200
    assert await site.contents("orders") == [*before, "later"]
    row = (await site.audit("message.delete"))[0]
    assert (row["count"], row["result"], row["reason"]) == (1_200, "done", "a flood")


async def test_messages_that_left_meanwhile_are_skipped_with_a_reason(site: HttpSite) -> None:
    ids = await site.publish_many("orders", 4)
    made = await site.select("queue:orders")
    await site.ok("POST", f"/messages/{ids[0]}/delete")
    async with site.client() as client, client.consume("orders", credit=1) as consumer:
        await anext(consumer)
        job = await site.ok("POST", "/bulk", {"token": made["token"], "action": "delete"})
    assert (job["done"], job["skipped"]) == (2, {"gone": 1, "dispatched": 1})


async def test_token_is_the_idempotency_key(site: HttpSite) -> None:
    await site.publish_many("orders", 3)
    made = await site.select("queue:orders")
    asked = {"token": made["token"], "action": "requeue"}
    first = await site.ok("POST", "/bulk", asked)
    assert (await site.ok("POST", "/bulk", asked))["job"] == first["job"]
    assert len(await site.audit("message.requeue")) == 1
    status, problem = await site.api("POST", "/bulk", asked | {"action": "delete"})
    assert (status, problem["code"]) == (409, "selection_used")
    assert "used before: 3 messages requeued." in problem["detail"]
    assert await site.ready("orders") == 3


async def test_used_selection_says_what_happened_before(site: HttpSite) -> None:
    await site.publish_many("orders", 3)
    made = await site.select("queue:orders")
    path = f"/selections/{made['token']}/apply"
    page = await site.submit(path, action="requeue", next="/queues/orders")
    assert "3 messages requeued." in page.text
    assert "used before" not in page.text
    page = await site.submit(path, action="requeue", next="/queues/orders")
    assert "Nothing more was done, because this selection was used before: 3 messages" in page.text
    assert "Undo" in page.text
    job = (await site.ok("POST", "/bulk", {"token": made["token"], "action": "requeue"}))["job"]
    undo = (await site.ok("GET", f"/bulk/{job}"))["undo"]
    await site.ok("POST", f"/undo/{undo}")
    page = await site.submit(path, action="requeue", next="/queues/orders")
    assert "3 messages requeued. This was undone." in page.text
    assert f"/undo/{undo}" not in page.text
    text = await site.text(f"/bulk/{job}")
    assert "Undone" in text
    assert f"/undo/{undo}" not in text
    refused = await site.post(path, action="delete", next="/queues/orders")
    assert refused.status == 409
    assert "Nothing was done, because this selection was used before" in refused.text


async def test_unknown_token_is_gone(site: HttpSite) -> None:
    status, problem = await site.api("POST", "/bulk", {"token": "x", "action": "delete"})
    assert (status, problem["code"], problem["field"]) == (410, "selection_expired", "token")


async def test_many_need_their_count_or_queue_typed(tmp_path: Path) -> None:
    async with running_site(tmp_path / "data", ui={"confirm_count": 2}) as site:
        await site.publish_many("orders", 3)
        made = await site.select("queue:orders")
        assert made["to_confirm"] == ["orders", "3"]
        asked = {"token": made["token"], "action": "delete"}
        for confirm in (None, "2"):
            refused = await site.refusal("POST", "/bulk", asked | {"confirm": confirm})
            assert refused == (422, "not_confirmed")
        assert (await site.ok("POST", "/bulk", asked | {"confirm": "3"}))["done"] == 3


async def test_move_keeps_the_order_and_undo_brings_each_back(site: HttpSite) -> None:
    await site.publish_many("orders", 600)
    await site.publish("mail", "first")
    job = await site.bulk("queue:orders", "move", target="mail")
    assert await site.contents("mail") == ["first", *(f"m{at}" for at in range(600))]
    undone = await site.ok("POST", f"/undo/{job['undo']}")
    await site.finished(undone["job"])
    assert await site.contents("mail") == ["first"]
    assert await site.contents("orders") == [f"m{at}" for at in range(600)]


async def test_move_needs_a_target_that_exists(site: HttpSite) -> None:
    await site.publish_many("orders", 2)
    made = await site.select("queue:orders")
    asked = {"token": made["token"], "action": "move"}
    assert (await site.api("POST", "/bulk", asked))[0] == 422
    assert (await site.api("POST", "/bulk", asked | {"target": "nowhere"}))[0] == 404
    job = await site.ok("POST", "/bulk", asked | {"target": "nowhere", "create": True})
    assert job["done"] == 2


async def test_cancelled_job_is_undone_as_far_as_it_came(site: HttpSite) -> None:
    await site.publish_many("orders", 50)
    before = await site.contents("orders")
    made = await site.select("queue:orders")
    asked = {"token": made["token"], "action": "delete", "rate": 5}
    job = await site.ok("POST", "/bulk", asked)
    assert (job["state"], job["done"]) == ("running", 5)
    await site.ok("POST", f"/bulk/{job['job']}/cancel")
    done = await site.finished(job["job"])
    assert done["state"] == "cancelled"
    assert 5 <= done["done"] < 50
    assert len(await site.contents("orders")) == 50 - done["done"]
    row = (await site.audit("message.delete"))[0]
    assert (row["result"], row["count"]) == ("cancelled", done["done"])
    await site.finished((await site.ok("POST", f"/undo/{done['undo']}"))["job"])
    assert await site.contents("orders") == before


async def test_rate_is_kept(site: HttpSite) -> None:
    await site.publish_many("orders", 30)
    job = await site.bulk("queue:orders", "requeue", rate=20)
    assert job["done"] == 30
    assert job["ended_at"] - job["started_at"] >= 900  # 20 at once, and the others a second later


async def test_refusal_in_the_middle_stops_the_job_with_a_reason(site: HttpSite) -> None:
    await site.publish_many("orders", 20)
    await site.ok("PUT", "/queues/mail")
    made = await site.select("queue:orders")
    asked = {"token": made["token"], "action": "move", "target": "mail", "rate": 5}
    job = await site.ok("POST", "/bulk", asked)
    await site.ok("POST", "/queues/mail/pause", {"side": "publishing"})
    done = await site.finished(job["job"])
    assert done["done"] < 20
    assert done["skipped"] == {"paused": 20 - done["done"]}
    assert await site.ready("orders") + await site.ready("mail") == 20


async def test_many_messages_are_restored(site: HttpSite) -> None:
    await site.publish_many("orders", 10)
    before = await site.contents("orders")
    await site.bulk("queue:orders", "delete")
    made = await site.select("queue:orders state:deleted")
    assert made["by_state"] == {"deleted": 10}
    job = await site.ok("POST", "/bulk", {"token": made["token"], "action": "restore"})
    assert job["done"] == 10
    assert await site.contents("orders") == before


async def test_interrupted_job_is_shown_from_the_audit_after_a_restart(tmp_path: Path) -> None:
    async with running_site(tmp_path / "data") as site:
        await site.publish_many("orders", 50)
        made = await site.select("queue:orders")
        asked = {"token": made["token"], "action": "delete", "rate": 5}
        job = await site.ok("POST", "/bulk", asked)
    async with running_site(tmp_path / "data") as site:
        found = await site.ok("GET", f"/bulk/{job['job']}")
        assert (found["state"], found["total"], found["action"]) == ("interrupted", 50, "delete")
        assert await site.ready("orders") == 50 - found["done"]
        page = await site.get(f"/bulk/{job['job']}")
        assert f"Interrupted, {found['done']} of 50" in page.text


async def test_redrive_at_a_rate_continues_in_the_background(site: HttpSite) -> None:
    await site.ok("PUT", "/queues/orders.dlq")
    answer = await site.ok("POST", "/dead/orders/redrive", {"rate": 5})
    assert answer["redriven"] == 0
    assert (await site.finished(answer["job"]))["state"] == "done"


async def test_unknown_job_is_not_found(site: HttpSite) -> None:
    await site.publish("orders", "a message")
    [row] = (await site.ok("GET", "/audit?action=message.publish"))["items"]
    for path in ("/bulk/99", "/bulk/x", f"/bulk/{row['audit_id']}"):
        assert (await site.api("GET", path))[0] == 404
        assert (await site.api("POST", f"{path}/cancel"))[0] == 404
    assert (await site.ok("GET", "/bulk"))["items"] == []
