"""Dead-letter records: their four forms, parsing the block, and redriven content."""

import json
from dataclasses import replace

import pytest

from phpmq_lite.envelopes.dead_letter_record import (
    DeadLetterBlock,
    build_record,
    read_block,
    redrive_content,
    with_attempt_added,
    with_attempts,
)
from tests.support.envelope_cases import CASES, Case, body, record_of

BLOCK = DeadLetterBlock(
    reason="poison",
    original_queue="orders",
    failed_at=1749132727000,
    attempts=3,
    error='it said "no"\n☕',
    exception="ValueError",
    detail="missing_trace_id",
    message_id="0123456789abcdef0123456789abcdef",
)
SMALL = DeadLetterBlock(reason="failed", original_queue="q", failed_at=1, attempts=0)
LONG = b"1" * 5_000  # more digits than Python converts
WRITTEN = (
    '{"reason":"poison","error":"it said \\"no\\"\\n☕","exception":"ValueError",'
    '"failed_at":1749132727000,"original_queue":"orders","attempts":3,"lang":"python",'
    '"detail":"missing_trace_id","message_id":"0123456789abcdef0123456789abcdef"}'
).encode()
SHORT = (
    b'{"reason":"failed","error":null,"exception":null,"failed_at":1,"original_queue":"q",'
    b'"attempts":0,"lang":"python"}'
)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_record_has_the_expected_form_and_block(case: Case) -> None:
    made = build_record(case.content, BLOCK)
    assert made == record_of(case, WRITTEN)
    assert build_record(case.content, BLOCK, keeps_content=True) is case.content
    if case.record != "keep":
        assert read_block(made) == BLOCK
        assert isinstance(json.loads(made, parse_int=str), dict)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_redriven_record_is_the_original_content(case: Case) -> None:
    """Equal to the byte, except for attempts and for an earlier block."""
    redriven = redrive_content(build_record(case.content, BLOCK))
    if case.record == "replace":
        assert b"dead_letter" not in redriven
        assert json.loads(redriven)["attempts"] == 0
    elif case.name in SET_TO_0:
        assert json.loads(redriven) == json.loads(case.content) | {"attempts": 0}
    else:
        assert redriven == case.content


SET_TO_0 = ("attempts 7", "attempts negative", "attempts negative zero", "attempts smallest",
            "white space everywhere")  # fmt: skip


def test_content_is_kept_when_its_version_is_the_cause() -> None:
    """A queue may accept ``data: []`` from any language, so the caller's cause counts as well."""
    content = body(data="[]", meta='{"lang":"go","schema_version":2}')
    unsupported = replace(SMALL, detail="unsupported_schema_version")
    assert build_record(content, unsupported) == content
    assert build_record(content, SMALL) != content


def test_block_leaves_out_our_members_when_they_are_empty() -> None:
    assert build_record(b"{}", SMALL) == b'{"dead_letter":' + SHORT + b"}"


def test_block_with_half_a_surrogate_pair_can_be_written() -> None:
    block = read_block(build_record(b"{}", replace(SMALL, error="\ud800x")))
    assert block is not None
    assert block.error == "?x"


def test_wrapper_of_text_says_the_bytes_exactly() -> None:
    content = '\ufeff"\\\u2028\x00\x1f\x7f\ufffd☕'.encode()
    made = build_record(content, BLOCK)
    assert json.loads(made)["raw"].encode() == content
    assert redrive_content(made) == content


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b"{}", None),
        (b"hello", None),
        (b"\xff", None),
        (b"[" * 5000, None),
        (b'{"dead_letter":null}', None),
        (b'{"dead_letter":[]}', None),
        (b'{"dead_letter":{}}', None),
        (b'{"dead_letter":{"reason":"failed"}}', None),
        (b'{"dead_letter":{"reason":5,"original_queue":"q"}}', None),
        (b'{"dead_letter":{"reason":"failed","original_queue":"q","attempts":"3"}}', None),
        (b'{"dead_letter":{"reason":"failed","original_queue":"q","attempts":1.0}}', None),
        (b'{"dead_letter":{"reason":"failed","original_queue":"q","message_id":5}}', None),
        (
            b'{"dead_letter":{"reason":"failed","original_queue":"q","x":1,"error":null}}',
            replace(SMALL, failed_at=0, lang=""),
        ),
        (b'{"dead_letter":1,"dead_letter":{"reason":"failed","original_queue":"q"}}', None),
    ],
)
def test_block_of_other_types_is_none(text: bytes, expected: DeadLetterBlock | None) -> None:
    assert read_block(text) == expected


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"hello", b"hello"),
        (b"\xff", b"\xff"),
        (b'{"attempts":3}', b'{"attempts":3}'),  # no envelope, no block
        (body(attempts="3"), body()),
        (body(attempts='"3"'), body(attempts='"3"')),
        (body(attempts='"3"', dead_letter="{}"), body(attempts='"3"')),
        (body(attempts="1.0", dead_letter="{}"), body(attempts="1.0")),
        (body(attempts=None, dead_letter="{}"), body(attempts=None)),
        (body(meta='{"schema_version":2}', attempts="3"),) * 2,
        (body(meta='{"schema_version":2}', dead_letter="{}"),) * 2,
        (b'{"attempts":2,"dead_letter":{},"attempts":5}', b'{"attempts":0}'),
        (b'{"raw":"x","dead_letter":{}}', b"x"),
        (b'{"raw":"/w==","raw_encoding":"base64","dead_letter":{}}', b"\xff"),
        (b'{"dead_letter":{},"raw":"x"}', b"x"),
        (b'{"raw":5,"dead_letter":{}}', b'{"raw":5}'),
        (b'{"raw":%b,"dead_letter":{}}' % LONG, b'{"raw":%b}' % LONG),
        (b'{"raw":"x","raw_encoding":%b,"dead_letter":{}}' % LONG,
         b'{"raw":"x","raw_encoding":%b}' % LONG),
        (b'{"raw":"x","raw_encoding":"hex","dead_letter":{}}', b'{"raw":"x","raw_encoding":"hex"}'),
        (b'{"raw":"?","raw_encoding":"base64","dead_letter":{}}',
         b'{"raw":"?","raw_encoding":"base64"}'),
        (b'{"raw":"\\ud800","dead_letter":{}}', b'{"raw":"\\ud800"}'),
        (b'{"raw":"x","job":"urn:a","dead_letter":{}}', b'{"raw":"x","job":"urn:a"}'),
        (b'{"raw":"x","raw":"y","dead_letter":{}}', b'{"raw":"x","raw":"y"}'),
    ],
)  # fmt: skip
def test_redrive_changes_block_attempts_and_wrapper_only(content: bytes, expected: bytes) -> None:
    assert redrive_content(content) == expected


def test_wrapper_in_a_wrapper_is_unwrapped_once() -> None:
    wrapper = build_record(b"hello", BLOCK)
    assert redrive_content(build_record(wrapper, BLOCK)) == wrapper


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (body(), body(attempts="4")),
        (body(attempts="4"), body(attempts="4")),
        (body(attempts="-0"), body(attempts="4")),
        (body(attempts="4.0"), body(attempts="4.0")),
        (body(attempts=None), body(attempts=None)),
        (b'{"attempts": 4, "a":1}', b'{"attempts": 4, "a":1}'),
        (b'{ "attempts" :  9 , "a":1}', b'{ "attempts" :  4 , "a":1}'),
        (b'{"attempts":9,"a":{"attempts":9},"attempts":9}', b'{"a":{"attempts":9},"attempts":4}'),
    ],
)
def test_attempts_are_set_by_a_splice(content: bytes, expected: bytes) -> None:
    assert with_attempts(content, 4) == expected


@pytest.mark.parametrize(
    ("attempts", "expected"),
    [(b"0", b"1"), (b" -50 ", b" -49 "), (b"1.0", None), (b'"1"', None), (b"9" * 20, None)],
)
def test_failed_attempt_is_added_to_an_integer(attempts: bytes, expected: bytes | None) -> None:
    text = b"x" * (2 << 20)  # more than is indexed
    content = b'{"a":"%s","attempts":%s}' % (text, attempts)
    changed = None if expected is None else b'{"a":"%s","attempts":%s}' % (text, expected)
    assert with_attempt_added(content) == changed


def test_attempts_of_no_object_cannot_be_set() -> None:
    with pytest.raises(ValueError, match="not a JSON object"):
        with_attempts(b"[]", 1)


def test_names_of_a_wrapper_are_the_sdks() -> None:
    names = json.loads(build_record(b"\xff", BLOCK)).keys()
    assert names == {"raw", "raw_encoding", "dead_letter"}
