"""Many open connections: what does one cost, and do the others notice?

Opens connections that each consume a queue of their own, and measures the broker's memory and the
throughput of one producer and one consumer, before and beside them::

    python benchmarks/connections.py --connections 1000 --data .
"""

import argparse
import resource
import secrets
import tempfile
import time
from collections.abc import Generator
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from phpmq_lite.bench import clients
from phpmq_lite.bench.broker import BrokerProcess
from phpmq_lite.bench.clients import Address
from phpmq_lite.bench.counters import resident_bytes
from phpmq_lite.bench.processes import Job, run, unwound_by_signals
from phpmq_lite.bench.streams import DispatchStream, PublishStream

SIZE: Final = 256
WINDOW: Final = 100
SETTLE_S: Final = 2.0
SPARE_FILES: Final = 200
FEW: Final = 20  # connections that make the broker load what every connection needs
LIMIT_S: Final = 120.0


def hold(address: Address, number: int, seconds: float) -> Generator[None, None, int]:
    """Keep connections open for a while; at the end each of them still gets a message."""
    with ExitStack() as stack:
        consumers = []
        for index in range(number):
            stream = DispatchStream(f"idle.{index}", SIZE, WINDOW)
            barrier = PublishStream(clients.BARRIER_QUEUE, 1)
            link = stack.enter_context(clients.connect(address))
            link.sendall(stream.consume + barrier.encode(1))
            consumers.append((link, stream, barrier))
        for link, _, barrier in consumers:
            while not barrier.feed(clients.receive(link)):
                pass
        yield
        time.sleep(seconds)
        publisher = stack.enter_context(clients.connect(address))
        for index, (link, stream, _) in enumerate(consumers):
            publisher.sendall(PublishStream(f"idle.{index}", SIZE, is_confirmed=False).encode(1))
            while not stream.received:
                link.sendall(stream.feed(clients.receive(link)))
        return sum(stream.received for _, stream, _ in consumers)


def flow_jobs(address: Address, seconds: float) -> dict[str, Job]:
    """One producer, one consumer, on a queue that nobody has used."""
    queue = f"flow.{secrets.token_hex(4)}"
    return {
        "producer": Job(clients.publish, (address, queue, SIZE, seconds, True)),
        "consumer": Job(clients.consume, (address, queue, SIZE, WINDOW)),
    }


def main() -> None:
    """Print memory and throughput, alone and beside the connections."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--connections", type=int, default=1_000)
    parser.add_argument("--seconds", type=float, default=5.0, help="of each measurement")
    parser.add_argument("--data", type=Path, default=Path(), help="a folder on the disk to use")
    options = parser.parse_args()
    number = options.connections
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(most, number + SPARE_FILES), most))
    limit = str(2 * number + SPARE_FILES)  # where places are short, the longest silent must go
    settings = [
        *("--set", f"limits.connections={limit}"),
        *("--set", f"limits.connections_per_loopback_address={limit}"),
    ]
    with (
        unwound_by_signals(),
        tempfile.TemporaryDirectory(prefix=".bench-", dir=options.data) as folder,
        BrokerProcess(Path(folder) / "data", *settings) as broker,
    ):
        measure(broker, number, options.seconds)


def measure(broker: BrokerProcess, number: int, seconds: float) -> None:
    """Do it on one broker; memory first, as long as nothing lies free in its heap."""
    run({"few": Job(hold, (broker.address, FEW, 0.0))}, LIMIT_S)
    time.sleep(SETTLE_S)
    before = resident_bytes(broker.pid)
    memory: list[int | None] = []
    idle = {"idle": Job(hold, (broker.address, number, SETTLE_S))}
    got = run(idle, LIMIT_S, lambda: memory.append(resident_bytes(broker.pid)))["idle"].value
    print(f"{number:,} connections, each with a consumer and a queue of its own")
    print(f"messages received on them at the end     {got:,}")
    if before is not None and memory[0] is not None:
        each = (memory[0] - before) / number / 1e3
        print(
            f"resident memory, without and with        {before / 1e6:.1f}, {memory[0] / 1e6:.1f} MB"
        )
        print(f"a connection with consumer and queue     {each:.1f} KB")
    alone = flow_rate(broker, {}, seconds)
    idle = {"idle": Job(hold, (broker.address, number, seconds))}
    crowded = flow_rate(broker, idle, seconds)
    print(f"flow alone, and beside the connections   {alone:,.0f}/s, {crowded:,.0f}/s")


def flow_rate(broker: BrokerProcess, beside: dict[str, Job], seconds: float) -> float:
    """Return messages per second from one producer to one consumer."""
    done = run(flow_jobs(broker.address, seconds) | beside, seconds * 10 + LIMIT_S)
    pair = (done["producer"], done["consumer"])
    return float(pair[0].value / (max(o.ended_s for o in pair) - min(o.began_s for o in pair)))


if __name__ == "__main__":
    main()
