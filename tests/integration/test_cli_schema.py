"""The groups ``schema``, ``envelope`` and ``frame``: files in, verdicts and codes out."""

import base64
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from phpmq_lite.cli.main import root_command
from phpmq_lite.envelopes.codec import decode
from tests.integration.test_schema_registry import ORDER, URN, write, write_folder

Run = Callable[..., Result]


@pytest.fixture
def run() -> Run:
    """Run a command; its exit code must be ``code``."""

    def call(*arguments: str | Path, code: int = 0, input: str | bytes | None = None) -> Result:
        result = CliRunner().invoke(
            root_command, [str(one) for one in arguments], input=input, catch_exceptions=False
        )
        assert result.exit_code == code, result.output + result.stderr
        return result

    return call


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_folder(tmp_path / "schemas", {URN: "order.json"}, order=ORDER)


def rows(result: Result) -> list[dict[str, Any]]:
    return [json.loads(line) for line in result.stdout.splitlines()]


def envelope_file(run: Run, path: Path, data: str = '{"order_id": 1}', urn: str = URN) -> Path:
    path.write_bytes(run("envelope", "create", urn, data).stdout_bytes)
    return path


# -- schema


def test_right_folder_is_listed(run: Run, folder: Path) -> None:
    found = rows(run("schema", "check", folder))
    assert [(row["urn"], row["version"], row["result"]) for row in found] == [(URN, 1, "ok")]
    assert "RESULT" in run("schema", "check", folder, "-o", "table").stdout


def test_wrong_folder_ends_with_1_and_names_file_and_pointer(run: Run, folder: Path) -> None:
    write(folder / "order.json", {"properties": {"n": {"type": 1}}})
    [row] = rows(run("schema", "check", folder, code=1))
    assert (row["file"], row["pointer"]) == ("order.json", "/properties/n/type")


def test_ignored_keywords_are_reported(run: Run, folder: Path) -> None:
    write(folder / "order.json", ORDER | {"maxProperties": 3})
    found = rows(run("schema", "check", folder))
    assert [(row["result"], row["pointer"]) for row in found] == [
        ("ok", ""),
        ("note", "/maxProperties"),
    ]


def test_payloads_of_files_are_judged(run: Run, folder: Path, tmp_path: Path) -> None:
    right = envelope_file(run, tmp_path / "right.json")
    other = envelope_file(run, tmp_path / "other.json", "{}", "urn:babel:other")
    assert [row["result"] for row in rows(run("schema", "validate", folder, right, other))] == [
        "ok",
        "unregistered",
    ]
    wrong = envelope_file(run, tmp_path / "wrong.json", '{"order_id": "1"}')
    broken = tmp_path / "broken.json"
    broken.write_text("{")
    found = rows(run("schema", "validate", folder, right, wrong, broken, code=1))
    assert [(row["result"], row["pointer"]) for row in found] == [
        ("ok", ""),
        ("schema_mismatch", "/data/order_id"),
        ("poison", ""),
    ]
    assert found[1]["urn"] == URN


def test_payload_of_standard_input_is_judged(run: Run, folder: Path) -> None:
    content = run("envelope", "create", URN, "{}").stdout_bytes
    [row] = rows(run("schema", "validate", folder, "-", code=1, input=content))
    assert row["detail"] == "/data/order_id is missing"


def test_plain_payload_may_have_no_text_for_a_sensitive_number(
    run: Run, folder: Path, tmp_path: Path
) -> None:
    number = {"type": "integer", "x-gdpr-sensitive": True}
    write(folder / "order.json", {"type": "object", "properties": {"age": number}})
    file = envelope_file(run, tmp_path / "e.json", '{"age": "ciphertext"}')
    run("schema", "validate", folder, file)
    run("schema", "validate", folder, file, "--plain", code=1)


def test_wrong_folder_judges_nothing(run: Run, folder: Path, tmp_path: Path) -> None:
    file = envelope_file(run, tmp_path / "e.json")
    (folder / "order.json").unlink()
    assert "order.json" in run("schema", "validate", folder, file, code=1).stderr


def test_two_versions_are_compared(run: Run, tmp_path: Path) -> None:
    old, mild, hard = (tmp_path / f"{name}.json" for name in ("old", "mild", "hard"))
    write(old, ORDER)
    write(mild, ORDER | {"properties": ORDER["properties"] | {"note": {}}})  # type: ignore[operator]
    write(hard, ORDER | {"properties": {}})
    assert rows(run("schema", "compare", old, old)) == []
    assert [row["level"] for row in rows(run("schema", "compare", old, mild))] == ["note"]
    [row] = rows(run("schema", "compare", old, hard, code=1))
    assert (row["level"], row["pointer"]) == ("breaking", "/data/order_id")
    assert json.loads(run("schema", "compare", old, hard, "-o", "json", code=1).stdout) == [row]


def test_two_folders_are_compared(run: Run, folder: Path, tmp_path: Path) -> None:
    new = write_folder(tmp_path / "new", {"urn:new": "order.json"}, order=ORDER)
    found = rows(run("schema", "compare", folder, new, code=1))
    assert [(row["urn"], row["level"]) for row in found] == [(URN, "breaking"), ("urn:new", "note")]
    run("schema", "compare", folder, new / "order.json", code=2)


def test_invalid_schema_is_not_compared(run: Run, tmp_path: Path) -> None:
    old, new = tmp_path / "old.json", tmp_path / "new.json"
    write(old, ORDER)
    write(new, {"properties": {"a": 1}})
    assert "/properties/a" in run("schema", "compare", old, new, code=1).stderr


# -- envelope


def test_envelope_is_made_right(run: Run) -> None:
    made = run("envelope", "create", URN, '{"n": 1, "s": "ü"}', "--queue", "orders")
    found = decode(made.stdout_bytes)
    assert (found["job"], found["data"]) == (URN, {"n": 1, "s": "ü"})
    assert (found["meta"]["queue"], found["attempts"]) == ("orders", 0)
    assert not made.stdout.endswith("\n")
    assert rows(run("envelope", "check", "-", input=made.stdout_bytes)) == []


def test_envelope_continues_a_trace_and_reads_its_data_from_a_pipe(run: Run) -> None:
    trace = "7b3f1c2a-0000-4000-8000-000000000001"
    made = run("envelope", "create", URN, "-", "--trace-id", trace, input='{"n": 1}')
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
def test_envelope_data_must_be_an_object(run: Run, data: str, words: str) -> None:
    result = run("envelope", "create", URN, data, code=1)
    assert words in result.stderr
    assert result.stdout == ""


def test_envelope_is_made_by_its_schema(run: Run, folder: Path) -> None:
    run("envelope", "create", URN, '{"order_id": 1}', "--schemas", folder)
    result = run("envelope", "create", URN, "{}", "--schemas", folder, code=1)
    assert "/data/order_id is missing" in result.stderr


@pytest.mark.parametrize(
    ("content", "layer", "reason"),
    [
        (b"{", "A", "poison"),
        (b"[" * 300 + b"]" * 300, "A", "too_deep"),
        (b'{"job": "u", "trace_id": "t", "data": {}, "attempts": 0}', "B", "missing_meta"),
    ],
)
def test_lint_names_layer_and_reason(run: Run, content: bytes, layer: str, reason: str) -> None:
    found = rows(run("envelope", "check", "-", code=1, input=content))
    assert (found[0]["layer"], found[0]["reason"]) == (layer, reason)


def test_lint_leaves_producers_alone_for_consumers(run: Run) -> None:
    content = (
        b'{"job": "u", "trace_id": "t", "data": {}, "meta": {"schema_version": 1}, "attempts": 0}'
    )
    found = rows(run("envelope", "check", "-", code=1, input=content))
    assert {row["layer"] for row in found} == {"C", "hint"}
    assert rows(run("envelope", "check", "-", "--consumer", input=content)) == []


@pytest.mark.parametrize(
    "urn", ["App\\Jobs\\UserRegistered", "users.registered", "urn:babel:Orders:Created"]
)
def test_lint_hints_at_the_convention_with_exit_code_0(run: Run, urn: str) -> None:
    made = run("envelope", "create", urn, "{}").stdout_bytes
    [hint] = rows(run("envelope", "check", "-", input=made))
    assert (hint["layer"], hint["reason"], hint["pointer"]) == ("hint", "convention", "/job")
    assert rows(run("envelope", "check", "-", "--consumer", input=made)) == []


def test_lint_checks_the_payload_too(run: Run, folder: Path, tmp_path: Path) -> None:
    file = envelope_file(run, tmp_path / "e.json", '{"order_id": "1"}')
    run("envelope", "check", file)
    [row] = rows(run("envelope", "check", file, "--schemas", folder, code=1))
    assert (row["layer"], row["reason"]) == ("B", "schema_mismatch")


def test_lint_reads_an_empty_list_as_configured(run: Run) -> None:
    made = decode(run("envelope", "create", URN, "{}").stdout_bytes)
    made["data"] = []
    content = json.dumps(made)
    run("envelope", "check", "-", "--consumer", code=1, input=content)
    run("envelope", "check", "-", "--consumer", "--empty-list-data", "always", input=content)


def test_envelope_is_shown(run: Run, tmp_path: Path) -> None:
    file = envelope_file(run, tmp_path / "e.json")
    shown = json.loads(run("envelope", "show", file, "-o", "json").stdout)
    assert shown["verdict"] == "valid"
    assert shown["envelope"]["job"] == URN
    assert json.loads(run("envelope", "show", file).stdout) == shown
    table = run("envelope", "show", file, "-o", "table").stdout
    assert all(words in table for words in ("meta.queue", URN, '"order_id": 1'))


def test_invalid_envelope_is_shown_as_invalid(run: Run) -> None:
    result = run("envelope", "show", "-", "-o", "json", code=1, input=b'\xff{"a"')
    assert json.loads(result.stdout)["envelope"] is None
    assert "poison" in json.loads(result.stdout)["verdict"]
    run("envelope", "show", "-", "-o", "table", code=1, input=b'{"x": "\\ud800"}')


# -- frame

PUBLISH = b"H0100102P0100000000000000000000000000003FooP0200000000000000000000000000002\n\xff"


@pytest.mark.parametrize("encode", [bytes, lambda b: b.hex().encode(), base64.b64encode])
def test_frame_is_explained(run: Run, encode: Callable[[bytes], bytes], tmp_path: Path) -> None:
    file = tmp_path / "frame"
    file.write_bytes(encode(PUBLISH))
    [found] = rows(run("frame", "explain", file))
    [frame] = found["frames"]
    assert (frame["kind"], frame["queue"], frame["size"]) == ("publish", "Foo", len(PUBLISH))
    assert [piece["meaning"] for piece in frame["pieces"]] == [
        "publish, 2 packets",
        "queue Foo",
        "content, 2 bytes",
    ]
    assert found["revision"].startswith("older")
    assert found["wrong"] is None
    shown = run("frame", "explain", "-", "-o", "table", input=encode(PUBLISH)).stdout
    assert "P0200000000000000000000000000002\\n\\xff  content, 2 bytes" in shown


def test_frame_with_a_wrong_byte_ends_with_1(run: Run) -> None:
    [found] = rows(run("frame", "explain", code=1, input=PUBLISH + b"H0100502"))
    assert (found["wrong"]["code"], found["wrong"]["offset"]) == (
        "bad-packet-count",
        len(PUBLISH) + 6,
    )
    shown = run("frame", "explain", "-o", "table", code=1, input=PUBLISH + b"H0100502").stdout
    assert "message receipt of an earlier revision" in shown
    assert "H01005>>0<<2" in shown


def test_frame_in_another_encoding_than_named_is_refused(run: Run) -> None:
    result = run("frame", "explain", "--as", "hex", code=1, input="H0100102")
    assert "not valid hex: use pairs of the digits 0-9 and a-f" in result.stderr
