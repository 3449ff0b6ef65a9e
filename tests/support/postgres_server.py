"""A PostgreSQL server for tests: started once for each worker, with a fresh database for each test.

It loses its data in a power cut, because it does not sync files.  Its default collation is not that
of bytes, so that a statement which relies on the order of bytes without saying so fails.
"""

import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any, Final

import psycopg
import pytest

from phpmq_lite.storage.postgres.migrate import create_schema
from phpmq_lite.storage.postgres.store import PostgresStore, connect
from tests.support.free_ports import free_ports

_NEWEST: Final = sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
PROGRAMS: Final = next((path for path in _NEWEST if int(path.parent.name) >= 15), None)
TEMPLATE: Final = "migrated"
_SETTINGS: Final = {
    "fsync": "off",
    "full_page_writes": "off",
    "max_connections": "40",
    "shared_buffers": "32MB",
    "listen_addresses": "'127.0.0.1'",
    "timezone": "UTC",
}


@dataclass(slots=True)
class PostgresServer:
    """A running server, which listens on a Unix socket in its folder and on loopback."""

    folder: Path
    port: int
    env: Mapping[str, str] = field(default_factory=dict)  # of its processes, besides ours
    _numbers: Iterator[int] = field(default_factory=lambda: count(1))

    @property
    def data(self) -> Path:
        return self.folder / "data"

    def conninfo(self, database: str) -> str:
        return f"host=127.0.0.1 port={self.port} user=postgres dbname={database}"

    def url(self, database: str) -> str:
        return f"postgresql://postgres@127.0.0.1:{self.port}/{database}"

    def execute(self, text: str, database: str = "postgres") -> None:
        with psycopg.connect(self.conninfo(database), autocommit=True) as connection:
            connection.execute(text.encode())

    @contextmanager
    def database(self, template: str = TEMPLATE) -> Iterator[str]:
        """Create a database, migrated by default; drop it at the end, with its connections."""
        name = f"test_{next(self._numbers)}"
        self.execute(f"CREATE DATABASE {name} TEMPLATE {template}")
        try:
            yield name
        finally:
            self.execute(f"DROP DATABASE {name} WITH (FORCE)")

    def start(self) -> None:
        options = " ".join(f"-c {name}={value}" for name, value in _SETTINGS.items())
        self._control("start", "-o", f"-p {self.port} -k {self.folder} {options}")

    def stop(self, mode: str = "immediate") -> None:
        self._control("stop", "-m", mode)

    @contextmanager
    def replicas(self) -> Iterator[Path]:
        """Run two programs that receive the WAL, and make each commit wait for one of them.

        They sync their files, so these are in memory.  Returns their folder, which only grows.
        """
        assert PROGRAMS is not None
        place = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
        with ExitStack() as stack:
            folder = Path(
                stack.enter_context(tempfile.TemporaryDirectory(prefix="phpmq_wal_", dir=place))
            )
            folder.chmod(0o755)
            for name in ("replica1", "replica2"):
                (folder / name).mkdir()
                if os.geteuid() == 0:
                    shutil.chown(folder / name, "postgres", "postgres")
                address = f"{self.conninfo('postgres')} application_name={name}"
                words = ["pg_receivewal", "-d", address, "-D", str(folder / name), "--synchronous"]
                words[0] = str(PROGRAMS / words[0])
                process = subprocess.Popen(words, cwd="/", stderr=subprocess.DEVNULL, **_account())
                stack.callback(process.wait)
                stack.callback(process.kill)
            self.execute("ALTER SYSTEM SET synchronous_standby_names = 'ANY 1 (*)'")
            self.execute("SELECT pg_reload_conf()")
            yield folder

    def _control(self, *words: str) -> None:
        assert PROGRAMS is not None
        log = self.folder / "log"
        given = ["pg_ctl", *words, "-w", "-s", "-D", str(self.data), "-l", str(log)]
        try:
            run_as_postgres([str(PROGRAMS / given[0]), *given[1:]], self.env)
        except subprocess.CalledProcessError as error:
            raise RuntimeError(f"pg_ctl {words[0]}: {log.read_text()[-2_000:]}") from error


def run_as_postgres(words: list[str], env: Mapping[str, str] | None = None) -> None:
    """Run a program as the user postgres if we are root, because PostgreSQL refuses root."""
    subprocess.run(
        words, check=True, timeout=60, cwd="/", env={**os.environ, **(env or {})},
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        **_account(),
    )  # fmt: skip


def _account() -> dict[str, Any]:
    if os.geteuid() != 0:
        return {}
    entry = pwd.getpwnam("postgres")
    return {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": []}


@contextmanager
def postgres_server(env: Mapping[str, str] | None = None) -> Iterator[PostgresServer]:
    """Run a server whose template database is migrated; skip the test if there is none.

    ``env`` is added to the environment of its processes.
    """
    if PROGRAMS is None:
        pytest.skip("PostgreSQL 15 or newer is not installed in /usr/lib/postgresql")
    # Not in pytest's folder, which other users cannot enter; the path of a socket is short.
    folder = Path(tempfile.mkdtemp(prefix="phpmq_pg_"))
    if os.geteuid() == 0:
        shutil.chown(folder, "postgres", "postgres")
    (port,) = free_ports(1)
    server = PostgresServer(folder, port, env or {})
    try:
        run_as_postgres(
            [str(PROGRAMS / "initdb"), "-D", str(server.data), "-U", "postgres", "-A", "trust",
             "--encoding=UTF8", "--locale=C.UTF-8", "--locale-provider=icu", "--icu-locale=en",
             "--no-sync", "--no-instructions"]
        )  # fmt: skip
        server.start()
        try:
            server.execute(f"CREATE DATABASE {TEMPLATE}")
            store = PostgresStore(connect(server.conninfo(TEMPLATE)))
            create_schema(store)
            store.connection.close()
            yield server
        finally:
            server.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
