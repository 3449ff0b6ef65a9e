"""The ``envelope`` and ``schema`` command groups, which work without a broker."""

import json
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from phpmq_lite.cli.errors import ERROR, CommandError
from phpmq_lite.cli.output import (
    columns,
    number_columns,
    output_format,
    output_option,
    write_record,
    write_rows,
)
from phpmq_lite.cli.parameters import (
    EXISTING_FOLDER,
    EXISTING_PATH,
    FILE_OR_STDIN,
    choice,
    flag,
    option,
    read_input,
)

if TYPE_CHECKING:
    from phpmq_lite.envelopes.payload_schema import PayloadSchema
    from phpmq_lite.envelopes.schema_registry import SchemaRegistry

CHECK_COLUMNS: Final = (
    *columns("urn"),
    *number_columns("version"),
    *columns("file", "result", pointer="WHERE", detail="WHAT"),
)
VALIDATION_COLUMNS: Final = columns("file", "urn", "result", pointer="WHERE", detail="WHAT")
COMPARISON_COLUMNS: Final = columns("urn", "level", pointer="WHERE", detail="WHAT")

_folder = click.argument("folder", type=EXISTING_FOLDER, metavar="FOLDER")


@click.group()
def schema() -> None:
    """Check schemas, and check payloads against them.

    FOLDER contains registry.json, {"schemas": [{"urn": "…", "schema": "FILE"}]}, and the schemas.
    """


@schema.command()
@_folder
@output_option
@click.pass_context
def check(ctx: click.Context, folder: Path, output: str | None) -> None:
    """Check that a schema folder is valid.

    Exits with 1 if it is invalid. Keywords that the broker does not check are listed, but are not
    errors.
    """
    from phpmq_lite.envelopes.schema_registry import read_registry

    registry = read_registry(folder)
    write_rows(_check_rows(registry), CHECK_COLUMNS, output, "registry.json lists no URNs")
    if registry.faults:
        ctx.exit(ERROR)


def _check_rows(registry: "SchemaRegistry") -> Iterator[dict[str, Any]]:
    for fault in registry.faults:
        row: dict[str, Any] = {"urn": None, "version": None, "file": fault.file}
        yield row | {"result": "wrong", "pointer": fault.pointer, "detail": fault.detail}
    for urn, entry in sorted(registry.entries.items()):
        row = {"urn": urn, "version": entry.version, "file": entry.file}
        yield row | {"result": "ok", "pointer": "", "detail": ""}
        for pointer in entry.schema.unchecked:
            yield row | {"result": "note", "pointer": pointer, "detail": "keyword is not checked"}


@schema.command()
@_folder
@click.argument("files", nargs=-1, required=True, metavar="FILE...", type=FILE_OR_STDIN)
@flag(
    "--plain", "Expect unencrypted payloads: reject a string in place of an x-gdpr-sensitive value."
)
@output_option
@click.pass_context
def validate(
    ctx: click.Context, folder: Path, files: tuple[Path, ...], plain: bool, output: str | None
) -> None:
    """Check the payloads of envelopes against their schemas.

    Exits with 1 if any payload is invalid. Each FILE contains one envelope; - reads standard input.
    A payload is valid if its URN has no schema.
    """
    registry = read_valid_registry(folder)
    rows = [_validation_row(registry, path, is_on_wire=not plain) for path in files]
    write_rows(rows, VALIDATION_COLUMNS, output, "")
    if any(row["result"] not in ("ok", "unregistered") for row in rows):
        ctx.exit(ERROR)


def read_valid_registry(folder: Path) -> "SchemaRegistry":
    """Return the registry of a folder's schemas; raise RegistryError if the folder is invalid."""
    from phpmq_lite.envelopes.schema_registry import RegistryError, read_registry

    registry = read_registry(folder)
    if registry.faults:
        raise RegistryError(folder, registry.faults)
    return registry


def _validation_row(registry: "SchemaRegistry", path: Path, *, is_on_wire: bool) -> dict[str, Any]:
    from phpmq_lite.envelopes.codec import decode
    from phpmq_lite.envelopes.validation import validate

    row: dict[str, Any] = {"file": str(path), "urn": None, "pointer": "", "detail": ""}
    content = read_input(path)
    verdict = validate(content)
    problem = verdict.problem
    if problem is None:
        envelope = decode(content)
        row["urn"] = envelope["job"]
        if row["urn"] not in registry.entries:
            return row | {"result": "unregistered"}
        problem = registry.check(row["urn"], envelope["data"], is_on_wire=is_on_wire)
    if problem is None:
        return row | {"result": "ok"}
    return row | {"result": problem.reason, "pointer": problem.pointer, "detail": problem.detail}


@schema.command()
@click.argument("old", type=EXISTING_PATH)
@click.argument("new", type=EXISTING_PATH)
@output_option
@click.pass_context
def compare(ctx: click.Context, old: Path, new: Path, output: str | None) -> None:
    """List the differences between two schemas.

    Exits with 1 if a difference is breaking. OLD and NEW are two schema files or two schema
    folders. If no difference is breaking, every payload that is valid under OLD is valid under NEW;
    a breaking change requires a new URN.
    """
    if old.is_dir() != new.is_dir():
        raise click.UsageError("OLD and NEW must both be files or both be folders")
    rows = list(_comparison_rows(old, new))
    write_rows(rows, COMPARISON_COLUMNS, output, "compatible: no relevant differences")
    if any(row["level"] == "breaking" for row in rows):
        ctx.exit(ERROR)


def _comparison_rows(old: Path, new: Path) -> Iterator[dict[str, Any]]:
    if not old.is_dir():
        yield from _change_rows(None, _read_schema(old), _read_schema(new))
        return
    old_entries, new_entries = (read_valid_registry(folder).entries for folder in (old, new))
    for urn in sorted(old_entries):
        if urn in new_entries:
            yield from _change_rows(urn, old_entries[urn].schema, new_entries[urn].schema)
        else:
            yield {"urn": urn, "level": "breaking", "pointer": "", "detail": "the URN was removed"}
    for urn in sorted(new_entries.keys() - old_entries.keys()):
        yield {"urn": urn, "level": "note", "pointer": "", "detail": "the URN is new"}


def _read_schema(path: Path) -> "PayloadSchema":
    from phpmq_lite.envelopes.payload_schema import SchemaError
    from phpmq_lite.envelopes.schema_registry import read_file

    try:
        return read_file(path)
    except SchemaError as error:
        raise CommandError(f"{path}: {error}") from None


def _change_rows(
    urn: str | None, old: "PayloadSchema", new: "PayloadSchema"
) -> Iterator[dict[str, Any]]:
    from phpmq_lite.envelopes.schema_compatibility import schema_changes

    for change in schema_changes(old, new):
        yield {"urn": urn, **asdict(change)}


PROBLEM_COLUMNS: Final = columns("layer", "reason", pointer="WHERE", detail="WHAT")
HINT: Final = "hint"
LAYERS: Final = {"poison": "A", "too_deep": "A"}  # all other reasons are in layer B

_file = click.argument("path", metavar="FILE|-", default="-", type=FILE_OR_STDIN)
_schemas = option(
    "--schemas",
    "Check the payload against this schema folder, which contains registry.json.",
    EXISTING_FOLDER,
)
_empty_list_data = choice(
    "--empty-list-data", "When to interpret data: [] as {}.", "php", "never", "always"
)


@click.group()
def envelope() -> None:
    """Create, check and show BabelQueue envelopes."""


@envelope.command()
@click.argument("urn")
@click.argument("data", metavar="JSON", default="{}")
@option("--queue", "Queue name in the envelope.", default="default")
@option("--trace-id", "Id of a trace to continue.  [default: a new trace]")
@_schemas
def create(urn: str, data: str, queue: str, trace_id: str | None, schemas: Path | None) -> None:
    """Create an envelope and print it.

    JSON is the envelope's data; - reads it from standard input.
    For example: phpmq-lite envelope create urn:babel:orders:created '{"order_id": 1}' --queue
    orders | phpmq-lite publish orders -
    """
    from phpmq_lite.envelopes.codec import encode, make
    from phpmq_lite.envelopes.payload_schema import SchemaError, read_json

    content = read_input(Path("-")) if data == "-" else data.encode(errors="surrogateescape")
    try:
        payload = read_json(content)
    except SchemaError as error:
        raise CommandError(f"data: {error.detail}") from None
    if not isinstance(payload, dict):
        raise CommandError("data is not a JSON object")
    if schemas is not None:
        problem = read_valid_registry(schemas).check(urn.strip(), payload)
        if problem is not None:
            raise CommandError(f"{problem.reason}: {problem.detail}")
    content = encode(make(urn, payload, queue=queue, trace_id=trace_id))
    click.echo(content, nl=sys.stdout.isatty())  # add a line feed only on a terminal


@envelope.command("check")
@_file
@flag("--consumer", "List only problems that stop consumers from handling it.")
@_schemas
@_empty_list_data
@output_option
@click.pass_context
def check_envelope(
    ctx: click.Context,
    path: Path,
    consumer: bool,
    schemas: Path | None,
    empty_list_data: Any,
    output: str | None,
) -> None:
    """List all problems with an envelope.

    Exits with 1 if any are found.
    Layer A: the envelope cannot be read. B: no consumer may handle it. C: the producer violates a
    rule. A hint recommends another form of the URN and does not count as a problem.
    """
    content = read_input(path)
    rows = list(_problems(content, schemas, empty_list_data))
    if consumer:
        rows = [row for row in rows if row["layer"] in "AB"]
    write_rows(rows, PROBLEM_COLUMNS, output, "no problems")
    if any(row["layer"] != HINT for row in rows):
        ctx.exit(ERROR)


def _problems(content: bytes, schemas: Path | None, mode: Any) -> Iterator[dict[str, Any]]:
    from phpmq_lite.envelopes.codec import decode
    from phpmq_lite.envelopes.validation import lint as all_problems
    from phpmq_lite.envelopes.validation import validate

    problems = list(all_problems(content, mode))
    if schemas is not None and validate(content, mode).problem is None:
        document = decode(content, mode)
        registry = read_valid_registry(schemas)
        mismatch = registry.check(document["job"], document["data"], is_on_wire=True)
        problems += [mismatch] if mismatch is not None else []
    for problem in sorted(problems, key=lambda problem: layer_of(problem.reason)):
        yield {
            "layer": layer_of(problem.reason),
            "reason": problem.reason,
            "pointer": problem.pointer,
            "detail": problem.detail,
        }


def layer_of(reason: str) -> str:
    """Return the layer that a reason belongs to: A, B, C or ``HINT``."""
    from phpmq_lite.envelopes.validation import CONVENTION, REASONS

    if reason == CONVENTION:
        return HINT
    return LAYERS.get(reason, "B") if reason in REASONS else "C"


@envelope.command()
@_file
@_empty_list_data
@output_option
@click.pass_context
def show(ctx: click.Context, path: Path, empty_list_data: Any, output: str | None) -> None:
    """Show an envelope's verdict and fields.

    Exits with 1 if no consumer may handle it.
    """
    from phpmq_lite.envelopes.validation import validate

    content = read_input(path)
    verdict = validate(content, empty_list_data)
    problem = verdict.problem
    record: dict[str, Any] = {"verdict": "valid"}
    if problem is not None:
        record["verdict"] = f"{problem.reason}: {problem.detail}"
    if verdict.is_tolerated:
        record["tolerated"] = "data: [] is read as {}"
    if verdict.warnings:
        record["warning"] = "; ".join(verdict.warnings)
    try:
        document = json.loads(content.decode("utf-8"))
    except (ValueError, RecursionError):
        document = None
    style = output_format(output)
    is_json = style in ("json", "jsonl")
    write_record(record | ({"envelope": document} if is_json else _flat_members(document)), style)
    if problem is not None:
        ctx.exit(ERROR)


def _flat_members(document: Any) -> dict[str, str]:
    members: dict[str, str] = {}
    for key, value in document.items() if isinstance(document, dict) else ():
        if key in ("meta", "dead_letter") and isinstance(value, dict):
            members |= {f"{key}.{name}": _format_value(inner) for name, inner in value.items()}
        else:
            members[key] = _format_value(value)
    return members


def _format_value(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
