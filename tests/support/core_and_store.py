"""Drive core and store together, cycle by cycle: a real database, no asyncio, a fake clock.

A cycle is one batch of the loop of ``server/engine.py``: begin, commands, finish, commit, act.
"""

import marshal
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from phpmq_lite.broker import batches, commands
from phpmq_lite.broker.broker import Broker
from phpmq_lite.broker.commands import CommandResult
from phpmq_lite.broker.queue import Connection
from phpmq_lite.broker.retries import RetryRequest
from phpmq_lite.clock import Clock
from phpmq_lite.errors import RefusedError
from phpmq_lite.frame_options import PUBLISH, SETTLE, PublishOptions, check_options
from phpmq_lite.model import (
    AuditEntry,
    Batch,
    ClockReading,
    EnvelopeInspector,
    Limits,
    LoadedRows,
    Message,
    Outbox,
    State,
    ValidatedPublish,
)
from phpmq_lite.protocol.frames import ReceiptFrame
from phpmq_lite.queue_settings import QueueSettings
from phpmq_lite.storage.batch_sql import batch_statements
from tests.support.core_rig import operation
from tests.support.killed_writer import store_and_kill
from tests.support.stores import new_database, read_tables, rows_of

START_MS = 1_700_000_000_000  # steady
CLOCK_STEP_MS = 5_000_000  # between the two scales, so that mixing them up shows
MAX_CYCLES = 300  # of one step; more are an endless loop

Action = Callable[[Broker, Connection], CommandResult]


class FakeClock(Clock):
    """A clock that only ``advance`` moves; its wall clock was set forward once."""

    def __init__(self) -> None:
        super().__init__()
        self.steady_ms = START_MS
        self.step_ms = CLOCK_STEP_MS

    def now(self) -> ClockReading:
        return ClockReading(self.steady_ms + self.step_ms, self.steady_ms)

    def set_wall(self, seconds: float) -> None:
        """Set the wall clock forward, or back."""
        self.step_ms += round(seconds * 1_000)

    def advance(self, seconds: float) -> None:
        self.steady_ms += round(seconds * 1_000)


@dataclass(eq=False)
class Delivery:
    queue: str
    message_id: bytes
    body: bytes
    ttl_s: int  # remaining, as on the wire; 0: never expires

    @property
    def seq(self) -> int:
        return int(self.message_id[:16], 16)


@dataclass(eq=False)
class Client:
    """A connection without a socket: the peer of the core, and what it received."""

    driver: "Driver"
    name: str
    connection: Connection = field(init=False)
    got: list[Delivery] = field(default_factory=list)
    receipts: list[ReceiptFrame] = field(default_factory=list)
    is_open: bool = True
    is_parked: bool = False  # its publish waits for the queue
    is_leaving: bool = False  # commands that would wait are dropped
    is_refused: bool = False  # the core wants it closed

    # -- commands of the next cycle

    def publish(
        self, queue: str, body: bytes, ttl_s: int | None = None, key: bytes | None = None
    ) -> "Command":
        validated: list[ValidatedPublish] = []  # of a large body, as in server/session.py

        def publish(core: Broker, me: Connection) -> CommandResult:
            result = commands.publish(
                core, me, queue, body, ttl_s, key, validated[-1] if validated else None
            )
            if result is CommandResult.VALIDATE:
                commands.validate_in_background(core, queue, body, validated.append)
                return CommandResult.LOAD
            return result

        return self._give("publish", queue, body, ttl_s, key, action=publish)

    def publish_with(
        self, queue: str, body: bytes, key: bytes | None = None, **options: Any
    ) -> "Command":
        """Publish as a 010 does."""
        valid = PublishOptions.of(check_options(options, PUBLISH))

        def publish(core: Broker, me: Connection) -> CommandResult:
            return commands.publish(core, me, queue, body, valid.ttl_s, key, None, valid)

        return self._give("publish_with", queue, body, key, valid, action=publish)

    def consume(self, queue: str, count: int) -> "Command":
        return self._give("consume", queue, count)

    def consume_with(self, queue: str, count: int, *, keep: bool = False) -> "Command":
        """Set a credit as a 012 does."""

        def consume(core: Broker, me: Connection) -> CommandResult:
            return commands.consume(core, me, queue, count, keeps_held=keep)

        return self._give("consume_with", queue, count, keep, action=consume)

    def retry(
        self, queue: str, message_id: bytes, content: bytes | None = None, **options: Any
    ) -> "Command":
        """Retry as a 011 does."""
        valid = RetryRequest.of(check_options(options, SETTLE["retry"]), content)
        return self._give("retry", queue, message_id, valid)

    def extend(self, queue: str, message_id: bytes, hold_s: float) -> "Command":
        return self._give("extend", queue, message_id, hold_s)

    def settle_invalidly(self, queue: str, message_id: bytes) -> "Command":
        """Send a 011 whose options are invalid."""

        def give(core: Broker, me: Connection) -> CommandResult:
            return commands.return_invalid(core, me, queue, message_id, "delay_s: not a number")

        return self._give("settle_invalidly", queue, message_id, action=give)

    def acknowledge(self, queue: str, message_id: bytes) -> "Command":
        return self._give("acknowledge", queue, message_id)

    def requeue(self, queue: str, message_id: bytes, ttl_s: int = 0) -> "Command":
        return self._give("requeue", queue, message_id, ttl_s)

    def dead_letter(self, queue: str, message_id: bytes) -> "Command":
        return self._give("dead_letter", queue, message_id)

    def disconnect(self) -> "Command":
        def leave(core: Broker, me: Connection) -> CommandResult:
            commands.disconnect(core, me, "compact", "ttl", "closed by the peer")
            return CommandResult.DONE

        self.is_leaving, self.is_parked = True, False
        return self._give("disconnect", action=leave)

    def choke(self, *, is_blocked: bool) -> "Command":
        def choke(core: Broker, me: Connection) -> CommandResult:
            core.set_blocked(me, is_blocked=is_blocked)
            return CommandResult.DONE

        return self._give("choke", is_blocked, action=choke)

    def _give(self, verb: str, *arguments: Any, action: Action | None = None) -> "Command":
        """Queue a command; without an ``action`` it calls the function of ``commands``."""
        function = "acknowledge_late" if verb == "acknowledge" else verb

        def call(core: Broker, me: Connection) -> CommandResult:
            result: CommandResult = getattr(commands, function)(core, me, *arguments)
            return result

        command = Command(self, action or call, verb, arguments)
        self.driver.inbox.append(command)
        return command

    # -- the peer of the core

    def send(self, outbox: Outbox, now_ms: int) -> list[Message]:
        if not self.is_open:
            return []
        late = []
        for message in outbox.dispatches:
            assert message.holder.connection is self.connection
            if message.deadline_ms is not None and message.deadline_ms <= now_ms:
                late.append(message)
                continue
            assert message.body is not None
            left_ms = 0 if message.deadline_ms is None else message.deadline_ms - now_ms
            name = message.holder.queue.name
            self.got.append(Delivery(name, message.message_id, message.body, -(-left_ms // 1_000)))
            message.body = None
            message.is_sent = True
        self.receipts += [
            ReceiptFrame(r.queue, key, r.reason) for r in outbox.receipts for key in r.keys
        ]
        return late

    def resume(self) -> None:
        self.is_parked = False

    def end(self, reason: str) -> None:
        raise AssertionError(f"the core ended a connection: {reason}")

    def take(self) -> list[Delivery]:
        got, self.got = self.got, []
        return got


@dataclass(eq=False)
class Command:
    """A command of a client; kept until the core has executed it."""

    client: Client
    action: Action
    verb: str
    arguments: tuple[Any, ...] = ()
    result: CommandResult | None = None  # None: not tried yet
    number: int = 0  # the next message number when it was tried last


@dataclass(eq=False)
class OperatorCommand:
    """A command of an operator; ``answer`` is the reply after the commit, or the refusal."""

    ask: Callable[..., None]
    verb: str
    arguments: tuple[Any, ...]
    options: dict[str, Any]
    entry: AuditEntry
    answer: Any = None
    number: int = 0  # the next message number when it was executed
    reply: Callable[[Any], None] | None = None  # called with the answer

    @property
    def is_answered(self) -> bool:
        return self.answer is not None


@dataclass
class BatchSnapshot:
    settled: dict[int, tuple[State, str | None]]  # by seq
    moved: dict[int, tuple[int, int]]  # queue_id and position of those changed, by seq
    dying: frozenset[int]  # seqs
    ready: frozenset[int]  # seqs of those moved that are not scheduled

    @classmethod
    def at(cls, core: Broker) -> "BatchSnapshot":
        batch = core.batch
        changed = batch.changed | (batch.delivery.came_due if batch.delivery else {})
        return cls(
            {seq: (State(o), why) for (o, why), seqs in batch.settled.items() for seq in seqs},
            {seq: (m.queue_id, m.position) for seq, m in changed.items()},
            frozenset(core.pending),
            frozenset(seq for seq, m in changed.items() if m.state != State.SCHEDULED),
        )


@dataclass
class Cycle:
    now: ClockReading
    batch: Batch
    begun: BatchSnapshot  # before any command
    taken_back: list[int]  # seqs that the last cycle did not send
    opened: list[Client]
    done: list[Command | OperatorCommand]  # in order of execution
    finished: BatchSnapshot


class Driver:
    """A broker on a new database.  Issue commands through its clients, then ``step``."""

    def __init__(
        self,
        folder: Path,
        limits: Limits | None = None,
        defaults: QueueSettings | None = None,
        envelopes: EnvelopeInspector | None = None,
    ) -> None:
        self.envelopes = envelopes
        self.clock = FakeClock()
        self.limits = limits or Limits()
        self.defaults = defaults or QueueSettings()
        self.path = folder / "messages.db"  # of SQLite
        self.database = new_database(self.path)
        self.commit_takes_s = 0.0  # passes between deciding and acting
        self.on_turn: Callable[[Cycle], None] = lambda _turn: None  # called after each commit
        self.inbox: deque[Command | OperatorCommand] = deque()
        self.clients: list[Client] = []
        self.store = self.database.open_store()
        self.store.execute(self.store.sql("batch")["set_counter"], ("clock_step_ms", CLOCK_STEP_MS))
        self._recover()

    def _recover(self) -> None:
        stored = self.store.recover(
            self.clock.now(), self.limits.receipt_window_ms, self.limits.receipts
        )
        self.returned = stored.returned
        self.core = Broker(stored, self.limits, self.defaults, self.envelopes)
        self._aside: list[tuple[Callable[[], Any], Callable[[Any], None]]] = []
        self._loaded: LoadedRows | None = None
        self._late: list[tuple[Connection, list[Message]]] = []
        self._opening: list[Client] = []

    # -- clients

    def connect(self, name: str = "") -> Client:
        """Open a connection; the next cycle registers it before its commands."""
        client = Client(self, name or f"client {len(self.clients) + 1}")
        self.clients.append(client)
        self._opening.append(client)
        return client

    def ask(self, verb: str, *arguments: Any, **options: Any) -> OperatorCommand:
        entry = AuditEntry("anna", "ui", "10.0.0.5", options.pop("audit", f"queue.{verb}"))
        given = dict(options)
        question = OperatorCommand(
            lambda core, answer: operation(verb)(core, answer, entry, *arguments, **given),
            verb, arguments, options, entry,
        )  # fmt: skip
        self.inbox.append(question)
        return question

    # -- cycles

    def turn(self) -> Cycle:
        turn = self.record()
        self.clock.advance(self.commit_takes_s)
        self._act(turn.batch)
        return turn

    def record(self) -> Cycle:
        """Run a cycle up to the commit, without sending the results."""
        turn = self.decide()
        if turn.batch.stores:
            self.store.begin(marshal.loads(_encoded(turn.batch)))
        self._loaded = self.store.end(turn.batch)
        self.on_turn(turn)
        return turn

    def step(self) -> list[Cycle]:
        """Run cycles until idle; the clock does not move."""
        turns = [self.turn()]
        while self.is_busy:
            assert len(turns) < MAX_CYCLES, "the broker does not become idle"
            turns.append(self.turn())
        return turns

    @property
    def is_busy(self) -> bool:
        """Return whether the loop of the engine would start another batch immediately."""
        wake_ms, date_ms = self.core.next_wake_ms, self.core.next_date_ms
        now = self.clock.now()
        return (
            self._loaded is not None
            or bool(self._late)
            or bool(self._aside)
            or bool(self._opening)
            or bool(self.core.batch_limited)
            or (wake_ms is not None and wake_ms <= now.steady_ms)
            or (date_ms is not None and date_ms <= now.wall_ms)
            or any(isinstance(c, OperatorCommand) or not c.client.is_parked for c in self.inbox)
        )

    def decide(self) -> Cycle:
        """Run the first half of a cycle, before the commit."""
        core, now = self.core, self.clock.now()
        batches.begin(core, now, self._loaded)
        self._loaded = None
        begun = BatchSnapshot.at(core)
        opened, self._opening = self._opening, []
        for client in opened:
            client.connection = core.connect(client, "tcp", client.name)
        aside, self._aside = self._aside, []
        for work, give in aside:
            give(work())
        late, self._late = self._late, []
        for connection, messages in late:
            commands.undo_dispatches(core, connection, messages)
        done = self._run(core)
        batch = batches.finish(core)
        return Cycle(
            now,
            batch,
            begun,
            [m.seq for _, messages in late for m in messages],
            opened,
            done,
            BatchSnapshot.at(core),
        )

    def _run(self, core: Broker) -> list[Command | OperatorCommand]:
        """Execute the inbox, the commands of each client in order."""
        done: list[Command | OperatorCommand] = []
        kept: deque[Command | OperatorCommand] = deque()
        waiting = {c.client for c in self.inbox if isinstance(c, Command) and c.client.is_parked}
        for item in self.inbox:
            if isinstance(item, OperatorCommand):
                self._put(core, item)
                done.append(item)
            elif item.client in waiting or (item.client.is_open and item.client.connection.pending):
                kept.append(item)
            elif item.client.is_open:
                self._try(core, item)
                if item.result in (CommandResult.DONE, CommandResult.WAIT):
                    done.append(item)
                    if item.result is CommandResult.WAIT:
                        waiting.add(item.client)
                elif item.result is CommandResult.LOAD or item.client.is_parked:
                    waiting.add(item.client)
                    kept.append(item)
        self.inbox = kept
        return done

    def _try(self, core: Broker, command: Command) -> None:
        client = command.client
        command.number = core.next_number
        command.result = command.action(core, client.connection)
        client.is_parked = command.result is CommandResult.PARK and not client.is_leaving
        client.is_refused = client.is_refused or command.result is CommandResult.CLOSE
        if command.verb == "disconnect":
            client.is_open = False

    def _put(self, core: Broker, question: OperatorCommand) -> None:
        def answer(value: Any) -> None:
            assert not question.is_answered, "answered twice"
            question.answer = value

        question.number, question.reply = core.next_number, answer
        try:
            question.ask(core, answer)
        except RefusedError as error:
            question.answer = error

    def _act(self, batch: Batch) -> None:
        now_ms = self.clock.steady_ms
        for connection, outbox in batch.sends.items():
            if late := connection.peer.send(outbox, now_ms):
                self._late.append((connection, late))
        for answer, value in batch.replies:
            answer(value)
        for connection in batch.to_resume:
            connection.peer.resume()
        self._aside += batch.background

    # -- shortcuts

    def publish(self, *bodies: bytes, queue: str = "orders", ttl_s: int = 0) -> None:
        client = self.connect()
        for body in bodies:
            client.publish(queue, body, ttl_s)
        self.step()

    def consume(self, credit: int = 10, queue: str = "orders") -> Client:
        """Return a new client with credit, after it received its messages."""
        client = self.connect()
        client.consume(queue, credit)
        self.step()
        return client

    # -- restart

    def kill_and_restart(self) -> None:
        """Drop everything uncommitted, and start again on the database."""
        for client in self.clients:
            client.is_open = False
        self.clients.clear()
        self.inbox.clear()
        self.store.connection.close()  # rolls back
        self.store = self.database.open_store()
        self._recover()

    def record_and_kill(self, delay_s: float) -> None:
        """Store the next batch in a process that is killed after a delay, and start again."""
        turn, before = self.decide(), self.tables()
        self.store.connection.close()
        store_and_kill(self.database, _encoded(turn.batch), delay_s)
        self.store = self.database.open_store()
        if self.tables() != before:
            self.on_turn(turn)
        self.kill_and_restart()

    def close(self) -> None:
        self.store.connection.close()
        self.database.close()

    # -- stored data

    def rows(self, sql: str, *parameters: Any) -> list[tuple[Any, ...]]:
        """Execute a statement on the connection that writes; return the rows of a query."""
        return rows_of(self.store.execute(sql, parameters))

    def tables(self) -> dict[str, list[tuple[Any, ...]]]:
        return read_tables(self.rows)

    def set_body(self, seq: int, content: bytes) -> None:
        self.rows("UPDATE body SET content = ? WHERE seq = ?", content, seq)

    def states(self) -> list[tuple[Any, ...]]:
        """Return seq, state and deliveries of the live messages, by seq."""
        return self.rows("SELECT seq, state, deliveries FROM message ORDER BY seq")

    def outcomes(self) -> list[tuple[Any, ...]]:
        """Return offset, seq, outcome and reason of the settled messages, by offset."""
        return self.rows('SELECT "offset", seq, outcome, reason FROM history ORDER BY "offset"')

    def live(self, queue: str = "orders") -> tuple[Any, ...]:
        """Return the stored count and bytes of the live messages of a queue."""
        [row] = self.rows("SELECT live_count, live_bytes FROM queue WHERE name = ?", queue)
        return row


def _encoded(batch: Batch) -> bytes:
    """Encode the statements of a batch as for the writer process."""
    return marshal.dumps(cast(Any, batch_statements(batch) if batch.stores else []))


MakeDriver = Callable[..., Driver]


@contextmanager
def drivers_in(folder: Path) -> Iterator[MakeDriver]:
    """Return a factory of drivers on the file in ``folder``; all are closed at the end."""
    with ExitStack() as stack:

        def make(*given: Any, **named: Any) -> Driver:
            driver = Driver(folder, *given, **named)
            stack.callback(driver.close)
            return driver

        yield make


def stored_bodies(driver: Driver, queue: str = "orders") -> list[bytes]:
    """Return the bodies of a queue in the order in which they will be dispatched."""
    rows = driver.rows(
        "SELECT content FROM message JOIN body USING (seq) JOIN queue USING (queue_id)"
        " WHERE name = ? ORDER BY position", queue,
    )  # fmt: skip
    return [content for (content,) in rows]


def consume_all(driver: Driver, worker: Client) -> list[bytes]:
    """Acknowledge everything a client receives; return the bodies in order."""
    got = []
    while deliveries := worker.take():
        got += [delivery.body for delivery in deliveries]
        for delivery in deliveries:
            worker.acknowledge("orders", delivery.message_id)
        driver.step()
    return got


def run_operation(driver: Driver, verb: str, *arguments: Any, **options: Any) -> Any:
    """Submit a command, run until idle, and return the reply; a refusal as its code."""
    question = driver.ask(verb, *arguments, **options)
    driver.step()
    answer = question.answer
    return answer.code if isinstance(answer, RefusedError) else answer
