"""Passwords: their bounds, and how many are hashed at once."""

import asyncio

import pytest
from argon2 import PasswordHasher

from phpmq_lite.admin.auth.passwords import HASHES_AT_ONCE, MAX_WAITING, Passwords, check_length
from phpmq_lite.admin.base.problems import Problem

CHEAP = PasswordHasher(time_cost=1, memory_cost=8, parallelism=1)


@pytest.mark.parametrize(
    ("length", "is_taken"), [(11, False), (12, True), (1_024, True), (1_025, False)]
)
def test_password_has_bounds(length: int, is_taken: bool) -> None:
    if is_taken:
        check_length("x" * length)
        return
    with pytest.raises(Problem, match=f"{length} characters"):
        check_length("x" * length)


async def test_eleventh_at_once_is_refused() -> None:
    hasher = Passwords(CHEAP)
    asked = [asyncio.create_task(hasher.is_right(None, "x" * 12)) for _ in range(20)]
    answers = await asyncio.gather(*asked, return_exceptions=True)
    refused = [answer for answer in answers if isinstance(answer, Problem)]
    assert (len(refused), refused[0].status, refused[0].code) == (
        20 - HASHES_AT_ONCE - MAX_WAITING,
        429,
        "busy",
    )
    assert hasher.count == HASHES_AT_ONCE + MAX_WAITING
    hasher.close()


async def test_accents_may_be_typed_in_two_ways() -> None:
    hasher = Passwords(CHEAP)
    known = await hasher.hash("caf\u00e9 au lait!")
    assert await hasher.is_right(known, "cafe\u0301 au lait!")
    assert not await hasher.is_right(known, "cafe au lait!!")
    assert not await hasher.is_right("not a hash", "cafe au lait!!")
    assert not hasher.is_old(known)
    assert hasher.is_old("$argon2id$v=19$m=9,t=1,p=1$c29tZXNhbHQ$c29tZWhhc2hzb21laGFzaA")
    hasher.close()
