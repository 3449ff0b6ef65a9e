"""Claims on a real file: numbers, order, restarts, and concurrent operator actions."""

from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

import pytest

from phpmq_lite.broker.operator.message_actions import ActionOptions
from phpmq_lite.broker.pipeline import claims, readers
from phpmq_lite.model import Limits
from phpmq_lite.operator_actions import Action
from phpmq_lite.queue_settings import QueueSettings
from tests.support.core_and_store import Driver, MakeDriver, consume_all, run_operation


@pytest.fixture(params=[1_000, 2], ids=["one page", "many pages"])
def make(make: MakeDriver, request: pytest.FixtureRequest) -> Iterator[MakeDriver]:
    with patch.object(claims, "CLAIM_SLICE", request.param):
        yield make


def claim(
    driver: Driver, count: int = 100, *, name: str = "s", size: int = 1 << 20, **options: Any
) -> Any:
    return run_operation(driver, "claim", name, "orders", count, size, **options)


def claimed(driver: Driver, name: str = "s") -> list[tuple[int, bytes]]:
    """Return claim and body of what a subscription holds, as a reader addresses it."""
    return driver.rows(
        "SELECT claim, content FROM claim JOIN message USING (seq) JOIN body USING (seq)"
        " JOIN subscription USING (subscription_id) WHERE name = ? AND state = 1 ORDER BY claim",
        name,
    )


def publish(driver: Driver, *numbers: int, ttl_s: int = 0) -> None:
    driver.publish(*(b"%d" % n for n in numbers), ttl_s=ttl_s)


def figures(driver: Driver) -> tuple[int, int]:
    """Return how many messages are ready and dispatched, as the core counts them."""
    queue = driver.core.queues["orders"]
    return queue.row.live_count - queue.dispatched, queue.dispatched


def test_claims_are_numbered_in_the_order_of_the_queue(driver: Driver) -> None:
    publish(driver, 1, 2, 3, 4, 5)
    assert claim(driver, 3) == 3
    assert claimed(driver) == [(1, b"1"), (2, b"2"), (3, b"3")]
    assert claim(driver, 3) == 5
    assert claimed(driver)[3:] == [(4, b"4"), (5, b"5")]
    assert figures(driver) == (0, 5)
    assert driver.states() == [(seq, 1, 1) for seq in range(1, 6)]
    assert claim(driver, 3) == 5


def test_existing_claims_are_returned_before_new_ones(driver: Driver) -> None:
    publish(driver, 1, 2, 3, 4)
    assert claim(driver, 2, after=0) == 2
    assert claim(driver, 2, after=0) == 2
    assert claim(driver, 2, after=1) == 2
    assert len(claimed(driver)) == 2
    assert claim(driver, 2, after=2) == 4
    assert claim(driver, 2, after=5) == "unknown_claims"


def test_claim_is_bounded_by_bytes_but_one_message_always_goes(driver: Driver) -> None:
    driver.publish(b"a" * 10, b"b" * 10, b"c" * 5)
    assert claim(driver, size=20) == 2
    assert claim(driver, size=1) == 3


def test_acknowledged_claims_settle_once(driver: Driver) -> None:
    publish(driver, 1, 2, 3, 4)
    claim(driver, 4)
    assert run_operation(driver, "ack_claims", "s", 3) == 3
    assert driver.outcomes() == [(1, 1, 2, None), (2, 2, 2, None), (3, 3, 2, None)]
    assert run_operation(driver, "ack_claims", "s", 3) == 0
    assert run_operation(driver, "ack_claims", "s", 1) == 0
    assert run_operation(driver, "ack_claims", "s", 5) == "unknown_claims"
    assert run_operation(driver, "ack_claims", "other", 1) == "unknown_subscription"
    assert (figures(driver), driver.live()) == ((0, 1), (1, 1))
    assert driver.rows("SELECT acked_upto, next_claim FROM subscription") == [(3, 5)]
    assert run_operation(driver, "ack_claims", "s", 4) == 1
    assert driver.rows("SELECT count(*) FROM claim") == [(0,)]


def test_claims_survive_a_restart_and_dispatches_do_not(driver: Driver) -> None:
    driver.consume(1)
    publish(driver, 1, 2, 3)
    assert claim(driver, 1) == 1
    driver.kill_and_restart()
    assert driver.returned == 1
    assert claimed(driver) == [(1, b"2")]
    assert figures(driver) == (2, 1)
    assert claim(driver, after=0) == 1
    worker = driver.consume()
    assert [d.body for d in worker.take()] == [b"1", b"3"]
    assert run_operation(driver, "ack_claims", "s", 1) == 1
    assert driver.live() == (2, 2)


def test_claimed_message_neither_expires_nor_times_out(make: MakeDriver) -> None:
    driver = make(defaults=QueueSettings(ack_timeout_s=5))
    publish(driver, 1, ttl_s=3)
    claim(driver)
    driver.clock.advance(60)
    driver.kill_and_restart()
    driver.step()
    driver.clock.advance(60)
    driver.step()
    assert claimed(driver) == [(1, b"1")]
    assert run_operation(driver, "release_claims", "s") == 1
    assert driver.outcomes() == [(1, 1, 3, None)]  # validated when it returns


def test_expired_messages_are_not_claimed(driver: Driver) -> None:
    publish(driver, 1, ttl_s=3)
    publish(driver, 2)
    driver.clock.advance(3)
    assert claim(driver) == 1
    assert claimed(driver) == [(1, b"2")]
    assert driver.outcomes() == [(1, 1, 3, None)]


def test_connection_cannot_settle_claimed_messages(driver: Driver) -> None:
    publish(driver, 1, 2, 3)
    claim(driver)
    stranger = driver.connect()
    ids = [b"%016x%016x" % row for row in driver.rows("SELECT seq, token FROM message")]
    stranger.acknowledge("orders", ids[0])
    stranger.requeue("orders", ids[1])
    stranger.dead_letter("orders", ids[2])
    driver.step()
    assert driver.core.ignored == {"foreign": 3}
    assert len(claimed(driver)) == 3


def test_released_claims_go_back_to_their_place(make: MakeDriver) -> None:
    driver = make(Limits(window=2))
    publish(driver, 1, 2, 3, 4)
    claim(driver, 3)
    worker = driver.consume(1)
    assert run_operation(driver, "release_claims", "s") == 3
    assert (figures(driver), claimed(driver)) == ((3, 1), [])
    [held] = worker.take()
    assert held.body == b"4"
    assert claim(driver, 1, after=0) == 4  # the numbers are not assigned again
    assert claimed(driver) == [(4, b"1")]
    assert driver.rows("SELECT deliveries, charged FROM message WHERE seq = 1") == [(2, 0)]
    worker.acknowledge("orders", held.message_id)
    driver.step()
    assert consume_all(driver, worker) == [b"2", b"3"]


def test_forgotten_subscription_starts_again(driver: Driver) -> None:
    publish(driver, 1)
    claim(driver)
    assert run_operation(driver, "release_claims", "s", forget=True) == 1
    assert run_operation(driver, "ack_claims", "s", 1) == "unknown_subscription"
    driver.kill_and_restart()
    assert claim(driver, after=1) == "unknown_claims"
    assert claim(driver) == 1


def test_paused_queue_returns_only_existing_claims(driver: Driver) -> None:
    publish(driver, 1, 2, 3)
    claim(driver, 2)
    run_operation(driver, "pause", "orders", "delivery", True)
    assert (claim(driver, after=1), claim(driver, after=2)) == (2, 2)
    assert run_operation(driver, "ack_claims", "s", 2) == 2


def test_window_and_claims_share_a_queue(make: MakeDriver) -> None:
    """Each message goes to one of them, whether it is in memory or not."""
    driver = make(Limits(window=3))
    worker = driver.consume(1)
    publish(driver, *range(10))
    assert claim(driver, 4) == 4
    got = [body for _, body in claimed(driver)] + consume_all(driver, worker)
    assert sorted(got) == [b"%d" % n for n in range(10)]


def test_two_subscriptions_share_a_queue(driver: Driver) -> None:
    publish(driver, *range(10))
    questions = [driver.ask("claim", name, "orders", 3, 1 << 20) for name in "abab"]
    driver.step()
    assert all(isinstance(question.answer, int) for question in questions)
    both = [body for name in "ab" for _, body in claimed(driver, name)]
    assert len(set(both)) == len(both) <= 10
    for name in "ab":
        numbers = [number for number, _ in claimed(driver, name)]
        assert numbers == list(range(1, len(numbers) + 1))
    assert [claim(driver, name=name) for name in "ab"][1] + len(claimed(driver, "a")) == 10


def test_returned_message_is_claimed_before_later_ones(driver: Driver) -> None:
    """The remembered front of the queue must not hide it."""
    worker = driver.consume(2)
    publish(driver, *range(8))
    assert claim(driver, 3) == 3
    worker.disconnect()
    driver.step()
    claim(driver, 2)
    assert claimed(driver)[3:] == [(4, b"0"), (5, b"1")]


def test_message_that_returns_during_a_claim_is_claimed_next(driver: Driver) -> None:
    worker = driver.consume(2)
    publish(driver, *range(8))
    driver.ask("claim", "s", "orders", 5, 1 << 20)
    driver.turn()
    worker.disconnect()
    driver.step()
    claim(driver)
    assert sorted(body for _, body in claimed(driver)) == [b"%d" % n for n in range(8)]


@pytest.mark.parametrize("verb", ["purge", "delete", "requeue", "release"])
def test_operator_can_take_claimed_messages_and_leaves_a_gap(driver: Driver, verb: str) -> None:
    publish(driver, 1, 2, 3)
    claim(driver)
    if verb == "purge":
        run_operation(driver, "purge", "orders", with_dispatched=True, limit=1)
    else:
        options = ActionOptions(with_dispatched=True)
        run_operation(driver, "act_on_messages", Action(verb), (1,), options)
    assert claimed(driver) == [(2, b"2"), (3, b"3")]
    assert run_operation(driver, "ack_claims", "s", 3) == 2
    left = 1 if verb in ("requeue", "release") else 0
    assert (driver.live()[0], figures(driver)) == (left, (left, 0))
    assert driver.rows("SELECT count(*) FROM claim") == [(0,)]


def test_operator_action_on_ready_messages_leaves_claims_alone(driver: Driver) -> None:
    publish(driver, 1, 2, 3)
    claim(driver, 2)
    assert run_operation(driver, "purge", "orders") == 1
    run_operation(driver, "create_queue", "mails")
    moved = run_operation(
        driver, "act_on_messages", Action.MOVE, (1, 2), ActionOptions(target="mails")
    )
    assert moved.skipped == {"dispatched": 2}
    assert run_operation(driver, "remove_queue", "orders") == "queue_not_empty"
    assert len(claimed(driver)) == 2


@pytest.mark.parametrize("turns", range(4))
@pytest.mark.parametrize("verb", ["claim", "ack_claims", "release_claims"])
def test_kill_in_the_middle_leaves_nothing_half_done(driver: Driver, verb: str, turns: int) -> None:
    """After each commit, repeating the command has the result of an uninterrupted one."""
    publish(driver, *range(7))
    if verb != "claim":
        claim(driver, 6)
    given = {"claim": ("s", "orders", 6, 1 << 20), "ack_claims": ("s", 6), "release_claims": ("s",)}
    driver.ask(verb, *given[verb])
    for _ in range(turns):
        driver.turn()
    driver.decide()
    driver.kill_and_restart()
    held = len(claimed(driver))
    assert driver.rows("SELECT count(*) FROM message WHERE state = 1") == [(held,)]
    assert driver.core.queues["orders"].claimed == held
    if verb == "claim":
        hi = claim(driver, 6, after=0) if turns else claim(driver, 6)
        assert [number for number, _ in claimed(driver)] == list(range(1, hi + 1))
        assert [body for _, body in claimed(driver)] == [b"%d" % n for n in range(hi)]
        return
    run_operation(driver, verb, *given[verb])
    assert (claimed(driver), figures(driver)) == ([], (1 if verb == "ack_claims" else 7, 0))


def test_commands_of_one_subscription_follow_one_another(driver: Driver) -> None:
    publish(driver, *range(6))
    first = driver.ask("claim", "s", "orders", 4, 1 << 20)
    ack = driver.ask("ack_claims", "s", 0)
    again = driver.ask("claim", "s", "orders", 4, 1 << 20, after=0)
    last = driver.ask("release_claims", "s")
    driver.step()
    assert [q.answer for q in (first, ack, again, last)] == [4, 0, 4, 4]


def test_subscription_is_of_one_queue_until_that_is_removed(driver: Driver) -> None:
    publish(driver, 1)
    claim(driver)
    run_operation(driver, "create_queue", "mails")
    assert run_operation(driver, "claim", "s", "mails", 1, 1) == "other_queue"
    run_operation(driver, "ack_claims", "s", 1)
    assert run_operation(driver, "remove_queue", "orders") is True
    assert run_operation(driver, "claim", "s", "orders", 1, 1) == "unknown_queue"
    assert run_operation(driver, "claim", "s", "mails", 1, 1) == 1
    driver.kill_and_restart()
    assert driver.rows("SELECT queue_id FROM subscription") == [(2,)]


def test_only_unusual_commands_of_a_subscription_are_in_the_audit(driver: Driver) -> None:
    publish(driver, 1, 2)
    claim(driver, 1)
    claim(driver, 1)
    run_operation(driver, "ack_claims", "s", 1)
    run_operation(driver, "release_claims", "s")
    rows = driver.rows("SELECT action, count, result FROM audit ORDER BY audit_id")
    assert rows == [("queue.claim", 0, "done"), ("queue.release_claims", 1, "done")]


def report(driver: Driver, name: str, offset: int) -> Any:
    return run_operation(driver, "report_reader", name, offset, owner="ann", is_admin=False)


def test_history_has_an_identity_and_readers_their_offsets(driver: Driver) -> None:
    [(made,)] = driver.rows("SELECT value FROM meta WHERE name = 'history_id'")
    assert len(bytes.fromhex(made)) == 16
    assert report(driver, "archive", 5) is True
    assert report(driver, "archive", 3) is False
    assert report(driver, "", 3) == "bad_name"
    assert report(driver, "archive", -1) == "bad_value"
    driver.kill_and_restart()
    assert driver.rows("SELECT value FROM meta") == [(made,)]
    wall_ms = driver.clock.now().wall_ms
    assert driver.rows("SELECT * FROM reader") == [("archive", 3, wall_ms, "ann")]


def test_readers_that_were_heard_of_long_ago_are_forgotten(driver: Driver) -> None:
    with patch.object(readers, "READERS", 2):
        for name in ("a", "b", "a", "c"):
            report(driver, name, 1)
            driver.clock.advance(1)
    assert driver.rows("SELECT name FROM reader ORDER BY name") == [("a",), ("c",)]
