"""Passwords: argon2id in threads, two at once, eight waiting, the rest is turned away."""

import asyncio
import unicodedata
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

from argon2 import PasswordHasher
from argon2.exceptions import Argon2Error, InvalidHashError

from phpmq_lite.admin.problems import Problem

SHORTEST: Final = 12
LONGEST: Final = 1_024
AT_ONCE: Final = 2  # a hash takes 64 MiB and about 0.2 s
WAITING: Final = 8

T = TypeVar("T")


class Hasher:
    """Hashes and checks passwords; one per application, ``close`` at its end."""

    def __init__(self, argon2: PasswordHasher | None = None) -> None:
        self._argon2 = argon2 or PasswordHasher()  # its defaults are those of RFC 9106
        self._threads = ThreadPoolExecutor(AT_ONCE, "password")
        self._asked = 0  # running and waiting
        self.count = 0  # hashes begun since the start

    def close(self) -> None:
        """Let the threads end once they are done."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def hash(self, password: str) -> str:
        """Give the hash of a password, with its parameters.

        Raises:
            Problem: 422 where it is too short or too long, 429 where too many are asked at once.
        """
        check_length(password)
        return await self._run(lambda: self._argon2.hash(_same_everywhere(password)))

    async def is_right(self, known: str | None, password: str) -> bool:
        """Tell whether a password is that of a hash; None, an unknown user, costs the same.

        Raises:
            Problem: 429 where too many are asked at once.
        """
        given = _same_everywhere(password[: LONGEST + 1])

        def check() -> bool:
            if known is None:
                self._argon2.hash(given)
                return False
            try:
                return self._argon2.verify(known, given)
            except (Argon2Error, InvalidHashError):
                return False

        return await self._run(check)

    def is_old(self, known: str) -> bool:
        """Tell whether a hash was made by other parameters than today's."""
        return self._argon2.check_needs_rehash(known)

    async def _run(self, work: Callable[[], T]) -> T:
        if self._asked >= AT_ONCE + WAITING:
            raise Problem(
                429, "busy", "Too many passwords are checked at this moment. Try again.",
                headers={"Retry-After": "2"},
            )  # fmt: skip
        self._asked += 1
        self.count += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, work)
        finally:
            self._asked -= 1


def check_length(password: str, field: str = "password") -> None:
    """Refuse a password that is too short or too long.

    Raises:
        Problem: 422, naming the bound.
    """
    if not SHORTEST <= len(password) <= LONGEST:
        raise Problem(
            422, "invalid", f"The password has {len(password)} characters.", field=field,
            bound=f"{SHORTEST} to {LONGEST} characters",
        )  # fmt: skip


def _same_everywhere(password: str) -> str:
    """Compose accents: one system types é as one character, another as two."""
    return unicodedata.normalize("NFC", password).encode(errors="replace").decode()
