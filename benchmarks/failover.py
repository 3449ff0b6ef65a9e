"""How long no commit succeeds when a machine of the cluster in deploy/cluster/ fails.

``python -m benchmarks.failover [RUNS [FAULT …]]`` starts three machines in network namespaces (as
root; etcd, PostgreSQL 15 and Patroni are needed), and a client that commits one row after another.
It prints the longest time between two successful commits in each run, and fails if a confirmed row
is missing afterwards.
"""

import os
import socket
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final

import psycopg

from tests.support.patroni_cluster import PatroniCluster

# A broker's connection: it notices within seconds that a machine no longer answers.
CLIENT: Final = {
    "connect_timeout": 2,
    "keepalives_idle": 2,
    "keepalives_interval": 1,
    "keepalives_count": 3,
    "tcp_user_timeout": 4000,
}


GIVE_UP_S: Final = 5  # a frozen machine still acknowledges packets


class Committer(threading.Thread):
    """Commits numbered rows until told to stop, and remembers what was confirmed and when."""

    def __init__(self, url: str) -> None:
        super().__init__(daemon=True)
        self._url = url
        self.is_stopped = False
        self.confirmed: list[int] = []
        self.longest_s = 0.0
        self.last_at = time.monotonic()
        self._connected_at = self.last_at
        self._socket: socket.socket | None = None

    def give_up(self) -> None:
        """End the connection if it has waited for too long."""
        if self._socket and time.monotonic() > max(self.last_at, self._connected_at) + GIVE_UP_S:
            with suppress(OSError):  # closed already
                self._socket.shutdown(socket.SHUT_RDWR)

    def run(self) -> None:
        """Commit, and connect again after each error."""
        number = 0
        while not self.is_stopped:
            try:
                with (
                    psycopg.connect(self._url, autocommit=True) as connection,
                    socket.socket(fileno=os.dup(connection.fileno())) as self._socket,
                ):
                    self._connected_at = time.monotonic()
                    while not self.is_stopped:
                        number += 1
                        notices: list[object] = []
                        connection.add_notice_handler(notices.append)
                        connection.execute("INSERT INTO confirmed VALUES (%s)", [number])
                        if not notices:  # with one, the wait for the standby was cancelled
                            self._count(number)
                        time.sleep(0.01)
            except psycopg.Error:
                time.sleep(0.05)

    def _count(self, number: int) -> None:
        now = time.monotonic()
        self.longest_s = max(self.longest_s, now - self.last_at)
        self.last_at = now
        self.confirmed.append(number)


def silence_s(cluster: PatroniCluster, inject: Callable[[int], object]) -> float:
    """Return the longest time without a commit while ``inject`` hits the primary."""
    leader = cluster.wait_for_quorum()
    with psycopg.connect(cluster.url(), autocommit=True) as connection:
        connection.execute("DROP TABLE IF EXISTS confirmed")
        connection.execute("CREATE TABLE confirmed (number bigint PRIMARY KEY)")
    client = Committer(cluster.url(**CLIENT))
    client.start()
    time.sleep(3)
    inject(leader)
    injected_at = time.monotonic()
    while client.last_at < injected_at + 0.1 or time.monotonic() < injected_at + 6:
        time.sleep(0.05)
        client.give_up()
    client.is_stopped = True
    client.join()
    with psycopg.connect(cluster.url(**CLIENT)) as connection:
        rows = connection.execute("SELECT number FROM confirmed").fetchall()
    missing = set(client.confirmed) - {number for (number,) in rows}
    assert not missing, f"confirmed and lost: {missing}"
    return client.longest_s


def main(runs: int = 5, *names: str) -> None:
    """Measure each fault, and print its figures in seconds."""
    with PatroniCluster() as cluster:
        os.environ["PGPASSFILE"] = str(cluster.passfile)
        faults: dict[str, tuple[Callable[[int], object], Callable[[int], object]]] = {
            "postgres killed": (cluster.kill_postgres, lambda node: None),
            "machine killed": (cluster.kill, cluster.start),
            "machine cut off": (cluster.cut_off, cluster.heal),
            "cut off from the others": (
                lambda node: cluster.cut_off(node, from_clients=False),
                cluster.heal,
            ),
            "machine frozen": (cluster.pause, cluster.resume),
            "switchover": (
                lambda node: cluster.switch_over((node + 1) % 3),
                lambda node: None,
            ),
        }
        for name in names or faults:
            inject, undo = faults[name]
            measured = []
            for _ in range(runs):
                leader = cluster.wait_for_quorum()
                measured.append(silence_s(cluster, inject))
                undo(leader)
            print(f"{name:24}", *(f"{each:5.1f}" for each in measured), flush=True)


if __name__ == "__main__":
    main(int((sys.argv[1:] or ["5"])[0]), *sys.argv[2:])
