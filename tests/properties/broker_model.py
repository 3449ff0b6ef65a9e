"""A naive broker: lists that are searched in full, and follow each committed turn.

It is told the commands that were done, in order, and what the core reports as done by itself:
expired, forwarded, due, purged, redriven.  Of these it checks that they were right to do, and at
rest that none was left out.  What it then holds must be on disk, to the last row.
"""

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from phpmq_lite.broker.operator.publishing import NewMessage
from phpmq_lite.broker.queue import effective_settings
from phpmq_lite.broker.retries import RetryRequest
from phpmq_lite.errors import KEY_CONFLICT
from phpmq_lite.frame_options import PublishOptions
from phpmq_lite.model import (
    ClockReading,
    QueueRow,
    Receipt,
    State,
    number_of,
    position_of,
)
from phpmq_lite.queue_settings import QueueSettings
from tests.properties.broker_copies import Bucket, Copy, Sweep, Team
from tests.support.core_and_store import BatchSnapshot, Client, Command, Cycle, OperatorCommand

HUNDRED_YEARS_S = 100 * 365 * 24 * 60 * 60
DUE_AT_ONCE = 2  # of one kind in a batch: the broker under test has this bound

NEVER = ClockReading(0, 0)


@dataclass
class Model:
    """All state of a broker.  ``learn`` reads rows of what the core numbered by itself."""

    defaults: QueueSettings
    rows: Any  # reads the file: sql, parameters -> rows
    queue_names: dict[int, str] = field(default_factory=dict)
    own: dict[str, dict[str, Any]] = field(default_factory=dict)
    alive: dict[int, Copy] = field(default_factory=dict)
    history: dict[int, tuple[Any, ...]] = field(default_factory=dict)
    events: Counter[str] = field(default_factory=Counter)
    keys: dict[tuple[str, bytes], int] = field(default_factory=dict)  # added, steady ms
    ids: dict[tuple[str, bytes], list[str]] = field(default_factory=dict)  # stored under a key
    keyed: dict[tuple[str, bytes], list[bytes]] = field(default_factory=dict)  # their bodies
    seqs: dict[tuple[str, bytes], int] = field(default_factory=dict)  # their first messages
    ever_removed: set[str] = field(default_factory=set)  # queues, since the last rest
    ever_changed: set[str] = field(default_factory=set)  # in their settings, the same
    present: set[str] = field(default_factory=set)  # queues that were there before this turn
    acts: Any = None  # broker_acts.Acts
    credit: dict[Client, dict[str, int]] = field(default_factory=dict)
    choked: set[Client] = field(default_factory=set)
    sweeps: list[Sweep] = field(default_factory=list)
    ignored: Counter[str] = field(default_factory=Counter)
    window_ms: int = 0  # of the keys
    number: int = 1  # next of the line, after the last turn
    now_ms: int = 0
    now: ClockReading = NEVER
    before: ClockReading = NEVER  # the time of the turn before
    max_hold_ms: int = 0
    is_doubtful: bool = False  # the wall clock: dates wait
    has_doubts: bool = False  # the same when this turn began
    had_doubts: bool = False  # and when the turn before began
    dispatches: int = 0
    turns: int = 0
    buckets: dict[str, Bucket] = field(default_factory=dict)  # by queue
    keys_before: set[tuple[str, str]] = field(default_factory=set)  # unique ones, before this turn
    forwarded: set[Copy] = field(default_factory=set)  # after the commands of this turn

    # -- looking

    def settings(self, queue: str) -> QueueSettings:
        return effective_settings(QueueRow(0, queue, 0, self.own.get(queue, {})), self.defaults)

    def _stored(self, column: str, seq: int) -> list[tuple[Any, ...]]:
        selects = (f"SELECT {column} FROM {t} WHERE seq = ?1" for t in ("message", "history"))
        return list(self.rows(" UNION ALL ".join(selects), seq))

    def queue_id(self, name: str) -> int:
        return next(number for number, known in self.queue_names.items() if known == name)

    def is_gone(self, queue: str) -> bool:
        """Return whether a queue does not exist, or no longer does."""
        rows = self.rows("SELECT settings FROM queue WHERE name = ?", queue)
        return rows in ([], [('{"removed": true}',)])

    def of_queue(self, queue: str) -> list[Copy]:
        return sorted((m for m in self.alive.values() if m.queue == queue),
                      key=lambda m: m.position)  # fmt: skip

    def ready(self, queue: str) -> list[Copy]:
        return [m for m in self.of_queue(queue) if m.is_ready]

    def team(self, m: Copy) -> Team | None:
        """Return the group of which a message is, if its queue has groups; a record has none."""
        has_groups = bool(self.settings(m.queue).group_by) and m.source is None
        return (m.queue, m.group) if has_groups and m.group is not None else None

    def team_of(self, m: Copy) -> list[Copy]:
        """Return the other live messages of its group, in order."""
        team = self.team(m)
        return [] if team is None else [
            other for other in self.of_queue(m.queue) if other is not m and self.team(other) == team
        ]  # fmt: skip

    def may_be_next(self, m: Copy) -> bool:
        """Return whether no other message of its group keeps a ready one from being dispatched."""
        others = self.team_of(m)
        return m.is_head or not any(
            other.is_head or (other.is_ready and other.position < m.position) for other in others
        )

    def next(self, queue: str) -> Copy | None:
        return next((m for m in self.ready(queue) if self.may_be_next(m)), None)

    def room(self, queue: str) -> float:
        """Return how many messages of a queue the limits allow to be dispatched."""
        most = self.settings(queue).max_in_flight
        held = sum(m.holder is not None for m in self.of_queue(queue))
        room = most - held if most else 1_000
        return min(room, self.buckets[queue].tokens) if queue in self.buckets else room

    def with_key(self, queue: str, key: str | None) -> Copy | None:
        with_key = (m for m in self.alive.values() if m.key_place == (queue, key))
        return None if key is None else next(with_key, None)

    def held(self, client: Client, queue: str) -> list[Copy]:
        """Return the messages of a queue that a client holds, in order of dispatch."""
        mine = [m for m in self.alive.values() if m.queue == queue and m.holder is client]
        return sorted(mine, key=lambda m: m.held_number)

    # -- a turn, in the order in which the core does it

    def take(self, turn: Cycle) -> None:
        self.turns += 1
        self.before, self.now, self.now_ms = self.now, turn.now, turn.now.steady_ms
        self.had_doubts, self.has_doubts = self.has_doubts, self.is_doubtful
        self.keys_before = {m.key_place for m in self.alive.values() if m.key_place is not None}
        self._fill_buckets()
        self.queue_names = dict(self.rows("SELECT queue_id, name FROM queue"))
        self.acts.follow(turn)
        self._become_ready(turn.begun)
        self._spontaneous(turn.begun)
        self._finish_retries(turn.begun)
        self.acts.follow_publishes(turn)
        for client in turn.opened:
            self.credit[client] = {}
        for seq in turn.taken_back:
            self._take_back(seq)
        receipts = {c.peer: iter(outbox.receipts) for c, outbox in turn.batch.sends.items()}
        for item in turn.done:
            if isinstance(item, OperatorCommand):
                if self.acts.ask(item, turn):
                    self._ask(item)
            else:
                self._do(item, receipts.get(item.client, iter(())))
        assert [r for given in receipts.values() for r in given] == []
        self._time_out()
        self.forwarded.clear()
        self._spontaneous(turn.finished)
        self._dispatch(turn)
        names = self.rows("SELECT name FROM queue WHERE settings <> '{\"removed\": true}'")
        self.present = {name for (name,) in names}
        self.number = max(self.number, *(n for (n,) in self.rows("SELECT next_number FROM line")))

    def restart(self) -> None:
        """Forget state in memory: no message is held or about to be dead-lettered."""
        for m in self.alive.values():
            m.holder = m.dying = m.end_ms = m.late = m.retry = None
        self.buckets.clear()
        self.credit.clear()
        self.choked.clear()
        self.sweeps.clear()
        self.ignored.clear()
        self.acts.restart()

    def _fill_buckets(self) -> None:
        for queue in {*self.own, *self.buckets}:
            settings = self.settings(queue)
            burst = settings.max_burst or max(1, int(settings.max_rate))
            bucket = self.buckets.get(queue)
            if not settings.max_rate:
                self.buckets.pop(queue, None)
            elif bucket is None or (bucket.rate, bucket.burst) != (settings.max_rate, burst):
                self.buckets[queue] = Bucket(settings.max_rate, burst, self.now_ms)
            else:
                bucket.fill(self.now_ms)

    # -- transitions without a command

    def late_by(self, m: Copy, now: ClockReading, *, is_doubtful: bool = False) -> int:
        """Return for how many ms a scheduled message has been due; negative: it is not."""
        if m.deliver_at is None:
            return now.steady_ms - (m.due_ms or 0)
        return -1 if is_doubtful else now.wall_ms - m.deliver_at

    def _become_ready(self, look: BatchSnapshot) -> None:
        """Follow those whose time has come: the latest first, then in order of arrival."""
        moved = [self.alive[seq] for seq in look.moved if seq in look.ready and seq in self.alive]
        done = [m for m in moved if m.is_scheduled]
        if not done:
            return
        due = [
            m for m in self.alive.values() if m.is_scheduled
            and self.late_by(m, self.before, is_doubtful=self.had_doubts) >= 0
        ]  # fmt: skip
        due.sort(key=lambda m: (-self.late_by(m, self.before), m.seq))
        assert done == [m for m in due[:DUE_AT_ONCE] if m.dying is None]
        numbers = [look.moved[m.seq][1] - position_of(0, m.priority) for m in done]
        assert numbers == sorted(numbers)
        assert numbers[0] >= self.number
        for m in done:
            self._end_schedule(m)
            self._move(m, look.moved[m.seq][1])
            m.is_placed = True

    def _spontaneous(self, look: BatchSnapshot) -> None:
        """Follow expiry, sweeps and burials; each must have been right to do."""
        for seq, (outcome, reason) in look.settled.items():
            m = self.alive.get(seq)
            if m is None or reason == "replaced":
                continue  # followed already, or by ``Acts.follow_publishes``
            if reason == "crc":
                if seq in look.moved:  # its body came just after it expired
                    self._forward_if_moved(m, *look.moved[seq])
                assert m.is_damaged
                assert m.is_ready or m.dying is not None
                self._settle(m, State.DEAD, "crc")
            elif m.dying is not None:
                assert outcome is State.DEAD
                if reason != m.dying:  # used up and overdue at once
                    assert {reason, m.dying} == {"max_deliveries", "expired"}
                    m.dying = None
                    self._assert_may_die(m, str(reason))
                    m.dying = reason
                self._bury(m)
            elif outcome is State.EXPIRED and reason is not None:
                assert reason == "unique_key_taken"
                assert m.is_due(self.now_ms)
                target = self.settings(m.queue).on_expire.removeprefix("forward:")
                taken = {other.key_place for other in self.alive.values()} | self.keys_before
                assert (target, m.unique_key) in taken
                assert m.key_place is not None
                self._settle(m, State.EXPIRED, reason)
            elif outcome is State.EXPIRED:
                self._assert_expires(m, "history", "forward:" + m.queue)
                self._settle(m, State.EXPIRED, None)
            elif outcome is State.DEAD and reason in ("expired", "max_deliveries"):
                self._assert_may_die(m, reason)
                m.dying = reason
                self._bury(m)
            elif outcome is State.DELETED:
                self._sweep(m, str(reason))
        for seq, (queue_id, position) in look.moved.items():
            if seq in self.alive:
                self._forward_if_moved(self.alive[seq], queue_id, position)
        for seq in look.dying:
            m = self.alive[seq]
            if m.dying is None and m.is_ready:
                reason = "max_deliveries" if self._is_used_up(m) else "expired"
                self._assert_may_die(m, reason)
                m.dying = reason

    def _assert_may_die(self, m: Copy, reason: str) -> None:
        if reason == "expired":
            self._assert_expires(m, "dead_letter")
        else:
            assert self._is_used_up(m)

    def _assert_expires(self, m: Copy, *policies: str) -> None:
        assert m.is_due(self.now_ms), f"{m} is not due"
        assert self.settings(m.queue).on_expire in policies

    def _forward_if_moved(self, m: Copy, queue_id: int, position: int) -> None:
        target = self.queue_names[queue_id]
        if not m.is_ready or target == m.queue:
            return
        self._assert_expires(m, "forward:" + target)
        assert number_of(position) >= self.number
        assert self.with_key(target, m.unique_key if m.key_place else None) is None
        self.change_queue(m, target)
        self._move(m, position)
        m.is_placed = True
        self.forwarded.add(m)
        self._set_ttl(m, self.settings(target).default_ttl_s)
        self.events["forward"] += 1

    def _sweep(self, m: Copy, reason: str) -> None:
        verb = {"purge": "purge", "redriven": "redrive"}[reason]
        asked = [
            s for s in self.sweeps if s.queue == m.queue and s.question.verb == verb
            and number_of(m.position) < s.question.number
        ]  # fmt: skip
        sweeps = [
            s for s in asked
            if m.holder is None or (verb == "purge" and s.question.options["with_dispatched"])
        ]  # fmt: skip
        assert sweeps, f"no {verb} of {m} was requested"
        sweeps[0].done += 1  # several: their sum counts
        if verb == "redrive":
            self._redrive(m, sweeps)
        self._settle(m, State.DELETED, reason)

    def _redrive(self, m: Copy, sweeps: list[Sweep]) -> None:
        """Learn what the record became from its event."""
        [(detail,)] = self.rows(
            "SELECT detail FROM event WHERE seq = ? AND kind = 'redrive'"
            " ORDER BY event_id DESC LIMIT 1", m.seq,
        )  # fmt: skip
        self.events["redrive"] += 2
        again = self._learn(int(detail[:16], 16), priority=m.kept_priority)
        self.check_redriven(m, again)
        assert again.body == self.redriven_body(m)
        assert again.source is None
        asked = [(s.question.options["target"], s.question.options["ttl_s"]) for s in sweeps]
        ends = [
            (target or (m.source and m.source[1].removesuffix(".retry")), ttl_s)
            for target, ttl_s in asked
        ]
        assert again.queue in [queue for queue, _ in ends]
        expected = {self._deadline(again.queue, ttl_s) for _, ttl_s in ends}
        assert again.deadline_ms in expected

    def _time_out(self) -> None:
        for m in list(self.alive.values()):
            if self.is_overdue(m):
                self._give_back(m, is_charged=True)

    def is_overdue(self, m: Copy) -> bool:
        timeout_ms = self.settings(m.queue).ack_timeout_s * 1_000
        end_ms = m.held_since_ms + timeout_ms if timeout_ms else None
        end_ms = end_ms if m.end_ms is None else m.end_ms
        return m.holder is not None and end_ms is not None and end_ms <= self.now_ms

    # -- commands

    def _do(self, command: Command, receipts: Iterator[Receipt]) -> None:
        client, arguments = command.client, command.arguments
        match command.verb:
            case "publish":
                queue, body, ttl_s, key = arguments
                self._publish(command, queue, body, key, PublishOptions(ttl_s), receipts)
            case "publish_with":
                queue, body, key, options = arguments
                self._publish(command, queue, body, key, options, receipts)
            case "consume":
                self._consume(client, *arguments)
            case "consume_with":
                self._consume_with(client, *arguments)
            case "choke":
                (self.choked.add if arguments[0] else self.choked.discard)(client)
            case "disconnect":
                self._disconnect(client)
            case verb:
                m = self._find(command, *arguments[:2])
                if m is not None:
                    getattr(self, f"_{verb}")(m, command)

    def delays(self, queue: str, ttl_s: float | None) -> bool:
        """Return whether a publish to a queue means that it is delivered later in another one."""
        is_own = "on_expire" in self.own.get(queue, {})
        return bool(ttl_s) and queue.endswith(".retry") and not is_own

    def _publish(
        self,
        command: Command,
        queue: str,
        body: bytes,
        key: bytes | None,
        options: PublishOptions,
        receipts: Iterator[Receipt],
    ) -> None:
        client = command.client
        if key is not None:
            receipt = next(receipts)
            assert (receipt.queue, receipt.keys) == (queue, (key,))
            added_ms = self.keys.get((queue, key))
            if added_ms is not None and self.now_ms - added_ms < self.window_ms:
                if body == self.keyed[queue, key][0] or receipt.reason is not None:
                    is_same = body == self.keyed[queue, key][0]
                    assert receipt.reason == (None if is_same else KEY_CONFLICT)
                else:
                    assert self.may_be_rewritten(queue, key)
                return
            if receipt.reason not in (None, "unique_key_held"):
                assert self.refuses(queue, len(self.of_queue(queue)))
                return
        is_delayed = self.delays(queue, options.ttl_s)
        target = queue.removesuffix(".retry") if is_delayed else queue
        old = self.with_key(target, options.unique_key)
        is_held = old is not None and (old.holder is not None or old.dying is not None)
        is_refused = old is not None and options.replaces and is_held
        if key is not None:
            assert (receipt.reason is not None) == is_refused
        if old is not None and (not options.replaces or is_refused):
            return
        if key is not None:
            self.keys[queue, key] = self.now_ms
            self.ids.pop((queue, key), None)
            self.keyed[queue, key] = [body]
            self.seqs[queue, key] = command.number
        alive = [m for m in self.of_queue(queue) if m.dying is None]
        assert not self.refuses(queue, len(alive))
        if old is not None:
            self._settle(old, State.DELETED, "replaced")
        self.store(command.number, queue, body, options, client.connection.number)
        if is_delayed:
            self._take_over(client, key, self.alive[command.number])

    def _take_over(self, client: Client, key: bytes | None, copy: Copy) -> None:
        """Set the options of a worker's copy to those of the message that the worker holds."""
        message_id, _, count = (key or b"").partition(b":")
        for m in self.alive.values():
            is_its = m.message_id == message_id and count.isdigit() and m.holder is client
            if is_its and m.queue == copy.queue:
                copy.position = position_of(copy.seq, m.priority)
                copy.group = self.group_in(copy.queue, copy.body, m.group)
                if m.key_place is not None:
                    copy.unique_key, m.unique_key = m.unique_key, None

    def home(self, queue: str, messages: Sequence[NewMessage]) -> str:
        """Return the queue in which messages that are published to a queue are delivered."""
        is_delayed = all(self.delays(queue, message.ttl_s) for message in messages)
        return queue.removesuffix(".retry") if is_delayed else queue

    def inspects(self, queue: str) -> bool:
        return self.settings(queue).payload_policy != "opaque"

    def redriven_body(self, record: Copy) -> bytes:
        """Return what a record becomes: an envelope without the block, and with 0 attempts."""
        if record.source is None or not self.inspects(record.source[1]):
            return record.body
        envelope = json.loads(record.body) | {"attempts": 0}
        del envelope["dead_letter"]
        return json.dumps(envelope, separators=(",", ":")).encode()

    def may_be_rewritten(self, queue: str, key: bytes) -> bool:
        """Return whether a retry may have changed the content that was published under a key."""
        seq = self.seqs[queue, key]
        m = self.alive.get(seq) or self.acts.settled[seq]
        return bool(m.retries or m.ready_at or m.is_scheduled)

    def store(
        self, seq: int, queue: str, body: bytes, options: PublishOptions, publisher: int | None
    ) -> Copy:
        """Store a new message with the token that the core gave it."""
        [(token,)] = self._stored("token", seq)
        delay_s, ttl_s = options.delay_s, options.ttl_s
        if self.delays(queue, ttl_s):
            queue, delay_s, ttl_s = queue.removesuffix(".retry"), ttl_s or 0, None
            options = PublishOptions(
                priority=options.priority, group=options.group, unique_key=options.unique_key
            )
        position = position_of(seq, options.priority)
        deadline_ms = self._deadline(queue, ttl_s)
        m = self.alive[seq] = Copy(seq, token, queue, position, body, deadline_ms, publisher)
        m.group, m.unique_key = self.group_in(queue, body, options.group), options.unique_key
        m.moved_at = self.turns
        self._schedule_if_future(m, delay_s, options.deliver_at)
        return m

    def group_in(self, queue: str, body: bytes, given: str | None) -> str | None:
        """Return the group that a message has in a queue."""
        group_by = self.settings(queue).group_by
        if not group_by.startswith("/"):
            return given
        try:
            value = json.loads(body)[group_by[1:]]
        except (ValueError, KeyError, TypeError):
            return None
        return str(value)

    def refuses(self, queue: str, count: int) -> bool:
        settings = self.settings(queue)
        is_full = bool(settings.max_messages) and count >= settings.max_messages
        return settings.publishing_paused or is_full

    def _consume(self, client: Client, queue: str, count: int) -> None:
        if queue in self.credit[client]:  # a credit of 0 that keeps what is held is one, too
            for m in self.held(client, queue):
                self._give_back(m, is_charged=False, is_event=False)
            del self.credit[client][queue]
        if count:
            self.credit[client][queue] = count

    def _consume_with(self, client: Client, queue: str, count: int, keeps_held: bool) -> None:
        if keeps_held and (count or queue in self.credit[client]):
            self.credit[client][queue] = count
        elif not keeps_held:
            self._consume(client, queue, count)

    def _disconnect(self, client: Client) -> None:
        firsts = [held[0] for queue in self.credit[client] if (held := self.held(client, queue))]
        oldest = min(firsts, key=lambda m: m.held_since_ms, default=None)
        for m in list(self.alive.values()):
            if m.holder is client:
                self._give_back(m, is_charged=m is oldest)
        del self.credit[client]
        self.choked.discard(client)

    def _find(self, command: Command, queue: str, message_id: bytes) -> Copy | None:
        """Return the message if a client may act on it; otherwise count the reason."""
        m = self.alive.get(int(message_id[:16], 16))
        if m is None or m.dying is not None:
            reason = "settled"
        elif m.message_id != message_id:
            reason = "unknown"
        elif m.queue != queue:
            reason = "wrong_queue"
        elif m.holder not in (None, command.client):
            reason = "foreign"
            if command.verb == "retry" and self.is_repeated(m, command.arguments[2]):
                reason = "repeated"
            elif command.verb in ("acknowledge", "dead_letter", "retry"):
                m.late = command
        else:
            return m
        self.ignored[reason] += 1
        return None

    def _acknowledge(self, m: Copy, _command: Command) -> None:
        self._settle(m, State.ACKED, None)

    def _extend(self, m: Copy, command: Command) -> None:
        if m.holder is None:
            self.ignored["not_held"] += 1
            return
        wanted_ms = self.now_ms + round(command.arguments[2] * 1_000)
        m.end_ms = min(wanted_ms, m.held_since_ms + self.max_hold_ms)

    def _settle_late(self, m: Copy) -> bool:
        """Settle a message whose hold ends as another client has asked; return whether it had."""
        command = m.late
        if command is not None:
            getattr(self, f"_{command.verb}")(m, command)
        if command is not None and command.verb == "retry":
            [(m.position,)] = self._stored("position", m.seq)
        return command is not None

    def is_repeated(self, m: Copy, request: RetryRequest) -> bool:
        named = request.attempt
        return request.is_failed and named is not None and named <= m.failed_attempt

    def _retry(self, m: Copy, command: Command) -> None:
        request: RetryRequest = command.arguments[2]
        if m.is_scheduled:
            self.ignored["scheduled"] += 1
            return
        if self.is_repeated(m, request):
            self.ignored["repeated"] += 1
            return
        was_held = m.holder is not None
        self.let_go(m)
        if request.content is None and request.is_failed and self.inspects(m.queue):
            m.dying, m.retry = "retry", (request, was_held)  # until its envelope is loaded
        else:
            self._store_retry(m, request, position_of(command.number, m.priority), was_held)

    def _finish_retries(self, look: BatchSnapshot) -> None:
        for m in list(self.alive.values()):
            if m.retry is None or m.seq in look.dying:
                continue
            (request, was_held), m.retry, m.dying = m.retry, None, None
            try:
                envelope = json.loads(m.body)
                envelope["attempts"] += 1
                counted = json.dumps(envelope, separators=(",", ":")).encode()
            except ValueError:  # its content was replaced in a queue without envelopes
                counted = m.body
            [(stored,)] = self.rows("SELECT content FROM body WHERE seq = ?", m.seq)
            if not m.is_damaged or stored == counted:
                m.body, m.is_damaged = counted, False
            assert number_of(look.moved[m.seq][1]) >= self.number
            self._store_retry(m, request, look.moved[m.seq][1], was_held)

    def _store_retry(self, m: Copy, request: RetryRequest, position: int, was_held: bool) -> None:
        named = request.attempt
        if request.is_failed:
            coming = 1 + m.charged + m.retries
            if not was_held and m.charged and named is not None and named < coming:
                m.charged -= 1
            m.retries += 1
            m.failed_attempt = max(named or coming, m.failed_attempt)
        self.events["retry"] += 1
        if request.content is not None:
            m.body, m.is_damaged = request.content, False
        is_expired = m.deadline_ms is not None and m.deadline_ms <= self.now_ms
        self._move(m, position)
        m.is_placed = True
        if request.delay_s and not is_expired:
            self._schedule_if_future(m, request.delay_s, None)
        else:
            m.ready_at = self.now.wall_ms

    def _requeue(self, m: Copy, command: Command) -> None:
        if m.is_scheduled:
            self.ignored["scheduled"] += 1
            return
        if self._requeued(m, command):
            self._set_ttl(m, command.arguments[2])

    def _settle_invalidly(self, m: Copy, command: Command) -> None:
        """Return it as a 005 does, but keep its time to live."""
        if m.holder is None:
            self.ignored["invalid"] += 1
        else:
            self._requeued(m, command)

    def _requeued(self, m: Copy, command: Command) -> bool:
        """Move a message to the end of its queue, unless it is used up."""
        was_held = m.holder is not None
        self.let_go(m)
        self.events["requeue"] += 1
        m.charged += was_held
        if self._is_used_up(m):
            m.dying = "max_deliveries"
            return False
        self._move(m, position_of(command.number, m.priority))
        return True

    def _dead_letter(self, m: Copy, _command: Command) -> None:
        self.let_go(m)
        m.dying = "client"

    def _ask(self, question: OperatorCommand) -> None:
        queue, *arguments = question.arguments
        match question.verb:
            case "purge" | "redrive":
                self.sweeps.append(Sweep(question, queue, is_untouched=set(self.ready(queue))))
            case "configure":
                self.ever_changed.add(queue)
                own = self.own.get(queue, {}) | arguments[0]
                if not own.get("group_by"):
                    for m in self.of_queue(queue):
                        m.is_head = False
                self.own[queue] = {name: v for name, v in own.items() if v is not None}
                self._fill_buckets()
            case "decide_clock":
                self._decide_clock(*question.arguments, **question.options)
            case "pause":
                self.ever_changed.add(queue)
                side, is_paused = arguments
                self.own[queue] = self.own.get(queue, {}) | {f"{side}_paused": is_paused}

    def _decide_clock(self, away_ms: int, number: int, *, is_right: bool) -> None:
        self.is_doubtful = False
        for m in self.alive.values():
            if is_right and max(m.seq, number_of(m.position)) < number:
                m.deadline_ms = None if m.deadline_ms is None else m.deadline_ms - away_ms
                m.due_ms = None if m.due_ms is None else m.due_ms - away_ms

    # -- turns of a life

    def let_go(self, m: Copy) -> None:
        m.holder = m.end_ms = m.late = None

    def _move(self, m: Copy, position: int) -> None:
        m.position, m.moved_at = position, self.turns
        for sweep in self.sweeps:
            sweep.is_untouched.discard(m)

    def change_queue(self, m: Copy, target: str) -> None:
        if target != m.queue:
            m.queue, m.is_head = target, False
            if m.source is None:
                former, m.group = m.group, self.group_in(target, m.body, m.group)
                if m.is_damaged:  # perhaps its body was still in memory
                    [(group,)] = self._stored("group_name", m.seq)
                    assert group in (former, m.group, None)
                    m.group = group

    def is_future(self, due_ms: int, deliver_at: int | None) -> bool:
        return due_ms > self.now_ms or (deliver_at is not None and self.is_doubtful)

    def _schedule_if_future(self, m: Copy, delay_s: float, deliver_at: int | None) -> bool:
        due_ms = self.now_ms + round(min(delay_s, HUNDRED_YEARS_S) * 1_000)
        if deliver_at is not None:
            due_ms = self.now_ms + deliver_at - self.now.wall_ms
        if self.is_future(due_ms, deliver_at):
            self.schedule(m, due_ms, deliver_at)
            return True
        return False

    def schedule(self, m: Copy, due_ms: int, deliver_at: int | None) -> None:
        """Schedule a message; what is left of its time to live begins when it is ready."""
        if m.deadline_ms is not None:
            left_ms = m.deadline_ms - (self.now_ms if m.due_ms is None else m.due_ms)
            m.deadline_ms = due_ms + max(0, left_ms)
        m.due_ms, m.deliver_at = due_ms, deliver_at

    def _end_schedule(self, m: Copy) -> None:
        if m.deadline_ms is not None and m.due_ms is not None:
            m.deadline_ms += self.now_ms - m.due_ms
        m.due_ms, m.deliver_at, m.ready_at = None, None, self.now.wall_ms

    def check_redriven(self, record: Copy, again: Copy) -> None:
        """Check that a redriven message has what the dead one had."""
        group = self.group_in(again.queue, again.body, record.group)
        assert (again.group, again.unique_key) == (group, record.unique_key)

    def _deadline(self, queue: str, ttl_s: float | None) -> int | None:
        if ttl_s is None:
            ttl_s = self.settings(queue).default_ttl_s
        return self.now_ms + round(min(ttl_s, HUNDRED_YEARS_S) * 1_000) if ttl_s else None

    def _set_ttl(self, m: Copy, ttl_s: int) -> None:
        m.deadline_ms = self._deadline(m.queue, ttl_s)

    def _is_used_up(self, m: Copy) -> bool:
        return 0 < self.settings(m.queue).max_deliveries <= m.charged

    def _give_back(self, m: Copy, *, is_charged: bool, is_event: bool = True) -> None:
        if self._settle_late(m):
            return
        self.let_go(m)
        self.events["return"] += is_event
        m.charged += is_charged
        if self._is_used_up(m):
            m.dying = "max_deliveries"

    def _take_back(self, seq: int) -> None:
        m = self.alive.get(seq)
        if m is not None and m.holder is not None and not self._settle_late(m):
            self.let_go(m)
            m.deliveries -= 1
            if m.queue in self.buckets:
                bucket = self.buckets[m.queue]
                bucket.tokens = min(bucket.burst, bucket.tokens + 1)
            if m.deliveries == 0 and m.is_head:
                m.is_head, m.moved_at = False, self.turns
            if self._is_used_up(m):
                m.dying = "max_deliveries"

    def _settle(self, m: Copy, outcome: State, reason: str | None) -> None:
        del self.alive[m.seq]
        assert m.seq not in self.history
        self.acts.settled[m.seq] = m
        self.history[m.seq] = (
            m.queue, m.position, outcome, reason, m.deliveries, m.charged, m.ready_at, m.due_ms,
            m.deliver_at, m.retries or None, m.group, m.unique_key,
        )  # fmt: skip

    def _bury(self, m: Copy) -> None:
        assert m.dying is not None
        self._settle(m, State.DEAD, m.dying)
        if m.queue.endswith(".dlq"):
            return
        [(seq,)] = self.rows("SELECT seq FROM message WHERE source_seq = ?", m.seq)
        record = self._learn(seq)
        assert record.queue == m.queue.removesuffix(".retry") + ".dlq"
        if self.inspects(m.queue):
            envelope = json.loads(record.body)
            assert envelope.pop("dead_letter")["message_id"] == m.message_id.decode()
            assert envelope == json.loads(m.body)
        else:
            assert record.body == m.body
        assert (record.deadline_ms, record.publisher) == (None, m.publisher)
        assert record.source == (m.seq, m.queue, m.dying)
        kept = (record.kept_priority, record.group, record.unique_key)
        assert kept == (m.priority, m.group, m.unique_key)
        self.events["dead_letter"] += 1

    def _learn(self, seq: int, *, is_restored: bool = False, priority: int = 128) -> Copy:
        """Read a message that the core created: a record, a redriven or a restored message."""
        columns = (
            "token, queue_id, position, deadline_ms, publisher, ready_at, due_ms, deliver_at,"
            " priority, group_name, unique_key, source_seq, source_queue_id, source_reason, content"
        )
        [(token, queue_id, position, deadline_ms, publisher, *more, body)] = self.rows(
            f"SELECT {columns} FROM message JOIN body USING (seq) WHERE seq = ?1 UNION ALL"
            f" SELECT {columns} FROM history JOIN body USING (seq) WHERE seq = ?1", seq,
        )  # fmt: skip
        *times, kept_priority, group, unique_key, s1, s2, s3 = more
        source = (s1, s2, s3)
        assert seq not in self.alive
        assert seq >= self.number
        assert is_restored or position == position_of(seq, priority)
        of = None if source[0] is None else (source[0], self.queue_names[source[1]], source[2])
        m = Copy(seq, token, self.queue_names[queue_id], position, body, deadline_ms, publisher, of)
        m.ready_at, m.due_ms, m.deliver_at = times
        m.group, m.unique_key, m.moved_at = group, unique_key, self.turns
        m.kept_priority = 128 if kept_priority is None else kept_priority
        self.alive[seq] = m
        return m

    # -- dispatches

    def _dispatch(self, turn: Cycle) -> None:
        """Check that each goes to a consumer with free credit and is the first of its queue."""
        clients = {client.connection.number: client for client in self.credit}
        got: dict[Client, list[int]] = {}
        blocked = {seq for (seq,) in self.rows("SELECT seq FROM message WHERE state = 7")}
        for message in turn.batch.dispatched:
            m = self.alive[message.seq]
            client = clients[message.consumer or 0]
            self._assert_is_next(m, blocked)
            assert self.room(m.queue) >= 1 - 1e-6, "beyond the limits of its queue"
            assert not m.is_due(self.now_ms), "past its deadline"
            assert m.is_placed or not self._is_used_up(m), "delivered too often"
            assert message.body == m.body
            assert message.deadline_ms == m.deadline_ms
            assert not self.settings(m.queue).delivery_paused
            assert client not in self.choked
            assert len(self.held(client, m.queue)) < self.credit[client][m.queue]
            m.holder, m.held_since_ms = client, self.now_ms
            m.is_head = self.team(m) is not None
            if m.queue in self.buckets:
                self.buckets[m.queue].tokens -= 1
            self.dispatches += 1
            m.held_number = self.dispatches
            for sweep in self.sweeps:
                sweep.is_untouched.discard(m)
            m.deliveries += 1
            m.is_placed = False
            got.setdefault(client, []).append(m.seq)
        sends = turn.batch.sends.items()
        assert got == {
            c.peer: [m.seq for m in out.dispatches] for c, out in sends if out.dispatches
        }

    def _assert_is_next(self, m: Copy, blocked: set[int]) -> None:
        """Check the order of the queue, and that of the group.

        A message of a group is only known to be the first one in the next turn.  An urgent one may
        be forwarded just after the dispatch.
        """
        assert m.is_ready
        for other in self.ready(m.queue):
            is_waiting = self.team(other) is not None and (
                other.is_blocked or other.seq in blocked or not self.may_be_next(other)
            )
            is_before = other.position < m.position and other not in self.forwarded
            assert is_waiting or not is_before, "not its turn"
        for other in self.team_of(m):
            assert not other.is_head, "another one of its group is in flight"
            is_before = other.is_ready and other.position < m.position
            is_new = other.moved_at == self.turns
            assert m.is_head or not is_before or is_new, "not its turn in its group"

    # -- at rest

    def _should_go(self, m: Copy, question: OperatorCommand) -> bool:
        """Return whether a finished sweep should have taken the untouched messages."""
        if m.queue != question.arguments[0] or question.verb == "purge":
            return bool(m.queue == question.arguments[0])
        options = question.options
        origin = options["target"] or (m.source and m.source[1].removesuffix(".retry"))
        if origin in self.ever_removed | self.ever_changed or m.unique_key is not None:
            return False  # perhaps it took nothing then
        if origin is not None:
            settings = self.settings(origin)
            if settings.publishing_paused or settings.max_messages:
                return False
        return options["limit"] is None and not m.is_damaged and origin not in (None, m.queue)

    def left_undone(self) -> Iterator[str]:
        """Yield a sentence for each overdue transition."""
        for m in self.alive.values():
            if m.is_due(self.now_ms):
                yield f"{m} has not expired"
            if m.is_scheduled and self.late_by(m, self.now, is_doubtful=self.is_doubtful) >= 0:
                yield f"{m} has not become ready"
            if m.is_blocked and self.team(m) is not None and m.is_ready and self.may_be_next(m):
                yield f"{m} is still blocked"
            if m.is_blocked and self.team(m) is None:
                yield f"{m} is blocked without a group"
            if m.dying is not None:
                yield f"{m} is still dying"
            if self.is_overdue(m):
                yield f"{m} was not given back"
        for sweep in self.sweeps:
            for m in sweep.is_untouched:
                if self.alive.get(m.seq) is m and self._should_go(m, sweep.question):
                    yield f"{m} was forgotten by a {sweep.question.verb}"
        for kind in ("purge", "redrive"):
            sweeps = [sweep for sweep in self.sweeps if sweep.question.verb == kind]
            answers = [sweep.question.answer for sweep in sweeps]
            if None in answers or sum(answers) != sum(sweep.done for sweep in sweeps):
                yield f"{kind} answered {answers}, done {[sweep.done for sweep in sweeps]}"
        self.sweeps.clear()
        self.ever_removed.clear()
        self.ever_changed.clear()
