"""Users, tokens and sessions, cached in memory and stored through the broker."""

import asyncio
import hashlib
from collections.abc import Callable, Iterable, Sized
from dataclasses import replace
from secrets import token_hex, token_urlsafe
from typing import Final, NamedTuple

from phpmq_lite.admin.http.problems import Problem, not_found
from phpmq_lite.broker.broker import Broker
from phpmq_lite.broker.operator import queue_operations
from phpmq_lite.errors import RefusedError
from phpmq_lite.logs import get_logger
from phpmq_lite.model import AuditEntry
from phpmq_lite.roles import Role
from phpmq_lite.server.status import BrokerHandle
from phpmq_lite.storage.read.accounts import ApiToken, LoginSession, User, globs_text, read_all
from phpmq_lite.storage.read.read_pool import Readers
from phpmq_lite.writes import (
    AddSession,
    AddToken,
    AddUser,
    DeleteSession,
    DeleteToken,
    DeleteUser,
    DeleteUserSessions,
    SetLastLogin,
    SetPassword,
    SetSessionSeen,
    SetTokenUsed,
    SetUserRights,
    Write,
)

TOKEN_PREFIX: Final = "phpmq_"  # noqa: S105 - prefix of tokens
IDLE_MS: Final = 12 * 3_600_000
LONGEST_MS: Final = 7 * 86_400_000
KEPT_MS: Final = 30 * 86_400_000  # lifetime of a session with "keep me signed in", even if idle
SEEN_EVERY_MS: Final = 300_000
SESSIONS_PER_USER: Final = 50
ACCOUNTS_MAX: Final = 1_000  # maximum number of users, and of tokens
_AGENT_LENGTH: Final = 200

_log = get_logger(__name__)


class LoginOrigin(NamedTuple):
    """The address and browser from which a user logged in."""

    address: str
    agent: str  # value of the browser's User-Agent header


class Accounts:
    """All users, tokens and sessions, cached from the database, which is the source of truth.

    The cache changes only after a write is committed.  Times are in Unix milliseconds.
    """

    def __init__(self, readers: Readers, broker: BrokerHandle) -> None:
        self._readers = readers
        self._broker = broker
        self._changing = asyncio.Lock()  # prevents a name from being taken between check and write
        self._writes: set[asyncio.Task[None]] = set()  # tasks that are storing last-seen times
        self.is_loaded = False
        self.users: dict[str, User] = {}  # keyed by name
        self.tokens: dict[bytes, ApiToken] = {}  # keyed by the token's SHA-256
        self.sessions: dict[bytes, LoginSession] = {}  # keyed by the cookie's SHA-256
        self._by_id: dict[int, User] = {}

    async def load(self, now_ms: int) -> list[str]:
        """Load all accounts, or raise StorageError; return the addresses of logins in 30 days."""
        stored = await read_all(self._readers, now_ms - KEPT_MS)
        self.users = {user.name: user for user in stored.users}
        self._by_id = {user.user_id: user for user in stored.users}
        self.tokens = {token.sha256: token for token in stored.tokens}
        self.sessions = {
            session.sha256: session for session in stored.sessions if session.user_id in self._by_id
        }
        self.is_loaded = True
        return stored.addresses

    async def close(self) -> None:
        """Wait until all pending writes are finished."""
        await asyncio.gather(*self._writes, return_exceptions=True)

    # -- lookup

    def user_of(self, session: LoginSession) -> User:
        return self._by_id[session.user_id]

    def session_of(self, cookie: str, now_ms: int) -> LoginSession | None:
        """Return the session with this cookie, or None if it is unknown or has ended."""
        session = self.sessions.get(hash_secret(cookie))
        return None if session is None or has_session_ended(session, now_ms) else session

    def token_of(self, secret: str, now_ms: int) -> ApiToken | None:
        """Return the token with this secret, or None if it is unknown or expired."""
        token = self.tokens.get(hash_secret(secret))
        if token is None or (token.expires_at is not None and token.expires_at <= now_ms):
            return None
        return token

    def token_named(self, name: str) -> ApiToken:
        """Return a token by name; raise a 404 ``Problem`` if it does not exist."""
        token = next((token for token in self.tokens.values() if token.name == name), None)
        if token is None:
            raise not_found("token", name)
        return token

    def user_named(self, name: str) -> User:
        """Return a user by name; raise a 404 ``Problem`` if the user does not exist."""
        if name not in self.users:
            raise not_found("user", name)
        return self.users[name]

    # -- users

    async def add_user(self, entry: AuditEntry, user: User, *, is_first: bool = False) -> User:
        """Assign an id to a new user and store the user.

        Raises:
            Problem: 409 if the name is taken or, with ``is_first``, if any user exists, and if
                there are too many users.
        """
        async with self._changing:
            if user.name in self.users or (is_first and self.users):
                raise Problem(409, "taken", f"The user {user.name!r} already exists.", field="name")
            _check_room("users", self.users)
            created = replace(user, user_id=max(self._by_id, default=0) + 1)

            def apply() -> None:
                self.users[created.name] = self._by_id[created.user_id] = created

            row = AddUser(
                user_id=created.user_id,
                name=created.name,
                password=created.password,
                role=created.role,
                queues=globs_text(created.queues),
                created_at=created.created_at,
            )
            await self._store(entry, [row], apply)
            return created

    async def change_user(
        self,
        entry: AuditEntry,
        user: User,
        *,
        role: str | None = None,
        queues: tuple[str, ...] | None = None,
        password: str | None = None,
    ) -> None:
        """Change a user and end their sessions; raise ``Problem``: 404, or 409 without admins."""
        async with self._changing:
            self._check_there(user)
            new_role, new_queues = role or user.role, user.queues if queues is None else queues
            if new_role != Role.ADMIN:
                self._check_admin_left(user)

            def apply() -> None:
                user.role, user.queues = new_role, new_queues
                user.password = password or user.password
                self._forget_sessions(user.user_id)

            rows: list[Write] = [SetUserRights(new_role, globs_text(new_queues), user.user_id)]
            if password is not None:
                rows.append(SetPassword(password, user.user_id))
            rows.append(DeleteUserSessions(user.user_id))
            await self._store(entry, rows, apply)

    async def rehash(self, user: User, old: str, password: str) -> None:
        """Store a password's new hash, computed with newer parameters, without ending sessions.

        Nothing is stored if the password has changed in the meantime.
        """

        def apply() -> None:
            user.password = password

        async with self._changing:
            if self._by_id.get(user.user_id) is user and user.password == old:
                await self._store(None, [SetPassword(password, user.user_id)], apply)

    async def remove_user(self, entry: AuditEntry, user: User, *, is_opening: bool = False) -> None:
        """Remove a user, with ``is_opening`` even the only one; raise ``Problem``: 404 or 409."""
        async with self._changing:
            self._check_there(user)
            if not is_opening or len(self.users) > 1:
                self._check_admin_left(user)

            def apply() -> None:
                del self.users[user.name], self._by_id[user.user_id]
                self._forget_sessions(user.user_id)

            rows: list[Write] = [DeleteUser(user.user_id), DeleteUserSessions(user.user_id)]
            await self._store(entry, rows, apply)

    def _check_there(self, user: User) -> None:
        """Raise a 404 ``Problem`` if the user was removed while this write was waiting."""
        if self._by_id.get(user.user_id) is not user:
            raise not_found("user", user.name)

    def _check_admin_left(self, user: User) -> None:
        others = (other for other in self.users.values() if other is not user)
        if user.role == Role.ADMIN and not any(other.role == Role.ADMIN for other in others):
            detail = f"{user.name!r} is the only admin, and one must remain. Make another user "
            detail += "admin first: `phpmq-lite user set-role NAME admin`."
            raise Problem(409, "last_admin", detail)

    # -- tokens

    async def add_token(self, entry: AuditEntry, token: ApiToken) -> str:
        """Create and store a token; return its secret, which is not stored.

        This method assigns ``token_id`` and ``sha256``.

        Raises:
            Problem: 409 if the name is taken, or if there are too many tokens.
        """
        secret = TOKEN_PREFIX + token_urlsafe(32)
        async with self._changing:
            tokens = self.tokens.values()
            if any(other.name == token.name for other in tokens):
                detail = f"The token {token.name!r} already exists."
                raise Problem(409, "taken", detail, field="name")
            _check_room("tokens", self.tokens)
            number = max((other.token_id for other in tokens), default=0) + 1
            created = replace(token, token_id=number, sha256=hash_secret(secret))

            def apply() -> None:
                self.tokens[created.sha256] = created

            row = AddToken(
                token_id=created.token_id,
                name=created.name,
                sha256=created.sha256,
                role=created.role,
                queues=globs_text(created.queues),
                created_at=created.created_at,
                created_by=created.created_by,
                expires_at=created.expires_at,
            )
            await self._store(entry, [row], apply)
        return secret

    async def remove_token(self, entry: AuditEntry, token: ApiToken) -> None:
        async with self._changing:
            row = DeleteToken(token.token_id)
            await self._store(entry, [row], lambda: self.tokens.pop(token.sha256, None))

    # -- sessions

    async def add_session(
        self,
        entry: AuditEntry | None,
        user: User,
        now_ms: int,
        origin: LoginOrigin,
        *,
        is_kept: bool,
        password: str | None = None,
    ) -> str:
        """Create a session and return its cookie; end expired sessions and any above the limit.

        ``password`` is the hash that was checked, or None if no password was required.

        Raises:
            Problem: 401 if the user was removed or the password changed in the meantime.
        """
        cookie = token_hex(32)
        async with self._changing:
            if self._by_id.get(user.user_id) is not user:
                raise Problem(401, "login", "This user has been removed.")
            if password is not None and user.password != password:
                raise Problem(401, "wrong_password", "The password has been changed.")
            number = max((other.session_id for other in self.sessions.values()), default=0) + 1
            row = AddSession(
                session_id=number,
                sha256=hash_secret(cookie),
                user_id=user.user_id,
                csrf=token_hex(32),
                created_at=now_ms,
                seen_at=now_ms,
                expires_at=now_ms + (KEPT_MS if is_kept else LONGEST_MS),
                address=origin.address,
                agent=origin.agent[:_AGENT_LENGTH],
            )
            session = LoginSession(**row._asdict())
            ended = [old for old in self.sessions.values() if has_session_ended(old, now_ms)]
            ended += self.sessions_of(user, now_ms)[SESSIONS_PER_USER - 1 :]

            def apply() -> None:
                for old in ended:
                    self.sessions.pop(old.sha256, None)
                self.sessions[session.sha256] = session
                user.last_login_at = now_ms

            rows: list[Write] = [DeleteSession(old.session_id) for old in ended]
            rows += [row, SetLastLogin(now_ms, user.user_id)]
            await self._store(entry, rows, apply)
        return cookie

    def session_numbered(self, number: int) -> LoginSession:
        """Return a session by number; raise a 404 ``Problem`` if it does not exist."""
        for session in self.sessions.values():
            if session.session_id == number:
                return session
        raise not_found("session", str(number))

    def open_sessions(self, now_ms: int) -> list[LoginSession]:
        """Return the open sessions, most recently used first."""
        opened = (login for login in self.sessions.values() if not has_session_ended(login, now_ms))
        return sorted(opened, key=lambda login: (login.seen_at, login.session_id), reverse=True)

    def sessions_of(self, user: User, now_ms: int) -> list[LoginSession]:
        """Return a user's open sessions, most recently used first."""
        sessions = self.open_sessions(now_ms)
        return [session for session in sessions if session.user_id == user.user_id]

    async def remove_session(self, entry: AuditEntry, session: LoginSession) -> None:
        async with self._changing:
            row = DeleteSession(session.session_id)
            await self._store(entry, [row], lambda: self.sessions.pop(session.sha256, None))

    def _forget_sessions(self, user_id: int) -> None:
        self.sessions = {
            sha256: session
            for sha256, session in self.sessions.items()
            if session.user_id != user_id
        }

    # -- last seen

    def record_use(self, item: LoginSession | ApiToken, now_ms: int) -> None:
        """Record the use of a session or token; store the time at most once every five minutes."""
        if isinstance(item, LoginSession):
            if now_ms - item.seen_at >= SEEN_EVERY_MS:
                item.seen_at = now_ms
                self._store_later(SetSessionSeen(now_ms, item.session_id))
        elif item.last_used_at is None or now_ms - item.last_used_at >= SEEN_EVERY_MS:
            item.last_used_at = now_ms
            self._store_later(SetTokenUsed(now_ms, item.token_id))

    # -- writes

    async def _store(
        self, entry: AuditEntry | None, rows: Iterable[Write], apply: Callable[[], object]
    ) -> None:
        def store(core: Broker, reply: Callable[[int], None]) -> None:
            def stored(count: int) -> None:
                apply()
                reply(count)

            queue_operations.write(core, stored, entry, tuple(rows))

        await self._broker.run(store)

    def _store_later(self, row: Write) -> None:
        async def store() -> None:
            try:
                await self._store(None, [row], lambda: None)
            except (RefusedError, TimeoutError) as error:  # the stored time stays unchanged
                _log.debug("time_not_stored", reason=str(error))

        task = asyncio.create_task(store())
        self._writes.add(task)
        task.add_done_callback(self._writes.discard)


def hash_secret(secret: str) -> bytes:
    """Hash a token or cookie for storage; a fast hash is safe for secrets of 256 random bits."""
    return hashlib.sha256(secret.encode(errors="surrogatepass")).digest()


def has_session_ended(session: LoginSession, now_ms: int) -> bool:
    """Return whether a session is too old, or idle for too long without "keep me signed in"."""
    is_kept = session.expires_at - session.created_at > LONGEST_MS
    return session.expires_at <= now_ms or (not is_kept and now_ms - session.seen_at >= IDLE_MS)


def _check_room(kind: str, accounts: Sized) -> None:
    if len(accounts) >= ACCOUNTS_MAX:
        detail = f"There are {len(accounts)} {kind}; the limit is {ACCOUNTS_MAX}."
        raise Problem(409, "too_many", f"{detail} Remove those that are no longer used.")
