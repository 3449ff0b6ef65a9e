"""A large backlog: memory, disk, ``kill -9``, the time to the next message, and the drain.

Fills a queue with confirmed publishing, once a little and then to the full number, kills the
broker, starts it on what it left, and takes everything out with acknowledgements::

    python benchmarks/backlog.py --messages 1000000 --data .
"""

import argparse
import socket
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

from phpmq_lite.bench import clients
from phpmq_lite.bench.broker import BrokerProcess
from phpmq_lite.bench.counters import peak_resident_bytes, resident_bytes
from phpmq_lite.bench.processes import Job, run, unwound_by_signals
from phpmq_lite.protocol.connection import ClientSide

QUEUE: Final = "backlog"
FEW: Final = 10_000
LIMIT_S: Final = 900.0
SETTLE_S: Final = 2.0  # for checkpoints and freed memory


def show(what: str, value: str) -> None:
    """Print one line of the report."""
    print(f"{what:52}{value:>20}", flush=True)


def megabytes(size: int | None) -> str:
    """Write bytes as megabytes, as in the targets: 10^6."""
    return "unknown" if size is None else f"{size / 1e6:,.1f} MB"


def fill(broker: BrokerProcess, number: int, size: int) -> tuple[int, float]:
    """Publish ``number`` messages; return how many it were, and how many per second."""
    job = Job(clients.fill, (broker.address, QUEUE, size, number))
    outcome = run({"producer": job}, LIMIT_S)["producer"]
    time.sleep(SETTLE_S)
    return outcome.value, outcome.value / (outcome.ended_s - outcome.began_s)


def first_message(address: tuple[str, int]) -> None:
    """Return when one message has come; it goes back when the connection ends."""
    client = ClientSide()
    with socket.create_connection(address, 60) as link:
        link.sendall(client.consume(QUEUE, 1))
        while not client.receive(link.recv(1 << 16)):
            pass


def drain(broker: BrokerProcess, messages: int, size: int, window: int) -> float:
    """Take everything out; return how many messages per second."""
    job = Job(clients.drain, (broker.address, QUEUE, size, messages, window))
    outcome = run({"consumer": job}, LIMIT_S)["consumer"]
    return messages / (outcome.ended_s - outcome.began_s)


def before_the_kill(broker: BrokerProcess, messages: int, size: int) -> int:
    """Fill in two steps and compare the memory; return the number of messages."""
    with broker:
        show("resident memory, empty", megabytes(resident_bytes(broker.pid)))
        few, _ = fill(broker, min(FEW, messages // 2), size)
        memory = resident_bytes(broker.pid)
        show(f"resident memory, {few:,} messages", megabytes(memory))
        rest, rate = fill(broker, messages - few, size)
        more = resident_bytes(broker.pid)
        show(f"resident memory, {few + rest:,} messages", megabytes(more))
        if memory is not None and more is not None:
            show("difference", megabytes(more - memory))
        show("confirmed publishing, window 1,000", f"{rate:,.0f}/s")
        show("database and write-ahead log", megabytes(broker.database_bytes()))
        broker.kill()
    return few + rest


def after_the_kill(broker: BrokerProcess, messages: int, size: int, window: int) -> None:
    """Start on what the kill left, and take everything out."""
    began_s = time.monotonic()
    with broker:
        show("start after kill -9, until clients may connect", f"{since(began_s):.3f} s")
        first_message(broker.address)
        show("until the first message was received", f"{since(began_s):.3f} s")
        show("resident memory then", megabytes(resident_bytes(broker.pid)))
        rate = drain(broker, messages, size, window)
        show(f"drained with acknowledgements, window {window:,}", f"{rate:,.0f}/s")
        show("most memory at any time since the start", megabytes(peak_resident_bytes(broker.pid)))


def since(began_s: float) -> float:
    """Seconds that have passed."""
    return time.monotonic() - began_s


def main() -> None:
    """Print the report line by line as it comes."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--size", type=int, default=256, help="bytes of a body")
    parser.add_argument("--window", type=int, default=100, help="of the consumer that drains")
    parser.add_argument("--data", type=Path, default=Path(), help="a folder on the disk to use")
    options = parser.parse_args()
    print(f"filling {options.messages:,} messages takes a while …", file=sys.stderr)
    with (
        unwound_by_signals(),
        tempfile.TemporaryDirectory(prefix=".bench-", dir=options.data) as folder,
    ):
        broker = BrokerProcess(Path(folder) / "data")
        messages = before_the_kill(broker, options.messages, options.size)
        after_the_kill(broker, messages, options.size, options.window)


if __name__ == "__main__":
    main()
