"""Our verdict against the package's, body by body; and the holes that the layer is there for.

A minor version of the package has changed its behaviour before: these tests are the tripwire.
"""

import json
from collections import Counter
from typing import Final

import pytest
from babelqueue import EnvelopeCodec
from babelqueue._poison_record import build_poison_record

from phpmq_lite.envelopes.dead_letter_record import DeadLetterBlock, build_record
from tests.conformance.babelqueue_differences import TABLE, Comparison
from tests.conformance.generated_bodies import bodies
from tests.support.envelope_cases import CASES, Case, body, nested

BODIES: Final = 8_000


@pytest.fixture(scope="module")
def comparison() -> Comparison:
    made = Comparison()
    for content in bodies(BODIES):
        made.add(content)
    return made


def test_every_difference_has_a_name(comparison: Comparison) -> None:
    shown = [
        (question, content[:300], answers) for question, content, answers in comparison.unknown
    ]
    assert shown[:5] == []


def test_every_named_difference_is_met(comparison: Comparison) -> None:
    """Remove a difference that no longer occurs from the table, and perhaps from the layer."""
    assert comparison.different.keys() == {
        (difference.name, question) for difference in TABLE for question in difference.questions
    }


def test_bodies_are_many_and_of_all_kinds(comparison: Comparison) -> None:
    print(  # noqa: T201 - figures, shown with -s
        f"\n{comparison.bodies} bodies, {comparison.taken} taken; agreed: "
        f"{dict(comparison.agreed)}; different: {dict(comparison.different)}"
    )
    assert comparison.bodies == BODIES
    assert comparison.taken > BODIES // 8
    assert min(comparison.agreed.values()) > BODIES * 3 // 4


def test_names_of_differences_are_unique() -> None:
    assert max(Counter(difference.name for difference in TABLE).values()) == 1


def test_bodies_are_the_same_each_time() -> None:
    assert list(bodies(300)) == list(bodies(300))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_poison_record_has_the_members_of_the_packages(case: Case) -> None:
    if case.reason != "poison":
        return
    text = case.content.decode("utf-8", "surrogateescape")
    block = DeadLetterBlock(reason="poison", original_queue="q", failed_at=1, attempts=0)
    record = json.loads(build_record(b"{}", block))
    theirs = build_poison_record(text, record["dead_letter"]).encode()
    ours = build_record(case.content, block)
    if case.name in ("like a wrapper", "like a wrapper of base64"):
        assert theirs != ours  # theirs could not be told from a wrapper
    elif case.name == "integer of 5,000 digits":
        assert theirs.startswith(b'{"raw":')  # CPython cannot read it, others can
    else:
        assert theirs == ours


def test_package_raises_where_the_layer_answers() -> None:
    with pytest.raises(TypeError):
        EnvelopeCodec.poison_cause(body())  # type: ignore[arg-type]
    deep = nested(100_000).decode()  # CPython 3.13 reads 9,000 levels, 3.12 fewer than 1,500
    with pytest.raises(RecursionError):
        EnvelopeCodec.decode(deep)


def test_package_reads_utf16() -> None:
    assert EnvelopeCodec.decode(body().decode().encode("utf-16"))["attempts"] == 0  # type: ignore[arg-type]


def test_package_writes_what_is_not_json() -> None:
    made = EnvelopeCodec.make("urn:a", {"a": float("nan"), "b": "\ud800"})
    assert "NaN" in EnvelopeCodec.encode(made)
    with pytest.raises(TypeError):
        EnvelopeCodec.encode(EnvelopeCodec.make("urn:a", {"a": {1, 2}}))
