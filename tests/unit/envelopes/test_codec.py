"""Encoding and decoding of envelopes, and what is refused before it is sent."""

import datetime
import json
from collections import UserDict
from enum import StrEnum
from typing import Any
from uuid import UUID

import pytest

from phpmq_lite.envelopes.codec import decode, encode, from_message, make, urn
from phpmq_lite.envelopes.indexed_fields import read_indexed_fields
from phpmq_lite.envelopes.validation import DEPTH_LIMIT, lint, validate
from phpmq_lite.errors import EnvelopeError, PhpmqError
from tests.support.envelope_cases import CASES, META, Case, body, to_json


def complete(data: Any = None, **changes: Any) -> dict[str, Any]:
    return make("urn:babel:orders:created", {} if data is None else data, queue="orders") | changes


def test_made_envelope_has_no_lint() -> None:
    content = encode(make("urn:babel:orders:created", {"a": [1, 0.5, None, True, "é"]}))
    assert validate(content).problem is None
    assert lint(content) == ()


def test_make_trims_blank_and_keeps_the_trace() -> None:
    made = make("\turn:a ", {}, "q", trace_id=" t ", meta={"ext": {"acme": 1}})
    assert (made["job"], made["trace_id"], made["attempts"]) == ("urn:a", "t", 0)
    assert made["meta"]["queue"] == "q"
    assert made["meta"]["ext"] == {"acme": 1}


def test_make_begins_a_new_trace_and_id_each_time() -> None:
    one, two = make("urn:a", {}), make("urn:a", {}, trace_id="  ")
    ids = {one["trace_id"], two["trace_id"], one["meta"]["id"], two["meta"]["id"]}
    assert len({UUID(text) for text in ids}) == 4


@pytest.mark.parametrize("urn", ["", " \t\n\v\f\r"])
def test_make_refuses_blank_urn(urn: str) -> None:
    with pytest.raises(EnvelopeError):
        make(urn, {})


@pytest.mark.parametrize(
    "name", ["id", "queue", "lang", "schema_version", "created_at", "max_retries", "attempts", "ts"]
)
def test_make_refuses_reserved_meta(name: str) -> None:
    with pytest.raises(EnvelopeError, match=f"/meta/{name}"):
        make("urn:a", {}, meta={name: 1})


@pytest.mark.parametrize(
    "call",
    [
        lambda: make(5, {}),  # type: ignore[arg-type]
        lambda: make("urn:a", []),  # type: ignore[arg-type]
        lambda: make("urn:a", {}, trace_id=5),  # type: ignore[arg-type]
        lambda: make("urn:a", {}, queue=None),  # type: ignore[arg-type]
        lambda: make("urn:a", {}, meta=[]),  # type: ignore[arg-type]
        lambda: encode([]),  # type: ignore[arg-type]
    ],
)
def test_wrong_arguments_are_envelope_errors(call: Any) -> None:
    with pytest.raises(EnvelopeError) as caught:
        call()
    assert isinstance(caught.value, PhpmqError)


class Order:
    def get_babel_urn(self) -> str:
        return "urn:babel:orders:created"

    def to_payload(self) -> dict[str, Any]:
        return {"order_id": 1042}


class TracedOrder(Order):
    def __init__(self, trace_id: str | None) -> None:
        self.trace_id = trace_id

    def get_babel_trace_id(self) -> str | None:
        return self.trace_id


def test_message_becomes_an_envelope() -> None:
    made = from_message(Order(), "orders")
    assert (made["job"], made["data"]) == ("urn:babel:orders:created", {"order_id": 1042})
    assert made["meta"]["queue"] == "orders"


def test_message_continues_its_trace() -> None:
    assert from_message(TracedOrder("t"))["trace_id"] == "t"
    begun = from_message(TracedOrder(None))["trace_id"]
    assert str(UUID(begun)) == begun


def test_message_without_the_methods_is_refused() -> None:
    with pytest.raises(EnvelopeError, match="get_babel_urn"):
        from_message(object())


def test_encoded_text_is_compact_and_unescaped() -> None:
    content = encode(complete({"a": "é/☕\u2028"}))
    assert '"data":{"a":"é/☕\u2028"}'.encode() in content


class Colour(StrEnum):
    RED = "red"


def test_subclasses_that_json_writes_are_taken() -> None:
    content = encode(complete({"colour": Colour.RED, "pair": (1, 2)}))
    assert json.loads(content)["data"] == {"colour": "red", "pair": [1, 2]}


@pytest.mark.parametrize(
    ("data", "pointer"),
    [
        ({"a": [0, float("nan")]}, "/data/a/1"),
        ({"a": float("inf")}, "/data/a"),
        ({"a": "\ud800"}, "/data/a"),
        ({"\udc00": 1}, "/data/"),
        ({"a/b~c": datetime.datetime.now(datetime.UTC)}, "/data/a~1b~0c"),
        ({"a": {1, 2}}, "/data/a"),
        ({"a": b"x"}, "/data/a"),
        ({"a": UserDict()}, "/data/a"),
        ({"a": {1: 2}}, "/data/a"),
        ({"a": 10**309}, "/data"),
        ({"a": 10**5000}, "/data"),
    ],
)
def test_encode_refuses_what_json_lacks(data: dict[str, Any], pointer: str) -> None:
    with pytest.raises(EnvelopeError, match=pointer):
        encode(complete(data))


def test_encode_refuses_a_value_that_holds_itself() -> None:
    data: dict[str, Any] = {}
    data["a"] = data
    with pytest.raises(EnvelopeError, match=f"more than {DEPTH_LIMIT} levels"):
        encode(complete(data))


def test_encode_takes_as_many_levels_as_the_verdict() -> None:
    def nested(levels: int) -> list[Any]:
        value: list[Any] = []
        for _ in range(levels - 1):
            value = [value]
        return value

    encode(complete({"a": nested(DEPTH_LIMIT - 2)}))
    with pytest.raises(EnvelopeError, match="levels"):
        encode(complete({"a": nested(DEPTH_LIMIT - 1)}))


@pytest.mark.parametrize(
    ("changes", "pointer"),
    [
        ({"urn": "urn:b"}, "/urn"),
        ({"timestamp": 1}, "/timestamp"),
        ({"meta": {"schema_version": 1, "max_retries": 3}}, "/meta/max_retries"),
        ({"meta": {"schema_version": 2}}, "/meta/schema_version"),
        ({"meta": None}, "/meta"),
        ({"data": []}, "/data"),
        ({"trace_id": ""}, "/trace_id"),
        ({"attempts": True}, "/attempts"),
        ({"attempts": 1.0}, "/attempts"),
        ({"attempts": 1 << 63}, "/attempts"),
        ({"job": None}, "missing_urn"),
    ],
)
def test_encode_refuses_what_no_consumer_handles(changes: dict[str, Any], pointer: str) -> None:
    with pytest.raises(EnvelopeError, match=pointer):
        encode(complete(**changes))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_decode_takes_what_the_verdict_takes(case: Case) -> None:
    if case.reason is not None:
        with pytest.raises(EnvelopeError, match=case.reason):
            decode(case.content)
        return
    envelope = decode(case.content)
    assert "urn" not in envelope
    assert isinstance(envelope["data"], dict)
    index = validate(case.content).index
    assert index is not None
    assert envelope["job"] == index.urn


def test_decode_folds_the_alias_and_keeps_the_rest() -> None:
    envelope = decode(body(job="5", urn='"urn:b"', x='{"y":[1]}', timestamp="1"))
    assert envelope["job"] == "urn:b"
    assert envelope["x"] == {"y": [1]}
    assert "timestamp" not in envelope


def test_decode_reads_tolerated_list_as_object() -> None:
    content = body(data="[]", meta=to_json({**META, "lang": '"go"'}))
    assert decode(content, "always")["data"] == {}
    with pytest.raises(EnvelopeError, match="/data"):
        decode(content)


def test_what_was_decoded_can_be_encoded() -> None:
    envelope = decode(body(urn='"urn:b"', timestamp="1", x="[1]"))
    assert decode(encode(envelope)) == envelope


@pytest.mark.parametrize("read", [decode, validate, lint, read_indexed_fields])
def test_text_is_read_as_its_utf_8(read: Any) -> None:
    content = body(data='{"name":"Zoë ☕"}')
    assert read(content.decode()) == read(content) == read(bytearray(content))
    lone = validate(content.decode() + "\ud800").problem
    assert lone == validate(content + b"\xed\xa0\x80").problem


@pytest.mark.parametrize("read", [decode, validate, lint, read_indexed_fields])
@pytest.mark.parametrize("wrong", [None, 5, {"job": "urn:a"}, [body()]], ids=repr)
def test_other_types_are_envelope_errors(read: Any, wrong: Any) -> None:
    with pytest.raises(EnvelopeError, match=f"the body is a {type(wrong).__name__}, not bytes"):
        read(wrong)


@pytest.mark.parametrize(
    ("members", "expected"),
    [
        ({"job": "urn:a", "urn": "urn:b"}, "urn:a"),
        ({"job": " \t", "urn": "urn:b"}, "urn:b"),
        ({"job": 5, "urn": "urn:b"}, "urn:b"),
        ({"urn": "\n"}, ""),
        ({}, ""),
    ],
)
def test_urn_is_job_or_its_alias(members: dict[str, Any], expected: str) -> None:
    assert urn(members) == expected


def test_urn_of_what_was_decoded() -> None:
    assert urn(decode(body(job=None, urn='"urn:b"'))) == "urn:b"
    with pytest.raises(EnvelopeError, match="the envelope must be a mapping, not bytes"):
        urn(body())  # type: ignore[arg-type]
