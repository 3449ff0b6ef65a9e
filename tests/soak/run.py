"""A soak from its first message to the audit."""

import asyncio
import random
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Final

from tests.faults.ledger import is_drained
from tests.soak.broker import SoakBroker
from tests.soak.clients import Client, Consumer, Producer, Publisher, Scene
from tests.soak.ledger import SoakLedger
from tests.soak.nemesis import ALL, ENDINGS, PAGES, Nemesis

RATE: Final = 300.0  # confirmed publishes per second
PRODUCERS: Final = 3
CONSUMERS: Final = 3
LONG_RUN: Final = (0.2, 0.9)  # share of the time in which the process is kept, to measure slopes
MIN_FOR_LONG_RUN_S: Final = 2_400.0  # shorter soaks have no long run
DRAIN_S: Final = 60.0  # for receipts and for the messages left in the queues


@dataclass(frozen=True)
class Plan:
    seconds: float
    seed: int
    interval_s: tuple[float, float] = (10.0, 60.0)  # between faults
    kinds: Sequence[str] = tuple(ALL)
    rate: float = RATE
    scale: float = 1.0  # of the durations of faults
    program: tuple[str, ...] = ("-m", "phpmq_lite")
    stops_at_problem: bool = False

    def may_end(self, at_s: float) -> bool:
        """Return whether a fault may end the process at this time."""
        begin, end = (share * self.seconds for share in LONG_RUN)
        return not (self.has_long_run and begin <= at_s < end)

    @property
    def has_long_run(self) -> bool:
        """Return whether the soak is long enough for a long run of one process."""
        return self.seconds >= MIN_FOR_LONG_RUN_S


@dataclass
class Soak:
    plan: Plan
    broker: SoakBroker
    nemesis: Nemesis
    ledger: SoakLedger
    took_s: float


async def soak(plan: Plan, folder: Path) -> Soak:
    """Run a soak; ``ledger.problems`` of the result lists the violations."""
    rng = random.Random(plan.seed)
    broker, ledger = SoakBroker(folder, plan.program), SoakLedger()
    began = monotonic()
    async with broker.open():
        scene = Scene(broker.link.port, ledger, random.Random(rng.random()), plan.rate)
        nemesis = Nemesis(broker, scene, rng, plan.scale)
        producers = [Producer(scene, 1 / PRODUCERS) for _ in range(PRODUCERS)]
        clients: list[Client] = [*producers, Publisher(scene)]
        clients += [Consumer(scene) for _ in range(CONSUMERS)]
        tasks = [asyncio.create_task(client.run()) for client in clients]
        tasks += [asyncio.create_task(broker.read()), asyncio.create_task(_browse(broker, rng))]
        try:
            await _inject_faults(plan, nemesis, began)
            await _drain(scene, producers, broker)
        finally:
            scene.is_over = True
            for task in tasks:
                task.cancel()
            for task in tasks:
                with suppress(asyncio.CancelledError):
                    await task
        code = await broker.terminate()
        if code:
            ledger.add_problem(f"the last exit code is {code}")
        await ledger.audit(broker.data)
    for failure, times in broker.failures.items():
        ledger.add_problem(f"HTTP {failure}: {times} times")
    return Soak(plan, broker, nemesis, ledger, monotonic() - began)


async def _inject_faults(plan: Plan, nemesis: Nemesis, began: float) -> None:
    """Inject faults until the time is over: each kind once, then at random."""
    rng = nemesis.rng
    first = set(plan.kinds)
    while (at_s := monotonic() - began) < plan.seconds:
        if plan.stops_at_problem and nemesis.scene.ledger.problems:
            return
        pause = min(rng.uniform(*plan.interval_s), plan.seconds - at_s)
        ends = monotonic() + pause
        while monotonic() < ends:
            await asyncio.sleep(min(1.0, pause))
            await nemesis.restart_if_exited()
        may_end = plan.may_end(monotonic() - began)
        possible = [kind for kind in plan.kinds if may_end or kind not in ENDINGS]
        if may_end and plan.has_long_run and rng.random() < 0.5:  # few faults may end it
            possible = [kind for kind in possible if kind in ENDINGS] or possible
        if possible:
            kind = rng.choice([kind for kind in possible if kind in first] or possible)
            first.discard(kind)
            await nemesis.act(kind)


async def _drain(scene: Scene, producers: Sequence[Producer], broker: SoakBroker) -> None:
    """Stop publishing, and wait until all publishes have receipts and all messages are settled."""
    scene.is_publishing = False

    def is_finished() -> bool:
        return not any(one.unanswered for one in producers) and is_drained(broker.data)

    deadline = monotonic() + DRAIN_S
    while not scene.ledger.problems and not await asyncio.to_thread(is_finished):
        await asyncio.sleep(0.2)
        if monotonic() > deadline:
            unanswered = sum(len(one.unanswered) for one in producers)
            scene.ledger.add_problem(
                f"after {DRAIN_S} s, {unanswered} publishes have no receipt, or messages are left"
            )
            return


async def _browse(broker: SoakBroker, rng: random.Random) -> None:
    while True:
        await asyncio.sleep(0.5)
        if broker.is_up:
            await broker.request(rng.choice(PAGES))
