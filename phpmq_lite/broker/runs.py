"""The three turns that every message has: published, dispatched, acknowledged, many at a time.

What a run of messages shares is looked up once, and counted once at its end: 2.2 instead of
4.1 µs for all three turns of a message (``benchmarks/profile_paths.py --path plain``).  A run may
go over many queues, and then what it shares of a queue is counted where the queue changes: 8.1
instead of 13.6 µs where each message has another one (``--path confirmed --queues 1000``).  The
rare turns are in ``lives.py``.
"""

from collections.abc import Iterable, Sequence
from itertools import islice
from os import urandom
from struct import unpack
from typing import Final
from zlib import crc32

from phpmq_lite.broker.lifecycle import Event, next_state
from phpmq_lite.broker.queue import Connection, Consumer, Queue
from phpmq_lite.broker.queues import Queues
from phpmq_lite.broker.ready_window import BodyCache, ReadyWindow
from phpmq_lite.histogram import BUCKETS, NEAR, NEAR_MS, bucket
from phpmq_lite.model import EnvelopeInspector, Limits, Message, QueueSettings, State

# Known answers, looked up once: a call of next_state costs 0.4 µs.
DISPATCHED: Final = next_state(State.READY, Event.DISPATCH)
ACKED: Final = next_state(State.DISPATCHED, Event.ACKNOWLEDGE)

ACKED_KEY: Final = (int(ACKED), None)
LONGEST_TTL_S: Final = 100 * 365 * 86_400  # 100 years: nothing overflows 63 bits
_TOKENS_AT_ONCE: Final = 512

Part = tuple[Queue, int]  # of messages in a row: how many are of this queue


class Runs(Queues):
    """All messages in memory, and their common turns.  ``Lives`` adds the others."""

    def __init__(
        self, limits: Limits, defaults: QueueSettings, envelopes: EnvelopeInspector | None = None
    ) -> None:
        super().__init__(limits, defaults, envelopes)
        self.known: dict[int, Message] = {}  # by seq: held, or in a window
        self.next_number = 1  # the one line of seq and position
        self.next_deadline_ms: int | None = None  # no ready message expires before it
        self.held = 0
        self.held_bytes = 0
        self.bodies = BodyCache()
        self._tokens: list[int] = []  # of 63 random bits each

    def note_deadline(self, deadline_ms: int | None) -> None:
        """See that the loop wakes up for this deadline (steady ms)."""
        if deadline_ms is not None and (
            self.next_deadline_ms is None or deadline_ms < self.next_deadline_ms
        ):
            self.next_deadline_ms = deadline_ms

    def draw_tokens(self, number: int) -> None:
        """Have at least that many tokens at hand; one system call gives many."""
        count = max(_TOKENS_AT_ONCE, number)
        drawn = unpack(f">{count}Q", urandom(8 * count))
        self._tokens += [token >> 1 for token in drawn]

    # -- published

    def bear(
        self,
        parts: Sequence[Part],
        contents: Sequence[bytes],
        ttls: Sequence[int | None],
        publisher: int | None,
    ) -> list[Message]:
        """Make and record new messages at the end of their queues; no window has them yet.

        ``ttls`` are in seconds; 0: never, None: the queue's default.
        """
        tokens = self._tokens
        if len(tokens) < len(contents):
            self.draw_tokens(len(contents))
        batch = self.batch
        wall_ms, steady_ms = self.now
        seq = self.next_number
        bodies, queue_rows = batch.bodies, batch.queue_rows
        made: list[Message] = []
        pieces = zip(contents, ttls, strict=True)
        for queue, count in parts:
            queue_id, default_s, total = queue.queue_id, queue.settings.default_ttl_s, 0
            for body, given_s in islice(pieces, count):
                ttl_s = default_s if given_s is None else given_s
                kept_s: int | None = None
                deadline_ms: int | None = None
                if ttl_s:
                    kept_s = min(ttl_s, LONGEST_TTL_S)
                    deadline_ms = steady_ms + kept_s * 1_000
                    self.note_deadline(deadline_ms)
                size = len(body)
                crc = crc32(body, crc32(seq.to_bytes(8, "big")))  # model.checksum, without the call
                made.append(
                    Message(
                        seq, tokens.pop(), queue_id, seq, 0, kept_s, deadline_ms, wall_ms, None,
                        None, 0, 0, size, crc, publisher, None,
                    )
                )  # fmt: skip
                bodies += (seq, body)
                total += size
                seq += 1
            batch.born_bytes += total
            row = queue_rows[queue_id] = queue.row
            row.live_count += count
            row.live_bytes += total
            queue.totals.published += count
        self.next_number = seq
        batch.born += made
        return made

    def join(self, queue: Queue, made: Sequence[Message], contents: Sequence[bytes]) -> None:
        """Put new messages of a queue into its window, as many as it has room for."""
        window = queue.window
        if window is None:
            return
        room = self.body_room(window)
        for message, body in zip(made, contents, strict=True):
            if message.size <= room:
                message.body = body
                room -= message.size
        known = self.known
        joined = window.join(made)
        for message in made if joined == len(made) else made[:joined]:
            known[message.seq] = message
        self.hungry[queue.queue_id] = queue

    def body_room(self, window: ReadyWindow) -> int:
        """Tell how many bytes of bodies a window may keep in memory besides those it has."""
        limits = self.limits
        room = limits.window_bytes - window.body_bytes
        of_all = limits.bodies_bytes - self.bodies.total_bytes
        if of_all < room:
            room = of_all
        return room if room > 0 else 0

    # -- dispatched

    def dispatch(self, messages: Sequence[Message], consumers: Sequence[Consumer]) -> None:
        """Give ready messages, taken from their window, in turns to consumers with credit for them.

        All of one queue; the first message goes to the first consumer.
        """
        self.batch.dispatched += messages
        if messages and len(consumers) == 1:
            self._dispatch_to(consumers[0], messages)
            return
        for place, consumer in enumerate(consumers):
            if part := messages[place :: len(consumers)]:
                self._dispatch_to(consumer, part)

    def _dispatch_to(self, consumer: Consumer, messages: Sequence[Message]) -> None:
        queue, connection = consumer.queue, consumer.connection
        wall_ms, steady_ms = self.now
        number, held, total, again = connection.number, consumer.held, 0, 0
        if (wait := queue.wait) is None:
            wait = queue.wait = [0] * BUCKETS
        for message in messages:
            message.state = DISPATCHED
            message.holder = consumer
            message.held_since_ms = steady_ms
            message.consumer = number
            message.deliveries += 1
            message.last_dispatched_at = wall_ms
            if message.first_dispatched_at is None:
                message.first_dispatched_at = wall_ms
                ms = wall_ms - message.published_at  # measured: this and the hold cost 0.17 µs
                wait[NEAR[ms] if 0 <= ms < NEAR_MS else bucket(ms)] += 1
            else:
                again += 1
            held[message.message_id] = message
            total += message.size
        count = len(messages)
        connection.batch_bytes += total
        consumer.held_bytes += total
        self.held += count
        self.held_bytes += total
        queue.held += count
        queue.held_bytes += total
        queue.totals.dispatched += count
        queue.totals.redelivered += again
        sends = self.batch.sends
        entry = sends.get(connection)
        if entry is None:
            entry = sends[connection] = ([], [])
        entry[0].extend(messages)

    # -- acknowledged

    def acknowledge_held(self, connection: Connection, ends: Iterable[tuple[str, bytes]]) -> int:
        """Settle as acked what a connection holds, by queue and id.

        Returns how many it was, up to the first that it does not hold.
        """
        known, wall_ms = self.known, self.batch.wall_ms
        seqs: list[int] = []
        consumer: Consumer | None = None
        last: str | None = None
        began = size = 0  # since the queue is this one
        for name, message_id in ends:
            if name is not last:
                if consumer is not None:
                    self._count_gone(consumer, len(seqs) - began, size)
                queue = self.queues.get(name)
                consumer = None if queue is None else queue.consumers.get(connection)
                if queue is None or consumer is None:
                    break
                last, began, size, held = name, len(seqs), 0, consumer.held
                hold = queue.hold = queue.hold or [0] * BUCKETS
            message = held.pop(message_id, None)
            if message is None:
                break
            message.holder = None
            seq = message.seq
            known.pop(seq, None)
            seqs.append(seq)
            size += message.size
            ms = wall_ms - (message.last_dispatched_at or wall_ms)
            hold[NEAR[ms] if 0 <= ms < NEAR_MS else bucket(ms)] += 1
        if consumer is not None:
            self._count_gone(consumer, len(seqs) - began, size)
        self.note_acked(seqs)
        return len(seqs)

    def _count_gone(self, consumer: Consumer, count: int, size: int) -> None:
        """A consumer has acknowledged so many messages, of ``size`` bytes together."""
        if not count:
            return
        queue = consumer.queue
        consumer.held_bytes -= size
        self.held -= count
        self.held_bytes -= size
        queue.held -= count
        queue.held_bytes -= size
        if not consumer.in_turn:
            consumer.in_turn = True
            queue.turns.append(consumer)
        self.hungry[queue.queue_id] = queue
        self.count_acked(queue, count, size)

    def note_acked(self, seqs: list[int]) -> None:
        """Record messages as settled: acked; ``count_acked`` counts them, queue by queue."""
        if seqs:
            self.batch.settled.setdefault(ACKED_KEY, []).extend(seqs)

    def count_acked(self, queue: Queue, count: int, size: int) -> None:
        """Take acknowledged messages of a queue, of ``size`` bytes together, off its counts."""
        row = queue.row
        row.live_count -= count
        row.live_bytes -= size
        self.batch.queue_rows[queue.queue_id] = row
        queue.totals.acked += count
        if queue.parked:
            self.unpark(queue)
