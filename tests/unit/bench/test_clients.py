"""How much clients have under way: many small messages, few large ones."""

import pytest

from phpmq_lite.bench.traffic import publishes_per_write, unconfirmed_limit


@pytest.mark.parametrize(
    ("size", "under_way", "in_one_piece"),
    [(1, 1_000, 200), (256, 1_000, 200), (100_000, 335, 67), (1_000_000, 33, 6), (1 << 30, 2, 1)],
)
def test_bytes_under_way_are_bounded(size: int, under_way: int, in_one_piece: int) -> None:
    assert unconfirmed_limit(size) == under_way
    assert publishes_per_write(size) == in_one_piece
