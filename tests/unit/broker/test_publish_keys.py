"""Keys of confirmed publishes, without a core round them."""

from phpmq_lite.broker.publish_keys import PublishKeys

WINDOW_MS = 600_000


def test_receipts_find_the_seq_until_the_window_ends() -> None:
    receipts = PublishKeys(10, WINDOW_MS)
    receipts.add(1, b"key", 7, now_ms=1_000)
    assert receipts.find(1, b"key", 1_000 + WINDOW_MS - 1) == 7
    assert receipts.find(1, b"key", 1_000 + WINDOW_MS) is None


def test_receipts_keep_queues_apart() -> None:
    receipts = PublishKeys(10, WINDOW_MS)
    receipts.add(1, b"key", 7, now_ms=0)
    assert receipts.find(2, b"key", 0) is None


def test_receipts_forget_the_oldest_above_the_limit() -> None:
    receipts = PublishKeys(2, WINDOW_MS)
    for seq, key in enumerate([b"a", b"b", b"c"], start=1):
        receipts.add(1, key, seq, now_ms=0)
    assert [receipts.find(1, key, 0) for key in (b"a", b"b", b"c")] == [None, 2, 3]
    assert len(receipts) == 2


def test_receipts_take_a_key_that_comes_again_for_the_youngest() -> None:
    receipts = PublishKeys(2, WINDOW_MS)
    receipts.add(1, b"a", 1, now_ms=0)
    receipts.add(1, b"b", 2, now_ms=0)
    receipts.add(1, b"a", 3, now_ms=WINDOW_MS)
    receipts.add(1, b"c", 4, now_ms=WINDOW_MS)
    assert receipts.find(1, b"a", WINDOW_MS) == 3
    assert receipts.find(1, b"b", WINDOW_MS) is None
