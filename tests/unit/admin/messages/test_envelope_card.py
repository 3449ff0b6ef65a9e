"""Envelope cards of valid and invalid envelopes, of records and of any bytes."""

import json
import re
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from phpmq_lite.admin.messages.envelope_card import (
    PROBLEMS_SHOWN,
    TEXT_CHARACTERS,
    EnvelopeCard,
    JudgeOptions,
    empty_list_data_of,
    looks_like_envelope,
    make_card,
    other_queue,
    shorten,
)
from phpmq_lite.envelopes.dead_letter_record import DeadLetterBlock, build_record
from phpmq_lite.envelopes.indexed_fields import IndexedFields
from phpmq_lite.envelopes.payload_schema import read_schema
from phpmq_lite.envelopes.schema_registry import RegisteredSchema, SchemaRegistry
from phpmq_lite.envelopes.validation import REASONS
from phpmq_lite.queue_settings import QueueSettings
from phpmq_lite.storage.statements import parts
from tests.unit.admin.messages.test_message_life import ROW

META: dict[str, Any] = {
    "id": "a1c2d3e4-0000-4000-8000-000000000001", "queue": "orders", "lang": "php",
    "schema_version": 1, "created_at": 1_767_326_400_000,
}  # fmt: skip
RIGHT: dict[str, Any] = {
    "job": "urn:babel:orders:created", "trace_id": "4bf92f35-77b3-4da6-a3ce-929d0e0e4736",
    "data": {"order_id": 1042}, "meta": META, "attempts": 2,
}  # fmt: skip
BLOCK = DeadLetterBlock(
    reason="failed",
    original_queue="orders",
    failed_at=1_767_326_400_000,
    attempts=3,
    error="no answer",
    detail="max_deliveries",
)


def written(**changes: Any) -> bytes:
    return json.dumps(RIGHT | changes).encode()


def card_of(content: bytes, asked: JudgeOptions | None = None) -> EnvelopeCard:
    found = make_card(content, asked or JudgeOptions())
    assert found is not None
    return found


def test_right_envelope_has_all_its_facts_and_nothing_wrong() -> None:
    card = card_of(written())
    assert card.index == IndexedFields(RIGHT["job"], RIGHT["trace_id"], META["id"], 2)
    assert card.members == {
        "lang": "php", "queue": "orders", "created_at": 1_767_326_400_000, "schema_version": 1
    }  # fmt: skip
    assert (card.reason, card.problems, card.remarks, card.block) == (None, (), 0, None)


def test_first_problem_is_that_of_the_verdict_and_the_rest_follow() -> None:
    card = card_of(written(attempts=True, meta=META | {"lang": "cobol", "id": "x"}))
    assert card.reason == "poison"
    assert card.problems[0].pointer == "/attempts"
    assert {problem.pointer for problem in card.problems[1:]} >= {"/meta/lang", "/meta/id"}
    assert card.remarks == len([p for p in card.problems if p.reason not in REASONS])


def test_remarks_of_a_producer_do_not_make_it_wrong() -> None:
    card = card_of(written(trace_id="no uuid"))
    assert card.reason is None
    assert card.remarks == 1


def test_shown_problems_are_bounded() -> None:
    many = ",".join(f'"attempts":"{n}"' for n in range(PROBLEMS_SHOWN + 10))
    card = card_of(f'{{"job":"urn:a",{many}}}'.encode())
    assert len(card.problems) == PROBLEMS_SHOWN
    assert card.hidden >= 10


@pytest.mark.parametrize(
    "content",
    [b'{"order_id": 1042}', b'{"attempts": 3}', b"[]", b"", b"hello", b'{"trace_id":"x"}'],
)
def test_other_content_has_no_card_unless_it_should_be_an_envelope(content: bytes) -> None:
    assert make_card(content, JudgeOptions()) is None
    card = card_of(content, JudgeOptions(is_meant=True))
    assert card.reason == "poison"


def test_empty_list_as_data_follows_the_switch_of_the_queue() -> None:
    content = written(data=[])
    assert card_of(content).verdict.is_tolerated
    assert card_of(content, JudgeOptions("never")).reason == "poison"
    assert empty_list_data_of(QueueSettings(empty_list_data="always")) == "always"
    assert empty_list_data_of(QueueSettings(empty_list_data="never")) == "never"
    assert empty_list_data_of(None) == "php"


def test_record_is_validated_as_it_would_be_redriven() -> None:
    card = card_of(build_record(written(), BLOCK))
    assert (card.reason, card.block, card.is_wrapped) == (None, BLOCK, False)
    assert card.index.attempts == 2  # of the record; a redrive starts at 0


def test_wrapped_record_shows_what_is_in_it() -> None:
    card = card_of(build_record(b'{"job": "urn:a"', BLOCK))
    assert (card.reason, card.is_wrapped, card.block) == ("poison", True, BLOCK)
    plain = card_of(build_record(b"\xff\xfe", BLOCK))
    assert (plain.reason, plain.is_wrapped) == ("poison", True)


def test_schema_mismatch_counts_if_the_queue_is_strict() -> None:
    schema = read_schema({"type": "object", "properties": {"order_id": {"type": "string"}}})
    urn = str(RIGHT["job"])
    seen = JudgeOptions(schemas=SchemaRegistry({urn: RegisteredSchema(urn, "order.json", schema)}))
    assert card_of(written(), seen).reason is None
    assert card_of(written(), seen).problems[0].reason == "schema_mismatch"
    assert card_of(written(), replace(seen, is_strict=True)).reason == "schema_mismatch"
    assert card_of(written(data={"order_id": "a"}), replace(seen, is_strict=True)).reason is None


def test_envelope_in_another_queue_than_its_own_is_reported() -> None:
    card = card_of(written())
    assert other_queue(card, replace(ROW, queue="mail")) == "orders"
    assert other_queue(card, replace(ROW, queue="orders")) == ""
    assert other_queue(card, replace(ROW, queue="orders.retry")) == ""
    assert other_queue(card, replace(ROW, queue=None)) == ""
    record = card_of(build_record(written(), BLOCK))
    assert other_queue(record, replace(ROW, queue="orders.dlq")) == ""


@pytest.mark.parametrize(
    ("value", "shown"),
    [(True, "true"), ([1], "a list"), ({"a": 1}, "an object"), (1.5, 1.5), (None, None),
     ("x" * 5_000, "x" * TEXT_CHARACTERS + " …")],
)  # fmt: skip
def test_member_of_another_type_is_named(value: object, shown: object) -> None:
    assert card_of(written(meta=META | {"lang": value})).members["lang"] == shown


def test_cut_leaves_short_texts() -> None:
    assert (shorten("a"), shorten(None)) == ("a", "")


def test_urn_or_two_members_look_like_an_envelope() -> None:
    assert looks_like_envelope(IndexedFields("u", None, None, None))
    assert looks_like_envelope(IndexedFields(None, "t", None, 0))
    assert not looks_like_envelope(IndexedFields(None, "t", None, None))
    assert not looks_like_envelope(None)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=8,
)
MEMBERS = ("job", "urn", "trace_id", "data", "meta", "attempts", "dead_letter", "raw")


@given(st.binary() | st.dictionaries(st.sampled_from(MEMBERS), VALUES).map(
    lambda body: json.dumps(body).encode()
))  # fmt: skip
@example(b"[" * 100_000)
@example(b'{"job":' + b'{"a":' * 5_000)
@example(b'{"job":"u","meta":{"created_at":' + b"9" * 10_000 + b"}}")
@example(b'{"job":"\\ud800","trace_id":"\\udfff","meta":{"lang":"\\ud800"}}')
@example(b'{"job":"u","job":1,"meta":null,"meta":[]}')
def test_card_of_any_bytes_agrees_with_the_verdict(content: bytes) -> None:
    strict = JudgeOptions("never", is_strict=True)
    for asked in (JudgeOptions(), JudgeOptions(is_meant=True), strict):
        card = make_card(content, asked)
        if card is not None:
            assert (card.reason is None) == (card.verdict.problem is None)
            assert card.reason is None or card.problems[0] == card.verdict.problem
            assert len(card.problems) <= PROBLEMS_SHOWN
            json.dumps(dict(card.members))


def test_search_lists_the_reasons_of_a_verdict() -> None:
    assert tuple(re.findall(r"'(\w+)'", parts("search", "sqlite")["reasons"])) == REASONS
