"""The group ``schema``: a registry folder, payloads against it, two versions of a schema.

Needs no broker: it reads files, so that it can stand in the checks of a repository.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from phpmq_lite.cli.main import ERROR, CommandError
from phpmq_lite.cli.options import read_content
from phpmq_lite.cli.output import Column, output_option, write

if TYPE_CHECKING:
    from phpmq_lite.envelopes.schema import Registry, Schema

CHECKED: Final = (
    Column("urn", "URN"),
    Column("version", "VERSION", is_number=True),
    Column("file", "FILE"),
    Column("result", "RESULT"),
    Column("pointer", "WHERE"),
    Column("detail", "WHAT"),
)
VALIDATED: Final = (
    Column("file", "FILE"),
    Column("urn", "URN"),
    Column("result", "RESULT"),
    Column("pointer", "WHERE"),
    Column("detail", "WHAT"),
)
COMPARED: Final = (
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
    from phpmq_lite.envelopes.schema import read_registry

    found = read_registry(folder)
    write(_checked(found), CHECKED, output, "registry.json names no URN")
    if found.faults:
        ctx.exit(ERROR)


def _checked(found: "Registry") -> Iterator[dict[str, Any]]:
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
    registry = right_registry(folder)
    rows = [_validated(registry, path, is_sent=not plain) for path in files]
    write(rows, VALIDATED, output, "")
    if any(row["result"] not in ("ok", "unregistered") for row in rows):
        ctx.exit(ERROR)


def right_registry(folder: Path) -> "Registry":
    """Read a folder that has to be right.

    Raises:
        RegistryError: it is not.
    """
    from phpmq_lite.envelopes.schema import RegistryError, read_registry

    found = read_registry(folder)
    if found.faults:
        raise RegistryError(folder, found.faults)
    return found


def _validated(registry: "Registry", path: Path, *, is_sent: bool) -> dict[str, Any]:
    from phpmq_lite.envelopes.codec import decode
    from phpmq_lite.envelopes.verdict import judge

    row: dict[str, Any] = {"file": str(path), "urn": None, "pointer": "", "detail": ""}
    content = read_content(path)
    verdict = judge(content)
    problem = verdict.problem
    if problem is None:
        envelope = decode(content)
        row["urn"] = envelope["job"]
        if row["urn"] not in registry.entries:
            return row | {"result": "unregistered"}
        problem = registry.check(row["urn"], envelope["data"], is_sent=is_sent)
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
    write(rows, COMPARED, output, "compatible: nothing differs that matters")
    if any(row["level"] == "breaking" for row in rows):
        ctx.exit(ERROR)


def _compared(old: Path, new: Path) -> Iterator[dict[str, Any]]:
    if not old.is_dir():
        yield from _changes(None, _schema_in(old), _schema_in(new))
        return
    before, after = right_registry(old).entries, right_registry(new).entries
    for urn in sorted(before):
        if urn in after:
            yield from _changes(urn, before[urn].schema, after[urn].schema)
        else:
            yield {"urn": urn, "level": "breaking", "pointer": "", "detail": "it is gone"}
    for urn in sorted(after.keys() - before.keys()):
        yield {"urn": urn, "level": "note", "pointer": "", "detail": "it is new"}


def _schema_in(path: Path) -> "Schema":
    from phpmq_lite.envelopes.schema import SchemaError, read_file

    try:
        return read_file(path)
    except SchemaError as error:
        raise CommandError(f"{path}: {error}") from None


def _changes(urn: str | None, old: "Schema", new: "Schema") -> Iterator[dict[str, Any]]:
    from phpmq_lite.envelopes.schema import compare

    for one in compare(old, new):
        yield {"urn": urn, "level": one.level, "pointer": one.pointer, "detail": one.detail}
