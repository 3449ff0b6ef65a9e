"""Inspected contents: index, quarantine and dead-letter records."""

import json
from functools import partial
from typing import Any

import pytest

from phpmq_lite.broker import commands, dead_letters
from phpmq_lite.broker.broker import BACKGROUND_BYTES
from phpmq_lite.broker.commands import CommandResult
from phpmq_lite.broker.operator import publishing
from phpmq_lite.broker.queue import Connection
from phpmq_lite.broker.validation import INSPECTED_BYTES_MAX
from phpmq_lite.errors import RefusedError
from phpmq_lite.model import Limits, LoadedRows, Message, State, ValidatedPublish
from tests.support.core_rig import (
    CoreRig,
    event_kinds,
    message,
    outcomes,
    sent_messages,
    sent_receipts,
)
from tests.support.fake_inspector import (
    BAD,
    GOOD,
    block_of,
    expected_record,
    indexed_fields,
    inspection_count,
    rig_with_inspector,
    rig_with_strict_queue,
)


@pytest.fixture
def rig() -> CoreRig:
    return rig_with_inspector()


@pytest.fixture
def strict() -> CoreRig:
    return rig_with_strict_queue()


# -- index


def test_object_is_indexed() -> None:
    batch = rig_with_inspector().publish(GOOD)
    assert indexed_fields(batch.created[0]) == ("urn:a", "t", "i", 3)


@pytest.mark.parametrize("content", [b"x", b"", b" {}", b"{" + b" " * INSPECTED_BYTES_MAX])
def test_content_that_is_no_object_or_too_long_is_not_inspected(
    rig: CoreRig, content: bytes
) -> None:
    batch = rig.publish(content)
    assert inspection_count(rig) == 0
    assert indexed_fields(batch.created[0]) == (None, None, None, None)


def test_opaque_queue_inspects_nothing() -> None:
    rig = rig_with_inspector(payload_policy="opaque")
    assert {indexed_fields(m) for m in rig.publish(GOOD, BAD).created} == {(None, None, None, None)}
    assert inspection_count(rig) == 0


def test_observed_queue_delivers_invalid_content(rig: CoreRig) -> None:
    worker = rig.consumer()
    assert [m.seq for m in sent_messages(rig.publish(BAD), worker)] == [1]


def test_changed_policy_applies_to_new_messages(rig: CoreRig) -> None:
    rig.publish(GOOD)
    rig.run(lambda: rig.configure("orders", {"payload_policy": "opaque"}))
    assert indexed_fields(rig.publish(GOOD).created[0])[0] is None
    rig.run(lambda: rig.configure("orders", {"payload_policy": None}))
    assert indexed_fields(rig.publish(GOOD).created[0])[0] == "urn:a"


# -- quarantine


def test_bad_content_is_dead_lettered_at_once(strict: CoreRig) -> None:
    worker = strict.consumer()
    batch = strict.publish(BAD)
    assert sent_messages(batch, worker) == []
    assert outcomes(batch) == {(State.DEAD, "invalid_data"): [1]}
    original, record = batch.created
    assert batch.bodies[0] == BAD
    assert block_of(batch.bodies[1]) == {
        "reason": "invalid_data", "error": "because", "original_queue": "orders",
        "message_id": original.message_id.decode(), "at": batch.wall_ms,
    }  # fmt: skip
    assert record.queue_id == strict.queue("orders.dlq").queue_id
    assert (record.source.seq, record.source.queue_id) == (1, original.queue_id)
    assert record.source.reason == "invalid_data"
    assert indexed_fields(record) == indexed_fields(original) == (None, "t", "i", 3)
    assert event_kinds(batch) == [(1, "dead_letter")]
    assert (strict.queue().row.live_count, strict.queue().row.live_bytes) == (0, 0)
    assert strict.queue("orders.dlq").row.live_count == 1
    assert strict.queue().counters.published == strict.queue().counters.dead == 1
    assert strict.queue().dead_by_reason == {"invalid_data": 1}


def test_good_and_bad_messages_are_independent(strict: CoreRig) -> None:
    worker = strict.consumer()
    batch = strict.publish(GOOD, BAD, GOOD, b"plain")
    assert [m.body for m in sent_messages(batch, worker)] == [GOOD, GOOD]
    assert outcomes(batch) == {(State.DEAD, "invalid_data"): [2], (State.DEAD, "poison"): [5]}


def test_retry_queue_validates_like_its_origin(rig: CoreRig) -> None:
    rig.publish(GOOD, queue="orders.retry")
    assert not rig.queue("orders.retry").validates
    rig.publish(GOOD)
    rig.run(lambda: rig.configure("orders", {"payload_policy": "envelope"}))
    batch = rig.publish(BAD, queue="orders.retry")
    assert outcomes(batch) == {(State.DEAD, "invalid_data"): [3]}
    rig.run(lambda: rig.configure("orders.retry", {"payload_policy": "observe"}))  # its own setting
    assert outcomes(rig.publish(BAD, queue="orders.retry")) == {}


def test_retry_queue_created_later_validates_too(rig: CoreRig) -> None:
    rig.publish(GOOD)
    rig.run(lambda: rig.configure("orders", {"payload_policy": "envelope"}))
    batch = rig.publish(BAD, queue="orders.retry", ttl_s=9)
    assert (State.DEAD, "invalid_data") in outcomes(batch)


def test_publisher_of_bad_content_gets_its_receipt(strict: CoreRig) -> None:
    publisher = strict.connect()
    batch = strict.run(lambda: commands.publish(strict.core, publisher, "orders", BAD, 0, b"k"))
    assert sent_receipts(batch, publisher) == [(b"k", None)]
    again = strict.run(lambda: commands.publish(strict.core, publisher, "orders", BAD, 0, b"k"))
    assert again.created == []


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"publishing_paused": True}, "dead-letter queue paused"),
        ({"max_messages": 1}, "dead-letter queue queue full: messages"),
        ({"max_bytes": 1}, "dead-letter queue queue full: bytes"),
    ],
)
def test_bad_content_is_refused_if_its_record_is(
    strict: CoreRig, changes: dict[str, Any], reason: str
) -> None:
    strict.publish(BAD)
    strict.run(lambda: strict.configure("orders.dlq", changes))
    publisher = strict.connect()
    batch = strict.run(lambda: commands.publish(strict.core, publisher, "orders", BAD, 0, b"k"))
    assert sent_receipts(batch, publisher) == [(b"k", reason)]
    assert batch.created == []
    with pytest.raises(RefusedError, match="dead-letter queue"):
        publish(strict, BAD)
    assert strict.publish(GOOD).created[0].body is None  # good content is accepted


def test_bad_content_without_a_key_waits_for_its_dead_letter_queue(strict: CoreRig) -> None:
    strict.publish(BAD)
    strict.run(lambda: strict.configure("orders.dlq", {"publishing_paused": True}))
    publisher = strict.connect()
    strict.begin()
    assert commands.publish(strict.core, publisher, "orders", BAD, 0, None) is CommandResult.PARK
    assert strict.finish().created == []
    batch = strict.run(lambda: strict.configure("orders.dlq", {"publishing_paused": False}))
    assert batch.to_resume == {publisher}


def test_bad_content_has_a_record_although_no_more_queues_are_allowed() -> None:
    rig = rig_with_strict_queue(Limits(queues=1))
    rig.publish(GOOD)
    publisher = rig.connect()
    batch = rig.run(lambda: commands.publish(rig.core, publisher, "orders", BAD, 0, b"k"))
    assert sent_receipts(batch, publisher) == [(b"k", None)]
    assert [m.source.seq for m in batch.created] == [None, batch.created[0].seq]
    assert [row.name for row in batch.new_queues] == ["orders.dlq"]


def validate_large(rig: CoreRig, publisher: Connection, content: bytes) -> ValidatedPublish:
    """Publish a large content, which is validated in the background; return the verdict."""
    verdicts: list[ValidatedPublish] = []
    rig.begin()
    result = commands.publish(rig.core, publisher, "orders", content, 0, b"k")
    assert result is CommandResult.VALIDATE
    commands.validate_in_background(rig.core, "orders", content, verdicts.append)
    [(work, deliver)] = rig.finish().background
    assert rig.batch.created == []
    deliver(work())
    return verdicts[0]


def test_large_content_and_its_record_are_prepared_in_the_background(strict: CoreRig) -> None:
    publisher = strict.connect()
    large = b'{"bad":"invalid_data","x":"%b"}' % (b"x" * BACKGROUND_BYTES)
    verdict = validate_large(strict, publisher, large)
    before = inspection_count(strict)
    batch = strict.run(
        lambda: commands.publish(strict.core, publisher, "orders", large, 0, b"k", verdict)
    )
    assert inspection_count(strict) == before
    assert outcomes(batch) == {(State.DEAD, "invalid_data"): [1]}
    assert block_of(batch.bodies[1])["message_id"] == batch.created[0].message_id.decode()


def test_verdict_by_outdated_settings_is_ignored(strict: CoreRig) -> None:
    publisher, large = strict.connect(), b'{"x":"%b"}' % (b"x" * BACKGROUND_BYTES)
    verdict = validate_large(strict, publisher, large)
    strict.run(lambda: strict.configure("orders", {"note": "new"}))
    strict.begin()
    result = commands.publish(strict.core, publisher, "orders", large, 0, None, verdict)
    assert result is CommandResult.VALIDATE


# -- publishing without a connection


def publish(rig: CoreRig, *contents: bytes, key: bytes | None = None) -> Any:
    rig.run(
        lambda: publishing.publish(
            rig.core, rig.answers.append, rig.entry("message.publish"), "orders",
            [(c, None) for c in contents], key=key,
        )
    )  # fmt: skip
    return rig.answers[-1] if rig.answers else None


def test_operator_learns_which_messages_were_quarantined(strict: CoreRig) -> None:
    published = publish(strict, GOOD, BAD)
    assert len(published.ids) == 2
    assert published.quarantined == {published.ids[1]: "invalid_data"}
    assert outcomes(strict.batch) == {(State.DEAD, "invalid_data"): [2]}


def test_operator_waits_for_the_verdict_on_a_large_content(strict: CoreRig) -> None:
    large = b'{"bad":"too_deep","x":"%b"}' % (b"x" * BACKGROUND_BYTES)
    assert publish(strict, GOOD, large) is None
    assert strict.batch.created == []
    [(work, deliver)] = strict.batch.background
    found = work()
    strict.run(lambda: deliver(found))
    [published] = strict.answers
    assert published.quarantined == {published.ids[1]: "too_deep"}


def test_refusal_after_the_verdict_is_the_reply(strict: CoreRig) -> None:
    publish(strict, b'{"x":"%b"}' % (b"x" * BACKGROUND_BYTES))
    [(work, deliver)] = strict.batch.background
    found = work()
    strict.run(lambda: strict.configure("orders", {"publishing_paused": True}))
    strict.run(lambda: deliver(found))
    [_, error] = strict.answers
    assert isinstance(error, RefusedError)
    assert error.code == "paused"


# -- records of messages that are dead-lettered later


def dead_letter(rig: CoreRig, worker: Any, held: Message, *written: tuple[bytes, bytes]) -> Any:
    """Dead-letter a message, and load its body and the records written before."""
    batch = rig.run(lambda: commands.dead_letter(rig.core, worker, "orders", held.message_id))
    target = rig.core.queues.get("orders.dlq")
    assert batch.body_seqs == {held.seq}
    place = 0 if target is None else target.queue_id
    assert batch.record_seqs == {held.seq: (place, place, worker.number)}
    return rig.run(loaded=LoadedRows(bodies={held.seq: GOOD}, records={held.seq: list(written)}))


def test_bare_006_leaves_a_record_with_a_block(rig: CoreRig) -> None:
    worker, held = rig.hold(GOOD, has_body=False)
    batch = dead_letter(rig, worker, held)
    assert outcomes(batch) == {(State.DEAD, "client"): [1]}
    assert block_of(batch.bodies[0])["reason"] == "client"
    assert block_of(batch.bodies[0])["message_id"] == held.message_id.decode()
    assert indexed_fields(batch.created[0]) == ("urn:a", "t", "i", 3)


def test_record_names_an_unsupported_schema_version(rig: CoreRig) -> None:
    worker, held = rig.hold(GOOD, has_body=False)
    rig.run(lambda: commands.dead_letter(rig.core, worker, "orders", held.message_id))
    body = b'{"urn":"urn:a","unread":"unsupported_schema_version"}'
    batch = rig.run(loaded=LoadedRows(bodies={held.seq: body}))
    assert outcomes(batch) == {(State.DEAD, "unsupported_schema_version"): [1]}


def test_record_of_an_opaque_queue_has_the_bytes_of_the_message() -> None:
    rig = rig_with_inspector(payload_policy="opaque")
    worker, held = rig.hold(GOOD, has_body=False)
    assert dead_letter(rig, worker, held).bodies == [GOOD]


def test_record_written_by_the_worker_is_the_only_one(rig: CoreRig) -> None:
    worker, held = rig.hold(GOOD, has_body=False)
    own = expected_record(rig, held)
    [record] = rig.publish(own, queue="orders.dlq", by=worker).created
    assert (record.source.seq, record.source.queue_id) == (1, held.queue_id)
    assert record.source.reason == "no stock"
    batch = dead_letter(rig, worker, held, (record.message_id, own))
    assert outcomes(batch) == {(State.DEAD, "no stock"): [1]}
    assert batch.created == []
    assert event_kinds(batch) == [(1, "dead_letter")]
    assert batch.events[3] == record.message_id.decode()
    assert rig.queue().dead_by_reason == {"no stock": 1}


def test_record_about_another_message_is_ignored(rig: CoreRig) -> None:
    worker, held = rig.hold(GOOD, has_body=False)
    foreign = expected_record(rig, held, message_id=(held.message_id[:16] + b"0" * 16).decode())
    batch = dead_letter(rig, worker, held, (b"%032x" % 9, foreign))
    assert outcomes(batch) == {(State.DEAD, "client"): [1]}
    assert len(batch.created) == 1


@pytest.mark.parametrize("message_id", ["", "x" * 32, "f" * 32, "0" * 32, "1"])
def test_record_with_an_impossible_id_is_linked_to_its_queue_only(
    rig: CoreRig, message_id: str
) -> None:
    rig.publish(GOOD)
    content = expected_record(rig, message(1), message_id=message_id, original_queue="orders")
    [record] = rig.publish(content, queue="orders.dlq").created
    assert (record.source.seq, record.source.reason) == (None, "no stock")
    assert record.source.queue_id == rig.queue().queue_id


def test_message_that_was_never_held_is_dead_lettered_at_once(rig: CoreRig) -> None:
    rig.publish(GOOD)
    stranger = rig.connect()
    made = message(1, body=GOOD)
    made.token = 5
    batch = rig.run(lambda: dead_letters.dead_letter(rig.core, made, "client"))
    assert batch.record_seqs == {}
    assert outcomes(batch) == {(State.DEAD, "client"): [1]}
    assert stranger.is_open


def test_record_of_a_large_message_is_made_in_the_background(rig: CoreRig) -> None:
    large = b'{"urn":"urn:a","x":"%b"}' % (b"x" * BACKGROUND_BYTES)
    worker, held = rig.hold(large, has_body=False)
    rig.run(lambda: commands.dead_letter(rig.core, worker, "orders", held.message_id))
    batch = rig.run(loaded=LoadedRows(bodies={1: large}))
    assert outcomes(batch) == {}
    assert list(rig.core.pending) == [1]
    [(work, deliver)] = batch.background
    made = work()
    batch = rig.run(lambda: deliver(made))
    assert outcomes(batch) == {(State.DEAD, "client"): [1]}
    assert json.loads(batch.bodies[0])["raw"] == large.decode()
    assert rig.core.pending == {}


# -- named dead-letter queues


def test_records_go_to_the_configured_queue(strict: CoreRig) -> None:
    strict.publish(GOOD)
    strict.run(lambda: strict.configure("orders", {"dead_letter_queue": "orders.failed"}))
    batch = strict.publish(BAD)
    failed = strict.queue("orders.failed")
    assert batch.created[1].queue_id == failed.queue_id
    assert failed.is_dead_letter_queue
    assert (failed.settings.max_deliveries, failed.settings.payload_policy) == (0, "observe")
    strict.publish(BAD, queue="orders.failed")  # it accepts anything
    assert failed.row.live_count == 2


def test_queue_is_a_dead_letter_queue_only_while_configured(rig: CoreRig) -> None:
    rig.publish(GOOD, queue="failed")
    rig.publish(GOOD)
    rig.publish(GOOD, queue="mails")
    for name in ("orders", "mails"):
        rig.run(partial(rig.configure, name, {"dead_letter_queue": "failed"}))
    rig.run(lambda: rig.configure("orders", {"dead_letter_queue": None}))
    assert rig.queue("failed").is_dead_letter_queue
    rig.run(lambda: rig.configure("mails", {"dead_letter_queue": "other"}))
    assert not rig.queue("failed").is_dead_letter_queue
    assert rig.queue("failed").settings.max_deliveries == 20


@pytest.mark.parametrize(
    "named",
    [
        {"a": "a"},
        {"a": "b", "b": "a"},
        {"a": "b", "b": "c", "c": "a"},
        {"a.dlq": "a"},
        {"a": "b", "b.dlq": "a"},
    ],
)
def test_cycle_of_dead_letter_queues_is_refused(rig: CoreRig, named: dict[str, str]) -> None:
    for name in named:
        rig.publish(GOOD, queue=name)
    *rest, last = named
    for name in rest:
        rig.run(partial(rig.configure, name, {"dead_letter_queue": named[name]}))
    rig.begin()
    with pytest.raises(RefusedError, match=r"itself|cycle"):
        rig.configure(last, {"dead_letter_queue": named[last]})


def test_dead_letter_queue_by_its_own_name_is_allowed(rig: CoreRig) -> None:
    rig.publish(GOOD)
    rig.run(lambda: rig.configure("orders", {"dead_letter_queue": "orders.dlq"}))
    assert rig.core.registry.dead_letter_name(rig.queue()) == "orders.dlq"
