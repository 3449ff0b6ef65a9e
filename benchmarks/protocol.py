"""Measure parsing and encoding per frame in microseconds: the protocol alone, no socket.

Run ``python benchmarks/protocol.py``; each figure is the best of several rounds.
"""

import sys
import time
from collections.abc import Callable
from typing import Final

from phpmq_lite.protocol.connection import ClientSide, ServerSide
from phpmq_lite.protocol.frames import WireLimits

FRAMES: Final = 4_000
ROUNDS: Final = 15
BODY: Final = b'{"job":"urn:phpmq:mail","data":{"to":"a@example.org"},"pad":"%s"}' % (b"x" * 192)
ID: Final = b"%016x%016x" % (7, 0x5CE1_77AA_12CD_9E03)
READ: Final = 65_536


def best_us(run: Callable[[], object], frames: int, rounds: int = ROUNDS) -> float:
    """Return microseconds per frame in the best round."""
    best = float("inf")
    for _ in range(rounds):
        start = time.perf_counter()
        run()
        best = min(best, time.perf_counter() - start)
    return best / frames * 1e6


def streams() -> dict[str, bytes]:
    """Return 4,000 frames of each kind that a client sends."""
    client = ClientSide()
    keys = [b"%016x" % number for number in range(FRAMES)]
    queues = [f"orders.{number % 8}" for number in range(FRAMES)]
    return {
        "publish 001/03": client.publish("orders", BODY) * FRAMES,
        "publish 001/04": b"".join(client.publish("orders", BODY, 60, key) for key in keys),
        "publish, 8 queues": b"".join(client.publish(queue, BODY) for queue in queues),
        "publish, any order": (
            b"H0100103" + b"P05%029d0" % 1 + b"P02%029d" % len(BODY) + BODY + b"P01%029dorders" % 6
        )
        * FRAMES,
        "acknowledge": client.acknowledge("orders", ID) * FRAMES,
        "line publish": line_publish() * FRAMES,
    }


def line_publish() -> bytes:
    """Return a publish as printed in the protocol's documents."""
    return b"H0100102\nP01%029d\norders\nP02%029d\n%s\n" % (6, len(BODY), BODY)


def parse(data: bytes, read: int) -> None:
    """Feed ``data`` to a new connection in reads of ``read`` bytes."""
    side = ServerSide(WireLimits())
    taken = 0
    for start in range(0, len(data), read):
        taken += len(side.receive(data[start : start + read]))
    taken += len(side.release())  # acknowledgements look like an HTTP method
    if taken != FRAMES or side.error is not None:
        raise SystemExit(f"{taken} frames, {side.error}")


def dispatches() -> bytes:
    """Encode 4,000 dispatches and join them for one write."""
    side = ServerSide(WireLimits())
    parts: list[bytes] = []
    for _ in range(FRAMES):
        side.append_dispatch(parts, "orders", BODY, ID, 0)
    return b"".join(parts)


def receipts() -> bytes:
    """Encode 4,000 receipts and join them."""
    side = ServerSide(WireLimits())
    parts: list[bytes] = []
    for _ in range(FRAMES):
        side.append_receipts(parts, "orders", (b"0123456789abcdef",), None)
    return b"".join(parts)


def read_back(data: bytes) -> None:
    """Parse frames of the broker."""
    side = ClientSide()
    for start in range(0, len(data), READ):
        side.receive(data[start : start + READ])


def large(read: int) -> float:
    """Return the nanoseconds per byte of one publish of 4 MiB in reads of ``read`` bytes."""
    content = bytes(4 << 20)
    frame = ClientSide().publish("orders", content)
    pieces = [frame[start : start + read] for start in range(0, len(frame), read)]

    def run() -> None:
        side = ServerSide(WireLimits(), http_guard=False)
        for piece in pieces:
            side.receive(piece)

    return best_us(run, len(frame), 3) * 1e3


def main() -> None:
    """Print all figures."""
    out = sys.stdout.write
    out(f"body {len(BODY)} bytes, microseconds per frame\n")
    out(f"{'parse':22}{'whole':>8}{'64 KiB':>8}{'1 byte':>8}\n")
    for name, data in streams().items():
        whole = best_us(lambda data=data: parse(data, len(data)), FRAMES)  # type: ignore[misc]
        reads = best_us(lambda data=data: parse(data, READ), FRAMES)  # type: ignore[misc]
        bytewise = best_us(lambda data=data: parse(data, 1), FRAMES, 1)  # type: ignore[misc]
        out(f"{name:22}{whole:8.2f}{reads:8.2f}{bytewise:8.1f}\n")
    client = ClientSide()
    sent, answered = dispatches(), receipts()
    out(f"encode dispatch, joined {best_us(dispatches, FRAMES):.2f}\n")
    out(f"encode receipt, joined  {best_us(receipts, FRAMES):.2f}\n")
    out(f"parse dispatch, 64 KiB  {best_us(lambda: read_back(sent), FRAMES):.2f}\n")
    out(f"parse receipt, 64 KiB   {best_us(lambda: read_back(answered), FRAMES):.2f}\n")
    out(f"client publish          {best_us(lambda: client.publish('orders', BODY), 1, 999):.2f}\n")
    out(f"client acknowledge      {best_us(lambda: client.acknowledge('q', ID), 1, 999):.2f}\n")
    for read in (1 << 16, 1_024, 16):
        out(f"4 MiB content in reads of {read}: {large(read):.2f} ns per byte\n")


if __name__ == "__main__":
    main()
