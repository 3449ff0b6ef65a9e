"""Checks of the PostgreSQL server in which a broker stores (``store.url``)."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from phpmq_lite.admin.base import formats
from phpmq_lite.cli.doctor.findings import Finding, bad, ok, warn
from phpmq_lite.errors import SettingsError, StorageError
from phpmq_lite.settings import Settings

if TYPE_CHECKING:
    from phpmq_lite.storage.postgres.inspection import ServerProbe

NAME: Final = "database server"
_OLDEST: Final = 130_000  # the oldest version that works
_CONNECTIONS: Final = 10  # which a broker needs, with the pages
_CLOCK_MS: Final = 2_000
_FAILED_S: Final = 10


def check_server(settings: Settings) -> Iterator[Finding]:
    """Check the server, the role's rights, replication, the schema, and which broker is active."""
    yield ok("database file", "not used: store.url is set, so the broker stores in PostgreSQL",
             "backups are made by PostgreSQL's own tools, such as pg_dump")  # fmt: skip
    from phpmq_lite.storage.postgres.inspection import probe

    try:
        found = probe(settings.store.url)
    except SettingsError as error:
        yield bad(NAME, str(error), "until then, the broker refuses to start (exit code 78)")
    except StorageError as error:
        yield bad(NAME, str(error), "check the hosts of store.url, its role and PGPASSFILE")
    else:
        yield from server_findings(found)
        yield from replication_findings(found, is_allowed=settings.store.allow_asynchronous)
        yield from database_findings(found)


def server_findings(found: "ServerProbe") -> Iterator[Finding]:
    """Yield findings about the server and how the broker reaches it."""
    facts, name = found.facts, "pooler"
    text = f"PostgreSQL {facts.version // 10_000}.{facts.version % 10_000} at {found.place}"
    if facts.version < _OLDEST:
        yield bad(NAME, f"{text} is older than 13", "upgrade the server")
    elif not facts.can_create or facts.can_write is False:
        what = "create tables" if facts.can_write is not False else "write the tables"
        yield bad(NAME, f"{text}: the role may not {what}", "let it own the database and tables")
    else:
        yield ok(NAME, f"{text}, writable")
    if found.pooler == "transaction":
        text = "a connection pooler shares server processes, so settings of sessions get lost"
        yield bad(name, text, "connect to the servers directly")
    elif found.pooler:
        text = "a connection pooler is in between, which may notice a failover late"
        yield warn(name, text, "connect to the servers directly")
    text = f"{facts.connections} of {facts.max_connections} in use"
    if facts.max_connections - facts.connections < _CONNECTIONS:
        yield warn("connections", text, f"a broker needs {_CONNECTIONS}: raise max_connections")
    else:
        yield ok("connections", text)
    text = f"{found.clock_ms:+,d} ms from this machine's"
    if abs(found.clock_ms) > _CLOCK_MS:
        yield warn("server clock", text, "synchronize both; messages have the server's time")
    else:
        yield ok("server clock", text)


def replication_findings(found: "ServerProbe", *, is_allowed: bool) -> Iterator[Finding]:
    """Yield findings about what a confirmed message survives; ``is_allowed``: asynchronously."""
    name, facts, required = "replication", found.facts, found.replicas_required
    ready = sum(one.is_ready for one in found.replicas)
    text = f"{required} must confirm ({facts.quorum}), {ready} can"
    if not required:
        text, hint = "synchronous_standby_names names no quorum", "set it to ANY 1 (n2, n3)"
        if is_allowed:
            yield warn(name, f"{text}: a failover can lose confirmed messages", hint)
        else:
            yield bad(name, f"{text}: nothing is confirmed", hint)
    elif ready < required:
        yield bad(name, text, "start the replicas; until then, nothing is confirmed")
    elif ready == required:
        yield warn(name, text, "add a replica: if one fails now, nothing is confirmed")
    else:
        yield ok(name, text)
    if required and is_allowed:
        yield warn(name, "store.allow_asynchronous is set", "remove it, as there is a quorum")
    settings = ("fsync", "full_page_writes", "synchronous_commit")
    off = [one for one in settings if getattr(facts, one) != "on"]
    if off:
        text = f"not on: {', '.join(off)}; a crash of the server can lose messages"
        yield bad("durability", text, "switch on; a pooler may ignore the sessions' own settings")
    else:
        yield ok("durability", f"on: {', '.join(settings)}")


def database_findings(found: "ServerProbe") -> Iterator[Finding]:
    """Yield findings about the schema, and about which broker is active."""
    name, row = "schema", found.epoch
    if found.refusal:
        yield bad(name, found.refusal, "a broker of this version stays standby")
    elif row is None:
        yield ok(name, "the database is empty", "the first broker creates the tables")
    elif found.pending:
        text = f"version {found.schema}, pending migrations: {found.pending}"
        yield ok(name, text, "a broker applies them when it becomes active")
    else:
        hint = "`phpmq-lite database verify` checks everything"
        yield ok(name, f"version {found.schema}", hint)
    name = "active broker"
    if row is None or row.is_released:
        yield ok(name, "none", "the next broker that starts becomes active")
        return
    age = formats.format_duration(round(max(0.0, row.age_s) * 1_000))
    text = f"on {row.host or 'unknown'}, epoch {row.epoch}, wrote {age} ago"
    if row.age_s > _FAILED_S:
        yield warn(name, text, "it has failed; the next broker that starts takes over")
    else:
        yield ok(name, text)
