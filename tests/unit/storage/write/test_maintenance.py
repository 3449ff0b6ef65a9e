"""How often retention runs."""

from typing import Any
from unittest.mock import Mock

import pytest

from phpmq_lite.model import ClockReading
from phpmq_lite.storage import retention
from phpmq_lite.storage.backend import StoreMaintenance
from phpmq_lite.storage.retention import RetentionBounds, RetentionResult


@pytest.mark.parametrize(
    ("removed_at", "steps_s"),
    [
        ((), [0, 1, 3, 7, 15, 25, 35, 45, 55]),
        (range(100), list(range(60))),
        ((15,), [0, 1, 3, 7, 15, 16, 18, 22, 30, 40, 50]),
    ],
    ids=["finds nothing", "always removes", "removes once"],
)
def test_retention_pauses_longer_while_it_finds_nothing(
    monkeypatch: pytest.MonkeyPatch, removed_at: Any, steps_s: list[int]
) -> None:
    found: list[int] = []

    def remove(_store: Any, _bounds: RetentionBounds, now_ms: int) -> RetentionResult:
        found.append(now_ms // 1_000)
        return RetentionResult(int(found[-1] in removed_at), has_more=False)

    monkeypatch.setattr(retention, "remove_expired", remove)
    monkeypatch.setattr(retention, "remove_dropped_stages", lambda _store: False)
    maintenance, store = StoreMaintenance(RetentionBounds(), lambda _now: {}), Mock()
    for now_s in range(60):
        reading = ClockReading(now_s * 1_000, now_s * 1_000)
        assert maintenance._retain(store, reading) is False
    assert found == steps_s
