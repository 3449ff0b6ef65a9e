"""The cost of a message: statements, rows, writes, calls and memory blocks, but no durations.

Codec, sessions, engine and store are real, and so is the SQLite file.  The test decides when each
commit ends, so the figures depend neither on the machine nor on its load.
"""

import sys
from collections.abc import Awaitable, Callable
from functools import partial
from itertools import count, islice
from pathlib import Path
from statistics import median
from types import FrameType
from typing import Any, Final, NamedTuple

import pytest

from phpmq_lite.installation import build_kind
from phpmq_lite.model import Batch, checksum
from phpmq_lite.protocol.connection import ClientSide, ServerSide
from phpmq_lite.protocol.frames import BrokerFrame, Dispatch, WireLimits
from phpmq_lite.server import session as sessions
from phpmq_lite.server.session import Session
from phpmq_lite.storage.batch_sql import Step, batch_statements
from tests.support import engine_driver
from tests.support.engine_driver import EngineDriver, FakeTransport, disable_timers

pytestmark = pytest.mark.usefixtures("no_garbage_collector")


class Cost(NamedTuple):
    """Counts of a step, or the difference between two steps."""

    statements: int  # including BEGIN and COMMIT
    rows: int  # inserted, updated or deleted
    writes: int  # to sockets
    calls: int  # made by Python code of the package; each item of a generator is one
    open_blocks: int  # of memory, allocated and not freed before the batch is stored
    kept_blocks: int  # the same, once everything is stored and sent

    def minus(self, other: "Cost") -> "Cost":
        return Cost(*(a - b for a, b in zip(self, other, strict=True)))


MORE: Final = 500  # flow control accepts no more messages per queue, publisher and batch
WARM_STEPS: Final = 4  # after these, all steps cost the same, but one may free 200 blocks more
IS_COMPILED: Final = build_kind() == "compiled"
# Compiled code calls without the interpreter, and allocates other blocks.
KINDS: Final = Cost._fields[:3] if IS_COMPILED else Cost._fields

# The highest permitted cost of one message, and of MORE messages: that of a step with twice as many
# minus that of a step with MORE.  All figures are exact in Python 3.11, except those of blocks,
# which leave a fifth of a block per message.  Python 3.12 calls no comprehensions, so it makes
# fewer calls.
#
# Each step of the flow publishes messages, dispatches them, and acknowledges those of the previous
# step.  On one queue, MORE messages need another batch.  Publishing keeps two blocks per message,
# for its key, and one for each row of keys, which has one key if the queues alternate;
# acknowledging frees the messages that the consumer held.
BOUNDS: Final[dict[tuple[str, int, int], Cost]] = {  # by operation, messages and queues
    ("publish", 1, 1): Cost(6, 4, 1, 288, 50, 50),
    ("publish", MORE, 1): Cost(2, 1_000, 0, 7_004, 3_600, 1_100),
    ("publish", MORE, 10): Cost(3, 1_500, 0, 25_006, 6_600, 1_600),
    ("flow", 1, 1): Cost(7, 5, 2, 435, 50, 50),
    ("flow", MORE, 1): Cost(7, 2_004, 2, 14_836, 1_700, 1_150),
    ("flow", MORE, 10): Cost(3, 3_000, 0, 37_006, 4_600, 1_800),
    ("acknowledge", 1, 1): Cost(5, 3, 0, 246, 50, 50),
    ("acknowledge", MORE, 1): Cost(0, 1_000, 0, 3_500, -1_850, -2_350),
    ("acknowledge", MORE, 10): Cost(0, 1_500, 0, 3_500, -1_850, -2_350),
}


class CountingTransport(FakeTransport):
    """Counts writes, and keeps the data until the client reads it."""

    def __init__(self) -> None:
        super().__init__(lambda _frame: None)
        self.writes = 0
        self.unread: list[bytes] = []

    def write(self, data: Any) -> None:
        self.writes += 1
        self.unread.append(data)


class Peer:
    def __init__(self, driver: EngineDriver) -> None:
        self.side = ClientSide()
        self.transport = CountingTransport()
        self.session = Session(driver.context, ServerSide(WireLimits(), http_guard=False), "unix")
        self.session.connection_made(self.transport)

    def send(self, frames: list[bytes]) -> None:
        if frames:
            self.session.data_received(b"".join(frames))

    def read(self) -> list[BrokerFrame]:
        data = b"".join(self.transport.unread)
        self.transport.unread.clear()
        return self.side.receive(data)


class Meter:
    """A broker on a file in ``folder`` with a producer, a consumer, and the counts so far."""

    def __init__(self, folder: Path, queues: int, patch: pytest.MonkeyPatch) -> None:
        self.driver = EngineDriver(folder)
        store = self.driver.store
        store.execute("PRAGMA synchronous=0")  # syncs would only cost time
        patch.setattr(store, "end", partial(store.end, with_index=True))  # as the writer's thread
        self._statements: list[str] = []
        store.connection.set_trace_callback(self._statements.append)
        self._calls = 0
        self._numbers = count(1)
        self._queues = [f"queue {number}" for number in range(queues)]
        self.driver.start()
        self._producer, self._consumer = Peer(self.driver), Peer(self.driver)

    def consume(self) -> None:
        self._consumer.send([self._consumer.side.consume(queue, 1_000) for queue in self._queues])

    async def repeated_step(self, operation: str, messages: int) -> Cost:
        costs = [await self._step(operation, messages) for _ in range(WARM_STEPS + 3)]
        return Cost(*map(median, zip(*costs[WARM_STEPS:], strict=True)))

    async def _step(self, operation: str, messages: int) -> Cost:
        published = self._publishes(messages)
        if operation == "publish":
            return await self._run(published, [])
        if operation == "flow":
            return await self._run(published, self._acknowledgements())
        await self._run(published, [])
        return await self._run([], self._acknowledgements())

    def _publishes(self, messages: int) -> list[bytes]:
        publish, queues = self._producer.side.publish, self._queues
        return [
            publish(queues[number % len(queues)], b"%0100d" % number, 0, b"%032x" % number)
            for number in islice(self._numbers, messages)
        ]

    def _acknowledgements(self) -> list[bytes]:
        """Return an acknowledgement of each message that the consumer has received."""
        acknowledge = self._consumer.side.acknowledge
        frames = self._consumer.read()
        return [acknowledge(f.queue, f.message_id) for f in frames if isinstance(f, Dispatch)]

    async def _run(self, published: list[bytes], acknowledged: list[bytes]) -> Cost:
        """Send frames in one piece per client, and run until everything is stored and sent."""
        before = self._counts()
        sys.setprofile(self._count_call)
        try:
            self._producer.send(published)
            self._consumer.send(acknowledged)
            await self.driver.run_until_idle()
            open_blocks = sys.getallocatedblocks() - before.open_blocks
            await self.driver.settle()
        finally:
            sys.setprofile(None)
        cost = self._counts().minus(before)
        self._producer.read()
        return cost._replace(open_blocks=open_blocks)

    def _count_call(self, frame: FrameType, event: str, _argument: Any) -> None:
        caller = frame.f_back if event == "call" else frame if event == "c_call" else None
        if caller is not None and caller.f_globals["__name__"].startswith("phpmq_lite."):
            self._calls += 1

    def _counts(self) -> Cost:
        self.driver.writer.batches.clear()
        core = self.driver.core
        core.open_batch(Batch(0), core.now)  # frees the previous batch
        writes = self._producer.transport.writes + self._consumer.transport.writes
        changes = self.driver.store.connection.total_changes
        blocks = sys.getallocatedblocks()
        return Cost(len(self._statements), changes, writes, self._calls, blocks, blocks)


Measure = Callable[[str, int, int], Awaitable[dict[str, str]]]


@pytest.fixture
def excess(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Measure:
    """Return a function that measures costs and returns those that exceed their bounds."""
    disable_timers(monkeypatch)

    async def excess(operation: str, messages: int, queues: int) -> dict[str, str]:
        meter = Meter(tmp_path, queues, monkeypatch)
        if operation != "publish":
            meter.consume()
        cost = await meter.repeated_step(operation, messages)
        if messages == MORE:
            cost = (await meter.repeated_step(operation, 2 * MORE)).minus(cost)
        await meter.driver.stop()
        meter.driver.close()
        bound = BOUNDS[operation, messages, queues]
        return {
            kind: f"{operation}, {messages} messages, {queues} queues: {value} instead of {most}"
            for kind, value, most in zip(Cost._fields, cost, bound, strict=True)
            if kind in KINDS and value > most
        }

    return excess


@pytest.mark.parametrize(("operation", "messages", "queues"), BOUNDS)
async def test_cost_of_a_message(
    excess: Measure, operation: str, messages: int, queues: int
) -> None:
    assert await excess(operation, messages, queues) == {}


# -- mutants, each with one more of a kind per message


def one_more_statement(batch: Batch) -> list[Step]:
    return [("newest_key", (), None)] * batch.commands


def one_more_row(batch: Batch) -> list[Step]:
    """Not an event: each statement of its trigger would be traced with the parameters of all."""
    numbers = islice(later_keys, batch.commands)
    return [("insert_receipt", [v for n in numbers for v in (n, 1, 1, 0, 1, b"k")], ())]


def one_more_call(batch: Batch) -> list[Step]:
    for _ in range(batch.commands):
        checksum(1, b"")
    return []


def one_more_block(batch: Batch) -> list[Step]:
    leaked.extend(object() for _ in range(batch.commands))
    return []


leaked: list[object] = []
later_keys: Final = count(1 << 40)
MUTANTS: Final = [
    (one_more_statement, {"statements"}),
    (one_more_row, {"rows"}),
    (one_more_call, {"calls"}),
    (one_more_block, {"open_blocks", "kept_blocks"}),
]


@pytest.mark.skipif(IS_COMPILED, reason="not all kinds are counted")
@pytest.mark.parametrize("operation", ["publish", "flow", "acknowledge"])
@pytest.mark.parametrize(("mutant", "kinds"), MUTANTS)
async def test_more_of_a_kind_per_message_is_noticed(
    excess: Measure,
    monkeypatch: pytest.MonkeyPatch,
    mutant: Callable[[Batch], list[Step]],
    kinds: set[str],
    operation: str,
) -> None:
    """If this fails, the bound is too high: lower it to the figure that the test measures."""
    monkeypatch.setattr(
        engine_driver, "batch_statements", lambda batch: batch_statements(batch) + mutant(batch)
    )
    assert kinds <= (await excess(operation, MORE, 1)).keys()


@pytest.mark.skipif(IS_COMPILED, reason="compiled code calls its own functions directly")
@pytest.mark.parametrize("operation", ["publish", "flow"])
async def test_more_writes_per_batch_are_noticed(
    excess: Measure, monkeypatch: pytest.MonkeyPatch, operation: str
) -> None:
    def write_twice(transport: CountingTransport, _: int | None, data: bytes) -> None:
        transport.write(data[:10])
        transport.write(data[10:])

    monkeypatch.setattr(sessions, "write_data", write_twice)
    assert "writes" in await excess(operation, 1, 1)
