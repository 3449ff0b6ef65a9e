"""Delays between tries to connect."""

from phpmq_lite.client.session import Backoff


def test_delays_double_up_to_the_longest() -> None:
    backoff = Backoff(roll=lambda: 0.0)
    delays = [backoff.next_s() for _ in range(9)]
    assert delays == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10.0, 10.0]


def test_jitter_takes_up_to_half() -> None:
    backoff = Backoff(first_s=1.0, roll=lambda: 0.5)
    assert backoff.next_s() == 0.75
    assert all(0.05 <= Backoff().next_s() <= 0.1 for _ in range(100))


def test_delays_begin_again_after_reset() -> None:
    backoff = Backoff(first_s=1.0, roll=lambda: 0.0)
    backoff.next_s()
    backoff.next_s()
    backoff.reset()
    assert backoff.next_s() == 1.0


def test_ten_thousand_tries_do_not_overflow() -> None:
    backoff = Backoff(roll=lambda: 0.0)
    assert max(backoff.next_s() for _ in range(10_000)) == 10.0
