"""Settings of a queue and what it refuses."""

import pytest

from phpmq_lite.broker.queue import Queue, effective_settings
from phpmq_lite.model import QueueRow
from phpmq_lite.queue_settings import QueueSettings


def row(name: str, **own: object) -> QueueRow:
    return QueueRow(1, name, 0, dict(own))


def test_queue_without_own_settings_has_the_defaults() -> None:
    defaults = QueueSettings(max_deliveries=7, on_expire="dead_letter")
    assert effective_settings(row("orders"), defaults) == defaults


def test_queue_overrides_a_default() -> None:
    settings = effective_settings(row("orders", max_deliveries=3), QueueSettings())
    assert settings.max_deliveries == 3


def test_retry_queue_forwards_to_its_origin() -> None:
    """README, Expiry: publish to ``<queue>.retry`` with a TTL is delayed retry."""
    defaults = QueueSettings(on_expire="dead_letter")
    assert effective_settings(row("orders.retry"), defaults).on_expire == "forward:orders"


def test_retry_queue_does_not_forward_when_it_says_so() -> None:
    assert (
        effective_settings(row("a.retry", on_expire="history"), QueueSettings()).on_expire
        == "history"
    )


def test_queue_named_only_by_the_suffix_is_an_ordinary_one() -> None:
    assert effective_settings(row(".retry"), QueueSettings()).on_expire == "history"


def test_dead_letter_queue_has_no_delivery_limit() -> None:
    assert effective_settings(row("orders.dlq"), QueueSettings()).max_deliveries == 0


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
    assert Queue(filled, QueueSettings()).refusal() == reason
