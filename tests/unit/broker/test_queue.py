"""Effective settings of a queue, and its reasons for refusing messages."""

import pytest

from phpmq_lite.broker.queue import Queue, effective_settings
from phpmq_lite.model import QueueRow
from phpmq_lite.queue_settings import QueueSettings


def row(name: str, **own: object) -> QueueRow:
    return QueueRow(1, name, 0, dict(own))


def test_queue_without_own_settings_has_the_defaults() -> None:
    defaults = QueueSettings(max_deliveries=7, on_expire="dead_letter")
    assert effective_settings(row("orders"), defaults) == defaults


@pytest.mark.parametrize(
    ("name", "own", "setting", "value"),
    [
        ("orders", {"max_deliveries": 3}, "max_deliveries", 3),
        ("orders.retry", {}, "on_expire", "forward:orders"),  # README, Expiry: delayed retry
        ("orders.retry", {"on_expire": "history"}, "on_expire", "history"),
        (".retry", {}, "on_expire", "dead_letter"),  # only the suffix: an ordinary queue
        ("orders.dlq", {}, "max_deliveries", 0),
    ],
)
def test_name_and_own_settings_override_the_defaults(
    name: str, own: dict[str, object], setting: str, value: object
) -> None:
    settings = effective_settings(row(name, **own), QueueSettings(on_expire="dead_letter"))
    assert getattr(settings, setting) == value


@pytest.mark.parametrize(
    ("own", "count", "size", "reason"),
    [
        ({}, 10**9, 10**12, None),
        ({"publishing_paused": True}, 0, 0, "paused"),
        ({"max_messages": 2}, 1, 0, None),
        ({"max_messages": 2}, 2, 0, "queue full: messages"),
        ({"max_bytes": 100}, 5, 99, None),
        ({"max_bytes": 100}, 5, 100, "queue full: bytes"),
        ({"delivery_paused": True}, 5, 5, None),
    ],
)
def test_queue_refuses_when_paused_or_full(
    own: dict[str, object], count: int, size: int, reason: str | None
) -> None:
    filled = row("orders", **own)
    filled.live_count, filled.live_bytes = count, size
    refusal = Queue(filled, QueueSettings()).refusal()
    assert (None if refusal is None else refusal.reason) == reason
