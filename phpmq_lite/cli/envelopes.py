"""The groups ``envelope`` and ``schema``: create, check and show envelopes, without a broker."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from phpmq_lite.cli.errors import ERROR, CommandError
from phpmq_lite.cli.output import Column, output_format, output_option, write_record, write_rows
from phpmq_lite.cli.parameters import read_input

if TYPE_CHECKING:
    from phpmq_lite.envelopes.payload_schema import PayloadSchema
    from phpmq_lite.envelopes.schema_registry import SchemaRegistry

CHECK_COLUMNS: Final = (
    Column("urn", "URN"),
    Column("version", "VERSION", is_number=True),
    Column("file", "FILE"),
    Column("result", "RESULT"),
    Column("pointer", "WHERE"),
    Column("detail", "WHAT"),
)
VALIDATION_COLUMNS: Final = (
    Column("file", "FILE"),
    Column("urn", "URN"),
    Column("result", "RESULT"),
    Column("pointer", "WHERE"),
    Column("detail", "WHAT"),
)
COMPARISON_COLUMNS: Final = (
    Column("urn", "URN"),
    Column("level", "LEVEL"),
    Column("pointer", "WHERE"),
    Column("detail", "WHAT"),
)

_folder = click.argument(
    "folder", type=click.Path(exists=True, file_okay=False, path_type=Path), metavar="FOLDER"
)


@click.group()
def schema() -> None:
    """Check schemas of payloads, and payloads by them.

    FOLDER has registry.json: {"schemas": [{"urn": "…", "schema": "FILE"}]}, and the files.
    """


@schema.command()
@_folder
@output_option
@click.pass_context
def check(ctx: click.Context, folder: Path, output: str | None) -> None:
    """Check that FOLDER can be used; exit 1 where it cannot.

    A word of a schema that is not looked at is told, and is no error.
    """
    from phpmq_lite.envelopes.schema_registry import read_registry

    found = read_registry(folder)
    write_rows(_checked(found), CHECK_COLUMNS, output, "registry.json names no URN")
    if found.faults:
        ctx.exit(ERROR)


def _checked(found: "SchemaRegistry") -> Iterator[dict[str, Any]]:
    for fault in found.faults:
        yield {
            "urn": None, "version": None, "file": fault.file, "result": "wrong",
            "pointer": fault.pointer, "detail": fault.detail,
        }  # fmt: skip
    for urn in sorted(found.entries):
        entry = found.entries[urn]
        row = {"urn": urn, "version": entry.version, "file": entry.file}
        yield row | {"result": "ok", "pointer": "", "detail": ""}
        for pointer in entry.schema.unchecked:
            yield row | {"result": "note", "pointer": pointer, "detail": "is not looked at"}


@schema.command()
@_folder
@click.argument(
    "files", nargs=-1, required=True, metavar="FILE...",
    type=click.Path(exists=True, dir_okay=False, allow_dash=True, path_type=Path),
)  # fmt: skip
@click.option(
    "--plain", is_flag=True,
    help="Nothing is encrypted yet: a string does not stand for what is marked x-gdpr-sensitive.",
)  # fmt: skip
@output_option
@click.pass_context
def validate(
    ctx: click.Context, folder: Path, files: tuple[Path, ...], plain: bool, output: str | None
) -> None:
    """Check the payloads of envelopes in files; exit 1 where one is wrong.

    Each FILE has one envelope, - is standard input. A URN without a schema is not wrong.
    """
    registry = read_valid_registry(folder)
    rows = [_validated(registry, path, is_on_wire=not plain) for path in files]
    write_rows(rows, VALIDATION_COLUMNS, output, "")
    if any(row["result"] not in ("ok", "unregistered") for row in rows):
        ctx.exit(ERROR)


def read_valid_registry(folder: Path) -> "SchemaRegistry":
    """Read a folder that has to be right.

    Raises:
        RegistryError: it is not.
    """
    from phpmq_lite.envelopes.schema_registry import RegistryError, read_registry

    found = read_registry(folder)
    if found.faults:
        raise RegistryError(folder, found.faults)
    return found


def _validated(registry: "SchemaRegistry", path: Path, *, is_on_wire: bool) -> dict[str, Any]:
    from phpmq_lite.envelopes.codec import decode
    from phpmq_lite.envelopes.verdict import validate

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
    return row | {
        "result": problem.reason, "pointer": problem.pointer, "detail": problem.detail
    }  # fmt: skip


@schema.command()
@click.argument("old", type=click.Path(exists=True, path_type=Path))
@click.argument("new", type=click.Path(exists=True, path_type=Path))
@output_option
@click.pass_context
def compat(ctx: click.Context, old: Path, new: Path, output: str | None) -> None:
    """Tell what of NEW breaks those who know OLD; exit 1 where anything does.

    Both are files with a schema, or both are folders with a registry. What was valid under OLD is
    valid under NEW where nothing breaks; what breaks needs a new URN.
    """
    if old.is_dir() != new.is_dir():
        raise click.UsageError("OLD and NEW are two files, or two folders")
    rows = list(_compared(old, new))
    write_rows(rows, COMPARISON_COLUMNS, output, "compatible: nothing differs that matters")
    if any(row["level"] == "breaking" for row in rows):
        ctx.exit(ERROR)


def _compared(old: Path, new: Path) -> Iterator[dict[str, Any]]:
    if not old.is_dir():
        yield from _changes(None, _schema_in(old), _schema_in(new))
        return
    before, after = read_valid_registry(old).entries, read_valid_registry(new).entries
    for urn in sorted(before):
        if urn in after:
            yield from _changes(urn, before[urn].schema, after[urn].schema)
        else:
            yield {"urn": urn, "level": "breaking", "pointer": "", "detail": "it is gone"}
    for urn in sorted(after.keys() - before.keys()):
        yield {"urn": urn, "level": "note", "pointer": "", "detail": "it is new"}


def _schema_in(path: Path) -> "PayloadSchema":
    from phpmq_lite.envelopes.payload_schema import SchemaError
    from phpmq_lite.envelopes.schema_registry import read_file

    try:
        return read_file(path)
    except SchemaError as error:
        raise CommandError(f"{path}: {error}") from None


def _changes(
    urn: str | None, old: "PayloadSchema", new: "PayloadSchema"
) -> Iterator[dict[str, Any]]:
    from phpmq_lite.envelopes.schema_compatibility import schema_changes

    for one in schema_changes(old, new):
        yield {"urn": urn, "level": one.level, "pointer": one.pointer, "detail": one.detail}


PROBLEM_COLUMNS: Final = (
    Column("layer", "LAYER"),
    Column("reason", "REASON"),
    Column("pointer", "WHERE"),
    Column("detail", "WHAT"),
)
HINT: Final = "hint"
LAYERS: Final = {"poison": "A", "too_deep": "A"}  # the other reasons of a verdict are B's

_file = click.argument(
    "path", metavar="FILE|-", default="-",
    type=click.Path(exists=True, dir_okay=False, allow_dash=True, path_type=Path),
)  # fmt: skip
_schemas = click.option(
    "--schemas", type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Folder with registry.json: the payload is checked by it too.",
)  # fmt: skip
_empty_list_data = click.option(
    "--empty-list-data", type=click.Choice(["php", "never", "always"]), default="php",
    show_default=True, help="Where data: [] counts as {}.",
)  # fmt: skip


@click.group()
def envelope() -> None:
    """Make, check and show BabelQueue envelopes."""


@envelope.command()
@click.argument("urn")
@click.argument("data", metavar="JSON", default="{}")
@click.option("--queue", default="default", show_default=True, help="The queue it is made for.")
@click.option("--trace-id", help="Goes on with a trace.  [default: a new one]")
@_schemas
def make(urn: str, data: str, queue: str, trace_id: str | None, schemas: Path | None) -> None:
    """Write an envelope to standard output; JSON is its data, - reads that from standard input.

    For example: phpmq-lite envelope make urn:babel:orders:created '{"order_id": 1}' --queue
    orders | phpmq-lite publish orders -
    """
    from phpmq_lite.envelopes.codec import encode
    from phpmq_lite.envelopes.codec import make as make_envelope
    from phpmq_lite.envelopes.payload_schema import SchemaError, read_json

    content = read_input(Path("-")) if data == "-" else data.encode(errors="surrogateescape")
    try:
        payload = read_json(content)
    except SchemaError as error:
        raise CommandError(f"data: {error.detail}") from None
    if not isinstance(payload, dict):
        raise CommandError("data is not an object")
    if schemas is not None:
        problem = read_valid_registry(schemas).check(urn.strip(), payload)
        if problem is not None:
            raise CommandError(f"{problem.reason}: {problem.detail}")
    made = encode(make_envelope(urn, payload, queue=queue, trace_id=trace_id))
    click.echo(made, nl=sys.stdout.isatty())  # a pipe gets the bytes and nothing else


@envelope.command()
@_file
@click.option("--consumer", is_flag=True, help="Only what keeps consumers from handling it.")
@_schemas
@_empty_list_data
@output_option
@click.pass_context
def lint(
    ctx: click.Context,
    path: Path,
    consumer: bool,
    schemas: Path | None,
    empty_list_data: Any,
    output: str | None,
) -> None:
    """Show everything that is wrong with an envelope; exit 1 if anything is.

    Layer A: it cannot be read. B: no consumer may handle it. C: its producer owes more. A hint is
    about the recommended form of the URN; it is never a reason to refuse, nor for exit 1.
    """
    content = read_input(path)
    rows = list(_problems(content, schemas, empty_list_data))
    if consumer:
        rows = [row for row in rows if row["layer"] in "AB"]
    write_rows(rows, PROBLEM_COLUMNS, output, "nothing is wrong")
    if any(row["layer"] != HINT for row in rows):
        ctx.exit(ERROR)


def _problems(content: bytes, schemas: Path | None, mode: Any) -> Iterator[dict[str, Any]]:
    from phpmq_lite.envelopes.codec import decode
    from phpmq_lite.envelopes.verdict import lint as all_problems
    from phpmq_lite.envelopes.verdict import validate

    found = list(all_problems(content, mode))
    if schemas is not None and validate(content, mode).problem is None:
        whole = decode(content, mode)
        problem = read_valid_registry(schemas).check(whole["job"], whole["data"], is_on_wire=True)
        found += [problem] if problem is not None else []
    for one in sorted(found, key=lambda problem: layer_of(problem.reason)):
        layer = layer_of(one.reason)
        yield {"layer": layer, "reason": one.reason, "pointer": one.pointer, "detail": one.detail}


def layer_of(reason: str) -> str:
    """Return the layer of a reason: A, B, C or ``HINT``."""
    from phpmq_lite.envelopes.verdict import CONVENTION, REASONS

    if reason == CONVENTION:
        return HINT
    return LAYERS.get(reason, "B") if reason in REASONS else "C"


@envelope.command()
@_file
@_empty_list_data
@output_option
@click.pass_context
def show(ctx: click.Context, path: Path, empty_list_data: Any, output: str | None) -> None:
    """Show what an envelope says, its verdict first; exit 1 where no consumer may handle it."""
    from phpmq_lite.envelopes.verdict import validate

    content = read_input(path)
    verdict = validate(content, empty_list_data)
    problem = verdict.problem
    said = {"verdict": "fine" if problem is None else f"{problem.reason}: {problem.detail}"}
    said |= {"tolerated": "data: [] is read as {}"} if verdict.is_tolerated else {}
    said |= {"warning": "; ".join(verdict.warnings)} if verdict.warnings else {}
    whole = said | {"envelope": _whole(content)}
    style = output_format(output)
    write_record(whole if style in ("json", "jsonl") else dict(_lines(whole)), style)
    if problem is not None:
        ctx.exit(ERROR)


def _whole(content: bytes) -> Any:
    """Read the content for a look at it; None where it is no JSON."""
    try:
        return json.loads(content.decode("utf-8"))
    except (ValueError, RecursionError):
        return None


def _lines(whole: dict[str, Any]) -> Iterator[tuple[str, str]]:
    content = whole.pop("envelope")
    yield from whole.items()
    for key, value in content.items() if isinstance(content, dict) else ():
        if key in ("meta", "dead_letter") and isinstance(value, dict):
            yield from ((f"{key}.{name}", _text(inner)) for name, inner in value.items())
        else:
            yield key, _text(value)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
