"""All queues by name and number: made, removed, configured, and where their dead letters go."""

from collections import Counter
from collections.abc import Iterable
from typing import Final, NamedTuple

from phpmq_lite.broker.queue import (
    DEAD_LETTER_SUFFIX,
    RETRY_SUFFIX,
    Connection,
    Queue,
    home_of,
    settings_of,
)
from phpmq_lite.model import (
    Batch,
    EnvelopeInspector,
    Limits,
    Now,
    QueueRow,
    QueueSettings,
    has_room,
)

ASIDE_BYTES: Final = 64 << 10  # longer content is looked at in a thread
AT_ONCE_BYTES: Final = 256 << 10  # what is looked at in one batch, all together
_JUDGING: Final = frozenset(  # whoever waits for a dead-letter queue may have no more need of it
    {"payload_policy", "dead_letter_queue", "schema_mode", "empty_list_data"}
)
REMOVED: Final = "removed"  # beside the settings in the row of a queue that is no more


class Shut(NamedTuple):
    """Why the broker takes no messages at all, whatever their queue."""

    code: str  # of a RefusedError
    reason: str  # always the same, for receipts and counters
    detail: str  # with the bounds, for people
    is_bare: bool  # nor what stands in front of a consumer's acknowledgements


class Queues:
    """The queues in memory, and the batch in which they change.  ``Lives`` adds their messages."""

    def __init__(
        self, limits: Limits, defaults: QueueSettings, envelopes: EnvelopeInspector | None
    ) -> None:
        self.limits = limits
        self.defaults = defaults
        self.envelopes = envelopes  # None: no content is looked at
        self.now = Now(0, 0)
        self.batch = Batch(0)
        self.queues: dict[str, Queue] = {}
        self.by_id: dict[int, Queue] = {}
        self.hungry: dict[int, Queue] = {}  # may have both a ready message and free credit
        self.limited: set[Connection] = set()  # got all that one batch may send to them
        self.shut: Shut | None = None
        self.removed: dict[str, QueueRow] = {}  # their names are in the history
        self.created: Counter[str] = Counter()  # queues that count, by who made them
        self.next_queue_id = 1
        self._named: Counter[str] = Counter()  # by how many queues as their dead-letter queue

    def takes_queues(self, creator: str, more: int = 1) -> bool:
        """Return whether that many new queues of one creator are within the limit."""
        own, total = self.created[creator], self.created.total()
        return has_room(own, total, more, self.limits.queues)

    def counts_with_origin(self, name: str) -> bool:
        """Return whether a queue of this name is the ``.dlq`` of one that counts already."""
        origin = name.removesuffix(DEAD_LETTER_SUFFIX)
        return origin != name and origin in self.queues and not origin.endswith(DEAD_LETTER_SUFFIX)

    def queue(self, name: str, creator: str = "") -> Queue | None:
        """Return the queue, made now if there is none; None if the limit is reached."""
        queue = self.queues.get(name)
        if queue is None and (self.counts_with_origin(name) or self.takes_queues(creator)):
            queue = self._make(name, creator)
        return queue

    def _make(self, name: str, creator: str) -> Queue:
        row = self.removed.pop(name, None)
        if row is None:
            row = QueueRow(self.next_queue_id, name, self.now.wall_ms, created_by=creator)
            self.batch.new_queues.append(row)
            self.batch.counters["next_queue_id"] = self.next_queue_id + 1
        else:  # under its old number: what the history has of it is the same queue
            row.own, row.created_by = {}, creator
            self.batch.configured.append(row)
        return self._take_over(row)

    def adopt(self, row: QueueRow) -> None:
        """Load a queue's stored row into memory; of a removed queue only the name is kept."""
        if REMOVED in row.own:
            self.next_queue_id = max(self.next_queue_id, row.queue_id + 1)
            self.removed[row.name] = row
        else:
            self._take_over(row)

    def _take_over(self, row: QueueRow) -> Queue:
        self.next_queue_id = max(self.next_queue_id, row.queue_id + 1)
        queue = Queue(row, self.defaults)
        queue.shut = None if self.shut is None else self.shut.reason
        if not self.counts_with_origin(row.name):
            self.created[row.created_by] += 1
        self.queues[row.name] = self.by_id[row.queue_id] = queue
        self._count_dead_letter_queue(row.name, -1)
        self.configure(queue)
        return queue

    def remove(self, queue: Queue) -> None:
        """Forget an empty queue without consumers; its row stays, for the history's sake."""
        row = queue.row
        row.own = {REMOVED: True}
        self.removed[row.name] = row
        self.batch.configured.append(row)
        self._count_dead_letter_queue(row.name, 1)
        del self.queues[row.name], self.by_id[row.queue_id]
        if not self.counts_with_origin(row.name):
            self.created[row.created_by] -= 1
        self.hungry.pop(row.queue_id, None)
        self.batch.wakes |= queue.parked  # whoever waits publishes to a new one
        queue.parked.clear()
        self._rename(queue.settings.dead_letter_queue, "")
        self._refresh_retry(queue)

    def _count_dead_letter_queue(self, origin: str, change: int) -> None:
        """Count the ``.dlq`` of a queue that is made or removed no more, or again."""
        queue = self.queues.get(origin + DEAD_LETTER_SUFFIX)
        if queue is not None and self.counts_with_origin(queue.name):
            self.created[queue.row.created_by] += change

    def revive(self, queue_id: int, creator: str) -> Queue | None:
        """Make a removed queue again; None where there was none, or the limit is reached."""
        names = (row.name for row in self.removed.values() if row.queue_id == queue_id)
        name = next(names, None)
        return None if name is None else self.queue(name, creator)

    def takes_at_once(self, size: int) -> bool:
        """Tell whether this batch may judge a content of that size, or make a record of it.

        A verdict or a record costs 0.1 s a MiB, and the loop stands still meanwhile.
        """
        batch = self.batch
        if size > ASIDE_BYTES or batch.looked_bytes + size > AT_ONCE_BYTES:
            return False
        batch.looked_bytes += size
        return True

    # -- settings

    def configure(self, queue: Queue, former: str = "") -> None:
        """Have a queue go by the settings of its row; ``former`` dead-letter queue before."""
        self._refresh(queue)
        self._refresh_retry(queue)
        self._rename(former, queue.settings.dead_letter_queue)

    def _refresh_retry(self, queue: Queue) -> None:
        if (retry := self.queues.get(queue.name + RETRY_SUFFIX)) is not None:
            self._refresh(retry)

    def _refresh(self, queue: Queue) -> None:
        name = queue.name
        home = self.queues.get(home_of(name) or "")
        queue.is_dead_letter_queue = self._named[name] > 0 or name.endswith(DEAD_LETTER_SUFFIX)
        queue.settings = settings_of(
            queue.row,
            self.defaults,
            has_records=queue.is_dead_letter_queue,
            home=None if home is None else home.settings,
        )
        policy = queue.settings.payload_policy
        queue.looks = self.envelopes is not None and policy != "opaque"
        queue.judges = queue.looks and policy == "envelope" and not queue.is_dead_letter_queue
        _bound(queue)

    def _rename(self, former: str, name: str) -> None:
        """One queue more names this one, and one less the former; empty: none."""
        if former == name:
            return
        self._named[name] += 1
        self._named[former] -= 1
        for changed in (former, name):
            if changed and (queue := self.queues.get(changed)) is not None:
                self._refresh(queue)

    def dead_letter_name(self, queue: Queue) -> str:
        """Name the queue that has the records of ``queue``: a ``.retry`` one has its home's."""
        home = home_of(queue.name)
        if home is None or queue.settings.dead_letter_queue:
            return queue.settings.dead_letter_queue or queue.name + DEAD_LETTER_SUFFIX
        return self.named_dead_letter_queue(home) or home + DEAD_LETTER_SUFFIX

    def dead_letter_queue(self, queue: Queue) -> Queue:
        """Return the queue that has the records of ``queue``, made now past any limit."""
        name = self.dead_letter_name(queue)
        return self.queues.get(name) or self._make(name, queue.row.created_by)

    def record_places(self, queue: Queue) -> tuple[int, int]:
        """Give the queue_ids where clients write records of ``queue``; 0: there is no such one.

        A client that does not know the setting goes by the name alone.
        """
        named = self.queues.get(self.dead_letter_name(queue))
        own = self.queues.get((home_of(queue.name) or queue.name) + DEAD_LETTER_SUFFIX)
        return 0 if named is None else named.queue_id, 0 if own is None else own.queue_id

    def named_dead_letter_queue(self, name: str) -> str:
        """Give the dead-letter queue that a queue of this name names; empty: none."""
        queue = self.queues.get(name)
        return "" if queue is None else queue.settings.dead_letter_queue

    def refuses_dead(
        self, queue: Queue, number: int = 1, size: int = 1
    ) -> tuple[Queue, str] | None:
        """Tell why records of ``queue`` would find no room, and in which queue; None: they do.

        Makes the dead-letter queue where there is none.
        """
        target = self.dead_letter_queue(queue)
        reason = target.refusal(number, size)
        return None if reason is None else (target, f"dead-letter queue {reason}")

    # -- waiting publishers

    def shut_for(self, shut: Shut | None) -> None:
        """Have no queue take messages, for want of room; None: they do again."""
        self.shut = shut
        for queue in self.queues.values():
            queue.shut = None if shut is None else shut.reason
            _bound(queue)
            self.unpark(queue)

    def unpark(self, queue: Queue) -> None:
        """Wake the publishers that wait for this queue, if it takes messages again."""
        if queue.refusal() is None:
            self.batch.wakes |= queue.parked
            queue.parked.clear()

    def settings_changed(self, queue: Queue, names: Iterable[str]) -> None:
        """Wake the publishers that wait for this queue, or for where its dead letters go."""
        self.hungry[queue.queue_id] = queue
        if _JUDGING.isdisjoint(names):
            self.unpark(queue)
            return
        for other in self.queues.values():  # they wait again, if need be
            self.batch.wakes |= other.parked
            other.parked.clear()


def _bound(queue: Queue) -> None:
    """Note whether a message must be asked for (``Queue.refusal``): most queues take any."""
    settings = queue.settings
    queue.is_bounded = queue.shut is not None or bool(
        settings.publishing_paused or settings.max_messages or settings.max_bytes
    )
