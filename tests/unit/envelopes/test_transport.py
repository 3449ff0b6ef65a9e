"""The SDK transport: what it hands out, and how each job ends."""

import json
from typing import Any

import pytest
from babelqueue import transport as sdk
from babelqueue.transport import ReceivedMessage

from phpmq_lite.envelopes import dead_letter_record
from phpmq_lite.envelopes.idempotency import IdempotencyDecision
from phpmq_lite.envelopes.transport import PhpmqTransport, RetryDelays
from phpmq_lite.errors import (
    ConnectionLostError,
    EnvelopeError,
    LocalProtocolError,
    PublishRefusedError,
)
from tests.support.envelope_cases import CASES, Case, body, record_of
from tests.unit.envelopes.fake_worker_connection import (
    FakeLink,
    RecordedEvents,
    delivery,
    transport_on,
)

ID = f"{1:032x}"
OTHER_CAPABILITIES = (
    sdk.Rewinder, sdk.Abandoner, sdk.NativeSettler, sdk.BatchPopper, sdk.RoutedPublisher,
    sdk.SettlePublisher, sdk.HeaderPublisher, sdk.DeadLetterNamer,
)  # fmt: skip


def popped(transport: PhpmqTransport) -> ReceivedMessage:
    message = transport.pop("orders")
    assert message is not None
    return message


def handle(transport: PhpmqTransport, message: ReceivedMessage) -> None:
    transport.begin()
    transport.done()
    transport.ack(message)


def retry_body(content: bytes, attempts: int) -> str:
    """Return the SDK's encoding of a retry, of which only ``attempts`` is used."""
    return json.dumps(json.loads(content) | {"attempts": attempts, "data": {"leaked": True}})


def test_sdk_finds_only_our_capabilities() -> None:
    plain: Any = transport_on(FakeLink())
    kinds = (sdk.Redeliverer, sdk.DeadLetterWriter, *OTHER_CAPABILITIES)
    assert [kind for kind in kinds if isinstance(plain, kind)] == list(kinds[:2])
    assert plain.classifies_poison


@pytest.mark.parametrize("case", [c for c in CASES if c.reason is None], ids=lambda c: c.name)
def test_right_envelope_is_handed_out(case: Case) -> None:
    link = FakeLink(case.content)
    message = popped(transport_on(link))
    assert link.calls == []
    if json.loads(case.content)["attempts"] >= 0 and b"-0" not in case.content:
        assert message.body.encode() == case.content


@pytest.mark.parametrize("case", [c for c in CASES if c.reason is not None], ids=lambda c: c.name)
def test_malformed_message_is_dead_lettered_at_its_first_delivery(case: Case) -> None:
    link, recorded = FakeLink(case.content), RecordedEvents()
    assert transport_on(link, recorded).pop("orders") is None
    *records, end = link.calls
    assert end == ("dead_letter", ID)
    ((event, context),) = [it for it in recorded.events if it[0] == "job.dead_letter"]
    assert (event, context["reason"]) == ("job.dead_letter", case.reason)
    if case.reason == "unsupported_schema_version":
        assert records == []  # the broker writes it with unchanged bytes
        return
    ((_, queue, content, ttl_s, key),) = records
    assert (queue, ttl_s, key) == ("orders.dlq", 0, f"{ID}:dead".encode())
    block = dead_letter_record.read_block(content)
    assert block is not None
    assert (block.reason, block.detail, block.message_id) == ("poison", case.reason, ID)
    written = content[content.rindex(b'"dead_letter":') + 14 : -1]  # only the last block
    assert content == record_of(case, written)


def test_negative_attempts_are_handed_out_as_none() -> None:
    message = popped(transport_on(FakeLink(body(attempts="-50"))))
    assert json.loads(message.body)["attempts"] == 0


def test_handled_job_is_acknowledged() -> None:
    link, recorded = FakeLink(body()), RecordedEvents()
    transport = transport_on(link, recorded)
    handle(transport, popped(transport))
    assert link.calls == [("ack", ID)]
    assert recorded.names == ["job.ack"]
    assert recorded.events[0][1] == {
        "queue": "orders",
        "urn": "urn:babel:orders:created",
        "trace_id": "7b3f9c2a-e41d-4f88-9b2a-1c0d5e6f7a8b",
        "message_id": ID,
        "attempt": 0,
    }


def test_ack_without_a_run_records_a_drop() -> None:
    link, recorded = FakeLink(body()), RecordedEvents()
    transport = transport_on(link, recorded)
    transport.ack(popped(transport))
    assert recorded.names == ["job.dropped"]
    assert recorded.events[0][1]["reason"] == "unknown_urn"


@pytest.mark.parametrize(("delay", "ttl_s"), [(0.01, 1), (1.0, 1), (1.2, 2), (15, 15)])
def test_retry_is_published_then_the_job_acknowledged(delay: float, ttl_s: int) -> None:
    content = body(data='{"a":1E2,"b":"\\u2028/"}', attempts="1")
    link = FakeLink(content)
    transport = transport_on(link)
    message = popped(transport)
    transport.redeliver(message, retry_body(content, 2), delay)
    changed = content.replace(b'"attempts":1', b'"attempts":2')
    key = f"{ID}:2".encode()
    assert link.calls == [("publish", "orders.retry", changed, ttl_s, key), ("ack", ID)]


def test_retry_comes_at_once_when_the_retry_queue_cannot_exist() -> None:
    """Otherwise the job would be requeued endlessly: no client can use a name of 256 bytes."""
    link = FakeLink()
    link.waiting.append(delivery(body(), queue="q" * 250))
    transport = transport_on(link)
    transport.redeliver(popped(transport), retry_body(body(), 1), 7.0)
    assert [call[:2] for call in link.calls] == [("publish", "q" * 250), ("ack", ID)]


def test_retry_at_once_goes_back_with_the_time_left() -> None:
    link, seconds = FakeLink(), iter([0.0, 0.0, 4.5, 4.5, 4.5, 4.5])
    link.add(body(), ttl_s=10)
    transport = transport_on(link, monotonic=lambda: next(seconds))
    transport.redeliver(popped(transport), retry_body(body(), 1), 0.0)
    _, queue, _, ttl_s, key = link.calls[0]
    assert (queue, ttl_s, key) == ("orders", 6, f"{ID}:1".encode())


def test_own_back_off_overrides_that_of_the_sdk() -> None:
    link = FakeLink(body())
    transport = transport_on(link, delays=RetryDelays((7,)))
    transport.redeliver(popped(transport), retry_body(body(), 1), 0.0)
    assert link.calls[0][1:4:2] == ("orders.retry", 7)


def test_release_of_an_unknown_urn_changes_no_byte() -> None:
    content = body(attempts="2", timestamp="5")
    link, recorded = FakeLink(content), RecordedEvents()
    transport = transport_on(link, recorded)
    message = popped(transport)
    transport.redeliver(message, message.body, 5.0)
    assert link.calls == [("publish", "orders.retry", content, 5, f"{ID}:2".encode()), ("ack", ID)]
    assert recorded.events[-1][1]["reason"] == "unknown_urn"


def test_job_that_has_not_started_goes_back_to_its_place_at_the_end() -> None:
    link = FakeLink(body())
    transport = transport_on(link)
    message = popped(transport)
    transport.redeliver(message, message.body, 0.0)
    assert link.calls == [("return", "orders")]


def test_interrupted_job_goes_back_with_the_time_left() -> None:
    link, seconds = FakeLink(), iter([0.0, 0.0, 8.2])
    link.add(body(), ttl_s=10)
    transport = transport_on(link, monotonic=lambda: next(seconds))
    message = popped(transport)
    transport.begin()
    transport.redeliver(message, message.body, 0.0)
    assert link.calls == [("requeue", ID, 2)]


def test_job_handled_in_the_last_moment_is_acknowledged_at_shutdown() -> None:
    link = FakeLink(body())
    transport = transport_on(link)
    message = popped(transport)
    transport.begin()
    transport.done()
    transport.redeliver(message, message.body, 0.0)
    assert link.calls == [("ack", ID)]


def test_dead_letter_is_a_record_then_a_006() -> None:
    content = body(attempts="2")
    link, recorded = FakeLink(content), RecordedEvents()
    transport = transport_on(link, recorded)
    message = popped(transport)
    sent = json.loads(content) | {
        "attempts": 3,
        "dead_letter": {"reason": "failed", "error": "no \ud800 stock", "exception": "ValueError"},
    }
    transport.dead_letter(message, "orders.dlq", json.dumps(sent))
    (_, queue, made, ttl_s, key), end = link.calls
    assert (queue, ttl_s, key) == ("orders.dlq", 0, f"{ID}:dead".encode())
    assert end == ("dead_letter", ID)
    changed = content.replace(b'"attempts":2', b'"attempts":3')
    assert made.startswith(changed[:-1] + b',"dead_letter":{')
    block = dead_letter_record.read_block(made)
    assert block is not None
    assert block.original_queue == "orders"
    assert (block.reason, block.error, block.attempts) == ("failed", "no ? stock", 3)
    assert recorded.names == ["job.dead_letter"]


def test_what_dies_in_a_dead_letter_queue_gets_no_record() -> None:
    link = FakeLink()
    transport = transport_on(link)
    link.waiting.append(delivery(b"{", queue="orders.dlq"))
    assert transport.pop("orders.dlq") is None
    assert link.calls == [("dead_letter", ID)]


def test_record_that_is_too_long_is_left_to_the_broker() -> None:
    link = FakeLink(b"{")
    link.refusal = LocalProtocolError("content is 9 bytes; the limit is 8")
    transport_on(link).pop("orders")
    assert link.calls == [("dead_letter", ID)]


@pytest.mark.parametrize(
    "error", [PublishRefusedError("queue_full"), ConnectionLostError("gone"), TimeoutError()]
)
def test_job_goes_back_when_its_copy_is_not_stored(error: Exception) -> None:
    link, recorded = FakeLink(body(), b"{"), RecordedEvents()
    link.refusal = error
    transport = transport_on(link, recorded)
    transport.redeliver(popped(transport), retry_body(body(), 1), 1.0)
    assert transport.pop("orders") is None
    assert link.calls == [("requeue", ID, 0), ("requeue", f"{2:032x}", 0)]
    assert recorded.names == ["process.failed", "process.failed"]


@pytest.mark.parametrize("error", [ConnectionLostError("gone"), OSError(), ValueError("a defect")])
def test_pop_never_raises(error: Exception) -> None:
    link, recorded = FakeLink(), RecordedEvents()
    link.waiting.extend([error, error])
    link.add(body())
    transport = transport_on(link, recorded)
    assert transport.pop("orders") is None
    assert transport.pop("orders") is None
    assert transport.pop("orders") is not None
    expected = ["reserve.failed"] * (2 if isinstance(error, ValueError) else 1)
    assert recorded.names == expected  # an outage is recorded once


def test_each_wait_after_a_dead_letter_has_the_whole_time() -> None:
    """A worker that stops when its queue is empty would stop after a shortened wait."""
    link = FakeLink(b"{", b"{", body())
    seconds = iter([0.0, 0.1, 0.1, 0.9, 0.9, 0.9])
    transport = transport_on(link, monotonic=lambda: next(seconds))
    assert transport.pop("orders", 1.0) is not None
    assert link.waits == [1.0, 1.0, 1.0]


def test_redelivered_finished_job_is_acknowledged_without_a_run() -> None:
    link, recorded = FakeLink(body()), RecordedEvents()
    transport = transport_on(link, recorded)
    message = popped(transport)
    handle(transport, message)
    link.waiting.append(message.handle.delivery)
    assert transport.pop("orders") is None
    assert link.calls == [("ack", ID), ("ack", ID)]
    assert recorded.names == ["job.ack", "job.duplicate"]


class Store:
    """A claim store with a fixed answer that records its calls."""

    def __init__(self, answer: IdempotencyDecision) -> None:
        self.answer = answer
        self.asked: list[Any] = []

    def claim(self, key: str) -> IdempotencyDecision:
        self.asked.append(("claim", key))
        return self.answer

    def remember(self, key: str) -> None:
        self.asked.append(("remember", key))

    def forget(self, key: str) -> None:
        self.asked.append(("forget", key))


CLAIM = "orders\0f1e2d3c4-b5a6-4789-90ab-cdef01234567"


def test_envelope_handled_before_is_acknowledged_without_a_run() -> None:
    link, recorded = FakeLink(body()), RecordedEvents()
    transport = transport_on(link, recorded, idempotency_store=Store(IdempotencyDecision.DONE))
    assert transport.pop("orders") is None
    assert link.calls == [("ack", ID)]
    assert recorded.names == ["job.duplicate"]


def test_envelope_in_flight_comes_again_later() -> None:
    link = FakeLink(body())
    transport = transport_on(link, idempotency_store=Store(IdempotencyDecision.IN_FLIGHT))
    assert transport.pop("orders") is None
    assert link.calls == [("publish", "orders.retry", body(), 5, f"{ID}:0".encode()), ("ack", ID)]


def test_claim_is_remembered_at_ack_and_forgotten_at_failure() -> None:
    store = Store(IdempotencyDecision.RUN)
    transport = transport_on(FakeLink(body(), body()), idempotency_store=store)
    message = popped(transport)
    handle(transport, message)
    transport.redeliver(popped(transport), retry_body(body(), 1), 1.0)
    assert [call for call, _ in store.asked] == ["claim", "remember", "claim", "forget"]
    assert {key for _, key in store.asked} == {CLAIM}


def test_claim_of_an_interrupted_job_is_forgotten_at_close() -> None:
    store = Store(IdempotencyDecision.RUN)
    transport = transport_on(FakeLink(body()), idempotency_store=store)
    popped(transport)
    transport.close()
    assert store.asked[-1] == ("forget", CLAIM)


def test_publish_refuses_what_no_consumer_would_handle() -> None:
    link = FakeLink()
    transport = transport_on(link)
    for text in ('{"job":"a"}', body(data='{"a":NaN}').decode(), "\ud800"):
        with pytest.raises(EnvelopeError):
            transport.publish("orders", text)
    assert link.calls == []


def test_outdated_members_are_reported_once() -> None:
    link, recorded = FakeLink(body(timestamp="1"), body(timestamp="2")), RecordedEvents()
    transport = transport_on(link, recorded)
    popped(transport)
    popped(transport)
    assert recorded.names == ["job.warning"]


# -- a broker that retries, and writes records, by itself


def informed(content: bytes = body(), **info: Any) -> FakeLink:
    return FakeLink(content, **({"attempt": 1, "hold_s": 30} | info))


def test_retry_keeps_the_message() -> None:
    link, recorded = informed(), RecordedEvents()
    transport = transport_on(link, recorded)
    transport.max_attempts = 5
    message = popped(transport)
    transport.begin()
    transport.failed(ValueError("no stock"))
    transport.redeliver(message, retry_body(body(), 1), 2.5)
    [(how, message_id, options, content)] = link.calls
    assert (how, message_id, content) == ("retry", ID, None)  # the broker adds the attempt
    assert options.pop("traceback").endswith("ValueError: no stock\n")
    assert options == {
        "delay_s": 2.5, "attempt": 1, "limit": 5, "error": "ValueError: no stock",
        "exception": "ValueError",
    }  # fmt: skip
    assert recorded.events[-1][1]["delay_s"] == 2.5


@pytest.mark.parametrize(
    ("attempts", "attempt", "before"), [("1", 3, 2), ("4", 3, 4), ("-5", 1, 0)]
)
def test_attempts_are_those_of_the_body_or_more_if_the_broker_knows_more(
    attempts: str, attempt: int, before: int
) -> None:
    """It does not change the bodies of an opaque queue, and a killed worker changes none."""
    link = informed(body(attempts=attempts), attempt=attempt)
    transport = transport_on(link)
    message = popped(transport)
    assert json.loads(message.body)["attempts"] == before
    transport.redeliver(message, retry_body(body(), before + 1), 0.0)
    [(how, _, options, content)] = link.calls
    assert (how, options["attempt"], content) == ("retry", attempt, None)


@pytest.mark.parametrize("reason", ["unknown_urn", "in_flight", "interrupted"])
def test_return_counts_no_attempt(reason: str) -> None:
    link, recorded = informed(), RecordedEvents()
    store = Store(IdempotencyDecision.IN_FLIGHT) if reason == "in_flight" else None
    transport = transport_on(link, recorded, idempotency_store=store)
    message = transport.pop("orders")
    if message is not None:
        if reason == "interrupted":
            transport.begin()
        delay_s = 5.0 if reason == "unknown_urn" else 0.0
        transport.redeliver(message, message.body, delay_s)
    [(how, _, options, content)] = link.calls
    assert (how, options["failed"], content) == ("retry", False, None)
    assert options["delay_s"] == (0 if reason == "interrupted" else 5)
    assert (recorded.names, recorded.events[0][1]["reason"]) == (["job.released"], reason)


def dead_letter(transport: PhpmqTransport, queue: str, exception: str | None = "X") -> None:
    block = {"reason": "failed", "error": "no stock", "exception": exception}
    message = popped(transport)
    record = json.loads(body()) | {"attempts": 1, "dead_letter": block}
    transport.dead_letter(message, queue, json.dumps(record))


def test_dead_letter_leaves_its_record_to_the_broker() -> None:
    link = informed()
    dead_letter(transport_on(link), "orders.dlq")
    options = {"reason": "failed", "error": "no stock", "exception": "X"}
    assert link.calls == [("dead_letter", ID, options, None)]


def test_record_in_a_queue_that_only_the_worker_knows_is_its_own() -> None:
    link = informed()
    dead_letter(transport_on(link), "graves")
    assert [call[0] for call in link.calls] == ["publish", "dead_letter"]


def test_malformed_message_is_dead_lettered_with_its_reason() -> None:
    link = informed(b"{")
    assert transport_on(link).pop("orders") is None
    [(how, _, options, _)] = link.calls
    assert (how, options["reason"]) == ("dead_letter", "poison")


def test_retried_message_runs_again_under_its_id() -> None:
    """An acknowledged one does not, even after another delivery."""
    link = informed()
    transport = transport_on(link)
    message = popped(transport)
    transport.redeliver(message, retry_body(body(), 1), 0.0)
    link.waiting.append(delivery(body(attempts="1"), attempt=2))
    handle(transport, popped(transport))
    link.waiting.append(delivery(body(attempts="1"), attempt=3))
    assert transport.pop("orders") is None
    assert [call[0] for call in link.calls] == ["retry", "ack", "ack"]
