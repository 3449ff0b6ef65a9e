"""A broker with one resource of each kind, so that every route finds its resource."""

import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from phpmq_lite.admin.http.route import Route
from phpmq_lite.admin.routes import ROUTES
from phpmq_lite.admin.urls import encode_name
from phpmq_lite.client import connect
from tests.support.http_users import BrokerFixture, HttpUser, broker_fixture
from tests.unit.admin.cases import HOSTILE

NAME = "anna"  # of the user, and of the token
TRACE = "7b3f-1"
READING = [route for route in ROUTES if not route.is_writing]
WRITING = [route for route in ROUTES if route.is_writing]
PAGES = [route for route in READING if not route.is_api]
STREAM = "events"  # responds until the client disconnects
ENVELOPE = {"urn": "urn:orders.placed", "trace_id": TRACE, "data": {"order_id": 1042}}
DEAD = {"dead_letter": {"reason": "failed", "error": "Key 5 is gone"}}


@dataclass
class FullBroker:
    """The broker, a logged-in admin, and the values of path parameters."""

    home: BrokerFixture
    me: HttpUser
    places: dict[str, str]
    message_ids: list[str]  # ready, held, settled, dead letter

    def path(self, route: Route, **other: str) -> str:
        places = self.places | other

        def fill(found: re.Match[str]) -> str:
            return encode_name(places[found[1]])

        return re.sub(r"\{(\w+)\}", fill, route.path)

    async def ok(self, method: str, path: str, body: Any = None) -> Any:
        """Call the API as a page does; assert that it succeeds."""
        answer = await self.me.call(method, path, body)
        assert answer.status < 300, answer.text
        return json.loads(answer.text)


@asynccontextmanager
async def full_broker(
    data: Path, base_path: str = "", **sections: Any
) -> AsyncIterator[FullBroker]:
    """Run a broker with one resource of each kind; ``me`` requests paths below the base path."""
    sections["admin"] = {"base_path": base_path} | sections.get("admin", {})
    sections["envelopes"] = {"schemas": _write_schemas(data.with_name("schemas"))}
    async with broker_fixture(data, **sections) as home:
        origin = re.sub(r"(://[^/]+).*", r"\1", home.url)
        async with connect(home.broker.host, home.broker.port) as gone:
            await gone.publish_confirmed("mail", b"{}")
        async with (
            HttpUser(origin + base_path, Origin=origin) as me,
            connect(home.broker.host, home.broker.port) as client,
            client.consume("orders", credit=1) as deliveries,
        ):
            ids = await _publish(home)
            await anext(deliveries)
            await home.add_user(NAME)
            await home.token(NAME, "viewer")
            assert (await me.log_in(NAME)).status == 303
            known = {"q": "orders", "trace": TRACE, "name": NAME, "urn": str(ENVELOPE["urn"])}
            known |= {"section": "guides", "page": "admin"}
            filled = FullBroker(home, me, known, ids)
            await _fill(filled)
            yield filled


def _write_schemas(folder: Path) -> Path:
    folder.mkdir(exist_ok=True)
    row = {"urn": ENVELOPE["urn"], "schema": "order.json"}
    (folder / "registry.json").write_text(json.dumps({"schemas": [row]}), encoding="utf-8")
    (folder / "order.json").write_text('{"type": "object"}', encoding="utf-8")
    return folder


async def _publish(home: BrokerFixture) -> list[str]:
    """Publish messages: one to hold, one settled, a dead letter, one per hostile queue."""
    many = [{"content": json.dumps(ENVELOPE)}] * 3
    held, ready, settled = (await home.control("POST", "/queues/orders/messages", many))["ids"]
    await home.control("POST", f"/messages/{settled}/delete")
    asked = {"content": json.dumps(DEAD)}
    [dead] = (await home.control("POST", "/queues/orders.dlq/messages", asked))["ids"]
    for name in HOSTILE:
        path = f"/queues/{encode_name(name)}/messages"
        await home.control("POST", path, {"content": '{"order_id":1042}'})
    # as a queue that inspects envelopes does
    statement = "UPDATE message SET trace_id = ? WHERE seq = ?"
    home.rows(statement, TRACE, int(ready[:16], 16))
    return [ready, held, settled, dead]


async def _fill(filled: FullBroker) -> None:
    client = (await filled.ok("GET", "/clients?state=open"))["items"][0]
    session = (await filled.ok("GET", "/sessions"))["items"][0]
    used, kept = [
        (await filled.ok("POST", "/selections", {"q": "queue:mail"}))["token"] for _ in range(2)
    ]
    schedule = {"name": NAME, "cron": "0 0 1 1 *", "queue": "orders", "content": "{}"}
    await filled.ok("POST", "/schedules", schedule)
    job = await filled.ok("POST", "/bulk", {"token": used, "action": "requeue"})
    filled.places |= {
        "id": filled.message_ids[0],
        "client": str(client["client"]),
        "n": str(session["id"]),
        "job": str(job["job"]),
        "token": kept,
    }
