"""Requests of callers who are limited to some queues, about another queue, to every route.

Reading must not show anything of it, writing must not change anything of it.  New routes are
included automatically; one that writes needs a row in ``ABOUT``.
"""

import json
import re
from collections.abc import AsyncIterator, Collection
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from phpmq_lite.admin.http.route import Route
from phpmq_lite.admin.messages import arrow_export
from phpmq_lite.admin.routes import ROUTES
from phpmq_lite.client import connect
from phpmq_lite.client.async_client import Client
from phpmq_lite.roles import Role
from tests.integration.test_pipeline_api import stream
from tests.integration.test_route_matrix import NOT_COMPARED, STREAMS
from tests.support.http_users import BrokerFixture, HttpUser, broker_fixture, wait_until
from tests.unit.admin.pipeline.cases import summary

FOREIGN = "vault-4711"
SECRETS = re.compile(rf"canary-\w+|{FOREIGN}")
PASSWORD = "correct horse battery"
NOW = 1_790_000_000_000
TEXT = {"body": "x", "kind": "text"}

WITHOUT_FIELDS = """
bulk-cancel undo backup-make scrub-start scrub-stop token-remove session-end api-queue-create
api-queue-remove api-message-requeue api-message-release api-message-restore api-bulk-cancel
api-undo api-backup api-scrub-start api-scrub-stop api-client-disconnect api-user-remove
schedule-delete schedule-pause schedule-resume schedule-run api-schedule-delete api-schedule-pause
api-schedule-resume api-schedule-run api-token-remove api-session-end api-stage api-insights-put
api-pipeline-reader message-deliver api-message-deliver
"""
# The requests to each writing route about the foreign queue; {id}, {token}, … are replaced.  None:
# the route concerns the caller or no queue, and a comment gives the reason.
ABOUT: dict[str, list[dict[str, Any]] | None] = {
    **{name: [{}] for name in WITHOUT_FIELDS.split()},
    "queues-act": [{"queue": FOREIGN, "action": each} for each in ("pause", "resume", "purge")],
    "queue-pause": [{"side": "delivery"}],
    "queue-resume": [{"side": "delivery"}],
    "queue-purge": [{"confirm": FOREIGN}],
    "queue-move": [{"target": "mine", "confirm": FOREIGN}],
    "queue-redrive": [{"target": "mine", "confirm": FOREIGN}],
    "queue-remove": [{"confirm": FOREIGN}],
    "test-message": [{"queue": FOREIGN}],
    "selection-new": [{"q": f"queue:{FOREIGN}", "action": "delete"}],
    "selection-apply": [{"action": "delete", "confirm": "1"}],
    "publish-send": [
        {"queue": FOREIGN, **TEXT, "count": "1"},
        {"queue": FOREIGN, **TEXT, "do": "save", "template": "canary-template"},
        {"queue": "mine", **TEXT, "do": "save", "template": "canary-template"},
    ],
    "template-forget": [{"template": "canary-template"}],
    "message-edit": [{"queue": "mine", **TEXT, "count": "1"}],
    "schemas-check": None,  # checks a document of the caller's
    "messages-act": [{"ids": "{id}", "action": each} for each in ("delete", "requeue")],
    **{
        f"message-{verb}": [{"confirm": "#", "target": "mine"}]
        for verb in ("requeue", "release", "move", "delete", "redrive", "restore", "erase")
    },
    "message-reschedule": [{"delay": "5"}],
    "queue-settings": [{"max_deliveries": "1"}, {"reset": "max_deliveries"}],
    "view-save": [
        {"name": "canary-view", "remove": "1"},
        {"name": "canary-view", "q": "queue:mine"},
        {"name": "new", "q": f"queue:{FOREIGN}"},
    ],
    "insights-release": [{"subscription": "canary-subscription", "confirm": "canary-subscription"}],
    "system-drain": [{"confirm": "localhost", "reason": "x"}],
    "restart-dismiss": None,  # hides a notice that names no queue
    "clock-decide": [{"decision": "trust"}],
    "client-label": None,  # of an address
    "client-disconnect": [{"reason": "x"}],
    "user-add": [{"name": "evil", "password": PASSWORD, "role": "admin", "queues": ""}],
    "user-rights": [{"role": "admin", "queues": ""}],
    "user-password": [{"password": PASSWORD}],
    "user-remove": [{"confirm": "ann"}],
    "token-add": [{"name": "evil", "role": "admin", "queues": "", "days": ""}],
    "log-in": None,
    "logout": None,
    "set-up": None,  # about the caller
    "account-password": None,
    "account-end": None,
    "api-queue-configure": [{"max_deliveries": 1}],
    "api-purge": [{"confirm": FOREIGN}],
    "api-pause": [{"side": "delivery"}],
    "api-resume": [{"side": "delivery"}],
    "api-publish": [{"content": "x"}],
    "api-cancel": [{"unique_key": "canary-key"}],
    "api-reschedule": [{"unique_key": "canary-key", "delay_s": 5}],
    "api-message-reschedule": [{"delay_s": 5}],
    "api-message-move": [{"target": "mine"}],
    "api-message-delete": [{"dispatched": True}],
    "api-message-redrive": [{"target": "mine"}],
    "api-message-erase": [{"confirm": "x"}],
    "api-message-edit": [{"content": "x", "queue": "mine"}],
    "api-redrive": [{"target": "mine"}],
    "api-schema-check": None,  # checks a document of the caller's
    "api-import": [{"messages": [{"queue": FOREIGN, "content": "x"}]}],
    "api-selection-make": [{"q": f"queue:{FOREIGN}"}],
    "api-bulk-start": [{"token": "{token}", "action": "delete"}],
    "api-define": [
        {"queues": {FOREIGN: {"max_deliveries": 1}}},
        {"queues": {"mine2": {"on_expire": f"forward:{FOREIGN}"}}},
        {"queues": {"mine2": {"dead_letter_queue": FOREIGN}}},
        {"templates": {"canary-template": {"queue": "mine"}}},
        {"views": {"canary-view": {"q": "queue:mine"}}},
        {"schedules": {"new": {"cron": "* * * * *", "queue": FOREIGN}}},
        {"schedules": {"ann": {"cron": "* * * * *", "queue": "mine"}}},
    ],
    **{
        f"{api}schedule-{verb}": [
            {"cron": "* * * * *", "queue": queue} | ({"name": "new"} if verb == "create" else {})
        ]
        for api in ("", "api-")
        for verb, queue in (("create", FOREIGN), ("set", "mine"))
    },
    "api-clock-decide": [{"decision": "trust"}],
    "api-user-add": [{"name": "evil", "password": PASSWORD, "role": "admin", "queues": []}],
    "api-user-change": [{"role": "viewer"}],
    "api-token-add": [{"name": "evil", "role": "admin", "queues": []}],
    "api-claims-claim": [
        {"subscription": "new", "queue": FOREIGN},
        {"subscription": "canary-subscription", "queue": "mine"},
    ],
    "api-pipeline-erase": [{"offsets": [{"first": 1, "last": 100}], "live": True}],
    "api-claims-ack": [{"subscription": "canary-subscription", "upto": 9}],
    "api-claims-release": [{"subscription": "canary-subscription", "forget": True}],
    "api-publish-staged": [
        {"app_id": "new", "version": 1, "tokens": ["canary-staged"]},
        {"app_id": "canary-app", "version": 9, "tokens": []},
    ],
    "api-unstage": [{"tokens": ["canary-staged"]}],
    "api-app-id-transfer": [{"app_id": "canary-app", "owner": None}],
    "api-pipeline-reader-remove": [{"reader": "canary-reader"}],
}


@dataclass
class Scene:
    """A broker with messages of all states in a foreign queue, and three limited programs."""

    home: BrokerFixture
    limited: dict[Role, HttpUser]
    places: list[dict[str, str]]  # path parameters of foreign objects, for each message
    client: Client

    def everything(self) -> dict[str, list[tuple[Any, ...]]]:
        """Return all rows that a request can change."""
        return self.home.tables(NOT_COMPARED)


@pytest.fixture
def globs() -> tuple[str, ...]:
    """Return the queues of the limited programs."""
    return ("mine*",)


@pytest.fixture
async def scene(tmp_path: Path, globs: tuple[str, ...]) -> AsyncIterator[Scene]:
    async with broker_fixture(tmp_path / "data") as home, AsyncExitStack() as stack:
        client = await stack.enter_async_context(connect(home.broker.host, home.broker.port))
        held = await stack.enter_async_context(client.consume(FOREIGN, credit=1))
        await home.add_user("ann")
        messages = await _fill(home)
        await anext(held)
        tokens = {
            role: await home.token(f"limited-{role}", str(role), *globs)
            for role in (Role.VIEWER, Role.OPERATOR, Role.ADMIN)
        }
        await home.token("foreign", "operator", FOREIGN)
        limited = {
            role: await stack.enter_async_context(HttpUser(home.url, secret))
            for role, secret in tokens.items()
        }
        boss = await stack.enter_async_context(
            HttpUser(home.url, await home.token("boss", "admin"))
        )
        places = await _work(home, boss, messages)
        for visitor in limited.values():
            await visitor.get("/api/v1/clock")
        await wait_until(
            lambda: (
                not home.rows(
                    "SELECT 1 FROM token WHERE name LIKE 'limited-%' AND last_used_at IS NULL"
                )
            )
        )
        yield Scene(home, limited, places, client)


async def _fill(home: BrokerFixture) -> list[str]:
    """Publish to the foreign queue: held, ready, deleted, dead and with an envelope."""
    content: dict[str, Any] = {
        "job": "urn:canary-urn:x:y",
        "trace_id": "canary-trace",
        "data": {"a": "canary-body"},
    }
    content |= {"meta": {"id": "canary-id", "queue": FOREIGN, "schema_version": 1}, "attempts": 0}
    many = [{"content": json.dumps(content)}] * 4
    ids: list[str] = (await home.control("POST", f"/queues/{FOREIGN}/messages", many))["ids"]
    dead = content | {"dead_letter": {"reason": "failed", "error": "canary-error 5",
                                      "original_queue": FOREIGN}}  # fmt: skip
    asked = {"content": json.dumps(dead)}
    ids += (await home.control("POST", f"/queues/{FOREIGN}.dlq/messages", asked))["ids"]
    await home.control("POST", f"/messages/{ids[2]}/delete", {})
    await home.control("POST", "/queues/mine/messages", {"content": "own"})
    await home.control("POST", "/queues/mine.dlq/messages", {"content": "own"})
    return ids


async def _work(home: BrokerFixture, boss: HttpUser, messages: list[str]) -> list[dict[str, str]]:
    """Create what people and Spark create for the foreign queue; return path parameters."""
    made = [
        json.loads((await boss.call("POST", "/selections", {"q": f"queue:{FOREIGN}"})).text)
        for _ in range(2)
    ]
    asked: dict[str, Any] = {"token": made[0]["token"], "action": "requeue"}
    asked |= {"reason": "canary-reason"}
    job = json.loads((await boss.call("POST", "/bulk", asked)).text)
    claim: dict[str, Any] = {"subscription": "canary-subscription", "queue": FOREIGN}
    assert (
        await boss.call("POST", "/pipeline/claims/claim", claim | {"max_messages": 1})
    ).status == 200
    staged = await boss.request(
        "POST", "/api/v1/pipeline/stage?token=canary-staged", {"Content-Type": arrow_export.MEDIA},
        data=stream((FOREIGN, "canary-body", None)),
    )  # fmt: skip
    assert staged.status == 200
    asked = {"app_id": "canary-app", "version": 1, "tokens": []}
    assert (await boss.call("POST", "/pipeline/publish", asked)).status == 200
    document = json.loads(json.dumps(summary(NOW)).replace('"orders"', f'"{FOREIGN}"'))
    assert (await boss.call("PUT", "/pipeline/insights", document)).status == 204
    template = {"queue": FOREIGN, "body": "canary-body"}
    saved = {
        "templates": {"canary-template": template},
        "views": {"canary-view": {"q": f"queue:{FOREIGN}"}},
    }
    schedule = {"cron": "0 0 1 1 *", "queue": FOREIGN, "content": "canary-body"}
    saved["schedules"] = {"ann": schedule}  # the name that {name} stands for
    assert (await boss.call("PUT", "/definitions", saved)).status == 200
    clients = json.loads((await boss.get("/api/v1/clients?state=open")).text)["items"]
    known = {
        "q": FOREIGN, "trace": "canary-trace", "urn": "urn:canary-urn:x:y", "name": "ann",
        "client": str(clients[0]["client"]), "job": str(job["job"]), "n": "1",
        "token": made[1]["token"], "section": "guides", "page": "admin",
    }  # fmt: skip
    return [known | {"id": each} for each in messages]


def _path(route: Route, places: dict[str, str]) -> str:
    return _fill_in(route.path, places)


def _callers(
    route: Route, scene: Scene, roles: Collection[Role] = tuple(Role)
) -> list[tuple[Role, HttpUser]]:
    """Return the limited programs of these roles that may use a route."""
    return [
        (role, user)
        for role, user in scene.limited.items()
        if role in roles and role.may(route.role)
    ]


QUERY_TEXTS = f"""
format=json q=queue:{FOREIGN} queue={FOREIGN} q=canary-body target={FOREIGN} topic=queue:{FOREIGN}
subscription=canary-subscription tab=claims&format=json template=canary-template
subscription=canary-subscription&lo=0&hi=9 process=1
"""
QUERIES = QUERY_TEXTS.split()


async def _shown(scene: Scene, roles: Collection[Role]) -> set[tuple[str, str, str, str]]:
    """Return what each route shows of the foreign queue: route, role, query, text."""
    found = set()
    for route in ROUTES:
        if route.is_writing or route.name in STREAMS:
            continue
        for role, user in _callers(route, scene, roles):
            for places in scene.places if "{id}" in route.path else scene.places[:1]:
                is_asked = role is Role.VIEWER or "{id}" in route.path
                for query in ("", *(() if is_asked else QUERIES)):
                    path = _path(route, places) + (f"?{query}" if query else "")
                    answer = await user.get(path)
                    shown = set(SECRETS.findall(answer.text)) - set(SECRETS.findall(path))
                    found |= {(route.name, str(role), query, each) for each in shown}
    return found


async def _changed(scene: Scene) -> list[tuple[str, str, dict[str, Any], int, list[str]]]:
    """Return what each writing route changes: route, role, what was asked, status, tables."""
    before, found = scene.everything(), []
    for route in ROUTES:
        if not route.is_writing:
            continue
        for role, user in _callers(route, scene):
            for about in ABOUT[route.name] or ():
                for places in scene.places if "{id}" in route.path else scene.places[:1]:
                    status = await _send(user, route, about, places)
                    after = scene.everything()
                    changed = [name for name in after if after[name] != before[name]]
                    if changed or status >= 500:
                        found.append((route.name, str(role), about, status, changed))
                    before = after
    return found


@pytest.mark.sample("admin and viewer")
@pytest.mark.parametrize(
    "roles",
    [
        pytest.param((Role.ADMIN, Role.VIEWER), id="admin and viewer"),
        pytest.param((Role.OPERATOR,), id="operator"),
    ],
)
async def test_reading_shows_limited_callers_nothing_of_a_foreign_queue(
    scene: Scene, roles: tuple[Role, ...]
) -> None:
    assert "\n".join(map(str, sorted(await _shown(scene, roles)))) == ""


async def test_writing_changes_nothing_of_a_foreign_queue(scene: Scene) -> None:
    assert "\n".join(map(str, await _changed(scene))) == ""


@pytest.mark.parametrize(
    "targets",
    [
        {"on_expire": f"forward:{FOREIGN}"},
        {"on_expire": "forward:QUEUE", "forward_to": FOREIGN},
        {"dead_letter_queue": FOREIGN},
    ],
)
async def test_settings_of_an_own_queue_send_nothing_to_a_foreign_one(
    scene: Scene, targets: dict[str, str]
) -> None:
    before, user = scene.everything(), scene.limited[Role.ADMIN]
    answers = [await user.request("POST", "/queues/mine/settings", data=targets)]
    if "forward_to" not in targets:  # a field of the form
        answers.append(await user.call("PATCH", "/queues/mine", targets))
    assert {answer.status for answer in answers} == {403}
    assert scene.everything() == before


@pytest.mark.slow
@pytest.mark.parametrize("globs", [("mine*", f"{FOREIGN}*")])
async def test_caller_with_the_right_sees_and_changes_the_queue(scene: Scene) -> None:
    """The control: the same requests show and change much if the caller has the right."""
    shown = {route for route, *_ in await _shown(scene, tuple(Role))}
    found = [(one, set(tables) - {"client"}) for one, *_, tables in await _changed(scene)]
    changed = {route for route, tables in found if tables}
    assert (len(shown) >= 40, len(changed) >= 20) == (True, True), (shown, changed)


async def test_foreign_queue_has_the_status_of_a_missing_one(scene: Scene) -> None:
    """Another status would reveal which queues, messages and jobs exist."""
    absent = {
        "q": "nowhere-1234", "id": "f" * 32, "trace": "nothing", "urn": "urn:a:b:c",
        "job": "999999", "token": "x", "client": "999999", "name": "nobody-here", "n": "999999",
    }  # fmt: skip
    known = {"client", "name", "n", "section", "page"}  # no queues: every viewer may see these
    different = []
    for route in ROUTES:
        places = set(re.findall(r"\{(\w+)\}", route.path))
        if route.is_writing or route.name in STREAMS or not places or places & known:
            continue
        for role, user in _callers(route, scene):
            foreign = (await user.get(_path(route, scene.places[0]))).status
            missing = (await user.get(_path(route, absent))).status
            if foreign != missing:
                different.append((route.name, str(role), foreign, missing))
    assert "\n".join(map(str, different)) == ""


async def _send(user: HttpUser, route: Route, about: dict[str, Any], places: dict[str, str]) -> int:
    path = _path(route, places)
    filled = {
        key: _fill_in(value, places) if isinstance(value, str) else value
        for key, value in about.items()
    }
    if not route.is_api:
        return (await user.request(route.method, path, data=filled)).status
    if route.media == arrow_export.MEDIA:
        raw = stream((FOREIGN, "x", None))
        path += "?token=evil"
        return (
            await user.request(route.method, path, {"Content-Type": arrow_export.MEDIA}, data=raw)
        ).status
    if route.name == "api-insights-put":
        return (await user.request(route.method, path, json=summary(NOW + 1))).status
    return (await user.request(route.method, path, json=filled)).status


def _fill_in(text: str, places: dict[str, str]) -> str:
    return re.sub(r"\{(\w+)\}", lambda found: places[found[1]], text)


def test_every_writing_route_has_a_row() -> None:
    assert {route.name for route in ROUTES if route.is_writing} == ABOUT.keys()
