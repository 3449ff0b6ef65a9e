"""The admin over real HTTP on a real database; the engine is made up."""

import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer
from yarl import URL

from phpmq_lite.admin.access.headers import HEADERS
from phpmq_lite.admin.app import create_app
from phpmq_lite.admin.route import Route
from phpmq_lite.admin.routes import ROUTES
from phpmq_lite.admin.urls import encode_name
from phpmq_lite.errors import RefusedError
from phpmq_lite.settings import Settings
from phpmq_lite.storage.readers import Readers
from tests.unit.admin.cases import (
    HOSTILE,
    NOW_MS,
    Database,
    FakeEngine,
    broker_status,
    client_status,
    queue_status,
)

Client = TestClient[web.Request, web.Application]
Answer = tuple[int, str]
MESSAGE = json.dumps({"order_id": 1042}).encode()


class Admin:
    """A running admin with everything behind it."""

    def __init__(self, database: Database, engine: FakeEngine) -> None:
        self.database = database
        self.engine = engine
        self.is_ready = True
        self.client: Client
        self.base = ""

    @property
    def origin(self) -> str:
        """Where its pages come from."""
        return f"http://{self.client.host}:{self.client.port}"

    async def get(self, path: str, **headers: str) -> Answer:
        """Ask for a path exactly as written."""
        async with self.client.get(self.url(path), headers=headers) as response:
            return response.status, await response.text()

    async def post(
        self, path: str, data: Any = None, *, is_json: bool = True, **headers: str
    ) -> Answer:
        """Send JSON, or a form with the token of this session and our own Origin."""
        if is_json:
            sent: dict[str, Any] = {"json": {} if data is None else data}
        else:
            headers = {"Origin": self.origin} | headers
            sent = {"data": {"csrf": await self.token()} | (data or {})}
        async with self.client.post(
            self.url(path), headers=headers, allow_redirects=False, **sent
        ) as response:
            return response.status, response.headers.get("Location") or await response.text()

    async def token(self) -> str:
        """Read the token out of a form."""
        _, text = await self.get("/queues/orders")
        found = re.search(r'name="csrf" value="(\w+)"', text)
        assert found is not None
        return found[1]

    def url(self, path: str) -> URL:
        return URL(self.base + path, encoded=True)


Start = Callable[..., Awaitable[Admin]]


@pytest.fixture
async def start(tmp_path: Path) -> AsyncIterator[Start]:
    """Give a function that starts an admin; all are stopped at the end."""
    stops: list[Callable[[], Awaitable[None]]] = []

    async def run(*, base_path: str = "", hosts: tuple[str, ...] = (), **sections: Any) -> Admin:
        database = Database(tmp_path / "phpmq.db")
        queues = []
        for queue_id, name in enumerate(("orders", "orders.dlq", *HOSTILE), 1):
            database.queue(name, queue_id)
            queues.append(queue_status(name, queue_id, ready=1, totals={"published": 1}))
        admin = Admin(database, FakeEngine(broker_status(*queues)))
        readers = Readers(database.path)
        own: Any = {"hosts": list(hosts), "base_path": base_path}
        app = create_app(
            admin.engine, readers, Settings(data=tmp_path, admin=own, **sections),
            version="0.1.0", is_ready=lambda: admin.is_ready, now_ms=lambda: NOW_MS,
        )  # fmt: skip
        admin.base = base_path
        jar = aiohttp.CookieJar(unsafe=True)  # cookies for an address
        admin.client = TestClient(TestServer(app), cookie_jar=jar)
        await admin.client.start_server()
        stops.extend((admin.client.close, readers.close))
        return admin

    yield run
    for stop in stops:
        await stop()


@pytest.fixture
async def admin(start: Start) -> Admin:
    return await start()


# -- reading


@pytest.mark.parametrize("name", HOSTILE)
async def test_queue_with_a_hostile_name_has_its_pages(admin: Admin, name: str) -> None:
    admin.database.message(3 + HOSTILE.index(name), MESSAGE)
    segment = encode_name(name)
    status, text = await admin.get(f"/queues/{segment}")
    assert (status, "order_id" in text, "<script>alert" in text) == (200, True, False)
    status, text = await admin.get(f"/api/v1/queues/{segment}")
    assert (status, json.loads(text)["name"]) == (200, name)
    status, text = await admin.get(f"/api/v1/queues/{segment}/messages")
    assert json.loads(text)["items"][0]["queue"] == name


@pytest.mark.parametrize("path", ["/", "/queues"])
async def test_list_of_queues_escapes_hostile_names(admin: Admin, path: str) -> None:
    status, text = await admin.get(path)
    assert status == 200
    assert "<script>alert" not in text
    assert "\u202e" not in re.sub(r' value="[^"]*"', "", text)  # sent back, never shown


async def test_overview_of_an_empty_broker_shows_the_first_steps(admin: Admin) -> None:
    admin.engine.now = broker_status(listeners=("127.0.0.1:49152",))
    status, text = await admin.get("/")
    assert status == 200
    assert "A queue appears with its first message" in text
    assert "tcp://127.0.0.1:49152" in text


@pytest.mark.parametrize(
    "path",
    ["/", "/queues", "/queues/orders", "/queues/orders?tab=dead", "/queues/orders?tab=history",
     "/dead", "/clients", "/history"],
)  # fmt: skip
async def test_list_has_other_formats_at_the_same_address(admin: Admin, path: str) -> None:
    admin.engine.now = broker_status(
        queue_status("orders", 1), queue_status("orders.dlq", 2), clients=(client_status(),)
    )
    admin.database.message(1)
    admin.database.message(2, source_seq=1, source_queue_id=1, source_reason="client")
    admin.database.settled(1)
    sign = "&" if "?" in path else "?"
    status, text = await admin.get(f"{path}{sign}format=json")
    items = json.loads(text)["items"]
    assert (status, bool(items)) == (200, True)
    status, text = await admin.get(f"{path}{sign}format=jsonl")
    assert [*items, json.loads(text.splitlines()[-1])] == list(map(json.loads, text.splitlines()))
    assert json.loads(text.splitlines()[-1])["complete"] is True
    status, text = await admin.get(f"{path}{sign}format=csv")
    assert (status, text.splitlines()[0].split(",")) == (200, list(items[0]))


async def test_queue_page_leads_through_all_messages(admin: Admin) -> None:
    for _ in range(120):
        admin.database.message(1, MESSAGE)
    path, seen = "/queues/orders", []
    while path:
        _, text = await admin.get(path)
        seen += re.findall(r'class="id" href="/messages/(\w+)"', text)
        found = re.search(r'rel="next" href="([^"]+)"', text)
        path = found[1].replace("&amp;", "&") if found else ""
    assert seen == sorted(seen)
    assert len(seen) == 120


async def test_message_page_shows_facts_body_and_life(admin: Admin) -> None:
    admin.database.client(4, "10.0.0.9:77")
    known = admin.database.message(1, MESSAGE, state=1, consumer=4, deliveries=1,
                                   first_dispatched_at=NOW_MS - 5_000)  # fmt: skip
    admin.database.event(known, "return", "connection ended")
    status, text = await admin.get(f"/messages/{known}")
    assert status == 200
    for expected in ("10.0.0.9:77", "order_id", "Returned to its old place", "Dispatched"):
        assert expected in text


@pytest.mark.parametrize(
    ("content", "shown"),
    [
        (b"<script>alert(1)</script>", "&lt;script&gt;"),
        (b"\xff\xfe\x00", "This is not UTF-8."),
        (b"", "An empty body"),
        (b"x" * 300_000, "The first 64 KiB of 293 KiB."),
        (None, "The body is not stored any more"),
        (b'{"a":' * 2_000, "{&#34;a&#34;:"),
    ],
)
async def test_any_body_has_a_page(admin: Admin, content: bytes | None, shown: str) -> None:
    known = admin.database.message(1, content)
    for view in ("", "?view=raw", "?view=hex", "?view=pretty"):
        status, text = await admin.get(f"/messages/{known}{view}")
        assert status == 200
        assert "<script>alert" not in text
        if not view:
            assert shown in text


async def test_body_downloads_whole_and_is_never_shown(admin: Admin) -> None:
    content = bytes(range(256)) * 3_000
    known = admin.database.message(1, content)
    async with admin.client.get(f"/messages/{known}/body") as response:
        assert await response.read() == content
        assert response.headers["Content-Type"] == "application/octet-stream"
        assert response.headers["Content-Disposition"] == f'attachment; filename="{known}"'
        assert response.headers["Content-Security-Policy"].startswith("sandbox; ")


async def test_damaged_body_says_so(admin: Admin) -> None:
    known = admin.database.message(1, MESSAGE, crc=1)
    _, text = await admin.get(f"/messages/{known}")
    assert "this body is damaged" in text
    async with admin.client.get(f"/messages/{known}/body") as response:
        assert ".damaged" in response.headers["Content-Disposition"]


async def test_message_that_left_is_gone_and_a_foreign_id_unknown(admin: Admin) -> None:
    known = admin.database.message(1)
    for path in ("/messages/", "/api/v1/messages/"):
        assert (await admin.get(path + known[:16] + "1" * 16))[0] == 410
        assert (await admin.get(path + "f" * 32))[0] == 404
        assert (await admin.get(path + "nonsense"))[0] == 404


async def test_search_leads_to_the_page(admin: Admin) -> None:
    known = admin.database.message(1)
    found = {}
    for text in (known.upper(), "a/b", "nothing here"):
        async with admin.client.get(
            "/search", params={"q": text}, allow_redirects=False
        ) as response:
            found[text] = (response.status, response.headers["Location"])
    assert list(found.values()) == [
        (303, f"/messages/{known}"),
        (303, "/queues/a%2Fb"),
        (303, "/messages?q=nothing+here"),
    ]


async def test_looking_changes_nothing(admin: Admin) -> None:
    ids = [admin.database.message(1, MESSAGE, state=at % 2) for at in range(5)]
    ids += [admin.database.settled(1, MESSAGE)]
    admin.database.message(2, source_seq=1, source_queue_id=1, source_reason="client")
    admin.database.connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    before, file = admin.database.everything(), admin.database.path.read_bytes()
    for path in [route.path for route in ROUTES if not route.is_writing] * 10:
        for known in ids:
            await admin.get(path.replace("{q}", "orders").replace("{id}", known))
    assert admin.database.everything() == before
    assert admin.database.path.read_bytes() == file
    assert admin.engine.core.asked == []


# -- the HTTP API


async def test_api_publishes_after_the_commit_and_gives_the_ids(admin: Admin) -> None:
    answer = await admin.post("/api/v1/queues/new%2Fone/messages", {"content": "é", "ttl_s": 5})
    assert answer == (201, json.dumps({"ids": [f"{1:032x}"]}))
    many = [{"content": "/wA=", "encoding": "base64"}, {"content": ""}]
    status, _ = await admin.post("/api/v1/queues/x/messages", many)
    assert status == 201
    assert admin.engine.core.asked == [
        ("publish_local", 0, "new/one", "é".encode(), 5),
        ("publish_local", 0, "x", b"\xff\x00", None),
        ("publish_local", 0, "x", b"", None),
    ]


@pytest.mark.parametrize(
    ("path", "body", "status", "field"),
    [
        ("orders", {"content": 5}, 422, "0.content"),
        ("orders", {"content": "a", "ttl_s": -1}, 422, "0.ttl_s"),
        ("orders", {"content": "a", "more": 1}, 422, "0.more"),
        ("orders", {"content": "!", "encoding": "base64"}, 422, "0"),
        ("orders", {"content": "a", "encoding": "utf-16"}, 422, "0.encoding"),
        ("orders", [], 422, None),
        ("orders", "text", 422, "0"),
        ("orders", [{"content": "a"}] * 1_001, 422, None),
        ("orders", {"content": "x" * 2_000}, 413, "0.content"),
        ("%0A", {"content": "a"}, 422, "queue"),
        ("x" * 256, {"content": "a"}, 422, "queue"),
    ],
)
async def test_api_refuses_a_wrong_message_and_names_the_field(
    start: Start, path: str, body: Any, status: int, field: str | None
) -> None:
    admin = await start(limits={"max_content": 1_000})
    got, text = await admin.post(f"/api/v1/queues/{path}/messages", body)
    problem = json.loads(text)
    assert (got, problem["status"], problem.get("field")) == (status, status, field)
    assert {"title", "detail", "code", "request_id"} <= problem.keys()
    assert admin.engine.core.asked == []


async def test_api_refuses_what_is_not_json(admin: Admin) -> None:
    for path in ("/api/v1/queues/orders/messages", "/api/v1/queues/orders/purge"):
        async with admin.client.post(
            path, data=b"{", headers={"Content-Type": "application/json"}
        ) as response:
            assert (response.status, (await response.json())["code"]) == (400, "malformed")


async def test_api_takes_no_idempotency_key_silently(admin: Admin) -> None:
    async with admin.client.post(
        "/api/v1/queues/x/messages", json={"content": "a"}, headers={"Idempotency-Key": "k"}
    ) as response:
        status = response.status
    assert (status, admin.engine.core.asked) == (501, [])


async def test_api_changes_queues(admin: Admin) -> None:
    answers = [
        await admin.post("/api/v1/queues/orders/purge", {"dispatched": True}),
        await admin.post("/api/v1/queues/orders/pause", {"side": "publish"}),
        await admin.post("/api/v1/queues/~../resume", {}),
        await admin.post("/api/v1/dead/orders/redrive", {"ttl_s": 5, "limit": 9}),
        await admin.post("/api/v1/dead/orders.dlq/redrive", {"target": "mail"}),
    ]
    assert [status for status, _ in answers] == [200] * 5
    assert json.loads(answers[0][1]) == {"settled": 3}
    assert json.loads(answers[3][1]) == {"redriven": 3}
    assert admin.engine.core.asked == [
        ("purge", "orders", True),
        ("pause", "orders", "publishing", True),
        ("pause", "..", "delivery", False),
        ("redrive", "orders.dlq", None, 5, 9),
        ("redrive", "orders.dlq", "mail", None, None),
    ]


@pytest.mark.parametrize(
    ("code", "status"),
    [("unknown_queue", 404), ("paused", 409), ("queue_full_messages", 409), ("disk_full", 507),
     ("not_ready", 503)],
)  # fmt: skip
async def test_api_gives_a_refusal_its_status(admin: Admin, code: str, status: int) -> None:
    admin.engine.core.refusal = RefusedError(code, "the reason")
    got, text = await admin.post("/api/v1/queues/orders/purge")
    assert (got, json.loads(text)["code"], json.loads(text)["detail"]) == (
        status, code, "The reason.",
    )  # fmt: skip


async def test_api_gives_a_message_with_body_and_events(admin: Admin) -> None:
    known = admin.database.message(1, b"\xff\x00")
    admin.database.event(known, "requeue")
    _, text = await admin.get(f"/api/v1/messages/{known}")
    assert (json.loads(text)["id"], json.loads(text)["state"]) == (known, "ready")
    _, text = await admin.get(f"/api/v1/messages/{known}/body")
    assert json.loads(text) == {
        "content": "/wA=", "encoding": "base64", "size": 2, "is_whole": True,
    }  # fmt: skip
    _, text = await admin.get(f"/api/v1/messages/{known}/events")
    assert json.loads(text)["items"][0]["kind"] == "requeue"


@pytest.mark.parametrize(
    "query",
    ["limit=0", "limit=201", "limit=x", "cursor=x", "state=dead", "sort=x", "has=x", "format=xml",
     "tab=x", "view=x", "ids=a", "outcome=ready", "confirm=all"],
)  # fmt: skip
async def test_odd_query_is_never_our_fault(admin: Admin, query: str) -> None:
    known = admin.database.message(1)
    for route in ROUTES:
        if not route.is_writing:
            path = route.path.replace("{q}", "orders").replace("{id}", known)
            assert (await admin.get(f"{path}?{query}"))[0] < 500, path


# -- forms


async def test_form_acts_and_leads_back_with_a_note(admin: Admin) -> None:
    answer = await admin.post("/queues/a%2Fb/pause", {"side": "delivery"}, is_json=False)
    assert answer == (303, "/queues/a%2Fb")
    assert admin.engine.core.asked == [("pause", "a/b", "delivery", True)]
    _, text = await admin.get("/queues/a%2Fb")
    assert "Delivery of a/b is paused." in text
    _, text = await admin.get("/queues/a%2Fb")
    assert "is paused." not in text


async def test_purge_wants_the_name(admin: Admin) -> None:
    status, _ = await admin.post("/queues/orders/purge", {"name": "order"}, is_json=False)
    assert (status, admin.engine.core.asked) == (422, [])
    form = {"name": "orders", "dispatched": "yes"}
    status, _ = await admin.post("/queues/orders/purge", form, is_json=False)
    assert (status, admin.engine.core.asked) == (303, [("purge", "orders", True)])


async def test_redrive_form_takes_a_time_to_live(admin: Admin) -> None:
    await admin.post("/queues/orders/redrive", {"ttl_s": "60"}, is_json=False)
    await admin.post("/queues/orders/redrive", {"ttl_s": ""}, is_json=False)
    status, _ = await admin.post("/queues/orders/redrive", {"ttl_s": "-1"}, is_json=False)
    assert status == 422
    assert [asked[3] for asked in admin.engine.core.asked] == [60, None]


async def test_test_message_leads_to_its_page(admin: Admin) -> None:
    assert await admin.post("/test-message", is_json=False) == (303, f"/messages/{1:032x}")


WRITING = [route for route in ROUTES if route.is_writing]
FORMS = [route for route in WRITING if not route.is_api]


@pytest.mark.parametrize("route", WRITING, ids=lambda route: route.name)
async def test_change_from_elsewhere_is_refused(admin: Admin, route: Route) -> None:
    path = route.path.replace("{q}", "orders")
    data = {"side": "delivery", "name": "orders", "content": "x"}
    tries: dict[str, dict[str, str]] = {
        "foreign": {"Origin": "http://evil.example"},
        "null": {"Origin": "null"},
        "other port": {"Origin": f"http://{admin.client.host}:1"},
        "cross-site": {"Sec-Fetch-Site": "cross-site"},
    }
    for what, headers in tries.items():
        status, _ = await admin.post(path, data, is_json=route.is_api, **headers)
        assert (what, status) == (what, 403)
    if not route.is_api:
        for wrong in ("", "0" * 64):
            assert (await admin.post(path, {"csrf": wrong}, is_json=False))[0] == 403
        async with admin.client.post(path, data={"csrf": await admin.token()}) as response:
            assert response.status == 403  # no Origin
    for media_type in ("text/plain", "multipart/form-data; boundary=x"):
        async with admin.client.post(
            path, data=b"{}", headers={"Content-Type": media_type, "Origin": admin.origin}
        ) as response:
            assert response.status == 415
    assert admin.engine.core.asked == []


@pytest.mark.parametrize("route", WRITING, ids=lambda route: route.name)
async def test_route_that_writes_does_not_answer_get(admin: Admin, route: Route) -> None:
    twin = {other.path for other in ROUTES if not other.is_writing}
    if route.path not in twin:
        async with admin.client.get(route.path.replace("{q}", "orders")) as response:
            assert (response.status, response.headers["Allow"]) == (405, "POST")


# -- hosts, headers, errors, health


async def test_foreign_host_gets_nothing(admin: Admin) -> None:
    paths = [route.path.replace("{q}", "orders") for route in ROUTES]
    for path in [*paths, "/static/app.css", "/nowhere"]:
        assert await admin.get(path, Host="rebound.example") == (421, "")


async def test_named_host_is_answered(start: Start) -> None:
    admin = await start(hosts=("mq.example",))
    assert (await admin.get("/livez", Host="mq.example:80"))[0] == 200
    assert (await admin.get("/livez", Host="other.example"))[0] == 421


async def test_every_answer_has_the_security_headers(admin: Admin) -> None:
    known = admin.database.message(1)
    paths = [r.path.replace("{q}", "orders").replace("{id}", known) for r in ROUTES]
    for path in [*paths, "/static/app.css", "/static/nothing", "/nowhere", "/messages/x", "/x//y"]:
        for host in ({}, {"Host": "rebound.example"}):
            async with admin.client.get(admin.url(path), headers=host) as response:
                missing = [
                    name
                    for name, value in HEADERS.items()
                    if not response.headers.get(name, "-").endswith(value)
                ]
                assert (path, missing) == (path, [])
                if not path.startswith("/static/app"):
                    assert response.headers["Cache-Control"] == "no-store"


async def test_failure_is_logged_and_leaks_nothing(
    admin: Admin, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail() -> None:
        raise LookupError("a secret")

    monkeypatch.setattr(admin.engine, "status", fail)
    status, text = await admin.get("/api/v1/queues")
    assert (status, json.loads(text)["code"], "secret" in text) == (500, "internal", False)
    assert json.loads(text)["request_id"] in "".join(capsys.readouterr())


async def test_error_is_a_page_for_people_and_json_for_programs(admin: Admin) -> None:
    async with admin.client.get("/queues/nope") as response:
        assert (response.status, response.content_type) == (404, "text/html")
        assert "No such queue" in await response.text()
    for path in ("/queues/nope?format=json", "/api/v1/queues/nope"):
        async with admin.client.get(path) as response:
            assert (response.status, response.content_type) == (404, "application/problem+json")


async def test_only_health_answers_before_the_broker_is_ready(admin: Admin) -> None:
    admin.is_ready = False
    admin.engine.now = broker_status(is_ready=False, step="reading 5 of 9")
    assert await admin.get("/livez") == (200, "alive\n")
    assert await admin.get("/readyz") == (503, "starting\n")
    assert await admin.get("/startupz") == (503, "starting: reading 5 of 9\n")
    status, text = await admin.get("/")
    assert (status, "reading 5 of 9" in text) == (503, True)
    assert (await admin.get("/metrics"))[0] == 503
    admin.is_ready = True
    assert await admin.get("/readyz") == (200, "ready\n")
    assert await admin.get("/startupz") == (200, "started\n")


@pytest.mark.parametrize("is_ready", [True, False])
async def test_readiness_ends_while_draining_and_pages_stay(admin: Admin, is_ready: bool) -> None:
    admin.is_ready = is_ready
    admin.engine.now = broker_status(is_draining=True)
    assert await admin.get("/readyz") == (503, "draining\n")
    assert (await admin.get("/"))[0] == 200


async def test_metrics_have_ages_and_requests(admin: Admin) -> None:
    admin.database.message(1, published_at=NOW_MS - 2_000)
    await admin.get("/queues")
    _, text = await admin.get("/metrics")
    assert 'phpmq_queue_oldest_deliverable_age_seconds{queue="orders"} 2.0' in text
    assert 'phpmq_http_requests_total{method="GET",route="queues",status="200"} 1.0' in text


async def test_base_path_is_in_every_link(start: Start) -> None:
    admin = await start(base_path="/team/mq")
    known = admin.database.message(1)
    for path in ("/", "/queues", "/queues/orders", f"/messages/{known}", "/history", "/nowhere"):
        _, text = await admin.get(path)
        links = re.findall(r'(?:href|src|action|data-live-url)="([^"#]+)"', text)
        assert [link for link in links if not link.startswith("/team/mq/")] == []
    assert (await admin.post("/queues/orders/pause", {"side": "delivery"}, is_json=False)) == (
        303, "/team/mq/queues/orders",
    )  # fmt: skip
    admin.base = ""  # a proxy that strips the path, and the command line
    assert (await admin.get("/api/v1/queues"))[0] == 200


async def test_control_socket_needs_neither_host_nor_origin(tmp_path: Path, admin: Admin) -> None:
    socket = tmp_path / "control.sock"
    runner = web.AppRunner(
        create_app(
            admin.engine, Readers(admin.database.path), Settings(), version="0.1.0",
            is_ready=lambda: True,
        )
    )  # fmt: skip
    await runner.setup()
    await web.UnixSite(runner, str(socket)).start()
    async with aiohttp.ClientSession(connector=aiohttp.UnixConnector(str(socket))) as session:
        headers = {"Origin": "http://evil.example"}
        async with session.post(
            "http://any.name/api/v1/queues/orders/purge", json={}, headers=headers
        ) as response:
            assert response.status == 200
    await runner.cleanup()
