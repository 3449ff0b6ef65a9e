"""Client state across connections, tested against the broker's side without sockets."""

from datetime import UTC, datetime
from functools import partial
from typing import Any

import pytest

from phpmq_lite.client.core import Backoff
from phpmq_lite.client.delivery import Delivery, delivery_of
from phpmq_lite.client.publishes import (
    AnswerCallback,
    KeyedMessage,
    PendingPublishes,
    PublishBatch,
    check_fields,
)
from phpmq_lite.client.session import ClientSession, OldForm
from phpmq_lite.errors import (
    ClientError,
    ConnectionLostError,
    LocalProtocolError,
    PhpmqError,
    PublishRefusedError,
)
from phpmq_lite.frame_options import read_object, write_options
from phpmq_lite.protocol.connection import ServerSide
from phpmq_lite.protocol.frames import (
    OUR_FRAMES,
    Acknowledge,
    ClientFrame,
    Consume,
    ConsumeWithOptions,
    DeadLetter,
    Dispatch,
    DispatchWithInfo,
    Hello,
    Publish,
    PublishWithOptions,
    Requeue,
    Settle,
    WireLimits,
)

ID = b"0123456789abcdef0123456789abcdef"
Answers = list[PhpmqError | None]


class Wire:
    """A session connected to a broker side that parses what it sends."""

    def __init__(self) -> None:
        self.session = ClientSession(8 << 20)
        self.connect()

    def connect(self, *, max_content: int = 8 << 20) -> list[ClientFrame]:
        """Connect to a broker that knows all frames; return what is sent first."""
        self.broker = ServerSide(WireLimits(), http_guard=False)
        [hello] = self.broker.receive(self.session.greet(sends_hello=True))
        assert isinstance(hello, Hello)
        facts = {"version": "0.2.0", "frames": OUR_FRAMES, "max_content": max_content}
        parts: list[bytes] = []
        self.broker.append_welcome(parts, hello.key, write_options(facts))
        self.session.receive(b"".join(parts))
        assert self.session.is_welcome
        return self.broker.receive(self.session.connected())

    def connect_old(self) -> list[ClientFrame]:
        """Connect to a broker that is known to close on a hello."""
        self.broker = ServerSide(WireLimits(), http_guard=False)
        assert self.session.greet(sends_hello=False) == b""
        return self.broker.receive(self.session.connected())

    def read(self, data: bytes) -> list[ClientFrame]:
        return self.broker.receive(data)

    def dispatch(self, queue: str, body: bytes) -> None:
        parts: list[bytes] = []
        self.broker.append_dispatch(parts, queue, body, ID, 0)
        self.session.receive(b"".join(parts))

    def receipt(self, queue: str, key: bytes, reason: str | None = None) -> None:
        parts: list[bytes] = []
        self.broker.append_receipts(parts, queue, (key,), reason)
        self.session.receive(b"".join(parts))

    def settle(
        self, delivery: Delivery, frame: bytes, old_form: OldForm | None, *, is_kept: bool
    ) -> None:
        place = (delivery.queue, delivery.generation, frame, old_form)
        self.sent = self.read(self.session.settlement_to_send(*place, is_kept=is_kept))

    def confirm(self, message: KeyedMessage, answer: AnswerCallback) -> None:
        self.published = self.read(self.session.confirm_message(message, answer))

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
    assert wire.connect()[0] == Acknowledge("orders", ID)  # the broker may not have read it
    wire.dispatch("orders", b"body")
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
    session.greet(sends_hello=False)
    session.connected()
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
    session.greet(sends_hello=True)
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


# Frames of ours


def settled(wire: Wire) -> list[ClientFrame]:
    """Return what is sent first on the next connection, which is lost at once."""
    wire.session.lost()
    frames = wire.connect()
    return [frame for frame in frames if not isinstance(frame, Consume)]


def informed(wire: Wire, **info: Any) -> Delivery:
    owner: Any = wire
    frame = DispatchWithInfo("orders", b"body", ID, 5, write_options(info))
    return delivery_of(owner, frame, wire.session.generation)


def options_of(frame: ClientFrame) -> dict[str, Any]:
    assert isinstance(frame, Settle | PublishWithOptions)
    return read_object(frame.options)


@pytest.mark.parametrize(
    ("ttl_s", "fields", "options"),
    [
        (60, {}, None),
        (60.0, {}, None),
        (0, {"delay_s": 0}, None),
        (0, {"priority": None}, None),
        (1.5, {}, {"ttl_s": 1.5}),
        (0, {"delay_s": 2.5}, {"ttl_s": 0, "delay_s": 2.5}),
        (0, {"priority": 0}, {"ttl_s": 0, "priority": 0}),
        (
            9,
            {"deliver_at": datetime(2027, 1, 1, tzinfo=UTC), "group": "a"},
            {"ttl_s": 9, "deliver_at": 1_798_761_600_000, "group": "a"},
        ),
        (
            0,
            {"unique_key": "k", "if_exists": "replace"},
            {"ttl_s": 0, "unique_key": "k", "if_exists": "replace"},
        ),
    ],
)
def test_frame_with_options_is_used_when_an_option_asks_for_it(
    ttl_s: float, fields: Any, options: Any
) -> None:
    assert check_fields(ttl_s, fields) == options


@pytest.mark.parametrize(
    ("ttl_s", "fields", "problem"),
    [
        (0, {"priority": 256}, "priority: must be a whole number from 0 to 255, not 256"),
        (-1.5, {}, "ttl_s: must be a number from 0 to "),
        (0, {"dealy_s": 3}, "dealy_s: is not an option here; the options are ttl_s, delay_s, "),
        (0, {"delay_s": 3, "deliver_at": 1}, "deliver_at: excludes delay_s; omit one of them"),
        (0, {"deliver_at": datetime(2027, 1, 1)}, "deliver_at: must be a date up to 2100"),
        (0, {"if_exists": "replace"}, "if_exists: replace needs a unique_key"),
        (0, {"unique_key": "k" * 65}, "unique_key: must be a text "),
    ],
)
def test_invalid_option_is_named_with_its_bound(ttl_s: float, fields: Any, problem: str) -> None:
    with pytest.raises(LocalProtocolError) as caught:
        check_fields(ttl_s, fields)
    assert str(caught.value).startswith(problem)


def test_publish_with_options_is_repeated_with_them(wire: Wire) -> None:
    answers: Answers = []
    options = check_fields(0, {"priority": 3})
    _, frame = wire.session.confirm("orders", b"one", 0, b"k", answers.append, options)
    for frames in (wire.read(frame), settled(wire)):
        assert frames == [PublishWithOptions("orders", b"one", b'{"ttl_s":0,"priority":3}', b"k")]
    wire.receipt("orders", b"k")
    assert answers == [None]


def test_older_broker_delays_by_the_retry_queue_and_keeps_doing_so(wire: Wire) -> None:
    """Keys belong to a queue: in another form, a repeated publish would be stored twice."""
    wire.session.lost()
    answers: Answers = []
    options = check_fields(0, {"delay_s": 2.5})
    wire.session.confirm("orders", b"one", 0, b"k", answers.append, options)
    assert wire.connect_old() == [Publish("orders.retry", b"one", 3, b"k")]
    assert settled(wire) == [Publish("orders.retry", b"one", 3, b"k")]
    wire.receipt("orders.retry", b"k")
    assert answers == [None]


@pytest.mark.parametrize("fields", [{"priority": 1}, {"delay_s": 1, "group": "g"}])
@pytest.mark.parametrize("is_connected", [True, False])
def test_older_broker_that_does_not_know_an_option_is_an_error(
    wire: Wire, fields: Any, is_connected: bool
) -> None:
    wire.session.lost()
    answers: Answers = []
    place = ("orders", b"one", 0, b"k", answers.append, check_fields(0, fields))
    if is_connected:
        wire.connect_old()
        with pytest.raises(ClientError) as caught:
            wire.session.confirm(*place)
        answers.append(caught.value)
    else:
        wire.session.confirm(*place)
        assert wire.connect_old() == []
    [error] = answers
    assert f"does not know {list(fields)[-1]}; upgrade it" in str(error)
    assert not len(wire.session.pending)


def test_retry_names_the_attempt_and_the_error(wire: Wire) -> None:
    try:
        raise ValueError("no stock")
    except ValueError as error:
        informed(wire, attempt=3).retry(2.5, exception=error, limit=5, content=b"new")
    [sent] = wire.sent
    assert isinstance(sent, Settle)
    assert (sent.queue, sent.message_id, sent.content) == ("orders", ID, b"new")
    options = options_of(sent)
    assert "raise ValueError" in options.pop("traceback")
    assert options == {
        "action": "retry", "delay_s": 2.5, "attempt": 3, "limit": 5, "error": "no stock",
        "exception": "ValueError",
    }  # fmt: skip


def test_texts_that_are_too_long_for_the_options_are_left_out(wire: Wire) -> None:
    wire.delivery().retry(error="\x01" * 999, exception="\ud800" * 2_000, attempt=1)
    assert {**options_of(wire.sent[0]), "error": "", "exception": ""} == {
        "action": "retry", "delay_s": 0, "attempt": 1, "error": "", "exception": "",
    }  # fmt: skip
    try:
        raise ValueError("\x01" * 9_000)
    except ValueError as error:
        wire.delivery().retry(exception=error)
    assert options_of(wire.sent[0]).keys() == {"action", "delay_s", "error", "exception"}


def test_extension_is_for_the_connection_that_holds(wire: Wire) -> None:
    delivery = wire.delivery()
    assert delivery.extend(60)
    assert options_of(wire.sent[0]) == {"action": "extend", "hold_s": 60}
    with pytest.raises(LocalProtocolError, match="hold_s: must be a number from 0"):
        delivery.extend(-1)
    wire.connect()
    assert not delivery.extend(60)
    delivery = wire.delivery()
    wire.connect_old()
    assert not delivery.extend(60)


def test_settlements_that_may_be_lost_are_sent_first_on_the_next_connection(wire: Wire) -> None:
    """Not a requeue, which would count twice, nor a retry without the number of its attempt."""
    session = wire.session
    session.start_consuming("orders", 3, no_wake)
    wire.delivery().requeue()
    wire.delivery().retry(1)
    for number in range(4):
        delivery = informed(wire, attempt=number + 1)
        delivery.retry(error="no")
    wire.delivery().dead_letter("bad", error="no")
    wire.delivery().ack()
    kept = settled(wire)
    assert [type(frame) for frame in kept] == [Settle, Settle, Acknowledge]
    assert [options_of(frame).get("attempt") for frame in kept[:2]] == [4, None]
    assert settled(wire) == kept  # nothing has proved that the broker has read them
    wire.dispatch("orders", b"next")
    assert settled(wire) == []


def test_forked_child_sends_no_settlement_of_its_parent(wire: Wire) -> None:
    wire.session.start_consuming("orders", 3, no_wake)
    wire.delivery().ack()
    wire.session.begin_anew()
    assert wire.connect() == []


@pytest.mark.parametrize("is_late", [True, False])
def test_retry_at_an_older_broker_is_a_copy_then_an_acknowledgement(
    wire: Wire, is_late: bool
) -> None:
    delivery = informed(wire, attempt=2)
    wire.session.lost()
    if is_late:
        delivery.retry(1.2)
        assert wire.connect_old() == [Publish("orders.retry", b"body", 2, ID + b":2")]
    else:
        wire.connect_old()
        delivery.retry(1.2)
        assert wire.published == [Publish("orders.retry", b"body", 2, ID + b":2")]
    wire.sent = []
    wire.receipt("orders.retry", ID + b":2")
    assert wire.sent == [Acknowledge("orders", ID)]


def test_refused_copy_returns_the_message(wire: Wire) -> None:
    wire.connect_old()
    delivery = wire.delivery()
    delivery.retry()
    assert wire.published == [Publish("orders", b"body", 5, ID + b":0")]
    wire.receipt("orders", ID + b":0", "paused")
    assert wire.sent == [Requeue("orders", ID, 5)]


def test_dead_letter_with_its_reason_is_a_plain_one_for_an_older_broker(wire: Wire) -> None:
    delivery = wire.delivery()
    wire.session.lost()
    delivery.dead_letter("bad", error="no")
    assert wire.connect_old() == [DeadLetter("orders", ID)]
    wire.session.lost()
    assert wire.connect_old() == [DeadLetter("orders", ID)]  # the broker may not have read it
    wire.session.start_consuming("orders", 3, no_wake)
    wire.dispatch("orders", b"body")
    wire.delivery().dead_letter("bad", error="no")
    assert wire.sent == [DeadLetter("orders", ID)]
    wire.session.lost()
    assert wire.connect_old() == [DeadLetter("orders", ID), Consume("orders", 3)]


def test_info_is_asked_for_and_read(wire: Wire) -> None:
    window = wire.session.start_consuming("orders", 3, no_wake, has_info=True)
    assert wire.read(wire.session.consume_frame(window)) == [
        ConsumeWithOptions("orders", 3, b'{"info":true,"keep":false}')
    ]
    delivery = informed(wire, attempt=2, hold_s=30.5, priority=7, age_s=1.25, deliveries=4)
    known = (delivery.attempt, delivery.hold_s, delivery.priority, delivery.age_s)
    assert known == (2, 30.5, 7, 1.25)
    assert (delivery.deliveries, delivery.group) == (4, None)
    assert wire.delivery().attempt is None


def test_credit_is_changed_without_a_return(wire: Wire) -> None:
    window = wire.session.start_consuming("orders", 3, no_wake)
    assert wire.read(wire.session.set_credit(window, 0)) == [
        ConsumeWithOptions("orders", 0, b'{"info":false,"keep":true}')
    ]
    assert wire.connect() == [Consume("orders", 0)]


def test_older_broker_has_no_info_and_keeps_its_credit(wire: Wire) -> None:
    wire.connect_old()
    with pytest.raises(ClientError, match="older"):
        wire.session.start_consuming("orders", 3, no_wake, has_info=True)
    window = wire.session.start_consuming("orders", 3, no_wake)
    with pytest.raises(ClientError, match="older"):
        wire.session.set_credit(window, 5)


def test_message_above_the_limit_of_the_broker_is_not_sent(wire: Wire) -> None:
    """The broker would close the connection as soon as it has read the size."""
    answers: Answers = []
    wire.session.lost()
    wire.session.confirm("orders", b"x" * 11, 0, b"k", answers.append)
    assert wire.connect(max_content=10) == []
    [error] = answers
    with pytest.raises(LocalProtocolError) as caught:
        wire.session.confirm("orders", b"x" * 11, 0, b"k", answers.append)
    assert str(caught.value) == str(error)
    assert str(error) == "content is 11 bytes; the limit is 10 (limits.max_content)"
    wire.session.confirm("orders", b"x" * 10, 0, b"k", answers.append)
