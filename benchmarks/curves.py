"""Measure how the cost of a message grows with backlog, queues, connections, size and history.

Each axis has a running broker per point, so that one turn measures all points, in a different order
each time; ratios are relative to the first point of the same turn. Writes ``curves.json`` and a
picture of each axis; axes that are not measured keep their stored values::

    python benchmarks/curves.py --data . --out docs/operate/curves
    python benchmarks/curves.py --axes backlog,history --turns 7
    python benchmarks/curves.py --draw            # only draws the stored values
    python benchmarks/curves.py --axes full --turns 9 --seconds 2 --messages 100000 --out OTHER

``full`` compares publish and flow with a history at its limit, where each settled message also
removes an old one, with those of an empty one.
"""

import argparse
import json
import random
import shutil
import sys
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import asdict, dataclass
from itertools import cycle, islice
from pathlib import Path
from typing import Any, Final

from curve_pictures import draw, summary
from footprint import allow_files, connection_limit_options, hold_connections

from phpmq_lite.bench import traffic
from phpmq_lite.bench.machine import describe_machine
from phpmq_lite.bench.processes import BenchJob, cpu_seconds, run_together, unwind_on_signals
from phpmq_lite.bench.traffic import Address, DispatchStream, PublishStream
from phpmq_lite.bench.workloads import elapsed_span, fresh_queue_name, temporary_folder
from phpmq_lite.broker_process import BrokerProcess, isolated_broker
from phpmq_lite.errors import ClientError

SIZE: Final = 256
LIMIT_S: Final = 600.0
MAX_BYTES: Final = 256 << 20  # per measurement with large bodies
PUBLISH: Final = "publish"
WINDOWS: Final = {"window 100": 100, "window 1,000": 1_000}
PAIRS: Final = {"1+1": 1, "4+4": 4}
NAME: Final = b"spread."
IN_USE: Final = 10  # queues in use

Start = Callable[[str, tuple[str, ...]], AbstractContextManager[BrokerProcess]]
Turn = dict[str, "Sample"]  # by line: PUBLISH and WINDOWS


@dataclass(slots=True, frozen=True)
class Sample:
    """Microseconds per message: elapsed time, and CPU time of the broker."""

    us: float
    broker_us: float | None  # None: it also did other work


@dataclass(slots=True, frozen=True)
class Effort:
    """Size of each measurement: seconds, or a number of messages."""

    seconds: float
    messages: int


@dataclass(slots=True, frozen=True)
class Axis:
    """What grows, how to prepare a broker for a point, and how to measure it."""

    title: str
    points: tuple[int, ...]
    quick: tuple[int, ...]
    turn: Callable[[BrokerProcess, int, Effort], Turn]
    prepare: Callable[[BrokerProcess, int], None] = lambda _broker, _value: None
    settings: Callable[[int], tuple[str, ...]] = lambda _value: ()  # options of ``serve``
    lines: tuple[str, ...] = (PUBLISH, *WINDOWS)  # keys of a turn


def measure(
    broker: BrokerProcess,
    jobs: Mapping[str, BenchJob],
    beside: Mapping[str, BenchJob] | None = None,
) -> Sample:
    """Run jobs that return their number of messages; producers have as many as all others."""
    began: list[float | None] = []
    done = run_together(
        {**jobs, **(beside or {})}, LIMIT_S, lambda: began.append(cpu_seconds(broker.pid))
    )
    cpu_s = (cpu_seconds(broker.pid) or 0.0) - (began[0] or 0.0)
    counted = {name: done[name] for name in jobs}
    producers = [name for name in jobs if name.startswith("producer")]
    messages = sum(counted[name].value for name in producers or jobs)
    broker_us = None if beside else round(cpu_s / messages * 1e6, 2)
    return Sample(round(elapsed_span(counted) / messages * 1e6, 2), broker_us)


# -- flows on a fresh queue: size, connections, history


def flows(
    broker: BrokerProcess, effort: Effort, size: int, beside: Mapping[str, BenchJob] | None = None
) -> Turn:
    """Measure publishing alone, then a producer and a consumer with each window."""
    most = max(20, MAX_BYTES // size)

    def publisher(queue: str) -> BenchJob:
        arguments = (broker.address, queue, size, effort.seconds, True, "plain", most)
        return BenchJob(traffic.publish, arguments)

    queue = fresh_queue_name(PUBLISH)
    turn = {PUBLISH: measure(broker, {"producer": publisher(queue)}, beside)}
    for line, window in WINDOWS.items():
        queue = fresh_queue_name("flow")
        window = min(window, traffic.unconfirmed_limit(size))
        consumer = BenchJob(traffic.consume, (broker.address, queue, size, window))
        pair = {"producer": publisher(queue), "consumer": consumer}
        turn[line] = measure(broker, pair, beside)
    return turn


def turn_of_size(broker: BrokerProcess, value: int, effort: Effort) -> Turn:
    """Measure bodies of ``value`` bytes."""
    return flows(broker, effort, value)


def turn_of_connections(broker: BrokerProcess, value: int, effort: Effort) -> Turn:
    """Measure flows next to ``value`` idle consumers, each with its own queue."""
    idle = BenchJob(hold_connections, (broker.address, value, effort.seconds))
    return flows(broker, effort, SIZE, {"idle": idle})


def turn_of_history(broker: BrokerProcess, _value: int, effort: Effort) -> Turn:
    """Measure flows on a broker with a history."""
    return flows(broker, effort, SIZE)


def settle(broker: BrokerProcess, value: int) -> None:
    """Settle ``value`` messages."""
    if value:
        queue = fresh_queue_name("history")
        number = fill(broker, queue, value)
        consume_from(broker, queue, number, 1_000)


# -- a history at its limit, where each settled message also removes an old one


def turn_of_full(broker: BrokerProcess, _value: int, effort: Effort) -> Turn:
    """Measure publishing, then one and four pairs of a producer and a consumer."""
    queue, turn = fresh_queue_name("full"), {}
    published = (broker.address, queue, SIZE, effort.messages)
    turn[PUBLISH] = measure(broker, {"producer": BenchJob(traffic.publish_number, published)})
    consume_from(broker, queue, effort.messages, 1_000)
    for line, pairs in PAIRS.items():
        jobs = {}
        for number in range(pairs):
            to = (broker.address, fresh_queue_name("full"), SIZE)
            jobs[f"producer {number}"] = BenchJob(traffic.publish, (*to, effort.seconds, True))
            jobs[f"consumer {number}"] = BenchJob(traffic.consume, (*to, WINDOWS["window 100"]))
        turn[line] = measure(broker, jobs)
    return turn


def fill_history(broker: BrokerProcess, value: int) -> None:
    """Settle messages until the history has been full for a while."""
    settle(broker, value * 3 // 2)  # some was removed, too


def history_limit_options(value: int) -> tuple[str, ...]:
    """Return options of ``serve`` that limit the history to ``value`` rows; 0: the default."""
    return ("--set", f"history.rows={value}") if value else ()


# -- one queue with a backlog


def fill(broker: BrokerProcess, queue: str, number: int) -> int:
    """Publish to a queue; return the number of messages."""
    job = BenchJob(traffic.publish_number, (broker.address, queue, SIZE, number))
    stored: int = run_together({"producer": job}, LIMIT_S)["producer"].value
    return stored


def consume_from(broker: BrokerProcess, queue: str, number: int, window: int) -> Sample:
    """Consume messages from a queue, oldest first."""
    job = BenchJob(traffic.drain, (broker.address, queue, SIZE, number, window))
    return measure(broker, {"consumer": job})


def fill_backlog(broker: BrokerProcess, value: int) -> None:
    """Fill the queue with ``value`` messages."""
    fill(broker, "backlog", value)


def turn_of_backlog(broker: BrokerProcess, _value: int, effort: Effort) -> Turn:
    """Publish after the backlog and consume as many of the oldest, so its length is unchanged."""
    turn = {}
    for line, window in WINDOWS.items():
        job = BenchJob(traffic.publish_number, (broker.address, "backlog", SIZE, effort.messages))
        turn[PUBLISH] = measure(broker, {"producer": job})
        turn[line] = consume_from(broker, "backlog", effort.messages, window)
    return turn


# -- many queues, one message to each in turn


def names(queues: int) -> list[str]:
    """Return names of equal length, so that all frames have equal length."""
    return [f"{NAME.decode()}{index:05}" for index in range(queues)]


def publish_spread(address: Address, queues: int, number: int) -> Generator[None, None, int]:
    """Publish ``number`` confirmed messages to the queues in turn."""
    streams = [PublishStream(name, SIZE) for name in names(queues)]
    turns, piece = cycle(streams), traffic.publishes_per_write(SIZE)
    sent = received = 0
    with traffic.connect(address) as link:
        traffic.wait_until_stored(link)
        yield
        while received < number * streams[0].receipt_bytes:
            confirmed = received // streams[0].receipt_bytes
            if sent < number and sent - confirmed <= traffic.UNCONFIRMED - piece:
                count = min(piece, number - sent)
                link.sendall(b"".join([stream.encode(1) for stream in islice(turns, count)]))
                sent += count
            else:
                received += len(traffic.receive(link))
    if received != number * streams[0].receipt_bytes:
        raise ClientError("a publish was refused")
    return sent


def consume_spread(
    address: Address, queues: int, number: int, window: int, is_filled: bool
) -> Generator[None, None, int]:
    """Consume all queues on one connection, with ``window`` each, and acknowledge.

    If the queues are empty, the consumers are registered before the measurement.
    """
    streams = {name.encode(): DispatchStream(name, SIZE, window) for name in names(queues)}
    first = next(iter(streams))
    frame_bytes = streams[first].frame_bytes
    rest, taken = b"", 0
    with traffic.connect(address) as link:
        consume = b"".join(stream.consume for stream in streams.values())
        if is_filled:
            link.sendall(consume)
        else:
            traffic.wait_until_stored(link, consume)
        yield
        while taken < number:
            data = rest + traffic.receive(link)
            end = len(data) // frame_bytes * frame_bytes
            answers = []
            for at in range(0, end, frame_bytes):
                name_at = data.index(NAME, at)
                stream = streams[data[name_at : name_at + len(first)]]
                answers.append(stream.feed(data[at : at + frame_bytes]))
            rest = data[end:]
            taken += len(answers)
            if answers:
                link.sendall(b"".join(answers))
        traffic.wait_until_stored(link)
        return taken


def turn_of_queues(broker: BrokerProcess, value: int, effort: Effort) -> Turn:
    """Publish to ``value`` queues and drain them, then measure both at once with each window."""
    number = max(effort.messages, value)
    producer = BenchJob(publish_spread, (broker.address, value, number))

    def consumer(window: int, *, is_filled: bool) -> BenchJob:
        return BenchJob(consume_spread, (broker.address, value, number, window, is_filled))

    turn = {PUBLISH: measure(broker, {"producer": producer})}
    run_together({"consumer": consumer(1_000, is_filled=True)}, LIMIT_S)
    for line, window in WINDOWS.items():
        pair = {"producer": producer, "consumer": consumer(window, is_filled=False)}
        turn[line] = measure(broker, pair)
    return turn


def turn_of_kept(broker: BrokerProcess, _value: int, effort: Effort) -> Turn:
    """Measure ten queues, whatever the number of queues on the broker."""
    return turn_of_queues(broker, IN_USE, effort)


def create_queues(broker: BrokerProcess, value: int) -> None:
    """Create ``value`` queues before the measurement."""
    turn_of_queues(broker, value, Effort(0.0, value))


def queue_limit_options(value: int) -> tuple[str, ...]:
    """Return options of ``serve`` that allow ``value`` queues and ours."""
    return ("--set", f"limits.max_queues={value + 1_000}")


AXES: Final = {
    "backlog": Axis(
        "messages that wait in the queue", (1_000, 10_000, 100_000, 1_000_000), (400,),
        turn_of_backlog, fill_backlog,
    ),
    "queues": Axis(
        "queues, a message to each in turn", (1, 10, 100, 1_000, 10_000), (3,),
        turn_of_queues, create_queues, queue_limit_options,
    ),
    "kept": Axis(
        f"queues that are there, {IN_USE} of them in use", (IN_USE, 100, 1_000, 10_000), (20,),
        turn_of_kept, create_queues, queue_limit_options,
    ),
    "connections": Axis(
        "idle consumers beside the flow, each with a queue", (1, 10, 100, 1_000), (3,),
        turn_of_connections, settings=connection_limit_options,
    ),
    "size": Axis(
        "bytes of a body", (16, 256, 4_096, 65_536, 1_048_576), (256,), turn_of_size
    ),
    "history": Axis(
        "messages settled before", (0, 100_000, 1_000_000), (400,), turn_of_history, settle
    ),
    "full": Axis(
        "rows of a full history; 0: not full", (0, 60_000, 300_000), (400,),
        turn_of_full, fill_history, history_limit_options, (PUBLISH, *PAIRS),
    ),
}  # fmt: skip


def measure_axis(name: str, options: argparse.Namespace, start: Start) -> dict[str, Any]:
    """Measure one axis; return its title, and the samples of all turns by line and point."""
    axis = AXES[name]
    points = axis.quick if options.quick else axis.points
    effort = Effort(0.05, 200) if options.quick else Effort(options.seconds, options.messages)
    samples: dict[str, dict[int, list[Sample]]] = {
        line: {value: [] for value in points} for line in axis.lines
    }
    with ExitStack() as stack:
        brokers = {}
        for value in points:
            more = axis.settings(value)
            brokers[value] = stack.enter_context(start(f"{name[0]}{value}", more))
            axis.prepare(brokers[value], value)
        for number in range(1 if options.quick else options.turns):
            for value in random.sample(points, len(points)):
                print(f"{name} {value:,}, turn {number + 1}", file=sys.stderr, flush=True)
                for line, sample in axis.turn(brokers[value], value, effort).items():
                    samples[line][value].append(sample)
    lines = {
        line: [
            {
                "value": value,
                "us": [sample.us for sample in found],
                "broker_us": [sample.broker_us for sample in found],
            }
            for value, found in by_value.items()
        ]
        for line, by_value in samples.items()
    }
    return {"title": axis.title, "lines": lines}


@contextmanager
def starting(folder: Path, *, is_quick: bool) -> Iterator[Start]:
    """Yield a function that starts the broker of a point; ``is_quick`` shares one broker."""

    @contextmanager
    def start(name: str, more: tuple[str, ...]) -> Iterator[BrokerProcess]:
        try:
            with isolated_broker(folder / name, *more) as broker:
                yield broker
        finally:
            shutil.rmtree(folder / name, ignore_errors=True)

    if not is_quick:
        yield start
        return
    with start("all", ()) as only:
        yield lambda _name, _more: nullcontext(only)


def arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    drawn = [name for name in AXES if name != "full"]  # in docs/operate/performance.md
    parser.add_argument(
        "--axes", default=",".join(drawn), help=f"comma-separated: {','.join(AXES)}"
    )
    parser.add_argument("--turns", type=int, default=5, help="measurements per point")
    parser.add_argument("--seconds", type=float, default=0.7, help="per measurement")
    parser.add_argument(
        "--messages", type=int, default=20_000, help="per measurement of a backlog or many queues"
    )
    parser.add_argument("--quick", action="store_true", help="one small point, once, as a test")
    parser.add_argument("--draw", action="store_true", help="only draw stored values")
    parser.add_argument("--data", type=Path, default=Path(), help="folder on the disk to measure")
    parser.add_argument(
        "--out", type=Path, default=Path("docs/operate/curves"), help="folder of the results"
    )
    options = parser.parse_args()
    options.axes = options.axes.split(",")
    if unknown := set(options.axes) - set(AXES):
        parser.error(f"{min(unknown)!r} is not one of {', '.join(AXES)}")
    return options


def main() -> None:
    """Measure the requested axes, store and draw them, and print the medians."""
    options = arguments()
    options.out.mkdir(parents=True, exist_ok=True)
    file = options.out / "curves.json"
    found: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {"axes": {}}
    if not options.draw:
        found["machine"] = asdict(describe_machine(options.data, is_own=True))
        allow_files(max(AXES["connections"].points))
        with (
            unwind_on_signals(),
            temporary_folder(options.data) as folder,
            starting(folder, is_quick=options.quick) as start,
        ):
            for name in options.axes:
                found["axes"][name] = measure_axis(name, options, start)
                file.write_text(json.dumps(found, indent=1) + "\n")
    for name in options.axes:
        axis = found["axes"][name]
        (options.out / f"{name}.svg").write_text(draw(axis), encoding="utf-8")
        print(f"{name}: {axis['title']}")
        print(summary(axis))


if __name__ == "__main__":
    main()
