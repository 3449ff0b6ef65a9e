"""Drive engine, core, sessions and store together; the test decides when each commit ends.

The input and output are bytes of the wire and a real database, but there are no sockets, no thread
and no real time.  Every outgoing frame is compared with the database when it is sent.
"""

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from phpmq_lite.broker.broker import Broker
from phpmq_lite.broker.publish_keys import expand_run
from phpmq_lite.errors import OutcomeUnknownError
from phpmq_lite.frame_options import write_options
from phpmq_lite.model import Batch, ClockReading, Limits, LoadedRows, Message
from phpmq_lite.protocol.connection import ClientSide, ServerSide
from phpmq_lite.protocol.frames import (
    BrokerFrame,
    Dispatch,
    DispatchWithInfo,
    ReceiptFrame,
    Welcome,
    WireLimits,
)
from phpmq_lite.queue_settings import QueueSettings
from phpmq_lite.server import engine
from phpmq_lite.server import engine as engines
from phpmq_lite.server.admission import Admission
from phpmq_lite.server.backpressure import ReadBackpressure
from phpmq_lite.server.counters import ConnectionCounters
from phpmq_lite.server.engine import Engine
from phpmq_lite.server.frame_processing import SessionLimits
from phpmq_lite.server.session import Session, SessionContext
from phpmq_lite.storage.batch_sql import batch_statements
from tests.support.core_and_store import FakeClock
from tests.support.stores import DrivenStore, new_database

AnyDispatch = Dispatch | DispatchWithInfo
_TURNS = 200  # of the loop; more are an endless loop


class ManualWriter:
    """Stores a batch in its state at ``commit`` when the test calls ``end``."""

    needs_maintenance = False
    is_exclusive = True

    def __init__(self, store: DrivenStore) -> None:
        self.batches: list[Batch] = []
        self._steered = store
        self._under_way_now: tuple[Batch, asyncio.Future[LoadedRows | None]] | None = None

    @property
    def batch(self) -> Batch | None:
        """The batch that is not stored yet."""
        return None if self._under_way_now is None else self._under_way_now[0]

    def commit(self, batch: Batch) -> asyncio.Future[LoadedRows | None]:
        assert self._under_way_now is None, "a batch before the last one was stored"
        self.batches.append(batch)
        done: asyncio.Future[LoadedRows | None] = asyncio.get_running_loop().create_future()
        self._under_way_now = batch, done
        self._steps = batch_statements(batch) if batch.stores else []
        return done

    def end(self, *, is_failing: bool = False) -> None:
        assert self._under_way_now is not None
        (batch, done), self._under_way_now = self._under_way_now, None
        if is_failing:
            done.set_exception(OutcomeUnknownError("the disk has gone"))
            return
        steps, self._steps = self._steps, []
        self._steered.begin(steps)
        done.set_result(self._steered.end(batch))

    def poll(self) -> None:
        """There is nothing to look for: the test ends each commit."""

    def check_files(self) -> None:
        """There are no files."""

    def store_clock_jump(self, counters: Mapping[str, int]) -> asyncio.Future[None]:
        raise AssertionError("the fake clock does not jump")

    async def maintain(self, now: ClockReading, *, is_idle: bool) -> bool:
        return False


class FakeTransport(asyncio.Transport):
    """The transport of a session; passes on the frames as a client reads them."""

    def __init__(self, take: Callable[[Any], None]) -> None:
        super().__init__()
        self.is_closed = False
        self._side = ClientSide()
        self._take = take

    def write(self, data: Any) -> None:
        for frame in self._side.receive(data):
            self._take(frame)
        assert self._side.error is None
        assert self._side.parser.partial_bytes == 0

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default

    def get_write_buffer_size(self) -> int:
        return 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """There is no buffer."""

    def pause_reading(self) -> None:
        """Only the test sends data."""

    def resume_reading(self) -> None:
        """As above."""

    def is_closing(self) -> bool:
        return self.is_closed

    def close(self) -> None:
        self.is_closed = True


class EngineClient:
    """A client of the broker: sends frames, and records the received ones."""

    def __init__(self, driver: "EngineDriver") -> None:
        self.driver = driver
        self.got: list[AnyDispatch] = []
        self.receipts: list[ReceiptFrame] = []
        self.welcomes: list[Welcome] = []
        self.keys: list[bytes] = []  # of its confirmed publishes, in order
        self.first_seqs: dict[str, int] = {}  # by queue: of the last first delivery
        self.transport = FakeTransport(self._take)
        self.session = Session(driver.context, ServerSide(WireLimits(), http_guard=False), "unix")
        self.session.connection_made(self.transport)
        self._wire = ClientSide()

    @property
    def bodies(self) -> list[bytes]:
        return [frame.content for frame in self.got]

    # -- requests

    def publish(self, queue: str, *bodies: bytes, ttl_s: int = 0, key: bytes | None = None) -> None:
        frames = [self._wire.publish(queue, body, ttl_s, key) for body in bodies]
        if key is not None:
            self.keys += [key] * len(bodies)
        self.session.data_received(b"".join(frames))

    def publish_with(self, queue: str, *bodies: bytes, **options: Any) -> None:
        packet = write_options(options)
        frames = [self._wire.publish_with_options(queue, body, packet) for body in bodies]
        self.session.data_received(b"".join(frames))

    def consume(self, queue: str, count: int) -> None:
        self.session.data_received(self._wire.consume(queue, count))

    def consume_with(self, queue: str, count: int, **options: Any) -> None:
        packet = write_options(options)
        self.session.data_received(self._wire.consume_with_options(queue, count, packet))

    def settle(self, got: AnyDispatch, action: str, **options: Any) -> None:
        packet = write_options({"action": action, **options})
        self.session.data_received(self._wire.settle(got.queue, got.message_id, packet, None))

    def acknowledge(self, *got: AnyDispatch) -> None:
        frames = [self._wire.acknowledge(each.queue, each.message_id) for each in got]
        self.session.data_received(b"".join(frames))

    def requeue(self, got: AnyDispatch, ttl_s: int = 0) -> None:
        self.session.data_received(self._wire.requeue(got.queue, got.message_id, ttl_s))

    def half_close(self) -> None:
        """Close the sending side, as ``nc -N`` does."""
        self.session.eof_received()

    def break_grammar(self) -> None:
        self.session.data_received(b"GET / HTTP/1.1\r\n")

    def disconnect(self) -> None:
        self.transport.is_closed = True
        self.session.connection_lost(None)

    # -- received frames

    def _take(self, frame: BrokerFrame) -> None:
        assert not self.transport.is_closed
        if isinstance(frame, Welcome):
            self.welcomes.append(frame)
            return
        if isinstance(frame, ReceiptFrame):
            self.receipts.append(frame)
            assert frame.key == self.keys[len(self.receipts) - 1], "receipts out of order"
            assert self.driver.has_key(frame.key), "a receipt ahead of its message"
            return
        self.got.append(frame)
        self.driver.got.append(frame)
        seq = int(frame.message_id[:16], 16)
        assert self.driver.on_disk(seq) == (frame.message_id, frame.queue, frame.content)
        message = self.driver.core.messages[seq]
        assert message.holder.connection is self.session.connection, "it holds another's message"
        if message.deliveries == 1 and self.driver.dispatches(seq) == 1:
            assert seq > self.first_seqs.get(frame.queue, 0), "dispatches out of order"
            self.first_seqs[frame.queue] = seq


class EngineDriver:
    """A broker on a new database.  Issue commands through its clients, then ``settle``."""

    def __init__(self, folder: Path, limits: Limits | None = None) -> None:
        self.clock = FakeClock()
        self.database = new_database(folder / "messages.db")
        self.store = self.database.open_store()
        self.writer = ManualWriter(self.store)
        self._read = self.database.open_reader()
        self.limits = limits or Limits()
        settings = QueueSettings(max_deliveries=0, ack_timeout_s=0)
        stored = self.store.recover(self.clock.now(), 1 << 40, 100)
        self.core = Broker(stored, self.limits, settings)
        self.engine = Engine(self.core, self.writer, self.clock)
        self.engine._maintained_at = 1e12  # never: there is no thread for maintenance
        self.context = SessionContext(
            self.engine,
            Admission(100, 100, 100),
            ReadBackpressure(1 << 30),
            ConnectionCounters(),
            SessionLimits(),
        )
        self.got: list[AnyDispatch] = []  # by all clients
        self.running: asyncio.Task[None] | None = None

    def start(self) -> None:
        self.running = asyncio.create_task(self.engine.run())

    @property
    def task(self) -> asyncio.Task[None]:
        assert self.running is not None
        return self.running

    def close(self) -> None:
        self.store.connection.close()
        self.database.close()

    # -- progress

    async def run_until_idle(self) -> None:
        """Run the engine until it waits for the end of a commit."""
        engine = self.engine
        for _ in range(_TURNS):
            await asyncio.sleep(0)
            if self.task.done():
                self.task.result()
                return
            ended = engine._ended
            if ended is None or ended.done():
                continue
            if not engine._is_scheduled and not engine._has_work:
                return
        raise AssertionError("the engine does not become idle")

    async def end_commit(self) -> None:
        """Store the batch of the writer, then run until idle."""
        await self.run_until_idle()
        self.writer.end()
        await self.run_until_idle()

    async def settle(self) -> None:
        await self.run_until_idle()
        for _ in range(_TURNS):
            if self.writer.batch is not None:
                await self.end_commit()
            elif self.engine._open is not None:
                self.end_lingering()
                await self.run_until_idle()
            else:
                return
        raise AssertionError("there is always another batch")

    def advance(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self.engine.wake()

    def end_lingering(self) -> None:
        """End the delay that collects acknowledgements for one commit."""
        self.engine._delay_ends_at = 0.0
        self.engine.wake()

    async def stop(self) -> None:
        self.engine.stop()
        await self.settle()
        await self.task
        await self.engine.end()

    # -- stored data

    @property
    def is_stored(self) -> bool:
        """Whether all decisions are committed."""
        return self.writer.batch is None and self.engine._open is None

    def on_disk(self, seq: int) -> tuple[bytes, str, bytes] | None:
        """Return id, queue and content of a committed live message, or None."""
        found = self.rows(
            "SELECT token, name, content FROM message JOIN queue USING (queue_id)"
            " JOIN body USING (seq) WHERE seq = ?", seq,
        )  # fmt: skip
        for token, name, content in found:
            return b"%016x%016x" % (seq, token), name, content
        return None

    def dispatches(self, seq: int) -> int:
        """Return how often a message was dispatched, including dispatches that were not sent."""
        batches = [*self.writer.batches, self.core.batch]
        unique = {id(batch): batch for batch in batches}.values()
        return sum(message.seq == seq for batch in unique for message in batch.dispatched)

    def has_key(self, key: bytes) -> bool:
        """Return whether a key is committed together with its message."""
        found = [seq for _, stored, seq, _ in self.receipts() if stored == key]
        return len(found) == 1 and self.rows("SELECT seq FROM body WHERE seq = ?", *found) != []

    def receipts(self) -> list[tuple[int, bytes, int, int]]:
        """Return queue_id, key, seq and time (steady ms) of each committed key."""
        return [key for run in self.rows("SELECT * FROM receipt") for key in expand_run(run)]

    def rows(self, sql: str, *parameters: Any) -> list[tuple[Any, ...]]:
        found: list[tuple[Any, ...]] = self._read(sql, *parameters)
        return found

    def message(self, seq: int) -> Message:
        return self.core.messages[seq]


def disable_timers(patch: pytest.MonkeyPatch, linger_s: float = 0.0) -> None:
    """Disable the timers of the engine, which follow the real clock."""
    patch.setattr(engines, "_MAINTENANCE_S", 1e9)
    patch.setattr(engine, "_ACK_DELAY_S", linger_s)
