"""The broker: one method per command; each method records its changes in the open batch.

How ``server/engine.py`` drives it::

    core.begin(now, loaded)     add loaded rows; expire or return messages that are due
    core.publish(…) …           commands, in arrival order
    core.dispatch()             may be repeated; call ``update_clock`` before further commands
    batch = core.finish()       dispatch again; then the writer stores the batch

Nothing here blocks, reads the clock or touches a socket.  Clients are notified only after the batch
is stored.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import IntEnum
from hmac import compare_digest
from typing import Any, Final

from phpmq_lite.broker import dead_letters, dispatching, transitions, validation
from phpmq_lite.broker.ack_timeouts import AckTimeouts
from phpmq_lite.broker.dead_letters import ClientRecords, settle_dead_in_background
from phpmq_lite.broker.pipeline.state import StagingArea, Subscriptions
from phpmq_lite.broker.publish_keys import PublishKeys
from phpmq_lite.broker.queue import SUBSCRIPTION, Connection, Consumer, Queue
from phpmq_lite.broker.ready_window import ReadyWindow
from phpmq_lite.broker.registry import REMOVED_QUEUES
from phpmq_lite.broker.state import BrokerState, QueueRun
from phpmq_lite.errors import KEY_CONFLICT, RefusedError
from phpmq_lite.model import (
    AuditEntry,
    Batch,
    ClockReading,
    EnvelopeInspection,
    EnvelopeInspector,
    Limits,
    LoadedRows,
    Message,
    Peer,
    Receipt,
    RecoveredState,
    Reply,
    State,
    ValidatedPublish,
    checksum,
)
from phpmq_lite.queue_settings import QueueSettings, check_name
from phpmq_lite.writes import AUDIT_BYTES, bounded_text

CHECKSUMS_MAX: Final = 10_000  # number of loaded checksums above which all are forgotten


def add_loaded(state: BrokerState, loaded: LoadedRows) -> dict[int, Message | None]:
    """Add loaded rows to memory; return the rows that this batch's commands requested by seq.

    Windows are extended first, before anything is appended to them.  Bodies come last; until then,
    messages that cannot be dead-lettered without their body are skipped.
    """
    state.transitioned.clear()
    for queue_id, page, reaches_end in loaded.windows:
        _extend_window(state, state.by_id[queue_id], page, reaches_end)
    named = _loaded_by_seq(state, loaded) if loaded.by_seq else {}
    for _, page, _ in loaded.pages:
        _mark_claimed(state, page)
    if loaded.has_due:
        state.next_deadline_ms = loaded.next_deadline_ms
        for row in loaded.due:
            if state.pending.is_full:  # the remaining rows are requested again later
                state.note_deadline(row.deadline_ms)
                break
            if row.seq not in state.pending:
                state.transitioned.add(row.seq)
                transitions.expire(state, state.messages.get(row.seq, row))
    for give, page, is_last in loaded.pages:
        give(page, is_last)
    for give_rows, found in loaded.query_results:
        give_rows(found)
    for seq, body in loaded.bodies.items():
        _add_body(state, seq, body, loaded.records.get(seq, ()))
    return named


def _loaded_by_seq(state: BrokerState, loaded: LoadedRows) -> dict[int, Message | None]:
    """Return the rows loaded by seq that are neither in memory nor used elsewhere in this batch."""
    others = {row.seq for row in loaded.due}
    for _, page, _ in loaded.pages:
        others.update(row.seq for row in page)
    others.update(state.pending)
    named = {
        seq: row
        for seq, row in loaded.by_seq.items()
        if seq not in state.messages and seq not in others
    }
    _mark_claimed(state, [row for row in named.values() if row is not None])
    return named


def _mark_claimed(state: BrokerState, rows: list[Message]) -> None:
    """Mark dispatched rows as held by a subscription if no connection holds them."""
    for row in rows:
        if row.state == State.DISPATCHED and not (
            row.seq in state.messages or row.seq in state.pending
        ):
            row.holder = SUBSCRIPTION


def _add_body(state: BrokerState, seq: int, body: bytes | None, written: ClientRecords) -> None:
    if seq in state.pending:
        if body is None or not settle_dead_in_background(state, seq, body, written):
            dead_letters.settle_dead(state, *state.pending[seq], body, written=written)
    elif (message := state.messages.get(seq)) is not None and message.holder is None:
        queue = state.by_id[message.queue_id]
        if body is None:  # never deliver a damaged message
            dead_letters.settle_dead(state, message, "crc", None)
        elif queue.window is not None:
            queue.window.set_body(message, body)
            state.needs_dispatch[queue.queue_id] = queue


def _extend_window(
    state: BrokerState, queue: Queue, page: list[Message], reaches_end: bool
) -> None:
    if queue.window is None:
        return
    page = [message for message in page if message.seq not in state.pending]
    queue.window.extend(page, reaches_end)
    for message in page:
        state.messages[message.seq] = message
    transitions.dead_letter_exhausted(state, page, queue)
    state.needs_dispatch[queue.queue_id] = queue


class CommandResult(IntEnum):
    """Result of a command received on a connection."""

    DONE = 0
    LOAD = 1  # not executed; start the next batch with this command, once the message is loaded
    PARK = 2  # not executed; repeat the command when the peer is resumed, once the queue has room
    CLOSE = 3  # cannot be executed; close the connection
    WAIT = 4  # executed, but stored in the next batch; hold back later commands until then
    VALIDATE = 5  # not executed; call ``validate_in_background``, then repeat the command
    DELAY = 6  # not executed; repeat the command after ``CREDIT_CHANGE_MS``


class Broker:
    """In-memory queues, consumers and messages, processed in batches.  Not thread-safe."""

    def __init__(
        self,
        stored: RecoveredState,
        limits: Limits,
        defaults: QueueSettings,
        envelopes: EnvelopeInspector | None = None,
    ) -> None:
        self.limits = limits
        self.state = state = BrokerState(limits, defaults, envelopes)
        for row in stored.queues:
            state.registry.load(row)
        for queue_id, source_id, count in stored.records:
            state.by_id[queue_id].count_record(source_id, count)
        state.registry.next_queue_id = max(
            state.registry.next_queue_id, stored.counters.get("next_queue_id", 1)
        )
        state.next_number = stored.counters.get("next_number", 1)
        state.next_deadline_ms = stored.next_deadline_ms
        self._next_client = stored.counters.get("next_client", 1)
        self._next_audit = stored.counters.get("next_audit", 1)
        self.audit_counts: Counter[str] = Counter()  # number of audit rows since startup, by action
        self._publishers: dict[tuple[str, str], int] = {}  # (source, actor) -> client number
        self.publish_keys = PublishKeys(limits.receipts, limits.receipt_window_ms)
        self.publish_keys.load(stored.receipts, stored.newest_key)
        self.connections: dict[int, Connection] = {}  # keyed by client number
        self.ignored: Counter[str] = Counter()  # number of commands without effect, by reason
        self.refused: Counter[str] = Counter()  # number of refused publish commands, by reason
        self.batch_number = 0
        self._on_drained: Reply | None = None  # called as soon as no messages are held
        self._loaded: dict[int, Message | None] = {}  # rows loaded by seq in this batch
        self._checksums: dict[int, int | None] = {}  # of messages whose keys were repeated, by seq
        self.ack_timeouts = AckTimeouts()
        self.subscriptions = Subscriptions(state, stored.pipeline)
        self.staging = StagingArea(stored.pipeline)
        # name -> owner of each history reader, least recently active first
        self.history_readers: dict[str, str | None] = dict(stored.pipeline.readers)

    # -- opening and closing a batch

    @property
    def next_wake_ms(self) -> int | None:
        """Return the steady-clock time, in ms, of the next deadline or timeout, or None."""
        deadline_ms = None if self.state.pending.is_full else self.state.next_deadline_ms
        times = (deadline_ms, self.ack_timeouts.next_ms, self.staging.due_ms)
        return min([at for at in times if at is not None], default=None)

    @property
    def needs_batch(self) -> bool:
        """Return whether another batch should start immediately, even without new commands."""
        return bool(self.state.batch_limited)

    def begin(self, now: ClockReading, loaded: LoadedRows | None = None) -> Batch:
        """Open a batch: add loaded rows, and request messages whose deadline has passed."""
        state = self.state
        batch = Batch(now.wall_ms, state.next_number)
        state.open_batch(batch, now)
        self.batch_number += 1
        self._loaded = {}
        if loaded is not None:
            self._loaded = add_loaded(state, loaded)
            if len(self._checksums) > CHECKSUMS_MAX:
                self._checksums.clear()
            self._checksums |= loaded.checksums
        for connection in state.batch_limited:
            self.wake_consumers(connection)
        state.batch_limited.clear()
        if (due_ms := state.next_deadline_ms) is not None and due_ms <= now.steady_ms:
            batch.due_at = None if state.pending.is_full else now.steady_ms
        if (drop_ms := self.staging.due_ms) is not None and drop_ms <= now.steady_ms:
            self.staging.drop_old(state)
        return batch

    def update_clock(self, now: ClockReading) -> None:
        """Advance the clock of the open batch."""
        self.state.now = now
        self.state.batch.wall_ms = now.wall_ms

    def dispatch(self) -> None:
        """Dispatch ready messages to consumers with credit.  May be called repeatedly in a batch.

        Timed-out messages are returned only after all commands have run, because a queued
        disconnect may return them first.
        """
        state = self.state
        for message in self.ack_timeouts.take_overdue(
            self.connections.values(), state.now.steady_ms
        ):
            transitions.return_message(state, message, "acknowledgement timeout", is_charged=True)
        if self._on_drained is None and state.needs_dispatch:
            dispatching.dispatch_ready(state, self.batch_number)

    def finish(self) -> Batch:
        """Dispatch, then close the batch and return it for storing."""
        state = self.state
        batch = state.batch
        self.dispatch()
        if self._on_drained is not None and not state.held:
            batch.replies.append((self._on_drained, None))
        if batch.dispatched:
            self.ack_timeouts.watch(state.by_id, batch.dispatched, state.now.steady_ms)
        if batch.due_at is not None and state.next_deadline_ms is not None:
            batch.due_from = state.next_deadline_ms  # of one that returned in this batch, perhaps
        if batch.keys:
            batch.evicted_keys, batch.cut_keys = self.publish_keys.take_evicted()
        if not batch.implies_next_number(state.next_number):
            batch.counters["next_number"] = state.next_number
        return batch

    def continue_from(self, former: "Broker") -> None:
        """Keep what is not stored: counters, numbers that were given, and whether publishing stops.

        Call this before the first batch.
        """
        self.audit_counts, self.ignored, self.refused = (
            former.audit_counts, former.ignored, former.refused,
        )  # fmt: skip
        self._next_client = former._next_client
        self._next_audit = former._next_audit
        registry, before = self.state.registry, former.state.registry
        registry.next_queue_id = max(registry.next_queue_id, before.next_queue_id)
        for queue_id, queue in registry.by_id.items():
            if queue_id in before.by_id:
                queue.counters = before.by_id[queue_id].counters
        registry.stop_publishing(before.publishing_stop)

    def drain(self, answer: Reply) -> None:
        """Stop dispatching but keep running commands; call ``answer`` once no messages are held."""
        self._on_drained = answer

    # -- connections

    def connect(self, peer: Peer, kind: str, address: str) -> Connection:
        """Register a new connection and assign it the next client number."""
        state = self.state
        number = self._number_client()
        connection = Connection(number, peer, kind, address, state.now.wall_ms)
        self.connections[number] = connection
        state.batch.opened_clients += (number, kind, address, state.now.wall_ms)
        return connection

    def _number_client(self) -> int:
        number = self._next_client
        self._next_client = number + 1
        self.state.batch.counters["next_client"] = self._next_client
        return number

    def disconnect(
        self,
        connection: Connection,
        framing: str | None,
        revision: str | None,
        reason: str,
        *,
        is_charged: bool = True,
    ) -> None:
        """Close a connection and return its messages, charging a delivery to the oldest one sent.

        Nothing is charged if ``is_charged`` is false or the broker is stopping: no message is to
        blame for an orderly shutdown, or for workers that stop along with the broker.
        """
        if not connection.is_open:
            return
        connection.is_open = False
        del self.connections[connection.number]
        consumers = list(connection.consumers.values())
        oldest: Message | None = None
        if is_charged and not self.is_draining:
            first = (next(iter(consumer.held.values())) for consumer in consumers if consumer.held)
            oldest = min(
                (message for message in first if message.is_sent),
                key=lambda message: message.held_since_ms,
                default=None,
            )
        for consumer in consumers:
            transitions.remove_consumer(self.state, consumer, "connection ended", charged=oldest)
        if connection.parked is not None:
            connection.parked.parked.discard(connection)
        self.state.batch_limited.discard(connection)
        self.state.batch.closed_clients.append(
            (self.state.now.wall_ms, framing, revision, reason, connection.number)
        )

    def set_blocked(self, connection: Connection, *, is_blocked: bool) -> None:
        """Stop dispatching to a connection whose write buffer is full, or resume dispatching."""
        connection.is_blocked = is_blocked
        if not is_blocked:
            self.wake_consumers(connection)

    def wake_consumers(self, connection: Connection) -> None:
        """Resume dispatching to the consumers of a connection."""
        for consumer in connection.consumers.values():
            if not consumer.is_waiting:
                consumer.is_waiting = True
                consumer.queue.waiting_consumers.append(consumer)
            self.state.needs_dispatch[consumer.queue.queue_id] = consumer.queue

    def undo_dispatches(self, connection: Connection, messages: list[Message]) -> None:
        """Undo dispatches of messages that were not sent because they expired during the commit."""
        for message in messages if connection.is_open else ():
            if message.holder is not None and message.holder.connection is connection:
                transitions.undo_dispatch(self.state, message)

    # -- commands from a connection

    def publish(
        self,
        connection: Connection,
        name: str,
        body: bytes,
        ttl_s: int | None,
        key: bytes | None,
        validated: ValidatedPublish | None = None,
    ) -> CommandResult:
        """Store a message; if it has a key, store it only once and send a receipt after the commit.

        ``validated`` is the result of ``validate_in_background`` for this content.
        """
        state = self.state
        queue = state.queues.get(name) or state.registry.get_or_create(name, connection.creator)
        if queue is None:
            state.registry.note_limited("publishes_refused", name)
            return self._refuse(connection, name, key, "too many queues", None)
        if key is not None:
            seq = self.publish_keys.find(queue.queue_id, key, state.now.steady_ms)
            if seq is not None:
                return self._publish_again(connection, queue, key, seq, body)
        if queue.is_bounded and (reason := queue.refusal()) is not None:
            return self._refuse(connection, name, key, reason, queue)
        inspection: EnvelopeInspection | None = None
        if queue.validates:
            inspection = validation.validate(state, queue, body, validated)
            if inspection is None:
                return CommandResult.VALIDATE
            if (
                inspection.reason is not None
                and (full := state.registry.dead_letter_refusal(queue)) is not None
            ):
                return self._refuse(connection, name, key, full[1], full[0])
        message = transitions.publish(state, queue, body, ttl_s, connection.number, inspection)
        connection.published += 1
        if key is not None:
            state.batch.keys += self.publish_keys.add(
                queue.queue_id, key, message.seq, state.now.steady_ms
            )
            self._receipts_for(connection).append(Receipt(name, (key,)))
        return CommandResult.DONE

    def _publish_again(
        self, connection: Connection, queue: Queue, key: bytes, seq: int, body: bytes
    ) -> CommandResult:
        """Send the receipt for a known key again, or refuse the key if the body differs."""
        state = self.state
        stored = self._checksums.get(seq, 0)
        if seq not in self._checksums:
            message = state.messages.get(seq) or state.batch.find_created(seq)
            if message is None:
                state.batch.key_seqs.add(seq)
                return CommandResult.LOAD
            stored = message.crc
        if stored is not None and stored != checksum(seq, body):
            return self._refuse(connection, queue.name, key, KEY_CONFLICT, queue)
        queue.counters.deduplicated += 1
        self._receipts_for(connection).append(Receipt(queue.name, (key,)))
        return CommandResult.DONE

    def unchecked_queue(self, name: str) -> Queue | None:
        """Return the queue if it exists and accepts messages without checks, or None."""
        queue = self.state.queues.get(name)
        return None if queue is None or queue.validates or queue.is_bounded else queue

    def publish_run(
        self,
        connection: Connection,
        parts: Sequence[QueueRun],
        bodies: Sequence[bytes],
        ttls: Sequence[int | None],
        keys: Sequence[bytes] | None,
    ) -> int:
        """Store messages in order, at most one per key; queues come from ``unchecked_queue``.

        Stops at the first message that ``publish`` must load rows for, and returns the number of
        messages before it.
        """
        if keys is None or self._store_keys(connection, parts, keys):
            transitions.publish_run(self.state, parts, bodies, ttls, connection.number)
            connection.published += len(bodies)
            return len(bodies)
        names = [queue.name for queue, count in parts for _ in range(count)]
        for at, (name, body, ttl_s, key) in enumerate(zip(names, bodies, ttls, keys, strict=True)):
            if self.publish(connection, name, body, ttl_s, key) is not CommandResult.DONE:
                return at
        return len(bodies)

    def _store_keys(
        self, connection: Connection, parts: Sequence[QueueRun], keys: Sequence[bytes]
    ) -> bool:
        """Store the keys of new messages; return False and store none if a key is already known."""
        given: list[tuple[int, Sequence[bytes]]] = []
        receipts: list[Receipt] = []
        at = 0
        for queue, count in parts:
            some = keys[at : at + count]
            given.append((queue.queue_id, some))
            receipts.append(Receipt(queue.name, some))
            at += count
        rows = self.publish_keys.add_new(given, self.state.next_number, self.state.now.steady_ms)
        if rows:
            self.state.batch.keys += rows
            self._receipts_for(connection).extend(receipts)
        return bool(rows)

    def _receipts_for(self, connection: Connection) -> list[Receipt]:
        return self.state.batch.sends.setdefault(connection, ([], []))[1]

    def _refuse(
        self, connection: Connection, name: str, key: bytes | None, reason: str,
        queue: Queue | None,
    ) -> CommandResult:  # fmt: skip
        if key is None and queue is not None:
            connection.parked = queue
            queue.parked.add(connection)
            return CommandResult.PARK
        self.refused[reason] += 1
        if queue is not None:
            queue.counters.refused += 1
        if key is None:
            return CommandResult.CLOSE
        self._receipts_for(connection).append(Receipt(name, (key,), reason))
        return CommandResult.DONE

    def validate_in_background(
        self, name: str, body: bytes, give: Callable[[ValidatedPublish], None]
    ) -> None:
        """Validate content in the background after ``VALIDATE``; call ``give`` with the result."""
        work = validation.background_validation(self.state, self.state.queues[name], body)
        self.state.batch.background.append((work, give))

    def force_publish(
        self,
        connection: Connection,
        name: str,
        body: bytes,
        ttl_s: int | None,
        validated: ValidatedPublish | None = None,
    ) -> CommandResult:
        """Store a message even in a full queue, because acknowledgements are waiting behind it.

        Refuse it if the disk is full: other acknowledgements need the remaining space.
        """
        stop = self.state.registry.publishing_stop
        if stop is not None and stop.is_bare:
            return CommandResult.PARK
        queue = self.state.registry.get_or_create(name, connection.creator)
        if queue is None:
            self.state.registry.note_limited("publishes_refused", name)
            return self._refuse(connection, name, None, "too many queues", None)
        inspection: EnvelopeInspection | None = None
        if queue.validates:
            inspection = validation.validate(self.state, queue, body, validated)
            if inspection is None:
                return CommandResult.VALIDATE
        if connection.parked is not None:  # waiting for this queue or its dead-letter queue
            connection.parked.parked.discard(connection)
        connection.published += 1
        transitions.publish(self.state, queue, body, ttl_s, connection.number, inspection)
        return CommandResult.DONE

    def consume(self, connection: Connection, name: str, count: int) -> CommandResult:
        """Set the credit on a queue (0 pauses) and put back messages held under the old credit.

        That happens at a limited rate, unless the connection acknowledges messages in between.
        """
        queue = self.state.registry.get_or_create(name, connection.creator)
        if queue is None:
            self.state.registry.note_limited("consumers_refused", name)
            return CommandResult.CLOSE
        former = connection.consumers.get(queue.queue_id)
        if former is not None:
            if former.held and not connection.may_replace_credit(self.state.now.steady_ms):
                return CommandResult.DELAY
            transitions.remove_consumer(
                self.state, former, transitions.CREDIT_REPLACED, is_leaving=count == 0
            )
        if count == 0:
            return CommandResult.DONE
        consumer = Consumer(connection, queue, min(count, self.limits.credit))
        connection.consumers[queue.queue_id] = queue.consumers[connection] = consumer
        consumer.is_waiting = True
        queue.waiting_consumers.append(consumer)
        if queue.window is None:
            queue.window = ReadyWindow(self.limits.window, self.state.bodies)
        self.state.needs_dispatch[queue.queue_id] = queue
        return CommandResult.DONE

    def acknowledge(self, connection: Connection, name: str, message_id: bytes) -> CommandResult:
        """Settle a message as acked unless another connection holds it."""
        found = self._find(connection, name, message_id)
        if isinstance(found, CommandResult):
            return found
        connection.acked += 1
        transitions.acknowledge(self.state, found, self.state.by_id[found.queue_id])
        return CommandResult.DONE

    def acknowledge_run(self, connection: Connection, ends: Iterable[tuple[str, bytes]]) -> int:
        """Acknowledge, in order, messages held by this connection, each identified by queue and id.

        Stops at the first message that the connection does not hold, and returns the number of
        messages acknowledged.  Pass the message at which it stopped to ``acknowledge``.
        """
        count = self.state.acknowledge_held(connection, ends)
        connection.acked += count
        return count

    def requeue(
        self, connection: Connection, name: str, message_id: bytes, ttl_s: int
    ) -> CommandResult:
        """Move a message to the end of its queue unless another connection holds it."""
        found = self._find(connection, name, message_id)
        if isinstance(found, CommandResult):
            return found
        transitions.requeue(self.state, found, ttl_s)
        return self._done_or_wait(connection, found)

    def dead_letter(self, connection: Connection, name: str, message_id: bytes) -> CommandResult:
        """Dead-letter a message unless another connection holds it."""
        found = self._find(connection, name, message_id)
        if isinstance(found, CommandResult):
            return found
        dead_letters.dead_letter(self.state, found, "client")
        return self._done_or_wait(connection, found)

    def _done_or_wait(self, connection: Connection, message: Message) -> CommandResult:
        is_pending = self.state.pending.delays(connection, message.seq)
        return CommandResult.WAIT if is_pending else CommandResult.DONE

    def _find(
        self, connection: Connection, name: str, message_id: bytes
    ) -> Message | CommandResult:
        """Return the message that a command names, or the command's result if it cannot run."""
        try:
            seq = int(message_id[:16], 16)
        except ValueError:
            return self._ignore("unknown")
        if len(message_id) != 32 or not 0 < seq < self.state.next_number:
            return self._ignore("unknown")
        if seq in self.state.pending:
            return self._ignore("settled")
        message = self.state.messages.get(seq)
        if message is None:
            if seq not in self._loaded:
                self.state.batch.seqs.add(seq)
                return CommandResult.LOAD
            message = self._loaded[seq]
        if message is None:
            return self._ignore("settled")
        if not compare_digest(message.message_id, message_id):
            return self._ignore("unknown")
        if self.state.by_id[message.queue_id].name != name:
            return self._ignore("wrong_queue")
        if message.holder is not None and message.holder.connection is not connection:
            return self._ignore("foreign")
        self._loaded.pop(seq, None)  # this batch changes the row, so reload it before its next use
        return message

    def _ignore(self, reason: str) -> CommandResult:
        self.ignored[reason] += 1
        return CommandResult.DONE

    def preload(self, message_ids: list[bytes], keys: Sequence[tuple[str, bytes]] = ()) -> None:
        """Request the rows for upcoming commands, so that one batch loads all of them.

        ``keys`` are the queues and keys of publish commands; the others name a message.
        """
        for name, key in keys:
            if (queue := self.state.queues.get(name)) is not None:
                seq = self.publish_keys.find(queue.queue_id, key, self.state.now.steady_ms)
                if seq is not None and seq not in self._checksums:
                    self.state.batch.key_seqs.add(seq)
        for message_id in message_ids:
            try:
                seq = int(message_id[:16], 16)
            except ValueError:
                continue
            if 0 < seq < self.state.next_number and seq not in self.state.messages:
                self.state.batch.seqs.add(seq)

    # -- used by operator commands; see operator/queue_operations.py

    @property
    def is_draining(self) -> bool:
        """Return whether the broker is stopping."""
        return self._on_drained is not None

    def check_not_draining(self) -> None:
        """Check that the broker is not stopping.

        Raises:
            RefusedError: ``draining``.
        """
        if self.is_draining:
            raise RefusedError("draining", "the broker is stopping and no longer accepts messages")

    def find_queue(self, name: str) -> Queue:
        """Return a queue by name.

        Raises:
            RefusedError: ``unknown_queue``.
        """
        queue = self.state.queues.get(name)
        if queue is None:
            raise RefusedError("unknown_queue", f"there is no queue {name!r}")
        return queue

    def destination(self, name: str, creator: str, *, create: bool) -> Queue | None:
        """Return the destination queue, or None if it must be created first.

        Raises:
            RefusedError: ``unknown_queue``, ``bad_name`` or ``too_many_queues``.
        """
        queue = self.state.queues.get(name)
        if queue is None:
            if not create:
                return self.find_queue(name)
            check_name(name)
            if not self.state.registry.counts_with_origin(name):
                self.check_queues(creator, 1)
        return queue

    def check_queues(self, creator: str, more: int) -> None:
        """Check that ``creator`` may create ``more`` queues.

        Raises:
            RefusedError: ``too_many_queues``.
        """
        if not self.state.registry.has_room(creator, more):
            created, removed = self.state.registry.created, len(self.state.registry.removed)
            if removed >= REMOVED_QUEUES * self.limits.queues:
                raise RefusedError(
                    "too_many_queues",
                    f"{removed} queues were removed since the start; the limit is"
                    f" {REMOVED_QUEUES} times limits.max_queues. Restart the broker to forget those"
                    " without a history, or raise the limit.",
                )
            raise RefusedError(
                "too_many_queues",
                f"there are {created.total()} queues, {created[creator]} of them created by"
                f" {creator!r}; the limit is {self.limits.queues} (limits.max_queues). Remove"
                " empty queues or raise the limit.",
            )

    def settings_changed(self, queue: Queue, changes: Mapping[str, Any]) -> None:
        """Apply new settings to held messages, waiting publishers and waiting consumers."""
        if "ack_timeout_s" in changes:
            self.ack_timeouts.next_ms = self.state.now.steady_ms  # recheck all held messages
        if "max_deliveries" in changes:
            transitions.dead_letter_exhausted(self.state, queue.window or (), queue)
        self.state.needs_dispatch[queue.queue_id] = queue
        self.state.registry.settings_changed(queue, changes)

    def client_number_of(self, entry: AuditEntry) -> int:
        """Return the client number of a user without a connection; assign it on the first call."""
        who = (entry.source, entry.actor)
        number = self._publishers.get(who)
        if number is None:
            number = self._publishers[who] = self._number_client()
            address = bounded_text(f"{entry.actor} ({entry.address})", AUDIT_BYTES["address"])
            self.state.batch.opened_clients += (
                number, entry.source, address, self.state.now.wall_ms,
            )  # fmt: skip
        return number

    def take_audit_number(self) -> int:
        """Return the next audit-log sequence number; it is stored with the batch that uses it."""
        number = self._next_audit
        self._next_audit = number + 1
        self.state.batch.counters["next_audit"] = self._next_audit
        return number
