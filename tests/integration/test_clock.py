"""A clock that is far ahead at a start, and history that was settled by a wrong clock."""

import asyncio
import sqlite3
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import pytest

from phpmq_lite import clock
from phpmq_lite.broker.operator import queue_operations
from phpmq_lite.client.async_client import connect
from phpmq_lite.clock import DOUBT_MS, Clock, read_clocks
from phpmq_lite.errors import NotWritableError
from phpmq_lite.model import AuditEntry, ClockReading, State
from phpmq_lite.storage import retention
from phpmq_lite.storage.retention import JUMPS_KEPT, ClockJumps, RetentionBounds
from phpmq_lite.storage.store import note_clock
from tests.support.core_and_store import Driver
from tests.support.engine_driver import EngineClient, EngineDriver, disable_timers
from tests.support.http_users import BrokerFixture, HttpUser, broker_fixture, wait_until
from tests.support.stored_rows import stored_rows, unseal
from tests.support.stores import ON_POSTGRES

DAY_MS = 86_400_000
AWAY_DAYS = 20


def age(data: Path, days: int = AWAY_DAYS) -> None:
    """Age a stopped broker's database by ``days`` days, to before the last boot."""
    for table, column in (("message", "deadline_ms"), ("message", "published_at")):
        stored_rows(data, f"UPDATE {table} SET {column} = {column} - ?", days * DAY_MS)
    last_seen = "UPDATE counter SET value = value - ? WHERE name = 'last_seen_ms'"
    stored_rows(data, last_seen, days * DAY_MS)
    stored_rows(data, "UPDATE counter SET value = 1 WHERE name = 'clock_boot'")
    unseal(data)


@asynccontextmanager
async def in_doubt(data: Path) -> AsyncIterator[BrokerFixture]:
    """Run a broker with a message that has a day left, and one that has thirty."""
    async with broker_fixture(data) as home:
        for content, days in (("short", 1), ("long", 30)):
            message = {"content": content, "ttl_s": days * 86_400}
            await home.control("POST", "/queues/orders/messages", message)
    age(data)
    async with broker_fixture(data) as home:
        yield home


async def ready(home: BrokerFixture) -> list[str]:
    found = await home.control("GET", "/messages?q=state:ready")
    return [item["preview"] for item in reversed(found["items"])]


async def test_nothing_expires_by_a_clock_in_doubt_and_a_restart_remembers(tmp_path: Path) -> None:
    data = tmp_path / "data"
    async with in_doubt(data) as home, HttpUser(home.url) as browser:
        assert await ready(home) == ["short", "long"]
        told = await home.control("GET", "/clock")
        assert told["doubt_ms"] > DOUBT_MS
        assert told["would_expire"] == 1
        assert "Is the clock right?" in (await browser.get("/system")).text
        assert "whether this is right" in (await browser.get("/")).text
    async with broker_fixture(data) as home:
        assert (await home.control("GET", "/clock"))["doubt_ms"] == told["doubt_ms"]
        assert await ready(home) == ["short", "long"]


async def test_operator_keeps_the_deadlines(tmp_path: Path) -> None:
    data = tmp_path / "data"
    async with in_doubt(data) as home, HttpUser(home.url) as browser:
        assert (await browser.post("/system/clock", decision="keep")).status == 303
        assert await ready(home) == ["short", "long"]
        assert "Is the clock right?" not in (await browser.get("/system")).text
        assert home.rows("SELECT action, target FROM audit WHERE action LIKE 'clock%'") == [
            ("clock.decide", "keep")
        ]
        again = await browser.post("/system/clock", decision="expire")
        assert again.status == 409, "it is decided once"
    async with broker_fixture(data) as home:
        assert (await home.control("GET", "/clock"))["doubt_ms"] == 0
        assert await ready(home) == ["short", "long"]


async def test_operator_lets_the_time_count(tmp_path: Path) -> None:
    """It counts for earlier messages; later ones keep their deadlines, even after a restart."""
    data = tmp_path / "data"
    async with in_doubt(data) as home:
        message = {"content": "since", "ttl_s": 86_400}
        await home.control("POST", "/queues/orders/messages", message)
        told = await home.control("POST", "/clock", {"decision": "expire"})
        assert (told["doubt_ms"], told["would_expire"]) == (0, None)
        async with asyncio.timeout(20):
            while "short" in await ready(home):  # noqa: ASYNC110 - nothing waits for an expiry
                await asyncio.sleep(0.01)
        assert await ready(home) == ["long", "since"]
        rows = home.rows("SELECT deadline_ms FROM message ORDER BY seq")
    async with broker_fixture(data) as home:
        assert await ready(home) == ["long", "since"]
        now_ms = home.broker.service.handle.summary().clock_steady_ms
    days = [round((deadline_ms - now_ms) / DAY_MS) for (deadline_ms,) in rows]
    assert days == [10, 1]


@pytest.mark.parametrize("decision", ["keep", "expire"])
async def test_date_waits_for_the_decision_and_a_delay_does_not(
    tmp_path: Path, decision: str
) -> None:
    data = tmp_path / "data"
    async with broker_fixture(data) as home:
        soon = int(time.time() * 1_000) + 60_000
        await home.control("POST", "/queues/orders/messages", {"content": "d", "deliver_at": soon})
        await home.control("POST", "/queues/orders/messages", {"content": "s", "delay_s": 0.05})
    age(data)
    stored_rows(data, "UPDATE message SET deliver_at = deliver_at - ?", AWAY_DAYS * DAY_MS)
    stored_rows(data, "UPDATE message SET due_ms = due_ms - ?", AWAY_DAYS * DAY_MS)
    async with broker_fixture(data) as home:
        async with asyncio.timeout(20):
            while await ready(home) != ["s"]:  # noqa: ASYNC110 - nothing waits for this
                await asyncio.sleep(0.01)
        assert home.rows("SELECT count(*) FROM message WHERE state = 6") == [(1,)]
        await home.control("POST", "/clock", {"decision": decision})
        async with asyncio.timeout(20):
            while len(await ready(home)) != 2:  # noqa: ASYNC110
                await asyncio.sleep(0.01)


async def test_message_returned_right_after_the_decision_is_counted_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disable_timers(monkeypatch)
    driver = EngineDriver(tmp_path)
    driver.start()
    program = EngineClient(driver)
    program.consume("orders", 1)
    program.publish("orders", b"a", ttl_s=1_000)
    await driver.settle()
    ((before_ms,),) = driver.rows("SELECT deadline_ms FROM message")
    entry = AuditEntry("local", "cli", "", "clock.decide")
    number = driver.core.next_number
    driver.engine.submit(
        lambda core: queue_operations.decide_clock(
            core, lambda _: None, entry, 10_000, number, is_right=True
        )
    )
    program.disconnect()
    await driver.settle()
    assert driver.rows("SELECT deadline_ms, state FROM message") == [
        (before_ms - 10_000, State.READY)
    ]
    await driver.stop()
    driver.close()


# -- the history keeps its age


def settled(driver: Driver, *walls_ms: int) -> None:
    """Settle a message at each of these wall clock times."""
    for number, wall_ms in enumerate(walls_ms, 1):
        driver.store.execute(
            'INSERT INTO history ("offset", seq, token, queue_id, outcome, settled_at, position,'
            " published_at, deliveries, charged, size, crc)"
            " VALUES (?, ?, 0, 1, 2, ?, 0, 0, 1, 0, 1, 0)",
            (number, number, wall_ms),
        )
    for name in ("placed_upto", "history_rows"):
        driver.store.execute(driver.store.sql("batch")["set_counter"], (name, len(walls_ms)))


def kept(driver: Driver) -> list[int]:
    return [row[0] for row in driver.store.execute('SELECT "offset" FROM history')]


def at(steady_ms: int, step_ms: int = 0) -> dict[str, int]:
    return Clock(read=lambda: (0, 0)).counters(ClockReading(steady_ms + step_ms, steady_ms))


@pytest.fixture
def driver(tmp_path: Path) -> Iterator[Driver]:
    with closing(Driver(tmp_path)) as driver:
        yield driver


def test_history_is_not_removed_because_the_clock_was_set_a_year_ahead(driver: Driver) -> None:
    """Nor do the rows of that minute stay for a year and delay the rest."""
    store, bounds = driver.store, RetentionBounds()
    year = 365 * DAY_MS
    note_clock(store, at(0))
    settled(driver, DAY_MS)
    note_clock(store, at(2 * DAY_MS, year), has_jumped=True)
    assert retention.remove_expired(store, bounds, 2 * DAY_MS).rows == 0
    driver.store.execute("DELETE FROM history")
    settled(driver, DAY_MS, 2 * DAY_MS + year, 3 * DAY_MS)
    driver.store.execute("DELETE FROM clock_step")
    for row in ((1, 0, 0), (2, 2 * DAY_MS, year), (3, 2 * DAY_MS + 60_000, 0)):
        store.execute("INSERT INTO clock_step (from_offset, at_ms, step_ms) VALUES (?, ?, ?)", row)
    for days, expected in ((7, [1, 2, 3]), (8.5, [2, 3]), (9.5, [3])):
        while retention.remove_expired(store, bounds, int(days * DAY_MS)).has_more:
            pass
        assert kept(driver) == expected


def test_jumps_are_forgotten_once_nothing_depends_on_them(driver: Driver) -> None:
    store, bounds = driver.store, RetentionBounds()
    for day in range(3):
        note_clock(store, at(day * DAY_MS, day * 10_000), has_jumped=True)
    settled(driver, 500 * DAY_MS)
    retention.remove_expired(store, bounds, 300 * DAY_MS)
    assert len(store.execute("SELECT * FROM clock_step").fetchall()) == 3
    retention.remove_expired(store, bounds, 500 * DAY_MS)
    [(first, step_ms)] = store.execute("SELECT from_offset, step_ms FROM clock_step").fetchall()
    assert step_ms == ClockJumps([(first, step_ms)]).at_offset(1) == 20_000
    assert JUMPS_KEPT >= 100


def test_clock_that_stays_where_it_is_makes_one_row(driver: Driver) -> None:
    store = driver.store
    for minute in range(5):
        note_clock(store, at(minute * 60_000, 1_000 + minute))
    assert store.execute("SELECT count(*) FROM clock_step").fetchone() == (1,)


def test_clock_is_noted_later_while_a_stranger_has_the_lock(driver: Driver) -> None:
    """Like any failure known to have stored nothing, this does not end the broker."""
    driver.store.set_lock_wait(False)
    with closing(sqlite3.connect(driver.path, isolation_level=None)) as stranger:
        stranger.execute("BEGIN IMMEDIATE")
        with pytest.raises(NotWritableError, match="locked"):
            note_clock(driver.store, at(0))
        stranger.execute("ROLLBACK")
    note_clock(driver.store, at(0))


# -- while the broker runs


class Hands:
    """Sets the clocks of the broker in this process."""

    def __init__(self) -> None:
        self.wall_ms = self.running_ms = 0  # added to the real time

    def read(self) -> tuple[int, int]:
        wall_ms, running_ms = read_clocks()
        return wall_ms + self.wall_ms, running_ms + self.running_ms


@pytest.fixture
def hands(monkeypatch: pytest.MonkeyPatch) -> Hands:
    made = Hands()
    monkeypatch.setattr(clock, "read_clocks", made.read)
    if ON_POSTGRES:
        _set_clock_of_the_server(made, monkeypatch)
    return made


def _set_clock_of_the_server(hands: Hands, patch: pytest.MonkeyPatch) -> None:
    from phpmq_lite.storage.postgres import writer

    check = writer.PostgresWriter.check

    def check_later(
        self: writer.PostgresWriter, before: Any, after: Any, notices: list[str]
    ) -> str | None:
        after = after._replace(server_ms=after.server_ms + hands.wall_ms)
        return check(self, before, after, notices)

    patch.setattr(writer, "read_clocks", hands.read)
    patch.setattr(writer.PostgresWriter, "check", check_later)


async def test_jump_is_stored_and_reported_at_once_even_while_idle(
    tmp_path: Path, hands: Hands
) -> None:
    async with broker_fixture(tmp_path / "data") as home, HttpUser(home.url) as browser:
        message = {"content": "{}", "ttl_s": 3_600}
        await home.control("POST", "/queues/orders/messages", message)
        (before,) = home.rows("SELECT deadline_ms FROM message")
        hands.wall_ms = 365 * DAY_MS
        count = "SELECT count(*) FROM clock_step"
        await wait_until(lambda: home.rows(count) == [(2,)])
        (step,) = home.rows("SELECT value FROM counter WHERE name = 'clock_step_ms'")
        assert abs(step[0] - 365 * DAY_MS) < 2_000
        assert await ready(home) == ["{}"]
        assert home.rows("SELECT deadline_ms FROM message") == [before]
        assert (await home.control("GET", "/clock"))["jumps"] == 1
        assert "Changed once since startup, most recently forward" in (await browser.get("/")).text


async def test_time_that_the_process_stood_still_is_no_acknowledgement_timeout(
    tmp_path: Path, hands: Hands
) -> None:
    """Acknowledgements that wait in the sockets are read first."""
    queues = {"ack_timeout_s": 60, "max_deliveries": 0}
    async with broker_fixture(tmp_path / "data", queues=queues) as home:
        await home.control("POST", "/queues/orders/messages", {"content": "{}"})
        engine = home.broker.service.handle.engine
        assert engine is not None
        async with (
            connect(home.broker.host, home.broker.port) as client,
            client.consume("orders", credit=1) as deliveries,
        ):
            delivery = await anext(deliveries)
            hands.wall_ms = hands.running_ms = 100_000
            batches = engine.core.batch_number
            await home.control("POST", "/queues/other/messages", {"content": "{}"})
            await wait_until(lambda: engine.core.batch_number > batches)
            queue = home.broker.service.handle.status().queues[0]
            assert (queue.dispatched, queue.totals["returned"]) == (1, 0)
            delivery.ack()
            await wait_until(lambda: not home.broker.service.handle.summary().held)
