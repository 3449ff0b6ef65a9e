"""Keys of confirmed publishes."""

from phpmq_lite.broker.publish_keys import PublishKeys

WINDOW_MS = 600_000


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


def test_repeated_key_counts_as_the_newest() -> None:
    keys = PublishKeys(2, WINDOW_MS)
    keys.add(1, b"a", 1, now_ms=0)
    keys.add(1, b"b", 2, now_ms=0)
    keys.add(1, b"a", 3, now_ms=WINDOW_MS)
    keys.add(1, b"c", 4, now_ms=WINDOW_MS)
    assert keys.find(1, b"a", WINDOW_MS) == 3
    assert keys.find(1, b"b", WINDOW_MS) is None
