"""Count the functions that the broker calls per message, in Python and in C.

::

    python benchmarks/call_counts.py

Run it with the Python interpreters of two versions and compare them. Unlike times, counts do not
depend on what else the machine does; they vary by less than 1 %, with the number of batches. Work
in the writer process and in other threads is not counted, nor are calls within compiled modules.
"""

import argparse
import tempfile
import time
from collections import Counter
from pathlib import Path
from signal import SIGUSR1, SIGUSR2, Signals
from typing import Final

from phpmq_lite.broker_process import BrokerProcess
from phpmq_lite.client.blocking_client import BlockingClient, connect_blocking

# Counts from SIGUSR1 to SIGUSR2, then writes the counts to the file in its first argument.
PROGRAM: Final = """
import signal, sys
from collections import Counter
from phpmq_lite.cli.main import main

calls, path = Counter(), sys.argv.pop(1)

def count(frame, event, arg):
    if event == "call":
        calls[f"{frame.f_globals.get('__name__')}.{frame.f_code.co_name}"] += 1
    elif event == "c_call":
        calls[getattr(arg, "__qualname__", repr(arg))] += 1

def begin(*_):
    calls.clear()
    sys.setprofile(count)

def end(*_):
    sys.setprofile(None)
    with open(path, "w") as file:
        file.writelines(f"{number} {name}\\n" for name, number in calls.items())

signal.signal(signal.SIGUSR1, begin)
signal.signal(signal.SIGUSR2, end)
sys.exit(main())
"""
WINDOW: Final = 1_000
BODY: Final = b"x" * 256


def publish(client: BlockingClient, queue: str, messages: int) -> None:
    """Publish messages with confirmation."""
    client.publish_many(queue, [BODY] * messages, window=WINDOW)


def consume(client: BlockingClient, queue: str, messages: int) -> None:
    """Receive and acknowledge messages."""
    with client.consume(queue, credit=WINDOW) as consumer:
        for delivery in consumer:
            delivery.ack()
            messages -= 1
            if not messages:
                break


def send(broker: BrokerProcess, signal: Signals) -> None:
    """Send a signal to the broker, and wait until it has handled it."""
    assert broker.process is not None
    broker.process.send_signal(signal)
    time.sleep(0.5)


def measure(folder: Path, messages: int) -> dict[str, Counter[str]]:
    """Return the calls of each workload."""
    found, counts = {}, folder / "counts"
    program = "-c", PROGRAM, str(counts)
    with (
        BrokerProcess(folder / "data", program=program, is_isolated=True) as broker,
        connect_blocking(broker.phpmq[0]) as client,
    ):
        publish(client, "warm", 2 * WINDOW)
        for name, workload in (("publish", publish), ("consume", consume)):
            send(broker, SIGUSR1)
            workload(client, "measured", messages)
            send(broker, SIGUSR2)
            rows = (line.split(" ", 1) for line in counts.read_text().splitlines())
            found[name] = Counter({calls: int(number) for number, calls in rows})
    return found


def main() -> None:
    """Print the calls per message of each workload, with the most frequent functions."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--messages", type=int, default=20_000)
    parser.add_argument("--most", type=int, default=10, help="how many functions to list")
    parser.add_argument("--data", default=".", help="folder for temporary data")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.data) as folder:
        found = measure(Path(folder), options.messages)
    for workload, calls in found.items():
        print(f"{workload}: {calls.total() / options.messages:.2f} calls per message")
        for name, number in calls.most_common(options.most):
            print(f"  {number / options.messages:6.2f} {name}")


if __name__ == "__main__":
    main()
