"""The audit log as pages show it."""

from dataclasses import replace

from phpmq_lite.admin.accounts.audit import (
    AuditQuery,
    SettingChange,
    read_changes,
    result_class,
    target_link,
)
from phpmq_lite.storage.read.audit import AuditRow
from tests.unit.admin.cases import NOW_MS

ROW = AuditRow(1, NOW_MS, "anna", "ui", "10.0.0.7", "queue.purge", "orders", 3, "", "done", "", "r")


def test_target_is_linked_by_what_it_is() -> None:
    message_id = f"{1:032x}"
    queues = {"orders", "bert"}
    assert target_link(ROW, queues) == ("queue", {"q": "orders"})
    assert target_link(replace(ROW, action="message.delete", target=message_id), queues) == (
        "message", {"id": message_id},
    )  # fmt: skip
    assert target_link(replace(ROW, action="user.create", target="bert"), queues) is None
    assert target_link(replace(ROW, target="removed"), queues) is None
    assert target_link(replace(ROW, target=""), queues) is None


def test_settings_are_shown_before_and_after() -> None:
    detail = '{"before": {"max_bytes": 0, "note": "old"}, "after": {"max_bytes": 5, "note": "new"}}'
    assert read_changes(detail) == [
        SettingChange("max_bytes", "0", "5"),
        SettingChange("note", "old", "new"),
    ]


def test_new_setting_has_no_value_before() -> None:
    assert read_changes('{"before": {}, "after": {"a":null}}') == [SettingChange("a", None, "null")]


def test_other_detail_has_no_changes() -> None:
    for detail in ("", "no JSON", "[1]", '"x"', '{"before": 1}', '{"queues": []}'):
        assert read_changes(detail) == []


def test_every_refusal_is_marked() -> None:
    found = [result_class(result) for result in ("done", "interrupted", "paused", "stale_form")]
    assert found == ["good", "warn", "bad", "bad"]


def test_time_without_a_zone_is_utc() -> None:
    query = AuditQuery.model_validate({"since": "2026-01-02", "upto": "2026-01-02T04:00:00+01:00"})
    wanted = query.filter(NOW_MS)
    assert (wanted.since, wanted.upto) == (1_767_312_000_000, 1_767_322_800_000)


def test_span_and_since_both_limit_the_time() -> None:
    query = AuditQuery.model_validate({"span": "24h", "since": "2020-01-01"})
    assert query.filter(NOW_MS).since == NOW_MS - 86_400_000


def test_cursor_belongs_to_its_filter() -> None:
    assert AuditQuery(actor="a").scope != AuditQuery(actor="b").scope
