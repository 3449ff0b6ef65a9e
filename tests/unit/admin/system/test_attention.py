"""What needs attention, and what does not."""

from typing import Any

from phpmq_lite.admin.pipeline.history_readers import ReaderView
from phpmq_lite.admin.system.attention import NOTICES_MAX, AttentionFacts, Notice, find_notices
from phpmq_lite.checks import Check
from phpmq_lite.model import DISK_FULL, Shortage
from phpmq_lite.queue_settings import QueueSettings
from phpmq_lite.server.status import QueueStatus
from phpmq_lite.storage.read.activity import COUNT_LIMIT, ConsumerLoad
from phpmq_lite.storage.sqlite.standby_lag import StandbyState
from tests.unit.admin.cases import NOW_MS, broker_status, client_status, queue_status

MINUTE_MS = 60_000


def found(
    *queues: QueueStatus, seen: AttentionFacts | None = None, **changes: object
) -> list[Notice]:
    return find_notices(broker_status(*queues, **changes), seen or AttentionFacts(NOW_MS))


def test_nothing_needs_attention_when_all_is_well() -> None:
    assert found(
        queue_status("orders", 1, ready=5, consumers=1),
        queue_status("orders.dlq", 2, ready=3),
    ) == []  # fmt: skip


def test_standby_needs_attention_if_it_fails_or_is_late() -> None:
    def notices(state: StandbyState) -> list[tuple[str, str]]:
        return [(n.level, n.text) for n in found(seen=AttentionFacts(NOW_MS, standby=state))]

    assert notices(StandbyState(True, lag_s=2.0, lag_messages=30)) == []
    assert notices(StandbyState(False, 9.0, 100, 1, problem="Litestream is not running")) == [
        ("bad", "Litestream is not running; a loss of this machine would lose up to 9 s, 1 message")
    ]
    assert notices(StandbyState(True, 61.0, 100, 2_000)) == [
        ("bad", "The target is slow; a loss of this machine would lose up to 61 s, 2,000 messages")
    ]


def test_what_expires_unread_comes_first() -> None:
    soon = NOW_MS + 2 * MINUTE_MS
    notices = found(
        queue_status("backlog", 1, ready=5),
        queue_status("dying", 2, ready=2),
        queue_status("read", 3, ready=2, consumers=1),
        seen=AttentionFacts(NOW_MS, expiring={2: (2, soon), 3: (2, soon)}),
    )
    assert [(n.level, n.subject) for n in notices] == [("bad", "dying"), ("warn", "backlog")]
    text = "2 messages expire within 10 minutes without a consumer, the first in 2 min"
    assert notices[0].text == text
    assert notices[1].text == "5 ready messages and no consumer"


def test_limits_that_somebody_set_are_alerts() -> None:
    limited = QueueSettings(alert_age_s=60, alert_messages=10)
    over = queue_status("over", 1, ready=11, consumers=1, settings=limited)
    within = queue_status("within", 2, ready=10, consumers=1, settings=limited)
    ages = {1: NOW_MS - 2 * MINUTE_MS, 2: NOW_MS - MINUTE_MS}
    notices = found(over, within, seen=AttentionFacts(NOW_MS, oldest_ready_at=ages))
    assert [(n.level, n.text) for n in notices] == [
        ("bad", "The oldest ready message has waited for 2 min; the limit is 1 min"),
        ("bad", "11 ready messages; the limit is 10"),
    ]


def test_deaths_are_reported_by_cause_while_there_are_records() -> None:
    seen = AttentionFacts(NOW_MS, deaths={1: {"client": 2, "max_deliveries": 9}, 2: {"client": 1}})
    notices = found(queue_status("orders", 1, dead=11), queue_status("mail", 2, dead=0), seen=seen)
    [notice] = notices
    assert notice.text == "11 dead-lettered in the last 24 h: max_deliveries 9, client 2"
    assert notice.values == {"q": "orders", "tab": "dead"}


def test_what_expired_unread_is_reported_for_a_day() -> None:
    seen = AttentionFacts(NOW_MS, unread={1: COUNT_LIMIT})
    [notice] = found(queue_status("orders", 1), seen=seen)
    assert notice.text.startswith("At least 2,000 expired in the last 24 h")
    assert notice.values == {"q": "orders", "tab": "history", "outcome": "expired"}


def test_message_held_for_more_than_half_of_its_time_is_reported_with_its_holder() -> None:
    slow = queue_status("slow", 1, settings=QueueSettings(ack_timeout_s=600))
    held = (
        ConsumerLoad(1, 7, 3, 30, NOW_MS - 6 * MINUTE_MS),
        ConsumerLoad(1, 8, 1, 30, NOW_MS - MINUTE_MS),
        ConsumerLoad(2, 9, 1, 30, NOW_MS - 6 * MINUTE_MS),
    )
    notices = found(slow, queue_status("patient", 2), seen=AttentionFacts(NOW_MS, held=held))
    [notice] = notices
    assert notice.text == "Client 7 has held a message for 6 min; the message returns in 4 min"


def test_claims_of_spark_are_a_consumer_and_no_alarm() -> None:
    """A claim has no timeout, and a batch may take long."""
    queue = queue_status("orders", 1, ready=5, settings=QueueSettings(ack_timeout_s=600))
    expiring = {1: (5, NOW_MS + MINUTE_MS)}
    claims = ConsumerLoad(1, None, 3, 30, NOW_MS - 23 * 60 * MINUTE_MS)
    assert found(queue, seen=AttentionFacts(NOW_MS, held=[claims], expiring=expiring)) == []


def test_claims_of_a_job_that_has_ended_are_no_consumer() -> None:
    claims = ConsumerLoad(1, None, 3, 30, NOW_MS - 25 * 60 * MINUTE_MS)
    queue = queue_status("orders", 1, ready=5)
    [notice] = found(queue, seen=AttentionFacts(NOW_MS, held=[claims]))
    assert notice.text == "5 ready messages and no consumer"


def test_dead_letters_of_a_retry_queue_are_reported_though_its_home_counts_them() -> None:
    retry = queue_status("orders.retry", 2, dead_letter_queue="orders.dlq")
    home = queue_status("orders", 1, dead=3, dead_letter_queue="orders.dlq")
    [notice] = found(home, retry, seen=AttentionFacts(NOW_MS, deaths={2: {"not_forwarded": 3}}))
    assert (notice.subject, notice.text) == (
        "orders.retry", "3 dead-lettered in the last 24 h: not_forwarded 3",
    )  # fmt: skip


def test_hold_that_a_worker_extends_is_expected() -> None:
    queue = queue_status("orders", 1, dispatched=1, consumers=1)
    held = [ConsumerLoad(1, 7, 1, 5, NOW_MS - 3_600_000)]
    assert [n.check for n in found(queue, seen=AttentionFacts(NOW_MS, held=held))] == [Check.HELD]
    assert found(queue, seen=AttentionFacts(NOW_MS, held=held, extending={(1, 7)})) == []


def test_queue_that_falls_behind_is_reported() -> None:
    slow = queue_status("slow", 1, ready=5_000, consumers=2)
    few = queue_status("few", 2, ready=5_000, consumers=2)
    paused = queue_status("paused", 3, ready=5_000, consumers=1, delivery_paused=True)
    unread = queue_status("unread", 4, ready=5_000)
    seen = AttentionFacts(NOW_MS, growth={1: 1_200, 2: 99, 3: 1_200, 4: 1_200})
    texts = {notice.subject: notice.text for notice in found(slow, few, paused, unread, seen=seen)}
    assert texts == {
        "slow": "Falls behind: 1,200 ready messages more than 5 min ago",
        "paused": "Delivery paused",
        "unread": "5,000 ready messages and no consumer",
    }


def test_paused_sides_are_reported() -> None:
    paused = queue_status("orders", 1, delivery_paused=True, publishing_paused=True)
    assert [n.text for n in found(paused)] == ["Delivery paused and publishing paused"]


def test_broker_reports_its_own_problems() -> None:
    seen = AttentionFacts(NOW_MS, refused={"paused": 2, "too_large": 1}, disk_share=0.94,
                wal_bytes=200 << 20, wal_limit_bytes=64 << 20)  # fmt: skip
    client = client_status(9, paused_reasons=("memory",))
    notices = found(clients=(client,), last_error="no space", clock_jumps=2, seen=seen)
    assert [(n.level, n.subject) for n in notices] == [
        ("bad", "Broker"),
        ("bad", "Disk"),
        ("warn", "Write-ahead log"),
        ("warn", "Clock"),
        ("warn", "Publishers"),
        ("warn", "Client 9"),
    ]
    assert notices[4].text == "3 messages refused in the last hour: paused 2, too_large 1"
    assert notices[4].go == "Paused queues"


def test_refusals_point_to_paused_queues_only_where_there_are_some() -> None:
    (notice,) = found(seen=AttentionFacts(NOW_MS, refused={"too many queues": 1}))
    assert (notice.text, notice.go) == (
        "1 message refused in the last hour: too many queues 1", "System",
    )  # fmt: skip


def test_want_of_room_is_reported_instead_of_how_full_the_disk_is() -> None:
    shortage = Shortage(DISK_FULL, "the disk is full")
    notices = found(
        shortage=shortage, write_problem="locked", seen=AttentionFacts(NOW_MS, disk_share=0.94)
    )
    assert [(n.level, n.subject, n.text) for n in notices] == [
        ("bad", "Storage", "Nothing can be stored: locked"),
        ("bad", "Publishing", "Publishing is stopped: the disk is full"),
    ]


def test_long_list_ends() -> None:
    queues = [queue_status(f"q{at}", at, ready=1) for at in range(NOTICES_MAX + 5)]
    assert len(found(*queues)) == NOTICES_MAX


def test_what_the_verdict_refused_is_reported_apart_from_what_died() -> None:
    deaths = {1: {"poison": 2, "missing_meta": 1, "client": 4}}
    notices = found(queue_status("orders", 1, dead=7), seen=AttentionFacts(NOW_MS, deaths=deaths))
    assert [(n.route, n.text) for n in notices] == [
        ("messages", "3 quarantined in the last 24 h: poison 2, missing_meta 1"),
        ("queue", "4 dead-lettered in the last 24 h: client 4"),
    ]
    assert notices[0].values == {"q": "queue:orders state:dead verdict:*"}


def test_queue_of_records_that_a_setting_names_needs_no_consumer() -> None:
    orders = queue_status("orders", 1, settings=QueueSettings(dead_letter_queue="failed"))
    assert found(orders, queue_status("failed", 2, ready=3, is_dead_letter_queue=True)) == []


def test_reader_of_the_history_is_reported_before_it_loses_rows() -> None:
    def levels(**fields: Any) -> list[tuple[str, str, str]]:
        view = ReaderView(
            reader="archive-1", offset=3, behind=9, lag_s=10, reached_in_s=10, seen_at=NOW_MS,
            is_reached=False, reached_at=None, bound=None, owner=None,
        ).model_copy(update=fields)  # fmt: skip
        notices = found(seen=AttentionFacts(NOW_MS, readers=[view]))
        assert {(n.route, n.values["tab"]) for n in notices} <= {("insights", "readers")}
        return [(n.level, n.subject, n.text) for n in notices]

    assert levels() == []
    unread = "9 unread messages of the history"
    late = f"{unread}; retention begins to remove them in 9 s"
    assert levels(reached_in_s=9) == [("warn", "Reader archive-1", late)]
    assert [level for level, *_ in levels(reached_in_s=1)] == ["bad"]
    gone = f"{unread}; retention has removed some of them"
    assert levels(reached_in_s=0, is_reached=True) == [("bad", "Reader archive-1", gone)]
    day_ms, silent = 86_400_000, f"Has not reported for 2 d, with {unread}"
    assert levels(seen_at=NOW_MS - day_ms) == []
    assert levels(seen_at=NOW_MS - 2 * day_ms) == [("warn", "Reader archive-1", silent)]
    assert levels(seen_at=0, behind=0, lag_s=None, reached_in_s=None) == []


def test_damage_and_a_failed_backup_are_reported() -> None:
    seen = AttentionFacts(NOW_MS, damage=["structure: page 7"], backup_error="no space")
    assert [(n.level, n.subject, n.text, n.route) for n in found(seen=seen)] == [
        ("bad", "Damage", "structure: page 7", "backups"),
        ("bad", "Backup", "The last backup failed: no space", "backups"),
    ]


def test_backup_that_is_late_twice_over_is_reported() -> None:
    hour_ms = 60 * MINUTE_MS
    seen = AttentionFacts(NOW_MS, backup_age_ms=2 * hour_ms, backup_each_ms=hour_ms)
    assert found(seen=seen) == []
    seen = AttentionFacts(NOW_MS, backup_age_ms=3 * hour_ms, backup_each_ms=hour_ms)
    assert [(n.level, n.text) for n in found(seen=seen)] == [
        ("warn", "The newest backup is 3 h old; backups are due every 1 h")
    ]
