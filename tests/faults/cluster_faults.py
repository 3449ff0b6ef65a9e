"""The kinds of faults of ``cluster.py``.  Each is healed at the end of its ``with`` block."""

import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import Final

from tests.faults.cluster_site import ServedBroker, Site
from tests.support.patroni_cluster import PatroniCluster
from tests.support.postgres_nodes import freeze, process_tree

RECOVERY_S: Final = 180.0

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
        cluster.database.start(node)  # as systemd does: etcd ends if its disk is full


@contextmanager
def disk_of_a_replica_full(cluster: Cluster) -> Iterator[None]:
    node = cluster.rng.choice(cluster.replicas)
    cluster.database.fill_disk(node)
    try:
        yield
    finally:
        cluster.database.free_disk(node)
        cluster.database.start(node)  # as systemd does: etcd ends if its disk is full


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
