"""Gathers what decides whether a broker can use a database server; changes nothing."""

import json
import time
from contextlib import closing
from dataclasses import dataclass
from typing import NamedTuple

from phpmq_lite.errors import StartRefusedError
from phpmq_lite.storage.postgres.database_check import opened, schema_version
from phpmq_lite.storage.postgres.leadership import EpochRow
from phpmq_lite.storage.postgres.quorum import required_replicas
from phpmq_lite.storage.postgres.store import SHARD, PostgresStore, connect
from phpmq_lite.storage.postgres.url import connection_info, reading, shown
from phpmq_lite.storage.store_status import Replica


class ServerFacts(NamedTuple):
    """What a server says about itself and the broker's role."""

    version: int  # such as 150018
    can_create: bool
    can_write: bool | None  # None: there are no tables yet
    wall_ms: int
    pid: int  # of the server process
    quorum: str  # synchronous_standby_names
    fsync: str
    full_page_writes: str
    synchronous_commit: str  # of this session, which asked for "on"
    connections: int
    max_connections: int


@dataclass(slots=True)
class ServerProbe:
    """The state of a server and a database, seen from this machine."""

    place: str
    facts: ServerFacts
    clock_ms: int  # the server's clock less this machine's
    pooler: str  # "transaction", "session", or empty without one
    replicas_required: int
    replicas: list[Replica]
    schema: int = 0
    pending: int = 0  # number of migrations
    refusal: str = ""  # why a broker of this version cannot use the database
    epoch: EpochRow | None = None  # None if the database is empty

    @property
    def active_broker(self) -> str:
        """The machine of the active broker."""
        return str(json.loads(self.epoch.broker).get("host", "unknown")) if self.epoch else ""


def probe(url: str) -> ServerProbe:
    """Connect to the server that accepts writes, and describe it.

    Raises:
        SettingsError: the URL cannot be used.
        StorageError: no server can be reached.
    """
    info = reading(connection_info(url))
    with opened(url) as store:
        began_s = time.time()
        facts = _facts(store)
        here_ms = round((began_s + time.time()) * 500)  # in the middle
        replicas = [Replica(*row) for row in store.execute(store.sql("server")["replicas"])]
        required = required_replicas(facts.quorum)
        pooler = _pooler(store, info)
        found = ServerProbe(shown(info), facts, facts.wall_ms - here_ms, pooler, required, replicas)
        try:
            found.schema, found.pending = schema_version(store)
        except StartRefusedError as error:
            found.refusal = str(error)
        if found.schema:
            row = store.execute(store.sql("epoch")["read"], (SHARD,)).fetchone()
            found.epoch = EpochRow(*row)
    return found


def _facts(store: PostgresStore) -> ServerFacts:
    return ServerFacts(*store.execute(store.sql("server")["probe"]).fetchone())


def _pooler(store: PostgresStore, info: str) -> str:
    """Return which kind of connection pooler is in between, if any.

    With a pooler, the number of the server process differs from that in the connection's greeting.
    If it pools transactions, a transaction of another connection takes over the server process, and
    this connection gets a different one.
    """
    before = _facts(store).pid
    if before == store.connection.info.backend_pid:
        return ""
    with closing(connect(info)) as other:
        other.execute("BEGIN")
        other.execute("SELECT 1")
        return "session" if before == _facts(store).pid else "transaction"
