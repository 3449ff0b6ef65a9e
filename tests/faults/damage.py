"""Flip bits in the files of a stopped broker, or truncate them; then start it on them.

``python -m tests.faults.damage --flips 120 --truncations 10`` prints the figures and ends with 1 if
a consumer gets a wrong content, or damage is not detected; ``--seed N`` repeats a run.

The folder is one after a clean stop or one after ``kill -9``, damaged at any byte of the database
or the write-ahead log.  The start refuses it; or the broker dead-letters a message or stops when it
reads a damaged page; or only ``verify`` detects it.  If nothing does, all rows are compared: bytes
that SQLite does not use change nothing.  Metadata of messages (times, counts, the random half of an
id) have no checksums of their own, but the whole database has one after a clean stop, and after a
crash if it was sealed since its last checkpoint, as here.
"""

import argparse
import json
import random
import shutil
import sqlite3
import sys
import time
from base64 import b64decode
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from phpmq_lite.broker_process import StartFailedError
from phpmq_lite.errors import PhpmqError
from phpmq_lite.protocol.frames import Dispatch
from phpmq_lite.storage.data_folder import DATABASE
from phpmq_lite.storage.sqlite.integrity import seal
from phpmq_lite.storage.sqlite.integrity.database_check import verify
from tests.faults.mutants import mutant_process
from tests.support.fork_server import BrokerProcess, broker_process
from tests.support.seed import SEED
from tests.support.socket_client import SocketClient
from tests.support.waiting import until

QUEUES: Final = ("orders", "mail", "audit", "mail.dlq")
FIRST: Final = 600  # messages before a checkpoint, and after it
SECOND: Final = 300
MARK: Final = b"the last one"
WAL: Final = f"{DATABASE}-wal"
# What detects a damage; nothing detects the last two.
START, DELIVERY, VERIFY, UNUSED, KEPT = "start", "delivery", "verify", "unused", "kept about it"

Rows = dict[str, list[tuple[object, ...]]]


@dataclass
class Filled:
    """The data folder of a broker that has exited, and its content."""

    folder: Path
    alive: dict[str, list[bytes]]  # contents by queue, in order
    settled: set[bytes]
    is_clean: bool


@dataclass
class Case:
    """A damage: its name, and a function that applies it to a folder."""

    name: str
    damage: Callable[[Path], None]


@dataclass
class Outcome:
    case: Case
    by: str = ""  # what detected it; UNUSED or KEPT: nothing
    wrong: list[str] = field(default_factory=list)  # what must never happen
    detail: str = ""


# -- filling


def fill(folder: Path, rng: random.Random, *, is_clean: bool) -> Filled:
    """Load a broker, then end it by SIGTERM, or by ``kill -9`` with a large WAL."""
    data = folder / "data"
    folder.mkdir(exist_ok=True)
    broker = broker_process(data)
    broker.start()
    filled = Filled(data, {queue: [] for queue in QUEUES}, set(), is_clean)
    try:
        with SocketClient(broker.port) as peer:
            _publish(peer, filled, rng, range(FIRST))
            filled.settled.update(_end(peer, filled, "orders", 40, peer.ack))
            _end(peer, filled, "mail", 8, peer.dead_letter)
            # the idle broker copies its WAL into the database and seals it
            until(lambda: (data / DATABASE).stat().st_size >= 200_000)
            until(lambda: seal.read_seal(data) is not None)
            _publish(peer, filled, rng, range(FIRST, FIRST + SECOND))
            filled.settled.update(_end(peer, filled, "audit", 30, peer.ack))
    finally:
        (broker.terminate if is_clean else broker.kill)()
    filled.alive["mail.dlq"] = _dead_letters(data)
    return filled


def _publish(
    peer: SocketClient, filled: Filled, rng: random.Random, numbers: Iterable[int]
) -> None:
    for number in numbers:
        queue = QUEUES[number % 3]
        content = b"%s %d " % (queue.encode(), number) + rng.randbytes(rng.randint(10, 1_500))
        peer.publish(queue, content, key=b"%d" % number)
        assert not peer.receipt().reason
        filled.alive[queue].append(content)


def _end(
    peer: SocketClient, filled: Filled, queue: str, number: int, end: Callable[[Dispatch], None]
) -> list[bytes]:
    """End the first messages of a queue; return their contents."""
    peer.consume(queue, number)
    some = peer.dispatches(number)
    peer.consume(queue, 0)
    for dispatch in some:
        end(dispatch)
    _pass(peer)
    ended = filled.alive[queue][:number]
    del filled.alive[queue][:number]
    return ended


def _dead_letters(data: Path) -> list[bytes]:
    with copied(data) as connection:
        found = connection.execute(
            "SELECT content FROM message JOIN queue USING (queue_id) JOIN body USING (seq) "
            "WHERE name = 'mail.dlq' ORDER BY position"
        )
        return [_original("mail.dlq", content) for (content,) in found]


def _pass(peer: SocketClient) -> None:
    """Wait until everything sent so far is stored."""
    peer.publish("passed", b"", ttl_s=1, key=b"pass %d" % time.monotonic_ns())
    peer.receipt()


# -- damages


def flips(filled: Filled, name: str, rng: random.Random) -> Iterator[Case]:
    """Yield cases without end that flip one bit anywhere in a file."""
    size = (filled.folder / name).stat().st_size
    while True:
        bit = rng.randrange(size * 8)
        yield Case(f"bit {bit} of {name}", partial(_flip, name, bit))


def cuts(filled: Filled, name: str, rng: random.Random) -> Iterator[Case]:
    size = (filled.folder / name).stat().st_size
    while True:
        left = rng.randrange(size)
        yield Case(f"{name} cut to {left}", partial(_cut, name, left))


def losses(filled: Filled) -> Iterator[Case]:
    """Yield cases that remove or empty files, or zero their headers."""
    yield Case("database removed", lambda data: (data / DATABASE).unlink())
    yield Case("database emptied", partial(_cut, DATABASE, 0))
    yield Case("header of the database zeroed", partial(_zero, DATABASE, 100))
    if not filled.is_clean:
        yield Case("write-ahead log removed", lambda data: (data / WAL).unlink())
        yield Case("header of the write-ahead log zeroed", partial(_zero, WAL, 32))


def _flip(name: str, bit: int, data: Path) -> None:
    with (data / name).open("r+b") as opened:
        opened.seek(bit // 8)
        byte = opened.read(1)[0]
        opened.seek(bit // 8)
        opened.write(bytes([byte ^ 1 << bit % 8]))


def _cut(name: str, left: int, data: Path) -> None:
    with (data / name).open("r+b") as opened:
        opened.truncate(left)


def _zero(name: str, size: int, data: Path) -> None:
    with (data / name).open("r+b") as opened:
        opened.write(bytes(size))


# -- judging


def judge(filled: Filled, case: Case, place: Path, mutant: str = "") -> Outcome:
    """Damage a copy, start a broker on it, consume everything, and return what detected it."""
    data = place / "data"
    shutil.copytree(filled.folder, data, ignore=lambda _folder, _names: {"control.sock"})
    outcome = Outcome(case)
    try:
        case.damage(data)
        seen = _verified(data, outcome)
        rows = rows_of(data) if not seen else None
        _start(filled, outcome, data, mutant)
        if outcome.by or outcome.wrong:
            return outcome
        if seen:
            outcome.by, outcome.detail = VERIFY, seen[0]
        else:
            _compare(rows_of(filled.folder), rows or {}, outcome)
    finally:
        shutil.rmtree(place)
    return outcome


def _verified(data: Path, outcome: Outcome) -> list[str]:
    """Return the problems found by ``verify``, which must not change the files."""
    before = files_of(data)
    try:
        found = [problem for check in verify(data) for problem in check.problems]
    except PhpmqError as error:
        found = [str(error)]
    if files_of(data) != before:
        outcome.wrong.append("verify changed the files")
    return found


def _start(filled: Filled, outcome: Outcome, data: Path, mutant: str) -> None:
    before = files_of(data)
    broker = mutant_process(data, mutant)
    try:
        broker.start()
    except StartFailedError as error:
        outcome.by, outcome.detail = START, str(error).partition("\n")[0][:200]
        if "(exit code 65)" not in outcome.detail:
            outcome.wrong.append(f"the start ended with {outcome.detail}")
        if files_of(data) != before:
            outcome.wrong.append("the originals were changed")
        return
    try:
        got, is_whole = _consume(broker)
    finally:
        code = broker.terminate()
    dead = _dead(data)
    if dead or not is_whole or code:
        outcome.by, outcome.detail = DELIVERY, f"{dead} died of crc, exit code {code}"
    _check_contents(filled, got, outcome)
    missing = sum(map(len, filled.alive.values())) - sum(map(len, got.values()))
    if is_whole and not code and missing != dead:
        outcome.by, outcome.detail = "", f"{outcome.detail} {missing} are missing"
        if not _is_kept(filled, data):
            outcome.wrong.append(f"{missing} are lost")


def _consume(broker: BrokerProcess) -> tuple[dict[str, list[bytes]], bool]:
    """Consume everything; return also whether the broker kept the connection open."""
    got: dict[str, list[bytes]] = {queue: [] for queue in QUEUES}
    try:
        with SocketClient(broker.port) as peer:
            for queue in QUEUES:
                peer.publish(queue, MARK, key=b"mark " + queue.encode())
                peer.receipt()
                peer.consume(queue, 1_000)
                while (dispatch := peer.dispatches(1)[0]).content != MARK:
                    got[queue].append(_original(queue, dispatch.content))
                    peer.ack(dispatch)
                peer.ack(dispatch)
            _pass(peer)
    except (AssertionError, OSError):
        return got, False
    return got, True


def _is_kept(filled: Filled, data: Path) -> bool:
    """Return whether all alive messages are still on the disk, delivered or not."""
    with copied(data) as connection:
        try:
            there = {content for (content,) in connection.execute("SELECT content FROM body")}
        except sqlite3.DatabaseError:
            return False
    return all(content in there for queue in QUEUES[:3] for content in filled.alive[queue])


def _original(queue: str, content: bytes) -> bytes:
    """Return the original content, which the record of a dead letter contains."""
    if not queue.endswith(".dlq"):
        return content
    try:
        return b64decode(json.loads(content)["raw"])
    except (ValueError, KeyError, TypeError):
        return content


def _dead(data: Path) -> int:
    with closing(sqlite3.connect(data / DATABASE)) as connection, suppress(sqlite3.DatabaseError):
        found = connection.execute("SELECT count(*) FROM history WHERE reason = 'crc'")
        return int(found.fetchone()[0])
    return 0


def _check_contents(filled: Filled, got: dict[str, list[bytes]], outcome: Outcome) -> None:
    """Check that each queue delivers its alive messages in order, and no settled ones."""
    for queue, contents in got.items():
        expected = filled.alive[queue]
        known = set(expected)
        if any(content in filled.settled for content in contents):
            outcome.wrong.append(f"{queue}: an acknowledged message was redelivered")
        elif any(content not in known for content in contents):
            outcome.wrong.append(f"{queue}: a wrong content was delivered")
        elif contents != [one for one in expected if one in set(contents)]:
            outcome.wrong.append(f"{queue}: another order")


def _compare(before: Rows, after: Rows, outcome: Outcome) -> None:
    """Name the tables that differ although nothing was detected."""
    different = [name for name in before if before[name] != after.get(name)]
    if outcome.detail:
        outcome.wrong.append(f"not detected:{outcome.detail}")
    elif different:
        outcome.by, outcome.detail = KEPT, ", ".join(different)
    else:
        outcome.by = UNUSED


def rows_of(data: Path) -> Rows:
    """Return all rows by table, or the error of a database that cannot be read."""
    found: Rows = {}
    with copied(data) as connection:
        try:
            tables = connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")
            for (table,) in tables.fetchall():
                found[table] = connection.execute(f'SELECT * FROM "{table}"').fetchall()
        except sqlite3.DatabaseError as error:
            found["unreadable"] = [(str(error),)]
    return found


@contextmanager
def copied(data: Path) -> Iterator[sqlite3.Connection]:
    """Open a copy of the database: SQLite changes files that it opens."""
    with TemporaryDirectory() as place:
        for name in (DATABASE, WAL):
            if (data / name).exists():
                shutil.copyfile(data / name, Path(place) / name)
        with closing(sqlite3.connect(Path(place) / DATABASE)) as connection:
            yield connection


def files_of(data: Path) -> dict[str, str]:
    names = (DATABASE, WAL, "meta.json")
    return {
        name: sha256((data / name).read_bytes()).hexdigest()
        for name in names
        if (data / name).exists()
    }


# -- a run


def run(folder: Path, seed: int, number: int, cut: int) -> list[Outcome]:
    """Flip ``number`` bits that are used in folders of both kinds, and truncate ``cut`` files."""
    rng = random.Random(seed)
    clean = fill(folder / "clean", rng, is_clean=True)
    killed = fill(folder / "killed", rng, is_clean=False)
    third, part = number // 3, cut // 3
    plans: list[tuple[Filled, Iterable[Case], int]] = [
        (clean, flips(clean, DATABASE, rng), third),
        (killed, flips(killed, DATABASE, rng), third),
        (killed, flips(killed, WAL, rng), number - 2 * third),
        (clean, cuts(clean, DATABASE, rng), part),
        (killed, cuts(killed, DATABASE, rng), part),
        (killed, cuts(killed, WAL, rng), cut - 2 * part),
        (clean, losses(clean), sys.maxsize),
        (killed, losses(killed), sys.maxsize),
    ]
    return [
        outcome
        for filled, cases, most in plans
        for outcome in _until(most, filled, cases, folder / "case")
    ]


def _until(most: int, filled: Filled, cases: Iterable[Case], place: Path) -> Iterator[Outcome]:
    """Judge cases until ``most`` have changed something."""
    for case in cases:
        if not most:
            return
        outcome = judge(filled, case, place)
        most -= outcome.by != UNUSED
        yield outcome


def figures(outcomes: list[Outcome], seed: int) -> list[str]:
    """Return the report of a run in lines."""
    by = Counter(outcome.by or "nothing" for outcome in outcomes)
    unused, kept = by.pop(UNUSED, 0), by.pop(KEPT, 0)
    wrong = [f"{one.case.name}: {text}" for one in outcomes for text in one.wrong]
    detected = ", ".join(f"{count} by {name}" for name, count in by.most_common())
    return [
        f"damage, seed {seed}: {by.total() + kept} flips, cuts and losses: detected {detected}; "
        f"undetected {kept}, in times, counts and ids; wrong contents, order or queue "
        f"{len(wrong)}; {unused} more in bytes that nothing uses",
        *wrong,
    ]


def main() -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--flips", type=int, default=120)
    parser.add_argument("--truncations", type=int, default=10)
    parser.add_argument("--seed", type=int, default=SEED)
    given = parser.parse_args()
    with TemporaryDirectory() as folder:
        outcomes = run(Path(folder), given.seed, given.flips, given.truncations)
    for outcome in outcomes:
        print(f"{outcome.by or 'WRONG':14} {outcome.case.name:32} {outcome.detail[:110]}")
    print("\n".join(figures(outcomes, given.seed)))
    return 1 if any(outcome.wrong for outcome in outcomes) else 0


if __name__ == "__main__":
    sys.exit(main())
