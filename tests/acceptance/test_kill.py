"""``kill -9`` under mixed load: nothing confirmed is lost, nothing done comes again.

``PHPMQ_KILLS=200 python -m pytest tests/acceptance/test_kill.py`` kills more often.
``PHPMQ_SEED=…`` repeats the choices of a run, though not its moments.
"""

import asyncio
import os
import random
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.acceptance import mutants
from tests.acceptance.ledger import Crowd, Ledger, is_drained
from tests.preloaded import BrokerProcess, Process

pytestmark = pytest.mark.acceptance

KILLS = int(os.environ.get("PHPMQ_KILLS", "20"))
SEED = int(os.environ.get("PHPMQ_SEED", "0")) or random.SystemRandom().randrange(1, 10**9)
MOST_RECEIPTS = 2_000  # between two kills
DRAIN_S = 60


@dataclass
class Lives:
    """A broker that is killed again and again."""

    broker: BrokerProcess
    ledger: Ledger
    starts_ms: list[float] = field(default_factory=list)
    kills_in_start: int = 0

    async def start(self) -> None:
        """Start it; now and then it is killed while it starts, and started again."""
        rng = self.ledger.rng
        if len(self.starts_ms) > 1 and rng.random() < 0.1:
            await self._kill_in_start(rng.uniform(0.0, max(self.starts_ms[1:]) / 1_000))
        began = time.perf_counter()
        await asyncio.to_thread(self.broker.start)
        self.starts_ms.append((time.perf_counter() - began) * 1_000)

    async def _kill_in_start(self, after_s: float) -> None:
        with self.broker.log.open("a", encoding="utf-8") as log:
            process = Process(self.broker.command[2:], stdout=subprocess.PIPE, stderr=log)
        await asyncio.sleep(after_s)
        assert process.poll() is None
        process.kill()
        process.communicate()
        self.kills_in_start += 1

    async def live(self) -> None:
        """Start, compare, load, kill."""
        await self.start()
        self.ledger.compare(self.broker.data)
        crowd = Crowd(self.ledger, self.broker.port)
        process = self.broker.process
        assert process is not None
        await crowd.work(self.ledger.rng.randint(1, MOST_RECEIPTS), process.kill)
        self.broker.kill()

    async def finish(self) -> None:
        """Start a last time, consume what is there, and compare everything."""
        await self.start()
        self.ledger.compare(self.broker.data)
        data = self.broker.data
        async with asyncio.timeout(DRAIN_S):
            await Crowd(self.ledger, self.broker.port).drain(lambda: is_drained(data))
        assert self.broker.terminate() == 0
        self.ledger.audit(data)


@pytest.mark.timeout(120 + 10 * KILLS)
async def test_broker_loses_nothing_when_it_is_killed(
    tmp_path: Path, figure: Callable[[str], None]
) -> None:
    """F3 of ``storage.md`` 11."""
    ledger = Ledger(random.Random(SEED))
    lives = Lives(BrokerProcess(tmp_path / "data", ["--admin", "none"]), ledger)
    began = time.perf_counter()
    for _ in range(KILLS):
        await lives.live()
    await lives.finish()
    lost = sum("lost" in text or "neither" in text for text in ledger.offences)
    again = sum("dispatched after" in text for text in ledger.offences)
    twice = sum("twice" in text for text in ledger.offences)
    figure(
        f"kill -9: {KILLS} kills under load and {lives.kills_in_start} in a start, in "
        f"{time.perf_counter() - began:.1f} s, seed {SEED}: {len(ledger.confirmed):,} confirmed, "
        f"{lost} lost; {ledger.ended} stored ends, {again} dispatched again; {twice} keys stored "
        f"twice; 0 failed starts of {len(lives.starts_ms)}, "
        f"max restart {max(lives.starts_ms[1:]):.0f} ms"
    )
    figure(
        f"         {ledger.dispatched:,} dispatches, {ledger.redelivered:,} again whose end had "
        f"no answer, {ledger.unkeyed:,} publishes without a key"
    )
    assert ledger.offences == []
    assert not ledger.unanswered.keys() & ledger.confirmed


@pytest.mark.parametrize("mutant", mutants.MUTANTS)
async def test_ledger_finds_a_broker_that(
    tmp_path: Path, mutant: str, figure: Callable[[str], None]
) -> None:
    """A fault test that cannot fail is worth nothing."""
    ledger = Ledger(random.Random(SEED))
    program = ("-m", mutants.__name__, mutant)
    broker = BrokerProcess(tmp_path / "data", ["--admin", "none"], program=program)
    lives = Lives(broker, ledger)
    kills = 0
    while not ledger.offences and kills < 30:
        await lives.live()
        kills += 1
    figure(f"mutant {mutant}: found after {kills} kills: {ledger.offences[:1]}")
    assert ledger.offences
