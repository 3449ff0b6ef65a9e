"""Three PostgreSQL servers with synchronous streaming replication, and their faults.

Failover is up to the test (``fail_over``); ``patroni_cluster.py`` has the automatic one.
"""

import atexit
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from functools import cache, partial
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlencode

import psycopg
import pytest

from tests.docs.pages import ROOT
from tests.support.free_ports import free_ports
from tests.support.node_network import NodeNetwork, TemporaryServers, kill_all
from tests.support.programs import run_program
from tests.support.waiting import until

BIN: Final = Path("/usr/lib/postgresql/15/bin")
# PostgreSQL refuses to run as root.
AS_POSTGRES: Final = (
    ("setpriv", "--reuid=postgres", "--regid=postgres", "--init-groups", "--")
    if os.geteuid() == 0
    else ()
)
DATABASE: Final = "phpmq"  # and the role of the broker
_TIMEOUT_S: Final = 100.0  # of a step on a loaded machine
wait_until = partial(until, limit_s=_TIMEOUT_S)

needs_postgres = pytest.mark.skipif(
    not (BIN / "postgres").exists(), reason="PostgreSQL 15 is missing: apt install postgresql-15"
)


class ReplicatedPostgres(TemporaryServers):
    """A primary and two standbys; a commit waits until one of the standbys has flushed it.

    Nodes are 0, 1 and 2, and ``primary`` is the current primary.  Without a ``network`` they listen
    on loopback.  With one, each runs on its node, with TLS: the certificates are those that
    ``deploy/cluster`` makes, and ``url`` verifies them.  Connections need no password.

    Args:
        network: where the nodes run; it stays the caller's.
        disk_bytes: the size of each node's disk, for ``fill_disk``; 0 is the disk of the machine.
        settings: more settings of PostgreSQL, for all nodes.
    """

    def __init__(
        self,
        network: NodeNetwork | None = None,
        *,
        disk_bytes: int = 0,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__()
        self.primary = 0
        self.network = network
        self.folder = shared_folder(self._cleanup)
        self.hosts = network.addresses if network else ["127.0.0.1"] * 3
        self.ports = [5432] * 3 if network else free_ports(3)
        self._shared_settings = dict(settings or {})
        self._settings: list[dict[str, str]] = [{}, {}, {}]  # of each node, beyond the shared ones
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        with self._closed_on_error():
            if network:
                make_certificates(self.folder, network.addresses)
            for node in range(3):
                self._create(node, disk_bytes)
                self._cleanup.callback(self.kill, node)
                self.start(node, wait=False)
            for node in range(3):
                self._wait_until_up(node)
            self.wait_for_quorum()

    # -- connections

    def url(self, **parameters: str | int) -> str:
        """Return the URL for the broker: all nodes, of which the primary is used."""
        hosts = ",".join(map("{}:{}".format, self.hosts, self.ports))
        tls = {"sslmode": "verify-full", "sslrootcert": self.folder / "ca.crt"}
        query = {"target_session_attrs": "read-write"} | (tls if self.network else {}) | parameters
        return f"postgresql://{DATABASE}@{hosts}/{DATABASE}?{urlencode(query, safe='/')}"

    def connect(self, node: int | None = None, **parameters: Any) -> psycopg.Connection:
        """Connect to a node, or else the primary, as superuser with autocommit."""
        node = self.primary if node is None else node
        asked: dict[str, Any] = {"dbname": DATABASE, "connect_timeout": 5, "autocommit": True}
        host, port = self.hosts[node], self.ports[node]
        return psycopg.connect(host=host, port=port, user="postgres", **asked | parameters)

    def query(self, statement: str, node: int | None = None) -> list[tuple[Any, ...]]:
        """Run a statement on a node, or else the primary, as superuser; return the rows."""
        with self.connect(node) as connection:
            cursor = connection.execute(statement.encode())
            return cursor.fetchall() if cursor.description else []

    def create_database(self, name: str) -> None:
        self.query(f"CREATE DATABASE {name} OWNER {DATABASE}")

    @property
    def standbys(self) -> list[int]:
        return [node for node in range(3) if node != self.primary]

    def all_run(self) -> bool:
        """Return whether no node is dead."""
        return len(self._processes) == 3 and not any(map(self.has_exited, self._processes))

    def has_exited(self, node: int) -> bool:
        """Return whether a node has stopped without being killed, for example on a full disk."""
        return self._processes[node].poll() is not None

    def log(self, node: int) -> str:
        return (self.folder / f"n{node + 1}.log").read_text(encoding="utf-8", errors="replace")

    # -- faults

    def kill(self, node: int) -> None:
        kill_all(lambda: self._freeze(node))
        if process := self._processes.pop(node, None):
            process.wait()

    def pause(self, node: int) -> None:
        """Stop all processes of a node with SIGSTOP; the kernel keeps its connections."""
        self._freeze(node)

    def resume(self, node: int) -> None:
        """Continue after ``pause``."""
        for pid in reversed(self._pids(node)):
            os.kill(pid, signal.SIGCONT)

    def start(self, node: int, *, wait: bool = True) -> None:
        """Start a node that was killed or stopped, in its role from before."""
        prefix = self.network.prefix(node) if self.network else ()
        with (self.folder / f"n{node + 1}.log").open("ab") as log:
            self._processes[node] = subprocess.Popen(
                [*prefix, *AS_POSTGRES, BIN / "postgres", "-D", self._data(node)],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
        if wait:
            self._wait_until_up(node)

    def restart(self, node: int) -> None:
        """Stop a node cleanly, which ends its connections, and start it."""
        process = self._processes.pop(node)
        process.send_signal(signal.SIGINT)
        process.wait(_TIMEOUT_S)
        self.start(node)

    def terminate_backends(self, node: int | None = None, role: str = DATABASE) -> int:
        """Terminate all sessions of a role; return how many there were."""
        [(count,)] = self.query(
            "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity"
            f" WHERE usename = '{role}'",
            node,
        )
        return int(count)

    @contextmanager
    def hold_snapshot(self, node: int | None = None) -> Iterator[psycopg.Connection]:
        """Keep a repeatable-read transaction open, which keeps vacuum from removing rows."""
        with self.connect(node, autocommit=False) as connection:
            connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            connection.execute("SELECT count(*) FROM pg_class")
            yield connection

    def fill_disk(self, node: int) -> None:
        """Use the rest of a node's disk; the cluster needs ``disk_bytes``."""
        disk = self._data(node).parent
        assert disk.is_mount(), "create the cluster with disk_bytes"
        with (disk / "filler").open("wb") as filler, suppress(OSError):
            while True:
                filler.write(bytes(1 << 16))
                filler.flush()

    def free_disk(self, node: int) -> None:
        (self._data(node).parent / "filler").unlink()

    # -- roles

    def set_synchronous_standby_names(self, value: str, node: int | None = None) -> None:
        """Change the setting on a node, or else the primary, and wait until sessions use it."""
        node = self.primary if node is None else node
        self._set(node, synchronous_standby_names=value)
        wait_until(lambda: self.query("SHOW synchronous_standby_names", node) == [(value,)])

    def promote(self, node: int) -> None:
        """Make a standby a primary; the others do not follow it."""
        self.query("SELECT pg_promote()", node)
        self.primary = node

    def follow(self, node: int) -> None:
        """Let a running standby follow the current primary."""
        self._set(node, primary_conninfo=self._conninfo(node))

    def fail_over(self) -> int:
        """Promote the standby that has received more, and let the other one follow it.

        Both standbys must run: only together they are sure to have all that was confirmed.  They
        stop receiving before they are compared; else a primary that is still alive could have a
        later commit confirmed by the other one.
        """
        receivers = "SELECT count(*) FROM pg_stat_wal_receiver"
        for node in self.standbys:
            self._set(node, primary_conninfo="")
        wait_until(lambda: all(self.query(receivers, node) == [(0,)] for node in self.standbys))
        ahead, behind = sorted(self.standbys, key=self._received, reverse=True)
        self.promote(ahead)
        self.follow(behind)
        return ahead

    def rejoin(self, node: int) -> None:
        """Copy the current primary to a node, dead or alive, and start it as a standby."""
        self.kill(node)
        shutil.rmtree(self._data(node))
        primary = self._conninfo(node)
        prefix = self.network.prefix(node) if self.network else ()
        subprocess.run(
            [*prefix, *AS_POSTGRES, BIN / "pg_basebackup", "-D", self._data(node), "-c", "fast",
             "-d", primary],
            check=True, capture_output=True, timeout=_TIMEOUT_S,
        )  # fmt: skip
        self._settings[node]["primary_conninfo"] = primary
        self._become_standby(node)
        self.start(node)

    def wait_for_quorum(self) -> None:
        """Wait until both standbys stream from the primary and count for its quorum."""
        streaming = "SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'quorum'"
        wait_until(lambda: self.query(f"{streaming} AND state = 'streaming'") == [(2,)])

    # -- files and processes

    def _create(self, node: int, disk_bytes: int) -> None:
        disk = self.folder / f"n{node + 1}"
        disk.mkdir()
        if disk_bytes:
            mount_memory(disk, disk_bytes)
            self._cleanup.callback(subprocess.check_call, ["umount", "--lazy", disk])
        give_away(disk)
        subprocess.run(["cp", "-a", _template(), self._data(node)], check=True)
        names = ",".join(f"n{other + 1}" for other in range(3) if other != node)
        self._settings[node] = {"synchronous_standby_names": f"ANY 1 ({names})"}
        if node == self.primary:
            self._write_settings(node)
        else:
            self._settings[node]["primary_conninfo"] = self._conninfo(node)
            self._become_standby(node)

    def _become_standby(self, node: int) -> None:
        (self._data(node) / "standby.signal").touch()
        (self._data(node) / "postgresql.auto.conf").write_text("")
        self._write_settings(node)

    def _write_settings(self, node: int) -> None:
        settings = {
            "listen_addresses": self.hosts[node],
            "port": str(self.ports[node]),
            "unix_socket_directories": "",
            "max_wal_senders": "10",
            "wal_keep_size": "1GB",  # instead of slots, which a failover would lose
            "wal_retrieve_retry_interval": "200ms",
            "shared_buffers": "128MB",
        }
        if self.network:
            key = self.folder / f"n{node + 1}"
            settings |= {"ssl": "on", "ssl_cert_file": f"{key}.crt", "ssl_key_file": f"{key}.key"}
        settings |= self._shared_settings | self._settings[node]
        lines = (f"{name} = '{value}'\n" for name, value in settings.items())
        path = self._data(node) / "postgresql.conf"
        path.with_suffix(".new").write_text("".join(lines))
        path.with_suffix(".new").replace(path)
        hba = ("host all all all trust\n", "host replication all all trust\n")
        (self._data(node) / "pg_hba.conf").write_text("".join(hba))
        give_away(self._data(node))

    def _set(self, node: int, **settings: str) -> None:
        self._settings[node].update(settings)
        self._write_settings(node)
        self._processes[node].send_signal(signal.SIGHUP)

    def _conninfo(self, node: int) -> str:
        host, port = self.hosts[self.primary], self.ports[self.primary]
        return f"host={host} port={port} user=postgres application_name=n{node + 1}"

    def _received(self, node: int) -> int:
        [(position,)] = self.query("SELECT pg_last_wal_receive_lsn() - '0/0'::pg_lsn", node)
        return int(position)

    def _data(self, node: int) -> Path:
        return self.folder / f"n{node + 1}" / "data"

    def _wait_until_up(self, node: int) -> None:
        def is_up() -> bool:
            assert self._processes[node].poll() is None, self.log(node)
            with suppress(psycopg.OperationalError), self.connect(node, connect_timeout=2):
                return True
            return False

        wait_until(is_up)

    def _pids(self, node: int) -> list[int]:
        """Return the processes of a node, the postmaster before its children."""
        process = self._processes.get(node)
        return process_tree(process.pid) if process else []

    def _freeze(self, node: int) -> list[int]:
        return freeze(process.pid) if (process := self._processes.get(node)) else []


def process_tree(postmaster: int) -> list[int]:
    """Return a postmaster and its children, or nothing if it has ended."""
    with suppress(OSError):
        children = Path(f"/proc/{postmaster}/task/{postmaster}/children").read_text()
        return [postmaster, *map(int, children.split())]
    return []


def freeze(postmaster: int) -> list[int]:
    """Stop a PostgreSQL server with SIGSTOP, so that it starts no process; return its processes."""
    with suppress(ProcessLookupError):
        os.kill(postmaster, signal.SIGSTOP)
    pids = process_tree(postmaster)
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGSTOP)
    return pids


def shared_folder(cleanup: ExitStack) -> Path:
    """Create a folder that PostgreSQL's user can enter, which pytest's cannot be."""
    folder = Path(tempfile.mkdtemp(prefix="phpmq-cluster-"))
    cleanup.callback(shutil.rmtree, folder)
    folder.chmod(0o755)
    return folder


def mount_memory(folder: Path, size: int, options: str = "") -> None:
    """Mount a disk of a size in bytes, which is kept in memory, on a folder."""
    words = ("-t", "tmpfs", "-o", f"{options}size={size},mode=0755", "tmpfs", folder)
    subprocess.run(["mount", *words], check=True)


def make_certificates(folder: Path, addresses: list[str]) -> None:
    """Create the certificates of n1, n2 and n3, readable for PostgreSQL."""
    if shutil.which("openssl") is None:
        pytest.skip("no openssl command to make certificates with")
    for number, address in enumerate(addresses, 1):
        script = ROOT / "deploy" / "cluster" / "certificates"
        subprocess.run([script, folder, f"n{number}", address], check=True)
        give_away(folder / f"n{number}.key")


def give_away(path: Path) -> None:
    """Let PostgreSQL's user own a file or a folder and everything in it."""
    if os.geteuid() == 0:
        subprocess.run(["chown", "-R", "postgres:postgres", path], check=True)


@cache
def _template() -> Path:
    """Return a data folder, made once per process, of which all nodes are copies."""
    cleanup = ExitStack()
    atexit.register(cleanup.close)
    folder = shared_folder(cleanup)
    give_away(folder)
    data = folder / "data"
    words = (BIN / "initdb", "-D", data, "-U", "postgres", "-A", "trust", "-E", "UTF8",
             "--locale=C.UTF-8", "--data-checksums", "--no-sync", "--no-instructions")  # fmt: skip
    subprocess.run([*AS_POSTGRES, *words], check=True, capture_output=True)
    run_program(
        [*AS_POSTGRES, BIN / "postgres", "--single", "-D", data, "postgres"],
        input=f"CREATE ROLE {DATABASE} LOGIN\nCREATE DATABASE {DATABASE} OWNER {DATABASE}\n",
        check=True,
    )
    return data
