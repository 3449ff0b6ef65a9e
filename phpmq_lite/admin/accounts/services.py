"""The accounts with their passwords, login limits and refused logins."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final

from aiohttp import web

from phpmq_lite.admin.accounts.accounts import Accounts
from phpmq_lite.admin.accounts.passwords import LoginThrottle, Passwords
from phpmq_lite.admin.accounts.setup_token import SetupToken
from phpmq_lite.admin.http.call import Call
from phpmq_lite.model import AuditEntry
from phpmq_lite.server.addresses import address_key
from phpmq_lite.settings.loading import FIRST_USER_SETTING
from phpmq_lite.storage.read.accounts import User

HOW: Final = (
    "Open /setup with the token from the file setup-token in the data folder, or run "
    "`phpmq-lite user create NAME` on this machine."
)

FIRST_NAME: Final = "admin"
MINUTE_MS: Final = 60_000
STANDBY_ACCOUNTS_MS: Final = 5_000  # how long a standby uses accounts that the active one changes
ADDRESSES: Final = 1_000  # maximum number of audit rows per minute; further addresses share a row

# Writes an audit row, or adds a count to the row if it has already been written.
WriteEntry = Callable[[AuditEntry, int], Awaitable[None]]


@dataclass(slots=True)
class _RefusalRow:
    entry: AuditEntry
    more: int = 0  # number of refusals not yet added to the stored row


class RefusedLogins:
    """Combines refusals into one audit row per address, action and minute. Times are in Unix ms.

    The first refusal for an address is stored immediately, later ones at the end of the minute.
    An IPv6 network of 64 bits counts as one address.
    """

    def __init__(self) -> None:
        self._rows: dict[tuple[str, str], _RefusalRow] = {}  # keyed by address key and action
        self._minute = 0
        self.total = 0  # number of refusals since the broker started

    async def add(self, entry: AuditEntry, now_ms: int, note: WriteEntry) -> None:
        """Count a refusal; ``note(entry, n)`` adds ``n`` to the stored count."""
        self.total += 1
        minute = now_ms // MINUTE_MS
        if minute != self._minute:
            await self.flush(note)
            self._minute = minute
        if len(self._rows) >= ADDRESSES:
            entry.address = "many"
        key = address_key(entry.address), entry.action
        row = self._rows.get(key)
        if row is not None:
            row.more += 1
            return
        self._rows[key] = _RefusalRow(entry)
        await note(entry, 1)

    async def flush(self, note: WriteEntry) -> None:
        """Store the counts; this must be called once a minute and before the broker stops."""
        rows, self._rows = self._rows, {}
        for row in rows.values():
            if row.more:
                await note(row.entry, row.more)


@dataclass(slots=True)
class AccountServices:
    """Accounts, passwords and login limits; the application closes them at shutdown."""

    accounts: Accounts
    setup: SetupToken
    passwords: Passwords = field(default_factory=Passwords)
    throttle: LoginThrottle = field(default_factory=LoginThrottle)
    refused_logins: RefusedLogins = field(default_factory=RefusedLogins)
    refusals: RefusedLogins = field(default_factory=RefusedLogins)  # of any other action
    loaded_at_ms: int = 0

    async def load(self, now_ms: int, max_age_ms: int | None = None) -> None:
        """Load the accounts if they are missing or too old; raise StorageError if that fails."""
        is_old = max_age_ms is not None and now_ms > self.loaded_at_ms + max_age_ms
        if is_old or not self.accounts.is_loaded:
            for address in await self.accounts.load(now_ms):
                self.throttle.add_login(address, now_ms / 1_000)
            self.loaded_at_ms = now_ms

    async def create_first_user(self, now_ms: int, password: str) -> None:
        """Create the first user, an administrator, for ``admin.initial_password_file``."""
        await self.load(now_ms)
        user = User(0, FIRST_NAME, await self.passwords.hash(password), "admin", (), now_ms)
        entry = AuditEntry("local", "cli", "", "user.add", FIRST_NAME, reason=FIRST_USER_SETTING)
        await self.accounts.add_user(entry, user, is_first=True)

    async def close(self) -> None:
        """Wait for pending writes, then stop the password threads."""
        await self.accounts.close()
        self.passwords.close()


SERVICES: Final = web.AppKey("account services", AccountServices)


def services_of(call: Call) -> AccountServices:
    return call.context.app[SERVICES]


def accounts_of(call: Call) -> Accounts:
    return services_of(call).accounts
