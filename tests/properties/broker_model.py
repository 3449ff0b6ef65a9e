"""A naive broker: lists that are searched in full, and follow each committed turn.

It is told the commands that were done, in order, and what the core reports as done by itself:
expired, forwarded, purged, redriven.  Of these it checks that they were right to do, and at rest
that none was left out.  What it then holds must be on disk, to the last row.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from phpmq_lite.broker.queue import effective_settings
from phpmq_lite.errors import KEY_CONFLICT
from phpmq_lite.model import QueueRow, Receipt, State
from phpmq_lite.queue_settings import QueueSettings
from tests.support.core_and_store import BatchSnapshot, Client, Command, Cycle, OperatorCommand

HUNDRED_YEARS_S = 100 * 365 * 24 * 60 * 60


@dataclass(eq=False)
class Copy:
    """The model's idea of one message that is alive."""

    seq: int
    token: int
    queue: str
    position: int
    body: bytes
    deadline_ms: int | None
    publisher: int | None
    source: tuple[int, str, str] | None = None  # seq, queue, reason
    holder: Client | None = None
    held_since_ms: int = 0
    held_number: int = 0  # of all dispatches
    deliveries: int = 0
    charged: int = 0
    is_damaged: bool = False  # its body, on disk
    dying: str | None = None  # the reason: it cannot be dispatched, but its row still exists
    is_placed: bool = False  # by an operator or expiry, since its last dispatch: may have another

    @property
    def message_id(self) -> bytes:
        return b"%016x%016x" % (self.seq, self.token)

    @property
    def is_ready(self) -> bool:
        return self.holder is None and self.dying is None

    def is_due(self, now_ms: int) -> bool:
        return self.is_ready and self.deadline_ms is not None and self.deadline_ms <= now_ms


@dataclass(eq=False)
class Sweep:
    question: OperatorCommand
    queue: str
    done: int = 0
    is_untouched: set[Copy] = field(default_factory=set)  # since it began


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
    dispatches: int = 0

    # -- looking

    def settings(self, queue: str) -> QueueSettings:
        return effective_settings(QueueRow(0, queue, 0, self.own.get(queue, {})), self.defaults)

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

    def held(self, client: Client, queue: str) -> list[Copy]:
        """Return the messages of a queue that a client holds, in order of dispatch."""
        mine = [m for m in self.alive.values() if m.queue == queue and m.holder is client]
        return sorted(mine, key=lambda m: m.held_number)

    # -- a turn, in the order in which the core does it

    def take(self, turn: Cycle) -> None:
        self.now_ms = turn.now.steady_ms
        self.queue_names = dict(self.rows("SELECT queue_id, name FROM queue"))
        self.acts.follow(turn)
        self._spontaneous(turn.begun)
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
        self._spontaneous(turn.finished)
        self._dispatch(turn)
        names = self.rows("SELECT name FROM queue WHERE settings <> '{\"removed\": true}'")
        self.present = {name for (name,) in names}
        self.number = max(self.number, *(n for (n,) in self.rows("SELECT next_number FROM line")))

    def restart(self) -> None:
        """Forget state in memory: no message is held or about to be dead-lettered."""
        for m in self.alive.values():
            m.holder = m.dying = None
        self.credit.clear()
        self.choked.clear()
        self.sweeps.clear()
        self.ignored.clear()
        self.acts.restart()

    # -- transitions without a command

    def _spontaneous(self, look: BatchSnapshot) -> None:
        """Follow expiry, sweeps and burials; each must have been right to do."""
        for seq, (outcome, reason) in look.settled.items():
            m = self.alive.get(seq)
            if m is None:
                continue  # followed already
            if reason == "crc":
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
            m = self.alive.get(seq)
            if m is not None and self.queue_names[queue_id] != m.queue:
                self._forward(m, self.queue_names[queue_id], position)
        for seq in look.dying:
            m = self.alive[seq]
            if m.dying is None and m.holder is None:
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

    def _forward(self, m: Copy, target: str, position: int) -> None:
        self._assert_expires(m, "forward:" + target)
        assert position >= self.number
        m.queue, m.position, m.is_placed = target, position, True
        self._set_ttl(m, self.settings(target).default_ttl_s)
        self.events["forward"] += 1

    def _sweep(self, m: Copy, reason: str) -> None:
        verb = {"purge": "purge", "redriven": "redrive"}[reason]
        asked = [
            s for s in self.sweeps if s.queue == m.queue and s.question.verb == verb
            and m.position < s.question.number
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
        again = self._learn(int(detail[:16], 16))
        assert again.body == m.body
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
            timeout_ms = self.settings(m.queue).ack_timeout_s * 1_000
            if m.holder is not None and timeout_ms and m.held_since_ms + timeout_ms <= self.now_ms:
                self._give_back(m, is_charged=True)

    # -- commands

    def _do(self, command: Command, receipts: Iterator[Receipt]) -> None:
        client, arguments = command.client, command.arguments
        match command.verb:
            case "publish":
                self._publish(command, receipts)
            case "consume":
                self._consume(client, *arguments)
            case "choke":
                (self.choked.add if arguments[0] else self.choked.discard)(client)
            case "disconnect":
                self._disconnect(client)
            case verb:
                m = self._find(client, *arguments[:2])
                if m is not None:
                    getattr(self, f"_{verb}")(m, command)

    def _publish(self, command: Command, receipts: Iterator[Receipt]) -> None:
        client = command.client
        queue, body, ttl_s, key = command.arguments
        if key is not None:
            receipt = next(receipts)
            assert (receipt.queue, receipt.keys) == (queue, (key,))
            added_ms = self.keys.get((queue, key))
            if added_ms is not None and self.now_ms - added_ms < self.window_ms:
                is_same = body == self.keyed[queue, key][0]
                assert receipt.reason == (None if is_same else KEY_CONFLICT)
                return
            if receipt.reason is not None:
                assert self.refuses(queue, len(self.of_queue(queue)))
                return
            self.keys[queue, key] = self.now_ms
            self.ids.pop((queue, key), None)
            self.keyed[queue, key] = [body]
        alive = [m for m in self.of_queue(queue) if m.dying is None]
        assert not self.refuses(queue, len(alive))
        [(token,)] = self.rows(
            "SELECT token FROM message WHERE seq = ?1 UNION "
            "SELECT token FROM history WHERE seq = ?1", command.number,
        )  # fmt: skip
        self.alive[command.number] = Copy(
            command.number, token, queue, command.number, body, self._deadline(queue, ttl_s),
            client.connection.number,
        )  # fmt: skip

    def refuses(self, queue: str, count: int) -> bool:
        settings = self.settings(queue)
        is_full = bool(settings.max_messages) and count >= settings.max_messages
        return settings.publishing_paused or is_full

    def _consume(self, client: Client, queue: str, count: int) -> None:
        if queue in self.credit[client]:
            for m in self.held(client, queue):
                self._give_back(m, is_charged=False, is_event=False)
            del self.credit[client][queue]
        if count:
            self.credit[client][queue] = count

    def _disconnect(self, client: Client) -> None:
        firsts = [held[0] for queue in self.credit[client] if (held := self.held(client, queue))]
        oldest = min(firsts, key=lambda m: m.held_since_ms, default=None)
        for m in list(self.alive.values()):
            if m.holder is client:
                self._give_back(m, is_charged=m is oldest)
        del self.credit[client]
        self.choked.discard(client)

    def _find(self, client: Client, queue: str, message_id: bytes) -> Copy | None:
        """Return the message if a client may act on it; otherwise count the reason."""
        m = self.alive.get(int(message_id[:16], 16))
        if m is None or m.dying is not None:
            reason = "settled"
        elif m.message_id != message_id:
            reason = "unknown"
        elif m.queue != queue:
            reason = "wrong_queue"
        elif m.holder not in (None, client):
            reason = "foreign"
        else:
            return m
        self.ignored[reason] += 1
        return None

    def _acknowledge(self, m: Copy, _command: Command) -> None:
        self._settle(m, State.ACKED, None)

    def _requeue(self, m: Copy, command: Command) -> None:
        was_held = m.holder is not None
        m.holder = None
        self.events["requeue"] += 1
        m.charged += was_held
        if self._is_used_up(m):
            m.dying = "max_deliveries"
            return
        m.position = command.number
        for sweep in self.sweeps:
            sweep.is_untouched.discard(m)
        self._set_ttl(m, command.arguments[2])

    def _dead_letter(self, m: Copy, _command: Command) -> None:
        m.holder, m.dying = None, "client"

    def _ask(self, question: OperatorCommand) -> None:
        queue, *arguments = question.arguments
        match question.verb:
            case "purge" | "redrive":
                self.sweeps.append(Sweep(question, queue, is_untouched=set(self.ready(queue))))
            case "configure":
                self.ever_changed.add(queue)
                own = self.own.get(queue, {}) | arguments[0]
                self.own[queue] = {name: v for name, v in own.items() if v is not None}
            case "pause":
                self.ever_changed.add(queue)
                side, is_paused = arguments
                self.own[queue] = self.own.get(queue, {}) | {f"{side}_paused": is_paused}

    # -- turns of a life

    def _deadline(self, queue: str, ttl_s: int | None) -> int | None:
        if ttl_s is None:
            ttl_s = self.settings(queue).default_ttl_s
        return self.now_ms + min(ttl_s, HUNDRED_YEARS_S) * 1_000 if ttl_s else None

    def _set_ttl(self, m: Copy, ttl_s: int) -> None:
        m.deadline_ms = self._deadline(m.queue, ttl_s)

    def _is_used_up(self, m: Copy) -> bool:
        return 0 < self.settings(m.queue).max_deliveries <= m.charged

    def _give_back(self, m: Copy, *, is_charged: bool, is_event: bool = True) -> None:
        m.holder = None
        self.events["return"] += is_event
        m.charged += is_charged
        if self._is_used_up(m):
            m.dying = "max_deliveries"

    def _take_back(self, seq: int) -> None:
        m = self.alive.get(seq)
        if m is not None and m.holder is not None:
            m.holder = None
            m.deliveries -= 1
            if self._is_used_up(m):
                m.dying = "max_deliveries"

    def _settle(self, m: Copy, outcome: State, reason: str | None) -> None:
        del self.alive[m.seq]
        assert m.seq not in self.history
        self.acts.settled[m.seq] = m
        self.history[m.seq] = (m.queue, m.position, outcome, reason, m.deliveries, m.charged)

    def _bury(self, m: Copy) -> None:
        assert m.dying is not None
        self._settle(m, State.DEAD, m.dying)
        if m.queue.endswith(".dlq"):
            return
        [(seq,)] = self.rows("SELECT seq FROM message WHERE source_seq = ?", m.seq)
        record = self._learn(seq)
        assert (record.queue, record.body) == (m.queue.removesuffix(".retry") + ".dlq", m.body)
        assert (record.deadline_ms, record.publisher) == (None, m.publisher)
        assert record.source == (m.seq, m.queue, m.dying)
        self.events["dead_letter"] += 1

    def _learn(self, seq: int, *, is_restored: bool = False) -> Copy:
        """Read a message that the core created: a record, a redriven or a restored message."""
        [(token, queue_id, position, deadline_ms, publisher, *source, body)] = self.rows(
            "SELECT token, queue_id, position, deadline_ms, publisher, source_seq,"
            " source_queue_id, source_reason, content FROM message JOIN body USING (seq)"
            " WHERE seq = ?", seq,
        )  # fmt: skip
        assert seq not in self.alive
        assert seq >= self.number
        assert is_restored or position == seq
        of = None if source[0] is None else (source[0], self.queue_names[source[1]], source[2])
        m = Copy(seq, token, self.queue_names[queue_id], position, body, deadline_ms, publisher, of)
        self.alive[seq] = m
        return m

    # -- dispatches

    def _dispatch(self, turn: Cycle) -> None:
        """Check that each goes to a consumer with free credit and is the first of its queue."""
        clients = {client.connection.number: client for client in self.credit}
        got: dict[Client, list[int]] = {}
        for message in turn.batch.dispatched:
            m = self.alive[message.seq]
            client = clients[message.consumer or 0]
            assert m is self.ready(m.queue)[0], "not its turn"
            assert not m.is_due(self.now_ms), "past its deadline"
            assert m.is_placed or not self._is_used_up(m), "delivered too often"
            assert message.body == m.body
            assert message.deadline_ms == m.deadline_ms
            assert not self.settings(m.queue).delivery_paused
            assert client not in self.choked
            assert len(self.held(client, m.queue)) < self.credit[client][m.queue]
            m.holder, m.held_since_ms = client, self.now_ms
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

    # -- at rest

    def _should_go(self, m: Copy, question: OperatorCommand) -> bool:
        """Return whether a finished sweep should have taken the untouched messages."""
        if m.queue != question.arguments[0] or question.verb == "purge":
            return bool(m.queue == question.arguments[0])
        options = question.options
        origin = options["target"] or (m.source and m.source[1].removesuffix(".retry"))
        if origin in self.ever_removed | self.ever_changed:
            return False  # perhaps it took nothing then
        if origin is not None:
            settings = self.settings(origin)
            if settings.publishing_paused or settings.max_messages:
                return False
        return options["limit"] is None and not m.is_damaged and origin not in (None, m.queue)

    def left_undone(self) -> Iterator[str]:
        """Yield a sentence for each overdue transition."""
        for m in self.alive.values():
            timeout_ms = self.settings(m.queue).ack_timeout_s * 1_000
            if m.is_due(self.now_ms):
                yield f"{m} has not expired"
            if m.dying is not None:
                yield f"{m} is still dying"
            if m.holder is not None and 0 < timeout_ms <= self.now_ms - m.held_since_ms:
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
