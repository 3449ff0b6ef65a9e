"""Which rows are removed: the part of retention without I/O."""

from phpmq_lite.storage.write.retention import RetentionBounds, RetentionSlice

OLD, NEW = 10, 90  # settled_at


def test_bounds_are_shared_without_overlap() -> None:
    bounds = RetentionBounds(rows=1_000, bytes=5_000, deleted_share=0.1)
    assert bounds.share_of_deleted() == (100, 500)
    assert bounds.share_of_others() == (900, 4_500)


def test_bounds_hold_in_sum_when_the_share_is_no_whole_number() -> None:
    bounds = RetentionBounds(rows=15, bytes=7, deleted_share=0.1)
    assert bounds.share_of_deleted() == (1, 0)
    assert bounds.share_of_others() == (14, 7)


def test_slice_takes_what_is_above_the_rows() -> None:
    part = RetentionSlice(lo=1, excess_rows=2, excess_bytes=-5, cutoff_ms=50)
    part.take([(1, 11, 8, NEW, 0), (2, 12, 8, NEW, 0), (3, 13, 8, NEW, 0)])
    assert (part.offsets, part.seqs, part.bytes, part.lo) == ([1, 2], [11, 12], 16, 3)


def test_slice_takes_what_is_above_the_bytes() -> None:
    part = RetentionSlice(lo=1, excess_rows=0, excess_bytes=9, cutoff_ms=50)
    part.take([(1, 11, 8, NEW, 0), (2, 12, 8, NEW, 0), (3, 13, 8, NEW, 0)])
    assert part.offsets == [1, 2]


def test_slice_takes_what_is_too_old_and_no_row_behind_a_younger_one() -> None:
    part = RetentionSlice(lo=1, excess_rows=0, excess_bytes=0, cutoff_ms=50)
    part.take([(1, 11, 8, 49, 0), (2, 12, 8, 50, 0), (3, 13, 8, OLD, 0)])
    assert (part.offsets, part.lo) == ([1], 2)


def test_slice_passes_over_rows_of_the_other_front() -> None:
    part = RetentionSlice(lo=1, excess_rows=1, excess_bytes=0, cutoff_ms=50)
    part.take([(1, 11, 8, NEW, 1), (2, 12, 8, OLD, 1), (3, 13, 8, NEW, 0), (4, 14, 8, NEW, 1)])
    assert (part.offsets, part.lo) == ([3], 5)


def test_slice_ends_at_a_mebibyte_but_takes_one_row_of_any_size() -> None:
    part = RetentionSlice(lo=1, excess_rows=9, excess_bytes=0, cutoff_ms=50)
    part.take([(1, 11, 8 << 20, NEW, 0), (2, 12, 1, NEW, 0)])
    assert (part.offsets, part.lo) == ([1], 2)
