"""Pages, health checks, metrics and commands of a broker that stores in PostgreSQL.

The replicas are programs that receive the write-ahead log and flush it, as a standby does.
"""

import asyncio
import json
import os
import re
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import psycopg
import pytest

from phpmq_lite.testing import broker_process
from tests.support.cli_runner import invoke
from tests.support.http_site import HttpSite, running_site
from tests.support.postgres_nodes import wait_until
from tests.support.postgres_server import PROGRAMS, PostgresServer, postgres_server

NAMES = "ANY 1 (n2,n3)"
NUMBERS = count(1)


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    """Run a server of which this file changes the settings."""
    with postgres_server() as server:
        yield server


@pytest.fixture
def url(server: PostgresServer) -> Iterator[str]:
    name = f"pages_{next(NUMBERS)}"
    server.execute(f"CREATE DATABASE {name}")
    yield server.url(name)
    set_quorum(server, "")
    server.execute(f"DROP DATABASE {name} WITH (FORCE)")


def set_quorum(server: PostgresServer, names: str) -> None:
    server.execute(f"ALTER SYSTEM SET synchronous_standby_names = '{names}'")
    server.execute("SELECT pg_reload_conf()")


def query(url: str, text: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(url, autocommit=True) as connection:
        return connection.execute(text.encode()).fetchall()


@contextmanager
def replica(server: PostgresServer, name: str, folder: Path) -> Iterator[None]:
    """Receive and flush the write-ahead log, so that commits have a quorum."""
    assert PROGRAMS is not None
    folder.mkdir()
    address = f"host=127.0.0.1 port={server.port} user=postgres application_name={name}"
    words = [str(PROGRAMS / "pg_receivewal"), "--synchronous", "-D", str(folder), "-d", address]
    process = subprocess.Popen(words, stderr=subprocess.DEVNULL)
    try:
        yield
    finally:
        process.kill()
        process.wait()


@contextmanager
def replicas(server: PostgresServer, folder: Path) -> Iterator[ExitStack]:
    """Require a quorum, and run two replicas until the stack is closed."""
    with ExitStack() as stack:
        for name in ("n2", "n3"):
            stack.enter_context(replica(server, name, folder / name))
        set_quorum(server, NAMES)
        yield stack
        set_quorum(server, "")


@asynccontextmanager
async def site_on(url: str, tmp_path: Path, **store: Any) -> AsyncIterator[HttpSite]:
    (tmp_path / "data").mkdir(0o700)
    async with running_site(tmp_path / "data", store={"url": url, **store}) as site:
        yield site


async def readyz(site: HttpSite, until: Callable[[int, str], bool]) -> str:
    """Wait for an answer of /readyz; return its text."""
    async with asyncio.timeout(20):
        while True:
            page = await site.get("/readyz")
            if until(page.status, page.text):
                return page.text
            await asyncio.sleep(0.05)


async def test_pages_show_the_database_and_its_replicas_instead_of_files(
    server: PostgresServer, url: str, tmp_path: Path
) -> None:
    with replicas(server, tmp_path):
        async with site_on(url, tmp_path) as site:
            text = await readyz(site, lambda _, text: "2 can confirm, 1 must" in text)
            assert text.startswith("ready\n")
            assert "role: active, epoch 1" in text
            await site.publish("orders", "one")
            page = await site.text("/system")
            for part in ("Replica n2", "Replica n3", NAMES, "epoch 1", "Page checksums"):
                assert part in page
            assert "Write-ahead log" not in page
            assert "SQLite" not in page
            stats = await site.ok("GET", "/stats")
            assert stats["wal_bytes"] is None
            assert stats["database_bytes"] > 1 << 20
            assert stats["store"]["replicas_ready"] == 2
            metrics = await site.text("/metrics")
            assert "phpmq_store_epoch 1.0\n" in metrics
            assert 'phpmq_store_replica_lag_bytes{replica="n2"}' in metrics
            assert re.findall(r"phpmq_(?:ballast|backup|scrub|damage|disk_free)", metrics) == []
            assert 'class="strip"' not in await site.text("/")


async def test_backups_are_left_to_the_tools_of_the_database(url: str, tmp_path: Path) -> None:
    async with site_on(url, tmp_path, allow_asynchronous=True) as site:
        page = await site.text("/system/backups")
        assert "pg_dump" in page
        assert "operate/cluster#back-up" in page
        assert 'action="/system/scrub"' not in page
        for method, path in (("GET", "/backups"), ("POST", "/backups"), ("POST", "/scrub"),
                             ("GET", "/scrub")):  # fmt: skip
            assert await site.refusal(method, path) == (409, "not_sqlite")
    assert [path.name for path in (tmp_path / "data").iterdir() if "phpmq.db" in path.name] == []


async def test_ready_check_says_that_the_quorum_is_missing_until_it_is_back(
    server: PostgresServer, url: str, tmp_path: Path
) -> None:
    with replicas(server, tmp_path) as running:
        async with site_on(url, tmp_path) as site:
            await readyz(site, lambda status, _: status == 200)
            running.close()
            text = await readyz(site, lambda status, text: status == 503 and "No quorum" in text)
            assert "BAD writable: there is no quorum; the database waits for replicas" in text
            assert await site.refusal("POST", "/queues/orders/messages", [{"content": "x"}]) == (
                503, "not_writable",
            )  # fmt: skip
            page = await site.text("/")
            assert "Nothing can be stored: there is no quorum" in page
            running.enter_context(replica(server, "n2", tmp_path / "again"))
            text = await readyz(site, lambda status, _: status == 200)
            assert "ok  writable" in text
            await site.publish("orders", "one")
            text = await readyz(site, lambda _, text: "and only 1 can" in text)
            assert text.startswith("degraded\n")


async def test_every_page_warns_while_commits_are_confirmed_without_a_quorum(
    server: PostgresServer, url: str, tmp_path: Path
) -> None:
    async with site_on(url, tmp_path, allow_asynchronous=True) as site:
        await site.publish("orders", "one")
        for path in ("/", "/queues", "/system", "/dead"):
            page = await site.text(path)
            assert "Messages are confirmed without a quorum:" in page
            assert "No quorum required" in page
        assert (await site.get("/readyz")).text.startswith("degraded\n")
        assert 'class="chip warn">Degraded' in await site.text("/system")
        assert "phpmq_store_asynchronous 1.0\n" in await site.text("/metrics")
        with replicas(server, tmp_path):
            await readyz(site, lambda _, text: text.startswith("ready\n"))
            page = await site.text("/queues")
            assert "Messages are confirmed without" not in page
            assert "No quorum required" in page


async def test_role_without_the_right_to_monitor_sees_no_lag(
    server: PostgresServer, url: str, tmp_path: Path
) -> None:
    database = url.rpartition("/")[2]
    for text in ("CREATE ROLE plain LOGIN", f"ALTER DATABASE {database} OWNER TO plain"):
        server.execute(text)
    with replicas(server, tmp_path):
        async with site_on(url.replace("postgres@", "plain@"), tmp_path) as site:
            text = await readyz(site, lambda _, text: "can confirm, 1 must" in text)
            assert text.startswith("ready\n")
            page = await site.text("/system")
            assert "grant pg_monitor" in page
            assert "Replica n2</dt><dd>connected" in page
    server.execute(f"ALTER DATABASE {database} OWNER TO postgres")
    server.execute("DROP OWNED BY plain", database)
    server.execute("DROP ROLE plain")


def test_fenced_broker_stops_without_a_stack_trace(
    server: PostgresServer, url: str, tmp_path: Path
) -> None:
    flags = ("--store", url, "--set", "store.allow_asynchronous=true", "--log-format", "json")
    with broker_process(tmp_path / "data", *flags) as broker:
        assert broker.process is not None
        wait_until(lambda: not query(url, "SELECT is_released FROM epoch")[0][0])
        query(url, "UPDATE epoch SET epoch = epoch + 1 RETURNING epoch")
        assert broker.process.wait(10) == os.EX_IOERR
        lines = [json.loads(line) for line in broker.log.read_text().splitlines()]
    [last] = [
        line
        for line in lines
        if line["level"] in ("warning", "error") and line["event"] != "database_not_reached"
    ]  # a start on a loaded machine reports that it waits for the server
    assert last["event"] == (
        "another broker is active now; this one has stopped and will be started again as a standby"
    )
    assert "exception" not in last
    assert not list((tmp_path / "data").glob("*error*"))


def test_doctor_checks_the_server_instead_of_files(
    server: PostgresServer, url: str, tmp_path: Path
) -> None:
    def doctor(store: str, code: int) -> dict[str, dict[str, str]]:
        words = ("doctor", "--data", tmp_path / "data", "--store", store, "--output", "json")
        rows = json.loads(invoke(*words, code=code).stdout)
        return {row["check"]: row for row in rows}

    found = doctor(url, 1)
    assert "so the broker stores in PostgreSQL" in found["database file"]["found"]
    assert "writable" in found["database server"]["found"]
    assert "not on: fsync" in found["durability"]["found"]
    assert found["schema"]["found"] == "the database is empty"
    assert "names no quorum" in found["replication"]["found"]
    assert "backups" not in found
    assert "pooler" not in found
    with broker_process(tmp_path / "other", "--store", url, "--set", "store.allow_asynchronous=1"):
        found = doctor(url, 1)
    assert re.fullmatch(r"on .+, epoch 1, wrote \d+ ms ago", found["active broker"]["found"])
    assert "password" in doctor(url.replace("postgres@", "postgres:secret@"), 1)[
        "database server"]["found"]  # fmt: skip
    assert "does not exist" in doctor(server.url("nope"), 1)["database server"]["found"]


def test_verify_finds_a_damaged_body_while_the_broker_runs(url: str, tmp_path: Path) -> None:
    flags = ("--store", url, "--set", "store.allow_asynchronous=true")
    with broker_process(tmp_path / "data", *flags) as broker:
        address = f"phpmq://{broker.phpmq[0]}"
        invoke("publish", "orders", "--url", address, input="one")
        result = invoke("database", "verify", "--store", url, "--output", "json")
        checks = {row["check"]: row["result"] for row in json.loads(result.stdout)}
        assert checks == {"schema": "ok", "bodies": "ok", "tables": "ok"}
        query(url, "UPDATE body SET content = 'two' RETURNING seq")
        query(url, "UPDATE queue SET live_count = 7 RETURNING name")
        result = invoke("database", "verify", "--store", url, code=os.EX_DATAERR)
    assert "1 live messages have a damaged body: seq" in result.stdout
    assert "1 queues have wrong message counts" in result.stdout


def test_commands_for_files_name_the_database(url: str, tmp_path: Path) -> None:
    given = ("--data", tmp_path, "--set", f"store.url={url}")
    for words in (("backup", "create"), ("backup", "list"), ("backup", "restore", "x", "--yes"),
                  ("backup", "test", "x"), ("database", "migrate")):  # fmt: skip
        result = invoke(*words, *given, code=4)
        assert "the broker stores in PostgreSQL" in result.stderr, words
    unreachable = "postgresql://postgres@127.0.0.1:1/phpmq"
    result = invoke("database", "verify", "--store", unreachable, code=1)
    assert "the database cannot be read: " in result.stderr
