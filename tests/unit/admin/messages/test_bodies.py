"""Bodies as pages show them: tokens unchanged, nothing hidden, size bounded."""

import json
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phpmq_lite.admin.formats import TextPiece
from phpmq_lite.admin.messages import bodies


def join(pieces: Iterable[TextPiece]) -> str:
    return "".join(piece.text for piece in pieces)


def view(content: bytes, as_view: str | None = "pretty") -> bodies.ShownBody:
    return bodies.view_body(content, len(content), as_view)


def test_pretty_json_has_every_token_as_sent() -> None:
    content = b'{"n":123456789012345678901234567890,"n":1.0e400,"a":[],"o":{},"x":[1,{"y":null}]}'
    shown = view(content)
    assert (shown.view, shown.views) == ("pretty", ("tree", "pretty", "raw", "hex"))
    assert join(shown.pieces) == (
        '{\n  "n": 123456789012345678901234567890,\n  "n": 1.0e400,\n  "a": [],\n  "o": {},\n'
        '  "x": [\n    1,\n    {\n      "y": null\n    }\n  ]\n}'
    )


def test_pretty_marks_keys_and_values() -> None:
    pieces = bodies.prettify('{"a":["b",1,true]}')
    assert pieces is not None
    kinds = {piece.text: piece.kind for piece in pieces if piece.kind}
    assert kinds == {'"a"': "key", '"b"': "str", "1": "num", "true": "lit"}


@pytest.mark.parametrize(
    "content", [b'{"a":NaN}', b'{"a":1', b"4", b"x", b"[" * 100_000, b"{'a':1}"]
)
def test_text_that_is_not_json_opens_raw(content: bytes) -> None:
    shown = view(content)
    assert (shown.view, shown.views) == ("raw", ("raw", "hex"))


def test_deep_json_stays_small() -> None:
    content = b"[" * 900 + b"1" + b"]" * 900
    shown = view(content)
    assert shown.view == "pretty"
    assert len(join(shown.pieces)) < 150_000


def test_json_that_would_grow_too_large_is_shown_raw() -> None:
    content = b"[" * 60 + b",".join([b"[1,2]"] * 30_000) + b"]" * 60
    shown = view(content)
    assert shown.view == "raw"
    assert shown.note == "This body is too large to indent, so it is shown as sent."


def test_bytes_open_in_hex() -> None:
    shown = view(b"\xff\x00A")
    assert (shown.view, shown.views) == ("hex", ("hex",))
    assert join(shown.pieces).split() == ["00000000", "ff", "00", "41", "··A"]


def test_cut_character_does_not_make_text_binary() -> None:
    content = ("é" * 10).encode()
    shown = bodies.view_body(content[:11], 20, None)
    assert (shown.view, join(shown.pieces)) == ("raw", "é" * 5)


def test_hostile_characters_are_marked() -> None:
    content = '{"a":"x\u202ey"}'.encode()
    shown = view(content)
    assert [piece.text for piece in shown.pieces if piece.kind == "esc"] == [r"\u202e"]


def test_preview_is_one_short_line() -> None:
    content = b"a\n\n  b" + b"c" * 500
    shown = join(bodies.preview(content[:480], len(content)))
    assert shown.startswith("a bc")
    assert len(shown) == bodies.PREVIEW_CHARACTERS


def test_preview_of_bytes_is_hex() -> None:
    assert bodies.preview(b"\xff\xfe", 2) == [("ff fe", "hex")]


def test_content_for_json_is_text_or_base64() -> None:
    for content in (b"plain", b"\xff\x00", "é".encode()):
        assert bodies.from_content(*bodies.as_content(content)) == content


def tokens(branch: bodies.BodyBranch) -> str:
    """Return the JSON that a tree shows, as one text."""
    value = join(branch.value)
    inner = ",".join(
        (join(child.key) + ":" if child.key else "") + tokens(child) for child in branch.children
    )
    return value or f"{branch.mark}{inner}{branch.close}"


def test_json_opens_as_a_tree_with_every_value_as_sent() -> None:
    """Big integers and repeated keys are kept; texts lose unnecessary escapes."""
    content = b'{"n":123456789012345678901234567890,"n":1.0e400,"u":"\\u0041","a":[],"":{"x":[1]}}'
    shown = view(content, None)
    assert shown.view == "tree"
    assert shown.tree is not None
    assert tokens(shown.tree) == content.decode().replace("\\u0041", "A")
    assert [child.count for child in shown.tree.children] == [0, 0, 0, 0, 1]


@pytest.mark.parametrize(
    ("sent", "shown"),
    [
        (r'"Gr\u00fc\u00dfe"', '"Grüße"'),
        (r'"a\/b\ud83d\ude00"', '"a/b😀"'),
        (r'"line\nnext \"q\" \\"', r'"line\nnext \"q\" \\"'),
        (r'"\u202e\u200b\ud800"', r'"\u202e\u200b\ud800"'),
        ("1.0e400", "1.0e400"),
        (r'"no json \x"', r'"no json \x"'),
    ],
)
def test_text_of_a_tree_is_readable(sent: str, shown: str) -> None:
    assert bodies.unescape_token(sent) == shown


@pytest.mark.parametrize(
    ("content", "shown"),
    [
        ('{"job":"urn:a","trace_id":"t","data":{"n":1,"s":"\\u00fc"}}', '{"n": 1, "s": "ü"}'),
        ('{"job":"urn:a","data":[1,[2]],"attempts":0}', "[1, [2]]"),
        ('{"job":"urn:a","data":null}', "null"),
        ('{"job":"urn:a","meta":{"data":1}}', ""),
        ('{"job":"urn:a","data":{"cut":"he', '{"cut": "he'),
        ("[1]", ""),
    ],
)
def test_preview_of_an_envelope_shows_its_data(content: str, shown: str) -> None:
    found = bodies.preview_data(content.encode(), len(content.encode()))
    assert join(found) == shown


def test_tail_shows_urn_and_data_of_an_envelope() -> None:
    content = b'{"job":"urn:a","trace_id":"t","data":{"n":1}}'
    found = bodies.preview_envelope(content, len(content))
    assert join(found) == 'urn:a {"n": 1}'
    assert bodies.preview_envelope(b'{"a":1}', 7) == bodies.preview(b'{"a":1}', 7)


def test_text_in_json_has_no_tree() -> None:
    shown = view(b'"text"', "tree")
    assert (shown.view, shown.views, shown.tree) == ("pretty", ("pretty", "raw", "hex"), None)


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(), st.lists, max_leaves=20))
def test_pretty_json_and_tree_mean_the_same(value: object) -> None:
    pieces = bodies.prettify(json.dumps([value], ensure_ascii=True))
    assert pieces is not None
    assert json.loads(join(pieces)) == [value]
    root, is_whole = bodies.build_tree(json.dumps([value], separators=(",", ":")))
    assert is_whole
    assert json.loads(tokens(root)) == [value]


def test_tree_keeps_deeper_levels_as_one_text() -> None:
    root, is_whole = bodies.build_tree("[" * 100 + "1" + "]" * 100)
    depth, branch = 0, root
    while branch.children:
        depth, branch = depth + 1, branch.children[0]
    assert (depth, is_whole) == (bodies.TREE_DEPTH, True)
    assert tokens(branch) == "[" * 76 + "1" + "]" * 76


@pytest.mark.parametrize(
    "member",
    ['{"a":[1]}', "[" * 30 + "1" + "]" * 30, "1"],
    ids=["objects", "deep lists", "numbers"],
)
def test_tree_has_a_bounded_number_of_nodes(member: str) -> None:
    def count(branch: bodies.BodyBranch) -> int:
        return 1 + sum(map(count, branch.children))

    text = "[" + ",".join([member] * 2_500) + "]"
    shown = view(text.encode(), "tree")
    assert shown.tree is not None
    assert count(shown.tree) <= bodies.TREE_NODES
    assert (shown.tree.count, shown.note is not None) == (2_500, True)
    assert shown.tree.hidden > 0


def test_tree_cuts_long_texts_and_marks_hidden_characters() -> None:
    root, _ = bodies.build_tree('["' + "x" * 10_000 + '","a\u202eb"]')
    long, hidden = root.children
    assert long.value[-1].text == " … 6,002 more characters"
    assert [piece.text for piece in hidden.value if piece.kind == "esc"] == [r"\u202e"]


@pytest.mark.parametrize("piece", [" ", "\n", '"\\', '"', "a", "{ "])
@pytest.mark.parametrize("start", ["", '{"data": 1}', '{"job":"urn:a","data":{"x":"'])
def test_body_is_shown_in_time_that_grows_with_its_size(start: str, piece: str) -> None:
    """Spaces after a document took quadratic time: 300 KB did not end within minutes."""
    content = (start + piece * (300_000 // len(piece))).encode()
    assert bodies.view_body(content, len(content), None).view in bodies.VIEWS
    bodies.preview_envelope(content, len(content))
    bodies.preview_data(content, len(content))
