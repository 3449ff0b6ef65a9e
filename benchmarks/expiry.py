"""Measure other clients while many messages expire at the same moment.

Fills a queue with messages that expire within the same second, stops the broker with SIGSTOP during
that second, and continues it, so that all are overdue at once. Meanwhile one probe publishes and
receives on another queue, one message at a time, and a second one requests ``/livez``, which the
same event loop answers::

    python benchmarks/expiry.py --messages 100000 --data .
"""

import argparse
import os
import signal
import socket
import sqlite3
import time
from collections.abc import Generator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Final, NamedTuple

from phpmq_lite.bench import traffic
from phpmq_lite.bench.processes import BenchJob, run_together, unwind_on_signals
from phpmq_lite.bench.report import Quantiles
from phpmq_lite.bench.traffic import Address, DispatchStream, PublishStream
from phpmq_lite.bench.workloads import temporary_folder
from phpmq_lite.broker_process import BrokerProcess, isolated_broker
from phpmq_lite.protocol.connection import ClientSide

QUEUE: Final = "expiring"
PROBE_QUEUE: Final = "probe"
AT_ONCE: Final = 500
STOPPED_S: Final = 1.5  # contains all deadlines
INTERVAL_S: Final = 0.001  # between two requests
EXPIRED: Final = 3  # the outcome in the history


class Sample(NamedTuple):
    """One round of a probe."""

    began_at: float  # Unix time
    seconds: float


def fill(address: Address, number: int, size: int, end_at: float) -> Generator[None, None, int]:
    """Publish messages that expire at ``end_at`` (Unix time) or within the following second."""
    client, sent = ClientSide(), 0
    with traffic.connect(address) as link:
        yield
        while sent < number:
            ttl_s = int(end_at - time.time()) + 1
            count = min(AT_ONCE, number - sent)
            link.sendall(client.publish(QUEUE, b"x" * size, ttl_s) * count)
            sent += count
        traffic.wait_until_stored(link)
        return sent


def probe(address: Address, size: int, until: float) -> Generator[None, None, list[Sample]]:
    """Publish and receive one message at a time; return the durations."""
    stream = PublishStream(PROBE_QUEUE, size, is_confirmed=False)
    dispatches = DispatchStream(PROBE_QUEUE, size, 1)
    samples = []
    with traffic.connect(address) as publisher, traffic.connect(address) as consumer:
        traffic.wait_until_stored(publisher)
        traffic.wait_until_stored(consumer, dispatches.consume)
        yield
        while (began_at := time.time()) < until:
            began_s = time.perf_counter()
            publisher.sendall(stream.encode(1))
            answer = b""
            while not answer:
                answer = dispatches.feed(traffic.receive(consumer))
            samples.append(Sample(began_at, time.perf_counter() - began_s))
            consumer.sendall(answer)
    return samples


def request_livez(control: Path, until: float) -> Generator[None, None, list[Sample]]:
    """Request ``/livez`` about once per millisecond; return the durations."""
    request = b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n"
    samples = []
    with socket.socket(socket.AF_UNIX) as link:
        link.connect(str(control))
        yield
        while (began_at := time.time()) < until:
            began_s = time.perf_counter()
            link.sendall(request)
            answer = link.recv(1 << 16)
            assert answer.startswith(b"HTTP/1.1 200"), answer
            samples.append(Sample(began_at, time.perf_counter() - began_s))
            time.sleep(INTERVAL_S)
    return samples


def stop_during(pid: int, begin_at: float, end_at: float) -> Generator[None, None, float]:
    """Stop a process for a while; return when it was continued."""
    yield
    time.sleep(max(0.0, begin_at - time.time()))
    os.kill(pid, signal.SIGSTOP)
    time.sleep(max(0.0, end_at - time.time()))
    now = time.time()
    os.kill(pid, signal.SIGCONT)
    return now


def count_expired(database: Path) -> tuple[int, float]:
    """Return how many messages expired, and when the last one did (Unix time)."""
    with closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as connection:
        count, last_ms = connection.execute(
            "SELECT count(*), max(settled_at) FROM history WHERE outcome = ?", (EXPIRED,)
        ).fetchone()
    return count, (last_ms or 0) / 1_000


def describe(samples: Sequence[Sample]) -> str:
    """Format the quantiles of samples."""
    if not samples:
        return "no samples"
    q = Quantiles.of([sample.seconds for sample in samples])
    longest_ms = max(sample.seconds for sample in samples) * 1_000
    return (
        f"p50 {q.p50:7.2f}   p99 {q.p99:7.2f}   max {longest_ms:7.2f} ms   "
        f"({len(samples):,} samples)"
    )


def main() -> None:
    """Fill, stop during the deadlines, and compare the samples before and after."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--messages", type=int, default=100_000)
    parser.add_argument("--size", type=int, default=256, help="bytes of a body")
    parser.add_argument("--fill-seconds", type=float, default=12.0, help="time for publishing")
    parser.add_argument("--watch-seconds", type=float, default=8.0, help="time after it")
    parser.add_argument("--on-expire", default="history", help="history, dead_letter, forward:X")
    parser.add_argument("--data", type=Path, default=Path(), help="folder on the disk to measure")
    options = parser.parse_args()
    setting = f"queues.on_expire={options.on_expire}"
    with (
        unwind_on_signals(),
        temporary_folder(options.data) as folder,
        isolated_broker(folder / "data", "--set", setting) as broker,
    ):
        measure(broker, options)


def measure(broker: BrokerProcess, options: argparse.Namespace) -> None:
    """Measure one broker and print the report."""
    end_at = time.time() + options.fill_seconds
    filling = BenchJob(fill, (broker.address, options.messages, options.size, end_at))
    run_together({"producer": filling}, options.fill_seconds + 60)
    if time.time() > end_at - 2:
        raise SystemExit("publishing took too long; increase --fill-seconds")
    until = end_at + STOPPED_S + options.watch_seconds
    jobs = {
        "probe": BenchJob(probe, (broker.address, options.size, until)),
        "loop": BenchJob(request_livez, (broker.data / "control.sock", until)),
        "stop": BenchJob(stop_during, (broker.pid, end_at - 0.1, end_at + STOPPED_S)),
    }
    done = run_together(jobs, until - time.time() + 60)
    continued_at = done["stop"].value
    count, last_at = count_expired(broker.data / "phpmq.db")
    print(f"{count:,} messages expired ({options.on_expire}) in {last_at - continued_at:.2f} s")
    for name, what in (("probe", "publish to receive"), ("loop", "the loop's answer")):
        samples: list[Sample] = done[name].value
        before = [s for s in samples if s.began_at + s.seconds < end_at - 0.1]
        during = [s for s in samples if continued_at <= s.began_at <= last_at]
        print(f"{what}, before          {describe(before)}")
        print(f"{what}, while they end  {describe(during)}")


if __name__ == "__main__":
    main()
