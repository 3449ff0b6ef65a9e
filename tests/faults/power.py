"""Power cuts at any moment of a broker's life: its promises up to then hold afterwards.

The real broker works under the recorder of ``shim.py``: three lives, one of them ended by a kill,
with a mixed load, pauses for checkpoints, retention, and clean stops.  Then its disk is recreated
as it may have been at some record of the log, once by each policy of ``disk.py``; a start on it, by
the calls of ``service.py``, is compared with ``power_ledger.py``.  On some disks the broker itself
is started, and a client reads its messages.

``python -m tests.faults.power --points 1000`` prints the table, and ends with 1 if a promise was
broken; ``--seed N`` repeats the random choices of a run, but not its timing.
"""

import argparse
import asyncio
import random
import shutil
import socket
import sqlite3
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory, mkdtemp
from typing import Final

from phpmq_lite.broker.publish_keys import expand_run
from phpmq_lite.clock import Clock
from phpmq_lite.errors import PhpmqError
from phpmq_lite.installation import migrations_folder
from phpmq_lite.protocol.connection import ClientSide
from phpmq_lite.protocol.frames import Dispatch
from phpmq_lite.storage.data_folder import DATABASE, DataFolder
from phpmq_lite.storage.sqlite.integrity.startup import check_files
from phpmq_lite.storage.sqlite.migrate import migrate
from phpmq_lite.storage.sqlite.store import SqliteStore
from tests.faults.disk import Disk, Policy
from tests.faults.ledger import (
    IN_MEMORY,
    QUEUES,
    Client,
    Consumer,
    Crowd,
    Ledger,
    Load,
    Producer,
    read_only,
    seq_of,
)
from tests.faults.power_ledger import (
    DAMAGED,
    FORGOTTEN,
    LOST,
    REFUSED,
    UNDONE,
    Finding,
    PowerLedger,
)
from tests.faults.shim import Kind, Record, Shim, read_log
from tests.faults.shimmed_broker import shimmed_broker
from tests.faults.writer_mutants import wait_until_unlocked
from tests.support import fork_server
from tests.support.seed import SEED

LONE: Final = "lone"  # one message at a time
RECEIPTS: Final = 400  # of each phase, at most
LONE_RECEIPTS: Final = 40
LEISURE_S: Final = 0.003
POINTS_OF_A_RUN: Final = 125
_MOMENTS: Final = frozenset(Kind) - {Kind.WRITTEN, Kind.RECEIVED, Kind.ACCEPTED, Kind.CLOSED}
_FLAGS: Final = (  # the WAL is truncated or restarted; the history is kept or trimmed
    (),
    ("--set", "storage.wal_bytes=65536"),
    ("--set", "history.rows=100"),
)


# -- a broker's life, recorded


class Lone(Client):
    """Publishes with a key, and waits for each receipt, and a little longer."""

    def begin(self) -> None:
        """Publish the next message."""
        if not self.transport.is_closing():
            key = self.ledger.new_key()
            self.confirm(LONE, key, key + b"l" * self.ledger.rng.randrange(300))

    def answered(self, key: bytes, reason: str | None) -> None:
        """Pause, so that the message is consumed and at some moments nothing is alive."""
        super().answered(key, reason)
        asyncio.get_running_loop().call_later(LEISURE_S, self.begin)


class Taker(Client):
    """Acknowledges one message at a time, without marks."""

    def begin(self) -> None:
        """Consume the queue of ``Lone``."""
        self.transport.write(self.side.consume(LONE, 1))

    def take(self, dispatch: Dispatch) -> None:
        self.ledger.note_dispatch(dispatch)
        self.transport.write(self.side.acknowledge(dispatch.queue, dispatch.message_id))


async def record(
    folder: Path, rng: random.Random, mutant: str = "", lives: int = 3, *, is_second: bool = False
) -> list[Path]:
    """Run a broker that is stopped, then killed, then stopped; return its logs."""
    shim = Shim(folder)
    flags = "--log-level", "error", *rng.choice(_FLAGS)
    broker = shimmed_broker(shim, *flags, mutant=mutant, is_second=is_second)
    ledger = Ledger(rng)
    logs = []
    for life in range(lives):
        logs.append(folder / f"log-{life}")
        shim.record(logs[-1])
        await asyncio.to_thread(broker.start)
        await _work(shim, Crowd(ledger, broker.port, Load(large=rng.choice((0.0, 0.02, 0.1)))))
        if life == 1:
            broker.kill()
            wait_until_unlocked(shim.data)  # the writer process adds to this life's log
        elif await asyncio.to_thread(broker.terminate):
            raise AssertionError(f"it did not stop: {broker.log.read_text()}")
    return logs


async def _work(shim: Shim, crowd: Crowd) -> None:
    """Load the broker, with two checkpoints in between, the second over a sealed database."""
    rng = crowd.ledger.rng
    await crowd.work(rng.randint(RECEIPTS // 2, RECEIPTS), crowd.leave)
    await _checkpoint(shim)
    await crowd.work(LONE_RECEIPTS, crowd.leave, (Lone, Taker))
    await crowd.work(LONE_RECEIPTS, crowd.leave, (Lone, Taker, Consumer, Consumer))
    await _checkpoint(shim)
    await crowd.work(rng.randint(1, RECEIPTS), crowd.leave, (Producer, Consumer, Lone, Taker))


async def _checkpoint(shim: Shim) -> None:
    database = shim.data / DATABASE
    before_ns = database.stat().st_mtime_ns
    async with asyncio.timeout(20):
        while database.stat().st_mtime_ns == before_ns:  # noqa: ASYNC110 - of another process
            await asyncio.sleep(0.05)


def processes_of(logs: Iterable[Path], kind: Kind = Kind.SYNC_ENDED) -> Counter[int]:
    return Counter(record.owner[0] for record in records_of(logs) if record.kind is kind)


def records_of(logs: Iterable[Path]) -> Iterator[Record]:
    return chain.from_iterable(map(read_log, logs))


# -- the disk that a cut leaves, and a start on it


@dataclass
class Tally:
    points: int = 0
    disks: Counter[Policy] = field(default_factory=Counter)
    same: int = 0  # of them as by another policy: nothing was unsynced
    found: dict[Policy, Counter[str]] = field(
        default_factory=lambda: {p: Counter() for p in Policy}
    )
    examples: dict[str, str] = field(default_factory=dict)  # by kind: where, and what
    served: int = 0  # disks on which the broker itself was started
    pending: int = 0  # changes that could be lost, over all points
    confirmed: int = 0  # at the last point of each recording
    ended: int = 0

    def add(self, policy: Policy, findings: Iterable[Finding], where: str) -> None:
        self.disks[policy] += 1
        findings = list(findings)
        self.found[policy].update({finding.kind for finding in findings})
        for finding in findings:
            self.examples.setdefault(finding.kind, f"{where}, {policy}: {finding.what}"[:500])

    def count(self, kind: str) -> int:
        """Return how often a kind was found, over all policies."""
        return sum(found[kind] for found in self.found.values())

    @property
    def lines(self) -> list[str]:
        """Table, and an example of each kind."""
        lines = [
            f"power: {self.points} points x {len(Policy)} policies, {self.same} disks the same, "
            f"{self.pending / max(1, self.points):.0f} changes not synced at a point; "
            f"{self.confirmed:,} confirmed, {self.ended:,} ends stored, {self.served} served"
        ]
        for policy in Policy:
            found = self.found[policy]
            rest = sum(found.values()) - sum(
                found[kind] for kind in (LOST, UNDONE, DAMAGED, REFUSED)
            )
            lines.append(
                f"power, {policy:9}: {self.disks[policy]} disks, {found[LOST]} confirmed lost, "
                f"{found[UNDONE]} stored acks undone, {found[DAMAGED]} not whole, "
                f"{found[REFUSED]} starts refused, {rest} others"
            )
        return lines + [f"power: {kind}: {text}" for kind, text in self.examples.items()]


def cut(
    logs: list[Path],
    points: int,
    rng: random.Random,
    tally: Tally,
    *,
    served: int = 0,
    store: type[SqliteStore] = SqliteStore,
) -> None:
    """Cut the power at ``points`` records of the logs, and check a start on each disk.

    On ``served`` of these disks the broker itself is started.
    """
    chosen = _choose(logs, points, rng)
    to_serve = set(rng.sample(sorted(chosen), min(served, len(chosen))))
    disk, ledger = Disk(), PowerLedger()
    folder = Path(mkdtemp(prefix="phpmq-power-", dir=IN_MEMORY))
    try:
        for number, record in enumerate(records_of(logs)):
            disk.take(record)
            ledger.take(record)
            if number not in chosen:
                continue
            tally.points += 1
            tally.pending += disk.pending
            where = f"record {number}, {record.kind.name}"
            seen: list[tuple[dict[str, bytes], list[Finding]]] = []
            for policy in Policy:
                left = disk.left(policy, rng)
                known = next((found for files, found in seen if files == left), None)
                if known is None:
                    known = recovered(lay(folder, left), ledger, store)
                    seen.append((left, known))
                else:
                    tally.same += 1
                tally.add(policy, known, where)
            if number in to_serve:
                policy = rng.choice(list(Policy))
                found = list(serve(lay(folder, disk.left(policy, rng)), ledger))
                tally.served += 1
                tally.add(policy, found, where)
    finally:
        shutil.rmtree(folder)
    tally.confirmed += len(ledger.confirmed)
    tally.ended += len(ledger.ended)


def _choose(logs: list[Path], points: int, rng: random.Random) -> set[int]:
    """Choose records: two of three are not writes, which are frequent and similar."""
    kinds = [record.kind for record in records_of(logs)]
    moments = [number for number, kind in enumerate(kinds) if kind in _MOMENTS]
    writes = [number for number, kind in enumerate(kinds) if kind is Kind.WRITTEN]
    some = rng.sample(moments, min(len(moments), points * 2 // 3))
    return {*some, *rng.sample(writes, min(len(writes), points - len(some)))}


def lay(folder: Path, files: dict[str, bytes]) -> Path:
    """Create a data folder with exactly these files."""
    data = folder / "data"
    shutil.rmtree(data, ignore_errors=True)
    for name, content in files.items():
        path = data / name
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.write_bytes(content)
    return data


def recovered(
    data: Path, ledger: PowerLedger, kind: type[SqliteStore] = SqliteStore
) -> list[Finding]:
    """Process files like a start of the broker, and compare."""
    try:
        folder = DataFolder.open(data)
        try:
            check_files(folder)
            connection = sqlite3.connect(folder.database, isolation_level=None)
            try:
                return _recover(kind(connection), ledger)
            finally:
                connection.close()
        finally:
            folder.close()
    except (PhpmqError, sqlite3.Error) as error:
        return [Finding(REFUSED, f"{type(error).__name__}: {error}")]


def _recover(store: SqliteStore, ledger: PowerLedger) -> list[Finding]:
    store.configure(8 << 20)
    store.checkpoint("TRUNCATE")
    migrate(store.connection, migrations_folder())
    stored = store.recover(Clock(store.counters()).now(), 600_000, 100_000)
    found = ledger.findings(store.connection, stored.counters.get("next_number", 1))
    remembered = {key for run in stored.receipts for _, key, _, _ in expand_run(run)}
    found += (Finding(FORGOTTEN, f"{key!r} in memory") for key in ledger.confirmed - remembered)
    return found


def serve(data: Path, ledger: PowerLedger) -> Iterator[Finding]:
    """Start the broker, and read all messages that never expire."""
    with fork_server.broker_process(data, "--admin", "none") as broker:
        with read_only(data) as database:
            rows = database.execute(
                "SELECT seq FROM message JOIN queue USING (queue_id) "
                "WHERE deadline_ms IS NULL AND name IN (?, ?, ?)",
                (*QUEUES, LONE),
            )
            expected = {seq for (seq,) in rows}
        side = ClientSide()
        with socket.create_connection(("127.0.0.1", broker.port), timeout=20) as client:
            for queue in (*QUEUES, LONE):
                client.sendall(side.consume(queue, 1_000_000))
            while expected:
                for frame in side.receive(client.recv(1 << 20)):
                    assert isinstance(frame, Dispatch)
                    expected.discard(seq_of(frame.message_id))
                    if frame.content != ledger.contents.get(frame.content[:16]):
                        yield Finding("other content", f"dispatched as {frame.message_id!r}")
        if code := broker.terminate():
            yield Finding(REFUSED, f"exit code {code} at the stop")


def main() -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults.power", description=__doc__)
    parser.add_argument("--points", type=int, default=1_000)
    parser.add_argument("--served", type=int, default=20, help="disks that the broker serves")
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--mutant", default="", help="a broker with a defect, see mutants.py")
    parser.add_argument("--second", action="store_true", help="with a writer process")
    given = parser.parse_args()
    rng = random.Random(given.seed)
    tally, began = Tally(), time.monotonic()
    print(f"power: seed {given.seed}", flush=True)
    while tally.points < given.points:
        points = min(POINTS_OF_A_RUN, given.points - tally.points)
        with TemporaryDirectory(prefix="phpmq-power-") as folder:
            life = record(Path(folder), rng, given.mutant, is_second=given.second)
            logs = asyncio.run(life)
            cut(logs, points, rng, tally, served=-(-given.served * points // given.points))
    print("\n".join(tally.lines))
    print(f"power: {time.monotonic() - began:.0f} s")
    return 1 if tally.examples else 0


if __name__ == "__main__":
    sys.exit(main())
