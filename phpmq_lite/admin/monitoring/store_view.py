"""What the pages say about the PostgreSQL database of a broker: facts and problems."""

from collections.abc import Iterator
from typing import Final, NamedTuple

from phpmq_lite.admin.base import formats
from phpmq_lite.admin.base.formats import count_of
from phpmq_lite.admin.monitoring.system_view import SystemFact
from phpmq_lite.storage.store_status import StoreStatus

LAG_S: Final = 10.0  # a longer lag of a replica is a problem
TRANSACTION_S: Final = 600.0  # as is a transaction that has been open for longer
_CONNECTIONS: Final = 0.9  # or a larger part of max_connections in use
_DISK_FREE: Final = 0.1  # or a smaller part of the disk free


class StoreProblem(NamedTuple):
    """A problem of the database; ``level`` is "bad" or "warn"."""

    level: str
    who: str
    text: str


def asynchronous_text(store: StoreStatus) -> str:
    """Return why messages are confirmed although no quorum of replicas has them."""
    return (
        f"Messages are confirmed without a quorum: {store.asynchronous}. A failover of the database"
        " can lose them (store.allow_asynchronous)"
    )


def replication_problems(store: StoreStatus) -> Iterator[StoreProblem]:
    """Yield a problem if commits lack a quorum, if a replica lags, or if none of them may fail."""
    name, ready, required = "Replication", store.replicas_ready, store.replicas_required
    if store.asynchronous is not None:
        yield StoreProblem("bad", name, asynchronous_text(store))
    if store.server is None or ready is None or not required:
        return
    must = f"{count_of(required, 'replica', 'replicas')} must confirm each commit"
    if ready < required:
        yield StoreProblem("bad", name, f"No quorum: {must}, and {ready or 'none'} can")
    elif ready == required:
        text = f"{must}, and only {ready} can: if one more fails, nothing can be stored"
        yield StoreProblem("warn", name, text)
    for one in store.server.replicas:
        if (one.lag_s or 0) > LAG_S:
            yield StoreProblem("warn", name, f"Replica {one.name} is {one.lag_s:.1f} s behind")


def store_problems(store: StoreStatus) -> Iterator[StoreProblem]:
    """Yield all problems of a PostgreSQL database, except that nothing can be stored."""
    yield from replication_problems(store)
    if store.problem is not None:
        yield StoreProblem("warn", "Database", f"Its state cannot be read: {store.problem}")
    if (server := store.server) is None:
        return
    if server.oldest_transaction_s > TRANSACTION_S:
        age = formats.format_duration(round(server.oldest_transaction_s * 1_000))
        text = f"open for {age}; until it ends, VACUUM cannot remove old rows"
        yield StoreProblem("warn", "Transaction", f"{server.oldest_transaction}: {text}")
    if server.connections > server.max_connections * _CONNECTIONS:
        text = f"{server.connections} of {server.max_connections} connections are in use"
        yield StoreProblem("warn", "Database", f"{text}; a broker may be unable to connect")
    if server.disk_free < server.disk_bytes * _DISK_FREE:
        text = f"{formats.format_size(server.disk_free)} free on the server's disk"
        yield StoreProblem("bad", "Disk", f"{text}; when it is full, nothing can be stored")


def server_facts(store: StoreStatus) -> Iterator[SystemFact]:
    """Yield the facts about a PostgreSQL database for the System page."""
    number, size = formats.format_number, formats.format_size
    yield SystemFact("Database", store.place)
    yield SystemFact("Role", "active", f"epoch {number(store.epoch)}")
    if store.replicas_required:
        must = count_of(store.replicas_required, "replica", "replicas")
        yield SystemFact("Confirmed by", f"the primary and {must}", store.quorum)
    else:
        note = "synchronous_standby_names names no quorum"
        yield SystemFact("Confirmed by", "the primary alone", note, "bad")
    if store.allows_asynchronous:
        note = "store.allow_asynchronous is set"
        yield SystemFact("Without a quorum", "messages are confirmed", note, "warn")
    if store.problem is not None:
        yield SystemFact("Server", "cannot be read", store.problem, "bad")
    if (server := store.server) is None:
        return
    for one in server.replicas:
        behind = f"{size(one.lag_bytes or 0)}, {one.lag_s or 0:.1f} s behind"
        level = "" if one.is_ready and (one.lag_s or 0) <= LAG_S else "warn"
        note = behind if one.state else "lag unknown: grant pg_monitor to the broker's role"
        yield SystemFact(f"Replica {one.name}", one.state or "connected", note, level)
    if not server.replicas:
        yield SystemFact("Replicas", "none", level="bad" if store.replicas_required else "")
    yield SystemFact("Size", size(server.database_bytes), f"schema version {server.schema}")
    yield SystemFact("Page checksums", "on" if server.has_checksums else "off")
    yield SystemFact("Connections", number(server.connections), f"of {server.max_connections}")
    if server.disk_bytes:
        yield SystemFact("Free disk space", size(server.disk_free), f"of {size(server.disk_bytes)}")
    if server.oldest_transaction is not None and server.oldest_transaction_s >= 1:
        age = formats.format_duration(round(server.oldest_transaction_s * 1_000))
        yield SystemFact("Oldest transaction", age, server.oldest_transaction)
    if store.reconnects:
        note = f"{count_of(store.unknown_batches, 'batch', 'batches')} of unknown outcome resolved"
        yield SystemFact("Reconnects", number(store.reconnects), note)
