"""Users, API tokens and sessions as they are stored; ``admin/auth`` keeps them in memory."""

import json
import sqlite3
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final, TypeVar

from phpmq_lite.errors import StartRefusedError
from phpmq_lite.storage.data_folder import held_still
from phpmq_lite.storage.integrity.stopped_database import open_stopped
from phpmq_lite.storage.read.readers import Readers, Row
from phpmq_lite.storage.statements import load
from phpmq_lite.writes import SaveItem

ACCOUNTS_SQL: Final = "accounts"  # of sql/, for those who write rows
T = TypeVar("T")


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
class ApiToken:
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
class LoginSession:
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
class StoredAccounts:
    """Everything that there is, read once."""

    users: list[User]
    tokens: list[ApiToken]
    sessions: list[LoginSession]
    addresses: list[str] = field(default_factory=list)  # from where somebody logged in lately


@dataclass(slots=True)
class Withdrawn:
    """What a restore did not take from the backup."""

    has_proof: bool = False  # the replaced database was read: it knows what was revoked
    sessions: int = 0  # ended
    tokens: list[str] = field(default_factory=list)  # names of those that were disabled
    users: list[str] = field(default_factory=list)  # names of those that were removed or changed


async def read_all(readers: Readers, since_ms: int) -> StoredAccounts:
    """Read all accounts, and the addresses of logins after ``since_ms``."""
    users = await readers.read(ACCOUNTS_SQL, "users")
    tokens = await readers.read(ACCOUNTS_SQL, "tokens")
    return StoredAccounts(
        users=[_with_globs(User, row) for row in users],
        tokens=[_with_globs(ApiToken, row) for row in tokens],
        sessions=[LoginSession(*row) for row in await readers.read(ACCOUNTS_SQL, "sessions")],
        addresses=[
            row[0] for row in await readers.read(ACCOUNTS_SQL, "known_addresses", since=since_ms)
        ],
    )


def globs_text(globs: Iterable[str]) -> str:
    """Write globs as the column has them."""
    return json.dumps(list(globs), ensure_ascii=False)


def _with_globs(kind: Callable[..., T], row: Row) -> T:
    """Make a user or token of its row; the globs stand in the fifth column."""
    return kind(*row[:4], tuple(json.loads(row[4])), *row[5:])


def read_closed(connection: sqlite3.Connection) -> StoredAccounts:
    """Read the accounts of a database that no broker has open.

    Raises:
        sqlite3.Error: a table or its index cannot be trusted.
    """
    execute, sql = connection.execute, load(ACCOUNTS_SQL)
    if not execute(sql["has_users"]).fetchone()[0]:
        return StoredAccounts([], [], [])
    for table in ("user", "token", "session"):
        if execute(f"PRAGMA integrity_check({table})").fetchone() != ("ok",):
            raise sqlite3.DatabaseError(f"the table {table} is damaged")
    return StoredAccounts(
        users=[_with_globs(User, row) for row in execute(sql["users"])],
        tokens=[_with_globs(ApiToken, row) for row in execute(sql["tokens"])],
        sessions=[LoginSession(*row) for row in execute(sql["sessions"])],
    )


def withdraw(
    connection: sqlite3.Connection, valid: StoredAccounts | None, now_ms: int
) -> Withdrawn:
    """Revoke in a restored database what its backup would revive; inside a transaction.

    ``valid`` is what the replaced database says, None where it cannot be read.  A session or token
    that it does not have is ended or disabled.  Users become those of ``valid`` if it has one of
    the backup's users; otherwise it belongs to another broker, or to none, and users stay.
    """
    done, execute, sql = Withdrawn(valid is not None), connection.execute, load(ACCOUNTS_SQL)
    restored, valid = read_closed(connection), valid or StoredAccounts([], [], [])
    ends = {token.sha256: token.expires_at for token in valid.tokens}
    for token in restored.tokens:
        expires_at = ends.get(token.sha256, now_ms)
        if token.expires_at != expires_at and not _is_over(token, now_ms):
            execute(sql["expire_token"], {"expires_at": expires_at, "token_id": token.token_id})
            done.tokens.append(token.name)
    known = {(session.sha256, session.user_id) for session in valid.sessions}
    for session in restored.sessions:
        if (session.sha256, session.user_id) not in known:
            execute(sql["delete_session"], {"session_id": session.session_id})
            done.sessions += 1
    before, after = _rights(restored), _rights(valid)
    if not {key[:3] for key in before} & {key[:3] for key in after}:
        return done
    for key in before - after:
        execute(sql["delete_user"], {"user_id": key[0]})
        done.users.append(key[1])
    for user in valid.users:
        if _right(user) not in before:
            execute(sql["add_user"], asdict(user) | {"queues": globs_text(user.queues)})
            done.users.append(user.name)
    done.users = sorted(set(done.users))
    return done


def _is_over(token: ApiToken, now_ms: int) -> bool:
    return token.expires_at is not None and token.expires_at <= now_ms


def _right(user: User) -> tuple[int, str, int, str, str, tuple[str, ...]]:
    """Return who a user is, in three columns, and what decides whether they may come in."""
    return (
        user.user_id, user.name, user.created_at, user.password, user.role, user.queues,
    )  # fmt: skip


def _rights(stored: StoredAccounts) -> set[tuple[int, str, int, str, str, tuple[str, ...]]]:
    return {_right(user) for user in stored.users}


def has_admin(database: Path) -> bool:
    """Tell whether a database has a user with the role admin, before the broker starts.

    False where there is no database yet, or none with users.  What cannot be read counts as True,
    as does that of a broker that runs: the start that follows says what is wrong with it.
    """
    if not database.is_file():
        return False
    try:
        with held_still(database.parent), open_stopped(database) as one:
            return all(
                one.execute(load(ACCOUNTS_SQL)[name]).fetchone()[0]
                for name in ("has_users", "has_admin")
            )
    except (sqlite3.Error, StartRefusedError, OSError):
        return True


KINDS: Final = ("view", "template", "label")
SAVED_MAX: Final = 500  # of a kind; what a page lists
NAME_MAX: Final = 80  # characters


@dataclass(slots=True, frozen=True)
class SavedRow:
    """One saved thing; ``saved_at`` is Unix ms."""

    name: str
    content: Any
    saved_at: int
    saved_by: str


class SavedItems:
    """Reads what was saved; it is written as rare rows of a batch."""

    def __init__(self, readers: Readers) -> None:
        self._readers = readers

    async def all(self, kind: str) -> list[SavedRow]:
        """Give all of a kind, by name."""
        rows = await self._readers.read("saved", "all", kind=kind, limit=SAVED_MAX)
        return [_row(*row) for row in rows]

    async def one(self, kind: str, name: str) -> SavedRow | None:
        """Give one by its name, None where there is none."""
        rows = await self._readers.read("saved", "one", kind=kind, name=name)
        return _row(*rows[0]) if rows else None


def put_saved(kind: str, name: str, content: Any, at_ms: int, who: str) -> SaveItem:
    """Return the write that saves something under a name, over what was there."""
    text = json.dumps(content, ensure_ascii=False, separators=(",", ":"))
    return SaveItem(kind, name, text, at_ms, who)


def _row(name: str, content: str, saved_at: int, saved_by: str) -> SavedRow:
    return SavedRow(name, json.loads(content), saved_at, saved_by)
