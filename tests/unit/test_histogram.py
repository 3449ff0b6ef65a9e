"""Buckets, percentiles and packed histograms."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phpmq_lite.histogram import (
    BUCKETS,
    NEAR,
    NEAR_MS,
    add,
    add_packed,
    bucket,
    pack,
    percentile,
    unpack,
    upper_ms,
)

counts = st.dictionaries(st.integers(0, BUCKETS - 1), st.integers(1, 1 << 60), max_size=9).map(
    lambda filled: [filled.get(index, 0) for index in range(BUCKETS)]
)


@pytest.mark.parametrize(
    ("ms", "index"),
    [(-9, 0), (0, 0), (1, 1), (15, 15), (16, 16), (17, 16), (18, 17), (31, 23), (32, 24),
     (1_000, 63), (60_000, 110), ((15 << 26) - 1, 222), (15 << 26, 223), (1 << 62, BUCKETS - 1)],
)  # fmt: skip
def test_duration_has_its_bucket(ms: int, index: int) -> None:
    assert bucket(ms) == index


def test_buckets_follow_each_other_without_a_gap() -> None:
    for index in range(1, BUCKETS):
        assert bucket(upper_ms(index - 1)) == index - 1
        assert bucket(upper_ms(index - 1) + 1) == index


def test_bucket_is_at_most_an_eighth_wide() -> None:
    for index in range(16, BUCKETS):
        lower = upper_ms(index - 1) + 1
        assert upper_ms(index) - lower <= lower / 8


def test_near_buckets_are_precomputed() -> None:
    assert list(NEAR) == [bucket(ms) for ms in range(NEAR_MS)]


def test_percentile_is_the_end_of_the_bucket_that_reaches_it() -> None:
    filled = [0] * BUCKETS
    filled[5], filled[40] = 95, 5
    assert [percentile(filled, q) for q in (0.0, 0.5, 0.95, 0.951, 1.0)] == [
        5, 5, 5, upper_ms(40), upper_ms(40),
    ]  # fmt: skip
    assert percentile([0] * BUCKETS, 0.5) is None


@given(counts)
def test_packed_histogram_is_restored(filled: list[int]) -> None:
    assert unpack(pack(filled)) == filled


@given(counts, counts)
def test_histogram_is_added_with_or_without_unpacking(one: list[int], other: list[int]) -> None:
    both = list(one)
    add_packed(both, pack(other))
    assert both == add(one, other) == [a + b for a, b in zip(one, other, strict=True)]


@given(st.binary(max_size=40))
def test_damaged_bytes_are_read_without_an_error(packed: bytes) -> None:
    assert len(unpack(packed)) == BUCKETS


def test_packed_histogram_is_small() -> None:
    filled = [0] * BUCKETS
    filled[70:80] = [100] * 10
    assert len(pack(filled)) == 20
    assert pack([0] * BUCKETS) == b""
