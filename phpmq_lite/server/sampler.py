"""Drives the roll-ups: a sample of every queue each 10 s, rows into the batches of the engine.

A sample goes over the queues in slices, so that the loop is not held up: with 10,000 queues each
slice takes about a millisecond.
"""

import asyncio
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Final

from phpmq_lite.broker.core import Broker
from phpmq_lite.broker.sweeps import Answer
from phpmq_lite.errors import StorageError
from phpmq_lite.server.engine import Engine
from phpmq_lite.server.rollups import HOUR_S, SLOT_S, Rollups, Writes
from phpmq_lite.storage.browse import Browser
from phpmq_lite.storage.readers import Readers
from phpmq_lite.storage.rollups import MINUTE_S, QUARTER_S, Point, StoredRollups

_AFTER_S: Final = 0.05  # behind the end of a slot: a timer may fire a little early
_AGES_AT_ONCE: Final = 500  # queues in one read


class Sampler:
    """Takes the samples of one broker: ``run`` until it is cancelled, then ``finish`` once."""

    def __init__(self, engine: Engine, readers: Readers, rollups: Rollups) -> None:
        self._engine = engine
        self._rollups = rollups
        self._stored = StoredRollups(readers)
        self._browser = Browser(readers)
        self._work: Iterator[Writes] = iter(())  # a sample under way
        self.is_loaded = False  # goes on from what is stored
        rollups.begin(self._now_ms() // 1_000)

    def _now_ms(self) -> int:
        return self._engine.clock.now().wall_ms

    async def run(self) -> None:
        """Go on from what is stored, then take a sample at the end of each slot."""
        with suppress(StorageError):  # without the past there is still the present
            await self._go_through(self._rollups.load(await self._past()))
        self.is_loaded = True
        await self._look()
        while True:
            await asyncio.sleep(SLOT_S - self._now_ms() / 1_000 % SLOT_S + _AFTER_S)
            await self.sample()

    async def _past(self) -> list[tuple[int, Point]]:
        last_s = await self._stored.last(MINUTE_S)
        if last_s is None:
            return []
        now_s = self._now_ms() // 1_000
        since_s = min(now_s // MINUTE_S * MINUTE_S - HOUR_S, last_s // QUARTER_S * QUARTER_S)
        return await self._stored.since(MINUTE_S, since_s)

    async def sample(self) -> None:
        """Take one sample and store what is complete with it."""
        rollups, lives = self._rollups, self._engine.core.lives
        await self._look()
        now_s = self._now_ms() // 1_000
        await self._go_through(rollups.close(now_s))
        if not now_s % MINUTE_S // SLOT_S:
            rollups.note_refused(now_s, self._engine.core.refused)
            rollups.forget(lives.by_id)

    async def _look(self) -> None:
        rollups = self._rollups
        await self._go_through(rollups.collect(list(self._engine.core.lives.by_id.values())))
        with suppress(StorageError):  # the ages stay as they were
            rollups.ages = await self._read_ages(rollups.waiting)

    async def _go_through(self, work: Iterator[Writes]) -> None:
        self._work = work
        for writes in work:
            if writes:
                self._engine.submit(lambda core, writes=writes: _store(core, writes))  # type: ignore[misc]
            await asyncio.sleep(0)

    async def _read_ages(self, waiting: list[int]) -> dict[int, int]:
        ages: dict[int, int] = {}
        for at in range(0, len(waiting), _AGES_AT_ONCE):
            ages |= await self._browser.oldest_ready(waiting[at : at + _AGES_AT_ONCE])
        return ages

    async def finish(self) -> None:
        """Store what no full minute has yet: once nobody gives commands, before the engine ends.

        A broker that is stopped before it has read its past leaves that as it is.
        """
        if not self.is_loaded:
            return

        def finish(core: Broker, answer: Answer) -> None:
            for writes in self._rest(core):
                _store(core, writes)
            core.lives.batch.answers.append((answer, None))

        await self._engine.call(finish)

    def _rest(self, core: Broker) -> Iterator[Writes]:
        yield from self._work  # a sample that was cancelled half-way
        yield from self._rollups.collect(list(core.lives.by_id.values()))
        yield from self._rollups.close(self._now_ms() // 1_000, is_last=True)


def _store(core: Broker, writes: Iterable[tuple[str, str, tuple[object, ...]]]) -> None:
    core.lives.batch.rare += writes
