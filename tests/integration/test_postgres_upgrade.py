"""An upgrade of two brokers of one database, in the order that the documentation gives."""

import shutil
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from itertools import count, cycle
from pathlib import Path

import pytest

from phpmq_lite.broker_process import BrokerProcess
from tests.docs.pages import ROOT
from tests.support.postgres_nodes import ReplicatedPostgres, needs_postgres, wait_until
from tests.support.socket_client import SocketClient

pytestmark = [needs_postgres, pytest.mark.slow]
# Longer than a standby waits for a silent broker.
LATER = "ALTER TABLE meta ADD COLUMN later TEXT; SELECT pg_sleep(4);"


def program_with_a_later_migration(folder: Path) -> tuple[str, ...]:
    """Copy the package as its next version; return arguments of the interpreter that run it."""
    for name in ("phpmq_lite", "migrations", "templates"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    migrations = folder / "migrations" / "postgres"
    number = 1 + len(list(migrations.glob("*.sql")))
    (migrations / f"{number:04}_later.sql").write_text(LATER, encoding="utf-8")
    run = "runpy.run_module('phpmq_lite', run_name='__main__', alter_sys=True)"
    return "-c", f"import runpy, sys; sys.path.insert(0, {str(folder)!r}); {run}"


def readiness(broker: BrokerProcess) -> str:
    request = urllib.request.Request(broker.admin[0].rstrip("/") + "/readyz")
    with suppress(OSError):
        try:
            return str(urllib.request.urlopen(request, timeout=10).read().decode())
        except urllib.error.HTTPError as error:
            return error.read().decode()
    return ""


@contextmanager
def publishing(*brokers: BrokerProcess) -> Iterator[set[bytes]]:
    """Publish to one broker after another, each until it fails; yields what is confirmed."""
    confirmed: set[bytes] = set()
    is_stopped = threading.Event()
    numbers = count()

    def publish() -> None:
        for broker in cycle(brokers):  # one has no port while it starts
            with suppress(OSError, AssertionError, IndexError), SocketClient(broker.port) as client:
                client.socket.settimeout(2)
                while not is_stopped.is_set():
                    body = b"%d" % next(numbers)
                    if client.confirm("orders", body) is None:
                        confirmed.add(body)
            if is_stopped.wait(0.05):
                return

    thread = threading.Thread(target=publish)
    thread.start()
    try:
        yield confirmed
    finally:
        is_stopped.set()
        thread.join()


def test_upgrade_loses_no_confirmed_message(tmp_path: Path) -> None:
    with ExitStack() as stack:
        nodes = stack.enter_context(ReplicatedPostgres())
        options = ["--store", nodes.url(), "--admin", "127.0.0.1:0"]
        old = stack.enter_context(BrokerProcess(tmp_path / "old", options))
        new = BrokerProcess(tmp_path / "new", options)
        new.program = program_with_a_later_migration(tmp_path / "next")
        stack.enter_context(new)
        confirmed = stack.enter_context(publishing(old, new))
        wait_until(lambda: readiness(new).startswith("standby"))
        wait_until(lambda: len(confirmed) > 100)
        assert old.terminate() == 0
        old.start()  # by its service manager
        before = len(confirmed)
        wait_until(lambda: readiness(new).startswith("ready"))
        wait_until(lambda: len(confirmed) > before + 100)
        wait_until(lambda: "the database has schema version" in old.log.read_text(encoding="utf-8"))
        assert readiness(old).startswith("standby")
        known = set(confirmed)
        with nodes.connect() as connection:
            rows = connection.execute("SELECT content FROM body").fetchall()
            epochs = connection.execute("SELECT epoch FROM epoch").fetchall()
        assert not known - {bytes(body) for (body,) in rows}
        assert epochs == [(2,)]
