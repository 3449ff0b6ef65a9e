"""Users, API tokens and sessions as they are stored; ``admin/access`` keeps them in memory."""

import json
import sqlite3
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

from phpmq_lite.errors import StartRefusedError
from phpmq_lite.storage.aside import opened_aside
from phpmq_lite.storage.data_folder import held_still
from phpmq_lite.storage.readers import Readers, Row
from phpmq_lite.storage.statements import load

FILE: Final = "accounts"  # of sql/, for those who write rows
T = TypeVar("T")
Write = tuple[str, str, tuple[Any, ...]]  # file, statement, parameters


@dataclass(slots=True)
class User:
    """One user; times are Unix milliseconds."""

    user_id: int
    name: str
    password: str  # argon2id, in its own encoding; never shown
    role: str
    queues: tuple[str, ...]  # globs; empty: all
    created_at: int
    last_login_at: int | None = None


@dataclass(slots=True)
class Token:
    """One API token; the token itself is nowhere."""

    token_id: int
    name: str
    sha256: bytes
    role: str
    queues: tuple[str, ...]
    created_at: int
    created_by: str
    expires_at: int | None
    last_used_at: int | None = None


@dataclass(slots=True)
class Session:
    """One login of a user; ``seen_at`` may be five minutes behind in the database."""

    session_id: int
    sha256: bytes  # of the cookie
    user_id: int
    csrf: str
    created_at: int
    seen_at: int
    expires_at: int
    address: str
    agent: str


@dataclass(slots=True)
class Stored:
    """Everything that there is, read once."""

    users: list[User]
    tokens: list[Token]
    sessions: list[Session]
    addresses: list[str]  # from where somebody logged in lately


async def read_all(readers: Readers, since_ms: int) -> Stored:
    """Read all accounts, and the addresses of logins after ``since_ms``."""
    users = await readers.read(FILE, "users")
    tokens = await readers.read(FILE, "tokens")
    return Stored(
        users=[_with_globs(User, row) for row in users],
        tokens=[_with_globs(Token, row) for row in tokens],
        sessions=[Session(*row) for row in await readers.read(FILE, "sessions")],
        addresses=[row[0] for row in await readers.read(FILE, "known_addresses", since=since_ms)],
    )


def write(statement: str, *parameters: Any) -> Write:
    """Give one row to write, as the broker's operations take it."""
    return FILE, statement, parameters


def globs_text(globs: Iterable[str]) -> str:
    """Write globs as the column has them."""
    return json.dumps(list(globs), ensure_ascii=False)


def _with_globs(kind: Callable[..., T], row: Row) -> T:
    """Make a user or token of its row; the globs stand in the fifth column."""
    return kind(*row[:4], tuple(json.loads(row[4])), *row[5:])


def has_admin(database: Path) -> bool:
    """Tell whether a database has a user with the role admin, before the broker starts.

    False where there is no database yet, or none with users.  What cannot be read counts as True,
    as does that of a broker that runs: the start that follows says what is wrong with it.
    """
    if not database.is_file():
        return False
    try:
        with held_still(database.parent), opened_aside(database) as one:
            return all(
                one.execute(load(FILE)[name]).fetchone()[0] for name in ("has_users", "has_admin")
            )
    except (sqlite3.Error, StartRefusedError, OSError):
        return True
