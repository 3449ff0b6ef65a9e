"""Search language: the meaning of each term; every other text is refused."""

import json
from fnmatch import fnmatchcase

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from phpmq_lite.errors import SearchError
from phpmq_lite.storage.read.dead_letter_groups import (
    DeadLetterGroup,
    FailureCause,
    cause_of,
    stated_source,
    strip_numbers,
)
from phpmq_lite.storage.search.language import (
    QUALIFIERS,
    QUERY_CHARACTERS,
    STATES,
    TERMS,
    SearchQuery,
    SearchTerm,
    as_glob,
    escape_pattern,
    group_search,
    ids_search,
    is_pattern,
    meta_search,
    parse_search,
    queue_search,
    traces_search,
    unescape_pattern,
    verdict_search,
)


def only(text: str) -> SearchTerm:
    [term] = parse_search(text).terms
    return term


def refusal(text: str) -> SearchError:
    with pytest.raises(SearchError) as caught:
        parse_search(text)
    assert caught.value.bound
    return caught.value


# -- accepted searches


def test_search_with_every_term_is_parsed() -> None:
    query = parse_search(
        "queue:mail* state:dead urn:orders:* trace:7b3f id:d7e7 data.order_id:1042 deliveries:>3 "
        'size:>100k ttl:<60s age:>1h reason:crc client:10.0.0.7 -urn:test:* "free text"'
    )
    assert query.terms == (
        SearchTerm("queue", "mail*"),
        SearchTerm("state", "dead"),
        SearchTerm("urn", "orders:*"),
        SearchTerm("trace", "7b3f"),
        SearchTerm("id", "d7e7*"),
        SearchTerm("data", "1042", path="data.order_id"),
        SearchTerm("deliveries", ">3", sign=">", number=3),
        SearchTerm("size", ">100k", sign=">", number=102_400),
        SearchTerm("ttl", "<60s", sign="<", number=60_000),
        SearchTerm("age", ">1h", sign=">", number=3_600_000),
        SearchTerm("reason", "crc"),
        SearchTerm("client", "10.0.0.7"),
        SearchTerm("urn", "test:*", is_negated=True),
        SearchTerm("text", "free text"),
    )


@pytest.mark.parametrize("state", STATES)
def test_state_takes_all_six(state: str) -> None:
    assert only(f"state:{state.upper()}") == SearchTerm("state", state)


@pytest.mark.parametrize(
    ("text", "term"),
    [
        ('queue:"a b"', SearchTerm("queue", "a b")),
        (r'queue:"say \"hi\" \\ \n"', SearchTerm("queue", 'say "hi" \\ \\n')),
        ('queue:"a\nb"', SearchTerm("queue", "a\nb")),  # a valid queue name
        (r"queue:a\*b", SearchTerm("queue", r"a\*b")),
        ("-state:acked", SearchTerm("state", "acked", is_negated=True)),
        ('-"a b"', SearchTerm("text", "a b", is_negated=True)),
        ("--a", SearchTerm("text", "-a", is_negated=True)),
        ("-", SearchTerm("text", "-")),
        ("12:30", SearchTerm("text", "12:30")),
        ('{"a":1}', SearchTerm("text", '{"a":1}')),
        ('"queue:x"', SearchTerm("text", "queue:x")),
        ("meta:a1c2*", SearchTerm("meta", "a1c2*")),
        ("attempts:>1", SearchTerm("attempts", ">1", sign=">", number=1)),
        ("attempts:-3", SearchTerm("attempts", "-3", sign="=", number=-3)),
        ("verdict:Poison", SearchTerm("verdict", "poison")),
        ("-verdict:*", SearchTerm("verdict", "*", is_negated=True)),
        ("id:#1042", SearchTerm("id", f"{1042:016x}*")),
        ("id:" + "A" * 32, SearchTerm("id", "a" * 32)),
        ("ttl:never", SearchTerm("ttl", "never")),
        ("size:1.5m", SearchTerm("size", "1.5m", sign="=", number=1_572_864)),
        ("size:<=2KiB", SearchTerm("size", "<=2KiB", sign="<=", number=2_048)),
        ("age:<2d", SearchTerm("age", "<2d", sign="<", number=172_800_000)),
        ("$.a.0.b:x", SearchTerm("data", "x", path="$.a.0.b")),
        ("meta.lang:php", SearchTerm("data", "php", path="meta.lang")),
        ("data.n:>-5", SearchTerm("data", ">-5", path="data.n", sign=">", number=-5)),
        ('data.x:""', SearchTerm("data", "", path="data.x")),
        ("data.x:*", SearchTerm("data", "*", path="data.x")),
    ],
)
def test_term_is_parsed(text: str, term: SearchTerm) -> None:
    assert only(text) == term


def test_repeated_terms_count_once() -> None:
    assert parse_search("a a state:dead state:dead") == parse_search("a state:dead")


# -- refused searches


def test_unknown_qualifier_is_named_with_all_that_exist() -> None:
    error = refusal("colour:red")
    assert "'colour'" in str(error)
    assert '"colour:red"' in str(error)  # how to search for the text
    assert all(known.name in error.bound for known in QUALIFIERS)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("state:pending", "'pending'"),
        ("queue:", "queue:"),
        ('queue:""', "queue:"),
        ("queue:\x01", "queue:"),
        ('""', '""'),
        ('"open', '"open'),
        ('"a"b', '"a"'),
        ("id:xyz", "'xyz'"),
        ("id:" + "a" * 33, "aaa"),
        ("size:big", "size:"),
        ("size:>1z", "'z'"),
        ("deliveries:>3s", "'s'"),
        ("ttl:soon", "ttl:"),
        ("queue:" + "*a" * 9, "wildcards"),
        ("data..b:1", "data..b"),
        ("data." + "a." * 10 + "b:1", "path"),
        ("\ud800", "surrogate"),
        ("x" * (QUERY_CHARACTERS + 1), str(QUERY_CHARACTERS + 1)),
        (" ".join(map(str, range(TERMS + 1))), str(TERMS + 1)),
    ],
)
def test_invalid_search_is_refused_with_the_problem(text: str, named: str) -> None:
    assert named in str(refusal(text))


TOKENS = 'queue: state:dead - " * ? : $. data.a.b: > <= never 10k é ['
PIECES = st.sampled_from(
    [*TOKENS.split(), *(f"{known.name}" for known in QUALIFIERS), "\\", "\u202e", "\0", " "]
)  # fmt: skip


@given(st.text(max_size=60) | st.lists(PIECES | st.text(max_size=4), max_size=12).map("".join))
@example('-"')
@example("--")
@example('queue:"\\')
@example("data.:")
def test_any_text_is_a_query_or_an_error(text: str) -> None:
    try:
        query = parse_search(text)
    except SearchError:
        return
    assert parse_search(str(query)) == query
    assert str(parse_search(str(query))) == str(query)


@given(st.text(max_size=20))
def test_escaped_text_matches_only_itself(text: str) -> None:
    assert not is_pattern(escape_pattern(text))
    assert unescape_pattern(escape_pattern(text)) == text


def test_glob_takes_brackets_as_text() -> None:
    assert as_glob(r"a[b]\*c*?**") == "a[[]b][*]c*?*"


@given(st.text(st.characters(min_codepoint=32, exclude_categories=["Cs", "Cc"]), min_size=1))
def test_search_for_a_queue_reads_back(name: str) -> None:
    query = queue_search(name, ("ready", "dispatched"))
    if len(str(query)) <= QUERY_CHARACTERS:
        assert parse_search(str(query)) == query
    assert unescape_pattern(query.terms[0].value) == name


def test_search_for_ids_and_traces_read_back() -> None:
    for query in (ids_search(["a" * 32, "0" * 32]), traces_search('t "1" *')):
        assert parse_search(str(query)) == query


def group(**changes: str | None) -> DeadLetterGroup:
    given: dict[str, str | None] = {"urn": "urn:a", "reason": "client", "cause": "Key * of *"}
    made = {**given, **changes}
    return DeadLetterGroup(1, "a b.dlq", 2, made["urn"], made["reason"], made["cause"], "a b")


def test_search_for_a_group_of_dead_letters_reads_back() -> None:
    query = group_search(group())
    assert str(query) == (
        'queue:"a b.dlq" state:ready state:scheduled state:blocked origin:"a b" urn:urn:a '
        'reason:client dead_letter.error:"Key * of *"'
    )
    assert parse_search(str(query)) == query


def test_what_a_group_does_not_have_is_excluded() -> None:
    query = group_search(group(urn=None, cause=None))
    assert str(query) == (
        'queue:"a b.dlq" state:ready state:scheduled state:blocked origin:"a b" -urn:* '
        "reason:client -dead_letter.error:*"
    )
    assert parse_search(str(query)) == query


def search_for(cause: FailureCause) -> SearchQuery:
    """Return the search for the group of dead letters that have this cause."""
    made = group(cause=cause.text)
    made.is_whole = cause.is_whole
    query = group_search(made)
    assert parse_search(str(query)) == query
    return query


@given(st.binary(max_size=300))
def test_any_cause_makes_a_search_that_reads_back(block: bytes) -> None:
    cause = cause_of(b'"dead_letter":{"error":"' + block)
    assert cause is not None
    search_for(cause)


# Without a letter between digits, a cause has no wildcard, so its search matches no other text.
_WORDS_ONLY = st.text(st.sampled_from('ab <>"\\?[]/é\u2028'), max_size=9)


@given(st.lists(_WORDS_ONLY | st.text(st.sampled_from("0123"), max_size=4)), st.booleans())
def test_search_for_a_group_finds_only_its_members(texts: list[str], is_ascii: bool) -> None:
    groups: dict[FailureCause, list[str]] = {}
    for text in texts:
        block = json.dumps({"dead_letter": {"error": text}}, ensure_ascii=is_ascii)
        cause = cause_of(block.encode())
        assert cause is not None
        groups.setdefault(cause, []).append(text)
    for cause, members in groups.items():
        term = search_for(cause).terms[-1]
        assert not term.sign
        assert [text for text in texts if fnmatchcase(text, as_glob(term.value))] == members


@given(st.text(max_size=300))
def test_search_for_a_group_finds_all_its_members(text: str) -> None:
    error = json.dumps({"error": text}, ensure_ascii=False).encode(errors="replace")
    cause = cause_of((b'"dead_letter":' + error)[:400])
    assert cause is not None
    found = search_for(cause).terms[-1]
    assert fnmatchcase(text.encode(errors="replace").decode(), as_glob(found.value))


@pytest.mark.parametrize(
    ("text", "bare"),
    [
        ("Connection to 10.0.0.7:5432 timed out: 31 ms", "Connection to * timed out: * ms"),
        ("Order 1042 is paid", "Order * is paid"),
        ("Deadlock in 3f2c8a1e-0000-4000-8000-00000000128d", "Deadlock in *"),
        ("getId() on null", "getId() on null"),
        ("a 1 2 3 b", "a * b"),
    ],
)
def test_numbers_and_ids_are_stripped_from_causes(text: str, bare: str) -> None:
    assert strip_numbers(text) == bare


@pytest.mark.parametrize("text", ["verdict:client", "verdict:x*", "attempts:many", "attempts:1.5"])
def test_impossible_envelope_values_are_refused(text: str) -> None:
    assert refusal(text).bound


def test_group_of_a_record_that_a_program_wrote_is_found_by_its_block() -> None:
    said = (("detail", "no * answer"), ("original_queue", "orders"))
    group = DeadLetterGroup(1, "orders.dlq", None, None, "no * answer", None, "orders", said)
    assert str(group_search(group)) == (
        "queue:orders.dlq state:ready state:scheduled state:blocked -origin:* -urn:* -reason:* "
        r'dead_letter.detail:"no \\* answer" dead_letter.original_queue:orders -dead_letter.error:*'
    )
    assert parse_search(str(group_search(group))) == group_search(group)


def test_block_says_why_and_where() -> None:
    block = b'"dead_letter":{"reason":"failed","detail":"boom","original_queue":"orders"}}'
    assert stated_source(block) == (("detail", "boom"), ("original_queue", "orders"))
    assert stated_source(block.replace(b',"detail":"boom"', b"")) == (
        ("original_queue", "orders"), ("reason", "failed"),
    )  # fmt: skip
    assert stated_source(b'"dead_letter":{"reason":7,"detail":"a\\\\"b"}') == ()
    assert stated_source(None) == ()


def test_searches_for_envelopes_can_be_typed() -> None:
    assert str(meta_search("a*b")) == r"meta:a\*b"
    assert str(verdict_search("a b")) == 'queue:"a b" state:dead verdict:*'
    assert parse_search(str(verdict_search("q", "poison"))) == verdict_search("q", "poison")
