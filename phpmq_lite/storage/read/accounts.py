"""Stored users, API tokens, login sessions and saved items."""

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from phpmq_lite.storage.read.read_pool import Readers, Row, RowReader
from phpmq_lite.writes import SaveItem

T = TypeVar("T")


@dataclass(slots=True)
class User:
    """A user; times are in Unix milliseconds."""

    user_id: int
    name: str
    password: str  # argon2id hash in its standard encoding; never shown
    role: str
    queues: tuple[str, ...]  # queue globs; an empty tuple allows all queues
    created_at: int
    last_login_at: int | None = None


@dataclass(slots=True)
class ApiToken:
    """An API token, of which only the hash is stored."""

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
    """A user's login; ``seen_at`` is stored at most once every five minutes."""

    session_id: int
    sha256: bytes  # SHA-256 hash of the cookie
    user_id: int
    csrf: str
    created_at: int
    seen_at: int
    expires_at: int
    address: str
    agent: str


@dataclass(slots=True)
class StoredAccounts:
    """All stored accounts, which are read once at startup and kept in memory by ``admin``."""

    users: list[User]
    tokens: list[ApiToken]
    sessions: list[LoginSession]
    addresses: list[str] = field(default_factory=list)  # addresses used in recent logins


async def read_all(readers: Readers, since_ms: int) -> StoredAccounts:
    """Return all accounts, and the addresses used in logins after ``since_ms``."""
    return accounts_of(
        await readers.read("accounts", "users"),
        await readers.read("accounts", "tokens"),
        await readers.read("accounts", "sessions"),
        await readers.read("accounts", "known_addresses", since=since_ms),
    )


def accounts_of(
    users: Iterable[Row],
    tokens: Iterable[Row],
    sessions: Iterable[Row],
    addresses: Iterable[Row] = (),
) -> StoredAccounts:
    return StoredAccounts(
        users=[_with_globs(User, row) for row in users],
        tokens=[_with_globs(ApiToken, row) for row in tokens],
        sessions=[LoginSession(*row) for row in sessions],
        addresses=[row[0] for row in addresses],
    )


def globs_text(globs: Iterable[str]) -> str:
    """Return globs in the format stored in the ``queues`` column."""
    return json.dumps(list(globs), ensure_ascii=False)


def _with_globs(kind: Callable[..., T], row: Row) -> T:
    """Convert a row, whose fifth column contains the globs, to a user or token."""
    return kind(*row[:4], tuple(json.loads(row[4])), *row[5:])


KINDS: Final = ("view", "template", "label")
SAVED_MAX: Final = 500  # maximum number of items per kind; one page lists them all
NAME_MAX: Final = 80  # maximum number of characters in a name


@dataclass(slots=True, frozen=True)
class SavedItem:
    """A saved view, template or label; ``saved_at`` is in Unix ms."""

    name: str
    content: Any
    saved_at: int
    saved_by: str


class SavedItems(RowReader):
    """Reads the table ``saved``, in which the write ``SaveItem`` stores rows."""

    file = "accounts"

    async def all(self, kind: str) -> list[SavedItem]:
        return await self._all(_item, "saved_items", kind=kind, limit=SAVED_MAX)

    async def one(self, kind: str, name: str) -> SavedItem | None:
        return await self._one(_item, "saved_item", kind=kind, name=name)


def saved_item_write(kind: str, name: str, content: Any, at_ms: int, saved_by: str) -> SaveItem:
    text = json.dumps(content, ensure_ascii=False, separators=(",", ":"))
    return SaveItem(kind, name, text, at_ms, saved_by)


def _item(name: str, content: str, saved_at: int, saved_by: str) -> SavedItem:
    return SavedItem(name, json.loads(content), saved_at, saved_by)
