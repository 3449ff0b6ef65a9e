"""The table of checks."""

import pytest

from phpmq_lite.checks import CHECKS, NEVER, Bounds, Check, Level


def test_every_check_has_a_row_that_some_place_reports() -> None:
    assert list(CHECKS) == list(Check)
    for row in CHECKS.values():
        bounds = (row.notice, row.page, row.command, row.doctor)
        assert row.ready or row.alerts or any(each != NEVER for each in bounds), row


@pytest.mark.parametrize(
    ("bounds", "levels"),
    [
        (Bounds(1, 2), [Level.OK, Level.OK, Level.WARN, Level.BAD]),
        (Bounds(1, 2, is_inclusive=True), [Level.OK, Level.WARN, Level.BAD, Level.BAD]),
        (Bounds(2, 1, is_floor=True), [Level.BAD, Level.WARN, Level.OK, Level.OK]),
        (Bounds(warn=1), [Level.OK, Level.OK, Level.WARN, Level.WARN]),
        (NEVER, [Level.OK] * 4),
    ],
)
def test_level_is_the_most_severe_whose_bound_is_passed(
    bounds: Bounds, levels: list[Level]
) -> None:
    assert [bounds.level(value) for value in range(4)] == levels
