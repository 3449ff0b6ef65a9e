"""Passwords: length limits, concurrent hashes and login throttling."""

import asyncio
from contextlib import nullcontext

import pytest
from argon2 import PasswordHasher

from phpmq_lite.admin.accounts.passwords import (
    HASHES_AT_ONCE,
    KNOWN_S,
    MAX_ATTEMPTS,
    MAX_ATTEMPTS_UNKNOWN,
    MAX_WAITING,
    LoginThrottle,
    Passwords,
    check_length,
)
from phpmq_lite.admin.http.problems import Problem

CHEAP = PasswordHasher(time_cost=1, memory_cost=8, parallelism=1)


@pytest.mark.parametrize(
    ("length", "is_valid"), [(11, False), (12, True), (1_024, True), (1_025, False)]
)
def test_password_has_bounds(length: int, is_valid: bool) -> None:
    with nullcontext() if is_valid else pytest.raises(Problem, match=f"{length} characters"):
        check_length("x" * length)


async def test_eleventh_at_once_is_refused() -> None:
    hasher = Passwords(CHEAP)
    asked = [asyncio.create_task(hasher.is_right(None, "x" * 12)) for _ in range(20)]
    answers = await asyncio.gather(*asked, return_exceptions=True)
    refused = [answer for answer in answers if isinstance(answer, Problem)]
    assert len(refused) == 20 - HASHES_AT_ONCE - MAX_WAITING
    assert (refused[0].status, refused[0].code) == (429, "busy")
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


NOW_S = 1_000_000.0
STRANGERS = [f"10.0.{at}.1" for at in range(100)]


def count_allowed(throttle: LoginThrottle, addresses: list[str], at_s: float) -> int:
    return sum(throttle.wait_s(address, at_s) == 0.0 for address in addresses)


def test_address_has_five_tries_a_minute() -> None:
    throttle = LoginThrottle()
    assert count_allowed(throttle, ["10.0.0.1"] * 100, NOW_S) == MAX_ATTEMPTS
    assert throttle.wait_s("10.0.0.1", NOW_S + 20) == 40.0
    assert count_allowed(throttle, ["10.0.0.1"] * 100, NOW_S + 60) == MAX_ATTEMPTS


def test_refused_try_does_not_prolong_the_wait() -> None:
    throttle = LoginThrottle()
    count_allowed(throttle, ["10.0.0.1"] * 5, NOW_S)
    count_allowed(throttle, ["10.0.0.1"] * 50, NOW_S + 59)
    assert throttle.wait_s("10.0.0.1", NOW_S + 60) == 0.0


def test_unknown_addresses_share_twenty_tries() -> None:
    throttle = LoginThrottle()
    assert count_allowed(throttle, STRANGERS, NOW_S) == MAX_ATTEMPTS_UNKNOWN
    assert throttle.wait_s("10.1.0.1", NOW_S) == 60.0


def test_known_address_keeps_its_tries_when_strangers_have_used_theirs() -> None:
    throttle = LoginThrottle()
    throttle.add_login("10.1.0.1", NOW_S - KNOWN_S + 100)
    count_allowed(throttle, STRANGERS, NOW_S)
    assert count_allowed(throttle, ["10.1.0.1"] * 100, NOW_S) == MAX_ATTEMPTS
    assert throttle.wait_s("10.1.0.1", NOW_S + 101) == 0.0  # forgotten, but the minute is over


def test_address_is_forgotten_after_thirty_days() -> None:
    throttle = LoginThrottle()
    throttle.add_login("10.1.0.1", NOW_S - KNOWN_S)
    count_allowed(throttle, STRANGERS, NOW_S)
    assert throttle.wait_s("10.1.0.1", NOW_S) == 60.0


def test_attempts_from_an_ipv6_network_count_together() -> None:
    throttle = LoginThrottle()
    network = [f"2001:db8:1:2::{number:x}" for number in range(100)]
    assert count_allowed(throttle, network, NOW_S) == MAX_ATTEMPTS
