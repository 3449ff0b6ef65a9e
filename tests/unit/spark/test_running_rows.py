"""Rows of running queries, reported while a job waits for them."""

from threading import Event
from unittest.mock import Mock

import pytest

from phpmq_lite.spark import running_rows


def test_rows_are_reported_within_their_bound_until_the_block_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    counts = iter([3, 12])
    reported: list[int] = []
    has_both = Event()

    def report(rows: int) -> None:
        reported.append(rows)
        if len(reported) == 2:
            has_both.set()

    monkeypatch.setattr(running_rows, "PERIOD_S", 0.001)
    monkeypatch.setattr(running_rows, "count_running_rows", lambda spark: next(counts, 10))
    with running_rows.watch_rows(Mock(), 10, report):
        assert has_both.wait(10)
    assert reported[:2] == [3, 10]
