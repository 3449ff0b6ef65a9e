"""The promises of a broker up to a record of its log, and the comparison with a disk.

A power cut may come at any record.  By then, each confirmed message is on the disk; each dispatched
message is stored; each end (004, 006) sent before a publish that has its receipt is stored.
"""

import sqlite3
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from phpmq_lite.broker.publish_keys import expand_run
from phpmq_lite.model import State, checksum
from phpmq_lite.protocol.connection import ClientSide, ServerSide
from phpmq_lite.protocol.frames import (
    Acknowledge,
    BrokerFrame,
    ClientFrame,
    DeadLetter,
    Dispatch,
    Publish,
    ReceiptFrame,
    WireLimits,
)
from tests.faults.ledger import KEY_BYTES, contradictions, seq_of, stored_keys
from tests.faults.shim import Kind, Record

LOST: Final = "confirmed and lost"
UNDONE: Final = "a stored end undone"
DAMAGED: Final = "not whole"
UNSTORED: Final = "dispatched and not stored"
TWICE: Final = "stored twice"
FORGOTTEN: Final = "its key forgotten"
WRONG: Final = "other content"
REUSED: Final = "a number given twice"
REFUSED: Final = "no start"


@dataclass(slots=True)
class Finding:
    kind: str
    what: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.what}"


@dataclass(slots=True)
class _Connection:
    """Both directions of one."""

    asked: ServerSide = field(default_factory=lambda: ServerSide(WireLimits(), http_guard=False))
    told: ClientSide = field(default_factory=ClientSide)
    ends: list[tuple[bytes, State]] = field(default_factory=list)
    known: int = 0  # number of ends that are known to be stored
    behind: dict[bytes, int] = field(default_factory=dict)  # key -> number of ends before it


class PowerLedger:
    """Takes records in order; ``findings`` may be called at any record."""

    def __init__(self) -> None:
        self.contents: dict[bytes, bytes] = {}  # by key: what was published
        self.confirmed: set[bytes] = set()
        self.dispatched: set[bytes] = set()  # ids that left
        self.ended: dict[bytes, State] = {}  # ids of ends that are known to be stored
        self.refused = 0
        self._may_be_gone: set[bytes] = set()  # keys with a TTL: they settle by themselves
        self._keys: dict[bytes, bytes] = {}  # key of what was dispatched, by id
        self._connections: dict[tuple[int, int], _Connection] = {}
        self._asked_to_end: set[bytes] = set()  # ids

    def take(self, record: Record) -> None:
        """Add a record; those of files change nothing."""
        if record.kind is Kind.ACCEPTED:
            self._connections[record.owner] = _Connection()
        elif record.kind is Kind.RECEIVED and record.owner in self._connections:
            connection = self._connections[record.owner]
            for asked in connection.asked.receive(record.content):
                self._ask(connection, asked)
        elif record.kind is Kind.SENT and record.owner in self._connections:
            connection = self._connections[record.owner]
            for told in connection.told.receive(record.content):
                self._tell(connection, told)

    def _ask(self, connection: _Connection, frame: ClientFrame) -> None:
        if isinstance(frame, Publish):
            key = frame.content[:KEY_BYTES]
            self.contents[key] = frame.content
            if frame.ttl_s:
                self._may_be_gone.add(key)
            if frame.key is not None:
                connection.behind[frame.key] = len(connection.ends)
        elif isinstance(frame, Acknowledge | DeadLetter):
            outcome = State.ACKED if isinstance(frame, Acknowledge) else State.DEAD
            connection.ends.append((frame.message_id, outcome))
            self._asked_to_end.add(frame.message_id)

    def _tell(self, connection: _Connection, frame: BrokerFrame) -> None:
        if isinstance(frame, Dispatch):
            self.dispatched.add(frame.message_id)
            self._keys[frame.message_id] = frame.content[:KEY_BYTES]
        elif not isinstance(frame, ReceiptFrame):
            raise AssertionError(frame)
        elif frame.reason is not None:
            self.refused += 1
        else:
            self.confirmed.add(frame.key)
            stored = connection.behind.pop(frame.key)
            self.ended.update(connection.ends[connection.known : stored])
            connection.known = stored

    # -- the audit

    def findings(self, database: sqlite3.Connection, next_number: int) -> list[Finding]:
        """Compare a recovered database, which will assign ``next_number``, with the promises."""
        alive = dict(database.execute("SELECT seq, token FROM message"))
        rows = database.execute("SELECT seq, token, outcome FROM history").fetchall()
        settled = {seq: (token, State(outcome)) for seq, token, outcome in rows}
        removed = database.execute('SELECT coalesce(min("offset"), 1) - 1 FROM history').fetchone()
        found = [Finding(DAMAGED, f"{text}: {rows}") for text, rows in contradictions(database)]
        seqs = dict(stored_keys(database))
        found += self._wrong_contents(database, seqs)
        found += (Finding(TWICE, repr(key)) for key, n in Counter(seqs.values()).items() if n > 1)
        present = {key for seq, key in seqs.items() if seq in alive or seq in settled}
        is_trimmed = removed[0] > 0  # settled messages may be missing
        gone = self._settled_keys() if is_trimmed else set()
        found += (Finding(LOST, repr(key)) for key in self.confirmed - present - gone)
        runs = database.execute("SELECT * FROM receipt").fetchall()
        remembered = {key for run in runs for _, key, _, _ in expand_run(run)}
        found += (Finding(FORGOTTEN, repr(key)) for key in self.confirmed - remembered)
        found += self._unstored(alive, {seq: token for seq, (token, _) in settled.items()}, gone)
        found += self._undone(alive, {seq: how for seq, (_, how) in settled.items()}, is_trimmed)
        highest = max(map(seq_of, self.dispatched), default=0)
        if next_number <= highest:
            found.append(Finding(REUSED, f"the next is {next_number}, {highest} was dispatched"))
        return found

    def _settled_keys(self) -> set[bytes]:
        """Return the keys that may be missing once the history is trimmed."""
        ended = (self._keys[message_id] for message_id in self._asked_to_end & self._keys.keys())
        return self._may_be_gone.union(ended)

    def _wrong_contents(
        self, database: sqlite3.Connection, seqs: dict[int, bytes]
    ) -> Iterable[Finding]:
        sums = dict(database.execute("SELECT seq, crc FROM history"))
        sums |= dict(database.execute("SELECT seq, crc FROM message"))
        for seq, content in database.execute("SELECT seq, content FROM body"):
            if seq in seqs and content != self.contents.get(seqs[seq]):
                yield Finding(WRONG, f"message {seq}, {content[:KEY_BYTES]!r}")
            elif checksum(seq, content) != sums.get(seq):
                yield Finding(WRONG, f"checksum of message {seq}")

    def _unstored(
        self, alive: dict[int, int], settled: dict[int, int], gone: set[bytes]
    ) -> Iterable[Finding]:
        for message_id in self.dispatched:
            seq, token = seq_of(message_id), int(message_id[16:], 16)
            is_there = token in (alive.get(seq), settled.get(seq))
            if not is_there and self._keys[message_id] not in gone:
                yield Finding(UNSTORED, repr(message_id))

    def _undone(
        self, alive: dict[int, int], settled: dict[int, State], is_trimmed: bool
    ) -> Iterable[Finding]:
        for message_id, outcome in self.ended.items():
            seq = seq_of(message_id)
            is_gone = is_trimmed and seq not in settled
            if seq in alive or not (is_gone or settled.get(seq) is outcome):
                yield Finding(UNDONE, f"{message_id!r}, {outcome.name}")
