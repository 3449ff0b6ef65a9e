"""``export`` and ``import``: messages as JSON lines or CSV, out of a broker and into one."""

import asyncio
import json
import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any, Final

import click

from phpmq_lite.cli.main import CommandError
from phpmq_lite.cli.node import Node, node_options, read_answer
from phpmq_lite.cli.options import message_count, talk
from phpmq_lite.cli.output import counting

_PIECE: Final = 500  # messages in one request, all or none
_PIECE_BYTES: Final = 1 << 20


@click.command()
@click.argument("query", default="")
@click.option(
    "--format", "style", type=click.Choice(["jsonl", "csv"]), default="jsonl", show_default=True,
    help="JSON lines carry the bodies and can be imported.",
)  # fmt: skip
@node_options
def export(node: Node, query: str, style: str) -> None:
    """Write all messages that match QUERY to standard output.

    JSON lines end with a line that says `complete`; without it the export was cut off.
    """
    lines = asyncio.run(_copy(node, query, style))
    talk(f"{lines:,} lines")


async def _copy(node: Node, query: str, style: str) -> int:
    lines, last = 0, b""
    asked = {"q": query, "format": style}
    async with node.open("GET", "/export", query=asked, timeout_s=None) as response:
        if response.status != 200:
            read_answer(response.status, await response.read())
        total = int(response.headers.get("X-Total-Count", 0)) or None
        with counting("export", total) as advance:
            async for piece in response.content.iter_any():
                sys.stdout.buffer.write(piece)
                count = piece.count(b"\n")
                lines += count
                advance(count)
                last = (last + piece)[-200:]
    sys.stdout.buffer.flush()
    if style == "jsonl" and b'"complete": true' not in last.replace(b'":t', b'": t'):
        raise CommandError("the export was cut off: its last line does not say complete")
    return lines


@click.command("import")
@click.argument("file", type=click.File("r", encoding="utf-8"), default="-")
@click.option("--queue", help="Into this queue, whatever the lines say.")
@click.option("--dry-run", is_flag=True, help="Check all lines, store nothing.")
@node_options
def import_(node: Node, file: Any, queue: str | None, dry_run: bool) -> None:
    """Publish the messages of FILE: an export, or lines of {queue, content, encoding, ttl_s}.

    All lines are read and checked before the first is stored. Where the broker refuses one even so,
    as too large or as its queue is full, it ends there and says how many are stored.
    """
    messages = list(_messages(file, queue))
    if dry_run:
        talk(f"{message_count(len(messages))} can be imported")
        return
    stored = 0
    rest = iter(messages)
    try:
        with counting("import", len(messages)) as advance:
            while piece := list(islice(rest, _PIECE)):
                for part in _cut(piece):
                    stored += int(node.post("/import", {"messages": part})["stored"])
                    advance(len(part))
    except CommandError:
        if stored:
            talk(f"{message_count(stored)} stored, from the beginning of it; then:")
        raise
    talk(f"{message_count(stored)} stored")


def _cut(piece: list[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    """Cut so that a request stays small, whatever the bodies are."""
    part: list[dict[str, Any]] = []
    size = 0
    for message in piece:
        if part and size + len(message["content"]) > _PIECE_BYTES:
            yield part
            part, size = [], 0
        part.append(message)
        size += len(message["content"])
    yield part


def _messages(file: Any, queue: str | None) -> Iterator[dict[str, Any]]:
    from phpmq_lite.admin.api.imports import problem_with

    name = Path(str(getattr(file, "name", "-"))).name
    has_ids = is_complete = False
    for number, line in enumerate(file, 1):
        if not line.strip():
            continue
        try:
            found = json.loads(line)
        except ValueError as error:
            raise CommandError(f"{name}: line {number} is not JSON: {error}") from None
        if not isinstance(found, dict):
            raise CommandError(f"{name}: line {number} is no JSON object")
        if found.get("complete") is True:
            is_complete = True
            continue
        has_ids |= "id" in found
        target = queue or found.get("queue")
        if not isinstance(found.get("content"), str) or not isinstance(target, str):
            raise CommandError(f"{name}: line {number} has no content, or names no queue")
        message = {key: found[key] for key in ("content", "encoding", "ttl_s") if key in found}
        message |= {"queue": target}
        if wrong := problem_with(message):
            raise CommandError(f"{name}: line {number}: {wrong}")
        yield message
    if has_ids and not is_complete:
        talk(f"{name} looks like an export without its end: no line says complete; was it cut off?")
