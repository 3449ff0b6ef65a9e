"""Rules for users, tokens, logins and sessions, shared by the pages and the API."""

import json
import re
from collections.abc import Iterable, Sequence
from typing import Final, TypeVar

from aiohttp import web

from phpmq_lite.admin.accounts.accounts import LoginOrigin
from phpmq_lite.admin.accounts.services import HOW
from phpmq_lite.admin.context import context_of
from phpmq_lite.admin.http.browser_sessions import LOGIN
from phpmq_lite.admin.http.identity import CONTROL, identity_of, identity_of_token
from phpmq_lite.admin.http.permissions import check_all_queues, may_use
from phpmq_lite.admin.http.problems import Problem, not_found
from phpmq_lite.admin.http.request_audit import audit_entry
from phpmq_lite.admin.http.source import address_of
from phpmq_lite.queue_settings import LONGEST_NAME
from phpmq_lite.roles import ROLES, TOKEN_ROLES
from phpmq_lite.server.addresses import address_key
from phpmq_lite.storage.read.accounts import ApiToken, LoginSession, User

NAME_LENGTH: Final = 64
GLOBS: Final = 50
GLOB_LENGTH: Final = LONGEST_NAME
_RESERVED: Final = frozenset({"local", "control", "nobody", "token"})
_NAME: Final = re.compile(rf"[^\W_][\w.@+-]{{0,{NAME_LENGTH - 1}}}")


def check_may_manage(request: web.Request) -> None:
    """Raise a 403 ``Problem`` if the caller is not allowed to create or change users and tokens.

    An admin without a login could create an account that stays valid after others gain access;
    an admin limited to some queues could create an account without that limit.

    Raises:
        Problem: 403, saying what to do instead.
    """
    identity = identity_of(request)
    if identity.kind == "local":
        raise Problem(
            403, "local",
            "Users and tokens cannot be created or changed without a login, because they would "
            f"remain valid after others gain access. {HOW}",
        )  # fmt: skip
    check_all_queues(request, "change users, tokens and sessions")


Account = TypeVar("Account", User, ApiToken)


def visible_accounts(request: web.Request, accounts: Iterable[Account]) -> list[Account]:
    """Return users or tokens, sorted by name, except those with queues hidden from the caller."""
    seen = (one for one in accounts if all(may_use(request, glob) for glob in one.queues))
    return sorted(seen, key=lambda one: one.name)


def visible_user(request: web.Request, name: str) -> User:
    """Return the user with this name, if that user is visible to the caller.

    Raises:
        Problem: 404 if the user does not exist or is not visible to the caller.
    """
    user = context_of(request).auth.accounts.user_named(name)
    if not visible_accounts(request, [user]):
        raise not_found("user", name)
    return user


def check_name(name: str) -> str:
    """Return the name of a new user or token; raise a 422 ``Problem`` if it is not valid."""
    if not _NAME.fullmatch(name) or name.lower() in _RESERVED:
        raise Problem(
            422, "invalid", f"{name[:NAME_LENGTH]!r} is not a valid name.", field="name",
            bound=f"1 to {NAME_LENGTH} letters, digits and . _ @ + -, beginning with a letter or "
            f"digit; not {', '.join(sorted(_RESERVED))}",
        )  # fmt: skip
    return name


def owner_named(request: web.Request, name: str) -> str:
    """Return the app_id owner that a user name or ``token NAME`` refers to.

    Raises:
        Problem: 404 if there is no such user or token.
    """
    accounts = context_of(request).auth.accounts
    if name == CONTROL.name:
        return CONTROL.owner
    kind, _, token_name = name.partition(" ")
    if kind == "token" and token_name:
        return identity_of_token(accounts.token_named(token_name)).owner
    return accounts.user_named(name).name


def check_role_name(role: str, roles: Sequence[str] = ROLES) -> str:
    """Return the role; raise a 422 ``Problem`` if it is not one of ``roles``."""
    if role not in roles:
        raise Problem(422, "invalid", "Unknown role.", field="role", bound=" or ".join(roles))
    return role


def check_globs(globs: Sequence[str]) -> tuple[str, ...]:
    """Return the queue globs without duplicates; raise a 422 ``Problem`` if any is not valid."""
    found = tuple(dict.fromkeys(globs))
    if broken := next((glob for glob in found if split_lines(glob) != [glob]), None):
        raise Problem(
            422, "invalid",
            f"queues: {broken!r} contains a line break, or begins or ends with white space. "
            "Use the wildcard ? instead.", field="queues",
        )  # fmt: skip
    if len(found) > GLOBS or not all(1 <= len(glob) <= GLOB_LENGTH for glob in found):
        raise Problem(
            422, "invalid", "There are too many queue patterns, or one is empty or too long.",
            field="queues", bound=f"at most {GLOBS} patterns of 1 to {GLOB_LENGTH} characters",
        )  # fmt: skip
    return found


def split_lines(text: str) -> list[str]:
    """Return a text's non-blank lines, each without leading and trailing white space."""
    return [line.strip() for line in text.splitlines() if line.strip()]


def parse_id(request: web.Request) -> int:
    """Return the number in the request path, or 0 if the number is not valid."""
    text = request.match_info["n"]
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 19 else 0


def check_same(password: str, again: str) -> None:
    """Raise a 422 ``Problem`` if a new password and its confirmation differ."""
    if password != again:
        raise Problem(422, "invalid", "The two passwords do not match.", field="again")


# -- users


async def add_user(
    request: web.Request, name: str, password: str, role: str, globs: Sequence[str]
) -> User:
    """Create a user; creating the first user invalidates the setup token."""
    check_may_manage(request)
    return await _make_user(request, name, password, role, globs, is_first=False)


async def add_first_user(request: web.Request, token: str, name: str, password: str) -> User:
    """Create the first user, an admin, after checking the setup token.

    Raises:
        Problem: 403 if the token is wrong, 429 after too many attempts.
    """
    services = context_of(request).auth
    check_attempts(request)
    if not services.setup.is_right(token):
        raise Problem(
            403, "wrong_token",
            "Incorrect setup token. Use the token in the file setup-token in the data folder; a "
            "new one is generated at every startup.", field="token",
        )  # fmt: skip
    return await _make_user(request, name, password, "admin", (), is_first=True)


async def _make_user(
    request: web.Request, name: str, password: str, role: str, globs: Sequence[str], *,
    is_first: bool,
) -> User:  # fmt: skip
    context = context_of(request)
    services = context.auth
    detail = json.dumps({"role": check_role_name(role), "queues": check_globs(globs)})
    if not services.accounts.users and (role != "admin" or globs):
        raise Problem(
            422, "invalid",
            "The first user must be an admin for all queues, because login becomes mandatory.",
            field="role", bound="admin",
        )  # fmt: skip
    entry = audit_entry(request, target=check_name(name), detail=detail)
    if name in services.accounts.users:
        raise Problem(409, "taken", f"The user {name!r} already exists.", field="name")
    user = User(0, name, await services.passwords.hash(password), role, check_globs(globs),
                context.now_ms())  # fmt: skip
    made = await services.accounts.add_user(entry, user, is_first=is_first)
    services.setup.spend()
    return made


async def change_user(
    request: web.Request,
    user: User,
    *,
    role: str | None = None,
    globs: Sequence[str] | None = None,
    password: str | None = None,
) -> None:
    """Change a user's permissions or password, and end their sessions if anything changed."""
    check_may_manage(request)
    before = {"role": user.role, "queues": user.queues}
    after = {
        "role": user.role if role is None else check_role_name(role),
        "queues": user.queues if globs is None else check_globs(globs),
    }
    detail: dict[str, object] = {"before": before, "after": after} if before != after else {}
    if password is not None:
        detail["password"] = "changed"  # noqa: S105 - says that it changed, not its value
    if not detail:
        return
    entry = audit_entry(request, target=user.name, detail=json.dumps(detail))
    services = context_of(request).auth
    hashed = None if password is None else await services.passwords.hash(password)
    await services.accounts.change_user(
        entry,
        user,
        role=role,
        queues=None if globs is None else check_globs(globs),
        password=hashed,
    )


async def change_own_password(request: web.Request, old: str, new: str) -> User:
    """Check the caller's old password, set the new one, and end all their sessions.

    Raises:
        Problem: 403 if the old password is wrong, 429 after too many attempts.
    """
    services, user = context_of(request).auth, user_of(request)
    entry = audit_entry(request, target=user.name, detail=json.dumps({"password": "changed"}))
    check_attempts(request)
    if not await services.passwords.is_right(user.password, old):
        raise Problem(403, "wrong_password", "The old password is incorrect.", field="old")
    await services.accounts.change_user(entry, user, password=await services.passwords.hash(new))
    return user


async def remove_user(request: web.Request, user: User, reason: str = "") -> None:
    """Remove a user and end all their sessions.

    Who can read the data folder may remove even the only user: then nobody needs a login again.
    """
    check_may_manage(request)
    entry, auth = audit_entry(request, target=user.name, reason=reason), context_of(request).auth
    is_opening = identity_of(request) is CONTROL
    await auth.accounts.remove_user(entry, user, is_opening=is_opening)
    if not auth.accounts.users:
        auth.setup.make()


def user_of(request: web.Request) -> User:
    """Return the logged-in user; raise a 403 ``Problem`` if the caller is not a logged-in user."""
    if identity_of(request).kind != "user":
        raise Problem(403, "no_user", "Only logged-in users can do this.")
    return context_of(request).auth.accounts.user_of(request[LOGIN])


# -- tokens


async def add_token(
    request: web.Request, name: str, role: str, globs: Sequence[str], expires_at: int | None
) -> tuple[ApiToken, str]:
    """Create a token; return the token and its secret, which can be shown only once."""
    check_may_manage(request)
    context = context_of(request)
    now_ms = context.now_ms()
    if expires_at is not None and expires_at <= now_ms:
        raise Problem(
            422, "invalid", "The expiry time is in the past.", field="expires_at",
            bound="a time in the future",
        )  # fmt: skip
    made_by = identity_of(request).actor
    check_role_name(role, TOKEN_ROLES)
    token = ApiToken(
        0, check_name(name), b"", role, check_globs(globs), now_ms, made_by, expires_at
    )
    detail = {"role": role, "queues": token.queues, "expires_at": expires_at}
    entry = audit_entry(request, target=name, detail=json.dumps(detail))
    secret = await context.auth.accounts.add_token(entry, token)
    return context.auth.accounts.token_named(name), secret


async def remove_token(request: web.Request, token: ApiToken) -> None:
    """Revoke a token; later calls with it are refused."""
    check_all_queues(request, "change users, tokens and sessions")
    entry = audit_entry(request, target=token.name)
    await context_of(request).auth.accounts.remove_token(entry, token)


# -- sessions


def check_attempts(request: web.Request) -> None:
    """Count an attempt to use a password or setup token, or refuse it after too many attempts.

    Raises:
        Problem: 429, with the seconds to wait.
    """
    context = context_of(request)
    seconds = context.auth.throttle.wait_s(address_of(request), context.now_ms() / 1_000)
    if seconds:
        wait = str(int(seconds) + 1)
        raise Problem(
            429,
            "too_many_tries",
            f"Too many attempts from {address_key(address_of(request))} or from all addresses "
            f"together. Try again in {wait} seconds. No account is locked.",
            headers={"Retry-After": wait},
        )


async def log_in(request: web.Request, name: str, password: str, *, is_kept: bool) -> str:
    """Check a name and password, start a session and return its cookie.

    Raises:
        Problem: 401 if the name or password is incorrect, 429 after too many attempts.
    """
    context = context_of(request)
    services, accounts = context.auth, context.auth.accounts
    user = accounts.users.get(name)
    # An unknown name is not stored, because people may type their password as the name.
    entry = audit_entry(request, target=user.name if user else "")
    check_attempts(request)
    known = user.password if user else None
    is_right = await services.passwords.is_right(known, password)
    if not is_right or user is None or known is None or user.password != known:
        raise Problem(401, "wrong_password", "The name or password is incorrect.", field="password")
    entry.actor = user.name
    cookie = await accounts.add_session(
        entry, user, context.now_ms(), login_origin_of(request), is_kept=is_kept, password=known
    )
    services.throttle.add_login(address_of(request), context.now_ms() / 1_000)
    if services.passwords.is_old(known):
        await accounts.rehash(user, known, await services.passwords.hash(password))
    return cookie


def login_origin_of(request: web.Request) -> LoginOrigin:
    """Return the address and browser from which a request came."""
    agent = request.headers.get("User-Agent", "")
    return LoginOrigin(address_of(request), agent.encode("utf-8", "backslashreplace").decode())


async def end_session(request: web.Request, session: LoginSession) -> None:
    """End a session; callers limited to some queues can end only their own sessions."""
    accounts = context_of(request).auth.accounts
    own: LoginSession | None = request.get(LOGIN)
    if own is None or own.user_id != session.user_id:
        check_all_queues(request, "change users, tokens and sessions")
    entry = audit_entry(request, target=accounts.user_of(session).name)
    await accounts.remove_session(entry, session)
