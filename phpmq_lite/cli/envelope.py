"""The group ``envelope``: make, check and show BabelQueue envelopes, without a broker."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import click

from phpmq_lite.cli.main import ERROR, CommandError
from phpmq_lite.cli.options import read_content
from phpmq_lite.cli.output import Column, output_option, style_of, write, write_one
from phpmq_lite.cli.schema import right_registry

COLUMNS: Final = (
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
    from phpmq_lite.envelopes.schema import SchemaError, read_json

    content = read_content(Path("-")) if data == "-" else data.encode(errors="surrogateescape")
    try:
        payload = read_json(content)
    except SchemaError as error:
        raise CommandError(f"data: {error.detail}") from None
    if not isinstance(payload, dict):
        raise CommandError("data is not an object")
    if schemas is not None:
        problem = right_registry(schemas).check(urn.strip(), payload)
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
    content = read_content(path)
    rows = list(_problems(content, schemas, empty_list_data))
    if consumer:
        rows = [row for row in rows if row["layer"] in "AB"]
    write(rows, COLUMNS, output, "nothing is wrong")
    if any(row["layer"] != HINT for row in rows):
        ctx.exit(ERROR)


def _problems(content: bytes, schemas: Path | None, mode: Any) -> Iterator[dict[str, Any]]:
    from phpmq_lite.envelopes.codec import decode
    from phpmq_lite.envelopes.verdict import judge
    from phpmq_lite.envelopes.verdict import lint as all_problems

    found = list(all_problems(content, mode))
    if schemas is not None and judge(content, mode).problem is None:
        whole = decode(content, mode)
        problem = right_registry(schemas).check(whole["job"], whole["data"], is_sent=True)
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
    from phpmq_lite.envelopes.verdict import judge

    content = read_content(path)
    verdict = judge(content, empty_list_data)
    problem = verdict.problem
    said = {"verdict": "fine" if problem is None else f"{problem.reason}: {problem.detail}"}
    said |= {"tolerated": "data: [] is read as {}"} if verdict.is_tolerated else {}
    said |= {"warning": "; ".join(verdict.warnings)} if verdict.warnings else {}
    whole = said | {"envelope": _whole(content)}
    style = style_of(output)
    write_one(whole if style in ("json", "jsonl") else dict(_lines(whole)), style)
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
