"""Who uses the broker during a soak: each comes back whenever its connection ends."""

import asyncio
import random
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from time import monotonic
from typing import Final

from phpmq_lite.protocol.connection import ClientSide
from phpmq_lite.protocol.frames import Dispatch
from tests.faults.ledger import KEY_BYTES, seq_of
from tests.soak.ledger import LONG_TTL_S, SoakLedger, key_of

QUEUES: Final = ("orders", "mails")
MARKS: Final = "marks"  # publishes behind acknowledgements; nobody consumes it, so they expire
MARK_TTL_S: Final = 30
WINDOW: Final = 200  # unanswered publishes of a producer
CREDIT: Final = 50
TICK_S: Final = 0.02
FULL: Final = ("disk full", "database full")  # how reasons begin that a full disk gives
STAYS_S: Final = (20.0, 60.0)  # a consumer's connection


@dataclass
class Scene:
    """What all clients share."""

    port: int
    books: SoakLedger
    rng: random.Random
    rate: float  # confirmed publishes a second, of all producers
    is_publishing: bool = True
    is_over: bool = False
    last_confirm_at: float = 0.0  # monotonic


class Client:
    """Connects, talks, and begins again when that ends."""

    def __init__(self, scene: Scene) -> None:
        self.scene, self.books = scene, scene.books
        self.side = ClientSide()

    async def run(self) -> None:
        """Work until the scene is over."""
        while not self.scene.is_over:
            with suppress(OSError, TimeoutError):
                await self._connect_and_talk()
            await asyncio.sleep(0.1)

    async def _connect_and_talk(self) -> None:
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
                else:
                    self.answered(int(frame.key), frame.reason)
            if self.side.error is not None:
                self.books.offend(f"the broker broke the grammar: {self.side.error}")
            self.go_on()

    async def work(self, reading: "asyncio.Task[None]") -> None:
        """Do something beside reading, for as long as it goes."""
        while not reading.done() and not self.scene.is_over:
            await asyncio.sleep(TICK_S)
            self.tick()
            await self.writer.drain()

    def begin(self) -> None:
        """Say the first words of a connection."""

    def tick(self) -> None:
        """Say something more."""

    def take(self, dispatch: Dispatch) -> None:
        """Take a dispatch."""

    def go_on(self) -> None:
        """All frames of a read were taken."""

    def answered(self, number: int, reason: str | None) -> None:
        """Book a receipt."""
        if reason is None:
            self.books.confirm(number)
            self.scene.last_confirm_at = monotonic()
            return
        self.books.refuse(number, reason)
        if not reason.startswith(FULL):
            self.books.offend(f"message {number} was refused: {reason}")


def _bodies(rng: random.Random) -> Iterator[bytes]:
    """Give what follows the key in a body: mostly small."""
    while True:
        yield b"c" * (20_000 if rng.random() < 0.01 else rng.randrange(400))


class Producer(Client):
    """Publishes with keys at an even pace, and repeats what has no answer."""

    def __init__(self, scene: Scene, share: float) -> None:
        super().__init__(scene)
        self._rate = scene.rate * share
        self._due = 0.0
        self._rests = _bodies(scene.rng)
        self._is_refused = False  # in this tick
        self.unanswered: dict[int, bytes] = {}  # number -> its frame, in order

    def begin(self) -> None:
        """Repeat what has no answer."""
        self.writer.write(b"".join(self.unanswered.values()))

    def answered(self, number: int, reason: str | None) -> None:
        """Book it; who is refused waits a moment."""
        super().answered(number, reason)
        self.unanswered.pop(number, None)
        self._is_refused |= reason is not None

    def tick(self) -> None:
        """Publish what is due by now."""
        if self._is_refused or not self.scene.is_publishing:
            self._is_refused, self._due = False, 0.0
            return
        self._due = min(self._due + self._rate * TICK_S, WINDOW)
        rng = self.scene.rng
        while self._due >= 1 and len(self.unanswered) < WINDOW:
            self._due -= 1
            ttl_s = rng.choice((0, 0, 0, 0, 0, 0, LONG_TTL_S, 2))
            number = self.books.new(has_long_ttl=ttl_s == LONG_TTL_S)
            key = key_of(number)
            frame = self.side.publish(rng.choice(QUEUES), key + next(self._rests), ttl_s, key)
            self.unanswered[number] = frame
            self.writer.write(frame)


class Publisher(Client):
    """Publishes without keys, as any PHP script does: stored or not, but never twice."""

    def tick(self) -> None:
        """Publish one, where there is room."""
        if self.scene.is_publishing and not self.writer.transport.get_write_buffer_size():
            body = key_of(self.books.new()) + b"u" * 100
            self.writer.write(self.side.publish(self.scene.rng.choice(QUEUES), body))
            self.books.counts["unkeyed"] += 1


class Consumer(Client):
    """Acknowledges most, requeues and dead-letters some, forgets a few.

    Behind its acknowledgements it sends a confirmed publish: its receipt tells that they are
    stored.  Where that is refused, the next one tells.
    """

    def begin(self) -> None:
        """Open a window on all queues."""
        self._is_last = not self.scene.is_publishing  # and forgets nothing
        self._leaves_at = monotonic() + self.scene.rng.uniform(*STAYS_S)
        self._ends: list[bytes] = []  # frames of this read
        self._ending: list[int] = []  # numbers of what is ended and not proved
        self._marks: dict[int, list[int]] = {}  # number of a mark -> what it was sent behind
        self.writer.write(b"".join(self.side.consume(queue, CREDIT) for queue in QUEUES))

    def tick(self) -> None:
        """Leave now and then: what it forgot goes to others."""
        if monotonic() > self._leaves_at or (not self.scene.is_publishing and not self._is_last):
            self.writer.close()

    def take(self, dispatch: Dispatch) -> None:
        """Decide what becomes of a message."""
        message_id, queue = dispatch.message_id, dispatch.queue
        number = self.books.dispatch(dispatch.content[:KEY_BYTES], seq_of(message_id))
        if number is None:
            return
        chance = 0.0 if self._is_last else self.scene.rng.random()
        if chance < 0.93:
            self._ends.append(self.side.acknowledge(queue, message_id))
            self._ending.append(number)
        elif chance < 0.96:
            self.books.requeue(number)
            self._ends.append(self.side.requeue(queue, message_id, 0))
        elif chance < 0.98:
            self._ends.append(self.side.dead_letter(queue, message_id))
            self._ending.append(number)

    def go_on(self) -> None:
        """Send the ends, and what proves that they are stored."""
        if not self._ends:
            return
        mark = self.books.new()
        self._marks[mark], self._ending = self._ending, []
        key = key_of(mark)
        self.writer.write(b"".join(self._ends) + self.side.publish(MARKS, key, MARK_TTL_S, key))
        self._ends = []

    def answered(self, number: int, reason: str | None) -> None:
        """What stands before a mark is stored."""
        super().answered(number, reason)
        ended = self._marks.pop(number, [])
        if reason is None:
            self.books.end(ended)
        else:
            self._ending += ended
