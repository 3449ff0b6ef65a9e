"""The groups ``schema``, ``envelope`` and ``frame``: files in, verdicts and codes out."""

import base64
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from phpmq_lite.envelopes.codec import decode
from tests.integration.test_schema_registry import ORDER, URN, write, write_folder
from tests.support.cli_runner import invoke


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_folder(tmp_path / "schemas", {URN: "order.json"}, order=ORDER)


def rows(result: Result) -> list[dict[str, Any]]:
    return [json.loads(line) for line in result.stdout.splitlines()]


def envelope_file(path: Path, data: str = '{"order_id": 1}', urn: str = URN) -> Path:
    path.write_bytes(invoke("envelope", "create", urn, data).stdout_bytes)
    return path


# -- schema


def test_valid_folder_is_listed(folder: Path) -> None:
    found = rows(invoke("schema", "check", folder))
    assert [(row["urn"], row["version"], row["result"]) for row in found] == [(URN, 1, "ok")]
    assert "RESULT" in invoke("schema", "check", folder, "-o", "table").stdout


def test_invalid_folder_ends_with_1_and_names_file_and_pointer(folder: Path) -> None:
    write(folder / "order.json", {"properties": {"n": {"type": 1}}})
    [row] = rows(invoke("schema", "check", folder, code=1))
    assert (row["file"], row["pointer"]) == ("order.json", "/properties/n/type")


def test_ignored_keywords_are_reported(folder: Path) -> None:
    write(folder / "order.json", ORDER | {"maxProperties": 3})
    found = rows(invoke("schema", "check", folder))
    assert [(row["result"], row["pointer"]) for row in found] == [
        ("ok", ""),
        ("note", "/maxProperties"),
    ]


def test_payloads_of_files_are_validated(folder: Path, tmp_path: Path) -> None:
    right = envelope_file(tmp_path / "right.json")
    other = envelope_file(tmp_path / "other.json", "{}", "urn:babel:other")
    assert [row["result"] for row in rows(invoke("schema", "validate", folder, right, other))] == [
        "ok",
        "unregistered",
    ]
    wrong = envelope_file(tmp_path / "wrong.json", '{"order_id": "1"}')
    broken = tmp_path / "broken.json"
    broken.write_text("{")
    found = rows(invoke("schema", "validate", folder, right, wrong, broken, code=1))
    assert [(row["result"], row["pointer"]) for row in found] == [
        ("ok", ""),
        ("schema_mismatch", "/data/order_id"),
        ("poison", ""),
    ]
    assert found[1]["urn"] == URN


def test_payload_of_standard_input_is_validated(folder: Path) -> None:
    content = invoke("envelope", "create", URN, "{}").stdout_bytes
    [row] = rows(invoke("schema", "validate", folder, "-", code=1, input=content))
    assert row["detail"] == "/data/order_id is missing"


def test_plain_payload_may_have_no_text_for_a_sensitive_number(
    folder: Path, tmp_path: Path
) -> None:
    number = {"type": "integer", "x-gdpr-sensitive": True}
    write(folder / "order.json", {"type": "object", "properties": {"age": number}})
    file = envelope_file(tmp_path / "e.json", '{"age": "ciphertext"}')
    invoke("schema", "validate", folder, file)
    invoke("schema", "validate", folder, file, "--plain", code=1)


def test_invalid_folder_validates_nothing(folder: Path, tmp_path: Path) -> None:
    file = envelope_file(tmp_path / "e.json")
    (folder / "order.json").unlink()
    assert "order.json" in invoke("schema", "validate", folder, file, code=1).stderr


def test_two_versions_are_compared(tmp_path: Path) -> None:
    old, mild, hard = (tmp_path / f"{name}.json" for name in ("old", "mild", "hard"))
    write(old, ORDER)
    write(mild, ORDER | {"properties": ORDER["properties"] | {"note": {}}})  # type: ignore[operator]
    write(hard, ORDER | {"properties": {}})
    assert rows(invoke("schema", "compare", old, old)) == []
    assert [row["level"] for row in rows(invoke("schema", "compare", old, mild))] == ["note"]
    [row] = rows(invoke("schema", "compare", old, hard, code=1))
    assert (row["level"], row["pointer"]) == ("breaking", "/data/order_id")
    assert json.loads(invoke("schema", "compare", old, hard, "-o", "json", code=1).stdout) == [row]


def test_two_folders_are_compared(folder: Path, tmp_path: Path) -> None:
    new = write_folder(tmp_path / "new", {"urn:new": "order.json"}, order=ORDER)
    found = rows(invoke("schema", "compare", folder, new, code=1))
    assert [(row["urn"], row["level"]) for row in found] == [(URN, "breaking"), ("urn:new", "note")]
    invoke("schema", "compare", folder, new / "order.json", code=2)


def test_invalid_schema_is_not_compared(tmp_path: Path) -> None:
    old, new = tmp_path / "old.json", tmp_path / "new.json"
    write(old, ORDER)
    write(new, {"properties": {"a": 1}})
    assert "/properties/a" in invoke("schema", "compare", old, new, code=1).stderr


# -- envelope


def test_created_envelope_is_valid() -> None:
    made = invoke("envelope", "create", URN, '{"n": 1, "s": "ü"}', "--queue", "orders")
    found = decode(made.stdout_bytes)
    assert (found["job"], found["data"]) == (URN, {"n": 1, "s": "ü"})
    assert (found["meta"]["queue"], found["attempts"]) == ("orders", 0)
    assert not made.stdout.endswith("\n")
    assert rows(invoke("envelope", "check", "-", input=made.stdout_bytes)) == []


def test_envelope_continues_a_trace_and_reads_its_data_from_a_pipe() -> None:
    trace = "7b3f1c2a-0000-4000-8000-000000000001"
    made = invoke("envelope", "create", URN, "-", "--trace-id", trace, input='{"n": 1}')
    assert decode(made.stdout_bytes)["trace_id"] == trace


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ("[]", "not a JSON object"),
        ("{", "invalid JSON"),
        ('{"a": 1, "a": 2}', "repeated"),
        ("NaN", "NaN"),
    ],
)
def test_envelope_data_must_be_an_object(data: str, words: str) -> None:
    result = invoke("envelope", "create", URN, data, code=1)
    assert words in result.stderr
    assert result.stdout == ""


def test_envelope_is_checked_against_its_schema(folder: Path) -> None:
    invoke("envelope", "create", URN, '{"order_id": 1}', "--schemas", folder)
    result = invoke("envelope", "create", URN, "{}", "--schemas", folder, code=1)
    assert "/data/order_id is missing" in result.stderr


@pytest.mark.parametrize(
    ("content", "layer", "reason"),
    [
        (b"{", "A", "poison"),
        (b"[" * 300 + b"]" * 300, "A", "too_deep"),
        (b'{"job": "u", "trace_id": "t", "data": {}, "attempts": 0}', "B", "missing_meta"),
    ],
)
def test_lint_names_layer_and_reason(content: bytes, layer: str, reason: str) -> None:
    found = rows(invoke("envelope", "check", "-", code=1, input=content))
    assert (found[0]["layer"], found[0]["reason"]) == (layer, reason)


def test_lint_leaves_producers_alone_for_consumers() -> None:
    content = (
        b'{"job": "u", "trace_id": "t", "data": {}, "meta": {"schema_version": 1}, "attempts": 0}'
    )
    found = rows(invoke("envelope", "check", "-", code=1, input=content))
    assert {row["layer"] for row in found} == {"C", "hint"}
    assert rows(invoke("envelope", "check", "-", "--consumer", input=content)) == []


@pytest.mark.parametrize(
    "urn", ["App\\Jobs\\UserRegistered", "users.registered", "urn:babel:Orders:Created"]
)
def test_lint_hints_at_the_convention_with_exit_code_0(urn: str) -> None:
    made = invoke("envelope", "create", urn, "{}").stdout_bytes
    [hint] = rows(invoke("envelope", "check", "-", input=made))
    assert (hint["layer"], hint["reason"], hint["pointer"]) == ("hint", "convention", "/job")
    assert rows(invoke("envelope", "check", "-", "--consumer", input=made)) == []


def test_lint_checks_the_payload_too(folder: Path, tmp_path: Path) -> None:
    file = envelope_file(tmp_path / "e.json", '{"order_id": "1"}')
    invoke("envelope", "check", file)
    [row] = rows(invoke("envelope", "check", file, "--schemas", folder, code=1))
    assert (row["layer"], row["reason"]) == ("B", "schema_mismatch")


def test_lint_reads_an_empty_list_as_configured() -> None:
    made = decode(invoke("envelope", "create", URN, "{}").stdout_bytes)
    made["data"] = []
    content = json.dumps(made)
    invoke("envelope", "check", "-", "--consumer", code=1, input=content)
    invoke("envelope", "check", "-", "--consumer", "--empty-list-data", "always", input=content)


def test_envelope_is_shown(tmp_path: Path) -> None:
    file = envelope_file(tmp_path / "e.json")
    shown = json.loads(invoke("envelope", "show", file, "-o", "json").stdout)
    assert shown["verdict"] == "valid"
    assert shown["envelope"]["job"] == URN
    assert json.loads(invoke("envelope", "show", file).stdout) == shown
    table = invoke("envelope", "show", file, "-o", "table").stdout
    assert all(words in table for words in ("meta.queue", URN, '"order_id": 1'))


def test_invalid_envelope_is_shown_as_invalid() -> None:
    result = invoke("envelope", "show", "-", "-o", "json", code=1, input=b'\xff{"a"')
    assert json.loads(result.stdout)["envelope"] is None
    assert "poison" in json.loads(result.stdout)["verdict"]
    invoke("envelope", "show", "-", "-o", "table", code=1, input=b'{"x": "\\ud800"}')


# -- frame

PUBLISH = b"H0100102P0100000000000000000000000000003FooP0200000000000000000000000000002\n\xff"


@pytest.mark.parametrize("encode", [bytes, lambda b: b.hex().encode(), base64.b64encode])
def test_frame_is_explained(encode: Callable[[bytes], bytes], tmp_path: Path) -> None:
    file = tmp_path / "frame"
    file.write_bytes(encode(PUBLISH))
    [found] = rows(invoke("frame", "explain", file))
    [frame] = found["frames"]
    assert (frame["kind"], frame["queue"], frame["size"]) == ("publish", "Foo", len(PUBLISH))
    assert [piece["meaning"] for piece in frame["pieces"]] == [
        "publish, 2 packets",
        "queue Foo",
        "content, 2 bytes",
    ]
    assert found["revision"].startswith("older")
    assert found["wrong"] is None
    shown = invoke("frame", "explain", "-", "-o", "table", input=encode(PUBLISH)).stdout
    assert "P0200000000000000000000000000002\\n\\xff  content, 2 bytes" in shown


def test_frame_with_a_wrong_byte_ends_with_1() -> None:
    [found] = rows(invoke("frame", "explain", code=1, input=PUBLISH + b"H0100502"))
    assert (found["wrong"]["code"], found["wrong"]["offset"]) == (
        "bad-packet-count",
        len(PUBLISH) + 6,
    )
    shown = invoke("frame", "explain", "-o", "table", code=1, input=PUBLISH + b"H0100502").stdout
    assert "message receipt of an earlier revision" in shown
    assert "H01005>>0<<2" in shown


def test_frame_in_another_encoding_than_named_is_refused() -> None:
    result = invoke("frame", "explain", "--as", "hex", code=1, input="H0100102")
    assert "not valid hex: use pairs of the digits 0-9 and a-f" in result.stderr
