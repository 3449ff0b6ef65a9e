"""Masks of bodies: what they replace, and that they let nothing through."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phpmq_lite.errors import OptionError
from phpmq_lite.spark.body_mask import mask_body, parse_path

MAIL = parse_path("data.email")


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("data.email", ("data", "email")),
        ("/data/email", ("data", "email")),
        ("/a~1b/c~0d/e.f", ("a/b", "c~d", "e.f")),
        ("data.*.email", ("data", "*", "email")),
    ],
)
def test_pointers_and_names_are_paths(text: str, path: tuple[str, ...]) -> None:
    assert parse_path(text) == path


@pytest.mark.parametrize("text", ["", "/", "a..b", "/a/"])
def test_empty_names_are_refused(text: str) -> None:
    with pytest.raises(OptionError, match="a name is empty"):
        parse_path(text)


@pytest.mark.parametrize(
    ("body", "masked", "count"),
    [
        (b'{"data": {"email": "a", "n": 1}}', b'{"data":{"email":null,"n":1}}', 1),
        (b'{"data":{"\\u0065mail":"a"}}', b'{"data":{"email":null}}', 1),
        (b'{"data":{"email":"a","email":"b"}}', b'{"data":{"email":null}}', 1),
        (b'{"data": {"email": {"x": [1]}}}', b'{"data":{"email":null}}', 1),
        (b'{"data": {"email": null}}', b'{"data": {"email": null}}', None),  # keeps its bytes
        (b'{"data": {}, "x": 1.50}', b'{"data": {}, "x": 1.50}', None),
        (b'{"data": ["email"]}', b'{"data": ["email"]}', None),
        (b'{"id": 12345678901234567890123, "data": {"email": 1}}',
         b'{"id":12345678901234567890123,"data":{"email":null}}', 1),
        (b'{"a": "\\ud800", "data": {"email": 1}}',
         '{"a":"\ud800","data":{"email":null}}'.encode("utf-8", "surrogatepass"), 1),
        (b"[1]", None, 0),
        (b"email=a", None, 0),
        (b"\xff", None, 0),
        (b"[" * 100_000, None, 0),
        (b"", None, 0),
        (None, None, None),
    ],
)  # fmt: skip
def test_members_are_replaced_and_other_bodies_removed(
    body: bytes | None, masked: bytes | None, count: int | None
) -> None:
    assert mask_body(body, [MAIL]) == (masked, count)


def test_star_is_each_element_or_member() -> None:
    body = json.dumps({"data": {"people": [{"email": 1}, {"email": 2}, 3], "x": {"email": 4}}})
    paths = [parse_path("data.people.*.email"), parse_path("/data/people/2")]
    masked, count = mask_body(body.encode(), paths)
    assert json.loads(masked or b"") == {
        "data": {"people": [{"email": None}, {"email": None}, None], "x": {"email": 4}}
    }
    assert count == 3


_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["data", "email", "x"]), inner, max_size=3)
    ),
    max_leaves=12,
)


@given(document=_json, is_ascii=st.booleans())
def test_no_masked_value_is_left(document: Any, is_ascii: bool) -> None:
    body = json.dumps(document, ensure_ascii=is_ascii).encode()
    masked, _ = mask_body(body, [MAIL])
    if masked is not None:
        data = json.loads(masked).get("data")
        assert not isinstance(data, dict) or data.get("email") is None
    again = mask_body(masked, [MAIL])
    assert again == (masked, None)
