"""What remains of erased messages in the database, on the pages and in the API: only their rows."""

import json
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from phpmq_lite.admin.pipeline import erase
from phpmq_lite.broker.operator.message_actions import act_on_messages
from phpmq_lite.errors import RefusedError
from tests.integration.test_envelope_pages import envelope
from tests.integration.test_pipeline_api import stage, stream
from tests.support.http_site import HttpSite, running_site
from tests.support.http_users import BrokerFixture, HttpUser
from tests.support.stored_rows import stored_rows, stored_tables

SECRET = "s3cr3t"
TRACE = f"{SECRET}-4bf9-77b3-4da6"
ERASE = "/pipeline/erase"
BY_TRACE = {"trace_ids": [TRACE]}


def secret_body(number: int, **changes: Any) -> str:
    return envelope(trace_id=TRACE, meta_id=f"{SECRET}-{number}", **changes)


def tables_with_secret(data: Path) -> list[str]:
    tables = stored_tables(data)
    return [name for name, rows in tables.items() if SECRET in repr(rows)]


async def fill(site: HttpSite) -> dict[str, str]:
    """Settle secret messages in all ways, copies among them; return the ids of some."""
    ids = {}
    for name in ("orders", "mail"):
        await site.create_queue(name, payload_policy="observe")
    await site.publish("mail", "first")
    async with site.client() as client, client.consume("mail") as consumer:
        (await anext(consumer)).ack()
    ids["deleted"], ids["restored"] = await site.publish("orders", secret_body(1), secret_body(2))
    for name in ("deleted", "restored"):
        await site.ok("POST", f"/messages/{ids[name]}/delete")
    ids["copy"] = (await site.ok("POST", f"/messages/{ids['restored']}/restore"))["new_id"]
    async with site.client() as client:
        await client.publish_confirmed("mail", secret_body(3).encode())
        options = {"group": f"{SECRET}-group", "unique_key": f"{SECRET}-key"}
        await client.publish_confirmed("mail", secret_body(4).encode(), **options)  # type: ignore[arg-type]
        await client.publish_confirmed("mail", b"plain")
        async with client.consume("mail", credit=1) as consumer:
            (await anext(consumer)).retry(error=f"no {SECRET}", attempt=1)
            (await anext(consumer)).dead_letter("failed", error=f"cannot read {SECRET}")
            for _ in range(2):
                delivery = await anext(consumer)
                delivery.ack() if delivery.body == b"plain" else delivery.dead_letter()
            await client.publish_confirmed("mail", b"end")
            (await anext(consumer)).ack()
    records = (await site.ok("GET", "/queues/mail.dlq/messages"))["items"]
    ids["record"], ids["redriven"] = (item["id"] for item in records)
    ids["redrive"] = (await site.ok("POST", f"/messages/{ids['redriven']}/redrive"))["new_id"]
    return ids


async def routes_with_secret(site: HttpSite, ids: dict[str, str]) -> list[str]:
    """Return the routes about messages that answer with the secret."""
    api = ["/history", "/audit", f"/messages?q=trace:{TRACE}", "/messages?q=state:deleted"]
    api += [f"/messages?q=content:{SECRET[:3]}", "/queues/orders/messages", "/queues/mail/messages"]
    api += ["/queues/mail.dlq/messages", "/pipeline/history/bounds"]
    pages = ["/", "/history", "/queue?q=orders", "/queue?q=mail.dlq", "/dead-letters", "/trash"]
    for id_ in ids.values():
        api += [f"/messages/{id_}{part}" for part in ("", "/body", "/body?download=1", "/events")]
        pages += [f"/messages/{id_}", f"/messages/{id_}/body"]
    paths = [*(f"/api/v1{path}" for path in api), *pages]
    answers = {path: (await site.download(path)).content for path in paths}
    ends = await site.ok("GET", "/pipeline/history/bounds")
    raw = await site.download(
        f"/api/v1/pipeline/history/arrow?lo={ends['lo']}&hi={ends['hi']}&body=1"
    )
    assert raw.status == 200, raw.content
    answers["arrow"] = repr(pa.ipc.open_stream(raw.content).read_all().to_pylist()).encode()
    return [path for path, text in answers.items() if SECRET.encode() in text]


async def test_nothing_is_left_of_an_erased_trace(site: HttpSite) -> None:
    ids, data = await fill(site), site.broker.data
    assert {"body", "event", "history", "message"} <= {*tables_with_secret(data)}
    routes = await routes_with_secret(site, ids)
    assert {"arrow", "/api/v1/history", "/history", "/trash", "/api/v1/queues/mail/messages"} <= {
        *routes
    }
    before = stored_rows(data, "SELECT seq, outcome, size FROM history ORDER BY seq")
    assert (await site.refusal("POST", ERASE, BY_TRACE)) == (409, "live_messages")
    assert stored_rows(data, "SELECT seq, outcome, size FROM history ORDER BY seq") == before
    counted = await site.ok("POST", ERASE, BY_TRACE | {"dry_run": True})
    assert (counted["live"], counted["erased"], counted["already"]) == (3, 5, 0)
    assert {"body", "message"} <= {*tables_with_secret(data)}
    erased = await site.ok("POST", ERASE, BY_TRACE | {"live": True})
    assert (erased["live"], erased["erased"]) == (3, 8)
    assert tables_with_secret(data) == []
    assert await routes_with_secret(site, ids) == []
    rows = stored_rows(
        data, "SELECT erased_at IS NULL, count(*) FROM history GROUP BY 1 ORDER BY 1"
    )
    assert rows == [(0, 8), (1, 3)]
    again = await site.ok("POST", ERASE, BY_TRACE | {"live": True})
    assert (again["erased"], again["live"], again["already"]) == (0, 0, 0)


async def test_page_and_api_say_that_a_message_was_erased(site: HttpSite) -> None:
    [id_] = await site.publish("orders", envelope(trace_id=TRACE))
    await site.ok("POST", f"/messages/{id_}/delete")
    await site.ok("POST", ERASE, BY_TRACE)
    assert await site.refusal("GET", f"/messages/{id_}/body") == (410, "erased")
    assert await site.refusal("POST", f"/messages/{id_}/restore") == (410, "erased")
    _, problem = await site.api("POST", f"/messages/{id_}/restore")
    assert re.search(r"was erased on \d{4}-\d\d-\d\d \d\d:\d\d UTC", problem["detail"])
    shown = await site.ok("GET", f"/messages/{id_}")
    assert shown["erased_at"] >= shown["settled_at"]
    assert (shown["state"], shown["trace_id"], shown["meta_id"]) == ("deleted", None, None)
    assert "Erased on <time" in await site.text(f"/messages/{id_}")
    assert (await site.bulk("state:deleted", "restore"))["skipped"] == {"body gone": 1}


async def test_offsets_lead_to_the_copies(site: HttpSite) -> None:
    ids = await fill(site)
    [(offset,)] = stored_rows(
        site.broker.data,
        f'SELECT "offset" FROM history WHERE seq = {int(ids["restored"][:16], 16)}',
    )
    by_offset = {"offsets": [{"first": offset, "last": offset}]}
    counted = await site.ok("POST", ERASE, by_offset | {"dry_run": True})
    assert (counted["erased"], counted["live"]) == (1, 1)  # and its restored copy
    assert (await site.ok("POST", ERASE, by_offset | {"live": True}))["erased"] == 2
    for name in ("restored", "copy"):
        assert (await site.ok("GET", f"/messages/{ids[name]}"))["erased_at"]
    assert not (await site.ok("GET", f"/messages/{ids['deleted']}"))["erased_at"]
    assert (await site.ok("POST", ERASE, by_offset))["already"] == 2


@pytest.mark.parametrize("survived", range(9))
async def test_repeated_erase_completes_an_interrupted_one(
    site: HttpSite, monkeypatch: pytest.MonkeyPatch, survived: int
) -> None:
    await fill(site)
    calls = 0

    def fail_later(*arguments: Any) -> None:
        nonlocal calls
        calls += 1
        if calls > survived:
            raise RefusedError("unknown_queue", "the request ends here")
        act_on_messages(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(erase, "SLICE", 1)
        patch.setattr(erase, "act_on_messages", fail_later)
        assert (await site.api("POST", ERASE, BY_TRACE | {"live": True}))[0] == 404
    assert "body" in tables_with_secret(site.broker.data)
    await site.ok("POST", ERASE, BY_TRACE | {"live": True})
    assert tables_with_secret(site.broker.data) == []


async def test_staged_rows_are_dropped_with_their_token(home: BrokerFixture) -> None:
    async with HttpUser(home.url, await home.token("spark", "admin")) as spark:
        raw = stream(("orders", secret_body(1), None), ("orders", envelope(), None))
        await spark.call("PUT", "/queues/orders")
        await spark.call("PATCH", "/queues/orders", {"payload_policy": "observe"})
        assert (await stage(spark, "with", raw))[0] == 200
        assert (await stage(spark, "without", stream(("orders", envelope(), None))))[0] == 200
        answer = await spark.call("POST", ERASE, BY_TRACE)
        assert json.loads(answer.text)["staged"] == 1
        tokens = stored_rows(home.data, "SELECT token FROM stage WHERE token IS NOT NULL")
        assert tokens == [("without",)]


async def test_audit_has_counts_and_no_data(site: HttpSite) -> None:
    await fill(site)
    await site.ok("POST", ERASE, BY_TRACE | {"live": True})
    rows = [row for row in await site.audit() if row["target"].startswith("1 trace")]
    assert [(row["action"], row["target"], row["count"]) for row in rows] == [
        ("pipeline.erase", "1 trace, 0 ranges of offsets", 8),
        ("message.erase", "1 trace, 0 ranges of offsets", 8),
        ("message.delete", "1 trace, 0 ranges of offsets", 3),
    ]
    assert SECRET not in json.dumps(await site.audit())


@pytest.mark.parametrize(
    "body",
    [
        {"trace_ids": ["t"] * 101},
        {"offsets": [{"first": 1, "last": 10_001}]},
        {"offsets": [{"first": 0, "last": 1}]},
        {"offset": 1},
    ],
)
async def test_unbounded_requests_are_refused(site: HttpSite, body: dict[str, Any]) -> None:
    assert await site.refusal("POST", ERASE, body) == (422, "invalid")


async def test_only_admins_of_all_queues_erase(home: BrokerFixture) -> None:
    for role, queues in (("operator", ()), ("admin", ("orders",))):
        async with HttpUser(home.url, await home.token(role, role, *queues)) as user:
            assert (await user.call("POST", ERASE, BY_TRACE)).status == 403


async def test_what_remains_is_listed_with_its_day(tmp_path: Path) -> None:
    async with running_site(tmp_path / "data", backups={"every_h": 24, "keep": 6}) as site:
        erased = await site.ok("POST", ERASE, BY_TRACE)
    remains = {place["where"]: place["until"] for place in erased["remains"]}
    assert remains["free pages of the database"] is None
    assert remains["backups"] - remains["keys of confirmed publishes"] == (7 * 86_400 - 600) * 1_000
