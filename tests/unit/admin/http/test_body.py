"""JSON values are counted before parsing; multipart forms are parsed from the whole body."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phpmq_lite.admin.http import body
from phpmq_lite.admin.http.body import HEAD_BYTES, UploadedFile, check_values, read_json, read_parts
from phpmq_lite.admin.http.headers import boundary_of, parse_parameters
from phpmq_lite.admin.http.problems import Problem

ANY = st.recursive(
    st.none() | st.integers() | st.text(alphabet='a,[]{}"\\é', max_size=8),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(alphabet='b,"\\', max_size=3), inner),
    max_leaves=30,
)


def count(value: Any) -> int:
    if isinstance(value, dict):
        return 1 + sum(map(count, value.values()))
    if isinstance(value, list):
        return 1 + sum(map(count, value))
    return 1


@given(ANY, st.integers(1, 9))
def test_values_are_counted_outside_texts(value: Any, block: int) -> None:
    """Every block size gives the same bounds; an empty container counts as one value too many."""
    empty = json.dumps(value).count("[]") + json.dumps(value).count("{}")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(body, "_BLOCK", block)
        for raw in (json.dumps(value), json.dumps(value, ensure_ascii=False, indent=1)):
            found = body._values(raw.encode(), 1 << 30)
            assert count(value) <= found <= count(value) + empty + raw.count("[") + raw.count("{")


@pytest.mark.parametrize(
    "raw", [b"[" + b"{}," * 20_000 + b"{}]", b"[" * 20_000, b"[1" + b",1" * 20_000]
)
def test_too_many_values_are_refused_unread(raw: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json, "loads", lambda _raw: pytest.fail("it was parsed"))
    with pytest.raises(Problem) as refused:
        read_json(raw, 10_000)
    assert (refused.value.status, refused.value.code) == (413, "too_many_values")
    assert refused.value.bound == "10000 values"


def test_punctuation_in_texts_is_not_counted() -> None:
    raw = json.dumps({"content": json.dumps([{"a": ["b,"] * 9}] * 20_000) + "\\"}).encode()
    assert check_values(raw, 10_000) <= 3
    assert read_json(raw, 10_000) == json.loads(raw)


# -- multipart


def form(*made: bytes, end: bytes = b"\r\n--b--\r\n") -> bytes:
    return b"".join(b"\r\n--b\r\n" + part for part in made)[2:] + end


NAMED = b'Content-Disposition: form-data; name="q"\r\n'


def test_parts_have_their_names_and_bytes() -> None:
    file = (
        b'Content-Disposition: form-data; name="file"; filename="x\xc3\xa9.bin"\r\n'
        b"content-type: application/octet-stream\r\n\r\n\x00\r\n--other\r\n\xff\r\n"
    )
    raw = form(NAMED + b"\r\nor\xc3\xa9ders", NAMED + b"\r\n", file)
    assert read_parts(raw, b"b", 10) == [
        ("q", "oréders"),
        ("q", ""),
        ("file", UploadedFile("xé.bin", b"\x00\r\n--other\r\n\xff\r\n")),
    ]


@pytest.mark.parametrize(
    "raw",
    [
        b"", b"--b", b"--b\r\n", form(NAMED + b"\r\nx", end=b""), form(b"\r\nx"),
        form(NAMED + b"\r\n\xff"), form(NAMED + b"X: y\r\n" * (HEAD_BYTES // 6) + b"\r\nx"),
        form(NAMED + b"X" * HEAD_BYTES + b"\r\n\r\nx"), form(*[NAMED + b"\r\nx"] * 11),
    ],
)  # fmt: skip
def test_malformed_multipart_is_an_error_that_the_form_reports(raw: bytes) -> None:
    with pytest.raises(ValueError, match=r"boundary|part|UTF-8|utf-8|form"):
        assert not read_parts(raw, b"b", 10)


@pytest.mark.parametrize(
    ("head", "code"),
    [
        (b"Content-Transfer-Encoding: base64\r\n", "content_encoding"),
        (b"Content-Transfer-Encoding: 7bit\r\nContent-Encoding: gzip\r\n", "content_encoding"),
        (b"Content-Type: text/plain; charset=punycode\r\n", "charset"),
        (b"Content-Type: text/plain; Charset = 'utf-16'\r\n", "charset"),
        (b'Content-Type: text/csv; x="; charset=utf-8"; charset="idna"\r\n', "charset"),
        (b"Content-Type: text/plain;\r\n charset=utf-7\r\n", "charset"),
        (b"Content-Type: text/plain; charset*=punycode''utf-8\r\n", "charset"),
        (b"Content-Type: application/octet-stream; charset=punycode\r\n", "charset"),
    ],
)
def test_part_with_a_charset_or_an_encoding_is_refused(head: bytes, code: str) -> None:
    with pytest.raises(Problem) as refusal:
        assert not read_parts(form(NAMED + head + b"\r\nYQ=="), b"b", 10)
    assert (refusal.value.status, refusal.value.code) == (415, code)


def test_file_name_with_a_charset_is_refused() -> None:
    head = b"Content-Disposition: form-data; name=q; filename*=punycode''x\r\n\r\nx"
    with pytest.raises(Problem, match="punycode"):
        assert not read_parts(form(head), b"b", 10)


@pytest.mark.parametrize(
    ("header", "value", "parameters"),
    [
        ("text/CSV", "text/csv", {}),
        (
            'form-data; name="a;b"; filename="x\\"y"',
            "form-data",
            {"name": "a;b", "filename": 'x"y'},
        ),
        ("a ;B= c ; b=d;;e", "a", {"b": "c"}),
        ('a; b="not closed; c=d', "a", {"b": "not closed; c=d"}),
        ('a; b=""; c=', "a", {"b": "", "c": ""}),
        ("a; b=c;" + ";" * 1_000 + "d=e", "a", {"b": "c"}),
    ],
)
def test_header_is_a_value_with_parameters(
    header: str, value: str, parameters: dict[str, str]
) -> None:
    assert parse_parameters(header) == (value, parameters)


@pytest.mark.parametrize("text", ["multipart/form-data", "multipart/form-data; boundary=", "x"])
def test_boundary_has_to_be_named(text: str) -> None:
    with pytest.raises(ValueError, match="boundary"):
        boundary_of(text)


def test_boundary_may_be_quoted() -> None:
    assert boundary_of('multipart/form-data; charset=utf-8; boundary="a b"') == b"a b"
