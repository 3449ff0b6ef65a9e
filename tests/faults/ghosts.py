"""Disconnected consumers get and charge nothing, and a stop charges nothing.

``python -m tests.faults.ghosts`` does 1,000 rounds with 25 dead consumers each, and 20 restarts by
SIGTERM with held messages; ``--short`` does a few of both; it ends with 1 if anything is charged.
"""

import argparse
import random
import sys
import time
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from tests.faults.ledger import IN_MEMORY, read_only, seq_of
from tests.support.fork_server import BrokerProcess, broker_process
from tests.support.socket_client import SocketClient

CONSUMERS: Final = 25
ROUNDS: Final = 1_000
STOPS: Final = 20
SHORT_ROUNDS: Final = 30
SHORT_STOPS: Final = 2
DISPATCH_S: Final = 5.0  # time limit
QUEUE: Final = "orders"
ENDS: Final = ("close", "reset", "half_close", "meanwhile")
JOBS: Final = (b"slow 1", b"slow 2", b"slow 3")


@dataclass
class Figures:
    """Results of the rounds; ``offences`` must be empty."""

    offences: list[str] = field(default_factory=list)
    rounds: Counter[str] = field(default_factory=Counter)  # by the end of the consumers
    charged: int = 0  # deliveries, all to sockets that had got the message
    stops: int = 0
    dead: int = 0


def rows(broker: BrokerProcess, sql: str) -> list[tuple[int, ...]]:
    with read_only(broker.data) as database:
        return database.execute(sql).fetchall()


def idle_consumers(broker: BrokerProcess, stack: ExitStack) -> list[SocketClient]:
    """Connect consumers of an empty queue; the broker knows their credit when this returns."""
    peers = [stack.enter_context(SocketClient(broker.port)) for _ in range(CONSUMERS)]
    for peer in peers:
        peer.consume(QUEUE, 1)
        peer.publish("barrier", b"", key=b"b")
    for peer in peers:
        assert peer.receipt_for(b"b").reason is None
    return peers


def play(broker: BrokerProcess, publisher: SocketClient, end: str, figures: Figures) -> None:
    """End all consumers, publish one message, and check its charged deliveries."""
    number = sum(figures.rounds.values())
    body = b"%d" % number
    reached = 0
    with ExitStack() as stack:
        peers = idle_consumers(broker, stack)
        if end == "meanwhile":  # the message may be on its way to one of them
            publisher.publish(QUEUE, body, key=body)
            for peer in peers:
                peer.half_close()
            assert publisher.receipt_for(body).reason is None
            reached = sum(bool(peer.side.receive(peer.rest())) for peer in peers)
        else:
            for peer in peers:
                getattr(peer, end)()
            assert publisher.confirm(QUEUE, body, key=body) is None
        assert publisher.confirm("barrier", b"") is None
    figures.rounds[end] += 1
    with SocketClient(broker.port) as worker:
        worker.consume(QUEUE, 1)
        worker.socket.settimeout(DISPATCH_S)
        try:
            (dispatch,) = worker.dispatches(1)
        except TimeoutError:
            figures.offences.append(f"round {number}, {end}: the message is not dispatched")
            return
        if dispatch.content != body:
            figures.offences.append(f"round {number}, {end}: {dispatch.content!r}, not {body!r}")
        seq = seq_of(dispatch.message_id)
        found = rows(broker, f"SELECT charged FROM message WHERE seq = {seq}")
        charged = found[0][0] if found else 0
        figures.charged += charged
        if charged > reached:
            figures.offences.append(
                f"round {number}, {end}: charged {charged}, but {reached} sockets got it"
            )
        worker.ack(dispatch)
        assert worker.confirm("barrier", b"") is None


def haunt(broker: BrokerProcess, rounds: int, figures: Figures) -> None:
    with SocketClient(broker.port) as publisher:
        for number in range(rounds):
            play(broker, publisher, ENDS[number % len(ENDS)], figures)
    figures.dead = len(rows(broker, "SELECT seq FROM history WHERE outcome = 4"))
    if figures.dead:
        figures.offences.append(f"{figures.dead} messages are dead letters")


def deploy(broker: BrokerProcess, figures: Figures, rng: random.Random) -> None:
    """Stop the broker while workers hold messages; some of them stop before it does."""
    with ExitStack() as stack:
        workers = [stack.enter_context(SocketClient(broker.port)) for _ in JOBS]
        for worker in workers:
            worker.consume("slow", 1)
        for worker in workers:
            worker.dispatches(1)
        leaving = rng.randrange(len(workers) + 1)
        assert broker.process is not None
        broker.process.terminate()
        while accepts(broker):  # until the drain has begun
            pass
        for worker in workers[:leaving]:
            rng.choice((worker.close, worker.reset, worker.half_close))()
        code = broker.process.wait(30)
    broker.kill()  # it has ended
    figures.stops += 1
    if code:
        figures.offences.append(f"stop {figures.stops}: exit code {code}")
    broker.start()
    found = rows(broker, "SELECT state, charged FROM message JOIN queue USING (queue_id) "
                 "WHERE name = 'slow'")  # fmt: skip
    if found != [(0, 0)] * len(JOBS):
        figures.offences.append(f"stop {figures.stops}: state and charged are {found}")


def accepts(broker: BrokerProcess) -> bool:
    try:
        SocketClient(broker.port).close()
    except ConnectionError:
        return False
    return True


def run(rounds: int, stops: int, seed: int) -> Figures:
    """Play all rounds with one broker, in memory, because a round has a dozen commits."""
    figures = Figures()
    with (
        TemporaryDirectory(dir=IN_MEMORY) as folder,
        broker_process(Path(folder) / "data") as broker,
    ):
        haunt(broker, rounds, figures)
        with SocketClient(broker.port) as publisher:
            publisher.store("slow", *JOBS)
        rng = random.Random(seed)
        for _ in range(stops):
            deploy(broker, figures, rng)
    return figures


def describe(figures: Figures, took_s: float) -> str:
    ends = ", ".join(f"{count} {end}" for end, count in figures.rounds.items())
    return (
        f"{sum(figures.rounds.values()):,} rounds with {CONSUMERS} dead consumers ({ends}) in "
        f"{took_s:.0f} s: {figures.charged} deliveries charged, each to a socket that got the "
        f"message; {figures.dead} dead letters\n"
        f"{figures.stops} SIGTERM restarts with {len(JOBS)} held messages: charged unchanged; "
        f"{len(figures.offences)} offences"
    )


def main() -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--stops", type=int, default=STOPS)
    parser.add_argument("--short", action="store_true")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    rounds, stops = (SHORT_ROUNDS, SHORT_STOPS) if given.short else (given.rounds, given.stops)
    began = time.perf_counter()
    figures = run(rounds, stops, given.seed)
    print(describe(figures, time.perf_counter() - began))
    for offence in figures.offences[:20]:
        print(offence)
    return bool(figures.offences)


if __name__ == "__main__":
    sys.exit(main())
