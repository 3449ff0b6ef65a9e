"""What the primary of a cluster sustains if one, two or more brokers write to it at once.

``python -m benchmarks.two_shards [--rounds 7]`` starts three PostgreSQL servers, of which one has
to replicate a commit before it is confirmed.  A *shard* is a process with the writer of a broker,
without the broker: it holds the epoch of its own database and stores batches of confirmed messages
that are dispatched at once and acknowledged in the next batch.  Each round measures each number of
shards, in alternating order and with empty databases.

The processor time of the primary, of both standbys and of the writers says what would limit larger
machines: here, everything shares the same processors.
"""

import argparse
import asyncio
import statistics
import sys
import tempfile
import time
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from phpmq_lite.bench.processes import BenchJob, cpu_seconds, run_together
from phpmq_lite.model import Batch, Message, QueueRow, State, checksum
from phpmq_lite.storage.disk_space import DiskSpace
from phpmq_lite.storage.postgres.leadership import Standby
from phpmq_lite.storage.postgres.store import connection_info
from phpmq_lite.storage.postgres.writer import PostgresWriter
from tests.support.postgres_nodes import ReplicatedPostgres

KEY: Final = b"%016x"


@dataclass(frozen=True)
class Load:
    """What each shard does."""

    seconds: float
    messages: int  # in a batch
    size: int  # bytes of a body


@dataclass
class Sustained:
    """What some shards stored together, and the processor time that each part used for it."""

    per_second: float
    primary_us: float  # for each message
    standbys_us: float
    writers_us: float


def batches(load: Load) -> Iterator[Batch]:
    """Yield batches: new messages with keys, dispatched; those of the batch before are settled."""
    body, queue = b"x" * load.size, QueueRow(1, "orders", 0)
    first, before = 1, list[int]()
    while True:
        now = time.time_ns() // 1_000_000
        seqs = [*range(first, first + load.messages)]
        batch = Batch(now, first_number=first, commands=2 * load.messages)
        batch.new_queues = [queue] if first == 1 else []
        batch.created = [
            Message(seq, seq, 1, seq, int(State.DISPATCHED), None, None, now, now, now, 1, 0,
                    load.size, checksum(seq, body), 1, 2)
            for seq in seqs
        ]  # fmt: skip
        batch.bodies = [body] * load.messages
        keys = b"".join(KEY % seq for seq in seqs)
        batch.keys = [seqs[-1], 1, first, now, len(KEY % 0), keys]
        if before:
            batch.settled = {(int(State.ACKED), None): before}
        yield batch
        first, before = seqs[-1] + 1, seqs


async def activate(url: str, folder: Path) -> PostgresWriter:
    """Create the schema, and return the writer of the active broker."""
    conninfo = connection_info(url)
    writer = PostgresWriter(conninfo, DiskSpace(folder), lambda _error: None)
    standby = Standby(conninfo, writer.check, lambda _state: None)
    writer.open(await standby.wait_until_active())
    return writer


async def store(writer: PostgresWriter, source: Iterator[Batch], load: Load) -> int:
    """Store batches as fast as they are confirmed; return how many messages were.

    As in a broker, the next batch is made while the last one is being stored.
    """
    ends_at, confirmed = time.monotonic() + load.seconds, 0
    waiting = writer.commit(next(source))
    while time.monotonic() < ends_at:
        following = next(source)
        await waiting
        waiting, confirmed = writer.commit(following), confirmed + load.messages
    await waiting
    return confirmed + load.messages


def shard(url: str, load: Load) -> Generator[None, None, int]:
    """Run a shard, as a job of ``run_together``."""
    with tempfile.TemporaryDirectory() as folder, asyncio.Runner() as runner:
        writer, source = runner.run(activate(url, Path(folder))), batches(load)
        yield
        confirmed = runner.run(store(writer, source, load))
        runner.run(writer.close())
        return confirmed


def measure(nodes: ReplicatedPostgres, count: int, load: Load) -> Sustained:
    """Return what ``count`` shards sustain together."""
    names = [f"shard_{number}" for number in range(count)]
    for name in names:
        nodes.create_database(name)
    nodes.query("CHECKPOINT")
    urls = [nodes.url().replace("/phpmq?", f"/{name}?") for name in names]
    servers = (nodes.primary, *nodes.standbys)
    before: list[float] = []
    timings = run_together(
        {url: BenchJob(shard, (url, load)) for url in urls},
        60 + load.seconds,
        on_start=lambda: before.extend(used_s(nodes, node) for node in servers),
    ).values()
    used = [used_s(nodes, node) - was for node, was in zip(servers, before, strict=True)]
    for name in names:
        nodes.query(f"DROP DATABASE {name} WITH (FORCE)")
    confirmed = sum(timing.value for timing in timings)
    seconds = max(timing.ended_s for timing in timings) - min(each.began_s for each in timings)
    parts = used[0], sum(used[1:]), sum(timing.cpu_s for timing in timings)
    return Sustained(confirmed / seconds, *(1e6 * part / confirmed for part in parts))


def used_s(nodes: ReplicatedPostgres, node: int) -> float:
    """Return the processor time of all processes of a server so far."""
    [(text,)] = nodes.query("SELECT pg_read_file('postmaster.pid')", node)
    return cpu_seconds(int(text.split()[0])) or 0.0


def spread(values: Sequence[float], digits: int = 2) -> str:
    """Return the median, with the quartiles if there are enough values."""
    low, middle, high = statistics.quantiles(values, n=4) if len(values) > 1 else [values[0]] * 3
    return f"{middle:,.{digits}f} ({low:,.{digits}f} to {high:,.{digits}f})"


def main() -> None:
    """Print each round, then the medians and the ratios to the first number within each round."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--messages", type=int, default=100, help="in a batch")
    parser.add_argument("--size", type=int, default=256, help="bytes of a body")
    parser.add_argument("--shards", type=int, nargs="+", default=[1, 2])
    options = parser.parse_args()
    load = Load(options.seconds, options.messages, options.size)
    found: dict[int, list[Sustained]] = {count: [] for count in options.shards}
    with ReplicatedPostgres(settings={"max_wal_size": "2GB"}) as nodes:
        for number in range(options.rounds):
            for count in options.shards[:: 1 if number % 2 == 0 else -1]:
                found[count].append(measure(nodes, count, load))
                rate = found[count][-1].per_second
                print(f"round {number + 1}, shards {count}: {rate:,.0f}/s", file=sys.stderr)
    least = found[options.shards[0]]
    for count, all_of_it in found.items():
        ratios = [a.per_second / b.per_second for a, b in zip(all_of_it, least, strict=True)]
        print(f"shards: {count}")
        print(f"  messages/s: {spread([one.per_second for one in all_of_it], 0)}")
        print(f"  relative to {options.shards[0]}: {spread(ratios)}")
        print("  processor time of a message in µs:")
        print(f"    primary: {spread([one.primary_us for one in all_of_it])}")
        print(f"    standbys: {spread([one.standbys_us for one in all_of_it])}")
        print(f"    writers: {spread([one.writers_us for one in all_of_it])}")


if __name__ == "__main__":
    main()
