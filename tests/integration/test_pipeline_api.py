"""Claims, staged rows and the summary over HTTP: results, refusals, audit and roles."""

import asyncio
import io
import json
import sys
from collections.abc import AsyncIterator, Awaitable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from yarl import URL

from phpmq_lite.admin.http import body as request_body
from phpmq_lite.admin.http.context import Context
from phpmq_lite.admin.messages import arrow_export
from phpmq_lite.admin.pipeline import staging
from phpmq_lite.admin.pipeline.staging import UPLOAD_SLOTS
from phpmq_lite.admin.pipeline.summary import SummaryFile, read_summary
from phpmq_lite.admin.slow_clients import LIMITS
from phpmq_lite.insights_document import PipelineSummary
from phpmq_lite.server import engine
from phpmq_lite.spark.pipeline_client import globs_digest
from tests.support.builds import NEEDS_SOURCES
from tests.support.http_site import HttpSite
from tests.support.http_users import BrokerFixture, HttpUser, wait_until
from tests.unit.admin.pipeline.cases import as_bytes, summary

NOW = 1_790_000_000_000
OPERATOR = "operator"

WHOLE = {"remaining": 0, "resumed": False}  # of a publish that fits into one transaction


def stream(*rows: tuple[str, str, int | None]) -> bytes:
    """Write rows of queue, body and time to live as a task of Spark does."""
    queues, bodies, ttls = zip(*rows, strict=True) if rows else ((), (), ())
    made = pa.record_batch(
        [
            pa.array([body.encode() for body in bodies], pa.binary()),
            pa.array(queues, pa.string()),
            pa.array(ttls, pa.int64()),
        ],
        names=["body", "queue", "ttl_s"],
    )
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, made.schema) as writer:
        writer.write_batch(made)
    return sink.getvalue()


@asynccontextmanager
async def program(home: BrokerFixture, role: str, *queues: str) -> AsyncIterator[HttpUser]:
    secret = await home.token(f"{role}-{len(queues)}", role, *queues)
    async with HttpUser(home.url, secret) as made:
        yield made


async def stage(
    visitor: HttpUser, token: str, raw: bytes | AsyncIterator[bytes], **headers: str
) -> tuple[int, dict[str, Any]]:
    headers = {"Content-Type": arrow_export.MEDIA} | headers
    answer = await visitor.request(
        "POST", f"/api/v1/pipeline/stage?token={token}", headers, data=raw
    )
    return answer.status, json.loads(answer.text)


async def _endless() -> AsyncIterator[bytes]:
    yield b"x"
    await asyncio.Event().wait()


def context_of(home: BrokerFixture) -> Context:
    context = home.broker.service.pages.context
    assert context is not None
    return context


async def call(visitor: HttpUser, path: str, body: Any) -> tuple[int, dict[str, Any]]:
    answer = await visitor.call("POST", f"/pipeline/{path}", body)
    return answer.status, json.loads(answer.text)


async def refusal(reply: Awaitable[tuple[int, dict[str, Any]]]) -> tuple[int, str]:
    status, problem = await reply
    return status, problem["code"]


@pytest.fixture
async def spark(home: BrokerFixture) -> AsyncIterator[HttpUser]:
    async with program(home, OPERATOR) as made:
        yield made


# -- claims


async def test_claims_are_numbered_acknowledged_and_released(site: HttpSite) -> None:
    await site.publish_many("orders", 5)
    asked = {"subscription": "s", "queue": "orders", "max_messages": 3}
    assert await site.ok("POST", "/pipeline/claims/claim", asked) == {"hi": 3}
    again = asked | {"after": 0}
    assert await site.ok("POST", "/pipeline/claims/claim", again) == {"hi": 3}  # nothing new
    state = await site.ok("GET", "/pipeline/claims/state?subscription=s")
    assert state.pop("oldest_at_ms") > 0
    assert state == {"queue": "orders", "acked": 0, "hi": 3, "count": 3}
    ack = {"subscription": "s", "upto": 2}
    assert await site.ok("POST", "/pipeline/claims/ack", ack) == {"acked": 2}
    assert await site.ok("POST", "/pipeline/claims/ack", ack) == {"acked": 0}
    release = {"subscription": "s"}
    assert await site.ok("POST", "/pipeline/claims/release", release) == {"released": 1}
    assert await site.contents("orders") == ["m2", "m3", "m4"]
    state = await site.ok("GET", "/pipeline/claims/state?subscription=s")
    assert (state["count"], state["oldest_at_ms"]) == (0, None)


async def test_claims_are_audited_unless_they_repeat(site: HttpSite) -> None:
    await site.publish_many("orders", 5)
    for upto in (1, 2):
        asked = {"subscription": "s", "queue": "orders", "max_messages": 1}
        await site.ok("POST", "/pipeline/claims/claim", asked)
        await site.ok("POST", "/pipeline/claims/ack", {"subscription": "s", "upto": upto})
    await site.ok("POST", "/pipeline/claims/release", {"subscription": "s"})
    await site.api("POST", "/pipeline/claims/ack", {"subscription": "s", "upto": 9})
    rows = [(row["action"], row["target"], row["result"]) for row in await site.audit()]
    assert rows[:3] == [
        ("claims.ack", "s", "unknown_claims"),
        ("claims.release", "s", "done"),
        ("claims.claim", "s", "done"),
    ]
    assert len(rows) == 4  # and the publish


INVALID = (422, "invalid")
WRONG_CALLS = [
    ("claims/claim", INVALID, {"subscription": "s"}),
    ("claims/claim", INVALID, {"subscription": "", "queue": "orders"}),
    ("claims/claim", (404, "unknown_queue"), {"subscription": "s", "queue": "nowhere"}),
    ("claims/claim", INVALID, {"subscription": "s", "queue": "a\rb"}),
    ("claims/claim", INVALID, {"subscription": "s", "queue": "orders", "max_messages": 0}),
    ("claims/claim", INVALID, {"subscription": "s", "queue": "orders", "max_messages": 100_001}),
    ("claims/claim", INVALID, {"subscription": "s", "queue": "orders", "max_bytes": "1"}),
    ("claims/claim", (409, "other_queue"), {"subscription": "there", "queue": "mail"}),
    (
        "claims/claim",
        (422, "unknown_claims"),
        {"subscription": "there", "queue": "orders", "after": 99},
    ),
    ("claims/claim", INVALID, {"subscription": "\ud800", "queue": "orders"}),
    ("claims/ack", (404, "unknown_subscription"), {"subscription": "s", "upto": 1}),
    ("claims/ack", INVALID, {"subscription": "there", "upto": -1}),
    ("claims/ack", INVALID, {"subscription": "there", "upto": 1 << 63}),
    ("claims/ack", (422, "unknown_claims"), {"subscription": "there", "upto": 2}),
    ("claims/release", (404, "unknown_subscription"), {"subscription": "s"}),
    ("claims/release", INVALID, {"subscription": "there", "all": True}),
    ("publish", INVALID, {"app_id": "a", "version": -1, "tokens": []}),
    ("publish", INVALID, {"app_id": "", "version": 1, "tokens": []}),
    ("publish", (404, "unknown_token"), {"app_id": "a", "version": 1, "tokens": ["none"]}),
    ("publish", INVALID, {"app_id": "a", "version": 1, "tokens": "none"}),
    ("unstage", INVALID, {"tokens": [1]}),
]


async def test_invalid_call_is_refused_and_changes_nothing(site: HttpSite) -> None:
    await site.publish_many("orders", 2)
    await site.publish_many("mail", 1)
    there = {"subscription": "there", "queue": "orders", "max_messages": 1}
    await site.ok("POST", "/pipeline/claims/claim", there)
    before = await site.ok("GET", "/pipeline/claims/state?subscription=there")
    assert (before["hi"], before["count"]) == (1, 1)
    for path, (status, code), body in WRONG_CALLS:
        rows = len(await site.audit())
        answer = await site.api("POST", f"/pipeline/{path}", body)
        assert (answer[0], answer[1]["code"]) == (status, code), (path, body, answer)
        assert await site.ok("GET", "/pipeline/claims/state?subscription=there") == before
        audit = await site.audit()
        assert (len(audit) - rows, audit[0]["result"]) == (1, code), (path, body)


async def test_state_of_an_unknown_subscription_is_not_found(site: HttpSite) -> None:
    assert (await site.api("GET", "/pipeline/claims/state?subscription=s"))[0] == 404
    assert (await site.api("GET", "/pipeline/claims/state"))[0] == 422


async def test_program_limited_to_queues_has_no_way_to_other_claims(home: BrokerFixture) -> None:
    for queue in ("orders", "mail"):
        await home.control("POST", f"/queues/{queue}/messages", {"content": "x"})
    claim = {"subscription": "mine", "queue": "mail", "max_messages": 1}
    await home.control("POST", "/pipeline/claims/claim", claim)
    async with program(home, OPERATOR, "orders*") as narrow:
        for path, body in (
            ("claims/claim", {"subscription": "other", "queue": "mail"}),
            ("claims/claim", {"subscription": "mine", "queue": "orders"}),
            ("claims/ack", {"subscription": "mine", "upto": 1}),
            ("claims/release", {"subscription": "mine"}),
        ):
            status, problem = await call(narrow, path, body)
            assert (path, status, problem["code"]) == (path, 403, "foreign_queue")
        answer = await narrow.get("/api/v1/pipeline/claims/state?subscription=mine")
        assert answer.status == 403
        asked = {"subscription": "own", "queue": "orders"}
        assert await call(narrow, "claims/claim", asked) == (200, {"hi": 1})


# -- staging


async def test_staged_rows_are_published_once(home: BrokerFixture, spark: HttpUser) -> None:
    rows = [("orders", f"m{at}", None) for at in range(2_500)] + [("mail", "x", 60)]
    assert await stage(spark, "t1", stream(*rows)) == (200, {"rows": 2_501, "bytes": 11_391})
    assert await stage(spark, "t2", stream(("orders", "last", 0))) == (200, {"rows": 1, "bytes": 4})
    assert home.rows("SELECT count(*) FROM message") == [(0,)]
    asked = {"app_id": "query-1", "version": 3, "tokens": ["t1", "t2"]}
    done = {"published": 2_502, "repeated": False, "quarantined": 0, **WHOLE}
    assert await call(spark, "publish", asked) == (200, done)
    repeated = {"published": 0, "repeated": True, "quarantined": 0, **WHOLE}
    assert await call(spark, "publish", asked) == (200, repeated)
    assert home.rows(
        "SELECT q.name, count(*) FROM message JOIN queue AS q USING (queue_id) GROUP BY 1"
    ) == [("mail", 1), ("orders", 2_501)]


async def test_app_id_belongs_to_the_first_writer(home: BrokerFixture, spark: HttpUser) -> None:
    """Otherwise a limited operator could block all further rows of another application."""
    asked: dict[str, Any] = {"app_id": "etl", "version": 1, "tokens": []}
    assert (await call(spark, "publish", asked))[0] == 200
    poison = asked | {"version": (1 << 63) - 1}
    async with program(home, OPERATOR, "evil.*") as evil:
        status, problem = await call(evil, "publish", poison)
        assert (status, problem["code"]) == (403, "foreign_app_id")
        assert "transfer" in problem["detail"]
        status, problem = await call(evil, "app-ids/transfer", {"app_id": "etl", "owner": None})
        assert (status, problem["code"]) == (403, "role")
    rotated = await home.token("etl-2", OPERATOR)
    async with HttpUser(home.url, rotated) as newer:
        done = {"published": 0, "repeated": False, "quarantined": 0, **WHOLE}
        assert await call(newer, "publish", asked | {"version": 2}) == (200, done)


async def test_admin_transfers_an_app_id(home: BrokerFixture, spark: HttpUser) -> None:
    for app_id in ("b", "a", "c"):
        await call(spark, "publish", {"app_id": app_id, "version": 4, "tokens": []})
    async with program(home, OPERATOR, "new.*") as heir, program(home, "admin") as admin:
        listed = json.loads((await admin.get("/api/v1/pipeline/app-ids?limit=2")).text)
        assert [item["app_id"] for item in listed["items"]] == ["a", "b"]
        assert (listed["items"][0]["version"], listed["items"][0]["rows"]) == (4, 0)
        query = f"limit=2&cursor={listed['next']}"
        listed = json.loads((await admin.get(f"/api/v1/pipeline/app-ids?{query}")).text)
        assert ([item["app_id"] for item in listed["items"]], listed["next"]) == (["c"], None)
        asked = {"app_id": "a", "owner": "token operator-1"}
        status, done = await call(admin, "app-ids/transfer", asked)
        assert (status, done["owner"].endswith(" for new.*")) == (200, True)
        again = {"app_id": "a", "version": 4, "tokens": []}
        assert (await call(heir, "publish", again))[1]["repeated"]
        assert (await call(spark, "publish", again))[0] == 403
        for wrong, code in (
            ({"app_id": "none", "owner": None}, "unknown_app_id"),
            ({"app_id": "a", "owner": "nobody"}, "unknown_user"),
            ({"app_id": "a", "owner": "token none"}, "unknown_token"),
        ):
            assert await refusal(call(admin, "app-ids/transfer", wrong)) == (404, code)
        assert (await admin.get("/api/v1/pipeline/app-ids?cursor=x")).status == 422
    async with program(home, "admin", "new.*", "more.*") as limited:
        assert (await limited.get("/api/v1/pipeline/app-ids")).status == 403
        assert (await call(limited, "app-ids/transfer", {"app_id": "a", "owner": None}))[0] == 403


async def test_limited_operator_needs_the_queues_of_a_token(
    home: BrokerFixture, spark: HttpUser
) -> None:
    await stage(spark, "t", stream(("orders", "a", None)))
    async with program(home, OPERATOR, "mail") as limited:
        assert await call(limited, "unstage", {"tokens": ["t"]}) == (200, {"unstaged": 0})
        asked = {"app_id": "mine", "version": 1, "tokens": ["t"]}
        assert await refusal(call(limited, "publish", asked)) == (403, "foreign_queue")
    assert (await call(spark, "publish", asked | {"app_id": "own"}))[1]["published"] == 1


async def test_token_is_staged_once_and_dropped(home: BrokerFixture, spark: HttpUser) -> None:
    await stage(spark, "t", stream(("orders", "a", None)))
    assert await refusal(stage(spark, "t", stream(("orders", "b", None)))) == (409, "token_staged")
    assert await call(spark, "unstage", {"tokens": ["t", "nothing"]}) == (200, {"unstaged": 1})
    status, _ = await call(spark, "publish", {"app_id": "a", "version": 1, "tokens": ["t"]})
    assert status == 404


async def test_row_count_is_compared(spark: HttpUser) -> None:
    raw = stream(("orders", "a", None), ("orders", "b", None))
    status, problem = await stage(spark, "t", raw, **{"X-Row-Count": "3"})
    assert (status, problem["code"], problem["bound"]) == (422, "row_count", "2")
    assert (await stage(spark, "t", raw, **{"X-Row-Count": "-1"}))[0] == 422
    assert (await stage(spark, "t", raw, **{"X-Row-Count": "2"}))[0] == 200


async def test_invalid_stream_stores_nothing(
    home: BrokerFixture, spark: HttpUser, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(request_body, "body_limit", lambda _: 4_096)

    async def unannounced() -> AsyncIterator[bytes]:
        for _ in range(5):
            yield b"x" * 1_000

    raw = stream(("orders", "a", None))
    for what, sent, status, code in (
        ("cut off", raw[:-8], 422, "bad_arrow"),
        ("nothing", b"", 422, "bad_arrow"),
        ("bad name", stream(("a\rb", "x", None)), 422, "invalid"),
        ("too large", b"x" * 4_097, 413, "too_large"),
        ("too large, unannounced", unannounced(), 413, "too_large"),
    ):
        found, problem = await stage(spark, "t", sent)
        assert (what, found, problem["code"]) == (what, status, code)
    assert (await stage(spark, "%20", raw))[0] == 422
    assert (await stage(spark, "x" * 129, raw))[0] == 422
    answer = await spark.request("POST", "/api/v1/pipeline/stage?token=t", json={})
    assert answer.status == 415
    assert home.rows("SELECT count(*) FROM stage") == [(0,)]
    assert (await stage(spark, "t", raw))[0] == 200


@pytest.mark.parametrize("sent", [0, 0.5, 1])
async def test_cut_upload_stores_nothing(home: BrokerFixture, spark: HttpUser, sent: float) -> None:
    """The connection ends after a part, or before the last announced byte."""
    raw = stream(*[("orders", "x" * 100, None)] * 5_000)
    _, writer = await asyncio.open_connection("127.0.0.1", URL(home.url).port)
    head = (
        "POST /api/v1/pipeline/stage?token=t HTTP/1.1\r\nHost: 127.0.0.1\r\n"
        f"Authorization: Bearer {spark.secret}\r\nContent-Type: {arrow_export.MEDIA}\r\n"
        f"Content-Length: {len(raw) + 1}\r\n\r\n"
    )
    writer.write(head.encode() + raw[: int(len(raw) * sent)])
    await writer.drain()
    writer.close()  # in both directions: the reply is not read
    await writer.wait_closed()
    await wait_until(lambda: "pipeline.stage" in [row[2] for row in home.audit()])
    assert home.audit()[-1][2:] == ("pipeline.stage", "t", 0, "cut_off")
    assert home.rows("SELECT count(*) FROM stage") == [(0,)]
    assert (await stage(spark, "t", raw))[0] == 200


async def test_upload_that_exceeds_the_limit_at_its_last_byte_stores_nothing(
    home: BrokerFixture, spark: HttpUser, monkeypatch: pytest.MonkeyPatch
) -> None:
    raw = stream(*[("orders", "x" * 100, None)] * 5_000)

    async def unannounced() -> AsyncIterator[bytes]:
        yield raw[:-1]
        yield raw[-1:]

    monkeypatch.setattr(request_body, "body_limit", lambda _: len(raw) - 1)
    for sent in (raw, unannounced()):
        assert await refusal(stage(spark, "t", sent)) == (413, "too_large")
    assert home.rows("SELECT count(*) FROM stage") == [(0,)]
    monkeypatch.setattr(request_body, "body_limit", lambda _: len(raw))
    assert (await stage(spark, "t", raw))[0] == 200


async def test_failure_between_slices_drops_the_token(home: BrokerFixture, spark: HttpUser) -> None:
    """The second slice exceeds the limit of queues; the first is dropped too."""
    rows = [(f"q{at}", "x", None) for at in range(10_001)]
    assert await refusal(stage(spark, "t", stream(*rows))) == (422, "too_many_queues")
    status, problem = await call(spark, "publish", {"app_id": "a", "version": 1, "tokens": ["t"]})
    assert (status, problem["code"]) == (404, "unknown_token")


@NEEDS_SOURCES
async def test_token_whose_first_slice_was_not_answered_is_dropped(
    spark: HttpUser, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be stored or not; the client will not send the rest."""
    raw = stream(("orders", "a", None))
    with monkeypatch.context() as hurry:
        hurry.setattr(engine, "REPLY_S", 0)
        status, problem = await stage(spark, "t", raw)
    assert (status, problem["code"]) == (503, "no_answer")
    assert (await stage(spark, "t", raw))[0] == 200
    status, problem = await stage(spark, "t", raw)  # that it is not ours is known for sure
    assert (status, problem["code"]) == (409, "token_staged")
    status, _ = await call(spark, "publish", {"app_id": "a", "version": 1, "tokens": ["t"]})
    assert status == 200


async def test_stalled_upload_is_ended(spark: HttpUser, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_body, "STALLED_S", 0.05)

    assert await refusal(stage(spark, "t", _endless())) == (408, "stalled")


async def test_upload_without_a_slot_is_asked_to_retry(
    home: BrokerFixture, spark: HttpUser, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staging, "_SLOT_S", 0.05)
    go_on = asyncio.Event()
    store = staging._store

    async def slowly(*given: Any) -> None:
        await go_on.wait()
        await store(*given)

    monkeypatch.setattr(staging, "_store", slowly)
    raw = stream(("orders", "a", None))
    waiting = [asyncio.create_task(stage(spark, f"t{at}", raw)) for at in range(2)]
    await wait_until(lambda: context_of(home).app[UPLOAD_SLOTS].free == 0)
    status, problem = await stage(spark, "t", raw)
    assert (status, problem["code"], problem["bound"]) == (503, "busy", "2 at a time")
    go_on.set()
    assert [status for status, _ in await asyncio.gather(*waiting)] == [200, 200]
    assert (await stage(spark, "t", raw))[0] == 200  # the slots are free again


async def test_endless_uploads_do_not_block_others(
    home: BrokerFixture, spark: HttpUser, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staging, "_SLOT_S", 0.05)
    async with program(home, OPERATOR, "b-*") as other:
        slow = [asyncio.create_task(stage(other, f"s{at}", _endless())) for at in range(8)]
        await wait_until(lambda: context_of(home).app[LIMITS].admission.connections >= 8)
        assert (await stage(spark, "t", stream(("orders", "a", None))))[0] == 200
        for task in slow:
            task.cancel()
        await asyncio.gather(*slow, return_exceptions=True)


async def test_broker_without_pyarrow_names_the_extra(
    spark: HttpUser, monkeypatch: pytest.MonkeyPatch
) -> None:
    raw = stream(("orders", "a", None))
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    status, problem = await stage(spark, "t", raw)
    assert (status, problem["code"]) == (501, "no_arrow")
    assert "export]" in problem["detail"]


async def test_program_limited_to_queues_stages_for_those_only(home: BrokerFixture) -> None:
    async with program(home, OPERATOR, "orders*") as narrow:
        raw = stream(("orders.new", "a", None), ("mail", "b", None))
        assert await refusal(stage(narrow, "t", raw)) == (403, "foreign_queue")
        assert (await stage(narrow, "t", stream(("orders.new", "a", None))))[0] == 200


async def test_paused_queue_refuses_the_publish_whole(home: BrokerFixture, spark: HttpUser) -> None:
    await home.control("POST", "/queues/mail/messages", {"content": "x"})
    await home.control("POST", "/queues/mail/pause", {"side": "publishing"})
    await stage(spark, "t", stream(("orders", "a", None), ("mail", "b", None)))
    status, problem = await call(spark, "publish", {"app_id": "a", "version": 1, "tokens": ["t"]})
    assert (status, problem["code"]) == (409, "paused")
    assert home.rows("SELECT count(*) FROM message") == [(1,)]
    await home.control("POST", "/queues/mail/resume", {"side": "publishing"})
    status, done = await call(spark, "publish", {"app_id": "a", "version": 1, "tokens": ["t"]})
    assert (status, done["published"]) == (200, 2)


# -- the summary


def shown(made: dict[str, Any]) -> Any:
    """Return the answer to a summary: only the members that docs/reference/api.md names."""
    return read_summary(as_bytes(made)).model_dump(mode="json")


async def test_summary_has_the_same_members_for_all(home: BrokerFixture, spark: HttpUser) -> None:
    own = [{"queue": "orders", "published": 1, "expired_never": 0}]
    made = summary(NOW, queues=own)
    made["urns"][0]["published"] = 7
    assert (await spark.call("PUT", "/pipeline/insights", made)).status == 204
    assert json.loads((home.data / "pipeline" / "summary.json").read_text()) == made
    async with program(home, "viewer", "orders*") as narrow:
        whole, part = [
            json.loads((await visitor.get("/api/v1/pipeline/insights")).text)
            for visitor in (spark, narrow)
        ]
    assert whole.keys() == part.keys() == PipelineSummary.model_fields.keys()
    for name in ("last24h", "last30d", "urns", "deaths", "paths"):
        assert whole[name][0].keys() == part[name][0].keys()
    assert whole["last24h"][0]["at_ms"] == made["last24h"][0]["minute"]
    assert whole["last30d"][0]["at_ms"] == made["last30d"][0]["hour"]


async def test_summary_is_replaced_and_returned(home: BrokerFixture, spark: HttpUser) -> None:
    assert (await spark.get("/api/v1/pipeline/insights")).status == 404
    for version in (summary(NOW), summary(NOW + 1, later={"unknown": 1})):
        assert (await spark.call("PUT", "/pipeline/insights", version)).status == 204
        found = await spark.get("/api/v1/pipeline/insights")
        assert json.loads(found.text) == shown(version)
    folder = home.data / "pipeline"
    assert [path.name for path in folder.iterdir()] == ["summary.json"]
    assert (folder.stat().st_mode & 0o777, (folder / "summary.json").stat().st_mode & 0o777) == (
        0o700, 0o600,
    )  # fmt: skip
    assert home.audit()[-1][2:] == ("pipeline.insights", "summary.json", 1, "done")


async def test_absent_figures_of_a_summary_keep_those_of_another_folder(
    home: BrokerFixture, spark: HttpUser
) -> None:
    """As ``consume --out elsewhere`` sends it; its figures are not 0, they are absent."""
    jobs = [{"name": name, "state": "done", "offset": 7} for name in ("archive", "consume")]
    whole = summary(NOW, jobs=jobs)
    consumed = {"name": "consume", "state": "failed", "error": "x"}
    later = {"version": 1, "finished_at": NOW + 9, "jobs": [consumed]}
    for sent, expected in (
        (whole, whole),
        (later, whole | {"jobs": [jobs[0], consumed]}),  # the figures are not younger
        ({"version": 1, "finished_at": NOW + 10, "urns": []},
         whole | {"jobs": [jobs[0], consumed], "urns": [], "finished_at": NOW + 10}),
    ):  # fmt: skip
        assert (await spark.call("PUT", "/pipeline/insights", sent)).status == 204
        found = json.loads((await spark.get("/api/v1/pipeline/insights")).text)
        assert found == shown(expected)


async def test_summary_without_an_archive_has_unknown_figures(
    home: BrokerFixture, spark: HttpUser
) -> None:
    job = {"name": "consume", "state": "done"}
    sent = {"version": 1, "finished_at": NOW, "jobs": [job]}
    assert (await spark.call("PUT", "/pipeline/insights", sent)).status == 204
    found = json.loads((await spark.get("/api/v1/pipeline/insights")).text)
    assert {found["archive"][name] for name in ("offset", "rows", "dates", "bytes", "gaps")} == {
        None
    }
    page = (await spark.get("/insights?span=30d")).text
    assert 'Archived messages</dt><dd><span class="zero">–' in page
    for tab in ("queues", "jobs"):
        assert (await spark.get(f"/insights?tab={tab}&span=30d")).status == 200


async def test_history_names_the_queues_of_the_token(home: BrokerFixture, spark: HttpUser) -> None:
    for queue in ("orders", "mails"):
        await home.control("POST", f"/queues/{queue}/messages", {"content": "x"})
        await home.control("POST", f"/queues/{queue}/purge", {})
    digests = set()
    for globs, expected in (
        ((), []),
        (("orders", "x*"), ["orders", "x*"]),
        (("mails", "orders", "*"), []),  # all queues
    ):
        async with program(home, "viewer", *globs) as visitor:
            found = await visitor.get("/api/v1/pipeline/history/bounds")
            assert json.loads(found.text).get("allowed", []) == expected
            answer = await visitor.get("/api/v1/pipeline/history/arrow?lo=0&hi=0&gap=ok")
            assert answer.status == 200, answer.text
            assert answer.headers["X-Queue-Globs"] == globs_digest(expected)
            digests.add(answer.headers["X-Queue-Globs"])
    assert len(digests) == 2


async def test_invalid_summary_is_refused(home: BrokerFixture, spark: HttpUser) -> None:
    kept = summary(NOW)
    await spark.call("PUT", "/pipeline/insights", kept)
    for raw, status, code in (
        (b"", 422, "bad_summary"),
        (b'{"version": 2, "finished_at": 1}', 422, "bad_summary"),
        (b"{" + b" " * (2 << 20) + b"}", 413, "too_large"),
    ):
        headers = {"Content-Type": "application/json"}
        path = "/api/v1/pipeline/insights"
        answer = await spark.request("PUT", path, headers, data=io.BytesIO(raw))
        assert (answer.status, json.loads(answer.text)["code"]) == (status, code)
        assert json.loads((await spark.get(path)).text) == shown(kept)
        assert home.audit()[-1][2:] == ("pipeline.insights", "", 0, code)


async def test_limited_caller_sees_the_summary_of_their_queues_only(home: BrokerFixture) -> None:
    (home.data / "pipeline").mkdir()
    (home.data / "pipeline" / "summary.json").write_bytes(as_bytes(summary(NOW)))
    async with AsyncExitStack() as stack:
        narrow = await stack.enter_async_context(program(home, OPERATOR, "orders*"))
        viewer = await stack.enter_async_context(program(home, "viewer", "orders*"))
        for visitor in (narrow, viewer):
            text = (await visitor.get("/api/v1/pipeline/insights")).text
            assert {row["queue"] for row in json.loads(text)["last24h"]} == {"orders"}
            assert "shop.cart" not in text
        answer = await narrow.call("PUT", "/pipeline/insights", summary(NOW))
        assert (answer.status, json.loads(answer.text)["code"]) == (403, "foreign_queue")


async def test_broken_summary_file_is_reported(home: BrokerFixture, spark: HttpUser) -> None:
    file = home.data / "pipeline" / "summary.json"
    file.parent.mkdir()
    file.write_bytes(b"x" * ((2 << 20) + 1))
    answer = await spark.get("/api/v1/pipeline/insights")
    assert (answer.status, json.loads(answer.text)["code"]) == (503, "bad_summary")
    file.unlink()
    file.mkdir()
    assert (await spark.get("/api/v1/pipeline/insights")).status == 503


async def test_concurrent_summaries_are_written_atomically(tmp_path: Path) -> None:
    file = SummaryFile(tmp_path)
    made = [as_bytes(summary(NOW + at)) for at in range(4)]
    await asyncio.gather(*map(file.write, made))
    assert file.path.read_bytes() in made
    assert [path.name for path in file.path.parent.iterdir()] == ["summary.json"]


async def test_unwritable_summary_is_reported(home: BrokerFixture, spark: HttpUser) -> None:
    (home.data / "pipeline").write_bytes(b"")  # no folder
    answer = await spark.call("PUT", "/pipeline/insights", summary(NOW))
    problem = json.loads(answer.text)
    assert (answer.status, problem["code"]) == (503, "storage")
    assert str(home.data / "pipeline" / "summary.json") in problem["detail"]
