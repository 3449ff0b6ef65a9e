"""The cluster of ``deploy/cluster/``: its files are valid, and its primary is replaced.

How long a failover takes is measured by ``benchmarks/failover.py``.
"""

import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from tests.support.node_network import needs_namespaces
from tests.support.patroni_cluster import PatroniCluster, needs_patroni
from tests.support.postgres_nodes import AS_POSTGRES, BIN, needs_postgres, wait_until
from tests.support.programs import run_program

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(400),
    needs_postgres,
    needs_patroni,
    needs_namespaces,
]


@pytest.fixture(scope="module")
def shared() -> Iterator[PatroniCluster]:
    with PatroniCluster() as cluster:
        yield cluster


@pytest.fixture
def cluster(shared: PatroniCluster, monkeypatch: pytest.MonkeyPatch) -> PatroniCluster:
    """Return the running cluster with a full quorum and an empty table."""
    monkeypatch.setenv("PGPASSFILE", str(shared.passfile))
    shared.wait_for_quorum()
    with psycopg.connect(shared.url(), autocommit=True) as connection:
        connection.execute("DROP TABLE IF EXISTS stored")
        connection.execute("CREATE TABLE stored (number bigint)")
    return shared


def store(cluster: PatroniCluster, number: int) -> None:
    """Store a number as soon as a primary confirms it."""

    def is_stored() -> bool:
        try:
            with psycopg.connect(cluster.url(connect_timeout=2), autocommit=True) as connection:
                connection.execute("INSERT INTO stored VALUES (%s)", [number])
        except psycopg.Error:
            return False
        return True

    wait_until(is_stored, limit_s=60)


def stored(cluster: PatroniCluster) -> list[int]:
    with psycopg.connect(cluster.url(connect_timeout=2)) as connection:
        rows = connection.execute("SELECT DISTINCT number FROM stored ORDER BY 1").fetchall()
    return [number for (number,) in rows]


def setting(cluster: PatroniCluster, node: int, name: str) -> str:
    return cluster.query(node, f"SHOW {name}")


def test_configuration_is_valid_and_used(cluster: PatroniCluster) -> None:
    node = cluster.wait_for_quorum()
    file = cluster.path(node) / "etc" / "patroni.yml"
    done = run_program(
        [sys.executable, "-m", "patroni", "--validate-config", "--ignore-listen-port", file],
        env=cluster.environment(node),
    )
    assert (done.returncode, done.stdout + done.stderr) == (0, "")
    others = ",".join(f"n{other + 1}" for other in range(3) if other != node)
    assert setting(cluster, node, "synchronous_standby_names") == f"ANY 1 ({others})"
    assert setting(cluster, node, "ssl") == "on"
    assert setting(cluster, node, "data_checksums") == "on"
    assert setting(cluster, node, "wal_sender_timeout") == "10s"
    assert "Quorum Standby" in cluster.patronictl(node, "list")


def test_connection_needs_tls_and_the_password(
    cluster: PatroniCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(psycopg.OperationalError, match="no encryption"):
        psycopg.connect(cluster.url(sslmode="disable"))
    with pytest.raises(psycopg.OperationalError, match="certificate"):
        psycopg.connect(cluster.url(sslrootcert="system"))
    monkeypatch.delenv("PGPASSFILE")
    with pytest.raises(psycopg.OperationalError, match="no password supplied"):
        psycopg.connect(cluster.url())


def test_primary_is_replaced_when_postgres_dies(cluster: PatroniCluster) -> None:
    old = cluster.wait_for_quorum()
    store(cluster, 1)
    cluster.kill_postgres(old)
    store(cluster, 2)
    assert cluster.wait_for_quorum() != old  # the old one is a standby again
    assert stored(cluster) == [1, 2]


def test_primary_is_replaced_when_its_machine_dies(cluster: PatroniCluster) -> None:
    old = cluster.wait_for_quorum()
    store(cluster, 1)
    cluster.kill(old)
    store(cluster, 2)
    cluster.start(old)
    assert cluster.wait_for_quorum() != old
    assert stored(cluster) == [1, 2]


def test_primary_that_is_cut_off_confirms_nothing_and_stops(cluster: PatroniCluster) -> None:
    old = cluster.wait_for_quorum()
    with psycopg.connect(cluster.url(), autocommit=True) as connection:
        cluster.cut_off(old, from_clients=False)
        with pytest.raises(psycopg.Error):  # Patroni stops the primary while the commit waits
            connection.execute("INSERT INTO stored VALUES (1)")
    store(cluster, 2)
    cluster.heal(old)
    assert cluster.wait_for_quorum() != old
    assert stored(cluster) == [2]


def test_commits_continue_without_one_standby_and_wait_without_both(
    cluster: PatroniCluster,
) -> None:
    leader = cluster.wait_for_quorum()
    one, other = (node for node in range(3) if node != leader)
    cluster.kill(one)
    store(cluster, 1)
    with psycopg.connect(cluster.url(connect_timeout=2), autocommit=True) as connection:
        cluster.kill(other)
        connection.execute("SET statement_timeout = '3s'")
        notices: list[object] = []
        connection.add_notice_handler(notices.append)
        try:
            connection.execute("INSERT INTO stored VALUES (2)")
        except psycopg.Error:
            confirmed = False
        else:
            confirmed = not notices  # PostgreSQL reports a cancelled wait as a warning
    assert not confirmed
    for node in (one, other):
        cluster.start(node)
    cluster.wait_for_quorum()
    store(cluster, 3)
    assert {1, 3} <= set(stored(cluster))


def test_switchover_loses_nothing(cluster: PatroniCluster) -> None:
    old = cluster.wait_for_quorum()
    store(cluster, 1)
    cluster.switch_over((old + 1) % 3)
    assert cluster.wait_for_quorum() == (old + 1) % 3
    store(cluster, 2)
    assert stored(cluster) == [1, 2]


def test_primary_continues_while_etcd_is_down(cluster: PatroniCluster) -> None:
    leader = cluster.wait_for_quorum()
    for node in range(3):
        cluster.kill_etcd(node)
    with psycopg.connect(cluster.url(), autocommit=True) as connection:
        for number in range(60):  # longer than the ttl
            connection.execute("INSERT INTO stored VALUES (%s)", [number])
            time.sleep(0.5)
    for node in range(3):
        cluster.start_etcd(node)
    assert cluster.wait_for_quorum() == leader
    assert stored(cluster) == list(range(60))


def test_standby_is_restarted_and_copied_again(cluster: PatroniCluster) -> None:
    leader = cluster.wait_for_quorum()
    standby = f"n{(leader + 1) % 3 + 1}"
    for words in (("restart", "phpmq", standby), ("reinit", "phpmq", standby, "--wait")):
        cluster.patronictl(leader, *words, "--force")
        assert cluster.wait_for_quorum() == leader
    store(cluster, 1)


def test_machine_that_lost_its_database_copies_it(cluster: PatroniCluster) -> None:
    old = cluster.wait_for_quorum()
    store(cluster, 1)
    cluster.kill(old)
    shutil.rmtree(cluster.path(old) / "postgresql" / "phpmq")
    cluster.start(old)
    assert cluster.wait_for_quorum() != old
    assert stored(cluster) == [1]


def test_dump_is_restored_into_an_empty_database(cluster: PatroniCluster) -> None:
    leader = cluster.wait_for_quorum()
    store(cluster, 1)
    dump = cluster.folder / "phpmq.dump"
    postgres(cluster, "pg_dump", "--format=custom", f"--file={dump}", cluster.url())
    cluster.query(leader, "DROP DATABASE phpmq WITH (FORCE)")
    cluster.query(leader, "CREATE DATABASE phpmq OWNER phpmq")
    # A standby that does not know it yet would refuse the connection before the leader is tried.
    which = "SELECT oid FROM pg_database WHERE datname = 'phpmq'"
    wait_until(lambda: len({cluster.query(node, which) for node in range(3)}) == 1)
    restore = ("--no-owner", "--exit-on-error", "--single-transaction")
    postgres(cluster, "pg_restore", *restore, f"--dbname={cluster.url()}", dump)
    assert stored(cluster) == [1]


def test_copy_of_a_standby_is_verified_and_starts(cluster: PatroniCluster) -> None:
    standby = (cluster.wait_for_quorum() + 1) % 3
    copy = cluster.path(standby) / "copy"
    socket = f"--host={cluster.path(standby) / 'run'}"
    options = ("--checkpoint=fast", "--wal-method=stream")
    postgres(cluster, "pg_basebackup", socket, f"--pgdata={copy}", *options, run_as=AS_POSTGRES)
    postgres(cluster, "pg_verifybackup", copy)
    (copy / "standby.signal").unlink(missing_ok=True)
    words = ("--single", "-D", copy, "-c", "ssl=off", "phpmq")
    done = postgres(
        cluster, "postgres", *words, run_as=AS_POSTGRES, text="SELECT count(*) FROM stored"
    )
    assert 'count = "0"' in done


def postgres(
    cluster: PatroniCluster,
    program: str,
    *words: str | Path,
    run_as: tuple[str, ...] = (),
    text: str = "",
) -> str:
    folder = cluster.folder
    done = run_program([*run_as, BIN / program, *words], cwd=folder, input=text)
    assert done.returncode == 0, done.stderr
    return done.stdout
