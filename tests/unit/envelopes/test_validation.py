"""Verdicts, the order of reasons, indexed fields, warnings and lint."""

import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from phpmq_lite.envelopes import validation
from phpmq_lite.envelopes.indexed_fields import (
    INDEX_BYTES,
    INDEX_CHARACTERS,
    IndexedFields,
    _read_unusual,
    read_indexed,
    read_indexed_fields,
)
from phpmq_lite.envelopes.validation import CONVENTION, REASONS, EmptyListData, lint, validate
from tests.support.envelope_cases import (
    CASES,
    MEMBERS,
    META,
    PIECES,
    Case,
    body,
    ending,
    nested,
    to_json,
    with_meta,
)

URN = "urn:babel:orders:created"
TRACE_ID = "7b3f9c2a-e41d-4f88-9b2a-1c0d5e6f7a8b"
META_ID = "f1e2d3c4-b5a6-4789-90ab-cdef01234567"


def reasons(content: bytes) -> list[str]:
    return [problem.reason for problem in lint(content)]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_verdict_is_that_of_the_table(case: Case) -> None:
    verdict = validate(case.content)
    problem = verdict.problem
    assert (problem.reason if problem else None) == case.reason
    if problem is not None:
        assert problem.pointer == case.pointer
        assert case.detail in problem.detail
        assert lint(case.content)[0] == problem
    assert verdict.is_tolerated == case.is_tolerated
    if case.reason is None:
        assert len(verdict.warnings) == case.warnings


def test_table_has_ninety_bodies_of_different_names_and_every_reason() -> None:
    assert len(CASES) >= 90
    assert len({case.name for case in CASES}) == len(CASES)
    assert {case.reason for case in CASES} == {None, *REASONS} - {"schema_mismatch"}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_quick_and_full_readers_index_the_same(case: Case) -> None:
    """The quick reader, msgspec, refuses bodies with half a surrogate pair."""
    quick = read_indexed_fields(case.content)
    if quick is not None:
        assert validate(case.content).index == quick
    if case.reason is None:
        assert quick is not None


def test_first_reason_wins_when_everything_is_wrong() -> None:
    """Fixing one fault after another yields the reasons in the order of REASONS."""
    members: dict[str, str | None] = {"job": "5", "x": "[" * 300 + "]" * 300}
    steps: list[tuple[str, str | None]] = [
        ("x", None),
        ("job", '"urn:a"'),
        ("meta", "{}"),
        ("meta", '{"schema_version":1}'),
        ("data", "{}"),
        ("trace_id", '"t"'),
        ("attempts", "0"),
    ]
    found = []
    for name, text in [("job", "5"), *steps]:
        members[name] = text
        problem = validate(to_json(members).encode()).problem
        found.append(problem.reason if problem else None)
    assert found == [
        "too_deep",
        "poison",
        "missing_meta",
        "unsupported_schema_version",
        "invalid_data",
        "missing_trace_id",
        "invalid_attempts",
        None,
    ]


@pytest.mark.parametrize(
    ("lang", "mode", "reason"),
    [
        ("php", "php", None),
        ("php", "always", None),
        ("php", "never", "poison"),
        ("go", "php", "poison"),
        ("go", "always", None),
        ("go", "never", "poison"),
    ],
)
def test_empty_list_as_data_by_mode(lang: str, mode: EmptyListData, reason: str | None) -> None:
    content = body(data="[]", meta=to_json({**META, "lang": f'"{lang}"'}))
    verdict = validate(content, mode)
    assert (verdict.problem.reason if verdict.problem else None) == reason
    assert verdict.is_tolerated == (reason is None)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"{}", IndexedFields(None, None, None, None)),
        (body(attempts="7"), IndexedFields(URN, TRACE_ID, META_ID, 7)),
        (body(data="[1]"), IndexedFields(URN, TRACE_ID, META_ID, 0)),  # poison
        (body(job="5", urn='"urn:b"'), IndexedFields("urn:b", TRACE_ID, META_ID, 0)),
        (body(job='" "', urn='"urn:b"'), IndexedFields("urn:b", TRACE_ID, META_ID, 0)),
        (body(urn='"urn:b"'), IndexedFields(URN, TRACE_ID, META_ID, 0)),
        (
            body(job="null", trace_id="[]", meta="3", attempts="{}"),
            IndexedFields(None, None, None, None),
        ),
        (body(trace_id='""'), IndexedFields(URN, None, META_ID, 0)),
        (body(attempts="1.0"), IndexedFields(URN, TRACE_ID, META_ID, None)),
        (body(attempts="1e3"), IndexedFields(URN, TRACE_ID, META_ID, None)),
        (body(attempts="1e400"), IndexedFields(URN, TRACE_ID, META_ID, None)),
        (body(attempts="true"), IndexedFields(URN, TRACE_ID, META_ID, None)),
        (body(attempts="9" * 30), IndexedFields(URN, TRACE_ID, META_ID, (1 << 63) - 1)),
        (body(attempts="-" + "9" * 30), IndexedFields(URN, TRACE_ID, META_ID, -(1 << 63))),
        (body(attempts=f"{2**64 - 1}"), IndexedFields(URN, TRACE_ID, META_ID, (1 << 63) - 1)),
        (body(attempts="9" * 5_000), IndexedFields(URN, TRACE_ID, META_ID, (1 << 63) - 1)),
        (with_meta(id="5"), IndexedFields(URN, TRACE_ID, None, 0)),
        (ending(',"job":"urn:z","attempts":2'), IndexedFields("urn:z", TRACE_ID, META_ID, 2)),
        (ending(',"job":5,"attempts":"2"'), IndexedFields(None, TRACE_ID, META_ID, None)),
        (ending(',"meta":{}'), IndexedFields(URN, TRACE_ID, None, 0)),
        (b'{"meta":5,' + body()[1:], IndexedFields(URN, TRACE_ID, META_ID, 0)),
    ],
)
def test_index_has_members_of_the_right_type(content: bytes, expected: IndexedFields) -> None:
    assert read_indexed_fields(content) == expected
    assert validate(content).index == expected


def test_index_cuts_long_texts() -> None:
    text = "é" * (INDEX_CHARACTERS + 1)
    content = body(job=f'"{text}"', trace_id=f'"{text}"', meta=f'{{"id":"{text}"}}')
    cut = text[:-1]
    expected = IndexedFields(cut, cut, cut, 0)
    assert read_indexed_fields(content) == validate(content).index == expected


def test_index_leaves_out_content_above_its_limit() -> None:
    exact = body(data='{"a":"%s"}' % ("x" * (INDEX_BYTES - len(body(data='{"a":""}')))))
    assert len(exact) == INDEX_BYTES
    assert read_indexed_fields(exact) is not None
    assert read_indexed_fields(exact + b" ") is None


@pytest.mark.parametrize("content", [b"", b"hello", b"[]", b"null", b"\xff", b'{"job":', b"5"])
def test_other_content_has_no_index(content: bytes) -> None:
    assert read_indexed_fields(content) is None


def test_warnings_name_the_members() -> None:
    content = body(job="5", urn='"urn:a"', timestamp="1", meta='{"schema_version":1,"ts":2}')
    assert validate(content).warnings == (
        "/job is 5, not a string, and is ignored",
        "/timestamp is outdated and ignored",
        "/meta/ts is outdated and ignored",
    )


def test_warning_never_repeats_a_long_value() -> None:
    warnings = validate(body(job="9" * 4000, urn='"urn:a"')).warnings
    assert warnings == ("/job is an integer beyond 64 bits, not a string, and is ignored",)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (body(), []),
        (body(job=None, urn='"urn:babel:a:b"'), ["missing_job", "alias"]),
        (body(urn='"urn:b"'), ["alias"]),
        (body(job='" urn:babel:a:b"'), ["untrimmed"]),
        (body(trace_id='"t"'), ["not_uuid"]),
        (body(trace_id='"{7b3f9c2a-e41d-4f88-9b2a-1c0d5e6f7a8b}"'), ["not_uuid"]),
        (body(trace_id='"7B3F9C2A-E41D-4F88-9B2A-1C0D5E6F7A8B"'), []),
        (with_meta(id='"1"'), ["not_uuid"]),
        (with_meta(id=None), ["missing_id"]),
        (with_meta(queue='" "'), ["missing_queue"]),
        (with_meta(lang="null"), ["missing_lang"]),
        (with_meta(lang='"cobol"'), ["unknown_lang"]),
        (with_meta(created_at=None), ["missing_created_at"]),
        (with_meta(created_at="-1"), ["negative"]),
        (body(attempts="-1"), ["negative"]),
        (body(timestamp="1"), ["outdated"]),
        (body(dead_letter="null"), ["dead_letter"]),
        (ending(',"attempts":0'), ["repeated"]),
        (with_meta(id='"x","id":' + META["id"]), ["repeated"]),
        (body(data="[]", meta=to_json({**META, "lang": '"php"'})), ["empty_list_data"]),
        (body(attempts='"3"', data="5", trace_id="null"), ["poison", "poison", "missing_trace_id"]),
        (body(job=None, meta=None), ["poison", "missing_meta", "missing_job"]),
        (b"\xff", ["poison"]),
    ],
)
def test_lint_finds_deviations_from_the_contract(content: bytes, expected: list[str]) -> None:
    assert reasons(content) == expected


@pytest.mark.parametrize(
    ("urn", "why"),
    [
        ("App\\\\Jobs\\\\UserRegistered", "looks like a class name"),
        ("UserRegistered", "looks like a class name"),
        ("Users::Registered", "looks like a class name"),
        ("users.registered", "does not begin with urn:babel:"),
        ("urn:babel:Orders:Created", "contains capital letters"),
        ("urn:babel:orders", "does not follow the convention"),
        ("urn:babel:orders:created:twice", "does not follow the convention"),
        ("x" * 1_000, "x" * 80 + "… does not begin"),
    ],
)
def test_lint_hints_at_the_convention_and_nothing_refuses(urn: str, why: str) -> None:
    for content in (body(job=f'"{urn}"'), body(job=None, urn=f'"{urn}"')):
        hint = lint(content)[-1]
        assert hint.reason == CONVENTION
        assert why in hint.detail
        assert "urn:babel:<context>:<event>" in hint.detail
        assert len(hint.detail) < 300
        assert validate(content).problem is None


@pytest.mark.parametrize(
    "urn",
    ["orders:created", "orders:invoice.requested", "users:registered", "catalog:item.indexed"],
)
def test_lint_has_no_hint_for_the_urns_of_the_documents(urn: str) -> None:
    assert lint(body(job=f'"urn:babel:{urn}"')) == ()


def test_pointers_of_lint_lead_to_members_of_the_contract() -> None:
    content = to_json(dict.fromkeys(MEMBERS, "null") | {"meta": "{}", "urn": "1"}).encode()
    for problem in lint(content):
        assert problem.pointer.count("/") <= 2
        assert problem.detail
    assert json.loads(content)["job"] is None


piece = st.sampled_from((None, *PIECES))


@st.composite
def bodies(draw: st.DrawFn) -> bytes:
    """Return an envelope with changed, added or repeated members and changed bytes."""
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
    changes = st.tuples(st.integers(0, 400), st.binary(max_size=2))
    for at, byte in draw(st.lists(changes, max_size=2)):
        content = content[:at] + byte + content[at + draw(st.integers(0, 1)) :]
    return content


def agree(content: bytes) -> None:
    assert read_indexed(content) == _read_unusual(content)
    right = validation.fast_verdict(content)
    if right is not None:
        for mode in ("php", "never", "always"):
            found = validation.validate(content, mode)
            assert (found.problem, found.is_tolerated, found.warnings) == (None, False, ())
            assert found.index == right


@given(content=bodies())
@example(content=nested(256))
@example(content=nested(257))
@example(content=ending(',"meta":{"schema_version":1.0},"meta":' + MEMBERS["meta"]))
@example(content=ending(',"attempts":1.0,"attempts":0'))
@example(content=body(data='{"a":' + "9" * 309 + "}"))
def test_quick_and_full_validation_agree(content: bytes) -> None:
    agree(content)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_quick_and_full_validation_agree_on_the_table(case: Case) -> None:
    agree(case.content)


def test_shortest_body_with_a_number_beyond_a_double_is_above_the_bound() -> None:
    """Otherwise ``_is_plain`` would have to search short bodies for such numbers."""
    meta = '"meta":{"id":"i","schema_version":1}'
    least = '{"job":"u","trace_id":"t","data":{"":%s},"attempts":0,' + meta + "}"
    assert validation.validate((least % "0").encode()).problem is None
    assert len(least % ("9" * 309)) > validation._SHORT_BYTES
    assert len(nested(validation.DEPTH_LIMIT + 1)) > validation._SHORT_BYTES


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
def test_usual_bodies_take_the_quick_path(content: bytes) -> None:
    assert validation.fast_verdict(content) == read_indexed(content)
    assert None not in (read_indexed(content) or (None,))
