"""Checks of the PostgreSQL server in which a broker stores (``store.url``)."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from phpmq_lite.admin.base import formats
from phpmq_lite.admin.base.formats import count_of
from phpmq_lite.cli.doctor.findings import Finding, bad, ok, warn
from phpmq_lite.errors import SettingsError, StorageError
from phpmq_lite.settings import Settings

if TYPE_CHECKING:
    from phpmq_lite.storage.postgres.probe import ServerProbe

NAME: Final = "database server"
_OLDEST: Final = 130_000  # the oldest version that works
_CONNECTIONS: Final = 10  # which a broker needs, with the pages
_CLOCK_MS: Final = 2_000


def check_server(settings: Settings) -> Iterator[Finding]:
    """Check the server, the role's rights, replication, the schema, and which broker is active."""
    yield ok("database file", "not used: store.url is set, so the broker stores in PostgreSQL",
             "backups are made by PostgreSQL's own tools, such as pg_dump")  # fmt: skip
    from phpmq_lite.storage.postgres.probe import probe

    try:
        found = probe(settings.store.url)
    except SettingsError as error:
        yield bad(NAME, str(error), "until then, the broker refuses to start (exit code 78)")
    except StorageError as error:
        yield bad(NAME, str(error), "check the hosts of store.url, its role and PGPASSFILE")
    else:
        yield from server_findings(found)
        allowed = settings.store.allow_asynchronous
        yield from replication_findings(found, allows_asynchronous=allowed)
        yield schema_finding(found)
        yield active_finding(found)


def server_findings(found: "ServerProbe") -> Iterator[Finding]:
    """Yield findings about the server and how the broker reaches it."""
    version = f"{found.version // 10_000}.{found.version % 10_000}"
    text = f"PostgreSQL {version} at {found.place}"
    if found.version < _OLDEST:
        yield bad(NAME, f"{text} is older than 13", "upgrade the server")
    elif not found.can_create or found.can_write is False:
        what = "create tables" if found.can_write is not False else "write the tables"
        hint = "ALTER DATABASE … OWNER TO the role of store.url, which must own the tables"
        yield bad(NAME, f"{text}: the role may not {what}", hint)
    else:
        yield ok(NAME, f"{text}, writable")
    if found.pooler == "transaction":
        yield bad(
            "pooler",
            "a connection pooler shares server processes between transactions, so settings and "
            "prepared statements of the broker's sessions get lost",
            "connect to the servers directly, or let the pooler pool sessions",
        )
    elif found.pooler:
        yield warn(
            "pooler",
            "a connection pooler is in between",
            "connect to the servers directly: after a failover, the pooler may hold broken "
            "connections for longer",
        )
    if found.server is not None:
        yield connections_finding(found.server.connections, found.server.max_connections)
    if abs(found.clock_ms) > _CLOCK_MS:
        way = "ahead of" if found.clock_ms > 0 else "behind"
        text = f"{formats.format_duration(abs(found.clock_ms))} {way} this machine's"
        hint = "synchronize both by a time service: messages have the server's time, logs this one"
        yield warn("server clock", text, hint)
    else:
        yield ok("server clock", f"{found.clock_ms:+d} ms from this machine's")


def connections_finding(used: int, most: int) -> Finding:
    """Return a finding about the connections of the server."""
    text = f"{used} of {most} in use"
    if most - used < _CONNECTIONS:
        hint = f"raise max_connections: each broker needs up to {_CONNECTIONS}"
        return warn("connections", text, hint)
    return ok("connections", text)


def replication_findings(found: "ServerProbe", *, allows_asynchronous: bool) -> Iterator[Finding]:
    """Yield findings about what a confirmed message survives."""
    name, settings = "replication", found.defaults
    names = settings["synchronous_standby_names"]
    required, ready = found.replicas_required, sum(one.is_ready for one in found.replicas)
    if not required:
        text = "synchronous_standby_names names no quorum of replicas"
        if allows_asynchronous:
            yield warn(name, f"{text}; store.allow_asynchronous is set, so a failover can lose "
                       "confirmed messages", "set it to, for example, ANY 1 (n2, n3)")  # fmt: skip
        else:
            hint = "set it to, for example, ANY 1 (n2, n3); until then, nothing is confirmed"
            yield bad(name, text, hint)
    elif ready < required:
        text = f"{required} must confirm ({names}), {ready} can"
        yield bad(name, text, "start the replicas; until then, nothing is confirmed")
    elif ready == required:
        text = f"{required} must confirm ({names}), and only {ready} can"
        yield warn(name, text, "add a replica: if one fails now, nothing is confirmed")
    else:
        yield ok(name, f"{required} must confirm ({names}), {ready} can")
    if required and allows_asynchronous:
        yield warn(name, "store.allow_asynchronous is set", "remove it, as there is a quorum")
    off = [one for one in ("fsync", "full_page_writes") if settings[one] != "on"]
    if off:
        text = f"{' and '.join(off)} {'is' if len(off) == 1 else 'are'} off"
        yield bad("durability", f"{text}: a crash of the server can lose or damage everything",
                  "switch it on and restart the server")  # fmt: skip
    elif not found.is_synchronous:
        text = "synchronous_commit cannot be switched on for the broker's sessions"
        yield bad("durability", text, "connect to the server without a pooler")
    elif settings["synchronous_commit"] != "on":
        text = f"synchronous_commit is {settings['synchronous_commit']} by default"
        yield ok("durability", f"{text}; the broker's sessions use on")
    else:
        yield ok("durability", "fsync, full_page_writes and synchronous_commit are on")


def schema_finding(found: "ServerProbe") -> Finding:
    """Return a finding about the schema."""
    if found.refusal:
        return bad("schema", found.refusal, "a broker of this version stays standby")
    if not found.schema:
        return ok("schema", "the database is empty", "the first broker creates the tables")
    size = formats.format_size(found.server.database_bytes) if found.server else "0 B"
    text = f"version {found.schema}, {size}"
    if found.pending:
        waiting = count_of(found.pending, "migration is pending", "migrations are pending")
        return ok("schema", f"{text}; {waiting}", "a broker applies them when it becomes active")
    return ok("schema", text, "`phpmq-lite database verify` checks everything")


def active_finding(found: "ServerProbe") -> Finding:
    """Return a finding about which broker is active."""
    name, row = "active broker", found.epoch
    if row is None or row.epoch == 0:
        return ok(name, "none yet")
    if row.is_released:
        text = f"none; the last one, on {found.active_broker}, has stopped (epoch {row.epoch})"
        return ok(name, text, "the next broker that starts becomes active")
    text = f"on {found.active_broker}, epoch {row.epoch}, wrote {max(0.0, row.age_s):.1f} s ago"
    if row.age_s > 10:
        return warn(name, text, "it has failed; the next broker that starts takes over")
    return ok(name, text)
