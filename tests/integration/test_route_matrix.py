"""Each route with each role, and each writing route with each kind of cross-site request.

The cases come from the table of routes, so new routes are included automatically.
"""

import re
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from phpmq_lite.admin.accounts import services
from phpmq_lite.admin.http.route import Route
from phpmq_lite.admin.routes import ROUTES
from phpmq_lite.roles import Role
from tests.support.http_users import BrokerFixture, HttpUser, broker_fixture, wait_until

WRITING = [route for route in ROUTES if route.is_writing]
READING = [route for route in ROUTES if not route.is_writing and route.role is not Role.PUBLIC]
# Tables that the broker writes by itself.
NOT_COMPARED = {
    "audit", "rollup", "counter", "start", "history_run", "trace_place",
    "sqlite_sequence",
}  # fmt: skip
ACTORS = {Role.PUBLIC: "nobody", Role.METRICS: "token metrics"}
STREAMS = {"events", "api-events-stream", "wait", "api-wait"}
FOREIGN: dict[str, dict[str, str | None]] = {
    "no token": {},
    "wrong token": {"X-CSRF-Token": "0" * 64},
    "no Origin": {"Origin": None},
    "foreign Origin": {"Origin": "http://evil.example"},
    "null Origin": {"Origin": "null"},
    "other port": {"Origin": "http://127.0.0.1:1"},
    "cross-site": {"Sec-Fetch-Site": "cross-site"},
    "same-site": {"Sec-Fetch-Site": "same-site"},
}


@dataclass
class Stage:
    """A broker with a message, and a browser for each role."""

    home: BrokerFixture
    people: dict[Role, HttpUser]
    tokens: dict[Role, str]
    message_id: str

    def path(self, route: Route) -> str:
        """Return a path of a route whose parameters name existing objects."""
        path = route.path
        known = {"q": "orders", "id": self.message_id, "name": "viewer", "n": "1", "client": "1"}
        for name, value in known.items():
            path = path.replace(f"{{{name}}}", value)
        while "{" in path:
            before, _, rest = path.partition("{")
            path = f"{before}1{rest.partition('}')[2]}"
        return path

    async def send(
        self, role: Role, route: Route, headers: dict[str, str | None], token: str
    ) -> tuple[int, str]:
        """Send a request as our pages do, except ``headers`` and ``token``; return the reply."""
        given: dict[str, str | None] = {"Origin": self.home.url, "Sec-Fetch-Site": "same-origin"}
        body: dict[str, Any] = {"data": {"csrf": token, "side": "delivery", "name": "orders"}}
        if route.is_api:
            given["X-CSRF-Token"] = token
            body = {"json": {}}
            if route.media != "application/json":
                given["Content-Type"], body = route.media, {"data": b""}
        visitor = self.people[role]
        answer = await visitor.request(route.method, self.path(route), given | headers, **body)
        return answer.status, answer.text

    def rows(self, after: int) -> list[tuple[str, str, str]]:
        """Return actor, action and result of the audit rows after one."""
        return self.home.rows("SELECT actor, action, result FROM audit WHERE audit_id > ?", after)

    def last(self) -> int:
        """Return the number of the newest audit row."""
        return int(self.home.rows("SELECT max(audit_id) FROM audit")[0][0])

    def everything(self) -> dict[str, list[tuple[Any, ...]]]:
        """Return all rows that only people change."""
        return self.home.tables(NOT_COMPARED)


@pytest.fixture
async def stage(tmp_path: Path) -> AsyncIterator[Stage]:
    """Run a broker with three users, logged in, and an anonymous visitor."""
    async with broker_fixture(tmp_path / "data") as home, AsyncExitStack() as stack:
        made = await home.control("POST", "/queues/orders/messages", {"content": "{}"})
        people = {role: await stack.enter_async_context(HttpUser(home.url)) for role in Role}
        for role in (Role.ADMIN, Role.OPERATOR, Role.VIEWER):
            await home.add_user(str(role), str(role))
            assert (await people[role].log_in(str(role))).status == 303
        tokens = {role: await people[role].csrf() for role in Role}
        secret = await home.token("metrics", "metrics")
        people[Role.METRICS] = await stack.enter_async_context(HttpUser(home.url, secret))
        await people[Role.METRICS].get("/metrics")
        await wait_until(lambda: bool(home.rows("SELECT 1 FROM token WHERE last_used_at > 0")))
        yield Stage(home, people, tokens, made["ids"][0])


async def test_writing_route_is_refused_to_smaller_roles(
    stage: Stage, figure: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    before, wrong, count = stage.everything(), [], 0
    shared = set[str]()  # actions of strangers, who have one row for each
    monkeypatch.setattr(services, "MINUTE_MS", 10**15)
    for route in WRITING:
        for role in Role:
            if role.may(route.role):
                continue
            count += 1
            last = stage.last()
            status, text = await stage.send(role, route, {}, stage.tokens[role])
            expected = (401, "login") if role is Role.PUBLIC else (403, "role")
            actor = ACTORS.get(role, str(role))
            rows = stage.rows(last)
            says = role is Role.PUBLIC or f"requires the role {route.role}" in text
            noted = [(actor, route.audit, expected[1])]
            if role is Role.PUBLIC and route.audit in shared:
                noted = []
            shared |= {str(route.audit)} if role is Role.PUBLIC else set()
            if status != expected[0] or rows != noted or not says:
                wrong.append((route.name, str(role), status, rows))
    assert wrong == []
    assert stage.everything() == before
    figure(f"{len(WRITING)} writing routes, {count} refused by role: 0 allowed, 0 unaudited")


@pytest.mark.sample("foreign Origin", "wrong token")
@pytest.mark.parametrize("way", FOREIGN)
async def test_change_from_elsewhere_is_refused(
    stage: Stage, way: str, figure: Callable[[str], None]
) -> None:
    before, wrong = stage.everything(), []
    for route in WRITING:
        role = route.role
        token = {"no token": "", "wrong token": "0" * 64}.get(way, stage.tokens[role])
        last = stage.last()
        status, _ = await stage.send(role, route, FOREIGN[way], token)
        rows = stage.rows(last)
        results = {row[2] for row in rows}
        known = {"no_token", "stale_form", "no_origin", "foreign_origin", "cross_site"}
        if status != 403 or len(rows) != 1 or rows[0][1] != route.audit or results - known:
            wrong.append((route.name, status, rows))
    assert wrong == []
    assert stage.everything() == before
    figure(f"changes from elsewhere, {way}: {len(WRITING)} routes, all refused")


async def test_reading_route_is_refused_to_smaller_roles(stage: Stage) -> None:
    last, wrong = stage.last(), []
    for route in READING:
        for role in Role:
            if role.may(route.role):
                continue
            for method in ("GET", "HEAD"):
                answer = await stage.people[role].request(method, stage.path(route))
                is_page = not route.is_api and route.role is not Role.METRICS
                expected = (303 if is_page else 401) if role is Role.PUBLIC else 403
                if answer.status != expected:
                    wrong.append((route.name, str(role), answer.status))
                if expected == 303 and not (answer.location or "").startswith("/login"):
                    wrong.append((route.name, str(role), answer.status))
    assert wrong == []
    noted = {route.audit for route in READING if route.audit is not None}
    rows = set(stage.rows(last))
    assert {(action, result) for _, action, result in rows} == {
        (action, result) for action in noted for result in ("login", "role")
    }


async def test_token_without_a_role_is_refused_too(stage: Stage) -> None:
    secret = await stage.home.token("ci", "viewer")
    before = stage.everything()
    async with HttpUser(stage.home.url, secret) as program:
        wrong = []
        for route in WRITING:
            if Role.VIEWER.may(route.role):
                continue
            last = stage.last()
            answer = await program.request(route.method, stage.path(route), json={})
            rows = stage.rows(last)
            if answer.status != 403 or rows != [("token ci", route.audit, "role")]:
                wrong.append((route.name, answer.status, rows))
        assert wrong == []
    after = stage.everything()
    del before["token"], after["token"]  # its last use
    assert after == before


async def test_invalid_input_and_refusals_of_the_core_are_one_row_each(stage: Stage) -> None:
    admin = stage.people[Role.ADMIN]
    tries: dict[str, tuple[str, str, Any, int]] = {
        "unknown field": ("POST", "/queues/orders/pause", {"sied": "x"}, 422),
        "unknown queue": ("POST", "/queues/nowhere/pause", {"side": "delivery"}, 404),
        "bad setting": ("PATCH", "/queues/orders", {"max_deliveries": -1}, 422),
        "queue not empty": ("DELETE", "/queues/orders", {}, 409),
        "taken": (
            "POST",
            "/users",
            {"name": "viewer", "password": "x" * 12, "role": "viewer"},
            409,
        ),
        "no such user": ("DELETE", "/users/nobody-here", {}, 404),
    }
    for what, (method, path, body, status) in tries.items():
        last = stage.last()
        answer = await admin.call(method, path, body)
        assert (what, answer.status) == (what, status)
        [(actor, _, result)] = stage.rows(last)
        assert (what, actor) == (what, "admin")
        assert result != "done"


async def test_valid_request_is_executed_once(stage: Stage) -> None:
    """The control: the valid request succeeds, so the others fail for their single fault."""
    for name in ("queue-pause", "api-pause"):
        [route] = [route for route in WRITING if route.name == name]
        last = stage.last()
        body: Any = stage.tokens[Role.OPERATOR]
        if route.is_api:
            answer = await stage.people[Role.OPERATOR].call(
                "POST", "/queues/orders/pause", {"side": "delivery"}
            )
            status = answer.status
        else:
            status, _ = await stage.send(Role.OPERATOR, route, {}, body)
        assert status in (200, 303)
        assert stage.rows(last) == [("operator", "queue.pause", "done")]


async def test_limited_viewer_sees_nothing_of_other_queues(stage: Stage) -> None:
    """No page or response has the name or content of a foreign queue."""
    canary, hidden = "canary-content", "vault"
    known = []
    for body in ({"content": canary}, {"content": canary, "ttl_s": 60}):
        made = await stage.home.control("POST", f"/queues/{hidden}/messages", body)
        known += made["ids"]
    await stage.home.control("POST", f"/messages/{known[1]}/delete", {})
    secret = await stage.home.token("narrow", "operator", "orders*")
    wrong = []
    async with HttpUser(stage.home.url, secret) as program:
        for route in READING:
            if not Role.OPERATOR.may(route.role) or route.name in STREAMS:
                continue
            for message_id in known:
                path = stage.path(route).replace(stage.message_id, message_id)
                for query in ("", f"?q=queue:{hidden}", "?format=json"):
                    answer = await program.get(path.replace("orders", hidden) + query)
                    text = re.sub(rf"(queue(:|%3A)|queues/){hidden}", "", answer.text)  # as asked
                    if canary in text or (hidden in text and answer.status < 400):
                        at = text.find(canary if canary in text else hidden)
                        wrong.append((route.name, query, text[max(at - 60, 0) : at + 60]))
    assert "\n".join(map(str, wrong)) == ""
