"""Unanswered publishes: answered once, repeated in order, given up at last."""

import pytest

from phpmq_lite.client.session import PendingPublishes, PublishBatch
from phpmq_lite.errors import (
    ClientError,
    ConnectionLostError,
    LocalProtocolError,
    PublishRefusedError,
)

Answers = list[ClientError | None]


def filled(answers: Answers, *keys: bytes) -> PendingPublishes:
    pending = PendingPublishes(max_sends=2)
    for key in keys:
        pending.add("orders", b"body", 0, key, answers.append)
    return pending


def test_receipt_answers_its_key_once() -> None:
    answers: Answers = []
    pending = filled(answers, b"a", b"b")
    assert pending.answered("orders", b"a", None)
    assert not pending.answered("orders", b"a", None)
    assert answers == [None]
    assert len(pending) == 1


def test_refusal_carries_its_reason() -> None:
    answers: Answers = []
    filled(answers, b"a").answered("orders", b"a", "queue is paused")
    [error] = answers
    assert isinstance(error, PublishRefusedError)
    assert error.reason == "queue is paused"


def test_receipt_of_another_queue_answers_nobody() -> None:
    assert not filled([], b"a").answered("mails", b"a", None)


def test_key_cannot_wait_twice() -> None:
    pending = filled([], b"a")
    with pytest.raises(LocalProtocolError):
        pending.add("orders", b"other", 0, b"a", Answers().append)
    pending.add("mails", b"other", 0, b"a", Answers().append)  # keys are per queue


def test_unanswered_are_repeated_in_order() -> None:
    pending = filled([], b"c", b"a", b"b")
    pending.answered("orders", b"a", None)
    assert [entry.key for entry in pending.to_repeat()] == [b"c", b"b"]


def test_publish_is_given_up_when_connection_after_connection_ends() -> None:
    answers: Answers = []
    pending = filled(answers, b"a", b"b")
    first, _ = pending.to_repeat()
    first.sent = 2
    assert [entry.key for entry in pending.to_repeat()] == [b"b"]
    [error] = answers
    assert isinstance(error, ConnectionLostError)


def test_dropped_publish_is_not_repeated() -> None:
    pending = filled([], b"a", b"b")
    pending.forget("orders", b"a")
    pending.forget("orders", b"never there")
    assert [entry.key for entry in pending.to_repeat()] == [b"b"]


def test_all_of_a_batch_can_be_dropped() -> None:
    batch = PublishBatch()
    pending = filled([], b"a")
    pending.add("orders", b"body", 0, b"b", batch.answered)
    pending.forget_all(batch.answered)
    assert [entry.key for entry in pending.to_repeat()] == [b"a"]


def test_all_fail_when_the_connection_does_not_come_back() -> None:
    answers: Answers = []
    pending = filled(answers, b"a", b"b")
    pending.fail("gone")
    assert [str(error) for error in answers] == ["gone", "gone"]
    assert len(pending) == 0


def test_batch_counts_and_keeps_the_first_error() -> None:
    notified: list[None] = []
    batch = PublishBatch(lambda: notified.append(None))
    batch.unanswered = 3
    first = PublishRefusedError("full")
    for error in (None, first, PublishRefusedError("paused")):
        batch.answered(error)
    assert (batch.stored, batch.unanswered, batch.error) == (1, 0, first)
    assert len(notified) == 3
