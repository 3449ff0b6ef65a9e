"""A broker is killed, stopped and suspended under mixed load; then ledger and database must agree.

``python -m tests.faults.kill --kills 500 --terms 50 --stops 20`` prints the figures and ends with 1
if anything is lost; with ``--second``, a writer process stores the batches, and is killed as well,
alone or together with the broker.  ``--seed N`` repeats the random choices of a run, but not its
timing.
"""

import argparse
import asyncio
import logging
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final, cast

from phpmq_lite.storage.data_folder import DATABASE
from tests.faults.ledger import QUEUES, TIMED, Crowd, Late, Ledger, Load, is_drained
from tests.faults.mutants import mutant_process
from tests.faults.writer_mutants import writer_pid
from tests.support.fork_server import BrokerProcess, ForkedProcess
from tests.support.seed import SEED

MOST_RECEIPTS: Final = 2_000  # between two kills
DRAIN_S: Final = 60
TERM_S: Final = 10.0  # time limit for a clean stop
HELD_UP_S: Final = (4.5, 7.0)  # of SIGSTOP: longer than a timeout, a short TTL and its margin
ACK_TIMEOUT_S: Final = 3  # longer than clients on a busy machine need
WORK_S: Final = 0.2  # so that messages are held at any moment
MOMENTS: Final = {"load": 14, "start": 2, "checkpoint": 2, "stop": 2}  # of a kill, with weights

BROKER, WRITER, BOTH = "the broker", "its writer process", "both"
FAIL_STOP: Final = 74
FAIL_STOP_S: Final = 10.0  # time limit for a fail-stop

Run = Callable[..., Awaitable["Lives"]]


@dataclass
class Lives:
    """A broker that is ended repeatedly, and the ledger of its clients."""

    broker: BrokerProcess
    ledger: Ledger
    seed: int
    mutant: str
    is_second: bool = False  # whether a writer process stores the batches
    began_s: float = field(default_factory=time.perf_counter)
    starts_ms: list[float] = field(default_factory=list)
    ends_s: list[float] = field(default_factory=list)  # from SIGTERM to the exit
    kills: Counter[str] = field(default_factory=Counter)  # by moment
    victims: Counter[str] = field(default_factory=Counter)
    again: int = 0  # redelivered after a SIGCONT
    writer: int = 0  # pid of the writer process

    @classmethod
    def of(
        cls, folder: Path, seed: int, *flags: str, mutant: str = "", is_second: bool = False
    ) -> "Lives":
        """Use an empty folder; ``mutant`` names a broker with a defect."""
        # Retention must remove nothing: removed messages would count as lost.
        given = "--set", "history.bytes=1TiB", *flags
        broker = mutant_process(folder / "data", mutant, *given, is_second=is_second)
        return cls(broker, Ledger(random.Random(seed)), seed, mutant, is_second)

    @property
    def process(self) -> ForkedProcess:
        process = self.broker.process
        assert process is not None
        return cast(ForkedProcess, process)

    async def start(self) -> None:
        """Start the broker, and check that confirmed messages are on disk."""
        began = time.perf_counter()
        await asyncio.to_thread(self.broker.start)
        self.starts_ms.append((time.perf_counter() - began) * 1_000)
        if self.is_second:
            self.writer = writer_pid(self.broker.data)
        self.ledger.compare(self.broker.data)

    def crowd(self, load: Load | None = None) -> Crowd:
        """Return the clients of this life."""
        return Crowd(self.ledger, self.broker.port, load)

    # -- SIGKILL

    async def kill(self, _number: int) -> None:
        """Start, load, and kill at a random moment."""
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
            victim = rng.choice((BROKER, WRITER, BOTH)) if self.is_second else BROKER
            await self.crowd().work(receipts, lambda: self._kill(victim))
            if victim == WRITER:
                await self._see_fail_stop()
            self.victims[victim] += 1
        self.broker.kill()
        self.kills[moment] += 1

    def _kill(self, victim: str) -> None:
        if victim != BROKER:
            self.signal_writer(signal.SIGKILL)
        if victim != WRITER:
            self.process.kill()

    def signal_writer(self, number: signal.Signals) -> None:
        """Send a signal to the writer process, if there is one and it still runs."""
        if self.is_second:
            with suppress(ProcessLookupError):
                os.kill(self.writer, number)

    async def _see_fail_stop(self) -> None:
        """Wait for the end of a broker whose writer process was killed."""
        code = await asyncio.to_thread(self.process.wait, FAIL_STOP_S)
        if code != FAIL_STOP:
            self.ledger.offences.append(f"exit code {code} after the writer process's end")

    async def _kill_in_start(self, after_s: float) -> None:
        with self.broker.log.open("a", encoding="utf-8") as log:
            process = ForkedProcess(self.broker.command[2:], stdout=subprocess.PIPE, stderr=log)
        await asyncio.sleep(after_s)
        assert process.poll() is None
        process.kill()
        process.communicate()
        self.kills["start"] += 1

    def _kill_in_checkpoint(self) -> None:
        """Kill as soon as the database file is written, which only a checkpoint does."""
        database = self.broker.data / DATABASE
        process, loop = self.process, asyncio.get_running_loop()
        before = database.stat().st_mtime_ns
        until = loop.time() + DRAIN_S

        def poll() -> None:
            if database.stat().st_mtime_ns != before or loop.time() > until:
                process.kill()
            else:
                loop.call_later(0.001, poll)

        poll()

    def _kill_in_stop(self) -> None:
        process = self.process
        process.terminate()
        after_s = self.ledger.rng.uniform(0.0, 0.1)
        asyncio.get_running_loop().call_later(after_s, process.kill)

    # -- SIGTERM

    async def terminate(self, number: int) -> None:
        """Start, load, and stop: the broker drains, or exits at the second of two signals.

        In some rounds a consumer leaves messages unacknowledged, so the drain takes its full time.
        """
        rng, ledger = self.ledger.rng, self.ledger
        is_twice = number % 4 == 2
        load = Load(acks_all=not (is_twice or number % 8 == 1))
        await self.start()
        ledger.unknown.clear()  # ends of earlier lives, which may be lost
        process, signaled_at = self.process, 0.0

        def send_signals() -> None:
            nonlocal signaled_at
            signaled_at = time.perf_counter()
            process.terminate()
            self.signal_writer(signal.SIGTERM)  # as to all processes of a service
            if is_twice:
                loop.call_later(rng.uniform(0.05, 1.0), process.terminate)

        loop = asyncio.get_running_loop()
        await self.crowd(load).work(rng.randint(1, MOST_RECEIPTS), send_signals)
        code = await asyncio.to_thread(process.wait, 3 * TERM_S)
        self.ends_s.append(time.perf_counter() - signaled_at)
        self.broker.kill()  # it has ended
        if code:
            ledger.offences.append(f"SIGTERM: exit code {code}")
        if self.ends_s[-1] > (TERM_S / 2 if is_twice else TERM_S + 1):
            ledger.offences.append(f"SIGTERM: it took {self.ends_s[-1]:.1f} s to stop")
        if load.acks_all:
            ledger.see_ended(self.broker.data)

    # -- SIGSTOP

    async def hold_up(self, number: int) -> None:
        """Load the broker, suspend it for longer than timeouts and TTLs, and resume it.

        Every other time its consumers sleep too; otherwise their frames wait in its sockets.
        """
        if self.broker.process is None:
            await self.start()
        rng, ledger = self.ledger.rng, self.ledger
        process, earlier = self.process, Counter(ledger.times)
        before, after = Counter[bytes](), Counter[bytes]()
        crowd = self.crowd(Load(queues=(*QUEUES, TIMED), acks_all=True, work_s=WORK_S))

        def leave() -> None:
            after.update(ledger.times)  # messages held now may be redelivered next time
            crowd.leave()

        async def hold() -> None:
            process.send_signal(signal.SIGSTOP)
            self.signal_writer(signal.SIGSTOP)
            crowd.is_asleep = number % 2 == 0
            before.update(ledger.times - earlier)
            await asyncio.sleep(rng.uniform(*HELD_UP_S))
            self.signal_writer(signal.SIGCONT)
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
            ledger.offences.append(f"{message_id!r} was redelivered because of the suspension")

    # -- the end

    async def repeat(self, end: Callable[[int], Awaitable[None]], times: int) -> "Lives":
        """Call ``end`` repeatedly, or until a mutant is found; then compare everything."""
        for number in range(times):
            await end(number)
            if self.mutant and self.ledger.offences:
                break
        if self.mutant:
            self.broker.kill()
            self.ledger.audit(self.broker.data)
        else:
            await self._finish()
        return self

    async def _finish(self) -> None:
        if self.broker.process is None:
            await self.start()
        data = self.broker.data
        async with asyncio.timeout(DRAIN_S):
            await self.crowd(Load(acks_all=True)).drain(lambda: is_drained(data))
        code = await asyncio.to_thread(self.broker.terminate)
        if code:
            self.ledger.offences.append(f"exit code {code}")
        self.ledger.audit(data)

    def figures(self) -> list[str]:
        """Return the report of a run in lines."""
        which = "with a writer process, " if self.is_second else ""
        took = f"{which}in {time.perf_counter() - self.began_s:.1f} s, seed {self.seed}"
        ends_s, stops = sorted(self.ends_s), self.kills["held up"]
        if ends_s:
            return [
                f"SIGTERM: {len(ends_s)} under load {took}: exit 0, "
                f"p50 {ends_s[len(ends_s) // 2]:.2f} s, max {ends_s[-1]:.2f} s; {self._totals()}"
            ]
        if stops:
            low_s, high_s = HELD_UP_S
            return [
                f"SIGSTOP: {stops} under load, {low_s} to {high_s} s each with an acknowledgement "
                f"timeout of {ACK_TIMEOUT_S} s, {took}: {self.again} redelivered; {self._totals()}"
            ]
        moments = ", ".join(f"{count} in a {moment}" for moment, count in self.kills.most_common())
        if self.is_second:
            victims = ", ".join(f"{victim} {count}" for victim, count in self.victims.items())
            moments += f"; killed under load: {victims}"
        return [
            f"kill -9: {self.kills.total()} ({moments}) {took}: {self._totals()}",
            f"         0 failed starts of {len(self.starts_ms)}, "
            f"max restart {max(self.starts_ms[1:], default=0):.0f} ms",
        ]

    def _totals(self) -> str:
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


async def killed(
    folder: Path, seed: int, kills: int, mutant: str = "", *, is_second: bool = False
) -> Lives:
    """Kill a broker ``kills`` times, or a mutant until it is found."""
    lives = Lives.of(folder, seed, mutant=mutant, is_second=is_second)
    return await lives.repeat(lives.kill, kills)


async def terminated(
    folder: Path, seed: int, terms: int, mutant: str = "", *, is_second: bool = False
) -> Lives:
    """Stop a broker ``terms`` times, or a mutant until it is found."""
    lives = Lives.of(folder, seed, mutant=mutant, is_second=is_second)
    return await lives.repeat(lives.terminate, terms)


async def held_up(
    folder: Path, seed: int, stops: int, mutant: str = "", *, is_second: bool = False
) -> Lives:
    """Suspend a broker ``stops`` times within one life, or a mutant until it is found."""
    flags = ("--set", f"queues.ack_timeout_s={ACK_TIMEOUT_S}")
    lives = Lives.of(folder, seed, *flags, mutant=mutant, is_second=is_second)
    return await lives.repeat(lives.hold_up, stops)


def main() -> int:
    """Run all three, and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("kills", "terms", "stops"):
        parser.add_argument(f"--{name}", type=int, default=0)
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--second", action="store_true", help="with a writer process")
    given = parser.parse_args()
    logging.getLogger("asyncio").setLevel(logging.ERROR)  # it logs each write to a dead broker
    offences: list[str] = []
    runs = (killed, given.kills), (terminated, given.terms), (held_up, given.stops)
    for run, number in runs:
        if number:
            with TemporaryDirectory() as folder:
                lives = asyncio.run(run(Path(folder), given.seed, number, is_second=given.second))
            offences += lives.ledger.offences
            print("\n".join(lives.figures()), flush=True)
    print("\n".join(offences[:50]))
    return 1 if offences else 0


if __name__ == "__main__":
    sys.exit(main())
