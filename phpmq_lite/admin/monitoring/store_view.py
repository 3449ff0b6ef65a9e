"""What the pages say about the PostgreSQL database of a broker: facts and problems."""

from collections.abc import Iterator
from typing import Final, NamedTuple

from phpmq_lite.admin.base import formats
from phpmq_lite.admin.base.formats import count_of
from phpmq_lite.admin.monitoring.system_view import SystemFact
from phpmq_lite.storage.store_status import Replica, StoreStatus

LAG_S: Final = 10.0  # a longer lag of a replica is a problem
TRANSACTION_S: Final = 600.0  # as is a transaction that has been open for longer
_CONNECTIONS: Final = 0.9  # or a larger part of max_connections in use
_DISK_FREE: Final = 0.1  # or a smaller part of the disk free


class StoreProblem(NamedTuple):
    """A problem of the database; ``level`` is "bad" or "warn"."""

    level: str
    who: str
    text: str


def replication_problems(store: StoreStatus) -> Iterator[StoreProblem]:
    """Yield a problem if commits lack a quorum, if a replica lags, or if none of them may fail."""
    if store.asynchronous is not None:
        text = (
            f"Messages are confirmed without a quorum: {store.asynchronous}. A failover can lose "
            f"them ({count_of(store.asynchronous_commits, 'commit', 'commits')} so far)"
        )
        yield StoreProblem("bad", "Replication", text)
    ready, required = store.replicas_ready, store.replicas_required
    if store.server is None or ready is None or not required:
        return
    must = f"{count_of(required, 'replica', 'replicas')} must confirm each commit"
    slow = [one for one in store.server.replicas if one.lag_s is not None and one.lag_s > LAG_S]
    if ready < required:
        yield StoreProblem("bad", "Replication", f"No quorum: {must}, and {_number(ready)} can")
    elif ready == required:
        text = f"{must}, and only {_number(ready)} can: if one more fails, nothing can be stored"
        yield StoreProblem("warn", "Replication", text)
    if slow:
        lags = ", ".join(f"{one.name} is {_lag(one)} behind" for one in slow)
        yield StoreProblem("warn", "Replication", f"Replicas lag: {lags}")


def replication_text(store: StoreStatus) -> str:
    """Return how many replicas can confirm commits."""
    if store.replicas_ready is None:
        return "not read yet" if store.is_active else "read by the active broker"
    return f"{_number(store.replicas_ready)} can confirm, {store.replicas_required} must"


def store_problems(store: StoreStatus) -> Iterator[StoreProblem]:
    """Yield all problems of a PostgreSQL database, except that nothing can be stored."""
    yield from replication_problems(store)
    if store.problem is not None:
        yield StoreProblem("warn", "Database", f"Its state cannot be read: {store.problem}")
    server = store.server
    if server is None:
        return
    if server.oldest_transaction_s > TRANSACTION_S:
        age = formats.format_duration(round(server.oldest_transaction_s * 1_000))
        yield StoreProblem(
            "warn",
            "Transaction",
            f"Open for {age} ({server.oldest_transaction}); until it ends, VACUUM cannot remove "
            "old rows, and the database grows",
        )
    if server.connections > server.max_connections * _CONNECTIONS:
        yield StoreProblem(
            "warn",
            "Database",
            f"{server.connections} of {server.max_connections} connections (max_connections) are in"
            " use; a broker may be unable to connect",
        )
    if server.disk_free < server.disk_bytes * _DISK_FREE:
        free, total = formats.format_size(server.disk_free), formats.format_size(server.disk_bytes)
        text = f"{free} of {total} free on the server's disk; nothing can be stored when it is full"
        yield StoreProblem("bad", "Disk", text)


def server_facts(store: StoreStatus) -> list[SystemFact]:
    """Return the facts about a PostgreSQL database for the System page."""
    found = [SystemFact("Database", store.place), *_role(store), *_quorum(store)]
    server = store.server
    if store.problem is not None:
        found.append(SystemFact("Server", "cannot be read", store.problem, "bad"))
    if server is None:
        return found
    found += [_replica(one) for one in server.replicas]
    if not server.replicas:
        level = "bad" if store.replicas_required else ""
        found.append(SystemFact("Replicas", "none connected", level=level))
    if not server.can_monitor:
        found.append(SystemFact("Lag", "unknown", "grant pg_monitor to the broker's role", "warn"))
    size, age_s = formats.format_size, server.oldest_transaction_s
    found += [
        SystemFact("Size", size(server.database_bytes), "with indexes"),
        SystemFact("Page checksums", "on" if server.has_checksums else "off"),
        SystemFact("Connections", formats.format_number(server.connections),
             f"at most {formats.format_number(server.max_connections)} (max_connections)"),
        SystemFact("Schema", f"version {server.schema}"),
    ]  # fmt: skip
    if server.disk_bytes:
        level = "bad" if server.disk_free < server.disk_bytes * _DISK_FREE else ""
        note = f"of {size(server.disk_bytes)}"
        found.append(SystemFact("Free disk space", size(server.disk_free), note, level))
    if server.oldest_transaction is not None and age_s >= 1:
        found.append(
            SystemFact(
                "Oldest transaction",
                formats.format_duration(round(age_s * 1_000)),
                server.oldest_transaction,
                "warn" if age_s > TRANSACTION_S else "",
            )
        )
    return found


def _role(store: StoreStatus) -> Iterator[SystemFact]:
    if store.is_active:
        yield SystemFact("Role", "active", f"epoch {formats.format_number(store.epoch)}")
    else:
        yield SystemFact("Role", "standby", f"of {store.active_broker or 'no broker'}")
    if store.reconnects:
        yield SystemFact(
            "Reconnects",
            formats.format_number(store.reconnects),
            f"{count_of(store.unknown_batches, 'batch', 'batches')} of unknown outcome resolved",
        )


def _quorum(store: StoreStatus) -> Iterator[SystemFact]:
    if not store.is_active:
        return
    if store.replicas_required:
        must = count_of(store.replicas_required, "replica", "replicas")
        yield SystemFact("Confirmed by", f"the primary and {must}", store.quorum)
    else:
        note = "synchronous_standby_names names no quorum"
        yield SystemFact("Confirmed by", "the primary alone", note, "bad")
    if store.allows_asynchronous:
        note = "store.allow_asynchronous is set"
        yield SystemFact("Without a quorum", "messages are confirmed", note, "warn")


def _replica(one: Replica) -> SystemFact:
    if one.state is None:
        return SystemFact(f"Replica {one.name}", "connected")
    note = f"{formats.format_size(one.lag_bytes or 0)}, {_lag(one)} behind"
    if not one.is_counted:
        note += "; it does not count for the quorum"
    level = "" if one.is_ready and (one.lag_s or 0) <= LAG_S else "warn"
    return SystemFact(f"Replica {one.name}", one.state, note, level)


def _lag(one: Replica) -> str:
    return f"{one.lag_s:.1f} s" if one.lag_s is not None else "unknown time"


def _number(count: int) -> str:
    return formats.format_number(count) if count else "none"
