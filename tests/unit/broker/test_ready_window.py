"""The window of ready messages of one queue."""

import pytest

from phpmq_lite.broker.ready_window import BodyCache, ReadyWindow
from phpmq_lite.model import Message
from tests.support.core_rig import message


def window_of(*seqs: int, limit: int = 10, reaches_end: bool = True) -> ReadyWindow:
    window = ReadyWindow(limit, BodyCache())
    window.extend([message(seq, body=b"x" * seq) for seq in seqs], reaches_end)
    return window


def seqs(window: ReadyWindow) -> list[int]:
    return [m.seq for m in window]


def drain(window: ReadyWindow) -> list[int]:
    taken = []
    while window.first() is not None:
        taken.append(window.take().seq)
    return taken


def by_seq(window: ReadyWindow, seq: int) -> Message:
    return next(m for m in window if m.seq == seq)


def test_window_rejects_messages_before_its_first_page() -> None:
    window = ReadyWindow(10, BodyCache())
    assert window.insert(message(1)) is False
    assert window.needs_page


def test_window_accepts_a_new_message_while_it_reaches_the_end() -> None:
    window = window_of(1, 2)
    assert window.insert(message(3, body=b"abc"))
    assert seqs(window) == [1, 2, 3]
    assert window.covered_to == 3


def test_full_window_no_longer_reaches_the_end() -> None:
    window = window_of(1, 2, limit=2)
    assert window.insert(message(3)) is False
    assert not window.reaches_end
    assert window.insert(message(4)) is False
    assert window.covered_to == 2


def test_window_inserts_returned_messages_in_order() -> None:
    window = window_of(1, 2, 3, 4, 5)
    first, second, third = window.take(), window.take(), window.take()
    for returned in (third, first):
        assert window.insert(returned)
    assert seqs(window) == [1, 3, 4, 5]
    assert len(window) == 4
    assert window.insert(second)
    assert drain(window) == [1, 2, 3, 4, 5]


def test_window_rejects_a_message_beyond_its_end_while_more_are_on_disk() -> None:
    window = window_of(1, 2, reaches_end=False)
    assert window.insert(message(3)) is False
    assert window.insert(message(0, position=0))


def test_window_that_reaches_the_end_accepts_a_returned_last_message() -> None:
    window = window_of(1)
    assert window.insert(message(5))
    assert window.insert(message(6))
    assert seqs(window) == [1, 5, 6]
    assert window.covered_to == 6


def test_window_discards_messages_at_any_position() -> None:
    window = window_of(1, 2, 3)
    taken = window.take()
    window.insert(taken)
    window.discard(taken)
    window.discard(by_seq(window, 3))
    window.discard(message(99))
    assert seqs(window) == [2]
    assert window.body_bytes == 2


def test_window_is_trimmed_from_the_end() -> None:
    window = window_of(3, 4, 5, limit=3)
    for seq in (1, 2):
        window.insert(message(seq, body=b"x" * seq))
    assert [m.seq for m in window.trim()] == [5, 4]
    assert seqs(window) == [1, 2, 3]
    assert (window.covered_to, window.reaches_end) == (3, False)
    assert window.insert(message(4)) is False
    assert window.body_bytes == 6


def test_window_within_its_limit_is_not_trimmed() -> None:
    window = window_of(1, 2, 3, limit=3)
    assert window.trim() == []
    assert window.reaches_end


@pytest.mark.parametrize("size", [1, 3])
def test_window_needs_a_page_when_half_empty(size: int) -> None:
    window = window_of(*range(size), limit=size + size // 2, reaches_end=False)
    needs = [window.needs_page]
    window.take()
    needs.append(window.needs_page)
    window.is_loading = True
    needs.append(window.needs_page)
    assert needs == [False, True, False]


def test_window_that_reaches_the_end_needs_no_page() -> None:
    assert not window_of(limit=4).needs_page


def test_windows_count_the_bytes_of_all_bodies() -> None:
    bodies = BodyCache()
    one, other = ReadyWindow(10, bodies), ReadyWindow(10, bodies)
    one.extend([message(1, body=b"12345"), message(2, size=100)], reaches_end=True)
    other.extend([message(3, body=b"123")], reaches_end=True)
    assert (one.body_bytes, other.body_bytes, bodies.total_bytes) == (5, 3, 8)
    one.set_body(by_seq(one, 2), b"y" * 100)
    assert bodies.total_bytes == 108
    one.set_body(by_seq(one, 2), b"y" * 100)  # twice changes nothing
    one.drop_bodies()
    assert (one.body_bytes, bodies.total_bytes) == (0, 3)
    assert [m.body for m in one] == [None, None]
    other.take()
    assert bodies.total_bytes == 0


def test_window_shows_the_next_messages_without_taking_them() -> None:
    window = window_of(1, 2, 3)
    assert [m.seq for m in window.upcoming(2)] == [1, 2]
    assert drain(window) == [1, 2, 3]
