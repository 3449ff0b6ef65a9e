"""Backups under load must open, be whole, and have all messages confirmed before they began.

``python -m tests.faults.backups --backups 20`` prints the figures and ends with 1 if one has not;
``--seed N`` repeats the sizes of a run, but not its timing.
"""

import argparse
import random
import shutil
import sqlite3
import sys
import threading
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from phpmq_lite.cli.admin_client import AdminClient
from phpmq_lite.installation import migrations_folder
from phpmq_lite.storage.data_folder import DATABASE
from phpmq_lite.storage.sqlite.backups import read_backup
from phpmq_lite.storage.sqlite.integrity.database_check import verify
from phpmq_lite.storage.sqlite.restore import drill
from tests.support.fork_server import broker_process
from tests.support.seed import SEED
from tests.support.socket_client import SocketClient

PUBLISHERS: Final = 3
BETWEEN: Final = 300  # receipts from one backup to the next, at least
WAIT_S: Final = 60.0

Take = Callable[[Path], Path]  # makes a backup of a data folder, returns its database


@dataclass
class Load:
    """Publishers and a consumer, each in a thread, and the confirmed messages."""

    port: int
    rng: random.Random
    confirmed: set[bytes] = field(default_factory=set)  # contents; only ever grows
    _ends: threading.Event = field(default_factory=threading.Event)
    _threads: list[threading.Thread] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)

    def __enter__(self) -> "Load":
        works = [lambda of=number: self._publish(of) for number in range(PUBLISHERS)]
        for work in [*works, self._consume]:
            thread = threading.Thread(target=self._guarded, args=(work,), daemon=True)
            self._threads.append(thread)
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.set()
        for thread in self._threads:
            thread.join(WAIT_S)

    def wait_for(self, number: int) -> None:
        goal, ends = len(self.confirmed) + number, time.monotonic() + WAIT_S
        while len(self.confirmed) < goal:
            assert time.monotonic() < ends, self.errors
            time.sleep(0.01)

    def _guarded(self, work: Callable[[], None]) -> None:
        try:
            work()
        except (OSError, AssertionError) as error:
            if not self._ends.is_set():
                self.errors.append(repr(error))

    def _publish(self, of: int) -> None:
        with SocketClient(self.port) as peer:
            number = 0
            while not self._ends.is_set():
                number += 1
                content = b"%d/%d " % (of, number) + bytes(self.rng.randint(0, 2_000))
                peer.publish("load", content, key=b"%d/%d" % (of, number))
                if not peer.receipt().reason:
                    self.confirmed.add(content)

    def _consume(self) -> None:
        """Acknowledge half of the messages: a backup has settled messages, too."""
        with SocketClient(self.port) as peer:
            peer.socket.settimeout(WAIT_S)
            peer.consume("load", 50)
            while not self._ends.is_set():
                dispatch = peer.dispatches(1)[0]
                if len(dispatch.content) % 2:
                    peer.ack(dispatch)
                else:
                    peer.requeue(dispatch)


@dataclass
class Taken:
    """A backup, and the comparison with the messages that it must have."""

    database: Path
    confirmed: int
    missing: int
    problems: list[str]
    took_s: float

    @property
    def is_good(self) -> bool:
        """Whether it is whole and has all messages."""
        return not self.missing and not self.problems


def run(folder: Path, seed: int, number: int, take: "Take | None" = None) -> list[Taken]:
    """Create backups under load and check each one."""
    found: list[Taken] = []
    flags = "--admin", "127.0.0.1:0", "--set", f"backups.keep={number}"
    with broker_process(folder / "data", *flags) as broker:
        with Load(broker.port, random.Random(seed)) as load:
            for _ in range(number):
                load.wait_for(BETWEEN)
                before, began = set(load.confirmed), time.monotonic()
                database = (take or asked)(broker.data)
                found.append(_check(database, before, time.monotonic() - began))
        assert not load.errors, load.errors
    return found


def asked(data: Path) -> Path:
    """Request a backup, as the command does."""
    made = AdminClient(data / "control.sock").post("/backups")
    assert not made["is_running"], made
    backup = read_backup(data / "backups" / made["items"][0]["id"])
    assert backup is not None
    return backup.database


def copied(data: Path) -> Path:
    """Copy the database file alone, which is no valid backup."""
    target = data.parent / "copies"
    target.mkdir(exist_ok=True)
    copy = target / f"{len(list(target.iterdir()))}.db"
    shutil.copyfile(data / DATABASE, copy)
    return copy


def _check(database: Path, confirmed: set[bytes], took_s: float) -> Taken:
    problems = [problem for check in verify(database) for problem in check.problems]
    with closing(sqlite3.connect(f"{database.as_uri()}?mode=ro&immutable=1", uri=True)) as one:
        try:
            there = {content for (content,) in one.execute("SELECT content FROM body")}
        except sqlite3.DatabaseError as error:
            there, problems = set(), [*problems, str(error)]
    return Taken(database, len(confirmed), len(confirmed - there), problems, took_s)


def drilled(taken: Taken) -> list[str]:
    return drill(taken.database.parent, migrations_folder()).problems


def figures(found: list[Taken], seed: int) -> list[str]:
    """Return the report of a run in lines."""
    good = sum(one.is_good for one in found)
    slowest = max(one.took_s for one in found)
    lines = [
        f"backups, seed {seed}: {len(found)} under load, {good} whole with all of up to "
        f"{found[-1].confirmed:,} confirmed messages, slowest {slowest * 1_000:,.0f} ms"
    ]
    for at, one in enumerate(found, 1):
        if not one.is_good:
            lines.append(f"backup {at}: {one.missing} missing, {one.problems[:1]}")
    return lines


def main() -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--backups", type=int, default=20)
    parser.add_argument("--seed", type=int, default=SEED)
    given = parser.parse_args()
    with TemporaryDirectory() as folder:
        found = run(Path(folder), given.seed, given.backups)
        wrong = drilled(found[-1])
    print("\n".join(figures(found, given.seed)))
    print(f"drill on the last one: {wrong or 'passed'}")
    return 0 if all(one.is_good for one in found) and not wrong else 1


if __name__ == "__main__":
    sys.exit(main())
