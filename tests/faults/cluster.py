"""Brokers on a PostgreSQL cluster, and faults of both under load; then all ledgers must agree.

``python -m tests.faults.cluster --faults 200`` starts three machines with Patroni, configured by
``deploy/cluster``, and three machines with a broker each, in network namespaces (as root; etcd,
PostgreSQL 15 and Patroni are needed).  ``--short`` is a run of 10 faults.  It prints how long no
publish was confirmed, by kind of fault, and ends with 1 if anything was lost, confirmed without a
majority, or written by a broker that another had replaced.  ``--seed N`` repeats the random choices
of a run, but not its timing; ``--only KIND,…`` chooses kinds of faults.
"""

import argparse
import asyncio
import logging
import os
import random
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import psycopg

from phpmq_lite.protocol.frames import Dispatch
from tests.faults.ledger import (
    CONTRADICTIONS,
    KEY_BYTES,
    QUEUES,
    Client,
    Consumer,
    Ledger,
    Load,
    seq_of,
)
from tests.support.patroni_cluster import PatroniCluster
from tests.support.postgres_nodes import freeze, process_tree
from tests.support.seed import SEED

BROKERS: Final = 3
FIRST_NODE: Final = 3  # of the network, with a broker
PORT: Final = 9100
RELAY_PORT: Final = 9300
RESTART_S: Final = 0.2  # after the exit of a broker
SHORT_FAULTS: Final = 10
DISK_BYTES: Final = 6 << 30

TICK_S: Final = 0.02
WINDOW: Final = 200  # unanswered publishes of a connection
CLIENT_TIMEOUT_S: Final = 1.0  # without an answer, a publisher connects again
SETTLE_S: Final = 0.5  # answers that were on their way when a fault began arrive within
RECEIPTS_AFTER: Final = 100  # after a fault, before the next one
RECOVERY_S: Final = 180.0

# Records the epoch, the number of the batch and the broker of each transaction that writes.  The
# row of the epoch was written by the same transaction: that is how a batch begins.
_LOG: Final = """
CREATE TABLE write_log (
  number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  epoch bigint, batch bigint, is_fenced boolean, address inet
);
CREATE FUNCTION log_write() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  INSERT INTO write_log (epoch, batch, is_fenced, address)
  SELECT epoch, batch, xmin::text <> pg_current_xact_id()::xid::text, inet_client_addr()
  FROM epoch;
  RETURN NULL;
END
$$;
CREATE TRIGGER log_message AFTER INSERT OR UPDATE OR DELETE ON message
  FOR EACH STATEMENT EXECUTE FUNCTION log_write();
CREATE TRIGGER log_history AFTER INSERT ON history
  FOR EACH STATEMENT EXECUTE FUNCTION log_write();
"""
_KEYS: Final = """
SELECT seq, substr(content, 1, %s) FROM body WHERE seq > %s AND NOT EXISTS (
  SELECT * FROM message WHERE message.seq = body.seq AND source_seq IS NOT NULL
) AND NOT EXISTS (
  SELECT * FROM history WHERE history.seq = body.seq AND source_seq IS NOT NULL
) ORDER BY seq
"""


# -- brokers


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
        """Send a signal to the process, if it runs."""
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

    def count_down(self) -> None:
        """Count a receipt."""
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
        """Publish one message."""
        self.publish()
        self.tick()

    def connection_lost(self, exc: Exception | None) -> None:
        """Leave unanswered publishes to other connections."""
        self.site.orphans |= self.mine
        super().connection_lost(exc)

    def publish(self) -> None:
        """Publish a new message."""
        rng, key = self.ledger.rng, self.ledger.new_key()
        body = key + b"c" * rng.randrange(300)
        self.confirm(rng.choice(QUEUES), key, body, rng.choice((0, 0, 0, 0, 3_600, 1)))
        self.mine[key] = self.ledger.unanswered[key]

    def tick(self) -> None:
        """Publish what is due."""
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
        for _, message_id in self.marks.get(key, ()):
            self.site.holders.pop(message_id, None)
        super().answered(key, None)


# -- faults

Hit = Callable[["Cluster"], AbstractContextManager[None]]


@dataclass(frozen=True)
class Fault:
    """A kind of fault."""

    name: str
    hit: Hit  # injects it, and heals it at the end of the ``with`` block
    weight: int
    hold_s: tuple[float, float]  # how long it lasts, at least
    limit_s: float | None = None  # of the time without a receipt
    has_service: bool = True  # whether publishes are confirmed before it is healed
    may_confirm: bool = False  # although it has no service
    is_quick: bool = True  # in the short form, too


@dataclass
class Cluster:
    """All machines."""

    database: PatroniCluster
    brokers: list[ServedBroker]
    rng: random.Random
    site: Site
    primary: int = 0  # at the beginning of the fault, as is the active broker

    def __post_init__(self) -> None:
        self.active = self.brokers[0]

    def look(self) -> None:
        """Wait until the database is well, and find its primary and the active broker."""
        self.primary = self.database.wait_for_quorum(RECOVERY_S)
        address = self.query(
            "SELECT host(client_addr) FROM pg_stat_activity"
            " WHERE application_name = 'phpmq-lite-writer' ORDER BY state_change DESC LIMIT 1"
        )
        self.active = next((one for one in self.brokers if one.address == address), self.active)

    @property
    def standby(self) -> ServedBroker:
        return self.rng.choice([one for one in self.brokers if one is not self.active])

    @property
    def replicas(self) -> list[int]:
        return [node for node in range(3) if node != self.primary]

    def query(self, statement: str) -> str:
        """Run a statement in the broker's database on the primary, as superuser."""
        return self.database.query(self.primary, f"\\connect phpmq\n{statement}")


@contextmanager
def broker_killed(cluster: Cluster) -> Iterator[None]:
    cluster.active.signal(signal.SIGKILL)
    yield


@contextmanager
def standby_broker_killed(cluster: Cluster) -> Iterator[None]:
    cluster.standby.signal(signal.SIGKILL)
    yield


@contextmanager
def all_brokers_killed(cluster: Cluster) -> Iterator[None]:
    for broker in cluster.brokers:
        broker.signal(signal.SIGKILL)
    yield


@contextmanager
def broker_stopped(cluster: Cluster) -> Iterator[None]:
    broker = cluster.active
    broker.signal(signal.SIGSTOP)
    try:
        yield
    finally:
        broker.signal(signal.SIGCONT)


@contextmanager
def broker_terminated(cluster: Cluster) -> Iterator[None]:
    cluster.active.signal(signal.SIGTERM)
    yield


@contextmanager
def broker_cut_off(cluster: Cluster) -> Iterator[None]:
    node, network = cluster.active.node, cluster.database.network
    network.cut_off(node)
    try:
        yield
    finally:
        network.heal(node)


@contextmanager
def broker_cut_off_from_the_database(cluster: Cluster) -> Iterator[None]:
    node, network = cluster.active.node, cluster.database.network
    network.separate(node)
    try:
        yield
    finally:
        network.heal(node)


def _signal_backend(cluster: Cluster, function: str) -> None:
    cluster.query(
        f"SELECT {function}(pid) FROM pg_stat_activity WHERE application_name = 'phpmq-lite-writer'"
        " ORDER BY state = 'active' DESC, query_start DESC LIMIT 1"
    )


@contextmanager
def backend_terminated(cluster: Cluster) -> Iterator[None]:
    _signal_backend(cluster, "pg_terminate_backend")
    yield


@contextmanager
def backend_cancelled(cluster: Cluster) -> Iterator[None]:
    for _ in range(10):
        _signal_backend(cluster, "pg_cancel_backend")
        time.sleep(0.02)
    yield


@contextmanager
def postgres_killed(cluster: Cluster) -> Iterator[None]:
    cluster.database.kill_postgres(cluster.primary)
    yield


@contextmanager
def postgres_and_broker_killed(cluster: Cluster) -> Iterator[None]:
    cluster.active.signal(signal.SIGKILL)
    cluster.database.kill_postgres(cluster.primary)
    yield


@contextmanager
def primary_killed(cluster: Cluster) -> Iterator[None]:
    cluster.database.kill(cluster.primary)
    try:
        yield
    finally:
        cluster.database.start(cluster.primary)


@contextmanager
def primary_and_broker_killed(cluster: Cluster) -> Iterator[None]:
    cluster.active.signal(signal.SIGKILL)
    with primary_killed(cluster):
        yield


@contextmanager
def primary_cut_off(cluster: Cluster) -> Iterator[None]:
    node = cluster.primary
    cluster.database.cut_off(node)
    try:
        yield
    finally:
        cluster.database.heal(node)


@contextmanager
def primary_cut_off_from_the_others(cluster: Cluster) -> Iterator[None]:
    """The brokers still reach it."""
    network, node = cluster.database.network, cluster.primary
    with ExitStack() as stack:
        for other in cluster.replicas:
            network.separate(node, [other])
        stack.callback(network.heal, node)
        yield


@contextmanager
def primary_stopped(cluster: Cluster) -> Iterator[None]:
    """All its processes stand still, and its kernel keeps the connections."""
    cluster.database.pause(cluster.primary)
    try:
        yield
    finally:
        cluster.database.resume(cluster.primary)


@contextmanager
def replica_killed(cluster: Cluster) -> Iterator[None]:
    cluster.database.kill_postgres(cluster.rng.choice(cluster.replicas))
    yield


@contextmanager
def _stopped(cluster: Cluster, nodes: list[int]) -> Iterator[None]:
    """Stop PostgreSQL on some machines with SIGSTOP."""
    postmasters = [cluster.database.postmaster(node) for node in nodes]
    for postmaster in postmasters:
        freeze(postmaster)
    try:
        yield
    finally:
        for postmaster in postmasters:
            for pid in reversed(process_tree(postmaster)):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)


@contextmanager
def replica_stopped(cluster: Cluster) -> Iterator[None]:
    with _stopped(cluster, [cluster.rng.choice(cluster.replicas)]):
        yield


@contextmanager
def both_replicas_stopped(cluster: Cluster) -> Iterator[None]:
    with _stopped(cluster, cluster.replicas):
        yield


@contextmanager
def broker_killed_without_a_quorum(cluster: Cluster) -> Iterator[None]:
    with _stopped(cluster, cluster.replicas):
        time.sleep(1)
        cluster.active.signal(signal.SIGKILL)
        yield


@contextmanager
def wait_cancelled_without_a_quorum(cluster: Cluster) -> Iterator[None]:
    function = cluster.rng.choice(("pg_cancel_backend", "pg_terminate_backend"))
    with _stopped(cluster, cluster.replicas):
        time.sleep(0.5)
        _signal_backend(cluster, function)
        yield


@contextmanager
def quorum_setting_emptied(cluster: Cluster) -> Iterator[None]:
    """PostgreSQL then reports the commits that wait as successful."""
    with _stopped(cluster, cluster.replicas):
        time.sleep(0.5)
        cluster.query("ALTER SYSTEM SET synchronous_standby_names = ''")
        cluster.query("SELECT pg_reload_conf()")
        try:
            yield
        finally:
            cluster.query("ALTER SYSTEM RESET synchronous_standby_names")
            cluster.query("SELECT pg_reload_conf()")


@contextmanager
def disk_of_the_primary_full(cluster: Cluster) -> Iterator[None]:
    node = cluster.primary
    cluster.database.fill_disk(node)
    try:
        yield
    finally:
        cluster.database.free_disk(node)


@contextmanager
def disk_of_a_replica_full(cluster: Cluster) -> Iterator[None]:
    node = cluster.rng.choice(cluster.replicas)
    cluster.database.fill_disk(node)
    try:
        yield
    finally:
        cluster.database.free_disk(node)


FAULTS: Final = (
    Fault("broker killed", broker_killed, 30, (2, 3), 2.0),
    Fault("standby broker killed", standby_broker_killed, 6, (1, 2)),
    Fault("all brokers killed", all_brokers_killed, 4, (3, 5)),
    Fault("broker stopped", broker_stopped, 20, (0.5, 6)),
    Fault("broker terminated", broker_terminated, 6, (3, 4)),
    Fault("broker cut off", broker_cut_off, 12, (3, 8)),
    Fault("broker cut off from the database", broker_cut_off_from_the_database, 12, (3, 8)),
    Fault("backend terminated", backend_terminated, 14, (1, 2)),
    Fault("backend cancelled", backend_cancelled, 14, (1, 2)),
    Fault("postgres killed", postgres_killed, 12, (2, 4), 15.0),
    Fault("postgres and broker killed", postgres_and_broker_killed, 8, (2, 4), 15.0),
    Fault("primary killed", primary_killed, 6, (2, 4), 30.0, is_quick=False),
    Fault("primary and broker killed", primary_and_broker_killed, 4, (2, 4), 30.0, is_quick=False),
    Fault("primary cut off", primary_cut_off, 6, (2, 4), 30.0, is_quick=False),
    Fault("primary cut off from the others", primary_cut_off_from_the_others, 4, (2, 4), 30.0,
          is_quick=False),
    Fault("primary stopped", primary_stopped, 3, (2, 4), is_quick=False),
    Fault("replica killed", replica_killed, 6, (2, 4)),
    Fault("replica stopped", replica_stopped, 8, (2, 6)),
    Fault("both replicas stopped", both_replicas_stopped, 7, (2, 6), has_service=False),
    Fault("broker killed without a quorum", broker_killed_without_a_quorum, 4, (3, 6),
          has_service=False),
    Fault("wait cancelled without a quorum", wait_cancelled_without_a_quorum, 8, (2, 4),
          has_service=False),
    Fault("quorum setting emptied", quorum_setting_emptied, 6, (2, 4), has_service=False),
    # PostgreSQL continues and refuses to write, or ends, which starts a failover.
    Fault("disk of the primary full", disk_of_the_primary_full, 4, (2, 8), has_service=False,
          may_confirm=True, is_quick=False),
    Fault("disk of a replica full", disk_of_a_replica_full, 4, (2, 4), is_quick=False),
)  # fmt: skip


# -- the run


@dataclass
class Run:
    """Injects faults one after another, and compares ledgers and database after each."""

    cluster: Cluster
    silences_s: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    loads: list[float] = field(default_factory=list)
    last_write: tuple[int, int] = (0, 0)  # epoch and batch
    writers: dict[int, str] = field(default_factory=dict)  # epoch -> address

    @property
    def site(self) -> Site:
        return self.cluster.site

    @property
    def ledger(self) -> Ledger:
        return self.cluster.site.ledger

    async def inject(self, fault: Fault) -> None:
        """Inject a fault, wait for service, heal it, and compare."""
        cluster, site, rng = self.cluster, self.site, self.ledger.rng
        await asyncio.to_thread(cluster.look)
        held_s = rng.uniform(*fault.hold_s)
        site.phase += 1
        site.watch()
        began_at = time.monotonic()
        hit = fault.hit(cluster)
        await asyncio.to_thread(hit.__enter__)
        try:
            if fault.has_service:
                await asyncio.sleep(held_s)
                await self._wait_for_receipts(began_at + held_s, 1, fault)
            else:
                await asyncio.sleep(SETTLE_S)
                receipts = site.receipts
                await asyncio.sleep(held_s)
                if site.receipts > receipts and not fault.may_confirm:
                    self.ledger.offences.append(
                        f"{fault.name}: {site.receipts - receipts} receipts without a majority"
                    )
                site.watch()
        finally:
            await asyncio.to_thread(hit.__exit__, None, None, None)
        await self._wait_for_receipts(time.monotonic(), RECEIPTS_AFTER, fault)
        self.silences_s[fault.name].append(site.gap_s)
        self.loads.append(os.getloadavg()[0])
        # The database may still recover, but this must not matter.
        await self.compare()
        await asyncio.to_thread(cluster.database.wait_for_quorum, RECOVERY_S)
        site.phase += 1

    async def _wait_for_receipts(self, since: float, count: int, fault: Fault) -> None:
        """Wait until that many more publishes were confirmed, the last one after ``since``."""
        site, ends_at = self.site, time.monotonic() + RECOVERY_S
        enough = site.receipts + count
        while site.receipts < enough or site.last_receipt_at < since:
            if time.monotonic() > ends_at:
                raise AssertionError(f"{fault.name}: nothing is confirmed after {RECOVERY_S:g} s")
            await asyncio.sleep(0.05)

    async def compare(self) -> None:
        """Check that confirmed messages are in the database, and who has written to it."""
        ledger, confirmed = self.ledger, set(self.ledger.confirmed)
        keys, writes = await asyncio.to_thread(self._read, ledger.checked_to)
        for seq, key in keys:
            if ledger.seqs.setdefault(bytes(key), seq) != seq:
                ledger.offences.append(f"{key!r} was stored twice")
        ledger.checked_to = max([ledger.checked_to, *(seq for seq, _ in keys)])
        lost = confirmed - ledger.seqs.keys()
        ledger.offences += [f"{key!r} was confirmed and is lost" for key in lost]
        for epoch, batch, is_fenced, address in writes:
            if is_fenced or (epoch, batch) < self.last_write:
                ledger.offences.append(f"a write in epoch {epoch}, batch {batch} was not fenced")
            if self.writers.setdefault(epoch, address) != address:
                ledger.offences.append(f"two brokers wrote in epoch {epoch}")
            self.last_write = epoch, batch

    def _read(self, after: int) -> tuple[list[Any], list[Any]]:
        with connected(self.cluster.database) as connection:
            keys = connection.execute(_KEYS, (KEY_BYTES, after)).fetchall()
            writes = connection.execute(
                "SELECT epoch, batch, is_fenced, host(address) FROM write_log ORDER BY number"
            ).fetchall()
            connection.execute(
                "DELETE FROM write_log WHERE number < (SELECT max(number) FROM write_log)"
            )
        return keys, writes

    async def audit(self) -> None:
        """Wait until all queues are empty; then compare everything."""
        site, ledger = self.site, self.ledger
        site.rate = 1
        ends_at = time.monotonic() + RECOVERY_S
        while await asyncio.to_thread(self._alive) > 20:
            if time.monotonic() > ends_at:
                raise AssertionError("the queues are not drained")
            await asyncio.sleep(0.5)
        site.close()
        await asyncio.sleep(SETTLE_S)
        await self.compare()
        for broker in self.cluster.brokers:
            await asyncio.to_thread(broker.close)
        found = await asyncio.to_thread(self._contradictions)
        ledger.offences += [f"{text}: {rows}" for text, rows in found]
        known = await asyncio.to_thread(self._seqs)
        for key in ledger.confirmed:
            if ledger.seqs.get(key) not in known:
                ledger.offences.append(f"{key!r} was confirmed and is neither alive nor settled")
        for message_id in ledger.stored:
            if known.get(seq_of(message_id)) != "settled":
                ledger.offences.append(f"the end of {message_id!r} was stored and is lost")

    def _alive(self) -> int:
        with connected(self.cluster.database) as connection:
            [(count,)] = connection.execute(
                "SELECT count(*) FROM message JOIN queue USING (queue_id) WHERE name = ANY (%s)",
                [list(QUEUES)],
            ).fetchall()
        return int(count)

    def _contradictions(self) -> list[tuple[str, Any]]:
        with connected(self.cluster.database) as connection:
            answers = [
                (text, connection.execute(sql.encode()).fetchall())
                for text, sql in CONTRADICTIONS.items()
            ]
        return [(text, rows[:3]) for text, rows in answers if rows]

    def _seqs(self) -> dict[int, str]:
        with connected(self.cluster.database) as connection:
            return dict(
                connection.execute(
                    "SELECT seq, 'alive' FROM message UNION ALL SELECT seq, 'settled' FROM history"
                ).fetchall()
            )

    def figures(self) -> list[str]:
        """Return the report of the run in lines."""
        ledger, site = self.ledger, self.site
        lines = [f"{'seconds without a receipt':36} {'n':>4} {'median':>7} {'max':>7}   limit"]
        for fault in FAULTS:
            if found := self.silences_s.get(fault.name):
                over = sum(one > (fault.limit_s or RECOVERY_S) for one in found)
                limit = f"{fault.limit_s:5g}, exceeded {over} times" if fault.limit_s else ""
                note = "" if fault.has_service else "  after the fault"
                lines.append(
                    f"{fault.name:36} {len(found):4} {statistics.median(found):7.2f} "
                    f"{max(found):7.2f}   {limit}{note}"
                )
        exits = Counter[int]()
        for broker in self.cluster.brokers:
            exits += broker.exits
        text = "\n".join(ledger.offences)
        lines += [
            f"{len(ledger.confirmed):,} confirmed, {text.count('lost')} lost, "
            f"{text.count('without a majority')} faults with receipts without a majority, "
            f"{text.count('not fenced')} writes not fenced, in {len(self.writers)} epochs",
            f"{ledger.dispatched:,} dispatches, {site.repeated} of them of held messages again, "
            f"{text.count('dispatched')} others twice; {sum(ledger.ended.values()):,} ends stored; "
            f"refusals: {dict(site.refusals)}; exits of brokers by code: {dict(exits)}",
            f"load average: median {statistics.median(self.loads or [0]):.1f}, "
            f"max {max(self.loads, default=0):.1f}, on {os.cpu_count()} processors",
        ]
        return lines


@contextmanager
def connected(database: PatroniCluster) -> Iterator[psycopg.Connection]:
    """Connect to the primary, as soon as there is one."""
    ends_at = time.monotonic() + RECOVERY_S
    while True:
        try:
            with psycopg.connect(
                database.url(connect_timeout=2, load_balance_hosts="random"), autocommit=True
            ) as connection:
                yield connection
                return
        except psycopg.OperationalError:
            if time.monotonic() > ends_at:
                raise
            time.sleep(0.2)


def chosen(rng: random.Random, count: int, *, is_short: bool, only: str) -> list[Fault]:
    """Return faults in random order, each kind about as often as its weight says."""
    kinds = [one for one in FAULTS if not only or one.name in only.split(",")]
    if is_short:
        kinds = [one for one in kinds if one.is_quick]
    total = sum(one.weight for one in kinds)
    faults = [one for one in kinds for _ in range(max(1, round(count * one.weight / total)))]
    rng.shuffle(faults)
    while len(faults) < count:
        faults.append(rng.choice(kinds))
    return faults[:count]


async def run(
    seed: int, count: int, *, rate: int, is_short: bool = False, only: str = "", folder: Path
) -> Run:
    """Start everything, inject faults, and compare."""
    ledger = Ledger(random.Random(seed))
    with ExitStack() as stack:
        database = stack.enter_context(PatroniCluster(BROKERS, disk_bytes=DISK_BYTES))
        os.environ["PGPASSFILE"] = str(database.passfile)
        site = Site(ledger, rate)
        brokers = [ServedBroker(database, number, folder) for number in range(BROKERS)]
        for broker in brokers:
            stack.callback(broker.close)
        loop = asyncio.get_running_loop()
        for broker in brokers:
            broker.on_exit = partial(loop.call_soon_threadsafe, site.disconnect, broker.address)
        running = Run(Cluster(database, brokers, ledger.rng, site))
        site.serve([broker.address for broker in brokers])
        start = FAULTS[0]
        await running._wait_for_receipts(0, 1, start)
        with connected(database) as connection:
            connection.execute(_LOG)
        await running._wait_for_receipts(0, RECEIPTS_AFTER, start)
        seen = 0
        try:
            for number, fault in enumerate(chosen(ledger.rng, count, is_short=is_short, only=only)):
                await running.inject(fault)
                print(
                    f"{number + 1:4} {fault.name:36} {running.silences_s[fault.name][-1]:6.2f} s, "
                    f"{len(ledger.confirmed):,} confirmed, {len(ledger.offences)} offences",
                    *ledger.offences[seen : seen + 3], file=sys.stderr, flush=True,
                )  # fmt: skip
                seen = len(ledger.offences)
            await running.audit()
        finally:
            site.close()
            if ledger.offences or sys.exc_info()[0]:
                logs = [broker.log for broker in brokers]
                logs += [database.path(node) / "patroni.log" for node in range(3)]
                for log in logs:
                    text = log.read_text(encoding="utf-8", errors="replace")
                    print(f"-- {log.parent.name}/{log.name}\n{text[-6_000:]}", file=sys.stderr)
    return running


def main() -> int:
    """Run from the command line, and print the figures."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults.cluster", description=__doc__)
    parser.add_argument("--faults", type=int, default=200)
    parser.add_argument("--short", action="store_true", help=f"{SHORT_FAULTS} faults, about 2 min")
    parser.add_argument("--rate", type=int, default=200, help="publishes per second")
    parser.add_argument("--only", default="", help="names of kinds of faults, separated by commas")
    parser.add_argument("--seed", type=int, default=SEED)
    given = parser.parse_args()
    logging.getLogger("asyncio").setLevel(logging.ERROR)
    count = SHORT_FAULTS if given.short else given.faults
    began = time.monotonic()
    with TemporaryDirectory() as folder:
        ended = asyncio.run(
            run(given.seed, count, rate=given.rate, is_short=given.short, only=given.only,
                folder=Path(folder))
        )  # fmt: skip
    print(f"{count} faults in {time.monotonic() - began:.0f} s, seed {given.seed}")
    print("\n".join(ended.figures()))
    print("\n".join(ended.ledger.offences[:50]))
    return 1 if ended.ledger.offences else 0


if __name__ == "__main__":
    sys.exit(main())
