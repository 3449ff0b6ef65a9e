"""The ``frame`` command group, which explains protocol bytes without a broker."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from phpmq_lite.cli.errors import ERROR, CommandError
from phpmq_lite.cli.output import output_format, output_option, write_record
from phpmq_lite.cli.parameters import FILE_OR_STDIN, read_input


@click.group()
def frame() -> None:
    """Explain PHPMQ protocol bytes without a broker."""


@frame.command()
@click.argument("path", metavar="FILE|-", default="-", type=FILE_OR_STDIN)
@click.option(
    "--as", "encoding", type=click.Choice(["auto", "raw", "hex", "base64"]), default="auto",
    show_default=True, help="Input encoding; auto treats input that starts with H01 as raw.",
)  # fmt: skip
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
    found = frame_explanation.as_data(frame_explanation.explain_bytes(data))
    style = output_format(output)
    if style in ("json", "jsonl"):
        write_record(found, style)
    else:
        for line in _describe(found):
            click.echo(line)
    if found["wrong"] is not None:
        ctx.exit(ERROR)


def _describe(found: dict[str, Any]) -> Iterator[str]:
    from phpmq_lite.admin.formats import escape_hidden

    yield f"sent by        the {found['sender']}"
    yield f"framing        {found['framing']}"
    yield f"packet header  {found['packet_header']} bytes"
    yield f"revision       {found['revision']}"
    for number, one in enumerate(found["frames"], 1):
        yield ""
        yield f"{number}. {one['kind']}, {one['size']:,} bytes"
        yield from _describe_pieces(one)
        yield f"   {escape_hidden(one['outcome'])}"
    if found["begun"] is not None:
        yield ""
        yield f"{len(found['frames']) + 1}. incomplete"
        yield from _describe_pieces(found["begun"])
    yield ""
    wrong = found["wrong"]
    if wrong is not None:
        yield f"invalid byte at offset {wrong['offset']:,}: {wrong['code']}"
        yield f"   {escape_hidden(wrong['detail'])}"
        yield f"   expected {wrong['expected']}"
        parts = (escape_hidden(wrong[name]) for name in ("before", "bad", "after"))
        yield "   {}>>{}<<{}".format(*parts)
    yield found["conclusion"]


def _describe_pieces(one: dict[str, Any]) -> Iterator[str]:
    from phpmq_lite.admin.formats import escape_hidden

    shown = [escape_hidden(piece["bytes"]) for piece in one["pieces"]]
    width = min(60, max(map(len, shown)))
    for text, piece in zip(shown, one["pieces"], strict=True):
        rest = f" ({piece['cut']:,} more bytes)" if piece["cut"] else ""
        yield f"   {text:{width}}  {escape_hidden(piece['meaning'])}{rest}"
