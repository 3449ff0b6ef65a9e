"""The three turns that every message has: published, dispatched, acknowledged, many at a time.

What a run of messages shares is looked up once, and counted once at its end: 2.2 instead of
4.1 µs for all three turns of a message (``benchmarks/profile_paths.py --path plain``).  The rare
turns are in ``lives.py``.
"""

from collections.abc import Iterable, Sequence
from os import urandom
from struct import unpack
from typing import Final
from zlib import crc32

from phpmq_lite.broker.histogram import BUCKETS, NEAR, NEAR_MS, bucket
from phpmq_lite.broker.lifecycle import Event, next_state
from phpmq_lite.broker.queue import Consumer, Queue
from phpmq_lite.broker.queues import Queues
from phpmq_lite.broker.window import Bodies, Window
from phpmq_lite.model import Envelopes, Limits, Message, QueueSettings, State

# Known answers, looked up once: a call of next_state costs 0.4 µs.
DISPATCHED: Final = next_state(State.READY, Event.DISPATCH)
ACKED: Final = next_state(State.DISPATCHED, Event.ACKNOWLEDGE)

ACKED_KEY: Final = (int(ACKED), None)
LONGEST_TTL_S: Final = 100 * 365 * 86_400  # 100 years: nothing overflows 63 bits
_TOKENS_AT_ONCE: Final = 512


class Runs(Queues):
    """All messages in memory, and their common turns.  ``Lives`` adds the others."""

    def __init__(
        self, limits: Limits, defaults: QueueSettings, envelopes: Envelopes | None = None
    ) -> None:
        super().__init__(limits, defaults, envelopes)
        self.known: dict[int, Message] = {}  # by seq: held, or in a window
        self.next_number = 1  # the one line of seq and position
        self.next_deadline_ms: int | None = None  # no ready message expires before it
        self.held = 0
        self.held_bytes = 0
        self.bodies = Bodies()
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
        queue: Queue,
        contents: Sequence[bytes],
        ttls: Sequence[int | None],
        publisher: int | None,
    ) -> list[Message]:
        """Make and record new messages at the end of ``queue``, in order; no window has them yet.

        ``ttls`` are in seconds; 0: never, None: the queue's default.
        """
        tokens = self._tokens
        if len(tokens) < len(contents):
            self.draw_tokens(len(contents))
        batch, queue_id, default_s = self.batch, queue.queue_id, queue.settings.default_ttl_s
        wall_ms, steady_ms = self.now
        seq = self.next_number
        bodies, total = batch.bodies, 0
        made: list[Message] = []
        for body, given_s in zip(contents, ttls, strict=True):
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
                    seq, tokens.pop(), queue_id, seq, 0, kept_s, deadline_ms, wall_ms, None, None,
                    0, 0, size, crc, publisher, None,
                )
            )  # fmt: skip
            bodies += (seq, body)
            total += size
            seq += 1
        self.next_number = seq
        batch.born += made
        batch.born_bytes += total
        row = queue.row
        row.live_count += len(made)
        row.live_bytes += total
        batch.queue_rows[queue_id] = row
        queue.totals.published += len(made)
        return made

    def join(self, queue: Queue, made: Sequence[Message], contents: Sequence[bytes]) -> None:
        """Put new messages into the window of their queue, as many as it has room for."""
        window = queue.window
        if window is None:
            return
        room = self.body_room(window)
        for message, body in zip(made, contents, strict=True):
            if message.size <= room:
                message.body = body
                room -= message.size
        known = self.known
        joined = window.join(made)  # not within the slice: mypyc would call it twice
        for message in made[:joined]:
            known[message.seq] = message
        self.hungry[queue.queue_id] = queue

    def body_room(self, window: Window) -> int:
        """Tell how many bytes of bodies a window may keep in memory besides those it has."""
        limits = self.limits
        room = min(
            limits.window_bytes - window.body_bytes,
            limits.bodies_bytes - self.bodies.total_bytes,
        )
        return max(0, room)

    # -- dispatched

    def dispatch(self, messages: Sequence[Message], consumers: Sequence[Consumer]) -> None:
        """Give ready messages, taken from their window, in turns to consumers with credit for them.

        All of one queue; the first message goes to the first consumer.
        """
        self.batch.dispatched += messages
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

    def acknowledge_held(self, consumer: Consumer, message_ids: Iterable[bytes]) -> int:
        """Settle as acked what a consumer holds; return how many it was, up to one it does not."""
        queue, held, known = consumer.queue, consumer.held, self.known
        wall_ms = self.batch.wall_ms
        total = 0
        seqs: list[int] = []
        if (hold := queue.hold) is None:
            hold = queue.hold = [0] * BUCKETS
        for message_id in message_ids:
            message = held.pop(message_id, None)
            if message is None:
                break
            message.holder = None
            seq = message.seq
            known.pop(seq, None)
            seqs.append(seq)
            total += message.size
            ms = wall_ms - (message.last_dispatched_at or wall_ms)
            hold[NEAR[ms] if 0 <= ms < NEAR_MS else bucket(ms)] += 1
        if not seqs:
            return 0
        count = len(seqs)
        consumer.held_bytes -= total
        self.held -= count
        self.held_bytes -= total
        queue.held -= count
        queue.held_bytes -= total
        if not consumer.in_turn:
            consumer.in_turn = True
            queue.turns.append(consumer)
        self.hungry[queue.queue_id] = queue
        self.count_acked(queue, seqs, total)
        return count

    def count_acked(self, queue: Queue, seqs: list[int], size: int) -> None:
        """Record messages of a queue, of ``size`` bytes together, as settled: acked."""
        batch, row = self.batch, queue.row
        settled = batch.settled.get(ACKED_KEY)
        if settled is None:
            batch.settled[ACKED_KEY] = seqs
        else:
            settled += seqs
        row.live_count -= len(seqs)
        row.live_bytes -= size
        batch.queue_rows[queue.queue_id] = row
        queue.totals.acked += len(seqs)
        if queue.parked:
            self.unpark(queue)
