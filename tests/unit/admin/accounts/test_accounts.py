"""When sessions end, and what is stored of a secret."""

import pytest

from phpmq_lite.admin.accounts.accounts import (
    IDLE_MS,
    KEPT_MS,
    LONGEST_MS,
    has_session_ended,
    hash_secret,
)
from phpmq_lite.storage.read.accounts import LoginSession

HOUR_MS = 3_600_000


def session(lasts_ms: int, seen_at: int = 0) -> LoginSession:
    return LoginSession(1, hash_secret("cookie"), 1, "csrf", 0, seen_at, lasts_ms, "127.0.0.1", "")


@pytest.mark.parametrize(
    ("one", "now_ms", "over"),
    [
        (session(LONGEST_MS), IDLE_MS - 1, False),
        (session(LONGEST_MS), IDLE_MS, True),
        (session(LONGEST_MS, seen_at=IDLE_MS), IDLE_MS + HOUR_MS, False),
        (session(LONGEST_MS, seen_at=LONGEST_MS - 1), LONGEST_MS, True),
        (session(KEPT_MS), LONGEST_MS + HOUR_MS, False),  # "keep me signed in"
        (session(KEPT_MS, seen_at=KEPT_MS - 1), KEPT_MS, True),
    ],
)
def test_session_ends_idle_or_old(one: LoginSession, now_ms: int, over: bool) -> None:
    assert has_session_ended(one, now_ms) is over


def test_secret_is_stored_as_its_hash() -> None:
    assert len(hash_secret("\ud800")) == 32
