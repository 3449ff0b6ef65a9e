"""Which rows are removed: the part of retention without I/O."""

import pytest

from phpmq_lite.storage.retention import RetentionBounds, RetentionSlice

OLD, NEW = 10, 90  # settled_at


def test_bounds_are_divided_without_overlap() -> None:
    bounds = RetentionBounds(rows=1_000, bytes=5_000, deleted_share=0.1)
    assert bounds.share_of_deleted() == (100, 500)
    assert bounds.share_of_others() == (900, 4_500)


def test_divided_bounds_are_rounded_to_the_same_sum() -> None:
    bounds = RetentionBounds(rows=15, bytes=7, deleted_share=0.1)
    assert bounds.share_of_deleted() == (1, 0)
    assert bounds.share_of_others() == (14, 7)


@pytest.mark.parametrize(
    ("rows", "bytes_", "taken", "offsets", "lo"),
    [
        (2, -5, [(1, 8, NEW, 0), (2, 8, NEW, 0), (3, 8, NEW, 0)], [1, 2], 3),
        (0, 9, [(1, 8, NEW, 0), (2, 8, NEW, 0), (3, 8, NEW, 0)], [1, 2], 3),
        (0, 0, [(1, 8, 49, 0), (2, 8, 50, 0), (3, 8, OLD, 0)], [1], 2),
        (1, 0, [(1, 8, NEW, 1), (2, 8, OLD, 1), (3, 8, NEW, 0), (4, 8, NEW, 1)], [3], 5),
        (9, 0, [(1, 8 << 20, NEW, 0), (2, 1, NEW, 0)], [1], 2),
    ],
    ids=["rows", "bytes", "age up to a younger row", "own front only", "a mebibyte or one row"],
)
def test_slice_takes_the_oldest_rows_above_the_bounds(
    rows: int, bytes_: int, taken: list[tuple[int, int, int, int]], offsets: list[int], lo: int
) -> None:
    part = RetentionSlice(lo=1, excess_rows=rows, excess_bytes=bytes_, cutoff_ms=50)
    part.take([(n, n + 10, size, settled_at, passed) for n, size, settled_at, passed in taken])
    assert (part.offsets, part.seqs, part.lo) == (offsets, [n + 10 for n in offsets], lo)
    assert part.bytes == sum(size for offset, size, *_ in taken if offset in offsets)
