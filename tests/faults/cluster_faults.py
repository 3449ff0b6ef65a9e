"""The kinds of faults of ``cluster.py``.  Each is healed at the end of its ``with`` block."""

import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from tests.faults.cluster_site import ServedBroker, Site
from tests.support.patroni_cluster import PatroniCluster
from tests.support.postgres_nodes import freeze, process_tree

RECOVERY_S: Final = 180.0

Hit = Callable[["Cluster"], AbstractContextManager[None]]
Injection = Callable[["Cluster"], Iterator[None]]


@dataclass(frozen=True)
class Fault:
    hit: Hit
    weight: int
    hold_s: tuple[float, float]  # how long it lasts, at least
    limit_s: float | None = None  # of the time without a receipt
    has_service: bool = True  # whether publishes are confirmed before it is healed
    may_confirm: bool = False  # although it has no service
    is_quick: bool = True  # in the short form, too

    @property
    def name(self) -> str:
        return self.hit.__name__.replace("_", " ")


FAULTS: Final[list[Fault]] = []


@dataclass
class Cluster:
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


def fault(weight: int, hold_s: tuple[float, float], **fields: Any) -> Callable[[Injection], Hit]:
    """Add a kind of fault: it is injected until ``yield``, and healed afterwards."""

    def add(injection: Injection) -> Hit:
        hit = contextmanager(injection)
        FAULTS.append(Fault(hit, weight, hold_s, **fields))
        return hit

    return add


@contextmanager
def _between(inject: Callable[[], object], heal: Callable[[], object]) -> Iterator[None]:
    inject()
    try:
        yield
    finally:
        heal()


@fault(30, (2, 3), limit_s=2.0)
def broker_killed(cluster: Cluster) -> Iterator[None]:
    cluster.active.signal(signal.SIGKILL)
    yield


@fault(6, (1, 2))
def standby_broker_killed(cluster: Cluster) -> Iterator[None]:
    cluster.standby.signal(signal.SIGKILL)
    yield


@fault(4, (3, 5))
def all_brokers_killed(cluster: Cluster) -> Iterator[None]:
    for broker in cluster.brokers:
        broker.signal(signal.SIGKILL)
    yield


@fault(20, (0.5, 6))
def broker_stopped(cluster: Cluster) -> Iterator[None]:
    signal_to = cluster.active.signal
    with _between(partial(signal_to, signal.SIGSTOP), partial(signal_to, signal.SIGCONT)):
        yield


@fault(6, (3, 4))
def broker_terminated(cluster: Cluster) -> Iterator[None]:
    cluster.active.signal(signal.SIGTERM)
    yield


@fault(12, (3, 8))
def broker_cut_off(cluster: Cluster) -> Iterator[None]:
    node, network = cluster.active.node, cluster.database.network
    with _between(partial(network.cut_off, node), partial(network.heal, node)):
        yield


@fault(12, (3, 8))
def broker_cut_off_from_the_database(cluster: Cluster) -> Iterator[None]:
    node, network = cluster.active.node, cluster.database.network
    with _between(partial(network.separate, node), partial(network.heal, node)):
        yield


def _signal_backend(cluster: Cluster, function: str) -> None:
    cluster.query(
        f"SELECT {function}(pid) FROM pg_stat_activity WHERE application_name = 'phpmq-lite-writer'"
        " ORDER BY state = 'active' DESC, query_start DESC LIMIT 1"
    )


@fault(14, (1, 2))
def backend_terminated(cluster: Cluster) -> Iterator[None]:
    _signal_backend(cluster, "pg_terminate_backend")
    yield


@fault(14, (1, 2))
def backend_cancelled(cluster: Cluster) -> Iterator[None]:
    for _ in range(10):
        _signal_backend(cluster, "pg_cancel_backend")
        time.sleep(0.02)
    yield


@fault(12, (2, 4), limit_s=15.0)
def postgres_killed(cluster: Cluster) -> Iterator[None]:
    cluster.database.kill_postgres(cluster.primary)
    yield


@fault(8, (2, 4), limit_s=15.0)
def postgres_and_broker_killed(cluster: Cluster) -> Iterator[None]:
    cluster.active.signal(signal.SIGKILL)
    cluster.database.kill_postgres(cluster.primary)
    yield


@fault(6, (2, 4), limit_s=30.0, is_quick=False)
def primary_killed(cluster: Cluster) -> Iterator[None]:
    database, node = cluster.database, cluster.primary
    with _between(partial(database.kill, node), partial(database.start, node)):
        yield


@fault(4, (2, 4), limit_s=30.0, is_quick=False)
def primary_and_broker_killed(cluster: Cluster) -> Iterator[None]:
    cluster.active.signal(signal.SIGKILL)
    with primary_killed(cluster):
        yield


@fault(6, (2, 4), limit_s=30.0, is_quick=False)
def primary_cut_off(cluster: Cluster) -> Iterator[None]:
    database, node = cluster.database, cluster.primary
    with _between(partial(database.cut_off, node), partial(database.heal, node)):
        yield


@fault(4, (2, 4), limit_s=30.0, is_quick=False)
def primary_cut_off_from_the_others(cluster: Cluster) -> Iterator[None]:
    """The brokers still reach it."""
    network, node = cluster.database.network, cluster.primary
    with ExitStack() as stack:
        for other in cluster.replicas:
            network.separate(node, [other])
        stack.callback(network.heal, node)
        yield


@fault(3, (2, 4), is_quick=False)
def primary_stopped(cluster: Cluster) -> Iterator[None]:
    """All its processes stand still, and its kernel keeps the connections."""
    database, node = cluster.database, cluster.primary
    with _between(partial(database.pause, node), partial(database.resume, node)):
        yield


@fault(6, (2, 4))
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


@fault(8, (2, 6))
def replica_stopped(cluster: Cluster) -> Iterator[None]:
    with _stopped(cluster, [cluster.rng.choice(cluster.replicas)]):
        yield


@fault(7, (2, 6), has_service=False)
def both_replicas_stopped(cluster: Cluster) -> Iterator[None]:
    with _stopped(cluster, cluster.replicas):
        yield


@fault(4, (3, 6), has_service=False)
def broker_killed_without_a_quorum(cluster: Cluster) -> Iterator[None]:
    with _stopped(cluster, cluster.replicas):
        time.sleep(1)
        cluster.active.signal(signal.SIGKILL)
        yield


@fault(8, (2, 4), has_service=False)
def wait_cancelled_without_a_quorum(cluster: Cluster) -> Iterator[None]:
    function = cluster.rng.choice(("pg_cancel_backend", "pg_terminate_backend"))
    with _stopped(cluster, cluster.replicas):
        time.sleep(0.5)
        _signal_backend(cluster, function)
        yield


@fault(6, (2, 4), has_service=False)
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
def _disk_full(cluster: Cluster, node: int) -> Iterator[None]:
    cluster.database.fill_disk(node)
    try:
        yield
    finally:
        cluster.database.free_disk(node)
        cluster.database.start(node)  # as systemd does: etcd ends if its disk is full


@fault(4, (2, 8), has_service=False, may_confirm=True, is_quick=False)
def disk_of_the_primary_full(cluster: Cluster) -> Iterator[None]:
    """PostgreSQL continues and refuses to write, or ends, which starts a failover."""
    with _disk_full(cluster, cluster.primary):
        yield


@fault(4, (2, 4), is_quick=False)
def disk_of_a_replica_full(cluster: Cluster) -> Iterator[None]:
    with _disk_full(cluster, cluster.rng.choice(cluster.replicas)):
        yield
