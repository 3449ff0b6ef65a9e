"""The ``frame`` command group, which explains protocol bytes without a broker."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from phpmq_lite.cli.errors import ERROR, CommandError
from phpmq_lite.cli.output import output_format, output_option, write_record
from phpmq_lite.cli.parameters import FILE_OR_STDIN, choice, read_input


@click.group()
def frame() -> None:
    """Explain PHPMQ protocol bytes without a broker."""


@frame.command()
@click.argument("path", metavar="FILE|-", default="-", type=FILE_OR_STDIN)
@choice(
    ("--as", "encoding"),
    "Input encoding; auto treats input that starts with H01 as raw.",
    "auto",
    "raw",
    "hex",
    "base64",
)
@output_option
@click.pass_context
def explain(ctx: click.Context, path: Path, encoding: Any, output: str | None) -> None:
    """Explain the frames in a byte stream, and the broker's reaction.

    FILE contains the bytes sent in one direction of a connection, from its start. Exits with
    1 if a byte is invalid. For example: echo 483031303032303250… | phpmq-lite frame explain
    """
    from phpmq_lite.server import frame_explanation

    try:
        data = frame_explanation.pasted_bytes(read_input(path), encoding)
    except frame_explanation.UnreadableError as error:
        raise CommandError(str(error)) from None
    explanation = frame_explanation.as_data(frame_explanation.explain_bytes(data))
    style = output_format(output)
    if style in ("json", "jsonl"):
        write_record(explanation, style)
    else:
        for line in _describe(explanation):
            click.echo(line)
    if explanation["wrong"] is not None:
        ctx.exit(ERROR)


def _describe(explanation: dict[str, Any]) -> Iterator[str]:
    from phpmq_lite.admin.formats import escape_hidden

    yield f"sent by        the {explanation['sender']}"
    yield f"framing        {explanation['framing']}"
    yield f"packet header  {explanation['packet_header']} bytes"
    yield f"revision       {explanation['revision']}"
    for number, frame_row in enumerate(explanation["frames"], 1):
        yield ""
        yield f"{number}. {frame_row['kind']}, {frame_row['size']:,} bytes"
        yield from _describe_pieces(frame_row)
        yield f"   {escape_hidden(frame_row['outcome'])}"
    if explanation["begun"] is not None:
        yield ""
        yield f"{len(explanation['frames']) + 1}. incomplete"
        yield from _describe_pieces(explanation["begun"])
    yield ""
    error = explanation["wrong"]
    if error is not None:
        yield f"invalid byte at offset {error['offset']:,}: {error['code']}"
        yield f"   {escape_hidden(error['detail'])}"
        yield f"   expected {error['expected']}"
        parts = (escape_hidden(error[name]) for name in ("before", "bad", "after"))
        yield "   {}>>{}<<{}".format(*parts)
    yield explanation["conclusion"]


def _describe_pieces(frame_row: dict[str, Any]) -> Iterator[str]:
    from phpmq_lite.admin.formats import escape_hidden

    texts = [escape_hidden(piece["bytes"]) for piece in frame_row["pieces"]]
    width = min(60, max(map(len, texts)))
    for text, piece in zip(texts, frame_row["pieces"], strict=True):
        more = f" ({piece['cut']:,} more bytes)" if piece["cut"] else ""
        yield f"   {text:{width}}  {escape_hidden(piece['meaning'])}{more}"
