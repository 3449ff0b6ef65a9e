"""Staged rows on a real file: published once, all or nothing, despite kills and restarts."""

from typing import Any
from unittest.mock import patch

import pytest

from phpmq_lite.broker.pipeline import staging, state
from phpmq_lite.broker.pipeline.staging import ANY_WRITER, StagedPublishResult, StagingStatus
from phpmq_lite.broker.pipeline.state import StageWriter
from phpmq_lite.envelopes.inspector import BabelQueueInspector
from phpmq_lite.model import Limits, checksum
from phpmq_lite.queue_settings import QueueSettings
from phpmq_lite.storage import retention
from phpmq_lite.storage.retention import RetentionBounds
from phpmq_lite.storage.sqlite.store import LONG_WAL_BYTES
from tests.support.builds import NEEDS_SOURCES
from tests.support.core_and_store import (
    Driver,
    MakeDriver,
    consume_all,
    run_operation,
    stored_bodies,
)
from tests.support.envelope_cases import body


@pytest.fixture
def make(make: MakeDriver) -> MakeDriver:
    """Return a function that creates a driver with envelope inspection."""

    def make_it(limits: Limits | None = None, **settings: Any) -> Driver:
        return make(limits, QueueSettings(**settings), BabelQueueInspector())

    return make_it


def stage(
    driver: Driver,
    token: str,
    *bodies: bytes,
    queue: str = "orders",
    ttl_s: int | None = None,
    after: int = 0,
    is_whole: bool = True,
) -> Any:
    rows = [(queue, content, ttl_s) for content in bodies]
    return run_operation(driver, "stage", token, rows, after=after, is_whole=is_whole)


def publish(
    driver: Driver,
    version: int,
    *tokens: str,
    app_id: str = "app",
    writer: StageWriter = ANY_WRITER,
    is_single: bool = False,
    in_parts: bool = False,
) -> Any:
    return run_operation(
        driver, "publish_staged", app_id, version, tokens,
        writer=writer, is_single=is_single, in_parts=in_parts,
    )  # fmt: skip


def tokens(driver: Driver) -> list[str]:
    """Return the staged tokens, which must be the same in memory and on disk."""
    names = [name for (name,) in driver.rows(
        "SELECT token FROM stage WHERE token IS NOT NULL ORDER BY stage_id")]  # fmt: skip
    assert list(driver.core.staging.stages) == names
    on_disk = driver.rows(
        'SELECT coalesce(sum(bytes), 0), coalesce(sum("rows"), 0),'
        " (SELECT count(*) FROM stage_part) FROM stage WHERE token IS NOT NULL"
    )
    staging = driver.core.staging
    assert on_disk == [(staging.bytes, staging.rows, staging.parts)]
    return names


def test_staged_rows_are_published_after_existing_messages(make: MakeDriver) -> None:
    driver = make()
    driver.publish(b"a")
    assert stage(driver, "t1", b"b", b"c") == StagingStatus(2, 2)
    assert stage(driver, "t2", b"d") == StagingStatus(1, 1)
    assert (stored_bodies(driver), tokens(driver)) == ([b"a"], ["t1", "t2"])
    assert publish(driver, 0, "t2", "t1") == StagedPublishResult(3, False, 0)
    assert (stored_bodies(driver), tokens(driver)) == ([b"a", b"d", b"b", b"c"], [])
    assert driver.live() == (4, 4)
    driver.publish(b"e")
    assert stored_bodies(driver)[-1] == b"e"
    rows = driver.rows(
        "SELECT seq, position, crc, size, content FROM message JOIN body USING (seq)"
    )
    for seq, position, crc, size, content in rows:
        assert (position, crc, size) == (seq, checksum(seq, content), len(content))
    assert len(set(driver.rows("SELECT token FROM message"))) == 5


def test_consumer_gets_what_is_published_in_order(make: MakeDriver) -> None:
    driver = make(Limits(window=3))
    worker = driver.consume(2)
    expected = []
    for version in range(3):
        bodies = [b"%d-%d" % (version, n) for n in range(5)]
        stage(driver, "t", *bodies)
        publish(driver, version, "t")
        driver.publish(b"plain %d" % version)
        expected += [*bodies, b"plain %d" % version]
    assert consume_all(driver, worker) == expected
    assert driver.live() == (0, 0)


def test_version_is_published_once(make: MakeDriver) -> None:
    driver = make()
    for token in "abcd":
        stage(driver, token, token.encode())
    assert publish(driver, 5, "a") == StagedPublishResult(1, False, 0)
    assert publish(driver, 5, "b") == StagedPublishResult(0, True, 0)
    assert publish(driver, 4, "c", "gone") == StagedPublishResult(0, True, 0)
    assert tokens(driver) == ["d"]  # those of a repeated version are dropped
    driver.kill_and_restart()
    assert publish(driver, 5, "d") == StagedPublishResult(0, True, 0)
    stage(driver, "e", b"e")
    assert publish(driver, 5, "e", app_id="other") == StagedPublishResult(1, False, 0)
    assert publish(driver, 6) == StagedPublishResult(0, False, 0)  # without rows, too
    assert publish(driver, 6) == StagedPublishResult(0, True, 0)
    assert stored_bodies(driver) == [b"a", b"e"]


def test_kill_before_the_commit_publishes_nothing_and_keeps_the_token(make: MakeDriver) -> None:
    driver = make()
    stage(driver, "t", b"a", b"b")
    driver.ask("publish_staged", "app", 1, ["t"])
    driver.decide()
    driver.kill_and_restart()
    assert (stored_bodies(driver), tokens(driver)) == ([], ["t"])
    driver.ask("publish_staged", "app", 1, ["t"])
    driver.record()  # stored, but no reply is sent
    driver.kill_and_restart()
    assert (stored_bodies(driver), tokens(driver)) == ([b"a", b"b"], [])
    assert publish(driver, 1, "t") == StagedPublishResult(0, True, 0)
    assert driver.live() == (2, 2)


def test_rows_come_in_chunks(make: MakeDriver) -> None:
    driver = make()
    assert stage(driver, "t", b"a", is_whole=False) == StagingStatus(1, 1)
    assert stage(driver, "t", b"x") == "token_staged"
    assert stage(driver, "t", b"x", after=2) == "gap"
    assert stage(driver, "other", b"x", after=2) == "unknown_token"
    assert publish(driver, 1, "t") == "token_open"
    assert stage(driver, "t", b"b", queue="mails", after=1, is_whole=False) == StagingStatus(2, 2)
    assert stage(driver, "t", after=2) == StagingStatus(2, 2)
    assert stage(driver, "t", b"x", after=2) == "token_staged"
    assert publish(driver, 1, "t") == StagedPublishResult(2, False, 0)
    assert (stored_bodies(driver), stored_bodies(driver, "mails")) == ([b"a"], [b"b"])


def test_incomplete_tokens_are_dropped_at_a_restart(make: MakeDriver) -> None:
    driver = make()
    stage(driver, "open", b"a", is_whole=False)
    stage(driver, "whole", b"b", ttl_s=9)
    parts = dict(driver.core.staging.stages["whole"].queues)
    driver.kill_and_restart()
    assert tokens(driver) == ["whole"]
    assert driver.core.staging.stages["whole"].queues == parts
    assert stage(driver, "open", b"c") == StagingStatus(1, 1)
    while retention.remove_dropped_stages(driver.store):
        pass
    assert driver.rows("SELECT content FROM stage_row") == [(b"b",), (b"c",)]


def test_tokens_are_dropped_on_demand_and_after_a_day(make: MakeDriver) -> None:
    driver = make()
    for token in "abc":
        stage(driver, token, token.encode())
        driver.clock.advance(3_600)
    assert run_operation(driver, "unstage", ["a", "a", "none"]) == 1
    driver.kill_and_restart()
    assert tokens(driver) == ["b", "c"]
    driver.clock.advance(86_400 - 2 * 3_600)
    assert driver.core.next_wake_ms == driver.clock.steady_ms
    driver.step()
    assert tokens(driver) == ["c"]
    assert publish(driver, 1, "b") == "unknown_token"


def test_rows_of_dropped_tokens_are_removed_in_slices(make: MakeDriver) -> None:
    driver = make()
    stage(driver, "a", *[b"x"] * 120)
    stage(driver, "b", b"y")
    publish(driver, 1, "a")
    ticks = iter(range(100))
    steps = 0
    while retention.remove_dropped_stages(driver.store, timer=lambda: float(next(ticks))):
        steps += 1
    assert steps > 1
    assert driver.rows("SELECT content FROM stage_row") == [(b"y",)]
    assert driver.rows("SELECT token FROM stage") == [("b",)]
    assert driver.live() == (120, 120)


def test_staged_rows_are_checkpointed_for_each_mebibyte(make: MakeDriver) -> None:
    """An uncounted checkpoint of 60 MB of them once delayed the next batch by 88 ms."""
    driver = make()
    stage(driver, "a", *[b"x" * 1_000] * 900)
    assert driver.store.wal_bytes < LONG_WAL_BYTES
    stage(driver, "b", *[b"x" * 1_000] * 200)
    assert driver.store.wal_bytes >= LONG_WAL_BYTES


def test_maintenance_removes_tokens_unpublished_for_a_day(make: MakeDriver) -> None:
    driver = make()
    bounds = RetentionBounds(age_ms=1 << 60)
    upkeep = driver.database.maintenance(bounds, driver.clock.counters)
    stage(driver, "a", *[b"x"] * 120)
    driver.clock.advance(86_400)
    stage(driver, "b", b"y")
    assert tokens(driver) == ["b"]
    with patch.multiple(retention, SWEEP_S=0, _SWEEP_ROWS_AT_ONCE=50):  # on any machine
        more = [upkeep(driver.store, driver.clock.now(), False) for _ in range(4)]
    assert more == [True, True, True, False]
    assert driver.rows("SELECT content FROM stage_row") == [(b"y",)]
    assert driver.rows("SELECT token FROM stage") == [("b",)]
    stage(driver, "c", b"z")
    run_operation(driver, "unstage", ["c"])
    driver.clock.advance(1)  # it runs once a second
    while upkeep(driver.store, driver.clock.now(), False):
        pass
    assert driver.rows("SELECT content FROM stage_row") == [(b"y",)]


@NEEDS_SOURCES
def test_staged_rows_of_a_user_leave_space_for_another(make: MakeDriver) -> None:
    driver = make()
    with patch.object(staging, "STAGED_ROWS", 8):
        assert stage(driver, "t", *[b"x"] * 8) == StagingStatus(8, 8)
        assert stage(driver, "u", b"x") == "stage_full"
        driver.core.staging.stages["t"].actor = "somebody else"
        assert stage(driver, "u", b"x") == StagingStatus(1, 1)
        assert stage(driver, "v", b"x") == "stage_full"  # as much is left as "u" has


@NEEDS_SOURCES
@pytest.mark.parametrize(("name", "bound"), [
    ("STAGE_SLICE", 1), ("TOKEN_ROWS", 1), ("TOKEN_BYTES", 1), ("STAGED_BYTES", 1), ("TOKENS", 0),
    ("STAGED_ROWS", 1), ("STAGED_PARTS", 0),
])  # fmt: skip
def test_staging_is_bounded(make: MakeDriver, name: str, bound: int) -> None:
    driver = make()
    codes = {"STAGE_SLICE": "too_many", "TOKEN_ROWS": "too_many", "TOKEN_BYTES": "too_large"}
    with patch.object(staging, name, bound):
        assert stage(driver, "t", b"a", b"b") == codes.get(name, "stage_full")
    assert tokens(driver) == []
    assert driver.rows("SELECT * FROM queue") == []


@NEEDS_SOURCES
@pytest.mark.parametrize(("name", "code"), [
    ("PUBLISH_ROWS", "too_many"), ("PUBLISH_BYTES", "too_large"),
])  # fmt: skip
def test_publish_is_bounded(make: MakeDriver, name: str, code: str) -> None:
    driver = make()
    stage(driver, "t", b"a")
    stage(driver, "u", b"b")
    with patch.object(staging, name, 1):
        assert publish(driver, 1, "t", "u") == code
        assert publish(driver, 1, "u") == StagedPublishResult(1, False, 0)


@NEEDS_SOURCES
@pytest.mark.parametrize("is_killed", [False, True])
def test_large_publish_is_stored_in_parts_and_once(make: MakeDriver, is_killed: bool) -> None:
    driver = make()

    def contents() -> list[bytes]:
        return [body for (body,) in driver.rows("SELECT content FROM body ORDER BY seq")]

    def pause() -> None:
        if is_killed:
            driver.kill_and_restart()

    for token in ("a", "b", "c", "d", "e"):
        stage(driver, token, *(b"%s%d" % (token.encode(), n) for n in range(2)))
    with patch.object(staging, "PUBLISH_ROWS", 4):
        assert publish(driver, 1, "a", "b", "c", "d", "e") == "too_many"
        first = publish(driver, 1, "a", "b", "c", "d", "e", in_parts=True)
        assert first == StagedPublishResult(4, False, 0, remaining=6)
        pause()
        # The rest cannot be dropped, and no other version goes before it.
        assert run_operation(driver, "unstage", ["c", "d", "e"]) == 0
        stage(driver, "next", b"next")
        assert publish(driver, 2, "next", in_parts=True) == "unfinished_version"
        driver.clock.advance(2 * DAY_S)
        # Repeated with rows in another order, it resumes with the rows that were staged first.
        stage(driver, "z", b"e1", b"a0")
        again = publish(driver, 1, "z", in_parts=True)
        assert again == StagedPublishResult(4, False, 0, remaining=2, is_resumed=True)
        assert "z" not in driver.core.staging.stages
        pause()
        last = publish(driver, 1, in_parts=True)
        assert last == StagedPublishResult(2, False, 0, is_resumed=True)
        pause()
        assert publish(driver, 1, in_parts=True) == StagedPublishResult(0, True, 0)
        assert contents() == [b"%s%d" % (t, n) for t in (b"a", b"b", b"c", b"d", b"e")
                              for n in range(2)]  # fmt: skip
    assert driver.core.staging.sealed == {}
    stage(driver, "next", b"next")
    assert publish(driver, 2, "next") == StagedPublishResult(1, False, 0)


@NEEDS_SOURCES
def test_rest_of_a_publish_is_dropped_after_thirty_days(make: MakeDriver) -> None:
    driver = make()
    for token in ("a", "b"):
        stage(driver, token, token.encode())
    with patch.object(staging, "PUBLISH_ROWS", 1):
        publish(driver, 1, "a", "b", in_parts=True)
    driver.kill_and_restart()
    driver.clock.advance(29 * DAY_S)
    stage(driver, "c", b"c")
    assert driver.core.staging.rows == 2
    driver.clock.advance(2 * DAY_S)
    stage(driver, "d", b"d")
    assert (driver.core.staging.rows, driver.core.staging.sealed) == (1, {})


ANN, BOB = StageWriter("ann"), StageWriter("bob")
DAY_S = 86_400


def known(driver: Driver) -> dict[str, str | None]:
    """Return the owners of the app_ids, the same in memory and after a restart."""
    before = dict(driver.core.staging.app_ids.by_name)
    driver.kill_and_restart()
    assert driver.core.staging.app_ids.by_name == before
    return {app_id: one.owner for app_id, one in before.items()}


def test_app_id_belongs_to_the_first_writer(make: MakeDriver) -> None:
    """Otherwise the owner could publish nothing more: all its versions would be lower."""
    driver = make()
    assert publish(driver, 1, app_id="ann's", writer=ANN) == StagedPublishResult(0, False, 0)
    assert publish(driver, (1 << 63) - 1, app_id="ann's", writer=BOB) == "foreign_app_id"
    assert known(driver) == {"ann's": "ann"}
    assert publish(driver, 1, app_id="ann's", writer=BOB) == "foreign_app_id"
    stage(driver, "t", b"a")
    assert publish(driver, 2, "t", app_id="ann's", writer=ANN) == StagedPublishResult(1, False, 0)


def test_machine_without_accounts_owns_all_app_ids(make: MakeDriver) -> None:
    driver = make()
    publish(driver, 1, app_id="ours")
    publish(driver, 1, app_id="ann's", writer=ANN)
    assert publish(driver, 2, app_id="ann's") == StagedPublishResult(0, False, 0)
    assert known(driver) == {"ours": None, "ann's": "ann"}
    assert publish(driver, 1, app_id="ours", writer=BOB) == StagedPublishResult(0, True, 0)
    assert known(driver) == {"ours": "bob", "ann's": "ann"}  # the first writer with a login


def test_app_id_is_transferred(make: MakeDriver) -> None:
    driver = make()
    publish(driver, 1, app_id="a", writer=ANN)
    assert run_operation(driver, "transfer_app_id", "none", "bob") == "unknown_app_id"
    assert run_operation(driver, "transfer_app_id", "a", "bob") is None
    assert publish(driver, 2, app_id="a", writer=ANN) == "foreign_app_id"
    assert publish(driver, 1, app_id="a", writer=BOB) == StagedPublishResult(0, True, 0)
    assert run_operation(driver, "transfer_app_id", "a", None) is None
    assert known(driver) == {"a": None}
    assert publish(driver, 2, app_id="a", writer=ANN) == StagedPublishResult(0, False, 0)


@NEEDS_SOURCES
def test_app_id_that_was_used_in_the_last_30_days_is_never_forgotten(make: MakeDriver) -> None:
    driver = make()
    with patch.object(state, "APP_IDS", 2):
        for app_id in ("a", "b"):
            publish(driver, 1, app_id=app_id, writer=ANN)
        driver.clock.advance(20 * DAY_S)
        publish(driver, 1, app_id="b", writer=ANN)  # a repetition is a use, too
        driver.clock.advance(10 * DAY_S - 1)
        for app_id in ("c", "d", "e"):
            assert publish(driver, 1, app_id=app_id, writer=ANN) == "too_many_app_ids"
        assert run_operation(driver, "transfer_app_id", "a", "ann") is None  # nothing new
        assert publish(driver, 1, app_id="bob's", writer=BOB) == StagedPublishResult(0, False, 0)
        assert known(driver).keys() == {"a", "b", "bob's"}
        assert publish(driver, 1, app_id="a", writer=ANN) == StagedPublishResult(0, True, 0)
        driver.clock.advance(20 * DAY_S + 2)
        assert publish(driver, 1, app_id="c", writer=ANN) == StagedPublishResult(0, False, 0)
        assert known(driver).keys() == {"a", "c", "bob's"}
        assert publish(driver, 1, app_id="x", writer=BOB) == StagedPublishResult(0, False, 0)
        assert run_operation(driver, "transfer_app_id", "a", "bob") == "too_many_app_ids"


@NEEDS_SOURCES
def test_app_ids_of_single_publishes_replace_each_other(make: MakeDriver) -> None:
    """A batch write without txnAppId has a new one each time: a few are enough for repetitions."""
    driver = make()
    with patch.object(state, "SINGLE_USES", 2), patch.object(state, "APP_IDS", 1):
        publish(driver, 1, app_id="stream", writer=ANN)
        for app_id in ("x", "y", "z"):
            publish(driver, 0, app_id=app_id, writer=ANN, is_single=True)
            driver.clock.advance(1)
        assert publish(driver, 0, app_id="z", writer=ANN) == StagedPublishResult(0, True, 0)
        assert known(driver).keys() == {"stream", "y", "z"}
        assert publish(driver, 0, "gone", app_id="x", writer=ANN, is_single=True) == (
            "unknown_token"
        )


def test_writer_publishes_and_drops_tokens_of_their_queues_only(make: MakeDriver) -> None:
    driver = make()
    stage(driver, "t", b"a", queue="orders")
    limited = StageWriter("bob", lambda queue: queue == "mail")
    assert run_operation(driver, "unstage", ["t"], writer=limited) == 0
    assert publish(driver, 1, "t", writer=limited) == "foreign_queue"
    publish(driver, 1, writer=limited)
    assert publish(driver, 1, "t", writer=limited) == StagedPublishResult(0, True, 0)
    assert tokens(driver) == ["t"]


@pytest.mark.parametrize(("settings", "code"), [
    ({"publishing_paused": True}, "paused"),
    ({"max_messages": 2}, "queue_full"),
    ({"max_bytes": 2}, "queue_full"),
    ({"payload_policy": "envelope"}, "queue_changed"),
])  # fmt: skip
def test_queue_that_cannot_take_all_rows_takes_none(
    make: MakeDriver, settings: dict[str, Any], code: str
) -> None:
    driver = make()
    driver.publish(b"a")
    stage(driver, "t", b"b", b"c")
    stage(driver, "u", b"d", queue="mails")
    run_operation(driver, "configure", "orders", settings)
    assert publish(driver, 1, "u", "t") == code
    assert (stored_bodies(driver), tokens(driver)) == ([b"a"], ["t", "u"])
    assert stored_bodies(driver, "mails") == []
    run_operation(driver, "configure", "orders", dict.fromkeys(settings))
    assert publish(driver, 1, "u", "t") == StagedPublishResult(3, False, 0)


def test_removed_queue_is_created_again(make: MakeDriver) -> None:
    driver = make()
    stage(driver, "t", b"a")
    run_operation(driver, "remove_queue", "orders")
    driver.kill_and_restart()
    assert publish(driver, 1, "t") == StagedPublishResult(1, False, 0)
    assert (stored_bodies(driver), driver.core.queues["orders"].row.live_count) == ([b"a"], 1)


def test_removed_queue_above_the_limit_refuses_the_publish(make: MakeDriver) -> None:
    driver = make(Limits(queues=1))
    stage(driver, "t", b"a")
    run_operation(driver, "remove_queue", "orders")
    run_operation(driver, "create_queue", "mails")
    assert publish(driver, 1, "t") == "too_many_queues"
    assert tokens(driver) == ["t"]


def test_too_many_queues_are_refused_as_a_whole(make: MakeDriver) -> None:
    driver = make(Limits(queues=2))
    rows = [(name, b"x", None) for name in ("a", "b", "c")]
    assert run_operation(driver, "stage", "t", rows, after=0, is_whole=True) == "too_many_queues"
    assert stage(driver, "t", b"x", queue="") == "bad_name"
    assert driver.core.queues == {}


def test_ttl_counts_from_the_publish(make: MakeDriver) -> None:
    driver = make(default_ttl_s=5)
    stage(driver, "t", b"default")
    stage(driver, "u", b"never", ttl_s=0)
    stage(driver, "v", b"own", ttl_s=7)
    driver.clock.advance(3_600)
    publish(driver, 1, "t", "u", "v")
    now_ms = driver.clock.steady_ms
    assert driver.rows("SELECT ttl_s, deadline_ms FROM message ORDER BY seq") == [
        (5, now_ms + 5_000), (None, None), (7, now_ms + 7_000),
    ]  # fmt: skip
    assert driver.core.next_wake_ms == now_ms + 5_000
    driver.clock.advance(7)
    driver.step()
    assert stored_bodies(driver) == [b"never"]


def test_envelopes_are_indexed_when_they_are_staged(make: MakeDriver) -> None:
    driver = make()
    stage(driver, "t", body(), b"plain")
    publish(driver, 1, "t")
    rows = driver.rows("SELECT urn, attempts FROM message ORDER BY seq")
    assert rows == [("urn:babel:orders:created", 0), (None, None)]


def test_invalid_envelopes_are_dead_lettered_at_once(make: MakeDriver) -> None:
    driver = make()
    run_operation(driver, "create_queue", "orders")
    run_operation(driver, "configure", "orders", {"payload_policy": "envelope"})
    driver.publish(b"bad", body())
    first = driver.rows("SELECT outcome, reason FROM history")
    stage(driver, "t", body(), b"worse", body(), b"{}")
    driver.kill_and_restart()
    assert publish(driver, 1, "t") == StagedPublishResult(4, False, 2)
    assert stored_bodies(driver) == [body()] * 3
    rows = driver.rows("SELECT outcome FROM history")
    assert (rows, first[0][0]) == ([(4,)] * 3, 4)
    assert (driver.live(), len(stored_bodies(driver, "orders.dlq"))) == ((3, 3 * len(body())), 3)
    records = driver.rows(
        "SELECT content, h.seq, h.token FROM message AS m"
        " JOIN body USING (seq) JOIN history AS h ON h.seq = m.source_seq"
    )
    assert len(records) == 3
    assert all(b"%016x%016x" % tuple(place) in record for record, *place in records)
    assert driver.core.queues["orders"].counters.published == 4


@NEEDS_SOURCES
def test_too_many_invalid_rows_are_refused(make: MakeDriver) -> None:
    driver = make(payload_policy="envelope")
    stage(driver, "t", b"bad", b"worse")
    with patch.object(staging, "PUBLISH_BAD", 1):
        assert publish(driver, 1, "t") == "too_many_quarantined"
    run_operation(driver, "create_queue", "orders.dlq")
    run_operation(driver, "configure", "orders.dlq", {"max_messages": 1})
    assert publish(driver, 1, "t") == "queue_full"
    assert tokens(driver) == ["t"]


def test_publish_of_invalid_rows_takes_two_batches_and_is_stored_once(make: MakeDriver) -> None:
    driver = make(payload_policy="envelope")
    stage(driver, "t", b"bad", body())
    first = driver.ask("publish_staged", "app", 1, ["t"])
    again = driver.ask("publish_staged", "app", 1, ["t"])
    driver.step()
    assert (first.answer, again.answer) == (
        StagedPublishResult(2, False, 1), StagedPublishResult(0, True, 0),
    )  # fmt: skip
    assert driver.live() == (1, len(body()))


def test_token_that_is_staged_again_while_its_invalid_rows_are_read(make: MakeDriver) -> None:
    """The new rows of the token are published, and none of the dropped ones."""
    driver = make()
    run_operation(driver, "create_queue", "orders")
    run_operation(driver, "configure", "orders", {"payload_policy": "envelope"})
    stage(driver, "t", b"bad")
    publishing = driver.ask("publish_staged", "app", 1, ["t"])
    driver.ask("unstage", ["t"])
    driver.ask("stage", "t", [("mails", b"new", None)], after=0, is_whole=True)
    driver.step()
    assert publishing.answer == StagedPublishResult(1, False, 0)
    assert (stored_bodies(driver, "mails"), stored_bodies(driver, "orders.dlq")) == ([b"new"], [])


def test_settings_that_change_during_validation_refuse_the_publish(make: MakeDriver) -> None:
    driver = make(payload_policy="envelope")
    rows = [("orders", b"bad", None)]
    question = driver.ask("stage", "t", rows, after=0, is_whole=True)
    driver.ask("configure", "orders", {"payload_policy": "observe"})
    driver.step()
    assert question.answer == StagingStatus(1, 3)
    assert publish(driver, 1, "t") == "queue_changed"


def test_draining_broker_takes_nothing(make: MakeDriver) -> None:
    driver = make()
    stage(driver, "t", b"a")
    driver.core.drain(lambda _: None)
    assert stage(driver, "u", b"b") == "draining"
    assert publish(driver, 1, "t") == "draining"
    assert run_operation(driver, "unstage", ["t"]) == 1


@pytest.mark.parametrize(("app_id", "version", "code"), [
    ("", 1, "bad_app_id"), ("x" * 257, 1, "bad_app_id"), ("a\n", 1, "bad_app_id"),
    ("a", -1, "bad_version"), ("a", 1 << 63, "bad_version"),
])  # fmt: skip
def test_names_and_numbers_are_checked(
    make: MakeDriver, app_id: str, version: int, code: str
) -> None:
    driver = make()
    assert publish(driver, version, app_id=app_id) == code
    assert stage(driver, "no spaces", b"a") == "bad_token"
