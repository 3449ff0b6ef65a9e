"""Three machines with etcd, Patroni and PostgreSQL, configured by the files in deploy/cluster/."""

import json
import os
import secrets
import shutil
import signal
import ssl
import subprocess
import sys
import urllib.request
from collections import Counter
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Final
from urllib.parse import urlencode

import pytest

from tests.docs.pages import ROOT
from tests.support.node_network import NodeNetwork, TemporaryServers, kill_all
from tests.support.postgres_nodes import (
    AS_POSTGRES,
    BIN,
    DATABASE,
    freeze,
    give_away,
    make_certificates,
    mount_memory,
    shared_folder,
    wait_until,
)
from tests.support.programs import run_program

SHIPPED: Final = ROOT / "deploy" / "cluster"
# The user postgres cannot read a virtual environment in the home of root.
_READ_ALL: Final = ("--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search")
_PYTHON: Final = (*AS_POSTGRES[:-1], *_READ_ALL, "--", sys.executable)
_QUORUM: Final = """
    SELECT pg_is_in_recovery(), count(*) FROM pg_stat_replication
    WHERE sync_state = 'quorum' AND state = 'streaming'
"""

needs_patroni = pytest.mark.skipif(
    shutil.which("etcd") is None or find_spec("patroni") is None,
    reason="needs etcd (apt install etcd-server) and patroni (the extra test)",
)


class PatroniCluster(TemporaryServers):
    """Machines n1, n2 and n3 in network namespaces, numbered from 0; the database is the broker's.

    ``url`` needs the environment variable ``PGPASSFILE`` set to ``passfile``.

    Args:
        clients: how many more nodes the network has, for clients of the database; from 3 on.
        disk_bytes: the size of each machine's disk, for ``fill_disk``; 0 is the disk of the host.
    """

    def __init__(self, clients: int = 0, *, disk_bytes: int = 0) -> None:
        super().__init__()
        self.folder = shared_folder(self._cleanup)
        self._processes: dict[tuple[int, str], subprocess.Popen[bytes]] = {}
        self._cleanup.callback(self._wait_for_processes)  # after the network has killed them
        self.network = self._cleanup.enter_context(NodeNetwork(3 + clients))
        self.addresses = self.network.addresses[:3]
        self.passfile = self.folder / "pgpass"
        self._secrets = {name: secrets.token_hex(24) for name in ("@REPLICATION@", "@REWIND@")}
        with self._closed_on_error():
            make_certificates(self.folder, self.addresses)
            for node in range(3):
                self._install(node, disk_bytes)
            for node in range(3):
                self.start(node)
            self._create_database()

    # -- the database

    def url(self, **parameters: str | int) -> str:
        """Return the URL for the broker: all machines, of which the primary is used."""
        hosts = ",".join(f"{address}:5432" for address in self.addresses)
        query = {"target_session_attrs": "read-write", "sslmode": "verify-full",
                 "sslrootcert": self.folder / "ca.crt"} | parameters  # fmt: skip
        return f"postgresql://{DATABASE}@{hosts}/{DATABASE}?{urlencode(query, safe='/')}"

    def query(self, node: int, statement: str) -> str:
        """Run a statement as superuser on a machine; return the rows, fields separated by ``|``."""
        words = (BIN / "psql", "-XAtq", "-v", "ON_ERROR_STOP=1", "-h", self.path(node) / "run")
        done = run_program([*AS_POSTGRES, *words, "-d", "postgres"], input=statement)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    # -- roles

    def members(self, node: int) -> dict[int, tuple[str, str]]:
        """Return role and state of all machines as one of them knows them; empty if it is down."""
        context = ssl.create_default_context(cafile=str(self.folder / "ca.crt"))
        url = f"https://{self.addresses[node]}:8008/cluster"
        with suppress(OSError), urllib.request.urlopen(url, timeout=1, context=context) as reply:
            members = json.load(reply)["members"]
            return {int(one["name"][1:]) - 1: (one["role"], one["state"]) for one in members}
        return {}

    def leader(self) -> int | None:
        """Return the primary according to a majority; one that was cut off may think it is it."""
        views = map(self.members, range(3))
        leaders = Counter(node for view in views for node in view if view[node][0] == "leader")
        return next((node for node, count in leaders.items() if count > 1), None)

    def wait_for_quorum(self, timeout_s: float = 120) -> int:
        """Wait until a primary runs and both others confirm its commits; return the primary."""
        expected = [("leader", "running"), *[("quorum_standby", "streaming")] * 2]
        leader = 0

        def has_quorum() -> bool:
            nonlocal leader
            one, *others = map(self.members, range(3))
            if sorted(one.values()) != expected or any(view != one for view in others):
                return False
            leader = next(node for node in one if one[node][0] == "leader")
            # Patroni's view may be older than the fault.
            with suppress(AssertionError):
                return self.query(leader, _QUORUM) == "f|2"
            return False

        try:
            wait_until(has_quorum, limit_s=timeout_s)
        except AssertionError as error:
            for node in range(3):
                log = (self.path(node) / "patroni.log").read_text(errors="replace")
                error.add_note(f"n{node + 1} sees {self.members(node)}\n{log[-4000:]}")
            raise
        return leader

    def switch_over(self, to: int) -> None:
        """Let Patroni make another machine the primary, as an operator does."""
        leader = self.leader()
        assert leader is not None
        words = ("switchover", "--leader", f"n{leader + 1}", "--candidate", f"n{to + 1}", "--force")
        self.patronictl(to, *words)

    def patronictl(self, node: int, *words: str) -> str:
        """Run patronictl with the configuration of a machine; return its output."""
        program = Path(sys.executable).with_name("patronictl")
        command = [*_PYTHON, program, "-c", self.path(node) / "etc/patroni.yml"]
        return run_program(
            [*self.network.prefix(node), *command, *words], env=self.environment(node), check=True
        ).stdout

    # -- faults

    def kill_postgres(self, node: int) -> None:
        """Kill PostgreSQL on a machine with all its processes; Patroni and etcd continue."""
        postmaster = self.postmaster(node)
        kill_all(lambda: freeze(postmaster))

    def kill(self, node: int) -> None:
        """Kill all processes of a machine, as a power cut would."""
        self.network.kill(node)
        for name in ("etcd", "patroni"):
            if process := self._processes.pop((node, name), None):
                process.wait()

    def pause(self, node: int) -> None:
        """Stop all processes of a machine with SIGSTOP, as a frozen virtual machine."""
        for pid in self.network.pids(node):
            os.kill(pid, signal.SIGSTOP)

    def resume(self, node: int) -> None:
        """Continue after ``pause``."""
        for pid in self.network.pids(node):
            os.kill(pid, signal.SIGCONT)

    def cut_off(self, node: int, *, from_clients: bool = True) -> None:
        (self.network.cut_off if from_clients else self.network.separate)(node)

    def heal(self, node: int) -> None:
        """Undo ``cut_off``."""
        self.network.heal(node)

    def fill_disk(self, node: int) -> None:
        """Leave no room on the disk of a machine; the cluster needs ``disk_bytes``."""
        assert self._disk_bytes, "create the cluster with disk_bytes"
        sizes = os.statvfs(self.path(node))
        mount_memory(self.path(node), (sizes.f_blocks - sizes.f_bfree) * sizes.f_frsize, "remount,")

    def free_disk(self, node: int) -> None:
        mount_memory(self.path(node), self._disk_bytes, "remount,")

    def start(self, node: int) -> None:
        """Start etcd and Patroni on a machine, unless they run: at first, or after ``kill``."""
        self.start_etcd(node)
        configuration = str(self.path(node) / "etc/patroni.yml")
        self._run(node, "patroni", *_PYTHON, "-m", "patroni", configuration)

    def kill_etcd(self, node: int) -> None:
        """Kill etcd on a machine; Patroni and PostgreSQL continue."""
        process = self._processes.pop((node, "etcd"))
        process.kill()
        process.wait()

    def start_etcd(self, node: int) -> None:
        """Start etcd on a machine, at first or after ``kill_etcd``."""
        self._run(node, "etcd", *AS_POSTGRES, shutil.which("etcd") or "etcd")

    # -- files and processes

    def path(self, node: int) -> Path:
        """Return the folder with the files of a machine; ``etcd.log`` and ``patroni.log`` in it."""
        return self.folder / f"n{node + 1}"

    def postmaster(self, node: int) -> int:
        """Return the process id of PostgreSQL on a machine."""
        file = self.path(node) / "postgresql/phpmq/postmaster.pid"
        return int(file.read_text().split()[0])

    def environment(self, node: int) -> dict[str, str]:
        """Return the environment of etcd and Patroni on a machine."""
        lines = [
            line
            for name in ("etcd.env", "node.env", "secrets.env")
            for line in (self.path(node) / "etc" / name).read_text().splitlines()
            if line and not line.startswith("#")
        ]
        return dict(os.environ) | dict(line.split("=", 1) for line in lines)

    def _install(self, node: int, disk_bytes: int) -> None:
        """Copy the shipped files, as the README tells an operator to, into the machine's folder."""
        path, name = self.path(node), f"n{node + 1}"
        if disk_bytes:
            path.mkdir()
            mount_memory(path, disk_bytes)
            self._cleanup.callback(subprocess.check_call, ["umount", "--lazy", path])
        self._disk_bytes = disk_bytes
        for folder in ("etc", "run", "postgresql", "etcd"):
            (path / folder).mkdir(parents=True)
        for source, target in ((f"{name}.crt", "node.crt"), (f"{name}.key", "node.key")):
            shutil.copy(self.folder / source, path / "etc" / target)
        shutil.copy(self.folder / "ca.crt", path / "etc")
        addresses = {f"@N{number}@": one for number, one in enumerate(self.addresses, 1)}
        replaced = {
            "@NAME@": name,
            "@ADDRESS@": self.addresses[node],
            "/etc/phpmq-cluster": str(path / "etc"),
            "/var/lib/etcd": str(path / "etcd"),
            "/var/lib/postgresql/15": str(path / "postgresql"),
            "/var/run/postgresql": str(path / "run"),
        }
        for file in ("patroni.yml", "node.env", "etcd.env", "secrets.env"):
            text = (SHIPPED / file).read_text(encoding="utf-8")
            for written, ours in (replaced | addresses | self._secrets).items():
                text = text.replace(written, ours)
            (path / "etc" / file).write_text(text, encoding="utf-8")
        give_away(path)

    def _run(self, node: int, name: str, *command: str) -> None:
        if (running := self._processes.get((node, name))) and running.poll() is None:
            return
        with (self.path(node) / f"{name}.log").open("ab") as log:
            self._processes[node, name] = subprocess.Popen(
                [*self.network.prefix(node), *command], env=self.environment(node),
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip

    def _wait_for_processes(self) -> None:
        for process in self._processes.values():
            process.wait()

    def _create_database(self) -> None:
        """Create role and database of the broker, and the file with its password."""
        leader = self.wait_for_quorum()
        password = secrets.token_hex(24)
        self.query(leader, f"CREATE ROLE {DATABASE} LOGIN PASSWORD '{password}'")
        self.query(leader, f"CREATE DATABASE {DATABASE} OWNER {DATABASE}")
        self.passfile.write_text(f"*:*:{DATABASE}:{DATABASE}:{password}\n")
        self.passfile.chmod(0o600)
