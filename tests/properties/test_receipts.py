"""Keys of confirmed publishes against a list searched in full, also over a restart."""

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from phpmq_lite.broker.publish_keys import PublishKeys

WINDOW_MS = 100
LIMIT = 4

keys = st.sampled_from([b"a", b"b", b"c", b"d", b"e", b"f"])
queue_ids = st.integers(1, 2)


class ReceiptsAgainstList(RuleBasedStateMachine):
    """``added`` has every row of the table ``receipt``, oldest first."""

    def __init__(self) -> None:
        super().__init__()
        self.receipts = PublishKeys(LIMIT, WINDOW_MS)
        self.added: list[tuple[int, bytes, int, int]] = []  # queue_id, key, seq, at_ms
        self.now_ms = 0

    def known(self) -> dict[tuple[int, bytes], int]:
        """The youngest keys that are not too old."""
        youngest: dict[tuple[int, bytes], tuple[int, int]] = {}
        for queue_id, key, seq, at_ms in reversed(self.added):
            if len(youngest) < LIMIT:
                youngest.setdefault((queue_id, key), (seq, at_ms))
        return {key: seq for key, (seq, at) in youngest.items() if self.now_ms - at < WINDOW_MS}

    @rule(queue_id=queue_ids, key=keys)
    def publish(self, queue_id: int, key: bytes) -> None:
        """Look a key up, and add it only if it is new, as the core does."""
        expected = self.known().get((queue_id, key))
        assert self.receipts.find(queue_id, key, self.now_ms) == expected
        if expected is None:
            seq = len(self.added) + 1
            self.receipts.add(queue_id, key, seq, self.now_ms)
            self.added.append((queue_id, key, seq, self.now_ms))

    @rule(ms=st.sampled_from([1, 40, 99, 100, 500]))
    def pass_time(self, ms: int) -> None:
        self.now_ms += ms

    @rule()
    def restart(self) -> None:
        """As the writer does: the youngest rows that still count, oldest first."""
        self.receipts = PublishKeys(LIMIT, WINDOW_MS)
        rows = [row for row in self.added if row[3] > self.now_ms - WINDOW_MS]
        for row in rows[-LIMIT:]:
            self.receipts.add(*row)

    @rule(queue_id=queue_ids, key=keys)
    def look_up(self, queue_id: int, key: bytes) -> None:
        expected = self.known().get((queue_id, key))
        assert self.receipts.find(queue_id, key, self.now_ms) == expected

    @invariant()
    def memory_is_bounded(self) -> None:
        assert len(self.receipts) <= LIMIT


TestReceipts = ReceiptsAgainstList.TestCase
