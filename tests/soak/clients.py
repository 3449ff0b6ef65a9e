"""Clients of a soak, which reconnect whenever their connection ends."""

import asyncio
import random
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from time import monotonic
from typing import Final

from phpmq_lite.protocol.connection import ClientSide
from phpmq_lite.protocol.frames import Dispatch, ReceiptFrame
from tests.faults.ledger import KEY_BYTES, seq_of
from tests.soak.ledger import LONG_TTL_S, SoakLedger, key_of

QUEUES: Final = ("orders", "mails")
MARKS: Final = "marks"  # publishes sent after acknowledgements; they expire unconsumed
MARK_TTL_S: Final = 30
WINDOW: Final = 200  # unanswered publishes of a producer
CREDIT: Final = 50
TICK_S: Final = 0.02
FULL: Final = ("disk full", "database full")  # prefixes of the reasons for a full disk
STAYS_S: Final = (20.0, 60.0)  # lifetime of a consumer's connection


@dataclass
class Scene:
    """State shared by all clients."""

    port: int
    ledger: SoakLedger
    rng: random.Random
    rate: float  # confirmed publishes per second, by all producers together
    is_publishing: bool = True
    is_over: bool = False
    last_confirm_at: float = 0.0  # monotonic


class Client:
    """A client that reconnects until the soak is over."""

    def __init__(self, scene: Scene) -> None:
        self.scene, self.ledger = scene, scene.ledger
        self.side = ClientSide()

    async def run(self) -> None:
        """Connect and work until the soak is over."""
        while not self.scene.is_over:
            with suppress(OSError, TimeoutError):
                await self._run_once()
            await asyncio.sleep(0.1)

    async def _run_once(self) -> None:
        reader, self.writer = await asyncio.open_connection("127.0.0.1", self.scene.port)
        self.side = ClientSide()
        try:
            self.begin()
            reading = asyncio.create_task(self._read(reader))
            try:
                await self.work(reading)
            finally:
                reading.cancel()
                with suppress(asyncio.CancelledError, OSError):
                    await reading
        finally:
            self.writer.transport.abort()

    async def _read(self, reader: asyncio.StreamReader) -> None:
        while data := await reader.read(1 << 16):
            for frame in self.side.receive(data):
                if isinstance(frame, Dispatch):
                    self.take(frame)
                elif isinstance(frame, ReceiptFrame):
                    self.handle_receipt(int(frame.key), frame.reason)
            if self.side.error is not None:
                self.ledger.add_problem(f"the broker sent invalid frames: {self.side.error}")
            self.end_read()

    async def work(self, reading: "asyncio.Task[None]") -> None:
        """Call ``tick`` until the connection ends or the soak is over."""
        while not reading.done() and not self.scene.is_over:
            await asyncio.sleep(TICK_S)
            self.tick()
            await self.writer.drain()

    def begin(self) -> None:
        """Send the first frames of a connection."""

    def tick(self) -> None:
        """Send more frames."""

    def take(self, dispatch: Dispatch) -> None:
        """Handle a dispatch."""

    def end_read(self) -> None:
        """Finish a read, after all its frames were handled."""

    def handle_receipt(self, number: int, reason: str | None) -> None:
        if reason is None:
            self.ledger.confirm(number)
            self.scene.last_confirm_at = monotonic()
            return
        self.ledger.refuse(number, reason)
        if not reason.startswith(FULL):
            self.ledger.add_problem(f"message {number} was refused: {reason}")


def _bodies(rng: random.Random) -> Iterator[bytes]:
    """Yield the rest of a body after its key; most are small."""
    while True:
        yield b"c" * (20_000 if rng.random() < 0.01 else rng.randrange(400))


class Producer(Client):
    """Publishes with keys at a steady rate, and repeats publishes without a receipt."""

    def __init__(self, scene: Scene, share: float) -> None:
        super().__init__(scene)
        self._rate = scene.rate * share
        self._due = 0.0
        self._rests = _bodies(scene.rng)
        self._is_refused = False  # in this tick
        self.unanswered: dict[int, bytes] = {}  # number -> its frame, in order

    def begin(self) -> None:
        """Repeat the publishes without a receipt."""
        self.writer.write(b"".join(self.unanswered.values()))

    def handle_receipt(self, number: int, reason: str | None) -> None:
        """Record the receipt; after a refusal, skip a tick."""
        super().handle_receipt(number, reason)
        self.unanswered.pop(number, None)
        self._is_refused |= reason is not None

    def tick(self) -> None:
        """Publish the messages that are due."""
        if self._is_refused or not self.scene.is_publishing:
            self._is_refused, self._due = False, 0.0
            return
        self._due = min(self._due + self._rate * TICK_S, WINDOW)
        rng = self.scene.rng
        while self._due >= 1 and len(self.unanswered) < WINDOW:
            self._due -= 1
            ttl_s = rng.choice((0, 0, 0, 0, 0, 0, LONG_TTL_S, 2))
            number = self.ledger.new(has_long_ttl=ttl_s == LONG_TTL_S)
            key = key_of(number)
            frame = self.side.publish(rng.choice(QUEUES), key + next(self._rests), ttl_s, key)
            self.unanswered[number] = frame
            self.writer.write(frame)


class Publisher(Client):
    """Publishes without keys, as PHP scripts do: at most once."""

    def tick(self) -> None:
        """Publish one message, if the write buffer is empty."""
        if self.scene.is_publishing and not self.writer.transport.get_write_buffer_size():
            body = key_of(self.ledger.new()) + b"u" * 100
            self.writer.write(self.side.publish(self.scene.rng.choice(QUEUES), body))
            self.ledger.counts["unkeyed"] += 1


class Consumer(Client):
    """Acknowledges most, requeues and dead-letters some, forgets a few.

    After its acknowledgements it sends a confirmed publish, the mark, whose receipt proves that
    they are stored.  If the mark is refused, the next one proves it.
    """

    def begin(self) -> None:
        self._is_last = not self.scene.is_publishing  # then it forgets nothing
        self._leaves_at = monotonic() + self.scene.rng.uniform(*STAYS_S)
        self._ends: list[bytes] = []  # frames of this read
        self._ending: list[int] = []  # numbers of settled messages without a proof
        self._marks: dict[int, list[int]] = {}  # number of a mark -> the messages it proves
        self.writer.write(b"".join(self.side.consume(queue, CREDIT) for queue in QUEUES))

    def tick(self) -> None:
        """Disconnect now and then, so that forgotten messages go to others."""
        if monotonic() > self._leaves_at or (not self.scene.is_publishing and not self._is_last):
            self.writer.close()

    def take(self, dispatch: Dispatch) -> None:
        """Settle, requeue or forget a message at random."""
        message_id, queue = dispatch.message_id, dispatch.queue
        number = self.ledger.dispatch(dispatch.content[:KEY_BYTES], seq_of(message_id))
        if number is None:
            return
        chance = 0.0 if self._is_last else self.scene.rng.random()
        if chance < 0.93:
            self._ends.append(self.side.acknowledge(queue, message_id))
            self._ending.append(number)
        elif chance < 0.96:
            self.ledger.requeue(number)
            self._ends.append(self.side.requeue(queue, message_id, 0))
        elif chance < 0.98:
            self._ends.append(self.side.dead_letter(queue, message_id))
            self._ending.append(number)

    def end_read(self) -> None:
        """Send the settlements of this read, and a mark."""
        if not self._ends:
            return
        mark = self.ledger.new()
        self._marks[mark], self._ending = self._ending, []
        key = key_of(mark)
        self.writer.write(b"".join(self._ends) + self.side.publish(MARKS, key, MARK_TTL_S, key))
        self._ends = []

    def handle_receipt(self, number: int, reason: str | None) -> None:
        """Record that all settlements sent before the mark are stored."""
        super().handle_receipt(number, reason)
        ended = self._marks.pop(number, [])
        if reason is None:
            self.ledger.end(ended)
        else:
            self._ending += ended
