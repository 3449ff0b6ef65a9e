"""Drafts of messages: placeholders, JSON errors by line, envelopes."""

import json
from itertools import count

import pytest

from phpmq_lite.admin.http import input
from phpmq_lite.admin.http.problems import Problem
from phpmq_lite.admin.messages import drafts


def bodies(text: str, kind: str = "json", number: int = 1, *, is_filled: bool = True) -> list[str]:
    ids = count(1)
    made = drafts.make_bodies(
        text, kind, number, 1_700, lambda: f"id-{next(ids)}", is_filled=is_filled
    )
    return [body.decode() for body in made]


def test_placeholders_are_filled_in_each_copy() -> None:
    text = '{"n": {{n}}, "at": {{ now_ms }}, "a": "{{uuid}}", "b": "{{uuid}}"}'
    assert bodies(text, number=2) == [
        '{"n": 1, "at": 1700, "a": "id-1", "b": "id-2"}',
        '{"n": 2, "at": 1700, "a": "id-3", "b": "id-4"}',
    ]


def test_placeholders_stay_unless_filling_is_requested() -> None:
    assert bodies('"{{n}} {{other}}"', number=2, is_filled=False) == ['"{{n}} {{other}}"'] * 2


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ('{\n  "a": 1,\n}', "line 2, column 9|line 3, column 1"),
        ("", "line 1, column 1"),
        ('{"a": NaN}', "line 1, column 7: NaN is not allowed in JSON"),
        ("[1,\n Infinity]", "line 2, column 2: Infinity"),
        ("[" * 100_000, "line 1"),
    ],
)
def test_wrong_json_names_line_and_column(text: str, where: str) -> None:
    with pytest.raises(Problem, match=where) as caught:
        bodies(text)
    assert (caught.value.status, caught.value.field) == (422, "body")


def test_huge_numbers_are_json() -> None:
    assert bodies("1" * 10_000) == ["1" * 10_000]


def test_text_is_sent_as_it_is() -> None:
    assert bodies("no {json", "text") == ["no {json"]


def test_base64_is_decoded() -> None:
    made = drafts.make_bodies("AP8=\n", "base64", 2, 0, str, is_filled=True)
    assert made == [b"\x00\xff"] * 2
    with pytest.raises(Problem, match="not valid base64"):
        bodies("A", "base64")


def test_envelope_has_the_members_of_the_contract() -> None:
    text = drafts.envelope_text(" urn:babel:orders:created\t", '{"order_id":\n1042}', 'a"b')
    found = json.loads(bodies(text)[0])
    assert found == {
        "job": "urn:babel:orders:created",
        "trace_id": "id-1",
        "data": {"order_id": 1042},
        "meta": {"id": "id-2", "queue": 'a"b', "lang": "python", "schema_version": 1,
                 "created_at": 1_700},
        "attempts": 0,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("urn", "data", "field"), [(" \t", "{}", "urn"), ("a", "[]", "data"), ("a", "{", "data")]
)
def test_envelope_refuses_a_blank_urn_and_other_data(urn: str, data: str, field: str) -> None:
    with pytest.raises(Problem) as caught:
        drafts.envelope_text(urn, data, "orders")
    assert caught.value.field == field


def test_empty_data_is_an_object() -> None:
    assert json.loads(bodies(drafts.envelope_text("a", " ", "q"))[0])["data"] == {}


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b'{"a": 1}\n', ('{"a": 1}\n', "json")),
        (b"plain\ttext", ("plain\ttext", "text")),
        (b"{no json", ("{no json", "text")),
        (b"a\r\nb", ("YQ0KYg==\n", "base64")),
        (b"\x00", ("AA==\n", "base64")),
        (b"\xff", ("/w==\n", "base64")),
    ],
)
def test_body_is_written_as_a_form_can_carry_it(content: bytes, expected: tuple[str, str]) -> None:
    text, kind = drafts.as_form_text(content)
    assert (text, kind) == expected
    text = input.unify_line_breaks(text)
    assert drafts.make_bodies(text, kind, 1, 0, str, is_filled=False) == [content]


def test_line_breaks_of_a_form_are_those_that_were_typed() -> None:
    assert input.unify_line_breaks("a\r\nb\n") == "a\nb\n"
