"""Gathers what decides whether a broker can use a database server; changes nothing."""

import json
import time
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, field

from phpmq_lite.errors import StartRefusedError
from phpmq_lite.storage.postgres.database_check import opened, schema_version
from phpmq_lite.storage.postgres.leadership import EpochRow
from phpmq_lite.storage.postgres.quorum import required_replicas
from phpmq_lite.storage.postgres.store import SHARD, PostgresStore, connect
from phpmq_lite.storage.postgres.url import connection_info, reading, shown
from phpmq_lite.storage.store_status import Replica, ServerStatus


@dataclass(slots=True)
class ServerProbe:
    """The state of a server and a database, seen from this machine."""

    place: str
    version: int  # such as 150018
    pooler: str  # "transaction", "session", or empty without one
    clock_ms: int  # the server's clock less this machine's
    can_create: bool
    can_write: bool | None  # None: there are no tables yet
    defaults: Mapping[str, str]  # settings of the server, by name
    is_synchronous: bool  # whether the session has the synchronous_commit that it asked for
    replicas_required: int = 0
    server: ServerStatus | None = None  # None if the database is empty
    replicas: list[Replica] = field(default_factory=list)
    schema: int = 0
    pending: int = 0  # number of migrations
    refusal: str = ""  # why a broker of this version cannot use the database
    active_broker: str = ""  # the active broker's machine
    epoch: EpochRow | None = None


def probe(url: str) -> ServerProbe:
    """Connect to the server that accepts writes, and describe it.

    Raises:
        SettingsError: the URL cannot be used.
        StorageError: no server can be reached.
    """
    info = reading(connection_info(url))
    with opened(url) as store:
        sql = store.sql("server")
        began_s = time.time()
        version, can_create, can_write, server_ms, _ = store.execute(sql["probe"]).fetchone()
        here_ms = (began_s + time.time()) * 500  # in the middle
        settings = store.execute(sql["settings"]).fetchall()
        defaults = {name: reset for name, _, reset in settings}
        found = ServerProbe(
            shown(info), version, _pooler(store, info), round(server_ms - here_ms), can_create,
            can_write, defaults,
            is_synchronous=("synchronous_commit", "on") in {row[:2] for row in settings},
            replicas_required=required_replicas(defaults["synchronous_standby_names"]),
            replicas=[Replica(*row) for row in store.execute(sql["replicas"])],
        )  # fmt: skip
        try:
            found.schema, found.pending = schema_version(store)
        except StartRefusedError as error:
            found.refusal = str(error)
        if found.schema:
            found.server = ServerStatus(*store.execute(sql["status"]).fetchone())
            row = EpochRow(*store.execute(store.sql("epoch")["read"], (SHARD,)).fetchone())
            found.epoch = row
            found.active_broker = str(json.loads(row.broker).get("host", "unknown"))
    return found


def _pooler(store: PostgresStore, info: str) -> str:
    """Return which kind of connection pooler is in between, if any.

    With a pooler, the number of the server process differs from that in the connection's greeting.
    If it pools transactions, a transaction of another connection takes over the server process, and
    this connection gets a different one.
    """
    sql, connection = store.sql("server"), store.connection
    before = store.execute(sql["probe"]).fetchone()[4]
    if before == connection.info.backend_pid:
        return ""
    with closing(connect(info)) as other:
        other.execute("BEGIN")
        other.execute("SELECT 1")
        after = store.execute(sql["probe"]).fetchone()[4]
        other.execute("ROLLBACK")
    return "session" if before == after else "transaction"
