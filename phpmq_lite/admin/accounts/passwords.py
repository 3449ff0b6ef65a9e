"""Password hashing and login throttling."""

import asyncio
import unicodedata
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from typing import TYPE_CHECKING, Final, TypeVar

from phpmq_lite.admin.http.problems import Problem, invalid
from phpmq_lite.server.addresses import address_key
from phpmq_lite.settings.loading import LONGEST_PASSWORD, SHORTEST_PASSWORD

if TYPE_CHECKING:
    from argon2 import PasswordHasher

HASHES_AT_ONCE: Final = 2  # computing a hash uses 64 MiB and takes about 0.2 s
MAX_WAITING: Final = 8

T = TypeVar("T")


class Passwords:
    """Hashes and checks passwords; each application has one instance and closes it at shutdown."""

    def __init__(self, argon2: "PasswordHasher | None" = None) -> None:
        self._hasher = argon2
        self._threads = ThreadPoolExecutor(HASHES_AT_ONCE, "password")
        self._pending = 0  # number of hash computations running or waiting
        self.count = 0  # number of hash computations since the broker started

    @cached_property
    def _argon2(self) -> "PasswordHasher":
        # Imported only when needed, because most brokers have no users.
        from argon2 import PasswordHasher

        return self._hasher or PasswordHasher()  # the defaults follow RFC 9106

    def close(self) -> None:
        """Stop each thread as soon as it finishes its current hash."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def hash(self, password: str) -> str:
        """Return a password's hash; raise a ``Problem``: 422 for its length, 429 if busy."""
        check_length(password)
        return await self._run(lambda: self._argon2.hash(_same_everywhere(password)))

    async def is_right(self, stored: str | None, password: str) -> bool:
        """Check a password; without a hash, take as long. Raise a 429 ``Problem`` if busy."""
        normalized = _same_everywhere(password[: LONGEST_PASSWORD + 1])

        def check() -> bool:
            from argon2.exceptions import Argon2Error, InvalidHashError

            if stored is None:
                self._argon2.hash(normalized)
                return False
            try:
                return self._argon2.verify(stored, normalized)
            except (Argon2Error, InvalidHashError):
                return False

        return await self._run(check)

    def is_old(self, stored: str) -> bool:
        return self._argon2.check_needs_rehash(stored)

    async def _run(self, work: Callable[[], T]) -> T:
        if self._pending >= HASHES_AT_ONCE + MAX_WAITING:
            detail = "Too many passwords are being checked. Try again in 2 seconds."
            raise Problem(429, "busy", detail, headers={"Retry-After": "2"})
        self._pending += 1
        self.count += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, work)
        finally:
            self._pending -= 1


def check_length(password: str, field: str = "password") -> None:
    """Raise a 422 ``Problem`` that names the bounds if a password is too short or too long."""
    if not SHORTEST_PASSWORD <= len(password) <= LONGEST_PASSWORD:
        detail = f"A password of {len(password)} characters is not allowed."
        raise invalid(detail, field, f"{SHORTEST_PASSWORD} to {LONGEST_PASSWORD} characters")


def _same_everywhere(password: str) -> str:
    """Normalize accents, because some systems enter é as one character and others as two."""
    return unicodedata.normalize("NFC", password).encode(errors="replace").decode()


MAX_ATTEMPTS: Final = 5  # maximum number of attempts per minute from one address
MAX_ATTEMPTS_UNKNOWN: Final = 20  # maximum per minute from all addresses without a recent login
WINDOW_S: Final = 60.0
KNOWN_S: Final = 30 * 86_400.0


class LoginThrottle:
    """Limits the rate of login attempts. Refused attempts do not count; times are in seconds.

    Memory use depends on the attempts in the last minute and on the addresses that logged in.
    """

    def __init__(self) -> None:
        self._attempts: dict[str, deque[float]] = {}  # times of last minute's attempts, by address
        self._unknown: deque[float] = deque()
        self._logins: dict[str, float] = {}  # time of the last login, keyed by address

    def add_login(self, address: str, now_s: float) -> None:
        """Record a login; from then on, other addresses cannot use up this address's attempts."""
        self._logins[address_key(address)] = now_s

    def wait_s(self, address: str, now_s: float) -> float:
        """Count an attempt and return 0.0, or return how many seconds the attempt has to wait."""
        self._forget(now_s)
        key = address_key(address)
        is_known = now_s - self._logins.get(key, now_s - KNOWN_S) < KNOWN_S
        own = self._attempts.setdefault(key, deque())
        waits = [_wait_s(own, MAX_ATTEMPTS, now_s)]
        if not is_known:
            waits.append(_wait_s(self._unknown, MAX_ATTEMPTS_UNKNOWN, now_s))
        if max(waits) == 0.0:
            own.append(now_s)
            if not is_known:
                self._unknown.append(now_s)
        elif not own:
            del self._attempts[key]
        return max(waits)

    def _forget(self, now_s: float) -> None:
        while self._unknown and now_s - self._unknown[0] >= WINDOW_S:
            self._unknown.popleft()
        for key in list(self._attempts):
            attempts = self._attempts[key]
            while attempts and now_s - attempts[0] >= WINDOW_S:
                attempts.popleft()
            if not attempts:
                del self._attempts[key]


def _wait_s(attempts: deque[float], limit: int, now_s: float) -> float:
    return 0.0 if len(attempts) < limit else max(attempts[-limit] + WINDOW_S - now_s, 0.001)
