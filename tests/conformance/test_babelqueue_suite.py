"""BabelQueue's public suite, its core sections, put to the package and to the layer around it.

A section that is missing fails.  What the package itself gets wrong is in ``PACKAGE_FAILS``; there
the layer has to be right.
"""

import base64
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import pytest

from phpmq_lite.envelopes.dead_letter_record import with_attempts
from phpmq_lite.envelopes.strict_json import find_members
from tests.conformance.babelqueue_sides import Ours, Package, Refused, Side, parsed, warned
from tests.conformance.babelqueue_suite import Suite

SIDES: Final[dict[str, type[Package] | type[Ours]]] = {"package": Package, "ours": Ours}
PACKAGE_FAILS: Final[dict[tuple[str, str], str]] = {}  # (section, case): why
NOT_IN_PYTHON: Final = {  # (section, case): why it can be asked of no side
    ("encode_reject", "reject-repeated-key"): "a mapping has each key once"
}

Case = Mapping[str, Any]
Fault = str | None  # the deviation; None if the case holds


def at(document: Any, pointer: str) -> Any:
    """Follow an RFC 6901 pointer."""
    for token in pointer.split("/")[1:]:
        name = token.replace("~1", "/").replace("~0", "~")
        document = document[int(name)] if isinstance(document, list) else document[name]
    return document


def is_same(one: Any, other: Any) -> bool:
    """Compare JSON by value and type: true is not 1, {} is not []."""
    texts = (json.dumps(one, sort_keys=True), json.dumps(other, sort_keys=True))
    return texts[0] == texts[1]


def difference(document: Any, preserved: Case, absent: list[str]) -> Fault:
    """Return a missing or changed member of ``preserved``, or a present one of ``absent``."""
    for pointer, expected in preserved.items():
        try:
            found = at(document, pointer)
        except (LookupError, TypeError):
            return f"{pointer} is gone"
        if not is_same(found, expected):
            return f"{pointer} is {found!r}, not {expected!r}"
    for pointer in absent:
        try:
            at(document, pointer)
        except (LookupError, TypeError):
            continue
        return f"{pointer} is still there"
    return None


def hop(side: Side, content: bytes) -> bytes:
    """Decode, count an attempt and encode, as a retry does."""
    envelope = side.decode(content)
    envelope["attempts"] += 1
    return side.encode(envelope)


def check_case(side: Side, suite: Suite, case: Case) -> Fault:
    content = suite.fixture(case["file"])
    if not case["valid"]:
        return "accepted" if side.accepts(content) else None
    if not side.accepts(content):
        return "not accepted"
    envelope, expected = side.decode(content), case["expect"]
    for name, found in (
        ("urn", envelope["job"]),
        ("attempts", envelope["attempts"]),
        ("lang", envelope["meta"]["lang"]),
        ("schema_version", envelope["meta"]["schema_version"]),
        ("data", envelope["data"]),
    ):
        if name in expected and not is_same(found, expected[name]):
            return f"{name} is {found!r}"
    for name, value in expected.get("dead_letter", {}).items():
        if envelope["dead_letter"][name] != value:
            return f"dead_letter.{name} is {envelope['dead_letter'][name]!r}"
    return None if envelope["meta"]["id"] and envelope["trace_id"] else "no id"


def check_roundtrip(side: Side, suite: Suite, case: Case) -> Fault:
    content = suite.fixture(case["file"])
    if not side.accepts(content):
        return "not accepted"
    with warned() as warnings:
        sent = hop(side, content)
    if warnings or side.identity(content)[1]:
        return "a warning"
    wanted = case.get("apply_dead_letter")
    if wanted is not None:
        attempts = case["expect_attempts"]
        sent = side.record(sent, wanted["reason"], wanted["original_queue"], attempts)
    document = json.loads(sent)
    if not is_same(document["attempts"], case["expect_attempts"]):
        return f"attempts is {document['attempts']}"
    for name, value in case.get("expect_dead_letter", {}).items():
        if not is_same(document["dead_letter"].get(name), value):
            return f"dead_letter.{name} is {document['dead_letter'].get(name)!r}"
    return difference(
        document, case.get("expect_preserved", {}), case.get("expect_absent_after_reencode", [])
    )


def check_data_shape(side: Side, suite: Suite, case: Case) -> Fault:
    if case["mode"] == "decode":
        verdict = side.accepts(suite.fixture(case["file"]))
        return None if verdict == case["valid"] else f"accepted: {verdict}"
    content = side.encode(side.make(case["urn"], case["data"], queue=case["queue"]))
    found = next(member for member in find_members(content) if member.name == "data")
    written = content[found.value_start : found.end].decode()
    return None if written == case["expect_encoded_data_json"] else f"data is {written}"


def check_forbidden(side: Side, suite: Suite, case: Case) -> Fault:
    content = suite.fixture(case["file"])
    with warned() as warnings:
        envelope = side.decode(content)
    texts = (warnings, side.identity(content)[1])
    if not all(any(case["forbidden_key"] in text for text in some) for some in texts):
        return "no warning"
    return difference(
        json.loads(side.encode(envelope)),
        case.get("expect_preserved", {}),
        case["expect_absent_after_reencode"],
    )


def check_extension(side: Side, _suite: Suite, case: Case) -> Fault:
    made = side.make(case["urn"], case["data"], queue=case["queue"], meta=case["meta"])
    content = side.encode(made)
    again = hop(side, content)
    return (
        difference(json.loads(content), case["expect_envelope"], [])
        or difference(json.loads(again), case["expect_envelope"], [])
        or (None if json.loads(again)["attempts"] == 1 else "attempts is not 1")
    )


def check_reject(side: Side, _suite: Suite, case: Case) -> Fault:
    try:
        envelope = side.make(case["urn"], case["data"], queue=case["queue"], meta=case.get("meta"))
        envelope.update(case.get("extras_top", {}))
        envelope["meta"].update(case.get("extras_meta", {}))
        side.encode(envelope)
    except Refused as error:
        return None if case["offending_key"] in str(error) else f"another error: {error}"
    return "written"


def check_trim(side: Side, suite: Suite, case: Case) -> Fault:
    if case["mode"] == "make":
        options = {"trace_id": case["trace_id"]} if "trace_id" in case else {}
        try:
            made = side.make(case["urn"], {}, **options)
        except Refused:
            return None if case["expect"] == "reject" else "refused"
        if case["expect"] == "reject":
            return "made"
        wrong = [name for name, value in case["expect"].items() if made[name] != value]
        return f"{wrong} differ" if wrong else None
    if case["mode"] == "decode":
        return check_job_type(side, suite, case)
    content = suite.fixture(case["file"])
    if case["mode"] == "accepts":
        if case.get("expect_decode_ok") and not side.is_read(content):
            return "not read"
        verdict = side.accepts(content)
        return None if verdict == case["expect_accepts"] else f"accepted: {verdict}"
    document = json.loads(hop(side, content))
    if document["attempts"] != case["expect_attempts"]:
        return "attempts"
    return difference(document, case["expect_preserved"], [])


def check_job_type(side: Side, suite: Suite, case: Case) -> Fault:
    urn, warnings = side.identity(suite.fixture(case["file"]))
    if not case["valid"]:
        return None if urn is None else f"urn is {urn!r}"
    if urn != case["expect"]["urn"]:
        return f"urn is {urn!r}"
    return None if bool(warnings) == case["expect_warning"] else f"warnings: {warnings}"


def check_backoff(side: Side, _suite: Suite, case: Case) -> Fault:
    if "expect_delay_seconds" in case:
        found = side.delay(case, lambda _low, high: high)
        return None if found == case["expect_delay_seconds"] else f"delay is {found}"
    bounds = case["expect_delay_range_seconds"]
    found_bounds = {
        "min": side.delay(case, lambda low, _high: low),
        "max": side.delay(case, lambda _low, high: high),
    }
    return None if found_bounds == bounds else f"delays are {found_bounds}"


def check_record(side: Side, suite: Suite, case: Case) -> Fault:
    content = (
        base64.b64decode(case["body_base64"]) if "body_base64" in case else case["body"].encode()
    )
    queue = suite.section("poison_dlq")["original_queue"]
    made = side.record(content, "poison", queue, 0)
    found, expected = parsed(made), case["expect"]
    block = found.pop("dead_letter")
    if (block["reason"], block["original_queue"]) != ("poison", queue):
        return f"block is {block}"
    if found == parsed(json.dumps(expected.get("record")).encode()):
        return None
    if expected["shape"] != "splice_or_wrapper":
        return f"record is {found}"
    if {"raw", "raw_encoding"} & found.keys() or found.keys() != set(expected["splice_keys"]):
        return f"members are {sorted(found)}"
    lost = [text for text in expected["splice_literals"] if text.encode() not in made]
    return f"{lost} are lost" if lost else None


def check_verdict(side: Side, _suite: Suite, case: Case) -> Fault:
    content = case["body"].encode()
    found = "poison" if side.is_poison(content) else "ok"
    return None if found == case["expect"] else f"verdict is {found}"


CHECKS: Final[dict[str, Callable[[Side, Suite, Case], Fault]]] = {
    "cases": check_case,
    "roundtrip": check_roundtrip,
    "data_shape": check_data_shape,
    "forbidden_keys": check_forbidden,
    "extension_write": check_extension,
    "encode_reject": check_reject,
    "trim": check_trim,
    "job_type": check_job_type,
    "retry_backoff": check_backoff,
    "poison_dlq": check_record,
    "identity_verdict": check_verdict,
}
OTHERS: Final = ("payload_schema", "payload_schema_unicode", "idempotency")  # with tests below


def cases_of(suite: Suite, name: str) -> Iterator[Case]:
    section = suite.section(name)
    cases = section if isinstance(section, list) else section["cases"]
    assert cases, f"section {name} has no cases"
    yield from cases


def faults(suite: Suite, section: str, side: Side) -> dict[str, str]:
    """Check every case of a section; return those that do not hold."""
    found = {}
    for case in cases_of(suite, section):
        if (section, case["name"]) in NOT_IN_PYTHON:
            continue
        try:
            fault = CHECKS[section](side, suite, case)
        except Exception as error:  # an exception is an answer, too
            fault = f"{type(error).__name__}: {error}"
        if fault is not None:
            found[case["name"]] = fault
    return found


@pytest.mark.parametrize("section", CHECKS)
def test_layer_passes_section(suite: Suite, section: str) -> None:
    assert faults(suite, section, Ours()) == {}


@pytest.mark.parametrize("section", CHECKS)
def test_package_fails_only_what_is_known(suite: Suite, section: str) -> None:
    known = {case for known_section, case in PACKAGE_FAILS if known_section == section}
    assert faults(suite, section, Package()).keys() == known


def test_every_core_section_is_asked(suite: Suite) -> None:
    """A newer suite with another section needs new checks."""
    core = {name for name, about in suite.section("sections").items() if about["scope"] == "core"}
    assert core == {*CHECKS, *OTHERS}


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("section", ["payload_schema", "payload_schema_unicode"])
def test_payloads_are_valid_as_the_suite_says(suite: Suite, section: str, side: str) -> None:
    schema = suite.section(section)["schema"]
    found = {c["name"]: SIDES[side]().is_valid(c["data"], schema) for c in cases_of(suite, section)}
    assert found == {case["name"]: case["valid"] for case in cases_of(suite, section)}


@pytest.mark.parametrize("side", SIDES)
def test_key_of_a_claim_is_the_meta_id(suite: Suite, side: str, tmp_path: Path) -> None:
    about = suite.section("idempotency")["dedup_key"]
    envelope = SIDES[side]().decode(suite.fixture(about["envelope_file"]))
    assert envelope["meta"]["id"] == about["expected_key"]
    once = SIDES[side]().once(tmp_path)
    runs: list[str] = []
    once.handle(envelope, lambda: runs.append("first"))
    once.handle(envelope, lambda: runs.append("again"))
    once.handle(
        envelope | {"meta": envelope["meta"] | {"id": "another"}}, lambda: runs.append("other id")
    )
    assert runs == ["first", "other id"]


@pytest.mark.parametrize("side", SIDES)
def test_handlers_run_once_as_the_suite_says(suite: Suite, side: str, tmp_path: Path) -> None:
    for number, case in enumerate(suite.section("idempotency")["sequences"]["cases"]):
        folder = tmp_path / str(number)
        folder.mkdir()
        once = SIDES[side]().once(folder)
        runs: list[str] = []

        def handle(outcome: str, runs: list[str] = runs) -> None:
            runs.append(outcome)
            if outcome == "throw":
                raise ArithmeticError

        for delivery in case["deliveries"]:
            before = len(runs)
            if delivery.get("forget_before"):
                once.forget(delivery["meta_id"])
            envelope = {"data": {}, "meta": {"id": delivery["meta_id"]}}
            outcome = delivery.get("outcome", "ok")
            try:
                once.handle(envelope, lambda outcome=outcome: handle(outcome))  # type: ignore[misc]
            except ArithmeticError:
                assert outcome == "throw"
            ran = "run" if len(runs) > before else "skip"
            assert ran == delivery["expect_effect"], case["name"]
        assert len(runs) == case["expected_effects"], case["name"]


def test_splice_of_attempts_keeps_what_a_roundtrip_keeps(suite: Suite) -> None:
    """The worker splices instead of encoding again: no member is lost."""
    for case in cases_of(suite, "roundtrip"):
        content = suite.fixture(case["file"])
        before = json.loads(content)
        sent = with_attempts(content, case["expect_attempts"])
        assert parsed(sent) == parsed(content) | {"attempts": ("int", str(before["attempts"] + 1))}
