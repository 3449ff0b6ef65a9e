"""Texts of the system page and the restart report."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from phpmq_lite.admin.http.live_feeds import LiveFeeds
from phpmq_lite.admin.http.memory import HttpMemory
from phpmq_lite.admin.messages.jobs import STORES, MessageStores
from phpmq_lite.admin.slow_clients import LIMITS, ConnectionLimits
from phpmq_lite.admin.system import facts
from phpmq_lite.admin.system.health import start_percent
from phpmq_lite.settings import Settings
from phpmq_lite.storage.disk_space import DatabaseSize, DiskUsage
from phpmq_lite.storage.start_report import Start, StartReport
from tests.unit.admin.cases import NOW_MS, broker_status, client_status, queue_status

FOLDER = Path("/var/lib/phpmq")


def start(report: StartReport | None = None, **changes: Any) -> Start:
    given: dict[str, Any] = {
        "start_id": 3, "at_ms": NOW_MS, "version": "0.2.0", "was_clean": False,
        "down_from_ms": NOW_MS - 65_000, "report": report or StartReport(), "dismissed_by": None,
    }  # fmt: skip
    return Start(**(given | changes))


def test_report_says_how_long_and_how_the_broker_was_down() -> None:
    report = facts.describe_restart(start())
    assert report.title == "The broker was down for 1 min 5 s and restarted after an unclean stop"
    assert [fact.name for fact in report.facts] == ["Found", "Startup time"]
    assert facts.describe_restart(start(was_clean=True)).title.endswith("after a clean stop")


def test_report_has_all_that_was_found() -> None:
    report = StartReport(
        version_before="0.1.0", wal_frames=40, wal_commits=1, wal_dropped=2, returned=1, expired=7,
        expired_by_queue={"mail": 2, "orders": 5}, migrations=["0002_admin"], messages=9, queues=2,
        seconds=0.25, last_error="disk I/O error",
    )  # fmt: skip
    described = facts.describe_restart(start(report))
    assert {fact.name: fact.text for fact in described.facts} == {
        "Stopped because": "disk I/O error",
        "Lost": "2 commits",
        "Recovered": "1 commit",
        "Returned": "1 message",
        "Expired while stopped": "7 messages",
        "Schema": "0002_admin",
        "Version": "0.2.0",
        "Found": "9 messages",
        "Startup time": "250 ms",
    }
    assert described.expired == [("orders", 5), ("mail", 2)]
    (late,) = (fact for fact in described.facts if fact.name == "Expired while stopped")
    assert late.note == "expired, forwarded or dead-lettered, as each queue specifies"


def test_first_start_was_down_for_no_time() -> None:
    first = start(down_from_ms=None, was_clean=True)
    assert (first.is_first, first.down_ms) == (True, 0)
    assert facts.describe_restart(first).title == "First startup"


def test_clock_that_was_set_back_makes_no_negative_time() -> None:
    assert start(down_from_ms=NOW_MS + 5_000).down_ms == 0


def test_limit_that_is_reached_stands_out() -> None:
    settings = Settings.model_validate({"limits": {"held": 10, "connections": 100}})
    clients = tuple(client_status(n) for n in range(85))
    status = broker_status(queue_status(), held=10, clients=clients)
    context: Any = SimpleNamespace(
        settings=settings,
        memory=HttpMemory(1),
        live=LiveFeeds(),
        app={LIMITS: ConnectionLimits.of(settings), STORES: MessageStores(lambda: NOW_MS)},
    )
    gauges = {gauge.text.setting: gauge for gauge in facts.list_limits(context, status)}
    assert gauges["limits.held"].level == "bad"
    assert gauges["limits.connections"].level == "warn"
    assert gauges["limits.connections_per_address"].shown == "85"
    assert gauges["limits.max_queues"].level == ""


def test_waiting_names_each_reason_with_its_setting() -> None:
    clients = (
        client_status(1, paused_reasons=("memory", "queue")),
        client_status(2, paused_reasons=("queue",)),
        client_status(3),
    )
    found = facts.waiting_facts(broker_status(clients=clients))
    assert [fact.name for fact in found] == [
        "2 connections not being read",
        "1 connection not being read",
    ]
    assert "limits.unstored_total" in found[1].text


def test_limit_that_is_reached_is_a_warning() -> None:
    held = facts.LimitText("held", "Held", "no dispatches", setting="limits.held")
    usages = [facts.LimitUsage(held, facts.Measured(10, used)) for used in (10, 9)]
    [fact] = facts.waiting_facts(broker_status(), usages)
    text = "10 of 10: no dispatches (limits.held)"
    assert fact == facts.SystemFact("Held", text, level="warn")


def test_storage_warns_of_a_disk_that_is_almost_full() -> None:
    disk = DiskUsage({"database": 10, "wal": 0, "shm": 0}, total=1_000, free=10)
    rows = {fact.name: fact for fact in facts.storage_facts(Settings(), disk, None, FOLDER)}
    assert rows["Free disk space"].level == "bad"


def test_retention_shows_the_share_of_deleted_messages() -> None:
    stored = DatabaseSize(
        pages=1, pages_free=0, page_bytes=4_096, schema=2, history_rows=200, history_bytes=10,
        deleted_rows=10, deleted_bytes=1, history_oldest_at=None, history_offset=200, removed=0,
        audit_rows=0, audit_oldest_at=None, last_seen_ms=None,
    )  # fmt: skip
    rows = {fact.name: fact for fact in facts.retention_facts(Settings(), stored)}
    assert rows["Deleted messages"].note == "5.0% of settled messages, at most 500,000"


def test_page_without_a_database_still_has_its_other_parts() -> None:
    [fact] = facts.storage_facts(Settings(), None, None, FOLDER)
    assert fact.name == "Folder"
    assert facts.retention_facts(Settings(), None) == []


def test_startup_percentage_only_grows() -> None:
    steps = ("starting", "checking the write-ahead log", "migrating", "recovering", "ready")
    percents = [start_percent(step) for step in steps]
    assert percents == sorted(percents)
    assert (percents[0], percents[-1]) == (0, 100)
