"""Bodies as pages show them: no token changed, nothing hidden, never large."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phpmq_lite.admin import bodies


def text_of(shown: bodies.ShownBody) -> str:
    return "".join(piece.text for piece in shown.pieces)


def test_json_opens_pretty_with_every_token_as_sent() -> None:
    content = b'{"n":123456789012345678901234567890,"n":1.0e400,"a":[],"o":{},"x":[1,{"y":null}]}'
    shown = bodies.show(content, len(content), None)
    assert (shown.view, shown.views) == ("pretty", ("pretty", "raw", "hex"))
    assert text_of(shown) == (
        '{\n  "n": 123456789012345678901234567890,\n  "n": 1.0e400,\n  "a": [],\n  "o": {},\n'
        '  "x": [\n    1,\n    {\n      "y": null\n    }\n  ]\n}'
    )


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(), st.lists, max_leaves=20))
def test_pretty_json_means_the_same(value: object) -> None:
    pieces = bodies.prettify(json.dumps([value], ensure_ascii=True))
    assert pieces is not None
    assert json.loads("".join(piece.text for piece in pieces)) == [value]


def test_pretty_marks_keys_and_values() -> None:
    pieces = bodies.prettify('{"a":["b",1,true]}')
    assert pieces is not None
    kinds = {piece.text: piece.kind for piece in pieces if piece.kind}
    assert kinds == {'"a"': "key", '"b"': "str", "1": "num", "true": "lit"}


@pytest.mark.parametrize(
    "content", [b'{"a":NaN}', b'{"a":1', b"42", b"plain", b"[" * 100_000, b"{'a':1}"]
)
def test_text_that_is_not_json_opens_raw(content: bytes) -> None:
    shown = bodies.show(content, len(content), "pretty")
    assert (shown.view, shown.views) == ("raw", ("raw", "hex"))


def test_deep_json_stays_small() -> None:
    content = b"[" * 900 + b"1" + b"]" * 900
    shown = bodies.show(content, len(content), None)
    assert shown.view == "pretty"
    assert len(text_of(shown)) < 150_000


def test_json_that_would_grow_too_large_is_shown_raw() -> None:
    content = b"[" * 60 + b",".join([b"[1,2]"] * 30_000) + b"]" * 60
    shown = bodies.show(content, len(content), None)
    assert shown.view == "raw"
    assert shown.note == "Too large to indent; shown as sent."


def test_bytes_open_in_hex() -> None:
    shown = bodies.show(b"\xff\x00A", 3, "pretty")
    assert (shown.view, shown.views) == ("hex", ("hex",))
    assert text_of(shown).split() == ["00000000", "ff", "00", "41", "··A"]


def test_cut_in_a_character_does_not_make_text_binary() -> None:
    content = ("é" * 10).encode()
    shown = bodies.show(content[:11], 20, None)
    assert (shown.view, text_of(shown)) == ("raw", "é" * 5)


def test_hostile_characters_are_marked() -> None:
    content = '{"a":"x\u202ey"}'.encode()
    shown = bodies.show(content, len(content), None)
    assert [piece.text for piece in shown.pieces if piece.kind == "esc"] == [r"\u202e"]


def test_preview_is_one_short_line() -> None:
    content = b"a\n\n  b" + b"c" * 500
    shown = "".join(piece.text for piece in bodies.preview(content[:480], len(content)))
    assert shown.startswith("a bc")
    assert len(shown) == bodies.PREVIEW_CHARACTERS


def test_preview_of_bytes_is_hex() -> None:
    assert bodies.preview(b"\xff\xfe", 2) == [("ff fe", "hex")]


def test_content_for_json_is_text_or_base64() -> None:
    for content in (b"plain", b"\xff\x00", "é".encode()):
        assert bodies.from_content(*bodies.as_content(content)) == content
