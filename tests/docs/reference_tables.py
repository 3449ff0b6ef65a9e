"""Write docs/reference/tables.md: every table and column of the database with its meaning.

The meaning is a comment in the migrations, which SQLite stores.  ``WORDS`` has those of views and
of columns that a migration adds to a table.
"""

import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from typing import Final, NamedTuple

from phpmq_lite.admin.accounts.accounts import ACCOUNTS_MAX, SESSIONS_PER_USER
from phpmq_lite.broker.pipeline.readers import READERS, READERS_PER_OWNER
from phpmq_lite.broker.pipeline.staging import STAGED_PARTS, STAGED_ROWS, TOKENS
from phpmq_lite.broker.pipeline.state import APP_IDS, SINGLE_USES, SUBSCRIPTIONS_MAX
from phpmq_lite.broker.registry import REMOVED_QUEUES
from phpmq_lite.installation import migrations_folder
from phpmq_lite.schedules import SCHEDULES_MAX
from phpmq_lite.server.rollups import QUEUES_MAX
from phpmq_lite.storage.read.accounts import SAVED_MAX
from phpmq_lite.storage.retention import JUMPS_KEPT
from phpmq_lite.storage.sqlite.migrate import migrate
from phpmq_lite.storage.start_report import STARTS_KEPT
from tests.docs.reference_cli import cell

_HEAD: Final = """\
# Tables

The database is `phpmq.db` in the data folder: SQLite, of schema version {version}. You may read it
with SQL of your own, also while the broker works. This page is made from the migrations by
`python -m tests.docs.references`; a test compares.

Messages alive are in `message`, settled ones in `history`, the contents of both in `body`. Open it
for reading only, as `sqlite3 'file:phpmq-data/phpmq.db?mode=ro'` does, and end each transaction
soon: while one is open the write-ahead log grows. For long questions take a
[backup](../operate/operations.md#back-up) or the [pipeline](../guides/pipeline.md).

```sql
SELECT queue.name, count(*) AS messages, max(deliveries) AS deliveries
FROM message JOIN queue USING (queue_id)
GROUP BY queue_id;
```

```sql
SELECT printf('%016x%016x', seq, token) AS message_id, queue.name,
  datetime(settled_at / 1000, 'unixepoch') AS settled, content
FROM history JOIN queue USING (queue_id) LEFT JOIN body USING (seq)
WHERE outcome = 4
ORDER BY "offset" DESC
LIMIT 10;
```

A `…_at` is Unix milliseconds. The steady scale is the clock of the machine less the steps by which
it was set ([the clock](../guides/admin.md#the-clock)). A version that changes a table says so in
`CHANGELOG.md`.
"""

# Meanings that no migration has: of a view, of its columns, of the table ``migration``, and of
# columns that ALTER TABLE adds.
WORDS: Final[dict[str, str]] = {
    "event_entry": "a view: what is inserted here becomes one of at most 16 rows per message",
    "event_entry.at_ms": "Unix ms",
    "event_entry.detail": "as in `event`",
    "event_entry.kind": "as in `event`",
    "event_entry.seq": "of the message",
    "history.erased_at": "Unix ms when its body and what was read from it were erased; NULL: not",
    "line": "a view of one row: the number that the next message gets",
    "line.next_number": "never given before",
    "migration": "which migrations this database has had",
    "migration.applied_at": "Unix ms",
    "migration.name": "of its file",
    "migration.number": "in their order",
    "migration.sha256": "of the text of its file, in hex",
    "queue.scheduled_count": "live messages that are scheduled",
    "receipt.queue_id": "of `queue`; negative: the publish was sent to its NAME.retry",
    "stage_row.group_name": "group of the message; NULL: none",
}
EVENTS_MAX: Final = 16  # in 0001_initial.sql
_MESSAGES: Final = "`storage.max_bytes` and `storage.free_bytes`; per queue its `max_messages`"
VIEWS: Final = frozenset({"line", "event_entry"})
# The bound on the number of rows of each table.  A setting is in backticks.
BOUNDS: Final[dict[str, str]] = {
    "audit": "`audit.rows`, and `audit.refusals` of callers without an identity",
    "body": "one for each message, alive or in the history",
    "claim": "one for each message alive",
    "client": "`history.clients`, and the open connections",
    "clock_step": f"{JUMPS_KEPT:,}",
    "counter": "the names in the code",
    "event": f"{EVENTS_MAX} for each message, alive or in the history",
    "history": "`history.rows`",
    "history_run": "one for each message in the history",
    "message": _MESSAGES,
    "meta": "the names in the code",
    "migration": "the number of migrations",
    "published": f"{APP_IDS + SINGLE_USES:,} for each user",
    "queue": f"`limits.max_queues` and their dead-letter queues; {REMOVED_QUEUES} times as many"
    " removed ones, of which a start deletes those without a history",
    "reader": f"{READERS}, of them {READERS_PER_OWNER} for each user",
    "receipt": "`receipts.limit`",
    "rollup": f"those of {QUEUES_MAX} queues and of the totals, for each span that is kept",
    "saved": f"{SAVED_MAX} of each kind",
    "schedule": f"{SCHEDULES_MAX}",
    "schedule_run": "those of 7 days, and the newest 100, of each schedule",
    "session": f"{SESSIONS_PER_USER} for each user",
    "stage": f"{TOKENS:,}, and a quarter for users with few",
    "stage_part": f"{STAGED_PARTS:,}, and a quarter for users with few",
    "stage_row": f"{STAGED_ROWS:,}, and a quarter for users with few",
    "start": f"{STARTS_KEPT:,}",
    "subscription": f"{SUBSCRIPTIONS_MAX:,}",
    "token": f"{ACCOUNTS_MAX:,}",
    "trace_place": "one for each message, alive or in the history",
    "user": f"{ACCOUNTS_MAX:,}",
}


class Column(NamedTuple):
    name: str
    type: str
    meaning: str


def page() -> str:
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as database:
        names = migrate(database, migrations_folder())
        parts = [_HEAD.format(version=len(names))]
        for name, sql in database.execute(
            "SELECT name, sql FROM sqlite_schema"
            " WHERE type IN ('table', 'view') AND name NOT LIKE 'sqlite_%' ORDER BY name"
        ).fetchall():
            parts += _table(database, name, sql)
    return "\n".join(parts)


def _table(database: sqlite3.Connection, name: str, sql: str) -> Iterator[str]:
    said = _comments(sql)
    yield f"## {name}\n"
    text = meaning(name, said.get("", ""))
    yield f"{text[:1].upper()}{text[1:]}{'.' * bool(text)}\n"
    if name not in VIEWS:
        yield f"At most {bound(name)}.\n"
    rows = [
        f"| `{column.name}` | {column.type} | {cell(column.meaning).replace('<', '&lt;')} |"
        for column in _columns(database, name, said)
    ]
    yield "\n".join(["| column | type | what |", "|---|---|---|", *rows, ""])
    indexes = database.execute(
        "SELECT sql FROM sqlite_schema WHERE type = 'index' AND tbl_name = ? AND sql IS NOT NULL"
        " ORDER BY name", (name,)
    ).fetchall()  # fmt: skip
    if indexes:
        places = [
            " ".join(index.partition(" ON ")[2].removeprefix(name).split()) for (index,) in indexes
        ]
        yield f"Indexes: {', '.join(f'`{place}`' for place in places)}.\n"


def _columns(database: sqlite3.Connection, table: str, said: dict[str, str]) -> Iterator[Column]:
    if table == "history":  # most columns are those of message
        (sql,) = database.execute("SELECT sql FROM sqlite_schema WHERE name = 'message'").fetchone()
        said = _comments(sql) | said
    for _, name, kind, is_needed, _, key in database.execute(f"PRAGMA table_info({table})"):
        null = " or NULL" if kind and not is_needed and not key else ""
        yield Column(name, f"{kind}{null}", meaning(f"{table}.{name}", said.get(name, "")))


def bound(name: str) -> str:
    if name not in BOUNDS:
        raise LookupError(f"{name} has no bound on its rows: add it to BOUNDS in {__name__}")
    return BOUNDS[name]


def meaning(name: str, said: str) -> str:
    """Return the meaning of a table or a column; ``said`` is the comment of its migration."""
    text = WORDS.get(name) or said
    if not text:
        raise LookupError(
            f"{name} has no description: add a comment to its migration, or a line to WORDS in "
            f"{__name__}"
        )
    return text


def _comments(sql: str) -> dict[str, str]:
    """Return the comment on each column, by its name; that on the table has an empty name.

    A line that is only a comment continues that of the line before.
    """
    comments: dict[str, str] = {}
    names: list[str] = []
    for line in sql.splitlines():
        code, _, comment = (part.strip() for part in line.partition("--"))
        if code:
            names = re.findall(r'(?:^|,)\s*"?(\w+)"? (?:INTEGER|TEXT|BLOB)\b', code)
            names = names or [""] * code.startswith("CREATE")
        if comment:
            comments |= {name: f"{comments.get(name, '')} {comment}".strip() for name in names}
    return comments
