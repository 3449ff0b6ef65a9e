"""Keys of confirmed publishes."""

from typing import Any

import pytest

from phpmq_lite.broker.publish_keys import PublishKeys
from phpmq_lite.model import KeyRun

WINDOW_MS = 600_000


def known(keys: PublishKeys, queue_id: int, *some: bytes, now_ms: int = 0) -> list[bytes]:
    return [key for key in some if keys.find(queue_id, key, now_ms) is not None]


def rows_of(flat: list[Any]) -> list[KeyRun]:
    return list(zip(*[iter(flat)] * 6, strict=True))


def numbered(letter: str, count: int) -> list[bytes]:
    return [f"{letter}{number:04}".encode() for number in range(count)]


def test_key_is_known_per_queue_until_its_window_ends() -> None:
    keys = PublishKeys(10, WINDOW_MS)
    keys.add(1, b"key", 7, now_ms=1_000)
    assert keys.find(1, b"key", 1_000 + WINDOW_MS - 1) == 7
    assert keys.find(1, b"key", 1_000 + WINDOW_MS) is None
    assert keys.find(2, b"key", 1_000) is None


def test_oldest_key_is_forgotten_above_the_limit() -> None:
    keys = PublishKeys(2, WINDOW_MS)
    for seq, key in enumerate([b"a", b"b", b"c"], start=1):
        keys.add(1, key, seq, now_ms=0)
    assert [keys.find(1, key, 0) for key in (b"a", b"b", b"c")] == [None, 2, 3]
    assert len(keys) == 2
    assert keys.evicted == 1


def test_repeated_key_counts_as_the_newest() -> None:
    keys = PublishKeys(2, WINDOW_MS)
    keys.add(1, b"a", 1, now_ms=0)
    keys.add(1, b"b", 2, now_ms=0)
    keys.add(1, b"a", 3, now_ms=WINDOW_MS)
    keys.add(1, b"c", 4, now_ms=WINDOW_MS)
    assert keys.find(1, b"a", WINDOW_MS) == 3
    assert keys.find(1, b"b", WINDOW_MS) is None


@pytest.mark.parametrize("at_once", [1, 7, 500])
def test_largest_queue_loses_its_oldest_keys(at_once: int) -> None:
    keys, own, others = PublishKeys(60, WINDOW_MS), numbered("a", 24), numbered("b", 1_000)
    seq = 1
    for key in own:
        keys.add(1, key, seq, 0)
        seq += 1
    for at in range(0, len(others), at_once):
        assert keys.add_new([(2, others[at : at + at_once])], seq, 1)
        seq += at_once
    assert known(keys, 1, *own) == own
    assert known(keys, 2, *others) == others[-36:]


def test_queue_alone_uses_all_places() -> None:
    keys, some = PublishKeys(60, WINDOW_MS), numbered("a", 130)
    keys.add_new([(1, some)], 1, 0)
    assert known(keys, 1, *some) == some[-60:]


def test_expired_keys_make_room_before_others_are_evicted() -> None:
    keys, old, new = PublishKeys(10, WINDOW_MS), numbered("a", 6), numbered("b", 10)
    keys.add_new([(1, old)], 1, 0)
    keys.add_new([(2, new[:4])], 7, 1)
    keys.add_new([(2, new[4:])], 11, WINDOW_MS)
    assert known(keys, 2, *new, now_ms=WINDOW_MS) == new
    assert keys.evicted == 0


def test_newest_key_is_known_if_there_are_more_queues_than_places() -> None:
    keys = PublishKeys(3, WINDOW_MS)
    for seq, queue_id in enumerate([5, 9, 7, 1, 8, 2, 5], start=1):
        keys.add(queue_id, b"k", seq, seq)
        assert keys.find(queue_id, b"k", seq) == seq
        assert len(keys) <= 3


def test_evicted_rows_are_removed_and_the_rest_of_a_row_stays() -> None:
    keys = PublishKeys(6, WINDOW_MS)
    keys.add_new([(1, [b"a", b"b", b"c", b"d", b"ee"])], 1, 0)
    keys.add_new([(2, [b"f"])], 6, 0)
    assert keys.take_evicted() == ([], [])
    keys.add_new([(2, [b"g", b"h"])], 7, 1)
    assert keys.take_evicted() == ([], [])  # a row is written again only if little of it is left
    keys.add(3, b"i", 9, 1)
    assert keys.take_evicted() == ([4], [4, 1, 4, 0, 1, b"d"])
    keys.add_new([(3, [b"j", b"k"])], 10, 1)
    assert keys.take_evicted() == ([6, 9], [])


def test_known_key_is_replaced_with_the_older_ones_of_its_queue() -> None:
    keys = PublishKeys(10, WINDOW_MS)
    keys.add_new([(1, [b"a", b"b", b"c"]), (2, [b"a"])], 1, 0)
    keys.add(1, b"b", 5, 1)
    assert [keys.find(1, key, 1) for key in (b"a", b"b", b"c")] == [None, 5, 3]
    assert keys.find(2, b"a", 1) == 4
    assert keys.take_evicted() == ([], [])
    keys.add(1, b"b", 6, WINDOW_MS)
    assert keys.find(1, b"b", WINDOW_MS) == 6
    assert len(keys) == 1


def test_time_of_the_other_queues_is_kept_by_a_queue_that_gets_nothing_more() -> None:
    """A queue whose keys have all expired is forgotten; others stay in order."""
    keys = PublishKeys(10, 100)
    for at in range(0, 1_000, 10):
        keys.add(at % 30, b"%d" % at, at + 1, at)
        alive = [a for a in range(0, at + 1, 10) if at - a < 100]
        assert len(keys) == len(alive)
        assert all(keys.find(a % 30, b"%d" % a, at) == a + 1 for a in alive)


def test_keys_evicted_one_by_one_do_not_rewrite_their_row_each_time() -> None:
    """A row of 5,000 keys was written again for each of them, 12.5 million keys."""
    keys = PublishKeys(5_000, WINDOW_MS)
    keys.add_new([(1, numbered("a", 5_000))], 1, 0)
    written = 0
    for seq, key in enumerate(numbered("b", 5_000), 5_001):
        keys.add(1, key, seq, 1)
        written += sum(len(some) // size for *_, size, some in rows_of(keys.take_evicted()[1]))
        assert 4_900 < len(keys) <= 5_000
    assert written <= 5_000


def test_key_used_again_is_the_oldest_of_its_queue_after_a_restart() -> None:
    """The table has keys of cut rows that are not remembered; one of them was used again."""
    keys = PublishKeys(10, WINDOW_MS)
    keys.load([(7, 1, 9, 5, 1, b"c"), (6, 1, 4, 0, 1, b"abcde"), (1, 1, 1, 0, 1, b"dx")], 7)
    assert [keys.find(1, key, 5) for key in (b"c", b"d", b"e")] == [9, 7, 8]
    assert known(keys, 1, b"a", b"b", b"x") == []
    assert keys.take_evicted() == ([1], [])


def test_largest_queues_keep_as_many_as_each_other() -> None:
    keys = PublishKeys(640, WINDOW_MS)
    sizes = {1: 3, 2: 250, 3: 90, 4: 200, 5: 90, 6: 160}
    seq = 1
    for queue_id, size in sizes.items():
        if queue_id == 6:
            assert len(keys) == 633
        keys.add_new([(queue_id, numbered("k", size))], seq, 0)
        seq += size
    left = {queue_id: known(keys, queue_id, *numbered("k", n)) for queue_id, n in sizes.items()}
    assert [len(some) for some in left.values()] == [3, 149, 90, 149, 90, 149]
    for queue_id, some in left.items():
        assert some == numbered("k", sizes[queue_id])[-len(some) :]
    assert (len(keys), keys.evicted) == (630, 163)
