"""Brokers that are stopped, killed and replaced, and whose clock is set; and trials on them.

A site is one broker of a file, or two brokers of a PostgreSQL database, of which the first in the
list is active.  What a broker takes for the wall clock can be set: that of its own process, or that
of the server.  ``main`` runs a trial as a program.
"""

import argparse
import random
import shutil
import sqlite3
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ClassVar, Final

import psycopg

from tests.faults.shim import CONTROL, Shim, library
from tests.faults.shimmed_broker import shimmed_broker
from tests.support.fork_server import BrokerProcess, broker_process
from tests.support.postgres_server import postgres_server
from tests.support.seed import SEED
from tests.support.socket_client import WAIT_S, AdminApi, SocketClient

_ADMIN: Final = ("--admin", "127.0.0.1:0", "--set", "history.bytes=1TiB")


@dataclass
class Site:
    """The brokers, and what was done to them."""

    brokers: list[BrokerProcess]
    rows: Callable[[str], list[tuple[Any, ...]]]  # reads the database
    shim: Shim  # of the clock
    random_: random.Random
    ways: Counter[str] = field(default_factory=Counter)

    @property
    def active(self) -> BrokerProcess:
        return self.brokers[0]

    @property
    def api(self) -> AdminApi:
        return AdminApi(self.active.admin[0])

    @property
    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000 + self.shim.clock_offset_ms

    def set_clock(self, jump_ms: int) -> None:
        self.shim.clock_offset_ms += jump_ms

    def replace(self, way: str, meanwhile: Callable[[], object] = lambda: None) -> None:
        """Stop or kill the active broker; start it again once the other one, if any, is active."""
        self.ways[way] += 1
        broker = self.brokers.pop(0)
        {"stop": broker.terminate, "kill": broker.kill}[way]()
        self.brokers.append(broker)
        meanwhile()
        if self.active is not broker:
            self.connect().close()
        broker.start()

    def connect(self) -> SocketClient:
        """Connect to the active broker, as soon as it serves; use the client in a ``with``."""
        until_s = time.monotonic() + WAIT_S
        while True:
            with suppress(OSError):
                client = SocketClient(self.active.port)
                try:
                    client.send(client.side.hello(b"hello", b"{}"))
                    client.welcome()
                    return client
                except (OSError, AssertionError):  # not yet, or not any more
                    client.close()
            if time.monotonic() > until_s:
                raise TimeoutError("no broker serves")
            time.sleep(0.01)


class Trial(ABC):
    """Something that brokers must keep to while they are disturbed."""

    rounds: ClassVar[int]  # by default
    short: ClassVar[int]

    def __init__(self, site: Site) -> None:
        self.site = site
        self.wrong: list[str] = []

    @abstractmethod
    def run(self, rounds: int) -> None:
        """Load the brokers, disturb them ``rounds`` times, and compare."""

    @abstractmethod
    def result(self) -> str:
        """Return the figures."""

    def figures(self, seconds: float) -> Iterator[str]:
        """Return the report in lines."""
        ways = ", ".join(f"{count} {way}" for way, count in sorted(self.site.ways.items()))
        yield f"{ways}: {self.result()} in {seconds:.0f} s"
        yield from self.wrong


@contextmanager
def file_site(seed: int, mutant: str = "") -> Iterator[Site]:
    """Start a broker of an SQLite file; ``mutant`` names one with a defect."""
    with TemporaryDirectory() as folder:
        shim = Shim(Path(folder))

        def rows(statement: str) -> list[tuple[Any, ...]]:
            with closing(sqlite3.connect(shim.data / "phpmq.db")) as database:
                return database.execute(statement).fetchall()

        with shimmed_broker(shim, *_ADMIN, mutant=mutant) as broker:
            yield Site([broker], rows, shim, random.Random(seed))


@contextmanager
def cluster_site(seed: int) -> Iterator[Site]:
    """Start two brokers of a PostgreSQL database."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="phpmq_site_")))
        folder.chmod(0o755)  # the server has an account of its own
        shim = Shim(folder)
        shim.control.chmod(0o666)
        preloaded = shutil.copy(library(), folder)
        clock = {"LD_PRELOAD": str(preloaded), CONTROL: str(shim.control)}
        server = stack.enter_context(postgres_server(clock))
        name = stack.enter_context(server.database())
        flags = (*_ADMIN, "--store", server.url(name), "--set", "store.allow_asynchronous=true")

        def rows(statement: str) -> list[tuple[Any, ...]]:
            with psycopg.connect(server.conninfo(name)) as connection:
                return connection.execute(statement.encode()).fetchall()

        brokers = [broker_process(folder / f"broker{number}", *flags) for number in (1, 2)]
        for broker in brokers:
            stack.enter_context(broker)
        yield Site(brokers, rows, shim, random.Random(seed))


def main(kind: type[Trial]) -> int:
    """Run a trial from the command line."""
    parser = argparse.ArgumentParser(prog=f"python -m {kind.__module__}", description=kind.__doc__)
    parser.add_argument("--rounds", type=int, default=kind.rounds)
    parser.add_argument("--short", action="store_true", help=f"{kind.short} rounds")
    parser.add_argument("--failover", action="store_true", help="two brokers of PostgreSQL")
    parser.add_argument("--seed", type=int, default=SEED)
    given = parser.parse_args()
    print(f"seed {given.seed}", flush=True)
    with (cluster_site if given.failover else file_site)(given.seed) as site:
        trial = kind(site)
        began = time.monotonic()
        trial.run(kind.short if given.short else given.rounds)
        for line in trial.figures(time.monotonic() - began):
            print(line, flush=True)
    return int(bool(trial.wrong))
