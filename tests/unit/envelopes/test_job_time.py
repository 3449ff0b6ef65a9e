"""The holds and the time limits of a worker's jobs, without a clock and without a thread."""

import signal
import threading
from typing import Any, cast

import pytest

from phpmq_lite.client.delivery import Delivery
from phpmq_lite.envelopes.job_time import HoldExtender, JobInterrupt, TimeLimit, limit_of
from tests.unit.envelopes.fake_worker_connection import FakeLink, delivery

Calls = list[tuple[Any, ...]]


@pytest.mark.parametrize(
    ("hold_s", "limit_s", "expected"),
    [
        (30, None, 3_600),
        (7_200.5, None, 7_200.5),
        (None, None, 0),  # the queue has no acknowledgement timeout, or the broker is older
        (30, 0, 0),
        (30, 60, 60),
        (None, 60, 60),
    ],
)
def test_limit_is_an_hour_or_the_hold(
    hold_s: float | None, limit_s: float | None, expected: float
) -> None:
    assert limit_of(delivery(b"", attempt=1, hold_s=hold_s), limit_s) == expected


class Seconds:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """Start no thread, because the tests call ``extend`` themselves."""
    monkeypatch.setattr(threading.Thread, "start", lambda _self: None)


def held(link: FakeLink, hold_s: float | None) -> Delivery:
    taken = delivery(b"", attempt=1, hold_s=hold_s)
    taken._client = cast("Any", link)
    return taken


@pytest.mark.usefixtures("quiet")
def test_hold_is_extended_up_to_the_limit_and_a_little_longer() -> None:
    """A handler that cannot be interrupted does not keep its message for ever."""
    link, seconds = FakeLink(attempt=1), Seconds()
    link.waiting_behind = [held(link, 30)]
    holds = HoldExtender(lambda: cast("Any", link), seconds)
    holds.extend()
    holds.begin(held(link, 30), 70)
    for now in (10, 50, 69, 71):
        seconds.now = now
        holds.extend()
    holds.end()
    holds.extend()
    assert [call[2]["hold_s"] for call in link.calls] == [30, 30, 25, 30, 6, 30, 30]


@pytest.mark.usefixtures("quiet")
def test_hold_without_an_end_or_without_a_connection_is_not_extended() -> None:
    link = FakeLink(attempt=1)
    holds = HoldExtender(lambda: cast("Any", link), Seconds())
    holds.begin(held(link, None), 70)
    holds.extend()
    link.session.is_connected = False
    holds.begin(held(link, 30), 0)
    holds.extend()
    assert link.calls == []


def test_time_limit_interrupts_and_restores_what_used_the_signal() -> None:
    """As ``pytest-timeout`` does for this test."""
    before = signal.getsignal(signal.SIGALRM)
    was_limited = signal.getitimer(signal.ITIMER_REAL)[0] > 0
    limit = TimeLimit()
    limit.begin(0.01)
    with pytest.raises(JobInterrupt, match=r"longer than its limit of 0\.01 s"):
        threading.Event().wait(60)
    limit.end()
    limit.end()
    left_s, again_s = signal.getitimer(signal.ITIMER_REAL)
    assert (left_s > 0, again_s) == (was_limited, 0)
    assert signal.getsignal(signal.SIGALRM) == before


@pytest.mark.parametrize("is_main", [True, False])
def test_no_limit_and_no_main_thread_set_no_timer(is_main: bool) -> None:
    before = signal.getsignal(signal.SIGALRM)
    limit = TimeLimit()
    if is_main:
        limit.begin(0)
    else:
        thread = threading.Thread(target=limit.begin, args=(60,))
        thread.start()
        thread.join()
    assert signal.getsignal(signal.SIGALRM) == before
