"""Bounds on the number of rows that clients can create in a real database."""

import asyncio
import json
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from phpmq_lite.admin.accounts import accounts
from phpmq_lite.broker.pipeline.readers import READERS
from phpmq_lite.client import connect
from phpmq_lite.model import Limits
from phpmq_lite.protocol.connection import ClientSide
from phpmq_lite.queue_settings import QueueSettings
from phpmq_lite.storage.retention import RetentionBounds, remove_expired
from phpmq_lite.testing import running_service
from tests.support.core_and_store import Driver, MakeDriver, run_operation
from tests.support.http_users import PASSWORD, HttpUser, broker_fixture

EVENTS = "SELECT kind, detail, count, at_ms, last_at FROM event WHERE seq = ? ORDER BY event_id"


@pytest.fixture
def driver(make: MakeDriver) -> Driver:
    return make(defaults=QueueSettings(max_deliveries=0))


def crash(driver: Driver, times: int) -> None:
    """Take the first message of orders and lose the connection, a second later each time."""
    for _ in range(times):
        driver.clock.advance(1)
        driver.consume(1).disconnect()
        driver.step()


def requeue(driver: Driver, times: int) -> None:
    for _ in range(times):
        driver.clock.advance(1)
        worker = driver.consume(1)
        [held] = worker.take()
        worker.requeue("orders", held.message_id)
        worker.consume("orders", 0)
        driver.step()


def test_returns_in_a_row_are_one_row(driver: Driver) -> None:
    driver.publish(b"a")
    began_ms = driver.clock.now().wall_ms
    crash(driver, 30)
    assert driver.rows(EVENTS, 1) == [
        ("return", "connection ended", 30, began_ms + 1_000, began_ms + 30_000)
    ]
    requeue(driver, 1)
    crash(driver, 1)
    crash(driver, 1)
    assert [(kind, count) for kind, _, count, _, _ in driver.rows(EVENTS, 1)] == [
        ("return", 30), ("requeue", 1), ("return", 2),
    ]  # fmt: skip


def test_message_has_at_most_16_event_rows(driver: Driver) -> None:
    driver.publish(b"a")
    began_ms = driver.clock.now().wall_ms
    requeue(driver, 16)
    assert [row[2:] for row in driver.rows(EVENTS, 1)] == [
        (1, began_ms + n * 1_000, None) for n in range(1, 17)
    ]
    requeue(driver, 34)
    rows = driver.rows(EVENTS, 1)
    assert [row[0] for row in rows] == [*["requeue"] * 4, "more", *["requeue"] * 11]
    assert [row[2] for row in rows] == [1] * 4 + [35] + [1] * 11
    assert rows[4][3:] == (began_ms + 5_000, began_ms + 39_000)
    assert rows[5][3:] == (began_ms + 40_000, None)
    assert [row[3] for row in rows[5:]] == [began_ms + n * 1_000 for n in range(40, 51)]


def test_alternating_events_are_bounded_and_counted(driver: Driver) -> None:
    driver.publish(b"a")
    for _ in range(20):
        crash(driver, 2)
        requeue(driver, 1)
    rows = driver.rows(EVENTS, 1)
    assert (len(rows), sum(row[2] for row in rows)) == (16, 60)


def test_second_credit_adds_no_event_rows(driver: Driver) -> None:
    driver.publish(b"a", b"b")
    worker = driver.consume(5)
    for credit in (5, 4, 3):
        worker.consume("orders", credit)
        driver.step()
    assert [held.body for held in worker.take()] == [b"a", b"b"] * 4
    assert driver.rows("SELECT count(*) FROM event") == [(0,)]
    assert driver.rows("SELECT deliveries, charged FROM message") == [(4, 0)] * 2


async def test_client_repeats_its_credit_and_still_acknowledges(tmp_path: Path) -> None:
    async with (
        running_service(tmp_path / "data") as broker,
        connect("127.0.0.1", broker.port) as publisher,
        asyncio.timeout(60),
    ):
        await publisher.publish_confirmed("orders", b"a")
        await publisher.publish_confirmed("orders", b"b")
        reader, writer = await asyncio.open_connection("127.0.0.1", broker.port)
        side, got = ClientSide(), list[Any]()

        async def send(data: bytes) -> None:
            """Send a frame, and wait for the dispatch that follows it."""
            writer.write(data)
            count = len(got)
            while len(got) == count:
                got.extend(side.receive(await reader.read(65_536)))

        for _ in range(25):  # more than may put messages back at once
            await send(side.consume("orders", 1))
        await send(side.acknowledge("orders", got[0].message_id))
        assert [frame.content for frame in got] == [*[b"a"] * 25, b"b"]
        writer.close()
        await writer.wait_closed()


def test_closed_connections_are_bounded_in_number(driver: Driver) -> None:
    for _ in range(30):
        driver.connect()
        driver.step()
    for client in driver.clients[5:]:
        client.disconnect()
    driver.step()
    bounds = RetentionBounds(clients=10)
    remove_expired(driver.store, bounds, driver.clock.now().steady_ms)
    kept = [
        number
        for (number,) in driver.rows("SELECT client FROM client WHERE client > 0 ORDER BY client")
    ]
    assert kept == [*range(1, 6), *range(21, 31)]


# -- history readers


async def test_reader_belongs_to_the_user_who_names_it_first(tmp_path: Path) -> None:
    path, remove = "/pipeline/history/bounds", "/pipeline/history/readers/remove"
    report, name = {"reader": "nightly", "position": 0}, {"reader": "nightly"}
    async with AsyncExitStack() as stack:
        home = await stack.enter_async_context(broker_fixture(tmp_path / "data"))
        users = {}
        for user, role in (("ann", "admin"), ("bob", "viewer"), ("eve", "operator")):
            await home.add_user(user, role)
            users[user] = await stack.enter_async_context(HttpUser(home.url))
            await users[user].log_in(user)
        ann, bob, eve = users.values()
        for _ in range(3):
            assert (await bob.call("POST", path, report)).status == 200
        for where, body in ((path, report), (remove, name)):
            refused = await eve.call("POST", where, body)
            assert (refused.status, json.loads(refused.text)["code"]) == (403, "foreign_reader")
        await eve.get("/api/v1/pipeline/history/bounds?reader=other&position=1")  # writes nothing
        assert (await ann.call("POST", path, report)).status == 200
        assert (await bob.call("POST", path, report)).status == 403
        assert (await ann.call("POST", remove, name)).status == 200
        assert (await ann.call("POST", remove, name)).status == 404
        assert (await bob.call("POST", path, report)).status == 200
        audited = home.rows(
            "SELECT actor, action, target, result FROM audit WHERE action LIKE 'reader.%'"
            " ORDER BY audit_id"
        )
        assert audited == [
            ("bob", "reader.create", "nightly", "done"),
            ("eve", "reader.report", "nightly", "foreign_reader"),
            ("eve", "reader.remove", "nightly", "foreign_reader"),
            ("ann", "reader.take_over", "nightly", "done"),
            ("bob", "reader.report", "nightly", "foreign_reader"),
            ("ann", "reader.remove", "nightly", "done"),
            ("ann", "reader.remove", "nightly", "unknown_reader"),
            ("bob", "reader.create", "nightly", "done"),
        ]


def report(driver: Driver, name: str, owner: str, *, is_admin: bool = False) -> Any:
    return run_operation(driver, "report_reader", name, 7, owner=owner, is_admin=is_admin)


def test_readers_are_bounded_for_each_user_and_in_total(driver: Driver) -> None:
    for number in range(20):
        assert report(driver, f"bob-{number}", "bob") is True
    assert report(driver, "bob-20", "bob") == "too_many_readers"
    assert report(driver, "bob-0", "bob") is False
    driver.kill_and_restart()
    assert report(driver, "bob-20", "bob") == "too_many_readers"
    assert report(driver, "bob-1", "eve") == "foreign_reader"
    assert run_operation(driver, "remove_reader", "bob-1", owner="bob", is_admin=False) is None
    assert report(driver, "bob-20", "bob") is True
    for number in range(300):
        driver.clock.advance(1)
        report(driver, f"user-{number}", f"user {number}")
    assert driver.rows("SELECT count(*), min(at_ms) > 0 FROM reader") == [(READERS, True)]
    assert len(driver.core.history_readers) == READERS
    assert driver.rows("SELECT owner FROM reader WHERE name = 'user-299'") == [("user 299",)]


def test_reader_without_an_owner_belongs_to_the_next_user_who_reports(driver: Driver) -> None:
    driver.store.execute("INSERT INTO reader (name, \"offset\", at_ms) VALUES ('old', 1, 1)")
    driver.kill_and_restart()
    assert report(driver, "old", "bob") is True
    assert report(driver, "old", "eve") == "foreign_reader"
    assert report(driver, "old", "") is False  # the local machine without accounts
    assert driver.rows("SELECT owner FROM reader") == [("bob",)]


# -- accounts and removed queues


async def test_users_and_tokens_are_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(accounts, "ACCOUNTS_MAX", 2)
    async with broker_fixture(tmp_path / "data") as home:
        for at in range(2):
            await home.add_user(f"ann{at}")
            await home.token(f"t{at}", "viewer")
        async with HttpUser(home.url) as ann:
            await ann.log_in("ann0")
            user = {"name": "more", "password": PASSWORD, "role": "viewer"}
            for path, body in (("/users", user), ("/tokens", {"name": "more", "role": "viewer"})):
                refused = await ann.call("POST", path, body)
                assert (refused.status, json.loads(refused.text)["code"]) == (409, "too_many")


def test_removed_queues_are_bounded_until_a_restart(make: MakeDriver) -> None:
    driver = make(Limits(queues=3))
    for number in range(30):
        assert run_operation(driver, "create_queue", f"q{number}") is True
        run_operation(driver, "remove_queue", f"q{number}")
    assert run_operation(driver, "create_queue", "more") == "too_many_queues"
    assert driver.rows("SELECT count(*) FROM queue") == [(30,)]
    driver.kill_and_restart()
    assert run_operation(driver, "create_queue", "more") is True
