"""Keys of confirmed publishes against lists searched in full, also over a restart.

The broker may choose any of the largest queues to lose its oldest key, so the lists follow its
choice after checking it: a queue that has lost keys has at most one less than the largest.
"""

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from phpmq_lite.broker.publish_keys import STORED_FACTOR, PublishKeys, expand_run
from phpmq_lite.model import KeyRun

WINDOW_MS = 100
LIMIT = 7

KEYS = [b"a", b"b", b"c", b"dd", b"ee", b"fff"]
QUEUES = range(1, 5)
keys = st.sampled_from(KEYS)
queue_ids = st.sampled_from(QUEUES)
Known = tuple[bytes, int, int]  # key, seq, at_ms


class ReceiptsAgainstLists(RuleBasedStateMachine):
    """``known`` has the remembered keys of each queue, and ``table`` the rows of ``receipt``."""

    def __init__(self) -> None:
        super().__init__()
        self.receipts = PublishKeys(LIMIT, WINDOW_MS)
        self.known: dict[int, list[Known]] = {queue_id: [] for queue_id in QUEUES}
        self.table: dict[int, KeyRun] = {}
        self.batch: list[KeyRun] = []  # rows of the open batch
        self.next_seq = 1
        self.newest = 0
        self.now_ms = 0

    def seq_of(self, queue_id: int, key: bytes) -> int | None:
        return next((seq for name, seq, _ in self.known[queue_id] if name == key), None)

    def add(self, rows: list[KeyRun]) -> None:
        """Add the keys of rows, and check which were evicted for them."""
        self.batch += rows
        for row in rows:
            self.newest = row[0]
            for queue_id, key, seq, at_ms in expand_run(row):
                self.known[queue_id].append((key, seq, at_ms))
                self.next_seq = seq + 1
        self.evict()
        (*_, newest), queue_id = [*expand_run(rows[-1])], rows[-1][1]
        assert self.seq_of(queue_id, newest[1]) == newest[2]

    def evict(self) -> None:
        """Remove what is not remembered, and check that it is the oldest of the largest queues."""
        excess = sum(map(len, self.known.values())) - LIMIT
        lost: set[int] = set()
        for queue_id, some in self.known.items():
            left = [k for k in some if self.receipts.find(queue_id, k[0], self.now_ms) == k[1]]
            assert left == some[len(some) - len(left) :], "not the oldest"
            if len(left) < len(some):
                lost.add(queue_id)
                excess -= len(some) - len(left)
                self.known[queue_id] = left
        assert excess <= 0
        assert not lost or excess == 0, "more than needed"
        most = max(map(len, self.known.values()))
        assert all(len(self.known[queue_id]) >= most - 1 for queue_id in lost)

    @rule(queue_id=queue_ids, key=keys)
    def publish(self, queue_id: int, key: bytes) -> None:
        """Look a key up, and add it only if it is new, as the core does."""
        expected = self.seq_of(queue_id, key)
        assert self.receipts.find(queue_id, key, self.now_ms) == expected
        if expected is None:
            self.add([self.receipts.add(queue_id, key, self.next_seq, self.now_ms)])

    @rule(queue_id=queue_ids, key=keys)
    def publish_again(self, queue_id: int, key: bytes) -> None:
        """Replace a key, as the last one of several messages may be."""
        names = [name for name, _, _ in self.known[queue_id]]
        if key in names:
            row = self.receipts.add(queue_id, key, self.next_seq, self.now_ms)
            del self.known[queue_id][: names.index(key) + 1]
            self.add([row])

    @rule(given=st.lists(st.tuples(queue_ids, st.lists(keys, min_size=1, max_size=4)), max_size=4))
    def publish_run(self, given: list[tuple[int, list[bytes]]]) -> None:
        """Add the keys of consecutive messages together, unless one of them is not new."""
        pairs = [(queue_id, key) for queue_id, some in given for key in some]
        is_new = len({*pairs}) == len(pairs) and not any(self.seq_of(*pair) for pair in pairs)
        flat = self.receipts.add_new(given, self.next_seq, self.now_ms)
        if not (is_new and pairs):
            assert flat == []
            return
        rows = list(zip(*[iter(flat)] * 6, strict=True))
        added = [(*pair, seq, self.now_ms) for seq, pair in enumerate(pairs, self.next_seq)]
        assert [key for row in rows for key in expand_run(row)] == added
        self.add(rows)

    @rule()
    def store(self) -> None:
        """Store the batch as the writer does."""
        if not self.batch:
            return
        removed, rest = self.receipts.take_evicted()
        self.table |= {row[0]: row for row in self.batch}
        for number in removed:
            del self.table[number]
        left: list[KeyRun] = list(zip(*[iter(rest)] * 6, strict=True))
        assert not self.table.keys() & {row[0] for row in left}
        self.table |= {row[0]: row for row in left}
        self.batch = []
        alive = sum(map(len, self.known.values()))
        assert sum(len([*expand_run(row)]) for row in self.unexpired()) <= STORED_FACTOR * alive

    @rule(ms=st.sampled_from([1, 40, 99, 100, 500]))
    def pass_time(self, ms: int) -> None:
        self.now_ms += ms
        for queue_id, some in self.known.items():
            self.known[queue_id] = [k for k in some if self.now_ms - k[2] < WINDOW_MS]

    def unexpired(self) -> list[KeyRun]:
        """Return the rows of the table that the store loads, newest first."""
        some = (row for row in self.table.values() if self.now_ms - row[3] < WINDOW_MS)
        return sorted(some, reverse=True)

    @rule()
    def restart(self) -> None:
        """Load the rows; evicted keys that are still in the table may be remembered again."""
        self.store()
        self.receipts = PublishKeys(LIMIT, WINDOW_MS)
        self.receipts.load(self.unexpired(), self.newest)
        assert self.receipts.evicted == 0
        remembered = self.known
        self.known = {queue_id: [] for queue_id in QUEUES}
        for row in reversed(self.unexpired()):
            for queue_id, key, seq, at_ms in expand_run(row):
                some = self.known[queue_id]
                names = [name for name, _, _ in some]
                if key in names:  # used again after it was evicted, as all older ones were
                    del some[: names.index(key) + 1]
                some.append((key, seq, at_ms))
        for queue_id, some in remembered.items():
            assert self.known[queue_id][len(self.known[queue_id]) - len(some) :] == some
        self.evict()

    @invariant()
    def memory_is_bounded(self) -> None:
        assert len(self.receipts) <= LIMIT

    @invariant()
    def remembered_keys_are_found(self) -> None:
        for queue_id in QUEUES:
            for key in KEYS:
                expected = self.seq_of(queue_id, key)
                assert self.receipts.find(queue_id, key, self.now_ms) == expected


TestReceipts = ReceiptsAgainstLists.TestCase
