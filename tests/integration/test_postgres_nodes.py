"""The replicated PostgreSQL servers of the tests: what their faults do, and that they heal."""

import threading
from collections.abc import Iterator

import psycopg
import pytest

from tests.support.node_network import NodeNetwork, needs_namespaces
from tests.support.postgres_nodes import ReplicatedPostgres, needs_postgres, wait_until

pytestmark = [pytest.mark.slow, needs_postgres]


@pytest.fixture
def nodes() -> Iterator[ReplicatedPostgres]:
    with ReplicatedPostgres() as running:
        running.query("CREATE TABLE stored (number bigint)")
        yield running


def store(nodes: ReplicatedPostgres, number: int, node: int | None = None) -> None:
    nodes.query(f"INSERT INTO stored VALUES ({number})", node)


def stored(nodes: ReplicatedPostgres, node: int | None = None) -> list[int]:
    return [number for (number,) in nodes.query("SELECT number FROM stored ORDER BY 1", node)]


def waits(nodes: ReplicatedPostgres, number: int) -> bool:
    """Return whether a commit on the primary gets no reply, and leave it waiting."""
    with nodes.connect() as connection:
        [(pid,)] = connection.execute("SELECT pg_backend_pid()").fetchall()
        thread = threading.Thread(target=_store_or_fail, args=(connection, number), daemon=True)
        thread.start()
        waiting = f"SELECT wait_event FROM pg_stat_activity WHERE pid = {pid}"
        wait_until(lambda: nodes.query(waiting) == [("SyncRep",)] or not thread.is_alive())
        is_waiting = thread.is_alive()
        if is_waiting:
            nodes.query(f"SELECT pg_terminate_backend({pid})")
        thread.join()
    return is_waiting


def _store_or_fail(connection: psycopg.Connection, number: int) -> None:
    try:
        connection.execute("INSERT INTO stored VALUES (%s)", [number])
    except psycopg.Error:
        connection.close()


def test_url_leads_to_the_primary_after_each_failover(nodes: ReplicatedPostgres) -> None:
    for number in range(3):
        store(nodes, number)
        failed = nodes.primary
        nodes.kill(failed)
        assert nodes.fail_over() != failed
        with psycopg.connect(nodes.url()) as connection:
            [(port,)] = connection.execute("SELECT inet_server_port()").fetchall()
        assert port == nodes.ports[nodes.primary]
        assert stored(nodes) == list(range(number + 1))
        nodes.rejoin(failed)
        nodes.wait_for_quorum()
    for node in range(3):
        wait_until(lambda node=node: stored(nodes, node) == [0, 1, 2])  # type: ignore[misc]


def test_commit_needs_one_standby(nodes: ReplicatedPostgres) -> None:
    one, other = nodes.standbys
    nodes.pause(one)
    store(nodes, 1)
    nodes.kill(other)
    assert waits(nodes, 2)
    nodes.resume(one)
    store(nodes, 3)
    nodes.start(other)
    nodes.wait_for_quorum()
    assert stored(nodes) == [1, 2, 3]  # the commit that waited was made, but never confirmed


def test_commit_without_quorum_setting_waits_for_no_standby(nodes: ReplicatedPostgres) -> None:
    for node in nodes.standbys:
        nodes.kill(node)
    nodes.set_synchronous_standby_names("")
    store(nodes, 1)


def test_primary_that_was_paused_is_no_longer_followed(nodes: ReplicatedPostgres) -> None:
    old = nodes.primary
    nodes.pause(old)
    nodes.fail_over()
    store(nodes, 1)
    nodes.resume(old)
    assert nodes.query("SELECT count(*) FROM pg_stat_replication", old) == [(0,)]
    nodes.rejoin(old)
    nodes.wait_for_quorum()


def test_sessions_are_terminated_and_end_at_a_restart(nodes: ReplicatedPostgres) -> None:
    with psycopg.connect(nodes.url()) as connection:
        assert nodes.terminate_backends() == 1
        with pytest.raises(psycopg.OperationalError):
            connection.execute("SELECT 1")
    nodes.restart(nodes.primary)
    nodes.wait_for_quorum()


def test_snapshot_is_held(nodes: ReplicatedPostgres) -> None:
    held = (
        "SELECT count(*) FROM pg_stat_activity WHERE backend_xmin IS NOT NULL AND state <> 'active'"
    )
    with nodes.hold_snapshot():
        assert nodes.query(held) == [(1,)]
    assert nodes.query(held) == [(0,)]


@pytest.mark.skipif("os.geteuid() != 0", reason="needs root to mount a small disk")
def test_full_disk_stops_commits_until_there_is_space() -> None:
    with ReplicatedPostgres(disk_bytes=160 << 20) as nodes:
        nodes.query("CREATE TABLE large (content text)")
        nodes.fill_disk(nodes.primary)
        with pytest.raises(psycopg.Error):
            nodes.query("INSERT INTO large SELECT repeat('x', 999) FROM generate_series(1, 200000)")
        nodes.free_disk(nodes.primary)
        if nodes.has_exited(nodes.primary):  # it could not write its WAL
            nodes.start(nodes.primary)
        nodes.wait_for_quorum()
        nodes.query("INSERT INTO large VALUES ('x')")


@needs_namespaces
@pytest.mark.parametrize("from_clients", [True, False])
def test_primary_that_is_cut_off_confirms_nothing(*, from_clients: bool) -> None:
    with NodeNetwork() as network, ReplicatedPostgres(network) as nodes:
        nodes.query("CREATE TABLE stored (number bigint)")
        old = nodes.primary
        (network.cut_off if from_clients else network.separate)(old)
        if from_clients:
            with pytest.raises(psycopg.OperationalError):
                nodes.connect(connect_timeout=2)
        else:
            assert waits(nodes, 1)
        nodes.fail_over()
        store(nodes, 2)
        with psycopg.connect(nodes.url(connect_timeout=2)) as connection:
            # The old primary still calls itself one; a client that reaches it is led there.
            reached = nodes.hosts.index(connection.info.host)
        assert reached == (nodes.primary if from_clients else old)
        network.heal(old)
        nodes.rejoin(old)
        nodes.wait_for_quorum()
        assert stored(nodes) == [2]
