"""Which queue holds the dead letters of another."""

import pytest

from phpmq_lite.admin.dead_letter_queues import (
    dead_letter_queue_of,
    dead_letter_queues_named,
    has_records,
    is_dead_letter_queue,
)
from phpmq_lite.queue_settings import QueueSettings
from tests.unit.admin.cases import queue_status

NAMED = QueueSettings(dead_letter_queue="failed")
QUEUES = (
    queue_status("orders", 1, settings=NAMED, dead_letter_queue="failed"),
    queue_status("orders.retry", 4, dead_letter_queue="failed"),
    queue_status("mail", 2),
    queue_status("failed", 3, is_dead_letter_queue=True),
)


@pytest.mark.parametrize(
    ("name", "records"),
    [("orders", "failed"), ("orders.retry", "failed"), ("mail", "mail.dlq"),
     ("mail.dlq", "mail.dlq"), ("failed", "failed"),
     ("not.there", "not.there.dlq")],
)  # fmt: skip
def test_records_are_in_the_configured_or_the_default_queue(name: str, records: str) -> None:
    assert dead_letter_queue_of(QUEUES, name) == records


def test_queue_that_a_setting_names_has_records() -> None:
    assert dead_letter_queues_named(QUEUES) == {"failed"}
    names = [name for name in ("failed", "a.dlq", "orders") if is_dead_letter_queue(QUEUES, name)]
    assert names == ["failed", "a.dlq"]
    assert not has_records("failed", frozenset())
