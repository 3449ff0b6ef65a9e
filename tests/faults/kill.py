"""A broker is killed, stopped and held up under mixed load, and the clients compare their books.

``python -m tests.faults.kill --kills 500 --terms 50 --stops 20`` prints the figures and ends with 1
if anything is lost; ``--seed N`` repeats the choices of a run, though not its moments.
"""

import argparse
import asyncio
import logging
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final, cast

from phpmq_lite.storage.data_folder import DATABASE
from tests.faults.ledger import QUEUES, TIMED, Crowd, Late, Ledger, Load, is_drained
from tests.faults.mutants import program_of
from tests.support.fork_server import BrokerProcess, ForkedProcess

MOST_RECEIPTS: Final = 2_000  # between two kills
DRAIN_S: Final = 60
TERM_S: Final = 10.0  # within it a broker that is told to stop has ended
HELD_UP_S: Final = (4.5, 7.0)  # stopped for: longer than a timeout, a short TTL and its margin
ACK_TIMEOUT_S: Final = 3  # no end of a client on a busy machine is so late
WORK_S: Final = 0.2  # so much is held at any moment
MOMENTS: Final = {"load": 14, "start": 2, "checkpoint": 2, "stop": 2}  # of a kill, with weights

Run = Callable[..., Awaitable["Lives"]]


@dataclass
class Lives:
    """A broker that ends again and again, each time otherwise; what it was told is in the books."""

    broker: BrokerProcess
    ledger: Ledger
    starts_ms: list[float] = field(default_factory=list)
    ends_s: list[float] = field(default_factory=list)  # from SIGTERM to the exit
    kills: Counter[str] = field(default_factory=Counter)  # by moment
    again: int = 0  # redelivered after a SIGCONT

    @classmethod
    def of(cls, folder: Path, seed: int, *flags: str, mutant: str = "") -> "Lives":
        """Make them in an empty folder; ``mutant`` names a broker with a defect."""
        # Without the bound of 2 GiB: what retention removed could not be told from what was lost.
        given = ["--admin", "none", "--set", "history.bytes=1TiB", *flags]
        broker = BrokerProcess(folder / "data", given, program=program_of(mutant))
        return cls(broker, Ledger(random.Random(seed)))

    @property
    def process(self) -> ForkedProcess:
        """The broker's process, while it runs."""
        process = self.broker.process
        assert process is not None
        return cast(ForkedProcess, process)  # of a preloaded broker

    async def start(self) -> None:
        """Start it, and see that what was confirmed is on disk."""
        began = time.perf_counter()
        await asyncio.to_thread(self.broker.start)
        self.starts_ms.append((time.perf_counter() - began) * 1_000)
        self.ledger.compare(self.broker.data)

    def crowd(self, load: Load | None = None) -> Crowd:
        """Give the clients of this life."""
        return Crowd(self.ledger, self.broker.port, load)

    # -- SIGKILL

    async def kill(self) -> None:
        """Start, load, and kill at a moment of chance."""
        rng = self.ledger.rng
        (moment,) = rng.choices(list(MOMENTS), list(MOMENTS.values()))
        if moment == "start" and self.starts_ms:
            await self._kill_in_start(rng.uniform(0.0, max(self.starts_ms) / 1_000))
            return
        await self.start()
        receipts = rng.randint(1, MOST_RECEIPTS)
        if moment == "checkpoint":
            await self.crowd(Load(large=0.5)).work(receipts, self._kill_in_checkpoint)
        elif moment == "stop":
            await self.crowd(Load(acks_all=True)).work(receipts, self._kill_in_stop)
        else:
            await self.crowd().work(receipts, self.process.kill)
        self.broker.kill()
        self.kills[moment] += 1

    async def _kill_in_start(self, after_s: float) -> None:
        with self.broker.log.open("a", encoding="utf-8") as log:
            process = ForkedProcess(self.broker.command[2:], stdout=subprocess.PIPE, stderr=log)
        await asyncio.sleep(after_s)
        assert process.poll() is None
        process.kill()
        process.communicate()
        self.kills["start"] += 1

    def _kill_in_checkpoint(self) -> None:
        """Kill as soon as the database file is written: that is what a checkpoint does."""
        database = self.broker.data / DATABASE
        process, loop = self.process, asyncio.get_running_loop()
        before = database.stat().st_mtime_ns
        patience = loop.time() + DRAIN_S

        def look() -> None:
            if database.stat().st_mtime_ns != before or loop.time() > patience:
                process.kill()
            else:
                loop.call_later(0.001, look)

        look()

    def _kill_in_stop(self) -> None:
        process = self.process
        process.terminate()
        after_s = self.ledger.rng.uniform(0.0, 0.1)
        asyncio.get_running_loop().call_later(after_s, process.kill)

    # -- SIGTERM

    async def terminate(self, *, forgets: bool = False, is_twice: bool = False) -> None:
        """Start, load, stop: it drains, or ends at once where it is told twice.

        Where a consumer ``forgets`` to acknowledge the drain takes all its time.
        """
        rng, ledger = self.ledger.rng, self.ledger
        await self.start()
        load = Load(acks_all=not (forgets or is_twice))
        ledger.unknown.clear()  # ends of the lives before, which may be lost
        process, told_at = self.process, 0.0

        def tell() -> None:
            nonlocal told_at
            told_at = time.perf_counter()
            process.terminate()
            if is_twice:
                loop.call_later(rng.uniform(0.05, 1.0), process.terminate)

        loop = asyncio.get_running_loop()
        await self.crowd(load).work(rng.randint(1, MOST_RECEIPTS), tell)
        code = await asyncio.to_thread(process.wait, 3 * TERM_S)
        self.ends_s.append(time.perf_counter() - told_at)
        self.broker.kill()  # it has ended
        if code:
            ledger.offences.append(f"SIGTERM: exit code {code}")
        if self.ends_s[-1] > (TERM_S / 2 if is_twice else TERM_S + 1):
            ledger.offences.append(f"SIGTERM: it took {self.ends_s[-1]:.1f} s to stop")
        if load.acks_all:
            ledger.see_ended(self.broker.data)

    # -- SIGSTOP

    async def hold_up(self) -> None:
        """Load it, stop it for longer than timeouts and lives, and let it go on.

        Its consumers sleep with it each other time; else what they sent meanwhile is waiting.
        """
        rng, ledger = self.ledger.rng, self.ledger
        process, earlier = self.process, Counter(ledger.times)
        before, after = Counter[bytes](), Counter[bytes]()
        crowd = self.crowd(Load(queues=(*QUEUES, TIMED), acks_all=True, work_s=WORK_S))

        def leave() -> None:
            after.update(ledger.times)  # what they hold now comes again, perhaps the next time
            crowd.leave()

        async def hold() -> None:
            process.send_signal(signal.SIGSTOP)
            crowd.is_asleep = self.kills["held up"] % 2 == 0
            before.update(ledger.times - earlier)
            await asyncio.sleep(rng.uniform(*HELD_UP_S))
            process.send_signal(signal.SIGCONT)
            crowd.is_asleep = False
            await crowd.join(Late)
            crowd.receipts_left, crowd.at_the_end = MOST_RECEIPTS, leave

        held: list[asyncio.Task[None]] = []
        receipts = rng.randint(MOST_RECEIPTS // 2, MOST_RECEIPTS)
        await crowd.work(receipts, lambda: held.append(asyncio.create_task(hold())))
        await held[0]
        self.kills["held up"] += 1
        for message_id in (after - earlier - before).keys() & before:
            self.again += 1
            ledger.offences.append(f"{message_id!r} came again because the broker stood still")

    # -- the end

    async def finish(self) -> None:
        """Consume what is there, and compare everything."""
        data = self.broker.data
        async with asyncio.timeout(DRAIN_S):
            await self.crowd(Load(acks_all=True)).drain(lambda: is_drained(data))
        code = await asyncio.to_thread(self.broker.terminate)
        if code:
            self.ledger.offences.append(f"exit code {code}")
        self.ledger.audit(data)

    def says(self) -> str:
        """Sum up the books."""
        ledger = self.ledger
        lost = sum("lost" in text or "neither" in text for text in ledger.offences)
        again = sum("dispatched after its end" in text for text in ledger.offences)
        twice = sum("twice" in text for text in ledger.offences)
        return (
            f"{len(ledger.confirmed):,} confirmed, {lost} lost; {ledger.ended} stored ends, "
            f"{again} dispatched again; {twice} keys stored twice; {ledger.dispatched:,} "
            f"dispatches, {ledger.redelivered:,} of them again whose end had no answer; "
            f"{ledger.unkeyed:,} publishes without a key"
        )


async def killed(folder: Path, seed: int, kills: int, mutant: str = "") -> Lives:
    """Kill a broker so often; a mutant until it is found."""
    lives = Lives.of(folder, seed, mutant=mutant)
    while lives.kills.total() < kills and not (mutant and lives.ledger.offences):
        await lives.kill()
    if not mutant:
        await lives.start()
        await lives.finish()
    return lives


async def terminated(folder: Path, seed: int, terms: int, mutant: str = "") -> Lives:
    """Have a broker stop so often, some times with a consumer that forgets, some told twice.

    A mutant until it is found.
    """
    lives = Lives.of(folder, seed, mutant=mutant)
    while len(lives.ends_s) < terms and not (mutant and lives.ledger.offences):
        number = len(lives.ends_s)
        await lives.terminate(forgets=number % 8 == 1, is_twice=number % 4 == 3)
    if not mutant:
        await lives.start()
        await lives.finish()
    return lives


async def held_up(folder: Path, seed: int, stops: int, mutant: str = "") -> Lives:
    """Stop a broker for seconds so often, all in one life; a mutant until it is found."""
    flags = ("--set", f"queues.ack_timeout_s={ACK_TIMEOUT_S}")
    lives = Lives.of(folder, seed, *flags, mutant=mutant)
    await lives.start()
    while lives.kills.total() < stops and not (mutant and lives.ledger.offences):
        await lives.hold_up()
    if mutant:
        lives.broker.kill()
        lives.ledger.audit(lives.broker.data)
    else:
        await lives.finish()
    return lives


# -- figures


def figures_of_kills(lives: Lives, seed: int, took_s: float) -> list[str]:
    """Say what became of the kills."""
    return [
        f"kill -9: {lives.kills.total()} ({_by_moment(lives)}) in {took_s:.1f} s, seed {seed}: "
        f"{lives.says()}",
        f"         0 failed starts of {len(lives.starts_ms)}, "
        f"max restart {max(lives.starts_ms[1:]):.0f} ms",
    ]


def figures_of_terms(lives: Lives, seed: int, took_s: float) -> list[str]:
    """Say what became of the clean stops."""
    ends_s = sorted(lives.ends_s)
    return [
        f"SIGTERM: {len(ends_s)} under load in {took_s:.1f} s, seed {seed}: exit 0, "
        f"p50 {ends_s[len(ends_s) // 2]:.2f} s, max {ends_s[-1]:.2f} s; {lives.says()}"
    ]


def figures_of_stops(lives: Lives, seed: int, took_s: float) -> list[str]:
    """Say what became of being stopped for seconds."""
    low_s, high_s = HELD_UP_S
    return [
        f"SIGSTOP: {lives.kills['held up']} under load, {low_s} to {high_s} s each with an "
        f"acknowledgement timeout of {ACK_TIMEOUT_S} s, in {took_s:.1f} s, seed {seed}: "
        f"{lives.again} redelivered; "
        f"{lives.says()}"
    ]


def _by_moment(lives: Lives) -> str:
    return ", ".join(f"{count} in a {moment}" for moment, count in lives.kills.most_common())


def main() -> int:
    """Do all three, and print what was seen."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("kills", "terms", "stops", "seed"):
        parser.add_argument(f"--{name}", type=int, default=0)
    given = parser.parse_args()
    logging.getLogger("asyncio").setLevel(logging.ERROR)  # it tells of each write to a dead broker
    seed = given.seed or random.SystemRandom().randrange(1, 10**9)
    offences: list[str] = []
    for run, number, tell in (
        (killed, given.kills, figures_of_kills),
        (terminated, given.terms, figures_of_terms),
        (held_up, given.stops, figures_of_stops),
    ):
        if number:
            with TemporaryDirectory() as folder:
                began = time.perf_counter()
                lives = asyncio.run(run(Path(folder), seed, number))
                lines = tell(lives, seed, time.perf_counter() - began)
            offences += lives.ledger.offences
            print("\n".join(lines), flush=True)
    print("\n".join(offences[:50]))
    return 1 if offences else 0


if __name__ == "__main__":
    sys.exit(main())
