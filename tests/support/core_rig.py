"""Drive the core without disk, socket or clock; tests pass the rows that it asks to load.

New queues are empty on disk, so the first page of their window is empty.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from phpmq_lite.broker import batches, commands
from phpmq_lite.broker.broker import Broker
from phpmq_lite.broker.commands import CommandResult
from phpmq_lite.broker.operator import (
    message_actions,
    publishing,
    queue_operations,
    schedule_operations,
)
from phpmq_lite.broker.pipeline import claims, readers, staging
from phpmq_lite.broker.queue import Connection, Queue
from phpmq_lite.broker.ready_window import ReadyWindow
from phpmq_lite.model import (
    AuditEntry,
    Batch,
    ClockReading,
    EnvelopeInspector,
    Limits,
    LoadedRows,
    LoadedWindow,
    Message,
    Outbox,
    RecoveredState,
    State,
    checksum,
)
from phpmq_lite.queue_settings import QueueSettings

WALL_MS = 1_700_000_000_000
STEADY_MS = 1_600_000_000_000  # another scale than the wall clock's


def operation(name: str) -> Any:
    """Return an operation of an operator or of the pipeline."""
    modules = (queue_operations, message_actions, publishing, claims, readers, staging)
    if name.startswith("schedule."):
        return vars(schedule_operations)[name.removeprefix("schedule.")]
    return next(vars(module)[name] for module in modules if name in vars(module))


def message(
    seq: int,
    *,
    position: int | None = None,
    body: bytes | None = None,
    size: int = 1,
    queue_id: int = 1,
    deadline_ms: int | None = None,
) -> Message:
    made = Message(
        seq, seq * 7 + 1, queue_id, seq if position is None else position, 0, None,
        deadline_ms, WALL_MS, None, None, 0, 0, size if body is None else len(body),
        checksum(seq, body or b""), None, None,
    )  # fmt: skip
    made.body = body
    return made


@dataclass(eq=False)
class FakePeer:
    """A peer that counts how often it is resumed."""

    resumed: int = 0

    def send(self, outbox: Outbox, now_ms: int) -> list[Message]:
        raise AssertionError("the engine's part, not the core's")

    def resume(self) -> None:
        self.resumed += 1

    def end(self, reason: str) -> None:
        raise AssertionError(f"ended: {reason}")


@dataclass
class CoreRig:
    """A core on an empty store.  Commands run between ``begin`` and ``finish`` of a batch."""

    limits: Limits = field(default_factory=Limits)
    defaults: QueueSettings = field(default_factory=QueueSettings)
    steady_ms: int = STEADY_MS
    envelopes: EnvelopeInspector | None = None

    def __post_init__(self) -> None:
        self.core = Broker(
            RecoveredState([], [], {}, None, 0), self.limits, self.defaults, self.envelopes
        )
        self.batch = Batch(0)
        self.answers: list[Any] = []

    def begin(self, loaded: LoadedRows | None = None) -> Batch:
        now = ClockReading(self.steady_ms + WALL_MS - STEADY_MS, self.steady_ms)
        self.batch = batches.begin(self.core, now, loaded)
        return self.batch

    def finish(self) -> Batch:
        """Finish the batch and deliver its replies as the engine does after the commit.

        Sent messages keep their bodies, by which tests identify them.
        """
        batch = batches.finish(self.core)
        for outbox in batch.sends.values():
            for message in outbox.dispatches:
                message.is_sent = True
        for answer, value in batch.replies:
            answer(value)
        return batch

    def run(self, *commands: Callable[[], Any], loaded: LoadedRows | None = None) -> Batch:
        self.begin(loaded)
        for command in commands:
            command()
        return self.finish()

    def advance(self, seconds: float) -> None:
        self.steady_ms += round(seconds * 1_000)

    # -- operators

    def entry(self, action: str = "queue.purge", **changes: Any) -> AuditEntry:
        return AuditEntry("anna", "ui", "10.0.0.5", action, **changes)

    def purge(self, name: str, *, with_dispatched: bool = False) -> None:
        """Purge in an open batch, like the next operations."""
        queue_operations.purge(
            self.core, self.answers.append, self.entry(), name, with_dispatched=with_dispatched
        )

    def redrive(self, name: str, **options: Any) -> None:
        entry = self.entry("dead.redrive")
        queue_operations.redrive(self.core, self.answers.append, entry, name, **options)

    def pause(self, name: str, side: str, paused: bool) -> None:
        entry = self.entry("queue.pause")
        queue_operations.pause(self.core, self.answers.append, entry, name, side, paused)

    def configure(self, name: str, changes: dict[str, Any]) -> None:
        entry = self.entry("queue.configure")
        queue_operations.configure(self.core, self.answers.append, entry, name, changes)

    # -- Spark

    def pipeline(self, name: str, *arguments: Any, **options: Any) -> Batch:
        """Run an operation of the pipeline in its own batch."""
        entry = self.entry(f"pipeline.{name}")
        ask = operation(name)
        return self.run(lambda: ask(self.core, self.answers.append, entry, *arguments, **options))

    # -- clients

    def connect(self) -> Connection:
        self.begin()
        connection = self.core.connect(FakePeer(), "tcp", "127.0.0.1:1")
        self.finish()
        return connection

    def consumer(self, queue: str = "orders", credit: int = 10) -> Connection:
        """Open a connection with credit on a queue that is empty on disk."""
        connection = self.connect()
        self.consume(connection, credit, queue)
        return connection

    def consume(self, connection: Connection, credit: int, queue: str = "orders") -> Batch:
        """Grant credit, and load an empty page if the core asks for one."""
        batch = self.run(lambda: commands.consume(self.core, connection, queue, credit))
        if not batch.windows:
            return batch
        return self.run(
            loaded=LoadedRows(windows=[LoadedWindow(r.queue_id, [], True) for r in batch.windows])
        )

    # -- queues

    def queue(self, name: str = "orders") -> Queue:
        return self.core.queues[name]

    def window(self, name: str = "orders") -> ReadyWindow:
        window = self.queue(name).window
        assert window is not None
        return window

    def hold(
        self,
        body: bytes = b"a",
        *,
        credit: int = 10,
        ttl_s: int | None = None,
        has_body: bool = True,
    ) -> tuple[Connection, Message]:
        """Return a new consumer of orders, and a message that it holds, as before or after sending.

        After sending, a message has no body in memory.
        """
        worker = self.consumer(credit=credit)
        [held] = sent_messages(self.publish(body, ttl_s=ttl_s), worker)
        held.body = held.body if has_body else None
        return worker, held

    def publish(
        self,
        *bodies: bytes,
        queue: str = "orders",
        ttl_s: int | None = None,
        by: Connection | None = None,
    ) -> Batch:
        """Publish in one batch, by default through a new connection."""
        publisher = by or self.connect()
        self.begin()
        for body in bodies:
            assert (
                commands.publish(self.core, publisher, queue, body, ttl_s, None)
                is CommandResult.DONE
            )
        return self.finish()

    def dispatch(
        self, *bodies: bytes, queue: str = "orders", credit: int = 10, ttl_s: int | None = None
    ) -> tuple[Connection, list[Message]]:
        """Publish to a new consumer; return it with the messages that its credit allows."""
        worker = self.consumer(queue, credit)
        held = sent_messages(self.publish(*bodies, queue=queue, ttl_s=ttl_s), worker)
        assert [message.body for message in held] == list(bodies[:credit])
        return worker, held


def sent_messages(batch: Batch, connection: Connection) -> list[Message]:
    return batch.sends.get(connection, Outbox()).dispatches


def sent_receipts(batch: Batch, connection: Connection) -> list[tuple[bytes, str | None]]:
    """Return key and reason of the receipts that a batch sends to a connection."""
    receipts = batch.sends.get(connection, Outbox()).receipts
    return [(key, receipt.reason) for receipt in receipts for key in receipt.keys]


def bodies(messages: list[Message]) -> list[bytes | None]:
    return [message.body for message in messages]


def outcomes(batch: Batch) -> dict[tuple[State, str | None], list[int]]:
    """Return the seqs that a batch settles, by outcome and reason."""
    return {(State(o), reason): seqs for (o, reason), seqs in batch.settled.items()}


def event_kinds(batch: Batch) -> list[tuple[int, str]]:
    """Return seq and kind of the events of a batch."""
    return [(seq, str(kind)) for seq, _, kind, _ in batch.iter_events()]
