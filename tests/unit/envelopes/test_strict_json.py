"""Where JSON members start and end, and which bytes an edit leaves alone."""

import json

import pytest

from phpmq_lite.envelopes.strict_json import edit_members, find_members
from tests.support.envelope_cases import CASES, Case, edit, nested

SAMPLE = (
    b' \n{ "a" : [1, {"a": 2}] ,\t"b\xc3\xa9" :"x\\"}," , "\\u0061":-1.5e3,"\xe2\x98\x95":{}} \r\n'
)


def test_offsets_are_bytes_and_lead_to_names_and_values() -> None:
    pieces = [
        (
            member.name,
            SAMPLE[member.start : member.start + 1],
            SAMPLE[member.value_start : member.end],
        )
        for member in find_members(SAMPLE)
    ]
    assert pieces == [
        ("a", b'"', b'[1, {"a": 2}]'),
        ("bé", b'"', b'"x\\"},"'),
        ("a", b'"', b"-1.5e3"),
        ("☕", b'"', b"{}"),
    ]


@pytest.mark.parametrize("content", [b"{}", b" { } ", b"{\n}"])
def test_empty_object_has_no_members(content: bytes) -> None:
    assert find_members(content) == []


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_members_are_found_where_json_finds_an_object(case: Case) -> None:
    is_object = case.record not in ("wrap", "base64") or "dead_letter" in str(case.content)
    if not is_object:
        try:
            found = find_members(case.content)
        except ValueError:
            return
        assert found  # an object with a lone surrogate, or one like a wrapper
    assert [member.name for member in find_members(case.content)] == [
        name for name, _ in json.loads(case.content, object_pairs_hook=tuple, parse_int=str)
    ]


NO_OBJECTS = b"""
[] null { {"a"} {"a":} {"a":1,} {,"a":1} {"a":1}} {"a":NaN} {"a":01} {'a':1} {1:1} {"a":1}x
"""


@pytest.mark.parametrize(
    "content",
    [
        *NO_OBJECTS.split(),
        b"",
        b'{"a":1 "b":2}',
        b'{"a":"\xff"}',
        b'\xef\xbb\xbf{"a":1}',
        b'{"a":"\x01"}',
        nested(257),
    ],
)
def test_find_members_refuses_other_content(content: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        find_members(content)


def test_find_members_accepts_256_levels() -> None:
    assert len(find_members(nested(256))) == 5


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"{}", b'{"n":7}'),
        (b"{ }\n", b'{ "n":7}\n'),
        (b'{"a":1}', b'{"a":1,"n":7}'),
        (b'{"a":"}" } ', b'{"a":"}" ,"n":7} '),
        (b'{"n":1}', b'{"n":7}'),
        (b'{ "n" : 1 , "a":2}', b'{ "n" : 7 , "a":2}'),
        (b'{"n":1,"a":2,"n":{"n":3},"b":4}', b'{"a":2,"n":7,"b":4}'),
        (b'{"a":1, "n":1 ,"n":2}', b'{"a":1 ,"n":7}'),
        (b'{"N":1}', b'{"N":1,"n":7}'),
        (b'{"\\u006e":1}', b'{"\\u006e":7}'),
        (b'{"a":{"n":1}}', b'{"a":{"n":1},"n":7}'),
    ],
)
def test_member_is_replaced_or_added(content: bytes, expected: bytes) -> None:
    assert edit(content, n=b"7") == expected
    assert json.loads(expected)["n"] == 7


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"{}", b"{}"),
        (b'{"a":1}', b'{"a":1}'),
        (b'{"n":1}', b"{}"),
        (b'{ "n":1 }', b"{  }"),
        (b'{"n":1,"a":2}', b'{"a":2}'),
        (b'{ "n":1 , "a":2 }', b'{ "a":2 }'),
        (b'{"a":2,"n":1}', b'{"a":2}'),
        (b'{"a":2 , "n":1 }', b'{"a":2  }'),
        (b'{"n":1,"n":2,"a":3,"n":4}', b'{"a":3}'),
        (b'{"n":1,"n":2}', b"{}"),
        (b'{"a":1,"n":2,"n":3,"b":4}', b'{"a":1,"b":4}'),
    ],
)
def test_member_is_removed(content: bytes, expected: bytes) -> None:
    assert edit(content, n=None) == expected


def test_several_changes_in_one_pass() -> None:
    content = b'{"n":1,"a":2,"m":3}'
    assert edit_members(content, find_members(content), {"n": None, "m": b"9", "z": b"0"}) == (
        b'{"a":2,"m":9,"z":0}'
    )
    assert edit_members(
        content, find_members(content), {"n": None, "a": None, "m": None, "z": b"0"}
    ) == (b'{"z":0}')
    assert edit_members(content, find_members(content), {}) is content
