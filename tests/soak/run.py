"""One soak from its first message to the audit."""

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

RATE: Final = 300.0  # confirmed publishes a second
PRODUCERS: Final = 3
CONSUMERS: Final = 3
LONG_LIFE: Final = (0.2, 0.9)  # of the time: no process ends between, so that slopes can be seen
LEAST_FOR_THAT_S: Final = 2_400.0  # shorter soaks have no long life
CALM_S: Final = 60.0  # for what is unanswered, and for what is left in the queues


@dataclass(frozen=True)
class Plan:
    """What a soak is to be."""

    seconds: float
    seed: int
    each_s: tuple[float, float] = (10.0, 60.0)  # from one thing that befalls it to the next
    kinds: Sequence[str] = tuple(ALL)
    rate: float = RATE
    scale: float = 1.0  # of how long what befalls it lasts
    program: tuple[str, ...] = ("-m", "phpmq_lite")

    def may_end(self, at_s: float) -> bool:
        """Tell whether the process may be ended at a time."""
        begin, end = (share * self.seconds for share in LONG_LIFE)
        return not (self.has_long_life and begin <= at_s < end)

    @property
    def has_long_life(self) -> bool:
        """Tell whether there is time for a long life of one process."""
        return self.seconds >= LEAST_FOR_THAT_S


@dataclass
class Soak:
    """What became of it."""

    plan: Plan
    house: SoakBroker
    nemesis: Nemesis
    books: SoakLedger
    took_s: float


async def soak(plan: Plan, folder: Path) -> Soak:
    """Do it; what must not be is in ``books.offences``."""
    rng = random.Random(plan.seed)
    house, books = SoakBroker(folder, plan.program), SoakLedger()
    began = monotonic()
    async with house.open():
        scene = Scene(house.link.port, books, random.Random(rng.random()), plan.rate)
        nemesis = Nemesis(house, scene, rng, plan.scale)
        producers = [Producer(scene, 1 / PRODUCERS) for _ in range(PRODUCERS)]
        clients: list[Client] = [*producers, Publisher(scene)]
        clients += [Consumer(scene) for _ in range(CONSUMERS)]
        tasks = [asyncio.create_task(client.run()) for client in clients]
        tasks += [asyncio.create_task(house.read()), asyncio.create_task(_look(house, rng))]
        try:
            await _befall(plan, nemesis, began)
            await _calm_down(scene, producers, house)
        finally:
            scene.is_over = True
            for task in tasks:
                task.cancel()
            for task in tasks:
                with suppress(asyncio.CancelledError):
                    await task
        code = await house.terminate()
        if code:
            books.offend(f"the last exit code is {code}")
        await books.audit(house.data)
    for failure, times in house.failures.items():
        books.offend(f"HTTP {failure}: {times} times")
    return Soak(plan, house, nemesis, books, monotonic() - began)


async def _befall(plan: Plan, nemesis: Nemesis, began: float) -> None:
    """Do one thing after the other until the time is over: each kind once, then by chance."""
    rng = nemesis.rng
    first = set(plan.kinds)
    while (at_s := monotonic() - began) < plan.seconds:
        pause = min(rng.uniform(*plan.each_s), plan.seconds - at_s)
        ends = monotonic() + pause
        while monotonic() < ends:
            await asyncio.sleep(min(1.0, pause))
            await nemesis.look_after()
        may_end = plan.may_end(monotonic() - began)
        possible = [kind for kind in plan.kinds if may_end or kind not in ENDINGS]
        if may_end and plan.has_long_life and rng.random() < 0.5:  # there is little time for it
            possible = [kind for kind in possible if kind in ENDINGS] or possible
        if possible:
            kind = rng.choice([kind for kind in possible if kind in first] or possible)
            first.discard(kind)
            await nemesis.act(kind)


async def _calm_down(scene: Scene, producers: Sequence[Producer], house: SoakBroker) -> None:
    """Publish no more, and see that all is answered and consumed."""
    scene.is_publishing = False

    def is_calm() -> bool:
        return not any(one.unanswered for one in producers) and is_drained(house.data)

    patience = monotonic() + CALM_S
    while not scene.books.offences and not await asyncio.to_thread(is_calm):
        await asyncio.sleep(0.2)
        if monotonic() > patience:
            unanswered = sum(len(one.unanswered) for one in producers)
            scene.books.offend(f"after {CALM_S} s {unanswered} publishes have no answer, or "
                               "messages are left that nobody gets")  # fmt: skip
            return


async def _look(house: SoakBroker, rng: random.Random) -> None:
    """Be somebody with a browser, for ever."""
    while True:
        await asyncio.sleep(0.5)
        if house.is_up:
            await house.ask(rng.choice(PAGES))
