"""Brokers on the nodes of a cluster, and clients of all of them, which keep one ledger."""

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

from phpmq_lite.protocol.frames import Dispatch
from tests.faults.ledger import QUEUES, Client, Consumer, Ledger, Load
from tests.support.patroni_cluster import PatroniCluster

FIRST_NODE: Final = 3  # of the network, with a broker
PORT: Final = 9100
RELAY_PORT: Final = 9300
RESTART_S: Final = 0.2  # after the exit of a broker

TICK_S: Final = 0.02
WINDOW: Final = 200  # unanswered publishes of a connection
CLIENT_TIMEOUT_S: Final = 1.0  # without an answer, a publisher connects again


class ServedBroker:
    """A broker on a node of the network, started again whenever it exits, as by systemd."""

    def __init__(self, cluster: PatroniCluster, number: int, folder: Path) -> None:
        self.node = FIRST_NODE + number
        self.address = cluster.network.addresses[self.node]
        self.log = folder / f"broker{number + 1}.log"
        self.exits: Counter[int] = Counter()  # by exit code
        self.on_exit: Callable[[], object] = lambda: None
        self._command = [
            *cluster.network.prefix(self.node), sys.executable, "-m", "phpmq_lite", "serve",
            "--data", str(folder / f"broker{number + 1}"), "--store", cluster.url(),
            "--listen", f"{self.address}:{PORT}", "--legacy-listen", "none", "--admin", "none",
            "--set", "storage.ballast_bytes=0", "--set", "tcp.open=true",
            "--set", f"store.relay_listen={self.address}:{RELAY_PORT}",
            "--set", "history.bytes=1TiB",
        ]  # fmt: skip
        self._is_closed = False
        self._process: subprocess.Popen[bytes] | None = None
        self._thread = threading.Thread(target=self._keep_running, daemon=True)
        self._thread.start()

    @property
    def pid(self) -> int:
        return self._process.pid if self._process else 0

    def signal(self, number: int) -> None:
        with suppress(ProcessLookupError):
            if self.pid:
                os.kill(self.pid, number)

    def close(self) -> None:
        """Kill the process and start no other."""
        self._is_closed = True
        self.signal(signal.SIGCONT)
        self.signal(signal.SIGKILL)
        self._thread.join()

    def _keep_running(self) -> None:
        while not self._is_closed:
            with self.log.open("ab") as log:
                self._process = process = subprocess.Popen(
                    self._command, stdin=subprocess.DEVNULL, stdout=log, stderr=log
                )
            self.exits[process.wait()] += 1
            self._process = None
            self.on_exit()
            time.sleep(RESTART_S)


# -- clients


class Site:
    """All clients of all brokers, and what they know."""

    def __init__(self, ledger: Ledger, rate: int) -> None:
        self.ledger = ledger
        self.load = Load(large=0.0)  # ``ledger.Client`` reads these two
        self.is_asleep = False
        self.rate = rate  # publishes per second
        self.orphans: dict[bytes, bytes] = {}  # unanswered publishes of lost connections
        self.refusals: Counter[str] = Counter()
        self.repeated = 0  # dispatches of messages that were held before
        self.holders: dict[bytes, tuple[Client, int]] = {}  # id -> who received it, and in which
        self.phase = 0  # odd while a fault is on
        self.connections: dict[str, set[Client]] = defaultdict(set)  # by address
        self.last_receipt_at = time.monotonic()
        self.receipts = 0
        self.last_early = b""  # the last key that could be stored before a majority was lost
        self.late_receipts = 0  # for keys after that one
        self.gap_s = 0.0  # the longest since ``watch``
        self._watched_at = 0.0
        self._published = 0.0
        self._tasks: list[asyncio.Task[None]] = []

    def serve(self, addresses: list[str]) -> None:
        """Keep a publisher and two consumers connected to each address."""
        for address in addresses:
            for kind in (Publisher, Worker, Worker):
                self._tasks.append(asyncio.create_task(self._keep_connected(address, kind)))

    async def _keep_connected(self, address: str, kind: "type[Publisher | Worker]") -> None:
        loop = asyncio.get_running_loop()
        while True:
            with suppress(OSError):
                async with asyncio.timeout(CLIENT_TIMEOUT_S):
                    _, client = await loop.create_connection(
                        lambda: kind(self, address), address, PORT
                    )
                self.connections[address].add(client)
                await asyncio.wait([client.ended])
                self.connections[address].discard(client)
            await asyncio.sleep(0.1)

    def disconnect(self, address: str) -> None:
        """End connections to a broker that has exited; it may have been unable to tell us."""
        for client in [*self.connections[address]]:
            client.transport.abort()

    def close(self) -> None:
        """End all clients."""
        for task in self._tasks:
            task.cancel()
        for address in self.connections:
            self.disconnect(address)

    def watch(self) -> None:
        """Begin to measure the longest time without a receipt."""
        self.gap_s, self._watched_at = 0.0, time.monotonic()

    def lose_majority(self) -> None:
        """Count receipts for keys that are made from now on."""
        self.last_early, self.late_receipts = self.ledger.new_key(), 0

    def note_receipt(self, key: bytes) -> None:
        """Count a receipt that needs a majority now."""
        self.late_receipts += bool(self.last_early) and key > self.last_early

    def count_down(self) -> None:
        now = time.monotonic()
        self.gap_s = max(self.gap_s, now - max(self.last_receipt_at, self._watched_at))
        self.last_receipt_at = now
        self.receipts += 1

    def quota(self) -> int:
        """Return how many messages may be published now."""
        now = time.monotonic()
        self._published = max(self._published, now - 1.0)
        count = int((now - self._published) * self.rate)
        self._published += count / self.rate
        return count


class Publisher(Client):
    """Publishes with keys at a fixed rate; connects again after a second without an answer.

    The first key of a connection shows that its broker is active.
    """

    def __init__(self, site: Site, address: str) -> None:
        super().__init__(site)  # type: ignore[arg-type]
        self.site, self.address = site, address
        self.mine: dict[bytes, bytes] = {}  # unanswered
        self.is_served = False
        self.answered_at = time.monotonic()

    def begin(self) -> None:
        self.publish()
        self.tick()

    def connection_lost(self, exc: Exception | None) -> None:
        """Leave unanswered publishes to other connections."""
        self.site.orphans |= self.mine
        super().connection_lost(exc)

    def publish(self) -> None:
        rng, key = self.ledger.rng, self.ledger.new_key()
        body = key + b"c" * rng.randrange(300)
        self.confirm(rng.choice(QUEUES), key, body, rng.choice((0, 0, 0, 0, 3_600, 1)))
        self.mine[key] = self.ledger.unanswered[key]

    def tick(self) -> None:
        if self.transport.is_closing():
            return
        loop, now = asyncio.get_running_loop(), time.monotonic()
        if now > self.answered_at + CLIENT_TIMEOUT_S:
            self.transport.abort()
            return
        loop.call_later(TICK_S, self.tick)
        if not self.is_served:
            return
        while self.site.orphans and len(self.mine) < WINDOW:
            key, frame = self.site.orphans.popitem()
            self.mine[key] = frame
            self.transport.write(frame)
        for _ in range(min(self.site.quota(), WINDOW - len(self.mine))):
            self.publish()
        if not self.mine:
            self.answered_at = now

    def answered(self, key: bytes, reason: str | None) -> None:
        """Record a receipt, unless publishing is stopped: then the publish is repeated."""
        self.answered_at = time.monotonic()
        frame = self.mine.pop(key, None)
        if reason is not None:
            self.site.orphans[key] = frame or self.ledger.unanswered[key]
            self.site.refusals[reason] += 1
            return
        self.is_served = True
        self.site.note_receipt(key)
        super().answered(key, None)


class Worker(Consumer):
    """Ends all messages, some of them later, and notes which connection received each."""

    def __init__(self, site: Site, address: str) -> None:
        super().__init__(site)  # type: ignore[arg-type]
        self.site, self.address = site, address

    def take(self, dispatch: Dispatch) -> None:
        """Check that no other connection holds the message, and end it."""
        site, queue, message_id = self.site, dispatch.queue, dispatch.message_id
        if message_id in site.holders:
            other, phase = site.holders[message_id]
            is_lost = other.ended.done() or other.transport.is_closing()
            if not is_lost and phase == site.phase and not phase % 2:
                self.ledger.offences.append(f"{message_id!r} was dispatched twice")
            site.repeated += 1
        site.holders[message_id] = self, site.phase
        self.ledger.note_dispatch(dispatch)
        chance = self.ledger.rng.random()
        ack, ended = self.side.acknowledge(queue, message_id), ("acked", message_id)
        if chance < 0.1:
            later_s = self.ledger.rng.uniform(0.2, 2.0)
            asyncio.get_running_loop().call_later(later_s, self._end, [ack], [ended])
        elif chance < 0.15:
            self.ends.append(self.side.requeue(queue, message_id, 0))
            del site.holders[message_id]
        elif chance < 0.2:
            self.ends.append(self.side.dead_letter(queue, message_id))
            self.ending.append(("dead", message_id))
        else:
            self.ends.append(ack)
            self.ending.append(ended)

    def answered(self, key: bytes, reason: str | None) -> None:
        """Record a receipt; a mark that was refused proves nothing."""
        if reason is not None:
            self.marks.pop(key, None)
            self.ledger.unanswered.pop(key, None)
            return
        self.site.note_receipt(key)
        for _, message_id in self.marks.get(key, ()):
            self.site.holders.pop(message_id, None)
        super().answered(key, None)
