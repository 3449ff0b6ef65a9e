"""Keys of confirmed publishes against a list searched in full, also over a restart."""

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from phpmq_lite.broker.publish_keys import PublishKeys, expand_run
from phpmq_lite.model import KeyRun

WINDOW_MS = 100
LIMIT = 4

KEYS = [b"a", b"b", b"c", b"dd", b"ee", b"fff"]
keys = st.sampled_from(KEYS)
queue_ids = st.integers(1, 2)


class ReceiptsAgainstList(RuleBasedStateMachine):
    """``added`` has every key, and ``rows`` every row of the table ``receipt``, oldest first."""

    def __init__(self) -> None:
        super().__init__()
        self.receipts = PublishKeys(LIMIT, WINDOW_MS)
        self.added: list[tuple[int, bytes, int, int]] = []  # queue_id, key, seq, at_ms
        self.rows: list[KeyRun] = []
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
            self.rows.append(self.receipts.add(queue_id, key, seq, self.now_ms))
            self.added.append((queue_id, key, seq, self.now_ms))

    @rule(given=st.lists(st.tuples(queue_ids, st.lists(keys, min_size=1, max_size=3)), max_size=3))
    def publish_run(self, given: list[tuple[int, list[bytes]]]) -> None:
        """Add the keys of consecutive messages together, unless one of them is not new."""
        pairs = [(queue_id, key) for queue_id, some in given for key in some]
        is_new = len({*pairs}) == len(pairs) and not self.remembered & {*pairs}
        first = len(self.added) + 1
        flat = self.receipts.add_new(given, first, self.now_ms)
        if not (is_new and pairs):
            assert flat == []
            return
        rows = list(zip(*[iter(flat)] * 6, strict=True))
        added = [(*pair, seq, self.now_ms) for seq, pair in enumerate(pairs, first)]
        assert [key for row in rows for key in expand_run(row)] == added
        self.rows += rows
        self.added += added

    @property
    def remembered(self) -> set[tuple[int, bytes]]:
        """All keys in memory, including expired keys that are not evicted yet."""
        return {
            (queue_id, key)
            for queue_id in (1, 2)
            for key in KEYS
            if self.receipts.find(queue_id, key, 0) is not None
        }

    @rule(ms=st.sampled_from([1, 40, 99, 100, 500]))
    def pass_time(self, ms: int) -> None:
        self.now_ms += ms

    @rule()
    def restart(self) -> None:
        """Load the rows that the store would: those with recent keys within the limit."""
        self.receipts = PublishKeys(LIMIT, WINDOW_MS)
        excess, expired = len(self.added) - LIMIT, self.now_ms - WINDOW_MS
        some = (row for row in self.rows if row[0] > excess and row[3] > expired)
        self.receipts.load(some, len(self.added))

    @rule(queue_id=queue_ids, key=keys)
    def look_up(self, queue_id: int, key: bytes) -> None:
        expected = self.known().get((queue_id, key))
        assert self.receipts.find(queue_id, key, self.now_ms) == expected

    @invariant()
    def memory_is_bounded(self) -> None:
        assert len(self.receipts) <= LIMIT


TestReceipts = ReceiptsAgainstList.TestCase
