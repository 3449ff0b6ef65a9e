"""Client state across connections, tested against the broker's side without sockets."""

from functools import partial
from typing import Any

import pytest

from phpmq_lite.client.core import Backoff
from phpmq_lite.client.publishes import PendingPublishes, PublishBatch
from phpmq_lite.client.session import ClientSession, Delivery
from phpmq_lite.errors import (
    ClientError,
    ConnectionLostError,
    LocalProtocolError,
    PublishRefusedError,
)
from phpmq_lite.protocol.connection import ServerSide
from phpmq_lite.protocol.frames import (
    Acknowledge,
    ClientFrame,
    Consume,
    DeadLetter,
    Dispatch,
    Publish,
    Requeue,
    WireLimits,
)

ID = b"0123456789abcdef0123456789abcdef"
Answers = list[ClientError | None]


class Wire:
    """A session connected to a broker side that parses what it sends."""

    def __init__(self) -> None:
        self.session = ClientSession(8 << 20)
        self.connect()

    def connect(self) -> list[ClientFrame]:
        self.broker = ServerSide(WireLimits(), http_guard=False)
        return self.broker.receive(self.session.connected())

    def read(self, data: bytes) -> list[ClientFrame]:
        return self.broker.receive(data)

    def dispatch(self, queue: str, body: bytes) -> None:
        parts: list[bytes] = []
        self.broker.append_dispatch(parts, queue, body, ID, 0)
        self.session.receive(b"".join(parts))

    def settle(self, frame: bytes, generation: int) -> None:
        self.sent = self.read(self.session.settlement_to_send(frame, generation))

    def delivery(self) -> Delivery:
        owner: Any = self
        return Delivery(owner, Dispatch("orders", b"body", ID, 5), self.session.generation)


@pytest.fixture
def wire() -> Wire:
    return Wire()


def no_wake() -> None:
    """Do nothing: no receiver waits."""


def test_first_connection_is_sent_nothing(wire: Wire) -> None:
    wire.session.lost()
    assert wire.connect() == []


def test_next_connection_is_sent_late_ends_then_windows_then_unanswered(wire: Wire) -> None:
    session = wire.session
    answers: Answers = []
    session.start_consuming("orders", 10, no_wake)
    session.start_consuming("mails", 5, no_wake)
    session.confirm("orders", b"one", 60, b"k1", answers.append)
    session.confirm("orders", b"two", 0, b"k2", answers.append)
    delivery = wire.delivery()
    session.pending.answered("orders", b"k1", None)
    session.lost()
    delivery.ack()
    assert wire.connect() == [
        Acknowledge("orders", ID),
        Consume("orders", 10),
        Consume("mails", 5),
        Publish("orders", b"two", 0, b"k2"),
    ]
    assert session.late_settlement_count == 1
    session.lost()
    assert wire.connect()[0] == Consume("orders", 10)


def test_publish_made_while_disconnected_waits_for_the_connection(wire: Wire) -> None:
    wire.session.lost()
    answers: Answers = []
    wire.session.confirm("orders", b"one", 0, b"k1", answers.append)
    assert wire.connect() == [Publish("orders", b"one", 0, b"k1")]


def test_keys_are_new_each_time_and_for_each_client() -> None:
    answers: Answers = []
    keys = {
        session.confirm("orders", b"", 0, None, answers.append)[0]
        for session in (ClientSession(100), ClientSession(100))
        for _ in range(50)
    }
    assert len(keys) == 100
    assert {len(key) for key in keys} == {32}


def test_receipts_and_dispatches_find_their_places(wire: Wire) -> None:
    session = wire.session
    answers: Answers = []
    woken: list[str] = []
    orders = session.start_consuming("orders", 10, lambda: woken.append("orders"))
    mails = session.start_consuming("mails", 10, lambda: woken.append("mails"))
    session.confirm("orders", b"one", 0, b"k1", answers.append)
    parts: list[bytes] = []
    for queue in ("orders", "orders", "mails", "gone"):
        wire.broker.append_dispatch(parts, queue, b"body", ID, 0)
    wire.broker.append_receipts(parts, "orders", (b"k1",), None)
    session.receive(b"".join(parts))
    assert (len(orders.dispatches), len(mails.dispatches)) == (2, 1)
    assert woken == ["orders", "mails"]
    assert answers == [None]


def test_dispatches_not_handed_out_are_dropped_with_the_connection(wire: Wire) -> None:
    """The broker dispatches them again."""
    window = wire.session.start_consuming("orders", 10, no_wake)
    wire.dispatch("orders", b"body")
    wire.session.lost()
    assert not window.dispatches


def test_closed_window_gives_back_and_can_be_opened_again(wire: Wire) -> None:
    window = wire.session.start_consuming("orders", 10, no_wake)
    with pytest.raises(LocalProtocolError):
        wire.session.start_consuming("orders", 10, no_wake)
    assert wire.read(wire.session.stop_consuming(window)) == [Consume("orders", 0)]
    wire.session.start_consuming("orders", 10, no_wake)


@pytest.mark.parametrize(("queue", "credit"), [("", 1), ("orders", 0), ("orders", -1)])
def test_invalid_window_is_refused(queue: str, credit: int) -> None:
    session = ClientSession(100)
    with pytest.raises(LocalProtocolError):
        session.start_consuming(queue, credit, no_wake)
    assert not session.windows


def test_delivery_is_ended_once(wire: Wire) -> None:
    delivery = wire.delivery()
    delivery.ack()
    assert wire.sent == [Acknowledge("orders", ID)]
    wire.sent = []
    delivery.requeue(5)
    assert wire.sent == []


def test_delivery_can_go_back_or_to_the_dead_letters(wire: Wire) -> None:
    wire.delivery().requeue(60)
    assert wire.sent == [Requeue("orders", ID, 60)]
    wire.delivery().dead_letter()
    assert wire.sent == [DeadLetter("orders", ID)]


def test_delivery_stays_open_when_its_settlement_is_refused(wire: Wire) -> None:
    delivery = wire.delivery()
    with pytest.raises(LocalProtocolError):
        delivery.requeue(-1)
    delivery.ack()
    assert wire.sent == [Acknowledge("orders", ID)]


def test_delivery_of_an_earlier_connection_is_ended_on_this_one(wire: Wire) -> None:
    """docs/reference/wire.md: a message that no live connection holds is still acknowledged."""
    delivery = wire.delivery()
    wire.session.lost()
    wire.connect()
    delivery.ack()
    assert wire.sent == [Acknowledge("orders", ID)]
    assert wire.session.late_settlement_count == 1


def test_delivery_says_what_it_is() -> None:
    delivery = Wire().delivery()
    assert (delivery.queue, delivery.body, delivery.ttl_s) == ("orders", b"body", 5)
    assert delivery.message_id == ID.decode()
    assert "orders" in repr(delivery)


@pytest.mark.parametrize("is_whole", [True, False])
def test_message_above_the_limit_is_reported_with_the_setting_to_raise(is_whole: bool) -> None:
    session = ClientSession(10)
    broker = ServerSide(WireLimits(), http_guard=False)
    broker.receive(session.connected())
    parts: list[bytes] = []
    broker.append_dispatch(parts, "orders", b"x" * 11, ID, 0)
    sent = b"".join(parts)
    for piece in [sent] if is_whole else [sent[at : at + 1] for at in range(len(sent))]:
        session.receive(piece)
    text = session.protocol_problem("mq:9100")
    assert text is not None
    assert text.startswith("mq:9100 sent a message that is too large for this client: ")
    assert "11 bytes; the limit is 10. " in text
    assert "max_content" in text
    assert "limits.max_content" in text


@pytest.mark.parametrize(
    ("sent", "problem"),
    [
        (b"220 mail.example ESMTP\r\n", "does not speak PHPMQ: bad-header"),
        # A name above the limit is not a message that is too long.
        (b"H0100303P0100000000000000000000000000999", "does not speak PHPMQ: too-large"),
    ],
)
def test_other_protocol_is_reported_as_such(sent: bytes, problem: str) -> None:
    session = ClientSession(10)
    session.connected()
    assert session.protocol_problem("mq:9100") is None
    session.receive(sent)
    assert str(session.protocol_problem("mq:9100")).startswith(f"mq:9100 {problem}")


def test_delays_double_up_to_the_longest_and_start_again_after_reset() -> None:
    backoff = Backoff(roll=lambda: 0.0)
    delays = [backoff.next_s() for _ in range(10_000)]
    assert delays[:8] == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10.0]
    assert set(delays[8:]) == {10.0}
    backoff.reset()
    assert backoff.next_s() == 0.1


def test_jitter_takes_up_to_half() -> None:
    backoff = Backoff(first_s=1.0, roll=lambda: 0.5)
    assert backoff.next_s() == 0.75
    assert all(0.05 <= Backoff().next_s() <= 0.1 for _ in range(100))


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


def test_receipt_of_another_queue_is_ignored() -> None:
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


def test_largest_publish_is_given_up_first_if_it_may_be_too_large() -> None:
    answers: dict[int, object] = {}
    pending = PendingPublishes()
    for size in (1, 70_000, 80_000, 65_536):
        pending.add("orders", b"x" * size, 0, b"%d" % size, partial(answers.__setitem__, size))
    given_up = []
    for _ in range(6):
        for entry in pending.to_repeat():
            entry.sent += 1
        given_up.append(sorted(answers))
    assert given_up == [[], [], [], [80_000], [70_000, 80_000], [70_000, 80_000]]
    assert "of 80000 bytes; if that is above the broker's limits.max_content" in str(
        answers[80_000]
    )


def test_publish_is_not_given_up_while_the_broker_answers_others() -> None:
    answers: Answers = []
    pending = filled(answers, b"a", b"b", b"c", b"d")
    for key in (b"a", b"b", b"c"):
        for entry in pending.to_repeat():
            entry.sent += 1
        pending.answered("orders", key, None)
    assert [entry.key for entry in pending.to_repeat()] == [b"d"]
    assert answers == [None, None, None]


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
    batch = PublishBatch(notify=lambda: notified.append(None))
    batch.unanswered = 3
    first = PublishRefusedError("full")
    for error in (None, first, PublishRefusedError("paused")):
        batch.answered(error)
    assert (batch.stored, batch.unanswered, batch.error) == (1, 0, first)
    assert len(notified) == 3
