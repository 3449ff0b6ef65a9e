"""The fast paths agree with the full rules, or leave the decision to them."""

import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from phpmq_lite.envelopes import verdict
from phpmq_lite.envelopes.indexed_fields import _read_unusual, read_indexed
from tests.support.envelope_cases import CASES, MEMBERS, META, Case, body, ending, nested, with_meta

PIECES = (  # JSON and not quite
    None, "null", "true", "0", "1", "-1", "1.0", "1e0", "1E400", "-0", "01", "1.", "9" * 19,
    "9" * 20, "9" * 309, "1" + "0" * 308, "NaN", '""', '" "', '"\t"', '"!"', '"a"', '" a"',
    '"\\u0061"', '"\\ud800"', '"\\ud83d\\ude00"', '"\\\\u0061"', '"\\/"', '"\\x"', '"ä"', '"\x7f"',
    '"\x01"', '"' + "x" * 512 + '"', '"' + "x" * 513 + '"', "[]", "[1,]", "{}", '{"a":1,"a":2}',
    '{"a":' + "9" * 309 + "}", '{"a":1e309}', '{"a":[' + "[" * 200 + "]" * 200 + "]}",
    '{"a":' + "[" * 256 + "]" * 256 + "}", '{"id":"i","schema_version":1}',
    '{"schema_version":1.0}', '{"schema_version":1,"schema_version":2}', '{"id":3}',
    '{"lang":"php","schema_version":1}', '{"schema_version":1,"ts":3}', "php",
)  # fmt: skip
piece = st.sampled_from(PIECES)


@st.composite
def bodies(draw: st.DrawFn) -> bytes:
    """Give an envelope with some members changed, added or written twice, and bytes of it too."""
    members: list[tuple[str, Any]] = list(MEMBERS.items())
    names = st.sampled_from([*MEMBERS, "urn", "dead_letter", "x", "timestamp"])
    for name in draw(st.lists(names, max_size=2)):
        members = [m for m in members if m[0] != name or draw(st.booleans())]
        members.append((name, draw(piece)))
    meta: list[tuple[str, Any]] = list(META.items())
    for name in draw(st.lists(st.sampled_from([*META, "x", "max_retries"]), max_size=2)):
        meta = [m for m in meta if m[0] != name or draw(st.booleans())]
        meta.append((name, draw(piece)))
    inner = ",".join(f'"{k}":{v}' for k, v in meta if v is not None)
    if meta != list(META.items()):
        members.append(("meta", "{" + inner + "}"))
    text = "{" + ",".join(f'"{k}":{v}' for k, v in members if v is not None) + "}"
    content = text.encode()
    for at, byte in draw(
        st.lists(st.tuples(st.integers(0, 400), st.binary(max_size=2)), max_size=2)
    ):
        content = content[:at] + byte + content[at + draw(st.integers(0, 1)) :]
    return content


def agree(content: bytes) -> None:
    assert read_indexed(content) == _read_unusual(content)
    right = verdict.fast_verdict(content)
    if right is not None:
        for mode in ("php", "never", "always"):
            found = verdict.validate(content, mode)
            assert (found.problem, found.is_tolerated, found.warnings) == (None, False, ())
            assert found.index == right


@given(content=bodies())
@example(content=nested(256))
@example(content=nested(257))
@example(content=ending(',"meta":{"schema_version":1.0},"meta":' + MEMBERS["meta"]))
@example(content=ending(',"attempts":1.0,"attempts":0'))
@example(content=body(data='{"a":' + "9" * 309 + "}"))
def test_quick_ways_agree_with_the_long_ones(content: bytes) -> None:
    agree(content)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_quick_ways_agree_on_the_table(case: Case) -> None:
    agree(case.content)


def test_shortest_body_with_a_number_beyond_a_double_is_above_the_bound() -> None:
    """Where that is not so, ``_is_plain`` would have to look for it in short bodies too."""
    meta = '"meta":{"id":"i","schema_version":1}'
    least = '{"job":"u","trace_id":"t","data":{"":%s},"attempts":0,' + meta + "}"
    assert verdict.validate((least % "0").encode()).problem is None
    assert len(least % ("9" * 309)) > verdict._SHORT_BYTES
    assert len(nested(verdict.DEPTH_LIMIT + 1)) > verdict._SHORT_BYTES


@pytest.mark.parametrize(
    "content",
    [
        body(),
        body(attempts="3", data="{}"),
        with_meta(created_at=None, lang='"php"'),
        json.dumps(json.loads(body()), indent=2).encode(),
        body(data='{"text":"ä\\n\\"\\/"}'),
        body(data='{"text":"%s"}' % ("x" * 60_000)),
    ],
)
def test_usual_bodies_go_the_quick_ways(content: bytes) -> None:
    assert verdict.fast_verdict(content) == read_indexed(content)
    assert None not in (read_indexed(content) or (None,))
