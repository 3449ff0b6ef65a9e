"""A broker with a standby by Litestream loses its machine, or works for long.

``python -m tests.faults.litestream --times 20`` kills broker and Litestream under confirmed load,
deletes the data folder, promotes the replica and compares what is missing with the reported lag.
``--load-s 3600`` loads a broker, with ``--pause-s`` in bursts, and follows the size of the
write-ahead log.  ``--short`` is both, in about a minute.  It prints the figures and ends with 1 if
a promise does not hold.
"""

import argparse
import asyncio
import logging
import random
import shutil
import sys
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from phpmq_lite.storage.data_folder import DATABASE
from phpmq_lite.storage.sqlite.integrity.database_check import verify
from phpmq_lite.storage.sqlite.standby_lag import StandbyState, read_standby
from tests.faults.ledger import Crowd, Ledger, read_only, stored_keys
from tests.support.fork_server import BrokerProcess, broker_process
from tests.support.seed import SEED
from tests.support.standby import Litestream, broker_with_standby, command

WAL_LIMIT: Final = 64 << 20  # storage.wal_bytes
SAMPLE_S: Final = 0.5
ALIVE_S: Final = (2.0, 8.0)  # of a broker under load, before it is killed
BURST_S: Final = 5.0


@dataclass
class Sample:
    confirmed: int  # receipts so far
    state: StandbyState
    wal_bytes: int


@dataclass
class Losses:
    """A broker that loses its machine again and again."""

    seed: int
    offences: list[str] = field(default_factory=list)
    confirmed: int = 0
    missing: list[int] = field(default_factory=list)  # per round
    lags: list[StandbyState] = field(default_factory=list)  # after each kill
    promoted_s: list[float] = field(default_factory=list)

    def figures(self) -> str:
        lags = [lag.lag_messages for lag in self.lags]
        return (
            f"{len(self.missing)} losses of the machine, seed {self.seed}: {self.confirmed:,} "
            f"confirmed, {sum(self.missing):,} missing (most {max(self.missing):,}); reported lag "
            f"{min(lags):,} to {max(lags):,} messages, up to "
            f"{max(lag.lag_s for lag in self.lags):.1f} s; promoted in up to "
            f"{max(self.promoted_s):.1f} s"
        )


async def lose(folder: Path, seed: int, times: int) -> Losses:
    losses, rng, keys = Losses(seed), random.Random(seed), count(1)
    target, data = folder / "target", folder / "data"
    flags = "--set", "history.bytes=1TiB"  # retention must not remove what is counted
    with broker_process(data, *flags) as first:
        first.terminate()
    command("standby", "init", target, "--data", data)
    for _ in range(times):
        ledger = Ledger(rng, _numbers=keys)
        litestream = await asyncio.to_thread(Litestream, data)
        broker = broker_process(data, *flags)
        await asyncio.to_thread(broker.start)
        samples: list[Sample] = []

        def kill(broker: BrokerProcess = broker, litestream: Litestream = litestream) -> None:
            assert broker.process is not None
            broker.process.kill()
            litestream.process.kill()

        crowd = Crowd(ledger, broker.port)
        asyncio.get_running_loop().call_later(rng.uniform(*ALIVE_S), kill)
        sampling = asyncio.create_task(_sample(data, ledger, samples))
        await crowd.work(1 << 40, lambda: None)
        sampling.cancel()
        broker.kill()
        litestream.process.wait()
        await asyncio.to_thread(_promote, data, folder, ledger, samples, losses)
    return losses


async def _sample(data: Path, ledger: Ledger, samples: list[Sample]) -> None:
    replicated = None
    while True:
        confirmed = len(ledger.confirmed)
        state = await asyncio.to_thread(read_standby, data, replicated)
        replicated = state.replicated
        wal = data / f"{DATABASE}-wal"
        samples.append(Sample(confirmed, state, wal.stat().st_size if wal.exists() else 0))
        await asyncio.sleep(SAMPLE_S)


def _promote(
    data: Path, folder: Path, ledger: Ledger, samples: list[Sample], losses: Losses
) -> None:
    last = read_standby(data, asks_target=True)
    losses.lags.append(last)
    shutil.rmtree(data)
    began = time.monotonic()
    histories = sorted((folder / "target").iterdir(), key=lambda one: one.stat().st_ctime_ns)
    command("standby", "promote", histories[-1], "--data", data)
    losses.promoted_s.append(time.monotonic() - began)
    for check in verify(data):
        losses.offences += check.problems
    with read_only(data) as database:
        stored = {key for _, key in stored_keys(database)}
        tables = database.execute("SELECT name FROM sqlite_schema WHERE name LIKE '%litestream%'")
        losses.offences += [f"the promoted database has {name}" for (name,) in tables]
    missing = len(ledger.confirmed - stored)
    losses.missing.append(missing)
    losses.confirmed += len(ledger.confirmed)
    if missing > last.lag_messages:
        losses.offences.append(f"{missing} are missing; the lag was {last}")
    if not samples:  # on a busy machine, none was ready before the kill
        return
    since = len(ledger.confirmed) - samples[-1].confirmed
    if missing > samples[-1].state.lag_messages + since:
        losses.offences.append(
            f"{missing} are missing; {since} were confirmed after {samples[-1].state}"
        )


@dataclass
class Loaded:
    samples: list[Sample]
    load_s: float
    confirmed: int
    offences: list[str]

    def figures(self) -> str:
        sizes = sorted(sample.wal_bytes for sample in self.samples)
        lags = sorted(sample.state.lag_s for sample in self.samples)
        problems = sum(bool(sample.state.problem) for sample in self.samples)
        return (
            f"{self.load_s:.0f} s under load: {self.confirmed / self.load_s:,.0f} confirmed/s; "
            f"write-ahead log p50 {sizes[len(sizes) // 2] >> 20} MiB, most {sizes[-1] >> 20} MiB, "
            f"limit {WAL_LIMIT >> 20} MiB; lag p50 {lags[len(lags) // 2]:.1f} s, most "
            f"{lags[-1]:.1f} s; {problems} of {len(self.samples)} readings with a problem"
        )


async def load(
    folder: Path, seed: int, load_s: float, target: Path | None = None, pause_s: float = 0
) -> Loaded:
    """Load a broker with a standby for a time; with a pause, only for ``BURST_S`` at a time."""
    ledger, samples = Ledger(random.Random(seed)), list[Sample]()
    with broker_with_standby(folder, target or folder / "target") as broker:
        sampling = asyncio.create_task(_sample(broker.data, ledger, samples))
        loop = asyncio.get_running_loop()
        ends_at = loop.time() + load_s
        while loop.time() < ends_at:
            crowd = Crowd(ledger, broker.port)
            left_s = ends_at - loop.time()
            loop.call_later(min(left_s, BURST_S) if pause_s else left_s, crowd.leave)
            await crowd.work(1 << 60, lambda: None)
            await asyncio.sleep(pause_s)
        sampling.cancel()
        offences = list(ledger.offences)
    offences += [
        f"the write-ahead log has {sample.wal_bytes:,} bytes"
        for sample in samples
        if sample.wal_bytes > 2 * WAL_LIMIT
    ][:1]
    return Loaded(samples, load_s, len(ledger.confirmed), offences)


def main() -> int:
    """Run what was asked for, and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--times", type=int, default=0)
    parser.add_argument("--load-s", type=float, default=0)
    parser.add_argument(
        "--pause-s", type=float, default=0, help=f"after each {BURST_S:g} s of load"
    )
    parser.add_argument("--short", action="store_true")
    parser.add_argument("--seed", type=int, default=SEED)
    given = parser.parse_args()
    if given.short:
        given.times, given.load_s = 3, 20
    logging.getLogger("asyncio").setLevel(logging.ERROR)  # it logs each write to a dead broker
    runs: list[Callable[[Path], Coroutine[Any, Any, Losses | Loaded]]] = []
    if given.times:
        runs.append(lambda folder: lose(folder, given.seed, given.times))
    if given.load_s:
        runs.append(lambda folder: load(folder, given.seed, given.load_s, None, given.pause_s))
    offences: list[str] = []
    for run in runs:
        with TemporaryDirectory() as folder:
            done = asyncio.run(run(Path(folder)))
        offences += done.offences
        print(done.figures(), flush=True)
    print("\n".join(offences[:50]))
    return 1 if offences else 0


if __name__ == "__main__":
    sys.exit(main())
