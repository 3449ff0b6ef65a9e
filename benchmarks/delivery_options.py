"""Measure delays, limits, priorities and groups: how exact they are, and what they cost.

Each case checks that the rule holds, fails if it does not, and prints figures beside their bounds;
each broker is on a new folder.  The processor time of the broker depends least on what else the
machine does.  One command per figure; ``--short`` takes a twentieth of the messages or seconds::

    python benchmarks/delivery_options.py --data . due         # 100,000 with one date
    python benchmarks/delivery_options.py --data . scheduled   # memory and start with 1,000,000
    python benchmarks/delivery_options.py --data . rate        # four consumers for a minute
    python benchmarks/delivery_options.py --data . in_flight   # with a subscription's claims
    python benchmarks/delivery_options.py --data . groups      # 10,000, and without
    python benchmarks/delivery_options.py --data . behind      # one of 1,000,000 in front of 10,000
    python benchmarks/delivery_options.py --data . priorities  # 256, and urgent behind 1,000,000
"""

import argparse
import json
import selectors
import socket
import sqlite3
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import Final, NamedTuple, cast

from phpmq_lite.bench import traffic
from phpmq_lite.bench.processes import BenchJob, cpu_seconds, run_together, unwind_on_signals
from phpmq_lite.bench.traffic import Address
from phpmq_lite.bench.workloads import temporary_folder
from phpmq_lite.broker_process import BrokerProcess, isolated_broker
from phpmq_lite.os_process import resident_bytes
from phpmq_lite.protocol.connection import ClientSide
from phpmq_lite.protocol.frames import Dispatch
from phpmq_lite.spark.pipeline_client import BASE

QUEUE: Final = "jobs"
AT_ONCE: Final = 500
CONSUMERS: Final = 8
CREDIT: Final = 100
BODY: Final = b"x" * 200
SHORT: Final = 20  # a short run has this part of the messages

Options = Callable[[int], dict[str, object]]  # of the message with this number


class Target(NamedTuple):
    """The broker that a job in another process works on."""

    address: Address
    pid: int


class Speed(NamedTuple):
    """How fast messages were consumed."""

    rate: float  # messages/s
    cpu_us: float  # processor time of the broker per message


@contextmanager
def new_broker(data: Path, *settings: str) -> Iterator[BrokerProcess]:
    """Start a broker on a new folder; ``settings`` are those of its queue."""
    with (
        unwind_on_signals(),
        temporary_folder(data) as folder,
        isolated_broker(folder / "data") as broker,
    ):
        call(broker, "create", QUEUE)
        if settings:
            call(broker, "set", QUEUE, *settings)
        yield broker


def fill(address: Address, number: int, options: Options, first: int = 0) -> None:
    """Publish messages, each with a number and options."""
    client = ClientSide()
    with traffic.connect(address) as link:
        for start in range(first, first + number, AT_ONCE):
            frames = [
                client.publish_with_options(
                    QUEUE, b"%d " % n + BODY, json.dumps(options(n)).encode(), None
                )
                for n in range(start, min(start + AT_ONCE, first + number))
            ]
            link.sendall(b"".join(frames))
        traffic.wait_until_stored(link)


def work(
    broker: BrokerProcess | Target,
    number: int,
    group_of: Callable[[int], object],
    counts_from: int = 0,
) -> Speed:
    """Consume and acknowledge messages over several connections.

    Ends after ``number`` of those from ``counts_from`` on.  Checks that no two of a group are in
    flight, and that each group is in order.
    """
    last: dict[object, int] = defaultdict(lambda: -1)
    held: set[object] = set()
    with ExitStack() as stack, selectors.DefaultSelector() as selector:
        for _ in range(CONSUMERS):
            link = stack.enter_context(traffic.connect(broker.address))
            selector.register(link, selectors.EVENT_READ, ClientSide())
        began_s, done, cpu_s = time.monotonic(), 0, cpu_seconds(broker.pid) or 0.0
        for key in list(selector.get_map().values()):
            cast(socket.socket, key.fileobj).sendall(key.data.consume(QUEUE, CREDIT))
        while done < number:
            answers: list[tuple[socket.socket, bytes, list[object]]] = []
            for key, _ in selector.select(30):
                link = cast(socket.socket, key.fileobj)
                acks, groups = [], []
                for frame in key.data.receive(traffic.receive(link)):
                    assert isinstance(frame, Dispatch)
                    n = int(frame.content.split(b" ", 1)[0])
                    group = group_of(n)
                    if group is not None:
                        assert group not in held, f"two of group {group} are in flight"
                        assert n > last[group], f"group {group} is out of order"
                        held.add(group)
                        last[group] = n
                        groups.append(group)
                    acks.append(key.data.acknowledge(QUEUE, frame.message_id))
                    done += n >= counts_from
                answers.append((link, b"".join(acks), groups))
            for link, acks_of_link, groups in answers:
                held.difference_update(groups)
                link.sendall(acks_of_link)
        cpu_s = (cpu_seconds(broker.pid) or 0.0) - cpu_s
        return Speed(number / (time.monotonic() - began_s), cpu_s / number * 1e6)


def request_livez(control: Path, begin_at: float, until: float) -> Generator[None, None, float]:
    """Request ``/livez`` each 5 ms, as it takes time, too; return the longest wait after a time."""
    longest_s = 0.0
    with socket.socket(socket.AF_UNIX) as link:
        link.connect(str(control))
        yield
        while time.time() < until:
            began_s = time.perf_counter()
            link.sendall(b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert link.recv(1 << 16).startswith(b"HTTP/1.1 200")
            if time.time() >= begin_at:
                longest_s = max(longest_s, time.perf_counter() - began_s)
            time.sleep(0.005)
    return longest_s


def measure_due(data: Path, number: int) -> None:
    """Schedule messages for one moment: none is ready early, all are within 2 s."""
    with new_broker(data) as broker:
        at = time.time() + 5 + number / 5_000
        fill(broker.address, number, lambda _n: {"deliver_at": round(at * 1_000)})
        if time.time() > at - 1:
            raise SystemExit("publishing took too long")
        cpu_s = cpu_seconds(broker.pid) or 0.0
        job = BenchJob(request_livez, (broker.data / "control.sock", at, at + 8))
        longest_s = run_together({"loop": job}, 120)["loop"].value
        cpu_s = (cpu_seconds(broker.pid) or 0.0) - cpu_s
        with closing(sqlite3.connect(f"file:{broker.data}/phpmq.db?mode=ro", uri=True)) as file:
            count, first_ms, last_ms = file.execute(
                "SELECT count(*), min(ready_at), max(ready_at) FROM message WHERE ready_at > 0"
            ).fetchone()
    assert count == number, f"{count} of {number} are ready"
    assert first_ms >= at * 1_000, "a message was early"
    print(
        f"{count:,} due at once: ready after {first_ms - at * 1_000:.0f} to"
        f" {last_ms - at * 1_000:.0f} ms (2000), the loop waited {longest_s * 1e3:.0f} ms (50),"
        f" processor time with what /livez takes {cpu_s:.2f} s"
    )


def measure_scheduled(data: Path, number: int) -> None:
    """Compare memory and start with nothing, with ready messages and with as many that wait."""
    kinds: dict[str, Options] = {
        "ready": lambda _n: {"priority": 128},
        "scheduled": lambda n: {"delay_s": 86_400 + n % 3_600},
    }
    figures = {}
    for kind in ("nothing", *kinds):
        with new_broker(data) as broker:
            if kind in kinds:
                fill(broker.address, number, kinds[kind])
            broker.terminate()
            began_s = time.monotonic()
            broker.start()
            took_s = time.monotonic() - began_s
            time.sleep(2)
            figures[kind] = (took_s, resident_bytes(broker.pid) / 1e6)
    for kind, (took_s, size) in figures.items():
        print(f"{number:,} {kind}: start {took_s:.2f} s, memory {size:.0f} MB")


def measure_rate(data: Path, seconds: int) -> None:
    """Consume with a rate of 10 a second, and four consumers."""
    count = 0
    with ExitStack() as stack:
        broker = stack.enter_context(new_broker(data, "max_rate=10"))
        fill(broker.address, 20 * seconds + 100, lambda _n: {})
        sides = {
            stack.enter_context(traffic.connect(broker.address)): ClientSide() for _ in range(4)
        }
        for link, side in sides.items():
            link.sendall(side.consume(QUEUE, CREDIT))
            link.settimeout(0.01)
        until_s = time.monotonic() + seconds
        while time.monotonic() < until_s:
            for link, side in sides.items():
                with suppress(TimeoutError):
                    frames = side.receive(link.recv(1 << 16))
                    count += len(frames)
                    acks = [side.acknowledge(QUEUE, f.message_id) for f in frames]  # type: ignore[union-attr]
                    link.sendall(b"".join(acks))
    print(f"rate of 10/s for {seconds} s: {count} dispatches, {10 * seconds} and a burst of 10")
    assert 0.95 * 10 * seconds <= count <= 1.05 * (10 * seconds + 10)


def measure_in_flight(data: Path, number: int) -> None:
    """Consume and claim with at most 50 in flight, of which a consumer may have 30."""
    most = claimed = done = 0
    with new_broker(data, "max_in_flight=50") as broker, ExitStack() as stack:
        fill(broker.address, number, lambda _n: {})
        name = f"file:{broker.data}/phpmq.db?mode=ro"
        file = stack.enter_context(closing(sqlite3.connect(name, uri=True)))
        control = stack.enter_context(socket.socket(socket.AF_UNIX))
        control.connect(str(broker.data / "control.sock"))
        client, link = ClientSide(), stack.enter_context(traffic.connect(broker.address))
        link.sendall(client.consume(QUEUE, 30))
        while done < number // 2:
            claim = {"subscription": "spark", "queue": QUEUE, "max_messages": 25}
            hi = post(control, "claim", claim)["hi"]
            frames = client.receive(traffic.receive(link))
            most = max(
                most, *file.execute("SELECT count(*) FROM message WHERE state = 1").fetchone()
            )
            acks = [client.acknowledge(QUEUE, f.message_id) for f in frames]  # type: ignore[union-attr]
            link.sendall(b"".join(acks))
            post(control, "ack", {"subscription": "spark", "upto": hi})
            claimed, done = hi, done + len(frames)
    print(f"at most {most} in flight (50) with {done} consumed and {claimed} claimed")
    assert most <= 50
    assert done
    assert claimed


def post(control: socket.socket, action: str, body: dict[str, object]) -> dict[str, int]:
    """Send a request about claims over the control socket, and return the answer."""
    data = json.dumps(body).encode()
    head = f"POST {BASE}/claims/{action} HTTP/1.1\r\nHost: localhost\r\n"
    head += f"Content-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
    control.sendall(head.encode() + data)
    answer = control.recv(1 << 16)
    assert answer.startswith(b"HTTP/1.1 200"), answer
    return cast(dict[str, int], json.loads(answer.partition(b"\r\n\r\n")[2]))


def publish_by_priority(
    address: Address, number: int, priorities: int
) -> Generator[None, None, None]:
    """Publish messages with several priorities."""
    yield
    fill(address, number, lambda n: {"priority": n * 97 % priorities})


def work_job(broker: Target, number: int) -> Generator[None, None, float]:
    """Consume messages in a process of its own."""
    yield
    return work(broker, number, lambda _n: None).rate


def compare(name: str, bound: float, without: list[Speed], with_it: list[Speed]) -> None:
    """Print the medians of two lists of speeds beside the bound of their ratio."""
    rates = [statistics.median(speed.rate for speed in speeds) for speeds in (without, with_it)]
    costs = [statistics.median(speed.cpu_us for speed in speeds) for speeds in (without, with_it)]
    print(
        f"{name}: {rates[1]:.0f}/s, {rates[1] / rates[0]:.2f} of {rates[0]:.0f}/s ({bound});"
        f" {costs[1]:.1f} us of processor time, {costs[0]:.1f} without"
    )


def measure_priorities(data: Path, number: int) -> None:
    """Compare the flow with one priority and with all, then publish one behind a backlog."""
    speeds: dict[int, list[Speed]] = {1: [], 256: []}
    half = number // 2
    with new_broker(data) as broker:
        for spread in (1, 256) * 3:
            cpu_s = cpu_seconds(broker.pid) or 0.0
            jobs = {
                "publisher": BenchJob(publish_by_priority, (broker.address, half, spread)),
                "consumers": BenchJob(work_job, (Target(broker.address, broker.pid), half)),
            }
            rate = run_together(jobs, 600)["consumers"].value
            cpu_s = (cpu_seconds(broker.pid) or 0.0) - cpu_s
            speeds[spread].append(Speed(rate, cpu_s / half * 1e6))
        compare("flow with 256 priorities", 0.9, speeds[1], speeds[256])
        fill(broker.address, number, lambda _n: {"priority": 128})
        client = ClientSide()
        with traffic.connect(broker.address) as link:
            began_s = time.monotonic()
            fill(broker.address, 1, lambda _n: {"priority": 0}, first=number)
            link.sendall(client.consume(QUEUE, 1))
            frames = client.receive(traffic.receive(link))
            assert isinstance(frames[0], Dispatch)
            assert frames[0].content.startswith(b"%d " % number), "not the urgent one"
            print(f"urgent behind {number:,}: the next, {time.monotonic() - began_s:.3f} s")


def measure_groups(data: Path, number: int) -> None:
    """Consume messages of 10,000 groups; the same in a queue that ignores them; plain ones."""
    group, plain = "group_by=group", "plain"
    speeds: dict[str, list[Speed]] = {plain: [], "": [], group: []}
    for settings in (*speeds, *reversed(speeds)):
        with new_broker(data, *([group] if settings == group else [])) as broker:
            fill(
                broker.address,
                number,
                lambda n, is_plain=settings == plain: (
                    {} if is_plain else {"group": str(n % 10_000)}
                ),
            )
            group_of = (lambda n: n % 10_000) if settings == group else (lambda _n: None)
            speeds[settings].append(work(broker, number, group_of))
    compare("10,000 groups, and the same messages without group_by", 0.5, speeds[""], speeds[group])
    compare("10,000 groups, and plain messages", 0.5, speeds[plain], speeds[group])


def measure_behind(data: Path, number: int) -> None:
    """Consume 10,000 groups that are behind one with a large backlog, of which one is held."""

    def group_of(n: int) -> object:
        return "large" if n < number else n

    speeds: list[list[Speed]] = []
    for settings in ((), ("group_by=group",)):
        with new_broker(data, *settings) as broker:
            fill(broker.address, number, lambda _n: {"group": "large"})
            fill(broker.address, 10_000, lambda n: {"group": str(n)}, first=number)
            groups, counts_from = (group_of, number) if settings else ((lambda _n: None), 0)
            speeds.append([work(broker, 10_000, groups, counts_from)])
    compare(f"10,000 behind a group of {number:,}", 0.5, *speeds)


def call(broker: BrokerProcess, *command: str) -> None:
    """Run a command on queues."""
    program = (sys.executable, "-m", "phpmq_lite", "queue", *command, "--data", str(broker.data))
    subprocess.run(program, check=True, capture_output=True)


CASES: Final = {
    "due": (measure_due, 100_000),
    "scheduled": (measure_scheduled, 1_000_000),
    "rate": (measure_rate, 60),
    "in_flight": (measure_in_flight, 20_000),
    "groups": (measure_groups, 100_000),
    "behind": (measure_behind, 1_000_000),
    "priorities": (measure_priorities, 1_000_000),
}


def main() -> None:
    """Measure the cases that are asked for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("cases", nargs="*", default=list(CASES), help=", ".join(CASES))
    parser.add_argument("--short", action="store_true", help=f"1/{SHORT} of the messages")
    parser.add_argument("--data", type=Path, default=Path(), help="folder on the disk to measure")
    options = parser.parse_args()
    for name in options.cases:
        measure, number = CASES[name]
        measure(options.data, number // SHORT if options.short else number)


if __name__ == "__main__":
    main()
