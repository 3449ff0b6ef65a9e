"""What stands at the door: accounts, passwords, tries, the set-up token; once per application."""

from dataclasses import dataclass, field

from phpmq_lite.admin.access.accounts import Accounts
from phpmq_lite.admin.access.backoff import Backoff
from phpmq_lite.admin.access.first_user import FIRST_NAME, SETTING, SetupToken
from phpmq_lite.admin.access.passwords import Hasher
from phpmq_lite.admin.access.refusals import Refusals
from phpmq_lite.model import AuditEntry
from phpmq_lite.storage.read.accounts import User


@dataclass(slots=True)
class Entrance:
    """The parts that decide who comes in; ``close`` at the end of the application."""

    accounts: Accounts
    setup: SetupToken
    hasher: Hasher = field(default_factory=Hasher)
    backoff: Backoff = field(default_factory=Backoff)
    refusals: Refusals = field(default_factory=Refusals)

    async def load(self, now_ms: int) -> None:
        """Load the accounts, unless they are.

        Raises:
            StorageError: the database cannot be read.
        """
        if not self.accounts.is_loaded:
            for address in await self.accounts.load(now_ms):
                self.backoff.know(address, now_ms / 1_000)

    async def prepare(self, now_ms: int, password: str | None) -> str | None:
        """Load the accounts; where there is no user, make the first one, or the set-up token.

        Returns the set-up token, if one was made.
        """
        await self.load(now_ms)
        if not self.accounts.users and password is not None:
            user = User(0, FIRST_NAME, await self.hasher.hash(password), "admin", (), now_ms)
            entry = AuditEntry("local", "cli", "", "user.add", FIRST_NAME, reason=SETTING)
            await self.accounts.add_user(entry, user, is_first=True)
        if self.accounts.users:
            self.setup.spend()
            return None
        return self.setup.make()

    async def close(self) -> None:
        """Wait for what is being written."""
        await self.accounts.close()
        self.hasher.close()
