"""Formats of numbers, sizes, times and hostile texts."""

import pytest

from phpmq_lite.admin import formats
from phpmq_lite.admin.formats import TextPiece
from tests.unit.admin.cases import NOW_MS


@pytest.mark.parametrize(
    ("count", "expected"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1 KiB"),
        (1536, "1.5 KiB"),
        (1024 * 1024 - 1, "1 MiB"),
        (8 << 20, "8 MiB"),
        (3 << 40, "3 TiB"),
        (5000 << 40, "5000 TiB"),
    ],
)
def test_size_has_one_unit_that_fits(count: int, expected: str) -> None:
    assert formats.format_size(count) == expected


@pytest.mark.parametrize(
    ("ms", "expected"),
    [
        (-5, "0 ms"),
        (999, "999 ms"),
        (12_000, "12 s"),
        (110_000, "1 min 50 s"),
        (1_200_000, "20 min"),
        (3_600_000, "1 h"),
        (11_520_000, "3 h 12 min"),
        (86_400_000, "1 d"),
        (100_000_000, "1 d 3 h"),
        (86_400_000 * 40, "40 d"),
    ],
)
def test_duration_has_at_most_two_units(ms: int, expected: str) -> None:
    assert formats.format_duration(ms) == expected


def test_past_time_is_relative_with_utc_in_its_title() -> None:
    moment = formats.format_time(NOW_MS - 240_000, NOW_MS)
    assert moment == ("2026-01-02T03:56:00.000Z", "4 min ago", "2026-01-02 03:56:00.000 UTC")


@pytest.mark.parametrize(("ms", "shown"), [(NOW_MS + 240_000, "in 4 min"), (1 << 62, "far away")])
def test_future_time_is_relative(ms: int, shown: str) -> None:
    assert formats.format_time(ms, NOW_MS).text == shown


@pytest.mark.parametrize(
    ("per_s", "expected"),
    [(0.0, "0"), (0.04, "0"), (0.25, "0.2"), (9.94, "9.9"), (1204.4, "1,204")],
)
def test_rate_has_no_decimals_from_ten_on(per_s: float, expected: str) -> None:
    assert formats.format_rate(per_s) == expected


def test_hidden_characters_are_escaped() -> None:
    hostile = "a\u202eb\u200bc\x1b\n\ud800\U000e0001"
    assert formats.escape_hidden(hostile) == r"a\u202eb\u200bc\x1b\n\ud800\U000e0001"


def test_letters_and_emoji_are_not_escaped() -> None:
    text = "Grüße, 你好, שלום, ❤️ <b>"
    assert formats.escape_hidden(text) == text


def test_pieces_mark_escapes_and_keep_line_breaks() -> None:
    assert formats.split_hidden("a\n\tb\u202e\u200bc", "str") == [
        TextPiece("a\n\tb", "str"),
        TextPiece(r"\u202e\u200b", "esc"),
        TextPiece("c", "str"),
    ]


def test_pieces_stay_few_for_a_body_of_nothing_but_escapes() -> None:
    found = formats.split_hidden("a\x01" * 100_000)
    assert len(found) == formats.SPANS_MAX + 1
    assert "".join(piece.text for piece in found) == r"a\x01" * 100_000


def test_text_over_several_lines_keeps_its_line_breaks() -> None:
    text = "Runbook:\r\n\tstep 1 \u202e\nend\x1b"
    assert formats.escape_hidden_lines(text) == "Runbook:\n\tstep 1 \\u202e\nend\\x1b"
