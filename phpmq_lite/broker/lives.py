"""The turns of one message's life, each recorded in the open batch.

Each method is one row of the table in ``lifecycle.py``: it changes the message, the counters and
the windows, and writes down what the transaction has to store.  Whether a turn is allowed, and
who asked for it, is decided in ``core.py``.
"""

from collections.abc import Sequence
from typing import Final

from phpmq_lite.broker import records
from phpmq_lite.broker.dying import Dying
from phpmq_lite.broker.lifecycle import Event, next_state
from phpmq_lite.broker.queue import SUBSCRIPTION, Consumer, Queue
from phpmq_lite.broker.ready_window import ReadyWindow
from phpmq_lite.broker.records import Written
from phpmq_lite.broker.runs import LONGEST_TTL_S, Part, Runs
from phpmq_lite.histogram import BUCKETS, bucket
from phpmq_lite.model import EnvelopeInspector, Inspection, Limits, Message, QueueSettings, State

# Known answers, looked up once: a call of next_state costs 0.4 µs.
READY_AGAIN: Final = next_state(State.DISPATCHED, Event.RETURN)
EXPIRED: Final = next_state(State.READY, Event.EXPIRE)
DEAD: Final = next_state(State.DISPATCHED, Event.DEAD_LETTER)
DELETED: Final = next_state(State.READY, Event.DELETE)

NOT_FORWARDED: Final = "not_forwarded"  # limits.max_queues leaves no room for the destination
LOOKED_BYTES: Final = 1 << 20  # longer content is not looked at, but where it must be judged


class Lives(Runs):
    """All messages in memory and the batch that is open.  Plain state, owned by the core."""

    def __init__(
        self, limits: Limits, defaults: QueueSettings, envelopes: EnvelopeInspector | None = None
    ) -> None:
        super().__init__(limits, defaults, envelopes)
        self.dying = Dying()
        self.held_times = 0  # dispatching waited, because consumers held as much as they may
        self.short: dict[int, Queue] = {}  # queues for which it waited last: others leave them room
        self.gone: set[int] = set()  # seqs of loaded rows that had a turn in this batch already

    # -- numbers and places

    def number(self) -> int:
        """Take the next number of the line; stored with the batch that uses it."""
        number = self.next_number
        self.next_number = number + 1
        return number

    def token(self) -> int:
        """Take 63 random bits."""
        if not self._tokens:
            self.draw_tokens(1)
        return self._tokens.pop()

    def event(self, message: Message, kind: str, detail: str | None = None) -> None:
        """Write down an unusual turn for the timeline."""
        self.batch.events += (message.seq, self.now.wall_ms, kind, detail)

    def deadline(self, ttl_s: int) -> tuple[int | None, int | None]:
        """Return a TTL that is not too long, and the deadline (steady ms); 0: None and None."""
        if ttl_s <= 0:
            return None, None
        ttl_s = min(ttl_s, LONGEST_TTL_S)
        return ttl_s, self.now.steady_ms + ttl_s * 1_000

    def set_ttl(self, message: Message, ttl_s: int) -> None:
        """Have a message expire in ``ttl_s`` seconds; 0: never."""
        message.ttl_s, message.deadline_ms = self.deadline(ttl_s)

    def cut_window(self, queue: Queue) -> None:
        """Forget what a window has above its limit, because something came back to it."""
        if queue.window is not None:
            given_up = queue.window.cut()
            if given_up:
                self.drop_page(queue, queue.window)
                self.hungry[queue.queue_id] = queue
            for message in given_up:
                del self.known[message.seq]

    def drop_page(self, queue: Queue, window: ReadyWindow) -> None:
        """Ask no more for the page behind a window, which ends at another place now."""
        window.is_loading = False
        batch = self.batch
        batch.filled = [page for page in batch.filled if page.queue_id != queue.queue_id]

    # -- born

    def _look(
        self, message: Message, queue: Queue, body: bytes, looked: Inspection | None
    ) -> Inspection | None:
        """Note what a new message is found by; give the verdict, where there is one."""
        envelopes = self.envelopes
        indexed = None if looked is None else looked.indexed
        if looked is None and envelopes is not None:
            if queue.is_dead_letter_queue:
                records.note_source(envelopes, message, body, self.queues, self.known)
            if queue.judges:
                looked = envelopes.judge(body, queue.settings)
                indexed = looked.indexed
            elif body.startswith(b"{") and len(body) <= LOOKED_BYTES:
                indexed = envelopes.index(body)
        if (
            body.endswith(b"}}")  # as a block does that was added; few others need a look
            and envelopes is not None
            and not queue.is_dead_letter_queue
            and len(body) <= LOOKED_BYTES
        ):
            records.note_held_source(envelopes, message, body, self.known)
        if indexed is not None:
            message.urn, message.trace_id, message.meta_id, message.attempts = indexed
        return looked

    def publish(
        self,
        queue: Queue,
        body: bytes,
        ttl_s: int | None,
        publisher: int | None,
        looked: Inspection | None = None,
    ) -> Message:
        """Store a new message at the end of ``queue``; ``ttl_s`` None: the queue's default.

        ``looked`` is what was found in it already.  What may not reach a consumer is dead at once;
        see that there is room for its record before (``refuses_dead``).
        """
        made = self.bear(((queue, 1),), (body,), (ttl_s,), publisher)
        message = made[0]
        if queue.looks:
            looked = self._look(message, queue, body, looked)
        if looked is not None and looked.reason is not None and queue.judges:
            ahead = looked.record
            content = None if ahead is None else ahead[1].replace(ahead[0], message.message_id, 1)
            self.bury(message, looked.reason, body, detail=looked.detail, content=content)
        else:
            self.join(queue, made, (body,))
        return message

    def publish_run(
        self,
        parts: Sequence[Part],
        bodies: Sequence[bytes],
        ttls: Sequence[int | None],
        publisher: int,
    ) -> None:
        """Store new messages as ``publish`` does, of queues that judge nothing."""
        made = self.bear(parts, bodies, ttls, publisher)
        at = 0
        for queue, count in parts:
            end = at + count
            some, contents = made[at:end], bodies[at:end]
            if queue.looks:
                for message, body in zip(some, contents, strict=True):
                    if queue.is_dead_letter_queue or body.startswith(b"{"):
                        self._look(message, queue, body, None)
            self.join(queue, some, contents)
            at = end

    # -- alive

    def let_go(self, message: Message, queue: Queue) -> None:
        """Take a message from whoever holds it, or out of its window."""
        consumer = message.holder
        if consumer is SUBSCRIPTION:
            message.holder = None
            queue.held -= 1
            queue.held_bytes -= message.size
            queue.claimed -= 1
            queue.claimed_bytes -= message.size
            self.batch.several.setdefault(("claims", "remove"), []).append(message.seq)
        elif consumer is not None:
            message.holder = None
            size = message.size
            if consumer.held.pop(message.message_id, None) is not None:
                consumer.held_bytes -= size
            self.held -= 1
            self.held_bytes -= size
            queue.held -= 1
            queue.held_bytes -= size
            if not consumer.in_turn and consumer.credit:
                consumer.in_turn = True
                queue.turns.append(consumer)
            self.hungry[queue.queue_id] = queue
        elif queue.window is not None:
            queue.window.discard(message)
            self.hungry[queue.queue_id] = queue  # another one is first now

    def put_in_place(self, message: Message, queue: Queue) -> None:
        """A message is ready again: at its position, in the window or on disk."""
        message.state = READY_AGAIN
        message.is_sent = False
        self.batch.changed[message.seq] = message
        self.note_deadline(message.deadline_ms)
        queue.claimed_to = min(queue.claimed_to, message.position - 1)
        window = queue.window
        if window is not None and window.put_back(message):
            self.known[message.seq] = message
            self.hungry[queue.queue_id] = queue
        else:
            self.known.pop(message.seq, None)

    def put_at_end(self, message: Message, queue: Queue) -> None:
        """A message is ready at the end of ``queue``, under its old id."""
        message.state = READY_AGAIN
        message.is_sent = False
        message.position = self.number()
        message.queue_id = queue.queue_id
        self.batch.changed[message.seq] = message
        self.note_deadline(message.deadline_ms)
        window = queue.window
        if window is not None and window.append(message):
            self.known[message.seq] = message
            self.hungry[queue.queue_id] = queue
        else:
            self.known.pop(message.seq, None)
            if window is not None:
                self.hungry[queue.queue_id] = queue

    def give_back(self, message: Message, detail: str, *, is_charged: bool) -> None:
        """Return a held message to its old place; past ``max_deliveries`` it dies instead."""
        queue = self.by_id[message.queue_id]
        self.let_go(message, queue)
        queue.totals.returned += 1
        self.event(message, Event.RETURN, detail)
        if is_charged and self._is_poison(message, queue):
            self.kill(message, "max_deliveries")
        else:
            self.put_in_place(message, queue)

    def take_back(self, message: Message) -> None:
        """Undo a dispatch that was not sent: its deadline passed, or its consumer has gone."""
        queue = self.by_id[message.queue_id]
        self.let_go(message, queue)
        message.deliveries -= 1
        if message.deliveries == 0:
            message.first_dispatched_at = message.last_dispatched_at = message.consumer = None
        self.put_in_place(message, queue)

    def requeue(self, message: Message, ttl_s: int) -> None:
        """Put a message at the end of its queue with a new TTL; past the limit it dies instead."""
        queue = self.by_id[message.queue_id]
        was_held = message.holder is not None
        self.let_go(message, queue)
        queue.totals.requeued += 1
        self.event(message, Event.REQUEUE)
        if was_held and self._is_poison(message, queue):
            self.kill(message, "max_deliveries")
            return
        self.set_ttl(message, ttl_s)
        self.put_at_end(message, queue)

    def _is_poison(self, message: Message, queue: Queue) -> bool:
        message.charged += 1
        self.batch.changed[message.seq] = message  # for its history row, should it die of it
        limit = queue.settings.max_deliveries
        return 0 < limit <= message.charged

    def forward(self, message: Message, target: Queue) -> None:
        """Move a ready message to the end of another queue, with that queue's TTL."""
        queue = self.by_id[message.queue_id]
        self.let_go(message, queue)
        self.count_out(message, queue)
        queue.totals.forwarded += 1
        self.event(message, Event.FORWARD, f"{queue.name} to {target.name}")
        self.set_ttl(message, target.settings.default_ttl_s)
        target.row.live_count += 1
        target.row.live_bytes += message.size
        self.batch.queue_rows[target.queue_id] = target.row
        self.put_at_end(message, target)

    # -- consumers

    def end_consumer(
        self,
        consumer: Consumer,
        detail: str,
        *,
        charged: Message | None = None,
        is_leaving: bool = True,
    ) -> None:
        """End a consumer: return what it held, and charge a failed delivery to ``charged``.

        A dispatch that was not sent is undone: it was no delivery.
        """
        queue, connection = consumer.queue, consumer.connection
        del connection.consumers[queue.queue_id]
        del queue.consumers[connection]
        consumer.credit = 0
        if is_leaving and not queue.consumers:
            self.close_window(queue)
        for message in list(consumer.held.values()):
            if message.is_sent:
                self.give_back(message, detail, is_charged=message is charged)
            else:
                self.take_back(message)
        if consumer.in_turn:
            queue.turns.remove(consumer)
        self.cut_window(queue)

    def close_window(self, queue: Queue) -> None:
        """Forget what is in memory of a queue that nobody consumes any more."""
        if queue.window is not None:
            self.drop_page(queue, queue.window)
            queue.window.drop_bodies()
            for message in queue.window:
                del self.known[message.seq]
            queue.window = None

    # -- settled

    def acknowledge(self, message: Message, queue: Queue) -> None:
        """Settle as acked, whoever holds it; ``acknowledge_held`` is for many in a row."""
        self.let_go(message, queue)
        self.known.pop(message.seq, None)
        self.note_hold(message, queue)
        self.note_acked([message.seq])
        self.count_acked(queue, 1, message.size)

    def note_hold(self, message: Message, queue: Queue) -> None:
        """Count for how long a message was held that is about to be settled."""
        if message.last_dispatched_at is not None:
            queue.hold = queue.hold or [0] * BUCKETS
            queue.hold[bucket(self.now.wall_ms - message.last_dispatched_at)] += 1

    def settle(self, message: Message, outcome: State, reason: str | None) -> None:
        """End a life: the row leaves the live table and becomes one of the history.

        ``message.state`` stays as it was: it is what a row born in this batch is inserted with.
        """
        queue = self.by_id[message.queue_id]
        self.let_go(message, queue)
        self.known.pop(message.seq, None)
        self.batch.settled.setdefault((int(outcome), reason), []).append(message.seq)
        self.count_out(message, queue)

    def count_out(self, message: Message, queue: Queue) -> None:
        """A message is no longer among those of ``queue``."""
        queue.row.live_count -= 1
        queue.row.live_bytes -= message.size
        self.batch.queue_rows[queue.queue_id] = queue.row
        if queue.parked:
            self.unpark(queue)

    def delete(self, message: Message, reason: str) -> None:
        """Settle as deleted; the history keeps what restoring it would need."""
        self.by_id[message.queue_id].totals.deleted += 1
        self.settle(message, DELETED, reason)

    def expire(self, message: Message) -> None:
        """The deadline of a ready message has passed: do what its queue says."""
        queue = self.by_id[message.queue_id]
        queue.totals.expired += 1
        queue.totals.expired_never += not message.deliveries
        on_expire = queue.settings.on_expire
        if on_expire == "dead_letter":
            self.kill(message, "expired")
            return
        if on_expire.startswith("forward:"):
            target = self.queue(on_expire.removeprefix("forward:"), queue.row.created_by)
            if target is None:
                self.kill(message, NOT_FORWARDED)
                return
            if target is not queue:
                self.forward(message, target)
                return
        self.settle(message, EXPIRED, None)

    def kill(self, message: Message, reason: str) -> None:
        """Make a message a dead letter: its history row and its record, in one batch.

        A body that is not in memory is loaded first; until then the message is dying, nobody
        can have it, and on disk it is still what it was.
        """
        queue = self.by_id[message.queue_id]
        if message.holder is not None:
            self.note_hold(message, queue)
        self.let_go(message, queue)
        self.known.pop(message.seq, None)
        body = message.body
        if not queue.is_dead_letter_queue:
            is_asked = self.envelopes is not None and message.deliveries > 0
            if is_asked:  # who had it may have written a record
                places = self.record_places(queue)
                self.batch.record_seqs[message.seq] = (*places, message.consumer or 0)
            is_cheap = self.envelopes is None or not queue.looks
            if body is None or is_asked or not (is_cheap or self.takes_at_once(len(body))):
                self.dying.add(message, reason)
                self.batch.body_seqs.add(message.seq)
                return
        self.bury(message, reason, body)

    def bury(
        self,
        message: Message,
        reason: str,
        body: bytes | None,
        *,
        detail: str = "",
        written: Written = (),
        content: bytes | None = None,
    ) -> None:
        """Settle as dead and store the record; without a body (damaged) there is no record.

        ``written`` may be about it: a client that knew more has stored one ahead of its 006.
        ``content`` is that of the record, where it was made already.
        """
        queue = self.by_id[message.queue_id]
        if (connection := self.dying.end(message)) is not None:
            self.batch.wakes.add(connection)
        own = records.own_record(self.envelopes, message, written)
        if own is not None:
            record_id, reason = own
        elif not queue.is_dead_letter_queue:
            if body is None:
                reason = "crc"
            elif content is None:
                reason = records.cause_of(self.envelopes, message, queue, body, reason)
        queue.totals.dead += 1
        queue.count_death(reason)
        self.settle(message, DEAD, reason)
        if own is not None:
            self.event(message, Event.DEAD_LETTER, record_id.decode())
        elif body is not None and not queue.is_dead_letter_queue:
            if content is None:
                content = records.content_of(
                    self.envelopes, message, queue, body, reason, detail, self.now.wall_ms
                )
            self._store_record(message, queue, content, reason)

    def _store_record(self, message: Message, queue: Queue, content: bytes, reason: str) -> None:
        target = self.dead_letter_queue(queue)
        looked = Inspection((message.urn, message.trace_id, message.meta_id, message.attempts))
        record = self.publish(target, content, 0, message.publisher, looked)
        record.source_seq = message.seq
        record.source_queue_id = queue.queue_id
        record.source_reason = reason
        self.event(message, Event.DEAD_LETTER, record.message_id.decode())
