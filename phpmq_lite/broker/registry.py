"""Registers all queues: creates, configures and removes them, and finds dead-letter queues."""

from collections import Counter
from collections.abc import Iterable
from typing import Final, NamedTuple

from phpmq_lite.broker.queue import Queue, effective_settings
from phpmq_lite.broker.reasons import SHORTAGE_REFUSALS, Refusal, refusal_of_records
from phpmq_lite.model import Batch, Limits, QueueRow, RecoveredState, Shortage, has_room
from phpmq_lite.queue_settings import (
    DEAD_LETTER_SUFFIX,
    QueueSettings,
    dead_letter_name,
    home_of,
    retry_name,
)

# Changing one of these may unblock publishers that wait for another queue's dead-letter queue.
_DEAD_LETTER_SETTINGS: Final = frozenset(
    {"payload_policy", "dead_letter_queue", "schema_mode", "empty_list_data"}
)
REMOVED_QUEUES: Final = 10  # number of removed queues with rows, as a multiple of the limit


class RecordRefusal(NamedTuple):
    """The dead-letter queue that refuses a record, and why."""

    queue: Queue
    refusal: Refusal


class QueueRegistry:
    """All queues in memory.  Changes are recorded in the open batch, which the caller passes."""

    def __init__(self, limits: Limits, defaults: QueueSettings, *, has_inspector: bool) -> None:
        self.queues: dict[str, Queue] = {}
        self.queues_by_id: dict[int, Queue] = {}
        self.publishing_stop: Shortage | None = None
        self.removed: dict[str, QueueRow] = {}  # kept because the history refers to these rows
        self.created: Counter[str] = Counter()  # queues that count towards the limit, by creator
        self.next_queue_id = 1
        # what limits.max_queues did: how often, and the last queue's name
        self.limited: dict[str, tuple[int, str]] = {}
        self._limits = limits
        self._defaults = defaults
        self._has_inspector = has_inspector  # if False, contents are never inspected
        self._references: Counter[str] = Counter()  # name -> number of queues dead-lettering to it

    def has_room(self, creator: str, more: int = 1) -> bool:
        own, total, limit = self.created[creator], self.created.total(), self._limits.queues
        is_full = len(self.removed) >= REMOVED_QUEUES * limit
        return not is_full and has_room(own, total, more, limit)

    def note_limited(self, effect: str, name: str) -> None:
        """Count something that happened because the queue ``name`` could not be created."""
        self.limited[effect] = (self.limited.get(effect, (0, ""))[0] + 1, name)

    def counts_with_origin(self, name: str) -> bool:
        """Return whether ``name`` is an existing queue's ``.dlq`` and thus not counted itself."""
        origin = name.removesuffix(DEAD_LETTER_SUFFIX)
        return origin != name and origin in self.queues and not origin.endswith(DEAD_LETTER_SUFFIX)

    def get_or_create(self, batch: Batch, name: str, creator: str = "") -> Queue | None:
        """Return the queue, creating it if necessary, or None if the limit is reached."""
        queue = self.queues.get(name)
        if queue is None and (self.counts_with_origin(name) or self.has_room(creator)):
            queue = self._create(batch, name, creator)
        return queue

    def _create(self, batch: Batch, name: str, creator: str) -> Queue:
        row = self.removed.pop(name, None)
        if row is None:
            row = QueueRow(self.next_queue_id, name, batch.wall_ms, created_by=creator)
            batch.new_queues.append(row)
            batch.counters["next_queue_id"] = self.next_queue_id + 1
        else:  # keep the old id, because the history refers to it
            row.is_removed, row.created_by = False, creator
            batch.configured.append(row)
        return self._add(row)

    def load(self, stored: RecoveredState) -> None:
        """Load the stored queues into memory; of a removed queue, keep only the row."""
        self.next_queue_id = stored.counters.get("next_queue_id", 1)
        for row in stored.queues:
            if row.is_removed:
                self.next_queue_id = max(self.next_queue_id, row.queue_id + 1)
                self.removed[row.name] = row
            else:
                self._add(row)
        for queue_id, count in stored.pipeline.claimed:
            if (queue := self.queues_by_id.get(queue_id)) is not None:
                queue.claimed = count
        for queue_id, source_id, count in stored.records:
            self.queues_by_id[queue_id].count_record(source_id, count)

    def _add(self, row: QueueRow) -> Queue:
        self.next_queue_id = max(self.next_queue_id, row.queue_id + 1)
        queue = Queue(row, self._defaults)
        stop = self.publishing_stop
        queue.stop = None if stop is None else SHORTAGE_REFUSALS[stop.kind]
        if not self.counts_with_origin(row.name):
            self.created[row.created_by] += 1
        self.queues[row.name] = self.queues_by_id[row.queue_id] = queue
        self._count_own_dead_letter_queue(row.name, -1)
        self.configure(queue)
        return queue

    def remove(self, batch: Batch, queue: Queue) -> None:
        """Remove an empty queue without consumers; its row is kept for the history."""
        row = queue.row
        row.own, row.is_removed = {}, True
        self.removed[row.name] = row
        batch.configured.append(row)
        self._count_own_dead_letter_queue(row.name, 1)
        del self.queues[row.name], self.queues_by_id[row.queue_id]
        if not self.counts_with_origin(row.name):
            self.created[row.created_by] -= 1
        batch.to_resume |= queue.parked  # publishers, when resumed, recreate the queue
        queue.parked.clear()
        self._change_reference(queue.settings.dead_letter_queue, "")
        self._refresh_retry_queue(queue)

    def _count_own_dead_letter_queue(self, origin: str, change: int) -> None:
        """Adjust a creator's queue count; a ``.dlq`` counts only if its origin does not exist."""
        queue = self.queues.get(dead_letter_name(origin))
        if queue is not None and self.counts_with_origin(queue.name):
            self.created[queue.row.created_by] += change

    def get_or_recreate(self, batch: Batch, queue_id: int, creator: str) -> Queue | None:
        """Return a queue, recreating it if it was removed, or None if that is impossible."""
        if (queue := self.queues_by_id.get(queue_id)) is not None:
            return queue
        name = self.removed_name(queue_id)
        return None if name is None else self.get_or_create(batch, name, creator)

    def removed_name(self, queue_id: int) -> str | None:
        names = (row.name for row in self.removed.values() if row.queue_id == queue_id)
        return next(names, None)

    # -- settings

    def configure(self, queue: Queue, former: str = "") -> None:
        """Apply the settings in a queue's row; ``former`` is its previous dead-letter queue."""
        self._refresh(queue)
        self._refresh_retry_queue(queue)
        self._change_reference(former, queue.settings.dead_letter_queue)

    def on_expire_of(self, name: str) -> str:
        """Return a queue's ``on_expire``, or its default if there is no such queue."""
        queue = self.queues.get(name)
        return self.default_on_expire(name) if queue is None else queue.settings.on_expire

    def default_on_expire(self, name: str) -> str:
        return effective_settings(QueueRow(0, name, 0), self._defaults).on_expire

    def _refresh_retry_queue(self, queue: Queue) -> None:
        if (retry := self.queues.get(retry_name(queue.name))) is not None:
            self._refresh(retry)

    def _refresh(self, queue: Queue) -> None:
        name = queue.name
        home = self.queues.get(home_of(name) or "")
        queue.is_dead_letter_queue = self._references[name] > 0 or name.endswith(DEAD_LETTER_SUFFIX)
        inherited = None if home is None else home.settings
        queue.settings = effective_settings(
            queue.row, self._defaults, has_records=queue.is_dead_letter_queue, home=inherited
        )
        policy = queue.settings.payload_policy
        queue.inspects = self._has_inspector and policy != "opaque"
        queue.apply_limits()
        queue.validates = queue.inspects and policy == "envelope" and not queue.is_dead_letter_queue
        _update_is_bounded(queue)

    def _change_reference(self, former: str, name: str) -> None:
        """Record a change of a queue's dead-letter queue; an empty name means none."""
        if former == name:
            return
        self._references[name] += 1
        self._references[former] -= 1
        for changed in (former, name):
            if changed and (queue := self.queues.get(changed)) is not None:
                self._refresh(queue)

    def settings_changed(self, batch: Batch, queue: Queue, names: Iterable[str]) -> None:
        """Wake publishers that wait for this queue or its dead-letter queue."""
        if _DEAD_LETTER_SETTINGS.isdisjoint(names):
            self.wake_publishers(batch, queue)
            return
        for other in self.queues.values():  # publishers that still cannot publish wait again
            batch.to_resume |= other.parked
            other.parked.clear()

    # -- dead-letter queues

    def dead_letter_name(self, queue: Queue) -> str:
        """Return a queue's dead-letter queue name; a ``.retry`` queue shares its home queue's."""
        home = home_of(queue.name)
        if home is None or queue.settings.dead_letter_queue:
            return queue.settings.dead_letter_queue or dead_letter_name(queue.name)
        return self.configured_dead_letter_queue(home) or dead_letter_name(home)

    def count_records(self, queue: Queue) -> int:
        """Return how many live dead letters a queue has; a ``.retry`` queue's count at its home.

        A dead-letter queue that several queues share has counts by source; any other has only
        records of its queue, including those that clients published without naming their source.
        """
        name = self.dead_letter_name(queue)
        home = self.queues.get(home_of(queue.name) or "")
        target = self.queues.get(name)
        if (
            target is None
            or queue.is_dead_letter_queue
            or (home is not None and self.dead_letter_name(home) == name)
        ):
            return 0
        origin = self.queues.get(name.removesuffix(DEAD_LETTER_SUFFIX))
        has_origin = origin is not None and not origin.settings.dead_letter_queue
        if self._references[name] + (has_origin and origin is not target) <= 1:
            return target.row.live_count
        records, retry = target.records or {}, self.queues.get(retry_name(queue.name))
        count = records.get(queue.queue_id, 0)
        if retry is not None and self.dead_letter_name(retry) == name:
            count += records.get(retry.queue_id, 0)
        return max(0, count)

    def dead_letter_queue(self, batch: Batch, queue: Queue) -> Queue:
        """Return a queue's dead-letter queue, creating it if necessary, regardless of limits."""
        name = self.dead_letter_name(queue)
        return self.queues.get(name) or self._create(batch, name, queue.row.created_by)

    def record_queue_ids(self, queue: Queue) -> tuple[int, int]:
        """Return the ids of the queues where clients publish records for ``queue``; 0 if missing.

        Clients that do not know the setting append the suffix to the name.
        """
        configured = self.queues.get(self.dead_letter_name(queue))
        own = self.queues.get(dead_letter_name(home_of(queue.name) or queue.name))
        return (
            0 if configured is None else configured.queue_id,
            0 if own is None else own.queue_id,
        )

    def configured_dead_letter_queue(self, name: str) -> str:
        """Return a queue's ``dead_letter_queue`` setting; empty if there is no setting or queue."""
        queue = self.queues.get(name)
        return "" if queue is None else queue.settings.dead_letter_queue

    def dead_letter_refusal(
        self, batch: Batch, queue: Queue, number: int = 1, size: int = 1
    ) -> RecordRefusal | None:
        """Return why the dead-letter queue refuses a record, or None if it accepts one.

        Creates the dead-letter queue if it does not exist.
        """
        target = self.dead_letter_queue(batch, queue)
        refusal = target.refusal(number, size)
        return None if refusal is None else RecordRefusal(target, refusal_of_records(refusal))

    # -- waiting publishers

    def stop_publishing(self, batch: Batch, stop: Shortage | None) -> None:
        """Refuse messages in all queues for lack of space, or accept them if ``stop`` is None."""
        self.publishing_stop = stop
        for queue in self.queues.values():
            queue.stop = None if stop is None else SHORTAGE_REFUSALS[stop.kind]
            _update_is_bounded(queue)
            self.wake_publishers(batch, queue)

    def wake_publishers(self, batch: Batch, queue: Queue) -> None:
        """Wake publishers that wait for this queue, if it accepts messages again."""
        if queue.refusal() is None:
            batch.to_resume |= queue.parked
            queue.parked.clear()


def _update_is_bounded(queue: Queue) -> None:
    """Set whether ``Queue.refusal`` must be called for each message; most queues do not need it."""
    settings = queue.settings
    queue.is_bounded = queue.stop is not None or bool(
        settings.publishing_paused or settings.max_messages or settings.max_bytes
    )
