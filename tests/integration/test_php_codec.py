"""The verdicts, copies and records of ``clients/php``, compared with those of Python."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phpmq_lite.envelopes import validation
from phpmq_lite.envelopes.codec import urn
from tests.support.envelope_cases import CASES, Case, body, edit, record_of, with_meta
from tests.support.php_client import PhpClient, PhpError, needs_php

pytestmark = [pytest.mark.acceptance, needs_php]

URN = "urn:babel:orders:created"
SYNTAX = rb"""
" { } [ ] [] {} , : null true 1 1.0 - 1e400 "x" \ud800 php "data":[], "attempts":"3", "meta":{},
"dead_letter":{},
"""
TOKENS = [*SYNTAX.split(), b"", b" ", b"\\", b"9" * 400, b"\xff", b"\x00", b"\xe2\x98\x95"]


@pytest.fixture(scope="module")
def php() -> Iterator[PhpClient]:
    with PhpClient("127.0.0.1:1") as peer:  # never connects
        yield peer


def block_of(record: bytes) -> dict[str, Any]:
    found = json.loads(record, parse_int=lambda text: int(text[:20]))["dead_letter"]
    assert isinstance(found, dict)
    return found


def compact(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


@pytest.mark.parametrize("case", CASES, ids=lambda case: str(case.name))
def test_php_gives_the_verdict_of_the_table(php: PhpClient, case: Case) -> None:
    problem = php.call("problem", case.content)
    assert (None if problem is None else problem[0]) == case.reason


@pytest.mark.parametrize("case", CASES, ids=lambda case: str(case.name))
def test_php_writes_the_record_of_the_table(php: PhpClient, case: Case) -> None:
    if case.record == "keep":
        assert php.call("record", case.content, b"", "orders", "0" * 32) is None
        return
    record = php.bytes_of("record", case.content, b"", "orders", "0" * 32)
    block = block_of(record)
    assert record == record_of(case, compact(block))
    assert block["reason"] == ("failed" if case.reason is None else "poison")
    assert block.get("detail") == case.reason
    assert (block["original_queue"], block["message_id"]) == ("orders", "0" * 32)
    assert validation.validate(record).problem is None or case.reason is not None


@given(
    st.sampled_from(CASES),
    st.lists(st.tuples(st.integers(0, 400), st.integers(0, 12), st.sampled_from(TOKENS))),
)
def test_php_and_the_broker_agree_on_any_bytes(
    php: PhpClient, case: Case, changes: list[tuple[int, int, bytes]]
) -> None:
    content = case.content[:2_000]
    for at, gone, token in changes:
        content = content[:at] + token + content[at + gone :]
    problem, ours = php.call("problem", content), validation.validate(content).problem
    assert (None if problem is None else problem[0]) == (None if ours is None else ours.reason)


# -- payloads of InitPHP's worker


DELICATE = b'{"e":{},"l":[],"f":1.0,"n":12345678901234567890,"x":1E2,"s":"\\u2028/\\/"}'


@pytest.mark.parametrize("urn", [{}, {"job": None, "urn": '"urn:a"'}], ids=["job", "urn"])
def test_retry_changes_attempts_and_no_other_byte(php: PhpClient, urn: dict[str, Any]) -> None:
    """InitPHP decodes into arrays, where ``{}`` is ``[]`` and a large number is a float."""
    came = b" " + body(data=DELICATE.decode(), unknown='{"a":{}}', **urn) + b"\n"
    handed_back = php.recoded(came, 1)
    assert b'"e":[]' in handed_back
    assert php.bytes_of("carry", came, handed_back) == edit(came, attempts=b"1")


def test_retry_keeps_the_changes_of_a_worker(php: PhpClient) -> None:
    changed = body(data='{"step":2}', attempts="1")
    assert php.bytes_of("carry", body(), changed) == changed


def test_retry_counts_from_a_clamped_number(php: PhpClient) -> None:
    came = body(attempts="-50")
    assert php.bytes_of("carry", came, php.recoded(came, 1)) == body(attempts="1")


@pytest.mark.parametrize("came", [b"\xff", b"[1]", body()[:-1] + b',"attempts":0}'], ids=repr)
def test_retry_of_an_invalid_body_is_the_payload(php: PhpClient, came: bytes) -> None:
    assert php.bytes_of("carry", came, body(attempts="1")) == body(attempts="1")


def test_record_has_the_block_of_the_payload_and_the_bytes_that_came(php: PhpClient) -> None:
    came = body(data=DELICATE.decode())
    block = {
        "reason": "failed", "error": "no stock", "exception": "App\\NoStock", "failed_at": 17,
        "original_queue": "elsewhere", "attempts": 3, "lang": "php",
    }  # fmt: skip
    record = php.bytes_of("record", came, php.recoded(came, 3, block), "orders", "ab")
    assert record.startswith(edit(came, attempts=b"3")[:-1] + b',"dead_letter":{')
    assert block_of(record) == block | {"original_queue": "orders", "message_id": "ab"}


def test_record_of_a_reason_of_initphp_names_it_as_the_detail(php: PhpClient) -> None:
    """InitPHP writes the fault of a body where the contract has only poison."""
    block = {"reason": "invalid_data", "error": None, "attempts": 0}
    malformed = body(data="[1]")
    record = php.bytes_of("record", malformed, php.recoded(malformed, 0, block), "orders", "ab")
    assert block_of(record)["reason"] == "poison"
    assert block_of(record)["detail"] == "poison"
    unknown = php.bytes_of(
        "record", body(), compact({"dead_letter": {"reason": "tired"}}), "q", "ab"
    )
    assert (block_of(unknown)["reason"], block_of(unknown)["detail"]) == ("failed", "tired")


def test_record_of_a_block_of_wrong_types_takes_none_of_it(php: PhpClient) -> None:
    payload = compact({"dead_letter": {"reason": 5, "attempts": "x", "error": [], "lang": {}}})
    block = block_of(php.bytes_of("record", body(attempts="2"), payload, "orders", "ab"))
    assert (block["reason"], block["attempts"], block["error"]) == ("failed", 2, None)
    assert block["lang"] == "php"


# -- making


def test_made_envelope_has_no_findings(php: PhpClient) -> None:
    made = php.bytes_of("make", f" {URN} ", {"n": 1.0, "t": "Grüße ☕ /"}, "orders", "trace")
    assert [problem.reason for problem in validation.lint(made)] == ["not_uuid"]
    whole = php.bytes_of("make", URN)
    assert validation.lint(whole) == ()
    assert (json.loads(made)["job"], json.loads(made)["trace_id"]) == (URN, "trace")
    assert b'{"n":1.0,"t":"Gr\xc3\xbc\xc3\x9fe \xe2\x98\x95 /"}' in made
    assert b'"data":{}' in whole


@pytest.mark.parametrize("arguments", [(" \t",), ("urn:a", [1, 2])], ids=["blank", "list"])
def test_invalid_envelope_is_not_made(php: PhpClient, arguments: Any) -> None:
    with pytest.raises(PhpError, match="BadEnvelope: invalid envelope: poison"):
        php.call("make", *arguments)


UNSUPPORTED = [
    "Closure",
    "DateTime",
    "ArrayObject",
    "Suit",
    "Phpmq\\BadEnvelope",
    "resource (stream)",
]


@pytest.mark.parametrize(
    "kind", [*UNSUPPORTED, "INF", "NAN", "not UTF-8", "name that is not UTF-8"]
)
def test_value_without_a_json_form_is_refused_with_its_pointer(php: PhpClient, kind: str) -> None:
    """json_encode turns a closure into ``{}`` and an object into its public members."""
    with pytest.raises(PhpError) as caught:
        php.call("makeWith", kind)
    assert caught.value.name == "BadEnvelope"
    assert "/data/list/1/a~1b " in str(caught.value)
    assert kind in str(caught.value)


@pytest.mark.parametrize("kind", ["Closure", "DateTime", "ArrayObject"])
def test_object_for_data_is_refused(php: PhpClient, kind: str) -> None:
    with pytest.raises(PhpError, match=f"/data is {kind}; use arrays, stdClass and scalars"):
        php.call("makeOf", kind)


def test_array_that_holds_itself_is_refused(php: PhpClient) -> None:
    with pytest.raises(PhpError, match=r"/again.* is nested more than 256 levels deep"):
        php.call("makeOf", "deeper")


def test_objects_of_json_are_written(php: PhpClient) -> None:
    made = php.bytes_of("makeOf", "stdClass")
    assert b'"data":{"n":1.0,"b":true,"z":null,"s":"\xc3\xa9","o":{}}' in made


@pytest.mark.parametrize(
    "members", [{"job": "urn:a", "urn": "urn:b"}, {"job": " ", "urn": "urn:b"}, {"job": 5}, {}]
)
def test_urn_is_that_of_python(php: PhpClient, members: dict[str, Any]) -> None:
    assert php.call("urn", members) == urn(members)


def test_envelope_of_php_may_have_an_empty_list_for_data(php: PhpClient) -> None:
    of_php = with_meta(lang='"php"').replace(b'{"order_id":1042}', b"[]")
    assert php.call("problem", of_php) is None
    assert php.call("problem", of_php.replace(b'"php"', b'"go"')) is not None
