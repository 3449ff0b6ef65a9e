"""Fake brokers for tests of the admin interface: a status, a handle, a filled database."""

import sqlite3
import weakref
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from phpmq_lite.installation import migrations_folder
from phpmq_lite.model import checksum
from phpmq_lite.queue_settings import QueueSettings
from phpmq_lite.server.addresses import PhpmqListener
from phpmq_lite.server.counters import CommitCounters
from phpmq_lite.server.status import BrokerHandle, BrokerStatus, ClientStatus, QueueStatus
from phpmq_lite.settings import Settings
from phpmq_lite.storage.backend import Replica, ServerStatus, StoreStatus
from phpmq_lite.storage.sqlite.migrate import migrate

NOW_MS = 1_767_326_400_000  # 2026-01-02 04:00:00 UTC
HOSTILE = (
    '../<script>alert(1)</script>"\u00e9',
    "..",
    ".",
    "a/b",
    "orders.json",
    "~tilde",
    "\u202eevil\u200b",
    " a  b ",
    "100%&q=1#x?y",
)


def queue_status(name: str = "orders", queue_id: int = 1, **changes: Any) -> QueueStatus:
    """Return a queue status; figures are 0 unless given."""
    made = QueueStatus(
        queue_id=queue_id,
        name=name,
        ready=0,
        scheduled=0,
        dispatched=0,
        dead=0,
        bytes=0,
        published_per_s=0.0,
        dispatched_per_s=0.0,
        acked_per_s=0.0,
        consumers=0,
        credit=0,
        delivery_paused=False,
        publishing_paused=False,
        settings=QueueSettings(),
        totals={},
        is_dead_letter_queue=name.endswith(".dlq"),
        dead_letter_queue=f"{name}.dlq",
    )
    return replace(made, **changes)


def client_status(client: int = 7, **changes: Any) -> ClientStatus:
    made = ClientStatus(
        client=client,
        kind="tcp",
        address="127.0.0.1:50000",
        opened_at=NOW_MS - 60_000,
        queues={},
        framing="compact",
        packet_header=32,
        revision="ttl",
        published=0,
        acked=0,
    )
    return replace(made, **changes)


def broker_status(*queues: QueueStatus, **changes: Any) -> BrokerStatus:
    commits = CommitCounters()
    commits.last_ms = 1.2
    made = BrokerStatus(
        started_at=NOW_MS - 11_520_000,
        is_ready=True,
        step="ready",
        queues=queues,
        listeners=(
            PhpmqListener("127.0.0.1:9100", "tcp", has_ttl=True),
            PhpmqListener("127.0.0.1:9102", "tcp", has_ttl=False),
        ),
        commits=commits,
        loop_lag_ms=0.3,
    )
    return replace(made, **changes)


def postgres_store(*replicas: Replica, **changes: Any) -> StoreStatus:
    """Return the status of a store that needs a replica; without arguments, it has two."""
    counted = replicas or tuple(Replica(f"n{n}", "", "streaming", True, 0, 0.0) for n in (2, 3))
    server = ServerStatus("15.8", 9 << 20, 1, True, 12, 100, None, counted)
    made = StoreStatus(
        engine="PostgreSQL", place="db1:5432,db2:5432/phpmq", epoch=7, replicas_required=1,
        quorum="ANY 1 (n2,n3)", server=server,
    )  # fmt: skip
    return replace(made, **changes)


class FakeBroker(BrokerHandle):
    """Serves a fixed status; without an engine, it refuses to change anything."""

    def __init__(self, status: BrokerStatus | None = None) -> None:
        super().__init__(Settings())
        self.now = status or broker_status()

    def status(self, is_wanted: Callable[[str], bool] | None = None) -> BrokerStatus:
        if is_wanted is None:
            return self.now
        wanted = tuple(queue for queue in self.now.queues if is_wanted(queue.name))
        return replace(self.now, queues=wanted)

    def summary(self) -> BrokerStatus:
        return replace(self.now, queues=())


def add_reader_functions(connection: sqlite3.Connection) -> None:
    """Register stubs of the SQL functions of ``read_connections.py``, for EXPLAIN."""
    for name, count in (("body_part", 3), ("in_time", 0), ("has_text", 2), ("matches_glob", 2)):
        connection.create_function(name, count, lambda *_: None)


class Database:
    """A database as a broker leaves it; its connection stays open, like the writer's."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        weakref.finalize(self, self.connection.close)  # CPython 3.13 warns about one left open
        self.connection.execute("PRAGMA journal_mode = WAL")
        self.connection.execute("PRAGMA synchronous = OFF")
        migrate(self.connection, migrations_folder())
        self._next = 1
        self.first_offset = 1
        self.set_counter("next_number", 1)

    def set_counter(self, name: str, value: int) -> None:
        self.connection.execute("INSERT OR REPLACE INTO counter VALUES (?, ?)", (name, value))

    def queue(self, name: str, queue_id: int, live: int = 1) -> int:
        self.connection.execute(
            "INSERT INTO queue (queue_id, name, created_at, live_count) VALUES (?, ?, ?, ?)",
            (queue_id, name, NOW_MS, live),
        )
        return queue_id

    def client(self, number: int, address: str = "127.0.0.1:50000", kind: str = "tcp") -> int:
        self.connection.execute(
            "INSERT INTO client (client, kind, address, opened_at) VALUES (?, ?, ?, ?)",
            (number, kind, address, NOW_MS - 60_000),
        )
        return number

    def message(self, queue_id: int, content: bytes | None = b"{}", **columns: Any) -> str:
        """Store a live message and return its id; ``content`` None omits the body."""
        return self._insert("message", queue_id, content, {"state": 0} | columns)

    def settled(self, queue_id: int, content: bytes | None = b"{}", **columns: Any) -> str:
        given = {"outcome": 2, "settled_at": NOW_MS - 1_000, "deliveries": 1, "charged": 0}
        if self.connection.execute("SELECT 1 FROM history LIMIT 1").fetchone() is None:
            columns['"offset"'] = self.first_offset
        return self._insert("history", queue_id, content, given | columns)

    def _insert(
        self, table: str, queue_id: int, content: bytes | None, columns: dict[str, Any]
    ) -> str:
        seq = columns.pop("seq", self._next)
        self._next = seq + 1
        self.set_counter("next_number", self._next)
        row = {
            "seq": seq,
            "token": seq * 7919,
            "queue_id": queue_id,
            "position": seq,
            "published_at": NOW_MS - 60_000,
            "size": len(content or b""),
            "crc": checksum(seq, content or b""),
        } | columns
        keys = ", ".join(row)
        args = ", ".join("?" * len(row))
        self.connection.execute(f"INSERT INTO {table} ({keys}) VALUES ({args})", list(row.values()))
        if content is not None:
            self.connection.execute("INSERT INTO body VALUES (?, ?)", (seq, content))
        return f"{seq:016x}{row['token']:016x}"

    def event(self, message_id: str, kind: str, detail: str | None = None, at_ms: int = 0) -> None:
        self.connection.execute(
            "INSERT INTO event (seq, at_ms, kind, detail) VALUES (?, ?, ?, ?)",
            (int(message_id[:16], 16), at_ms or NOW_MS - 30_000, kind, detail),
        )
